/* What truly happened, and the promises of the design checked against it. Nobody in the world can
   look here: virgad, agents and clients know only what they are told. */
#include "sim/faults/world.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/job.h"
#include "control/log-file.h"
#include "control/nodes.h"
#include "meter/charge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct vg_w_task *vg_w_task_of(const Vg__Pb__Start *s) {
    char text[16] = "";
    uint64_t i = 0;
    if (!s || !s->spec || s->spec->n_argv < 2 || s->spec->argv[1].len >= sizeof text)
        return NULL;
    memcpy(text, s->spec->argv[1].data, s->spec->argv[1].len);
    if (vg_parse_u64(text, &i) < 0 || i >= (uint64_t)vg_w->plan->n_tasks)
        return NULL;
    struct vg_w_task *t = &vg_w->task[i];
    for (uint32_t k = 0; k < t->plan->gang; k++)
        if (t->member[k].id == s->task_id)
            return &t->member[k];
    return t;
}

static uint64_t mix(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 29;
    x *= 0xc4ceb9fe1a85ec53ULL;
    return x ^ (x >> 32);
}

uint32_t vg_w_truth_record(const struct vg_w_task *t, uint32_t attempt, uint32_t i) {
    return 1 + (uint32_t)(mix(t->id + attempt * 31 + i) % 800);
}

uint8_t vg_w_truth_byte(const struct vg_w_task *t, uint32_t attempt, uint32_t i, uint32_t at) {
    return (uint8_t)(t->id + attempt * 7 + i * 13 + at);
}

/* ------------------------------------------------------------------ starts and ends */

/* Whether an earlier attempt had ended for good, so that none may follow. */
static bool was_final(const struct vg_w_task *t, const struct vg_w_attempt *a) {
    const struct vg_w_node *n = &vg_w->node[a->node];
    bool node_lost = n->losses != a->node_losses || !n->up ||
                     (n->lease_until && n->lease_until <= vg_w_boot(&n->machine));
    bool retried = a->status != 0 && t->plan->retries > 0;
    bool forgotten = t->plan->interactive && t->power_lost_since; /* it was not promised more */
    return a->completed && !a->keeper_lost && !node_lost && !retried && !forgotten &&
           !t->cancel_sent;
}

static void check_start(struct vg_w_node *n, struct vg_w_task *t, uint32_t number) {
    if (t->running > 0)
        vg_w_violate("one-attempt", "task %d: attempt %u begins on n%d while another runs",
                     t->index, number, n->index);
    for (int i = 0; i < t->n_attempts; i++) {
        const struct vg_w_attempt *a = &t->attempt[i];
        if (a->number == number && !(t->plan->interactive && t->power_lost_since))
            vg_w_violate("one-attempt", "task %d: attempt %u begins a second time, on n%d",
                         t->index, number, n->index);
        else if (!t->group && was_final(t, a)) /* a gang may begin again as a whole */
            vg_w_violate("run-twice",
                         "task %d: attempt %u begins on n%d though attempt %u had "
                         "ended with %d",
                         t->index, number, n->index, a->number, a->status);
    }
}

/* A card is held whole by one or in parts by several, never both; the parts are no more than it. */
static void check_share(struct vg_w_node *n, struct vg_w_task *t, const struct vg_w_room *r) {
    uint32_t card = r->gpus ? (uint32_t)__builtin_ctzll(r->gpus) : VG_W_GPUS;
    uint64_t mem = VG_W_GPU_BYTES / 1000 * r->gpu_milli;
    if (__builtin_popcountll(r->gpus) != 1 || card >= VG_W_GPUS ||
        r->gpu_milli != t->plan->share_milli || r->gpu_mem_bytes < mem ||
        r->gpu_mem_bytes > mem + 1000)
        vg_w_violate("promised-twice",
                     "task %d asked for %u thousandths of a GPU and is given %u of %llx", t->index,
                     t->plan->share_milli, r->gpu_milli, (unsigned long long)r->gpus);
    else if (n->milli_used[card] + r->gpu_milli > 1000 ||
             n->mem_used[card] + r->gpu_mem_bytes > VG_W_GPU_BYTES)
        vg_w_violate("promised-twice",
                     "n%d: task %d is given %u thousandths of GPU %u of which %u are held",
                     n->index, t->index, r->gpu_milli, card, n->milli_used[card]);
}

