/* Content: opening, reading, fetching what is missing.

   While an inode is open it is either passthrough (the kernel reads the cache's file without us) or
   cached (it asks us and keeps pages); the kernel refuses a mixture. A file becomes passthrough
   when it is complete at an open that finds it closed; from then on its node shows that content
   only (env-tree.c makes another node when it changes). */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/node/env-int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

void vg_env_stamp(const struct vg_env *e, const struct env_node *n, uint8_t out[VG_HASH]) {
    vg_stamp(e->conf.machine, &n->st, out);
}

static struct env_file *have_file(struct env_node *n) {
    if (!n->file && (n->file = vg_alloc(sizeof(*n->file)))) {
        n->file->window = 1;
        vg_list_init(&n->file->idle);
    }
    return n->file;
}

/* The node's present content. */
static int have_blob(struct vg_env *e, struct env_node *n) {
    uint8_t stamp[VG_HASH];
    if (!have_file(n))
        return -ENOMEM;
    if (n->file->blob)
        return 0;
    vg_env_stamp(e, n, stamp);
    return vg_blob_get(e->conf.cache, stamp, n->flags & VG_DE_ID ? n->id : NULL, n->st.size,
                       n->flags & VG_DE_SECRET, &n->file->blob);
}

static void leave_idle(struct vg_env *e, struct env_file *f) {
    if (vg_list_empty(&f->idle))
        return;
    vg_list_remove(&f->idle);
    e->n_idle--;
}

static void drop_backing(struct vg_env *e, struct env_file *f) {
    if (f->backing_id > 0)
        vg_fuse_backing_close(e->fuse, f->backing_id);
    f->backing_id = 0;
}

static void drop_blob(struct env_file *f) {
    if (f->blob)
        vg_blob_put(f->blob);
    f->blob = NULL;
}

/* Held content cannot be evicted, so only so much is held for nobody. */
void vg_env_drop_idle(struct vg_env *e, uint32_t keep) {
    while (e->n_idle > keep) {
        struct env_file *f = vg_list_entry(vg_list_first(&e->idle), struct env_file, idle);
        leave_idle(e, f);
        drop_backing(e, f);
        drop_blob(f);
    }
}

bool vg_env_used(struct vg_env *e) {
    pthread_mutex_lock(&e->lock);
    bool used = !vg_list_empty(&e->tasks);
    pthread_mutex_unlock(&e->lock);
    return used;
}

bool vg_env_let_go(struct vg_env *e) {
    pthread_mutex_lock(&e->lock);
    bool any = e->n_idle > 0;
    vg_env_drop_idle(e, 0);
    pthread_mutex_unlock(&e->lock);
    return any;
}

void vg_env_file_changed(struct vg_env *e, struct env_node *n) {
    struct env_file *f = n->file;
    if (!f)
        return;
    drop_blob(f);
    drop_backing(e, f); /* not open passthrough, or it would be another node */
    f->read_end = f->ahead_end = 0;
    f->window = 1;
    free(vg_take_ptr(f->used));
}

void vg_env_file_free(struct vg_env *e, struct env_node *n) {
    if (!n->file)
        return;
    leave_idle(e, n->file);
    drop_backing(e, n->file);
    drop_blob(n->file);
    free(n->file->used);
    free(n->file);
    n->file = NULL;
}

/* Asks for the leaves [first, end) that are missing, in runs. */
static void ask(struct vg_env *e, const struct env_node *n, struct vg_blob *b, uint64_t first,
                uint64_t end, unsigned urgency) {
    for (uint64_t i = first; i < end;) {
        uint64_t run = i;
        while (run < end && !vg_blob_has_leaf(b, run))
            run++;
        if (run > i)
            vg_links_get_data(e->conf.links, n->object, i * VG_LEAF,
                              VG_MIN(run * VG_LEAF, VG_MAX(n->st.size, 1u)) - i * VG_LEAF, urgency);
        i = VG_MAX(run, i + 1);
    }
}

uint64_t vg_env_fetch_rest(struct vg_env *e, struct env_node *n) {
    const struct env_folder *in = n->parent ? n->parent->dir : NULL;
    if (!S_ISREG(n->st.mode) || !n->st.size || n->fail || n->epoch != e->epoch || !in ||
        !in->proven || (n->flags & (VG_DE_DENIED | VG_DE_SECRET)) || have_blob(e, n) < 0)
        return 0;
    if (vg_blob_complete(n->file->blob))
        return 0;
    ask(e, n, n->file->blob, 0, vg_leaves(n->st.size), 1);
    return n->st.size;
}

