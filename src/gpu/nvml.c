/* NVIDIA's management library. The structures are its binary interface, written down by us; a
   function that this library lacks, or a value that this card lacks, stays unknown. What it writes
   into our memory is bounded by the sizes we pass. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "gpu/nvml-bus.h"
#include "gpu/nvml-int.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef vg_nvml_handle handle;

enum { CLOCK_SM = 1, CLOCK_MEM = 2, TEMPERATURE_DIE = 0 };
enum { ECC_CORRECTED = 0, ECC_UNCORRECTED = 1, ECC_VOLATILE = 0 };
enum { SAMPLES_SM = 1, VALUE_UINT = 1 };
#define SAMPLES_ASKED 256
#define EVENT_XID 8ULL
#define P2P_NVLINK 2

struct utilization {
    unsigned gpu, memory;
};
struct value_sample {
    unsigned long long stamp;
    union {
        unsigned uint;
        unsigned long long room;
    } value;
};
struct memory_v1 {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct process {
    unsigned pid;
    unsigned long long mem;
    unsigned gpu_instance, compute_instance;
};
struct process_use {
    unsigned pid;
    unsigned long long stamp;
    unsigned sm, mem, enc, dec;
};
struct event_data {
    handle device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

struct nvml {
    void *lib;
    handle card[VG_CARDS_MAX];
    handle whole[VG_CARDS_MAX]; /* the card that it is a part of; else itself */
    uint32_t part[VG_CARDS_MAX];
    uint64_t struck; /* of a card in parts: those that an event is still to be told of */
    uint32_t struck_xid;
    unsigned n;
    handle events; /* NULL: none are told */
    unsigned long long seen_use[VG_CARDS_MAX];
    unsigned long long seen_sm[VG_CARDS_MAX]; /* 0: nothing yet */
    struct vg_nvml_bus bus;
    bool lost[VG_CARDS_MAX];
    char driver[32];
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *);
    int (*by_index)(unsigned, handle *);
    int (*driver_version)(char *, unsigned);
    int (*name)(handle, char *, unsigned);
    int (*uuid)(handle, char *, unsigned);
    int (*minor)(handle, unsigned *);
    int (*pci)(handle, struct pci_info *);
    int (*memory1)(handle, struct memory_v1 *);
    int (*memory2)(handle, struct memory_v2 *);
    int (*utilization)(handle, struct utilization *);
    int (*samples)(handle, int, unsigned long long, int *, unsigned *, struct value_sample *);
    int (*power)(handle, unsigned *);
    int (*power_limit)(handle, unsigned *);
    int (*energy)(handle, unsigned long long *);
    int (*temperature)(handle, int, unsigned *);
    int (*clock)(handle, int, unsigned *);
    int (*ecc)(handle, int, int, unsigned long long *);
    int (*pcie_gen)(handle, unsigned *);
    int (*pcie_width)(handle, unsigned *);
    int (*p2p)(handle, handle, int, int *);
    int (*mig_mode)(handle, unsigned *, unsigned *);
    int (*mig_count)(handle, unsigned *);
    int (*mig_by_index)(handle, unsigned, handle *);
    int (*gpu_instance)(handle, unsigned *);
    int (*compute_instance)(handle, unsigned *);
    int (*processes)(handle, unsigned *, struct process *);
    int (*process_use)(handle, struct process_use *, unsigned *, unsigned long long);
    int (*event_set)(handle *);
    int (*event_register)(handle, unsigned long long, handle);
    int (*event_wait)(handle, struct event_data *, unsigned);
    int (*event_free)(handle);
};

#define FN(field, now, before) \
    { offsetof(struct nvml, field), now, before }