static bool shared(const struct vg_w_node *n, uint64_t gpus) {
    for (uint32_t i = 0; i < VG_W_GPUS; i++)
        if ((gpus >> i & 1) && n->milli_used[i])
            return true;
    return false;
}

static void check_room(struct vg_w_node *n, struct vg_w_task *t, const struct vg_w_room *r) {
    if ((r->gpus & n->gpus_used) || (!r->gpu_milli && shared(n, r->gpus)))
        vg_w_violate("promised-twice", "n%d: task %d is given GPUs %llx, and some are held",
                     n->index, t->index, (unsigned long long)r->gpus);
    else if (t->plan->share_milli || r->gpu_milli)
        check_share(n, t, r);
    else if ((uint32_t)__builtin_popcountll(r->gpus) != t->plan->gpus)
        vg_w_violate("promised-twice", "task %d asked for %u GPUs and is given %llx", t->index,
                     t->plan->gpus, (unsigned long long)r->gpus);
    if (n->cpu_used + r->cpu_milli > VG_W_CPUS * 1000)
        vg_w_violate("promised-twice", "n%d: task %d needs %u milli-CPUs, %u are held of %u",
                     n->index, t->index, r->cpu_milli, n->cpu_used, VG_W_CPUS * 1000);
}

static void hold(struct vg_w_node *n, const struct vg_w_room *r, int sign) {
    n->cpu_used += (uint32_t)sign * r->cpu_milli;
    if (!r->gpu_milli)
        n->gpus_used = sign > 0 ? n->gpus_used | r->gpus : n->gpus_used & ~r->gpus;
    for (uint32_t i = 0; r->gpu_milli && i < VG_W_GPUS; i++)
        if (r->gpus >> i & 1) {
            n->milli_used[i] += (uint32_t)sign * r->gpu_milli;
            n->mem_used[i] += (uint64_t)sign * r->gpu_mem_bytes;
        }
}

/* Nobody of a gang begins before everybody could. */
static void check_gang(const struct vg_w_task *t) {
    const struct vg_w_task *g = t->group;
    for (uint32_t k = 0; g && k < g->plan->gang; k++)
        if (!g->member[k].prepared)
            vg_w_violate("gang-whole",
                         "task %d: rank %d begins, but no node has prepared rank %u yet", t->index,
                         (int)(t - g->member), k);
}

struct vg_w_attempt *vg_w_truth_start(struct vg_w_node *n, struct vg_w_task *t, uint32_t number,
                                      struct vg_w_room room) {
    vg_w_story("n%d: task %d attempt %u begins", n->index, t->index, number);
    check_start(n, t, number);
    check_room(n, t, &room);
    check_gang(t);
    if (t->n_attempts == VG_W_ATTEMPTS) {
        vg_w_violate("never-ends", "task %d has begun %d times", t->index, t->n_attempts);
        return NULL;
    }
    struct vg_w_attempt *a = &t->attempt[t->n_attempts++];
    *a = (struct vg_w_attempt){.number = number,
                               .node = n->index,
                               .running = true,
                               .started_usec = vg_w->now,
                               .started_wall_usec = vg_w_wall(&n->machine)};
    t->running++;
    hold(n, &room, 1);
    return a;
}

void vg_w_truth_end(struct vg_w_node *n, struct vg_w_task *t, struct vg_w_attempt *a,
                    struct vg_w_room room) {
    if (!a->running)
        return;
    a->running = false;
    a->node_losses = n->losses;
    t->running--;
    hold(n, &room, -1);
}

/* ------------------------------------------------------------------ what people are told */

static bool planned(enum vg_fault_kind kind) {
    for (int i = 0; i < vg_w->plan->n_faults; i++)
        if (vg_w->plan->fault[i].kind == kind && !vg_w->plan->fault[i].off)
            return true;
    return false;
}

