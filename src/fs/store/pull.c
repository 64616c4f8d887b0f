/* A puller's link: questions, answers, windows. */
#include "fs/store/pull.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/pull-int.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#define PATIENCE_USEC (15 * VG_USEC) /* for any byte while something is asked */
#define SKIPS 256                    /* objects in one Skip */

static int on_hello(struct vg_pull *p, const Vg__Mr__Hello *h) {
    if (p->hello || h->version != 1 || !h->root)
        return -EPROTO;
    p->hello = true;
    return vg_pull_root(p, h->root);
}

static int want_path(struct vg_pull *p, const char *path, size_t n) {
    if (p->n_path == VG_PULL_PATHS_MAX || n == 0 || path[0] != '/' || memchr(path, '\0', n))
        return -EPROTO;
    p->path[p->n_path] = vg_strndup(path, n);
    return p->path[p->n_path] ? (p->n_path++, 0) : -ENOMEM;
}

/* A view has a number of its own for its root; below it nothing is found otherwise. */
static int on_view(struct vg_pull *p, const Vg__Mr__View *v) {
    if (v->path.len == 0 || v->path.len > 4095 || memchr(v->path.data, '\0', v->path.len) ||
        v->path.data[0] != '/')
        return -EPROTO;
    vg_auto_free char *path = vg_strndup((const char *)v->path.data, v->path.len);
    if (!path)
        return -ENOMEM;
    int r = p->conf->views ? want_path(p, path, strlen(path)) : 0;
    return r == 0 ? vg_pull_view(p, path, v->root) : r;
}

static int on_run(struct vg_pull *p, const Vg__Mr__Run *run) {
    if (run->early)
        return 0; /* another one follows */
    int r = 0;
    p->run = true;
    for (size_t i = 0; r == 0 && i < run->n_view; i++)
        if (run->view[i]->id != 0)
            r = on_view(p, run->view[i]);
    if (r == 0 && p->hello)
        vg_pull_mark(p);
    return r;
}

static int on_fail(struct vg_pull *p, const Vg__Mr__Fail *f) {
    struct vg_ask *a = vg_map_get_u64(&p->asks, f->req);
    if (!a)
        return 0;
    struct vg_fnode *n = vg_map_get_u64(&p->t->by_object, a->object);
    int kind = a->kind;
    vg_pull_ask_over(p, f->req, a);
    if (!n)
        return 0;
    if (kind == VG_ASK_XATTR) {
        vg_fnode_xattrs_free(n);
        n->flags &= (uint8_t)~VG_DE_XATTR;
        for (size_t i = 0; f->errno_ == 0 && i < f->n_xattr; i++)
            if (vg_fnode_xattr(n, (const char *)f->xattr[i]->name.data, f->xattr[i]->name.len,
                               f->xattr[i]->value.data, f->xattr[i]->value.len) == -ENOMEM)
                return -ENOMEM;
        return 0;
    }
    if (n->state != VG_F_HERE) {
        vg_einto_free(n->into);
        n->into = NULL;
        vg_pull_settle(p, n, VG_F_NEVER, f->errno_ && f->errno_ < 4096 ? (int)f->errno_ : EIO);
    }
    return 0;
}

static int on_msg(struct vg_pull *p, const Vg__Mr__Msg *m) {
    switch (m->body_case) {
    case VG__MR__MSG__BODY_HELLO:
        return on_hello(p, m->hello);
    case VG__MR__MSG__BODY_RUN:
        return on_run(p, m->run);
    case VG__MR__MSG__BODY_FAIL:
        return on_fail(p, m->fail);
    case VG__MR__MSG__BODY_SENT:
        return vg_pull_sent(p, m->sent);
    case VG__MR__MSG__BODY_PUSHED:
        if (p->conf->pushes && !p->pushed)
            vg_pull_around(p, false);
        p->pushed = true;
        return 0;
    case VG__MR__MSG__BODY_BYE:
        return -ECONNRESET;
    default:
        return 0;
    }
}