static const struct {
    size_t at;
    const char *name, *older;
} symbols[] = {
    FN(init, "nvmlInit_v2", "nvmlInit"),
    FN(shutdown, "nvmlShutdown", NULL),
    FN(count, "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"),
    FN(by_index, "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"),
    FN(driver_version, "nvmlSystemGetDriverVersion", NULL),
    FN(name, "nvmlDeviceGetName", NULL),
    FN(uuid, "nvmlDeviceGetUUID", NULL),
    FN(minor, "nvmlDeviceGetMinorNumber", NULL),
    FN(pci, "nvmlDeviceGetPciInfo_v3", NULL),
    FN(memory1, "nvmlDeviceGetMemoryInfo", NULL),
    FN(memory2, "nvmlDeviceGetMemoryInfo_v2", NULL),
    FN(utilization, "nvmlDeviceGetUtilizationRates", NULL),
    FN(samples, "nvmlDeviceGetSamples", NULL),
    FN(power, "nvmlDeviceGetPowerUsage", NULL),
    FN(power_limit, "nvmlDeviceGetEnforcedPowerLimit", NULL),
    FN(energy, "nvmlDeviceGetTotalEnergyConsumption", NULL),
    FN(temperature, "nvmlDeviceGetTemperature", NULL),
    FN(clock, "nvmlDeviceGetClockInfo", NULL),
    FN(ecc, "nvmlDeviceGetTotalEccErrors", NULL),
    FN(pcie_gen, "nvmlDeviceGetCurrPcieLinkGeneration", NULL),
    FN(pcie_width, "nvmlDeviceGetCurrPcieLinkWidth", NULL),
    FN(p2p, "nvmlDeviceGetP2PStatus", NULL),
    FN(mig_mode, "nvmlDeviceGetMigMode", NULL),
    FN(mig_count, "nvmlDeviceGetMaxMigDeviceCount", NULL),
    FN(mig_by_index, "nvmlDeviceGetMigDeviceHandleByIndex", NULL),
    FN(gpu_instance, "nvmlDeviceGetGpuInstanceId", NULL),
    FN(compute_instance, "nvmlDeviceGetComputeInstanceId", NULL),
    FN(processes, "nvmlDeviceGetComputeRunningProcesses_v3",
       "nvmlDeviceGetComputeRunningProcesses_v2"),
    FN(process_use, "nvmlDeviceGetProcessUtilization", NULL),
    FN(event_set, "nvmlEventSetCreate", NULL),
    FN(event_register, "nvmlDeviceRegisterEvents", NULL),
    FN(event_wait, "nvmlEventSetWait_v2", "nvmlEventSetWait"),
    FN(event_free, "nvmlEventSetFree", NULL),
};

static void find_symbols(struct nvml *n) {
    for (size_t i = 0; i < VG_COUNT(symbols); i++) {
        void *p = dlsym(n->lib, symbols[i].name);
        if (!p && symbols[i].older)
            p = dlsym(n->lib, symbols[i].older);
        memcpy((char *)n + symbols[i].at, &p, sizeof(p));
    }
}

/* ------------------------------------------------------------------ facts */

static uint32_t ask32(int (*fn)(handle, unsigned *), handle h) {
    unsigned v = 0;
    return fn && fn(h, &v) == NVML_OK ? v : VG_NONE;
}

static void ask_text(int (*fn)(handle, char *, unsigned), handle h, char *out, unsigned n) {
    if (!fn || fn(h, out, n) != NVML_OK)
        out[0] = 0;
    out[n - 1] = 0;
}

static void ask_memory(struct nvml *n, handle h, uint64_t *total, uint64_t *used) {
    struct memory_v2 two = {.version = sizeof(two) | 2u << 24};
    struct memory_v1 one = {0};
    if (n->memory2 && n->memory2(h, &two) == NVML_OK) {
        *total = two.total;
        *used = two.used;
    } else if (n->memory1 && n->memory1(h, &one) == NVML_OK) {
        *total = one.total;
        *used = one.used;
    }
}

static void ask_migs(struct nvml *n, handle h, struct vg_card_facts *ret) {
    unsigned mode = 0, pending = 0, max = 0;
    if (!n->mig_mode || n->mig_mode(h, &mode, &pending) != NVML_OK || mode != 1)
        return;
    ret->mig = true;
    if (!n->mig_count || n->mig_count(h, &max) != NVML_OK || !n->mig_by_index)
        return;
    for (unsigned i = 0; i < max && i < VG_CARDS_MAX && ret->n_migs < VG_CARD_MIGS_MAX; i++) {
        handle part = NULL;
        if (n->mig_by_index(h, i, &part) == NVML_OK)
            ask_text(n->uuid, part, ret->mig_uuid[ret->n_migs++], sizeof(ret->mig_uuid[0]));
    }
}

static uint64_t ask_linked(struct nvml *n, uint32_t i) {
    uint64_t set = 0;
    for (uint32_t k = 0; n->p2p && k < n->n; k++) {
        int status = -1;
        if (k != i && n->p2p(n->card[i], n->card[k], P2P_NVLINK, &status) == NVML_OK && !status)
            set |= 1ULL << k;
    }
    return set;
}

