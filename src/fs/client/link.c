/* A link's socket: frames out by priority, frames in. What is handed to the socket is little, so
   that what somebody waits for overtakes what is only pushed. */
#include "fs/client/svc.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#define READ_AT_ONCE (256u << 10)
#define READS 16 /* of them before others get their turn */
/* Bytes a second: beyond FAST packing costs more than it saves, below SLOW more of it pays. */
#define FAST (180u << 20)
#define SLOW (12u << 20)
#define CHEAP (-3) /* twice as fast as level 1, for a tenth more bytes */
#define CORES 4u   /* so many can pack at level 1 what FAST carries */

static void frame_free(struct vg_mframe *f) {
    vg_buf_done(&f->buf);
    free(f);
}

int vg_mlink_put(struct vg_mlink *l, bool urgent, struct vg_buf *bytes) {
    return vg_mlink_put_leaf(l, urgent, bytes, 0, 0);
}

int vg_mlink_put_leaf(struct vg_mlink *l, bool urgent, struct vg_buf *bytes, uint64_t object,
                      uint64_t leaf) {
    struct vg_mframe *f = l->closed || l->broken ? NULL : vg_alloc(sizeof(*f));
    if (!f) {
        vg_buf_done(bytes);
        *bytes = (struct vg_buf){0};
        return l->closed ? -EPIPE : l->broken ? 0 : -ENOMEM;
    }
    f->buf = *bytes;
    f->object = object;
    f->leaf = leaf;
    *bytes = (struct vg_buf){0};
    if (!l->backlog) {
        l->busy_since = vg_now_usec();
        l->busy_bytes = 0;
    }
    l->backlog += vg_buf_len(&f->buf);
    vg_list_push_back(&l->out[urgent ? 0 : 1], &f->link);
    return 0;
}

int vg_mlink_msg(struct vg_mlink *l, const Vg__Mr__Msg *m) {
    struct vg_buf b = {0};
    int r = vg_mw_msg(&b, m);
    if (r < 0) {
        vg_buf_done(&b);
        return r;
    }
    r = vg_mlink_put(l, true, &b);
    if (r == 0)
        vg_mlink_write(l);
    return r;
}

int vg_mlink_level(const struct vg_mlink *l) {
    if (l->m->level >= 0)
        return l->m->level;
    int middle = l->m->cores >= CORES ? 1 : CHEAP;
    if (l->rate == 0)
        return middle;
    return l->rate > FAST ? 0 : l->rate < SLOW ? 3 : middle;
}

/* Only time in which there was something to write counts. Buffers on the way make a link look fast
   at first, so what is slower counts more. */
static void measure(struct vg_mlink *l, size_t wrote) {
    l->busy_bytes += wrote;
    uint64_t now = vg_now_usec();
    if (now - l->busy_since < 20000 || l->busy_bytes < (256u << 10))
        return;
    uint64_t rate = l->busy_bytes * VG_USEC / (now - l->busy_since);
    l->rate = !l->rate ? rate : rate < l->rate ? (l->rate + rate) / 2 : (l->rate * 3 + rate) / 4;
    l->busy_since = now;
    l->busy_bytes = 0;
}

static void on_poll(uv_poll_t *poll, int status, int events);

static void want(struct vg_mlink *l) {
    int events = UV_READABLE | (l->backlog || l->more ? UV_WRITABLE : 0);
    if (!l->closed)
        uv_poll_start(&l->poll, events, on_poll);
}

static struct vg_mframe *next_frame(struct vg_mlink *l) {
    for (int i = 0; !l->cur && i < 2; i++) {
        struct vg_list *first = vg_list_first(&l->out[i]);
        if (first) {
            vg_list_remove(first);
            l->cur = vg_list_entry(first, struct vg_mframe, link);
            if (l->cur->object)
                vg_mlink_pushed(l, l->cur->object, l->cur->leaf);
        }
    }
    return l->cur;
}

/* When all that was told has left: asks the node to say so when it has it. */
static void mark(struct vg_mlink *l) {
    if (l->closed || l->broken || l->marking || l->backlog ||
        !vg_list_empty(&l->queue[VG_MP_FOLDER]) || (vg_map_len(&l->told) == 0 && !l->all_at))
        return;
    Vg__Mr__Mark m = VG__MR__MARK__INIT;
    Vg__Mr__Msg msg = VG__MR__MSG__INIT;
    m.has_number = true;
    m.number = l->tellings;
    msg.body_case = VG__MR__MSG__BODY_MARK;
    msg.mark = &m;
    l->marking = true;
    if (vg_mlink_msg(l, &msg) < 0)
        l->marking = false; /* no memory: asked with the next write */
}

void vg_mlink_marked(struct vg_mlink *l, uint64_t number) {
    l->marking = false;
    vg_mpeer_marked(l, number);
    if (number == l->tellings) {
        vg_map_done(&l->told);
        l->told = (struct vg_map){0};
    }
    mark(l);
}

