/* WebSockets; see the header. A close goes both ways: ours is sent with what waits before it, and
   the connection ends when the peer's has come or after a moment. */
#include "http/ws.h"

#include "base/mem.h"
#include "http/web-int.h"
#include "http/ws-frame.h"

#include <string.h>
#include <strings.h>

#define PING_MSEC 20000  /* of silence */
#define DEAD_MSEC 60000  /* of silence, pings or not */
#define CLOSE_MSEC 2000  /* for the peer's own close */
#define CODE_NONE 1005   /* its close named none */
#define CODE_BROKEN 1006 /* it ended without one */

struct vg_ws {
    struct vg_web_conn *conn;    /* borrowed: it owns us */
    const struct vg_ws_ops *ops; /* borrowed */
    void *user;
    size_t message_max;
    struct vg_buf message; /* of fragments, until the last has come */
    enum vg_ws_op op;      /* of the message in fragments; CONT: there is none */
    unsigned code;         /* what the owner hears at the end */
    uint64_t heard_msec, pinged_msec;
    bool closing; /* our close is on its way */
};

static uint64_t now(const struct vg_ws *ws) {
    return uv_now(ws->conn->web->loop);
}

/* ------------------------------------------------------------------ sending */

static int send_frame(struct vg_ws *ws, enum vg_ws_op op, const void *data, size_t n) {
    struct vg_web_conn *c = ws->conn;
    uint8_t head[VG_WS_HEAD_MAX];
    if (c->broken || ws->closing)
        return -EPIPE;
    size_t len = vg_ws_frame_head(op, n, head);
    int r = vg_buf_append(&c->out, head, len);
    if (r == 0 && n)
        r = vg_buf_append(&c->out, data, n);
    if (r < 0)
        c->broken = true;
    conn_ripe(c);
    return r;
}

int vg_ws_send(struct vg_ws *ws, bool text, const void *data, size_t n) {
    return send_frame(ws, text ? VG_WS_TEXT : VG_WS_BINARY, data, n);
}

size_t vg_ws_room(const struct vg_ws *ws) {
    struct vg_web_conn *c = ws->conn;
    size_t queued = vg_buf_len(&c->out), max = c->web->limits.queue_max;
    if (queued < max)
        return max - queued;
    c->room_due = true;
    return 0;
}

void vg_ws_pause(struct vg_ws *ws, bool pause) {
    ws->conn->paused = pause;
    conn_ripe(ws->conn);
}

void vg_ws_close(struct vg_ws *ws, unsigned code, const char *why) {
    uint8_t data[VG_WS_CONTROL_MAX];
    size_t n = why ? VG_MIN(strlen(why), sizeof(data) - 2) : 0;
    while (n && !vg_utf8_valid((const uint8_t *)why, n))
        n--; /* not in the middle of a character */
    data[0] = (uint8_t)(code >> 8);
    data[1] = (uint8_t)code;
    if (n)
        memcpy(data + 2, why, n);
    if (send_frame(ws, VG_WS_CLOSE, data, n + 2) < 0)
        return;
    ws->closing = true;
    ws->code = ws->code == CODE_BROKEN ? code : ws->code;
    ws->conn->paused = false;
    ws->conn->deadline_msec = now(ws) + CLOSE_MSEC;
}

/* ------------------------------------------------------------------ receiving */

static void on_peer_close(struct vg_ws *ws, const uint8_t *p, size_t n) {
    unsigned code = n >= 2 ? (unsigned)(p[0] << 8 | p[1]) : CODE_NONE, answer = VG_WS_NORMAL;
    if (n == 1 || (n >= 2 && !vg_ws_code_valid(code)))
        answer = VG_WS_PROTOCOL;
    else if (n > 2 && !vg_utf8_valid(p + 2, n - 2))
        answer = VG_WS_BAD_DATA;
    ws->code = answer == VG_WS_NORMAL ? code : answer;
    if (!ws->closing)
        vg_ws_close(ws, answer, NULL);
    ws->conn->closing = true; /* the connection ends when this is written */
}

static void fail(struct vg_ws *ws, unsigned code, const char *why) {
    vg_ws_close(ws, code, why);
    ws->conn->closing = true;
}

static void deliver(struct vg_ws *ws, enum vg_ws_op op, const uint8_t *p, size_t n) {
    if (op == VG_WS_TEXT && !vg_utf8_valid(p, n))
        fail(ws, VG_WS_BAD_DATA, "a text that is not UTF-8");
    else
        ws->ops->on_message(ws, ws->user, op == VG_WS_TEXT, p, n);
}

static void on_fragment(struct vg_ws *ws, const struct vg_ws_frame *f, const uint8_t *p) {
    bool more = f->op == VG_WS_CONT;
    if (more != (ws->op != VG_WS_CONT)) {
        fail(ws, VG_WS_PROTOCOL, "a fragment out of order");
        return;
    }
    if (!more && f->fin) {
        deliver(ws, f->op, p, (size_t)f->len);
        return;
    }
    if (!more)
        ws->op = f->op;
    if (vg_buf_len(&ws->message) + f->len > ws->message_max) {
        fail(ws, VG_WS_TOO_BIG, "the message is too long");
        return;
    }
    if (vg_buf_append(&ws->message, p, (size_t)f->len) < 0) {
        ws->conn->broken = true;
        return;
    }
    if (!f->fin)
        return;
    enum vg_ws_op op = ws->op;
    struct vg_buf whole = ws->message;
    ws->op = VG_WS_CONT;
    ws->message = (struct vg_buf){0};
    deliver(ws, op, vg_buf_data(&whole), vg_buf_len(&whole));
    vg_buf_done(&whole);
}

