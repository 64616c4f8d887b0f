/* A task's output as one body: text as it was written, or one JSON object a record. It goes out
   while it is read; a slow client makes the reader wait (api-logs.c asks vg_peer_queued). */
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/rest-int.h"
#include "net/tio.h"

#include <string.h>

struct flow {
    bool ndjson;
    struct vg_map in; /* by task: a record that has not come whole; struct vg_buf, owned */
};

static void flow_free(void *data) {
    struct flow *f = data;
    vg_map_for_each (s, &f->in) {
        vg_buf_done(s->value);
        free(s->value);
    }
    vg_map_done(&f->in);
    free(f);
}

static struct vg_buf *part_of(struct flow *f, uint64_t task) {
    struct vg_buf *b = vg_map_get_u64(&f->in, task + 1);
    if (b)
        return b;
    b = vg_alloc(sizeof *b);
    if (b && vg_map_put_u64(&f->in, task + 1, b) < 0) {
        free(b);
        b = NULL;
    }
    return b;
}

static const char *stream_name(uint32_t stream) {
    return stream == VG_REC_STDOUT   ? "stdout"
           : stream == VG_REC_STDERR ? "stderr"
           : stream == VG_REC_NOTE   ? "note"
                                     : "gap";
}

static int put_json(struct vg_buf *out, const Vg__Pb__LogData *d, const uint8_t *rec,
                    uint32_t len) {
    const uint8_t *data = rec + VG_REC_HEADER;
    json_t *j = json_object();
    json_object_set_new(j, "stream", json_string(stream_name(rec[4])));
    json_object_set_new(j, "when_usec", vg_json_u64(vg_get64(rec + 8)));
    if (rec[4] == VG_REC_GAP)
        json_object_set_new(j, "bytes", vg_json_u64(len >= 8 ? vg_get64(data) : 0));
    else
        json_object_set_new(j, "text", vg_json_bytes(data, len));
    if (d->has_task_id) {
        json_object_set_new(j, "task", vg_json_id(d->task_id));
        json_object_set_new(j, "index", vg_json_u64(d->index));
    }
    vg_auto_free char *line = json_dumps(j, JSON_COMPACT);
    json_decref(j);
    return line ? vg_buf_printf(out, "%s\n", line) : -ENOMEM;
}

static int put_text(struct vg_buf *out, const uint8_t *rec, uint32_t len) {
    char size[32];
    if (rec[4] == VG_REC_GAP)
        return vg_buf_printf(
            out, "virga: %s of output are not kept here\n",
            vg_format_size(len >= 8 ? vg_get64(rec + VG_REC_HEADER) : 0, size, sizeof size));
    return vg_buf_append(out, rec + VG_REC_HEADER, len);
}

static int put_records(struct flow *f, const Vg__Pb__LogData *d, struct vg_buf *out) {
    struct vg_buf *in = part_of(f, d->has_task_id ? d->task_id : 0);
    if (!in || vg_buf_append(in, d->records.data, d->records.len) < 0)
        return -ENOMEM;
    int r = 0;
    while (r >= 0 && vg_buf_len(in) >= VG_REC_HEADER) {
        const uint8_t *rec = vg_buf_data(in);
        uint32_t len = vg_get32(rec);
        if (len > VG_REC_MAX)
            return -EPROTO;
        if (vg_buf_len(in) < VG_REC_HEADER + (size_t)len)
            break;
        r = f->ndjson ? put_json(out, d, rec, len) : put_text(out, rec, len);
        vg_buf_consume(in, VG_REC_HEADER + (size_t)len);
    }
    return r;
}

static void gone(struct vg_web_req *req, void *user) {
    (void)req;
    vg_rest_over(user);
}

/* The first answer decides whether there is a body at all. */
static int begin(struct vg_rest_call *call) {
    static const struct vg_web_stream_ops ops = {.on_gone = gone};
    struct flow *f = vg_alloc(sizeof *f);
    if (!f)
        return -ENOMEM;
    *f = (struct flow){.ndjson = vg_web_accepts(call->req, "application/x-ndjson")};
    call->data = f;
    call->free_data = flow_free;
    call->streaming = true;
    vg_web_set(call->req, "Cache-Control", "no-store");
    return vg_web_begin(call->req, 200,
                        f->ndjson ? "application/x-ndjson" : "text/plain; charset=utf-8", &ops,
                        call);
}

void vg_rest_told_logs(struct vg_rest_call *call, const Vg__Pb__Envelope *env, bool more) {
    struct vg_buf out = {0};
    int r = 0;
    if (vg_rest_failed(call, env))
        return;
    if (!call->streaming)
        r = begin(call);
    if (r >= 0 && env->body_case == VG__PB__ENVELOPE__BODY_LOG_DATA && env->log_data->records.len)
        r = put_records(call->data, env->log_data, &out);
    if (r >= 0 && vg_buf_len(&out))
        r = vg_web_write(call->req, vg_buf_data(&out), vg_buf_len(&out));
    vg_buf_done(&out);
    if (r >= 0 && more)
        return;
    struct vg_web_req *req = vg_take_ptr(call->req);
    vg_web_end(req, r < 0);
    vg_rest_over(call);
}
