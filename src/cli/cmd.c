/* Command lines: dispatch, help, errors. One thread. */
#include "cli/cmd.h"

#include "base/cleanup.h"

#include <string.h>

#define COMMANDS_MAX 64

void vg_cmd_say(const char *fmt, ...) {
    char text[VG_ERR_MAX + 64];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    fprintf(stderr, "virga: %s\n", text);
}

int vg_cmd_fail(const struct vg_err *err) {
    vg_cmd_say("%s", err->msg);
    return vg_reason_exit(err->reason);
}

int vg_cmd_fail_opt(struct vg_cmd_line *l) {
    return vg_cmd_fail(&l->st.err);
}

static void usage(FILE *out, const struct vg_cmd_line *l) {
    const char *args = l->cmd->args;
    fprintf(out, "usage: %s [options]%s%s\n\n%s\n\n", l->program, *args ? " " : "", args,
            l->cmd->summary ? l->cmd->summary : "");
    vg_opt_help(out, l->cmd->opts, l->cmd->n_opts);
}

static int set_output(struct vg_cmd_line *l, const char *arg) {
    static const char *const formats[] = {"table", "json", NULL};
    int which;
    int r = vg_opt_choice(&l->st, arg, formats, &which);
    if (r == 0)
        l->json = which == 1;
    return r;
}

int vg_cmd_next(struct vg_cmd_line *l, const char **ret_arg) {
    for (;;) {
        int id = vg_opt_next(&l->st, ret_arg);
        if (id == VG_OPT_ARG) {
            /* argv before the index has been read, so the array can hold what is kept */
            l->args[l->n_args++] = (char *)*ret_arg;
            continue;
        }
        if (id == VG_OPT_HELP) {
            usage(stdout, l);
            l->exit = 0;
            return VG_OPT_ERROR;
        }
        if (id == 'o' && set_output(l, *ret_arg) == 0)
            continue;
        if (id == 'o' || id == VG_OPT_ERROR) {
            l->exit = vg_cmd_fail_opt(l);
            return VG_OPT_ERROR;
        }
        return id;
    }
}

bool vg_cmd_args(struct vg_cmd_line *l, int min, int max) {
    if (l->n_args >= min && (max < 0 || l->n_args <= max))
        return true;
    if (l->n_args < min)
        vg_cmd_say("'%s' needs %s: '%s --help' explains", l->program, l->cmd->args, l->program);
    else
        vg_cmd_say("'%s' does not take '%.60s': '%s --help' explains", l->program, l->args[max],
                   l->program);
    l->exit = vg_reason_exit(VG_INVALID);
    return false;
}

bool vg_cmd_plain(struct vg_cmd_line *l, int min, int max) {
    const char *arg;
    return vg_cmd_next(l, &arg) == VG_OPT_END && vg_cmd_args(l, min, max);
}

void vg_cmd_help(FILE *out, const char *program, const struct vg_cmd *subs, size_t n) {
    fprintf(out, "usage: %s COMMAND [options]\n\n", program);
    for (size_t i = 0; i < n; i++) {
        char left[64];
        if (!subs[i].summary)
            continue;
        snprintf(left, sizeof(left), "%s%s%s", subs[i].name,
                 subs[i].subs || !*subs[i].args ? "" : " ", subs[i].subs ? "" : subs[i].args);
        fprintf(out, "  %-28s%s\n", left, subs[i].summary);
    }
    fprintf(out, "\n'%s COMMAND --help' tells more about each.\n", program);
}

static int unknown(const char *program, const char *typed, const struct vg_cmd *subs, size_t n) {
    const char *words[COMMANDS_MAX];
    size_t m = VG_MIN(n, (size_t)COMMANDS_MAX);
    for (size_t i = 0; i < m; i++)
        words[i] = subs[i].summary ? subs[i].name : NULL;
    const char *near = vg_nearest(typed, words, m);
    if (near)
        vg_cmd_say("unknown command '%.60s': did you mean '%s %s'?", typed, program, near);
    else
        vg_cmd_say("unknown command '%.60s': '%s help' lists the commands", typed, program);
    return vg_reason_exit(VG_INVALID);
}

static int run(const char *program, const struct vg_cmd *c, int argc, char **argv) {
    if (c->raw)
        return c->raw(argc, argv);
    struct vg_cmd_line l = {.cmd = c, .args = argv};
    snprintf(l.program, sizeof(l.program), "%s %s", program, c->name);
    if (c->subs)
        return vg_cmd_dispatch(l.program, c->subs, c->n_subs, argc, argv);
    l.st = (struct vg_opt_state){.program = l.program,
                                 .opts = c->opts,
                                 .n_opts = c->n_opts,
                                 .argc = argc,
                                 .argv = argv,
                                 .index = 1};
    return c->run(&l);
}

int vg_cmd_dispatch(const char *program, const struct vg_cmd *subs, size_t n, int argc,
                    char **argv) {
    if (argc < 2) {
        vg_cmd_help(stderr, program, subs, n);
        return vg_reason_exit(VG_INVALID);
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        vg_cmd_help(stdout, program, subs, n);
        return 0;
    }
    for (size_t i = 0; i < n; i++)
        if (strcmp(subs[i].name, name) == 0)
            return run(program, &subs[i], argc - 1, argv + 1);
    if (*name == '-')
        vg_cmd_say("unknown option '%.60s': '%s --help' lists the commands", name, program);
    else
        return unknown(program, name, subs, n);
    return vg_reason_exit(VG_INVALID);
}