static int facts(void *state, uint32_t i, struct vg_card_facts *ret) {
    struct nvml *n = state;
    handle h = n->card[i], whole = n->whole[i];
    struct pci_info pci = {0};
    uint64_t used;
    *ret = (struct vg_card_facts){
        .vendor = VG_CARD_NVIDIA, .index = i, .minor = -1, .numa = -1, .part = n->part[i]};
    ask_text(n->name, h, ret->name, sizeof(ret->name));
    ask_text(n->uuid, h, ret->uuid, sizeof(ret->uuid));
    snprintf(ret->driver, sizeof(ret->driver), "%s", n->driver);
    if (n->pci && n->pci(whole, &pci) == NVML_OK)
        snprintf(ret->bus, sizeof(ret->bus), "%.31s", pci.bus_id);
    uint32_t minor = ask32(n->minor, whole);
    ret->minor = minor < 1024 ? (int32_t)minor : -1;
    ret->numa = vg_card_numa("", ret->bus);
    ret->mem_bytes = VG_NONE64;
    ask_memory(n, h, &ret->mem_bytes, &used);
    ret->power_limit_mw = ask32(n->power_limit, h);
    ret->pcie_gen = ask32(n->pcie_gen, whole);
    ret->pcie_width = ask32(n->pcie_width, whole);
    if (ret->part) { /* parts reach nobody directly */
        ret->mig = true;
        return 0;
    }
    ret->linked = ask_linked(n, i);
    vg_nvml_near(&(struct vg_nvml_cards){.lib = n->lib, .card = n->card, .n = n->n}, ret);
    ask_migs(n, h, ret);
    return 0;
}

/* ------------------------------------------------------------------ samples */

static void keep_largest(struct vg_card_sample *s, const struct process *p, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        struct vg_card_proc one = {.pid = p[i].pid, .sm_percent = VG_NONE, .mem_bytes = p[i].mem};
        uint32_t at = s->n_procs;
        while (at > 0 && s->proc[at - 1].mem_bytes < one.mem_bytes)
            at--;
        if (at == VG_CARD_PROCS_MAX)
            continue;
        uint32_t last = VG_MIN(s->n_procs, VG_CARD_PROCS_MAX - 1u);
        memmove(&s->proc[at + 1], &s->proc[at], (last - at) * sizeof(s->proc[0]));
        s->proc[at] = one;
        s->n_procs = last + 1;
    }
}

#define PROCS_ASKED 256

static void ask_processes(struct nvml *n, handle h, struct vg_card_sample *s) {
    static struct process list[PROCS_ASKED]; /* one thread */
    unsigned count = PROCS_ASKED;
    if (!n->processes || n->processes(h, &count, list) != NVML_OK)
        return;
    keep_largest(s, list, VG_MIN(count, (unsigned)PROCS_ASKED));
}

static struct vg_card_proc *proc_of(struct vg_card_sample *s, uint32_t pid) {
    for (uint32_t i = 0; i < s->n_procs; i++)
        if (s->proc[i].pid == pid)
            return &s->proc[i];
    if (s->n_procs == VG_CARD_PROCS_MAX)
        return NULL;
    s->proc[s->n_procs] =
        (struct vg_card_proc){.pid = pid, .sm_percent = VG_NONE, .mem_bytes = VG_NONE64};
    return &s->proc[s->n_procs++];
}

/* The driver keeps samples of each process; the newest since we last asked counts. */
static void ask_process_use(struct nvml *n, uint32_t i, struct vg_card_sample *s) {
    static struct process_use list[PROCS_ASKED];
    unsigned long long since = n->seen_use[i];
    unsigned count = PROCS_ASKED;
    if (!n->process_use || n->process_use(n->card[i], list, &count, since) != NVML_OK)
        return;
    for (unsigned k = 0; k < VG_MIN(count, (unsigned)PROCS_ASKED); k++) {
        if (!list[k].pid || list[k].stamp <= since || list[k].sm > 100)
            continue; /* a place that nobody filled */
        n->seen_use[i] = VG_MAX(n->seen_use[i], list[k].stamp);
        struct vg_card_proc *p = proc_of(s, list[k].pid);
        if (p)
            p->sm_percent = list[k].sm;
    }
}

