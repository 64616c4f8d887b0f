/* The content of a project's files: what came from the client lies in the cache, what is written
   here in a backing file of the view's folder, leaf by leaf. Everything here is called with the
   view's lock. */
#include "fs/node/proj-int.h"

#include "base/fault.h"
#include "base/mem.h"
#include "base/util.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#define AHEAD_MAX (4u << 20)

/* A file's own copy of the stamp is its client state: changed content is another blob. */
int proj_file_want(struct pnode *n) {
    struct pfile *f = n->file;
    if (f->based)
        return 0;
    if (!n->at_client || !n->cst.size) {
        f->based = true;
        return 0;
    }
    uint8_t stamp[VG_HASH];
    vg_stamp(n->p->conf.machine, &n->cst, stamp);
    int rc = vg_blob_get(n->p->conf.cache, stamp, n->has_id ? n->id : NULL, n->cst.size, n->secret,
                         &f->blob);
    if (rc < 0)
        return rc;
    f->base = n->cst.size;
    f->based = true;
    return 0;
}

/* What was let through by hand never touches the node's disk. */
static int open_backing(struct pnode *n) {
    struct pfile *f = n->file;
    int fd = n->secret ? memfd_create("virga-secret", MFD_CLOEXEC) : proj_backing_open(n->p, f);
    if (fd < 0)
        return -errno;
    f->fd = fd;
    f->memory = n->secret;
    f->backing = true;
    return 0;
}

int proj_pin(struct pnode *n, bool make) {
    struct pfile *f = n->file;
    if (f->fd < 0) {
        int rc = f->backing || make ? open_backing(n) : -ENOENT;
        if (rc < 0)
            return rc;
    }
    if (n->nwrite && !f->held) { /* it will be written again: open until it is closed */
        f->held = true;
        f->pins++;
    }
    f->pins++;
    return f->fd;
}

void proj_unpin(struct pnode *n) {
    struct pfile *f = n->file;
    if (--f->pins == 0 && !f->memory)
        vg_close(&f->fd);
}

void proj_unhold(struct pnode *n) {
    if (n->file->held) {
        n->file->held = false;
        proj_unpin(n);
    }
}

bool proj_leaf_here(const struct pfile *f, uint64_t leaf) {
    if (leaf * VG_LEAF >= f->base)
        return true;
    return leaf / 8 < f->n_have && (f->have[leaf / 8] >> (leaf % 8) & 1);
}

static int leaf_set(struct pfile *f, uint64_t leaf) {
    if (leaf * VG_LEAF >= f->base)
        return 0;
    if (leaf / 8 >= f->n_have) {
        uint64_t n = vg_leaves(f->base) / 8 + 1;
        uint8_t *have = vg_realloc(f->have, n);
        if (!have)
            return -ENOMEM;
        memset(have + f->n_have, 0, n - f->n_have);
        f->have = have;
        f->n_have = n;
    }
    f->have[leaf / 8] = (uint8_t)(f->have[leaf / 8] | 1u << (leaf % 8));
    return 0;
}

/* Here, or in the cache. */
static bool leaf_there(const struct pfile *f, uint64_t leaf) {
    return proj_leaf_here(f, leaf) || (f->blob && vg_blob_has_leaf(f->blob, leaf));
}

static uint64_t first_missing(const struct pfile *f, uint64_t from, uint64_t end) {
    while (from < end && leaf_there(f, from / VG_LEAF))
        from = (from / VG_LEAF + 1) * VG_LEAF;
    return from;
}

/* How far to read: small files whole, big ones as far as programs seem to go. */
static uint64_t fetch_end(const struct pfile *f, uint64_t off, uint64_t end) {
    if (f->base <= PROJ_FETCH_SMALL)
        return f->base;
    uint64_t ahead = off == f->ahead ? VG_MIN(AHEAD_MAX, VG_MAX(2 * (end - off), VG_LEAF)) : 0;
    return VG_MIN(f->base, end + ahead);
}

