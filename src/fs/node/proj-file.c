/* Requests about a file of a project: open, read, write, attributes. Called with the view's lock;
   see proj-int.h for what a handler may do. */
#include "fs/node/proj-int.h"

#include "base/mem.h"
#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <string.h>

/* Logs an operation on the thing itself. One that has no name is nobody's business. */
static int log_node(struct pnode *n, struct vg_oprec *r, struct vg_logent **ret) {
    *ret = NULL;
    vg_auto_free char *path = NULL;
    int rc = proj_node_path(n, &path);
    if (rc == -ENOENT)
        return 0;
    if (rc < 0)
        return rc;
    r->n = n;
    r->name = path;
    *ret = vg_logent_new(n->p, r);
    return *ret ? 0 : -ENOMEM;
}

static void add_node(struct pnode *n, struct vg_logent *e) {
    if (e)
        n->pend = vg_oplog_add(n->p->log, e);
}

static int room(struct vg_proj *p, struct pctx *c) {
    if (!vg_oplog_full(p->log))
        return 0;
    c->park = &p->room;
    return PROJ_WAIT;
}

static int truncate_logged(struct pnode *n, uint64_t size) {
    struct vg_oprec r = {.kind = VG__MR__OP__KIND__TRUNCATE, .st = n->st};
    struct vg_logent *e;
    int64_t now = proj_now();
    r.st.size = size;
    r.st.mtime = now;
    proj_before(n, &r);
    int rc = log_node(n, &r, &e);
    if (rc < 0)
        return rc;
    rc = proj_truncate(n, size);
    if (rc) {
        vg_logent_free(e);
        return rc;
    }
    proj_changed(n, true);
    n->st.mtime = n->st.ctime = now;
    add_node(n, e);
    return 0;
}

static void attr_out(struct pctx *c, const struct pnode *n) {
    struct fuse_attr_out *o = (void *)c->out;
    memset(o, 0, sizeof(*o));
    o->attr_valid = VG_FUSE_FOREVER;
    proj_attr(n, &o->attr);
    c->out_len = sizeof(*o);
}

int proj_op_getattr(struct vg_proj *p, struct pctx *c) {
    attr_out(c, proj_node(p, c->h->nodeid));
    return 0;
}

static int64_t time_in(uint64_t sec, uint32_t nsec) {
    return (int64_t)sec * 1000000000 + nsec;
}

static uint32_t valid_bits(uint32_t v) {
    uint32_t out = 0;
    out |= v & FATTR_MODE ? VG_MSET_MODE : 0u;
    out |= v & FATTR_UID ? VG_MSET_UID : 0u;
    out |= v & FATTR_GID ? VG_MSET_GID : 0u;
    out |= v & FATTR_ATIME ? VG_MSET_ATIME : 0u;
    out |= v & FATTR_MTIME ? VG_MSET_MTIME : 0u;
    return out;
}

/* Owners that it has already: programs that unpack set them for every file. */
static uint32_t unchanged(const struct vg_mstat *is, const struct vg_mstat *set) {
    return (is->uid == set->uid ? VG_MSET_UID : 0u) | (is->gid == set->gid ? VG_MSET_GID : 0u);
}

int proj_op_setattr(struct vg_proj *p, struct pctx *c) {
    const struct fuse_setattr_in *in = vg_fuse_in(c->r, sizeof(*in));
    struct pnode *n = proj_node(p, c->h->nodeid);
    if (!in)
        return -EINVAL;
    int rc = room(p, c);
    if (rc)
        return rc;
    struct vg_oprec r = {.kind = VG__MR__OP__KIND__SETATTR, .st = n->st};
    struct vg_logent *e = NULL;
    int64_t now = proj_now();
    r.valid = valid_bits(in->valid);
    if (in->valid & FATTR_MODE)
        r.st.mode = (n->st.mode & S_IFMT) | (in->mode & 07777);
    if (in->valid & FATTR_UID)
        r.st.uid = vg_fs_id_in(&p->conf.ids, in->uid);
    if (in->valid & FATTR_GID)
        r.st.gid = vg_fs_id_in(&p->conf.ids, in->gid);
    if (in->valid & FATTR_ATIME)
        r.st.atime = in->valid & FATTR_ATIME_NOW ? now : time_in(in->atime, in->atimensec);
    if (in->valid & FATTR_MTIME)
        r.st.mtime = in->valid & FATTR_MTIME_NOW ? now : time_in(in->mtime, in->mtimensec);
    uint32_t said = r.valid;
    r.valid &= ~unchanged(&n->st, &r.st);
    if (r.valid && (rc = log_node(n, &r, &e)) < 0)
        return rc;
    if (in->valid & FATTR_SIZE) {
        rc = n->file ? truncate_logged(n, in->size) : -EINVAL;
        if (rc) {
            vg_logent_free(e);
            return rc;
        }
    }
    if (said) {
        n->st.mode = r.st.mode;
        n->st.uid = r.st.uid;
        n->st.gid = r.st.gid;
        n->st.atime = r.st.atime;
        if (in->valid & FATTR_MTIME)
            n->st.mtime = r.st.mtime;
        proj_changed(n, false);
        if (e)
            add_node(n, e);
    }
    attr_out(c, n);
    proj_sync_wait(c, n);
    return 0;
}