static uint32_t ask_enum(int (*fn)(handle, int, unsigned *), handle h, int which) {
    unsigned v = 0;
    return fn && fn(h, which, &v) == NVML_OK ? v : VG_NONE;
}

static uint64_t ask_ecc(struct nvml *n, handle h, int kind) {
    unsigned long long v = 0;
    return n->ecc && n->ecc(h, kind, ECC_VOLATILE, &v) == NVML_OK ? v : VG_NONE64;
}

static void sample_slow(struct nvml *n, uint32_t i, struct vg_card_sample *s) {
    handle h = n->card[i];
    s->temp_c = ask_enum(n->temperature, h, TEMPERATURE_DIE);
    s->sm_mhz = ask_enum(n->clock, h, CLOCK_SM);
    s->mem_mhz = ask_enum(n->clock, h, CLOCK_MEM);
    s->ecc_corrected = ask_ecc(n, h, ECC_CORRECTED);
    s->ecc_uncorrected = ask_ecc(n, h, ECC_UNCORRECTED);
    ask_processes(n, h, s);
}

static void ask_bus(struct nvml *n, uint32_t i, struct vg_card_sample *s) {
    uint64_t rx, tx;
    if (!vg_nvml_bus_read(&n->bus, i, n->card[i], s->at_usec, &rx, &tx))
        return;
    s->pcie_rx_bytes = rx;
    s->pcie_tx_bytes = tx;
}

/* The driver measures five times a second and keeps some fourteen seconds of it. Its present value
   is that of a fifth of a second: whoever computes for a moment now and then, in step with our
   looks, would seem to rest. The mean since we last asked misses nothing; it costs a millisecond,
   so not every look asks. Rounded up: little is not nothing. */
static void ask_mean(struct nvml *n, uint32_t i, uint32_t *ret) {
    static struct value_sample list[SAMPLES_ASKED]; /* one thread */
    unsigned long long since = n->seen_sm[i];
    unsigned count = SAMPLES_ASKED, sum = 0, used = 0;
    int type = 0;
    if (!n->samples || n->samples(n->card[i], SAMPLES_SM, since, &type, &count, list) != NVML_OK ||
        type != VALUE_UINT)
        return;
    for (unsigned k = 0; k < VG_MIN(count, (unsigned)SAMPLES_ASKED); k++) {
        if (list[k].stamp <= since || list[k].value.uint > 100)
            continue; /* seen before, or a place that nobody filled */
        n->seen_sm[i] = VG_MAX(n->seen_sm[i], list[k].stamp);
        sum += list[k].value.uint;
        used++;
    }
    if (since && used) /* the first time they are older than anybody's interest */
        *ret = (sum + used - 1) / used;
}

static int sample(void *state, uint32_t i, unsigned ask, struct vg_card_sample *ret) {
    struct nvml *n = state;
    handle h = n->card[i];
    struct utilization u = {0};
    unsigned long long energy = 0;
    uint64_t total;
    vg_card_sample_init(ret, i);
    int r = n->utilization ? n->utilization(h, &u) : -1;
    if (r == NVML_OK) {
        ret->sm_percent = VG_MIN(u.gpu, 100u);
        ret->mem_percent = VG_MIN(u.memory, 100u);
        if (ask & VG_ASK_SLOW)
            ask_mean(n, i, &ret->sm_percent);
    }
    ret->lost = r == NVML_LOST || n->lost[i];
    if (ret->lost) /* a card that is gone answers slowly, if at all */
        return 0;
    ask_memory(n, h, &total, &ret->mem_used_bytes);
    ret->power_mw = ask32(n->power, h);
    ret->counted = ask & VG_ASK_COUNTERS;
    if (ret->counted && n->energy && n->energy(h, &energy) == NVML_OK)
        ret->energy_mj = energy;
    if (ret->counted)
        ask_bus(n, i, ret);
    ret->full = ask & VG_ASK_SLOW;
    if (ret->full)
        sample_slow(n, i, ret);
    ret->uses = ask & VG_ASK_USES;
    if (ret->uses)
        ask_process_use(n, i, ret);
    return 0;
}

