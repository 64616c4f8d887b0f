/* Extended attributes of a project's files: those of users, kept in memory, asked for once. Called
   with the view's lock; see proj-int.h for what a handler may do. */
#include "fs/node/proj-int.h"

#include "base/mem.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/xattr.h>

#define XATTRS_MAX (256u << 10) /* of one file, names and values */

static int known(struct pnode *n, struct pctx *c) {
    if (n->xattr_known)
        return 0;
    uint64_t object = proj_object(n);
    if (!object && n->names && n->at_client) { /* its folder's record tells the number */
        if (!proj_learn(n->p, n))
            return -EIO;
        c->park = &n->xattr_waiting;
        return PROJ_WAIT;
    }
    if (!object)
        return -EIO; /* gone at the client, and never asked for */
    if (!n->xattr_asked) {
        n->xattr_asked = true;
        n->xattr_req = vg_links_get_xattrs_anew(n->p->conf.links, object);
    }
    c->park = &n->xattr_waiting;
    return PROJ_WAIT;
}

/* As ext4 has it. */
static int check_name(const char *name) {
    if (strncmp(name, "user.", 5) != 0)
        return -EOPNOTSUPP;
    return name[5] ? 0 : -EINVAL;
}

static struct pxattr **find(struct pnode *n, const char *name) {
    struct pxattr **at = &n->xattr;
    while (*at && strcmp((*at)->name, name) != 0)
        at = &(*at)->next;
    return at;
}

static size_t total(const struct pnode *n) {
    size_t sum = 0;
    for (const struct pxattr *x = n->xattr; x; x = x->next)
        sum += strlen(x->name) + 1 + x->len;
    return sum;
}

static struct pxattr *xattr_new(const char *name, size_t name_len, const void *value, size_t len) {
    struct pxattr *x = vg_alloc(sizeof(*x) + len);
    if (!x)
        return NULL;
    x->name = vg_strndup(name, name_len);
    if (!x->name) {
        free(x);
        return NULL;
    }
    x->len = len;
    if (len)
        memcpy(x->value, value, len);
    return x;
}

static void xattr_free(struct pxattr *x) {
    if (x)
        free(x->name);
    free(x);
}

void proj_xattrs_drop(struct pnode *n, bool none) {
    while (n->xattr) {
        struct pxattr *x = n->xattr;
        n->xattr = x->next;
        xattr_free(x);
    }
    n->xattr_known = none;
    n->xattr_asked = false;
    proj_wake(n->p, &n->xattr_waiting); /* who waits asks again */
}

void proj_xattrs_come(struct pnode *n, const Vg__Mr__Fail *m) {
    if (n->xattr_known || m->req != n->xattr_req)
        return; /* of before the last change, perhaps */
    for (size_t i = 0; i < m->n_xattr; i++) {
        const Vg__Mr__Xattr *a = m->xattr[i];
        if (!a->has_name || !a->name.len || a->name.len > XATTR_NAME_MAX ||
            memchr(a->name.data, 0, a->name.len) || total(n) + a->value.len > XATTRS_MAX)
            continue;
        struct pxattr *x =
            xattr_new((const char *)a->name.data, a->name.len, a->value.data, a->value.len);
        if (!x)
            continue;
        x->next = n->xattr;
        n->xattr = x;
    }
    n->xattr_known = true;
    proj_wake(n->p, &n->xattr_waiting);
}

static int give(struct pctx *c, uint32_t size, const void *data, size_t len) {
    if (!size) {
        *(struct fuse_getxattr_out *)(void *)c->out =
            (struct fuse_getxattr_out){.size = (uint32_t)len};
        c->out_len = sizeof(struct fuse_getxattr_out);
        return 0;
    }
    if (len > size)
        return -ERANGE;
    c->big = vg_alloc(len + 1);
    if (!c->big)
        return -ENOMEM;
    if (len)
        memcpy(c->big, data, len);
    c->out_len = len;
    return 0;
}

static int list_names(struct pnode *n, struct pctx *c, uint32_t size) {
    size_t sum = 0;
    for (struct pxattr *x = n->xattr; x; x = x->next)
        sum += strlen(x->name) + 1;
    vg_auto_free char *all = vg_alloc(sum + 1);
    if (!all)
        return -ENOMEM;
    char *at = all;
    for (struct pxattr *x = n->xattr; x; x = x->next) {
        memcpy(at, x->name, strlen(x->name) + 1);
        at += strlen(x->name) + 1;
    }
    return give(c, size, all, sum);
}

