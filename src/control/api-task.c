/* Looking at tasks and ending them. Tasks that have not ended are in memory, the others in the
   store; whoever asks sees one list. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/nodes.h"
#include "control/persist.h"
#include "control/users.h"
#include "model/task-row.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define LIST_MAX 1000
#define PREFIX_MIN 4

/* ------------------------------------------------------------------ finding one */

static int not_found(const char *ref, struct vg_err *err) {
    return vg_err_set(err, VG_NOT_FOUND,
                      "there is no task '%.64s' that you may see: 'virga task list' shows them",
                      ref);
}

static int ambiguous(const char *ref, struct vg_err *err) {
    return vg_err_set(err, VG_CONFLICT, "'%.16s' begins the ids of several tasks: give more digits",
                      ref);
}

static int load(struct vg_control *c, uint64_t id, struct vg_found *ret) {
    ret->job = vg_job_get(c, id);
    return ret->job ? 0 : vg_persist_get(c, id, &ret->task);
}

static bool all_hex(const char *s) {
    return s[strspn(s, "0123456789abcdef")] == '\0';
}

/* In memory: 1 and the id when exactly one matches, 0 when none, -EBUSY. */
static int find_in_memory(struct vg_control *c, const struct vg_user *u, const char *ref,
                          bool by_name, uint64_t *ret_id) {
    size_t len = strlen(ref);
    int hits = 0;
    uint64_t newest = 0;
    vg_map_for_each (s, &c->jobs) {
        const struct vg_task *t = ((struct vg_job *)s->value)->task;
        char id[VG_ID_LEN + 1];
        vg_id_format(t->id, id);
        if (!vg_users_may_see(u, t->user, t->team))
            continue;
        if (by_name ? strcmp(vg_task_name(t), ref) != 0 : strncmp(id, ref, len) != 0)
            continue;
        if (by_name && t->created_usec < newest)
            continue;
        newest = t->created_usec;
        *ret_id = t->id;
        hits++;
    }
    return hits > 1 && !by_name ? -EBUSY : hits > 0;
}

static int find_by_prefix(struct vg_control *c, const struct vg_user *u, const char *ref,
                          uint64_t *ret_id) {
    uint64_t stored = 0;
    const char *only = vg_user_may(u, VG_ACT_SEE_ALL) ? NULL : u->name;
    int mem = find_in_memory(c, u, ref, false, ret_id);
    if (mem < 0)
        return mem;
    int r = vg_store_find_prefix(c->store, ref, only, &stored);
    if (r == -EBUSY)
        return r;
    if (r == 0 && mem && stored != *ret_id)
        return -EBUSY;
    if (r == 0)
        *ret_id = stored;
    return r == 0 || mem ? 0 : -ENOENT;
}

static int find_by_name(struct vg_control *c, const struct vg_user *u, const char *ref,
                        uint64_t *ret_id) {
    if (find_in_memory(c, u, ref, true, ret_id) > 0)
        return 0;
    int r = vg_store_find_name(c->store, ref, u->name, ret_id);
    if (r == -ENOENT && vg_user_may(u, VG_ACT_SEE_ALL))
        r = vg_store_find_name(c->store, ref, NULL, ret_id);
    return r;
}

int vg_find_task(struct vg_control *c, const struct vg_user *u, const char *ref,
                 struct vg_found *ret, struct vg_err *err) {
    uint64_t id = 0;
    size_t len = strlen(ref);
    int r = -ENOENT;
    *ret = (struct vg_found){0};
    if (len == VG_ID_LEN && vg_id_parse(ref, &id) == 0)
        r = 0;
    else if (len >= PREFIX_MIN && len < VG_ID_LEN && all_hex(ref))
        r = find_by_prefix(c, u, ref, &id);
    if (r == -EBUSY)
        return ambiguous(ref, err);
    if (r == -ENOENT && len)
        r = find_by_name(c, u, ref, &id);
    if (r >= 0)
        r = load(c, id, ret);
    if (r < 0 && r != -ENOENT)
        return vg_err_sys(err, r, "cannot look for task '%.64s'", ref);
    if (r < 0 || !vg_users_may_see(u, vg_found_task(ret)->user, vg_found_task(ret)->team)) {
        vg_found_done(ret);
        return not_found(ref, err);
    }
    return 0;
}

void vg_found_done(struct vg_found *f) {
    vg_task_free(f->task);
    *f = (struct vg_found){0};
}

static bool find_or_fail(struct vg_call *call, const char *ref, struct vg_found *ret) {
    struct vg_err err = VG_ERR_INIT;
    if (vg_find_task(call->ctl, call->user, ref ? ref : "", ret, &err) >= 0)
        return true;
    vg_peer_fail(call->peer, call->req, &err);
    return false;
}

