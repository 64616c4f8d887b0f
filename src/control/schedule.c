/* Tasks by the clock. */
#include "control/schedule.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/audit.h"
#include "control/submit.h"
#include "control/users.h"

#include <stdio.h>
#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name

static void schedule_free(struct vg_schedule *s) {
    if (!s)
        return;
    if (s->spec)
        vg__pb__task_spec__free_unpacked(s->spec, NULL);
    if (s->who)
        vg__pb__identity__free_unpacked(s->who, NULL);
    free(s->user);
    free(s->team);
    free(s);
}

static const char *name_of(const struct vg_schedule *s) {
    return s->spec->name ? s->spec->name : "";
}

static int store(const struct vg_schedule *s, bool whole, enum vg_store_sync sync, vg_store_cb *cb,
                 void *arg) {
    vg_auto_free uint8_t *spec = NULL, *who = NULL;
    struct vg_schedule_row row = {.id = s->id,
                                  .user = s->user,
                                  .team = s->team,
                                  .name = name_of(s),
                                  .created_usec = s->created_usec,
                                  .next_usec = s->next_usec,
                                  .last_usec = s->last_usec,
                                  .last_task = s->last_task,
                                  .made = s->made};
    if (whole) {
        spec = vg_alloc(vg__pb__task_spec__get_packed_size(s->spec) + 1);
        who = vg_alloc(vg__pb__identity__get_packed_size(s->who) + 1);
        if (!spec || !who)
            return -ENOMEM;
        row.spec = (struct vg_bytes){spec, vg__pb__task_spec__pack(s->spec, spec)};
        row.who = (struct vg_bytes){who, vg__pb__identity__pack(s->who, who)};
    }
    return vg_store_put_schedule(s->ctl->store, &row, sync, cb, arg);
}

/* ------------------------------------------------------------------ making tasks */

/* The messages of the template, once more. */
static int copy_template(const struct vg_schedule *s, struct vg_new *n) {
    size_t size = vg__pb__task_spec__get_packed_size(s->spec);
    size_t who_size = vg__pb__identity__get_packed_size(s->who);
    vg_auto_free uint8_t *p = vg_alloc(size + who_size + 1);
    if (!p)
        return -ENOMEM;
    vg__pb__task_spec__pack(s->spec, p);
    vg__pb__identity__pack(s->who, p + size);
    n->spec = vg__pb__task_spec__unpack(NULL, size, p);
    n->who = vg__pb__identity__unpack(NULL, who_size, p + size);
    return n->spec && n->who ? 0 : -ENOMEM;
}

static int none(void *arg, const struct vg_task_row *row) {
    (void)arg;
    (void)row;
    return 0;
}

static bool is_known(struct vg_control *c, uint64_t id) {
    return vg_job_get(c, id) || vg_store_get_task(c->store, id, none, NULL) != -ENOENT;
}

static int make(struct vg_schedule *s, struct vg_err *err) {
    struct vg_control *c = s->ctl;
    const struct vg_user *u = vg_tenants_user(&c->tenants, s->user);
    struct vg_new n = {.id = vg_task_member_id(s->id, s->made), .user = u, .durable = true};
    if (!u)
        return vg_err_set(err, VG_NOT_FOUND, "user '%s' is not known any more", s->user);
    if (is_known(c, n.id))
        return 0; /* made by an earlier life of ours that could not note it */
    int r = copy_template(s, &n) < 0 ? vg_err_sys(err, ENOMEM, "cannot make the task") : 0;
    if (r >= 0) {
        n.spec->schedule[0] = '\0';
        r = vg_submit_resolve(c, u, 0, n.spec, &n.grant, err);
    }
    if (r >= 0)
        r = vg_submit_limits(c, u, n.spec, err);
    if (r >= 0) {
        n.spec->has_made_by = 1;
        n.spec->made_by = s->id;
        struct vg_job *j = vg_submit_make(c, &n);
        if (j) {
            j->from = vg_fmt("schedule %016llx", (unsigned long long)s->id);
            vg_submit_go(j);
        } else {
            r = vg_err_sys(err, ENOMEM, "cannot make the task");
        }
    }
    if (n.spec)
        vg__pb__task_spec__free_unpacked(n.spec, NULL);
    if (n.who)
        vg__pb__identity__free_unpacked(n.who, NULL);
    return r;
}

