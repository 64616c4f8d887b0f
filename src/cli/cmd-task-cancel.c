/* `virga task cancel` and `virga task signal`. Tasks are named, or chosen by what they have in
   common; then their number is said first, and a person at a terminal is asked. */
#include "base/cleanup.h"
#include "cli/client.h"
#include "cli/cmd-task.h"
#include "cli/spec-values.h"

#include <string.h>
#include <unistd.h>

const struct vg_opt vg_task_cancel_opts[11] = {
    {"all", 'a', NULL, "every task of mine that has not ended", 'a'},
    VG_TASK_CHOICE_OPTS,
    {"grace", 0, "DURATION", "how long it may take to end by itself", 'g'},
    {"yes", 'y', NULL, "do not ask", 'y'},
};

static int on_ok(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    char *said = user;
    (void)err;
    if (env->body_case == VG__PB__ENVELOPE__BODY_OK && env->ok->text)
        snprintf(said, VG_ERR_MAX, "%s", env->ok->text);
    return 0;
}

static int send_signal(Vg__Pb__TaskSignal *s, char said[VG_ERR_MAX], struct vg_err *err) {
    Vg__Pb__Envelope req = vg_request(TASK_SIGNAL, task_signal, s);
    return vg_call_once(&req, on_ok, said, err);
}

static int on_count(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    if (env->body_case != VG__PB__ENVELOPE__BODY_TASKS)
        return vg_unexpected(env, err);
    *(uint64_t *)user = env->tasks->total;
    return 0;
}

/* How many there are: rows as a list shows them, or (flat) with their members and children. */
static int count(Vg__Pb__TaskQuery q, bool flat, uint64_t *ret, struct vg_err *err) {
    Vg__Pb__Envelope req = vg_request(TASK_LIST, task_list, &q);
    q.has_limit = true;
    q.limit = 1;
    q.has_flat = q.flat = flat;
    return vg_call_once(&req, on_count, ret, err);
}

/* Whether a person agrees. */
static bool agreed(uint64_t rows, uint64_t all) {
    char line[16] = "";
    fprintf(stderr, "cancel %llu task%s", (unsigned long long)rows, rows == 1 ? "" : "s");
    if (all > rows)
        fprintf(stderr, " (%llu with members and children)", (unsigned long long)all);
    fprintf(stderr, "? [y/N] ");
    fflush(stderr);
    return fgets(line, sizeof(line), stdin) && (line[0] == 'y' || line[0] == 'Y');
}

/* Whether to go on; *ret_exit otherwise. */
static bool confirmed(const Vg__Pb__TaskQuery *q, bool ask, int *ret_exit) {
    struct vg_err err = VG_ERR_INIT;
    uint64_t rows = 0, all = 0;
    if (count(*q, false, &rows, &err) < 0 || (ask && count(*q, true, &all, &err) < 0)) {
        *ret_exit = vg_cmd_fail(&err);
        return false;
    }
    *ret_exit = 0;
    if (!rows) {
        vg_cmd_say("no unfinished task is like that: nothing was cancelled");
        return false;
    }
    if (!ask || agreed(rows, all))
        return true;
    vg_cmd_say("nothing was cancelled");
    *ret_exit = 1;
    return false;
}

static int cancel_matching(struct vg_task_filter *f, Vg__Pb__TaskSignal *s, bool yes) {
    struct vg_err err = VG_ERR_INIT;
    char said[VG_ERR_MAX] = "";
    Vg__Pb__TaskQuery q = VG__PB__TASK_QUERY__INIT;
    int exit;
    vg_task_filter_finish(f);
    vg_task_filter_query(f, &q);
    if (!confirmed(&q, !yes && isatty(STDIN_FILENO) && isatty(STDERR_FILENO), &exit))
        return exit;
    s->matching = &q;
    if (send_signal(s, said, &err) < 0)
        return vg_cmd_fail(&err);
    if (said[0])
        printf("cancelled %s task%s\n", said, strcmp(said, "1") == 0 ? "" : "s");
    return 0;
}

static int cancel_named(struct vg_cmd_line *l, Vg__Pb__TaskSignal *s) {
    struct vg_err err = VG_ERR_INIT;
    char said[VG_ERR_MAX];
    int exit = 0;
    for (int i = 0; i < l->n_args; i++) {
        s->task = l->args[i];
        if (send_signal(s, said, &err) < 0)
            exit = vg_cmd_fail(&err);
    }
    return exit;
}

int vg_task_cancel_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_task_filter f = {0};
    Vg__Pb__TaskSignal s = VG__PB__TASK_SIGNAL__INIT;
    char said[VG_ERR_MAX];
    const char *arg;
    bool yes = false;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return l->exit;
        if (id == 'a')
            s.has_all = s.all = true;
        else if (id == 'y')
            yes = true;
        else if (id == 'g' && vg_opt_duration(&l->st, arg, &s.grace_usec) < 0)
            return vg_cmd_fail_opt(l);
        else if (vg_task_filter_opt(l, &f, id, arg) < 0)
            return l->exit;
        s.has_grace_usec |= id == 'g';
    }
    bool chosen = s.all || f.any;
    if (!chosen && !l->n_args) {
        vg_cmd_say("name the tasks to cancel, or choose them, as in 'virga task cancel -l run=7'");
        return vg_reason_exit(VG_INVALID);
    }
    if (!vg_cmd_args(l, 0, chosen ? 0 : -1))
        return l->exit;
    if (f.any) {
        s.has_all = s.all = false;
        return cancel_matching(&f, &s, yes);
    }
    if (s.all)
        return send_signal(&s, said, &err) < 0 ? vg_cmd_fail(&err) : 0;
    return cancel_named(l, &s);
}

int vg_task_signal_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__TaskSignal s = VG__PB__TASK_SIGNAL__INIT;
    char said[VG_ERR_MAX];
    if (!vg_cmd_plain(l, 2, 2))
        return l->exit;
    s.task = l->args[0];
    s.has_signal = true;
    if (vg_signal_parse(l->args[1], &s.signal) < 0) {
        vg_err_set(&err, VG_INVALID, "'%.60s' is not a signal such as TERM, USR1 or 15",
                   l->args[1]);
        return vg_cmd_fail(&err);
    }
    return send_signal(&s, said, &err) < 0 ? vg_cmd_fail(&err) : 0;
}
