/* A session's life. Pure. */
#include "model/session.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "model/moves.h"

static const char *const names[] = {
#define SESSION_STATE(name, text) [VG_SESSION_##name] = text,
#include "model/session-states.tbl"
#undef SESSION_STATE
};

static const struct vg_move moves[] = {
#define SESSION_MOVE(from, to) {VG_SESSION_##from, VG_SESSION_##to},
#include "model/session-moves.tbl"
#undef SESSION_MOVE
};

struct vg_session *vg_session_new(const char *user, const char *name, const char *pool,
                                  uint64_t keep_usec, uint64_t now_usec) {
    struct vg_session *s = vg_alloc(sizeof *s);
    if (!s)
        return NULL;
    s->key = vg_fmt("%s/%s", user, name);
    s->user = vg_strdup(user);
    s->name = vg_strdup(name);
    s->pool = vg_strdup(pool);
    s->keep_usec = keep_usec;
    s->created_usec = now_usec;
    if (!s->key || !s->user || !s->name || !s->pool) {
        vg_session_free(s);
        return NULL;
    }
    return s;
}

void vg_session_free(struct vg_session *s) {
    if (!s)
        return;
    free(s->key);
    free(s->user);
    free(s->name);
    free(s->pool);
    free(s);
}

const char *vg_session_state_name(enum vg_session_state s) {
    return (unsigned)s < VG_COUNT(names) ? names[s] : "?";
}

bool vg_session_may_move(enum vg_session_state from, enum vg_session_state to) {
    return vg_moves_allow(moves, VG_COUNT(moves), from, to);
}

int vg_session_move(struct vg_session *s, enum vg_session_state to, uint64_t now_usec) {
    if (!vg_session_may_move(s->state, to))
        return -EINVAL;
    s->state = to;
    if (to == VG_SESSION_IDLE)
        s->idle_since_usec = now_usec;
    return 0;
}

int vg_session_enter(struct vg_session *s, uint64_t node, uint64_t now_usec) {
    if (!node || s->state == VG_SESSION_ENDED || (s->node && s->node != node))
        return -EINVAL;
    if (s->state != VG_SESSION_ACTIVE)
        vg_session_move(s, VG_SESSION_ACTIVE, now_usec);
    s->node = node;
    s->tasks++;
    return 0;
}

int vg_session_leave(struct vg_session *s, uint64_t now_usec) {
    if (!s->tasks)
        return -EINVAL;
    if (--s->tasks == 0 && s->state == VG_SESSION_ACTIVE)
        return vg_session_move(s, VG_SESSION_IDLE, now_usec);
    return 0;
}

bool vg_session_expired(const struct vg_session *s, uint64_t now_usec) {
    return s->state == VG_SESSION_IDLE && now_usec - s->idle_since_usec >= s->keep_usec;
}
