/* Nodes and names of a project view. Everything here runs with the view's lock. */
#include "fs/node/proj-int.h"

#include "base/mem.h"

#include <string.h>
#include <sys/sysmacros.h>
#include <time.h>

/* Inode numbers of what was made here, until the client has given it one of its own. */
#define INO_FIRST (UINT64_C(1) << 48)

int64_t proj_now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static uint32_t name_hash(const struct pnode *dir, const char *name, size_t len) {
    uint64_t h = (uintptr_t)dir * UINT64_C(0x9e3779b97f4a7c15);
    for (size_t i = 0; i < len; i++)
        h = (h ^ (uint8_t)name[i]) * UINT64_C(0x100000001b3);
    return (uint32_t)(h ^ (h >> 32));
}

struct pdent *proj_find(struct vg_proj *p, struct pnode *dir, const char *name, size_t len) {
    if (!p->table_cap)
        return NULL;
    uint32_t h = name_hash(dir, name, len);
    for (struct pdent *d = p->table[h & (p->table_cap - 1)]; d; d = d->chain)
        if (d->hash == h && d->parent == dir && d->len == len && !memcmp(d->name, name, len))
            return d;
    return NULL;
}

static int table_grow(struct vg_proj *p) {
    size_t cap = p->table_cap ? p->table_cap * 2 : 1024;
    struct pdent **table = vg_alloc(cap * sizeof(struct pdent *));
    if (!table)
        return p->table_cap ? 0 : -ENOMEM; /* long chains are slow, not wrong */
    for (size_t i = 0; i < p->table_cap; i++)
        for (struct pdent *d = p->table[i], *next; d; d = next) {
            next = d->chain;
            d->chain = table[d->hash & (cap - 1)];
            table[d->hash & (cap - 1)] = d;
        }
    free(p->table);
    p->table = table;
    p->table_cap = cap;
    return 0;
}

/* Slots of removed names are squeezed out when they are the majority; cookies keep their order. */
static void squeeze(struct pdir *f) {
    size_t n = 0;
    for (size_t i = 0; i < f->n; i++)
        if (f->slot[i]) {
            f->slot[i]->at = n;
            f->slot[n++] = f->slot[i];
        }
    f->n = n;
}

static int slot_room(struct pdir *f) {
    if (f->n < f->cap)
        return 0;
    struct pdent **slot = vg_grow(f->slot, &f->cap, f->n + 1, sizeof(struct pdent *));
    if (!slot)
        return -ENOMEM;
    f->slot = slot;
    return 0;
}

struct pdent *proj_dent_new(struct vg_proj *p, struct pnode *dir, const char *name, size_t len) {
    if (p->table_n >= p->table_cap && table_grow(p) < 0)
        return NULL;
    if (slot_room(dir->dir) < 0)
        return NULL;
    struct pdent *d = vg_alloc(sizeof(*d) + len + 1);
    if (!d)
        return NULL;
    vg_list_init(&d->tomb);
    d->parent = dir;
    d->len = (uint16_t)len;
    memcpy(d->name, name, len);
    d->hash = name_hash(dir, name, len);
    d->chain = p->table[d->hash & (p->table_cap - 1)];
    p->table[d->hash & (p->table_cap - 1)] = d;
    p->table_n++;
    d->cookie = ++dir->dir->next_cookie;
    d->at = dir->dir->n;
    dir->dir->slot[dir->dir->n++] = d;
    dir->dir->live++;
    return d;
}

/* The client may give the number of what has no name any more to something else. */
static void forget_ino(struct vg_proj *p, const struct pnode *n) {
    if (n->cst.ino && vg_map_get_u64(&p->links, n->cst.ino) == n)
        vg_map_del_u64(&p->links, n->cst.ino);
}

