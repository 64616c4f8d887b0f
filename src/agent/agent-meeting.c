/* Where the members of a gang meet: a port of the node that leads to the same port inside the task
   of rank 0, whose own network nobody else can reach. Loop thread.

       a member ──TCP──▶ the node's port ──▶ guest ──the keeper connects inside──▶ relay

   The members start at the same moment, so they often knock before rank 0 listens: a guest waits
   and the keeper is asked again until somebody listens or PATIENCE is over. To the member that is a
   connection that takes a little. */
#include "agent/agent-int.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define GUESTS_MAX 4096 /* of all meetings of a node, waiting */
#define AGAIN_MS 20
#define PATIENCE_USEC (60 * VG_USEC)
#define AHEAD (256u << 10) /* bytes that one side of a relay may be behind */
#define PIECE (64u << 10)

struct vg_meeting {
    struct vg_agent *agent;
    struct vg_listener *listener; /* NULL: the task has the host's network */
    uint64_t task;
    uint16_t port;
};

/* A connection that is not inside yet. */
struct guest {
    struct vg_list link; /* in vg_agent.guests */
    struct vg_agent *agent;
    uv_timer_t timer;
    uint64_t number, task, since_usec;
    uint16_t port;
    int fd; /* owned */
};

/* ------------------------------------------------------------------ relays */

struct relay;

struct end {
    struct relay *relay;
    uv_tcp_t tcp;
    bool stopped, over; /* not read for now; has ended */
};

struct relay {
    struct end end[2];
    unsigned open;
};

struct piece {
    uv_write_t req;
    struct end *from;
    char data[];
};

static void on_end_closed(uv_handle_t *h) {
    struct end *e = h->data;
    if (--e->relay->open == 0)
        free(e->relay);
}

static void relay_close(struct relay *r) {
    for (int i = 0; i < 2; i++)
        if (!uv_is_closing((uv_handle_t *)&r->end[i].tcp))
            uv_close((uv_handle_t *)&r->end[i].tcp, on_end_closed);
}

static struct end *other(struct end *e) {
    return &e->relay->end[e == &e->relay->end[0]];
}

static void on_alloc(uv_handle_t *h, size_t want, uv_buf_t *ret) {
    struct piece *p = malloc(sizeof(*p) + PIECE);
    (void)h;
    (void)want;
    *ret = p ? uv_buf_init(p->data, PIECE) : uv_buf_init(NULL, 0);
}

static struct piece *piece_of(const uv_buf_t *b) {
    return b->base ? vg_container_of(b->base, struct piece, data) : NULL;
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b);

static void on_written(uv_write_t *req, int status) {
    struct piece *p = vg_container_of(req, struct piece, req);
    struct end *from = p->from, *to = other(from);
    free(p);
    if (status < 0) {
        relay_close(from->relay);
        return;
    }
    bool room = uv_stream_get_write_queue_size((uv_stream_t *)&to->tcp) < AHEAD / 2;
    if (from->stopped && room && !uv_is_closing((uv_handle_t *)&from->tcp)) {
        from->stopped = false;
        uv_read_start((uv_stream_t *)&from->tcp, on_alloc, on_read);
    }
}

static void on_shut(uv_shutdown_t *req, int status) {
    (void)status;
    free(req);
}

static void pass_end(struct end *from) {
    struct end *to = other(from);
    uv_shutdown_t *req = malloc(sizeof(*req));
    from->over = true;
    uv_read_stop((uv_stream_t *)&from->tcp);
    if (to->over || !req || uv_shutdown(req, (uv_stream_t *)&to->tcp, on_shut) < 0) {
        free(to->over ? req : NULL);
        relay_close(from->relay);
    }
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b) {
    struct end *from = s->data, *to = other(from);
    struct piece *p = piece_of(b);
    if (n <= 0) {
        free(p);
        if (n == UV_EOF)
            pass_end(from);
        else if (n < 0)
            relay_close(from->relay);
        return;
    }
    p->from = from;
    uv_buf_t out = uv_buf_init(p->data, (unsigned)n);
    if (uv_write(&p->req, (uv_stream_t *)&to->tcp, &out, 1, on_written) < 0) {
        free(p);
        relay_close(from->relay);
        return;
    }
    if (uv_stream_get_write_queue_size((uv_stream_t *)&to->tcp) > AHEAD) {
        from->stopped = true;
        uv_read_stop(s);
    }
}

/* Takes both. */
static void relay_start(uv_loop_t *loop, int a, int b) {
    struct relay *r = vg_alloc(sizeof(*r));
    int fds[2] = {a, b}, e = 0;
    if (!r) {
        close(a);
        close(b);
        return;
    }
    for (int i = 0; i < 2; i++) {
        r->end[i].relay = r;
        uv_tcp_init(loop, &r->end[i].tcp);
        r->end[i].tcp.data = &r->end[i];
        r->open++;
        vg_set_nonblock(fds[i], true);
        int k = uv_tcp_open(&r->end[i].tcp, fds[i]);
        if (k < 0)
            close(fds[i]);
        else
            uv_tcp_nodelay(&r->end[i].tcp, 1);
        e = k < 0 ? k : e;
    }
    for (int i = 0; i < 2 && e >= 0; i++)
        e = uv_read_start((uv_stream_t *)&r->end[i].tcp, on_alloc, on_read);
    if (e < 0)
        relay_close(r);
}

/* ------------------------------------------------------------------ guests */

static void on_guest_closed(uv_handle_t *h) {
    free(h->data);
}

