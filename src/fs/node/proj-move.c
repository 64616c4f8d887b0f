/* Requests that take names away or change them: unlink, rmdir, rename. Called with the view's lock;
   see proj-int.h for what a handler may do. */
#include "fs/node/proj-int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* The name stays for a while without its thing: the client's next record may still have it. */
static void bury(struct vg_proj *p, struct pdent *d, uint64_t op) {
    d->pend = op;
    proj_dent_set(p, d, NULL);
    vg_list_remove(&d->tomb);
    vg_list_push_back(&p->tombs, &d->tomb);
}

static bool empty(const struct pdir *f) {
    for (size_t i = 0; i < f->n; i++)
        if (f->slot[i] && f->slot[i]->node)
            return false;
    return true;
}

/* Who has a file open reads on when its last name is gone here. The client has it no more then: so
   all of it must have come before. */
static int whole_if_open(struct pctx *c, struct pnode *n) {
    if (!n->file || !n->nopen || n->denied || n->names->next)
        return 0;
    int rc = proj_file_want(n);
    if (rc == 0)
        rc = proj_fetch_data(n, 0, n->file->base, 0);
    if (rc != PROJ_WAIT)
        return 0; /* it is there; or it cannot be had, and nothing is lost */
    c->park = &n->file->waiting;
    return PROJ_WAIT;
}

static int may_remove(struct vg_proj *p, struct pctx *c, struct pnode *n, bool folder) {
    if (folder && !n->dir)
        return -ENOTDIR;
    if (!folder)
        return n->dir ? -EISDIR : whole_if_open(c, n);
    int rc = proj_need_dir(p, n, c);
    return rc ? rc : empty(n->dir) ? 0 : -ENOTEMPTY;
}

static void lost_name(struct pnode *n) {
    n->st.nlink = n->dir ? 0 : n->st.nlink ? n->st.nlink - 1 : 0;
    proj_changed(n, false);
}

int proj_op_unlink(struct vg_proj *p, struct pctx *c, bool folder) {
    struct pnode *dir;
    const char *name;
    size_t len;
    int rc = proj_name_in(p, c, 0, &dir, &name, &len);
    if (rc)
        return rc;
    struct pdent *d = proj_find(p, dir, name, len);
    if (!d || !d->node)
        return -ENOENT;
    struct pnode *n = d->node;
    rc = may_remove(p, c, n, folder);
    if (rc)
        return rc;
    if (vg_oplog_full(p->log)) {
        c->park = &p->room;
        return PROJ_WAIT;
    }
    vg_auto_free char *path = NULL;
    rc = proj_path(d, NULL, 0, &path);
    if (rc < 0)
        return rc;
    struct vg_oprec r = {.kind = folder ? VG__MR__OP__KIND__RMDIR : VG__MR__OP__KIND__UNLINK,
                         .n = n,
                         .parent = dir,
                         .name = path,
                         .st = n->st};
    if (!folder)
        proj_before(n, &r);
    struct vg_logent *e = vg_logent_new(p, &r);
    if (!e)
        return -ENOMEM;
    lost_name(n);
    if (folder)
        dir->st.nlink--;
    proj_changed(dir, true);
    uint64_t op = n->pend = dir->dir->last_op = vg_oplog_add(p->log, e);
    bury(p, d, op);
    proj_sync_wait(c, n);
    return 0;
}

struct move {
    struct pnode *from, *to;
    const char *name, *name2;
    size_t len, len2;
    uint32_t flags;
    struct pdent *d, *d2;
};

static int move_in(struct vg_proj *p, struct pctx *c, bool two, struct move *m) {
    size_t skip = two ? sizeof(struct fuse_rename2_in) : sizeof(struct fuse_rename_in);
    const void *in = vg_fuse_in(c->r, skip);
    if (!in)
        return -EINVAL;
    uint64_t newdir = ((const struct fuse_rename_in *)in)->newdir;
    m->flags = two ? ((const struct fuse_rename2_in *)in)->flags : 0;
    int rc = proj_name_in(p, c, skip, &m->from, &m->name, &m->len);
    if (rc)
        return rc;
    m->to = proj_node(p, newdir);
    rc = proj_need_dir(p, m->to, c);
    if (rc)
        return rc;
    m->name2 = vg_fuse_str(c->r, skip + m->len + 1, &m->len2);
    if (!m->name2 || !m->len2)
        return -EINVAL;
    if (m->len2 > 255)
        return -ENAMETOOLONG;
    m->d = proj_find(p, m->from, m->name, m->len);
    m->d2 = proj_find(p, m->to, m->name2, m->len2);
    return 0;
}

