#include "delay.h"

#include "base/cleanup.h"
#include "base/list.h"
#include "base/util.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PIECE (64u << 10)
#define HELD_MAX (64u << 20)

struct piece {
    struct vg_list link;
    uint64_t due;
    size_t n;
    char data[PIECE];
};
struct way { /* one direction */
    int from, to;
    uint64_t delay_usec, rate;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct vg_list pieces;
    size_t held;
    bool over, broken;
};

static void *take_in(void *arg) {
    struct way *w = arg;
    uint64_t free_at = 0; /* when the line has sent what came before */
    for (;;) {
        struct piece *p = malloc(sizeof(*p));
        ssize_t n = p ? recv(w->from, p->data, PIECE, 0) : -1;
        pthread_mutex_lock(&w->lock);
        while (n > 0 && w->held > HELD_MAX && !w->broken)
            pthread_cond_wait(&w->changed, &w->lock);
        if (n <= 0 || w->broken) {
            w->over = true;
            pthread_cond_broadcast(&w->changed);
            pthread_mutex_unlock(&w->lock);
            free(p);
            return NULL;
        }
        uint64_t now = vg_now_usec();
        free_at = VG_MAX(free_at, now) + (w->rate ? (uint64_t)n * VG_USEC / w->rate : 0);
        p->n = (size_t)n;
        p->due = free_at + w->delay_usec;
        w->held += p->n;
        vg_list_push_back(&w->pieces, &p->link);
        pthread_cond_broadcast(&w->changed);
        pthread_mutex_unlock(&w->lock);
    }
}

static void sleep_until(uint64_t due) {
    struct timespec t = {.tv_sec = (time_t)(due / VG_USEC),
                         .tv_nsec = (long)(due % VG_USEC * 1000)};
    while (clock_nanosleep(CLOCK_BOOTTIME, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
}

static bool pass_on(struct way *w, const struct piece *p) {
    for (size_t at = 0; at < p->n;) {
        ssize_t n = send(w->to, p->data + at, p->n - at, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        at += (size_t)n;
    }
    return true;
}

static void *let_out(void *arg) {
    struct way *w = arg;
    pthread_t reader;
    bool ok = pthread_create(&reader, NULL, take_in, w) == 0;
    while (ok) {
        pthread_mutex_lock(&w->lock);
        while (vg_list_empty(&w->pieces) && !w->over)
            pthread_cond_wait(&w->changed, &w->lock);
        struct vg_list *first = vg_list_first(&w->pieces);
        if (first)
            vg_list_remove(first);
        pthread_mutex_unlock(&w->lock);
        if (!first)
            break;
        struct piece *p = vg_list_entry(first, struct piece, link);
        sleep_until(p->due);
        ok = pass_on(w, p);
        pthread_mutex_lock(&w->lock);
        w->held -= p->n;
        w->broken = !ok;
        pthread_cond_broadcast(&w->changed);
        pthread_mutex_unlock(&w->lock);
        free(p);
    }
    shutdown(w->to, SHUT_WR);
    shutdown(w->from, SHUT_RD);
    pthread_join(reader, NULL);
    close(w->from);
    close(w->to);
    vg_list_for_each_safe (it, &w->pieces)
        free(vg_list_entry(it, struct piece, link));
    free(w);
    return NULL;
}

static int start_way(int from, int to, uint64_t delay_usec, uint64_t rate) {
    struct way *w = calloc(1, sizeof(*w));
    pthread_t thread;
    if (!w)
        return -ENOMEM;
    *w = (struct way){.from = from, .to = to, .delay_usec = delay_usec, .rate = rate};
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    vg_list_init(&w->pieces);
    int r = pthread_create(&thread, NULL, let_out, w);
    if (!r)
        pthread_detach(thread);
    return -r;
}

int delay_pair(uint64_t rtt_usec, uint64_t bytes_per_sec, int ret_ends[2]) {
    int a[2], b[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, a) < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, b) < 0)
        return -errno;
    int r = start_way(dup(a[1]), dup(b[1]), rtt_usec / 2, bytes_per_sec);
    if (r >= 0)
        r = start_way(dup(b[1]), dup(a[1]), rtt_usec / 2, bytes_per_sec);
    close(a[1]);
    close(b[1]);
    ret_ends[0] = a[0];
    ret_ends[1] = b[0];
    return r;
}
