/* A project view: mounting, dispatching requests, the threads that run them again and that tell the
   kernel, and what comes from the client. See proj-int.h. */
#include "fs/node/proj-int.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"

#include <fcntl.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>

#define TICK_MSEC 200
#define FUSE_TMPFILE_ 51
#define BEGIN_SECONDS 30

static int op_statfs(struct vg_proj *p, struct pctx *c) {
    struct statvfs v;
    if (fstatvfs(p->dirfd, &v) < 0)
        return -errno;
    struct fuse_statfs_out *o = (void *)c->out;
    memset(o, 0, sizeof(*o));
    o->st.blocks = v.f_blocks;
    o->st.bfree = v.f_bfree;
    o->st.bavail = v.f_bavail;
    o->st.files = v.f_files;
    o->st.ffree = v.f_ffree;
    o->st.bsize = o->st.frsize = (uint32_t)v.f_frsize;
    o->st.namelen = 255;
    c->out_len = sizeof(*o);
    return 0;
}

static void forget(struct vg_proj *p, uint64_t nodeid, uint64_t count) {
    struct pnode *n = proj_node(p, nodeid);
    if (n->is_root)
        return;
    n->nlookup -= VG_MIN(n->nlookup, count);
    proj_node_maybe_free(p, n);
}

static void op_forget(struct vg_proj *p, struct pctx *c) {
    if (c->h->opcode == FUSE_FORGET) {
        const struct fuse_forget_in *in = vg_fuse_in(c->r, sizeof(*in));
        if (in)
            forget(p, c->h->nodeid, in->nlookup);
        return;
    }
    const struct fuse_batch_forget_in *in = vg_fuse_in(c->r, sizeof(*in));
    size_t n = in ? VG_MIN(in->count, (c->len - sizeof(*in)) / sizeof(struct fuse_forget_one)) : 0;
    const struct fuse_forget_one *one = (const void *)(in + 1);
    for (size_t i = 0; i < n; i++)
        forget(p, one[i].nodeid, one[i].nlookup);
}

static int handle(struct vg_proj *p, struct pctx *c) {
    switch (c->h->opcode) {
    case FUSE_LOOKUP:
        return proj_op_lookup(p, c);
    case FUSE_GETATTR:
        return proj_op_getattr(p, c);
    case FUSE_SETATTR:
        return proj_op_setattr(p, c);
    case FUSE_READLINK:
        return proj_op_readlink(p, c);
    case FUSE_SYMLINK:
        return proj_op_symlink(p, c);
    case FUSE_MKNOD:
        return proj_op_mknod(p, c);
    case FUSE_MKDIR:
        return proj_op_mkdir(p, c);
    case FUSE_UNLINK:
    case FUSE_RMDIR:
        return proj_op_unlink(p, c, c->h->opcode == FUSE_RMDIR);
    case FUSE_RENAME:
    case FUSE_RENAME2:
        return proj_op_rename(p, c, c->h->opcode == FUSE_RENAME2);
    case FUSE_LINK:
        return proj_op_link(p, c);
    case FUSE_OPEN:
        return proj_op_open(p, c);
    case FUSE_READ:
        return proj_op_read(p, c);
    case FUSE_WRITE:
        return proj_op_write(p, c);
    case FUSE_STATFS:
        return op_statfs(p, c);
    case FUSE_RELEASE:
        return proj_op_release(p, c);
    case FUSE_FSYNC:
        return proj_op_fsync(p, c);
    case FUSE_SETXATTR:
        return proj_op_setxattr(p, c);
    case FUSE_GETXATTR:
    case FUSE_LISTXATTR:
        return proj_op_getxattr(p, c, c->h->opcode == FUSE_LISTXATTR);
    case FUSE_REMOVEXATTR:
        return proj_op_removexattr(p, c);
    case FUSE_FLUSH:
        return proj_op_flush(p, c);
    case FUSE_READDIR:
    case FUSE_READDIRPLUS:
        return proj_op_readdir(p, c, c->h->opcode == FUSE_READDIRPLUS);
    case FUSE_FSYNCDIR:
    case FUSE_RELEASEDIR:
        return 0;
    case FUSE_CREATE:
        return proj_op_create(p, c);
    case FUSE_TMPFILE_:
        return proj_op_tmpfile(p, c);
    case FUSE_FALLOCATE:
        return proj_op_fallocate(p, c);
    default: /* OPENDIR: then the kernel keeps listings; LSEEK, COPY_FILE_RANGE: it has its own */
        return -ENOSYS;
    }
}