/* As rename(2) says. The kernel has looked at loops and kinds before. */
static int may_move(struct vg_proj *p, struct pctx *c, const struct move *m) {
    if (m->flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE))
        return -EINVAL;
    if (!m->d || !m->d->node)
        return -ENOENT;
    struct pnode *t = m->d2 ? m->d2->node : NULL;
    if (m->flags & RENAME_EXCHANGE)
        return t ? 0 : -ENOENT;
    if (t && (m->flags & RENAME_NOREPLACE))
        return -EEXIST;
    if (!t || t == m->d->node)
        return 0;
    if (!m->d->node->dir && t->dir)
        return -EISDIR;
    return may_remove(p, c, t, m->d->node->dir != NULL);
}

static void keep_object(struct vg_proj *p, struct pdent *d, uint64_t object) {
    if (object && vg_map_put_u64(&p->objects, object, d) == 0)
        d->object = object;
}

static void exchange(struct vg_proj *p, const struct move *m, uint64_t op) {
    struct pnode *a = m->d->node, *b = m->d2->node;
    uint64_t oa = m->d->object, ob = m->d2->object;
    a->refs++;
    proj_dent_set(p, m->d, NULL);
    proj_dent_set(p, m->d2, a);
    proj_dent_set(p, m->d, b);
    a->refs--;
    keep_object(p, m->d, ob);
    keep_object(p, m->d2, oa);
    m->d->pend = m->d2->pend = b->pend = op;
    if (a->dir && !b->dir)
        m->from->st.nlink--, m->to->st.nlink++;
    if (b->dir && !a->dir)
        m->to->st.nlink--, m->from->st.nlink++;
    proj_changed(b, false);
}

static void replace(struct vg_proj *p, const struct move *m, uint64_t op) {
    struct pnode *n = m->d->node, *t = m->d2->node;
    uint64_t object = m->d->object;
    if (t) {
        lost_name(t);
        t->pend = op;
        if (t->dir)
            m->to->st.nlink--;
    }
    if (n->dir) {
        m->from->st.nlink--;
        m->to->st.nlink++;
    }
    n->refs++;
    bury(p, m->d, op);
    proj_dent_set(p, m->d2, n);
    n->refs--;
    m->d2->pend = op;
    keep_object(p, m->d2, object);
}

static int log_move(struct vg_proj *p, const struct move *m, struct vg_logent **ret) {
    vg_auto_free char *a = NULL, *b = NULL;
    int rc = proj_path(m->d, NULL, 0, &a);
    if (rc == 0)
        rc = proj_path(m->to->names, m->name2, m->len2, &b);
    if (rc < 0)
        return rc;
    struct vg_oprec r = {.kind = VG__MR__OP__KIND__RENAME,
                         .n = m->d->node,
                         .parent = m->from,
                         .parent2 = m->to,
                         .name = a,
                         .name2 = b,
                         .flags = m->flags,
                         .st = m->d->node->st};
    struct pnode *t = m->d2 ? m->d2->node : NULL;
    if (t && !t->dir) {
        proj_before(t, &r);
        r.off = proj_handle(t);
    }
    *ret = vg_logent_new(p, &r);
    return *ret ? 0 : -ENOMEM;
}

int proj_op_rename(struct vg_proj *p, struct pctx *c, bool two) {
    struct move m = {0};
    int rc = move_in(p, c, two, &m);
    if (rc == 0)
        rc = may_move(p, c, &m);
    if (rc)
        return rc;
    if (m.d2 && m.d2->node == m.d->node)
        return 0;
    if (vg_oplog_full(p->log)) {
        c->park = &p->room;
        return PROJ_WAIT;
    }
    /* Its content first: what replaces another file is whole when it does. */
    rc = proj_flush_node(m.d->node);
    struct vg_logent *e = NULL;
    if (rc == 0)
        rc = log_move(p, &m, &e);
    if (rc < 0)
        return rc;
    if (!m.d2)
        m.d2 = proj_dent_new(p, m.to, m.name2, m.len2);
    if (!m.d2) {
        vg_logent_free(e);
        return -ENOMEM;
    }
    struct pnode *n = m.d->node;
    uint64_t op = n->pend = m.from->dir->last_op = m.to->dir->last_op = vg_oplog_add(p->log, e);
    if (m.flags & RENAME_EXCHANGE)
        exchange(p, &m, op);
    else
        replace(p, &m, op);
    proj_changed(n, false);
    proj_changed(m.from, true);
    proj_changed(m.to, true);
    proj_sync_wait(c, n);
    return 0;
}
