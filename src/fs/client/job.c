/* What is to be sent, in the order of who waits for it; the reading is done by worker threads. */
#include "fs/client/job-int.h"

#include "base/mem.h"
#include "base/util.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#define TRIES 4
#define BULK_MAX (512u << 10) /* pushed bytes that may wait for the socket */
#define DEMAND_MAX (2u << 20)
static const unsigned jobs_max[VG_MP_N] = {8, 4, 3};

struct vg_mitem *vg_mitem_new(struct vg_mlink *l, enum vg_mitem_kind kind, enum vg_mprio prio,
                              uint64_t req, uint64_t object) {
    struct vg_mitem *it = vg_alloc(sizeof(*it));
    if (!it)
        return NULL;
    it->kind = kind;
    it->prio = prio;
    it->req = req;
    it->object = object;
    vg_list_push_back(&l->queue[prio], &it->link);
    return it;
}

void vg_mitem_free(struct vg_mitem *it) {
    vg_list_remove(&it->link);
    vg_buf_done(&it->buf);
    free(it);
}

int vg_mlink_fail(struct vg_mlink *l, uint64_t req, uint64_t object, int code, const char *text) {
    Vg__Mr__Fail fail = VG__MR__FAIL__INIT;
    Vg__Mr__Msg msg = VG__MR__MSG__INIT;
    if (!req)
        return 0; /* nobody asked */
    fail.has_req = fail.has_object = fail.has_errno_ = true;
    fail.req = req;
    fail.object = object;
    fail.errno_ = (uint32_t)(code < 0 ? -code : code);
    fail.text = (char *)text;
    msg.body_case = VG__MR__MSG__BODY_FAIL;
    msg.fail = &fail;
    return vg_mlink_msg(l, &msg);
}

/* A path was gone by, and what it leads to is another thing by now. */
static bool led_astray(int err) {
    return err == -ENOENT || err == -ENOTDIR || err == -ELOOP || err == -ESTALE || err == -EISDIR ||
           err == -ENXIO || err == -EXDEV;
}

static int fail_errno(struct vg_mlink *l, uint64_t req, const struct vg_cobj *o, int code) {
    char path[PATH_MAX], text[PATH_MAX + 128];
    if (vg_cobj_path(o, path, sizeof(path)) < 0)
        snprintf(path, sizeof(path), "a file");
    snprintf(text, sizeof(text), "%s: %s", path, strerror(-code));
    return vg_mlink_fail(l, req, vg_cobj_number(o), code, text);
}

/* The node looks again where it is then. */
static int fail_path(struct vg_mlink *l, uint64_t req, const struct vg_cobj *o, int code) {
    return fail_errno(l, req, o, led_astray(code) ? -ENOENT : code);
}

static void job_free(struct vg_job *j) {
    vg_list_remove(&j->link);
    vg_scan_done(&j->scan);
    vg_buf_done(&j->frame);
    j->m->jobs--;
    free(j);
}

/* The ordered queue: what is ready at its head goes out. */
static void send_ready(struct vg_mlink *l) {
    struct vg_list *first;
    while (!l->closed && (first = vg_list_first(&l->queue[VG_MP_FOLDER]))) {
        struct vg_mitem *it = vg_list_entry(first, struct vg_mitem, link);
        if (!it->ready)
            return;
        l->ran |= it->runs;
        if (vg_buf_len(&it->buf) && vg_mlink_put(l, true, &it->buf) < 0) {
            vg_mlink_close(l, "out of memory");
            return;
        }
        vg_mitem_free(it);
    }
}

static void item_over(struct vg_mlink *l, struct vg_mitem *it) {
    uint64_t object = it->object;
    bool push = it->prio == VG_MP_PUSH;
    vg_mitem_free(it);
    if (push)
        vg_mlink_announced(l, object);
}

