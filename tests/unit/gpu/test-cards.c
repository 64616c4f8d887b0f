/* Health, use, and the packets of the process that looks: all pure. */
#include "base/util.h"
#include "gpu/gpu-use.h"
#include "gpu/health.h"
#include "gpu/watch.h"

#include <criterion/criterion.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ------------------------------------------------------------------ health */

static struct vg_card_sample sample(uint64_t at_usec) {
    struct vg_card_sample s;
    vg_card_sample_init(&s, 0);
    s.at_usec = at_usec;
    return s;
}

Test(health, a_programs_own_mistake_is_not_the_cards) {
    struct vg_health h;
    vg_health_init(&h);
    cr_assert_eq(vg_health_event(&h, &(struct vg_card_event){.xid = 31}), 0);
    cr_assert_eq(h.fault[0], 0);
    cr_assert_eq(h.xid, 31u, "but it is remembered");
}

Test(health, a_fault_is_told_once_and_stays) {
    struct vg_health h;
    vg_health_init(&h);
    cr_assert_eq(vg_health_event(&h, &(struct vg_card_event){.xid = 79}), 1);
    cr_assert_str_eq(h.fault, "fell off the bus (XID 79)");
    cr_assert_eq(vg_health_event(&h, &(struct vg_card_event){.xid = 48}), 0);
    struct vg_card_sample s = sample(1);
    cr_assert_eq(vg_health_sample(&h, &s), 0, "a good sample heals nothing");
    cr_assert(h.fault[0]);
}

Test(health, only_new_memory_errors_count) {
    struct vg_health h;
    struct vg_card_sample s = sample(1);
    vg_health_init(&h);
    s.ecc_uncorrected = 4;
    cr_assert_eq(vg_health_sample(&h, &s), 0, "those of before we looked");
    s.ecc_uncorrected = VG_NONE64;
    cr_assert_eq(vg_health_sample(&h, &s), 0);
    s.ecc_uncorrected = 6;
    cr_assert_eq(vg_health_sample(&h, &s), 1);
    cr_assert(strstr(h.fault, "2 memory errors"), "%s", h.fault);
}

Test(health, one_refusal_is_not_a_lost_card) {
    struct vg_health h;
    struct vg_card_sample s = sample(1);
    vg_health_init(&h);
    s.lost = true;
    cr_assert_eq(vg_health_sample(&h, &s), 0);
    s.lost = false;
    cr_assert_eq(vg_health_sample(&h, &s), 0);
    s.lost = true;
    cr_assert_eq(vg_health_sample(&h, &s), 0);
    cr_assert_eq(vg_health_sample(&h, &s), 1);
}

Test(health, silence_is_a_fault) {
    struct vg_health h;
    vg_health_init(&h);
    cr_assert_eq(vg_health_silent(&h, 31 * VG_USEC), 1);
    cr_assert(strstr(h.fault, "31 s"), "%s", h.fault);
}

/* ------------------------------------------------------------------ use */

static struct vg_card_sample used(uint32_t card, uint64_t at_s, uint32_t sm, uint64_t mem,
                                  uint64_t mj) {
    struct vg_card_sample s = sample(at_s * VG_USEC);
    s.index = card;
    s.sm_percent = sm;
    s.mem_percent = sm / 2;
    s.mem_used_bytes = mem;
    s.energy_mj = mj;
    s.counted = true;
    return s;
}

static void take(struct vg_gpu_use *u, struct vg_card_sample s) {
    struct vg_gpu_holder h = {.use = u, .milli = 1000, .mem_bytes = VG_NONE64};
    vg_gpu_use_take(&h, 1, &s, VG_NONE);
}

