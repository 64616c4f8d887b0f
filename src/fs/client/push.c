/* The first flight of a run: what the node will ask for, before it can. */
#include "fs/client/svc.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>

#define CHANGED_MAX 64u /* folders told again before Run; the others are asked for */
/* A task starts when it knows the folders it will use, so that it asks for none; of very many it
   starts with the first. */
#define EARLY_FOLDERS 400u

static struct vg_cobj *object_at(struct vg_mirror_task *t, const char *path) {
    /* The innermost view that holds it; else the environment. */
    struct vg_cobj *root = NULL;
    size_t best = 0;
    for (size_t i = 0; i < t->n_view; i++) {
        size_t n = strlen(t->view[i]);
        if (n > best && strncmp(path, t->view[i], n) == 0 && (path[n] == '/' || !path[n])) {
            best = n;
            root = t->view_root[i];
        }
    }
    if (!root)
        return vg_ctree_walk(t->m->tree, path);
    path += best;
    while (*path == '/')
        path++;
    return vg_ctree_walk_in(t->m->tree, root, path);
}

static int push_folder(struct vg_mlink *l, struct vg_map *seen, struct vg_cobj *folder) {
    uint64_t n = vg_cobj_number(folder);
    if (vg_map_get_u64(seen, n))
        return 0;
    if (vg_map_put_u64(seen, n, folder) < 0)
        return -ENOMEM;
    if (vg_mpeer_current(l->peer, folder))
        return 0;
    return vg_mitem_new(l, VG_MI_DIR, VG_MP_FOLDER, 0, n) ? 0 : -ENOMEM;
}

/* A thing needs all the folders above it, uppermost first. */
static int push_above(struct vg_mlink *l, struct vg_map *seen, struct vg_cobj *o) {
    struct vg_cobj *up = vg_cobj_parent(o);
    if (!up || vg_map_get_u64(seen, vg_cobj_number(up)))
        return 0;
    int r = push_above(l, seen, up);
    return r < 0 ? r : push_folder(l, seen, up);
}

static int say_run(struct vg_mlink *l, bool early);

/* In between, when the beginning is there, the task may start. */
static int push_folders(struct vg_mlink *l, const struct vg_trace *t) {
    struct vg_map seen = {0};
    bool run = true;
    int r = 0;
    /* What every start needs: the root, the way to each view's mount point and the views. */
    struct vg_cobj *root = vg_ctree_get(l->m->tree, VG_OBJ_ROOT);
    r = push_folder(l, &seen, root);
    for (size_t i = 0; r == 0 && i < l->task->n_view; i++) {
        struct vg_cobj *o = vg_ctree_walk(l->m->tree, l->task->view[i]);
        if (o)
            r = push_above(l, &seen, o);
        if (r == 0)
            r = push_folder(l, &seen, l->task->view_root[i]);
    }
    for (size_t i = 0; r == 0 && i < t->n; i++) {
        struct vg_cobj *o = object_at(l->task, t->item[i].path);
        if (!o)
            continue; /* not there any more */
        r = push_above(l, &seen, o);
        if (r == 0 && t->item[i].folder)
            r = push_folder(l, &seen, o);
        if (r == 0 && run && vg_map_len(&seen) >= EARLY_FOLDERS) {
            r = say_run(l, false);
            run = false;
        }
    }
    if (r == 0 && run)
        r = say_run(l, false);
    vg_map_done(&seen);
    return r;
}

/* Folders that are no longer as some node was told, few as they are after an edit: their records
   come before Run, so that nobody has to ask for them. */
static int push_changed(struct vg_mlink *l) {
    struct vg_map seen = {0};
    int r = 0;
    vg_list_for_each (it, &l->m->peers) {
        struct vg_mpeer *p = vg_list_entry(it, struct vg_mpeer, link);
        vg_map_for_each (s, &p->stale) {
            struct vg_cobj *folder = vg_ctree_get(l->m->tree, s->hash);
            if (r == 0 && folder && !vg_cobj_gone(folder) && vg_mpeer_outdated(p, folder) &&
                vg_map_len(&seen) < CHANGED_MAX)
                r = push_folder(l, &seen, folder);
        }
    }
    vg_map_done(&seen);
    return r;
}

static int push_range(struct vg_mlink *l, uint64_t object, uint64_t from, uint64_t to) {
    struct vg_mitem *it = vg_mitem_new(l, VG_MI_DATA, VG_MP_PUSH, 0, object);
    if (!it)
        return -ENOMEM;
    it->at = from * VG_LEAF;
    it->end = to * VG_LEAF;
    return 0;
}

static int push_files(struct vg_mlink *l, const struct vg_trace *t) {
    int r = 0;
    for (size_t i = 0; r == 0 && i < t->n; i++) {
        const struct vg_trace_item *it = &t->item[i];
        struct vg_cobj *o = it->folder ? NULL : object_at(l->task, it->path);
        if (!o)
            continue;
        if (it->n_leaf == 0) /* opened only: it costs little to have it when it is small */
            r = push_range(l, vg_cobj_number(o), 0, 1);
        for (uint32_t a = 0, b; r == 0 && a < it->n_leaf; a = b) {
            for (b = a + 1; b < it->n_leaf && it->leaf[b] == it->leaf[b - 1] + 1;)
                b++;
            r = push_range(l, vg_cobj_number(o), it->leaf[a], (uint64_t)it->leaf[b - 1] + 1);
        }
    }
    return r;
}

