/* NVIDIA's library, by one that has no card: every value, and what becomes of those that it lacks.
 */
#include "gpu/card.h"
#include "gpu/near.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

typedef void set_fn(unsigned card, const char *what, unsigned long long v);

static struct vg_card_source src;
static set_fn *set;

static void open_library(const char *path) {
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_nvml_open(path, &src, &err), 0, "%s", err.msg);
    void *lib = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    cr_assert(lib);
    *(void **)&set = dlsym(lib, "fake_nvml_set");
    cr_assert(set);
}

static void close_library(void) {
    src.close(src.state);
}

Test(nvml, facts_of_every_card) {
    struct vg_card_facts f;
    open_library(FAKE_NVML);
    cr_assert_eq(src.n, 2u);
    set(1, "mig", 1);
    cr_assert_eq(src.facts(src.state, 1, &f), 0);
    cr_assert_eq(f.vendor, VG_CARD_NVIDIA);
    cr_assert_str_eq(f.name, "NVIDIA H200 NVL");
    cr_assert_str_eq(f.uuid, "GPU-bbbb");
    cr_assert_str_eq(f.bus, "00000000:4B:00.0");
    cr_assert_str_eq(f.driver, "580.159.04");
    cr_assert_eq(f.minor, 0);
    cr_assert_eq(f.mem_bytes, 141ULL << 30, "the newer form is asked first");
    cr_assert_eq(f.power_limit_mw, 700000u);
    cr_assert_eq(f.pcie_gen, VG_NONE, "this library does not tell it");
    cr_assert_eq(f.linked, 1u);
    cr_assert(f.mig);
    cr_assert_eq(f.n_migs, 2u);
    cr_assert_str_eq(f.mig_uuid[1], "MIG-b1");
    close_library();
}

static const char *nearness(uint32_t of, uint32_t to) {
    static char name[8];
    struct vg_card_facts f;
    cr_assert_eq(src.facts(src.state, of, &f), 0);
    cr_assert_eq(f.near[of], 0, "of itself nothing is said");
    return vg_near_name(f.near[to], name);
}

Test(nvml, how_near_the_other_card_is) {
    struct vg_card_facts f;
    open_library(FAKE_NVML);
    set(0, "level", 50);
    cr_assert_str_eq(nearness(0, 1), "NV1", "it says that there is a link, and counts none");
    set(0, "links", 18);
    cr_assert_str_eq(nearness(0, 1), "NV18", "by a switch");
    set(0, "direct", 4);
    cr_assert_str_eq(nearness(0, 1), "NV4", "those that lead there");
    cr_assert_eq(src.facts(src.state, 0, &f), 0);
    cr_assert_eq(vg_near_level(f.near[1]), VG_NEAR_SYSTEM);
    set(1, "level", 10);
    cr_assert_eq(src.facts(src.state, 1, &f), 0);
    cr_assert_eq(vg_near_level(f.near[0]), VG_NEAR_SWITCH);
    set(1, "level", 70); /* nothing that we know */
    cr_assert_eq(src.facts(src.state, 1, &f), 0);
    cr_assert_eq(vg_near_level(f.near[0]), VG_NEAR_UNKNOWN);
    close_library();
}

