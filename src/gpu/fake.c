/* Cards that are not there. Energy is the integral of the power that was told; see card.h. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "gpu/card.h"
#include "gpu/near.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define IDLE_MW 60000u
#define MEM_BYTES (80ULL << 30)

struct fake_card {
    uint64_t energy_uj; /* so far */
    uint64_t at_usec;
    uint32_t power_mw;
    uint32_t xid; /* the last that was told */
};

struct fake {
    char *dir; /* owned */
    uint32_t n;
    struct fake_card *card; /* owned */
};

struct script {
    uint64_t sm, mem, power, xid, lost, ecc, hang, rx, tx;
    uint64_t numa, bridge, island, mig; /* facts: read once */
    uint32_t n_procs;
    struct vg_card_proc proc[VG_CARD_PROCS_MAX];
};

/* "proc PID SM BYTES" */
static bool read_proc(const char *line, struct script *s) {
    struct vg_card_proc p;
    if (sscanf(line, "proc %" SCNu32 " %" SCNu32 " %" SCNu64, &p.pid, &p.sm_percent,
               &p.mem_bytes) != 3)
        return false;
    if (s->n_procs < VG_CARD_PROCS_MAX)
        s->proc[s->n_procs++] = p;
    return true;
}

static void read_script(const struct fake *f, uint32_t i, struct script *s) {
    static const struct {
        const char *word;
        size_t at;
    } words[] = {
        {"sm", offsetof(struct script, sm)},         {"mem", offsetof(struct script, mem)},
        {"power", offsetof(struct script, power)},   {"xid", offsetof(struct script, xid)},
        {"lost", offsetof(struct script, lost)},     {"ecc", offsetof(struct script, ecc)},
        {"hang", offsetof(struct script, hang)},     {"rx", offsetof(struct script, rx)},
        {"tx", offsetof(struct script, tx)},         {"numa", offsetof(struct script, numa)},
        {"switch", offsetof(struct script, bridge)}, {"island", offsetof(struct script, island)},
        {"mig", offsetof(struct script, mig)}};
    char path[4096];
    vg_auto_free char *text = NULL;
    size_t len;
    *s = (struct script){.power = IDLE_MW, .numa = VG_NONE64};
    snprintf(path, sizeof(path), "%.4000s/%u", f->dir, i);
    if (vg_read_file(path, 4096, &text, &len) < 0)
        return;
    for (char *next = text, *line; (line = strsep(&next, "\n"));) {
        char *value = strchr(line, ' ');
        uint64_t v;
        if (read_proc(line, s) || !value || vg_parse_u64(value + 1, &v) < 0)
            continue;
        *value = 0;
        for (size_t k = 0; k < VG_COUNT(words); k++)
            if (!strcmp(words[k].word, line))
                memcpy((char *)s + words[k].at, &v, sizeof(v));
    }
}

/* Where two cards are, by their files. */
static uint32_t near(const struct script *a, const struct script *b) {
    enum vg_near_level level = VG_NEAR_UNKNOWN;
    if (a->bridge && a->bridge == b->bridge)
        level = VG_NEAR_SWITCH;
    else if (a->numa != VG_NONE64 && b->numa != VG_NONE64)
        level = a->numa == b->numa ? VG_NEAR_NODE : VG_NEAR_SYSTEM;
    return vg_near_make(a->island && a->island == b->island, level);
}

static void lay_out(const struct fake *f, uint32_t i, struct vg_card_facts *ret) {
    struct script own, other;
    read_script(f, i, &own);
    ret->numa = own.numa < 4096 ? (int32_t)own.numa : -1;
    ret->mig = own.mig != 0;
    for (uint32_t k = 0; k < f->n && k < VG_CARDS_MAX; k++) {
        read_script(f, k, &other);
        if (k == i)
            continue;
        ret->near[k] = (uint8_t)near(&own, &other);
        ret->linked |= (uint64_t)(vg_near_links(ret->near[k]) != 0) << k;
    }
}