static struct vg_w_attempt *attempt_of(struct vg_w_task *t, uint32_t number) {
    for (int i = t->n_attempts; i--;)
        if (t->attempt[i].number == number)
            return &t->attempt[i];
    return NULL;
}

/* The stored output is the attempt's, whole and in order. */
static void check_output(const struct vg_w_task *t, const struct vg_w_attempt *a) {
    struct vg_logread at = {0};
    struct vg_buf b = {0};
    if (planned(VG_FAULT_FULL_DISK) || a->keeper_lost ||
        (t->plan->interactive && t->power_lost_since))
        return;
    while (vg_logread_next(vg_w_logs(), t->id, a->number, &at, &b, 65536) > 0)
        ;
    vg_logread_done(&at);
    size_t head = a->tail_start ? (size_t)a->head_end : (size_t)a->end;
    size_t tail = a->tail_start ? (size_t)(a->end - a->tail_start) : 0;
    size_t gap = a->tail_start > a->head_end ? 24 : 0;
    const uint8_t *p = b.base ? vg_buf_data(&b) : NULL;
    size_t n = vg_buf_len(&b);
    if (n != head + gap + tail || (head && memcmp(p, a->out, head) != 0) ||
        (tail && memcmp(p + head + gap, a->out + a->tail_start, tail) != 0))
        vg_w_violate("output",
                     "task %d attempt %u wrote %llu bytes (%zu and %zu are to be kept), "
                     "%zu are stored or they differ",
                     t->index, a->number, (unsigned long long)a->end, head, tail, n);
    vg_buf_done(&b);
}

/* A reason that is nobody's fault here: what the plan does can bring it about. */
static bool excused(const struct vg_w_task *t, int32_t status, uint32_t reason, const char *text) {
    bool lost = reason == VG_LOST || (!reason && status == vg_reason_exit(VG_LOST));
    bool full = reason == VG_DISK_FULL || reason == VG_INTERNAL || reason == VG_NO_CAPACITY ||
                (!reason && status == 125);
    if (t->cancel_sent || t->gone)
        return true;
    /* Whoever waits at a terminal is told, and decides for himself whether to run it again. */
    bool waits = t->plan->interactive && reason;
    bool gave_up = lost && text && strstr(text, "gave up after");
    return waits || gave_up || (full && planned(VG_FAULT_FULL_DISK));
}

/* A gang's end is good when every rank has ended well by itself. */
static void told_gang(struct vg_w_task *t, int32_t status, uint32_t reason, const char *text) {
    uint32_t done = 0, running = 0;
    for (uint32_t k = 0; k < t->plan->gang; k++) {
        const struct vg_w_task *m = &t->member[k];
        running += m->running > 0;
        done += m->n_attempts && m->attempt[m->n_attempts - 1].completed;
    }
    if (status == 0 && done < t->plan->gang)
        vg_w_violate("wrong-end", "task %d: the gang is told to have succeeded, %u of %u have",
                     t->index, done, t->plan->gang);
    else if (status != 0 && !excused(t, status, reason, text) && !t->power_lost_since)
        vg_w_violate("wrong-end", "task %d: the gang is told status %d (%s)", t->index, status,
                     text ? text : "");
    else if (running)
        vg_w_violate("wrong-end", "task %d: the gang's end was told while %u of it run", t->index,
                     running);
    t->told = true;
    t->told_status = status;
    t->told_reason = reason;
}

void vg_w_truth_told(struct vg_w_task *t, int32_t status, uint32_t reason, uint32_t number,
                     const char *text) {
    vg_w_story("the client of task %d is told its end: status %d%s%s", t->index, status,
               text && *text ? ", " : "", text ? text : "");
    struct vg_w_attempt *a = attempt_of(t, number);
    bool by_itself = a && a->completed && a->status == status && !reason;
    if (t->plan->gang) {
        told_gang(t, status, reason, text);
        return;
    }
    if (t->told && t->told_status != status && !t->plan->interactive)
        vg_w_violate("wrong-end", "task %d: first its status was %d, then %d", t->index,
                     t->told_status, status);
    else if (!by_itself && !excused(t, status, reason, text))
        vg_w_violate("wrong-end",
                     "task %d: told status %d (reason %u, %s) of attempt %u, in truth %s", t->index,
                     status, reason, text ? text : "", number,
                     !a           ? "that never ran"
                     : a->running ? "it still runs"
                     : a->killed  ? "it was killed by the system"
                                  : "it ended otherwise");
    else if (by_itself)
        check_output(t, a);
    if (t->running && !vg_w->over)
        vg_w_violate("wrong-end", "task %d: its end was told while it runs", t->index);
    t->told = true;
    t->told_status = status;
    t->told_reason = reason;
}