/* Asks the client for what is missing of [off, end). 0 when nothing is. */
int proj_fetch_data(struct pnode *n, uint64_t off, uint64_t end, unsigned urgency) {
    struct pfile *f = n->file;
    end = VG_MIN(end, f->base);
    uint64_t from = first_missing(f, off / VG_LEAF * VG_LEAF, end);
    if (from >= end)
        return 0;
    uint64_t object = proj_object(n);
    if (!object) {
        if (!n->names || !proj_learn(n->p, n))
            return -EIO;  /* the client has removed it, and nobody has its bytes any more */
        return PROJ_WAIT; /* the folder's new record tells its number, and wakes */
    }
    uint64_t upto = fetch_end(f, off, end), stop = from;
    while (stop < upto && !leaf_there(f, stop / VG_LEAF))
        stop += VG_LEAF;
    vg_links_get_data(n->p->conf.links, object, from, stop - from, urgency);
    return PROJ_WAIT;
}

/* Of a file that was changed here: what comes goes straight into the backing. */
int proj_take_data(struct pnode *n, uint64_t off, const uint8_t *data, size_t len) {
    struct pfile *f = n->file;
    int fd = proj_pin(n, true), rc = 0;
    if (fd < 0)
        return fd;
    for (uint64_t at = off; rc == 0 && at < off + len && at < f->base; at += VG_LEAF) {
        uint64_t stop = VG_MIN(at + VG_LEAF, f->base);
        if (proj_leaf_here(f, at / VG_LEAF) || stop > off + len)
            continue;
        ssize_t w = pwrite(fd, data + (at - off), stop - at, (off_t)at);
        rc = w == (ssize_t)(stop - at) ? leaf_set(f, at / VG_LEAF) : w < 0 ? -errno : -ENOSPC;
    }
    proj_unpin(n);
    return rc;
}

/* What the cache has cannot be opened: it counts as missing, and is asked for again. */
void proj_blob_lost(struct pnode *n) {
    struct pfile *f = n->file;
    if (!f->backing) {
        proj_file_drop(n);
        return;
    }
    vg_blob_put(f->blob);
    f->blob = NULL;
}

static int copy_leaf(struct pnode *n, uint64_t leaf, int fd, int from) {
    uint64_t off = leaf * VG_LEAF, end = VG_MIN(off + VG_LEAF, n->file->base);
    uint8_t *buf = malloc(VG_LEAF);
    if (!buf)
        return -ENOMEM;
    int rc = 0;
    ssize_t got = pread(from, buf, end - off, (off_t)off);
    if (got != (ssize_t)(end - off))
        rc = -EIO;
    else if (pwrite(fd, buf, (size_t)got, (off_t)off) != got)
        rc = errno ? -errno : -ENOSPC;
    free(buf);
    return rc;
}

static int bring_leaf(struct pnode *n, uint64_t leaf, int fd, struct pctx *c) {
    struct pfile *f = n->file;
    uint64_t off = leaf * VG_LEAF, end = VG_MIN(off + VG_LEAF, f->base);
    int rc = proj_fetch_data(n, off, end, 0);
    if (rc) {
        c->park = &f->waiting;
        return rc;
    }
    if (!f->blob)
        return -EIO;
    int from = vg_blob_pin(f->blob);
    if (from < 0) {
        proj_blob_lost(n);
        rc = proj_fetch_data(n, off, end, 0);
        c->park = &f->waiting;
        return rc ? rc : -EIO;
    }
    rc = copy_leaf(n, leaf, fd, from);
    vg_blob_unpin(f->blob);
    return rc < 0 ? rc : leaf_set(f, leaf);
}

int proj_prepare(struct pnode *n, uint64_t off, uint64_t end, struct pctx *c) {
    struct pfile *f = n->file;
    int rc = proj_file_want(n);
    if (rc < 0)
        return rc;
    int fd = proj_pin(n, true);
    if (fd < 0)
        return fd;
    for (uint64_t leaf = off / VG_LEAF; rc == 0 && leaf * VG_LEAF < end; leaf++) {
        uint64_t a = leaf * VG_LEAF, b = VG_MIN(a + VG_LEAF, f->base);
        if (a >= f->base)
            break;
        if (proj_leaf_here(f, leaf))
            continue;
        rc = off <= a && end >= b ? leaf_set(f, leaf) : bring_leaf(n, leaf, fd, c);
    }
    proj_unpin(n);
    return rc;
}