static void fire(struct vg_schedule *s, uint64_t now) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_job *last = vg_job_get(s->ctl, s->last_task);
    char id[VG_ID_LEN + 1];
    vg_id_format(s->id, id);
    s->next_usec = vg_cron_next(&s->when, s->created_usec, now);
    if (last && !vg_task_is_ended(last->task)) {
        vg_info("schedule=%s skipped: task %016llx has not ended", id,
                (unsigned long long)s->last_task);
    } else if (make(s, &err) < 0) {
        vg_warn("schedule=%s user=%s could not make its task: %s", id, s->user, err.msg);
    } else {
        s->last_task = vg_task_member_id(s->id, s->made++);
        s->last_usec = now;
    }
    if (store(s, false, VG_STORE_COMMIT, NULL, NULL) < 0)
        vg_warn("schedule=%s cannot be stored", id);
}

void vg_schedules_tick(struct vg_control *c) {
    uint64_t now = vg_wall_usec();
    vg_map_for_each (slot, &c->schedules) {
        struct vg_schedule *s = slot->value;
        if (s->next_usec && s->next_usec <= now)
            fire(s, now);
    }
}

/* ------------------------------------------------------------------ taking and forgetting */

static void answer(struct vg_peer *p, uint32_t req, const struct vg_schedule *s) {
    VG_ENVELOPE(env);
    Vg__Pb__RunEvent e = VG__PB__RUN_EVENT__INIT;
    e.has_kind = e.has_task_id = 1;
    e.kind = VG__PB__RUN_EVENT__KIND__ACCEPTED;
    e.task_id = s->id;
    env.body_case = B(RUN_EVENT);
    env.run_event = &e;
    vg_peer_send(p, req, false, &env);
}

struct pending {
    struct vg_control *ctl;
    uint64_t peer, id;
    uint32_t req;
};

static void stored(void *arg, int result) {
    vg_auto_free struct pending *p = arg;
    struct vg_peer *peer = vg_peer_find(p->ctl, p->peer);
    struct vg_schedule *s = vg_map_get_u64(&p->ctl->schedules, p->id);
    if (result < 0 && s) {
        vg_map_del_u64(&p->ctl->schedules, p->id);
        schedule_free(s);
    }
    if (!peer)
        return;
    if (result < 0)
        vg_peer_error(peer, p->req, result == -ENOSPC ? VG_DISK_FULL : VG_INTERNAL,
                      "cannot store the schedule: %s; free space under %s", strerror(-result),
                      p->ctl->home.dir);
    else if (s)
        answer(peer, p->req, s);
}

static struct vg_schedule *schedule_new(struct vg_call *call, Vg__Pb__Identity *who) {
    Vg__Pb__RunReq *m = call->env->run;
    struct vg_schedule *s = vg_alloc(sizeof *s);
    struct vg_err err = VG_ERR_INIT;
    if (!s || !who) {
        free(s);
        if (who)
            vg__pb__identity__free_unpacked(who, NULL);
        return NULL;
    }
    s->ctl = call->ctl;
    s->id = m->task_id;
    s->user = vg_strdup(call->user->name);
    s->team = vg_strdup(call->user->team->name);
    s->spec = vg_take_ptr(m->spec);
    s->who = who;
    s->created_usec = vg_wall_usec();
    vg_cron_parse(s->spec->schedule, &s->when, &err); /* spec-check has parsed it before */
    s->next_usec = vg_cron_next(&s->when, s->created_usec, s->created_usec);
    if (!s->user || !s->team || vg_map_put_u64(&call->ctl->schedules, s->id, s) < 0) {
        schedule_free(s);
        return NULL;
    }
    return s;
}

