/* What tasks and nodes used over time; see the header.

   Nodes tell counters; a point is what they grew by since the last report. What belongs to GPUs is
   told by other messages (node-gpus.c) and taken as it stands when the counters come. */
#include "control/series.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/node-gpus.h"

#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define LOOK_USEC (10 * VG_USEC)   /* one question has nodes report every second for so long */
#define FINE_USEC (600 * VG_USEC)  /* after the last question the fine points are let go */
#define FRESH_USEC (90 * VG_USEC)  /* what was said of a card before that says nothing of now */
#define MEANT_MAX (INT64_MAX >> 8) /* a node that was broken into may say anything */
#define POINTS_DEFAULT 240u
#define POINTS_MAX (VG_SERIES_POINTS + VG_SERIES_FINE)

struct vg_track {
    struct vg_series series;
    uint64_t looked_usec; /* boot clock: somebody last asked; 0: never */
    uint32_t attempt;     /* the counters below are of this one */
    uint64_t when_usec;   /* the node's clock; 0: no counters yet */
    uint64_t cpu_usec, read_bytes, write_bytes;
    uint64_t gpu_busy, gpu_usec; /* thousandths of percents times microseconds; of so many */
};

static struct vg_track *need(struct vg_track **t) {
    if (!*t)
        *t = vg_alloc(sizeof **t);
    return *t;
}

static void forget(struct vg_control *c, struct vg_track **t) {
    if (*t)
        vg_series_done(&(*t)->series, &c->series_room);
    free(vg_take_ptr(*t));
}

void vg_series_forget(struct vg_job *j) {
    forget(j->ctl, &j->track);
}

void vg_series_forget_node(struct vg_nodelink *a) {
    forget(a->ctl, &a->track);
}

static bool looked_at(const struct vg_track *t) {
    return t->looked_usec && vg_now_usec() - t->looked_usec < FINE_USEC;
}

static void add(struct vg_control *c, struct vg_track *t, const struct vg_point *p) {
    if (vg_series_add(&t->series, p, looked_at(t), &c->series_room) < 0)
        vg_debug("a point found no room");
}

/* ------------------------------------------------------------------ GPUs */

static int64_t meant(uint64_t v) {
    return v > MEANT_MAX ? -1 : (int64_t)v;
}

/* Of the cards in `cards`: memory in use, power, and the mean of what they compute. */
static void of_cards(const struct vg_nodelink *a, uint64_t cards, struct vg_point *p) {
    uint64_t mem = 0, power = 0, busy = 0, n_mem = 0, n_power = 0, n_busy = 0;
    for (uint32_t i = 0; a->gpu && i < VG_NODE_GPUS_MAX; i++) {
        const struct vg_node_gpu *g = cards >> i & 1 ? vg_node_gpu_get(a, i) : NULL;
        const Vg__Pb__GpuState *s = g ? g->state : NULL;
        if (!s || vg_now_usec() - g->seen_usec > FRESH_USEC)
            continue;
        if (s->has_mem_used_bytes)
            mem += s->mem_used_bytes, n_mem++;
        if (s->has_power_mw)
            power += s->power_mw, n_power++;
        if (s->has_sm_percent)
            busy += s->sm_percent, n_busy++;
    }
    if (n_mem)
        p->value[VG_SERIES_GPU_MEM_BYTES] = meant(mem);
    if (n_power)
        p->value[VG_SERIES_POWER_MW] = meant(power);
    if (n_busy)
        p->value[VG_SERIES_GPU_PERCENT] = meant(busy / n_busy);
}