static void drop_output(struct vg_mlink *l) {
    for (int i = 0; i < 2; i++)
        vg_list_for_each_safe (it, &l->out[i]) {
            vg_list_remove(it);
            frame_free(vg_list_entry(it, struct vg_mframe, link));
        }
    if (l->cur)
        frame_free(l->cur);
    l->cur = NULL;
    l->backlog = 0;
}

static void cannot_send(struct vg_mlink *l) {
    vg_debug("link broke: %s", strerror(errno));
    l->broken = true;
    drop_output(l);
    shutdown(l->fd, SHUT_RDWR); /* what has arrived can be read, and then the end */
}

void vg_mlink_write(struct vg_mlink *l) {
    while (!l->closed && next_frame(l)) {
        struct vg_buf *b = &l->cur->buf;
        ssize_t n = send(l->fd, vg_buf_data(b), vg_buf_len(b), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == ENOBUFS))
            break;
        if (n < 0) {
            cannot_send(l);
            break;
        }
        vg_buf_consume(b, (size_t)n);
        l->backlog -= (size_t)n;
        l->m->sent_bytes += (uint64_t)n;
        measure(l, (size_t)n);
        if (vg_buf_len(b) == 0) {
            frame_free(l->cur);
            l->cur = NULL;
        }
    }
    want(l);
    mark(l);
}

static void take_all(struct vg_mlink *l) {
    struct vg_mw_frame f;
    int r;
    while (!l->closed && (r = vg_mw_next(&l->in, &f)) != 0) {
        if (r > 0) {
            r = vg_mlink_take(l, &f);
            vg_mw_frame_done(&f);
        }
        if (r < 0) {
            vg_mlink_close(l, strerror(-r));
            return;
        }
    }
    struct vg_buf ack = {0};
    if (!l->closed && l->peer->apply && vg_apply_ack(l->peer->apply, &ack) &&
        vg_mlink_put(l, true, &ack) < 0)
        vg_mlink_close(l, "out of memory");
    vg_buf_done(&ack);
}

static void read_some(struct vg_mlink *l) {
    static uint8_t chunk[READ_AT_ONCE]; /* loop thread only */
    for (int i = 0; i < READS && !l->closed; i++) {
        ssize_t n = recv(l->fd, chunk, sizeof(chunk), MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            vg_mlink_close(l, n == 0 ? "the node hung up" : strerror(errno));
            return;
        }
        if (vg_mw_feed(&l->in, chunk, (size_t)n) < 0) {
            vg_mlink_close(l, "out of memory");
            return;
        }
        take_all(l);
    }
}

static void on_poll(uv_poll_t *poll, int status, int events) {
    struct vg_mlink *l = poll->data;
    if (status < 0) {
        vg_mlink_close(l, uv_strerror(status));
        return;
    }
    if (events & UV_READABLE)
        read_some(l);
    if (l->closed)
        return;
    vg_mlink_work(l);
    vg_mlink_write(l);
    if (l->closed)
        return;
    vg_mlink_work(l);
    want(l);
}

int vg_mlink_new(struct vg_mirror_task *t, int fd, struct vg_mlink **ret) {
    struct vg_mlink *l = vg_alloc(sizeof(*l));
    int r = l ? vg_set_nonblock(fd, true) : -ENOMEM;
    if (r == 0)
        r = uv_poll_init(t->m->loop, &l->poll, fd);
    if (r < 0) {
        free(l);
        close(fd);
        return r;
    }
    l->m = t->m;
    l->task = t;
    l->fd = fd;
    l->poll.data = l;
    for (int i = 0; i < VG_MP_N; i++)
        vg_list_init(&l->queue[i]);
    vg_list_init(&l->out[0]);
    vg_list_init(&l->out[1]);
    vg_list_init(&l->jobs_list);
    vg_list_push_back(&t->m->links, &l->link);
    t->links++;
    l->peer = vg_mpeer_new(t->m);
    if (!l->peer) {
        vg_mlink_close(l, "out of memory");
        return -ENOMEM;
    }
    l->peer->links = 1;
    want(l);
    *ret = l;
    return 0;
}

static void on_closed(uv_handle_t *h) {
    struct vg_mlink *l = h->data;
    close(l->fd);
    vg_mw_in_done(&l->in);
    free(l);
}

void vg_mlink_close(struct vg_mlink *l, const char *why) {
    if (l->closed)
        return;
    l->closed = true;
    vg_debug("link closed: %s", why);
    vg_mlink_drop_jobs(l);
    for (int i = 0; i < VG_MP_N; i++)
        vg_list_for_each_safe (it, &l->queue[i])
            vg_mitem_free(vg_list_entry(it, struct vg_mitem, link));
    drop_output(l);
    if (l->peer)
        vg_mpeer_left(l);
    if (l->task)
        l->task->links--;
    vg_list_remove(&l->link);
    uv_poll_stop(&l->poll);
    vg_map_done(&l->recent[0]);
    vg_map_done(&l->recent[1]);
    vg_map_done(&l->announced);
    uv_close((uv_handle_t *)&l->poll, on_closed);
}
