/* A task's life. States and moves are tables; `advance` alone writes the state. Pure. */
#include "model/task.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "model/moves.h"
#include "model/submission.h"

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

static const struct vg_move group_moves[] = {
#define GROUP_MOVE(from, to) {VG_TASK_##from, VG_TASK_##to},
#include "model/group-moves.tbl"
#undef GROUP_MOVE
};

static void submission_unref(struct vg_submission *s) {
    if (!s || --s->refs)
        return;
    if (s->block)
        vg_block_unref(s->block, s->spec, &s->who);
    if (s->spec)
        vg__pb__task_spec__free_unpacked(s->spec, NULL);
    if (s->who)
        vg__pb__identity__free_unpacked(s->who, NULL);
    free(s->user);
    free(s->team);
    free(s);
}

static void share(struct vg_task *t, struct vg_submission *s) {
    s->refs++;
    t->submission = s;
    t->user = s->user;
    t->team = s->team;
    t->spec = s->spec;
    t->who = s->who;
}

struct vg_task *vg_task_new(uint64_t id, const char *user, const char *team, Vg__Pb__TaskSpec *spec,
                            bool blocked, uint64_t created_usec) {
    struct vg_task *t = vg_alloc(sizeof *t);
    struct vg_submission *s = vg_alloc(sizeof *s);
    if (!t || !s) {
        free(t);
        free(s);
        return NULL;
    }
    s->user = vg_strdup(user);
    s->team = vg_strdup(team);
    share(t, s);
    if (!s->user || !s->team) {
        vg_task_free(t);
        return NULL;
    }
    t->id = id;
    t->spec = s->spec = spec;
    t->state = blocked ? VG_TASK_BLOCKED : VG_TASK_QUEUED;
    t->created_usec = created_usec;
    t->retries_left = spec->retries;
    return t;
}

struct vg_task *vg_task_new_member(const struct vg_task *group, uint32_t index) {
    struct vg_task *t = vg_alloc(sizeof *t);
    if (!t)
        return NULL;
    share(t, group->submission);
    t->id = vg_task_member_id(group->id, index);
    t->group = group->id;
    t->index = index;
    t->of = group->members;
    t->state = group->state == VG_TASK_BLOCKED ? VG_TASK_BLOCKED : VG_TASK_QUEUED;
    t->created_usec = group->created_usec + index + 1; /* so that they go in their order */
    t->retries_left = t->spec->retries;
    t->grant = group->grant;
    t->due_usec = group->due_usec;
    t->durable = group->durable;
    return t;
}

void vg_task_free(struct vg_task *t) {
    if (!t)
        return;
    submission_unref(t->submission);
    free(t->after);
    free(t->progress);
    free(t->reason_text);
    free(t);
}

void vg_task_set_who(struct vg_task *t, Vg__Pb__Identity *who) {
    t->who = t->submission->who = who;
}

/* Both steps can be undone, so two members of a group never have the same id; and the ids are
   spread as random ones are. */
uint64_t vg_task_member_id(uint64_t group, uint32_t index) {
    uint64_t x = group + (index + 1ULL) * 0x9e3779b97f4a7c15ULL;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
    x ^= x >> 31;
    return x ? x : group;
}

uint64_t vg_spec_members(const Vg__Pb__TaskSpec *spec, uint64_t max) {
    uint64_t n = spec->shards > 1 ? spec->shards : 1;
    if (n == 1 && !spec->n_sweep && !spec->gang)
        return 0;
    for (size_t i = 0; i < spec->n_sweep && n <= max; i++)
        n *= spec->sweep[i]->n_value;
    return VG_MIN(n, max + 1);
}

uint64_t vg_task_fold(const struct vg_task *t) {
    return t->group ? t->group : t->spec->parent;
}

int vg_task_need_progress(struct vg_task *t) {
    if (!t->progress) {
        t->progress = vg_alloc(sizeof *t->progress);
        if (!t->progress)
            return -ENOMEM;
        *t->progress = VG_PROGRESS_INIT;
    }
    return 0;
}

int vg_task_add_after(struct vg_task *t, uint64_t id, enum vg_after_when when) {
    struct vg_after *p = vg_realloc(t->after, (t->n_after + 1) * sizeof *p);
    if (!p)
        return -ENOMEM;
    t->after = p;
    t->after[t->n_after++] = (struct vg_after){id, when};
    return 0;
}

bool vg_task_drop_after(struct vg_task *t, uint64_t id, enum vg_after_when when) {
    for (uint32_t i = 0; i < t->n_after; i++)
        if (t->after[i].id == id && t->after[i].when == when) {
            memmove(&t->after[i], &t->after[i + 1], (--t->n_after - i) * sizeof t->after[0]);
            return true;
        }
    return false;
}

int vg_after_met(enum vg_after_when when, enum vg_task_state state) {
    if (!vg_task_state_final(state))
        return -EAGAIN;
    return when == VG_AFTER_ANY || (when == VG_AFTER_SUCCESS && state == VG_TASK_SUCCEEDED) ||
           (when == VG_AFTER_FAILURE && state == VG_TASK_FAILED);
}

