#pragma once
/* A task and its current attempt. Pure data: times are passed in, nothing is read or written.

                    place                started
   blocked -> queued -----> starting ------------> running -> succeeded | failed | cancelled
                 ^             |  \________________________->      (final)
                 |_____________|______________________|
                        the attempt was lost or never ran

   What always holds (vg_task_check):
   1. state moves only by vg_task_move and vg_task_place, along task-moves.tbl;
   2. starting and running have an attempt >= 1 with a node; queued and blocked have no node;
   3. the attempt's number only grows: what speaks of another number or node is stale;
   4. ended_usec is set exactly in final states. */
#include "base/err.h"
#include "conf/res.h"

enum vg_task_state {
#define TASK_STATE(name, text, final) VG_TASK_##name,
#include "model/task-states.tbl"
#undef TASK_STATE
    VG_TASK_STATES
};

enum vg_attempt_state {
#define ATTEMPT_STATE(name, text) VG_ATTEMPT_##name,
#include "model/attempt-states.tbl"
#undef ATTEMPT_STATE
};

struct vg_attempt {
    uint32_t number;             /* 0: none yet */
    uint64_t node;               /* 0: none, or the last attempt is over */
    enum vg_attempt_state state; /* follows the task's */
};

struct vg_task {
    uint64_t id;
    char *user, *team;      /* owned */
    Vg__Pb__TaskSpec *spec; /* owned */
    Vg__Pb__Identity *who;  /* owned; NULL until known */

    enum vg_task_state state;  /* read only: vg_task_move */
    struct vg_attempt attempt; /* read only: likewise */
    uint64_t last_node;        /* where the last attempt was; stays after the end */
    struct vg_res grant;       /* what it gets: pool shape and request resolved */
    uint64_t gpus;             /* set of indices held on the node */

    int32_t status;        /* exit status, 128+n for signals; meaning only in final states */
    enum vg_reason reason; /* why it did not run, VG_OK when it did */
    char *reason_text;     /* owned; one sentence: why it waits, failed or was cancelled; or NULL */
    uint64_t created_usec; /* wall times */
    uint64_t started_usec; /* of the current or last attempt */
    uint64_t ended_usec;
    uint64_t cpu_usec, mem_peak_bytes, out_bytes;
    uint32_t retries_left;
    bool durable; /* its owner was promised that it survives power loss */
    bool cancel;  /* its end was asked for: it goes to cancelled, never back to queued */
};

/* Takes `spec` (protobuf-c's allocator) on success; user and team are copied. State queued, or
   blocked. NULL: no memory, spec stays the caller's. */
struct vg_task *vg_task_new(uint64_t id, const char *user, const char *team, Vg__Pb__TaskSpec *spec,
                            bool blocked, uint64_t created_usec);
void vg_task_free(struct vg_task *t);

const char *vg_task_state_name(enum vg_task_state s);
int vg_task_state_parse(const char *s, enum vg_task_state *ret); /* -EINVAL */
bool vg_task_state_final(enum vg_task_state s);
bool vg_task_may_move(enum vg_task_state from, enum vg_task_state to);

/* Moves the state, the attempt and the times with it. `now_usec` is wall time; `why` is copied
   (NULL clears the text; for want of memory it is dropped, the move is not). -EINVAL: the table
   forbids it, or the task is to be cancelled and `to` is queued; nothing changed. Moving to
   starting is vg_task_place's. Moving to running sets started_usec; to queued forgets node and
   GPUs. */
int vg_task_move(struct vg_task *t, enum vg_task_state to, uint64_t now_usec, const char *why);
/* queued -> starting: the next attempt, on `node`, holding `gpus`. -EINVAL as above. */
int vg_task_place(struct vg_task *t, uint64_t node, uint64_t gpus);
/* Any unfinished -> final by exit status: cancelled when that was asked for, else succeeded when 0,
   else failed. */
int vg_task_end(struct vg_task *t, int32_t status, enum vg_reason reason, uint64_t now_usec,
                const char *why);

/* Fencing: whether (attempt, node) is the one that may run now. */
bool vg_task_is_current(const struct vg_task *t, uint32_t attempt, uint64_t node);
static inline bool vg_task_is_ended(const struct vg_task *t) {
    return vg_task_state_final(t->state);
}
const char *vg_task_name(const struct vg_task *t); /* "" when it has none */
const char *vg_task_pool(const struct vg_task *t); /* likewise */

/* NULL, or the invariant that is broken. For tests and debug builds. */
const char *vg_task_check(const struct vg_task *t);