int proj_op_readlink(struct vg_proj *p, struct pctx *c) {
    struct pnode *n = proj_node(p, c->h->nodeid);
    if (!n->target)
        return -EINVAL;
    size_t len = strlen(n->target);
    c->big = vg_memdup(n->target, len + 1);
    c->out_len = len;
    return c->big ? 0 : -ENOMEM;
}

int proj_open_file(struct pnode *n, uint32_t flags, struct pctx *c) {
    if (n->denied)
        return -EACCES;
    int rc = 0;
    proj_use(n->p, n);
    if (flags & O_TRUNC) {
        rc = room(n->p, c);
        if (rc == 0 && n->st.size)
            rc = truncate_logged(n, 0);
    } else if ((flags & O_ACCMODE) != O_WRONLY && n->at_client && n->cst.size &&
               n->cst.size <= PROJ_FETCH_SMALL && proj_file_want(n) == 0 && n->file->blob) {
        proj_fetch_data(n, 0, n->file->base, 0); /* on its way before the first read */
    }
    if (rc)
        return rc;
    n->nopen++;
    c->gave_open = 1;
    if ((flags & O_ACCMODE) != O_RDONLY) {
        n->nwrite++;
        c->gave_open = 2;
    }
    return 0;
}

int proj_op_open(struct vg_proj *p, struct pctx *c) {
    const struct fuse_open_in *in = vg_fuse_in(c->r, sizeof(*in));
    struct pnode *n = proj_node(p, c->h->nodeid);
    if (!in || !n->file)
        return n->dir ? -EISDIR : -EINVAL;
    int rc = proj_open_file(n, in->flags, c);
    if (rc)
        return rc;
    struct fuse_open_out *o = (void *)c->out;
    memset(o, 0, sizeof(*o));
    o->open_flags = FOPEN_KEEP_CACHE;
    if ((in->flags & O_ACCMODE) == O_RDONLY)
        o->open_flags |= VG_FOPEN_NOFLUSH; /* there is nothing to flush */
    c->out_len = sizeof(*o);
    c->gave_lookup = NULL;
    return 0;
}

/* Which descriptor has which part of what is read. */
struct piece {
    int fd; /* -1: zeroes */
    uint64_t off;
    size_t len;
};

static int plan(struct pnode *n, uint64_t off, uint64_t end, int here, int blob, struct piece *out,
                unsigned max) {
    struct pfile *f = n->file;
    unsigned k = 0;
    while (off < end && k < max) {
        uint64_t leaf = off / VG_LEAF, stop = VG_MIN(end, (leaf + 1) * VG_LEAF);
        int fd = here;
        if (!proj_leaf_here(f, leaf) && off >= f->base) {
            fd = -1; /* beyond the client's bytes, in a leaf that was never written here */
        } else if (!proj_leaf_here(f, leaf)) {
            fd = blob;
            stop = VG_MIN(stop, f->base);
        }
        if (k && out[k - 1].fd == fd)
            out[k - 1].len += (size_t)(stop - off);
        else
            out[k++] = (struct piece){fd, off, (size_t)(stop - off)};
        off = stop;
    }
    return (int)k;
}

static void read_ahead(struct pnode *n, uint64_t off, uint64_t end) {
    struct pfile *f = n->file;
    if (f->blob && f->base > PROJ_FETCH_SMALL && off == f->ahead && end < f->base &&
        end + (2u << 20) > f->asked) {
        f->asked = end + (4u << 20);
        proj_fetch_data(n, end, f->asked, 1);
    }
    f->ahead = end;
}