/* Files of a folder that cannot be told of cannot be sent. */
static void fail_files_of(struct vg_mlink *l, const struct vg_cobj *folder, int code) {
    for (int q = 0; q < VG_MP_N; q++)
        vg_list_for_each_safe (at, &l->queue[q]) {
            struct vg_mitem *it = vg_list_entry(at, struct vg_mitem, link);
            struct vg_cobj *o = vg_ctree_get(l->m->tree, it->object);
            if (it->kind != VG_MI_DATA || !o || vg_cobj_parent(o) != folder)
                continue;
            fail_path(l, it->req, o, code);
            if (l->closed)
                return;
            item_over(l, it);
            if (l->closed)
                return;
        }
}

/* The worker went by a path. An operation may have moved the thing meanwhile, or a folder above it:
   then the path led nowhere, or to something else. Here nothing can come between. */
static bool moved_away(const struct vg_job *j, const struct vg_cobj *o) {
    if (vg_cobj_gone(o))
        return false;
    if (led_astray(j->err))
        return true;
    const struct vg_mstat *st = vg_cobj_told(o);
    return j->err == 0 && j->kind == VG_MI_DIR && st &&
           (st->ino != j->scan.st.ino || st->dev != j->scan.st.dev);
}

static void done_dir(struct vg_job *j) {
    struct vg_mlink *l = j->l;
    struct vg_cobj *folder = vg_ctree_get(j->m->tree, j->object);
    struct vg_buf rec = {0}, frames = {0};
    int r = moved_away(j, folder) ? -EAGAIN : j->err;
    j->m->folders_read++;
    if (r == 0 && j->scan.far)
        vg_watch_far(j->m->watch, folder);
    if (r == 0)
        r = vg_ctree_take(j->m->tree, folder, &j->scan, j->seq, j->m->memo, &rec);
    if (r == -EAGAIN) { /* changed under the scan: here nothing can come between */
        vg_buf_clear(&rec);
        j->seq = vg_ctree_seq(j->m->tree) + 1; /* that record's */
        r = vg_ctree_record(j->m->tree, folder, j->m->memo, &rec);
    }
    if (r == 0)
        r = vg_job_tell(l, folder, j->req, j->seq, j->level, &rec, &frames);
    vg_buf_done(&rec);
    if (r == 0)
        vg_mpeers_inval(
            j->m); /* a file's other names, whose folders did not see what this one has */
    if (r < 0) {
        vg_buf_done(&frames);
        frames = (struct vg_buf){0};
        fail_path(l, j->req, folder, r);
        if (!l->closed)
            fail_files_of(l, folder, r);
    }
    if (l->closed) {
        vg_buf_done(&frames);
    } else if (j->slot) {
        j->slot->buf = frames;
        j->slot->ready = true;
        send_ready(l);
    } else if (vg_buf_len(&frames) && vg_mlink_put(l, true, &frames) < 0) {
        vg_mlink_close(l, "out of memory");
    }
}

static void again(struct vg_job *j, struct vg_cobj *o) {
    struct vg_cobj *folder = vg_cobj_parent(o);
    struct vg_mitem *it = vg_mitem_new(j->l, VG_MI_DATA, j->waits ? VG_MP_DEMAND : j->prio,
                                       j->waits ? j->waits : j->req, j->object);
    if (!it) {
        vg_mlink_close(j->l, "out of memory");
        return;
    }
    it->at = j->read.offset;
    it->end = j->read.offset + 1;
    it->tries = j->tries + 1;
    if (folder)
        vg_cobj_changed(j->m->tree, folder);
    vg_mpeers_inval(j->m);
}

/* An id that became known belongs into the folder's record. */
static void learn(struct vg_job *j, const struct vg_cobj *o, uint64_t leaf) {
    struct vg_cobj *folder = vg_cobj_parent(o);
    if (vg_memo_leaf(j->m->memo, &j->read.st, leaf, j->read.hash, j->read.began_ns) > 0 && folder)
        vg_cobj_drop_record(j->m->tree, folder);
}

