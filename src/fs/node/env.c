/* The environment view: a read-only file system of the client's root. This file: its life, what
   comes from the links, and which request goes where. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/node/env-int.h"
#include "fs/node/peer.h"

#include <errno.h>
#include <string.h>

#define SKIP_BATCH 4096u
#define WAIT_LIMIT_USEC (600ull * VG_USEC)

static void on_forget(struct env_call *c) {
    size_t len;
    const char *arg = vg_fuse_arg(c->r, &len);
    struct vg_env *e = c->e;
    pthread_mutex_lock(&e->lock);
    if (vg_fuse_head(c->r)->opcode == FUSE_FORGET) {
        const struct fuse_forget_in *in = vg_fuse_in(c->r, sizeof(*in));
        if (in)
            vg_env_forget(e, vg_fuse_head(c->r)->nodeid, in->nlookup);
    } else {
        const struct fuse_batch_forget_in *in = vg_fuse_in(c->r, sizeof(*in));
        size_t room = in ? (len - sizeof(*in)) / sizeof(struct fuse_forget_one) : 0;
        for (size_t i = 0; in && i < in->count && i < room; i++) {
            struct fuse_forget_one one;
            memcpy(&one, arg + sizeof(*in) + i * sizeof(one), sizeof(one));
            vg_env_forget(e, one.nodeid, one.nlookup);
        }
    }
    pthread_mutex_unlock(&e->lock);
    vg_fuse_none(c->r);
}

static void on_statfs(struct env_call *c) {
    struct fuse_statfs_out out = {.st = {.blocks = 1u << 28,
                                         .bfree = 1u << 27,
                                         .bavail = 1u << 27,
                                         .files = 1u << 24,
                                         .ffree = 1u << 23,
                                         .bsize = 4096,
                                         .namelen = VG_NAME_MAX,
                                         .frsize = 4096}};
    vg_fuse_ok(c->r, &out, sizeof(out));
}

/* A request from its beginning, fresh or after waiting. */
void vg_env_request(struct env_call *c) {
    switch (vg_fuse_head(c->r)->opcode) {
    case FUSE_LOOKUP:
        return vg_env_lookup(c);
    case FUSE_GETATTR:
        return vg_env_getattr(c);
    case FUSE_READLINK:
        return vg_env_readlink(c);
    case FUSE_OPEN:
        return vg_env_open(c);
    case FUSE_READ:
        return vg_env_read(c);
    case FUSE_RELEASE:
        return vg_env_release(c);
    case FUSE_READDIR:
    case FUSE_READDIRPLUS:
        return vg_env_readdir(c);
    case FUSE_GETXATTR:
    case FUSE_LISTXATTR:
        return vg_env_getxattr(c);
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
        return on_forget(c);
    case FUSE_STATFS:
        return on_statfs(c);
    case FUSE_DESTROY:
        vg_fuse_ok(c->r, NULL, 0);
        return;
    default: /* OPENDIR among them: the kernel then keeps folders by itself */
        vg_fuse_err(c->r, ENOSYS);
    }
}

static void on_request(void *user, struct vg_fuse_req *r) {
    struct env_call c = {.e = user, .r = r};
    vg_env_request(&c);
}

/* The service need not push these. */
static void send_skip(struct vg_env *e, const uint64_t *object, size_t n) {
    Vg__Mr__Skip skip = VG__MR__SKIP__INIT;
    Vg__Mr__Msg msg = VG__MR__MSG__INIT;
    skip.object = (uint64_t *)object;
    skip.n_object = n;
    msg.body_case = VG__MR__MSG__BODY_SKIP;
    msg.skip = &skip;
    if (n)
        vg_links_send(e->conf.links, &msg); /* without a link there is nothing to skip */
}

static void on_peer_has(void *user, const uint64_t *object, size_t n) {
    send_skip(user, object, n);
}

static bool worth_asking(const struct vg_dirent *d) {
    return d->id && d->st.size >= VG_PEER_FILE_MIN && d->st.size <= VG_PEER_FILE_MAX;
}

/* Of a folder that was pushed: what is here already need not be; what is not may be on another node
   of this user. Without the lock. */