static int event(void *state, struct vg_card_event *ret) {
    struct nvml *n = state;
    struct event_data d = {0};
    while (!n->struck && n->events && n->event_wait(n->events, &d, 0) == NVML_OK) {
        for (unsigned i = 0; d.type == EVENT_XID && i < n->n; i++)
            if (n->whole[i] == d.device)
                n->struck |= 1ULL << i;
        n->struck_xid = (uint32_t)d.data;
    }
    if (!n->struck)
        return 0;
    *ret =
        (struct vg_card_event){.index = (uint32_t)__builtin_ctzll(n->struck), .xid = n->struck_xid};
    n->struck &= n->struck - 1;
    return 1;
}

/* ------------------------------------------------------------------ open */

static void nvml_close(void *state) {
    struct nvml *n = state;
    if (n->events && n->event_free)
        n->event_free(n->events);
    vg_nvml_bus_close(&n->bus);
    if (n->shutdown)
        n->shutdown();
    dlclose(n->lib);
    free(n);
}

static void open_events(struct nvml *n) {
    if (!n->event_set || !n->event_register || !n->event_wait ||
        n->event_set(&n->events) != NVML_OK)
        n->events = NULL;
    for (unsigned i = 0; n->events && i < n->n; i++)
        if (i == 0 || n->whole[i] != n->whole[i - 1])
            n->event_register(n->whole[i], EVENT_XID, n->events); /* without them: no matter */
}

/* The parts of a card that is cut (MIG), each for itself; how many. */
static unsigned open_parts(struct nvml *n, handle whole) {
    unsigned mode = 0, pending = 0, max = 0, before = n->n;
    if (!n->mig_mode || n->mig_mode(whole, &mode, &pending) != NVML_OK || mode != 1 ||
        !n->mig_count || n->mig_count(whole, &max) != NVML_OK || !n->mig_by_index)
        return 0;
    for (unsigned i = 0; i < max && i < VG_PART_IDS && n->n < VG_CARDS_MAX; i++) {
        handle part = NULL;
        if (n->mig_by_index(whole, i, &part) != NVML_OK)
            continue;
        uint32_t gi = ask32(n->gpu_instance, part), ci = ask32(n->compute_instance, part);
        if (gi >= VG_PART_IDS || ci >= VG_PART_IDS)
            continue;
        n->card[n->n] = part;
        n->whole[n->n] = whole;
        n->part[n->n++] = VG_PART(gi, ci);
    }
    return n->n - before;
}

static void open_card(struct nvml *n, unsigned i) {
    handle whole = NULL;
    bool lost = n->by_index(i, &whole) == NVML_LOST;
    if ((!lost && open_parts(n, whole)) || n->n == VG_CARDS_MAX)
        return;
    n->lost[n->n] = lost;
    n->card[n->n] = n->whole[n->n] = whole;
    n->n++;
}

static int open_cards(struct nvml *n, const char *library, struct vg_err *err) {
    unsigned count = 0;
    if (!n->init || !n->count || !n->by_index)
        return vg_err_set(err, VG_UNAVAILABLE, "%s lacks the functions that list cards", library);
    int r = n->init();
    if (r == NVML_OK)
        r = n->count(&count);
    if (r != NVML_OK)
        return vg_err_set(err, VG_UNAVAILABLE,
                          "%s cannot reach the driver (code %d): see 'nvidia-smi'", library, r);
    for (unsigned i = 0; i < count && i < VG_CARDS_MAX; i++)
        open_card(n, i);
    if (!n->driver_version || n->driver_version(n->driver, sizeof(n->driver)) != NVML_OK)
        n->driver[0] = 0;
    n->driver[sizeof(n->driver) - 1] = 0;
    open_events(n);
    return 0;
}

int vg_nvml_open(const char *library, struct vg_card_source *ret, struct vg_err *err) {
    struct nvml *n = vg_alloc(sizeof(*n));
    if (!n)
        return vg_err_sys(err, -ENOMEM, "cannot watch the GPUs");
    n->lib = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!n->lib) {
        free(n);
        return vg_err_set(err, VG_UNAVAILABLE, "cannot open NVIDIA's library: %s", dlerror());
    }
    find_symbols(n);
    vg_nvml_bus_open(&n->bus, n->lib);
    int r = open_cards(n, library, err);
    if (r < 0) {
        nvml_close(n);
        return r;
    }
    *ret = (struct vg_card_source){.n = n->n,
                                   .state = n,
                                   .facts = facts,
                                   .sample = sample,
                                   .event = event,
                                   .close = nvml_close};
    return 0;
}