static void done_data(struct vg_job *j) {
    struct vg_mlink *l = j->l;
    struct vg_cobj *o = vg_ctree_get(j->m->tree, j->object);
    if (led_astray(j->err) && j->tries < TRIES && !vg_cobj_gone(o)) {
        again(j, o);
        return;
    }
    if (j->err < 0) {
        fail_path(l, j->waits ? j->waits : j->req, o, j->err);
        return;
    }
    uint64_t leaf = j->read.offset / VG_LEAF;
    j->m->leaves_read++;
    if (!j->read.torn_is_fine)
        learn(j, o, leaf);
    if (!j->read.torn_is_fine)
        vg_packed_put(j->m->packed, j->object, leaf, &j->read.want, &j->frame, vg_now_usec());
    vg_job_send_leaf(l, o, leaf, j->prio, j->prio == VG_MP_DEMAND || j->waits, &j->frame);
    if (j->waits && !l->closed)
        vg_mlink_say_sent(l, j->waits, j->object, leaf);
}

static void done_xattrs(struct vg_job *j) {
    const struct vg_cobj *o = vg_ctree_get(j->m->tree, j->object);
    char path[PATH_MAX];
    if (moved_away(j, o) && vg_cobj_path(o, path, sizeof(path)) >= 0) {
        j->read.path = path;
        vg_job_work(&j->work);
    }
    if (j->err < 0)
        fail_path(j->l, j->req, o, j->err);
    else if (vg_mlink_put(j->l, true, &j->frame) < 0)
        vg_mlink_close(j->l, "out of memory");
}

static void done(uv_work_t *w, int status) {
    struct vg_job *j = w->data;
    struct vg_mlink *l = j->l;
    if (status < 0)
        j->err = status;
    if (l) {
        l->jobs[j->prio]--;
        if (j->kind == VG_MI_DIR)
            done_dir(j);
        else if (j->kind == VG_MI_DATA)
            done_data(j);
        else
            done_xattrs(j);
    }
    bool alive = l && !l->closed, pushed = j->kind == VG_MI_DATA && j->prio == VG_MP_PUSH;
    uint64_t object = j->object;
    job_free(j);
    if (!alive)
        return;
    if (pushed)
        vg_mlink_announced(l, object);
    vg_mlink_work(l);
    vg_mlink_write(l);
}

void vg_mlink_drop_jobs(struct vg_mlink *l) {
    vg_list_for_each_safe (it, &l->jobs_list) {
        struct vg_job *j = vg_list_entry(it, struct vg_job, link);
        j->l = NULL;
        j->slot = NULL;
        vg_list_remove(it);
    }
}

static struct vg_job *job_new(struct vg_mlink *l, const struct vg_mitem *it, struct vg_cobj *o) {
    char path[PATH_MAX];
    if (vg_cobj_path(o, path, sizeof(path)) < 0)
        return NULL;
    struct vg_job *j = vg_alloc(sizeof(*j) + strlen(path) + 1);
    if (!j)
        return NULL;
    vg_list_init(&j->link);
    memcpy(j->path, path, strlen(path) + 1);
    j->work.data = j;
    j->m = l->m;
    j->l = l;
    j->kind = it->kind;
    j->prio = it->prio;
    j->req = it->req;
    j->object = vg_cobj_number(o);
    j->tries = it->tries;
    j->level = vg_mlink_level(l);
    j->read.root_fd = vg_ctree_root_fd(l->m->tree);
    j->read.path = j->path;
    return j;
}

static int job_start(struct vg_job *j) {
    int r = uv_queue_work(j->m->loop, &j->work, vg_job_work, done);
    if (r < 0) {
        free(j);
        return r;
    }
    j->m->jobs++;
    j->l->jobs[j->prio]++;
    vg_list_push_back(&j->l->jobs_list, &j->link);
    return 0;
}

static bool dir_under_way(const struct vg_mlink *l, uint64_t folder) {
    vg_list_for_each (it, &l->jobs_list) {
        const struct vg_job *j = vg_list_entry(it, struct vg_job, link);
        if (j->kind == VG_MI_DIR && j->object == folder)
            return true;
    }
    return false;
}