/* Of a task: its own use where it is told apart, which is that of its part of a card, too. */
static void of_task_gpus(const struct vg_job *j, const struct vg_nodelink *a, struct vg_track *t,
                         struct vg_point *p) {
    const Vg__Pb__GpuUsage *u = j->gpu_use;
    if (!j->task->gpus)
        return;
    of_cards(a, j->task->gpus, p);
    if (!u)
        return;
    if (u->has_power_mw)
        p->value[VG_SERIES_POWER_MW] = u->power_mw;
    if (u->has_share_used_bytes && u->share_limit_bytes)
        p->value[VG_SERIES_GPU_MEM_BYTES] = meant(u->share_used_bytes);
    if (!u->has_sm_mean_milli || !u->has_sampled_usec || u->sampled_usec > MEANT_MAX / 100000)
        return;
    uint64_t busy = u->sm_mean_milli * u->sampled_usec, sampled = u->sampled_usec;
    if (sampled > t->gpu_usec && busy >= t->gpu_busy)
        p->value[VG_SERIES_GPU_PERCENT] =
            meant((busy - t->gpu_busy) / (sampled - t->gpu_usec) / 1000);
    t->gpu_busy = busy;
    t->gpu_usec = sampled;
}

/* ------------------------------------------------------------------ reports */

static struct vg_point nothing(uint64_t when_usec) {
    struct vg_point p = {.when_usec = when_usec};
    for (size_t i = 0; i < VG_SERIES_VALUES; i++)
        p.value[i] = -1;
    return p;
}

/* How much a second, since the last report. */
static int64_t rate(uint64_t now, uint64_t before, uint64_t usec) {
    uint64_t more = now > before ? now - before : 0;
    return usec && more < MEANT_MAX / VG_USEC ? (int64_t)(more * VG_USEC / usec) : -1;
}

/* The counters of an attempt begin at its start, so that its first report already tells something;
   what its sandbox read and wrote before it is not known. */
static void take_counters(const struct vg_job *j, struct vg_track *t, const Vg__Pb__TaskUse *u,
                          uint64_t when, struct vg_point *p) {
    bool first = t->attempt != u->attempt || !t->when_usec;
    uint64_t from = first ? j->task->started_usec : t->when_usec;
    uint64_t usec = when > from ? when - from : 0;
    if (first) {
        t->cpu_usec = t->gpu_busy = t->gpu_usec = 0;
        t->attempt = u->attempt;
    }
    if (u->has_cpu_usec && (!first || u->cpu_usec)) {
        int64_t cpu = rate(u->cpu_usec, t->cpu_usec, usec);
        p->value[VG_SERIES_CPU_MILLI] = cpu < 0 ? -1 : cpu / 1000;
    }
    if (u->has_mem_bytes)
        p->value[VG_SERIES_MEM_BYTES] = meant(u->mem_bytes);
    if (u->has_read_bytes && u->has_write_bytes && !first) {
        p->value[VG_SERIES_READ_BYTES] = rate(u->read_bytes, t->read_bytes, usec);
        p->value[VG_SERIES_WRITE_BYTES] = rate(u->write_bytes, t->write_bytes, usec);
    }
    t->when_usec = when;
    t->cpu_usec = u->cpu_usec;
    t->read_bytes = u->read_bytes;
    t->write_bytes = u->write_bytes;
}

static void take_task(struct vg_nodelink *a, const Vg__Pb__TaskUse *u, uint64_t when) {
    struct vg_job *j = vg_job_get(a->ctl, u->task_id);
    if (!j || !vg_task_is_current(j->task, u->attempt, a->node->id) ||
        j->task->state != VG_TASK_RUNNING || !need(&j->track))
        return;
    struct vg_point p = nothing(vg_wall_usec());
    take_counters(j, j->track, u, when, &p);
    of_task_gpus(j, a, j->track, &p);
    add(a->ctl, j->track, &p);
}

void vg_agent_on_use_report(struct vg_call *call) {
    const Vg__Pb__UseReport *m = call->env->use_report;
    struct vg_nodelink *a = call->peer->agent;
    for (size_t i = 0; i < m->n_task; i++)
        take_task(a, m->task[i], m->when_usec);
    if (!need(&a->track))
        return;
    struct vg_point p = nothing(vg_wall_usec());
    if (m->has_node_cpu_milli)
        p.value[VG_SERIES_CPU_MILLI] = meant(m->node_cpu_milli);
    if (m->has_node_mem_bytes)
        p.value[VG_SERIES_MEM_BYTES] = meant(m->node_mem_bytes);
    of_cards(a, a->node->gpus, &p);
    add(a->ctl, a->track, &p);
}

