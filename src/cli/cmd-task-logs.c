/* `virga task logs`: a task's output from the store, its streams apart again. A broken connection
   is made again and the output goes on where it stopped. */
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/client.h"
#include "cli/cmd-task.h"
#include "net/tio.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct logs {
    bool times;
    bool line_start[3]; /* per stream: the next byte begins a line */
    struct vg_buf in;   /* a record that has not come whole */
    uint64_t at;        /* offset of the next record of this answer */
    uint64_t shown;     /* everything before was written */
};

static int write_out(int fd, const void *p, size_t n, struct vg_err *err) {
    int r = vg_write_full(fd, p, n);
    if (r >= 0)
        return 0;
    vg_err_sys(err, r, "cannot write the output");
    err->reason = VG_INTERNAL; /* not LOST: it is our reader who left, not the control plane */
    return r;
}

static int write_timed(struct logs *g, int fd, uint64_t usec, const char *p, size_t n,
                       struct vg_err *err) {
    time_t t = (time_t)(usec / VG_USEC);
    struct tm tm;
    char stamp[64];
    localtime_r(&t, &tm);
    size_t len = strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%S", &tm);
    len += (size_t)snprintf(stamp + len, sizeof(stamp) - len, ".%06u ", (unsigned)(usec % VG_USEC));
    while (n) {
        const char *end = memchr(p, '\n', n);
        size_t line = end ? (size_t)(end - p) + 1 : n;
        int r = g->line_start[fd] ? write_out(fd, stamp, len, err) : 0;
        if (r >= 0)
            r = write_out(fd, p, line, err);
        if (r < 0)
            return r;
        g->line_start[fd] = end != NULL;
        p += line;
        n -= line;
    }
    return 0;
}

static int show_gap(uint64_t bytes, struct vg_err *err) {
    char line[160], size[32];
    int n =
        snprintf(line, sizeof(line),
                 "virga: %s of output are not kept here: only its beginning and end are stored\n",
                 vg_format_size(bytes, size, sizeof(size)));
    return write_out(STDERR_FILENO, line, (size_t)n, err);
}

static int show_record(struct logs *g, const uint8_t *rec, uint32_t len, struct vg_err *err) {
    uint8_t stream = rec[4];
    const uint8_t *data = rec + VG_REC_HEADER;
    bool gap = stream == VG_REC_GAP && len >= 8;
    g->at += gap ? vg_get64(data) : VG_REC_HEADER + (uint64_t)len;
    if (g->at <= g->shown)
        return 0; /* repeated after a reconnect */
    g->shown = g->at;
    if (gap)
        return show_gap(vg_get64(data), err);
    if (stream != VG_REC_STDOUT && stream != VG_REC_STDERR && stream != VG_REC_NOTE)
        return 0;
    int fd = stream == VG_REC_STDOUT ? STDOUT_FILENO : STDERR_FILENO;
    if (g->times)
        return write_timed(g, fd, vg_get64(rec + 8), (const char *)data, len, err);
    return write_out(fd, data, len, err);
}

static int on_logs(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    struct logs *g = user;
    if (env->body_case == VG__PB__ENVELOPE__BODY_OK)
        return 0;
    if (env->body_case != VG__PB__ENVELOPE__BODY_LOG_DATA)
        return vg_unexpected(env, err);
    const ProtobufCBinaryData *rec = &env->log_data->records;
    if (rec->len && vg_buf_append(&g->in, rec->data, rec->len) < 0)
        return vg_err_sys(err, ENOMEM, "cannot show the output");
    while (vg_buf_len(&g->in) >= VG_REC_HEADER) {
        uint32_t len = vg_get32(vg_buf_data(&g->in));
        if (len > VG_REC_MAX)
            return vg_err_set(err, VG_PROTOCOL, "the stored output is damaged");
        if (vg_buf_len(&g->in) < VG_REC_HEADER + (size_t)len)
            break;
        int r = show_record(g, vg_buf_data(&g->in), len, err);
        if (r < 0)
            return r;
        vg_buf_consume(&g->in, VG_REC_HEADER + (size_t)len);
    }
    return 0;
}

static void again(void *user) {
    struct logs *g = user;
    vg_buf_clear(&g->in);
    g->at = 0;
}

const struct vg_opt vg_task_logs_opts[4] = {
    {"follow", 'f', NULL, "go on until the task ends", 'f'},
    {"timestamps", 't', NULL, "begin each line with its time", 't'},
    {"tail", 0, "SIZE", "only the last so many bytes", 'T'},
    {"attempt", 0, "N", "of this attempt, not the newest", 'N'},
};

static int parse(struct vg_cmd_line *l, Vg__Pb__LogReq *q, struct logs *g) {
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
static int call_tail(Vg__Pb__Envelope *req, struct logs *g, struct vg_err *err) {
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
    struct logs g = {.line_start = {true, true, true}};
    Vg__Pb__LogReq q = VG__PB__LOG_REQ__INIT;
    Vg__Pb__Envelope req = vg_request(TASK_LOGS, task_logs, &q);
    if (parse(l, &q, &g) < 0)
        return l->exit;
    q.task = l->args[0];
    int r = q.has_tail_bytes ? call_tail(&req, &g, &err)
                             : vg_call_patient(&req, on_logs, again, &g, &err);
    vg_buf_done(&g.in);
    if (r == -EPIPE)
        return 141; /* the reader left, as SIGPIPE would have said */
    return r < 0 ? vg_cmd_fail(&err) : 0;
}
