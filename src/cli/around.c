/* vrun's options around a word, and vrun as a child; see the header. One thread. */
#include "cli/around.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/spec-opts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int refuse(const struct vg_around *a, const struct vg_spec_opts *o, struct vg_err *err) {
    const char *what = o->detach         ? "--detach"
                       : o->spec.session ? "--session"
                       : o->dry_run      ? "--dry-run"
                                         : NULL;
    if (!what)
        return 0;
    return vg_err_set(err, VG_INVALID, "'%s' has no %s: leave it away, or use vrun itself",
                      a->program, what);
}

static int read_part(struct vg_around *a, struct vg_opt_state *st, struct vg_spec_opts *o,
                     bool *ret_dashes, struct vg_err *err) {
    const char *arg;
    int from = st->index, id;
    while ((id = vg_opt_next(st, &arg)) != VG_OPT_END) {
        if (id == VG_OPT_HELP) {
            printf("%s\nOptions:\n", a->usage);
            vg_opt_help(stdout, st->opts, st->n_opts);
            return 1;
        }
        if (id == VG_OPT_ERROR || vg_spec_opt(o, st, id, arg) < 0) {
            *err = st->err;
            return err->code;
        }
    }
    *ret_dashes = st->index > from && strcmp(st->argv[st->index - 1], "--") == 0;
    for (int i = from; i < st->index - *ret_dashes; i++)
        a->options[a->n_options++] = st->argv[i];
    return 0;
}

int vg_around_read(struct vg_around *a, int argc, char **argv, struct vg_err *err) {
    vg_auto_free struct vg_spec_opts *o = vg_alloc(sizeof(*o)); /* large */
    struct vg_opt_state st = {
        .program = a->program, .argc = argc, .argv = argv, .index = 1, .stop_at_first = true};
    bool dashes = false;
    if (!o)
        return vg_err_sys(err, ENOMEM, "cannot read the command line");
    vg_spec_opts_init(o, false);
    st.opts = vg_spec_table(false, &st.n_opts);
    int r = read_part(a, &st, o, &dashes, err);
    if (r == 0 && !dashes && st.index < argc) {
        a->word = argv[st.index++];
        r = read_part(a, &st, o, &dashes, err);
    }
    a->rest = st.index;
    if (r == 0)
        r = refuse(a, o, err);
    vg_spec_values_done(&o->spec);
    return r;
}

pid_t vg_around_start(char *const *words, int in, int out, struct vg_err *err) {
    size_t n = 0;
    while (words[n])
        n++;
    vg_auto_free char **argv = vg_alloc((n + 3) * sizeof(*argv));
    if (!argv)
        return vg_err_sys(err, ENOMEM, "cannot start vrun");
    argv[0] = (char *)"virga";
    argv[1] = (char *)"run";
    memcpy(argv + 2, words, n * sizeof(*argv));
    pid_t pid = fork();
    if (pid == 0) {
        if ((in >= 0 && dup2(in, STDIN_FILENO) < 0) || (out >= 0 && dup2(out, STDOUT_FILENO) < 0))
            _exit(126);
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    return pid < 0 ? vg_err_sys(err, errno, "cannot start a process") : pid;
}

int vg_around_wait(pid_t pid) {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

ssize_t vg_around_line(int fd, char out[static VG_AROUND_LINE]) {
    size_t n = 0;
    while (n + 1 < VG_AROUND_LINE) {
        ssize_t got = read(fd, out + n, 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? -errno : 0;
        if (out[n] == '\n') {
            out[n] = 0;
            return (ssize_t)n;
        }
        n++;
    }
    return -EPROTO;
}

int vg_around_relay(int fd) {
    static char data[1 << 17];
    for (;;) {
        ssize_t n = read(fd, data, sizeof(data));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : 0;
        int r = vg_write_full(STDOUT_FILENO, data, (size_t)n);
        if (r < 0)
            return r;
    }
}