/* Tells the service which files of a folder it need not push. */
static int skip_known(struct vg_pull *p, struct vg_fnode *n) {
    uint64_t known[SKIPS];
    Vg__Mr__Skip skip = VG__MR__SKIP__INIT;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    m.body_case = VG__MR__MSG__BODY_SKIP;
    m.skip = &skip;
    skip.object = known;
    int r = 0;
    for (uint32_t i = 0; r == 0 && i <= n->n_child; i++) {
        struct vg_fnode *c = i < n->n_child ? n->child[i] : NULL;
        if (c && S_ISREG(c->st.mode) && c->has_hash)
            known[skip.n_object++] = c->up;
        if (skip.n_object && (skip.n_object == SKIPS || !c)) {
            r = vg_mw_msg(&p->out, &m);
            skip.n_object = 0;
        }
    }
    return r;
}

static int on_dir(struct vg_pull *p, const struct vg_mw_frame *f) {
    struct vg_orphan *o = vg_map_get_u64(&p->orphans, f->object);
    struct vg_ask *a = f->req ? vg_map_get_u64(&p->asks, f->req) : NULL;
    bool more = f->flags & VG_MW_MORE;
    const void *rec = f->data;
    size_t len = f->len;
    int r = 0;
    if (more || (o && o->more)) { /* pieces are put together where orphans are */
        r = vg_pull_keep_orphan(p, f->object, f->data, f->len, more);
        if (r < 0 || more)
            return r;
        o = vg_map_del_u64(&p->orphans, f->object);
        p->orphan_bytes -= vg_buf_len(&o->rec);
        rec = vg_buf_data(&o->rec);
        len = vg_buf_len(&o->rec);
    } else {
        o = NULL;
    }
    if (a && a->kind == VG_ASK_DIR)
        vg_pull_ask_over(p, f->req, a);
    struct vg_dirrec d;
    r = vg_dirrec_open(&d, rec, len) < 0 || d.object != f->object ? -EPROTO : 0;
    if (r == 0)
        r = vg_pull_record(p, &d);
    struct vg_fnode *n = vg_map_get_u64(&p->by_up, f->object);
    if (r == 0 && n && p->conf->pushes && !p->pushed)
        r = skip_known(p, n);
    if (o) {
        vg_buf_done(&o->rec);
        free(o);
    }
    return r;
}

/* What was pushed while it was asked for is not sent twice: the questions are over with the file.
 */
static void answered_by_push(struct vg_pull *p, const struct vg_fnode *n) {
    vg_map_for_each (s, &p->asks) {
        struct vg_ask *a = s->value;
        if (a->object == n->object && a->kind == VG_ASK_DATA)
            vg_pull_ask_over(p, s->hash, a); /* a number map's key is its hash */
    }
}

static int on_data(struct vg_pull *p, const struct vg_mw_frame *f) {
    struct vg_fnode *n = vg_map_get_u64(&p->by_up, f->object);
    struct vg_ask *a = f->req ? vg_map_get_u64(&p->asks, f->req) : NULL;
    bool changed = false;
    if (a && a->kind == VG_ASK_DATA) {
        uint64_t came = VG_MIN((uint64_t)f->len, a->left);
        changed = n && n->state != VG_F_HERE && n->state != VG_F_NEVER && f->size != n->st.size &&
                  n->parent;
        a->left -= came;
        p->asked_bytes -= came;
        if (a->left == 0 || changed)
            vg_pull_ask_over(p, f->req, a);
    }
    if (!n) /* its folder is not known yet */
        return p->conf->pushes && f->req == 0 ? vg_map_put_u64(&p->loose, f->object, p) : 0;
    int r = vg_pull_content(p, n, f->offset, f->size, f->data, f->len);
    if (r == 0 && f->req == 0 && n->state == VG_F_HERE)
        answered_by_push(p, n);
    if (r == 0 && f->req == 0 && p->conf->pushes && n->state == VG_F_UNKNOWN) {
        n->pushed = true;
        vg_pull_want(p, n);
    }
    return r == 0 && changed ? vg_pull_ask_again(p, n) : r;
}

static int on_frame(struct vg_pull *p, const struct vg_mw_frame *f) {
    if (f->kind == VG_MW_MSG)
        return on_msg(p, f->msg);
    if (!p->hello)
        return -EPROTO;
    return f->kind == VG_MW_DIR ? on_dir(p, f) : f->kind == VG_MW_DATA ? on_data(p, f) : -EPROTO;
}

