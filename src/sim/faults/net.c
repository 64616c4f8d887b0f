/* The network: every connection is two queues of messages, first in, first out, as a TCP stream is.
   Messages wait while a machine is cut off; when a connection breaks, the ends of both queues are
   lost and each side notices in its own time. virgad, the agents and the clients use it through
   vg_conn_*, which this file puts in the place of src/net.

   What always holds: a side hears nothing after its on_close; nothing overtakes. Streams (task I/O)
   cannot be had here: whoever asks for one is told that there is none. */
#include "sim/faults/world.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/peer.h"

#include <errno.h>
#include <string.h>

#define FD_FIRST (1 << 21)

enum kind { MSG, ACCEPT, FIN, RESET };

struct packet {
    struct vg_list link;
    enum kind kind;
    size_t n;
    uint8_t bytes[];
};

struct vg_conn {
    struct vg_list of_proc;
    struct vg_w_proc *proc;
    struct vg_w_link *link; /* NULL: cut loose */
    int side;
    const struct vg_conn_ops *ops;
    void *user;
    uint64_t heard_usec;
    bool closing;
    struct vg_err why;
};

struct side {
    struct vg_w_proc *proc;
    uint32_t life;
    struct vg_conn *conn;
    struct vg_list out; /* packets under way to the other side */
    uint64_t last_at;   /* arrival of the newest */
    bool deaf;          /* it is gone, or has closed: what comes is dropped */
    bool powerless;     /* it went with its machine */
};

struct vg_w_link {
    struct vg_list all; /* in vg_world.links */
    bool local, broken;
    unsigned events; /* that still point here */
    uint64_t node;   /* whose certificate the dialling side shows; 0: a client's */
    struct side side[2];
};

int __wrap_vg_conn_new(uv_loop_t *loop, int fd, struct vg_tls *tls, bool dialled,
                       const struct vg_conn_ops *ops, void *user, struct vg_conn **ret,
                       struct vg_err *err);
int __wrap_vg_conn_send(struct vg_conn *c, const Vg__Pb__Envelope *env, const int *fds,
                        size_t n_fds);
void __wrap_vg_conn_close(struct vg_conn *c);
void __wrap_vg_conn_abort(struct vg_conn *c, enum vg_reason reason, const char *text);
void __wrap_vg_conn_pause(struct vg_conn *c, bool pause);
const char *__wrap_vg_conn_peer_cn(const struct vg_conn *c);
const char *__wrap_vg_conn_peer_address(const struct vg_conn *c);
size_t __wrap_vg_conn_queued(const struct vg_conn *c);
uint64_t __wrap_vg_conn_last_heard_usec(const struct vg_conn *c);
struct vg_stream *__wrap_vg_stream_new(struct vg_conn *c, uint32_t id,
                                       const struct vg_stream_ops *ops, void *user);
struct vg_dial *__wrap_vg_dial_tcp(uv_loop_t *loop, const char *address, uint64_t timeout_usec,
                                   void (*done)(int fd, const struct vg_err *err, void *user),
                                   void *user);
void __wrap_vg_dial_cancel(struct vg_dial *d);
int __real_vg_unix_connect(const char *path, int type);
int __wrap_vg_unix_connect(const char *path, int type);

/* ------------------------------------------------------------------ links */

static bool has_side(const struct side *s) {
    return s->proc && s->proc->alive && s->proc->life == s->life && !s->deaf;
}

static void drop_out(struct side *s, size_t keep) {
    size_t i = 0;
    vg_list_for_each_safe (it, &s->out) {
        struct packet *p = vg_list_entry(it, struct packet, link);
        if (i++ < keep)
            continue;
        vg_list_remove(&p->link);
        free(p);
    }
}

static void link_put(struct vg_w_link *l) {
    if (l->events || !l->side[0].deaf || !l->side[1].deaf)
        return;
    for (int i = 0; i < 2; i++) {
        drop_out(&l->side[i], 0);
        if (l->side[i].conn)
            l->side[i].conn->link = NULL;
    }
    for (size_t i = 0; i < vg_w->n_fd; i++)
        if (vg_w->by_fd[i] == l)
            vg_w->by_fd[i] = NULL;
    vg_list_remove(&l->all);
    free(l);
}