/* Puts the name onto (or off) a node; the node it had may go with it. */
void proj_dent_set(struct vg_proj *p, struct pdent *d, struct pnode *n) {
    struct pnode *old = d->node;
    if (old == n)
        return;
    if (d->object) {
        if (vg_map_get_u64(&p->objects, d->object) == d)
            vg_map_del_u64(&p->objects, d->object);
        d->object = 0;
    }
    if (old) {
        struct pdent **at = &old->names;
        while (*at != d)
            at = &(*at)->next;
        *at = d->next;
        if (!old->names)
            forget_ino(p, old);
    }
    d->node = n;
    if (n) {
        vg_list_remove(&d->tomb);
        d->next = n->names;
        n->names = d;
    }
    if (old)
        proj_node_maybe_free(p, old);
}

size_t proj_slot_at(const struct pdir *f, uint64_t cookie) {
    size_t lo = 0, hi = f->n;
    while (lo < hi) { /* holes have no cookie: look to the right for one that has */
        size_t mid = (lo + hi) / 2, at = mid;
        while (at < hi && !f->slot[at])
            at++;
        if (at < hi && f->slot[at]->cookie <= cookie)
            lo = at + 1;
        else
            hi = mid;
    }
    return lo;
}

void proj_dent_free(struct vg_proj *p, struct pdent *d) {
    proj_dent_set(p, d, NULL);
    vg_list_remove(&d->tomb);
    struct pdent **at = &p->table[d->hash & (p->table_cap - 1)];
    while (*at != d)
        at = &(*at)->chain;
    *at = d->chain;
    p->table_n--;
    struct pdir *f = d->parent->dir;
    f->slot[d->at] = NULL;
    f->live--;
    if (f->live * 2 < f->n && f->n > 16)
        squeeze(f);
    free(d);
}

static int node_parts(struct pnode *n) {
    if (S_ISDIR(n->st.mode)) {
        n->dir = vg_alloc(sizeof(*n->dir));
        if (!n->dir)
            return -ENOMEM;
        n->dir->owner = n;
        n->dir->next_cookie = 2; /* after "." and ".." */
        vg_list_init(&n->dir->waiting);
        vg_list_init(&n->dir->unproven_link);
    } else if (S_ISREG(n->st.mode)) {
        n->file = vg_alloc(sizeof(*n->file));
        if (!n->file)
            return -ENOMEM;
        n->file->owner = n;
        n->file->fd = -1;
        vg_list_init(&n->file->waiting);
        vg_list_init(&n->file->dirty_link);
    }
    return 0;
}

uint64_t proj_new_ino(struct vg_proj *p) {
    return INO_FIRST + ++p->next_ino;
}

struct pnode *proj_node_new(struct vg_proj *p, const struct vg_mstat *st) {
    struct pnode *n = vg_alloc(sizeof(*n));
    if (!n)
        return NULL;
    n->p = p;
    n->st = *st;
    if (!n->st.ino) {
        n->st.ino = proj_new_ino(p);
        n->local = true;
    }
    vg_list_init(&n->xattr_waiting);
    if (node_parts(n) < 0) {
        free(n->dir);
        free(n);
        return NULL;
    }
    vg_list_push_back(&p->nodes, &n->all);
    return n;
}

static void file_free(struct pnode *n) {
    struct pfile *f = n->file;
    vg_list_remove(&f->dirty_link);
    proj_fail_waiting(n->p, &f->waiting, ENOENT);
    vg_blob_put(f->blob);
    if (f->backing && !f->memory)
        proj_backing_remove(n->p, f, true);
    vg_close(&f->fd);
    free(f->have);
    free(f->used);
    free(f->dirty);
    free(f);
}

static void dir_free(struct vg_proj *p, struct pnode *n) {
    struct pdir *f = n->dir;
    vg_list_remove(&f->unproven_link);
    proj_fail_waiting(p, &f->waiting, ENOENT);
    while (f->live) {
        size_t i = f->n - 1;
        while (!f->slot[i])
            i--;
        proj_dent_free(p, f->slot[i]);
    }
    free(f->slot);
    free(f);
}

void proj_node_maybe_free(struct vg_proj *p, struct pnode *n) {
    if (n->names || n->nlookup || n->nopen || n->refs || n->is_root)
        return;
    n->refs = 1; /* children let go of their parent below: once is enough */
    vg_list_remove(&n->all);
    if (n->dir)
        dir_free(p, n);
    if (n->file)
        file_free(n);
    proj_fail_waiting(p, &n->xattr_waiting, ENOENT);
    proj_xattrs_drop(n, true);
    if (n->handle)
        vg_map_del_u64(&p->handles, n->handle);
    forget_ino(p, n);
    free(n->target);
    free(n);
}

