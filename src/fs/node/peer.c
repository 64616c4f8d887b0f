/* Links to other daemons: a thread each, which polls its socket and a wake-up. */
#include "fs/node/peer.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/node/peer-int.h"

#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define EARLY_MAX 64u /* asks kept for a peer that may come */
#define READ_MAX (256u << 10)

/* ------------------------------------------------------------------ the thread */

/* Asks that came since: into the out buffer. False: it is to end. */
static bool take_queue(struct peer *e) {
    bool ok = true;
    pthread_mutex_lock(&e->peers->lock);
    vg_list_for_each_safe (it, &e->queue) {
        struct peer_ask *a = vg_list_entry(it, struct peer_ask, link);
        ok = ok && vg_peer_send_ask(e, a) == 0;
        vg_list_remove(&a->link);
        vg_list_push_back(&e->asks, &a->link);
    }
    ok = ok && !e->stop;
    pthread_mutex_unlock(&e->peers->lock);
    return ok;
}

static int receive(struct peer *e) {
    static _Thread_local uint8_t buf[READ_MAX];
    ssize_t n = recv(e->fd, buf, sizeof buf, MSG_DONTWAIT);
    if (n <= 0)
        return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -ECONNRESET;
    int r = vg_mw_feed(&e->in, buf, (size_t)n);
    while (r >= 0) {
        struct vg_mw_frame f;
        r = vg_mw_next(&e->in, &f);
        if (r <= 0)
            break;
        r = vg_peer_frame(e, &f);
        vg_mw_frame_done(&f);
    }
    return r;
}

