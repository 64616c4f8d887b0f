/* Demands and everything else that goes out. Always true: a demand is in `by_req` and in its
   object's bucket until it is answered; `on` is a ready link or NULL. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "fs/node/link-int.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

static void want_output(struct vg_links *l, struct link *k, bool want) {
    if (k->waiting == want)
        return;
    struct epoll_event ev = {.events = EPOLLIN | (want ? EPOLLOUT : 0), .data.ptr = k};
    epoll_ctl(l->epfd, EPOLL_CTL_MOD, k->fd, &ev);
    k->waiting = want;
}

void vg_link_break(struct link *k) {
    k->broken = true;
    vg_buf_clear(&k->out);
    shutdown(k->fd, SHUT_RDWR);
}

void vg_link_flush(struct vg_links *l, struct link *k) {
    while (!k->broken && vg_buf_len(&k->out)) {
        ssize_t n =
            send(k->fd, vg_buf_data(&k->out), vg_buf_len(&k->out), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) {
            vg_link_break(k);
            break;
        }
        l->stat.sent_bytes += (uint64_t)n;
        vg_buf_consume(&k->out, (size_t)n);
    }
    if (vg_buf_len(&k->out) > (size_t)LINK_OUT_MAX << 20)
        vg_link_break(k);
    want_output(l, k, vg_buf_len(&k->out) > 0);
}

/* The one with the least to do. */
struct link *vg_link_pick(struct vg_links *l) {
    struct link *best = NULL;
    vg_list_for_each (it, &l->links) {
        struct link *k = vg_list_entry(it, struct link, link);
        if (k->ready && !k->broken && (!best || vg_buf_len(&k->out) < vg_buf_len(&best->out)))
            best = k;
    }
    return best;
}

static void put_msg(struct vg_links *l, struct link *k, const Vg__Mr__Msg *m) {
    if (vg_mw_msg(&k->out, m) < 0)
        vg_link_break(k); /* no memory for it: what was lost is asked again on another link */
    else
        vg_link_flush(l, k);
}

static uint64_t leaves_of(const struct ask *a, uint64_t end) {
    return a->kind == ASK_DATA && end > a->off ? vg_leaves(end) - a->off / VG_LEAF : 0;
}

static void say_get(struct vg_links *l, const struct ask *a, struct link *k, uint64_t off,
                    uint64_t len, bool again) {
    Vg__Mr__Range range = VG__MR__RANGE__INIT;
    Vg__Mr__Range *ranges[] = {&range};
    Vg__Mr__Get get = VG__MR__GET__INIT;
    Vg__Mr__Msg msg = VG__MR__MSG__INIT;
    get.has_req = get.has_object = true;
    get.req = a->req;
    get.object = a->object;
    get.has_urgency = a->urgency > 0;
    get.urgency = a->urgency;
    get.has_xattrs = get.xattrs = a->kind == ASK_XATTRS;
    get.has_again = get.again = again;
    if (a->kind == ASK_DATA) {
        range.has_offset = range.has_length = true;
        range.offset = off;
        range.length = len;
        get.n_range = 1;
        get.range = ranges;
    }
    msg.body_case = VG__MR__MSG__BODY_GET;
    msg.get = &get;
    put_msg(l, k, &msg);
}

static void ask_on(struct vg_links *l, struct ask *a, struct link *k) {
    a->on = k;
    a->got = 0;
    memset(a->has, 0, leaves_of(a, a->off + a->len) / 8 + 1);
    if (k)
        say_get(l, a, k, a->off, a->len, false);
}

static struct vg_list *bucket(struct vg_links *l, uint64_t object) {
    return &l->asks[(object ^ object >> 8) % LINK_BUCKETS];
}

/* One that is under way and will bring all of it no later. */
static struct ask *find_same(struct vg_links *l, enum ask_kind kind, uint64_t object, uint64_t off,
                             uint64_t len, unsigned urgency) {
    vg_list_for_each (it, bucket(l, object)) {
        struct ask *a = vg_list_entry(it, struct ask, link);
        if (a->object == object && a->kind == kind && a->urgency <= urgency && a->off <= off &&
            a->off + a->len >= off + len)
            return a;
    }
    return NULL;
}

/* What was read ahead is waited for now. */
static void hurry(struct vg_links *l, struct ask *a, unsigned urgency) {
    Vg__Mr__Get get = VG__MR__GET__INIT;
    Vg__Mr__Msg msg = VG__MR__MSG__INIT;
    a->urgency = urgency;
    l->stat.demands++; /* somebody waits for it from now on */
    if (!a->on)
        return;
    get.has_req = get.has_object = get.has_hurry = get.hurry = true;
    get.req = a->req;
    get.object = a->object;
    msg.body_case = VG__MR__MSG__BODY_GET;
    msg.get = &get;
    put_msg(l, a->on, &msg);
}

/* Content that is on its way is not asked for twice: leaves out what other demands cover at the
   front of [*off, *off + *len), hurrying them. The last of them, or NULL. */