static void guest_free(struct guest *g) {
    vg_list_remove(&g->link);
    g->agent->n_forwards--;
    vg_close(&g->fd);
    uv_close((uv_handle_t *)&g->timer, on_guest_closed);
}

static void knock(struct guest *g);

static void on_again(uv_timer_t *t) {
    knock(t->data);
}

static void later(struct guest *g) {
    if (vg_now_usec() - g->since_usec > PATIENCE_USEC)
        guest_free(g);
    else
        uv_timer_start(&g->timer, on_again, AGAIN_MS, 0);
}

static void knock(struct guest *g) {
    struct vg_agent_task *t = vg_tasks_get(g->agent, g->task);
    if (!t || t->state == VG_AT_EXITED) {
        guest_free(g);
        return;
    }
    g->number = ++g->agent->next_forward;
    if (t->state != VG_AT_RUNNING || !t->keeper ||
        vg_keeper_send(t->keeper, VG_K_FORWARD, t->id, g->port, g->number, NULL, 0, NULL, 0) < 0)
        later(g);
}

static void on_guest(int fd, void *user) {
    struct vg_meeting *m = user;
    struct vg_agent *a = m->agent;
    struct guest *g = a->n_forwards < GUESTS_MAX ? vg_alloc(sizeof(*g)) : NULL;
    if (!g) {
        close(fd);
        return;
    }
    *g = (struct guest){
        .agent = a, .task = m->task, .port = m->port, .fd = fd, .since_usec = vg_now_usec()};
    uv_timer_init(&a->loop, &g->timer);
    g->timer.data = g;
    vg_list_push_back(&a->guests, &g->link);
    a->n_forwards++;
    knock(g);
}

bool vg_meeting_on_forwarded(struct vg_agent_keeper *k, const struct vg_kpkt *p, int *fds,
                             size_t n_fds) {
    vg_list_for_each_safe (it, &k->agent->guests) {
        struct guest *g = vg_list_entry(it, struct guest, link);
        if (g->number != p->b)
            continue;
        if (p->a != 0 || n_fds == 0) {
            later(g);
        } else {
            relay_start(&k->agent->loop, vg_take_fd(g->fd), vg_take_fd(fds[0]));
            guest_free(g);
        }
        return true;
    }
    return false;
}

/* ------------------------------------------------------------------ meetings */

/* A port that is free now, for a task that listens there itself. */
static int free_port(uint16_t wish, uint16_t *ret) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(wish)};
    socklen_t len = sizeof(at);
    vg_auto_fd int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if (bind(fd, (struct sockaddr *)&at, sizeof(at)) < 0) {
        at.sin_port = 0;
        if (bind(fd, (struct sockaddr *)&at, sizeof(at)) < 0)
            return -errno;
    }
    if (getsockname(fd, (struct sockaddr *)&at, &len) < 0)
        return -errno;
    *ret = ntohs(at.sin_port);
    return 0;
}

int vg_meeting_open(struct vg_agent *a, struct vg_agent_task *t, uint16_t port,
                    struct vg_meeting **ret) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_meeting *m = vg_alloc(sizeof(*m));
    if (!m)
        return -ENOMEM;
    *m = (struct vg_meeting){.agent = a, .task = t->id};
    int r = 0;
    if (t->key.net == VG_NET_HOST)
        r = free_port(port, &m->port);
    else if (vg_listen_tcp(&a->loop, "0.0.0.0", port, on_guest, m, &m->listener, &m->port, &err) <
             0)
        r = vg_listen_tcp(&a->loop, "0.0.0.0", 0, on_guest, m, &m->listener, &m->port, &err);
    if (r < 0) {
        vg_warn("no port for a gang to meet: %s", err.msg);
        free(m);
        return r;
    }
    *ret = m;
    return 0;
}

void vg_meeting_close(struct vg_meeting *m) {
    if (!m)
        return;
    vg_listener_free(m->listener);
    vg_list_for_each_safe (it, &m->agent->guests) {
        struct guest *g = vg_list_entry(it, struct guest, link);
        if (g->task == m->task)
            guest_free(g);
    }
    free(m);
}

uint16_t vg_meeting_port(const struct vg_meeting *m) {
    return m->port;
}

/* The address that packets to the world leave from; nothing is sent. */
static bool outward(char *out, size_t n) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9)}, from;
    socklen_t len = sizeof(from);
    vg_auto_fd int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    to.sin_addr.s_addr = htonl(0xc0000201); /* 192.0.2.1: an address nobody has */
    return fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0 &&
           getsockname(fd, (struct sockaddr *)&from, &len) == 0 &&
           inet_ntop(AF_INET, &from.sin_addr, out, (socklen_t)n);
}

/* Any address of a link that is up; tasks' own links have none. */
static bool any_link(char *out, size_t n) {
    struct ifaddrs *all = NULL;
    bool found = false;
    if (getifaddrs(&all) < 0)
        return false;
    for (struct ifaddrs *i = all; i && !found; i = i->ifa_next)
        if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET && i->ifa_flags & IFF_UP &&
            !(i->ifa_flags & IFF_LOOPBACK)) {
            const struct sockaddr_in *at = (const void *)i->ifa_addr;
            found = inet_ntop(AF_INET, &at->sin_addr, out, (socklen_t)n) != NULL;
        }
    freeifaddrs(all);
    return found;
}

void vg_meeting_address(const struct vg_agent *a, char *out, size_t n) {
    (void)a;
    if (!outward(out, n) && !any_link(out, n))
        out[0] = '\0';
}