void vg_schedule_take(struct vg_call *call, Vg__Pb__Identity *who) {
    struct vg_control *c = call->ctl;
    struct vg_schedule *s = vg_map_get_u64(&c->schedules, call->env->run->task_id);
    if (s || vg_map_len(&c->schedules) >= VG_SCHEDULES_MAX) {
        if (who)
            vg__pb__identity__free_unpacked(who, NULL);
        if (!s)
            vg_peer_error(call->peer, call->req, VG_TOO_BIG,
                          "the cloud has %d schedules, its limit: remove some ('virga schedule "
                          "list')",
                          VG_SCHEDULES_MAX);
        else if (strcmp(s->user, call->user->name) != 0)
            vg_peer_error(call->peer, call->req, VG_EXISTS,
                          "this id belongs to somebody else: run the command again");
        else
            answer(call->peer, call->req, s); /* sent again */
        return;
    }
    s = schedule_new(call, who);
    struct pending *p = s ? vg_alloc(sizeof *p) : NULL;
    if (p)
        *p = (struct pending){c, call->peer->serial, s->id, call->req};
    if (!p || store(s, true, VG_STORE_DURABLE, stored, p) < 0) {
        free(p);
        if (s) {
            vg_map_del_u64(&c->schedules, s->id);
            schedule_free(s);
        }
        vg_peer_error(call->peer, call->req, VG_INTERNAL, "cannot take the schedule: try again");
        return;
    }
    vg_audit(call, "schedule add %016llx %s", (unsigned long long)s->id, s->spec->schedule);
}

/* ------------------------------------------------------------------ from the store */

static int load(void *arg, const struct vg_schedule_row *row) {
    struct vg_control *c = arg;
    struct vg_err err = VG_ERR_INIT;
    struct vg_schedule *s = vg_alloc(sizeof *s);
    if (!s)
        return -ENOMEM;
    *s =
        (struct vg_schedule){.ctl = c,
                             .id = row->id,
                             .user = vg_strdup(row->user),
                             .team = vg_strdup(row->team),
                             .spec = vg__pb__task_spec__unpack(NULL, row->spec.len, row->spec.data),
                             .who = vg__pb__identity__unpack(NULL, row->who.len, row->who.data),
                             .created_usec = row->created_usec,
                             .next_usec = row->next_usec,
                             .last_usec = row->last_usec,
                             .last_task = row->last_task,
                             .made = row->made};
    if (!s->spec || !s->who || !s->user || !s->team || !s->spec->schedule ||
        vg_cron_parse(s->spec->schedule, &s->when, &err) < 0) {
        vg_error("schedule %016llx in the store cannot be read and is left out",
                 (unsigned long long)row->id);
        schedule_free(s);
        return 0;
    }
    if (vg_map_put_u64(&c->schedules, s->id, s) < 0) {
        schedule_free(s);
        return -ENOMEM;
    }
    return 0;
}

int vg_schedules_load(struct vg_control *c) {
    return vg_store_load_schedules(c->store, load, c);
}

void vg_schedules_done(struct vg_control *c) {
    vg_map_for_each (slot, &c->schedules)
        schedule_free(slot->value);
    vg_map_done(&c->schedules);
}

/* ------------------------------------------------------------------ requests */

static void fill_info(const struct vg_schedule *s, Vg__Pb__ScheduleInfo *i) {
    vg__pb__schedule_info__init(i);
    i->has_id = i->has_next_usec = i->has_last_usec = i->has_last_task = i->has_made = 1;
    i->id = s->id;
    i->name = s->spec->name;
    i->user = s->user;
    i->when = s->spec->schedule;
    i->next_usec = s->next_usec;
    i->last_usec = s->last_usec;
    i->last_task = s->last_task;
    i->made = s->made;
    i->argv = s->spec->argv;
    i->n_argv = s->spec->n_argv;
}