Test(nvml, the_parts_of_a_card_are_cards) {
    struct vg_card_facts f;
    struct vg_card_sample s;
    struct vg_card_event e;
    void *lib = dlopen(FAKE_NVML, RTLD_NOW); /* it is cut before it is opened */
    *(void **)&set = dlsym(lib, "fake_nvml_set");
    set(1, "mig", 1);
    open_library(FAKE_NVML);
    cr_assert_eq(src.n, 3u, "a whole one and two parts");
    cr_assert_eq(src.facts(src.state, 0, &f), 0);
    cr_assert_eq(f.part, 0u);
    cr_assert_not(f.mig);
    for (uint32_t i = 1; i < 3; i++) {
        cr_assert_eq(src.facts(src.state, i, &f), 0);
        cr_assert_eq(f.part, VG_PART(i == 1 ? 7 : 10, 0));
        cr_assert_str_eq(f.uuid, i == 1 ? "MIG-b0" : "MIG-b1");
        cr_assert_str_eq(f.name, "NVIDIA H200 MIG 1g.18gb");
        cr_assert_eq(f.minor, 0, "the card's");
        cr_assert_str_eq(f.bus, "00000000:4B:00.0");
        cr_assert_eq(f.mem_bytes, 16ULL << 30);
        cr_assert_eq(f.linked, 0u);
        cr_assert(f.mig);
    }
    cr_assert_eq(src.sample(src.state, 1, VG_ASK_SLOW | VG_ASK_COUNTERS | VG_ASK_USES, &s), 0);
    cr_assert_eq(s.mem_used_bytes, 1ULL << 30);
    cr_assert_eq(s.sm_percent, VG_NONE, "nobody tells it of a part");
    cr_assert_eq(s.energy_mj, VG_NONE64);
    cr_assert_not(s.lost);
    set(1, "xid", 79);
    for (uint32_t i = 1; i < 3; i++) {
        cr_assert_eq(src.event(src.state, &e), 1, "what befalls the card befalls its parts");
        cr_assert_eq(e.index, i);
        cr_assert_eq(e.xid, 79u);
    }
    cr_assert_eq(src.event(src.state, &e), 0);
    close_library();
}

Test(nvml, samples_fast_and_full) {
    struct vg_card_sample s;
    open_library(FAKE_NVML);
    set(0, "sm", 250); /* nonsense is cut to what can be */
    set(0, "mem_busy", 7);
    set(0, "used", 5ULL << 30);
    set(0, "energy", 123456);
    set(0, "power", 321000);
    set(0, "procs", 3);
    cr_assert_eq(src.sample(src.state, 0, 0, &s), 0);
    cr_assert_eq(s.sm_percent, 100u);
    cr_assert_eq(s.mem_percent, 7u);
    cr_assert_eq(s.mem_used_bytes, 5ULL << 30);
    cr_assert_eq(s.power_mw, 321000u);
    cr_assert_eq(s.temp_c, VG_NONE);
    cr_assert_eq(s.n_procs, 0u);
    cr_assert_eq(src.sample(src.state, 0, VG_ASK_SLOW, &s), 0);
    cr_assert_eq(s.temp_c, 40u);
    cr_assert_eq(s.sm_mhz, 1980u);
    cr_assert_eq(s.mem_mhz, 3201u);
    cr_assert_eq(s.ecc_corrected, 3u);
    cr_assert_eq(s.ecc_uncorrected, 0u);
    cr_assert_eq(s.n_procs, 3u);
    cr_assert_eq(s.proc[1].sm_percent, VG_NONE, "dear, and not asked for");
    cr_assert_eq(src.sample(src.state, 0, VG_ASK_SLOW | VG_ASK_USES | VG_ASK_COUNTERS, &s), 0);
    cr_assert_eq(s.energy_mj, 123456u);
    cr_assert_eq(s.n_procs, 3u);
    cr_assert_eq(s.proc[0].pid, 102u, "the largest first");
    cr_assert_eq(s.proc[1].sm_percent, 77u);
    cr_assert_eq(s.proc[2].sm_percent, VG_NONE);
    close_library();
}

