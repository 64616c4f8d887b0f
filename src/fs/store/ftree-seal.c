/* A tree in memory becomes records in the store; and walks over all of it. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "fs/store/ftree-int.h"

#include <string.h>

struct seal {
    struct vg_ftree *t;
    struct vg_eversion *v;
};

static int seal_folder(struct seal *s, struct vg_fnode *n, unsigned depth);

static int add_xattrs(struct vg_snapbuild *b, const struct vg_fnode *n) {
    int r = 0;
    for (struct vg_fxattr *x = n->xattrs; r == 0 && x; x = x->next)
        r = vg_snapbuild_xattr(b, x->bytes, x->name_len, x->bytes + x->name_len, x->value_len);
    return r;
}

/* A folder that never came is there by name only. */
static int seal_child(struct seal *s, struct vg_snapbuild *b, struct vg_fnode *c, unsigned depth) {
    bool folder = S_ISDIR(c->st.mode), file = S_ISREG(c->st.mode);
    int r = folder && c->state == VG_F_HERE ? seal_folder(s, c, depth + 1) : 0;
    if (r < 0)
        return r;
    struct vg_dirent e = {.st = c->st,
                          .name = c->name,
                          .name_len = c->name_len,
                          .target = c->name + c->name_len + 1,
                          .target_len = c->target_len,
                          .flags = c->flags,
                          .id = file && c->has_hash ? c->hash : NULL};
    if (!folder) {
        s->v->files++;
        s->v->bytes += file ? c->st.size : 0;
        s->v->missing += file && !c->has_hash;
    }
    r = vg_snapbuild_add(b, &e, folder && c->has_hash ? c->hash : NULL);
    return r == 0 ? add_xattrs(b, c) : r;
}

/* What was loaded from the store and what was sealed before has its hash: but its counts are
   wanted, and a folder that grew meanwhile has another. */
static int seal_folder(struct seal *s, struct vg_fnode *n, unsigned depth) {
    if (depth > VG_SNAP_DEPTH_MAX)
        return -ELOOP;
    struct vg_snapbuild b;
    struct vg_buf out = {0};
    int r = vg_snapbuild_begin(&b, &n->st);
    if (r == 0 && !n->parent)
        r = add_xattrs(&b, n);
    for (uint32_t i = 0; r == 0 && i < n->n_child; i++)
        r = seal_child(s, &b, n->child[i], depth);
    if (r == 0)
        r = vg_snapbuild_end(&b, &out);
    if (r == 0)
        r = vg_estore_put_rec(s->t->store, vg_buf_data(&out), vg_buf_len(&out), n->hash);
    if (r == 0)
        n->has_hash = true;
    vg_snapbuild_done(&b);
    vg_buf_done(&out);
    return r;
}

int vg_ftree_seal(struct vg_ftree *t, struct vg_eversion *ret, struct vg_err *err) {
    pthread_mutex_lock(&t->lock);
    ret->files = ret->bytes = 0;
    ret->missing = 0;
    struct seal s = {.t = t, .v = ret};
    int r = seal_folder(&s, t->root, 0);
    if (r == 0)
        memcpy(ret->root, t->root->hash, VG_HASH);
    pthread_mutex_unlock(&t->lock);
    if (r == -EDQUOT)
        return vg_estore_over_quota(t->store, err);
    return r < 0 ? vg_err_sys(err, r, "cannot store the snapshot") : 0;
}

struct walk {
    struct vg_ftree *t;
    int (*each)(void *user, const struct vg_fitem *i);
    void *user;
    char path[4096];
};

static int walk_node(struct walk *w, struct vg_fnode *n, size_t len, unsigned depth) {
    struct vg_fitem i = {.path = len ? w->path : "/",
                         .st = n->st,
                         .target = n->name + n->name_len + 1,
                         .target_len = n->target_len,
                         .id = S_ISREG(n->st.mode) && n->has_hash ? n->hash : NULL,
                         .xattrs = n->xattrs,
                         .flags = n->flags};
    if (depth > VG_SNAP_DEPTH_MAX)
        return -ELOOP;
    int r = w->each(w->user, &i);
    if (r < 0 || !S_ISDIR(n->st.mode) || (n->state == VG_F_NEVER && !n->has_hash))
        return r;
    r = vg_fnode_load(w->t, n);
    for (uint32_t k = 0; r >= 0 && k < n->n_child; k++) {
        struct vg_fnode *c = n->child[k];
        if (len + 1 + c->name_len + 1 > sizeof(w->path))
            return -ENAMETOOLONG;
        w->path[len] = '/';
        memcpy(w->path + len + 1, c->name, c->name_len);
        w->path[len + 1 + c->name_len] = '\0';
        r = walk_node(w, c, len + 1 + c->name_len, depth + 1);
        w->path[len] = '\0';
    }
    return r;
}

int vg_ftree_each(struct vg_ftree *t, int (*each)(void *user, const struct vg_fitem *i), void *user,
                  struct vg_err *err) {
    struct walk w = {.t = t, .each = each, .user = user};
    *err = VG_ERR_INIT;
    pthread_mutex_lock(&t->lock);
    int r = walk_node(&w, t->root, 0, 0);
    pthread_mutex_unlock(&t->lock);
    if (r < 0 && !err->msg[0])
        vg_err_sys(err, r, "cannot read the snapshot");
    return r < 0 ? r : 0;
}
