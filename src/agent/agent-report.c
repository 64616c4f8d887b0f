/* What the control plane is told of the node's GPUs: facts, the newest samples, health, and what
   tasks used so far. Loop thread. */
#include "agent/agent-int.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <stdlib.h>

#define TELL_USEC (30 * VG_USEC) /* without a reason: what was told grows old */

struct report {
    Vg__Pb__GpuReport pb;
    Vg__Pb__GpuState state[VG_GPUS_MAX], *states[VG_GPUS_MAX];
    Vg__Pb__GpuProc proc[VG_GPUS_MAX][VG_CARD_PROCS_MAX], *procs[VG_GPUS_MAX][VG_CARD_PROCS_MAX];
    char *migs[VG_GPUS_MAX][VG_CARD_MIGS_MAX];
    uint32_t near[VG_GPUS_MAX][VG_GPUS_MAX];
};

struct one_task {
    Vg__Pb__TaskGpuUse use;
    Vg__Pb__GpuUsage usage;
};

/* The cards that one of these reaches by NVLink. */
static uint64_t linked_to(const struct vg_agent *a, uint64_t set) {
    uint64_t more = set;
    for (size_t k = 0; k < a->gpus.n; k++)
        for (size_t o = 0; (set >> k & 1) && o < a->gpus.n; o++)
            if (a->card[o].known && (a->card[k].facts.linked >> a->card[o].facts.index & 1))
                more |= 1ULL << o;
    return more;
}

/* One number: equal for cards that reach each other, directly or through others. */
static uint32_t island_of(const struct vg_agent *a, size_t i) {
    uint64_t set = 1ULL << i, before = 0;
    while (set != before) {
        before = set;
        set = linked_to(a, set);
    }
    return set == 1ULL << i ? 0 : 1 + (uint32_t)__builtin_ctzll(set);
}

/* How near the others are, in our order; whether anything is known of that. */
static bool tell_near(const struct vg_agent *a, size_t i, uint32_t *row) {
    bool any = false;
    for (size_t k = 0; k < a->gpus.n; k++) {
        row[k] = k != i && a->card[k].known ? a->card[i].facts.near[a->card[k].facts.index] : 0;
        any |= row[k] != 0;
    }
    return any;
}

/* What is not known is not told. */
#define TELL(field, value, none)            \
    do {                                    \
        s->has_##field = (value) != (none); \
        s->field = (value);                 \
    } while (0)

static void tell_facts(const struct vg_agent *a, size_t i, Vg__Pb__GpuState *s, char **migs) {
    const struct vg_card_facts *f = &a->card[i].facts;
    s->model = (char *)f->name;
    s->uuid = (char *)f->uuid;
    s->bus = (char *)f->bus;
    s->driver = (char *)f->driver;
    s->vendor = (char *)vg_card_vendor_name(f->vendor);
    TELL(mem_bytes, f->mem_bytes, VG_NONE64);
    TELL(power_limit_mw, f->power_limit_mw, VG_NONE);
    TELL(pcie_gen, f->pcie_gen, VG_NONE);
    TELL(pcie_width, f->pcie_width, VG_NONE);
    TELL(numa, (uint32_t)f->numa, (uint32_t)-1);
    TELL(island, island_of(a, i), 0);
    TELL(mig, f->mig, false);
    for (uint32_t k = 0; k < f->n_migs; k++)
        migs[k] = (char *)f->mig_uuid[k];
    s->mig_uuid = migs;
    s->n_mig_uuid = f->n_migs;
}

