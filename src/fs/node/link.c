/* The sockets to one machine and the thread that receives from them. The lock is never held while
   an op of the owner runs. Links are added and taken away by the receiving thread alone, so it may
   use one without the lock; others look at them with it. */
#include "fs/node/link.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/node/link-int.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_BYTES (256u << 10)
#define READS_A_TURN 16

#define CALL(l, op, ...)                           \
    do {                                           \
        if ((l)->ops.op)                           \
            (l)->ops.op((l)->user, ##__VA_ARGS__); \
    } while (0)

static void part_free(struct link *k, struct part *p) {
    vg_list_remove(&p->link);
    vg_buf_done(&p->buf);
    free(p);
    k->n_parts--;
}

static void link_free(struct link *k) {
    vg_list_for_each_safe (it, &k->parts)
        part_free(k, vg_list_entry(it, struct part, link));
    for (uint64_t object; (object = vg_coming_any(k));)
        vg_coming_over(k, object);
    vg_mw_in_done(&k->in);
    vg_buf_done(&k->out);
    close(k->fd);
    free(k);
}

static struct part *part_of(struct link *k, uint64_t object, bool make) {
    vg_list_for_each (it, &k->parts) {
        struct part *p = vg_list_entry(it, struct part, link);
        if (p->object == object)
            return p;
    }
    if (!make || k->n_parts == LINK_PARTS)
        return NULL;
    struct part *p = vg_alloc(sizeof(*p));
    if (!p)
        return NULL;
    p->object = object;
    vg_list_push_back(&k->parts, &p->link);
    k->n_parts++;
    return p;
}

static int on_record(struct vg_links *l, struct link *k, const struct vg_mw_frame *f,
                     const void *rec, size_t n) {
    struct vg_dirrec r;
    if (vg_dirrec_open(&r, rec, n) < 0 || r.object != f->object)
        return -EBADMSG;
    struct vg_mw_frame whole = *f;
    whole.len = n;
    vg_ask_answered(l, k, &whole, f->req, ANSWER_WHOLE);
    CALL(l, dir, f->req, &r);
    return 0;
}

static int on_dir(struct vg_links *l, struct link *k, const struct vg_mw_frame *f) {
    bool more = f->flags & VG_MW_MORE;
    struct part *p = part_of(k, f->object, more);
    if (!p)
        return more ? -ENOBUFS : on_record(l, k, f, f->data, f->len);
    if (vg_buf_len(&p->buf) + f->len > VG_MW_DIR_MAX)
        return -EBADMSG;
    int r = vg_buf_append(&p->buf, f->data, f->len);
    if (r < 0 || more)
        return r;
    r = on_record(l, k, f, vg_buf_data(&p->buf), vg_buf_len(&p->buf));
    part_free(k, p);
    return r;
}

static int say_hello(struct vg_links *l, struct link *k, bool fresh) {
    Vg__Mr__NodeHello hello = VG__MR__NODE_HELLO__INIT;
    Vg__Mr__Msg msg = VG__MR__MSG__INIT;
    hello.has_version = true;
    hello.version = 1;
    hello.has_daemon = true;
    hello.daemon = (ProtobufCBinaryData){VG_MID, l->daemon};
    hello.node = l->node;
    hello.has_next_op = true;
    hello.next_op = l->ops.next_op ? l->ops.next_op(l->user) : 1;
    hello.has_fresh = true;
    hello.fresh = fresh;
    msg.body_case = VG__MR__MSG__BODY_NODE_HELLO;
    msg.node_hello = &hello;
    pthread_mutex_lock(&l->lock);
    int r = vg_mw_msg(&k->out, &msg);
    if (r >= 0)
        vg_link_flush(l, k);
    pthread_mutex_unlock(&l->lock);
    return r;
}

/* Makes the link ready; returns whether the others were all down. */
static bool bring_up(struct vg_links *l, struct link *k, bool *ret_ops) {
    pthread_mutex_lock(&l->lock);
    bool first = !vg_link_pick(l);
    k->ready = true;
    *ret_ops = !l->ops_on || l->ops_on->broken;
    if (*ret_ops)
        l->ops_on = k;
    if (first)
        vg_ask_all_again(l, NULL);
    pthread_mutex_unlock(&l->lock);
    return first;
}

static int on_hello(struct vg_links *l, struct link *k, const Vg__Mr__Hello *m) {
    if (k->ready || m->version != 1 || m->machine.len != VG_MID || m->epoch.len != VG_MID)
        return -EBADMSG;
    bool same = l->have_epoch && !memcmp(l->epoch, m->epoch.data, VG_MID);
    bool ops = false;
    pthread_mutex_lock(&l->lock);
    memcpy(l->epoch, m->epoch.data, VG_MID);
    l->have_epoch = true;
    snprintf(l->host, sizeof(l->host), "%s", m->host ? m->host : "the client");
    if (!same) { /* numbers of the old service mean nothing any more */
        vg_ask_forget_all(l);
        vg_list_for_each (it, &l->links)
            if (vg_list_entry(it, struct link, link)->ready)
                vg_link_break(vg_list_entry(it, struct link, link));
    }
    pthread_mutex_unlock(&l->lock);
    CALL(l, hello, m, same);
    int r = say_hello(l, k, !same);
    if (r < 0)
        return r;
    if (bring_up(l, k, &ops))
        CALL(l, state, true);
    if (ops)
        CALL(l, resend);
    return 0;
}

static int say_marked(struct vg_links *l, struct link *k, const Vg__Mr__Mark *mark) {
    Vg__Mr__Msg msg = VG__MR__MSG__INIT;
    Vg__Mr__Mark same = *mark;
    msg.body_case = VG__MR__MSG__BODY_MARKED;
    msg.marked = &same;
    pthread_mutex_lock(&l->lock);
    int r = vg_mw_msg(&k->out, &msg);
    if (r >= 0)
        vg_link_flush(l, k);
    pthread_mutex_unlock(&l->lock);
    return r;
}

static void push_over(struct vg_links *l, struct link *k, uint64_t object) {
    pthread_mutex_lock(&l->lock);
    vg_coming_over(k, object);
    pthread_mutex_unlock(&l->lock);
    CALL(l, ended, object);
}

static void on_coming(struct vg_links *l, struct link *k, const Vg__Mr__Coming *m) {
    if (!m->length) {
        push_over(l, k, m->object);
        return;
    }
    pthread_mutex_lock(&l->lock);
    vg_coming(k, m);
    pthread_mutex_unlock(&l->lock);
}

static bool names(const Vg__Mr__Inval *i, const uint8_t daemon[VG_MID]) {
    for (size_t d = 0; d < i->n_daemon; d++)
        if (i->daemon[d].len == VG_MID && !memcmp(i->daemon[d].data, daemon, VG_MID))
            return true;
    return false;
}

static int on_msg(struct vg_links *l, struct link *k, const struct vg_mw_frame *f) {
    const Vg__Mr__Msg *m = f->msg;
    if (m->body_case == VG__MR__MSG__BODY_HELLO)
        return on_hello(l, k, m->hello);
    if (!k->ready)
        return -EBADMSG;
    switch (m->body_case) {
    case VG__MR__MSG__BODY_RUN:
        CALL(l, run, m->run);
        return 0;
    case VG__MR__MSG__BODY_INVAL:
        if (!m->inval->n_daemon || names(m->inval, l->daemon))
            CALL(l, inval, m->inval);
        return 0;
    case VG__MR__MSG__BODY_FAIL:
        vg_ask_answered(l, k, f, m->fail->req, ANSWER_WHOLE);
        CALL(l, fail, m->fail);
        return 0;
    case VG__MR__MSG__BODY_ACK:
        CALL(l, ack, m->ack);
        return 0;
    case VG__MR__MSG__BODY_NOTE:
        CALL(l, note, m->note);
        return 0;
    case VG__MR__MSG__BODY_KEPT:
        CALL(l, kept, m->kept);
        return 0;
    case VG__MR__MSG__BODY_MARK:
        return say_marked(l, k, m->mark);
    case VG__MR__MSG__BODY_SENT:
        vg_ask_sent(l, k, m->sent);
        return 0;
    case VG__MR__MSG__BODY_COMING:
        on_coming(l, k, m->coming);
        return 0;
    case VG__MR__MSG__BODY_BYE:
        return -ECONNRESET;
    default:
        return 0; /* of a newer service; what it needs answered it says in its Hello */
    }
}

static int on_frame(struct vg_links *l, struct link *k, const struct vg_mw_frame *f) {
    if (k->broken)
        return -ECONNRESET;
    if (f->kind == VG_MW_MSG)
        return on_msg(l, k, f);
    if (!k->ready)
        return -EBADMSG;
    if (f->kind == VG_MW_DIR)
        return on_dir(l, k, f);
    if (f->kind != VG_MW_DATA)
        return -EBADMSG;
    /* First to the cache, then the demand is over: whoever asks in between asks for nothing. */
    bool fits = !l->ops.data || l->ops.data(l->user, f->req, f->object, f->offset, f->size, f->tag,
                                            f->data, f->len);
    vg_ask_answered(l, k, f, f->req, fits ? ANSWER_PART : ANSWER_OTHER);
    if (!fits)
        CALL(l, missed, f->object);
    return 0;
}

static int take_frames(struct vg_links *l, struct link *k) {
    for (;;) {
        struct vg_mw_frame f;
        int r = vg_mw_next(&k->in, &f);
        if (r <= 0)
            return r;
        r = on_frame(l, k, &f);
        vg_mw_frame_done(&f);
        if (r < 0)
            return r;
    }
}

static int receive(struct vg_links *l, struct link *k) {
    for (int i = 0; i < READS_A_TURN; i++) {
        uint8_t *to = vg_buf_reserve(&k->in.buf, READ_BYTES);
        if (!to)
            return -ENOMEM;
        ssize_t n = recv(k->fd, to, vg_buf_room(&k->in.buf), MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return 0;
        if (n <= 0)
            return n < 0 ? -errno : -ECONNRESET;
        vg_buf_commit(&k->in.buf, (size_t)n);
        pthread_mutex_lock(&l->lock);
        l->stat.received_bytes += (uint64_t)n;
        pthread_mutex_unlock(&l->lock);
        int r = take_frames(l, k);
        if (r < 0)
            return r;
    }
    return 0;
}

/* What was asked on it is asked again elsewhere; operations move to another link. */
static void take_down(struct vg_links *l, struct link *k, int why) {
    bool down = false, moved = false;
    pthread_mutex_lock(&l->lock);
    bool was_ready = k->ready;
    k->ready = false;
    k->broken = true;
    vg_list_remove(&k->link);
    vg_ask_all_again(l, k);
    struct link *next = vg_link_pick(l);
    if (l->ops_on == k) {
        l->ops_on = next;
        moved = next;
    }
    down = was_ready && !next;
    l->stat.breaks++;
    pthread_mutex_unlock(&l->lock);
    if (why != -ECONNRESET && why != -EPIPE)
        vg_warn("link to %s dropped: %s", l->host, strerror(-why));
    epoll_ctl(l->epfd, EPOLL_CTL_DEL, k->fd, NULL);
    for (uint64_t object; (object = vg_coming_any(k));)
        push_over(l, k, object);
    link_free(k);
    if (moved)
        CALL(l, resend);
    if (down)
        CALL(l, state, false);
}

static void on_event(struct vg_links *l, struct link *k, uint32_t events) {
    pthread_mutex_lock(&l->lock);
    if (events & EPOLLOUT)
        vg_link_flush(l, k);
    pthread_mutex_unlock(&l->lock);
    int r = receive(l, k);
    if (r < 0)
        take_down(l, k, r);
}

static void *work(void *arg) {
    struct vg_links *l = arg;
    for (;;) {
        struct epoll_event ev[16];
        int n = epoll_wait(l->epfd, ev, VG_COUNT(ev), -1);
        pthread_mutex_lock(&l->lock);
        bool stop = l->stop;
        pthread_mutex_unlock(&l->lock);
        if (stop)
            return NULL;
        for (int i = 0; i < n; i++) {
            uint64_t woken;
            if (ev[i].data.ptr)
                on_event(l, ev[i].data.ptr, ev[i].events);
            else if (read(l->wakefd, &woken, sizeof(woken)) < 0)
                vg_debug("a link's wake-up was not there");
        }
    }
}

int vg_links_new(const struct vg_link_ops *ops, void *user, const uint8_t daemon[VG_MID],
                 const char *node, struct vg_links **ret) {
    struct vg_links *l = vg_alloc(sizeof(*l));
    if (!l)
        return -ENOMEM;
    *l = (struct vg_links){.ops = *ops, .user = user, .host = "the client"};
    memcpy(l->daemon, daemon, VG_MID);
    pthread_mutex_init(&l->lock, NULL);
    vg_list_init(&l->links);
    for (size_t i = 0; i < LINK_BUCKETS; i++)
        vg_list_init(&l->asks[i]);
    l->node = vg_strdup(node);
    l->epfd = epoll_create1(EPOLL_CLOEXEC);
    l->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event ev = {.events = EPOLLIN};
    int r = !l->node ? -ENOMEM
            : l->epfd < 0 || l->wakefd < 0 || epoll_ctl(l->epfd, EPOLL_CTL_ADD, l->wakefd, &ev) < 0
                ? -errno
                : -pthread_create(&l->thread, NULL, work, l);
    l->running = !r;
    if (r < 0) {
        vg_links_free(l);
        return r;
    }
    *ret = l;
    return 0;
}

void vg_links_stop(struct vg_links *l) {
    if (!l || !l->running)
        return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_mutex_unlock(&l->lock);
    uint64_t one = 1;
    while (write(l->wakefd, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
    pthread_join(l->thread, NULL);
    l->running = false;
}

void vg_links_free(struct vg_links *l) {
    if (!l)
        return;
    vg_links_stop(l);
    vg_list_for_each_safe (it, &l->links)
        link_free(vg_list_entry(it, struct link, link));
    vg_ask_forget_all(l);
    vg_map_done(&l->by_req);
    vg_close(&l->epfd);
    vg_close(&l->wakefd);
    pthread_mutex_destroy(&l->lock);
    free(l->node);
    free(l);
}

int vg_links_add(struct vg_links *l, int fd, uint64_t task) {
    struct link *k = vg_alloc(sizeof(*k));
    if (!k) {
        close(fd);
        return -ENOMEM;
    }
    *k = (struct link){.fd = fd, .task = task};
    vg_list_init(&k->parts);
    vg_list_init(&k->coming);
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = k};
    pthread_mutex_lock(&l->lock);
    vg_list_push_back(&l->links, &k->link);
    l->stat.links++;
    /* With the lock held: once it is watched, the receiving thread may take it away. */
    int r = epoll_ctl(l->epfd, EPOLL_CTL_ADD, fd, &ev) < 0 ? -errno : 0;
    if (r < 0)
        vg_list_remove(&k->link);
    pthread_mutex_unlock(&l->lock);
    if (r < 0)
        link_free(k);
    return r;
}

bool vg_links_up(struct vg_links *l) {
    pthread_mutex_lock(&l->lock);
    bool up = vg_link_pick(l);
    pthread_mutex_unlock(&l->lock);
    return up;
}

void vg_links_host(struct vg_links *l, char *out, size_t n) {
    pthread_mutex_lock(&l->lock);
    snprintf(out, n, "%s", l->host);
    pthread_mutex_unlock(&l->lock);
}