static int say_hello(struct vg_mlink *l) {
    struct vg_mirror *m = l->m;
    Vg__Mr__Hello h = VG__MR__HELLO__INIT;
    Vg__Mr__Msg msg = VG__MR__MSG__INIT;
    h.has_version = h.has_machine = h.has_epoch = h.has_root = true;
    h.version = 1;
    h.machine = (ProtobufCBinaryData){VG_MID, m->machine};
    h.epoch = (ProtobufCBinaryData){VG_MID, m->epoch};
    h.root = VG_OBJ_ROOT;
    h.host = m->host;
    msg.body_case = VG__MR__MSG__BODY_HELLO;
    msg.hello = &h;
    return vg_mlink_msg(l, &msg);
}

static int stat_of(struct vg_mirror *m, const struct vg_cobj *root, struct vg_mstat *ret) {
    struct stat st;
    vg_auto_fd int fd = vg_cobj_open(m->tree, root, O_PATH | O_DIRECTORY);
    if (fd < 0 || fstat(fd, &st) < 0)
        return fd < 0 ? fd : -errno;
    vg_mstat_from(ret, &st);
    return 0;
}

/* Run, in its place behind the folders. */
static int queue_run(struct vg_mlink *l, const Vg__Mr__Run *run) {
    Vg__Mr__Msg msg = VG__MR__MSG__INIT;
    msg.body_case = VG__MR__MSG__BODY_RUN;
    msg.run = (Vg__Mr__Run *)run;
    struct vg_mitem *it = vg_mitem_new(l, VG_MI_MSG, VG_MP_FOLDER, 0, 0);
    if (!it)
        return -ENOMEM;
    it->runs = !run->early;
    return vg_mw_msg(&it->buf, &msg);
}

static int say_run(struct vg_mlink *l, bool early) {
    struct vg_mirror_task *t = l->task;
    size_t n = t->n_view + 1;
    vg_auto_free Vg__Mr__View *view = vg_alloc(n * sizeof(*view));
    vg_auto_free Vg__Mr__Stat *stat = vg_alloc(n * sizeof(*stat));
    vg_auto_free Vg__Mr__View **each = vg_alloc(n * sizeof(Vg__Mr__View *));
    if (!view || !stat || !each)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        struct vg_cobj *root = i ? t->view_root[i - 1] : vg_ctree_get(l->m->tree, VG_OBJ_ROOT);
        const char *path = i ? t->view[i - 1] : "/";
        struct vg_mstat st;
        int r = stat_of(l->m, root, &st);
        if (r < 0)
            return r;
        vg__mr__view__init(&view[i]);
        vg_mw_stat_to(&stat[i], &st);
        view[i].has_id = view[i].has_path = view[i].has_root = view[i].has_write = true;
        view[i].has_sync = true;
        view[i].id = vg_cobj_view_id(root);
        view[i].path = (ProtobufCBinaryData){strlen(path), (uint8_t *)path};
        view[i].root = vg_cobj_number(root);
        view[i].write = i > 0;
        view[i].sync = i > 0 && t->sync;
        view[i].stat = &stat[i];
        each[i] = &view[i];
    }
    Vg__Mr__Run run = VG__MR__RUN__INIT;
    run.has_task = run.has_strict = run.has_traced = run.has_seq = run.has_early = true;
    run.early = early;
    run.task = t->id;
    run.n_view = n;
    run.view = each;
    run.strict = t->strict;
    run.traced = t->traced;
    run.seq = vg_ctree_seq(l->m->tree);
    return queue_run(l, &run);
}

static int push_all(struct vg_mlink *l) {
    int r = push_folders(l, &l->task->trace);
    if (r == 0)
        r = push_files(l, &l->task->trace);
    l->pushed = true;
    return r;
}

/* When no node is known that was told anything, this one is new as well: everything goes out at
   once. Else the likeliest is that the task comes to one that knows: only what changed is said, and
   the rest when its hello has come. One that knows nothing waits for that. */
void vg_mlink_first_flight(struct vg_mlink *l) {
    int r = say_hello(l);
    vg_watch_drain(l->m->watch);
    vg_watch_recheck(l->m->watch);
    if (r == 0 && !l->closed)
        r = vg_mpeer_inval_all(l);
    bool guess_known = vg_mpeers_known(l->m);
    if (r == 0 && !l->closed && !guess_known) {
        r = push_all(l);
    } else if (r == 0 && !l->closed) {
        r = push_changed(l);
        if (r == 0)
            r = say_run(l, true);
    }
    if (r < 0)
        vg_mlink_close(l, strerror(-r));
    if (l->closed)
        return;
    vg_mpeers_inval(l->m);
    vg_mlink_work(l);
    vg_mlink_write(l);
}

void vg_mlink_greeted(struct vg_mlink *l, bool known) {
    /* Single records that came to a node without their way there are of no use to it. */
    if (!known && !l->pushed)
        vg_mpeer_doubt(l);
    vg_mpeers_inval(l->m); /* what changed since the first flight, when it had no name yet */
    if (l->closed || l->pushed || !l->task)
        return;
    int r = push_all(l); /* what it was told already is passed over one by one */
    if (r < 0)
        vg_mlink_close(l, strerror(-r));
}