static struct vg_w_link *link_new(struct vg_w_proc *from, bool local) {
    struct vg_w_link *l = vg_alloc(sizeof *l);
    if (!l)
        abort();
    l->local = local;
    l->side[0] = (struct side){.proc = from, .life = from->life};
    l->side[1] = (struct side){.proc = &vg_w->virgad, .life = vg_w->virgad.life};
    vg_list_init(&l->side[0].out);
    vg_list_init(&l->side[1].out);
    vg_list_push_back(&vg_w->links, &l->all);
    return l;
}

static struct vg_w_machine *far_machine(const struct vg_w_link *l) {
    return l->side[0].proc->machine;
}

static uint64_t delay(const struct vg_w_link *l) {
    struct vg_w_machine *m = far_machine(l);
    if (l->local)
        return vg_w_between(&m->net, 5, 60);
    if (m->slow_until > vg_w->now)
        return vg_w_between(&m->net, 200000, 3000000);
    return vg_w_chance(&m->net, 5) ? vg_w_between(&m->net, 1000, 200000)
                                   : vg_w_between(&m->net, 100, 2000);
}

static uint64_t cut_until(const struct vg_w_link *l) {
    uint64_t until = VG_MAX(far_machine(l)->cut_until, vg_w->control_machine.cut_until);
    return l->local || until <= vg_w->now ? 0 : until;
}

static void arrive(void *link, uint64_t to);

static void schedule(struct vg_w_link *l, int from) {
    struct side *s = &l->side[from];
    s->last_at = VG_MAX(s->last_at + 1, vg_w->now + delay(l));
    l->events++;
    vg_w_at(s->last_at, NULL, arrive, l, (uint64_t)!from);
}

static void put(struct vg_w_link *l, int from, enum kind kind, const void *bytes, size_t n) {
    struct packet *p = vg_alloc(sizeof *p + n);
    if (!p)
        abort();
    p->kind = kind;
    p->n = n;
    if (n)
        memcpy(p->bytes, bytes, n);
    vg_list_push_back(&l->side[from].out, &p->link);
    schedule(l, from);
}

/* ------------------------------------------------------------------ what arrives */

static void end_conn(struct vg_conn *c, const struct vg_err *why) {
    struct vg_w_link *l = c->link;
    vg_list_remove(&c->of_proc);
    if (l) {
        l->side[c->side].conn = NULL;
        l->side[c->side].deaf = true;
    }
    c->link = NULL;
    if (c->ops && c->ops->on_close)
        c->ops->on_close(c, c->user, why);
    free(c);
    if (l)
        link_put(l);
}

static int fd_for(struct vg_w_link *l) {
    struct vg_world *w = vg_w;
    struct vg_w_link **list = vg_grow(w->by_fd, &w->cap_fd, w->n_fd + 1, sizeof(void *));
    if (!list)
        abort();
    w->by_fd = list;
    w->by_fd[w->n_fd] = l;
    return FD_FIRST + (int)w->n_fd++;
}

static void hear(struct vg_conn *c, const struct packet *p) {
    struct vg_err why = VG_ERR_INIT;
    c->heard_usec = vg_w_boot(c->proc->machine);
    if (p->kind == MSG) {
        Vg__Pb__Envelope *env = vg__pb__envelope__unpack(NULL, p->n, p->bytes);
        if (!env)
            abort();
        c->ops->on_msg(c, c->user, env, NULL, 0);
        vg__pb__envelope__free_unpacked(env, NULL);
        return;
    }
    if (p->kind == RESET)
        vg_err_set(&why, VG_LOST, "the connection was reset");
    end_conn(c, &why);
}

/* Runs as the process that hears. */
static void deliver(void *link, uint64_t to) {
    struct vg_w_link *l = link;
    struct side *from = &l->side[!to], *s = &l->side[to];
    struct vg_list *first = vg_list_first(&from->out);
    l->events--;
    if (!first || !has_side(s) || (s->conn && s->conn->closing)) {
        link_put(l);
        return;
    }
    struct packet *p = vg_list_entry(first, struct packet, link);
    vg_list_remove(&p->link);
    l->events++; /* stays while they are told */
    if (p->kind == ACCEPT) {
        int fd = fd_for(l);
        if (l->local)
            vg_peer_accept_unix(fd, vg_w->control);
        else
            vg_peer_accept_tls(fd, vg_w->control);
    } else if (s->conn) {
        hear(s->conn, p);
    }
    free(p);
    l->events--;
    link_put(l);
}

