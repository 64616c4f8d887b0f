/* The environment's nodes, and how a folder's record becomes nodes. Everything here is called with
   the view's lock held. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/node/env-int.h"

#include <errno.h>
#include <string.h>

struct env_node *vg_env_node(struct vg_env *e, uint64_t number) {
    return number < e->n_table ? e->table[number] : NULL;
}

static int give_number(struct vg_env *e, struct env_node *n) {
    if (e->n_unused) {
        n->number = e->unused[--e->n_unused];
    } else {
        void *grown = vg_grow(e->table, &e->cap_table, e->n_table + 1, sizeof(*e->table));
        if (!grown)
            return -ENOMEM;
        e->table = grown;
        /* Room to take back every number, so that freeing cannot fail. */
        grown = vg_grow(e->unused, &e->cap_unused, e->n_table + 1, sizeof(*e->unused));
        if (!grown)
            return -ENOMEM;
        e->unused = grown;
        if (e->n_table < FUSE_ROOT_ID)
            e->table[e->n_table++] = NULL;
        n->number = e->n_table++;
    }
    e->table[n->number] = n;
    return 0;
}

struct env_node *vg_env_node_new(struct vg_env *e, struct env_node *parent) {
    struct env_node *n = vg_alloc(sizeof(*n));
    if (!n)
        return NULL;
    n->parent = parent;
    n->depth = parent ? parent->depth + 1 : 0;
    vg_list_init(&n->waits);
    if (give_number(e, n) < 0) {
        free(n);
        return NULL;
    }
    e->stat.nodes++;
    return n;
}

void vg_env_node_detach(struct vg_env *e, struct env_node *n) {
    if (vg_map_get_u64(&e->by_object, n->object) == n)
        vg_map_del_u64(&e->by_object, n->object);
    n->parent = NULL;
    vg_env_node_put(e, n);
}

static void negative_clear(struct env_folder *f) {
    vg_map_for_each (s, &f->negative)
        free(s->value);
    vg_map_done(&f->negative);
    f->negative = (struct vg_map){0};
    f->many_negative = false;
}

static void folder_clear(struct vg_env *e, struct env_folder *f) {
    for (uint32_t i = 0; i < f->n; i++)
        vg_env_node_detach(e, f->kid[i]);
    f->n = 0;
    negative_clear(f);
}

static void folder_free(struct vg_env *e, struct env_node *n) {
    if (!n->dir)
        return;
    folder_clear(e, n->dir);
    free(n->dir->kid);
    free(n->dir);
    n->dir = NULL;
    e->stat.folders--;
}

static void node_free(struct vg_env *e, struct env_node *n) {
    folder_free(e, n);
    vg_env_file_free(e, n);
    if (n->xattrs)
        vg_buf_done(n->xattrs);
    free(n->xattrs);
    e->table[n->number] = NULL;
    e->unused[e->n_unused++] = n->number;
    e->stat.nodes--;
    free(n->name);
    free(n);
}

void vg_env_node_put(struct vg_env *e, struct env_node *n) {
    if (n != e->root && !n->parent && !n->lookups && !n->opens && vg_list_empty(&n->waits))
        node_free(e, n);
}

void vg_env_forget(struct vg_env *e, uint64_t number, uint64_t lookups) {
    struct env_node *n = vg_env_node(e, number);
    if (!n)
        return;
    n->lookups -= VG_MIN(n->lookups, lookups);
    vg_env_node_put(e, n);
}

static int compare(const char *a, size_t an, const char *b, size_t bn) {
    int c = memcmp(a, b, VG_MIN(an, bn));
    return c ? c : an < bn ? -1 : an > bn;
}