Test(gpu_use, means_are_by_time_and_energy_by_the_counter) {
    struct vg_gpu_use u;
    vg_gpu_use_init(&u, 1, 0);
    cr_assert_eq(vg_gpu_use_sm_mean(&u), VG_NONE);
    cr_assert_eq(vg_gpu_use_power(&u), VG_NONE);
    take(&u, used(0, 10, 99, 100, 5000)); /* the time before it was not ours */
    take(&u, used(0, 11, 50, 300, 6000));
    take(&u, used(0, 14, 10, 200, 9000));
    cr_assert_eq(u.busy_usec, 4 * VG_USEC);
    cr_assert_eq(vg_gpu_use_sm_mean(&u), 20000u); /* (50 + 3 * 10) / 4 */
    cr_assert_eq(vg_gpu_use_mem_mean(&u), 10000u);
    cr_assert_eq(u.sm_max, 50u);
    cr_assert_eq(u.mem_peak_bytes, 300u);
    cr_assert(u.energy_known);
    cr_assert_eq(u.energy_mj, 4000u);
    cr_assert_eq(u.used_usec, 14 * VG_USEC);
    take(&u, used(0, 14, 90, 900, 99999));
    cr_assert_eq(u.energy_mj, 4000u, "the same sample again");
    take(&u, used(3, 20, 90, 900, 99999));
    cr_assert_eq(u.energy_mj, 4000u, "another's card");
}

Test(gpu_use, cards_add_up) {
    struct vg_gpu_use u;
    vg_gpu_use_init(&u, 3, 0);
    take(&u, used(0, 1, 0, 100, 1000));
    take(&u, used(1, 1, 0, 100, 2000));
    take(&u, used(0, 2, 100, 500, 1100));
    take(&u, used(1, 2, 0, 200, 2100));
    cr_assert_eq(vg_gpu_use_sm_mean(&u), 50000u);
    cr_assert_eq(u.mem_peak_bytes, 700u);
    cr_assert_eq(u.energy_mj, 200u);
}

Test(gpu_use, sharers_pay_by_use_and_for_idle_power_by_promise) {
    struct vg_gpu_use u[2];
    struct vg_gpu_holder h[] = {{&u[0], 300, 0, VG_NONE64}, {&u[1], 700, 0, 1000}};
    vg_gpu_use_init(&u[0], 1, 0);
    vg_gpu_use_init(&u[1], 1, 0);
    struct vg_card_sample s = used(0, 1, 80, 5000, 0);
    vg_gpu_use_take(h, 2, &s, VG_NONE);
    h[0].sm = 60, h[1].sm = 20;
    s = used(0, 2, 80, 5000, 1000);
    vg_gpu_use_take(h, 2, &s, VG_NONE);
    cr_assert_eq(u[0].energy_mj, 750u, "by use, where what it draws idle is not known");
    cr_assert_eq(u[1].energy_mj, 250u);
    cr_assert_eq(u[0].sm_max, 60u);
    cr_assert_eq(u[1].mem_peak_bytes, 1000u, "its own");
    s = used(0, 3, 80, 5000, 2000);
    vg_gpu_use_take(h, 2, &s, 400); /* of the 1000 mJ of this second 400 would have been drawn */
    cr_assert_eq(u[0].energy_mj, 750u + 120 + 450);
    cr_assert_eq(vg_gpu_use_power(&u[0]), 570u, "in the last second");
    cr_assert_eq(u[1].energy_mj, 250u + 280 + 150);
    h[0].sm = h[1].sm = 0;
    s = used(0, 4, 10, 5000, 3000);
    vg_gpu_use_take(h, 2, &s, VG_NONE);
    cr_assert_eq(u[1].energy_mj, 680u + 700, "by promise, where nobody tells who did it");
    cr_assert_eq(u[1].used_usec, 4 * VG_USEC, "and then nobody is called idle");
    h[0].sm = 9;
    s = used(0, 5, 10, 5000, 4000);
    vg_gpu_use_take(h, 2, &s, VG_NONE);
    cr_assert_eq(u[1].used_usec, 4 * VG_USEC);
}

/* Whoever comes and goes, whatever they do: what they are told adds up to what the card's counters
   say, of all time in which somebody held it. */
#define HOLDERS 9

struct hold {
    struct vg_gpu_use use;
    uint32_t milli;
    bool in; /* holds it now */
};

static uint64_t pick(uint64_t *seed, uint64_t below) {
    *seed = *seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (*seed >> 33) % below;
}

struct sums {
    uint64_t mj, rx, tx;
};

static void expect_all(const struct hold *all, const struct sums *want, uint64_t seed) {
    struct sums got = {0};
    for (size_t i = 0; i < HOLDERS; i++) {
        got.mj += all[i].use.energy_mj;
        got.rx += all[i].use.pcie_rx_bytes;
        got.tx += all[i].use.pcie_tx_bytes;
    }
    cr_assert_eq(got.mj, want->mj, "seed %llu: %llu mJ of %llu", (unsigned long long)seed,
                 (unsigned long long)got.mj, (unsigned long long)want->mj);
    cr_assert_eq(got.rx, want->rx);
    cr_assert_eq(got.tx, want->tx);
}