/* A waiting task says what it waits for. `room` holds the sentence. */
static void add_queue_reason(struct vg_control *c, const struct vg_task *t,
                             struct vg_task_info *info, char *room, size_t n) {
    if (t->state == VG_TASK_QUEUED && vg_sched_explain(c->sched, t->id, room, n) >= 0)
        info->pb.reason = room;
}

static void send_task(struct vg_peer *p, uint32_t req, bool more, const struct vg_task *t) {
    struct vg_task_info info;
    char why[512];
    VG_ENVELOPE(env);
    vg_task_info(p->ctl, t, &info);
    add_queue_reason(p->ctl, t, &info, why, sizeof why);
    env.body_case = B(TASK);
    env.task = &info.pb;
    vg_peer_send(p, req, more, &env);
}

void vg_api_task_get(struct vg_call *call) {
    struct vg_found f;
    if (!find_or_fail(call, call->env->task_get->task, &f))
        return;
    send_task(call->peer, call->req, false, vg_found_task(&f));
    vg_found_done(&f);
}

void vg_api_task_wait(struct vg_call *call) {
    struct vg_found f;
    if (!find_or_fail(call, call->env->task_wait->task, &f))
        return;
    if (!f.job || vg_task_is_ended(f.job->task))
        send_task(call->peer, call->req, false, vg_found_task(&f));
    else if (!vg_follow_new(call->peer, f.job, VG_FOLLOW_WAIT, call->req))
        vg_peer_error(call->peer, call->req, VG_TOO_BIG,
                      "too many requests wait on this connection: open another");
    vg_found_done(&f);
}

/* ------------------------------------------------------------------ lists */

static bool state_wanted(const Vg__Pb__TaskQuery *q, const char *state) {
    for (size_t i = 0; i < q->n_state; i++)
        if (strcmp(q->state[i], state) == 0)
            return true;
    return q->n_state == 0;
}

static bool labels_wanted(const Vg__Pb__TaskQuery *q, const struct vg_task *t) {
    for (size_t i = 0; i < q->n_label; i++) {
        bool has = false;
        for (size_t k = 0; k < t->spec->n_label; k++)
            has |= strcmp(t->spec->label[k], q->label[i]) == 0;
        if (!has)
            return false;
    }
    return true;
}

static bool id_wanted(const Vg__Pb__TaskQuery *q, const struct vg_task *t) {
    char id[VG_ID_LEN + 1];
    vg_id_format(t->id, id);
    for (size_t i = 0; i < q->n_task; i++)
        if (strncmp(id, q->task[i], strlen(q->task[i])) == 0 ||
            strcmp(vg_task_name(t), q->task[i]) == 0)
            return true;
    return q->n_task == 0;
}

static bool wanted(const Vg__Pb__TaskQuery *q, const struct vg_user *u, const struct vg_task *t) {
    if (!vg_users_may_see(u, t->user, t->team))
        return false;
    if (!q->all_users && strcmp(t->user, u->name) != 0)
        return false;
    if (q->pool && *q->pool && strcmp(q->pool, vg_task_pool(t)) != 0)
        return false;
    if (q->name && *q->name && strcmp(q->name, vg_task_name(t)) != 0)
        return false;
    return state_wanted(q, vg_task_state_name(t->state)) && labels_wanted(q, t) && id_wanted(q, t);
}

struct listing {
    struct vg_control *ctl;
    const Vg__Pb__TaskQuery *q;
    const struct vg_user *user;
    struct vg_row_tasks rows;
    struct vg_task **owned; /* from the store */
    size_t n_owned;
    const struct vg_task **all;
    size_t n, cap;
    uint64_t before_usec, before_id;
    size_t limit;
};

static bool newer(const struct vg_task *a, uint64_t usec, uint64_t id) {
    return a->created_usec > usec || (a->created_usec == usec && a->id >= id);
}

static int by_age(const void *a, const void *b) {
    const struct vg_task *x = *(const struct vg_task *const *)a;
    const struct vg_task *y = *(const struct vg_task *const *)b;
    if (x->created_usec != y->created_usec)
        return x->created_usec > y->created_usec ? -1 : 1;
    return x->id > y->id ? -1 : x->id < y->id;
}

static int add(struct listing *l, const struct vg_task *t) {
    const struct vg_task **p = vg_grow(l->all, &l->cap, l->n + 1, sizeof *p);
    if (!p)
        return -ENOMEM;
    l->all = p;
    l->all[l->n++] = t;
    return 0;
}

