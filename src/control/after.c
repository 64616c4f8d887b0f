/* Waiting for other tasks. An end may set off a long chain of others; they are dealt with one after
   the other from a list (vg_control.ripe), never by recursion. */
#include "control/after.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/family.h"
#include "control/persist.h"

#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------ names */

/* The newest in memory of that name, owner and parent. */
static uint64_t sibling_in_memory(struct vg_control *c, const struct vg_user *u, uint64_t parent,
                                  const char *name) {
    uint64_t id = 0, newest = 0;
    vg_map_for_each (s, &c->jobs) {
        const struct vg_task *t = ((struct vg_job *)s->value)->task;
        if (t->group || t->spec->parent != parent || t->created_usec < newest ||
            strcmp(vg_task_name(t), name) != 0 || strcmp(t->user, u->name) != 0)
            continue;
        newest = t->created_usec;
        id = t->id;
    }
    return id;
}

static int resolve(struct vg_control *c, const struct vg_user *u, uint64_t parent,
                   Vg__Pb__Dependency *d, struct vg_err *err) {
    struct vg_found f;
    const char *ref = d->task ? d->task : "";
    uint64_t id = *ref ? sibling_in_memory(c, u, parent, ref) : 0;
    if (!id && *ref && vg_store_find_sibling(c->store, ref, u->name, parent, &id) < 0)
        id = 0;
    if (!id) {
        int r = vg_find_task(c, u, ref, &f, err);
        if (r < 0)
            return vg_err_wrap(err, "cannot wait for '%.64s'", ref);
        id = vg_found_task(&f)->id;
        vg_found_done(&f);
    }
    d->has_id = 1;
    d->id = id;
    return 0;
}

int vg_after_resolve(struct vg_control *c, const struct vg_user *u, uint64_t parent,
                     Vg__Pb__TaskSpec *spec, struct vg_err *err) {
    int r = 0;
    for (size_t i = 0; i < spec->n_after && r >= 0; i++)
        r = resolve(c, u, parent, spec->after[i], err);
    return r;
}

/* ------------------------------------------------------------------ waiting */

static void edge_free(struct vg_edge *e) {
    vg_list_remove(&e->on_target);
    vg_list_remove(&e->on_job);
    free(e);
}

void vg_after_unlink(struct vg_job *j) {
    while (!vg_list_empty(&j->edges))
        edge_free(vg_list_entry(vg_list_first(&j->edges), struct vg_edge, on_job));
}

void vg_after_forget(struct vg_job *j) {
    vg_after_unlink(j);
    while (j->head && !vg_list_empty(&j->head->waiting))
        edge_free(vg_list_entry(vg_list_first(&j->head->waiting), struct vg_edge, on_target));
}

/* What became of a task that may be in memory, in the store, or forgotten. */
struct fate {
    enum vg_task_state state;
    int32_t status;
    char name[VG_CONF_NAME_MAX + 1];
};

static int read_fate(void *arg, const struct vg_task_row *row) {
    struct fate *f = arg;
    f->status = row->status;
    snprintf(f->name, sizeof f->name, "%s", row->name);
    return vg_task_state_parse(row->state, &f->state);
}

static int fate_of(struct vg_control *c, uint64_t id, struct fate *ret) {
    struct vg_job *j = vg_job_get(c, id);
    if (!j)
        return vg_store_get_task(c->store, id, read_fate, ret);
    ret->state = j->task->state;
    ret->status = j->task->status;
    snprintf(ret->name, sizeof ret->name, "%s", vg_task_name(j->task));
    return 0;
}

/* It can never be what was asked for. */
static void give_up(struct vg_job *j, uint64_t target, enum vg_after_when when) {
    struct fate f = {.state = VG_TASK_CANCELLED};
    char why[256], how[64] = "";
    int r = fate_of(j->ctl, target, &f);
    if (r >= 0 && f.state == VG_TASK_FAILED)
        snprintf(how, sizeof how, " with status %d", f.status);
    snprintf(why, sizeof why, "cancelled: task %016llx%s%s%s %s%s, and this one was to run only %s",
             (unsigned long long)target, f.name[0] ? " (" : "", f.name, f.name[0] ? ")" : "",
             r < 0 ? "is not known any more" : vg_task_state_name(f.state), how,
             when == VG_AFTER_SUCCESS ? "after its success" : "after its failure");
    vg_job_cancel(j, 0, why);
}

