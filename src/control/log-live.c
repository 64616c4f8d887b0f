/* Observing a keeper over a stream of its agent.

       HELLO ──▶ WELCOME, OUTPUT or GAP … ──▶ EXIT, or the stream ends

   What always holds: at most one credit of bytes waits here, because bytes are given back to the
   sender only when the reader has taken them; whatever a node sends that is not a well-formed
   frame of whole records ends the observation, not the log. */
#include "control/log-live.h"

#include "base/mem.h"
#include "base/util.h"
#include "control/nodes.h"
#include "control/peer.h"
#include "net/tio.h"

struct vg_loglive {
    struct vg_stream *stream; /* NULL: gone */
    struct vg_buf in;         /* bytes of frames, not taken yet */
    void (*readable)(void *user);
    void *user;
    bool over; /* EXIT came, or something that makes no sense */
};

/* ------------------------------------------------------------------ the stream */

static void on_data(struct vg_stream *s, void *user, const uint8_t *data, size_t n) {
    struct vg_loglive *l = user;
    (void)s;
    if (vg_buf_append(&l->in, data, n) < 0)
        l->over = true;
    l->readable(l->user);
}

static void on_end(struct vg_stream *s, void *user) {
    struct vg_loglive *l = user;
    vg_stream_free(s, VG_OK);
    l->stream = NULL;
    l->readable(l->user);
}

static void on_reset(struct vg_stream *s, void *user, enum vg_reason reason) {
    struct vg_loglive *l = user;
    (void)s;
    (void)reason;
    l->stream = NULL;
    l->readable(l->user);
}

static const struct vg_stream_ops stream_ops = {
    .on_data = on_data, .on_end = on_end, .on_reset = on_reset};

static int say_hello(struct vg_stream *s, uint64_t at) {
    uint8_t h[VG_TIO_HEADER + 12];
    vg_tio_header(h, VG_TIO_HELLO, 12);
    vg_put64(h + VG_TIO_HEADER, at);
    vg_put32(h + VG_TIO_HEADER + 8, VG_HELLO_OBSERVE);
    return vg_stream_send(s, h, sizeof h);
}

static void ask_agent(struct vg_nodelink *a, uint64_t task, uint32_t stream) {
    VG_ENVELOPE(env);
    Vg__Pb__TaskAttach m = VG__PB__TASK_ATTACH__INIT;
    m.has_task_id = m.has_stream = m.has_observe = 1;
    m.task_id = task;
    m.stream = stream;
    m.observe = 1;
    env.body_case = VG__PB__ENVELOPE__BODY_TASK_ATTACH;
    env.task_attach = &m;
    vg_peer_send(a->peer, 0, false, &env);
}

struct vg_loglive *vg_loglive_new(struct vg_job *j, uint64_t at, void (*readable)(void *user),
                                  void *user) {
    struct vg_nodelink *a = vg_nodelink_get(j->ctl, j->task->attempt.node);
    if (j->task->state != VG_TASK_RUNNING || !vg_nodelink_hears(a) || !a->reported)
        return NULL;
    struct vg_loglive *l = vg_alloc(sizeof *l);
    if (!l)
        return NULL;
    *l = (struct vg_loglive){.readable = readable, .user = user};
    l->stream = vg_stream_new(a->peer->conn, 0, &stream_ops, l);
    if (!l->stream) {
        free(l);
        return NULL;
    }
    ask_agent(a, j->task->id, vg_stream_id(l->stream));
    if (say_hello(l->stream, at) < 0) {
        vg_loglive_free(l);
        return NULL;
    }
    return l;
}

void vg_loglive_free(struct vg_loglive *l) {
    if (!l)
        return;
    vg_stream_free(l->stream, VG_OK);
    vg_buf_done(&l->in);
    free(l);
}

/* ------------------------------------------------------------------ frames */

static int put_gap(struct vg_buf *out, uint64_t dropped) {
    uint8_t gap[VG_REC_HEADER + 8];
    vg_rec_header(gap, VG_REC_GAP, 8, 0);
    vg_put64(gap + VG_REC_HEADER, dropped);
    return vg_buf_append(out, gap, sizeof gap);
}

/* Whole records that begin at `offset`; those before *at are known already. */
static int take_records(uint64_t offset, const uint8_t *p, size_t n, uint64_t *at,
                        struct vg_buf *out) {
    if (offset > UINT64_MAX / 2 || vg_records_whole(p, n) != (ssize_t)n)
        return -EPROTO;
    while (n && offset < *at) {
        size_t len = VG_REC_HEADER + vg_get32(p);
        offset += len;
        p += len;
        n -= len;
    }
    if (!n)
        return 0;
    int r = offset > *at ? put_gap(out, offset - *at) : 0;
    if (r >= 0)
        r = vg_buf_append(out, p, n);
    if (r >= 0)
        *at = offset + n;
    return r;
}

/* One frame's payload. -errno: it makes no sense, or there is no memory. */
static int take_frame(struct vg_loglive *l, uint32_t kind, const uint8_t *p, size_t n, uint64_t *at,
                      struct vg_buf *out) {
    switch (kind) {
    case VG_TIO_OUTPUT:
        return n < 8 ? -EPROTO : take_records(vg_get64(p), p + 8, n - 8, at, out);
    case VG_TIO_EXIT:
        l->over = true;
        return 0;
    default: /* WELCOME, STARTED, notes; a GAP shows in the offset of what follows it */
        return 0;
    }
}

int vg_loglive_next(struct vg_loglive *l, uint64_t *at, struct vg_buf *out) {
    size_t have = vg_buf_len(&l->in);
    uint32_t len = have >= VG_TIO_HEADER ? vg_get32(vg_buf_data(&l->in)) : 0;
    if (l->over || len > VG_TIO_MAX)
        return -EPIPE;
    if (have < VG_TIO_HEADER || have - VG_TIO_HEADER < len)
        return l->stream ? 0 : -EPIPE;
    const uint8_t *p = vg_buf_data(&l->in);
    if (take_frame(l, vg_get32(p + 4) & 0xff, p + VG_TIO_HEADER, len, at, out) < 0) {
        l->over = true;
        return -EPIPE;
    }
    vg_buf_consume(&l->in, VG_TIO_HEADER + len);
    if (l->stream)
        vg_stream_consumed(l->stream, VG_TIO_HEADER + len);
    return 1;
}