static void one_life(uint64_t first_seed) {
    uint64_t seed = first_seed;
    struct hold all[HOLDERS] = {0};
    struct vg_card_sample s = used(5, 1, 0, 0, 1000);
    struct sums want = {0}, since = {0}; /* since the last sample that told the counters */
    bool held = false;                   /* by somebody, since then */
    s.pcie_rx_bytes = s.pcie_tx_bytes = 77;
    uint64_t mj = s.energy_mj, rx = 77, tx = 77;
    for (int step = 0; step < 200; step++) {
        struct vg_gpu_holder h[HOLDERS];
        size_t n = 0;
        for (size_t i = 0; i < HOLDERS; i++) {
            if (!all[i].in && all[i].milli == 0 && pick(&seed, 8) == 0) { /* it comes */
                all[i].in = true;
                all[i].milli = 1 + (uint32_t)pick(&seed, 1000);
                vg_gpu_use_init(&all[i].use, 1u << 5, 0);
            }
            if (all[i].in)
                h[n++] = (struct vg_gpu_holder){&all[i].use, all[i].milli,
                                                pick(&seed, 3) * pick(&seed, 101), VG_NONE64};
        }
        s.counted = pick(&seed, 3) != 0;
        bool lost = !s.counted || pick(&seed, 11) == 0;
        s.at_usec += 1 + pick(&seed, 2 * VG_USEC);
        since.mj += pick(&seed, 900000);
        since.rx += pick(&seed, 1ULL << 36);
        since.tx += pick(&seed, 3);
        s.sm_percent = (uint32_t)pick(&seed, 101);
        s.energy_mj = lost ? VG_NONE64 : mj + since.mj;
        s.pcie_rx_bytes = lost ? VG_NONE64 : rx + since.rx;
        s.pcie_tx_bytes = lost ? VG_NONE64 : tx + since.tx;
        vg_gpu_use_take(h, n, &s, pick(&seed, 2) ? VG_NONE : (uint32_t)pick(&seed, 800000));
        if (!lost) {
            if (held)
                want.mj += since.mj, want.rx += since.rx, want.tx += since.tx;
            mj += since.mj, rx += since.rx, tx += since.tx;
            since = (struct sums){0};
            expect_all(all, &want, first_seed);
            held = false;
            for (size_t i = 0; i < HOLDERS; i++) { /* at a sample they leave, if at all */
                if (all[i].in && pick(&seed, 12) == 0)
                    all[i].in = false;
                held |= all[i].in;
            }
        }
    }
    cr_assert_gt(want.mj, 0u);
}

Test(gpu_use, sharers_add_up_to_the_counters_exactly) {
    for (uint64_t seed = 1; seed <= 300; seed++)
        one_life(seed);
}

Test(gpu_use, what_a_card_draws_idle_is_the_least_that_was_seen) {
    struct vg_card_sample a = used(0, 10, 0, 0, 0), b = used(0, 20, 0, 0, 0);
    b.power_mw = 75000;
    cr_assert_eq(vg_gpu_idle_power(VG_NONE, &a, &b), 75000u);
    cr_assert_eq(vg_gpu_idle_power(60000, &a, &b), 60000u, "more is not less");
    b.sm_percent = 1;
    cr_assert_eq(vg_gpu_idle_power(VG_NONE, &a, &b), VG_NONE, "it was not idle");
    a.sm_percent = 1, b.sm_percent = 0;
    cr_assert_eq(vg_gpu_idle_power(VG_NONE, &a, &b), VG_NONE, "nor just before");
    a = b, b.power_mw = VG_NONE;
    cr_assert_eq(vg_gpu_idle_power(75000, &a, &b), 75000u, "nothing is told");
}