static int add_row(void *arg, const struct vg_task_row *row) {
    struct listing *l = arg;
    struct vg_task *t = NULL;
    if (vg_job_get(l->ctl, row->id)) /* memory has the newer word */
        return 0;
    int r = vg_row_tasks_get(&l->rows, row, &t);
    if (r < 0)
        return r == -EBADMSG ? 0 : r;
    if (!wanted(l->q, l->user, t) || l->n_owned >= l->limit) {
        vg_task_free(t);
        return 0;
    }
    l->owned[l->n_owned++] = t;
    return add(l, t);
}

static int add_stored(struct listing *l) {
    const Vg__Pb__TaskQuery *q = l->q;
    struct vg_task_filter f = {.user = q->all_users ? NULL : l->user->name,
                               .pool = q->pool && *q->pool ? q->pool : NULL,
                               .name = q->name && *q->name ? q->name : NULL,
                               .state = (const char *const *)q->state,
                               .n_states = q->n_state,
                               .label = (const char *const *)q->label,
                               .n_labels = q->n_label,
                               .before_usec = l->before_usec,
                               .before_id = l->before_id,
                               .limit = (uint32_t)l->limit,
                               .only_ended = true};
    return vg_store_query_tasks(l->ctl->store, &f, add_row, l);
}

static int collect(struct listing *l, struct vg_err *err) {
    const char *before = l->q->before;
    if (l->q->n_state > VG_TASK_FILTER_MAX || l->q->n_label > VG_TASK_FILTER_MAX)
        return vg_err_set(err, VG_TOO_BIG, "at most %d states and labels can be asked for at once",
                          VG_TASK_FILTER_MAX);
    if (before && *before) {
        struct vg_found f;
        int r = vg_find_task(l->ctl, l->user, before, &f, err);
        if (r < 0)
            return r;
        l->before_usec = vg_found_task(&f)->created_usec;
        l->before_id = vg_found_task(&f)->id;
        vg_found_done(&f);
    }
    vg_map_for_each (s, &l->ctl->jobs) {
        const struct vg_task *t = ((struct vg_job *)s->value)->task;
        if (!wanted(l->q, l->user, t) || (l->before_usec && newer(t, l->before_usec, l->before_id)))
            continue;
        if (add(l, t) < 0)
            return vg_err_sys(err, ENOMEM, "cannot list tasks");
    }
    int r = add_stored(l);
    if (r < 0)
        return vg_err_sys(err, r, "cannot read the list of tasks");
    if (l->n)
        qsort(l->all, l->n, sizeof *l->all, by_age);
    return 0;
}

static void send_list(struct vg_call *call, const struct listing *l) {
    size_t n = VG_MIN(l->n, l->limit);
    vg_auto_free struct vg_task_info *info = vg_alloc((n + 1) * sizeof *info);
    vg_auto_free Vg__Pb__TaskInfo **list = vg_alloc((n + 1) * sizeof *list);
    vg_auto_free char(*why)[256] = vg_alloc((n + 1) * sizeof *why);
    if (!info || !list || !why) {
        vg_peer_error(call->peer, call->req, VG_INTERNAL, "out of memory");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        vg_task_info(l->ctl, l->all[i], &info[i]);
        add_queue_reason(l->ctl, l->all[i], &info[i], why[i], sizeof why[i]);
        list[i] = &info[i].pb;
    }
    VG_ENVELOPE(env);
    Vg__Pb__TaskList m = VG__PB__TASK_LIST__INIT;
    m.task = list;
    m.n_task = n;
    m.has_total = 1;
    m.total = l->n;
    env.body_case = B(TASKS);
    env.tasks = &m;
    vg_peer_send(call->peer, call->req, false, &env);
}

void vg_api_task_list(struct vg_call *call) {
    const Vg__Pb__TaskQuery *q = call->env->task_list;
    struct vg_err err = VG_ERR_INIT;
    struct listing l = {.ctl = call->ctl, .q = q, .user = call->user, .rows.ctl = call->ctl};
    l.limit = q->limit && q->limit < LIST_MAX ? q->limit : q->limit ? LIST_MAX : VG_TASK_PAGE;
    l.owned = vg_alloc(l.limit * sizeof *l.owned);
    int r = l.owned ? collect(&l, &err) : vg_err_sys(&err, ENOMEM, "cannot list tasks");
    if (r < 0)
        vg_peer_fail(call->peer, call->req, &err);
    else
        send_list(call, &l);
    for (size_t i = 0; i < l.n_owned; i++)
        vg_task_free(l.owned[i]);
    vg_row_tasks_done(&l.rows);
    free(l.owned);
    free(l.all);
}