/* ------------------------------------------------------------------ when all is quiet */

static bool task_settled(const struct vg_w_task *t) {
    return t->told || t->refused || t->gone;
}

static size_t held(void) {
    size_t n = 0;
    for (int i = 0; i < vg_w->plan->n_nodes; i++)
        vg_list_for_each (it, &vg_w->node[i].keepers)
            n++;
    return n;
}

bool vg_w_truth_settled(void) {
    const struct vg_world *w = vg_w;
    if (!w->control || vg_map_len(&w->control->jobs) || held())
        return false;
    for (int i = 0; i < w->plan->n_tasks; i++)
        if (!task_settled(&w->task[i]))
            return false;
    return true;
}

static void check_counts(void) {
    const struct vg_control *c = vg_w->control;
    if (c->running)
        vg_w_violate("leak", "no task is left, but %u count as running", c->running);
    vg_map_for_each (s, &c->nodes) {
        const struct vg_nodelink *a = s->value;
        struct vg_eng_node_info info;
        if (vg_eng_node_info(c->policy.eng, a->node->id, &info) < 0)
            continue;
        if (info.tasks || info.used.cpu_milli || info.used.gpus)
            vg_w_violate("leak", "no task is left, but the scheduler counts %u on %s", info.tasks,
                         a->node->name);
    }
}

/* ------------------------------------------------------------------ the ledger */

struct bill {
    const struct vg_w_attempt *a;
    int rows;
    uint64_t from_usec, until_usec;
};

static int take_row(void *arg, const struct vg_attempt_row *row) {
    struct bill *b = arg;
    if (row->attempt != b->a->number)
        return 0;
    b->rows++;
    b->from_usec = row->from_usec;
    b->until_usec = row->until_usec;
    return 0;
}

/* Each clock is fast or slow by one per cent at most, and virgad believes none but its own. */
#define DRIFT_PART 40

/* The attempt that brought the task's end is in the ledger once, with the time that its node
   measured, or what virgad did where that is less.
   (What an attempt held that was given up as lost is known to virgad only until then.) */
static void check_ledger(const struct vg_w_task *t) {
    for (int i = VG_MAX(t->n_attempts - 1, 0); i < t->n_attempts; i++) {
        struct bill b = {.a = &t->attempt[i]};
        if (!b.a->completed || b.a->keeper_lost ||
            vg_w->node[b.a->node].losses != b.a->node_losses || /* perhaps it was given up */
            vg_store_load_attempts(vg_w->control->store, t->id, take_row, &b) < 0)
            continue;
        uint64_t held = b.a->ended_wall_usec - b.a->started_wall_usec;
        uint64_t paid = b.until_usec - b.from_usec;
        if (b.rows != 1 || paid > held || paid < held - held / DRIFT_PART)
            vg_w_violate(
                "ledger",
                "task %d attempt %u held its place for %llu us, the ledger has %d rows and "
                "%llu us",
                t->index, b.a->number,
                (unsigned long long)(b.a->ended_wall_usec - b.a->started_wall_usec), b.rows,
                (unsigned long long)(b.until_usec - b.from_usec));
    }
}

/* What one attempt held by its row, and what it was charged. */
struct charge {
    uint32_t attempt;
    struct vg_hold hold;
    uint64_t from_usec, until_usec;
    char pool[64], class[16];
    int rows;
    int64_t cost_micro;
};

struct charges {
    struct charge *list; /* owned */
    size_t n, cap;
};

