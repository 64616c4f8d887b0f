/* What a link's node is told and sent: folders' records, leaves, and why something is refused. */
#include "fs/client/job-int.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>

/* The record's frames, for this link's node, which counts as told. */
int vg_job_tell(struct vg_mlink *l, struct vg_cobj *folder, uint64_t req, uint64_t seq, int level,
                struct vg_buf *rec, struct vg_buf *frames) {
    uint64_t number = vg_cobj_number(folder);
    int r = vg_mw_dir(frames, req, number, seq, vg_buf_data(rec), vg_buf_len(rec), level);
    if (r < 0)
        return r;
    /* Of this folder nothing changed since it was looked at. */
    vg_mpeer_told(l->peer, folder, vg_ctree_seq(l->m->tree));
    l->tellings++;
    if (vg_map_put_u64(&l->told, number, folder) < 0)
        vg_mpeer_forget(l->peer, number); /* so that it is told again */
    l->m->folders++;
    return 0;
}

/* What was told before and is still so need not be read again: 1, 0, or -errno. */
int vg_job_tell_kept(struct vg_mlink *l, uint64_t req, struct vg_cobj *folder,
                     struct vg_mitem *slot) {
    struct vg_buf rec = {0}, frames = {0};
    uint64_t seq;
    if (!vg_ctree_kept(l->m->tree, folder, &rec, &seq))
        return 0;
    int r = vg_job_tell(l, folder, req, seq, vg_mlink_level(l), &rec, &frames);
    vg_buf_done(&rec);
    if (r == 0 && slot) {
        slot->buf = frames;
        return 1;
    }
    if (r == 0)
        r = vg_mlink_put(l, true, &frames);
    vg_buf_done(&frames);
    return r < 0 ? r : 1;
}

void vg_job_send_leaf(struct vg_mlink *l, const struct vg_cobj *o, uint64_t leaf,
                      enum vg_mprio prio, bool urgent, struct vg_buf *frame) {
    bool push = prio == VG_MP_PUSH;
    *(push ? &l->m->pushed_bytes : &l->m->demand_bytes) += vg_buf_len(frame);
    vg_mpeer_sent(l->peer, o, leaf);
    if (vg_mlink_put_leaf(l, urgent, frame, push ? vg_cobj_number(o) : 0, leaf) < 0)
        vg_mlink_close(l, "out of memory");
}

/* Refused content: says why. True when it was. */
bool vg_job_refused(struct vg_mlink *l, const struct vg_mitem *it, const struct vg_cobj *o) {
    char path[PATH_MAX], text[PATH_MAX * 2 + 256];
    const char *why = NULL;
    if (vg_cobj_path(o, path, sizeof(path)) < 0) {
        vg_mlink_fail(l, it->req, it->object, ENAMETOOLONG, "a path is too long");
        return true;
    }
    const struct vg_mstat *st = vg_cobj_told(o);
    enum vg_verdict v = vg_mpolicy_ask(l->m->policy, path,
                                       st                      ? (mode_t)st->mode
                                       : it->kind == VG_MI_DIR ? S_IFDIR
                                                               : S_IFREG,
                                       &why);
    if (v == VG_SERVE || v == VG_SECRET ||
        (v == VG_EMPTY && (it->kind == VG_MI_DIR || vg_cobj_in_view(o))) ||
        vg_cobj_view_id(o)) /* a view's root was named by the person */
        return false;
    if (v == VG_IGNORE) {
        snprintf(text, sizeof(text), "%s is hidden by a .virgaignore", path);
        vg_mlink_fail(l, it->req, it->object, ENOENT, text);
        return true;
    }
    snprintf(text, sizeof(text), "%s stays on your machine: %s; vrun --allow %s lets it through",
             path, why ? why : "the policy says so", path);
    vg_mlink_fail(l, it->req, it->object, EACCES, text);
    return true;
}
