/* Folders' records: the disk's entries, the tree's numbers, the policy's verdicts, the memo's ids.
 */
#include "fs/client/memo.h"
#include "fs/client/tree-int.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>

static bool same_thing(const struct vg_cobj *o, const struct vg_mstat *st) {
    return !o->known || (o->st.ino == st->ino && o->st.dev == st->dev &&
                         (o->st.mode & S_IFMT) == (st->mode & S_IFMT));
}

/* The entry's object: the one of that name, unless the name means another thing now. */
static struct vg_cobj *object_of(struct vg_ctree *t, struct vg_cobj *folder, const char *name,
                                 const struct vg_mstat *st) {
    struct vg_cobj *o = vg_map_get(&folder->kids, name);
    if (o && same_thing(o, st))
        return o;
    if (o) {
        vg_cobj_detach(t, o);
        o->gone = true;
    }
    return vg_cobj_new(t, folder, name);
}

static void take_ignore(struct vg_ctree *t, struct vg_cobj *folder, const char *path,
                        const struct vg_scan *scan) {
    if (!scan->ignore && !folder->ignore)
        return;
    struct vg_err err = VG_ERR_INIT;
    const char *text = scan->ignore ? (const char *)scan->ignore_text.base : "";
    size_t n = scan->ignore ? vg_buf_len(&scan->ignore_text) : 0;
    if (vg_mpolicy_ignore(t->policy, path, n ? text : "", n, &err) < 0)
        vg_warn("%s", err.msg);
    folder->ignore = scan->ignore;
}

struct adding {
    struct vg_ctree *t;
    struct vg_cobj *folder;
    struct vg_memo *memo;
    uint64_t seq;
    bool view;
    char path[PATH_MAX + NAME_MAX + 2];
    size_t at; /* where a name goes */
};

static int add_one(struct adding *a, const struct vg_scan *scan, const struct vg_scan_ent *e,
                   struct vg_buf *out) {
    const char *name = vg_scan_str(scan, e->name);
    size_t n = strlen(name);
    memcpy(a->path + a->at, name, n + 1);
    enum vg_verdict v = vg_mpolicy_ask(a->t->policy, a->path, (mode_t)e->st.mode, NULL);
    if (v == VG_IGNORE)
        return 0;
    struct vg_cobj *o = object_of(a->t, a->folder, name, &e->st);
    if (!o)
        return -ENOMEM;
    vg_cobj_know(a->t, o, &e->st);
    o->seen = a->seq;
    struct vg_dirent d = {
        .object = o->number,
        .st = e->st,
        .name = name,
        .name_len = (uint16_t)n,
    };
    uint8_t id[VG_HASH];
    if (e->target) {
        d.target = vg_scan_str(scan, e->target);
        d.target_len = (uint16_t)strlen(d.target);
    }
    if (v == VG_DENY)
        d.flags |= VG_DE_DENIED;
    if (v == VG_SECRET)
        d.flags |= VG_DE_SECRET;
    /* A project may lie where the environment shows nothing: below /tmp. */
    if ((v == VG_EMPTY && !a->view) || e->kernels)
        d.flags |= VG_DE_EMPTY;
    if (e->xattr && v == VG_SERVE)
        d.flags |= VG_DE_XATTR;
    if (v == VG_SERVE && S_ISREG(e->st.mode) && a->memo && vg_memo_id(a->memo, &e->st, id)) {
        d.flags |= VG_DE_ID;
        d.id = id;
    }
    return vg_dirrec_add(out, &d);
}

/* What the scan did not see is gone. */
static void drop_unseen(struct vg_ctree *t, struct vg_cobj *folder, uint64_t seq) {
    vg_map_for_each (s, &folder->kids) {
        struct vg_cobj *o = s->value;
        if (o->seen == seq)
            continue;
        vg_cobj_detach(t, o);
        o->gone = true;
    }
}

/* ---- records that are kept ---- */

#define RECORDS_MAX (32u << 20) /* bytes of all */

void vg_cobj_drop_record(struct vg_ctree *t, struct vg_cobj *folder) {
    t->record_bytes -= folder->record_len;
    free(vg_take_ptr(folder->record));
    folder->record_len = 0;
}

void vg_ctree_drop_records(struct vg_ctree *t) {
    t->records_from = ++t->seq;
}

