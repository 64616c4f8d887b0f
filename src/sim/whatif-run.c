/* One run of recorded load: the engine as virgad makes it from a configuration
   (sched/configure.h), fed from the record instead of clients and agents. */
#include "base/cleanup.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/util.h"
#include "model/node.h"
#include "sched/configure.h"
#include "sim/heap.h"
#include "sim/whatif.h"

#include <string.h>

#define LABELS_MAX 64
#define STOPPED (1u << 31) /* of an event's attempt: it was told to stop, and has */

enum state { TO_COME, WAITS, RUNS, STOPS, ENDED };

struct play {
    const struct vg_recorded *r;
    const struct vg_conf *conf; /* borrowed */
    struct vg_whatif *out;
    struct vg_eng *eng;
    struct vg_heap events;
    struct vg_map at;  /* task id -> its index + 2 */
    enum state *state; /* owned */
    uint32_t *attempt; /* owned */
    uint64_t now;
};

static int no_memory(struct vg_err *err) {
    return vg_err_sys(err, -ENOMEM, "cannot play the recorded load");
}

/* Cuts `text` at `sep` in place; returns how many parts there are. */
static size_t cut(char *text, char sep, char **part, size_t max) {
    size_t n = 0;
    for (char *at = text; at && *at && n < max;) {
        part[n++] = at;
        if ((at = strchr(at, sep)))
            *at++ = 0;
    }
    return n;
}

/* ------------------------------------------------------------------ the cloud */

static const char *rack_of(const struct vg_node *n) {
    for (size_t i = 0; i < n->labels.n; i++)
        if (strncmp(n->labels.item[i], "rack=", 5) == 0)
            return n->labels.item[i] + 5;
    return NULL;
}

/* Its own labels, and one for each pool that it belongs to. */
static int set_node(struct play *p, const struct vg_node *n) {
    struct vg_eng_gpu gpu[VG_NODE_GPUS_MAX];
    size_t count = 0, pools = 0;
    vg_auto_free char **labels = vg_alloc((n->labels.n + p->conf->n_pools + 1) * sizeof *labels);
    vg_auto_free char *room = vg_alloc((p->conf->n_pools + 1) * VG_ENG_POOL_LABEL);
    if (!labels || !room)
        return -ENOMEM;
    for (; count < n->labels.n; count++)
        labels[count] = n->labels.item[count];
    for (size_t i = 0; i < p->conf->n_pools; i++)
        if (vg_node_in_pool(n, &p->conf->pool[i])) {
            labels[count] = room + pools++ * VG_ENG_POOL_LABEL;
            vg_eng_pool_label(p->conf->pool[i].name, labels[count++]);
        }
    struct vg_eng_node e = {.id = n->id,
                            .name = n->name,
                            .total = n->total,
                            .gpu = gpu,
                            .n_gpus = VG_MIN(n->total.gpus, (uint32_t)VG_NODE_GPUS_MAX),
                            .model = n->gpu_model,
                            .rack = rack_of(n),
                            .labels = labels,
                            .n_labels = count,
                            .usable = true};
    for (uint32_t i = 0; i < e.n_gpus; i++)
        gpu[i] = (struct vg_eng_gpu){.index = i, .mem_bytes = n->total.gpu_mem_bytes};
    return vg_eng_set_node(p->eng, &e);
}

static int add_node(struct play *p, const struct vg_rec_node *rec) {
    char *label[LABELS_MAX];
    vg_auto_free char *text = vg_strdup(rec->labels);
    struct vg_node *n = vg_node_new(rec->id, rec->name);
    int r = text && n && (n->gpu_model = vg_strdup(rec->model)) ? 0 : -ENOMEM;
    if (r >= 0)
        r = vg_node_set_labels(n, label, cut(text, '\n', label, LABELS_MAX));
    if (r >= 0) {
        n->total = rec->total;
        r = set_node(p, n);
    }
    vg_node_free(n);
    return r;
}

static int build(struct play *p) {
    int r = p->eng ? 0 : -ENOMEM;
    if (r >= 0) {
        vg_eng_now(p->eng, p->now);
        r = vg_eng_configure(p->eng, p->conf);
    }
    for (size_t i = 0; r >= 0 && i < p->r->n_nodes; i++)
        r = add_node(p, &p->r->node[i]);
    for (size_t i = 0; r >= 0 && i < p->r->n_tasks; i++) /* 1 is the map's own */
        r = vg_map_put_u64(&p->at, p->r->task[i].id, (void *)(i + 2));
    return r;
}

