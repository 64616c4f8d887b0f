/* Requests about names of a project: lookup, readdir, creating. Called with the view's lock; see
   proj-int.h for what a handler may do. */
#include "fs/node/proj-int.h"

#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define NAME_LIMIT 255

/* The folder of a request and a name in its argument. */
int proj_name_in(struct vg_proj *p, struct pctx *c, size_t skip, struct pnode **ret_dir,
                 const char **ret, size_t *ret_len) {
    struct pnode *dir = proj_node(p, c->h->nodeid);
    *ret = vg_fuse_str(c->r, skip, ret_len);
    if (!*ret || !*ret_len)
        return -EINVAL;
    if (*ret_len > NAME_LIMIT)
        return -ENAMETOOLONG;
    *ret_dir = dir;
    return proj_need_dir(p, dir, c);
}

void proj_entry_out(struct pctx *c, struct pnode *n, struct fuse_entry_out *o) {
    memset(o, 0, sizeof(*o));
    o->nodeid = proj_nodeid(n);
    o->entry_valid = o->attr_valid = VG_FUSE_FOREVER;
    proj_attr(n, &o->attr);
    n->nlookup++;
    c->gave_lookup = n;
}

int proj_op_lookup(struct vg_proj *p, struct pctx *c) {
    struct pnode *dir;
    const char *name;
    size_t len;
    int rc = proj_name_in(p, c, 0, &dir, &name, &len);
    if (rc)
        return rc;
    struct pdent *d = proj_find(p, dir, name, len);
    struct fuse_entry_out *o = (void *)c->out;
    c->out_len = sizeof(*o);
    if (d && d->node) {
        proj_entry_out(c, d->node, o);
    } else { /* that there is none is remembered by the kernel, too */
        memset(o, 0, sizeof(*o));
        o->entry_valid = VG_FUSE_FOREVER;
    }
    return 0;
}

static size_t put_dirent(uint8_t *out, size_t room, bool plus, struct pnode *n, uint64_t ino,
                         uint32_t type, const char *name, size_t len, uint64_t cookie) {
    size_t head = plus ? sizeof(struct fuse_entry_out) : 0;
    size_t need = FUSE_DIRENT_ALIGN(head + offsetof(struct fuse_dirent, name) + len);
    if (need > room)
        return 0;
    memset(out, 0, need);
    if (n && plus) {
        struct pctx none;
        proj_entry_out(&none, n, (struct fuse_entry_out *)(void *)out);
    }
    struct fuse_dirent *e = (struct fuse_dirent *)(void *)(out + head);
    e->ino = ino;
    e->off = cookie;
    e->namelen = (uint32_t)len;
    e->type = type >> 12;
    memcpy(e->name, name, len);
    return need;
}

/* Cookies 1 and 2 are "." and ".."; names follow in the order they came to be. */
int proj_op_readdir(struct vg_proj *p, struct pctx *c, bool plus) {
    const struct fuse_read_in *in = vg_fuse_in(c->r, sizeof(*in));
    struct pnode *dir = proj_node(p, c->h->nodeid);
    if (!in)
        return -EINVAL;
    int rc = proj_need_dir(p, dir, c);
    if (rc)
        return rc;
    size_t room = VG_MIN(in->size, VG_FUSE_IO), used = 0, got;
    uint64_t at = in->offset;
    uint8_t *out = malloc(room);
    if (!out)
        return -ENOMEM;
    struct pnode *up = dir->names ? dir->names->parent : dir;
    for (; at < 2; at++) {
        struct pnode *n = at ? up : dir;
        got = put_dirent(out + used, room - used, plus, NULL, n->st.ino, S_IFDIR, "..", at + 1,
                         at + 1);
        if (!got)
            goto full;
        used += got;
    }
    struct pdir *f = dir->dir;
    for (size_t i = proj_slot_at(f, at); i < f->n; i++) {
        struct pdent *d = f->slot[i];
        if (!d || !d->node)
            continue;
        got = put_dirent(out + used, room - used, plus, d->node, d->node->st.ino, d->node->st.mode,
                         d->name, d->len, d->cookie);
        if (!got)
            break;
        used += got;
    }
full:
    c->big = out;
    c->out_len = used;
    return 0;
}

static void new_stat(struct vg_proj *p, struct pctx *c, struct pnode *dir, mode_t mode,
                     struct vg_mstat *st) {
    *st = (struct vg_mstat){.mode = mode, .nlink = S_ISDIR(mode) ? 2 : 1};
    st->uid = vg_fs_id_in(&p->conf.ids, c->h->uid);
    st->gid = vg_fs_id_in(&p->conf.ids, c->h->gid);
    if (dir->st.mode & S_ISGID) {
        st->gid = dir->st.gid;
        if (S_ISDIR(mode))
            st->mode |= S_ISGID;
    }
    st->mtime = st->ctime = st->atime = proj_now();
    if (S_ISDIR(mode)) {
        st->size = 4096;
        st->blocks = 8;
    }
}