/* ------------------------------------------------------------------ watching */

static void free_query(void *data) {
    vg__pb__task_query__free_unpacked(data, NULL);
}

void vg_api_task_watch(struct vg_call *call) {
    struct vg_follow *f = vg_follow_new(call->peer, NULL, VG_FOLLOW_WATCH, call->req);
    if (!f) {
        vg_peer_error(call->peer, call->req, VG_TOO_BIG,
                      "too many requests wait on this connection: open another");
        return;
    }
    f->data = vg_take_ptr(((Vg__Pb__Envelope *)call->env)->task_watch);
    f->free_data = free_query;
    vg_map_for_each (s, &call->ctl->jobs) {
        const struct vg_task *t = ((struct vg_job *)s->value)->task;
        if (wanted(f->data, call->user, t))
            send_task(call->peer, call->req, true, t);
    }
}

void vg_watch_tell(struct vg_control *c, struct vg_task *t) {
    vg_list_for_each_safe (it, &c->watches) {
        struct vg_follow *f = vg_list_entry(it, struct vg_follow, on_job);
        struct vg_err err = VG_ERR_INIT;
        const struct vg_user *u = vg_peer_user(f->peer, &err);
        if (!f->peer->conn || !u || !wanted(f->data, u, t))
            continue;
        if (vg_conn_queued(f->peer->conn) > VG_PEER_QUEUE_MAX) {
            vg_conn_abort(f->peer->conn, VG_TOO_BIG, "the watcher does not read fast enough");
            continue;
        }
        send_task(f->peer, f->req, true, t);
    }
}

/* ------------------------------------------------------------------ signals */

static int signal_job(struct vg_call *call, struct vg_job *j, struct vg_err *err) {
    const Vg__Pb__TaskSignal *m = call->env->task_signal;
    struct vg_task *t = j->task;
    char why[160];
    if (!vg_user_may_end(call->user, t->user, t->team))
        return vg_err_set(err, VG_FORBIDDEN,
                          "task %016llx belongs to '%s': only its owner may end it",
                          (unsigned long long)t->id, t->user);
    if (m->signal >= 65)
        return vg_err_set(err, VG_INVALID, "there is no signal %u", m->signal);
    snprintf(why, sizeof why, "cancelled by %s", call->user->name);
    if (m->signal == 0) {
        vg_job_cancel(j, m->has_grace_usec ? m->grace_usec : VG_GRACE_USEC, why);
        return 0;
    }
    if (!t->attempt.node)
        return vg_err_set(err, VG_CONFLICT,
                          "task %016llx waits in the queue: 'virga task cancel' takes it out",
                          (unsigned long long)t->id);
    vg_nodelink_kill(call->ctl, t->attempt.node, t->id, t->attempt.number, m->signal, m->grace_usec,
                     NULL);
    return 0;
}

static void signal_all(struct vg_call *call) {
    size_t n = 0, done = 0;
    struct vg_err err = VG_ERR_INIT;
    char text[64];
    vg_auto_free uint64_t *ids = vg_alloc((vg_map_len(&call->ctl->jobs) + 1) * sizeof *ids);
    vg_map_for_each (s, &call->ctl->jobs) {
        const struct vg_task *t = ((struct vg_job *)s->value)->task;
        if (ids && !vg_task_is_ended(t) && strcmp(t->user, call->user->name) == 0)
            ids[n++] = t->id;
    }
    for (size_t i = 0; i < n; i++) {
        struct vg_job *j = vg_job_get(call->ctl, ids[i]);
        done += j && signal_job(call, j, &err) >= 0;
    }
    snprintf(text, sizeof text, "%zu", done);
    vg_peer_ok(call->peer, call->req, text);
}

void vg_api_task_signal(struct vg_call *call) {
    const Vg__Pb__TaskSignal *m = call->env->task_signal;
    struct vg_err err = VG_ERR_INIT;
    struct vg_found f;
    if (m->all) {
        signal_all(call);
        return;
    }
    if (!find_or_fail(call, m->task, &f))
        return;
    int r;
    if (!f.job || vg_task_is_ended(f.job->task))
        r = vg_err_set(&err, VG_CONFLICT, "task %016llx has ended already (%s)",
                       (unsigned long long)vg_found_task(&f)->id,
                       vg_task_state_name(vg_found_task(&f)->state));
    else
        r = signal_job(call, f.job, &err);
    if (r < 0)
        vg_peer_fail(call->peer, call->req, &err);
    else
        vg_peer_ok(call->peer, call->req, NULL);
    vg_found_done(&f);
}