/* Only what a watch vouches for; without memory it is made anew. */
static void keep(struct vg_ctree *t, struct vg_cobj *folder, const struct vg_scan *scan,
                 uint64_t seq, struct vg_buf *rec) {
    size_t n = vg_buf_len(rec);
    vg_cobj_drop_record(t, folder);
    if (folder->wd < 0 || scan->far || vg_cobj_in_view(folder) ||
        n > RECORDS_MAX - t->record_bytes || !(folder->record = vg_alloc(n)))
        return;
    memcpy(folder->record, vg_buf_data(rec), n);
    folder->record_len = n;
    folder->record_at = seq;
    folder->record_wd = folder->wd;
    folder->record_ctime = scan->st.ctime;
    t->record_bytes += n;
}

/* What a folder's watch does not show: changes in the folders below it, and of files through names
   that they have elsewhere. */
static bool unseen_is_so(const struct vg_cobj *folder, int fd) {
    struct vg_mstat now;
    struct stat st;
    if (fstat(fd, &st) < 0)
        return false;
    vg_mstat_from(&now, &st);
    if (now.ctime != folder->record_ctime)
        return false;
    vg_map_for_each (s, &folder->kids) {
        const struct vg_cobj *o = s->value;
        if (!o->known || !(S_ISDIR(o->st.mode) || (S_ISREG(o->st.mode) && o->st.nlink > 1)))
            continue;
        if (fstatat(fd, o->name, &st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) < 0)
            return false;
        vg_mstat_from(&now, &st);
        if (!vg_cobj_as_told(o, &now))
            return false;
    }
    return true;
}

static bool still_true(struct vg_ctree *t, const struct vg_cobj *folder) {
    if (folder->wd != folder->record_wd || folder->record_at < t->records_from)
        return false;
    vg_auto_fd int fd = vg_cobj_open(t, folder, O_PATH | O_DIRECTORY);
    return fd >= 0 && unseen_is_so(folder, fd);
}

bool vg_ctree_kept(struct vg_ctree *t, struct vg_cobj *folder, struct vg_buf *out,
                   uint64_t *ret_seq) {
    uint64_t seq = vg_ctree_scan_begins(t);
    if (!folder->record)
        return false;
    if (!still_true(t, folder)) {
        vg_cobj_drop_record(t, folder);
        return false;
    }
    if (vg_buf_append(out, folder->record, folder->record_len) < 0)
        return false;
    vg_dirrec_set_seq(out, seq);
    *ret_seq = seq;
    return true;
}

int vg_ctree_take(struct vg_ctree *t, struct vg_cobj *folder, const struct vg_scan *scan,
                  uint64_t seq, struct vg_memo *memo, struct vg_buf *out) {
    /* Events that a later scan had seen before they came were passed over: an earlier one's record
       would not be put right any more. */
    if (folder->changed > seq || folder->scanned > seq)
        return -EAGAIN;
    struct adding *a = vg_alloc(sizeof(*a));
    if (!a)
        return -ENOMEM;
    *a = (struct adding){.t = t, .folder = folder, .memo = memo, .seq = seq};
    a->view = vg_cobj_in_view(folder);
    int r = vg_cobj_path(folder, a->path, PATH_MAX);
    if (r < 0)
        goto out;
    enum vg_verdict v = vg_mpolicy_ask(t->policy, a->path, S_IFDIR, NULL);
    if ((v == VG_IGNORE || v == VG_DENY) && !folder->view) {
        r = v == VG_DENY ? -EACCES : -ENOENT;
        goto out;
    }
    take_ignore(t, folder, a->path, scan);
    a->at = strlen(a->path);
    if (a->at > 1)
        a->path[a->at++] = '/';
    if (!folder->parent || !folder->known) {
        folder->st = scan->st;
        folder->known = true;
    }
    r = vg_dirrec_begin(out, folder->number, a->seq, &scan->st);
    if ((v != VG_EMPTY || a->view) && !scan->kernels)
        for (size_t i = 0; r == 0 && i < scan->n; i++)
            r = add_one(a, scan, &scan->ent[i], out);
    if (r == 0)
        r = vg_dirrec_end(out);
    if (r == 0) {
        drop_unseen(t, folder, a->seq);
        folder->served = true;
        folder->scanned = seq;
        keep(t, folder, scan, a->seq, out);
    }
out:
    free(a);
    return r;
}

int vg_ctree_record(struct vg_ctree *t, struct vg_cobj *folder, struct vg_memo *memo,
                    struct vg_buf *out) {
    int fd = vg_cobj_open(t, folder, O_RDONLY | O_DIRECTORY | O_NONBLOCK);
    if (fd < 0)
        return fd;
    struct vg_scan scan;
    uint64_t seq = vg_ctree_scan_begins(t);
    int r = vg_scan_folder(fd, vg_cobj_in_view(folder), &scan);
    if (r < 0)
        return r;
    r = vg_ctree_take(t, folder, &scan, seq, memo, out);
    vg_scan_done(&scan);
    return r;
}