struct made {
    struct pnode *dir;
    const char *name;
    size_t len;
    mode_t mode;
    uint64_t rdev;
    const char *target;
};

/* The name and its thing, done here and logged. */
static int make(struct vg_proj *p, struct pctx *c, const struct made *m, Vg__Mr__Op__Kind kind,
                struct pnode **ret) {
    struct pdent *d = proj_find(p, m->dir, m->name, m->len);
    if (d && d->node)
        return -EEXIST;
    if (vg_oplog_full(p->log)) {
        c->park = &p->room;
        return PROJ_WAIT;
    }
    vg_auto_free char *path = NULL;
    int rc = proj_path(m->dir->names, m->name, m->len, &path);
    if (rc < 0)
        return rc;
    struct vg_oprec r = {.kind = kind, .parent = m->dir, .name = path};
    new_stat(p, c, m->dir, m->mode, &r.st);
    r.st.rdev = m->rdev;
    struct pnode *n = proj_node_new(p, &r.st);
    if (!n)
        return -ENOMEM;
    r.n = n;
    if (m->target) {
        n->target = vg_strdup(m->target);
        r.data = m->target;
        r.data_len = n->st.size = strlen(m->target);
    }
    if (!d)
        d = proj_dent_new(p, m->dir, m->name, m->len);
    struct vg_logent *e = d && (!m->target || n->target) ? vg_logent_new(p, &r) : NULL;
    if (!e) {
        proj_node_maybe_free(p, n);
        return -ENOMEM;
    }
    n->xattr_known = true;
    if (n->file)
        n->file->based = true;
    if (n->dir) {
        n->dir->record = 1;
        m->dir->st.nlink++;
    }
    proj_dent_set(p, d, n);
    proj_changed(m->dir, true);
    d->pend = n->pend = m->dir->dir->last_op = vg_oplog_add(p->log, e);
    proj_sync_wait(c, n);
    *ret = n;
    return 0;
}

static int make_entry(struct vg_proj *p, struct pctx *c, const struct made *m,
                      Vg__Mr__Op__Kind kind) {
    struct pnode *n;
    int rc = make(p, c, m, kind, &n);
    if (rc)
        return rc;
    proj_entry_out(c, n, (struct fuse_entry_out *)(void *)c->out);
    c->out_len = sizeof(struct fuse_entry_out);
    return 0;
}

static void entry_and_open(struct pctx *c, struct pnode *n) {
    struct fuse_entry_out *o = (void *)c->out;
    proj_entry_out(c, n, o);
    struct fuse_open_out *op = (void *)(c->out + sizeof(*o));
    memset(op, 0, sizeof(*op));
    op->open_flags = FOPEN_KEEP_CACHE;
    c->out_len = sizeof(*o) + sizeof(*op);
}

int proj_op_create(struct vg_proj *p, struct pctx *c) {
    const struct fuse_create_in *in = vg_fuse_in(c->r, sizeof(*in));
    struct made m = {0};
    if (!in)
        return -EINVAL;
    int rc = proj_name_in(p, c, sizeof(*in), &m.dir, &m.name, &m.len);
    if (rc)
        return rc;
    m.mode = S_IFREG | (in->mode & 07777);
    c->excl = in->flags & O_EXCL;
    struct pnode *n;
    rc = make(p, c, &m, VG__MR__OP__KIND__CREATE, &n);
    if (rc == -EEXIST && !(in->flags & O_EXCL)) { /* it has come to be since the kernel looked */
        n = proj_find(p, m.dir, m.name, m.len)->node;
        if (!n->file)
            return n->dir ? -EISDIR : -EEXIST;
        rc = proj_open_file(n, in->flags, c);
    } else if (rc == 0) {
        rc = proj_open_file(n, in->flags & ~(uint32_t)O_TRUNC, c);
    }
    if (rc)
        return rc;
    entry_and_open(c, n);
    return 0;
}

/* O_TMPFILE: it is told to the client when it gets a name. */
int proj_op_tmpfile(struct vg_proj *p, struct pctx *c) {
    const struct fuse_create_in *in = vg_fuse_in(c->r, sizeof(*in));
    if (!in)
        return -EINVAL;
    struct vg_mstat st;
    new_stat(p, c, proj_node(p, c->h->nodeid), S_IFREG | (in->mode & 07777), &st);
    st.nlink = 0;
    struct pnode *n = proj_node_new(p, &st);
    if (!n)
        return -ENOMEM;
    n->xattr_known = true;
    n->file->based = true;
    int rc = proj_open_file(n, in->flags & ~(uint32_t)O_TRUNC, c);
    if (rc)
        return rc;
    entry_and_open(c, n);
    return 0;
}