struct env_node *vg_env_kid(const struct env_folder *f, const char *name, size_t n) {
    uint32_t lo = 0, hi = f->n;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        int c = compare(f->kid[mid]->name, f->kid[mid]->name_len, name, n);
        if (!c)
            return f->kid[mid];
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

static bool same_stamp(const struct vg_mstat *a, const struct vg_mstat *b) {
    return a->dev == b->dev && a->ino == b->ino && a->size == b->size && a->mtime == b->mtime &&
           a->ctime == b->ctime;
}

/* What a program could see of it, the access time excepted. */
static bool same_attr(const struct vg_mstat *a, const struct vg_mstat *b) {
    return same_stamp(a, b) && a->mode == b->mode && a->nlink == b->nlink && a->uid == b->uid &&
           a->gid == b->gid && a->rdev == b->rdev && a->blocks == b->blocks;
}

static int set_names(struct env_node *n, const struct vg_dirent *d) {
    if (n->name && n->name_len == d->name_len && n->target_len == d->target_len &&
        !memcmp(n->name, d->name, d->name_len) &&
        (!d->target_len || !memcmp(n->target, d->target, d->target_len)))
        return 0;
    char *p = vg_alloc((size_t)d->name_len + d->target_len + 2);
    if (!p)
        return -ENOMEM;
    memcpy(p, d->name, d->name_len);
    if (d->target_len)
        memcpy(p + d->name_len + 1, d->target, d->target_len);
    free(n->name);
    n->name = p;
    n->name_len = d->name_len;
    n->target = d->target_len ? p + d->name_len + 1 : NULL;
    n->target_len = d->target_len;
    return 0;
}

static int set_object(struct vg_env *e, struct env_node *n, uint64_t object) {
    if (n->epoch == e->epoch && n->object == object && vg_map_get_u64(&e->by_object, object) == n)
        return 0;
    if (n->epoch == e->epoch && vg_map_get_u64(&e->by_object, n->object) == n)
        vg_map_del_u64(&e->by_object, n->object);
    n->object = object;
    n->epoch = e->epoch;
    return vg_map_put_u64(&e->by_object, object, n);
}

static void set_stat(struct vg_env *e, struct env_node *n, const struct vg_mstat *st) {
    bool stamp = same_stamp(&n->st, st), attr = same_attr(&n->st, st);
    n->st = *st;
    if (!stamp && S_ISREG(st->mode))
        vg_env_file_changed(e, n);
    if (!stamp && n->xattrs) {
        vg_buf_done(n->xattrs);
        free(vg_take_ptr(n->xattrs));
    }
    if (!n->lookups || attr)
        return;
    uint64_t before = e->noted;
    vg_env_notify(e, stamp ? NOTE_ATTR : NOTE_INODE, n, NULL, 0);
    if (!stamp && n->file) /* who opens it may be faster than the note */
        n->file->old_until = e->noted > before ? e->noted : UINT64_MAX;
}

int vg_env_node_update(struct vg_env *e, struct env_node *n, const struct vg_dirent *d) {
    bool fresh = !n->name;
    int r = set_names(n, d);
    if (r < 0 || (r = set_object(e, n, d->object)) < 0)
        return r;
    /* Allowed by hand only now: what was begun for the disk must not go on. */
    if (!fresh && S_ISREG(n->st.mode) && ((n->flags ^ d->flags) & VG_DE_SECRET))
        vg_env_file_changed(e, n);
    n->flags = d->flags;
    n->stale = false;
    if (d->id)
        memcpy(n->id, d->id, VG_HASH);
    n->fail = 0;
    if (fresh)
        n->st = d->st;
    else
        set_stat(e, n, &d->st);
    if ((d->flags & (VG_DE_OTHER | VG_DE_EMPTY)) && n->dir && n->dir->n) {
        vg_env_unprove(e, n);
        folder_clear(e, n->dir);
    }
    return 0;
}

/* An image of this folder is no longer true. */
static void note_change(struct env_folder *f) {
    f->changes++;
    if (f->compiled)
        f->changed_usec = vg_now_usec();
    f->compiled = false;
}

/* What an image of the folder shows of this entry is no longer so. A folder's own times are told by
   its own record. */
static bool differs(const struct env_node *n, const struct vg_dirent *d) {
    const struct vg_mstat *a = &n->st, *b = &d->st;
    if (!n->name || ((n->flags ^ d->flags) & ~VG_DE_ID) || n->target_len != d->target_len ||
        (d->target_len && memcmp(n->target, d->target, d->target_len) != 0))
        return true;
    if (S_ISDIR(a->mode))
        return a->dev != b->dev || a->ino != b->ino || a->mode != b->mode || a->uid != b->uid ||
               a->gid != b->gid;
    return !same_attr(a, b);
}

/* One that is open passthrough shows its old content until the last user is gone; the kernel lets
   no other content through the same inode, so the new content is another node. */
static bool is_same_thing(const struct vg_env *e, const struct env_node *n,
                          const struct vg_dirent *d) {
    if ((n->st.mode & S_IFMT) != (d->st.mode & S_IFMT))
        return false;
    if (S_ISDIR(n->st.mode))
        return n->epoch != e->epoch || n->object == d->object;
    return !n->file || !n->file->n_pass || same_stamp(&n->st, &d->st);
}

static void lose(struct vg_env *e, struct env_node *folder, struct env_node *n) {
    if (n->lookups)
        vg_env_notify(e, NOTE_ENTRY, folder, n->name, n->name_len);
    note_change(folder->dir);
    vg_env_node_detach(e, n);
}

/* Both are sorted: one pass. What cannot be kept for lack of memory is missing from the folder,
   which then stays unproven. */
static int merge(struct vg_env *e, struct env_node *folder, const struct vg_dirrec *rec,
                 struct env_node **kid, uint32_t *ret_n) {
    struct env_folder *f = folder->dir;
    struct vg_dirent d;
    size_t at = 0;
    uint32_t old = 0, n = 0;
    int r = 0;
    while (r >= 0 && n < rec->n && vg_dirrec_next(rec, &at, &d)) {
        int c = -1;
        while (old < f->n &&
               (c = compare(f->kid[old]->name, f->kid[old]->name_len, d.name, d.name_len)) < 0)
            lose(e, folder, f->kid[old++]);
        struct env_node *k = NULL;
        if (old < f->n && !c) {
            k = f->kid[old++];
            if (!is_same_thing(e, k, &d)) {
                lose(e, folder, k);
                k = NULL;
            }
        }
        if (!k && !(k = vg_env_node_new(e, folder)))
            r = -ENOMEM;
        else {
            kid[n++] = k;
            if (differs(k, &d))
                note_change(f);
            r = vg_env_node_update(e, k, &d);
        }
    }
    while (old < f->n)
        lose(e, folder, f->kid[old++]);
    *ret_n = n;
    return r;
}

int vg_env_have_folder(struct vg_env *e, struct env_node *n) {
    if (n->dir)
        return 0;
    n->dir = vg_alloc(sizeof(*n->dir));
    if (!n->dir)
        return -ENOMEM;
    e->stat.folders++;
    return 0;
}

/* A kid that failed to get its name would break the order: it goes. */
static uint32_t drop_nameless(struct vg_env *e, struct env_node **kid, uint32_t n) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (kid[i]->name)
            kid[kept++] = kid[i];
        else
            vg_env_node_detach(e, kid[i]);
    return kept;
}

