/* Plans from seeds. Pure. */
#include "sim/faults/plan.h"

#include "base/cleanup.h"
#include "base/util.h"
#include "sim/rng.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *word, *text;
} kinds[] =
    {
#define FAULT(name, word, text) [VG_FAULT_##name] = {word, text},
#include "sim/faults/kinds.tbl"
#undef FAULT
},
  plants[] = {
#define PLANT(name, word, text) [VG_PLANT_##name] = {word, text},
#include "sim/faults/plants.tbl"
#undef PLANT
};

const char *vg_plan_fault_word(enum vg_fault_kind k) {
    return kinds[k].word;
}
const char *vg_plan_fault_text(enum vg_fault_kind k) {
    return kinds[k].text;
}
const char *vg_plan_plant_word(enum vg_plant p) {
    return plants[p].word;
}
const char *vg_plan_plant_text(enum vg_plant p) {
    return plants[p].text;
}

static uint64_t between(struct vg_rng *r, uint64_t lo, uint64_t hi) {
    return lo + vg_rng_below(r, hi - lo + 1);
}

static bool chance(struct vg_rng *r, unsigned percent) {
    return vg_rng_below(r, 100) < percent;
}

static void make_share(struct vg_rng *r, struct vg_plan_task *t) {
    if (!t->gpus || !chance(r, 70))
        return;
    t->gpus = 0;
    t->share_milli = (uint32_t)between(r, 1, 19) * 50;
}

static void make_task(struct vg_rng *r, struct vg_plan_task *t, uint64_t span) {
    *t = (struct vg_plan_task){.at_usec = between(r, 2 * VG_USEC, span)};
    t->run_usec = chance(r, 50) ? between(r, 1000, 500000) : between(r, 500000, 20 * VG_USEC);
    t->interactive = chance(r, 30);
    t->remote = chance(r, 60);
    t->follow = chance(r, 50);
    t->ignores_term = chance(r, 20);
    t->status = chance(r, 25) ? (int32_t)between(r, 1, 100) : 0;
    t->retries = chance(r, 20) ? (uint32_t)between(r, 1, 2) : 0;
    t->gpus = chance(r, 50) ? (uint32_t)between(r, 1, 3) : 0;
    t->cpu_milli = (uint32_t)between(r, 1, 6) * 500;
    t->records = chance(r, 60) ? (uint32_t)between(r, 1, 30) : 0;
    if (chance(r, 12))
        t->cancel_usec = between(r, 1000, 15 * VG_USEC);
    if (!t->interactive && chance(r, 12)) { /* what a failed member means is not looked at here */
        t->gang = (uint32_t)between(r, 2, VG_PLAN_GANG_MAX);
        t->gpus = t->gpus > 1 ? 1 : t->gpus;
        t->cpu_milli = 500;
        t->retries = 0;
        t->status = 0;
    }
}

static void make_fault(struct vg_rng *r, const struct vg_plan *p, struct vg_plan_fault *f,
                       uint64_t span) {
    /* The rarer half of the kinds is drawn less often: what kills is where the promises are. */
    static const uint8_t weight[VG_FAULT_KINDS] = {
        [VG_FAULT_CONTROL_CRASH] = 6, [VG_FAULT_POWER_LOSS] = 5,   [VG_FAULT_AGENT_CRASH] = 6,
        [VG_FAULT_NODE_CRASH] = 4,    [VG_FAULT_KEEPER_CRASH] = 3, [VG_FAULT_CUT] = 6,
        [VG_FAULT_PARTITION] = 6,     [VG_FAULT_SLOW_NET] = 2,     [VG_FAULT_AGENT_STALL] = 3,
        [VG_FAULT_CONTROL_STALL] = 3, [VG_FAULT_SLOW_DISK] = 3,    [VG_FAULT_FULL_DISK] = 1,
        [VG_FAULT_CLOCK_JUMP] = 2,    [VG_FAULT_CLIENT_CRASH] = 3,
    };
    unsigned all = 0, k = 0;
    for (unsigned i = 0; i < VG_FAULT_KINDS; i++)
        all += weight[i];
    uint64_t pick = vg_rng_below(r, all);
    while (pick >= weight[k])
        pick -= weight[k++];
    *f = (struct vg_plan_fault){.kind = k, .at_usec = between(r, 2 * VG_USEC, span)};
    f->target = (int)vg_rng_below(r, 1000);
    f->for_usec =
        chance(r, 50) ? between(r, 10000, 2 * VG_USEC) : between(r, VG_USEC, 25 * VG_USEC);
    f->amount = (int64_t)between(r, 0, 7200 * VG_USEC) - (int64_t)(3600 * VG_USEC);
    if (k == VG_FAULT_CLIENT_CRASH && p->n_tasks) /* soon after it came */
        f->at_usec = p->task[f->target % p->n_tasks].at_usec + between(r, 0, 3 * VG_USEC);
    /* What follows what a task just went through is the most telling. */
    if (p->n_tasks && chance(r, 40)) {
        const struct vg_plan_task *t = &p->task[vg_rng_below(r, (uint64_t)p->n_tasks)];
        f->at_usec = t->at_usec + (chance(r, 50) ? t->run_usec : 0) + between(r, 0, 30000);
    }
}