static void on_frame(struct vg_ws *ws, const struct vg_ws_frame *f, uint8_t *p) {
    vg_ws_unmask(p, (size_t)f->len, f->mask);
    if (f->op == VG_WS_CLOSE)
        on_peer_close(ws, p, (size_t)f->len);
    else if (f->op == VG_WS_PING) /* who does not read needs no answer to each */
        (void)(vg_buf_len(&ws->conn->out) < ws->conn->web->limits.queue_max &&
               send_frame(ws, VG_WS_PONG, p, (size_t)f->len));
    else if (f->op != VG_WS_PONG && !ws->closing)
        on_fragment(ws, f, p);
}

void ws_input(struct vg_web_conn *c) {
    struct vg_ws *ws = c->ws;
    ws->heard_msec = now(ws);
    while (c->state == SOCKET && !c->closing && !c->broken && !c->paused) {
        struct vg_ws_frame f;
        int r = vg_ws_frame_parse(vg_buf_data(&c->in), vg_buf_len(&c->in), ws->message_max, &f);
        if (r > 1)
            fail(ws, (unsigned)r,
                 r == VG_WS_TOO_BIG ? "the message is too long" : "a broken frame");
        if (r != 1 || vg_buf_len(&c->in) < f.head_len + f.len)
            return;
        /* The bytes leave the buffer first: what the owner does may end all this. */
        struct vg_buf frame = {0};
        uint8_t *p = vg_buf_data(&c->in) + f.head_len;
        if (f.op < VG_WS_CLOSE) {
            on_frame(ws, &f, p);
        } else {
            if (vg_buf_append(&frame, p, (size_t)f.len) < 0)
                c->broken = true;
            else
                on_frame(ws, &f, vg_buf_data(&frame));
            vg_buf_done(&frame);
        }
        if (c->state == SOCKET)
            vg_buf_consume(&c->in, f.head_len + (size_t)f.len);
    }
}

void ws_room(struct vg_web_conn *c) {
    if (c->ws->ops->on_room && !c->ws->closing)
        c->ws->ops->on_room(c->ws, c->ws->user);
}

/* ------------------------------------------------------------------ life */

void ws_gone(struct vg_web_conn *c) {
    struct vg_ws *ws = c->ws;
    c->ws = NULL;
    c->web->numbers.sockets_now--;
    ws->ops->on_close(ws, ws->user, c->web->stopping ? VG_WS_LEAVING : ws->code);
    vg_buf_done(&ws->message);
    free(ws);
}

void ws_tick(struct vg_web_conn *c, uint64_t at) {
    struct vg_ws *ws = c->ws;
    if (c->paused) {
        ws->heard_msec = at; /* we do not listen */
    } else if (at - ws->heard_msec > DEAD_MSEC) {
        c->broken = true;
        conn_ripe(c);
    } else if (at - ws->heard_msec > PING_MSEC && at - ws->pinged_msec > PING_MSEC) {
        ws->pinged_msec = at;
        (void)send_frame(ws, VG_WS_PING, NULL, 0);
    }
}

bool vg_ws_wanted(const struct vg_web_req *req) {
    const char *upgrade = vg_web_header(req, "upgrade");
    return upgrade && strcasecmp(upgrade, "websocket") == 0;
}

int vg_ws_refusal(struct vg_web_req *req, const char **ret_why) {
    char answer[29];
    const char *version = vg_web_header(req, "sec-websocket-version");
    const char *key = vg_web_header(req, "sec-websocket-key");
    if (!vg_ws_wanted(req) || !version || strcmp(version, "13") != 0) {
        (void)vg_web_set(req, "Upgrade", "websocket");
        (void)vg_web_set(req, "Sec-WebSocket-Version", "13");
        *ret_why = "this is a WebSocket: ask for an upgrade, version 13";
        return 426;
    }
    if (req->method != VG_WEB_GET || req->head || request_of(req)->head.minor == 0 || !key ||
        vg_ws_key_answer(key, answer) < 0) {
        *ret_why = "this is no proper request of a WebSocket";
        return 400;
    }
    if (vg_web_same_origin(req))
        return 0;
    *ret_why = "pages of other sites may not open this";
    return 403;
}

int vg_ws_accept(struct vg_web_req *req, size_t message_max, const struct vg_ws_ops *ops,
                 void *user, struct vg_ws **ret) {
    char answer[29];
    struct request *q = request_of(req);
    struct vg_web_conn *c = req->conn;
    const char *why;
    int status = vg_ws_refusal(req, &why);
    struct vg_ws *ws = c && !status ? vg_alloc(sizeof(*ws)) : NULL;
    if (!ws) {
        vg_web_text(req, status ? status : 503, status ? why : vg_web_phrase(503));
        return status == 403 ? -EACCES : status ? -EBADMSG : -ENOMEM;
    }
    (void)vg_ws_key_answer(vg_web_header(req, "sec-websocket-key"), answer);
    *ws = (struct vg_ws){.conn = c,
                         .ops = ops,
                         .user = user,
                         .message_max = message_max,
                         .code = CODE_BROKEN,
                         .heard_msec = uv_now(c->web->loop)};
    (void)vg_web_set(req, "Sec-WebSocket-Accept", answer);
    if (answer_head(c, q, 101, NULL, "Upgrade: websocket\r\nConnection: Upgrade\r\n") < 0)
        c->broken = true;
    c->web->numbers.requests_now--;
    c->web->numbers.sockets_now++;
    c->req = NULL;
    request_free(q);
    c->ws = ws;
    c->state = SOCKET;
    conn_ripe(c);
    *ret = ws;
    return 0;
}