static void take_down(struct play *p) {
    vg_eng_free(p->eng);
    vg_heap_done(&p->events);
    vg_map_done(&p->at);
    free(p->state);
    free(p->attempt);
}

/* ------------------------------------------------------------------ tasks */

/* The highest priority that its user may ask for. */
static uint32_t most_priority(const struct play *p, const struct vg_rec_task *t) {
    bool own;
    int q = vg_conf_queue_of(p->conf, vg_recorded_org(p->r, t->team), t->team, &own);
    return vg_conf_user_policy(p->conf, q, own, t->user).max_priority;
}

/* What the engine is told; borrows `pools` and `label`. */
static int request(struct play *p, const struct vg_rec_task *t, char *pools, char *labels,
                   char **label, struct vg_eng_req *ret) {
    char *pool[VG_ENG_POOLS_MAX];
    struct vg_eng_home home;
    size_t n = cut(pools, ',', pool, VG_ENG_POOLS_MAX);
    if (vg_eng_user(p->eng, p->conf, vg_recorded_org(p->r, t->team), t->team, t->user, &home) < 0)
        return -ENOMEM;
    *ret = (struct vg_eng_req){.task = t->id,
                               .tenant = home.tenant,
                               .res = t->res,
                               .model = t->models,
                               .labels = label,
                               .n_labels = cut(labels, '\n', label, LABELS_MAX),
                               .priority = VG_MIN(t->priority, most_priority(p, t)),
                               .order = t->ready_usec,
                               .since_usec = t->ready_usec,
                               .preemptible = t->preemptible,
                               .fixed = !vg_eng_may_preempt(p->conf, t->fixed, t->preemptible),
                               .limit_usec = t->limit_usec,
                               .kin = t->kin,
                               .gang = t->gang};
    for (size_t i = 0; i < n; i++) {
        const struct vg_pool_conf *c = vg_conf_pool(p->conf, pool[i]);
        if (c && !ret->n_pools)
            ret->gpu_class = (uint8_t)c->class;
        if (c)
            ret->pool[ret->n_pools++] = vg_eng_pool_id(pool[i]);
    }
    return 0;
}

/* The members of a gang are side by side. How many there are from i on; 1 for a task alone. */
static size_t members(const struct vg_recorded *r, size_t i) {
    size_t n = 1;
    while (r->task[i].gang && i + n < r->n_tasks && r->task[i + n].gang == r->task[i].gang)
        n++;
    return n;
}

/* Task i, or the gang that begins with it. One that has no place is refused, and that is no
   failure. */
static int submit(struct play *p, size_t i, size_t n, struct vg_err *err) {
    const struct vg_rec_task *t = &p->r->task[i];
    vg_auto_free char *pools = vg_strdup(t->pools), *labels = vg_strdup(t->labels);
    vg_auto_free uint64_t *id = vg_alloc(n * sizeof *id);
    char *label[LABELS_MAX];
    struct vg_eng_req req;
    struct vg_err why = VG_ERR_INIT;
    if (!pools || !labels || !id || request(p, t, pools, labels, label, &req) < 0)
        return no_memory(err);
    for (size_t k = 0; k < n; k++)
        id[k] = p->r->task[i + k].id;
    int r = !req.n_pools ? -ENOENT
            : n > 1      ? vg_eng_submit_gang(p->eng, &req, id, n, &why)
                         : vg_eng_submit(p->eng, &req, &why);
    if (r == -ENOMEM)
        return no_memory(err);
    for (size_t k = 0; k < n; k++)
        p->state[i + k] = r < 0 ? ENDED : WAITS;
    if (r < 0)
        p->out->refused += n;
    return 0;
}

static size_t index_of(const struct play *p, uint64_t id) {
    return (size_t)vg_map_get_u64(&p->at, id) - 2;
}

static int started(struct play *p, size_t i, struct vg_err *err) {
    p->state[i] = RUNS;
    if (vg_heap_put(&p->events, p->now + p->r->task[i].run_usec, (uint32_t)i, ++p->attempt[i]) < 0)
        return no_memory(err);
    return 0;
}