/* Nobody is there any more. A machine that runs answers by a reset, one that does not says
   nothing. */
static void refuse(struct vg_w_link *l, int to) {
    struct side *s = &l->side[to];
    s->deaf = true;
    if (!l->broken && has_side(&l->side[!to]) && (s->proc->alive || !s->powerless)) {
        l->broken = true;
        put(l, to, RESET, NULL, 0);
    }
    link_put(l);
}

/* An event of the world: whether it may pass is looked at when it would arrive. */
static void arrive(void *link, uint64_t to) {
    struct vg_w_link *l = link;
    struct side *s = &l->side[to];
    uint64_t cut = cut_until(l);
    if (!has_side(s)) {
        l->events--;
        refuse(l, (int)to);
    } else if (cut) {
        vg_w_at(cut + 1000 + (uint64_t)to, NULL, arrive, l, to);
    } else if (s->proc->stall_until > vg_w->now) {
        vg_w_at(s->proc->stall_until, NULL, arrive, l, to);
    } else {
        vg_w->cur = s->proc;
        deliver(l, to);
        vg_w->cur = NULL;
    }
}

/* ------------------------------------------------------------------ connecting */

/* Whether somebody can connect now. */
static bool reachable(const struct vg_w_proc *from, bool local) {
    const struct vg_world *w = vg_w;
    return w->control && w->virgad.alive &&
           (local ||
            (from->machine->cut_until <= w->now && w->control_machine.cut_until <= w->now));
}

int __wrap_vg_unix_connect(const char *path, int type) {
    if (!vg_w)
        return __real_vg_unix_connect(path, type);
    if (!reachable(vg_w->cur, true))
        return -ECONNREFUSED;
    struct vg_w_link *l = link_new(vg_w->cur, true);
    put(l, 0, ACCEPT, NULL, 0);
    return fd_for(l);
}

struct vg_dial {
    struct vg_w_proc *proc;
    uint64_t node;
    void (*done)(int fd, const struct vg_err *err, void *user);
    void *user;
    bool cancelled;
};

static void dialled(void *dial, uint64_t ok) {
    struct vg_dial *d = dial;
    struct vg_err err = VG_ERR_INIT;
    int fd = -1;
    if (!d->cancelled && d->proc->alive) {
        vg_w->cur = d->proc;
        if (ok && reachable(d->proc, false)) {
            struct vg_w_link *l = link_new(d->proc, false);
            l->node = d->node;
            put(l, 0, ACCEPT, NULL, 0);
            fd = fd_for(l);
        } else {
            vg_err_set(&err, VG_UNAVAILABLE, "it cannot be reached");
        }
        d->done(fd, &err, d->user);
        vg_w->cur = NULL;
    }
    free(d);
}

/* The address of a node's agent is the node's number: what its certificate would say. */
struct vg_dial *__wrap_vg_dial_tcp(uv_loop_t *loop, const char *address, uint64_t timeout_usec,
                                   void (*done)(int fd, const struct vg_err *err, void *user),
                                   void *user) {
    struct vg_dial *d = vg_alloc(sizeof *d);
    if (!d)
        return NULL;
    *d = (struct vg_dial){.proc = loop->data, .done = done, .user = user};
    d->node = strtoull(address, NULL, 10);
    bool ok = reachable(d->proc, false);
    uint64_t wait = ok ? vg_w_between(&d->proc->machine->net, 200, 3000)
                       : vg_w_between(&d->proc->machine->net, 1000, timeout_usec);
    vg_w_at(vg_w->now + wait, NULL, dialled, d, ok);
    return d;
}

void __wrap_vg_dial_cancel(struct vg_dial *d) {
    d->cancelled = true;
}

static void ready(void *conn, uint64_t unused) {
    struct vg_conn *c = conn;
    (void)unused;
    if (!c->closing && c->ops->on_ready)
        c->ops->on_ready(c, c->user);
}