static void tell_sample(const struct vg_agent_card *c, Vg__Pb__GpuState *s) {
    const struct vg_card_sample *l = &c->last;
    uint64_t now = vg_now_usec();
    s->has_age_usec = true;
    s->age_usec = now - VG_MIN(now, l->at_usec);
    TELL(sm_percent, l->sm_percent, VG_NONE);
    TELL(mem_percent, l->mem_percent, VG_NONE);
    TELL(mem_used_bytes, l->mem_used_bytes, VG_NONE64);
    TELL(power_mw, l->power_mw, VG_NONE);
    TELL(temp_c, l->temp_c, VG_NONE);
    TELL(sm_mhz, l->sm_mhz, VG_NONE);
    TELL(mem_mhz, l->mem_mhz, VG_NONE);
    TELL(energy_mj, l->energy_mj, VG_NONE64);
    TELL(ecc_corrected, l->ecc_corrected, VG_NONE64);
    TELL(ecc_uncorrected, l->ecc_uncorrected, VG_NONE64);
    TELL(xid, c->health.xid, 0);
    s->fault = c->health.fault[0] ? (char *)c->health.fault : NULL;
}

static void tell_procs(const struct vg_agent_card *c, Vg__Pb__GpuState *to, Vg__Pb__GpuProc *proc,
                       Vg__Pb__GpuProc **list) {
    for (uint32_t i = 0; i < c->last.n_procs; i++) {
        Vg__Pb__GpuProc *s = &proc[i];
        vg__pb__gpu_proc__init(s);
        TELL(pid, c->last.proc[i].pid, 0);
        TELL(sm_percent, c->last.proc[i].sm_percent, VG_NONE);
        TELL(mem_bytes, c->last.proc[i].mem_bytes, VG_NONE64);
        TELL(task_id, c->owner[i] == VG_NONE64 ? 0 : c->owner[i], 0);
        list[i] = s;
    }
    to->proc = list;
    to->n_proc = c->last.n_procs;
}

static void add_cards(struct vg_agent *a, struct report *r) {
    for (size_t i = 0; i < a->gpus.n; i++) {
        Vg__Pb__GpuState *s = &r->state[r->pb.n_gpu];
        if (!a->card[i].known)
            continue;
        vg__pb__gpu_state__init(s);
        s->has_index = true;
        s->index = (uint32_t)i;
        tell_facts(a, i, s, r->migs[i]);
        s->near = r->near[i];
        s->n_near = tell_near(a, i, r->near[i]) ? a->gpus.n : 0;
        tell_sample(&a->card[i], s);
        tell_procs(&a->card[i], s, r->proc[i], r->procs[i]);
        r->states[r->pb.n_gpu++] = s;
    }
    r->pb.gpu = r->states;
}

/* `room` and r->pb.task hold n_metered. */
static void add_tasks(struct vg_agent *a, struct report *r, struct one_task *room) {
    vg_map_for_each (e, &a->tasks) {
        const struct vg_agent_task *t = e->value;
        struct one_task *o = &room[r->pb.n_task];
        if (t->state != VG_AT_RUNNING || r->pb.n_task >= a->n_metered ||
            !vg_meter_usage(t, &o->usage))
            continue;
        vg__pb__task_gpu_use__init(&o->use);
        o->use.has_task_id = o->use.has_attempt = true;
        o->use.task_id = t->id;
        o->use.attempt = t->attempt;
        o->use.usage = &o->usage;
        r->pb.task[r->pb.n_task++] = &o->use;
    }
}

void vg_meter_report(struct vg_agent *a) {
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    vg_auto_free struct report *r = vg_alloc(sizeof(*r));
    vg_auto_free struct one_task *room = vg_alloc((a->n_metered + 1) * sizeof(*room));
    vg_auto_free Vg__Pb__TaskGpuUse **tasks = vg_alloc((a->n_metered + 1) * sizeof(*tasks));
    if (!r || !room || !tasks)
        return;
    vg__pb__gpu_report__init(&r->pb);
    r->pb.task = tasks;
    add_cards(a, r);
    add_tasks(a, r, room);
    env.body_case = VG__PB__ENVELOPE__BODY_GPU_REPORT;
    env.gpu_report = &r->pb;
    if (r->pb.n_gpu && vg_link_send(a, &env)) {
        a->watch.news = false;
        a->watch.told_usec = vg_now_usec();
    }
}

void vg_meter_beat(struct vg_agent *a) {
    bool old = vg_now_usec() - a->watch.told_usec >= TELL_USEC;
    if (a->n_metered || a->watch.news || old)
        vg_meter_report(a);
}