/* Everything that is needed from the client is in the cache, or asked for. */
static int data_there(struct pnode *n, uint64_t off, uint64_t end, struct pctx *c) {
    proj_use_data(n, off, end);
    int rc = proj_fetch_data(n, off, end, 0);
    if (rc)
        c->park = &n->file->waiting;
    return rc;
}

static int read_pieces(const struct piece *pc, int k, uint8_t *out) {
    for (int i = 0; i < k; i++) {
        size_t got = 0;
        while (pc[i].fd >= 0 && got < pc[i].len) {
            ssize_t r = pread(pc[i].fd, out + got, pc[i].len - got, (off_t)(pc[i].off + got));
            if (r < 0 && errno == EINTR)
                continue;
            if (r < 0)
                return -errno;
            if (r == 0)
                break;
            got += (size_t)r;
        }
        memset(out + got, 0, pc[i].len - got);
        out += pc[i].len;
    }
    return 0;
}

int proj_op_read(struct vg_proj *p, struct pctx *c) {
    const struct fuse_read_in *in = vg_fuse_in(c->r, sizeof(*in));
    struct pnode *n = proj_node(p, c->h->nodeid);
    if (!in || !n->file || in->size > VG_FUSE_IO)
        return -EINVAL;
    if (in->offset >= n->st.size)
        return 0;
    uint64_t off = in->offset, end = VG_MIN(off + in->size, n->st.size);
    struct pfile *f = n->file;
    int rc = proj_file_want(n);
    if (rc == 0)
        rc = data_there(n, off, end, c);
    if (rc)
        return rc;
    struct vg_blob *b = f->blob ? vg_blob_ref(f->blob) : NULL;
    int blob = b ? vg_blob_pin(b) : -1;
    if (b && blob < 0) { /* never zeroes instead of what could not be opened */
        vg_blob_put(b);
        proj_blob_lost(n);
        rc = proj_file_want(n);
        if (rc == 0)
            rc = data_there(n, off, end, c);
        return rc ? rc : -EIO;
    }
    int here = f->backing ? proj_pin(n, false) : -1;
    if (f->backing && here < 0) {
        if (blob >= 0)
            vg_blob_unpin(b);
        vg_blob_put(b);
        return here;
    }
    struct piece pc[16];
    int k = plan(n, off, end, here, blob, pc, VG_COUNT(pc));
    read_ahead(n, off, end);
    uint8_t *out = malloc(end - off);
    pthread_mutex_unlock(&p->lock);
    rc = out ? read_pieces(pc, k, out) : -ENOMEM;
    pthread_mutex_lock(&p->lock);
    if (here >= 0)
        proj_unpin(n);
    if (blob >= 0)
        vg_blob_unpin(b);
    vg_blob_put(b);
    if (rc < 0) {
        free(out);
        return rc;
    }
    c->big = out;
    c->out_len = end - off;
    return 0;
}

static int write_all(int fd, const uint8_t *data, size_t n, uint64_t off, size_t *ret) {
    size_t done = 0;
    int rc = 0;
    while (done < n) {
        ssize_t w = pwrite(fd, data + done, n - done, (off_t)(off + done));
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0) {
            rc = w < 0 ? -errno : -ENOSPC;
            break;
        }
        done += (size_t)w;
    }
    *ret = done;
    return done ? 0 : rc;
}

int proj_op_write(struct vg_proj *p, struct pctx *c) {
    const struct fuse_write_in *in = vg_fuse_in(c->r, sizeof(*in));
    struct pnode *n = proj_node(p, c->h->nodeid);
    if (!in || !n->file || c->len < sizeof(*in) + in->size)
        return -EINVAL;
    if (in->offset > (uint64_t)INT64_MAX - in->size)
        return -EFBIG;
    int rc = room(p, c);
    if (rc == 0)
        rc = proj_prepare(n, in->offset, in->offset + in->size, c);
    if (rc)
        return rc;
    if ((rc = proj_dirty_room(n)) < 0)
        return rc;
    int fd = proj_pin(n, true);
    if (fd < 0)
        return fd;
    n->file->touched = true; /* from here on the client's word does not replace it */
    size_t done = 0;
    pthread_mutex_unlock(&p->lock);
    rc = write_all(fd, (const uint8_t *)(in + 1), in->size, in->offset, &done);
    pthread_mutex_lock(&p->lock);
    proj_unpin(n);
    uint64_t end = in->offset + done;
    if (end > n->st.size) {
        n->st.size = end;
        n->st.blocks = (end + 511) / 512;
    }
    if (done)
        proj_changed(n, true);
    int noted = proj_dirty(n, in->offset, end);
    if (rc < 0 || noted < 0)
        return rc < 0 ? rc : noted;
    struct fuse_write_out *o = (void *)c->out;
    *o = (struct fuse_write_out){.size = (uint32_t)done};
    c->out_len = sizeof(*o);
    return 0;
}