/* 0: may fetch now. 1: waits on *ret_wait. -errno. */
static int may_fetch(struct vg_env *e, struct env_node *n, struct env_node **ret_wait) {
    uint64_t believed = n->fail == ENOSPC ? ENV_FULL_USEC : ENV_FAIL_USEC;
    if (n->fail && (n->fail == EACCES || vg_now_usec() - n->fail_usec < believed))
        return -n->fail;
    if (n->stale && n->parent) /* the view was frozen, but this can only be had as it is now */
        vg_env_unprove(e, n->parent);
    int r = vg_env_prove_node(e, n, ret_wait);
    return r == -ESTALE ? -EIO : r; /* it lies nowhere: its bytes will not come */
}

static bool sequential(const struct env_file *f, uint64_t off) {
    return off && off == f->read_end;
}

/* What a reader that goes on like this will want: twice as much each time, up to a limit. */
static void read_ahead(struct vg_env *e, struct env_node *n, struct vg_blob *b, uint64_t off,
                       uint64_t len) {
    struct env_file *f = n->file;
    uint64_t leaves = vg_leaves(n->st.size), last = (off + len - 1) / VG_LEAF;
    bool small = leaves <= 4;
    if (!sequential(f, off) && !small) {
        f->window = 1;
        f->ahead_end = last + 1;
    } else if (last + 1 + f->window / 2 >= f->ahead_end) {
        uint64_t from = VG_MAX(f->ahead_end, last + 1);
        f->window = VG_MIN(f->window * 2, ENV_AHEAD_MAX);
        f->ahead_end = VG_MIN(leaves, last + 1 + f->window);
        if (from < f->ahead_end)
            ask(e, n, b, from, f->ahead_end, 1);
    }
    f->read_end = off + len;
}

/* 0: all of [off, off+len) is there. 1: asked, waits. -errno. */
static int fetch(struct vg_env *e, struct env_node *n, struct vg_blob *b, uint64_t off,
                 uint64_t len, struct env_node **ret_wait) {
    bool have = vg_blob_complete(b) || vg_blob_has(b, off, len);
    if (!have) {
        int r = may_fetch(e, n, ret_wait);
        if (r)
            return r;
        ask(e, n, b, off / VG_LEAF, (off + VG_MAX(len, 1u) - 1) / VG_LEAF + 1, 0);
    }
    if (!vg_blob_complete(b) && len && n->parent)
        read_ahead(e, n, b, off, len);
    *ret_wait = n;
    return have ? 0 : 1;
}

static int register_backing(struct vg_env *e, struct env_file *f) {
    if (f->backing_id > 0)
        return 0;
    int fd = vg_blob_pin(f->blob);
    if (fd < 0)
        return fd;
    int id = vg_fuse_backing_open(e->fuse, fd);
    vg_blob_unpin(f->blob);
    if (id < 0)
        return id;
    f->backing_id = id;
    return 0;
}

static void choose_mode(struct vg_env *e, struct env_node *n, struct env_open *o,
                        struct vg_fuse_open_out *out) {
    struct env_file *f = n->file;
    bool complete = o->blob && vg_blob_complete(o->blob);
    out->open_flags = VG_FOPEN_NOFLUSH | (f->old_until <= e->told ? FOPEN_KEEP_CACHE : 0);
    if (complete && !f->n_cached && vg_fuse_has_passthrough(e->fuse) &&
        register_backing(e, f) >= 0) {
        out->open_flags = VG_FOPEN_NOFLUSH | VG_FOPEN_PASSTHROUGH;
        out->backing_id = f->backing_id;
        f->n_pass++;
        o->pass = true;
        e->stat.passthrough++;
        return;
    }
    f->n_cached++;
    o->cached = true;
}

static void close_open(struct vg_env *e, struct env_open *o) {
    struct env_node *n = o->node;
    struct env_file *f = n->file;
    vg_list_remove(&o->link);
    if (o->cached)
        f->n_cached--;
    if (o->pass && --f->n_pass == 0) {
        if (f->blob != o->blob)
            drop_backing(e, f); /* of content that it has no longer */
    }
    if (o->blob)
        vg_blob_put(o->blob);
    free(o);
    if (--n->opens == 0) {
        vg_list_push_back(&e->idle, &f->idle);
        e->n_idle++;
        vg_env_drop_idle(e, ENV_IDLE_MAX);
    }
    vg_env_node_put(e, n);
}

void vg_env_opens_free(struct vg_env *e) {
    vg_list_for_each_safe (it, &e->opens)
        close_open(e, vg_list_entry(it, struct env_open, link));
}