static void dirty_list(struct pnode *n) {
    struct pfile *f = n->file;
    if (!vg_list_empty(&f->dirty_link))
        return;
    f->dirty_since = vg_now_usec();
    vg_list_push_back(&n->p->dirty, &f->dirty_link);
}

int proj_dirty_room(struct pnode *n) {
    struct pfile *f = n->file;
    if (vg_fault("proj-dirty") < 0)
        return -ENOMEM;
    struct prange *more = vg_grow(f->dirty, &f->cap_dirty, f->n_dirty + 2u, sizeof(*more));
    if (!more)
        return -ENOMEM;
    f->dirty = more;
    return 0;
}

/* Sorted, and what touches is joined. */
static void range_add(struct pfile *f, uint64_t off, uint64_t end) {
    unsigned i = 0;
    while (i < f->n_dirty && f->dirty[i].end < off)
        i++;
    unsigned j = i;
    while (j < f->n_dirty && f->dirty[j].off <= end) {
        off = VG_MIN(off, f->dirty[j].off);
        end = VG_MAX(end, f->dirty[j].end);
        f->dirty_bytes -= f->dirty[j].end - f->dirty[j].off;
        j++;
    }
    memmove(&f->dirty[i + 1], &f->dirty[j], (f->n_dirty - j) * sizeof(struct prange));
    f->n_dirty = f->n_dirty - (j - i) + 1;
    f->dirty[i] = (struct prange){off, end};
    f->dirty_bytes += end - off;
}

int proj_dirty(struct pnode *n, uint64_t off, uint64_t end) {
    struct pfile *f = n->file;
    f->touched = true;
    dirty_list(n);
    /* One without a name is sent whole if it ever gets one: nothing to keep count of. */
    if (end <= off || !n->names)
        return 0;
    if (proj_dirty_room(n) < 0) /* others took what was made sure of before the write */
        return -ENOMEM;
    range_add(f, off, end);
    if ((f->n_dirty >= PROJ_RANGES || f->dirty_bytes >= PROJ_DIRTY_FLUSH) &&
        (f->n_dirty >= PROJ_RANGES || !vg_oplog_data_full(n->p->log)))
        proj_flush_node(n);
    return 0;
}

void proj_dirty_cut(struct pnode *n, uint64_t size) {
    struct pfile *f = n->file;
    while (f->n_dirty && f->dirty[f->n_dirty - 1].end > size) {
        struct prange *r = &f->dirty[f->n_dirty - 1];
        uint64_t end = VG_MAX(r->off, size);
        f->dirty_bytes -= r->end - end;
        r->end = end;
        if (r->end > r->off)
            break;
        f->n_dirty--;
    }
}

void proj_dirty_all(struct pnode *n) {
    n->file->n_dirty = 0;
    n->file->dirty_bytes = 0;
    if (n->st.size)
        range_add(n->file, 0, n->st.size);
    n->file->touched = true;
    dirty_list(n);
}

/* What grows again is zero: the client's bytes beyond `base` do not count any more. */
int proj_truncate(struct pnode *n, uint64_t size) {
    struct pfile *f = n->file;
    int rc = 0;
    if (size == 0) { /* nothing of the client's is needed */
        vg_blob_put(f->blob);
        f->blob = NULL;
        f->base = 0;
        f->based = true;
    } else {
        rc = proj_file_want(n);
    }
    if (rc)
        return rc;
    int fd = proj_pin(n, true);
    if (fd < 0)
        return fd;
    if (ftruncate(fd, (off_t)size) < 0)
        rc = -errno;
    proj_unpin(n);
    if (rc < 0)
        return rc;
    f->base = VG_MIN(f->base, size);
    proj_dirty_cut(n, size);
    n->st.size = size;
    n->st.blocks = (size + 511) / 512;
    return 0;
}

void proj_before(const struct pnode *n, struct vg_oprec *r) {
    if (!n || !n->at_client)
        return;
    vg_stamp(n->p->conf.machine, &n->cst, r->before);
    r->has_before = true;
}