/* Demands that are answered go; those who asked look for themselves. */
static void forget_demands(struct vg_pull *p) {
    for (struct vg_demand **d = &p->demands; *d;) {
        struct vg_demand *is = *d;
        struct vg_fnode *n = vg_map_get_u64(&p->t->by_object, is->object);
        bool over = !n || n->state == VG_F_HERE || n->state == VG_F_NEVER ||
                    (n->into && vg_einto_has(n->into, is->off / VG_LEAF));
        if (over) {
            *d = is->next;
            free(is);
        } else {
            d = &is->next;
        }
    }
}

void vg_pull_demand(struct vg_pull *p, struct vg_fnode *n, uint64_t off, uint64_t len) {
    for (struct vg_demand *d = p->demands; d; d = d->next)
        if (d->object == n->object && d->off == off)
            return;
    struct vg_demand *d = vg_alloc(sizeof(*d));
    if (!d) {
        n->state = VG_F_NEVER;
        n->error = ENOMEM;
        return;
    }
    *d = (struct vg_demand){.next = p->demands, .object = n->object, .off = off, .len = len};
    p->demands = d;
    (void)!write(p->wake, &(uint64_t){1}, 8);
}

void vg_ftree_stop_pull(struct vg_ftree *t) {
    pthread_mutex_lock(&t->lock);
    if (t->pull) {
        t->pull->stop = true;
        (void)!write(t->pull->wake, &(uint64_t){1}, 8);
    }
    pthread_mutex_unlock(&t->lock);
}

