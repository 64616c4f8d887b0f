/* `virga task logs`: a task's output from the store, its streams apart again. A broken connection
   is made again and the output goes on where it stopped. */
#include "cli/client.h"
#include "cli/cmd-task.h"
#include "cli/log-show.h"

static int on_logs(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    if (env->body_case == VG__PB__ENVELOPE__BODY_OK)
        return 0;
    if (env->body_case != VG__PB__ENVELOPE__BODY_LOG_DATA)
        return vg_unexpected(env, err);
    return vg_log_show(user, env->log_data, err);
}

static void again(void *user) {
    vg_log_show_again(user);
}

const struct vg_opt vg_task_logs_opts[4] = {
    {"follow", 'f', NULL, "go on until the task ends", 'f'},
    {"timestamps", 't', NULL, "begin each line with its time", 't'},
    {"tail", 0, "SIZE", "only the last so many bytes", 'T'},
    {"attempt", 0, "N", "of this attempt, not the newest", 'N'},
};

static int parse(struct vg_cmd_line *l, Vg__Pb__LogReq *q, struct vg_log_show *g) {
    const char *arg;
    uint64_t n = 0;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        int r = id == VG_OPT_ERROR ? -1 : 0;
        if (r < 0)
            return -1;
        if (id == 'f')
            q->has_follow = q->follow = true;
        if (id == 't')
            g->times = true;
        if (id == 'T' && (r = vg_opt_size(&l->st, arg, &q->tail_bytes)) == 0)
            q->has_tail_bytes = true;
        if (id == 'N' && (r = vg_opt_u64(&l->st, arg, 1, UINT32_MAX, &n)) == 0)
            q->has_attempt = true, q->attempt = (uint32_t)n;
        if (r < 0) {
            l->exit = vg_cmd_fail_opt(l);
            return -1;
        }
    }
    return vg_cmd_args(l, 1, 1) ? 0 : -1;
}

/* From the middle no offset is known, so only a whole log can be taken up again after a break. */
static int call_tail(Vg__Pb__Envelope *req, struct vg_log_show *g, struct vg_err *err) {
    struct vg_client *c;
    int r = vg_client_open(&c, err);
    if (r < 0)
        return r;
    r = vg_call(c, req, 0, on_logs, g, err);
    vg_client_close(c);
    return r;
}

int vg_task_logs_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_log_show g = {0};
    Vg__Pb__LogReq q = VG__PB__LOG_REQ__INIT;
    Vg__Pb__Envelope req = vg_request(TASK_LOGS, task_logs, &q);
    if (parse(l, &q, &g) < 0)
        return l->exit;
    q.task = l->args[0];
    int r = q.has_tail_bytes ? call_tail(&req, &g, &err)
                             : vg_call_patient(&req, on_logs, again, &g, &err);
    if (r >= 0)
        r = vg_log_show_end(&g, &err);
    vg_log_show_done(&g);
    if (r == -EPIPE)
        return 141; /* the reader left, as SIGPIPE would have said */
    return r < 0 ? vg_cmd_fail(&err) : 0;
}