int vg_env_apply(struct vg_env *e, struct env_node *folder, const struct vg_dirrec *rec) {
    if (folder->depth >= ENV_DEPTH_MAX) /* whoever walks the tree may do so by recursion */
        return -ENAMETOOLONG;
    int r = vg_env_have_folder(e, folder);
    struct env_node **kid = r < 0 ? NULL : vg_alloc((rec->n + 1) * sizeof(struct env_node *));
    if (!kid)
        return -ENOMEM;
    uint32_t n = 0;
    r = merge(e, folder, rec, kid, &n);
    if (r < 0)
        n = drop_nameless(e, kid, n);
    free(folder->dir->kid);
    folder->dir->kid = kid;
    folder->dir->n = n;
    folder->dir->epoch = e->epoch;
    folder->dir->proven = r >= 0;
    folder->fail = 0;
    if (!same_attr(&folder->dir->st, &rec->st))
        note_change(folder->dir);
    folder->dir->st = rec->st;
    set_stat(e, folder, &rec->st);
    return r;
}

void vg_env_mark(struct vg_env *e, struct env_node *folder, const struct vg_dirrec *rec,
                 struct vg_list *waits) {
    struct vg_dirent d;
    size_t at = 0;
    bool more = vg_dirrec_next(rec, &at, &d);
    (void)e;
    for (uint32_t i = 0; i < folder->dir->n; i++) {
        struct env_node *k = folder->dir->kid[i];
        int c = -1;
        while (more && (c = compare(d.name, d.name_len, k->name, k->name_len)) < 0)
            more = vg_dirrec_next(rec, &at, &d);
        k->stale = !more || c || !same_stamp(&k->st, &d.st);
        if (k->stale)
            vg_env_wake(k, waits);
    }
}

