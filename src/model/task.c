/* A task's life. States and moves are tables; `advance` alone writes the state. Pure. */
#include "model/task.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "model/moves.h"

static const struct {
    const char *name;
    bool final;
} states[] = {
#define TASK_STATE(name, text, final) [VG_TASK_##name] = {text, final},
#include "model/task-states.tbl"
#undef TASK_STATE
};

static const struct vg_move moves[] = {
#define TASK_MOVE(from, to) {VG_TASK_##from, VG_TASK_##to},
#include "model/task-moves.tbl"
#undef TASK_MOVE
};

struct vg_task *vg_task_new(uint64_t id, const char *user, const char *team, Vg__Pb__TaskSpec *spec,
                            bool blocked, uint64_t created_usec) {
    struct vg_task *t = vg_alloc(sizeof *t);
    if (!t)
        return NULL;
    t->id = id;
    t->user = vg_strdup(user);
    t->team = vg_strdup(team);
    if (!t->user || !t->team) {
        vg_task_free(t);
        return NULL;
    }
    t->spec = spec;
    t->state = blocked ? VG_TASK_BLOCKED : VG_TASK_QUEUED;
    t->created_usec = created_usec;
    t->retries_left = spec->retries;
    return t;
}

void vg_task_free(struct vg_task *t) {
    if (!t)
        return;
    if (t->spec)
        vg__pb__task_spec__free_unpacked(t->spec, NULL);
    if (t->who)
        vg__pb__identity__free_unpacked(t->who, NULL);
    free(t->user);
    free(t->team);
    free(t->reason_text);
    free(t);
}

const char *vg_task_state_name(enum vg_task_state s) {
    return (unsigned)s < VG_COUNT(states) ? states[s].name : "?";
}

int vg_task_state_parse(const char *s, enum vg_task_state *ret) {
    for (unsigned i = 0; i < VG_COUNT(states); i++)
        if (strcmp(s, states[i].name) == 0) {
            *ret = i;
            return 0;
        }
    return -EINVAL;
}

bool vg_task_state_final(enum vg_task_state s) {
    return (unsigned)s < VG_COUNT(states) && states[s].final;
}

bool vg_task_may_move(enum vg_task_state from, enum vg_task_state to) {
    return vg_moves_allow(moves, VG_COUNT(moves), from, to);
}

/* What the attempt becomes when its task moves on. */
static void follow(struct vg_task *t, enum vg_task_state to) {
    struct vg_attempt *a = &t->attempt;
    if (to == VG_TASK_STARTING || to == VG_TASK_RUNNING) {
        a->state = to == VG_TASK_STARTING ? VG_ATTEMPT_STARTING : VG_ATTEMPT_RUNNING;
        return;
    }
    if (a->state == VG_ATTEMPT_STARTING || a->state == VG_ATTEMPT_RUNNING)
        a->state = to == VG_TASK_QUEUED ? VG_ATTEMPT_LOST : VG_ATTEMPT_ENDED;
    a->node = 0;
    t->gpus = 0;
}

static void advance(struct vg_task *t, enum vg_task_state to, uint64_t now_usec, const char *why) {
    follow(t, to);
    if (to == VG_TASK_RUNNING)
        t->started_usec = now_usec;
    if (to == VG_TASK_QUEUED)
        t->started_usec = 0;
    if (states[to].final)
        t->ended_usec = now_usec;
    char *text = vg_strdup(why);
    free(t->reason_text);
    t->reason_text = text;
    t->state = to;
}

int vg_task_move(struct vg_task *t, enum vg_task_state to, uint64_t now_usec, const char *why) {
    if (to == VG_TASK_STARTING || !vg_task_may_move(t->state, to))
        return -EINVAL;
    if (to == VG_TASK_QUEUED && t->cancel)
        return -EINVAL;
    advance(t, to, now_usec, why);
    return 0;
}

int vg_task_place(struct vg_task *t, uint64_t node, uint64_t gpus) {
    if (!node || t->cancel || !vg_task_may_move(t->state, VG_TASK_STARTING))
        return -EINVAL;
    t->attempt.number++;
    t->attempt.node = node;
    t->last_node = node;
    t->gpus = gpus;
    advance(t, VG_TASK_STARTING, 0, NULL);
    return 0;
}

int vg_task_end(struct vg_task *t, int32_t status, enum vg_reason reason, uint64_t now_usec,
                const char *why) {
    enum vg_task_state to = t->cancel                ? VG_TASK_CANCELLED
                            : status == 0 && !reason ? VG_TASK_SUCCEEDED
                                                     : VG_TASK_FAILED;
    int r = vg_task_move(t, to, now_usec, why);
    if (r < 0)
        return r;
    t->status = status;
    t->reason = reason;
    return 0;
}

bool vg_task_is_current(const struct vg_task *t, uint32_t attempt, uint64_t node) {
    return attempt && t->attempt.number == attempt && t->attempt.node == node && node != 0;
}

const char *vg_task_name(const struct vg_task *t) {
    return t->spec && t->spec->name ? t->spec->name : "";
}

const char *vg_task_pool(const struct vg_task *t) {
    return t->spec && t->spec->pool ? t->spec->pool : "";
}

const char *vg_task_check(const struct vg_task *t) {
    bool placed = t->state == VG_TASK_STARTING || t->state == VG_TASK_RUNNING;
    if (placed && (!t->attempt.number || !t->attempt.node))
        return "a starting or running task has a numbered attempt on a node";
    if (!placed && (t->attempt.node || t->gpus))
        return "only a starting or running task holds a node and GPUs";
    if (vg_task_is_ended(t) != (t->ended_usec != 0))
        return "exactly ended tasks have an end time";
    if (t->attempt.number && !t->last_node)
        return "a task that was placed remembers where";
    return NULL;
}