static int facts(void *state, uint32_t i, struct vg_card_facts *ret) {
    *ret = (struct vg_card_facts){.vendor = VG_CARD_FAKE,
                                  .index = i,
                                  .minor = -1,
                                  .numa = -1,
                                  .mem_bytes = MEM_BYTES,
                                  .power_limit_mw = 700000,
                                  .pcie_gen = VG_NONE,
                                  .pcie_width = VG_NONE};
    snprintf(ret->name, sizeof(ret->name), "Simulated GPU");
    vg_card_fake_uuid(i, ret->uuid, sizeof(ret->uuid));
    lay_out(state, i, ret);
    return 0;
}

static int sample(void *state, uint32_t i, unsigned ask, struct vg_card_sample *ret) {
    struct fake *f = state;
    struct fake_card *c = &f->card[i];
    struct script s;
    read_script(f, i, &s);
    while (s.hang) { /* as a driver does that does not answer */
        pause();
    }
    vg_card_sample_init(ret, i);
    c->energy_uj += (ret->at_usec - c->at_usec) * c->power_mw / 1000;
    c->at_usec = ret->at_usec;
    c->power_mw = (uint32_t)VG_MIN(s.power, 10000000u);
    ret->lost = s.lost != 0;
    if (ret->lost)
        return 0;
    ret->sm_percent = (uint32_t)VG_MIN(s.sm, 100u);
    ret->mem_percent = ret->sm_percent / 2;
    ret->mem_used_bytes = VG_MIN(s.mem, MEM_BYTES);
    ret->power_mw = c->power_mw;
    ret->counted = ask & VG_ASK_COUNTERS;
    if (ret->counted) {
        ret->energy_mj = c->energy_uj / 1000;
        ret->pcie_rx_bytes = s.rx;
        ret->pcie_tx_bytes = s.tx;
    }
    ret->full = ask & VG_ASK_SLOW;
    ret->uses = ask & VG_ASK_USES;
    if (ret->full || ret->uses) {
        ret->n_procs = s.n_procs;
        memcpy(ret->proc, s.proc, sizeof(s.proc));
    }
    if (ret->full) {
        ret->temp_c = 30 + ret->sm_percent / 2;
        ret->sm_mhz = ret->sm_percent ? 1980 : 345;
        ret->mem_mhz = 2619;
        ret->ecc_corrected = 0;
        ret->ecc_uncorrected = s.ecc;
    }
    return 0;
}

static int event(void *state, struct vg_card_event *ret) {
    struct fake *f = state;
    for (uint32_t i = 0; i < f->n; i++) {
        struct script s;
        read_script(f, i, &s);
        if (s.xid == f->card[i].xid)
            continue;
        f->card[i].xid = (uint32_t)s.xid;
        *ret = (struct vg_card_event){.index = i, .xid = (uint32_t)s.xid};
        return s.xid != 0;
    }
    return 0;
}

static void fake_close(void *state) {
    struct fake *f = state;
    free(f->card);
    free(f->dir);
    free(f);
}

int vg_fake_open(uint32_t n, const char *dir, struct vg_card_source *ret, struct vg_err *err) {
    struct fake *f = vg_alloc(sizeof(*f));
    if (f) {
        f->n = n;
        f->dir = vg_strdup(dir);
        f->card = vg_alloc((n + 1) * sizeof(*f->card));
    }
    if (!f || !f->dir || !f->card) {
        if (f)
            fake_close(f);
        return vg_err_sys(err, -ENOMEM, "cannot simulate GPUs");
    }
    for (uint32_t i = 0; i < n; i++)
        f->card[i] = (struct fake_card){.at_usec = vg_now_usec(), .power_mw = IDLE_MW};
    *ret = (struct vg_card_source){
        .n = n, .state = f, .facts = facts, .sample = sample, .event = event, .close = fake_close};
    return 0;
}