void proj_wait_for(struct pctx *c, struct pnode *n, uint64_t op) {
    if (op > n->p->acked) {
        c->wait_op = op;
        c->wait_node = n;
    }
}

void proj_sync_wait(struct pctx *c, struct pnode *n) {
    if (n->p->sync)
        proj_wait_for(c, n, n->pend);
}

void proj_take_back(struct vg_proj *p, struct pnode *n, uint32_t lookups, uint32_t open) {
    if (open && n->nopen)
        n->nopen--;
    if (open == 2 && n->nwrite)
        n->nwrite--;
    if (n->file && !n->nwrite)
        proj_unhold(n);
    n->nlookup -= VG_MIN(n->nlookup, lookups);
    proj_node_maybe_free(p, n);
}

static void answer(struct vg_proj *p, struct pctx *c, int rc) {
    struct pnode *n = c->gave_lookup;
    uint32_t lookups = n ? 1 : 0;
    if (!n && c->gave_open)
        n = proj_node(p, c->h->nodeid);
    int sent =
        rc < 0 ? vg_fuse_err(c->r, -rc) : vg_fuse_ok(c->r, c->big ? c->big : c->out, c->out_len);
    if (sent == -ENOENT && rc == 0 && n) {
        pthread_mutex_lock(&p->lock);
        proj_take_back(p, n, lookups, c->gave_open);
        pthread_mutex_unlock(&p->lock);
    }
    free(c->big);
}

