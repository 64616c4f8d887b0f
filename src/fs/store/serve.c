/* Serves a tree to a node: answers Get by object and range, and nothing else. Thread of its own.
   Content goes out leaf by leaf, and what a program waits for goes before what is read ahead. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/ftree-int.h"
#include "fs/store/keep.h"
#include "mirror/mwire.h"

#include <string.h>
#include <sys/socket.h>

#define RANGES_MAX 64
#define PENDING_MAX 65536 /* ranges asked for and not sent */
#define LEVEL 1           /* zstd, of records; content goes as it is */

struct range { /* asked for */
    struct vg_list link;
    uint64_t req, object, off, end, size;
};

struct serve {
    struct vg_ftree *t;
    int fd;
    struct vg_list urgent, ahead; /* struct range */
    size_t pending;
    struct vg_buf out;
    uint8_t *leaf;
    uint8_t open_id[VG_HASH]; /* the file read last: its descriptor is kept */
    int open_fd;
    struct vg_keepin *keep; /* owned; NULL: nothing is taken in */
};

static int flush(struct serve *s) {
    int r = 0;
    while (r == 0 && vg_buf_len(&s->out)) {
        ssize_t n = send(s->fd, vg_buf_data(&s->out), vg_buf_len(&s->out), MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            r = -errno;
        else
            vg_buf_consume(&s->out, (size_t)n);
    }
    return r;
}

static int send_msg(struct serve *s, const Vg__Mr__Msg *m) {
    int r = vg_mw_msg(&s->out, m);
    return r == 0 ? flush(s) : r;
}

static int greet(struct serve *s, uint64_t task) {
    Vg__Mr__Hello hello = VG__MR__HELLO__INIT;
    Vg__Mr__Run run = VG__MR__RUN__INIT;
    Vg__Mr__Pushed pushed = VG__MR__PUSHED__INIT;
    Vg__Mr__View view = VG__MR__VIEW__INIT, *views[] = {&view};
    Vg__Mr__Stat st;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    hello.has_version = hello.has_root = hello.has_frozen = true;
    hello.version = 1;
    hello.has_machine = hello.has_epoch = true;
    hello.machine = (ProtobufCBinaryData){VG_MID, s->t->machine};
    hello.epoch = (ProtobufCBinaryData){VG_MID, s->t->epoch};
    hello.root = s->t->root->object;
    hello.host = (char *)"the cloud's store";
    hello.frozen = true;
    m.body_case = VG__MR__MSG__BODY_HELLO;
    m.hello = &hello;
    int r = send_msg(s, &m);
    view.has_id = view.has_path = view.has_root = true;
    view.path = (ProtobufCBinaryData){1, (uint8_t *)"/"};
    view.root = s->t->root->object;
    pthread_mutex_lock(&s->t->lock);
    vg_mw_stat_to(&st, &s->t->root->st);
    pthread_mutex_unlock(&s->t->lock);
    view.stat = &st;
    run.has_task = true;
    run.task = task;
    run.n_view = 1;
    run.view = views;
    m.body_case = VG__MR__MSG__BODY_RUN;
    m.run = &run;
    if (r == 0)
        r = send_msg(s, &m);
    pushed.has_task = true;
    pushed.task = task;
    m.body_case = VG__MR__MSG__BODY_PUSHED;
    m.pushed = &pushed;
    return r == 0 ? send_msg(s, &m) : r;
}

static int fail(struct serve *s, const Vg__Mr__Get *g, int error, const char *text) {
    Vg__Mr__Fail f = VG__MR__FAIL__INIT;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    f.has_req = f.has_object = f.has_errno_ = true;
    f.req = g->req;
    f.object = g->object;
    f.errno_ = (uint32_t)error;
    f.text = (char *)text;
    m.body_case = VG__MR__MSG__BODY_FAIL;
    m.fail = &f;
    return send_msg(s, &m);
}

static void entry_of(const struct vg_fnode *c, struct vg_dirent *ret) {
    *ret = (struct vg_dirent){.object = c->object,
                              .st = c->st,
                              .name = c->name,
                              .name_len = c->name_len,
                              .target = c->name + c->name_len + 1,
                              .target_len = c->target_len,
                              .flags = c->flags,
                              .id = S_ISREG(c->st.mode) && c->has_hash ? c->hash : NULL};
    ret->flags &= (uint8_t) ~(VG_DE_OTHER | VG_DE_SECRET);
}

static int build_record(struct serve *s, struct vg_fnode *n, struct vg_buf *rec) {
    int r = vg_dirrec_begin(rec, n->object, 1, &n->st);
    for (uint32_t i = 0; r == 0 && i < n->n_child; i++) {
        struct vg_dirent e;
        entry_of(n->child[i], &e);
        r = vg_dirrec_add(rec, &e);
    }
    (void)s;
    return r == 0 ? vg_dirrec_end(rec) : r;
}

static void never_came(struct serve *s, uint64_t object, char *text, size_t n) {
    char path[4096] = "?";
    pthread_mutex_lock(&s->t->lock);
    struct vg_fnode *f = vg_map_get_u64(&s->t->by_object, object);
    if (f)
        vg_fnode_path(f, path, sizeof(path));
    pthread_mutex_unlock(&s->t->lock);
    vg_debug("asked for %s, which is not here", path);
    snprintf(text, n, "%.150s%s never came into the cloud's store", path,
             strlen(path) > 150 ? "..." : "");
}

static int answer_folder(struct serve *s, const Vg__Mr__Get *g, struct vg_fnode *n) {
    struct vg_buf rec = {0};
    int r = vg_fnode_load(s->t, n);
    if (r == 0)
        r = build_record(s, n, &rec);
    pthread_mutex_unlock(&s->t->lock);
    if (r < 0) {
        char text[4400];
        never_came(s, g->object, text, sizeof(text));
        r = fail(s, g, -r, text);
    } else if ((r = vg_mw_dir(&s->out, g->req, g->object, 1, vg_buf_data(&rec), vg_buf_len(&rec),
                              LEVEL)) == 0)
        r = flush(s);
    vg_buf_done(&rec);
    return r;
}

static int answer_xattrs(struct serve *s, const Vg__Mr__Get *g, struct vg_fnode *n) {
    Vg__Mr__Fail f = VG__MR__FAIL__INIT;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    size_t count = 0, i = 0;
    for (struct vg_fxattr *x = n->xattrs; x; x = x->next)
        count++;
    vg_auto_free Vg__Mr__Xattr *list = vg_alloc((count + 1) * sizeof(*list));
    vg_auto_free Vg__Mr__Xattr **ptrs = vg_alloc((count + 1) * sizeof(*ptrs));
    for (struct vg_fxattr *x = n->xattrs; list && ptrs && x; x = x->next, i++) {
        list[i] = (Vg__Mr__Xattr)VG__MR__XATTR__INIT;
        list[i].has_name = list[i].has_value = true;
        list[i].name = (ProtobufCBinaryData){x->name_len, (uint8_t *)x->bytes};
        list[i].value = (ProtobufCBinaryData){x->value_len, (uint8_t *)x->bytes + x->name_len};
        ptrs[i] = &list[i];
    }
    f.has_req = f.has_object = f.has_errno_ = true;
    f.req = g->req;
    f.object = g->object;
    f.n_xattr = i;
    f.xattr = ptrs;
    m.body_case = VG__MR__MSG__BODY_FAIL;
    m.fail = &f;
    int r = vg_mw_msg(&s->out, &m); /* while the lock keeps them */
    pthread_mutex_unlock(&s->t->lock);
    return r == 0 ? flush(s) : r;
}

/* Opens the stored content, which may have to be fetched. */
static int content_of(struct serve *s, const uint8_t id[VG_HASH]) {
    if (s->open_fd >= 0 && memcmp(s->open_id, id, VG_HASH) == 0)
        return s->open_fd;
    vg_close(&s->open_fd);
    s->open_fd = vg_estore_open_data(s->t->store, id);
    memcpy(s->open_id, id, VG_HASH);
    return s->open_fd;
}

static int read_stored(int fd, uint64_t off, uint8_t *p, size_t n) {
    while (n) {
        ssize_t k = pread(fd, p, n, (off_t)off);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return k < 0 ? -errno : -EIO;
        p += k;
        n -= (size_t)k;
        off += (uint64_t)k;
    }
    return 0;
}

/* One leaf into s->leaf, waiting for a puller where there is one. */
static int get_leaf(struct serve *s, uint64_t object, uint64_t off, size_t n) {
    struct vg_ftree *t = s->t;
    pthread_mutex_lock(&t->lock);
    struct vg_fnode *f = vg_map_get_u64(&t->by_object, object);
    int r = f ? 0 : -ENOENT;
    while (r == 0 && !f->has_hash && !(f->into && vg_einto_has(f->into, off / VG_LEAF))) {
        if (f->state == VG_F_NEVER || !t->pull) {
            vg_fnode_miss(t, f);
            r = f->error ? -f->error : -EIO;
            break;
        }
        vg_pull_demand(t->pull, f, off, n);
        pthread_cond_wait(&t->changed, &t->lock);
    }
    uint8_t id[VG_HASH];
    bool stored = r == 0 && f->has_hash;
    if (stored)
        memcpy(id, f->hash, VG_HASH);
    else if (r == 0)
        r = vg_einto_read(f->into, off, s->leaf, n);
    pthread_mutex_unlock(&t->lock);
    int fd = stored ? content_of(s, id) : -1;
    return !stored ? r : fd < 0 ? fd : read_stored(fd, off, s->leaf, n);
}

static void range_free(struct serve *s, struct range *r) {
    vg_list_remove(&r->link);
    s->pending--;
    free(r);
}

/* The rest of a question that failed is not answered. */
static void forget(struct serve *s, uint64_t req) {
    struct vg_list *lists[] = {&s->urgent, &s->ahead};
    for (size_t i = 0; i < 2; i++)
        vg_list_for_each_safe (it, lists[i]) {
            struct range *r = vg_list_entry(it, struct range, link);
            if (r->req == req)
                range_free(s, r);
        }
}

static int ask_range(struct serve *s, const Vg__Mr__Get *g, uint64_t size, const Vg__Mr__Range *q) {
    if (q->offset > size || s->pending >= PENDING_MAX)
        return fail(s, g, EINVAL, "this range is not one");
    struct range *r = vg_alloc(sizeof(*r));
    if (!r)
        return -ENOMEM;
    *r = (struct range){.req = g->req,
                        .object = g->object,
                        .off = q->offset - q->offset % VG_LEAF,
                        .end = q->length > size - q->offset ? size : q->offset + q->length,
                        .size = size};
    vg_list_push_back(g->urgency ? &s->ahead : &s->urgent, &r->link);
    s->pending++;
    return 0;
}

/* One leaf of the first. */
static int send_leaf(struct serve *s) {
    struct vg_list *first = vg_list_first(&s->urgent);
    struct range *q = vg_list_entry(first ? first : vg_list_first(&s->ahead), struct range, link);
    size_t n = (size_t)VG_MIN(q->size - q->off, (uint64_t)VG_LEAF);
    int r = get_leaf(s, q->object, q->off, n);
    if (r < 0) {
        Vg__Mr__Get g = VG__MR__GET__INIT;
        char text[4400];
        g.req = q->req;
        g.object = q->object;
        never_came(s, q->object, text, sizeof(text));
        forget(s, g.req);
        return fail(s, &g, -r, text);
    }
    r = vg_mw_data(&s->out, q->req, q->object, q->off, q->size, s->leaf, n, 0);
    q->off += n;
    if (q->off >= q->end)
        range_free(s, q);
    return r == 0 ? flush(s) : r;
}

/* What was asked for ahead is waited for now. */
static void hurry(struct serve *s, uint64_t req) {
    vg_list_for_each_safe (it, &s->ahead) {
        struct range *r = vg_list_entry(it, struct range, link);
        if (r->req != req)
            continue;
        vg_list_remove(&r->link);
        vg_list_push_back(&s->urgent, &r->link);
    }
}

static int answer(struct serve *s, const Vg__Mr__Get *g) {
    struct vg_ftree *t = s->t;
    pthread_mutex_lock(&t->lock);
    struct vg_fnode *n = vg_map_get_u64(&t->by_object, g->object);
    if (n && g->xattrs)
        return answer_xattrs(s, g, n);
    if (n && S_ISDIR(n->st.mode) && g->n_range == 0)
        return answer_folder(s, g, n);
    bool file = n && S_ISREG(n->st.mode), denied = n && n->flags & VG_DE_DENIED;
    uint64_t size = n ? n->st.size : 0;
    pthread_mutex_unlock(&t->lock);
    if (!n)
        return fail(s, g, ENOENT, "the snapshot has no such object");
    if (!file || g->n_range == 0 || g->n_range > RANGES_MAX)
        return fail(s, g, EINVAL, "this cannot be read");
    if (denied)
        return fail(s, g, EACCES, "it was kept out of the snapshot as a secret");
    int r = 0;
    for (size_t i = 0; r == 0 && i < g->n_range; i++)
        r = ask_range(s, g, size, g->range[i]);
    return r;
}

static int send_kept(struct serve *s, struct vg_keepin_answer *a) {
    Vg__Mr__Kept k = VG__MR__KEPT__INIT;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    k.has_task = k.has_round = k.has_errno_ = k.has_changes = true;
    k.task = a->task;
    k.round = a->round;
    k.errno_ = (uint32_t)a->error;
    k.changes = a->changes;
    k.text = a->text;
    m.body_case = VG__MR__MSG__BODY_KEPT;
    m.kept = &k;
    return send_msg(s, &m);
}

/* The snapshot itself is never written; what a task changed is put beside it. */
static int take_in(struct serve *s, const struct vg_mw_frame *f) {
    struct vg_keepin_answer a;
    if (!s->keep)
        return -EPROTO;
    int r = f->kind == VG_MW_MSG ? vg_keepin_msg(s->keep, f->msg->keep, &a)
            : f->op == 0 ? vg_keepin_bytes(s->keep, f->object, f->offset, f->data, f->len, &a)
                         : -EPROTO;
    return r == 1 ? send_kept(s, &a) : r;
}

static int handle(struct serve *s, const struct vg_mw_frame *f) {
    if (f->kind == VG_MW_WRITE)
        return take_in(s, f);
    if (f->kind != VG_MW_MSG)
        return -EPROTO;
    switch (f->msg->body_case) {
    case VG__MR__MSG__BODY_KEEP:
        return take_in(s, f);
    case VG__MR__MSG__BODY_GET:
        if (!f->msg->get->hurry)
            return answer(s, f->msg->get);
        hurry(s, f->msg->get->req);
        return 0;
    case VG__MR__MSG__BODY_OP:
        return -EPROTO;
    default:
        return 0; /* greetings, skips, traces: nothing to do */
    }
}

static int serve(struct serve *s, uint64_t task) {
    struct vg_mw_in in = {0};
    vg_auto_free uint8_t *room = vg_alloc(64u << 10);
    int r = room && s->leaf ? greet(s, task) : -ENOMEM;
    bool over = false;
    while (r == 0 && !over) {
        ssize_t n = recv(s->fd, room, 64u << 10, s->pending ? MSG_DONTWAIT : 0);
        if (n < 0 && (errno == EINTR || (errno == EAGAIN && s->pending))) {
            r = s->pending ? send_leaf(s) : 0;
            continue;
        }
        over = n == 0;
        r = n < 0 ? -errno : n ? vg_mw_feed(&in, room, (size_t)n) : 0;
        struct vg_mw_frame f;
        for (int k; r == 0 && (k = vg_mw_next(&in, &f)) != 0;) {
            r = k < 0 ? k : handle(s, &f);
            if (k > 0)
                vg_mw_frame_done(&f);
        }
    }
    vg_mw_in_done(&in);
    return r;
}

int vg_fserve(struct vg_ftree *t, int fd, uint64_t task, const struct vg_keep_conf *keep) {
    struct serve s = {.t = t, .fd = fd, .open_fd = -1};
    s.leaf = vg_alloc(VG_LEAF);
    s.keep = keep ? vg_keepin_new(keep, t) : NULL;
    vg_list_init(&s.urgent);
    vg_list_init(&s.ahead);
    int r = keep && !s.keep ? -ENOMEM : serve(&s, task);
    struct vg_list *lists[] = {&s.urgent, &s.ahead};
    for (size_t i = 0; i < 2; i++)
        for (struct vg_list *it; (it = vg_list_first(lists[i]));)
            range_free(&s, vg_list_entry(it, struct range, link));
    vg_keepin_free(s.keep);
    vg_close(&s.open_fd);
    vg_buf_done(&s.out);
    free(s.leaf);
    close(fd);
    return r;
}
