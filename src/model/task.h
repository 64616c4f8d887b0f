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
   4. ended_usec is set exactly in final states.

   A group (members > 0) is a task that is never placed: its row holds what its members share, its
   state follows theirs (progress.h, group-moves.tbl). A member has the group's spec and owner, an
   index, and an id that follows from both: whoever knows the group knows its members. */
#include "base/err.h"
#include "conf/conf.h"
#include "model/progress.h"

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

/* What all tasks of one submission have in common; counted. */
struct vg_submission;

/* A task that waits for another one to end in a certain way. */
enum vg_after_when {
    VG_AFTER_ANY = VG__PB__DEPENDENCY__WHEN__ANY,         /* however it ends */
    VG_AFTER_SUCCESS = VG__PB__DEPENDENCY__WHEN__SUCCESS, /* succeeded */
    VG_AFTER_FAILURE = VG__PB__DEPENDENCY__WHEN__FAILURE, /* failed; cancelled is neither */
};
struct vg_after {
    uint64_t id;
    enum vg_after_when when;
};

/* What an attempt has of the one GPU that it shares with others. */
struct vg_share {
    uint32_t milli;           /* 1 .. 999; 0: it shares none, and the rest says nothing */
    uint64_t mem_bytes;       /* 0: of a card whose size was not known */
    bool hard;                /* never more than its part, even when the others rest */
    enum vg_pool_class class; /* of the pool when it began: cards are not mixed */
    uint64_t since_usec;      /* wall time of its last change; 0: as the attempt began */
    uint64_t held;            /* until then: thousandths times microseconds */
};

struct vg_task {
    uint64_t id;
    struct vg_submission *submission; /* one reference; the next four are borrowed from it */
    char *user, *team;
    Vg__Pb__TaskSpec *spec;
    Vg__Pb__Identity *who; /* NULL until known: vg_task_set_who */
    uint64_t group;        /* the group it is a member of, or 0 */
    uint32_t index;        /* in the group */
    uint32_t of;           /* how many members the group has */
    uint32_t members;      /* not 0: this is a group of so many */

    enum vg_task_state state;  /* read only: vg_task_move */
    struct vg_attempt attempt; /* read only: likewise */
    uint64_t last_node;        /* where the last attempt was; stays after the end */
    struct vg_res grant;       /* what it gets: pool shape and request resolved */
    uint64_t gpus;             /* set of indices held on the node */
    struct vg_share share;     /* of the current or last attempt */
    uint8_t pool_at;           /* which of its pools it is in: 0 spec->pool, else also_pool + 1 */

    int32_t status;        /* exit status, 128+n for signals; meaning only in final states */
    enum vg_reason reason; /* why it did not run, VG_OK when it did */
    char *reason_text;     /* owned; one sentence: why it waits, failed or was cancelled; or NULL */
    uint64_t created_usec; /* wall times */
    uint64_t started_usec; /* of the current or last attempt */
    uint64_t ended_usec;
    uint64_t cpu_usec, mem_peak_bytes, out_bytes;
    uint32_t retries_left;
    uint32_t preempted;           /* how often it had to give way */
    uint32_t n_after;             /* what it still waits for ... */
    struct vg_after *after;       /* ... owned; NULL: nothing */
    struct vg_progress *progress; /* owned; of members or children; NULL: it never had any */
    uint64_t due_usec;            /* wall time before which it is not to start; 0: none */
    bool preempting;              /* its attempt was told to give way: its end is not a result */
    bool durable;                 /* its owner was promised that it survives power loss */
    bool cancel; /* its end was asked for: it goes to cancelled, never back to queued */
};

/* Takes `spec` (protobuf-c's allocator) on success; user and team are copied. State queued, or
   blocked. NULL: no memory, spec stays the caller's. */
struct vg_task *vg_task_new(uint64_t id, const char *user, const char *team, Vg__Pb__TaskSpec *spec,
                            bool blocked, uint64_t created_usec);
