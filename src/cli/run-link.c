/* vrun's connection to the control plane: one message out, events in. When it breaks before the
   task answers, the same request is sent again under the same id. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/run-int.h"
#include "net/duct.h"
#include "net/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

int run_send_msg(int fd, const Vg__Pb__Envelope *env, const int *fds, size_t n_fds) {
    size_t len = vg__pb__envelope__get_packed_size(env);
    struct vg_buf b = {0};
    if (len > VG_WIRE_MSG_MAX)
        return -E2BIG;
    uint8_t *p = vg_buf_reserve(&b, VG_WIRE_HEADER + len);
    if (!p)
        return -ENOMEM;
    vg_frame_header(p, VG_FRAME_MSG, 0, (uint32_t)len);
    vg__pb__envelope__pack(env, p + VG_WIRE_HEADER);
    size_t total = VG_WIRE_HEADER + len, done = 0;
    int r = 0;
    while (done < total) {
        ssize_t n = vg_send_fds(fd, p + done, total - done, fds, done ? 0 : n_fds, 0);
        if (n == -EAGAIN) {
            struct pollfd pf = {.fd = fd, .events = POLLOUT};
            poll(&pf, 1, 1000);
            continue;
        }
        if (n < 0) {
            r = (int)n;
            break;
        }
        done += (size_t)n;
    }
    vg_buf_done(&b);
    return r;
}

static int open_ctl(struct run *r, struct vg_err *err) {
    /* Descriptors can be passed only where the kernel vouches for us and nobody relays. */
    r->bridged = r->ep.kind == VG_ENDPOINT_TLS || r->ep.token[0];
    r->by_way = r->bridged && r->way >= 0;
    if (r->by_way)
        return vg_take_fd(r->way);
    if (r->bridged)
        return run_bridge(&r->ep, err);
    int fd = vg_endpoint_connect(&r->ep);
    return fd < 0 ? vg_endpoint_refused(&r->ep, fd, err) : fd;
}

static int send_hello(struct run *r) {
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__Hello hello = VG__PB__HELLO__INIT;
    hello.has_protocol = true;
    hello.protocol = 1;
    hello.program = (char *)"virga " VG_VERSION;
    if (r->ep.token[0])
        hello.token = r->ep.token;
    env.body_case = VG__PB__ENVELOPE__BODY_HELLO;
    env.hello = &hello;
    return run_send_msg(r->ctl, &env, NULL, 0);
}

/* `theirs`: a socket, or what a duct is opened from. */
static int send_request(struct run *r, const int theirs[static VG_DUCT_FDS], bool again) {
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__AttachReq attach = VG__PB__ATTACH_REQ__INIT;
    int fds[VG_DUCT_FDS + 2];
    size_t n = 0;
    while (n < VG_DUCT_FDS && theirs[n] >= 0) {
        fds[n] = theirs[n];
        n++;
    }
    uint32_t mask = n ? 1 : 0;
    if (r->cwd_fd >= 0 && !r->bridged && !r->attach) {
        fds[n++] = r->cwd_fd;
        mask |= 2;
    }
    if (r->stdin_fd >= 0 && !r->bridged && !r->attach) {
        fds[n++] = r->stdin_fd;
        mask |= 4;
    }
    env.has_req = true;
    env.req = 1;
    if (r->attach) {
        attach.task = (char *)r->attach_ref;
        attach.has_fd_mask = true;
        attach.fd_mask = mask;
        env.body_case = VG__PB__ENVELOPE__BODY_ATTACH;
        env.attach = &attach;
    } else {
        r->req.has_fd_mask = true;
        r->req.fd_mask = mask;
        r->req.has_resend = again;
        r->req.resend = again;
        env.body_case = VG__PB__ENVELOPE__BODY_RUN;
        env.run = &r->req;
    }
    return run_send_msg(r->ctl, &env, fds, n);
}