static struct vg_conn *conn_new(struct vg_w_link *l, int side, const struct vg_conn_ops *ops,
                                void *user) {
    struct vg_conn *c = vg_alloc(sizeof *c);
    if (!c)
        abort();
    *c = (struct vg_conn){
        .proc = l->side[side].proc, .link = l, .side = side, .ops = ops, .user = user};
    c->heard_usec = vg_w_boot(c->proc->machine);
    l->side[side].conn = c;
    vg_list_push_back(&c->proc->conns, &c->of_proc);
    return c;
}

static void ready_by_fd(void *unused, uint64_t fd) {
    struct vg_w_link *l = vg_w->by_fd[fd];
    (void)unused;
    if (l && l->side[0].conn)
        ready(l->side[0].conn, 0);
}

int __wrap_vg_conn_new(uv_loop_t *loop, int fd, struct vg_tls *tls, bool is_dialled,
                       const struct vg_conn_ops *ops, void *user, struct vg_conn **ret,
                       struct vg_err *err) {
    size_t i = (size_t)(fd - FD_FIRST);
    struct vg_w_link *l = fd >= FD_FIRST && i < vg_w->n_fd ? vg_w->by_fd[i] : NULL;
    (void)loop;
    (void)tls;
    if (!l)
        return vg_err_set(err, VG_LOST, "the connection is gone");
    *ret = conn_new(l, is_dialled ? 0 : 1, ops, user);
    if (is_dialled)
        vg_w_at(vg_w->now, (*ret)->proc, ready_by_fd, NULL, i);
    return 0;
}

struct vg_conn *vg_w_connect(struct vg_w_proc *p, bool local, const struct vg_conn_ops *ops,
                             void *user) {
    if (!reachable(p, local))
        return NULL;
    struct vg_w_link *l = link_new(p, local);
    put(l, 0, ACCEPT, NULL, 0);
    return conn_new(l, 0, ops, user);
}

/* ------------------------------------------------------------------ using one */

int __wrap_vg_conn_send(struct vg_conn *c, const Vg__Pb__Envelope *env, const int *fds,
                        size_t n_fds) {
    (void)fds;
    (void)n_fds;
    if (c->closing || !c->link)
        return -EPIPE;
    if (c->link->broken)
        return 0; /* nobody has told it yet */
    size_t n = vg__pb__envelope__get_packed_size(env);
    vg_auto_free uint8_t *bytes = vg_alloc(n + 1);
    if (!bytes)
        return -ENOMEM;
    vg__pb__envelope__pack(env, bytes);
    put(c->link, c->side, MSG, bytes, n);
    return 0;
}

static void close_now(void *unused, uint64_t token) {
    struct vg_conn *c = vg_map_get_u64(&vg_w->conns_ending, token);
    (void)unused;
    if (!c)
        return;
    vg_map_del_u64(&vg_w->conns_ending, token);
    struct vg_err why = c->why;
    end_conn(c, &why);
}

static void begin_close(struct vg_conn *c) {
    c->closing = true;
    if (c->link && !c->link->broken)
        put(c->link, c->side, FIN, NULL, 0);
    uint64_t token = ++vg_w->next_token;
    if (vg_map_put_u64(&vg_w->conns_ending, token, c) < 0)
        abort();
    vg_w_at(vg_w->now, c->proc, close_now, NULL, token);
}

void __wrap_vg_conn_close(struct vg_conn *c) {
    if (!c->closing)
        begin_close(c);
}

void __wrap_vg_conn_abort(struct vg_conn *c, enum vg_reason reason, const char *text) {
    if (c->closing)
        return;
    vg_err_set(&c->why, reason, "%s", text);
    if (c->link) {
        size_t n = 0;
        vg_list_for_each (it, &c->link->side[c->side].out)
            n++;
        drop_out(&c->link->side[c->side], (size_t)vg_w_between(&far_machine(c->link)->net, 0, n));
    }
    begin_close(c);
}

void __wrap_vg_conn_pause(struct vg_conn *c, bool pause) {
    (void)c;
    (void)pause;
}

const char *__wrap_vg_conn_peer_cn(const struct vg_conn *c) {
    static char cn[32];
    if (!c->link || !c->link->node)
        return NULL;
    snprintf(cn, sizeof cn, "node:%016llx", (unsigned long long)c->link->node);
    return cn;
}

