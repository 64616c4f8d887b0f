/* Terminals and ports of tasks as WebSockets. The task's end is a socket pair that is handed over
   as any client's channel is; this side of it speaks task I/O (net/tio.h) for terminals, and plain
   bytes for ports.

   What always holds:
   1. A browser that reads slowly stops our reading of the channel, and with it the task's output
      (of its own terminal; one who only looks on finds a gap).
   2. Input is sent when the keeper has said WELCOME, and is never more than a window ahead.
   3. A browser that leaves detaches: the task goes on. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/chan.h"
#include "control/rest-int.h"
#include "control/rest-live.h"
#include "control/timer.h"
#include "http/ws.h"
#include "net/tio.h"
#include "view/json.h"

#include <string.h>
#include <sys/socket.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define MESSAGE_MAX (256u << 10)
#define READ_MAX (64u << 10)
#define WELCOME_STARTED 2
#define IN_FLIGHT_MAX (VG_TIO_WINDOW / 2)

struct bridge {
    struct vg_peer *peer;   /* owned */
    struct vg_web_req *req; /* until it is a WebSocket, or refused */
    struct vg_ws *ws;       /* NULL: not yet, or gone */
    uv_poll_t poll;
    int fd; /* owned; -1: gone */
    bool terminal, observe;
    bool welcome;      /* the keeper is there */
    bool exited;       /* the end was told */
    bool refused;      /* the request has its answer */
    bool dying;        /* handles are being closed */
    int events;        /* that are polled for */
    uint64_t sent;     /* input: offset of the next byte */
    uint64_t taken;    /* input: what the keeper has delivered */
    struct vg_buf in;  /* from the channel: a frame that has not all come */
    struct vg_buf out; /* to the channel */
    struct vg_timer *later;
    /* What the control plane said last: told when the browser is there, and at the channel's end
       when that did not say how the task ended. */
    Vg__Pb__RunEvent__Kind said;
    int32_t status;
    char text[256];
};

/* ------------------------------------------------------------------ life */

static void on_closed(uv_handle_t *handle) {
    struct bridge *b = handle->data;
    vg_close(&b->fd);
    vg_buf_done(&b->in);
    vg_buf_done(&b->out);
    free(b);
}

static void bridge_free(struct bridge *b) {
    if (b->dying)
        return;
    b->dying = true;
    vg_timer_stop(&b->later);
    if (b->req)
        vg_rest_problem(b->req, VG_INTERNAL, 500, "the control plane is out of memory");
    vg_peer_drop(b->peer);
    uv_close((uv_handle_t *)&b->poll, on_closed);
}

static void on_later(void *user) {
    struct bridge *b = user;
    b->later = NULL;
    if (b->ws)
        vg_ws_close(b->ws, VG_WS_NORMAL, NULL); /* the rest when it is closed */
    else
        bridge_free(b);
}

/* Ends it from the loop, whatever is on the stack now. */
static void finish(struct bridge *b) {
    if (!b->later && !b->dying)
        b->later = vg_timer_start(b->peer->ctl->loop, 0, on_later, b);
}

static void refuse(struct bridge *b, enum vg_reason reason, const char *text) {
    if (b->req)
        vg_rest_problem(vg_take_ptr(b->req), reason, vg_reason_http(reason), text);
    b->refused = true;
    finish(b);
}

/* ------------------------------------------------------------------ to the browser */

static void tell(struct bridge *b, const char *event, const int32_t *status, const char *text) {
    if (!b->ws)
        return;
    json_t *j = json_pack("{s:s}", "event", event);
    if (j && status)
        json_object_set_new(j, "status", json_integer(*status));
    if (j && text && *text)
        json_object_set_new(j, "text", vg_json_text(text));
    vg_auto_free char *line = j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    if (line)
        (void)vg_ws_send(b->ws, true, line, strlen(line));
}

static void tell_exit(struct bridge *b, int32_t status, const char *text) {
    if (b->exited)
        return;
    b->exited = true;
    tell(b, "exit", &status, text);
    finish(b);
}

/* ------------------------------------------------------------------ to the channel */

static void poll_again(struct bridge *b);

static void put(struct bridge *b, const void *data, size_t n) {
    if (n && vg_buf_append(&b->out, data, n) < 0)
        finish(b);
    poll_again(b);
}

static void frame(struct bridge *b, enum vg_tio_kind kind, const void *payload, size_t n) {
    uint8_t head[VG_TIO_HEADER];
    vg_tio_header(head, kind, (uint32_t)n);
    put(b, head, sizeof head);
    put(b, payload, n);
}