void vg_series_tick(struct vg_control *c) {
    vg_map_for_each (s, &c->jobs) {
        struct vg_track *t = ((struct vg_job *)s->value)->track;
        if (t && t->series.fine && !looked_at(t))
            vg_series_coarse(&t->series, &c->series_room);
    }
    vg_map_for_each (s, &c->nodes) {
        struct vg_track *t = ((struct vg_nodelink *)s->value)->track;
        if (t && t->series.fine && !looked_at(t))
            vg_series_coarse(&t->series, &c->series_room);
    }
}

/* ------------------------------------------------------------------ as a message */

struct answer {
    Vg__Pb__SeriesInfo pb;
    struct vg_point point[POINTS_MAX];
    uint64_t when[POINTS_MAX];
    int64_t value[VG_SERIES_VALUES][POINTS_MAX];
};

static void fill(struct answer *a, size_t n) {
    struct {
        size_t *n;
        int64_t **at;
    } to[VG_SERIES_VALUES] = {
        [VG_SERIES_CPU_MILLI] = {&a->pb.n_cpu_milli, &a->pb.cpu_milli},
        [VG_SERIES_MEM_BYTES] = {&a->pb.n_mem_bytes, &a->pb.mem_bytes},
        [VG_SERIES_GPU_PERCENT] = {&a->pb.n_gpu_percent, &a->pb.gpu_percent},
        [VG_SERIES_GPU_MEM_BYTES] = {&a->pb.n_gpu_mem_bytes, &a->pb.gpu_mem_bytes},
        [VG_SERIES_POWER_MW] = {&a->pb.n_power_mw, &a->pb.power_mw},
        [VG_SERIES_READ_BYTES] = {&a->pb.n_read_bytes, &a->pb.read_bytes},
        [VG_SERIES_WRITE_BYTES] = {&a->pb.n_write_bytes, &a->pb.write_bytes},
    };
    a->pb.n_when_usec = n;
    a->pb.when_usec = a->when;
    for (size_t i = 0; i < n; i++)
        a->when[i] = a->point[i].when_usec;
    for (size_t v = 0; v < VG_SERIES_VALUES; v++) {
        for (size_t i = 0; i < n; i++)
            a->value[v][i] = a->point[i].value[v];
        *to[v].n = n;
        *to[v].at = a->value[v];
    }
}

static struct answer *answer_new(void) {
    struct answer *a = vg_alloc(sizeof *a);
    if (a)
        vg__pb__series_info__init(&a->pb);
    return a;
}

static void of_stored(const Vg__Pb__SeriesInfo *m, struct vg_point *to, size_t *n, size_t max) {
    const struct {
        size_t n;
        const int64_t *at;
    } from[VG_SERIES_VALUES] = {
        [VG_SERIES_CPU_MILLI] = {m->n_cpu_milli, m->cpu_milli},
        [VG_SERIES_MEM_BYTES] = {m->n_mem_bytes, m->mem_bytes},
        [VG_SERIES_GPU_PERCENT] = {m->n_gpu_percent, m->gpu_percent},
        [VG_SERIES_GPU_MEM_BYTES] = {m->n_gpu_mem_bytes, m->gpu_mem_bytes},
        [VG_SERIES_POWER_MW] = {m->n_power_mw, m->power_mw},
        [VG_SERIES_READ_BYTES] = {m->n_read_bytes, m->read_bytes},
        [VG_SERIES_WRITE_BYTES] = {m->n_write_bytes, m->write_bytes},
    };
    for (*n = 0; *n < m->n_when_usec && *n < max; ++*n) {
        to[*n].when_usec = m->when_usec[*n];
        for (size_t v = 0; v < VG_SERIES_VALUES; v++)
            to[*n].value[v] = *n < from[v].n ? from[v].at[*n] : -1;
    }
}

/* ------------------------------------------------------------------ the end of a task */

