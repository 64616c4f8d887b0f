/* Streams of a connection: credit, ends and resets. Loop thread only.

   Always:
   1. credit + bytes on their way + bytes the peer has not acknowledged = VG_WIRE_CREDIT, and what
      the peer has added to it by widening; never above VG_WIRE_CREDIT_MAX.
   2. A stream is in its connection's map, or its owner was told of its end (on_reset), or its
      owner gave it up (vg_stream_free).
   3. After any callback the stream may be gone: nothing touches it afterwards. */
#include "base/mem.h"
#include "net/conn-internal.h"

#include <assert.h>
#include <string.h>

#define STREAM_ID_MAX 0xffffffu
#define CREDIT_STEP (VG_WIRE_CREDIT / 4) /* credit is returned in pieces of at least this */

static uint32_t next_own_id(struct vg_conn *c) {
    for (;;) {
        uint32_t id = c->next_id;
        c->next_id = id + 2 > STREAM_ID_MAX ? (c->dialled ? 1 : 2) : id + 2;
        if (!vg_map_get_u64(&c->streams, id))
            return id;
    }
}

static bool peer_may_name(const struct vg_conn *c, uint32_t id) {
    bool odd = id & 1;
    return id <= STREAM_ID_MAX && odd != c->dialled && !vg_map_get_u64(&c->streams, id);
}

struct vg_stream *vg_stream_new(struct vg_conn *c, uint32_t id, const struct vg_stream_ops *ops,
                                void *user) {
    if (!vg_conn_can_send(c) || vg_map_len(&c->streams) >= VG_WIRE_STREAMS_MAX ||
        (id && !peer_may_name(c, id)))
        return NULL;
    struct vg_stream *s = vg_alloc(sizeof(*s));
    if (!s)
        return NULL;
    *s = (struct vg_stream){.conn = c,
                            .id = id ? id : next_own_id(c),
                            .ops = ops,
                            .user = user,
                            .credit = VG_WIRE_CREDIT,
                            .window = VG_WIRE_CREDIT,
                            .width = VG_WIRE_CREDIT};
    vg_list_init(&s->in_all);
    vg_list_init(&s->in_starved);
    vg_list_init(&s->in_late);
    if (vg_map_put_u64(&c->streams, s->id, s) < 0) {
        free(s);
        return NULL;
    }
    vg_list_push_back(&c->all, &s->in_all);
    return s;
}

static void unlink_stream(struct vg_stream *s) {
    vg_map_del_u64(&s->conn->streams, s->id);
    vg_list_remove(&s->in_all);
    vg_list_remove(&s->in_starved);
    vg_list_remove(&s->in_late);
}

static void destroy(struct vg_stream *s) {
    vg_buf_done(&s->kept);
    free(s);
}

static void send_small(struct vg_stream *s, enum vg_frame_kind kind, const void *p, size_t n) {
    struct vg_conn *c = s->conn;
    if (vg_conn_can_send(c) && out_frame(c, kind, s->id, p, n) < 0)
        conn_fail(c, VG_INTERNAL, "out of memory");
    else if (c->queued > CONN_QUEUE_HARD)
        conn_fail(c, VG_LOST, "%s does not read", c->address);
}

void vg_stream_free(struct vg_stream *s, enum vg_reason reason) {
    if (!s || s->dying)
        return;
    if (s->conn && !(s->end_sent && s->end_seen)) {
        uint32_t wire = (uint32_t)reason;
        send_small(s, VG_FRAME_RESET, &wire, sizeof(wire));
    }
    if (s->conn)
        unlink_stream(s);
    destroy(s);
}

/* Tells the owner of the stream's end and frees it. A stream without ops stays, cut off, until its
   owner frees it: he could not be told. */
static void reset(struct vg_stream *s, enum vg_reason reason) {
    unlink_stream(s);
    if (!s->ops) {
        s->conn = NULL;
        return;
    }
    s->dying = true;
    if (s->ops->on_reset)
        s->ops->on_reset(s, s->user, reason);
    destroy(s);
}

void stream_reset_all(struct vg_conn *c, enum vg_reason reason) {
    for (struct vg_list *l; (l = vg_list_first(&c->all));)
        reset(vg_list_entry(l, struct vg_stream, in_all), reason);
}

uint32_t vg_stream_id(const struct vg_stream *s) {
    return s->id;
}

struct vg_conn *vg_stream_conn(struct vg_stream *s) {
    return s->conn;
}

/* ------------------------------------------------------------------ sending */

size_t vg_stream_room(const struct vg_stream *s) {
    struct vg_conn *c = s->conn;
    if (!c || s->dying || s->end_sent || !vg_conn_can_send(c))
        return 0;
    size_t queued = out_total(c);
    size_t room = queued < CONN_QUEUE_SOFT ? VG_MIN(s->credit, CONN_QUEUE_SOFT - queued) : 0;
    if (room == 0 && vg_list_empty(&s->in_starved))
        vg_list_push_back(&c->starved, &((struct vg_stream *)s)->in_starved);
    return room;
}

int vg_stream_send(struct vg_stream *s, const void *data, size_t n) {
    const uint8_t *p = data;
    if (!s->conn || s->dying || s->end_sent || !vg_conn_can_send(s->conn))
        return -EPIPE;
    if (n > s->credit)
        return -EAGAIN;
    while (n) {
        size_t k = VG_MIN(n, (size_t)VG_WIRE_DATA_MAX);
        int r = out_data(s->conn, s->id, p, k);
        if (r < 0)
            return r;
        s->credit -= k;
        p += k;
        n -= k;
    }
    (void)vg_stream_room(s); /* so that on_writable follows */
    return 0;
}

