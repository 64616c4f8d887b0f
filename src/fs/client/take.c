/* What a node says. It is not trusted: numbers are looked up, lengths are bounded, and what it may
   not have is refused. */
#include "fs/client/svc.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define RANGES_MAX 1024u
/* What we do ourselves is told by the kernel, too: with thousands of operations in one turn its
   queue would overflow, and everything would count as changed. */
#define OPS_A_DRAIN 512u

static void enqueue_demand(struct vg_mlink *l, struct vg_mitem *it, bool ahead) {
    it->ahead = ahead;
    if (ahead)
        return; /* at the end, where it is */
    vg_list_for_each (at, &l->queue[VG_MP_DEMAND]) {
        if (at == &it->link)
            return;
        if (!vg_list_entry(at, struct vg_mitem, link)->ahead)
            continue;
        vg_list_remove(&it->link);
        vg_list_push_back(at, &it->link); /* before the first that nobody waits for */
        return;
    }
}

static void take_hurry(struct vg_mlink *l, uint64_t req) {
    vg_list_for_each_safe (at, &l->queue[VG_MP_DEMAND]) {
        struct vg_mitem *it = vg_list_entry(at, struct vg_mitem, link);
        if (it->req != req || !it->ahead)
            continue;
        vg_list_remove(at);
        vg_list_push_back(&l->queue[VG_MP_DEMAND], at);
        enqueue_demand(l, it, false);
    }
}

static int take_get(struct vg_mlink *l, const Vg__Mr__Get *g) {
    if (!g->has_req || !g->req || !g->has_object || g->n_range > RANGES_MAX)
        return -EPROTO;
    if (g->has_hurry && g->hurry) {
        take_hurry(l, g->req);
        return 0;
    }
    bool ahead = g->has_urgency && g->urgency;
    bool xattrs = g->has_xattrs && g->xattrs;
    l->m->demands += !ahead;
    if (!ahead)
        vg_asked(l, g);
    if (g->n_range == 0 || xattrs) {
        struct vg_mitem *it =
            vg_mitem_new(l, xattrs ? VG_MI_XATTR : VG_MI_DIR, VG_MP_DEMAND, g->req, g->object);
        if (!it)
            return -ENOMEM;
        enqueue_demand(l, it, ahead);
        return 0;
    }
    for (size_t i = 0; i < g->n_range; i++) {
        const Vg__Mr__Range *r = g->range[i];
        uint64_t at = r->has_offset ? r->offset : 0, n = r->has_length ? r->length : 0;
        if (at > INT64_MAX || n > INT64_MAX - at)
            return -EPROTO;
        struct vg_mitem *it = vg_mitem_new(l, VG_MI_DATA, VG_MP_DEMAND, g->req, g->object);
        if (!it)
            return -ENOMEM;
        it->at = at - at % VG_LEAF;
        it->end = at + (n ? n : 1);
        it->again = g->has_again && g->again;
        enqueue_demand(l, it, ahead);
    }
    return 0;
}

static int take_skip(struct vg_mlink *l, const Vg__Mr__Skip *s) {
    for (size_t i = 0; i < s->n_object; i++) {
        const struct vg_cobj *o = vg_ctree_get(l->m->tree, s->object[i]);
        struct vg_cobj *folder = o ? vg_cobj_parent(o) : NULL;
        /* It speaks of the record that it was told: of another state it knows nothing. */
        if (folder && vg_mpeer_current(l->peer, folder)) {
            vg_mpeer_has_all(l->peer, o);
            l->m->skipped++;
        }
    }
    return 0;
}

/* The root of a view. An operation may take the link of another task than its own. */
static struct vg_cobj *view_root(struct vg_mirror *m, uint32_t view) {
    vg_list_for_each (it, &m->tasks) {
        const struct vg_mirror_task *t = vg_list_entry(it, struct vg_mirror_task, link);
        for (size_t i = 0; i < t->n_view; i++)
            if (vg_cobj_view_id(t->view_root[i]) == view)
                return t->view_root[i];
    }
    return NULL;
}

/* The object that an operation names, if the tree knows it. */
static struct vg_cobj *named(struct vg_mlink *l, const Vg__Mr__Op *op) {
    struct vg_cobj *o = view_root(l->m, op->view);
    const char *p = (const char *)op->name.data;
    size_t left = op->has_name ? op->name.len : 0;
    while (o && left) {
        const char *slash = memchr(p, '/', left);
        size_t n = slash ? (size_t)(slash - p) : left;
        char name[256];
        if (n >= sizeof(name))
            return NULL;
        memcpy(name, p, n);
        name[n] = 0;
        if (n)
            o = vg_cobj_kid(o, name);
        p += slash ? n + 1 : n;
        left -= slash ? n + 1 : n;
    }
    return o;
}

static bool is_empty(struct vg_ctree *t, const struct vg_cobj *folder) {
    int fd = vg_cobj_open(t, folder, O_RDONLY | O_DIRECTORY);
    struct vg_scan scan;
    if (fd < 0 || vg_scan_folder(fd, false, &scan) < 0)
        return false;
    bool empty = scan.n == 0;
    vg_scan_done(&scan);
    return empty;
}

