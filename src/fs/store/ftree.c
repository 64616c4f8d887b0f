/* Trees of snapshots: nodes, loading from the store, sealing. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/ftree-int.h"

#include <openssl/evp.h>
#include <string.h>

#define MISSED_MAX 1000 /* lines */

void vg_snap_machine(const uint8_t root[VG_HASH], uint8_t out[VG_MID]) {
    uint8_t in[VG_HASH + 8] = "snapshot", hash[VG_HASH];
    memcpy(in + 8, root, VG_HASH);
    vg_leaf_hash(in, sizeof(in), hash);
    memcpy(out, hash, VG_MID);
}

/* A snapshot has no inode numbers: they follow from the path, so that they are the same in every
   life of this process. */
static uint64_t inode_of(const struct vg_fnode *parent, const char *name, size_t n) {
    uint8_t hash[VG_HASH], in[8 + VG_NAME_MAX];
    uint64_t ino;
    memcpy(in, &(uint64_t){parent ? parent->st.ino : 0}, 8);
    memcpy(in + 8, name, n);
    vg_leaf_hash(in, 8 + n, hash);
    memcpy(&ino, hash, sizeof(ino));
    return ino >> 1 | 2;
}

struct vg_fnode *vg_fnode_new(struct vg_ftree *t, struct vg_fnode *parent,
                              const struct vg_dirent *e) {
    if (vg_map_len(&t->by_object) >= VG_FTREE_NODES_MAX)
        return NULL;
    struct vg_fnode *n = vg_alloc(sizeof(*n) + e->name_len + e->target_len + 2u);
    if (!n)
        return NULL;
    n->object = ++t->last_object;
    n->parent = parent;
    n->st = e->st;
    n->flags = e->flags & (uint8_t)~VG_DE_ID;
    n->name_len = e->name_len;
    n->target_len = e->target_len;
    memcpy(n->name, e->name, e->name_len);
    if (e->target_len)
        memcpy(n->name + e->name_len + 1, e->target, e->target_len);
    n->st.dev = 1;
    n->st.ino = inode_of(parent, e->name, e->name_len);
    n->st.ctime = n->st.mtime;
    n->st.atime = n->st.mtime;
    n->st.blocks = (n->st.size + 511) / 512;
    vg_list_init(&n->todo);
    vg_list_init(&n->attr);
    if (vg_map_put_u64(&t->by_object, n->object, n) < 0) {
        free(n);
        return NULL;
    }
    return n;
}

void vg_fnode_xattrs_free(struct vg_fnode *n) {
    for (struct vg_fxattr *x = n->xattrs, *next; x; x = next) {
        next = x->next;
        free(x);
    }
    n->xattrs = NULL;
}

void vg_fnode_free(struct vg_ftree *t, struct vg_fnode *n) {
    if (!n)
        return;
    for (uint32_t i = 0; i < n->n_child; i++)
        vg_fnode_free(t, n->child[i]);
    vg_map_del_u64(&t->by_object, n->object);
    vg_list_remove(&n->todo);
    vg_list_remove(&n->attr);
    vg_einto_free(n->into);
    vg_fnode_xattrs_free(n);
    free(n->child);
    free(n);
}

/* Kept sorted by name, as records want them. */
int vg_fnode_xattr(struct vg_fnode *n, const char *name, size_t name_len, const void *value,
                   size_t value_len) {
    if (name_len == 0 || name_len > VG_XATTR_NAME_MAX || value_len > VG_XATTR_VALUE_MAX ||
        memchr(name, '\0', name_len))
        return -EINVAL;
    struct vg_fxattr *x = vg_alloc(sizeof(*x) + name_len + value_len), **p = &n->xattrs;
    if (!x)
        return -ENOMEM;
    x->name_len = (uint16_t)name_len;
    x->value_len = (uint32_t)value_len;
    memcpy(x->bytes, name, name_len);
    if (value_len)
        memcpy(x->bytes + name_len, value, value_len);
    for (int c; *p; p = &(*p)->next) {
        c = memcmp((*p)->bytes, name, VG_MIN((size_t)(*p)->name_len, name_len));
        if (c == 0 && (*p)->name_len == name_len) {
            free(x);
            return -EEXIST;
        }
        if (c > 0 || (c == 0 && (*p)->name_len > name_len))
            break;
    }
    x->next = *p;
    *p = x;
    n->flags |= VG_DE_XATTR;
    return 0;
}