static int receive(struct vg_pull *p, uint8_t *room, size_t size) {
    ssize_t n = recv(p->fd, room, size, MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -ECONNRESET;
    if (n == 0)
        return -ECONNRESET;
    int r = vg_mw_feed(&p->in, room, (size_t)n);
    struct vg_mw_frame f;
    pthread_mutex_lock(&p->t->lock);
    for (int k; r == 0 && (k = vg_mw_next(&p->in, &f)) != 0;) {
        r = k < 0 ? k : on_frame(p, &f);
        if (k > 0)
            vg_mw_frame_done(&f);
    }
    forget_demands(p);
    pthread_mutex_unlock(&p->t->lock);
    return r == -EBADMSG ? -EPROTO : r;
}

static int send_out(struct vg_pull *p) {
    while (vg_buf_len(&p->out)) {
        ssize_t n =
            send(p->fd, vg_buf_data(&p->out), vg_buf_len(&p->out), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR ? 0 : -ECONNRESET;
        vg_buf_consume(&p->out, (size_t)n);
    }
    return 0;
}

static bool complete(const struct vg_pull *p) {
    return p->hello && p->run && p->open == 0 && vg_list_empty(&p->attrs) && p->asked_other == 0 &&
           (p->pushed || !p->conf->pushes);
}

/* 1: done. */
static int turn(struct vg_pull *p) {
    pthread_mutex_lock(&p->t->lock);
    int r = p->hello ? vg_pull_ask(p) : 0;
    bool all = r == 0 && complete(p);
    if (all && p->conf->pushes && !p->widened) {
        p->widened = true;
        vg_pull_around(p, true);
        r = vg_pull_ask(p);
        all = r == 0 && complete(p);
    }
    if (p->stop && r == 0)
        r = -ECONNRESET;
    pthread_mutex_unlock(&p->t->lock);
    if (all && !p->told) {
        p->told = true;
        if (p->conf->ready)
            p->conf->ready(p->conf->user);
    }
    return r == 0 && all && !p->conf->stay ? 1 : r;
}

static int greet(struct vg_pull *p) {
    Vg__Mr__NodeHello h = VG__MR__NODE_HELLO__INIT;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    uint8_t daemon[VG_MID];
    vg_random(daemon, sizeof(daemon));
    h.has_version = h.has_daemon = h.has_next_op = h.has_fresh = h.fresh = true;
    h.has_once = h.once = true;
    h.version = 1;
    h.daemon = (ProtobufCBinaryData){VG_MID, daemon};
    h.next_op = 1;
    h.node = (char *)"the cloud's store";
    m.body_case = VG__MR__MSG__BODY_NODE_HELLO;
    m.node_hello = &h;
    return vg_mw_msg(&p->out, &m);
}

static int loop(struct vg_pull *p) {
    vg_auto_free uint8_t *room = vg_alloc(256u << 10);
    int r = room ? greet(p) : -ENOMEM;
    uint64_t heard = vg_now_usec();
    while (r == 0) {
        r = send_out(p);
        if (r < 0)
            break;
        struct pollfd fds[2] = {
            {.fd = p->fd, .events = (short)(POLLIN | (vg_buf_len(&p->out) ? POLLOUT : 0))},
            {.fd = p->wake, .events = POLLIN}};
        bool waits = vg_map_len(&p->asks) > 0 || !p->hello;
        if (poll(fds, 2, waits ? 1000 : -1) < 0 && errno != EINTR)
            return -errno;
        uint64_t now = vg_now_usec();
        if (!waits || fds[0].revents)
            heard = now;
        if (now - heard > PATIENCE_USEC)
            return -ECONNRESET; /* its machine sleeps, or its network is gone */
        uint64_t n;
        (void)!read(p->wake, &n, sizeof(n));
        if (fds[0].revents & ~POLLOUT)
            r = receive(p, room, 256u << 10);
        if (r == 0)
            r = turn(p);
    }
    return r;
}

static void done(struct vg_pull *p) {
    vg_map_for_each (s, &p->asks)
        free(s->value);
    vg_map_for_each (s, &p->orphans) {
        struct vg_orphan *o = s->value;
        vg_buf_done(&o->rec);
        free(o);
    }
    for (struct vg_demand *d = p->demands, *next; d; d = next) {
        next = d->next;
        free(d);
    }
    for (size_t i = 0; i < p->n_path; i++)
        free(p->path[i]);
    for (size_t i = 0; i < p->n_view; i++)
        free(p->view[i].path);
    vg_map_done(&p->asks);
    vg_map_done(&p->orphans);
    vg_map_done(&p->by_up);
    vg_map_done(&p->loose);
    vg_mw_in_done(&p->in);
    vg_buf_done(&p->out);
    vg_close(&p->wake);
    vg_close(&p->fd);
}

/* Nobody will bring anything any more: those who wait find out. */
static void detach(struct vg_pull *p) {
    pthread_mutex_lock(&p->t->lock);
    p->t->pull = NULL;
    struct vg_list *lists[] = {&p->dirs, &p->files, &p->attrs};
    for (size_t i = 0; i < VG_COUNT(lists); i++)
        for (struct vg_list *it; (it = vg_list_first(lists[i]));)
            vg_list_remove(it);
    pthread_cond_broadcast(&p->t->changed);
    pthread_mutex_unlock(&p->t->lock);
}

static int explain(struct vg_estore *store, int r, struct vg_err *err) {
    if (r == -EDQUOT)
        return vg_estore_over_quota(store, err);
    if (r == -ECONNRESET)
        return vg_err_set(err, VG_LOST, "the file service went away before everything had come");
    if (r == -EPROTO)
        return vg_err_set(err, VG_PROTOCOL, "the file service does not keep to the protocol");
    return vg_err_sys(err, r, "cannot store the environment");
}

int vg_pull(const struct vg_pull_conf *conf, struct vg_err *err) {
    struct vg_pull p = {.conf = conf, .t = conf->tree, .fd = conf->fd, .err = err};
    vg_list_init(&p.dirs);
    vg_list_init(&p.files);
    vg_list_init(&p.attrs);
    p.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = p.wake < 0 ? -errno : 0;
    for (size_t i = 0; r == 0 && i < conf->n_path; i++)
        r = want_path(&p, conf->path[i], strlen(conf->path[i])) < 0 ? -EINVAL : 0;
    pthread_mutex_lock(&p.t->lock);
    p.t->pull = &p;
    pthread_mutex_unlock(&p.t->lock);
    if (r == 0)
        r = loop(&p);
    detach(&p);
    bool told = p.told;
    done(&p);
    if (r >= 0 || (conf->stay && told && r == -ECONNRESET))
        return 0;
    return explain(conf->tree->store, r, err);
}