static void frame_u64(struct bridge *b, enum vg_tio_kind kind, uint64_t value) {
    uint8_t p[8];
    vg_put64(p, value);
    frame(b, kind, p, sizeof p);
}

static void hello(struct bridge *b) {
    uint8_t p[12];
    vg_put64(p, 0);
    vg_put32(p + 8, b->observe ? VG_HELLO_OBSERVE : VG_HELLO_INPUT | VG_HELLO_TAKE);
    frame(b, VG_TIO_HELLO, p, sizeof p);
}

static void resize(struct bridge *b, uint64_t rows, uint64_t cols) {
    uint16_t size[4] = {(uint16_t)VG_MIN(rows, (uint64_t)UINT16_MAX),
                        (uint16_t)VG_MIN(cols, (uint64_t)UINT16_MAX)};
    if (rows && cols && !b->observe)
        frame(b, VG_TIO_WINSIZE, size, sizeof size);
}

static void input(struct bridge *b, const uint8_t *p, size_t n) {
    uint8_t head[VG_TIO_HEADER + 8];
    vg_tio_header(head, VG_TIO_INPUT, (uint32_t)(8 + n));
    vg_put64(head + VG_TIO_HEADER, b->sent);
    put(b, head, sizeof head);
    put(b, p, n);
    b->sent += n;
    if (b->sent - b->taken > IN_FLIGHT_MAX)
        vg_ws_pause(b->ws, true);
}

/* ------------------------------------------------------------------ from the channel */

static void output(struct bridge *b, const uint8_t *p, size_t n) {
    uint64_t offset = vg_get64(p);
    size_t at = 8;
    while (n - at >= VG_REC_HEADER && n - at - VG_REC_HEADER >= vg_get32(p + at)) {
        uint32_t len = vg_get32(p + at), stream = vg_get32(p + at + 4) & 0xff;
        if (stream == VG_REC_STDOUT || stream == VG_REC_STDERR)
            (void)vg_ws_send(b->ws, false, p + at + VG_REC_HEADER, len);
        at += VG_REC_HEADER + len;
    }
    if (!b->observe)
        frame_u64(b, VG_TIO_OUTPUT_ACK, offset + at - 8);
}

static void welcome(struct bridge *b, const uint8_t *p, size_t n) {
    if (!b->welcome && n >= 20 && vg_get32(p + 16) & WELCOME_STARTED)
        tell(b, "started", NULL, NULL);
    b->welcome = true;
    b->sent = b->taken = vg_get64(p);
    vg_ws_pause(b->ws, false);
}

static void take_frame(struct bridge *b, uint32_t kind, const uint8_t *p, size_t n) {
    char text[256];
    if (kind == VG_TIO_WELCOME && n >= 8) {
        welcome(b, p, n);
    } else if (kind == VG_TIO_OUTPUT && n >= 8) {
        output(b, p, n);
    } else if (kind == VG_TIO_INPUT_ACK && n >= 8) {
        b->taken = vg_get64(p);
        if (b->sent - b->taken <= IN_FLIGHT_MAX)
            vg_ws_pause(b->ws, false);
    } else if (kind == VG_TIO_EXIT && n >= 16) {
        snprintf(text, sizeof text, "%.*s", (int)VG_MIN(n - 16, sizeof text - 1),
                 (const char *)p + 16);
        tell_exit(b, (int32_t)vg_get32(p), text);
    } else if (kind == VG_TIO_STARTED) {
        tell(b, "started", NULL, NULL);
    } else if (kind == VG_TIO_NOTE || kind == VG_TIO_TAKEN) {
        snprintf(text, sizeof text, "%.*s", (int)VG_MIN(n, sizeof text - 1), (const char *)p);
        tell(b, kind == VG_TIO_NOTE ? "notice" : "taken", NULL, kind == VG_TIO_NOTE ? text : NULL);
        if (kind == VG_TIO_TAKEN)
            finish(b);
    }
}

static void take_frames(struct bridge *b) {
    while (b->ws && !b->dying) {
        size_t have = vg_buf_len(&b->in);
        const uint8_t *p = vg_buf_data(&b->in);
        uint32_t len = have >= VG_TIO_HEADER ? vg_get32(p) : 0;
        if (len > VG_TIO_MAX) {
            finish(b);
            return;
        }
        if (have < VG_TIO_HEADER || have - VG_TIO_HEADER < len)
            return;
        take_frame(b, vg_get32(p + 4) & 0xff, p + VG_TIO_HEADER, len);
        vg_buf_consume(&b->in, VG_TIO_HEADER + len);
    }
}