int vg_fnode_path(const struct vg_fnode *n, char *out, size_t size) {
    size_t len = 0;
    for (const struct vg_fnode *p = n; p->parent; p = p->parent)
        len += 1u + p->name_len;
    if (len == 0)
        return snprintf(out, size, "/") < (int)size ? 0 : -ENAMETOOLONG;
    if (len + 1 > size)
        return -ENAMETOOLONG;
    out[len] = '\0';
    for (const struct vg_fnode *p = n; p->parent; p = p->parent) {
        len -= p->name_len;
        memcpy(out + len, p->name, p->name_len);
        out[--len] = '/';
    }
    return 0;
}

void vg_fnode_miss(struct vg_ftree *t, struct vg_fnode *n) {
    char path[4096];
    if (n->missed || t->missed_lines >= MISSED_MAX || vg_fnode_path(n, path, sizeof(path)) < 0)
        return;
    n->missed = true;
    t->missed_lines++;
    vg_buf_printf(&t->missed, "%s\n", path);
}

int vg_ftree_missed(struct vg_ftree *t, struct vg_buf *out) {
    pthread_mutex_lock(&t->lock);
    int r = vg_buf_append(out, vg_buf_data(&t->missed), vg_buf_len(&t->missed));
    pthread_mutex_unlock(&t->lock);
    return r == 0 ? vg_buf_append(out, "", 1) : r;
}

static int add_child(struct vg_ftree *t, struct vg_fnode *n, const struct vg_dirent *e,
                     const uint8_t *child) {
    struct vg_fnode *c = vg_fnode_new(t, n, e);
    if (!c)
        return -ENOMEM;
    n->child[n->n_child++] = c;
    const uint8_t *hash = S_ISDIR(e->st.mode) ? child : e->id;
    if (hash) {
        memcpy(c->hash, hash, VG_HASH);
        c->has_hash = true;
    }
    if (!S_ISREG(e->st.mode) && !S_ISDIR(e->st.mode))
        c->state = VG_F_HERE;
    else if (S_ISREG(e->st.mode) && hash)
        c->state = VG_F_HERE;
    else if (!hash)
        c->state = VG_F_NEVER;
    c->error = c->state == VG_F_NEVER ? EIO : 0;
    return 0;
}

/* The folder's xattrs and those of what lies in it. */
static int load_xattrs(struct vg_fnode *n, const struct vg_snaprec *rec) {
    struct vg_snapext x;
    int r = 0;
    for (size_t at = 0; r == 0 && vg_snaprec_next_ext(rec, &at, &x);) {
        struct vg_fnode *of = x.entry == VG_SNAP_SELF ? n : n->child[x.entry];
        if (x.kind != VG_SNAP_XATTR || (x.entry == VG_SNAP_SELF && n->parent))
            continue; /* the parent's record has said it already */
        r = vg_fnode_xattr(of, x.name, x.name_len, x.value, x.value_len);
    }
    return r;
}

static int fill(struct vg_ftree *t, struct vg_fnode *n, const struct vg_snaprec *rec) {
    n->child = vg_alloc((rec->rec.n ? rec->rec.n : 1) * sizeof(struct vg_fnode *));
    if (!n->child)
        return -ENOMEM;
    struct vg_dirent e;
    struct vg_snapext x;
    size_t ext_at = 0;
    uint32_t i = 0;
    int r = 0;
    bool more = vg_snaprec_next_ext(rec, &ext_at, &x);
    for (size_t at = 0; r == 0 && vg_dirrec_next(&rec->rec, &at, &e); i++) {
        const uint8_t *child = NULL;
        for (; more && (x.entry == VG_SNAP_SELF || x.entry <= i);
             more = vg_snaprec_next_ext(rec, &ext_at, &x))
            if (x.kind == VG_SNAP_CHILD && x.entry == i)
                child = x.value;
        r = add_child(t, n, &e, child);
    }
    if (r == 0 && !n->parent) {
        struct vg_mstat st = rec->rec.st;
        st.dev = n->st.dev;
        st.ino = n->st.ino;
        st.ctime = st.atime = st.mtime;
        n->st = st;
    }
    return r == 0 ? load_xattrs(n, rec) : r;
}