void vg_stream_end(struct vg_stream *s) {
    if (!s->conn || s->dying || s->end_sent)
        return;
    send_small(s, VG_FRAME_END, NULL, 0);
    s->end_sent = true;
}

/* Each stream that had no room and has some now. A callback may free any stream, so the list is
   taken from its head until it is empty. */
void stream_notify(struct vg_conn *c) {
    struct vg_list todo;
    vg_list_init(&todo);
    while (!vg_list_empty(&c->starved)) {
        struct vg_list *l = vg_list_first(&c->starved);
        vg_list_remove(l);
        vg_list_push_back(&todo, l);
    }
    for (struct vg_list *l; (l = vg_list_first(&todo));) {
        struct vg_stream *s = vg_list_entry(l, struct vg_stream, in_starved);
        vg_list_remove(l);
        if (vg_stream_room(s) && s->ops && s->ops->on_writable)
            s->ops->on_writable(s, s->user);
    }
}

/* ------------------------------------------------------------------ receiving */

void vg_stream_consumed(struct vg_stream *s, size_t n) {
    if (!s->conn || s->dying)
        return;
    s->unacked += n;
    if (s->unacked < CREDIT_STEP || s->end_seen)
        return;
    uint32_t credit = (uint32_t)s->unacked;
    s->window += s->unacked;
    s->unacked = 0;
    send_small(s, VG_FRAME_CREDIT, &credit, sizeof(credit));
}

void vg_stream_widen(struct vg_stream *s, size_t bytes) {
    if (!s->conn || s->dying || s->end_seen || bytes <= s->width || bytes > VG_WIRE_CREDIT_MAX)
        return;
    uint32_t more = (uint32_t)(bytes - s->width);
    s->width = bytes;
    s->window += more;
    send_small(s, VG_FRAME_CREDIT, &more, sizeof(more));
}

void stream_data(struct vg_conn *c, uint32_t id, const uint8_t *data, size_t n) {
    struct vg_stream *s = vg_map_get_u64(&c->streams, id);
    if (!s || n == 0)
        return;
    if (n > s->window || s->end_seen) {
        struct vg_err err = VG_ERR_INIT;
        vg_err_set(&err, VG_PROTOCOL, "%s sent bytes on stream %u %s", c->address, id,
                   s->end_seen ? "after its end" : "beyond its credit");
        conn_protocol_error(c, &err);
        return;
    }
    s->window -= n;
    if (s->ops && !s->late)
        s->ops->on_data(s, s->user, data, n);
    else if (vg_buf_append(&s->kept, data, n) < 0)
        conn_fail(c, VG_INTERNAL, "out of memory");
}

static void got_credit(struct vg_stream *s, uint32_t n) {
    struct vg_conn *c = s->conn;
    if (n > VG_WIRE_CREDIT_MAX - s->credit) {
        struct vg_err err = VG_ERR_INIT;
        vg_err_set(&err, VG_PROTOCOL, "%s gave more credit than it owes on stream %u", c->address,
                   s->id);
        conn_protocol_error(c, &err);
        return;
    }
    s->credit += n;
    if (vg_list_empty(&s->in_starved) || !vg_stream_room(s))
        return;
    vg_list_remove(&s->in_starved);
    if (s->ops && s->ops->on_writable)
        s->ops->on_writable(s, s->user);
}

static void got_end(struct vg_stream *s) {
    if (s->end_seen)
        return;
    s->end_seen = true;
    if (!s->ops || s->late)
        return;
    s->end_told = true;
    if (s->ops->on_end)
        s->ops->on_end(s, s->user);
}

int vg_stream_set_ops(struct vg_stream *s, const struct vg_stream_ops *ops, void *user) {
    if (!s->conn || s->dying)
        return -EPIPE;
    s->ops = ops;
    s->user = user;
    if (!vg_buf_len(&s->kept) && !(s->end_seen && !s->end_told))
        return 0;
    if (!s->late)
        vg_list_push_back(&s->conn->late, &s->in_late);
    s->late = true;
    conn_wake(s->conn);
    return 0;
}

/* Tells streams with fresh ops what came before. */
void stream_tell_late(struct vg_conn *c) {
    for (struct vg_list *l; (l = vg_list_first(&c->late));) {
        struct vg_stream *s = vg_list_entry(l, struct vg_stream, in_late);
        struct vg_buf kept = s->kept;
        uint32_t id = s->id;
        vg_list_remove(l);
        s->late = false;
        s->kept = (struct vg_buf){0};
        if (vg_buf_len(&kept))
            s->ops->on_data(s, s->user, vg_buf_data(&kept), vg_buf_len(&kept));
        vg_buf_done(&kept);
        if (vg_map_get_u64(&c->streams, id) != s)
            continue;
        if (s->end_seen && !s->end_told) {
            s->end_told = true;
            if (s->ops->on_end)
                s->ops->on_end(s, s->user);
        }
    }
}

void stream_frame(struct vg_conn *c, const struct vg_frame *f) {
    struct vg_stream *s = vg_map_get_u64(&c->streams, f->stream);
    uint32_t value = 0;
    if (!s)
        return; /* closed here while it was on its way */
    if (f->len == sizeof(value))
        memcpy(&value, f->payload, sizeof(value));
    if (f->kind == VG_FRAME_CREDIT)
        got_credit(s, value);
    else if (f->kind == VG_FRAME_END)
        got_end(s);
    else if (f->kind == VG_FRAME_RESET)
        reset(s, vg_reason_from_wire(value));
}
