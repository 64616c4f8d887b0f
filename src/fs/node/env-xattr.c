/* Extended attributes: fetched once for the few files that have any. Only user.* and file
   capabilities are shown: trusted.* and system.* would speak to this node's kernel. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/node/env-int.h"

#include <errno.h>
#include <string.h>

#define XATTRS_MAX (128u << 10) /* bytes a file */

static bool is_shown(const char *name, size_t n) {
    return (n > 5 && !memcmp(name, "user.", 5)) ||
           (n == 19 && !memcmp(name, "security.capability", 19));
}

int vg_env_set_xattrs(struct env_node *n, const Vg__Mr__Fail *m) {
    struct vg_buf *b = vg_alloc(sizeof(*b));
    int r = b ? 0 : -ENOMEM;
    for (size_t i = 0; !r && i < m->n_xattr; i++) {
        const ProtobufCBinaryData *name = &m->xattr[i]->name, *value = &m->xattr[i]->value;
        uint32_t head[2] = {(uint32_t)name->len, (uint32_t)value->len};
        if (!is_shown((const char *)name->data, name->len) || name->len > 255 ||
            memchr(name->data, 0, name->len) || value->len > (64u << 10) ||
            vg_buf_len(b) + name->len + value->len > XATTRS_MAX)
            continue;
        if (vg_buf_append(b, head, sizeof(head)) < 0 ||
            vg_buf_append(b, name->data, name->len) < 0 ||
            (value->len && vg_buf_append(b, value->data, value->len) < 0))
            r = -ENOMEM;
    }
    if (r < 0) {
        if (b)
            vg_buf_done(b);
        free(b);
        return r;
    }
    n->xattrs = b;
    return 0;
}

struct xattr {
    const char *name, *value;
    uint32_t name_len, value_len;
};

static bool next(struct vg_buf *b, size_t *at, struct xattr *x) {
    uint32_t head[2];
    if (*at >= vg_buf_len(b))
        return false;
    memcpy(head, vg_buf_data(b) + *at, sizeof(head));
    x->name = (const char *)vg_buf_data(b) + *at + sizeof(head);
    x->name_len = head[0];
    x->value = x->name + head[0];
    x->value_len = head[1];
    *at += sizeof(head) + head[0] + head[1];
    return true;
}

/* 0: n->xattrs is there, or the node has none. 1: waits. -errno. */
static int have_xattrs(struct vg_env *e, struct env_node *n, struct env_node **ret_wait) {
    if (!(n->flags & VG_DE_XATTR) || n->xattrs)
        return 0;
    if (n->fail && vg_now_usec() - n->fail_usec < ENV_FAIL_USEC)
        return -n->fail;
    int r = vg_env_prove_node(e, n, ret_wait);
    if (r)
        return r;
    *ret_wait = n;
    return vg_links_get_xattrs(e->conf.links, n->object) ? 1 : -ENOMEM;
}

static int find(struct env_node *n, const char *name, struct vg_buf *out) {
    struct xattr x;
    size_t at = 0, len = strlen(name);
    while (n->xattrs && next(n->xattrs, &at, &x))
        if (x.name_len == len && !memcmp(x.name, name, len))
            return vg_buf_append(out, x.value, x.value_len);
    return -ENODATA;
}

static int list(struct env_node *n, struct vg_buf *out) {
    struct xattr x;
    size_t at = 0;
    int r = 0;
    while (!r && n->xattrs && next(n->xattrs, &at, &x))
        r = vg_buf_append(out, x.name, x.name_len) < 0 || vg_buf_append(out, "", 1) < 0 ? -ENOMEM
                                                                                        : 0;
    return r;
}

static void answer(struct vg_fuse_req *r, int code, struct vg_buf *b, uint32_t room) {
    struct fuse_getxattr_out size = {.size = (uint32_t)vg_buf_len(b)};
    if (code < 0)
        vg_fuse_err(r, -code);
    else if (!room)
        vg_fuse_ok(r, &size, sizeof(size));
    else if (vg_buf_len(b) > room)
        vg_fuse_err(r, ERANGE);
    else
        vg_fuse_ok(r, vg_buf_len(b) ? vg_buf_data(b) : NULL, vg_buf_len(b));
}

void vg_env_getxattr(struct env_call *c) {
    struct vg_env *e = c->e;
    const struct fuse_getxattr_in *in = vg_fuse_in(c->r, sizeof(*in));
    bool get = vg_fuse_head(c->r)->opcode == FUSE_GETXATTR;
    size_t len = 0;
    const char *name = in && get ? vg_fuse_str(c->r, sizeof(*in), &len) : NULL;
    if (!in || (get && !name)) {
        vg_fuse_err(c->r, EINVAL);
        return;
    }
    if (get && !is_shown(name, len)) {
        vg_fuse_err(c->r, ENODATA);
        return;
    }
    struct vg_buf out = {0};
    struct env_node *wait = NULL;
    pthread_mutex_lock(&e->lock);
    struct env_node *n = vg_env_node(e, vg_fuse_head(c->r)->nodeid);
    int r = n ? have_xattrs(e, n, &wait) : -ESTALE;
    if (r > 0) {
        vg_env_wait(c, wait);
        return;
    }
    if (!r)
        r = get ? find(n, name, &out) : list(n, &out);
    pthread_mutex_unlock(&e->lock);
    answer(c->r, r, &out, in->size);
    vg_buf_done(&out);
}