/* Nothing is left to wait for. */
static void unblock(struct vg_job *j) {
    if (vg_task_move(j->task, VG_TASK_QUEUED, vg_wall_usec(), NULL) < 0)
        return;
    vg_job_changed(j);
    vg_job_begin(j);
}

static void met(struct vg_job *j, uint64_t target, enum vg_after_when when) {
    vg_task_drop_after(j->task, target, when);
    if (j->task->n_after == 0 && j->task->state == VG_TASK_BLOCKED)
        unblock(j);
    else
        vg_job_changed(j);
}

static int wait_for(struct vg_job *j, struct vg_job *target, enum vg_after_when when) {
    struct vg_edge *e = vg_job_need_head(target) < 0 ? NULL : vg_alloc(sizeof *e);
    if (!e)
        return -ENOMEM;
    *e = (struct vg_edge){.job = j, .target = target->task->id, .when = when};
    vg_list_push_back(&target->head->waiting, &e->on_target);
    vg_list_push_back(&j->edges, &e->on_job);
    return 0;
}

/* 1: waits or went on, 0: it was cancelled, -ENOMEM. */
static int link_one(struct vg_job *j, struct vg_after a) {
    struct fate f = {.state = VG_TASK_CANCELLED};
    struct vg_job *target = vg_job_get(j->ctl, a.id);
    if (target && !vg_task_is_ended(target->task))
        return wait_for(j, target, a.when) < 0 ? -ENOMEM : 1;
    if (fate_of(j->ctl, a.id, &f) >= 0 && vg_after_met(a.when, f.state) == 1) {
        met(j, a.id, a.when);
        return 1;
    }
    if (a.when == VG_AFTER_ANY) { /* forgotten: it has surely ended */
        met(j, a.id, a.when);
        return 1;
    }
    give_up(j, a.id, a.when);
    return 0;
}

void vg_after_link(struct vg_job *j) {
    uint32_t n = j->task->n_after;
    vg_auto_free struct vg_after *all =
        n ? vg_memdup(j->task->after, n * sizeof *all) : vg_alloc(1);
    if (!all) {
        vg_job_end(j, vg_reason_exit(VG_INTERNAL), VG_INTERNAL, "out of memory");
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        int r = link_one(j, all[i]);
        if (r < 0)
            vg_job_end(j, vg_reason_exit(VG_INTERNAL), VG_INTERNAL, "out of memory");
        if (r <= 0)
            return;
    }
    if (n == 0 && j->task->state == VG_TASK_BLOCKED)
        unblock(j);
}

/* ------------------------------------------------------------------ ends */

static void ripen(struct vg_edge *e) {
    struct vg_job *j = e->job, *target = vg_job_get(j->ctl, e->target);
    uint64_t id = e->target;
    enum vg_after_when when = e->when;
    enum vg_task_state state = target ? target->task->state : VG_TASK_CANCELLED;
    edge_free(e);
    if (vg_task_is_ended(j->task))
        return;
    if (vg_after_met(when, state) == 1)
        met(j, id, when);
    else
        give_up(j, id, when);
}

void vg_after_ended(struct vg_job *j) {
    struct vg_control *c = j->ctl;
    vg_after_unlink(j);
    if (!j->head)
        return;
    vg_list_for_each_safe (it, &j->head->waiting) {
        vg_list_remove(it);
        vg_list_push_back(&c->ripe, it);
    }
    if (c->ripening)
        return;
    c->ripening = true;
    while (!vg_list_empty(&c->ripe))
        ripen(vg_list_entry(vg_list_first(&c->ripe), struct vg_edge, on_target));
    c->ripening = false;
}

void vg_after_explain(const struct vg_job *j, char *out, size_t n) {
    const struct vg_task *t = j->task;
    struct fate f = {0};
    if (t->n_after == 0) {
        snprintf(out, n, "blocked");
        return;
    }
    uint64_t id = t->after[0].id;
    int r = fate_of(j->ctl, id, &f);
    int at = snprintf(out, n, "blocked: waits for %s of task %016llx%s%s%s%s%s",
                      t->after[0].when == VG_AFTER_SUCCESS   ? "the success"
                      : t->after[0].when == VG_AFTER_FAILURE ? "the failure"
                                                             : "the end",
                      (unsigned long long)id, f.name[0] ? " (" : "", f.name, f.name[0] ? ")" : "",
                      r < 0 ? "" : ", which is ", r < 0 ? "" : vg_task_state_name(f.state));
    if (at > 0 && (size_t)at < n && t->n_after > 1)
        snprintf(out + at, n - (size_t)at, "; and for %u more", t->n_after - 1);
}