void vg_pnode_unref(struct pnode *n) {
    struct vg_proj *p = n->p;
    pthread_mutex_lock(&p->lock);
    n->refs--;
    proj_node_maybe_free(p, n);
    pthread_mutex_unlock(&p->lock);
}

uint64_t proj_handle(struct pnode *n) {
    if (!n->handle) {
        n->handle = vg_oplog_handle(n->p->log);
        vg_map_put_u64(&n->p->handles, n->handle, n); /* without: Ack's stat is passed over */
    }
    return n->handle;
}

struct pnode *proj_node(struct vg_proj *p, uint64_t nodeid) {
    return nodeid == FUSE_ROOT_ID ? p->root : (struct pnode *)(uintptr_t)nodeid;
}

uint64_t proj_nodeid(const struct pnode *n) {
    return n->is_root ? FUSE_ROOT_ID : (uint64_t)(uintptr_t)n;
}

/* The path below the root of a name, or of `leaf` in the folder that is at `d` (NULL: the root). */
int proj_path(const struct pdent *d, const char *leaf, size_t leaf_len, char **ret) {
    size_t len = leaf_len;
    for (const struct pdent *e = d; e; e = e->parent->names) {
        len += e->len + 1u;
        if (!e->parent->names && !e->parent->is_root)
            return -ENOENT; /* in a folder that is gone */
    }
    if (len > PROJ_PATH_MAX)
        return -ENAMETOOLONG;
    char *out = vg_alloc(len + 1);
    if (!out)
        return -ENOMEM;
    char *at = out + len;
    if (leaf) {
        at -= leaf_len;
        memcpy(at, leaf, leaf_len);
    }
    for (const struct pdent *e = d; e; e = e->parent->names) {
        if (at < out + len)
            *--at = '/';
        at -= e->len;
        memcpy(at, e->name, e->len);
    }
    memmove(out, at, (size_t)(out + len - at) + 1);
    *ret = out;
    return 0;
}

int proj_node_path(const struct pnode *n, char **ret) {
    if (!n->is_root && !n->names)
        return -ENOENT;
    return proj_path(n->names, NULL, 0, ret);
}

bool proj_lies_somewhere(const struct pnode *n) {
    while (!n->is_root && n->names)
        n = n->names->parent;
    return n->is_root;
}

uint64_t proj_object(const struct pnode *n) {
    if (n->is_root)
        return n->p->root_object;
    for (const struct pdent *d = n->names; d; d = d->next)
        if (d->object)
            return d->object;
    return 0;
}

static void split(int64_t ns, uint64_t *sec, uint32_t *nsec) {
    int64_t s = ns / 1000000000, r = ns % 1000000000;
    if (r < 0) {
        r += 1000000000;
        s--;
    }
    *sec = (uint64_t)s;
    *nsec = (uint32_t)r;
}

void proj_attr(const struct pnode *n, struct fuse_attr *out) {
    const struct vg_mstat *st = &n->st;
    memset(out, 0, sizeof(*out));
    out->ino = st->ino;
    out->size = st->size;
    out->blocks = st->blocks;
    split(st->atime, &out->atime, &out->atimensec);
    split(st->mtime, &out->mtime, &out->mtimensec);
    split(st->ctime, &out->ctime, &out->ctimensec);
    out->mode = st->mode;
    out->nlink = st->nlink;
    out->uid = vg_fs_id_out(&n->p->conf.ids, st->uid);
    out->gid = vg_fs_id_out(&n->p->conf.ids, st->gid);
    out->rdev = (uint32_t)((minor(st->rdev) & 0xff) | (major(st->rdev) << 8) |
                           ((minor(st->rdev) & ~0xffu) << 12));
    out->blksize = 4096;
}

void proj_changed(struct pnode *n, bool content) {
    n->st.ctime = proj_now();
    if (content)
        n->st.mtime = n->st.ctime;
    n->local = true;
}
