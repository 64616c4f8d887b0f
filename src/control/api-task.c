/* Looking at single tasks and ending some. Tasks that have not ended are in memory, the others in
   the store; whoever asks sees one list. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/after.h"
#include "control/api.h"
#include "control/audit.h"
#include "control/bare.h"
#include "control/family.h"
#include "control/history.h"
#include "control/nodes.h"
#include "control/persist.h"
#include "control/place.h"
#include "control/users.h"
#include "control/why.h"
#include "model/task-row.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
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
        if (by_name ? t->group || strcmp(vg_task_name(t), ref) != 0 : strncmp(id, ref, len) != 0)
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

/* "GROUP.INDEX": the id of a member. -ENOENT: that is not what it says. */
static int find_member(struct vg_control *c, const struct vg_user *u, const char *ref,
                       uint64_t *ret_id) {
    const char *dot = strrchr(ref, '.');
    struct vg_err err = VG_ERR_INIT;
    struct vg_found g;
    uint64_t index;
    if (!dot || dot == ref || vg_parse_u64(dot + 1, &index) < 0)
        return -ENOENT;
    vg_auto_free char *group = vg_strndup(ref, (size_t)(dot - ref));
    if (!group || strrchr(group, '.') || vg_find_task(c, u, group, &g, &err) < 0)
        return -ENOENT;
    const struct vg_task *t = vg_found_task(&g);
    int r = index < t->members ? 0 : -ENOENT;
    *ret_id = vg_task_member_id(t->id, (uint32_t)index);
    vg_found_done(&g);
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
    if (r == -ENOENT)
        r = find_member(c, u, ref, &id);
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

void vg_task_info_wait(struct vg_control *c, const struct vg_task *t, struct vg_task_info *info,
                       char *room, size_t n) {
    struct vg_job *j = vg_job_get(c, t->id);
    if (t->state == VG_TASK_BLOCKED && j && t->n_after) {
        vg_after_explain(j, room, n);
        info->pb.reason = room;
    } else if (t->state == VG_TASK_QUEUED && j && vg_why_brief(j, room, n) >= 0) {
        info->pb.reason = room;
    }
}

struct last_attempt {
    Vg__Pb__GpuUsage use;
    struct vg_res held;
    char *wiped; /* owned */
};

static int take_last(void *arg, const struct vg_attempt_row *row) {
    struct last_attempt *l = arg;
    vg_gpu_usage_from_row(&row->gpu, &l->use);
    l->held = (struct vg_res){.cpu_milli = (uint32_t)row->cpu_milli,
                              .mem_bytes = row->mem_bytes,
                              .gpus = (uint32_t)(row->gpu_milli / 1000)};
    free(l->wiped);
    l->wiped = row->wiped && *row->wiped ? vg_strdup(row->wiped) : NULL;
    return 0;
}

/* What its last attempt used of its GPUs, and had and left of a whole node; lists do not look that
   up. */
static void add_last(struct vg_control *c, const struct vg_task *t, struct vg_task_info *info,
                     struct last_attempt *last) {
    bool gpus = t->grant.gpus || t->grant.gpu_milli, whole = vg_bare_is(&c->conf, t);
    if ((!gpus && !whole) || vg_store_load_attempts(c->store, t->id, take_last, last) < 0)
        return;
    if (gpus || last->held.gpus)
        info->pb.gpu_usage = &last->use;
    if (whole && last->held.cpu_milli)
        info->want = vg_res_to_pb(last->held);
}

/* What it was submitted as. Its variables may hold what only its owner should read. */
static void add_spec(const struct vg_task *t, const struct vg_user *u, Vg__Pb__TaskSpec *spec,
                     Vg__Pb__MirrorSpec *files, struct vg_task_info *info) {
    *spec = *t->spec;
    if (!u || strcmp(u->name, t->user) != 0)
        spec->n_env = 0;
    if (spec->mirror) {
        vg__pb__mirror_spec__init(files);
        files->env = spec->mirror->env;
        files->image = spec->mirror->image;
        spec->mirror = files;
    }
    info->pb.spec = spec;
}

static void send_task(struct vg_peer *p, uint32_t req, bool more, const struct vg_task *t,
                      const struct vg_user *with_spec) {
    struct vg_task_info info;
    struct vg_why why = {0};
    struct last_attempt last = {.use = VG__PB__GPU_USAGE__INIT};
    const struct vg_job *j = vg_job_get(p->ctl, t->id);
    char *lines[VG_BARE_LINES_MAX];
    VG_ENVELOPE(env);
    vg_task_info(p->ctl, t, &info);
    vg_why_info(p->ctl, t, &info, &why);
    if (!info.pb.gpu_usage && vg_task_is_ended(t))
        add_last(p->ctl, t, &info, &last);
    if (!last.wiped && j && j->wiped)
        last.wiped = vg_strdup(j->wiped);
    info.pb.n_wiped = last.wiped ? vg_bare_lines(last.wiped, lines, VG_COUNT(lines)) : 0;
    info.pb.wiped = lines;
    Vg__Pb__TaskSpec spec;
    Vg__Pb__MirrorSpec files;
    if (with_spec)
        add_spec(t, with_spec, &spec, &files, &info);
    env.body_case = B(TASK);
    env.task = &info.pb;
    vg_peer_send(p, req, more, &env);
    free(last.wiped);
}

void vg_task_send(struct vg_peer *p, uint32_t req, bool more, const struct vg_task *t) {
    send_task(p, req, more, t, NULL);
}

void vg_api_task_get(struct vg_call *call) {
    struct vg_found f;
    if (!find_or_fail(call, call->env->task_get->task, &f))
        return;
    send_task(call->peer, call->req, false, vg_found_task(&f),
              call->env->task_get->spec ? call->user : NULL);
    vg_found_done(&f);
}

void vg_api_task_wait(struct vg_call *call) {
    struct vg_found f;
    if (!find_or_fail(call, call->env->task_wait->task, &f))
        return;
    if (!f.job || vg_task_is_ended(f.job->task))
        vg_task_send(call->peer, call->req, false, vg_found_task(&f));
    else if (!vg_follow_new(call->peer, f.job, VG_FOLLOW_WAIT, call->req))
        vg_peer_error(call->peer, call->req, VG_TOO_BIG,
                      "too many requests wait on this connection: open another");
    vg_found_done(&f);
}

/* ------------------------------------------------------------------ signals */

static void signal_members(struct vg_job *group, uint32_t sig, uint64_t grace_usec) {
    if (!group->head)
        return;
    vg_list_for_each (it, &group->head->under) {
        const struct vg_job *member = vg_list_entry(it, struct vg_job, sibling);
        const struct vg_task *t = member->task;
        if (t->attempt.node && member->sent)
            vg_nodelink_kill(group->ctl, t->attempt.node, t->id, t->attempt.number, sig, grace_usec,
                             NULL);
    }
}

/* What people do to their own tasks is in the audit log alone: there is much of it. */
static void note_signal(const struct vg_call *call, const struct vg_task *t, uint32_t sig) {
    char what[32] = "cancelled";
    if (sig)
        snprintf(what, sizeof what, "was sent signal %u", sig);
    if (strcmp(t->user, call->user->name) != 0)
        vg_audit(call, "task %016llx of user %s %s", (unsigned long long)t->id, t->user, what);
    else
        vg_audit_often(call, "task %016llx %s", (unsigned long long)t->id, what);
}

static int signal_job(struct vg_call *call, struct vg_job *j, struct vg_err *err) {
    const Vg__Pb__TaskSignal *m = call->env->task_signal;
    struct vg_task *t = j->task;
    char why[160];
    if (!vg_users_may_end(call->user, t->user, t->team))
        return vg_err_set(err, VG_FORBIDDEN,
                          "task %016llx belongs to '%s': only its owner may end it",
                          (unsigned long long)t->id, t->user);
    if (m->signal >= 65)
        return vg_err_set(err, VG_INVALID, "there is no signal %u", m->signal);
    if (m->signal && !vg_task_is_group(t) && (!t->attempt.node || !j->sent))
        return vg_err_set(err, VG_CONFLICT,
                          "task %016llx waits in the queue: 'virga task cancel' takes it out",
                          (unsigned long long)t->id);
    note_signal(call, t, m->signal);
    snprintf(why, sizeof why, "cancelled by %s", call->user->name);
    uint64_t grace = m->has_grace_usec ? m->grace_usec : VG_GRACE_USEC;
    if (m->signal == 0 && vg_task_is_ended(t)) /* its children have not */
        vg_family_cancel(j, grace, why);
    else if (m->signal == 0)
        vg_job_cancel(j, grace, why);
    if (m->signal == 0)
        return 0;
    if (vg_task_is_group(t))
        signal_members(j, m->signal, m->grace_usec);
    else
        vg_nodelink_kill(call->ctl, t->attempt.node, t->id, t->attempt.number, m->signal,
                         m->grace_usec, NULL);
    return 0;
}

/* How many tasks an order to end this one reaches. */
static size_t reach(const struct vg_job *j) {
    const struct vg_task *t = j->task;
    return vg_task_is_group(t) ? vg_progress_open(t->progress) : 1;
}

/* Every unfinished task that the query lists; a group as a whole. */
static void signal_matching(struct vg_call *call, const Vg__Pb__TaskQuery *q) {
    struct vg_control *c = call->ctl;
    struct vg_err err = VG_ERR_INIT;
    size_t n = 0, done = 0;
    char text[64];
    struct vg_query query;
    vg_auto_free uint64_t *ids = vg_alloc((vg_map_len(&c->jobs) + 1) * sizeof *ids);
    if (!ids || vg_query_init(&query, c, call->user, q, &err) < 0) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    vg_map_for_each (s, &c->jobs) {
        const struct vg_task *t = ((struct vg_job *)s->value)->task;
        if (!vg_task_is_ended(t) && vg_query_wants(&query, t))
            ids[n++] = t->id;
    }
    bool placing = c->placing;
    c->placing = true; /* what the first sets free is not for the next, which ends too */
    for (size_t i = 0; i < n; i++) {
        struct vg_job *j = vg_job_get(c, ids[i]);
        size_t tasks = j ? reach(j) : 0;
        if (j && !vg_task_is_ended(j->task) && signal_job(call, j, &err) >= 0)
            done += tasks;
    }
    c->placing = placing;
    vg_place_all(c);
    snprintf(text, sizeof text, "%zu", done);
    vg_peer_ok(call->peer, call->req, text);
}

void vg_api_task_signal(struct vg_call *call) {
    const Vg__Pb__TaskSignal *m = call->env->task_signal;
    const Vg__Pb__TaskQuery all = VG__PB__TASK_QUERY__INIT;
    struct vg_err err = VG_ERR_INIT;
    struct vg_found f;
    if (m->all || m->matching) {
        signal_matching(call, m->matching ? m->matching : &all);
        return;
    }
    if (!find_or_fail(call, m->task, &f))
        return;
    int r;
    if (!f.job || (vg_task_is_ended(f.job->task) && !vg_family_open(f.job)))
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