const char *__wrap_vg_conn_peer_address(const struct vg_conn *c) {
    (void)c;
    return "192.0.2.1:7000";
}

size_t __wrap_vg_conn_queued(const struct vg_conn *c) {
    (void)c;
    return 0;
}

uint64_t __wrap_vg_conn_last_heard_usec(const struct vg_conn *c) {
    return c->heard_usec;
}

struct vg_stream *__wrap_vg_stream_new(struct vg_conn *c, uint32_t id,
                                       const struct vg_stream_ops *ops, void *user) {
    (void)c;
    (void)id;
    (void)ops;
    (void)user;
    return NULL;
}

/* ------------------------------------------------------------------ breaking */

static void break_link(struct vg_w_link *l) {
    struct vg_rng *r = &far_machine(l)->net;
    if (l->broken || l->local)
        return;
    l->broken = true;
    for (int i = 0; i < 2; i++) {
        size_t n = 0;
        vg_list_for_each (it, &l->side[i].out)
            n++;
        drop_out(&l->side[i], (size_t)vg_w_between(r, 0, n));
        uint64_t notice = vg_w_chance(r, 50) ? 1000 : vg_w_between(r, 100000, 8 * VG_USEC);
        l->side[i].last_at = VG_MAX(l->side[i].last_at, vg_w->now + notice);
        put(l, i, RESET, NULL, 0);
    }
}

void vg_w_net_cut(struct vg_w_machine *m) {
    vg_list_for_each_safe (it, &vg_w->links) {
        struct vg_w_link *l = vg_list_entry(it, struct vg_w_link, all);
        if (far_machine(l) == m || m == &vg_w->control_machine)
            break_link(l);
    }
}

void vg_w_net_gone(struct vg_w_proc *p, bool silent) {
    vg_list_for_each_safe (it, &p->conns) {
        struct vg_conn *c = vg_list_entry(it, struct vg_conn, of_proc);
        struct vg_w_link *l = c->link;
        if (!l)
            continue;
        struct side *mine = &l->side[c->side];
        size_t n = 0;
        vg_list_for_each (x, &mine->out)
            n++;
        /* What the network has may arrive; what waits for a way is in the machine's memory. */
        if (silent && cut_until(l))
            n = 0;
        if (!l->broken) /* else they are lost already, and the reset is under way */
            drop_out(mine, silent ? (size_t)vg_w_between(&far_machine(l)->net, 0, n) : n);
        /* Of a machine without power nothing is heard: a node's agent notices by the silence, a
           client that only waits by its probes. */
        bool told = !silent || l->local || (c->side == 1 && !l->node);
        if (silent && told)
            mine->last_at =
                vg_w->now + vg_w_between(&far_machine(l)->net, 2 * VG_USEC, 40 * VG_USEC);
        if (told && !l->broken && !c->closing)
            put(l, c->side, silent ? RESET : FIN, NULL, 0);
        mine->deaf = true;
        mine->powerless = silent;
        mine->conn = NULL;
        c->link = NULL;
        l->broken |= told;
        link_put(l);
    }
}

void vg_w_net_finish(struct vg_w_proc *p) {
    struct vg_err why = VG_ERR_INIT;
    while (!vg_list_empty(&p->conns)) {
        struct vg_conn *c = vg_list_entry(vg_list_first(&p->conns), struct vg_conn, of_proc);
        vg_map_for_each (s, &vg_w->conns_ending)
            if (s->value == c)
                vg_map_del_u64(&vg_w->conns_ending, s->hash);
        end_conn(c, &why);
    }
}

void vg_w_net_reset(void) {
    for (size_t i = 0; i < vg_w->n_heap; i++)
        if (vg_w->heap[i].fn == dialled)
            free(vg_w->heap[i].a);
    vg_list_for_each_safe (it, &vg_w->links) {
        struct vg_w_link *l = vg_list_entry(it, struct vg_w_link, all);
        l->events = 0;
        l->side[0].deaf = l->side[1].deaf = true;
        link_put(l);
    }
    free(vg_w->by_fd);
    vg_map_done(&vg_w->conns_ending);
}