static int by_next(const void *a, const void *b) {
    const Vg__Pb__ScheduleInfo *x = *(Vg__Pb__ScheduleInfo *const *)a;
    const Vg__Pb__ScheduleInfo *y = *(Vg__Pb__ScheduleInfo *const *)b;
    if (x->next_usec != y->next_usec)
        return x->next_usec < y->next_usec ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

void vg_api_schedule_list(struct vg_call *call) {
    size_t len = vg_map_len(&call->ctl->schedules), n = 0;
    vg_auto_free Vg__Pb__ScheduleInfo *info = vg_alloc((len + 1) * sizeof *info);
    vg_auto_free Vg__Pb__ScheduleInfo **list = vg_alloc((len + 1) * sizeof *list);
    if (!info || !list) {
        vg_peer_error(call->peer, call->req, VG_INTERNAL, "out of memory");
        return;
    }
    vg_map_for_each (slot, &call->ctl->schedules) {
        const struct vg_schedule *s = slot->value;
        if (!vg_users_may_see(call->user, s->user, s->team))
            continue;
        fill_info(s, &info[n]);
        list[n] = &info[n];
        n++;
    }
    qsort(list, n, sizeof *list, by_next);
    VG_ENVELOPE(env);
    Vg__Pb__ScheduleList m = VG__PB__SCHEDULE_LIST__INIT;
    m.n_schedule = n;
    m.schedule = list;
    env.body_case = B(SCHEDULES);
    env.schedules = &m;
    vg_peer_send(call->peer, call->req, false, &env);
}

/* By id, unique prefix of it, or unique name. */
static struct vg_schedule *find(struct vg_call *call, const char *ref, struct vg_err *err) {
    struct vg_schedule *found = NULL;
    size_t len = strlen(ref), hits = 0;
    vg_map_for_each (slot, &call->ctl->schedules) {
        struct vg_schedule *s = slot->value;
        char id[VG_ID_LEN + 1];
        vg_id_format(s->id, id);
        if (!vg_users_may_see(call->user, s->user, s->team) ||
            !(strcmp(name_of(s), ref) == 0 || (len >= 4 && strncmp(id, ref, len) == 0)))
            continue;
        found = s;
        hits++;
    }
    if (hits == 1)
        return found;
    if (hits)
        vg_err_set(err, VG_CONFLICT, "'%.64s' names %zu schedules: give the id", ref, hits);
    else
        vg_err_set(err, VG_NOT_FOUND,
                   "there is no schedule '%.64s': 'virga schedule list' shows them", ref);
    return NULL;
}

void vg_api_schedule_remove(struct vg_call *call) {
    const char *ref = call->env->schedule_remove->name;
    struct vg_err err = VG_ERR_INIT;
    struct vg_schedule *s = ref && *ref ? find(call, ref, &err) : NULL;
    if (!ref || !*ref)
        vg_err_set(&err, VG_INVALID, "say which schedule: its id or name");
    if (s && !vg_users_may_end(call->user, s->user, s->team)) {
        vg_err_set(&err, VG_FORBIDDEN, "the schedule belongs to '%s': only its owner may remove it",
                   s->user);
        s = NULL;
    }
    if (s && vg_store_del_schedule(call->ctl->store, s->id, NULL, NULL) < 0) {
        vg_err_set(&err, VG_INTERNAL, "the schedule cannot be removed now: try again");
        s = NULL;
    }
    if (!s) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    vg_audit(call, "schedule remove %016llx", (unsigned long long)s->id);
    vg_map_del_u64(&call->ctl->schedules, s->id);
    schedule_free(s);
    vg_peer_ok(call->peer, call->req, NULL);
}