static void empty(struct vg_ftree *t, struct vg_fnode *n) {
    for (uint32_t i = 0; i < n->n_child; i++)
        vg_fnode_free(t, n->child[i]);
    free(n->child);
    n->child = NULL;
    n->n_child = 0;
}

static int load_stored(struct vg_ftree *t, struct vg_fnode *n) {
    struct vg_buf b = {0};
    struct vg_snaprec rec;
    int r = vg_estore_get_rec(t->store, n->hash, &b);
    if (r == 0)
        r = vg_snaprec_open(&rec, vg_buf_data(&b), vg_buf_len(&b));
    if (r == 0)
        r = fill(t, n, &rec);
    vg_buf_done(&b);
    if (r < 0) {
        empty(t, n);
        return r;
    }
    n->state = VG_F_HERE;
    return 0;
}

int vg_fnode_load(struct vg_ftree *t, struct vg_fnode *n) {
    if (n->state == VG_F_HERE)
        return 0;
    if (n->has_hash)
        return load_stored(t, n);
    while (n->state != VG_F_HERE && n->state != VG_F_NEVER && t->pull) {
        vg_pull_demand(t->pull, n, 0, 0);
        pthread_cond_wait(&t->changed, &t->lock);
    }
    if (n->state == VG_F_HERE)
        return 0;
    vg_fnode_miss(t, n);
    return n->error ? -n->error : -EIO;
}

int vg_ftree_new(struct vg_estore *store, const uint8_t *root, struct vg_ftree **ret,
                 struct vg_err *err) {
    struct vg_ftree *t = vg_alloc(sizeof(*t));
    if (!t)
        return vg_err_sys(err, -ENOMEM, "cannot open a snapshot");
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
    t->refs = 1;
    t->store = store;
    vg_random(t->epoch, sizeof(t->epoch));
    vg_random(t->machine, sizeof(t->machine));
    struct vg_dirent top = {.name = "", .st = {.mode = S_IFDIR | 0755, .nlink = 2}};
    t->root = vg_fnode_new(t, NULL, &top);
    int r = t->root ? 0 : -ENOMEM;
    if (r == 0 && root) {
        vg_snap_machine(root, t->machine);
        memcpy(t->root_hash, root, VG_HASH);
        memcpy(t->root->hash, root, VG_HASH);
        t->root->has_hash = true;
        r = vg_estore_hold_root(store, root);
        t->has_root = r == 0;
        if (r == 0)
            r = load_stored(t, t->root);
    }
    if (r < 0) {
        vg_ftree_unref(t);
        return vg_err_sys(err, r, "cannot open a snapshot");
    }
    *ret = t;
    return 0;
}

struct vg_ftree *vg_ftree_ref(struct vg_ftree *t) {
    pthread_mutex_lock(&t->lock);
    t->refs++;
    pthread_mutex_unlock(&t->lock);
    return t;
}

void vg_ftree_unref(struct vg_ftree *t) {
    if (!t)
        return;
    pthread_mutex_lock(&t->lock);
    bool last = --t->refs == 0;
    pthread_mutex_unlock(&t->lock);
    if (!last)
        return;
    vg_fnode_free(t, t->root);
    if (t->has_root)
        vg_estore_drop_root(t->store, t->root_hash);
    vg_map_done(&t->by_object);
    vg_buf_done(&t->missed);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

void vg_ftree_machine(struct vg_ftree *t, uint8_t out[VG_MID]) {
    memcpy(out, t->machine, VG_MID);
}

void vg_ftree_set_machine(struct vg_ftree *t, const uint8_t machine[VG_MID]) {
    memcpy(t->machine, machine, VG_MID);
}