static struct ask *trim(struct vg_links *l, uint64_t object, uint64_t *off, uint64_t *len,
                        unsigned urgency) {
    struct ask *last = NULL;
    bool again = true;
    while (again && *len) {
        again = false;
        vg_list_for_each (it, bucket(l, object)) {
            struct ask *a = vg_list_entry(it, struct ask, link);
            uint64_t end = a->off + a->len;
            if (a->object != object || a->kind != ASK_DATA || a->off > *off || end <= *off)
                continue;
            uint64_t n = VG_MIN(end - *off, *len);
            *off += n;
            *len -= n;
            last = a;
            again = true;
            if (a->urgency > urgency)
                hurry(l, a, urgency);
        }
    }
    return last;
}

/* The same for what is being pushed. True when nothing is left. */
static bool comes(const struct vg_links *l, uint64_t object, uint64_t *off, uint64_t *len,
                  unsigned urgency) {
    uint64_t end = *off + *len;
    uint64_t to = (*off / VG_LEAF + vg_coming_soon(l, object, *off / VG_LEAF, urgency)) * VG_LEAF;
    if (to <= *off)
        return false;
    *off = VG_MIN(to, end);
    *len = end - *off;
    return *len == 0;
}

static struct ask *ask_new(struct vg_links *l, enum ask_kind kind, uint64_t object, uint64_t off,
                           uint64_t len) {
    uint64_t leaves = kind == ASK_DATA ? vg_leaves(off + len) - off / VG_LEAF : 0;
    struct ask *a = vg_alloc(sizeof(*a) + leaves / 8 + 1);
    if (a)
        *a = (struct ask){
            .req = ++l->next_req, .object = object, .off = off, .len = len, .kind = kind};
    return a;
}

static uint64_t ask(struct vg_links *l, enum ask_kind kind, uint64_t object, uint64_t off,
                    uint64_t len, unsigned urgency, bool anew) {
    pthread_mutex_lock(&l->lock);
    struct ask *a = anew ? NULL : find_same(l, kind, object, off, len, urgency);
    bool data = !a && kind == ASK_DATA;
    struct ask *covers = data ? trim(l, object, &off, &len, urgency) : NULL;
    if (covers && !len)
        a = covers;
    if (!a && data && comes(l, object, &off, &len, urgency)) {
        pthread_mutex_unlock(&l->lock);
        return 0;
    }
    uint64_t req = a ? a->req : 0;
    if (!a && (a = ask_new(l, kind, object, off, len))) {
        a->urgency = urgency;
        if (vg_map_put_u64(&l->by_req, a->req, a) < 0) {
            free(a);
        } else {
            req = a->req;
            vg_list_push_back(bucket(l, object), &a->link);
            if (urgency)
                l->stat.ahead++;
            else
                l->stat.demands++;
            ask_on(l, a, vg_link_pick(l));
        }
    }
    pthread_mutex_unlock(&l->lock);
    return req;
}

uint64_t vg_links_get_dir(struct vg_links *l, uint64_t object) {
    return ask(l, ASK_DIR, object, 0, 0, 0, false);
}

uint64_t vg_links_get_dir_anew(struct vg_links *l, uint64_t object, unsigned urgency) {
    return ask(l, ASK_DIR, object, 0, 0, urgency, true);
}

uint64_t vg_links_get_data(struct vg_links *l, uint64_t object, uint64_t off, uint64_t len,
                           unsigned urgency) {
    return ask(l, ASK_DATA, object, off, len, urgency, false);
}

uint64_t vg_links_get_xattrs(struct vg_links *l, uint64_t object) {
    return ask(l, ASK_XATTRS, object, 0, 0, 0, false);
}

uint64_t vg_links_get_xattrs_anew(struct vg_links *l, uint64_t object) {
    return ask(l, ASK_XATTRS, object, 0, 0, 0, true);
}

static void forget(struct vg_links *l, struct ask *a) {
    vg_map_del_u64(&l->by_req, a->req);
    vg_list_remove(&a->link);
    free(a);
}

void vg_ask_all_again(struct vg_links *l, const struct link *broken) {
    for (size_t i = 0; i < LINK_BUCKETS; i++)
        vg_list_for_each (it, &l->asks[i]) {
            struct ask *a = vg_list_entry(it, struct ask, link);
            if (a->on == broken)
                ask_on(l, a, vg_link_pick(l));
        }
}

void vg_ask_forget_all(struct vg_links *l) {
    for (size_t i = 0; i < LINK_BUCKETS; i++)
        vg_list_for_each_safe (it, &l->asks[i])
            forget(l, vg_list_entry(it, struct ask, link));
}

static bool has_leaf(const struct ask *a, uint64_t leaf) {
    uint64_t i = leaf - a->off / VG_LEAF;
    return a->has[i / 8] >> (i % 8) & 1;
}