const char *vg_after_name(enum vg_after_when when) {
    return when == VG_AFTER_SUCCESS   ? "after-success"
           : when == VG_AFTER_FAILURE ? "after-fail"
                                      : "after";
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

static bool may_move(const struct vg_task *t, enum vg_task_state to) {
    return vg_task_is_group(t) ? vg_moves_allow(group_moves, VG_COUNT(group_moves), t->state, to)
                               : vg_task_may_move(t->state, to);
}

/* What the attempt becomes when its task moves on. */
static void follow(struct vg_task *t, enum vg_task_state to) {
    struct vg_attempt *a = &t->attempt;
    if (vg_task_is_group(t))
        return;
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
    if (to == VG_TASK_QUEUED) {
        t->started_usec = 0;
        t->pool_at = 0;
        t->share = (struct vg_share){0};
    }
    if (states[to].final)
        t->ended_usec = now_usec;
    char *text = vg_strdup(why);
    free(t->reason_text);
    t->reason_text = text;
    t->state = to;
}

int vg_task_move(struct vg_task *t, enum vg_task_state to, uint64_t now_usec, const char *why) {
    if (to == VG_TASK_STARTING || !may_move(t, to))
        return -EINVAL;
    if (to == VG_TASK_QUEUED && t->cancel)
        return -EINVAL;
    advance(t, to, now_usec, why);
    return 0;
}

int vg_task_place(struct vg_task *t, uint64_t node, uint64_t gpus) {
    if (!node || t->cancel || !may_move(t, VG_TASK_STARTING))
        return -EINVAL;
    t->attempt.number++;
    t->attempt.node = node;
    t->last_node = node;
    t->gpus = gpus;
    advance(t, VG_TASK_STARTING, 0, NULL);
    return 0;
}

void vg_task_share(struct vg_task *t, enum vg_pool_class class, uint64_t card_bytes) {
    t->share = (struct vg_share){0};
    if (t->grant.gpu_milli)
        t->share = (struct vg_share){.milli = t->grant.gpu_milli,
                                     .mem_bytes = vg_res_card_mem(&t->grant, card_bytes),
                                     .hard = t->spec->gpu_hard,
                                     .class = class};
}

void vg_task_reshare(struct vg_task *t, uint32_t milli, uint64_t mem_bytes, bool hard,
                     uint64_t now_usec) {
    struct vg_share *s = &t->share;
    if (t->started_usec) {
        s->held = vg_task_gpu_held(t, now_usec);
        s->since_usec = VG_MAX(now_usec, VG_MAX(s->since_usec, t->started_usec));
    }
    s->milli = milli;
    s->mem_bytes = mem_bytes;
    s->hard = hard;
}

uint64_t vg_task_gpu_held(const struct vg_task *t, uint64_t until_usec) {
    uint64_t from = t->share.since_usec ? t->share.since_usec : t->started_usec;
    uint64_t usec = until_usec > from ? until_usec - from : 0;
    struct vg_res now = vg_task_held(t);
    return t->share.held + (now.gpus * 1000ULL + now.gpu_milli) * usec;
}

struct vg_res vg_task_held(const struct vg_task *t) {
    struct vg_res r = t->grant;
    if (t->share.milli) {
        r.gpu_milli = t->share.milli;
        r.gpu_mem_bytes = t->share.mem_bytes;
    }
    return r;
}

int vg_task_end(struct vg_task *t, int32_t status, enum vg_reason reason, uint64_t now_usec,
                const char *why) {
    enum vg_task_state to = t->cancel                ? VG_TASK_CANCELLED
                            : status == 0 && !reason ? VG_TASK_SUCCEEDED
                                                     : VG_TASK_FAILED;
    const struct vg_progress *p = vg_task_is_group(t) ? t->progress : NULL;
    if (p && vg_progress_total(p) && !vg_progress_open(p)) {
        to = t->cancel ? VG_TASK_CANCELLED : vg_progress_state(p, t->state);
        status = p->bad_index == VG_PROGRESS_NONE ? 0 : p->bad_status;
        if (!status && to != VG_TASK_SUCCEEDED)
            status = vg_reason_exit(VG_CONFLICT);
    }
    int r = vg_task_move(t, to, now_usec, why);
    if (r < 0)
        return r;
    t->status = status;
    t->reason = reason;
    if (p) /* those that never were end with it */
        vg_progress_close(t->progress, to);
    return 0;
}

bool vg_task_is_current(const struct vg_task *t, uint32_t attempt, uint64_t node) {
    return attempt && t->attempt.number == attempt && t->attempt.node == node && node != 0;
}

const char *vg_task_name(const struct vg_task *t) {
    return t->spec && t->spec->name ? t->spec->name : "";
}

const char *vg_task_pool(const struct vg_task *t) {
    const Vg__Pb__TaskSpec *s = t->spec;
    if (s && t->pool_at && t->pool_at <= s->n_also_pool)
        return s->also_pool[t->pool_at - 1];
    return s && s->pool ? s->pool : "";
}

void vg_task_set_pool(struct vg_task *t, const char *name) {
    const Vg__Pb__TaskSpec *s = t->spec;
    t->pool_at = 0;
    if (!name || !s || (s->pool && strcmp(s->pool, name) == 0))
        return;
    for (size_t i = 0; i < s->n_also_pool && i < UINT8_MAX; i++)
        if (strcmp(s->also_pool[i], name) == 0) {
            t->pool_at = (uint8_t)(i + 1);
            return;
        }
}

const char *vg_task_check(const struct vg_task *t) {
    bool placed =
        !vg_task_is_group(t) && (t->state == VG_TASK_STARTING || t->state == VG_TASK_RUNNING);
    if (placed && (!t->attempt.number || !t->attempt.node))
        return "a starting or running task has a numbered attempt on a node";
    if (!placed && (t->attempt.node || t->gpus))
        return "only a starting or running task holds a node and GPUs";
    if (vg_task_is_ended(t) != (t->ended_usec != 0))
        return "exactly ended tasks have an end time";
    if (vg_task_is_group(t) && (t->group || t->attempt.number))
        return "a group is neither a member nor placed";
    if (t->state == VG_TASK_BLOCKED && !vg_task_is_group(t) && t->attempt.number)
        return "a blocked task was never placed";
    if (t->attempt.number && !t->last_node)
        return "a task that was placed remembers where";
    return NULL;
}
