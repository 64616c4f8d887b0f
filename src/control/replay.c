/* Replaying the output of an ended task over a task I/O channel (docs/protocol.md section 3).

       waits for HELLO ──▶ WELCOME, OUTPUT, OUTPUT … ──▶ EXIT ──▶ closed

   One piece is in memory at a time: the next is read when the last was written. Loop thread. */
#include "control/replay.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/log-file.h"
#include "net/tio.h"

#include <string.h>

#define PIECE (128u << 10)
#define HELLO_SIZE (VG_TIO_HEADER + 12)

struct replay {
    uv_pipe_t pipe;
    uv_write_t write;
    struct vg_list link; /* in vg_control.replays */
    struct vg_control *ctl;
    struct vg_logread at;
    struct vg_buf out;
    uint64_t task;
    uint32_t attempt;
    int32_t status;
    uint32_t reason;
    char *text; /* owned */
    uint8_t hello[HELLO_SIZE];
    size_t have; /* bytes of hello; the rest of what the client says is not needed */
    uint8_t ignored[4096];
    bool started, exit_sent;
};

static void on_closed(uv_handle_t *h) {
    struct replay *r = h->data;
    vg_logread_done(&r->at);
    vg_buf_done(&r->out);
    free(r->text);
    free(r);
}

static void finish(struct replay *r) {
    if (uv_is_closing((uv_handle_t *)&r->pipe))
        return;
    vg_list_remove(&r->link);
    uv_close((uv_handle_t *)&r->pipe, on_closed);
}

static int put(struct replay *r, enum vg_tio_kind kind, const void *head, size_t n_head,
               const void *data, size_t n) {
    uint8_t h[VG_TIO_HEADER];
    vg_tio_header(h, kind, (uint32_t)(n_head + n));
    int e = vg_buf_append(&r->out, h, sizeof h);
    if (e >= 0)
        e = vg_buf_append(&r->out, head, n_head);
    return e >= 0 && n ? vg_buf_append(&r->out, data, n) : e;
}

static int put_offset(struct replay *r, enum vg_tio_kind kind, uint64_t offset, const void *data,
                      size_t n) {
    uint8_t b[8];
    vg_put64(b, offset);
    return put(r, kind, b, sizeof b, data, n);
}

static int put_welcome(struct replay *r) {
    uint8_t b[20];
    vg_put64(b, 0);
    vg_put64(b + 8, r->at.at);
    vg_put32(b + 16, 2 | 4); /* started, ended */
    return put(r, VG_TIO_WELCOME, b, sizeof b, NULL, 0);
}

static int put_exit(struct replay *r) {
    uint8_t b[16];
    r->exit_sent = true;
    vg_put32(b, (uint32_t)r->status);
    vg_put64(b + 4, r->at.at);
    vg_put32(b + 12, r->reason);
    return put(r, VG_TIO_EXIT, b, sizeof b, r->text, r->text ? strlen(r->text) : 0);
}

/* Records in frames of at most VG_TIO_MAX; a gap becomes its own frame. */
static int put_records(struct replay *r, uint64_t offset, uint8_t *p, size_t n) {
    const size_t gap = VG_REC_HEADER + 8;
    if (n >= gap && vg_get32(p + 4) == VG_REC_GAP) {
        offset = r->at.tail_start;
        int e = put_offset(r, VG_TIO_GAP, offset, NULL, 0);
        if (e < 0)
            return e;
        p += gap;
        n -= gap;
    }
    return n ? put_offset(r, VG_TIO_OUTPUT, offset, p, n) : 0;
}

/* The next piece into r->out. */
static int fill(struct replay *r) {
    struct vg_buf b = {0};
    uint64_t offset = r->at.at;
    int more = vg_logread_next(r->ctl->home.logs, r->task, r->attempt, &r->at, &b, PIECE);
    int e = more < 0 ? more : 0;
    if (vg_buf_len(&b))
        e = put_records(r, offset, vg_buf_data(&b), vg_buf_len(&b));
    if (e >= 0 && more == 0)
        e = put_exit(r);
    vg_buf_done(&b);
    return e;
}

static void go_on(struct replay *r);

static void on_written(uv_write_t *w, int status) {
    struct replay *r = w->data;
    vg_buf_clear(&r->out);
    if (status < 0 || r->exit_sent)
        finish(r);
    else
        go_on(r);
}

static void go_on(struct replay *r) {
    if (uv_is_closing((uv_handle_t *)&r->pipe))
        return;
    int e = fill(r);
    if (e < 0) {
        vg_warn("task=%016llx stored output cannot be replayed: %s", (unsigned long long)r->task,
                strerror(-e));
        finish(r);
        return;
    }
    uv_buf_t b = uv_buf_init((char *)vg_buf_data(&r->out), (unsigned)vg_buf_len(&r->out));
    r->write.data = r;
    if (uv_write(&r->write, (uv_stream_t *)&r->pipe, &b, 1, on_written) < 0)
        finish(r);
}

/* The first frame says from where the client wants the output. */
static void on_hello(struct replay *r) {
    r->started = true;
    if (vg_get32(r->hello) < 12 || (vg_get32(r->hello + 4) & 0xff) != VG_TIO_HELLO) {
        finish(r);
        return;
    }
    r->at.at = vg_get64(r->hello + VG_TIO_HEADER);
    if (put_welcome(r) < 0)
        finish(r);
    else
        go_on(r);
}

static void on_alloc(uv_handle_t *h, size_t size, uv_buf_t *ret) {
    struct replay *r = h->data;
    (void)size;
    *ret = r->have < HELLO_SIZE
               ? uv_buf_init((char *)r->hello + r->have, (unsigned)(HELLO_SIZE - r->have))
               : uv_buf_init((char *)r->ignored, sizeof r->ignored);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b) {
    struct replay *r = s->data;
    (void)b;
    if (n == 0)
        return;
    if (n < 0) {
        /* A half-closed client still reads; anything else is over. */
        if (n == UV_EOF && r->started)
            uv_read_stop(s);
        else
            finish(r);
        return;
    }
    if (r->have < HELLO_SIZE)
        r->have += (size_t)n;
    if (r->have == HELLO_SIZE && !r->started)
        on_hello(r);
}

void vg_replay_start(struct vg_control *c, int fd, const struct vg_task *t) {
    struct replay *r = fd < 0 ? NULL : vg_alloc(sizeof *r);
    if (!r) {
        vg_close(&fd);
        return;
    }
    r->ctl = c;
    r->task = t->id;
    r->attempt = VG_MAX(t->attempt.number, 1u);
    r->status = t->status;
    r->reason = (uint32_t)t->reason;
    r->text = vg_strdup(t->reason_text);
    vg_list_init(&r->link);
    vg_list_push_back(&c->replays, &r->link);
    uv_pipe_init(c->loop, &r->pipe, 0);
    r->pipe.data = r;
    vg_set_nonblock(fd, true);
    if (uv_pipe_open(&r->pipe, fd) < 0) {
        close(fd);
        finish(r);
    } else if (uv_read_start((uv_stream_t *)&r->pipe, on_alloc, on_read) < 0) {
        finish(r);
    }
}

void vg_replay_stop_all(struct vg_control *c) {
    while (!vg_list_empty(&c->replays))
        finish(vg_list_entry(vg_list_first(&c->replays), struct replay, link));
}