/* A frame brings a leaf of the demand's content; true when that was the last. */
static bool has_all(struct ask *a, const struct vg_mw_frame *f) {
    uint64_t end = VG_MIN(a->off + a->len, f->size), leaf = f->offset / VG_LEAF;
    uint64_t first = a->off / VG_LEAF, n = leaves_of(a, end);
    uint64_t from = VG_MAX(a->off, leaf * VG_LEAF), to = VG_MIN(end, (leaf + 1) * VG_LEAF);
    if (leaf >= first && leaf - first < n && f->offset <= from && f->offset + f->len >= to &&
        !has_leaf(a, leaf)) {
        a->has[(leaf - first) / 8] |= (uint8_t)(1u << ((leaf - first) % 8));
        a->got++;
    }
    return a->got >= n;
}

/* A push may bring what was asked for meanwhile. */
static void met_by_push(struct vg_links *l, const struct vg_mw_frame *f, enum ask_kind kind) {
    vg_list_for_each_safe (it, bucket(l, f->object)) {
        struct ask *a = vg_list_entry(it, struct ask, link);
        if (a->object == f->object && a->kind == kind && (kind == ASK_DIR || has_all(a, f))) {
            l->stat.met += !a->urgency;
            forget(l, a);
        }
    }
}

/* What it names was pushed on this link before. What of it did not fit is asked for again. */
void vg_ask_sent(struct vg_links *l, struct link *k, const Vg__Mr__Sent *m) {
    pthread_mutex_lock(&l->lock);
    struct ask *a = m->req ? vg_map_get_u64(&l->by_req, m->req) : NULL;
    if (a && a->on == k && a->kind == ASK_DATA && m->length <= VG_LEAF && m->offset >= a->off &&
        m->offset < a->off + a->len && !has_leaf(a, m->offset / VG_LEAF))
        say_get(l, a, k, m->offset, VG_MIN(a->off + a->len - m->offset, (uint64_t)VG_LEAF), true);
    pthread_mutex_unlock(&l->lock);
}

void vg_ask_answered(struct vg_links *l, struct link *k, const struct vg_mw_frame *f, uint64_t req,
                     enum answer how) {
    pthread_mutex_lock(&l->lock);
    if (f->kind == VG_MW_DATA)
        vg_coming_seen(k, f->object, f->offset / VG_LEAF);
    struct ask *a = req ? vg_map_get_u64(&l->by_req, req) : NULL;
    if (a && (how != ANSWER_PART || has_all(a, f)))
        forget(l, a);
    uint64_t *count = req ? &l->stat.demand_bytes : &l->stat.pushed_bytes;
    *count += f->len;
    if (!req && f->kind != VG_MW_MSG) {
        l->stat.pushed++;
        if (how != ANSWER_OTHER)
            met_by_push(l, f, f->kind == VG_MW_DIR ? ASK_DIR : ASK_DATA);
    }
    pthread_mutex_unlock(&l->lock);
}

/* Operations must stay in order, so they all take one link; so does what else is sent. */
static struct link *ops_link(struct vg_links *l) {
    return l->ops_on && l->ops_on->ready && !l->ops_on->broken ? l->ops_on : NULL;
}

/* One was added, or could not be. */
static void op_added(struct vg_links *l, struct link *k, int r) {
    if (r < 0)
        vg_link_break(k);
    else if (!l->hold || vg_buf_len(&k->out) >= LINK_GATHER)
        vg_link_flush(l, k);
}

void vg_links_hold(struct vg_links *l, bool hold) {
    pthread_mutex_lock(&l->lock);
    struct link *k = ops_link(l);
    l->hold = hold;
    if (k && !hold)
        vg_link_flush(l, k);
    pthread_mutex_unlock(&l->lock);
}

int vg_links_send(struct vg_links *l, const Vg__Mr__Msg *m) {
    pthread_mutex_lock(&l->lock);
    struct link *k = ops_link(l);
    if (k)
        op_added(l, k, vg_mw_msg(&k->out, m));
    pthread_mutex_unlock(&l->lock);
    return k ? 0 : -ENOTCONN;
}

int vg_links_write(struct vg_links *l, uint64_t op, uint64_t object, uint64_t offset,
                   const void *data, size_t n) {
    pthread_mutex_lock(&l->lock);
    struct link *k = ops_link(l);
    if (k)
        op_added(l, k, vg_mw_write(&k->out, op, object, offset, data, n, 1));
    pthread_mutex_unlock(&l->lock);
    return k ? 0 : -ENOTCONN;
}

size_t vg_links_backlog(struct vg_links *l) {
    pthread_mutex_lock(&l->lock);
    struct link *k = ops_link(l);
    size_t n = k ? vg_buf_len(&k->out) : 0;
    pthread_mutex_unlock(&l->lock);
    return n;
}

void vg_links_stats(struct vg_links *l, struct vg_links_stat *ret) {
    pthread_mutex_lock(&l->lock);
    *ret = l->stat;
    pthread_mutex_unlock(&l->lock);
}
