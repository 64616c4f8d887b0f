/* A libnvidia-ml.so.1 without a card: two of them, whose numbers a test sets. With OLD defined it
   is a library of long ago, which has only what counts cards and tells memory. Strict: a handle
   that was not given out, or a size that is wrong, aborts. */
#include <stdlib.h>
#include <string.h>

#define CARDS 2u
#define API __attribute__((visibility("default")))

enum { OK = 0, NOT_SUPPORTED = 3, TOO_SMALL = 7, TIMEOUT = 10, LOST = 15 };

struct card {
    unsigned long long sm, mem_busy, used, energy, power, ecc, lost, xid, mig, procs, level, links,
        direct; /* links: so many are up, of which `direct` lead to the other card */
    unsigned long long no_gpm, rx, tx; /* MiB/s */
    unsigned long long clock, burst;   /* microseconds; percent */
};
static struct card cards[CARDS];

/* The test's hand. */
API void fake_nvml_set(unsigned card, const char *what, unsigned long long v);
void fake_nvml_set(unsigned card, const char *what, unsigned long long v) {
    struct card *c = &cards[card];
    struct {
        const char *name;
        unsigned long long *at;
    } all[] = {{"sm", &c->sm},         {"mem_busy", &c->mem_busy}, {"used", &c->used},
               {"energy", &c->energy}, {"power", &c->power},       {"ecc", &c->ecc},
               {"lost", &c->lost},     {"xid", &c->xid},           {"mig", &c->mig},
               {"procs", &c->procs},   {"level", &c->level},       {"links", &c->links},
               {"direct", &c->direct}, {"no_gpm", &c->no_gpm},     {"rx", &c->rx},
               {"tx", &c->tx},         {"clock", &c->clock},       {"burst", &c->burst}};
    for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (!strcmp(all[i].name, what)) {
            *all[i].at = v;
            return;
        }
    abort();
}

static unsigned index_of(const void *h) {
    const struct card *c = h;
    if (c < cards || c >= cards + CARDS)
        abort();
    return (unsigned)(c - cards);
}

#ifndef OLD
/* Two parts of each card, for when it is cut. Few questions are answered of them, as in life. */
#define PARTS 2u
static char parts[CARDS][PARTS];

static int part_of(const void *h, unsigned *card) {
    const char *p = h;
    if (p < parts[0] || p >= parts[0] + sizeof(parts))
        return -1;
    *card = (unsigned)(p - parts[0]) / PARTS;
    return (int)((unsigned)(p - parts[0]) % PARTS);
}
static int is_part(const void *h) {
    unsigned card;
    return part_of(h, &card) >= 0;
}
#endif

struct memory {
    unsigned long long total, free, used;
};

API int nvmlInit_v2(void);
API int nvmlShutdown(void);
API int nvmlDeviceGetCount_v2(unsigned *n);
API int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h);
API int nvmlDeviceGetMemoryInfo(void *h, struct memory *m);

int nvmlInit_v2(void) {
    return OK;
}
int nvmlShutdown(void) {
    return OK;
}
int nvmlDeviceGetCount_v2(unsigned *n) {
    *n = CARDS;
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) {
    if (i >= CARDS)
        abort();
    *h = &cards[i];
    return OK;
}
int nvmlDeviceGetMemoryInfo(void *h, struct memory *m) {
    const struct card *c = &cards[index_of(h)];
    *m = (struct memory){80ULL << 30, (80ULL << 30) - c->used, c->used};
    return OK;
}

#ifndef OLD
static int put(char *out, unsigned n, const char *text) {
    if (strlen(text) >= n)
        return TOO_SMALL;
    memcpy(out, text, strlen(text) + 1);
    return OK;
}

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};
struct utilization {
    unsigned gpu, memory;
};
struct value_sample {
    unsigned long long stamp;
    unsigned long long value;
};
struct process {
    unsigned pid;
    unsigned long long mem;
    unsigned gi, ci;
};
struct process_use {
    unsigned pid;
    unsigned long long stamp;
    unsigned sm, mem, enc, dec;
};
struct event {
    void *device;
    unsigned long long type, data;
    unsigned gi, ci;
};