/* A member of a group; shares the submission. Blocked when the group is. NULL: no memory. */
struct vg_task *vg_task_new_member(const struct vg_task *group, uint32_t index);
void vg_task_free(struct vg_task *t);
/* Takes `who` for everybody who shares the submission; once. */
void vg_task_set_who(struct vg_task *t, Vg__Pb__Identity *who);
/* The id of a group's member: the same whenever it is asked for, another one for every index. */
uint64_t vg_task_member_id(uint64_t group, uint32_t index);
/* How many tasks the spec asks for: shards and the sweep's cross product, at most `max` + 1; 0: it
   is no group. A gang of one is a group of one. */
uint64_t vg_spec_members(const Vg__Pb__TaskSpec *spec, uint64_t max);
/* The row it is folded under in lists: its group, or the task it was made in; 0: none. */
uint64_t vg_task_fold(const struct vg_task *t);
static inline bool vg_task_is_group(const struct vg_task *t) {
    return t->members > 0;
}
/* Makes room for counts. 0 or -ENOMEM. */
int vg_task_need_progress(struct vg_task *t);
/* It waits for one more, or (found, then true) for one less. */
int vg_task_add_after(struct vg_task *t, uint64_t id, enum vg_after_when when);
bool vg_task_drop_after(struct vg_task *t, uint64_t id, enum vg_after_when when);
/* 1: an end in `state` is what was waited for, 0: it can never be any more, -EAGAIN: not ended. */
int vg_after_met(enum vg_after_when when, enum vg_task_state state);
const char *vg_after_name(enum vg_after_when when); /* "after-success" */

const char *vg_task_state_name(enum vg_task_state s);
int vg_task_state_parse(const char *s, enum vg_task_state *ret); /* -EINVAL */
bool vg_task_state_final(enum vg_task_state s);
bool vg_task_may_move(enum vg_task_state from, enum vg_task_state to);

/* Moves the state, the attempt and the times with it. `now_usec` is wall time; `why` is copied
   (NULL clears the text; for want of memory it is dropped, the move is not). -EINVAL: the table
   forbids it, or the task is to be cancelled and `to` is queued; nothing changed. Moving to
   starting is vg_task_place's. Moving to running sets started_usec; to queued forgets node, GPUs
   and share. */
int vg_task_move(struct vg_task *t, enum vg_task_state to, uint64_t now_usec, const char *why);
/* queued -> starting: the next attempt, on `node`, holding `gpus`. -EINVAL as above. */
int vg_task_place(struct vg_task *t, uint64_t node, uint64_t gpus);
/* The attempt that was just placed shares a card of that size, if the grant says so, by a pool of
   that class. */
void vg_task_share(struct vg_task *t, enum vg_pool_class class, uint64_t card_bytes);
/* Changes it under way. */
void vg_task_reshare(struct vg_task *t, uint32_t milli, uint64_t mem_bytes, bool hard,
                     uint64_t now_usec);
/* What the attempt that runs, or ran until then, has held of GPUs: thousandths times
   microseconds. */
uint64_t vg_task_gpu_held(const struct vg_task *t, uint64_t until_usec);
/* What it holds: the grant, and of a share what the attempt has of its card. */
struct vg_res vg_task_held(const struct vg_task *t);
/* Any unfinished -> final by exit status: cancelled when that was asked for, else succeeded when 0,
   else failed. A group whose members have all ended ends as they did, with the first status in
   their order that is not 0; `status` then says nothing. */
int vg_task_end(struct vg_task *t, int32_t status, enum vg_reason reason, uint64_t now_usec,
                const char *why);

/* Fencing: whether (attempt, node) is the one that may run now. */
bool vg_task_is_current(const struct vg_task *t, uint32_t attempt, uint64_t node);
static inline bool vg_task_is_ended(const struct vg_task *t) {
    return vg_task_state_final(t->state);
}
const char *vg_task_name(const struct vg_task *t); /* "" when it has none */
/* The pool where it is or was last; while it waits, the one it likes best. Likewise. */
const char *vg_task_pool(const struct vg_task *t);
/* It is in that one of its pools; a name that is none of them counts as the first. */
void vg_task_set_pool(struct vg_task *t, const char *name);

/* NULL, or the invariant that is broken. For tests and debug builds. */
const char *vg_task_check(const struct vg_task *t);