/* What was used since the last report, by the sum that its keeper tells: also of a task that was
   over before anybody looked. */
static void add_end(struct vg_job *j) {
    const struct vg_task *task = j->task;
    struct vg_track *t = j->track;
    bool same = t->attempt == task->attempt.number && t->when_usec;
    uint64_t from = same ? t->when_usec : task->started_usec, until = j->over_usec;
    struct vg_point p = nothing(vg_wall_usec());
    if (!until || until < from + VG_USEC / 2)
        return;
    int64_t cpu = rate(j->over_cpu_usec, same ? t->cpu_usec : 0, until - from);
    p.value[VG_SERIES_CPU_MILLI] = cpu < 0 ? -1 : cpu / 1000;
    add(j->ctl, t, &p);
}

static void store(struct vg_job *j, struct answer *a) {
    fill(a, vg_series_read(&j->track->series, 0, a->point, VG_SERIES_POINTS));
    size_t n = vg__pb__series_info__get_packed_size(&a->pb);
    vg_auto_free uint8_t *bytes = a->pb.n_when_usec ? vg_alloc(n + 1) : NULL;
    if (!bytes)
        return;
    vg__pb__series_info__pack(&a->pb, bytes);
    if (vg_store_put_series(j->ctl->store, j->task->id, (struct vg_bytes){bytes, n}) < 0)
        vg_warn("task=%016llx what it used over time is not kept", (unsigned long long)j->task->id);
}

void vg_series_ended(struct vg_job *j) {
    if (!j->track)
        return;
    vg_auto_free struct answer *a = answer_new();
    vg_series_coarse(&j->track->series, &j->ctl->series_room);
    add_end(j);
    if (a)
        store(j, a);
}

/* ------------------------------------------------------------------ questions */

static void look(struct vg_nodelink *a, struct vg_track *t) {
    VG_ENVELOPE(env);
    Vg__Pb__UsePoll m = VG__PB__USE_POLL__INIT;
    m.has_usec = 1;
    m.usec = LOOK_USEC;
    env.body_case = B(USE_POLL);
    env.use_poll = &m;
    if (t)
        t->looked_usec = vg_now_usec();
    if (a && a->peer)
        vg_peer_send(a->peer, 0, false, &env);
}

struct stored {
    struct answer *to;
    size_t n;
};

static int take_stored(void *arg, struct vg_bytes data) {
    struct stored *s = arg;
    Vg__Pb__SeriesInfo *m = vg__pb__series_info__unpack(NULL, data.len, data.data);
    if (!m)
        return -EIO;
    of_stored(m, s->to->point, &s->n, VG_COUNT(s->to->point));
    vg__pb__series_info__free_unpacked(m, NULL);
    return 0;
}

/* A task that nobody looked at while it ran: its mean, from its first moment to its last. */
static size_t of_sums(const struct vg_task *t, struct vg_point *to) {
    if (!t->started_usec || t->ended_usec <= t->started_usec || !t->cpu_usec)
        return 0;
    int64_t cpu = rate(t->cpu_usec, 0, t->ended_usec - t->started_usec);
    for (size_t i = 0; i < 2; i++) {
        to[i] = nothing(i ? t->ended_usec : t->started_usec);
        to[i].value[VG_SERIES_CPU_MILLI] = cpu < 0 ? -1 : cpu / 1000;
    }
    return 2;
}

static size_t since(struct vg_point *p, size_t n, uint64_t since_usec) {
    size_t from = 0;
    while (from < n && p[from].when_usec < since_usec)
        from++;
    memmove(p, p + from, (n - from) * sizeof *p);
    return n - from;
}

