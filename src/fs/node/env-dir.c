/* Requests about names and attributes, answered from the table. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "fs/node/env-int.h"

#include <errno.h>
#include <string.h>

static void fill_entry(struct vg_env *e, struct env_node *n, struct fuse_entry_out *out) {
    *out = (struct fuse_entry_out){.entry_valid = VG_FUSE_FOREVER, .attr_valid = VG_FUSE_FOREVER};
    if (!n)
        return;
    out->nodeid = n->number;
    vg_env_attr(e, n, &out->attr);
    n->lookups++;
}

static void take_back(struct vg_env *e, uint64_t number) {
    if (!number)
        return;
    pthread_mutex_lock(&e->lock);
    vg_env_forget(e, number, 1);
    pthread_mutex_unlock(&e->lock);
}

/* The kernel will believe that it is missing until told otherwise, so the name must be known then.
 */
static void note_missing(struct env_folder *f, const char *name) {
    if (f->many_negative || vg_map_get(&f->negative, name))
        return;
    char *copy = vg_map_len(&f->negative) < ENV_NEGATIVE_MAX ? vg_strdup(name) : NULL;
    if (!copy || vg_map_put(&f->negative, copy, copy) < 0) {
        free(copy);
        f->many_negative = true;
    }
}

/* Finds the request's node and proves what it needs: true when the caller may go on with the lock
   held. Else it was answered or waits. `folder`: the node's own record is needed. */
static struct env_node *begin(struct env_call *c, bool folder) {
    struct vg_env *e = c->e;
    struct env_node *wait = NULL;
    pthread_mutex_lock(&e->lock);
    struct env_node *n = vg_env_node(e, vg_fuse_head(c->r)->nodeid);
    int r = !n ? -ESTALE : folder ? vg_env_prove(e, n, &wait) : vg_env_prove_node(e, n, &wait);
    if (!r)
        return n;
    if (r > 0) {
        vg_env_wait(c, wait);
        return NULL;
    }
    pthread_mutex_unlock(&e->lock);
    vg_fuse_err(c->r, -r);
    return NULL;
}

void vg_env_lookup(struct env_call *c) {
    struct vg_env *e = c->e;
    struct fuse_entry_out out;
    size_t len = 0;
    const char *name = vg_fuse_str(c->r, 0, &len);
    if (!name || len > VG_NAME_MAX) {
        vg_fuse_err(c->r, name ? ENAMETOOLONG : EINVAL);
        return;
    }
    struct env_node *folder = begin(c, true);
    if (!folder)
        return;
    vg_env_use(e, folder);
    struct env_node *n = vg_env_kid(folder->dir, name, len);
    if (!n)
        note_missing(folder->dir, name);
    fill_entry(e, n, &out);
    pthread_mutex_unlock(&e->lock);
    if (vg_fuse_ok(c->r, &out, sizeof(out)) == -ENOENT)
        take_back(e, out.nodeid);
}

void vg_env_getattr(struct env_call *c) {
    struct fuse_attr_out out = {.attr_valid = VG_FUSE_FOREVER};
    struct vg_env *e = c->e;
    pthread_mutex_lock(&e->lock);
    struct env_node *n = vg_env_node(e, vg_fuse_head(c->r)->nodeid), *wait = NULL;
    /* What is open but lies nowhere any more has the attributes it had. */
    int r = !n ? -ESTALE : vg_env_prove_node(e, n, &wait);
    if (r > 0) {
        vg_env_wait(c, wait);
        return;
    }
    if (n)
        vg_env_attr(e, n, &out.attr);
    pthread_mutex_unlock(&e->lock);
    if (n)
        vg_fuse_ok(c->r, &out, sizeof(out));
    else
        vg_fuse_err(c->r, ESTALE);
}

void vg_env_readlink(struct env_call *c) {
    struct env_node *n = begin(c, false);
    char target[VG_TARGET_MAX];
    if (!n)
        return;
    size_t len = n->target_len;
    bool link = S_ISLNK(n->st.mode) && n->target;
    if (link)
        memcpy(target, n->target, VG_MIN(len, sizeof(target)));
    pthread_mutex_unlock(&c->e->lock);
    if (link)
        vg_fuse_ok(c->r, target, len);
    else
        vg_fuse_err(c->r, EINVAL);
}

struct listing {
    struct vg_env *e;
    char *buf;
    size_t n, max;
    bool plus;
};

/* False: no room. */
static bool list_add(struct listing *l, struct env_node *n, const char *name, size_t len,
                     uint64_t ino, uint32_t type, uint64_t next) {
    size_t head = l->plus ? FUSE_NAME_OFFSET_DIRENTPLUS : FUSE_NAME_OFFSET;
    size_t size = FUSE_DIRENT_ALIGN(head + len);
    if (l->n + size > l->max)
        return false;
    char *at = l->buf + l->n;
    memset(at, 0, size);
    struct fuse_dirent *d = (void *)at;
    if (l->plus) {
        struct fuse_direntplus *p = (void *)at;
        if (n)
            fill_entry(l->e, n, &p->entry_out);
        d = &p->dirent;
    }
    d->ino = ino;
    d->off = next;
    d->namelen = (uint32_t)len;
    d->type = type;
    memcpy(at + head, name, len);
    l->n += size;
    return true;
}

static void list(struct listing *l, struct env_node *folder, uint64_t off) {
    const uint32_t dir = S_IFDIR >> 12;
    struct env_node *up = folder->parent ? folder->parent : folder;
    if (off == 0 && !list_add(l, NULL, ".", 1, folder->st.ino, dir, ++off))
        return;
    if (off == 1 && !list_add(l, NULL, "..", 2, up->st.ino, dir, ++off))
        return;
    for (; off - 2 < folder->dir->n; off++) {
        struct env_node *n = folder->dir->kid[off - 2];
        if (!list_add(l, n, n->name, n->name_len, n->st.ino, n->st.mode >> 12, off + 1))
            return;
    }
}

/* Nobody took the answer: neither did he take the entries in it. */
static void list_take_back(struct listing *l) {
    for (size_t at = 0; at < l->n;) {
        struct fuse_direntplus *p = (void *)(l->buf + at);
        take_back(l->e, p->entry_out.nodeid);
        at += FUSE_DIRENTPLUS_SIZE(p);
    }
}

void vg_env_readdir(struct env_call *c) {
    const struct fuse_read_in *in = vg_fuse_in(c->r, sizeof(*in));
    struct listing l = {.e = c->e, .plus = vg_fuse_head(c->r)->opcode == FUSE_READDIRPLUS};
    l.max = in ? VG_MIN(in->size, VG_FUSE_IO) : 0;
    vg_auto_free char *buf = l.buf = in ? vg_alloc(l.max + 1) : NULL;
    if (!buf) {
        vg_fuse_err(c->r, in ? ENOMEM : EINVAL);
        return;
    }
    struct env_node *folder = begin(c, true);
    if (!folder)
        return;
    vg_env_use(c->e, folder);
    list(&l, folder, in->offset);
    pthread_mutex_unlock(&c->e->lock);
    if (vg_fuse_ok(c->r, l.buf, l.n) == -ENOENT && l.plus)
        list_take_back(&l);
}