int proj_op_getxattr(struct vg_proj *p, struct pctx *c, bool list) {
    const struct fuse_getxattr_in *in = vg_fuse_in(c->r, sizeof(*in));
    struct pnode *n = proj_node(p, c->h->nodeid);
    if (!in)
        return -EINVAL;
    const char *name = NULL;
    size_t len;
    if (!list) {
        name = vg_fuse_str(c->r, sizeof(*in), &len);
        if (!name)
            return -EINVAL;
        if (strncmp(name, "user.", 5) != 0)
            return strncmp(name, "system.", 7) ? -ENODATA : -EOPNOTSUPP;
        if (!name[5])
            return -EINVAL;
    }
    int rc = known(n, c);
    if (rc)
        return rc;
    if (list)
        return list_names(n, c, in->size);
    struct pxattr *x = *find(n, name);
    return x ? give(c, in->size, x->value, x->len) : -ENODATA;
}

static int log_xattr(struct pnode *n, const char *name, const void *value, size_t len,
                     struct vg_logent **ret) {
    vg_auto_free char *path = NULL;
    *ret = NULL;
    int rc = proj_node_path(n, &path);
    if (rc == -ENOENT)
        return 0;
    if (rc < 0)
        return rc;
    struct vg_oprec r = {.kind = VG__MR__OP__KIND__XATTR,
                         .n = n,
                         .name = path,
                         .st = n->st,
                         .xattr = name,
                         .data = value,
                         .data_len = len};
    *ret = vg_logent_new(n->p, &r);
    return *ret ? 0 : -ENOMEM;
}

static int change(struct vg_proj *p, struct pctx *c, struct pnode *n, const char *name,
                  struct pxattr *x) {
    if (vg_oplog_full(p->log)) {
        xattr_free(x);
        c->park = &p->room;
        return PROJ_WAIT;
    }
    struct vg_logent *e;
    int rc = log_xattr(n, name, x ? x->value : NULL, x ? x->len : 0, &e);
    if (rc < 0) {
        xattr_free(x);
        return rc;
    }
    struct pxattr **at = find(n, name), *old = *at;
    if (old)
        *at = old->next;
    if (x) {
        x->next = n->xattr;
        n->xattr = x;
    }
    xattr_free(old);
    proj_changed(n, false);
    if (e)
        n->pend = vg_oplog_add(p->log, e);
    return 0;
}

int proj_op_setxattr(struct vg_proj *p, struct pctx *c) {
    /* The short form of the structure, since the longer one was not agreed upon. */
    const struct fuse_setxattr_in *in = vg_fuse_in(c->r, FUSE_COMPAT_SETXATTR_IN_SIZE);
    struct pnode *n = proj_node(p, c->h->nodeid);
    size_t len;
    const char *name = in ? vg_fuse_str(c->r, FUSE_COMPAT_SETXATTR_IN_SIZE, &len) : NULL;
    if (!name || c->len < FUSE_COMPAT_SETXATTR_IN_SIZE + len + 1 + in->size)
        return -EINVAL;
    int rc = check_name(name);
    if (rc == 0)
        rc = known(n, c);
    if (rc)
        return rc;
    bool there = *find(n, name) != NULL;
    if (there && (in->flags & XATTR_CREATE))
        return -EEXIST;
    if (!there && (in->flags & XATTR_REPLACE))
        return -ENODATA;
    if (total(n) + in->size > XATTRS_MAX)
        return -ENOSPC;
    struct pxattr *x = xattr_new(name, len, name + len + 1, in->size);
    return x ? change(p, c, n, name, x) : -ENOMEM;
}

int proj_op_removexattr(struct vg_proj *p, struct pctx *c) {
    struct pnode *n = proj_node(p, c->h->nodeid);
    size_t len;
    const char *name = vg_fuse_str(c->r, 0, &len);
    if (!name)
        return -EINVAL;
    int rc = check_name(name);
    if (rc == 0)
        rc = known(n, c);
    if (rc)
        return rc;
    return *find(n, name) ? change(p, c, n, name, NULL) : -ENODATA;
}

/* All of them anew, for a copy. */
int proj_log_xattrs(struct pnode *n) {
    for (struct pxattr *x = n->xattr; x; x = x->next) {
        struct vg_logent *e;
        int rc = log_xattr(n, x->name, x->value, x->len, &e);
        if (rc < 0)
            return rc;
        if (e)
            n->pend = vg_oplog_add(n->p->log, e);
    }
    return 0;
}
