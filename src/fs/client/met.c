/* Demands for what is on its way already, because it was pushed: nothing is read or sent twice for
   them. What waits for the socket overtakes; what the socket has is only sent again when the node
   may have lost it. */
#include "fs/client/svc.h"

#include "base/mem.h"
#include "base/util.h"

#include <errno.h>

/* Longer than most links hold bytes back. A node that lost a push, because it could not believe the
   record that it belongs to, waits as long for it. */
#define RECENT_USEC (VG_USEC / 4)

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

bool vg_mlink_met(struct vg_mlink *l, uint64_t req, uint64_t object, uint64_t leaf) {
    if (overtake(l, object, leaf) || vg_mlink_hurry_job(l, req, object, leaf))
        return true;
    if (!pushed_just_now(l, object, leaf))
        return false;
    struct vg_mitem *it = vg_alloc(sizeof(*it));
    if (!it)
        return false;
    it->kind = VG_MI_DATA;
    it->prio = VG_MP_DEMAND;
    it->req = req;
    it->object = object;
    it->at = leaf * VG_LEAF;
    it->end = it->at + 1;
    it->ahead = it->late = true;
    it->due = vg_now_usec() + RECENT_USEC;
    vg_list_push_back(&l->later, &it->link);
    return true;
}

/* Sent again when the link has nothing better to do. */
void vg_mlink_due(struct vg_mlink *l) {
    uint64_t now = vg_now_usec();
    struct vg_list *first;
    while ((first = vg_list_first(&l->later))) {
        struct vg_mitem *it = vg_list_entry(first, struct vg_mitem, link);
        if (it->due > now)
            return;
        vg_list_remove(first);
        vg_list_push_back(&l->queue[VG_MP_DEMAND], first);
    }
}