static void read_channel(struct bridge *b) {
    uint8_t *p = vg_buf_reserve(&b->in, READ_MAX);
    ssize_t n = p ? recv(b->fd, p, READ_MAX, MSG_DONTWAIT) : -1;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        (void)uv_poll_stop(&b->poll);
        b->events = 0;
        if (b->said == VG__PB__RUN_EVENT__KIND__ENDED)
            tell_exit(b, b->status, b->text);
        finish(b);
        return;
    }
    vg_buf_commit(&b->in, (size_t)n);
    if (b->terminal) {
        take_frames(b);
    } else if (b->ws) {
        (void)vg_ws_send(b->ws, false, vg_buf_data(&b->in), vg_buf_len(&b->in));
        vg_buf_clear(&b->in);
    }
}

static void write_channel(struct bridge *b) {
    while (vg_buf_len(&b->out)) {
        ssize_t n =
            send(b->fd, vg_buf_data(&b->out), vg_buf_len(&b->out), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n < 0) {
            vg_buf_clear(&b->out);
            return; /* its end is read, too */
        }
        vg_buf_consume(&b->out, (size_t)n);
    }
    if (!b->terminal && b->ws)
        vg_ws_pause(b->ws, false);
}

static void on_poll(uv_poll_t *poll, int status, int events) {
    struct bridge *b = poll->data;
    if (status < 0) {
        finish(b);
        return;
    }
    if (events & UV_WRITABLE)
        write_channel(b);
    if (events & UV_READABLE)
        read_channel(b);
    poll_again(b);
}

static void poll_again(struct bridge *b) {
    int events =
        (b->ws && vg_ws_room(b->ws) ? UV_READABLE : 0) | (vg_buf_len(&b->out) ? UV_WRITABLE : 0);
    if (b->dying || b->later || events == b->events)
        return;
    b->events = events;
    (void)(events ? uv_poll_start(&b->poll, events, on_poll) : uv_poll_stop(&b->poll));
}

/* ------------------------------------------------------------------ from the browser */

static void on_text(struct bridge *b, const uint8_t *data, size_t n) {
    json_t *j = json_loadb((const char *)data, n, 0, NULL), *size = json_object_get(j, "resize");
    json_int_t sig = json_integer_value(json_object_get(j, "signal"));
    if (size)
        resize(b, (uint64_t)json_integer_value(json_object_get(size, "rows")),
               (uint64_t)json_integer_value(json_object_get(size, "cols")));
    if (sig > 0 && sig <= 64 && !b->observe) {
        uint8_t p[8];
        vg_put32(p, (uint32_t)sig);
        vg_put32(p + 4, 1); /* as a terminal would: the group */
        frame(b, VG_TIO_SIGNAL, p, sizeof p);
    }
    json_decref(j);
}

static void on_message(struct vg_ws *ws, void *user, bool text, const uint8_t *data, size_t n) {
    struct bridge *b = user;
    if (b->terminal && text) {
        on_text(b, data, n);
    } else if (b->terminal && !b->observe && n) {
        input(b, data, n);
    } else if (!b->terminal) {
        put(b, data, n);
        if (vg_buf_len(&b->out) > MESSAGE_MAX)
            vg_ws_pause(ws, true);
    }
}

static void on_room(struct vg_ws *ws, void *user) {
    struct bridge *b = user;
    (void)ws;
    take_frames(b);
    poll_again(b);
}

static void on_close(struct vg_ws *ws, void *user, unsigned code) {
    struct bridge *b = user;
    (void)ws;
    (void)code;
    b->ws = NULL;
    if (b->terminal && !b->exited) {
        frame(b, VG_TIO_DETACH, NULL, 0);
        write_channel(b);
    }
    bridge_free(b);
}

static const struct vg_ws_ops ws_ops = {on_message, on_room, on_close};

/* ------------------------------------------------------------------ from the control plane */

static void say(struct bridge *b) {
    switch (b->said) {
    case VG__PB__RUN_EVENT__KIND__QUEUED:
        tell(b, "queued", NULL, b->text);
        break;
    case VG__PB__RUN_EVENT__KIND__PLACED:
        tell(b, "placed", NULL, b->text);
        break;
    case VG__PB__RUN_EVENT__KIND__REQUEUED:
        tell(b, "requeued", NULL, b->text);
        break;
    case VG__PB__RUN_EVENT__KIND__NOTICE:
        tell(b, "notice", NULL, b->text);
        break;
    default: /* how it ended comes behind its last output */
        break;
    }
}