API int nvmlSystemGetDriverVersion(char *out, unsigned n);
API int nvmlDeviceGetName(void *h, char *out, unsigned n);
API int nvmlDeviceGetUUID(void *h, char *out, unsigned n);
API int nvmlDeviceGetMinorNumber(void *h, unsigned *v);
API int nvmlDeviceGetPciInfo_v3(void *h, struct pci *p);
API int nvmlDeviceGetMemoryInfo_v2(void *h, struct memory_v2 *m);
API int nvmlDeviceGetUtilizationRates(void *h, struct utilization *u);
API int nvmlDeviceGetPowerUsage(void *h, unsigned *v);
API int nvmlDeviceGetEnforcedPowerLimit(void *h, unsigned *v);
API int nvmlDeviceGetTotalEnergyConsumption(void *h, unsigned long long *v);
API int nvmlDeviceGetTemperature(void *h, int which, unsigned *v);
API int nvmlDeviceGetClockInfo(void *h, int which, unsigned *v);
API int nvmlDeviceGetTotalEccErrors(void *h, int kind, int counter, unsigned long long *v);
API int nvmlDeviceGetP2PStatus(void *a, void *b, int cap, int *status);
API int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, int *level);
API int nvmlDeviceGetNvLinkState(void *h, unsigned link, unsigned *active);
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *h, unsigned link, struct pci *p);
API int nvmlDeviceGetMigMode(void *h, unsigned *now, unsigned *then);
API int nvmlDeviceGetMaxMigDeviceCount(void *h, unsigned *n);
API int nvmlDeviceGetGpuInstanceId(void *h, unsigned *id);
API int nvmlDeviceGetComputeInstanceId(void *h, unsigned *id);
API int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned i, void **part);
API int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, struct process *p);
API int nvmlDeviceGetProcessUtilization(void *h, struct process_use *u, unsigned *n,
                                        unsigned long long since);
API int nvmlDeviceGetSamples(void *h, int which, unsigned long long since, int *type, unsigned *n,
                             struct value_sample *list);
API int nvmlEventSetCreate(void **set);
API int nvmlDeviceRegisterEvents(void *h, unsigned long long types, void *set);
API int nvmlEventSetWait_v2(void *set, struct event *e, unsigned ms);
API int nvmlEventSetFree(void *set);