Test(nvml, who_computes_for_moments_does_not_rest) {
    struct vg_card_sample s;
    open_library(FAKE_NVML);
    set(0, "burst", 5);
    set(0, "clock", 2000000);
    cr_assert_eq(src.sample(src.state, 0, VG_ASK_SLOW, &s), 0);
    cr_assert_eq(s.sm_percent, 0u, "what was before the first look is nobody's");
    set(0, "clock", 7000000);
    cr_assert_eq(src.sample(src.state, 0, 0, &s), 0);
    cr_assert_eq(s.sm_percent, 0u, "dear, and not asked for");
    cr_assert_eq(src.sample(src.state, 0, VG_ASK_SLOW, &s), 0);
    cr_assert_eq(s.sm_percent, 1u, "a fifth of five");
    cr_assert_eq(src.sample(src.state, 0, VG_ASK_SLOW, &s), 0);
    cr_assert_eq(s.sm_percent, 0u, "the same is not told twice");
    set(0, "burst", 0);
    set(0, "clock", 12000000);
    cr_assert_eq(src.sample(src.state, 0, VG_ASK_SLOW, &s), 0);
    cr_assert_eq(s.sm_percent, 0u);
    close_library();
}

Test(nvml, what_each_process_does_is_told_without_the_rest) {
    struct vg_card_sample s;
    open_library(FAKE_NVML);
    set(0, "procs", 3);
    cr_assert_eq(src.sample(src.state, 0, VG_ASK_USES, &s), 0);
    cr_assert(s.uses && !s.full);
    cr_assert_eq(s.temp_c, VG_NONE);
    cr_assert_eq(s.n_procs, 1u);
    cr_assert_eq(s.proc[0].pid, 101u);
    cr_assert_eq(s.proc[0].sm_percent, 77u);
    cr_assert_eq(s.proc[0].mem_bytes, VG_NONE64);
    cr_assert_eq(src.sample(src.state, 0, VG_ASK_USES, &s), 0);
    cr_assert_eq(s.n_procs, 0u, "the same is not told twice");
    close_library();
}

Test(nvml, the_energy_counter_is_asked_only_where_it_is_wanted) {
    struct vg_card_sample s;
    open_library(FAKE_NVML);
    set(0, "energy", 1000);
    cr_assert_eq(src.sample(src.state, 0, VG_ASK_SLOW | VG_ASK_USES, &s), 0);
    cr_assert(!s.counted && s.energy_mj == VG_NONE64);
    cr_assert_eq(src.sample(src.state, 0, VG_ASK_COUNTERS, &s), 0);
    cr_assert(s.counted && s.energy_mj == 1000);
    close_library();
}

/* Rates between samples, in MiB/s, are added up to bytes; what is not told for once is told later.
 */
Test(nvml, bytes_over_the_bus_are_rates_times_time) {
    struct vg_card_sample a, b;
    open_library(FAKE_NVML);
    set(0, "rx", 1000);
    set(0, "tx", 10);
    cr_assert_eq(src.sample(src.state, 0, 0, &a), 0);
    cr_assert_eq(a.pcie_rx_bytes, VG_NONE64, "not asked for");
    cr_assert_eq(src.sample(src.state, 0, VG_ASK_COUNTERS, &a), 0);
    cr_assert_eq(a.pcie_rx_bytes, 0u, "it begins");
    usleep(2000);
    cr_assert_eq(src.sample(src.state, 0, VG_ASK_COUNTERS, &b), 0);
    double sec = (double)(b.at_usec - a.at_usec) / 1e6;
    cr_assert_float_eq((double)b.pcie_rx_bytes, 1000 * 1048576.0 * sec, 2);
    cr_assert_float_eq((double)b.pcie_tx_bytes, 10 * 1048576.0 * sec, 2);
    set(0, "rx", 999);
    a = b;
    usleep(2000);
    cr_assert_eq(src.sample(src.state, 0, VG_ASK_COUNTERS, &b), 0);
    cr_assert_eq(b.pcie_rx_bytes, a.pcie_rx_bytes, "nonsense is not added");
    set(0, "rx", 2000);
    usleep(2000);
    cr_assert_eq(src.sample(src.state, 0, VG_ASK_COUNTERS, &b), 0);
    sec = (double)(b.at_usec - a.at_usec) / 1e6;
    cr_assert_float_eq((double)(b.pcie_rx_bytes - a.pcie_rx_bytes), 2000 * 1048576.0 * sec, 2);
    set(1, "no_gpm", 1);
    cr_assert_eq(src.sample(src.state, 1, VG_ASK_COUNTERS, &b), 0);
    cr_assert_eq(b.pcie_rx_bytes, VG_NONE64, "a card that has no such thing");
    int (*open)(void);
    *(void **)&open = dlsym(dlopen(FAKE_NVML, RTLD_NOW | RTLD_NOLOAD), "fake_nvml_samples_open");
    cr_assert_eq(open(), 2);
    close_library();
    cr_assert_eq(open(), 0, "given back");
}