/* A node knows the folders that it made without having been told of them: they are watched as if it
   had been. What came in before the watch did makes it look again. */
static void watch_made(struct vg_mlink *l, struct vg_mpeer *by, const Vg__Mr__Op *op) {
    struct vg_cobj *o = named(l, op);
    const struct vg_mstat *st = o ? vg_cobj_told(o) : NULL;
    if (!st || !S_ISDIR(st->mode) || vg_cobj_served(o))
        return;
    int r = vg_watch_add(l->m->watch, o);
    vg_cobj_set_served(o);
    vg_mpeer_told(by, o, vg_ctree_seq(l->m->tree));
    if (r < 0 || !is_empty(l->m->tree, o))
        vg_cobj_changed(l->m->tree, o);
}

static int take_op(struct vg_mlink *l, const Vg__Mr__Op *op) {
    struct vg_mpeer *p = l->peer; /* outlives the link, which ends when a note cannot be sent */
    if (!p->apply)
        return -EPROTO; /* before it said who it is */
    vg_ctree_actor(l->m->tree, p->daemon);
    int r = vg_apply_op(p->apply, op);
    vg_ctree_actor(l->m->tree, NULL);
    if (r == 0 && op->has_kind && op->kind == VG__MR__OP__KIND__MKDIR)
        watch_made(l, p, op);
    if (++l->m->performed % OPS_A_DRAIN == 0)
        vg_watch_drain(l->m->watch);
    return r;
}

static int take_write(struct vg_mlink *l, const struct vg_mw_frame *f) {
    if (!l->peer->apply)
        return -EPROTO;
    vg_ctree_actor(l->m->tree, l->peer->daemon);
    int r = vg_apply_write(l->peer->apply, f->op, f->object, f->offset, f->data, f->len);
    vg_ctree_actor(l->m->tree, NULL);
    return r;
}

static int take_trace(struct vg_mlink *l, const Vg__Mr__Trace *t) {
    vg_list_for_each (it, &l->m->tasks) {
        struct vg_mirror_task *task = vg_list_entry(it, struct vg_mirror_task, link);
        if (t->has_task && task->id == t->task)
            return vg_mtask_trace(task, t);
    }
    return 0;
}

static int take_forget(struct vg_mlink *l, const Vg__Mr__Watch *w) {
    for (size_t i = 0; i < w->n_forget; i++) {
        struct vg_cobj *o = vg_ctree_get(l->m->tree, w->forget[i]);
        bool told = false;
        vg_mpeer_forget(l->peer, w->forget[i]);
        vg_list_for_each (it, &l->m->peers) {
            struct vg_mpeer *p = vg_list_entry(it, struct vg_mpeer, link);
            told = told || vg_map_get_u64(&p->told, w->forget[i]);
        }
        if (o && !told)
            vg_watch_forget(l->m->watch, o);
    }
    return 0;
}

static int take_hello(struct vg_mlink *l, const Vg__Mr__NodeHello *h) {
    bool known;
    if (l->hello || !h->has_version || h->version != 1)
        return -EPROTO;
    int r = vg_mpeer_name(l, h, &known);
    if (r < 0)
        return r;
    l->hello = true;
    vg_apply_from(l->peer->apply, h->next_op);
    if (l->task)
        l->task->greetings++;
    for (size_t i = 0; l->task && r == 0 && i < l->task->n_view; i++)
        r = vg_apply_allow(l->peer->apply, vg_cobj_view_id(l->task->view_root[i]),
                           l->task->view_root[i]);
    if (r == 0) /* it is told first what changed before it was known whose link this is */
        vg_mlink_greeted(l, known);
    return r;
}

int vg_mlink_take(struct vg_mlink *l, struct vg_mw_frame *f) {
    if (f->kind == VG_MW_WRITE)
        return take_write(l, f);
    if (f->kind != VG_MW_MSG)
        return -EPROTO;
    switch (f->msg->body_case) {
    case VG__MR__MSG__BODY_NODE_HELLO:
        return take_hello(l, f->msg->node_hello);
    case VG__MR__MSG__BODY_GET:
        return take_get(l, f->msg->get);
    case VG__MR__MSG__BODY_SKIP:
        return take_skip(l, f->msg->skip);
    case VG__MR__MSG__BODY_OP:
        return take_op(l, f->msg->op);
    case VG__MR__MSG__BODY_TRACE:
        return take_trace(l, f->msg->trace);
    case VG__MR__MSG__BODY_WATCH:
        return take_forget(l, f->msg->watch);
    case VG__MR__MSG__BODY_MARKED:
        vg_mlink_marked(l, f->msg->marked->number);
        return 0;
    case VG__MR__MSG__BODY__NOT_SET: /* of a newer version */
        return 0;
    default:
        return -EPROTO;
    }
}