static int park(struct pctx *c) {
    struct pwait *w = vg_alloc(sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->r = vg_fuse_keep(c->r);
    if (!w->r) {
        free(w);
        c->answered = true;
        return 0;
    }
    vg_list_push_back(c->park, &w->link);
    c->answered = true;
    return 0;
}

static int park_answer(struct vg_proj *p, struct pctx *c) {
    struct packwait *w = vg_alloc(sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->r = vg_fuse_keep(c->r);
    if (!w->r) {
        free(w);
        c->answered = true;
        return 0;
    }
    w->n = c->wait_node;
    w->n->refs++;
    w->op = c->wait_op;
    w->lookup = c->gave_lookup != NULL;
    w->excl = c->excl;
    w->open = c->gave_open;
    w->len = c->out_len;
    memcpy(w->out, c->out, c->out_len);
    vg_list_push_back(&p->acks, &w->link);
    c->answered = true;
    return 0;
}

void proj_run(struct vg_proj *p, struct vg_fuse_req *r) {
    struct pctx c;
    memset(&c, 0, offsetof(struct pctx, out));
    c.r = r;
    c.h = vg_fuse_head(r);
    c.arg = vg_fuse_arg(r, &c.len);
    pthread_mutex_lock(&p->lock);
    if (c.h->opcode == FUSE_FORGET || c.h->opcode == FUSE_BATCH_FORGET) {
        op_forget(p, &c);
        pthread_mutex_unlock(&p->lock);
        vg_fuse_none(r);
        return;
    }
    int rc = p->stopping ? -ENOTCONN : handle(p, &c);
    if (rc == PROJ_WAIT)
        rc = park(&c);
    else if (rc == 0 && c.wait_op)
        rc = park_answer(p, &c);
    pthread_mutex_unlock(&p->lock);
    if (!c.answered)
        answer(p, &c, rc);
}

static void on_request(void *user, struct vg_fuse_req *r) {
    proj_run(user, r);
}

static void wait_msec(pthread_cond_t *cond, pthread_mutex_t *lock, unsigned msec) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    ts.tv_nsec += (long)(msec % 1000) * 1000000;
    ts.tv_sec += msec / 1000 + (ts.tv_nsec >= 1000000000);
    ts.tv_nsec %= 1000000000;
    pthread_cond_timedwait(cond, lock, &ts);
}

/* Data of files that stay open; what had to wait for room in the log. */
static void flush_old(struct vg_proj *p) {
    uint64_t now = vg_now_usec();
    while (!vg_list_empty(&p->dirty) && !vg_oplog_data_full(p->log)) {
        struct pfile *f = vg_list_entry(p->dirty.next, struct pfile, dirty_link);
        struct pnode *n = f->owner;
        if (n->nwrite && now - f->dirty_since < PROJ_FLUSH_USEC)
            break;
        vg_list_remove(&f->dirty_link);
        if (proj_flush_node(n) < 0 || !n->names) {
            if (!n->names)
                continue; /* no name, no news */
            vg_list_push_back(&p->dirty, &f->dirty_link);
            break;
        }
    }
}

/* Folders that changed at the client are asked for again, those with operations under way later. */
static void refresh(struct vg_proj *p) {
    vg_list_for_each (it, &p->unproven) {
        struct pdir *f = vg_list_entry(it, struct pdir, unproven_link);
        if (!p->idle && !f->fetching && f->last_op <= p->acked && proj_lies_somewhere(f->owner))
            proj_refresh_dir(p, f->owner);
    }
}

static void *runner_main(void *arg) {
    struct vg_proj *p = arg;
    uint64_t last = 0;
    pthread_mutex_lock(&p->lock);
    while (!p->stopping) {
        struct vg_list *it = vg_list_first(&p->ready);
        if (it) {
            struct pwait *w = vg_list_entry(it, struct pwait, link);
            vg_list_remove(it);
            pthread_mutex_unlock(&p->lock);
            proj_run(p, w->r);
            free(w);
            pthread_mutex_lock(&p->lock);
            continue;
        }
        if (proj_backing_ahead(p))
            continue;
        uint64_t now = vg_now_usec();
        if (now - last >= TICK_MSEC * 1000) {
            last = now;
            flush_old(p);
            refresh(p);
            pthread_mutex_unlock(&p->lock);
            vg_fuse_tick(p->fuse);
            pthread_mutex_lock(&p->lock);
            continue;
        }
        wait_msec(&p->work, &p->lock, TICK_MSEC);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void *notifier_main(void *arg) {
    struct vg_proj *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->stopping) {
        struct pnotice *t = p->notices;
        if (!t) {
            pthread_cond_wait(&p->told, &p->lock);
            continue;
        }
        p->notices = t->next;
        if (!p->notices)
            p->notices_end = &p->notices;
        pthread_mutex_unlock(&p->lock);
        if (t->parent)
            vg_fuse_inval_entry(p->fuse, t->parent, t->name, t->len);
        else
            vg_fuse_inval_inode(p->fuse, t->node, t->attr ? -1 : 0, 0);
        free(t);
        pthread_mutex_lock(&p->lock);
        p->notices_done++;
        pthread_cond_broadcast(&p->proven);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static int init_threads(struct vg_proj *p) {
    int rc = pthread_create(&p->runner, NULL, runner_main, p);
    p->have_runner = rc == 0;
    if (rc == 0) {
        rc = pthread_create(&p->notifier, NULL, notifier_main, p);
        p->have_notifier = rc == 0;
    }
    return -rc;
}

static void init_base(struct vg_proj *p, const struct vg_view_conf *conf) {
    p->conf = *conf;
    p->dirfd = -1;
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_t ca;
    pthread_condattr_init(&ca);
    pthread_condattr_setclock(&ca, CLOCK_MONOTONIC);
    pthread_cond_init(&p->work, &ca);
    pthread_cond_init(&p->told, &ca);
    pthread_cond_init(&p->proven, &ca);
    pthread_condattr_destroy(&ca);
    struct vg_list *lists[] = {&p->nodes, &p->dirty, &p->unproven, &p->room,
                               &p->acks,  &p->tombs, &p->ready};
    for (size_t i = 0; i < VG_COUNT(lists); i++)
        vg_list_init(lists[i]);
    p->notices_end = &p->notices;
}

/* Backings of an earlier life mean nothing: the log that knew them is gone. */
static int open_dir(struct vg_proj *p, struct vg_err *err) {
    int rc = vg_mkdir_p(p->conf.dir, 0700);
    if (rc < 0)
        return vg_err_sys(err, rc, "cannot make %s", p->conf.dir);
    p->dirfd = open(p->conf.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (p->dirfd < 0)
        return vg_err_sys(err, errno, "cannot open %s", p->conf.dir);
    return 0;
}

int vg_proj_new(const struct vg_view_conf *conf, struct vg_oplog *log, uint32_t view,
                uint64_t root_object, const struct vg_mstat *root, bool sync, struct vg_proj **ret,
                struct vg_err *err) {
    struct vg_proj *p = vg_alloc(sizeof(*p));
    if (!p)
        return vg_err_sys(err, ENOMEM, "cannot make a project view");
    init_base(p, conf);
    p->log = log;
    p->view = view;
    p->sync = sync;
    p->root_object = root_object;
    int rc = open_dir(p, err);
    if (rc == 0) {
        p->root = proj_node_new(p, root);
        if (!p->root || !p->root->dir)
            rc = vg_err_sys(err, p->root ? ENOTDIR : ENOMEM, "cannot make a project view");
    }
    if (rc == 0) {
        p->root->is_root = p->root->at_client = true;
        p->root->cst = *root;
        struct vg_fuse_conf fc = {
            .name = "virga", .writable = true, .no_passthrough = true, .threads = 2};
        static const struct vg_fuse_ops ops = {.request = on_request};
        rc = vg_fuse_new(&fc, &ops, p, conf->at, &p->fuse, err);
    }
    if (rc == 0 && (rc = init_threads(p)) < 0)
        vg_err_sys(err, rc, "cannot start a project view's threads");
    if (rc < 0) {
        vg_proj_free(p);
        return rc;
    }
    *ret = p;
    return 0;
}

static void drop_all(struct vg_proj *p) {
    while (!vg_list_empty(&p->nodes)) {
        struct pnode *n = vg_list_entry(p->nodes.next, struct pnode, all);
        n->nlookup = n->nopen = 0;
        n->is_root = false;
        n->refs = 1; /* until its last name is off */
        while (n->names)
            proj_dent_set(p, n->names, NULL);
        n->refs = 0;
        proj_node_maybe_free(p, n);
    }
}

static void stop_threads(struct vg_proj *p) {
    pthread_mutex_lock(&p->lock);
    p->stopping = true;
    pthread_cond_broadcast(&p->work);
    pthread_cond_broadcast(&p->told);
    pthread_cond_broadcast(&p->proven);
    pthread_mutex_unlock(&p->lock);
    if (p->fuse)
        vg_fuse_abort(p->fuse); /* before the notifier: it may be waiting in the kernel */
    if (p->have_runner)
        pthread_join(p->runner, NULL);
    if (p->have_notifier)
        pthread_join(p->notifier, NULL);
}

void vg_proj_free(struct vg_proj *p) {
    if (!p)
        return;
    stop_threads(p);
    vg_oplog_forget(p->log, p);
    proj_fail_waiting(p, &p->room, ENOTCONN);
    proj_fail_waiting(p, &p->ready, ENOTCONN);
    while (!vg_list_empty(&p->acks)) {
        struct packwait *w = vg_list_entry(p->acks.next, struct packwait, link);
        vg_list_remove(&w->link);
        vg_fuse_err(w->r, ENOTCONN);
        free(w);
    }
    drop_all(p);
    if (p->fuse)
        vg_fuse_free(p->fuse);
    while (p->notices) {
        struct pnotice *t = p->notices;
        p->notices = t->next;
        free(t);
    }
    free(p->spare);
    vg_map_done(&p->handles);
    vg_map_done(&p->objects);
    vg_map_done(&p->links);
    vg_map_done(&p->tracing);
    free(p->uses);
    free(p->table);
    vg_close(&p->dirfd);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->told);
    pthread_cond_destroy(&p->proven);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

int vg_proj_mount(struct vg_proj *p) {
    return vg_fuse_clone_mount(p->fuse);
}

int vg_proj_flush(struct vg_proj *p) {
    int rc = 0;
    pthread_mutex_lock(&p->lock);
    vg_list_for_each_safe (it, &p->dirty) {
        struct pfile *f = vg_list_entry(it, struct pfile, dirty_link);
        int r = proj_flush_node(f->owner);
        rc = rc ? rc : r;
    }
    pthread_mutex_unlock(&p->lock);
    return rc;
}

/* True while a folder that was outdated when `gen` began has not been told again. */
static bool unproven_since(struct vg_proj *p, uint64_t gen) {
    bool wait = false;
    vg_list_for_each (it, &p->unproven) {
        struct pdir *f = vg_list_entry(it, struct pdir, unproven_link);
        if (f->proved_gen >= gen || !proj_lies_somewhere(f->owner))
            continue;
        proj_fetch_dir(p, f->owner);
        /* One without a number gets it from its parent's record, which is on this list, too. */
        wait |= f->fetching || (f->owner->names && f->owner->names->parent->dir->unproven);
    }
    return wait;
}

int vg_proj_begin(struct vg_proj *p, uint64_t task, bool sync) {
    pthread_mutex_lock(&p->lock);
    p->task = task;
    p->idle = false;
    __atomic_store_n(&p->sync, p->sync || sync, __ATOMIC_RELAXED); /* the log's thread looks */
    uint64_t gen = ++p->begins, until = vg_now_usec() + BEGIN_SECONDS * VG_USEC;
    bool late = false;
    while (!p->stopping && !late && unproven_since(p, gen)) {
        wait_msec(&p->proven, &p->lock, 1000);
        late = vg_now_usec() > until;
    }
    uint64_t put = p->notices_put;
    while (!p->stopping && !late && p->notices_done < put) {
        wait_msec(&p->proven, &p->lock, 1000);
        late = vg_now_usec() > until;
    }
    pthread_mutex_unlock(&p->lock);
    return late ? -ETIMEDOUT : 0;
}