/* What the task's bytes go over: a socket that the keeper gets, or memory up to the bridge. */
static int make_channel(struct run *r, int *ours, struct vg_duct **duct,
                        int theirs[static VG_DUCT_FDS]) {
    int pair[2];
    if (r->bridged)
        return vg_duct_new(duct, theirs);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    *ours = pair[0];
    theirs[0] = pair[1];
    return 0;
}

int run_connect(struct run *r, bool again, struct vg_err *err) {
    int ours = -1, theirs[VG_DUCT_FDS] = {-1, -1, -1};
    struct vg_duct *duct = NULL;
    vg_close(&r->ctl);
    vg_buf_clear(&r->ctl_in);
    r->ctl = open_ctl(r, err);
    if (r->ctl < 0) {
        int e = r->ctl;
        r->ctl = -1;
        return e;
    }
    bool wants_channel = !r->detach || r->follow;
    int e = wants_channel ? make_channel(r, &ours, &duct, theirs) : 0;
    if (e < 0)
        return vg_err_sys(err, e, "cannot make a channel");
    e = send_hello(r);
    if (e >= 0)
        e = send_request(r, theirs, again);
    for (size_t i = 0; i < VG_COUNT(theirs); i++)
        vg_close(&theirs[i]);
    if (e < 0) {
        vg_close(&ours);
        vg_duct_close(duct);
    }
    if (e == -E2BIG)
        return vg_err_set(err, VG_TOO_BIG, "arguments and environment are larger than %u MiB",
                          VG_WIRE_MSG_MAX >> 20);
    if (e < 0) { /* it went away between connect and send: like a break, the caller tries again */
        vg_close(&r->ctl);
        return vg_endpoint_refused(&r->ep, e, err);
    }
    if (wants_channel) {
        struct run_chan *c = r->chan[0].fd < 0 ? &r->chan[0] : &r->chan[1];
        run_chan_close(c);
        run_chan_open(r, c, ours, duct);
    }
    return 0;
}

/* After a break the news of a new attempt may be all that is heard of the old one's end. A channel
   that asked for the old one's output to go on is of no use then. */
static void on_attempt(struct run *r, uint32_t attempt) {
    struct run_chan *c = &r->chan[0];
    if (attempt <= r->attempt)
        return;
    if (r->attempt && r->patient && !r->requeued && r->out_offset && !c->welcomed) {
        c->broken = true;
        r->requeued = true;
    }
    r->attempt = attempt;
}

/* A node that is full is asked again and again: nothing new. */
static void say_why(struct run *r, const Vg__Pb__RunEvent *ev) {
    char *said = r->said[ev->kind == VG__PB__RUN_EVENT__KIND__REQUEUED];
    if (!ev->text || !*ev->text || r->quiet || strncmp(said, ev->text, sizeof(r->said[0]) - 1) == 0)
        return;
    snprintf(said, sizeof(r->said[0]), "%s", ev->text);
    run_say(r, "%s", ev->text);
}

static int on_event(struct run *r, const Vg__Pb__RunEvent *ev, struct vg_err *err) {
    if (ev->task_id)
        r->task_id = ev->task_id;
    if (r->dry_run)
        return run_forecast(r, ev, err);
    if (ev->kind != VG__PB__RUN_EVENT__KIND__ENDED)
        on_attempt(r, ev->attempt);
    switch (ev->kind) {
    case VG__PB__RUN_EVENT__KIND__ACCEPTED:
        r->accepted = true;
        if (r->task_id != r->req.task_id)
            r->pinning = false; /* an earlier submission's key: its files are its own */
        if (r->note)
            run_say(r, "%s", r->note);
        free(r->note);
        r->note = NULL;
        run_linked(r);
        break;
    case VG__PB__RUN_EVENT__KIND__QUEUED:
    case VG__PB__RUN_EVENT__KIND__REQUEUED:
        say_why(r, ev);
        if (ev->kind == VG__PB__RUN_EVENT__KIND__REQUEUED)
            run_requeued(r);
        break;
    case VG__PB__RUN_EVENT__KIND__NEED_MIRROR:
        return r->mirror_fd < 0 ? run_mirror(r, r->set, err) : 0;
    case VG__PB__RUN_EVENT__KIND__PINNED:
        r->pinning = false;
        break;
    case VG__PB__RUN_EVENT__KIND__NOTICE:
        if (ev->text && *ev->text)
            run_say(r, "%s", ev->text);
        break;
    case VG__PB__RUN_EVENT__KIND__STARTED:
        r->started = true;
        memset(r->said, 0, sizeof(r->said));
        break;
    case VG__PB__RUN_EVENT__KIND__ENDED:
        r->ended = true;
        r->pinning = false;
        r->status = ev->status;
        r->end_refused |= ev->reason != 0;
        if (ev->text && *ev->text)
            snprintf(r->end_text, sizeof(r->end_text), "%s", ev->text);
        break;
    default:
        break;
    }
    return 0;
}