static int transmit(struct peer *e) {
    ssize_t n = send(e->fd, vg_buf_data(&e->out), vg_buf_len(&e->out), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    vg_buf_consume(&e->out, (size_t)n);
    return 0;
}

static void *run(void *arg) {
    struct peer *e = arg;
    int r = 0;
    while (r >= 0 && take_queue(e) && (r = vg_peer_serve(e)) >= 0) {
        short out = vg_buf_len(&e->out) ? POLLOUT : 0;
        struct pollfd p[2] = {{.fd = e->fd, .events = (short)(POLLIN | out)},
                              {.fd = e->wake, .events = POLLIN}};
        if (poll(p, 2, -1) < 0)
            continue;
        uint64_t woken;
        if (p[1].revents)
            (void)!read(e->wake, &woken, sizeof woken);
        if (p[0].revents & (POLLIN | POLLHUP | POLLERR))
            r = receive(e);
        if (r >= 0 && (p[0].revents & POLLOUT))
            r = transmit(e);
    }
    if (r < 0 && r != -ECONNRESET)
        vg_warn("link to another node's daemon dropped: %s", strerror(-r));
    pthread_mutex_lock(&e->peers->lock);
    e->over = true; /* nothing is asked of it any more, so all can be forgotten */
    pthread_mutex_unlock(&e->peers->lock);
    vg_peer_forget_all(e);
    shutdown(e->fd, SHUT_RDWR); /* closed by whoever joins */
    return NULL;
}

/* ------------------------------------------------------------------ links */

static void peer_free(struct peer *e) {
    pthread_join(e->thread, NULL);
    vg_close(&e->fd);
    vg_close(&e->wake);
    vg_mw_in_done(&e->in);
    vg_buf_done(&e->out);
    free(e);
}

/* Takes out links that have ended, or all. Lock held; the caller frees what is in `out`. */
static size_t take_over(struct vg_peers *p, bool all, struct vg_list *out) {
    size_t left = 0;
    vg_list_for_each_safe (it, &p->all) {
        struct peer *e = vg_list_entry(it, struct peer, link);
        if (all) {
            e->stop = true;
            (void)!write(e->wake, &(uint64_t){1}, sizeof(uint64_t));
        }
        if (all || e->over) {
            vg_list_remove(&e->link);
            vg_list_push_back(out, &e->link);
        } else {
            left++;
        }
    }
    return left;
}

static void free_list(struct vg_list *l) {
    vg_list_for_each_safe (it, l) {
        vg_list_remove(it);
        peer_free(vg_list_entry(it, struct peer, link));
    }
}

static void enqueue(struct peer *e, struct peer_ask *a) {
    vg_list_push_back(&e->queue, &a->link);
    e->n_asks++;
    atomic_fetch_add(&e->peers->asked, a->n);
    (void)!write(e->wake, &(uint64_t){1}, sizeof(uint64_t));
}

static int start(struct vg_peers *p, struct peer *e) {
    int r = -pthread_create(&e->thread, NULL, run, e);
    if (r < 0)
        return r;
    pthread_mutex_lock(&p->lock);
    vg_list_push_back(&p->all, &e->link);
    vg_list_for_each_safe (it, &p->early) {
        vg_list_remove(it);
        enqueue(e, vg_list_entry(it, struct peer_ask, link));
    }
    p->n_early = 0;
    pthread_mutex_unlock(&p->lock);
    return 0;
}

/* How many are left. */
static size_t tidy(struct vg_peers *p) {
    struct vg_list over;
    vg_list_init(&over);
    pthread_mutex_lock(&p->lock);
    size_t n = take_over(p, false, &over);
    pthread_mutex_unlock(&p->lock);
    free_list(&over);
    return n;
}

void vg_peers_tidy(struct vg_peers *p) {
    tidy(p);
}

int vg_peers_add(struct vg_peers *p, int fd) {
    size_t n = tidy(p);
    struct peer *e = n < VG_PEERS_MAX ? vg_alloc(sizeof *e) : NULL;
    if (!e) {
        close(fd);
        return n < VG_PEERS_MAX ? -ENOMEM : -EBUSY;
    }
    *e = (struct peer){.peers = p, .fd = fd, .serving = -1};
    vg_list_init(&e->link);
    vg_list_init(&e->queue);
    vg_list_init(&e->asks);
    vg_list_init(&e->serves);
    e->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = e->wake < 0 ? -errno : start(p, e);
    if (r < 0) {
        vg_close(&e->wake);
        close(fd);
        free(e);
    }
    return r;
}

/* ------------------------------------------------------------------ asking */

static struct peer *least_busy(struct vg_peers *p) {
    struct peer *best = NULL;
    vg_list_for_each (it, &p->all) {
        struct peer *e = vg_list_entry(it, struct peer, link);
        if (!e->over && e->n_asks < PEER_ASKS && (!best || e->n_asks < best->n_asks))
            best = e;
    }
    return best;
}

void vg_peers_ask(struct vg_peers *p, const struct vg_peer_file *file, size_t n,
                  vg_peers_have *have, void *user) {
    if (!n || n > VG_PEER_FILES)
        return;
    struct peer_ask *a = vg_alloc(sizeof *a + n * sizeof a->file[0]);
    if (!a)
        return; /* the client has it all */
    a->have = have;
    a->user = user;
    a->n = n;
    memcpy(a->file, file, n * sizeof *file);
    pthread_mutex_lock(&p->lock);
    struct peer *e = least_busy(p);
    a->number = ++p->next;
    if (e) {
        enqueue(e, a);
    } else if (vg_list_empty(&p->all) && p->n_early < EARLY_MAX) {
        vg_list_push_back(&p->early, &a->link);
        p->n_early++;
    } else {
        free(a);
    }
    pthread_mutex_unlock(&p->lock);
}

static void forget_in(struct vg_list *l, const void *user) {
    vg_list_for_each (it, l) {
        struct peer_ask *a = vg_list_entry(it, struct peer_ask, link);
        if (a->user == user)
            a->have = NULL;
    }
}

void vg_peers_forget(struct vg_peers *p, void *user) {
    pthread_mutex_lock(&p->lock);
    forget_in(&p->early, user);
    vg_list_for_each (it, &p->all) {
        struct peer *e = vg_list_entry(it, struct peer, link);
        forget_in(&e->queue, user);
        forget_in(&e->asks, user);
    }
    pthread_mutex_unlock(&p->lock);
}

int vg_peers_new(struct vg_cache *cache, struct vg_peers **ret) {
    struct vg_peers *p = vg_alloc(sizeof *p);
    if (!p)
        return -ENOMEM;
    p->cache = cache;
    pthread_mutex_init(&p->lock, NULL);
    vg_list_init(&p->all);
    vg_list_init(&p->early);
    *ret = p;
    return 0;
}

void vg_peers_free(struct vg_peers *p) {
    struct vg_list over;
    if (!p)
        return;
    vg_list_init(&over);
    pthread_mutex_lock(&p->lock);
    take_over(p, true, &over);
    pthread_mutex_unlock(&p->lock);
    free_list(&over);
    vg_list_for_each_safe (it, &p->early)
        free(vg_list_entry(it, struct peer_ask, link));
    pthread_mutex_destroy(&p->lock);
    free(p);
}

int vg_peers_json(struct vg_peers *p, struct vg_buf *out) {
    size_t n = 0;
    pthread_mutex_lock(&p->lock);
    vg_list_for_each (it, &p->all)
        n += !vg_list_entry(it, struct peer, link)->over;
    pthread_mutex_unlock(&p->lock);
    return vg_buf_printf(
        out, "{\"links\":%zu,\"asked\":%llu,\"files\":%llu,\"bytes\":%llu,\"served_bytes\":%llu}",
        n, (unsigned long long)atomic_load(&p->asked), (unsigned long long)atomic_load(&p->files),
        (unsigned long long)atomic_load(&p->bytes),
        (unsigned long long)atomic_load(&p->served_bytes));
}
