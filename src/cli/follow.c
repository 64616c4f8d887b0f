/* Following to the end: three requests on one connection (output, changes, end). One thread.

   What holds: nothing is written to the terminal over the progress line before that was wiped; the
   line is drawn only where standard error is a terminal. */
#include "cli/follow.h"

#include "base/util.h"
#include "cli/client.h"
#include "cli/log-show.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "cli/task-show.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define REDRAW_USEC (VG_USEC / 10)
#define TICK_USEC VG_USEC
#define PATIENCE_USEC (60 * VG_USEC)

struct follow {
    const struct vg_follow_how *how;
    const char *task;
    struct vg_log_show logs;
    uint32_t logs_req, watch_req, wait_req;
    bool screen;           /* standard error is a terminal */
    bool logs_over, ended; /* both: we are done */
    int exit;
    char reason[VG_ERR_MAX];
    Vg__Pb__Progress progress;
    uint64_t begun_usec, drawn_usec;
    uint32_t done_then, preempted;
    bool known, drawn;
};

static void say(const struct follow *f, const char *text) {
    char clean[VG_ERR_MAX];
    fprintf(stderr, "%s: %s\n", f->how->program,
            vg_clean(clean, sizeof(clean), text, strlen(text)));
}

static void wipe(void *user) {
    struct follow *f = user;
    if (!f->drawn)
        return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    f->drawn = false;
}

static void draw(struct follow *f) {
    char line[512];
    uint64_t now = vg_now_usec();
    unsigned columns = vg_table_width(stderr);
    if (!f->screen || !f->known || (f->drawn && now - f->drawn_usec < REDRAW_USEC))
        return;
    vg_progress_line(&f->progress, vg_wall_usec(), f->begun_usec, f->done_then,
                     columns > 1 ? columns - 1 : 79, line, sizeof(line));
    fprintf(stderr, "\r\033[K%s", line);
    fflush(stderr);
    f->drawn = true;
    f->drawn_usec = now;
}

static void learn(struct follow *f, const Vg__Pb__TaskInfo *t) {
    if (!t->progress)
        return;
    f->progress = *t->progress; /* numbers only: nothing in it is borrowed */
    if (!f->known) {
        f->known = true;
        f->begun_usec = vg_wall_usec();
        f->done_then = vg_progress_done(&f->progress);
    }
}

/* Output of the next attempt follows: say why there is one. Its reason may be another by now: why
   it waits, or how it ended. */
static void again(struct follow *f, const Vg__Pb__TaskInfo *t) {
    if (!f->how->alone || f->how->quiet || t->preempted <= f->preempted)
        return;
    f->preempted = t->preempted;
    wipe(f);
    say(f, t->reason && strstr(t->reason, "give way") ? t->reason : "it had to give way");
}

static void end(struct follow *f, const Vg__Pb__TaskInfo *t) {
    learn(f, t);
    again(f, t);
    f->ended = true;
    f->exit = vg_task_exit(t);
    snprintf(f->reason, sizeof(f->reason), "%s", t->reason ? t->reason : "");
}

static int on_answer(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    struct follow *f = user;
    int r = 0;
    if (env->body_case == VG__PB__ENVELOPE__BODY_ERROR)
        return env->req == f->watch_req ? 0 : vg_client_said(env->error, err);
    if (env->req == f->logs_req && env->body_case == VG__PB__ENVELOPE__BODY_LOG_DATA) {
        r = vg_log_show(&f->logs, env->log_data, err);
        f->logs_over = !env->more;
    } else if (env->req == f->wait_req && env->body_case == VG__PB__ENVELOPE__BODY_TASK) {
        if (env->more)
            learn(f, env->task);
        else
            end(f, env->task);
    } else if (env->req == f->watch_req && env->body_case == VG__PB__ENVELOPE__BODY_TASK) {
        learn(f, env->task);
        again(f, env->task);
    }
    draw(f);
    if (r < 0)
        return r;
    return f->ended && (f->logs_over || !f->how->logs);
}

static int ask(struct follow *f, struct vg_client *c, struct vg_err *err) {
    Vg__Pb__LogReq logs = VG__PB__LOG_REQ__INIT;
    Vg__Pb__TaskQuery watch = VG__PB__TASK_QUERY__INIT;
    Vg__Pb__TaskRef ref = VG__PB__TASK_REF__INIT;
    char *tasks[] = {(char *)f->task};
    int r = 0;
    logs.task = ref.task = tasks[0];
    logs.has_follow = logs.follow = true;
    logs.has_all_attempts = logs.all_attempts = true;
    watch.task = tasks;
    watch.n_task = 1;
    Vg__Pb__Envelope logs_env = vg_request(TASK_LOGS, task_logs, &logs);
    Vg__Pb__Envelope watch_env = vg_request(TASK_WATCH, task_watch, &watch);
    Vg__Pb__Envelope wait_env = vg_request(TASK_WAIT, task_wait, &ref);
    if (f->how->logs && !f->logs_over)
        r = vg_client_send(c, &logs_env, &f->logs_req, err);
    if (r >= 0 && (f->screen || f->how->alone))
        r = vg_client_send(c, &watch_env, &f->watch_req, err);
    return r < 0 || f->ended ? r : vg_client_send(c, &wait_env, &f->wait_req, err);
}

/* One connection's worth: 1 all is over, or -errno. */
static int session(struct follow *f, const struct vg_endpoint *ep, bool *answered,
                   struct vg_err *err) {
    struct vg_client *c;
    int r = vg_client_open_at(ep, &c, err);
    if (r < 0)
        return r;
    r = ask(f, c, err);
    while (r == 0) {
        r = vg_client_turn(c, f->screen ? TICK_USEC : 0, on_answer, f, err);
        draw(f);
        *answered = true;
    }
    vg_client_close(c);
    return r;
}

static int until_over(struct follow *f, const struct vg_endpoint *ep, struct vg_err *err) {
    uint64_t give_up = 0;
    for (int wait_ms = 50;; wait_ms = wait_ms < 500 ? wait_ms * 2 : 1000) {
        bool answered = false;
        int r = session(f, ep, &answered, err);
        if (r > 0 || (err->reason != VG_LOST && err->reason != VG_UNAVAILABLE))
            return r;
        if (answered || !give_up)
            give_up = vg_now_usec() + PATIENCE_USEC;
        if (vg_now_usec() > give_up)
            return r;
        vg_log_show_again(&f->logs);
        poll(NULL, 0, wait_ms);
    }
}

static void summary(struct follow *f) {
    char line[512];
    wipe(f);
    if (f->screen && f->known)
        say(f, vg_progress_line(&f->progress, 0, 0, 0, 0, line, sizeof(line)));
    else if (f->exit && f->reason[0] && !f->how->quiet)
        say(f, f->reason);
}

int vg_follow_task(const struct vg_endpoint *ep, const char *task,
                   const struct vg_follow_how *how) {
    struct vg_err err = VG_ERR_INIT;
    struct follow f = {.how = how, .task = task};
    f.screen = !how->quiet && isatty(STDERR_FILENO);
    f.logs.wiped = wipe;
    f.logs.user = &f;
    int r = until_over(&f, ep, &err);
    if (r >= 0)
        r = vg_log_show_end(&f.logs, &err) < 0 ? err.code : r;
    vg_log_show_done(&f.logs);
    if (r == -EPIPE)
        return 141; /* the reader left, as SIGPIPE would have said */
    if (r < 0) {
        wipe(&f);
        say(&f, err.msg);
        return vg_reason_exit(err.reason);
    }
    summary(&f);
    return f.exit;
}
