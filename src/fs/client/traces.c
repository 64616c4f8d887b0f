/* Traces on disk: state/traces/<key>; and what of the state folder is old. */
#include "fs/client/svc.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>

#define TRACE_MAX (32u << 20)
#define VAGUE_ITEMS 20000u /* what many commands share is not collected for ever */
#define TRACE_DAYS 90
#define DAEMON_DAYS 14 /* what a node's daemon wrote here: of use while that one lives */

static char *file_of(const struct vg_mirror *m, const char *key) {
    return vg_fmt("%s/traces/%s", m->state, key);
}

static int load(const struct vg_mirror *m, const char *key, struct vg_trace *ret) {
    vg_auto_free char *path = file_of(m, key), *data = NULL;
    size_t n;
    if (!path)
        return -ENOMEM;
    int r = vg_read_file(path, TRACE_MAX, &data, &n);
    return r < 0 ? r : vg_trace_unpack(ret, data, n);
}

static int append(struct vg_trace *to, const struct vg_trace *from, const char *below) {
    size_t n = below ? strlen(below) : 0;
    int r = 0;
    for (size_t i = 0; r == 0 && i < from->n; i++) {
        const struct vg_trace_item *it = &from->item[i];
        if (below && (strncmp(it->path, below, n) != 0 || (it->path[n] && it->path[n] != '/')))
            continue;
        r = vg_trace_add(to, it->path, it->folder, it->leaf, it->n_leaf);
    }
    return r;
}

/* The command's own trace tells all. Of other uses of the program, and of other commands in the
   project what they read there, some may be useful beside a guess. */
int vg_mtask_load_trace(struct vg_mirror_task *t) {
    int r = t->n_key ? load(t->m, t->key[0], &t->trace) : -ENOENT;
    t->traced = r == 0;
    if (t->traced || r == -ENOMEM)
        return r;
    for (size_t i = 1; i < t->n_key; i++) {
        struct vg_trace other = {0};
        if (load(t->m, t->key[i], &other) == 0)
            r = append(&t->trace, &other, i == 1 ? NULL : t->project);
        vg_trace_done(&other);
        if (r == -ENOMEM)
            return r;
    }
    return -ENOENT;
}

static int save(struct vg_mirror_task *t, const char *key, bool whole) {
    struct vg_trace kept = {0};
    struct vg_buf packed = {0};
    vg_auto_free char *path = file_of(t->m, key);
    (void)load(t->m, key, &kept); /* none, or a broken one: begun anew */
    int r = path ? vg_trace_merge(&kept, &t->run, whole) : -ENOMEM;
    if (r == 0)
        r = vg_trace_pack(&kept, &packed);
    if (r == 0)
        r = vg_write_file(path, vg_buf_data(&packed), vg_buf_len(&packed), 0600);
    vg_buf_done(&packed);
    vg_trace_done(&kept);
    return r;
}

int vg_mtask_trace(struct vg_mirror_task *t, const Vg__Mr__Trace *m) {
    for (size_t i = 0; i < m->n_used; i++) {
        const Vg__Mr__Used *u = m->used[i];
        const struct vg_cobj *o = vg_ctree_get(t->m->tree, u->object);
        const struct vg_mstat *st = o ? vg_cobj_told(o) : NULL;
        char path[PATH_MAX];
        if (!o || vg_cobj_gone(o) || vg_cobj_path(o, path, sizeof(path)) < 0)
            continue;
        bool folder = !vg_cobj_parent(o) || (st && S_ISDIR(st->mode));
        if (u->n_leaf > VG_TRACE_LEAVES)
            return -EPROTO;
        int r = vg_trace_add(&t->run, path, folder, folder ? NULL : u->leaf,
                             folder ? 0 : (uint32_t)u->n_leaf);
        if (r == -ENOMEM)
            return r;
        if (r < 0)
            break; /* too much of it: the beginning is what counts */
    }
    if (m->has_more && m->more)
        return 0;
    bool whole = m->has_whole && m->whole;
    for (size_t i = 0; t->run.n && i < t->n_key; i++) {
        if (i > 0 && t->run.n > VAGUE_ITEMS)
            break;
        int r = save(t, t->key[i], i == 0 && whole);
        if (r < 0)
            vg_warn("cannot keep what the command used: %s", strerror(-r));
    }
    vg_trace_done(&t->run);
    t->run = (struct vg_trace){0};
    return 0;
}

/* Removes files that were not written for so long. */
static void tidy(const char *dir, const char *prefix, int64_t days) {
    DIR *d = dir ? opendir(dir) : NULL;
    const struct dirent *e;
    struct stat st;
    if (!d)
        return;
    int64_t limit = (int64_t)(vg_wall_usec() / VG_USEC) - days * 86400;
    while ((e = readdir(d)))
        if (strncmp(e->d_name, prefix, strlen(prefix)) == 0 &&
            fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
            st.st_mtime < limit)
            unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
}

void vg_mirror_tidy(const struct vg_mirror *m) {
    vg_auto_free char *traces = vg_fmt("%s/traces", m->state);
    tidy(traces, "", TRACE_DAYS);
    tidy(m->state, "applied-", DAEMON_DAYS);
    tidy(m->state, "left-", DAEMON_DAYS);
}