static void look_around(struct vg_env *e, const struct vg_dirrec *rec) {
    vg_auto_free uint64_t *have = vg_alloc(sizeof(*have) * SKIP_BATCH);
    vg_auto_free struct vg_peer_file *lack =
        e->conf.peers ? vg_alloc(sizeof(*lack) * VG_PEER_FILES) : NULL;
    struct vg_dirent d;
    size_t at = 0, n = 0, n_lack = 0;
    while (have && n < SKIP_BATCH && vg_dirrec_next(rec, &at, &d)) {
        uint8_t stamp[VG_HASH];
        if (!S_ISREG(d.st.mode) || !d.st.size || (d.flags & (VG_DE_DENIED | VG_DE_SECRET)))
            continue;
        vg_stamp(e->conf.machine, &d.st, stamp);
        if (vg_cache_has(e->conf.cache, stamp, d.id)) {
            have[n++] = d.object;
        } else if (lack && n_lack < VG_PEER_FILES && worth_asking(&d)) {
            lack[n_lack] = (struct vg_peer_file){.object = d.object, .size = d.st.size};
            memcpy(lack[n_lack++].id, d.id, VG_HASH);
        }
    }
    send_skip(e, have, n);
    if (n_lack)
        vg_peers_ask(e->conf.peers, lack, n_lack, on_peer_has, e);
}

bool vg_env_dir(struct vg_env *e, uint64_t req, const struct vg_dirrec *rec) {
    struct vg_list waits;
    vg_list_init(&waits);
    pthread_mutex_lock(&e->lock);
    struct env_node *n = vg_map_get_u64(&e->by_object, rec->object);
    bool ours = n && S_ISDIR(n->st.mode) && !(n->flags & (VG_DE_OTHER | VG_DE_EMPTY));
    bool keeps = ours && e->frozen && n->dir && n->dir->proven && n->dir->epoch == e->epoch;
    if (keeps) {
        vg_env_mark(e, n, rec, &waits);
    } else if (ours) {
        int r = vg_env_apply(e, n, rec);
        if (r < 0) {
            vg_warn("cannot keep a folder's record: %s", strerror(-r));
            n->fail = -r;
            n->fail_usec = vg_now_usec();
        }
        vg_env_wake(n, &waits);
        /* Whoever waits for a kid waits for its number or its stat, which are here now. */
        for (uint32_t i = 0; n->dir && i < n->dir->n; i++)
            vg_env_wake(n->dir->kid[i], &waits);
    }
    pthread_mutex_unlock(&e->lock);
    vg_env_run(e, &waits);
    if (ours && !req && !keeps)
        look_around(e, rec);
    return ours;
}

/* A folder or file that is not there: its own folder's record is old. */
static void on_vanished(struct vg_env *e, struct env_node *n) {
    if (n->parent)
        vg_env_unprove(e, n->parent);
}

bool vg_env_fail(struct vg_env *e, const Vg__Mr__Fail *m) {
    struct vg_list waits;
    vg_list_init(&waits);
    pthread_mutex_lock(&e->lock);
    struct env_node *n = vg_map_get_u64(&e->by_object, m->object);
    bool say = false;
    if (n && !m->errno_) {
        if (!n->xattrs && vg_env_set_xattrs(n, m) < 0)
            n->fail = ENOMEM, n->fail_usec = vg_now_usec();
    } else if (n) {
        say = n->fail != (int)m->errno_ && m->errno_ != ENOENT;
        n->fail = m->errno_ > 4095 ? EIO : (int)m->errno_;
        n->fail_usec = vg_now_usec();
        if (m->errno_ == ENOENT || m->errno_ == ESTALE)
            on_vanished(e, n);
    }
    if (n)
        vg_env_wake(n, &waits);
    pthread_mutex_unlock(&e->lock);
    if (say && m->text && e->conf.note)
        e->conf.note(e->conf.user, m->text);
    vg_env_run(e, &waits);
    return n;
}

static void unprove_all(struct vg_env *e) {
    for (size_t i = 0; i < e->n_table; i++)
        if (e->table[i] && e->table[i]->dir)
            vg_env_unprove(e, e->table[i]);
}

void vg_env_inval(struct vg_env *e, const Vg__Mr__Inval *m) {
    pthread_mutex_lock(&e->lock);
    if (m->all)
        unprove_all(e);
    for (size_t i = 0; i < m->n_folder; i++) {
        struct env_node *n = vg_map_get_u64(&e->by_object, m->folder[i]);
        if (n)
            vg_env_unprove(e, n);
    }
    pthread_mutex_unlock(&e->lock);
}

