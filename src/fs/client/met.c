/* Demands for what is on its way already, because it was pushed: nothing is read or sent twice for
   them. What waits for the socket overtakes; what the socket has arrives first. Behind either goes
   a Sent, so that a node which could not believe what was pushed asks again.

   Big files are announced, so that who reads along asks for nothing. */
#include "fs/client/job-int.h"

#include "base/mem.h"
#include "base/util.h"

#include <errno.h>

#define RECENT_USEC (4 * VG_USEC) /* longer than slow links hold bytes back */
#define BIG (8u * VG_LEAF)

static uint64_t key(uint64_t object, uint64_t leaf) {
    return (object * 0x9e3779b97f4a7c15u) ^ (leaf + 1) * 0xc4ceb9fe1a85ec53u;
}

/* Two generations, so that forgetting costs nothing. */
static void rotate(struct vg_mlink *l) {
    uint64_t now = vg_now_usec();
    if (now - l->recent_since < RECENT_USEC)
        return;
    bool stale = now - l->recent_since >= 2 * RECENT_USEC;
    vg_map_done(&l->recent[1]);
    l->recent[1] = l->recent[0];
    l->recent[0] = (struct vg_map){0};
    if (stale) {
        vg_map_done(&l->recent[1]);
        l->recent[1] = (struct vg_map){0};
    }
    l->recent_since = now;
}

void vg_mlink_pushed(struct vg_mlink *l, uint64_t object, uint64_t leaf) {
    rotate(l);
    /* Without memory it may be sent twice. */
    (void)vg_map_put_u64(&l->recent[0], key(object, leaf), l);
}

static bool pushed_just_now(struct vg_mlink *l, uint64_t object, uint64_t leaf) {
    uint64_t k = key(object, leaf);
    rotate(l);
    return vg_map_get_u64(&l->recent[0], k) || vg_map_get_u64(&l->recent[1], k);
}

bool vg_mlink_reads(const struct vg_mlink *l, uint64_t object, uint64_t offset) {
    vg_list_for_each (it, &l->jobs_list) {
        const struct vg_job *j = vg_list_entry(it, struct vg_job, link);
        if (j->kind == VG_MI_DATA && j->object == object && j->read.offset == offset)
            return true;
    }
    return false;
}

static void put(struct vg_mlink *l, bool urgent, const Vg__Mr__Msg *m) {
    struct vg_buf b = {0};
    if (vg_mw_msg(&b, m) < 0 || vg_mlink_put(l, urgent, &b) < 0) {
        vg_buf_done(&b);
        vg_mlink_close(l, "out of memory");
    }
}

void vg_mlink_say_sent(struct vg_mlink *l, uint64_t req, uint64_t object, uint64_t leaf) {
    Vg__Mr__Sent s = VG__MR__SENT__INIT;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    s.has_req = s.has_object = s.has_offset = s.has_length = true;
    s.req = req;
    s.object = object;
    s.offset = leaf * VG_LEAF;
    s.length = VG_LEAF;
    m.body_case = VG__MR__MSG__BODY_SENT;
    m.sent = &s;
    put(l, true, &m);
}

/* A frame that waits behind others. */
static bool overtake(struct vg_mlink *l, uint64_t object, uint64_t leaf) {
    vg_list_for_each (it, &l->out[1]) {
        const struct vg_mframe *f = vg_list_entry(it, struct vg_mframe, link);
        if (f->object != object || f->leaf != leaf)
            continue;
        vg_list_remove(it);
        vg_list_push_back(&l->out[0], it);
        return true;
    }
    return false;
}

/* A push of this leaf is being read: it will overtake others. False: none is. */
static bool hurry_job(struct vg_mlink *l, uint64_t req, uint64_t object, uint64_t leaf) {
    vg_list_for_each (it, &l->jobs_list) {
        struct vg_job *j = vg_list_entry(it, struct vg_job, link);
        if (j->kind != VG_MI_DATA || j->prio != VG_MP_PUSH || j->waits || j->object != object ||
            j->read.offset != leaf * VG_LEAF)
            continue;
        j->waits = req;
        return true;
    }
    return false;
}

bool vg_mlink_met(struct vg_mlink *l, uint64_t req, uint64_t object, uint64_t leaf) {
    if (overtake(l, object, leaf) || pushed_just_now(l, object, leaf)) {
        vg_mlink_say_sent(l, req, object, leaf);
        return true;
    }
    return hurry_job(l, req, object, leaf);
}

static void say_coming(struct vg_mlink *l, uint64_t object, uint64_t offset, uint64_t length) {
    Vg__Mr__Coming c = VG__MR__COMING__INIT;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    c.has_object = true;
    c.object = object;
    c.has_offset = c.has_length = length > 0;
    c.offset = offset;
    c.length = length;
    m.body_case = VG__MR__MSG__BODY_COMING;
    m.coming = &c;
    put(l, false, &m);
}

/* Or will. */
static bool pushes(const struct vg_mlink *l, uint64_t object) {
    vg_list_for_each (it, &l->jobs_list) {
        const struct vg_job *j = vg_list_entry(it, struct vg_job, link);
        if (j->kind == VG_MI_DATA && j->prio == VG_MP_PUSH && j->object == object)
            return true;
    }
    vg_list_for_each (it, &l->queue[VG_MP_PUSH])
        if (vg_list_entry(it, struct vg_mitem, link)->object == object)
            return true;
    return false;
}

void vg_mlink_announce(struct vg_mlink *l, struct vg_mitem *it, uint64_t end) {
    if (it->announced || end <= it->at || end - it->at < BIG)
        return;
    it->announced = true;
    if (vg_map_put_u64(&l->announced, it->object, l) == 0)
        say_coming(l, it->object, it->at, end - it->at);
}

void vg_mlink_announced(struct vg_mlink *l, uint64_t object) {
    if (l->closed || !vg_map_get_u64(&l->announced, object) || pushes(l, object))
        return;
    vg_map_del_u64(&l->announced, object);
    say_coming(l, object, 0, 0);
}