int nvmlSystemGetDriverVersion(char *out, unsigned n) {
    return put(out, n, "580.159.04");
}
int nvmlDeviceGetName(void *h, char *out, unsigned n) {
    if (is_part(h))
        return put(out, n, "NVIDIA H200 MIG 1g.18gb");
    return put(out, n, index_of(h) ? "NVIDIA H200 NVL" : "NVIDIA H200");
}
int nvmlDeviceGetUUID(void *h, char *out, unsigned n) {
    unsigned card = 0;
    int part = part_of(h, &card);
    if (part >= 0)
        return put(out, n, card ? part ? "MIG-b1" : "MIG-b0" : part ? "MIG-a1" : "MIG-a0");
    return put(out, n, index_of(h) ? "GPU-bbbb" : "GPU-aaaa");
}
int nvmlDeviceGetMinorNumber(void *h, unsigned *v) {
    if (is_part(h))
        return NOT_SUPPORTED;
    *v = 1 - index_of(h); /* not as they are counted */
    return OK;
}
int nvmlDeviceGetPciInfo_v3(void *h, struct pci *p) {
    if (is_part(h))
        return NOT_SUPPORTED;
    memset(p, 0, sizeof(*p));
    p->bus = index_of(h) ? 0x4b : 0x1a;
    return put(p->bus_id, sizeof(p->bus_id), index_of(h) ? "00000000:4B:00.0" : "00000000:1A:00.0");
}
int nvmlDeviceGetMemoryInfo_v2(void *h, struct memory_v2 *m) {
    if (m->version != (sizeof(*m) | 2u << 24))
        abort();
    if (is_part(h)) {
        m->total = 16ULL << 30;
        m->used = 1ULL << 30;
        return OK;
    }
    m->total = 141ULL << 30;
    m->used = cards[index_of(h)].used;
    return OK;
}
int nvmlDeviceGetUtilizationRates(void *h, struct utilization *u) {
    if (is_part(h))
        return NOT_SUPPORTED;
    const struct card *c = &cards[index_of(h)];
    *u = (struct utilization){(unsigned)c->sm, (unsigned)c->mem_busy};
    return c->lost ? LOST : OK;
}
/* What was busy five times a second before now, which is "clock": one burst in each five. */
int nvmlDeviceGetSamples(void *h, int which, unsigned long long since, int *type, unsigned *n,
                         struct value_sample *list) {
    if (is_part(h) || which != 1)
        return NOT_SUPPORTED;
    const struct card *c = &cards[index_of(h)];
    unsigned put = 0;
    for (unsigned long long k = 1; k * 200000 <= (unsigned long long)c->clock; k++)
        if (k * 200000 > since) {
            if (put == *n)
                return TOO_SMALL;
            list[put++] = (struct value_sample){k * 200000,
                                                0xdeadULL << 32 | (k % 5 ? 0 : (unsigned)c->burst)};
        }
    *type = 1;
    *n = put;
    return put ? OK : 6; /* nothing is found */
}
int nvmlDeviceGetPowerUsage(void *h, unsigned *v) {
    if (is_part(h))
        return NOT_SUPPORTED;
    *v = (unsigned)cards[index_of(h)].power;
    return OK;
}
int nvmlDeviceGetEnforcedPowerLimit(void *h, unsigned *v) {
    if (is_part(h))
        return NOT_SUPPORTED;
    (void)h;
    *v = 700000;
    return OK;
}
int nvmlDeviceGetTotalEnergyConsumption(void *h, unsigned long long *v) {
    if (is_part(h))
        return NOT_SUPPORTED;
    *v = cards[index_of(h)].energy;
    return OK;
}
int nvmlDeviceGetTemperature(void *h, int which, unsigned *v) {
    if (is_part(h))
        return NOT_SUPPORTED;
    *v = 40 + index_of(h);
    return which ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetClockInfo(void *h, int which, unsigned *v) {
    if (is_part(h))
        return NOT_SUPPORTED;
    index_of(h);
    *v = which == 1 ? 1980 : 3201;
    return which == 1 || which == 2 ? OK : NOT_SUPPORTED;
}
int nvmlDeviceGetTotalEccErrors(void *h, int kind, int counter, unsigned long long *v) {
    if (is_part(h))
        return NOT_SUPPORTED;
    *v = kind == 1 ? cards[index_of(h)].ecc : 3;
    return counter ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetP2PStatus(void *a, void *b, int cap, int *status) {
    if (is_part(a) || is_part(b))
        return NOT_SUPPORTED;
    if (index_of(a) == index_of(b) || cap != 2)
        abort();
    *status = 0;
    return OK;
}
int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, int *level) {
    if (is_part(a) || is_part(b))
        return NOT_SUPPORTED;
    if (index_of(a) == index_of(b))
        abort();
    *level = (int)cards[index_of(a)].level;
    return *level == 99 ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetNvLinkState(void *h, unsigned link, unsigned *active) {
    if (link >= 18)
        abort();
    *active = link < cards[index_of(h)].links;
    return OK;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *h, unsigned link, struct pci *p) {
    const struct card *c = &cards[index_of(h)];
    if (link >= c->links)
        abort();
    memset(p, 0, sizeof(*p));
    if (link < c->direct)
        return nvmlDeviceGetPciInfo_v3(&cards[1 - index_of(h)], p);
    p->bus = 0xc0 + link; /* a switch */
    return OK;
}
int nvmlDeviceGetMigMode(void *h, unsigned *now, unsigned *then) {
    *now = *then = (unsigned)cards[index_of(h)].mig;
    return OK;
}
int nvmlDeviceGetGpuInstanceId(void *h, unsigned *id) {
    unsigned card = 0;
    int part = part_of(h, &card);
    if (part < 0)
        abort();
    *id = (unsigned)part * 3 + 7;
    return OK;
}
int nvmlDeviceGetComputeInstanceId(void *h, unsigned *id) {
    if (!is_part(h))
        abort();
    *id = 0;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(void *h, unsigned *n) {
    index_of(h);
    *n = 7;
    return OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned i, void **part) {
    *part = &parts[index_of(h)][i / 3 % PARTS]; /* places 0 and 3 are taken */
    return i == 0 || i == 3 ? OK : 6;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, struct process *p) {
    if (is_part(h))
        return NOT_SUPPORTED;
    unsigned count = (unsigned)cards[index_of(h)].procs;
    if (*n < count)
        return TOO_SMALL;
    *n = count;
    for (unsigned i = 0; i < count; i++)
        p[i] = (struct process){100 + i, (i + 1ULL) << 20, ~0u, ~0u};
    return OK;
}
int nvmlDeviceGetProcessUtilization(void *h, struct process_use *u, unsigned *n,
                                    unsigned long long since) {
    if (is_part(h))
        return NOT_SUPPORTED;
    index_of(h);
    if (since >= 5000 || *n < 1)
        return 6; /* nothing newer */
    *n = 1;
    u[0] = (struct process_use){.pid = 101, .stamp = 5000, .sm = 77};
    return OK;
}
/* A sample is its card and when it was taken; rates are what the test says, from then on. */
struct gpm_sample {
    const struct card *card;
    unsigned long long taken;
};
struct gpm_support {
    unsigned version, supported;
};
struct gpm_metric {
    unsigned id;
    int result;
    double value;
    char *names[3];
};
struct gpm_get {
    unsigned version, n;
    struct gpm_sample *from, *to;
    struct gpm_metric metric[];
};
static unsigned long long samples_taken;
static int samples_open;

API int fake_nvml_samples_open(void);
API int nvmlGpmQueryDeviceSupport(void *h, struct gpm_support *s);
API int nvmlGpmSampleAlloc(struct gpm_sample **s);
API int nvmlGpmSampleFree(struct gpm_sample *s);
API int nvmlGpmSampleGet(void *h, struct gpm_sample *s);
API int nvmlGpmMetricsGet(struct gpm_get *g);

int fake_nvml_samples_open(void) {
    return samples_open;
}
int nvmlGpmQueryDeviceSupport(void *h, struct gpm_support *s) {
    if (is_part(h))
        return NOT_SUPPORTED;
    if (s->version != 1)
        abort();
    s->supported = !cards[index_of(h)].no_gpm;
    return OK;
}
int nvmlGpmSampleAlloc(struct gpm_sample **s) {
    *s = calloc(1, sizeof(**s));
    samples_open++;
    return *s ? OK : NOT_SUPPORTED;
}
int nvmlGpmSampleFree(struct gpm_sample *s) {
    samples_open--;
    free(s);
    return OK;
}
int nvmlGpmSampleGet(void *h, struct gpm_sample *s) {
    *s = (struct gpm_sample){&cards[index_of(h)], ++samples_taken};
    return OK;
}
int nvmlGpmMetricsGet(struct gpm_get *g) {
    if (g->version != 1 || g->from->card != g->to->card || g->from->taken >= g->to->taken)
        abort();
    for (unsigned i = 0; i < g->n; i++) {
        if (g->metric[i].id != 20 && g->metric[i].id != 21)
            abort();
        unsigned long long v = g->metric[i].id == 21 ? g->from->card->rx : g->from->card->tx;
        g->metric[i].value = v == 999 ? -1.0 : (double)v; /* 999: nonsense */
        g->metric[i].result = OK;
    }
    return OK;
}
int nvmlEventSetCreate(void **set) {
    *set = cards;
    return OK;
}
int nvmlDeviceRegisterEvents(void *h, unsigned long long types, void *set) {
    index_of(h);
    return types == 8 && set == cards ? OK : NOT_SUPPORTED;
}
int nvmlEventSetWait_v2(void *set, struct event *e, unsigned ms) {
    if (set != cards || ms != 0) /* whoever looks must not wait */
        abort();
    for (unsigned i = 0; i < CARDS; i++)
        if (cards[i].xid) {
            *e = (struct event){.device = &cards[i], .type = 8, .data = cards[i].xid};
            cards[i].xid = 0;
            return OK;
        }
    return TIMEOUT;
}
int nvmlEventSetFree(void *set) {
    return set == cards ? OK : NOT_SUPPORTED;
}
#endif