static struct vg_logent *data_entries(struct pnode *n, struct vg_oprec *r, unsigned *ret_n,
                                      struct vg_logent **out, size_t max) {
    struct pfile *f = n->file;
    unsigned k = 0;
    for (unsigned i = 0; i < f->n_dirty; i++)
        for (uint64_t off = f->dirty[i].off; off < f->dirty[i].end && k < max;) {
            r->off = off;
            r->len = VG_MIN(f->dirty[i].end, (off / VG_LEAF + 1) * VG_LEAF) - off;
            out[k] = vg_logent_new(n->p, r);
            if (!out[k])
                return NULL;
            off += r->len;
            k++;
        }
    *ret_n = k;
    return out[0];
}

static size_t count_pieces(const struct pfile *f) {
    size_t n = 0;
    for (unsigned i = 0; i < f->n_dirty; i++)
        n += (size_t)((f->dirty[i].end - 1) / VG_LEAF - f->dirty[i].off / VG_LEAF + 1);
    return n;
}

/* BEGIN, the writes, END: one group, since nothing else is added meanwhile. */
static int flush_group(struct pnode *n, const char *path) {
    size_t max = count_pieces(n->file);
    struct vg_logent **e = vg_alloc((max + 2) * sizeof(struct vg_logent *));
    if (!e)
        return -ENOMEM;
    struct vg_oprec r = {.kind = VG__MR__OP__KIND__BEGIN, .n = n, .name = path, .st = n->st};
    proj_before(n, &r);
    unsigned k = 0;
    e[0] = vg_logent_new(n->p, &r);
    struct vg_oprec w = {.n = n};
    bool ok = e[0] && (!max || data_entries(n, &w, &k, e + 1, max));
    r.kind = VG__MR__OP__KIND__END;
    if (ok)
        e[k + 1] = vg_logent_new(n->p, &r);
    ok = ok && e[k + 1];
    for (size_t i = 0; i < max + 2; i++)
        if (ok && e[i])
            n->pend = vg_oplog_add(n->p->log, e[i]);
        else
            vg_logent_free(e[i]);
    free(e);
    return ok ? 0 : -ENOMEM;
}

int proj_flush_node(struct pnode *n) {
    struct pfile *f = n->file;
    if (!f || (!f->n_dirty && !f->touched))
        return 0;
    if (!n->names)
        return 0; /* nobody will ever see it, unless it is linked: it stays dirty */
    vg_auto_free char *path = NULL;
    int rc = proj_node_path(n, &path);
    if (rc < 0)
        return rc;
    rc = flush_group(n, path);
    if (rc < 0)
        return rc;
    f->n_dirty = 0;
    f->dirty_bytes = 0;
    f->touched = false;
    vg_list_remove(&f->dirty_link);
    return 0;
}

/* The backing file stays, empty: a sender may have it open. */
void proj_file_drop(struct pnode *n) {
    struct pfile *f = n->file;
    vg_blob_put(f->blob);
    f->blob = NULL;
    f->based = false;
    f->base = 0;
    f->n_have = 0;
    free(f->have);
    f->have = NULL;
    int fd = f->backing ? proj_pin(n, false) : -1;
    if (fd >= 0) {
        if (ftruncate(fd, 0) < 0)
            n->denied = true; /* never serve a mixture: the disk is broken */
        proj_unpin(n);
    }
    f->ahead = f->asked = 0;
    proj_wake(n->p, &f->waiting);
}

/* Whoever has the old backing open goes on with the new one: the number stays. */
void proj_file_secret(struct pnode *n, bool secret) {
    struct pfile *f = n->file;
    if (n->secret == secret)
        return;
    if (!f) {
        n->secret = secret;
        return;
    }
    proj_file_drop(n);
    n->secret = secret;
    if (!f->backing)
        return;
    if (!f->memory)
        proj_backing_remove(n->p, f, false);
    int old = f->fd, rc = 0;
    f->fd = -1;
    f->backing = f->memory = false;
    if (old < 0)
        return;
    if (f->pins == 0) {
        close(old);
        return;
    }
    rc = open_backing(n);
    if (rc == 0 && dup3(f->fd, old, O_CLOEXEC) < 0)
        rc = -errno;
    vg_close(&f->fd);
    f->fd = old;
    f->backing = true;
    if (rc < 0)
        n->denied = true; /* neither read nor written again: it lies where it must not */
}