void vg_plan_make(struct vg_plan *p, uint64_t seed, const struct vg_plan_size *size,
                  enum vg_plant plant) {
    struct vg_rng r = vg_rng_seeded(seed);
    uint64_t span = between(&r, 5 * VG_USEC, 60 * VG_USEC);
    memset(p, 0, sizeof *p);
    p->seed = seed;
    p->shares = seed >= VG_PLAN_SHARES_FROM;
    p->plant = plant;
    p->n_nodes = size->nodes ? size->nodes : (int)between(&r, 1, 4);
    p->n_tasks = size->tasks ? size->tasks : (int)between(&r, 2, 16);
    p->n_faults = (int)between(&r, 0, 10);
    p->local_node = chance(&r, 50);
    for (int i = 0; i < p->n_tasks; i++) {
        make_task(&r, &p->task[i], span);
        if (p->shares)
            make_share(&r, &p->task[i]);
        p->task_id[i] = vg_rng_next(&r) | 1;
    }
    for (int i = 0; i < p->n_faults; i++) {
        struct vg_plan_fault *f = &p->fault[i];
        make_fault(&r, p, f, span + 20 * VG_USEC);
        uint64_t over = f->at_usec + f->for_usec;
        p->calm_usec = VG_MAX(p->calm_usec, over);
    }
    p->calm_usec = VG_MAX(p->calm_usec, span) + VG_USEC;
}

static const char *machine_name(const struct vg_plan *p, int target, char *out, size_t n) {
    int i = target % (p->n_nodes + 2);
    if (i < p->n_nodes)
        snprintf(out, n, "n%d", i);
    else
        snprintf(out, n, "%s", i == p->n_nodes ? "the clients' machine" : "virgad's machine");
    return out;
}

void vg_plan_fault_say(const struct vg_plan *p, const struct vg_plan_fault *f, char *out, int n) {
    char on[32] = "";
    switch (f->kind) {
    case VG_FAULT_AGENT_CRASH:
    case VG_FAULT_NODE_CRASH:
    case VG_FAULT_KEEPER_CRASH:
    case VG_FAULT_AGENT_STALL:
        snprintf(on, sizeof on, " (n%d)", f->target % p->n_nodes);
        break;
    case VG_FAULT_CUT:
    case VG_FAULT_PARTITION:
    case VG_FAULT_SLOW_NET:
    case VG_FAULT_CLOCK_JUMP: {
        char name[24];
        snprintf(on, sizeof on, " (%s)", machine_name(p, f->target, name, sizeof name));
        break;
    }
    case VG_FAULT_CLIENT_CRASH:
        snprintf(on, sizeof on, " (of task %d)", p->n_tasks ? f->target % p->n_tasks : 0);
        break;
    default:
        break;
    }
    snprintf(out, (size_t)n, "%s%s: %s, for %.3f s", kinds[f->kind].word, on, kinds[f->kind].text,
             (double)f->for_usec / 1e6);
}

void vg_plan_task_say(const struct vg_plan_task *t, int index, char *out, int n) {
    char end[64] = "";
    if (t->cancel_usec)
        snprintf(end, sizeof end, ", cancelled after %.3f s", (double)t->cancel_usec / 1e6);
    snprintf(out, (size_t)n,
             "task %d: %s at %.3f s from %s, runs %.3f s, ends with %d, %g GPUs, %u records of "
             "output, %u retries%s",
             index,
             t->gang          ? "gang"
             : t->interactive ? "vrun"
             : t->follow      ? "vbatch -f"
                              : "vbatch",
             (double)t->at_usec / 1e6, t->remote ? "elsewhere" : "virgad's machine",
             (double)t->run_usec / 1e6, t->status, t->gpus + t->share_milli / 1000.0, t->records,
             t->retries, end);
}
