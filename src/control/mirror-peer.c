/* Which nodes have files of whom, and links between them; see the header. Nothing depends on these
   links: without one everything comes from the client.

   What always holds: both ends of a link are daemons of the same user, because both are named by
   the identity of one and the same task. */
#include "control/mirror-peer.h"

#include "base/mem.h"
#include "base/util.h"
#include "control/job.h"
#include "control/mirror.h"
#include "control/nodes.h"
#include "control/peer.h"

#include <stdio.h>
#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define PLACES 4

struct places { /* in vg_control.places, by user: the last nodes first */
    char user[VG_TENANT_NAME_MAX + 1];
    uint64_t node[PLACES];
};

struct between { /* in vg_control.peers_of */
    struct vg_list in_all;
    uint64_t task, a, b, until_usec;
    char user[VG_TENANT_NAME_MAX + 1];
    struct vg_stream *up; /* the pump's */
};

static struct places *places_of(struct vg_control *c, const char *user) {
    struct places *p = vg_map_get(&c->places, user);
    if (p)
        return p;
    p = vg_alloc(sizeof *p);
    if (!p)
        return NULL;
    snprintf(p->user, sizeof p->user, "%s", user);
    if (vg_map_put(&c->places, p->user, p) < 0) {
        free(p);
        return NULL;
    }
    return p;
}

static void note_place(struct places *p, uint64_t node) {
    size_t i = 0;
    while (i < PLACES - 1 && p->node[i] != node)
        i++;
    memmove(p->node + 1, p->node, i * sizeof p->node[0]);
    p->node[0] = node;
}

static bool joined(struct vg_control *c, const char *user, uint64_t a, uint64_t b) {
    vg_list_for_each (it, &c->peers_of) {
        const struct between *l = vg_list_entry(it, struct between, in_all);
        if (((l->a == a && l->b == b) || (l->a == b && l->b == a)) && strcmp(l->user, user) == 0)
            return true;
    }
    return false;
}

static void over(void *user) {
    struct between *l = user;
    vg_list_remove(&l->in_all);
    free(l);
}

static void tell(const struct vg_job *j, struct vg_nodelink *a, const struct vg_stream *s) {
    VG_ENVELOPE(env);
    Vg__Pb__MirrorLink m = VG__PB__MIRROR_LINK__INIT;
    m.has_task_id = m.has_attempt = m.has_stream = m.has_machine = m.has_peer = 1;
    m.task_id = j->task->id;
    m.attempt = j->task->attempt.number;
    m.stream = vg_stream_id(s);
    m.machine = j->task->spec->mirror->machine;
    m.who = j->task->who;
    m.peer = 1;
    env.body_case = B(MIRROR_LINK);
    env.mirror_link = &m;
    vg_peer_send(a->peer, 0, false, &env);
}

static void join(struct vg_job *j, struct vg_nodelink *a, struct vg_nodelink *b) {
    struct between *l = vg_alloc(sizeof *l);
    struct vg_stream *up = l ? vg_stream_new(a->peer->conn, 0, NULL, NULL) : NULL;
    struct vg_stream *down = up ? vg_stream_new(b->peer->conn, 0, NULL, NULL) : NULL;
    if (!down) {
        if (up)
            vg_stream_free(up, VG_INTERNAL);
        free(l);
        return;
    }
    *l = (struct between){.task = j->task->id, .a = a->node->id, .b = b->node->id, .up = up};
    snprintf(l->user, sizeof l->user, "%s", j->task->user);
    vg_list_push_back(&j->ctl->peers_of, &l->in_all);
    tell(j, a, up);
    tell(j, b, down);
    vg_stream_widen(up, VG_LINK_WIDTH);
    vg_stream_widen(down, VG_LINK_WIDTH);
    if (vg_pump_streams(down, up, over, l) < 0)
        over(l);
}

void vg_mpeer_used(struct vg_job *j, struct vg_nodelink *a) {
    struct vg_control *c = j->ctl;
    struct places *p = places_of(c, j->task->user);
    uint64_t here = a->node->id;
    bool found = false;
    for (size_t i = 0; p && i < PLACES && !found; i++) {
        struct vg_nodelink *b =
            p->node[i] && p->node[i] != here ? vg_nodelink_get(c, p->node[i]) : NULL;
        if (!vg_nodelink_hears(b) || !b->reported)
            continue;
        found = true;
        if (!joined(c, p->user, here, b->node->id))
            join(j, a, b);
    }
    if (p)
        note_place(p, here);
}

void vg_mpeer_tick(struct vg_control *c) {
    uint64_t now = vg_now_usec();
    vg_list_for_each_safe (it, &c->peers_of) {
        struct between *l = vg_list_entry(it, struct between, in_all);
        const struct vg_job *j = vg_job_get(c, l->task);
        if (j && !vg_task_is_ended(j->task))
            continue;
        if (!l->until_usec)
            l->until_usec = now + VG_LINK_LINGER_USEC;
        else if (now > l->until_usec)
            vg_pump_stop(l->up, VG_OK);
    }
}

void vg_mpeer_done(struct vg_control *c) {
    vg_list_for_each_safe (it, &c->peers_of)
        over(vg_list_entry(it, struct between, in_all));
    vg_map_for_each (s, &c->places)
        free(s->value);
    vg_map_done(&c->places);
}