/* Locked. 0: *ret is open. 1: waits. -errno. */
static int open_node(struct vg_env *e, struct env_node *n, struct vg_fuse_open_out *out,
                     struct env_node **ret_wait, struct env_open **ret) {
    int r = vg_env_prove_node(e, n, ret_wait);
    if (r)
        return r;
    if (!S_ISREG(n->st.mode))
        return -EOPNOTSUPP;
    r = n->st.size ? have_blob(e, n) : have_file(n) ? 0 : -ENOMEM;
    if (r < 0)
        return r;
    vg_env_use(e, n);
    /* One that is refused, or one leaf long, is settled at once: then it is passthrough for good.
     */
    if (n->st.size && ((n->flags & VG_DE_DENIED) || n->st.size <= VG_LEAF)) {
        r = fetch(e, n, n->file->blob, 0, VG_MIN(n->st.size, VG_LEAF), ret_wait);
        if (r)
            return r;
        vg_env_use_leaf(e, n, 0, 0);
    }
    struct env_open *o = vg_alloc(sizeof(*o));
    if (!o)
        return -ENOMEM;
    *o = (struct env_open){.node = n, .blob = n->file->blob ? vg_blob_ref(n->file->blob) : NULL};
    vg_list_push_back(&e->opens, &o->link);
    n->opens++;
    leave_idle(e, n->file);
    choose_mode(e, n, o, out);
    e->stat.opens++;
    *ret = o;
    return 0;
}

void vg_env_open(struct env_call *c) {
    struct vg_env *e = c->e;
    const struct fuse_open_in *in = vg_fuse_in(c->r, sizeof(*in));
    struct vg_fuse_open_out out = {0};
    struct env_open *o = NULL;
    struct env_node *wait = NULL;
    if (!in || (in->flags & O_ACCMODE) != O_RDONLY) {
        vg_fuse_err(c->r, in ? EROFS : EINVAL);
        return;
    }
    pthread_mutex_lock(&e->lock);
    struct env_node *n = vg_env_node(e, vg_fuse_head(c->r)->nodeid);
    int r = n ? open_node(e, n, &out, &wait, &o) : -ESTALE;
    if (r > 0) {
        vg_env_wait(c, wait);
        return;
    }
    pthread_mutex_unlock(&e->lock);
    if (r < 0) {
        vg_fuse_err(c->r, -r);
        return;
    }
    out.fh = (uintptr_t)o;
    if (vg_fuse_ok(c->r, &out, sizeof(out)) == -ENOENT) {
        pthread_mutex_lock(&e->lock);
        close_open(e, o);
        pthread_mutex_unlock(&e->lock);
    }
}

/* An open file whose content came only in part when it became another one: the rest of the old is
   nowhere. It goes on with the new one, or fails where that was asked for. */
static int follow_change(struct vg_env *e, struct env_node *n, struct env_open *o) {
    if (n->file->blob == o->blob || vg_blob_complete(o->blob))
        return 0;
    if (e->strict)
        return -EIO;
    int r = n->st.size ? have_blob(e, n) : 0;
    if (r < 0)
        return r;
    if (n->file->blob != o->blob) {
        vg_blob_put(o->blob);
        o->blob = n->file->blob ? vg_blob_ref(n->file->blob) : NULL;
        vg_info("changed while a task read it: %.*s", n->name_len, n->name);
    }
    return 0;
}

static int read_node(struct vg_env *e, struct env_open *o, uint64_t off, uint64_t *len,
                     struct env_node **ret_wait) {
    struct env_node *n = o->node;
    int r = o->blob ? follow_change(e, n, o) : 0;
    if (r < 0)
        return r;
    uint64_t size = o->blob ? vg_blob_size(o->blob) : 0;
    *len = off >= size ? 0 : VG_MIN(*len, size - off);
    if (!*len)
        return 0;
    vg_env_use_leaf(e, n, off / VG_LEAF, (off + *len - 1) / VG_LEAF);
    return fetch(e, n, o->blob, off, *len, ret_wait);
}

void vg_env_read(struct env_call *c) {
    struct vg_env *e = c->e;
    const struct fuse_read_in *in = vg_fuse_in(c->r, sizeof(*in));
    struct env_open *o = in ? (struct env_open *)(uintptr_t)in->fh : NULL;
    struct env_node *wait = NULL;
    if (!o) {
        vg_fuse_err(c->r, EINVAL);
        return;
    }
    uint64_t off = in->offset, len = VG_MIN(in->size, VG_FUSE_IO);
    pthread_mutex_lock(&e->lock);
    e->stat.reads += !c->since;
    int r = read_node(e, o, off, &len, &wait);
    if (r > 0) {
        vg_env_wait(c, wait);
        return;
    }
    struct vg_blob *b = !r && len ? vg_blob_ref(o->blob) : NULL;
    pthread_mutex_unlock(&e->lock);
    int fd = b ? vg_blob_pin(b) : 0;
    if (r < 0 || fd < 0)
        vg_fuse_err(c->r, r < 0 ? -r : -fd);
    else if (!b)
        vg_fuse_ok(c->r, NULL, 0);
    else
        vg_fuse_ok_fd(c->r, fd, off, len);
    if (b && fd >= 0)
        vg_blob_unpin(b);
    if (b)
        vg_blob_put(b);
}