static int take_held(void *arg, const struct vg_attempt_row *row) {
    struct charges *all = arg;
    struct charge *more = vg_grow(all->list, &all->cap, all->n + 1, sizeof *more);
    if (!more)
        return -ENOMEM;
    all->list = more;
    all->list[all->n++] = (struct charge){.attempt = row->attempt,
                                          .hold = {.gpu_milli = row->gpu_milli,
                                                   .cpu_milli = row->cpu_milli,
                                                   .mem_bytes = row->mem_bytes},
                                          .from_usec = row->from_usec,
                                          .until_usec = row->until_usec};
    return 0;
}

static int take_charge(void *arg, const struct vg_ledger_row *row) {
    struct charges *all = arg;
    for (size_t i = 0; i < all->n; i++) {
        struct charge *c = &all->list[i];
        if (c->attempt != row->attempt)
            continue;
        snprintf(c->pool, sizeof c->pool, "%s", row->pool);
        snprintf(c->class, sizeof c->class, "%s", row->class_name);
        c->hold.preemptible = row->preemptible;
        c->cost_micro += row->cost_micro;
        c->rows++;
    }
    return 0;
}

/* Every attempt that is in the ledger, lost ones too, was charged what it held times the price, to
   the last millionth. */
static void check_charges(const struct vg_w_task *t) {
    struct vg_control *c = vg_w->control;
    struct vg_ledger_filter f = {.task = t->id};
    struct charges all = {0};
    if (vg_store_load_attempts(c->store, t->id, take_held, &all) >= 0 &&
        vg_store_load_ledger(c->store, &f, take_charge, &all) >= 0)
        for (size_t i = 0; i < all.n; i++) {
            const struct charge *x = &all.list[i];
            uint64_t due =
                vg_charge_total(&c->book, x->pool, x->class, &x->hold, x->from_usec, x->until_usec)
                    .micro;
            bool held = x->until_usec > x->from_usec;
            if (x->cost_micro != (int64_t)due || (held && !x->rows))
                vg_w_violate("ledger",
                             "task %d attempt %u was charged %lld millionths in %d rows, and held "
                             "its place for %llu us, which cost %llu",
                             t->index, x->attempt, (long long)x->cost_micro, x->rows,
                             (unsigned long long)(x->until_usec - x->from_usec),
                             (unsigned long long)due);
        }
    free(all.list);
}

static void check_ledgers(void) {
    struct vg_world *w = vg_w;
    if (planned(VG_FAULT_FULL_DISK) || planned(VG_FAULT_CLOCK_JUMP))
        return; /* virgad says so and goes on; and time by a clock that jumps is no time */
    w->cur = &w->virgad;
    vg_store_flush(w->control->store);
    w->cur = NULL;
    for (int i = 0; i < w->plan->n_tasks; i++) {
        const struct vg_w_task *t = &w->task[i];
        if (!t->told || t->gone || t->told_reason || t->cancel_sent ||
            (t->plan->interactive && t->power_lost_since))
            continue;
        check_ledger(t);
        check_charges(t);
        for (uint32_t k = 0; k < t->plan->gang; k++) {
            check_ledger(&t->member[k]);
            check_charges(&t->member[k]);
        }
    }
}

void vg_w_truth_final(void) {
    struct vg_world *w = vg_w;
    if (!vg_w_truth_settled()) {
        for (int i = 0; i < w->plan->n_tasks; i++)
            if (!task_settled(&w->task[i])) {
                struct vg_job *j = w->control ? vg_job_get(w->control, w->task[i].id) : NULL;
                vg_w_violate("never-ends", "task %d does not end: %s", i,
                             j ? vg_task_state_name(j->task->state) : "virgad does not know it");
            }
        vg_w_violate("never-ends", "%zu keepers and %zu tasks of virgad remain", held(),
                     w->control ? vg_map_len(&w->control->jobs) : 0);
        return;
    }
    check_counts();
    check_ledgers();
    for (int i = 0; i < w->plan->n_tasks; i++) {
        struct vg_w_task *t = &w->task[i];
        for (int k = 0; k < t->n_attempts; k++)
            if (t->told && !t->plan->interactive && !t->told_reason && t->attempt[k].completed &&
                t->attempt[k].status == t->told_status && k == t->n_attempts - 1)
                check_output(t, &t->attempt[k]);
    }
}
