/* Sentences for people. Pure; nothing here changes the engine. */
#include "sched/lanes.h"

#include <stdio.h>
#include <string.h>

static uint32_t ahead_of(const struct vg_eng *e, const struct etask *t) {
    uint32_t n = 0;
    vg_map_for_each (i, &e->tasks) {
        const struct etask *o = i->value;
        n += o != t && o->place == TASK_WAITS && t->fit && o->fit &&
             o->fit->pool[0] == t->fit->pool[0] &&
             (o->level != t->level ? o->level > t->level : o->order < t->order);
    }
    return n;
}

static enum vg_eng_code code_of(const struct vg_eng *e, const struct etask *t) {
    if (t->place == TASK_PINNED)
        return VG_ENG_PINNED;
    if (!vg_fit_could(e, t->fit, true))
        return vg_fit_could(e, t->fit, false) ? VG_ENG_NO_NODES : VG_ENG_TOO_BIG;
    if (vg_tenant_at_limit(e, t->tenant, t->fit, t->shape ? t->shape->members : 1))
        return VG_ENG_AT_LIMIT;
    return t->shape && t->shape->state == SHAPE_ASLEEP ? t->shape->code : VG_ENG_AHEAD;
}

static void say(const struct vg_eng *e, const struct etask *t, enum vg_eng_code code,
                uint32_t ahead, char *out, size_t n) {
    const char *pool = e->pool[t->fit->pool[0]]->name;
    const struct etenant *full =
        vg_tenant_at_limit(e, t->tenant, t->fit, t->shape ? t->shape->members : 1);
    switch (code) {
    case VG_ENG_PINNED:
        snprintf(out, n, "its session's node is busy or away");
        break;
    case VG_ENG_NO_NODES:
        snprintf(out, n, "no node of pool '%s' takes tasks now", pool);
        break;
    case VG_ENG_TOO_BIG:
        snprintf(out, n, "no node of pool '%s' could hold it even when empty", pool);
        break;
    case VG_ENG_AT_LIMIT:
        snprintf(out, n, "'%s' is at its limit", full ? full->name : "");
        break;
    default:
        snprintf(out, n, "%u ahead of you on %s", ahead, pool);
    }
}

int vg_eng_brief(const struct vg_eng *e, uint64_t task, char *out, size_t n) {
    const struct etask *t = vg_map_get_u64(&e->tasks, task);
    if (!t || t->place == TASK_RUNS)
        return -ENOENT;
    say(e, t, code_of(e, t), ahead_of(e, t), out, n);
    return 0;
}

int vg_eng_why(const struct vg_eng *e, uint64_t task, struct vg_eng_why *ret) {
    const struct etask *t = vg_map_get_u64(&e->tasks, task);
    if (!t || t->place == TASK_RUNS)
        return -ENOENT;
    *ret = (struct vg_eng_why){.code = code_of(e, t),
                               .ahead = ahead_of(e, t),
                               .start_usec = VG_ENG_NEVER,
                               .run_usec = vg_learn_expect(e, t)};
    say(e, t, ret->code, ret->ahead, ret->text, sizeof ret->text);
    return 0;
}

int vg_eng_forecast(const struct vg_eng *e, const struct vg_eng_req *r, size_t members,
                    struct vg_eng_why *ret) {
    struct vg_err err = VG_ERR_INIT;
    int x = vg_eng_check_fit(e, r, members, &err);
    if (x < 0)
        return x;
    *ret = (struct vg_eng_why){.code = VG_ENG_AHEAD, .start_usec = VG_ENG_NEVER};
    snprintf(ret->text, sizeof ret->text, "it would wait for its turn");
    return 0;
}