void vg_env_new_epoch(struct vg_env *e, uint64_t root_object) {
    struct vg_list waits;
    vg_list_init(&waits);
    pthread_mutex_lock(&e->lock);
    e->epoch++;
    vg_map_done(&e->by_object);
    e->by_object = (struct vg_map){0};
    e->root->object = root_object;
    e->root->epoch = e->epoch;
    if (vg_map_put_u64(&e->by_object, root_object, e->root) < 0)
        vg_warn("out of memory: the environment's root is lost until the next connection");
    if (!e->frozen)
        unprove_all(e);
    vg_env_wake_all(e, &waits);
    pthread_mutex_unlock(&e->lock);
    vg_env_run(e, &waits);
}

void vg_env_freeze(struct vg_env *e, bool on) {
    pthread_mutex_lock(&e->lock);
    e->frozen = on;
    pthread_mutex_unlock(&e->lock);
}

bool vg_env_knows(struct vg_env *e, uint64_t folder) {
    pthread_mutex_lock(&e->lock);
    const struct env_node *n = vg_map_get_u64(&e->by_object, folder);
    bool known = n && n->dir;
    pthread_mutex_unlock(&e->lock);
    return known;
}

void vg_env_wait_limit(struct vg_env *e, uint64_t usec) {
    pthread_mutex_lock(&e->lock);
    e->wait_limit_usec = usec;
    pthread_mutex_unlock(&e->lock);
}

void vg_env_set_strict(struct vg_env *e, bool strict) {
    pthread_mutex_lock(&e->lock);
    e->strict = strict;
    pthread_mutex_unlock(&e->lock);
}

void vg_env_stats(struct vg_env *e, struct vg_env_stat *ret) {
    pthread_mutex_lock(&e->lock);
    *ret = e->stat;
    pthread_mutex_unlock(&e->lock);
}

static int make_root(struct vg_env *e, const struct vg_mstat *root) {
    e->root = vg_env_node_new(e, NULL);
    if (!e->root)
        return -ENOMEM;
    e->root->st = *root;
    e->root->object = VG_OBJ_ROOT;
    e->root->epoch = e->epoch;
    e->root->lookups = 1;
    return vg_map_put_u64(&e->by_object, e->root->object, e->root);
}

int vg_env_new(const struct vg_view_conf *conf, const struct vg_mstat *root, struct vg_env **ret,
               struct vg_err *err) {
    static const struct vg_fuse_ops ops = {.request = on_request};
    struct vg_env *e = vg_alloc(sizeof(*e));
    if (!e)
        return vg_err_sys(err, ENOMEM, "cannot make the environment's view");
    *e = (struct vg_env){.conf = *conf,
                         .strict = conf->strict,
                         .epoch = 1,
                         .trace_gen = 1,
                         .wait_limit_usec = WAIT_LIMIT_USEC};
    e->conf.dir = e->conf.at = NULL; /* borrowed for this call only */
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->notes_changed, NULL);
    vg_list_init(&e->waiting);
    vg_list_init(&e->opens);
    vg_list_init(&e->idle);
    vg_list_init(&e->tasks);
    struct vg_fuse_conf fuse = {
        .name = "virga-env", .no_passthrough = conf->no_passthrough, .threads = 4};
    int r = make_root(e, root);
    if (r < 0)
        vg_err_sys(err, r, "cannot make the environment's view");
    else
        r = vg_fuse_new(&fuse, &ops, e, conf->at, &e->fuse, err);
    if (r >= 0 && (r = vg_env_notifier_start(e)) < 0)
        vg_err_sys(err, r, "cannot start the environment's thread");
    if (r < 0) {
        vg_env_free(e);
        return r;
    }
    *ret = e;
    return 0;
}

void vg_env_free(struct vg_env *e) {
    if (!e)
        return;
    if (e->conf.peers)
        vg_peers_forget(e->conf.peers, e);
    if (e->fuse)
        vg_fuse_abort(e->fuse);
    vg_env_notifier_stop(e);
    vg_list_for_each_safe (it, &e->waiting) {
        struct env_wait *w = vg_list_entry(it, struct env_wait, all);
        vg_list_remove(&w->on_node);
        vg_fuse_none(w->r);
        free(w);
    }
    vg_env_opens_free(e);
    if (e->table)
        vg_env_tree_free(e);
    vg_list_for_each_safe (it, &e->tasks)
        free(vg_list_entry(it, struct env_task, link));
    free(e->uses);
    vg_fuse_free(e->fuse);
    pthread_cond_destroy(&e->notes_changed);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

int vg_env_mount(struct vg_env *e) {
    return vg_fuse_clone_mount(e->fuse);
}
