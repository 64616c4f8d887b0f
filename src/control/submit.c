/* Making tasks. */
#include "control/submit.h"

#include "control/env.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/after.h"
#include "control/api.h"
#include "control/family.h"
#include "control/persist.h"
#include "control/secrets.h"
#include "control/sessions.h"
#include "control/spec-check.h"

#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------ what it resolves to */

int vg_submit_resolve(struct vg_control *c, const struct vg_user *u, uint64_t parent,
                      Vg__Pb__TaskSpec *spec, struct vg_res *ret_grant, struct vg_err *err) {
    int r = vg_admit(c, u, spec, ret_grant, err);
    if (r >= 0)
        r = vg_after_resolve(c, u, parent, spec, err);
    if (r >= 0)
        r = vg_secrets_check(c, u, parent, spec, err);
    if (r < 0)
        return r;
    spec->parent = parent;
    spec->has_parent = parent != 0;
    spec->group = spec->index = spec->of = 0; /* not a client's to say */
    spec->has_group = spec->has_index = spec->has_of = 0;
    spec->made_by = 0;
    spec->has_made_by = 0;
    return 0;
}

int vg_submit_limits(struct vg_control *c, const struct vg_user *u, const Vg__Pb__TaskSpec *spec,
                     struct vg_err *err) {
    uint64_t members = vg_spec_members(spec, VG_SPEC_MEMBERS_MAX), more = members ? members : 1;
    uint64_t all = vg_map_len(&c->jobs), mine = u->open_tasks;
    if (c->conf.limits.tasks && all + more > c->conf.limits.tasks)
        return vg_err_set(
            err, VG_NO_CAPACITY,
            "the cloud holds %llu unfinished tasks and %llu more are above its limit of %llu "
            "(limits.tasks): wait until some have ended",
            (unsigned long long)all, (unsigned long long)more,
            (unsigned long long)c->conf.limits.tasks);
    if (c->conf.limits.user_tasks && mine + more > c->conf.limits.user_tasks)
        return vg_err_set(
            err, VG_NO_CAPACITY,
            "you have %llu unfinished tasks and %llu more are above your limit of %llu "
            "(limits.user_tasks): wait until some have ended",
            (unsigned long long)mine, (unsigned long long)more,
            (unsigned long long)c->conf.limits.user_tasks);
    return 0;
}

/* ------------------------------------------------------------------ the job */

static int make_waits(struct vg_task *t) {
    int r = 0;
    for (size_t i = 0; i < t->spec->n_after && r >= 0; i++) {
        const Vg__Pb__Dependency *d = t->spec->after[i];
        r = vg_task_add_after(t, d->id, d->has_when ? (enum vg_after_when)d->when : VG_AFTER_ANY);
    }
    return r;
}

static int make_group(struct vg_task *t, uint64_t members) {
    t->members = (uint32_t)members;
    t->durable = true; /* its members' rows are small because this one is there */
    if (vg_task_need_progress(t) < 0)
        return -ENOMEM;
    t->progress->n[t->state] = t->members;
    return 0;
}

static int remember_key(struct vg_job *j) {
    const Vg__Pb__TaskSpec *spec = j->task->spec;
    if (!spec->key || !*spec->key)
        return 0;
    char *key = vg_fmt("%s/%s", j->task->user, spec->key);
    if (!key || vg_map_put(&j->ctl->idem, key, j) < 0) {
        free(key);
        return -ENOMEM;
    }
    j->idem = key;
    return 0;
}

static struct vg_task *make_task(struct vg_new *n) {
    Vg__Pb__TaskSpec *spec = n->spec;
    struct vg_task *t = n->who && spec ? vg_task_new(n->id, n->user->name, n->user->team->name,
                                                     spec, spec->n_after > 0, vg_wall_usec())
                                       : NULL;
    if (!t) {
        if (spec)
            vg__pb__task_spec__free_unpacked(spec, NULL);
        if (n->who)
            vg__pb__identity__free_unpacked(n->who, NULL);
        return NULL;
    }
    vg_task_set_who(t, n->who);
    t->grant = n->grant;
    t->durable = n->durable;
    t->due_usec = spec->not_before_usec;
    uint64_t members = vg_spec_members(spec, VG_SPEC_MEMBERS_MAX);
    if (make_waits(t) < 0 || (members && make_group(t, members) < 0)) {
        vg_task_free(t);
        return NULL;
    }
    return t;
}