/* Between two counters there are samples that tell only use, and nobody begins at one of those. */
Test(gpu_use, the_counters_may_be_told_rarely) {
    struct vg_gpu_use u;
    vg_gpu_use_init(&u, 1, 0);
    struct vg_card_sample s = used(0, 1, 50, 0, VG_NONE64);
    s.counted = false;
    take(&u, s);
    cr_assert_eq(u.begin_usec, 0u);
    take(&u, used(0, 2, 50, 0, 1000));
    for (uint64_t at = 3; at < 8; at++) {
        s = used(0, at, 40, 0, VG_NONE64);
        s.counted = false;
        take(&u, s);
    }
    cr_assert_not(u.energy_known);
    take(&u, used(0, 8, 40, 0, 7000));
    cr_assert_eq(u.energy_mj, 6000u);
    cr_assert_eq(u.busy_usec, 6 * VG_USEC);
    cr_assert_eq(u.samples, 6u);
}

Test(gpu_use, bytes_over_the_bus_are_counted_where_they_are_told) {
    struct vg_gpu_use u;
    vg_gpu_use_init(&u, 1, 0);
    take(&u, used(0, 1, 0, 0, 0));
    take(&u, used(0, 2, 0, 0, 0));
    cr_assert_not(u.pcie_known);
    for (uint64_t at = 3; at < 6; at++) {
        struct vg_card_sample s = used(0, at, 0, 0, 0);
        s.pcie_rx_bytes = at * 1000;
        s.pcie_tx_bytes = at;
        take(&u, s);
    }
    cr_assert(u.pcie_known);
    cr_assert_eq(u.pcie_rx_bytes, 2000u);
    cr_assert_eq(u.pcie_tx_bytes, 2u);
}

Test(gpu_use, what_is_not_told_stays_unknown) {
    struct vg_gpu_use u;
    vg_gpu_use_init(&u, 1, 7);
    take(&u, sample(VG_USEC));
    take(&u, sample(2 * VG_USEC));
    cr_assert_not(u.energy_known);
    cr_assert_eq(vg_gpu_use_sm_mean(&u), VG_NONE);
    cr_assert_eq(u.samples, 0u);
    cr_assert_eq(u.used_usec, 7u);
}

Test(gpu_use, a_counter_that_begins_anew_is_no_gift) {
    struct vg_gpu_use u;
    vg_gpu_use_init(&u, 1, 0);
    take(&u, used(0, 1, 0, 0, 5000));
    take(&u, used(0, 2, 0, 0, 100));
    take(&u, used(0, 3, 0, 0, 300));
    cr_assert_eq(u.energy_mj, 200u);
}

/* ------------------------------------------------------------------ packets */

Test(watch, packets_that_are_not_whole_or_lie_are_refused) {
    struct vg_watch_msg m = {.kind = VG_WATCH_SAMPLE};
    size_t n = vg_watch_msg_size(&m);
    cr_assert(vg_watch_msg_valid(&m, n));
    cr_assert_not(vg_watch_msg_valid(&m, n - 1));
    cr_assert_not(vg_watch_msg_valid(&m, 2));
    m.sample.n_procs = 1;
    cr_assert_not(vg_watch_msg_valid(&m, n), "the process is missing");
    cr_assert_eq(vg_watch_msg_size(&m), n + sizeof(struct vg_card_proc));
    for (m.sample.n_procs = 0; m.sample.n_procs < VG_CARD_PROCS_MAX + 2; m.sample.n_procs++)
        cr_assert_eq(vg_watch_msg_valid(&m, vg_watch_msg_size(&m)),
                     m.sample.n_procs <= VG_CARD_PROCS_MAX);
    m = (struct vg_watch_msg){.kind = VG_WATCH_FACTS};
    n = vg_watch_msg_size(&m);
    cr_assert(vg_watch_msg_valid(&m, n));
    memset(m.facts.name, 'x', sizeof(m.facts.name));
    cr_assert_not(vg_watch_msg_valid(&m, n), "a name without an end");
    m = (struct vg_watch_msg){.kind = VG_WATCH_EVENT, .event = {.index = 64}};
    cr_assert_not(vg_watch_msg_valid(&m, vg_watch_msg_size(&m)));
    m.kind = 99;
    cr_assert_eq(vg_watch_msg_size(&m), 0u);
}

/* The process itself, on a library: facts, then rounds, orders answered by number, leaves at the
   end. */
