/* Streams on this node: channels between clients and keepers, forwarded ports, and clients inside
   tasks. Loop thread. The agent copies bytes only where a stream of a connection is involved; a
   local client's channel goes to the keeper as a descriptor.

   Every pump owns what it joins; the agent only counts those it must bound. */
#include "agent/agent-int.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int vg_io_channel(struct vg_agent *a, struct vg_stream *s) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0) {
        int r = -errno;
        vg_stream_free(s, VG_INTERNAL);
        return r;
    }
    int r = vg_pump_fd(&a->loop, pair[0], s, NULL, NULL);
    if (r < 0) {
        close(pair[1]);
        return r;
    }
    return pair[1];
}

/* ------------------------------------------------------------------ attach */

static void register_ticket(struct vg_agent *a, const Vg__Pb__TaskAttach *x, uint32_t req) {
    int r = vg_tickets_add(&a->tickets, x->ticket.data, x->ticket.len, x->task_id, vg_now_usec());
    vg_link_reply(a, req, r < 0 ? VG_INVALID : VG_OK, "the ticket has a wrong length");
}

void vg_io_on_attach(struct vg_agent *a, const Vg__Pb__TaskAttach *x, uint32_t req, int *fds,
                     size_t n_fds) {
    struct vg_agent_task *t = vg_tasks_get(a, x->task_id);
    struct vg_stream *s = x->stream ? vg_stream_new(a->link.conn, x->stream, NULL, NULL) : NULL;
    if (!t) {
        vg_stream_free(s, VG_NOT_FOUND);
        vg_link_reply(a, req, VG_NOT_FOUND, "the task is not on this node any more");
        return;
    }
    if (x->has_ticket && x->ticket.len && !s && !(x->fd_mask & 1)) {
        register_ticket(a, x, req);
        return;
    }
    bool given = (x->fd_mask & 1) && n_fds > 0;
    bool local = given && !(x->fd_mask & 8); /* 8: the control plane relays a client elsewhere */
    int fd = given ? vg_take_fd(fds[0]) : s ? vg_io_channel(a, s) : -EPROTO;
    if (given)
        vg_stream_free(s, VG_OK);
    int r = fd < 0 ? fd : vg_tasks_attach(t, fd, (x->observe ? 1u : 0) | (local ? 2u : 0));
    vg_link_reply(a, req, r < 0 ? VG_UNAVAILABLE : VG_OK, "the task's keeper cannot be reached");
}

/* ------------------------------------------------------------------ forwarded ports */

struct forward {
    struct vg_list link; /* in vg_agent.forwards */
    uint64_t number;
    struct vg_agent_keeper *keeper;
    struct vg_stream *stream;
};

static void forward_done(struct vg_agent *a, struct forward *f) {
    vg_list_remove(&f->link);
    a->n_forwards--;
    free(f);
}

static void forward_fail(struct vg_agent *a, struct forward *f, enum vg_reason reason) {
    vg_stream_free(f->stream, reason);
    forward_done(a, f);
}

void vg_io_on_forward(struct vg_agent *a, const Vg__Pb__TaskForward *x, uint32_t req) {
    struct vg_stream *s = vg_stream_new(a->link.conn, x->stream, NULL, NULL);
    struct vg_agent_task *t = vg_tasks_get(a, x->task_id);
    if (!s)
        return;
    if (!t || !t->keeper || !x->port || x->port > 65535 || a->n_forwards >= VG_AGENT_FORWARDS_MAX) {
        vg_stream_free(s, t && t->keeper ? VG_INVALID : VG_NOT_FOUND);
        vg_link_reply(a, req, VG_NOT_FOUND, "the task is not running on this node");
        return;
    }
    struct forward *f = vg_alloc(sizeof(*f));
    if (!f) {
        vg_stream_free(s, VG_INTERNAL);
        return;
    }
    f->number = ++a->next_forward;
    f->keeper = t->keeper;
    f->stream = s;
    vg_list_push_back(&a->forwards, &f->link);
    a->n_forwards++;
    if (vg_keeper_send(t->keeper, VG_K_FORWARD, t->id, x->port, f->number, NULL, 0, NULL, 0) < 0)
        forward_fail(a, f, VG_UNAVAILABLE);
}

void vg_io_on_forwarded(struct vg_agent_keeper *k, const struct vg_kpkt *p, int *fds,
                        size_t n_fds) {
    struct vg_agent *a = k->agent;
    if (vg_meeting_on_forwarded(k, p, fds, n_fds))
        return;
    vg_list_for_each_safe (it, &a->forwards) {
        struct forward *f = vg_list_entry(it, struct forward, link);
        if (f->number != p->b || f->keeper != k)
            continue;
        if (p->a != 0 || n_fds == 0) {
            forward_fail(a, f, VG_UNAVAILABLE);
            return;
        }
        vg_set_nonblock(fds[0], true);
        vg_pump_fd(&a->loop, vg_take_fd(fds[0]), f->stream, NULL, NULL);
        forward_done(a, f);
        return;
    }
}

void vg_io_keeper_gone(struct vg_agent_keeper *k) {
    vg_list_for_each_safe (it, &k->agent->forwards) {
        struct forward *f = vg_list_entry(it, struct forward, link);
        if (f->keeper == k)
            forward_fail(k->agent, f, VG_LOST);
    }
}

void vg_io_link_lost(struct vg_agent *a) {
    vg_list_for_each_safe (it, &a->forwards) {
        struct forward *f = vg_list_entry(it, struct forward, link);
        forward_fail(a, f, VG_LOST);
    }
}

/* ------------------------------------------------------------------ clients inside tasks */

static void nested_done(void *user) {
    struct vg_agent *a = user;
    a->n_nested--;
}

/* A client inside a task speaks the client's protocol with the control plane; who it is, its task
   token says. The agent is only the wire. */
static void on_nested(int fd, void *user) {
    struct vg_agent *a = user;
    vg_auto_fd int client = fd;
    if (!a->link.up || a->n_nested >= VG_AGENT_NESTED_MAX)
        return;
    struct vg_stream *s = vg_stream_new(a->link.conn, 0, NULL, NULL);
    if (!s)
        return;
    Vg__Pb__NestedReq req = VG__PB__NESTED_REQ__INIT;
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    req.has_stream = true;
    req.stream = vg_stream_id(s);
    env.body_case = VG__PB__ENVELOPE__BODY_NESTED;
    env.nested = &req;
    if (!vg_link_send(a, &env)) {
        vg_stream_free(s, VG_UNAVAILABLE);
        return;
    }
    a->n_nested++;
    if (vg_pump_fd(&a->loop, vg_take_fd(client), s, nested_done, a) < 0)
        a->n_nested--;
}

int vg_io_open(struct vg_agent *a, struct vg_err *err) {
    vg_auto_free char *path = vg_agent_path(a, VG_AGENT_INSIDE "/agent.sock");
    if (!path)
        return vg_err_sys(err, -ENOMEM, "cannot start the agent");
    int fd = vg_unix_listen(path, SOCK_STREAM, 0666);
    if (fd < 0)
        return vg_err_sys(err, fd, "cannot listen on %s", path);
    int r = vg_listen_fd(&a->loop, fd, on_nested, a, &a->nested);
    return r < 0 ? vg_err_sys(err, r, "cannot listen on %s", path) : 0;
}

void vg_io_close(struct vg_agent *a) {
    vg_listener_free(a->nested);
    vg_listener_free(a->direct);
    a->nested = a->direct = NULL;
    vg_tls_unref(a->direct_tls);
    a->direct_tls = NULL;
    vg_tickets_done(&a->tickets);
}