Test(nvml, more_processes_than_room_keep_the_largest) {
    struct vg_card_sample s;
    open_library(FAKE_NVML);
    set(0, "procs", 100);
    cr_assert_eq(src.sample(src.state, 0, VG_ASK_SLOW, &s), 0);
    cr_assert_eq(s.n_procs, VG_CARD_PROCS_MAX);
    cr_assert_eq(s.proc[0].pid, 199u);
    cr_assert_eq(s.proc[VG_CARD_PROCS_MAX - 1].pid, 199u - VG_CARD_PROCS_MAX + 1);
    set(0, "procs", 1000); /* more than are asked for: none is told, and nothing breaks */
    cr_assert_eq(src.sample(src.state, 0, VG_ASK_SLOW, &s), 0);
    cr_assert_eq(s.n_procs, 0u);
    close_library();
}

Test(nvml, a_card_that_is_gone_is_not_asked_further) {
    struct vg_card_sample s;
    open_library(FAKE_NVML);
    set(1, "lost", 1);
    cr_assert_eq(src.sample(src.state, 1, VG_ASK_SLOW, &s), 0);
    cr_assert(s.lost);
    cr_assert_eq(s.power_mw, VG_NONE);
    cr_assert_eq(src.sample(src.state, 0, VG_ASK_SLOW, &s), 0);
    cr_assert_not(s.lost);
    close_library();
}

Test(nvml, events_come_once) {
    struct vg_card_event e;
    open_library(FAKE_NVML);
    cr_assert_eq(src.event(src.state, &e), 0);
    set(1, "xid", 79);
    cr_assert_eq(src.event(src.state, &e), 1);
    cr_assert_eq(e.index, 1u);
    cr_assert_eq(e.xid, 79u);
    cr_assert_eq(src.event(src.state, &e), 0);
    close_library();
}

Test(nvml, an_old_library_tells_what_it_has) {
    struct vg_card_facts f;
    struct vg_card_sample s;
    struct vg_card_event e;
    open_library(FAKE_NVML_OLD);
    set(0, "used", 1ULL << 30);
    cr_assert_eq(src.facts(src.state, 0, &f), 0);
    cr_assert_eq(f.mem_bytes, 80ULL << 30);
    cr_assert_str_eq(f.name, "");
    cr_assert_eq(f.minor, -1);
    cr_assert_eq(f.linked, 0u);
    cr_assert_eq(f.near[1], 0);
    cr_assert_eq(src.sample(src.state, 0, VG_ASK_SLOW, &s), 0);
    cr_assert_eq(s.mem_used_bytes, 1ULL << 30);
    cr_assert_eq(s.sm_percent, VG_NONE);
    cr_assert_eq(s.energy_mj, VG_NONE64);
    cr_assert_eq(s.temp_c, VG_NONE);
    cr_assert_not(s.lost);
    cr_assert_eq(src.event(src.state, &e), 0);
    close_library();
}

Test(nvml, no_library_is_a_sentence) {
    struct vg_err err = VG_ERR_INIT;
    cr_assert_lt(vg_nvml_open("/nothing/libnvidia-ml.so.1", &src, &err), 0);
    cr_assert(strstr(err.msg, "NVIDIA's library"), "%s", err.msg);
    cr_assert_lt(vg_nvml_open("libc.so.6", &src, &err), 0);
    cr_assert(strstr(err.msg, "lacks"), "%s", err.msg);
}