struct vg_job *vg_submit_make(struct vg_control *c, struct vg_new *n) {
    struct vg_task *t = make_task(n);
    n->spec = NULL;
    n->who = NULL;
    struct vg_job *j = t ? vg_job_new(c, t) : NULL;
    if (!j) {
        vg_task_free(t);
        return NULL;
    }
    if (vg_sessions_bind(j) < 0 || remember_key(j) < 0 || vg_family_join(j) < 0) {
        vg_job_free(j);
        return NULL;
    }
    return j;
}

/* ------------------------------------------------------------------ acceptance */

static void refuse(struct vg_job *j, enum vg_reason reason, const char *why) {
    vg_job_end(j, vg_reason_exit(reason), reason, why);
}

static void accepted(struct vg_job *j, uint64_t cookie, int result) {
    (void)cookie;
    j->accepting = false;
    if (vg_task_is_ended(j->task))
        return;
    if (result < 0) {
        char text[256];
        snprintf(text, sizeof text, "cannot store the task: %s; free space under %s",
                 strerror(-result), j->ctl->home.dir);
        refuse(j, result == -ENOSPC ? VG_DISK_FULL : VG_INTERNAL, text);
        return;
    }
    if (vg_task_is_group(j->task) && vg_group_make(j) < 0) {
        vg_job_cancel(j, 0, "there is not enough memory for so many tasks");
        return;
    }
    j->ctl->counts.submitted += vg_task_is_group(j->task) ? j->task->members : 1;
    vg_job_event(j, VG__PB__RUN_EVENT__KIND__ACCEPTED, NULL);
    if (j->task->durable && !vg_list_empty(&j->ctl->watches))
        vg_watch_tell(j->ctl, j->task); /* it may wait for long before anything else happens */
    vg_envs_hold(j);
    if (vg_task_is_ended(j->task))
        return;
    vg_job_begin(j);
}

void vg_submit_go(struct vg_job *j) {
    if (!j->task->durable) {
        vg_job_changed(j);
        accepted(j, 0, 0);
        return;
    }
    j->accepting = true;
    vg_chan_park(&j->chan, j->ctl->loop);
    int r = vg_persist_now(j, VG_STORE_DURABLE, accepted, 0);
    if (r < 0)
        accepted(j, 0, r);
}

/* ------------------------------------------------------------------ keys */

/* What must be the same: the rest is the shell's or the control plane's. The copy is shallow. */
static Vg__Pb__TaskSpec essence(const Vg__Pb__TaskSpec *s) {
    Vg__Pb__TaskSpec e = *s;
    e.n_env = e.n_rlimit = e.n_after = 0;
    e.tty = NULL;
    e.mirror = NULL;
    e.client_host = NULL;
    e.has_umask = e.has_tty_out = e.has_stdin_open = e.has_nice = e.has_closed = 0;
    e.has_sig_ignored = e.has_hold_usec = e.has_stderr_joined = e.has_stderr_apart = 0;
    e.has_detached = e.has_not_before_usec = e.has_parent = 0;
    return e;
}

static bool same(const Vg__Pb__TaskSpec *a, const Vg__Pb__TaskSpec *b) {
    Vg__Pb__TaskSpec x = essence(a), y = essence(b);
    size_t n = vg__pb__task_spec__get_packed_size(&x);
    if (n != vg__pb__task_spec__get_packed_size(&y))
        return false;
    vg_auto_free uint8_t *p = vg_alloc(2 * n + 1);
    if (!p)
        return false;
    vg__pb__task_spec__pack(&x, p);
    vg__pb__task_spec__pack(&y, p + n);
    return memcmp(p, p + n, n) == 0;
}

int vg_idem_find(struct vg_control *c, const struct vg_user *u, const Vg__Pb__TaskSpec *spec,
                 struct vg_job **ret_job, struct vg_task **ret_task, struct vg_err *err) {
    uint64_t id = 0;
    struct vg_task *stored = NULL;
    vg_auto_free char *key = vg_fmt("%s/%s", u->name, spec->key);
    struct vg_job *j = key ? vg_map_get(&c->idem, key) : NULL;
    if (!j && vg_store_find_key(c->store, u->name, spec->key, &id) == 0)
        j = vg_job_get(c, id); /* loaded at start */
    if (!j && (!id || vg_persist_get(c, id, &stored) < 0))
        return 0;
    const struct vg_task *t = j ? j->task : stored;
    if (!same(spec, t->spec)) {
        vg_err_set(err, VG_EXISTS,
                   "key '%.64s' belongs to task %016llx, which asks for something else: use "
                   "another key",
                   spec->key, (unsigned long long)t->id);
        vg_task_free(stored);
        return err->code;
    }
    *ret_job = j;
    *ret_task = stored;
    return 1;
}
