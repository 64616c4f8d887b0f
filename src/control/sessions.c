/* Sessions: made by the first task that names one, bound to a node by the first placement,
   forgotten when the node says that they are over. */
#include "control/sessions.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/nodes.h"
#include "control/peer.h"
#include "control/place.h"

#include <string.h>

static void store(struct vg_control *c, const struct vg_session *s) {
    struct vg_session_row row = {.user = s->user,
                                 .name = s->name,
                                 .pool = s->pool,
                                 .node = s->node,
                                 .created_usec = s->created_usec,
                                 .keep_usec = s->keep_usec};
    vg_store_put_session(c->store, &row, VG_STORE_LAZY, NULL, NULL);
}

/* A running session is to be kept for another time than it was made for. */
static void extend(struct vg_control *c, struct vg_session *s, uint64_t keep_usec) {
    struct vg_nodelink *a = vg_nodelink_get(c, s->node);
    s->keep_usec = keep_usec;
    store(c, s);
    if (!a || !a->peer)
        return;
    VG_ENVELOPE(env);
    Vg__Pb__SessionExtend m = VG__PB__SESSION_EXTEND__INIT;
    m.key = s->key;
    m.has_keep_usec = 1;
    m.keep_usec = keep_usec;
    env.body_case = VG__PB__ENVELOPE__BODY_SESSION_EXTEND;
    env.session_extend = &m;
    vg_peer_send(a->peer, 0, false, &env);
}

int vg_sessions_bind(struct vg_job *j) {
    struct vg_control *c = j->ctl;
    Vg__Pb__TaskSpec *spec = j->task->spec;
    if (!spec->session || !*spec->session)
        return 0;
    vg_auto_free char *key = vg_fmt("%s/%s", j->task->user, spec->session);
    struct vg_session *s = key ? vg_map_get(&c->sessions, key) : NULL;
    if (!spec->has_session_keep_usec) {
        spec->has_session_keep_usec = 1;
        spec->session_keep_usec = s ? s->keep_usec : VG_SESSION_KEEP_USEC;
    }
    if (!s) {
        s = key ? vg_session_new(j->task->user, spec->session, vg_task_pool(j->task),
                                 spec->session_keep_usec, vg_wall_usec())
                : NULL;
        if (!s || vg_map_put(&c->sessions, s->key, s) < 0) {
            vg_session_free(s);
            return -ENOMEM;
        }
    } else if (spec->session_keep_usec != s->keep_usec) {
        extend(c, s, spec->session_keep_usec);
    }
    j->session = s;
    return 0;
}

/* Tasks of the session that wait must follow it to its node. */
static void pin_waiting(struct vg_control *c, struct vg_session *s) {
    vg_map_for_each (slot, &c->jobs) {
        struct vg_job *j = slot->value;
        if (j->session != s || j->task->state != VG_TASK_QUEUED || j->held)
            continue;
        vg_place_repin(j);
    }
}

void vg_sessions_enter(struct vg_job *j, uint64_t node) {
    struct vg_session *s = j->session;
    if (!s || j->entered)
        return;
    bool fresh = s->node == 0;
    if (vg_session_enter(s, node, vg_wall_usec()) < 0)
        return;
    j->entered = true;
    if (fresh) {
        store(j->ctl, s);
        pin_waiting(j->ctl, s);
    }
}

static void drop(struct vg_control *c, struct vg_session *s) {
    vg_map_for_each (slot, &c->jobs) {
        struct vg_job *j = slot->value;
        if (j->session == s) {
            j->session = NULL;
            j->entered = false;
        }
    }
    vg_store_del_session(c->store, s->user, s->name, NULL, NULL);
    vg_map_del(&c->sessions, s->key);
    vg_session_free(s);
}

void vg_sessions_leave(struct vg_job *j) {
    struct vg_session *s = j->session;
    if (!s || !j->entered)
        return;
    j->entered = false;
    vg_session_leave(s, vg_wall_usec());
}

void vg_sessions_forget(struct vg_control *c, const char *key) {
    struct vg_session *s = vg_map_get(&c->sessions, key);
    /* A task that is on its way there makes it anew. */
    if (s && s->tasks == 0)
        drop(c, s);
}

void vg_sessions_node_lost(struct vg_control *c, uint64_t node) {
    vg_map_for_each (slot, &c->sessions) {
        struct vg_session *s = slot->value;
        if (s->node == node)
            drop(c, s);
    }
}