static bool failed(const struct env_node *n) {
    return n->fail && vg_now_usec() - n->fail_usec < ENV_FAIL_USEC;
}

int vg_env_prove_node(struct vg_env *e, struct env_node *n, struct env_node **ret_wait) {
    if (n == e->root)
        return 0;
    return n->parent ? vg_env_prove(e, n->parent, ret_wait) : -ESTALE;
}

int vg_env_prove(struct vg_env *e, struct env_node *folder, struct env_node **ret_wait) {
    if (!S_ISDIR(folder->st.mode))
        return -ENOTDIR;
    if (folder->flags & (VG_DE_OTHER | VG_DE_EMPTY))
        return vg_env_have_folder(e, folder);
    if (folder->dir && folder->dir->proven && folder->dir->epoch == e->epoch)
        return 0;
    if (folder->epoch != e->epoch) /* its number is of an earlier service */
        return vg_env_prove_node(e, folder, ret_wait);
    if (folder != e->root && !folder->parent)
        return -ESTALE;
    if (failed(folder))
        return -folder->fail;
    *ret_wait = folder;
    return vg_links_get_dir(e->conf.links, folder->object) ? 1 : -ENOMEM;
}

void vg_env_unprove(struct vg_env *e, struct env_node *folder) {
    struct env_folder *f = folder->dir;
    if (!f)
        return;
    f->proven = false;
    if (!folder->lookups && folder != e->root)
        return negative_clear(f);
    size_t known = f->many_negative ? ENV_NEGATIVE_MAX : vg_map_len(&f->negative);
    for (uint32_t i = 0; i < f->n; i++)
        known += f->kid[i]->lookups > 0;
    vg_env_notify(e, NOTE_INODE, folder, NULL, 0);
    if (known > ENV_NOTIFY_ALL) {
        vg_env_notify(e, NOTE_NAMES, folder, NULL, 0);
    } else {
        for (uint32_t i = 0; i < f->n; i++)
            if (f->kid[i]->lookups)
                vg_env_notify(e, NOTE_ENTRY, folder, f->kid[i]->name, f->kid[i]->name_len);
        vg_map_for_each (s, &f->negative)
            vg_env_notify(e, NOTE_ENTRY, folder, s->key, strlen(s->key));
    }
    negative_clear(f);
}

void vg_env_attr(const struct vg_env *e, const struct env_node *n, struct fuse_attr *out) {
    const struct vg_mstat *s = &n->st;
    const int64_t ns = 1000000000;
    int64_t times[3] = {s->atime, s->mtime, s->ctime}, sec[3], nsec[3];
    for (int i = 0; i < 3; i++) {
        sec[i] = times[i] / ns - (times[i] % ns < 0);
        nsec[i] = times[i] - sec[i] * ns;
    }
    *out = (struct fuse_attr){.ino = s->ino,
                              .size = VG_MIN(s->size, (uint64_t)INT64_MAX),
                              .blocks = s->blocks,
                              .atime = (uint64_t)sec[0],
                              .mtime = (uint64_t)sec[1],
                              .ctime = (uint64_t)sec[2],
                              .atimensec = (uint32_t)nsec[0],
                              .mtimensec = (uint32_t)nsec[1],
                              .ctimensec = (uint32_t)nsec[2],
                              .mode = s->mode,
                              .nlink = s->nlink,
                              .uid = vg_fs_id_out(&e->conf.ids, s->uid),
                              .gid = vg_fs_id_out(&e->conf.ids, s->gid),
                              .rdev = (uint32_t)s->rdev,
                              .blksize = 4096};
}

void vg_env_tree_free(struct vg_env *e) {
    e->root = NULL;
    for (size_t i = 0; i < e->n_table; i++)
        if (e->table[i]) { /* one by one, whoever lies in whom */
            struct env_node *n = e->table[i];
            if (n->dir)
                n->dir->n = 0;
            node_free(e, n);
        }
    free(e->table);
    free(e->unused);
    vg_map_done(&e->by_object);
}