void vg_env_release(struct env_call *c) {
    const struct fuse_release_in *in = vg_fuse_in(c->r, sizeof(*in));
    if (in && in->fh) {
        pthread_mutex_lock(&c->e->lock);
        close_open(c->e, (struct env_open *)(uintptr_t)in->fh);
        pthread_mutex_unlock(&c->e->lock);
    }
    vg_fuse_ok(c->r, NULL, 0);
}

/* A leaf has come. Not under the lock: it is written to disk and hashed here. One that nobody waits
   for is not worth a word when there is no room: who wants it later asks for it. */
static int store(struct vg_env *e, struct vg_blob *b, uint64_t off, const void *data, size_t n,
                 const char *name, bool wanted) {
    int r = vg_blob_write(b, off, data, n, wanted);
    if (r == -ENOSPC && !wanted)
        return r;
    if (r == -ENOSPC && !vg_cache_disk_full(e->conf.cache) && vg_env_let_go(e))
        r = vg_blob_write(b, off, data, n, wanted);
    if (r == -ENOSPC && e->conf.note)
        e->conf.note(e->conf.user, "the node's disk is full: files cannot be fetched; free some "
                                   "space there, or give the cache less");
    if (r < 0)
        vg_warn("cannot keep content of %s: %s", name, strerror(-r));
    return r;
}

int vg_env_data(struct vg_env *e, uint64_t object, uint64_t off, uint64_t size, uint32_t tag,
                const void *data, size_t len) {
    struct vg_list waits;
    char name[64] = "";
    vg_list_init(&waits);
    pthread_mutex_lock(&e->lock);
    struct env_node *n = vg_map_get_u64(&e->by_object, object);
    bool fits = n && S_ISREG(n->st.mode) && n->st.size == size && !n->stale &&
                (!tag || tag == vg_state_tag(&n->st));
    struct vg_blob *b = fits && have_blob(e, n) >= 0 ? vg_blob_ref(n->file->blob) : NULL;
    bool other = n && S_ISREG(n->st.mode) && !fits && !n->stale && n->parent;
    if (b)
        snprintf(name, sizeof(name), "%.*s", (int)n->name_len, n->name);
    bool wanted = b && !vg_list_empty(&n->waits);
    pthread_mutex_unlock(&e->lock);
    int r = b ? store(e, b, off, data, len, name, wanted) : 0;
    pthread_mutex_lock(&e->lock);
    /* The table may have changed meanwhile. */
    struct env_node *now = vg_map_get_u64(&e->by_object, object);
    if (b && now == n) {
        if (r < 0 && wanted && !vg_list_empty(&n->waits)) { /* else whoever wants it asks anew */
            n->fail = r == -ENOSPC ? ENOSPC : EIO;
            n->fail_usec = vg_now_usec();
        }
        vg_env_wake(n, &waits);
        if (vg_list_empty(&waits) && !n->opens && vg_list_empty(&n->file->idle) &&
            n->file->blob == b && vg_blob_complete(b))
            drop_blob(n->file);
    }
    pthread_mutex_unlock(&e->lock);
    if (b)
        vg_blob_put(b);
    vg_env_run(e, &waits);
    return other ? -ESTALE : n != NULL;
}

void vg_env_missed(struct vg_env *e, uint64_t object) {
    struct vg_list waits;
    vg_list_init(&waits);
    pthread_mutex_lock(&e->lock);
    struct env_node *n = vg_map_get_u64(&e->by_object, object);
    if (n && n->parent && !n->stale && !vg_list_empty(&n->waits)) {
        vg_env_unprove(e, n->parent);
        vg_env_wake(n, &waits);
    }
    pthread_mutex_unlock(&e->lock);
    vg_env_run(e, &waits);
}

void vg_env_ended(struct vg_env *e, uint64_t object) {
    struct vg_list waits;
    vg_list_init(&waits);
    pthread_mutex_lock(&e->lock);
    struct env_node *n = vg_map_get_u64(&e->by_object, object);
    if (n)
        vg_env_wake(n, &waits);
    pthread_mutex_unlock(&e->lock);
    vg_env_run(e, &waits);
}