/* 0: it is being read. 1: it was told. */
static int start_dir(struct vg_mlink *l, const struct vg_mitem *it, struct vg_cobj *folder,
                     struct vg_mitem *slot) {
    int r = vg_watch_add(l->m->watch, folder);
    struct vg_mitem how = {.kind = VG_MI_DIR, .prio = it->prio, .req = it->req};
    if (it->kind != VG_MI_DIR)
        how.req = 0; /* a folder that must be known before its file */
    if (r == 0)
        r = vg_job_tell_kept(l, how.req, folder, slot);
    if (r)
        return r;
    struct vg_job *j = job_new(l, &how, folder);
    if (!j)
        return -ENOMEM;
    j->slot = slot;
    j->seq = vg_ctree_scan_begins(l->m->tree);
    j->xattrs = vg_cobj_in_view(folder);
    return job_start(j);
}

enum begun { BEGUN, WAITS, OVER }; /* a job runs; another must end first; the item is finished */

static enum begun start_leaf(struct vg_mlink *l, struct vg_mitem *it, struct vg_cobj *o) {
    const struct vg_mstat *st = vg_cobj_told(o);
    bool push = it->prio == VG_MP_PUSH;
    if (!st || !S_ISREG(st->mode)) {
        fail_errno(l, it->req, o, st && S_ISDIR(st->mode) ? -EISDIR : -EINVAL);
        return OVER;
    }
    uint64_t end = VG_MIN(it->end, st->size ? st->size : 1);
    if (push)
        while (it->at < end && (vg_mpeer_has(l->peer, o, it->at / VG_LEAF) ||
                                vg_mlink_reads(l, it->object, it->at)))
            it->at += VG_LEAF;
    while (!push && !it->again && !it->tries && it->at < end &&
           vg_mlink_met(l, it->req, it->object, it->at / VG_LEAF)) {
        if (l->closed)
            return OVER;
        it->at += VG_LEAF;
        it->once = true;
    }
    if (it->at >= end && (push || it->once))
        return OVER;
    if (push)
        vg_mlink_announce(l, it, end);
    if (l->closed)
        return OVER;
    struct vg_buf packed = {0};
    uint64_t leaf = it->at / VG_LEAF;
    if (!it->tries &&
        vg_packed_get(l->m->packed, it->object, leaf, st, it->req, &packed, vg_now_usec())) {
        it->once = true;
        it->at += VG_LEAF;
        vg_job_send_leaf(l, o, leaf, it->prio, !push, &packed);
        return it->at >= end ? OVER : BEGUN;
    }
    struct vg_job *j = job_new(l, it, o);
    if (!j)
        return OVER;
    j->read.want = *st;
    j->read.offset = it->at;
    j->read.torn_is_fine = it->tries >= TRIES;
    it->once = true;
    it->at += VG_LEAF;
    if (job_start(j) < 0) {
        vg_mlink_close(l, "out of memory");
        return OVER;
    }
    return it->at >= end ? OVER : BEGUN;
}