int proj_op_mknod(struct vg_proj *p, struct pctx *c) {
    const struct fuse_mknod_in *in = vg_fuse_in(c->r, sizeof(*in));
    struct made m = {0};
    if (!in)
        return -EINVAL;
    int rc = proj_name_in(p, c, sizeof(*in), &m.dir, &m.name, &m.len);
    if (rc)
        return rc;
    m.mode = in->mode;
    if (S_ISREG(m.mode))
        return make_entry(p, c, &m, VG__MR__OP__KIND__CREATE);
    if (!S_ISFIFO(m.mode) && !S_ISSOCK(m.mode))
        return -EPERM;
    return make_entry(p, c, &m, VG__MR__OP__KIND__MKNOD);
}

int proj_op_mkdir(struct vg_proj *p, struct pctx *c) {
    const struct fuse_mkdir_in *in = vg_fuse_in(c->r, sizeof(*in));
    struct made m = {0};
    if (!in)
        return -EINVAL;
    int rc = proj_name_in(p, c, sizeof(*in), &m.dir, &m.name, &m.len);
    m.mode = S_IFDIR | (in->mode & 07777);
    return rc ? rc : make_entry(p, c, &m, VG__MR__OP__KIND__MKDIR);
}

int proj_op_symlink(struct vg_proj *p, struct pctx *c) {
    struct made m = {.mode = S_IFLNK | 0777};
    int rc = proj_name_in(p, c, 0, &m.dir, &m.name, &m.len);
    if (rc)
        return rc;
    size_t tlen;
    m.target = vg_fuse_str(c->r, m.len + 1, &tlen);
    if (!m.target || !tlen)
        return m.target ? -ENOENT : -EINVAL;
    if (tlen >= PATH_MAX)
        return -ENAMETOOLONG;
    c->excl = true;
    return make_entry(p, c, &m, VG__MR__OP__KIND__SYMLINK);
}

/* A file without a name gets one: for the client it is made now, with all it has. */
static int link_first(struct vg_proj *p, struct pctx *c, struct pnode *n, struct pnode *dir,
                      const char *name, size_t len, char *path) {
    struct vg_oprec r = {
        .kind = VG__MR__OP__KIND__CREATE, .n = n, .parent = dir, .name = path, .st = n->st};
    struct pdent *d = proj_find(p, dir, name, len);
    if (!d)
        d = proj_dent_new(p, dir, name, len);
    struct vg_logent *e = d && proj_dirty_room(n) == 0 ? vg_logent_new(p, &r) : NULL;
    if (!e)
        return -ENOMEM;
    proj_dent_set(p, d, n);
    n->st.nlink = 1;
    proj_changed(n, false);
    proj_changed(dir, true);
    d->pend = n->pend = dir->dir->last_op = vg_oplog_add(p->log, e);
    proj_dirty_all(n);
    int rc = proj_flush_node(n);
    proj_sync_wait(c, n);
    return rc;
}

static int link_more(struct vg_proj *p, struct pctx *c, struct pnode *n, struct pnode *dir,
                     const char *name, size_t len, char *path) {
    vg_auto_free char *from = NULL;
    int rc = proj_node_path(n, &from);
    if (rc < 0)
        return rc;
    struct vg_oprec r = {.kind = VG__MR__OP__KIND__LINK,
                         .n = n,
                         .parent = n->names->parent,
                         .parent2 = dir,
                         .name = from,
                         .name2 = path,
                         .st = n->st};
    struct pdent *d = proj_find(p, dir, name, len);
    if (!d)
        d = proj_dent_new(p, dir, name, len);
    struct vg_logent *e = d ? vg_logent_new(p, &r) : NULL;
    if (!e)
        return -ENOMEM;
    proj_dent_set(p, d, n);
    n->st.nlink++;
    proj_changed(n, false);
    proj_changed(dir, true);
    d->pend = n->pend = dir->dir->last_op = vg_oplog_add(p->log, e);
    proj_sync_wait(c, n);
    return 0;
}

int proj_op_link(struct vg_proj *p, struct pctx *c) {
    const struct fuse_link_in *in = vg_fuse_in(c->r, sizeof(*in));
    struct pnode *dir;
    const char *name;
    size_t len;
    if (!in)
        return -EINVAL;
    int rc = proj_name_in(p, c, sizeof(*in), &dir, &name, &len);
    if (rc)
        return rc;
    struct pnode *n = proj_node(p, in->oldnodeid);
    struct pdent *d = proj_find(p, dir, name, len);
    if (n->dir)
        return -EPERM;
    if (d && d->node)
        return -EEXIST;
    if (vg_oplog_full(p->log)) {
        c->park = &p->room;
        return PROJ_WAIT;
    }
    vg_auto_free char *path = NULL;
    rc = proj_path(dir->names, name, len, &path);
    if (rc < 0)
        return rc;
    rc = n->names  ? link_more(p, c, n, dir, name, len, path)
         : n->file ? link_first(p, c, n, dir, name, len, path)
                   : -ENOENT;
    if (rc)
        return rc;
    proj_entry_out(c, n, (struct fuse_entry_out *)(void *)c->out);
    c->out_len = sizeof(struct fuse_entry_out);
    return 0;
}