int proj_op_flush(struct vg_proj *p, struct pctx *c) {
    struct pnode *n = proj_node(p, c->h->nodeid);
    if (!n->file)
        return 0;
    if (!p->sync && vg_oplog_data_full(p->log))
        return 0; /* it stays on the list of what is dirty */
    int rc = proj_flush_node(n);
    if (rc == 0)
        proj_sync_wait(c, n);
    return rc;
}

int proj_op_release(struct vg_proj *p, struct pctx *c) {
    const struct fuse_release_in *in = vg_fuse_in(c->r, sizeof(*in));
    struct pnode *n = proj_node(p, c->h->nodeid);
    if (!in || !n->file)
        return 0;
    if (!vg_oplog_data_full(p->log))
        proj_flush_node(n);
    if (n->nopen)
        n->nopen--;
    if ((in->flags & O_ACCMODE) != O_RDONLY && n->nwrite)
        n->nwrite--;
    if (!n->nwrite)
        proj_unhold(n);
    proj_node_maybe_free(p, n);
    return 0;
}

int proj_op_fsync(struct vg_proj *p, struct pctx *c) {
    struct pnode *n = proj_node(p, c->h->nodeid);
    int rc = proj_flush_node(n);
    if (rc < 0 || !p->sync)
        return rc;
    struct vg_oprec r = {.kind = VG__MR__OP__KIND__SYNC, .st = n->st};
    struct vg_logent *e;
    rc = log_node(n, &r, &e);
    if (rc < 0)
        return rc;
    add_node(n, e);
    proj_wait_for(c, n, n->pend);
    return 0;
}

static int zero_here(struct pnode *n, uint64_t off, uint64_t end, struct pctx *c) {
    int rc = proj_prepare(n, off, end, c);
    if (rc)
        return rc;
    int fd = proj_pin(n, true);
    if (fd < 0)
        return fd;
    struct stat st;
    uint64_t have = fstat(fd, &st) == 0 ? (uint64_t)st.st_size : 0;
    uint64_t stop = VG_MIN(end, have);
    if (off < stop && fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off,
                                (off_t)(stop - off)) < 0)
        rc = -errno;
    proj_unpin(n);
    return rc;
}

int proj_op_fallocate(struct vg_proj *p, struct pctx *c) {
    const struct fuse_fallocate_in *in = vg_fuse_in(c->r, sizeof(*in));
    struct pnode *n = proj_node(p, c->h->nodeid);
    uint32_t known = FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE;
    if (!in || !n->file)
        return -EINVAL;
    if (in->mode & ~known)
        return -EOPNOTSUPP;
    if (!in->length || in->offset > (uint64_t)INT64_MAX - in->length)
        return in->length ? -EFBIG : -EINVAL;
    int rc = room(p, c);
    if (rc)
        return rc;
    uint64_t end = in->offset + in->length;
    struct vg_oprec r = {.kind = VG__MR__OP__KIND__FALLOCATE,
                         .st = n->st,
                         .flags = in->mode,
                         .off = in->offset,
                         .len = in->length};
    struct vg_logent *e;
    int64_t now = proj_now();
    r.st.mtime = now;
    proj_before(n, &r);
    rc = log_node(n, &r, &e);
    if (rc < 0)
        return rc;
    if (in->mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
        rc = zero_here(n, in->offset, VG_MIN(end, n->st.size), c);
    else if ((rc = proj_file_want(n)) == 0 && (rc = proj_pin(n, true)) >= 0) {
        proj_unpin(n); /* from now on it is not as the client had it */
        rc = 0;
    }
    if (rc) {
        vg_logent_free(e);
        return rc;
    }
    if (!(in->mode & FALLOC_FL_KEEP_SIZE) && end > n->st.size) {
        n->st.size = end;
        n->st.blocks = (end + 511) / 512;
    }
    proj_changed(n, true);
    n->st.mtime = n->st.ctime = now;
    add_node(n, e);
    return 0;
}
