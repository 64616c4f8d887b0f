/* Trees by hand. */
#include "fs/store/fbuild.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "fs/store/ftree-int.h"

#include <string.h>

#define LINKS_MAX 40

static uint32_t place_of(const struct vg_fnode *n, const char *name, size_t len, bool *ret_found) {
    uint32_t lo = 0, hi = n->n_child;
    *ret_found = false;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        const struct vg_fnode *c = n->child[mid];
        int k = memcmp(c->name, name, VG_MIN((size_t)c->name_len, len));
        if (k == 0)
            k = (c->name_len > len) - (c->name_len < len);
        if (k == 0) {
            *ret_found = true;
            return mid;
        }
        if (k < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

struct vg_fnode *vg_fnode_child(const struct vg_fnode *n, const char *name, size_t len) {
    bool found;
    uint32_t i = place_of(n, name, len, &found);
    return found ? n->child[i] : NULL;
}

static int insert(struct vg_ftree *t, struct vg_fnode *n, const struct vg_dirent *e,
                  struct vg_fnode **ret) {
    bool found;
    uint32_t i = place_of(n, e->name, e->name_len, &found);
    /* room grows by doubling: n_child is a power of two when it is full */
    if ((n->n_child & (n->n_child - 1)) == 0) {
        size_t cap = n->n_child ? 2u * n->n_child : 1;
        struct vg_fnode **more = vg_realloc(n->child, cap * sizeof(*more));
        if (!more)
            return -ENOMEM;
        n->child = more;
    }
    struct vg_fnode *c = vg_fnode_new(t, n, e);
    if (!c)
        return -ENOMEM;
    memmove(n->child + i + 1, n->child + i, (n->n_child - i) * sizeof(*n->child));
    n->child[i] = c;
    n->n_child++;
    c->state = VG_F_HERE;
    *ret = c;
    return 0;
}

static void take_out(struct vg_ftree *t, struct vg_fnode *n) {
    struct vg_fnode *p = n->parent;
    bool found;
    uint32_t i = place_of(p, n->name, n->name_len, &found);
    memmove(p->child + i, p->child + i + 1, (p->n_child - i - 1) * sizeof(*p->child));
    p->n_child--;
    /* keeps the rule of insert(): never full at a size that is not a power of two */
    size_t cap = 1;
    while (cap < p->n_child)
        cap *= 2;
    struct vg_fnode **less = vg_realloc(p->child, cap * sizeof(*less));
    if (less)
        p->child = less;
    vg_fnode_free(t, n);
}

static int make_folder(struct vg_ftree *t, struct vg_fnode *n, const char *name, size_t len,
                       struct vg_fnode **ret) {
    struct vg_dirent e = {.name = name,
                          .name_len = (uint16_t)len,
                          .st = {.mode = S_IFDIR | 0755, .nlink = 2, .mtime = n->st.mtime}};
    return insert(t, n, &e, ret);
}

static const char *target_of(const struct vg_fnode *n) {
    return n->name + n->name_len + 1;
}

/* The folder that `path` names, and what it is called there: the last component. *ret_len 0: the
   root itself. `make`: folders on the way. */
static int walk(struct vg_ftree *t, const char *path, bool make, unsigned links,
                struct vg_fnode **ret, const char **ret_name, size_t *ret_len);

static int follow(struct vg_ftree *t, struct vg_fnode *at, struct vg_fnode *link, bool make,
                  unsigned links, struct vg_fnode **ret) {
    char full[8192], dir[4096];
    const char *target = target_of(link), *name;
    size_t len;
    if (links >= LINKS_MAX)
        return -ELOOP;
    int r = *target == '/' ? 0 : vg_fnode_path(at, dir, sizeof(dir));
    if (r < 0)
        return r;
    snprintf(full, sizeof(full), "%s/%s", *target == '/' ? "" : dir, target);
    struct vg_fnode *folder;
    r = walk(t, full, make, links + 1, &folder, &name, &len);
    if (r < 0)
        return r;
    struct vg_fnode *c = len ? vg_fnode_child(folder, name, len) : folder;
    if (!c && make)
        r = make_folder(t, folder, name, len, &c);
    else if (!c)
        r = -ENOENT;
    if (r == 0 && S_ISLNK(c->st.mode))
        return follow(t, folder, c, make, links + 1, ret);
    *ret = c;
    return r;
}

static int step(struct vg_ftree *t, struct vg_fnode **at, const char *name, size_t len, bool make,
                unsigned links) {
    if (len == 1 && name[0] == '.')
        return 0;
    if (len == 2 && name[0] == '.' && name[1] == '.') { /* of a link inside the tree only */
        if (!links)
            return -EINVAL;
        *at = (*at)->parent ? (*at)->parent : *at;
        return 0;
    }
    struct vg_fnode *c = vg_fnode_child(*at, name, len);
    int r = 0;
    if (c && S_ISLNK(c->st.mode))
        r = follow(t, *at, c, make, links, &c);
    else if (!c && make)
        r = make_folder(t, *at, name, len, &c);
    else if (!c)
        r = -ENOENT;
    if (r == 0 && !S_ISDIR(c->st.mode))
        r = -ENOTDIR;
    if (r == 0)
        *at = c;
    return r;
}

static int walk(struct vg_ftree *t, const char *path, bool make, unsigned links,
                struct vg_fnode **ret, const char **ret_name, size_t *ret_len) {
    struct vg_fnode *at = t->root;
    *ret_len = 0;
    for (;;) {
        path += strspn(path, "/");
        size_t len = strcspn(path, "/");
        const char *rest = path + len + strspn(path + len, "/");
        if (len > VG_NAME_MAX)
            return -ENAMETOOLONG;
        bool dots = (len == 1 && path[0] == '.') || (len == 2 && memcmp(path, "..", 2) == 0);
        if (len && !*rest && !dots) {
            *ret = at;
            *ret_name = path;
            *ret_len = len;
            return 0;
        }
        if (len) {
            int r = step(t, &at, path, len, make, links);
            if (r < 0)
                return r;
        }
        if (!*rest) {
            *ret = at;
            *ret_name = "";
            return 0;
        }
        path = rest;
    }
}

static void set_hash(struct vg_fnode *n, const uint8_t *id) {
    n->has_hash = id != NULL;
    if (id)
        memcpy(n->hash, id, VG_HASH);
    n->state = S_ISREG(n->st.mode) && !id ? VG_F_NEVER : VG_F_HERE;
}

static void set_stat(struct vg_fnode *n, const struct vg_mstat *st) {
    uint64_t ino = n->st.ino;
    n->st = *st;
    n->st.dev = 1;
    n->st.ino = ino;
    n->st.ctime = n->st.atime = n->st.mtime;
}

static int put(struct vg_ftree *t, const char *path, const struct vg_mstat *st, const char *target,
               const uint8_t *id) {
    struct vg_fnode *folder, *n;
    const char *name;
    size_t len;
    int r = walk(t, path, true, 0, &folder, &name, &len);
    if (r < 0)
        return r;
    n = len ? vg_fnode_child(folder, name, len) : t->root;
    if (n && S_ISDIR(n->st.mode) && S_ISDIR(st->mode)) {
        set_stat(n, st);
        vg_fnode_xattrs_free(n);
        n->flags &= (uint8_t)~VG_DE_XATTR;
        return 0;
    }
    if (!len)
        return -EINVAL; /* the root is a folder */
    struct vg_dirent e = {.name = name,
                          .name_len = (uint16_t)len,
                          .target = target,
                          .target_len = (uint16_t)(target ? strlen(target) : 0),
                          .st = *st};
    if (S_ISLNK(st->mode) ? !e.target_len || strlen(target) > VG_TARGET_MAX : e.target_len)
        return -EINVAL;
    if (n)
        take_out(t, n);
    r = insert(t, folder, &e, &n);
    if (r == 0)
        set_hash(n, id);
    return r;
}

int vg_fbuild_put(struct vg_ftree *t, const char *path, const struct vg_mstat *st,
                  const char *target, const uint8_t *id) {
    pthread_mutex_lock(&t->lock);
    t->root->state = VG_F_HERE;
    int r = put(t, path, st, target, id);
    pthread_mutex_unlock(&t->lock);
    return r;
}

static int find(struct vg_ftree *t, const char *path, struct vg_fnode **ret) {
    const char *name;
    size_t len;
    int r = walk(t, path, false, 0, ret, &name, &len);
    if (r == 0 && len)
        *ret = vg_fnode_child(*ret, name, len);
    return r < 0 ? r : *ret ? 0 : -ENOENT;
}

int vg_fbuild_link(struct vg_ftree *t, const char *path, const char *to) {
    struct vg_fnode *n;
    pthread_mutex_lock(&t->lock);
    int r = find(t, to, &n);
    if (r == 0 && S_ISDIR(n->st.mode))
        r = -EPERM;
    if (r == 0) { /* put() may free it when it is what the new name replaces: copies first */
        struct vg_mstat st = n->st;
        uint8_t id[VG_HASH];
        bool has = n->has_hash;
        memcpy(id, n->hash, VG_HASH);
        vg_auto_free char *target = n->target_len ? vg_strdup(target_of(n)) : NULL;
        r = put(t, path, &st, target, has ? id : NULL);
    }
    pthread_mutex_unlock(&t->lock);
    return r;
}

int vg_fbuild_xattr(struct vg_ftree *t, const char *path, const char *name, const void *value,
                    size_t n) {
    struct vg_fnode *node;
    pthread_mutex_lock(&t->lock);
    int r = find(t, path, &node);
    if (r == 0)
        r = vg_fnode_xattr(node, name, strlen(name), value, n);
    pthread_mutex_unlock(&t->lock);
    return r;
}

int vg_fbuild_remove(struct vg_ftree *t, const char *path) {
    struct vg_fnode *n;
    pthread_mutex_lock(&t->lock);
    int r = find(t, path, &n);
    if (r == 0 && n == t->root)
        r = -EINVAL;
    if (r == 0)
        take_out(t, n);
    pthread_mutex_unlock(&t->lock);
    return r == -ENOENT || r == -ENOTDIR ? 0 : r;
}

int vg_fbuild_clear(struct vg_ftree *t, const char *path) {
    struct vg_fnode *n;
    pthread_mutex_lock(&t->lock);
    int r = find(t, path, &n);
    while (r == 0 && n->n_child)
        take_out(t, n->child[n->n_child - 1]);
    pthread_mutex_unlock(&t->lock);
    return r == -ENOENT || r == -ENOTDIR ? 0 : r;
}