Test(watch, the_process_answers_and_leaves) {
    int pair[2], status;
    char *argv[] = {(char *)"gpu-watch", (char *)"--nvml", (char *)FAKE_NVML, NULL};
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(pair[1], STDIN_FILENO);
        close(pair[0]);
        close(pair[1]);
        _exit(vg_watch_main(3, argv));
    }
    close(pair[1]);
    struct vg_watch_order o = {
        .seq = 42, .interval_ms = 60000, .slow_ms = 60000, .count_ms = 60000};
    cr_assert_eq(send(pair[0], &o, sizeof o, 0), (ssize_t)sizeof o);
    size_t facts = 0, samples = 0;
    struct vg_watch_msg m;
    do {
        ssize_t n = recv(pair[0], &m, sizeof m, 0);
        cr_assert_gt(n, 0);
        cr_assert(vg_watch_msg_valid(&m, (size_t)n));
        facts += m.kind == VG_WATCH_FACTS;
        samples += m.kind == VG_WATCH_SAMPLE;
    } while (m.kind != VG_WATCH_ROUND || m.seq != 42);
    cr_assert_eq(facts, 2u);
    cr_assert_geq(samples, 2u);
    close(pair[0]);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

Test(watch, a_library_that_is_not_there_is_told) {
    int pair[2], status;
    char *argv[] = {(char *)"gpu-watch", (char *)"--nvml", (char *)"/nothing.so", NULL};
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(pair[1], STDIN_FILENO);
        _exit(vg_watch_main(3, argv));
    }
    struct vg_watch_msg m;
    ssize_t n = recv(pair[0], &m, sizeof m, 0);
    cr_assert(vg_watch_msg_valid(&m, (size_t)n));
    cr_assert_eq(m.kind, VG_WATCH_FAIL);
    cr_assert(strstr(m.text, "/nothing.so"), "%s", m.text);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    close(pair[0]);
    close(pair[1]);
}

/* ------------------------------------------------------------------ AMD, by folders only */

static char root[] = "/tmp/vg-amd-XXXXXX";

static void put(const char *path, const char *text) {
    char full[512], *slash;
    snprintf(full, sizeof full, "%s%s", root, path);
    slash = strrchr(full, '/');
    *slash = 0;
    cr_assert_eq(vg_mkdir_p(full, 0700), 0);
    *slash = '/';
    cr_assert_eq(vg_write_file(full, text, strlen(text), 0600), 0);
}

static int drop(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

Test(amd, a_folder_that_looks_like_a_card) {
    struct vg_card_source src;
    struct vg_card_facts f;
    struct vg_card_sample s;
    struct vg_err err = VG_ERR_INIT;
    cr_assert(mkdtemp(root));
    cr_assert_lt(vg_amd_open(root, &src, &err), 0);
    put("/sys/class/drm/renderD128/device/vendor", "0x10de\n"); /* another's */
    put("/sys/class/drm/renderD129/device/vendor", "0x1002\n");
    put("/sys/class/drm/renderD129/device/product_name", "Instinct\n");
    put("/sys/class/drm/renderD129/device/mem_info_vram_total", "206158430208\n");
    put("/sys/class/drm/renderD129/device/mem_info_vram_used", "1048576\n");
    put("/sys/class/drm/renderD129/device/gpu_busy_percent", "37\n");
    put("/sys/class/drm/renderD129/device/hwmon/hwmon3/power1_average", "250000000\n");
    put("/sys/class/drm/renderD129/device/hwmon/hwmon3/temp1_input", "54000\n");
    cr_assert_eq(vg_amd_open(root, &src, &err), 0);
    cr_assert_eq(src.n, 1u);
    cr_assert_eq(src.facts(src.state, 0, &f), 0);
    cr_assert_eq(f.minor, 129);
    cr_assert_str_eq(f.name, "Instinct");
    cr_assert_eq(f.mem_bytes, 206158430208u);
    cr_assert_eq(src.sample(src.state, 0, VG_ASK_SLOW, &s), 0);
    cr_assert_eq(s.sm_percent, 37u);
    cr_assert_eq(s.power_mw, 250000u);
    cr_assert_eq(s.temp_c, 54u);
    cr_assert_eq(s.energy_mj, VG_NONE64);
    src.close(src.state);
    nftw(root, drop, 16, FTW_DEPTH | FTW_PHYS);
}