static int preempted(struct play *p, size_t i, struct vg_err *err) {
    if (p->state[i] != RUNS)
        return 0;
    p->state[i] = STOPS;
    p->out->task[i].stops++;
    p->out->stops++;
    uint64_t grace = p->conf->scheduler.grace_usec;
    if (vg_heap_put(&p->events, p->now + grace, (uint32_t)i, ++p->attempt[i] | STOPPED) < 0)
        return no_memory(err);
    return 0;
}

static int decide(struct play *p, struct vg_err *err) {
    struct vg_eng_decision d;
    int r = 0;
    while (r >= 0 && vg_eng_next(p->eng, &d) > 0) {
        size_t i = index_of(p, d.task);
        r = d.what == VG_ENG_START ? started(p, i, err) : preempted(p, i, err);
    }
    return r;
}

/* A member that was stopped comes back alone and heals its gang. */
static int on_event(struct play *p, const struct vg_event *e, struct vg_err *err) {
    size_t i = e->job;
    if (p->attempt[i] != (e->attempt & ~STOPPED))
        return 0;
    if (e->attempt & STOPPED) {
        vg_eng_release(p->eng, p->r->task[i].id, VG_ENG_PREEMPTED);
        return submit(p, i, 1, err);
    }
    const struct vg_rec_task *t = &p->r->task[i];
    vg_eng_release(p->eng, t->id, VG_ENG_ENDED);
    p->state[i] = ENDED;
    p->out->task[i].ended = true;
    p->out->task[i].wait_usec = p->now - t->ready_usec - t->run_usec;
    return 0;
}

/* ------------------------------------------------------------------ time */

static uint64_t next_time(const struct play *p, size_t next) {
    uint64_t t = next < p->r->n_tasks ? p->r->task[next].ready_usec : UINT64_MAX;
    if (p->events.n)
        t = VG_MIN(t, p->events.e[0].at_usec);
    if (t != UINT64_MAX) {
        uint64_t wake = vg_eng_wake(p->eng);
        if (wake > p->now)
            t = VG_MIN(t, wake);
    }
    return t;
}

static int play(struct play *p, struct vg_err *err) {
    size_t next = 0;
    int r = 0;
    for (uint64_t t; r >= 0 && (t = next_time(p, next)) != UINT64_MAX;) {
        vg_eng_now(p->eng, p->now = t);
        while (r >= 0 && p->events.n && p->events.e[0].at_usec <= t) {
            struct vg_event e = vg_heap_take(&p->events);
            r = on_event(p, &e, err);
        }
        while (r >= 0 && next < p->r->n_tasks && p->r->task[next].ready_usec <= t) {
            size_t n = members(p->r, next);
            r = submit(p, next, n, err);
            next += n;
        }
        if (r >= 0)
            r = decide(p, err);
    }
    return r;
}

int vg_whatif_run(const struct vg_recorded *r, const struct vg_conf *conf, struct vg_whatif *ret,
                  struct vg_err *err) {
    struct play *p = vg_alloc(sizeof *p);
    *ret = (struct vg_whatif){.task = vg_alloc(VG_MAX(r->n_tasks, 1u) * sizeof *ret->task)};
    if (!p || !ret->task) {
        free(p);
        return no_memory(err);
    }
    p->r = r;
    p->out = ret;
    p->conf = conf;
    p->eng = vg_eng_new();
    p->now = r->n_tasks ? r->task[0].ready_usec : 1;
    p->state = vg_alloc(VG_MAX(r->n_tasks, 1u) * sizeof *p->state);
    p->attempt = vg_alloc(VG_MAX(r->n_tasks, 1u) * sizeof *p->attempt);
    int e = p->state && p->attempt && build(p) >= 0 ? play(p, err) : no_memory(err);
    for (size_t i = 0; e >= 0 && i < r->n_tasks; i++)
        ret->unfinished += p->state[i] != ENDED;
    take_down(p);
    free(p);
    if (e < 0)
        vg_whatif_done(ret);
    return e < 0 ? e : 0;
}

void vg_whatif_done(struct vg_whatif *w) {
    free(w->task);
    *w = (struct vg_whatif){0};
}