static void limits_of(struct vg_control *c, const struct vg_task *t, Vg__Pb__SeriesInfo *pb) {
    struct vg_nodelink *a = vg_nodelink_get(c, t->attempt.node ? t->attempt.node : t->last_node);
    struct vg_res held = vg_task_held(t);
    uint64_t mem = held.gpu_mem_bytes;
    pb->has_cpu_milli_limit = t->grant.cpu_milli != 0;
    pb->cpu_milli_limit = t->grant.cpu_milli;
    pb->has_mem_bytes_limit = t->grant.mem_bytes != 0;
    pb->mem_bytes_limit = t->grant.mem_bytes;
    for (uint32_t i = 0; a && held.gpus && i < VG_NODE_GPUS_MAX; i++)
        mem += t->gpus >> i & 1 ? vg_node_gpu_mem(a, i) : 0;
    pb->has_gpu_mem_bytes_limit = mem != 0 && (held.gpus || held.gpu_milli);
    pb->gpu_mem_bytes_limit = mem;
}

static size_t points_wanted(const Vg__Pb__SeriesQuery *q) {
    uint32_t n = q->has_points && q->points ? q->points : POINTS_DEFAULT;
    return VG_MIN(n, (uint32_t)POINTS_MAX);
}

static int of_task(struct vg_call *call, const Vg__Pb__SeriesQuery *q, struct answer *a,
                   struct vg_err *err) {
    struct vg_control *c = call->ctl;
    struct vg_found f;
    struct stored s = {.to = a};
    int r = vg_find_task(c, call->user, q->task, &f, err);
    if (r < 0)
        return r;
    const struct vg_task *t = vg_found_task(&f);
    if (q->live && f.job && t->attempt.node && need(&f.job->track))
        look(vg_nodelink_get(c, t->attempt.node), f.job->track);
    limits_of(c, t, &a->pb);
    if (f.job && f.job->track && f.job->track->series.n) {
        s.n = vg_series_read(&f.job->track->series, q->since_usec, a->point, points_wanted(q));
    } else if (!f.job) {
        r = vg_store_get_series(c->store, t->id, take_stored, &s);
        s.n = r == -ENOENT ? of_sums(t, a->point) : since(a->point, s.n, q->since_usec);
        s.n = vg_points_thin(a->point, s.n, points_wanted(q));
    }
    vg_found_done(&f);
    if (r < 0 && r != -ENOENT)
        return vg_err_sys(err, r, "cannot read what the task used");
    fill(a, s.n);
    return 0;
}

static int of_node(struct vg_call *call, const Vg__Pb__SeriesQuery *q, struct answer *a,
                   struct vg_err *err) {
    struct vg_nodelink *n = vg_nodelink_find(call->ctl, q->node, err);
    if (!n)
        return -ENOENT;
    if (q->live && need(&n->track))
        look(n, n->track);
    a->pb.has_cpu_milli_limit = a->pb.has_mem_bytes_limit = 1;
    a->pb.cpu_milli_limit = n->node->total.cpu_milli;
    a->pb.mem_bytes_limit = n->node->total.mem_bytes;
    for (uint32_t i = 0; i < VG_NODE_GPUS_MAX; i++)
        a->pb.gpu_mem_bytes_limit += n->node->gpus >> i & 1 ? vg_node_gpu_mem(n, i) : 0;
    a->pb.has_gpu_mem_bytes_limit = a->pb.gpu_mem_bytes_limit != 0;
    fill(a, n->track ? vg_series_read(&n->track->series, q->since_usec, a->point, points_wanted(q))
                     : 0);
    return 0;
}

void vg_api_series(struct vg_call *call) {
    const Vg__Pb__SeriesQuery *q = call->env->series;
    struct vg_err err = VG_ERR_INIT;
    vg_auto_free struct answer *a = answer_new();
    VG_ENVELOPE(env);
    int r = !a ? vg_err_sys(&err, -ENOMEM, "cannot read what was used") : 0;
    bool task = q->task && *q->task, node = q->node && *q->node;
    if (r >= 0 && task == node)
        r = vg_err_set(&err, VG_INVALID, "name one task or one node");
    if (r >= 0)
        r = task ? of_task(call, q, a, &err) : of_node(call, q, a, &err);
    if (r < 0) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    env.body_case = B(SERIES_INFO);
    env.series_info = &a->pb;
    vg_peer_send(call->peer, call->req, false, &env);
}