static enum begun start(struct vg_mlink *l, struct vg_mitem *it) {
    struct vg_cobj *o = vg_ctree_get(l->m->tree, it->object);
    if (!o || vg_cobj_gone(o)) {
        vg_mlink_fail(l, it->req, it->object, o ? ENOENT : ESTALE,
                      o ? "it was removed" : "this number means nothing here");
        return OVER;
    }
    if (!it->once && vg_job_refused(l, it, o))
        return OVER;
    if (it->kind == VG_MI_DIR) {
        if (it->prio != VG_MP_DEMAND && vg_mpeer_current(l->peer, o))
            return OVER;
        int r = start_dir(l, it, o, it->prio == VG_MP_FOLDER ? it : NULL);
        if (r < 0)
            fail_path(l, it->req, o, r);
        return r == 0 && it->prio == VG_MP_FOLDER ? BEGUN : OVER;
    }
    struct vg_cobj *folder = vg_cobj_parent(o);
    if (folder && !vg_mpeer_current(l->peer, folder)) {
        /* Folders that are to be pushed come by themselves. */
        if (it->prio == VG_MP_PUSH && !vg_list_empty(&l->queue[VG_MP_FOLDER]))
            return WAITS;
        int r = dir_under_way(l, vg_cobj_number(folder)) ? 0 : start_dir(l, it, folder, NULL);
        if (r < 0)
            fail_path(l, it->req, o, r);
        if (r <= 0)
            return r < 0 ? OVER : WAITS;
    }
    if (it->kind == VG_MI_DATA)
        return start_leaf(l, it, o);
    struct vg_job *j = job_new(l, it, o);
    const struct vg_mstat *st = vg_cobj_told(o);
    if (j && st)
        j->read.want = *st;
    if (j && job_start(j) < 0)
        vg_mlink_close(l, "out of memory");
    return OVER;
}

/* An item that comes out as OVER is freed, but for the ordered queue, where it is passed over. */
static void work_queue(struct vg_mlink *l, enum vg_mprio q, size_t backlog_max) {
    vg_list_for_each_safe (at, &l->queue[q]) {
        struct vg_mitem *it = vg_list_entry(at, struct vg_mitem, link);
        enum begun b = BEGUN;
        while (b == BEGUN && l->jobs[q] < jobs_max[q] && l->backlog < backlog_max) {
            b = start(l, it);
            if (l->closed)
                return;
        }
        l->more = l->more || (b == BEGUN && l->backlog >= backlog_max);
        if (b == OVER)
            item_over(l, it);
        else if (b == BEGUN || q == VG_MP_PUSH)
            return; /* enough is under way; pushes keep their order */
        if (l->closed)
            return;
    }
}

static void work_ordered(struct vg_mlink *l) {
    vg_list_for_each_safe (at, &l->queue[VG_MP_FOLDER]) {
        struct vg_mitem *it = vg_list_entry(at, struct vg_mitem, link);
        if (it->ready || it->jobs)
            continue;
        if (l->jobs[VG_MP_FOLDER] >= jobs_max[VG_MP_FOLDER])
            break;
        if (it->kind == VG_MI_MSG || start(l, it) == OVER)
            it->ready = true;
        else
            it->jobs = 1;
        if (l->closed)
            return;
    }
    send_ready(l);
}

/* Behind the last frame of the first flight: who keeps the task's files wants to know. */
static void say_pushed(struct vg_mlink *l) {
    Vg__Mr__Pushed p = VG__MR__PUSHED__INIT;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    struct vg_buf b = {0};
    p.has_task = true;
    p.task = l->task ? l->task->id : 0;
    m.body_case = VG__MR__MSG__BODY_PUSHED;
    m.pushed = &p;
    l->said_pushed = true;
    if (vg_mw_msg(&b, &m) < 0 || vg_mlink_put(l, false, &b) < 0) {
        vg_buf_done(&b);
        vg_mlink_close(l, "out of memory");
    }
}

static bool all_pushed(const struct vg_mlink *l) {
    return l->pushed && !l->said_pushed && vg_list_empty(&l->queue[VG_MP_FOLDER]) &&
           vg_list_empty(&l->queue[VG_MP_PUSH]) && !l->jobs[VG_MP_FOLDER] && !l->jobs[VG_MP_PUSH];
}

void vg_mlink_work(struct vg_mlink *l) {
    l->more = false;
    if (l->closed || l->broken)
        return;
    work_queue(l, VG_MP_DEMAND, DEMAND_MAX);
    if (!l->closed)
        work_ordered(l);
    if (!l->closed && l->ran)
        work_queue(l, VG_MP_PUSH, BULK_MAX);
    if (!l->closed && all_pushed(l))
        say_pushed(l);
}
