#pragma once
/* A session: a named place of one user that several commands share. It sticks to the node of its
   first task; when its last task has ended it stays for `keep_usec`. Pure data. */
#include "base/err.h"

#include <stdint.h>

#define VG_SESSION_NAME_MAX 63

enum vg_session_state {
#define SESSION_STATE(name, text) VG_SESSION_##name,
#include "model/session-states.tbl"
#undef SESSION_STATE
    VG_SESSION_STATES
};

struct vg_session {
    char *key;                   /* owned; "user/name", unique */
    char *user, *name, *pool;    /* owned */
    enum vg_session_state state; /* read only: vg_session_move */
    uint64_t node;               /* 0 while new */
    uint32_t tasks;              /* unfinished ones */
    uint64_t keep_usec;
    uint64_t created_usec, idle_since_usec;
};

struct vg_session *vg_session_new(const char *user, const char *name, const char *pool,
                                  uint64_t keep_usec, uint64_t now_usec);
void vg_session_free(struct vg_session *s);

const char *vg_session_state_name(enum vg_session_state s);
bool vg_session_may_move(enum vg_session_state from, enum vg_session_state to);
int vg_session_move(struct vg_session *s, enum vg_session_state to, uint64_t now_usec);

/* A task of it was placed on `node`: binds a new one, wakes an idle one. -EINVAL: it is bound to
   another node or over. */
int vg_session_enter(struct vg_session *s, uint64_t node, uint64_t now_usec);
/* A task of it ended; the last one makes it idle. */
int vg_session_leave(struct vg_session *s, uint64_t now_usec);
/* Idle, and its keep time has passed. */
bool vg_session_expired(const struct vg_session *s, uint64_t now_usec);