/* A better channel came from the bridge: straight to the node. */
static void on_direct(struct run *r, int *fds, size_t n_fds) {
    struct vg_duct *duct;
    if (n_fds == VG_DUCT_FDS && r->chan[1].fd < 0 && vg_duct_open(fds, &duct) == 0)
        run_chan_open(r, &r->chan[1], -1, duct);
}

static int on_message(struct run *r, const uint8_t *p, size_t n, int *fds, size_t n_fds,
                      struct vg_err *err) {
    Vg__Pb__Envelope *env = vg__pb__envelope__unpack(NULL, n, p);
    int e = 0;
    if (!env)
        return vg_err_set(err, VG_PROTOCOL, "the cloud sent a message that cannot be read");
    if (env->body_case == VG__PB__ENVELOPE__BODY_ERROR)
        e = vg_err_set(err, vg_reason_from_wire(env->error->reason), "%s",
                       env->error->text ? env->error->text : "refused");
    else if (env->body_case == VG__PB__ENVELOPE__BODY_RUN_EVENT)
        e = on_event(r, env->run_event, err);
    else if (env->body_case == VG__PB__ENVELOPE__BODY_OK && r->dry_run)
        e = vg_err_set(err, VG_UNSUPPORTED,
                       "this cloud cannot tell beforehand: install the same version on both sides");
    else if (env->body_case == VG__PB__ENVELOPE__BODY_ATTACH)
        on_direct(r, fds, n_fds);
    vg__pb__envelope__free_unpacked(env, NULL);
    return e;
}

int run_ctl_ready(struct run *r, struct vg_err *err) {
    int fds[VG_FDS_MAX];
    size_t n_fds = VG_FDS_MAX;
    uint8_t *p = vg_buf_reserve(&r->ctl_in, 4096);
    if (!p)
        return vg_err_set(err, VG_INTERNAL, "out of memory");
    ssize_t n = vg_recv_fds(r->ctl, p, vg_buf_room(&r->ctl_in), fds, &n_fds, MSG_DONTWAIT);
    if (n == -EAGAIN)
        return 0;
    if (n <= 0) {
        vg_close(&r->ctl);
        return 0;
    }
    vg_buf_commit(&r->ctl_in, (size_t)n);
    int e = 0;
    while (e >= 0) {
        struct vg_frame f;
        size_t need;
        int used = vg_frame_parse(vg_buf_data(&r->ctl_in), vg_buf_len(&r->ctl_in), &f, &need, err);
        if (used <= 0) {
            e = used;
            break;
        }
        if (f.kind == VG_FRAME_MSG) {
            e = on_message(r, f.payload, f.len, fds, n_fds, err);
        } else if (f.kind == VG_FRAME_PING) {
            uint8_t pong[VG_WIRE_HEADER + 8];
            vg_frame_header(pong, VG_FRAME_PONG, 0, 8);
            memcpy(pong + VG_WIRE_HEADER, f.payload, 8);
            if (f.len == 8)
                (void)vg_send_fds(r->ctl, pong, sizeof(pong), NULL, 0, MSG_DONTWAIT);
        }
        vg_buf_consume(&r->ctl_in, (size_t)used);
    }
    for (size_t i = 0; i < n_fds; i++)
        vg_close(&fds[i]);
    return e;
}