static void on_event(struct bridge *b, const Vg__Pb__RunEvent *e) {
    b->said = e->kind;
    b->status = e->status;
    snprintf(b->text, sizeof b->text, "%s", e->text && *e->text ? e->text : e->node ? e->node : "");
    say(b);
    /* It never began: no channel will tell it. */
    if (e->kind == VG__PB__RUN_EVENT__KIND__ENDED && b->ws && !b->welcome)
        tell_exit(b, b->status, b->text);
}

static void on_told(struct vg_peer *p, const Vg__Pb__Envelope *env, bool more) {
    struct bridge *b = p->sink_user;
    (void)more;
    if (env->body_case == B(ERROR) && b->req)
        refuse(b, vg_reason_from_wire(env->error->reason), env->error->text);
    else if (env->body_case == B(ERROR))
        finish(b);
    else if (env->body_case == B(RUN_EVENT))
        on_event(b, env->run_event);
}

static void on_cut(struct vg_peer *p, enum vg_reason reason, const char *why) {
    struct bridge *b = p->sink_user;
    if (b->req)
        refuse(b, reason, why);
    else
        finish(b);
}

static const struct vg_peer_sink sink = {.told = on_told, .cut = on_cut};

/* ------------------------------------------------------------------ beginnings */

/* NULL: it was refused. *ret_far is the end for the task. */
static struct bridge *bridge_new(struct vg_peer *p, struct vg_web_req *req, int *ret_far) {
    int pair[2];
    struct bridge *b = NULL;
    const char *why;
    int status = vg_ws_refusal(req, &why);
    if (status) {
        vg_rest_problem(req, status == 403 ? VG_FORBIDDEN : VG_INVALID, status, why);
        vg_peer_drop(p);
        return NULL;
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0) {
        b = vg_alloc(sizeof *b);
        if (b && uv_poll_init(p->ctl->loop, &b->poll, pair[0]) < 0)
            free(vg_take_ptr(b));
        if (!b) {
            close(pair[0]);
            close(pair[1]);
        }
    }
    if (!b) {
        vg_rest_problem(req, VG_INTERNAL, 500, "the control plane is out of memory or descriptors");
        vg_peer_drop(p);
        return NULL;
    }
    b->peer = p;
    b->req = req;
    b->fd = pair[0];
    b->poll.data = b;
    p->sink = &sink;
    p->sink_user = b;
    *ret_far = pair[1];
    return b;
}

/* The task has the other end: greet the browser. */
static bool open_ws(struct bridge *b) {
    struct vg_web_req *req = vg_take_ptr(b->req);
    if (b->refused || !req)
        return false;
    if (vg_ws_accept(req, MESSAGE_MAX, &ws_ops, b, &b->ws) < 0) {
        finish(b);
        return false;
    }
    say(b);
    return true;
}

void vg_live_attach(struct vg_peer *p, struct vg_web_req *req, const char *task) {
    struct vg_err err = VG_ERR_INIT;
    uint64_t rows = 0, cols = 0;
    int far = -1;
    struct bridge *b = bridge_new(p, req, &far);
    if (!b)
        return;
    b->terminal = true;
    b->observe = vg_live_flag(req, "observe");
    if (vg_live_number(req, "rows", UINT16_MAX, &rows, &err) < 0 ||
        vg_live_number(req, "cols", UINT16_MAX, &cols, &err) < 0) {
        close(far);
        refuse(b, err.reason, err.msg);
        return;
    }
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__AttachReq m = VG__PB__ATTACH_REQ__INIT;
    m.task = (char *)task;
    m.has_fd_mask = m.has_observe = 1;
    m.fd_mask = VG_FD_CHANNEL;
    m.observe = b->observe;
    env.body_case = B(ATTACH);
    env.attach = &m;
    vg_peer_ask_fds(p, &env, &far, 1);
    if (!open_ws(b))
        return;
    vg_ws_pause(b->ws, true); /* until WELCOME says where input begins */
    hello(b);
    resize(b, rows, cols);
}

void vg_live_forward(struct vg_peer *p, struct vg_web_req *req, const char *task) {
    struct vg_err err = VG_ERR_INIT;
    uint64_t port = 0;
    int far = -1;
    struct bridge *b = bridge_new(p, req, &far);
    if (!b)
        return;
    if (vg_live_number(req, "port", 65535, &port, &err) < 0) {
        close(far);
        refuse(b, err.reason, err.msg);
        return;
    }
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__ForwardReq m = VG__PB__FORWARD_REQ__INIT;
    m.task = (char *)task;
    m.has_port = 1;
    m.port = (uint32_t)port;
    env.body_case = B(FORWARD);
    env.forward = &m;
    vg_peer_ask_fds(p, &env, &far, 1);
    if (open_ws(b))
        poll_again(b);
}
