/* What nodes asked for although it might have been foreseen: the first so many demands of the last
   run, and why each was not on its way already. For people who wonder what a command waited for. */
#include "fs/client/svc.h"

#include "base/mem.h"

#include <limits.h>
#include <string.h>

void vg_asked_clear(struct vg_masked_list *a) {
    for (size_t i = 0; i < a->n; i++)
        free(a->item[i].path);
    a->n = 0;
}

static const struct vg_trace_item *foreseen(const struct vg_trace *t, const char *path) {
    for (size_t i = 0; i < t->n; i++)
        if (strcmp(t->item[i].path, path) == 0)
            return &t->item[i];
    return NULL;
}

/* Folders above what was used are foreseen with it. */
static bool leads_somewhere(const struct vg_trace *t, const char *path) {
    size_t n = strcmp(path, "/") == 0 ? 0 : strlen(path);
    for (size_t i = 0; i < t->n; i++)
        if (strncmp(t->item[i].path, path, n) == 0 && t->item[i].path[n] == '/')
            return true;
    return false;
}

static bool queued(const struct vg_mlink *l, uint64_t object, bool folder, uint64_t leaf) {
    if (!folder && vg_mlink_reads(l, object, leaf * VG_LEAF))
        return true;
    for (int q = VG_MP_FOLDER; q < VG_MP_N; q++)
        vg_list_for_each (it, &l->queue[q]) {
            const struct vg_mitem *i = vg_list_entry(it, struct vg_mitem, link);
            if (i->object == object &&
                (folder ? i->kind == VG_MI_DIR : i->kind == VG_MI_DATA && i->end > leaf * VG_LEAF))
                return true;
        }
    return false;
}

static const char *why_folder(const struct vg_mlink *l, const struct vg_cobj *o, const char *path) {
    const struct vg_trace *t = &l->task->trace;
    if (vg_mpeer_current(l->peer, o))
        return "told";
    if (queued(l, vg_cobj_number(o), true, 0))
        return "queued";
    const struct vg_trace_item *i = foreseen(t, path);
    return (i && i->folder) || leads_somewhere(t, path) ? "not told" : "not foreseen";
}

static const char *why_leaf(const struct vg_mlink *l, const struct vg_cobj *o, const char *path,
                            uint64_t leaf) {
    if (vg_mpeer_has(l->peer, o, leaf))
        return "sent";
    if (queued(l, vg_cobj_number(o), false, leaf))
        return "queued";
    const struct vg_trace *t = &l->task->trace;
    bool named = false;
    for (size_t i = 0; i < t->n; i++) {
        const struct vg_trace_item *x = &t->item[i];
        if (strcmp(x->path, path) != 0)
            continue;
        named = true;
        for (uint32_t k = 0; k < x->n_leaf; k++)
            if (x->leaf[k] == leaf)
                return "not sent";
    }
    return named ? "another part" : "not foreseen";
}

void vg_asked(struct vg_mlink *l, const Vg__Mr__Get *g) {
    struct vg_masked_list *a = &l->m->asked;
    const struct vg_cobj *o = vg_ctree_get(l->m->tree, g->object);
    char path[PATH_MAX];
    if (!l->task || a->n == VG_ASKED_MAX || !o || vg_cobj_path(o, path, sizeof(path)) < 0)
        return;
    struct vg_masked *x = &a->item[a->n];
    *x = (struct vg_masked){.path = vg_strdup(path), .kind = VG_MI_DIR};
    if (!x->path)
        return;
    a->n++;
    if (g->has_xattrs && g->xattrs) {
        x->kind = VG_MI_XATTR;
        x->why = "never sent unasked";
    } else if (g->n_range) {
        x->kind = VG_MI_DATA;
        x->leaf = g->range[0]->offset / VG_LEAF;
        x->why = why_leaf(l, o, path, x->leaf);
    } else {
        x->why = why_folder(l, o, path);
    }
}
