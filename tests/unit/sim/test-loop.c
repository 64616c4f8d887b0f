/* The loop, its account and the baselines, on loads small enough to check by hand. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "sim/heap.h"
#include "sim/rng.h"
#include "sim/run.h"

#include <criterion/criterion.h>

/* A cluster of nodes of 8 GPUs and jobs in seconds. */
struct small {
    struct vg_workload w;
    struct vg_work_job job[16];
    struct vg_work_tenant tenant[4];
    struct vg_work_node node[4];
    struct vg_work_shape kind[16];
};

static struct small make(size_t nodes, size_t tenants) {
    struct small s = {.w = {.n_nodes = nodes, .n_tenants = tenants, .n_pools = 1}};
    for (size_t i = 0; i < nodes; i++)
        s.node[i].units = 8;
    for (size_t i = 0; i < tenants; i++)
        s.tenant[i] = (struct vg_work_tenant){.name = (char *)"t", .weight = 1};
    return s;
}

/* Every job is a kind of its own. */
static void add(struct small *s, uint64_t at, uint64_t run, uint32_t tenant, uint32_t members,
                uint32_t units) {
    uint32_t i = (uint32_t)s->w.n_jobs++;
    s->kind[i] = (struct vg_work_shape){tenant, 0, members, units};
    s->job[i] = (struct vg_work_job){.arrive_usec = at * VG_USEC,
                                     .run_usec = run * VG_USEC,
                                     .tenant = tenant,
                                     .kind = i,
                                     .members = members,
                                     .units = units};
    s->w.n_kinds++;
}

static struct vg_result run_it(struct small *s, const struct vg_policy_ops *ops, bool oracle) {
    struct vg_result r = {0};
    struct vg_err err = VG_ERR_INIT;
    struct vg_run_opts o = {.fairness = true, .policy = {.seed = 1, .oracle = oracle}};
    s->w.job = s->job;
    s->w.tenant = s->tenant;
    s->w.node = s->node;
    s->w.kind = s->kind;
    cr_assert_eq(vg_run(&s->w, ops, &o, &r, &err), 0, "%s", err.msg);
    cr_assert_eq(r.unfinished, 0);
    return r;
}

#define assert_near(a, b) cr_assert_float_eq((a), (b), 1e-6, "%f, expected %f", (double)(a), (b))

Test(loop, events_come_by_time_and_then_in_order) {
    struct vg_heap h = {0};
    struct vg_rng rng = vg_rng_seeded(7);
    uint64_t last = 0;
    for (uint32_t i = 0; i < 2000; i++)
        cr_assert_eq(vg_heap_put(&h, vg_rng_below(&rng, 50), i, 0), 0);
    for (uint32_t i = 0, before = 0; i < 2000; i++) {
        struct vg_event e = vg_heap_take(&h);
        cr_assert_geq(e.at_usec, last);
        cr_assert(e.at_usec > last || i == 0 || e.job > before);
        last = e.at_usec;
        before = e.job;
    }
    vg_heap_done(&h);
}

Test(loop, fifo_starts_nobody_past_the_first) {
    struct small s = make(1, 1);
    add(&s, 0, 100, 0, 1, 6);
    add(&s, 1, 100, 0, 1, 8); /* waits for the first to end */
    add(&s, 2, 10, 0, 1, 1);  /* would fit, but waits behind it */
    struct vg_result r = run_it(&s, &vg_policy_fifo, false);
    assert_near(r.makespan_s, 210.0);
    assert_near(r.wait_max_s, 198.0);
    vg_result_done(&r);
}

Test(loop, easy_fills_gaps_that_delay_nobody) {
    struct small s = make(1, 1);
    add(&s, 0, 100, 0, 1, 6);
    add(&s, 1, 100, 0, 1, 8);
    add(&s, 2, 10, 0, 1, 1);  /* ends before the reservation: starts at once */
    add(&s, 3, 200, 0, 1, 1); /* would delay it: waits until 200 s */
    struct vg_result r = run_it(&s, &vg_policy_easy, true);
    assert_near(r.wait_s[0], 0.0);
    assert_near(r.wait_s[1], 0.0);
    assert_near(r.wait_s[2], 99.0);
    assert_near(r.wait_s[3], 197.0);
    vg_result_done(&r);
}

Test(loop, easy_lets_long_jobs_use_what_the_reservation_leaves) {
    struct small s = make(2, 1);
    add(&s, 0, 100, 0, 1, 8);
    add(&s, 1, 100, 0, 1, 6); /* leaves 2 on the second node */
    add(&s, 2, 100, 0, 1, 7); /* reserved on the first node at 100 s */
    add(&s, 3, 500, 0, 1, 2); /* long, but beside the reservation */
    struct vg_result r = run_it(&s, &vg_policy_easy, true);
    assert_near(r.wait_s[2], 0.0);
    assert_near(r.wait_s[3], 98.0);
    vg_result_done(&r);
}

Test(loop, easy_survives_jobs_that_outlive_their_guess) {
    struct small s = make(1, 1);
    add(&s, 0, 100000, 0, 1, 8); /* guessed at an hour */
    add(&s, 1, 10, 0, 1, 8);
    add(&s, 2, 10, 0, 1, 1);
    struct vg_result r = run_it(&s, &vg_policy_easy, false);
    assert_near(r.makespan_s, 100020.0);
    vg_result_done(&r);
}

Test(loop, drf_serves_the_tenant_that_holds_least) {
    struct small s = make(1, 2);
    for (int i = 0; i < 3; i++)
        add(&s, 0, 100, 0, 1, 4);
    add(&s, 1, 100, 1, 1, 4); /* arrives last, and is next */
    struct vg_result r = run_it(&s, &vg_policy_drf, false);
    assert_near(r.tenant[1].wait_sum_s, 99.0);
    assert_near(r.tenant[0].wait_sum_s, 100.0);
    vg_result_done(&r);
}

Test(loop, gangs_start_whole) {
    const struct vg_policy_ops *all[] = {&vg_policy_fifo, &vg_policy_easy, &vg_policy_drf,
                                         &vg_policy_random};
    for (size_t i = 0; i < VG_COUNT(all); i++) {
        struct small s = make(3, 1);
        add(&s, 0, 50, 0, 1, 1);
        add(&s, 1, 10, 0, 3, 8); /* needs every node */
        struct vg_result r = run_it(&s, all[i], true);
        assert_near(r.makespan_s, 60.0);
        vg_result_done(&r);
    }
}

Test(loop, the_account_matches_a_calculation_by_hand) {
    struct small s = make(1, 2);
    add(&s, 0, 100, 0, 1, 8);
    add(&s, 0, 100, 1, 1, 8); /* waits 100 s, entitled to 4 GPUs in that time, then to 8 */
    struct vg_result r = run_it(&s, &vg_policy_fifo, false);
    assert_near(r.wait_mean_s, 50.0);
    assert_near(r.slowdown_mean, 1.5);
    assert_near(r.tenant[0].service, 800.0 / 400.0);
    assert_near(r.tenant[1].service, 800.0 / 1200.0);
    assert_near(r.service_worst, 2.0 / 3);
    cr_assert_eq(r.worst_tenant, 1);
    double sum = 2 + 2.0 / 3, squares = 4 + 4.0 / 9;
    assert_near(r.jain, sum * sum / (2 * squares));
    assert_near(r.makespan_s, 200.0);
    vg_result_done(&r);
}

/* Controls: policies that cheat, and how. */
static enum { TWICE, NOWHERE, GHOST } cheat;
static uint32_t waiting[16], n_waiting, zero[16];

static int cheat_make(const struct vg_workload *w, const struct vg_policy_opts *o, void **ret,
                      struct vg_err *err) {
    (void)w, (void)o, (void)err;
    n_waiting = 0;
    *ret = &cheat;
    return 0;
}
static void cheat_free(void *p) {
    (void)p;
}
static int cheat_submit(void *p, uint64_t now, uint32_t job) {
    (void)p, (void)now;
    waiting[n_waiting++] = job;
    return 0;
}
static void cheat_finish(void *p, uint64_t now, uint32_t job, uint64_t ran) {
    (void)p, (void)now, (void)job, (void)ran;
}
static int cheat_next(void *p, uint64_t now, struct vg_decision *ret, struct vg_err *err) {
    static const uint32_t far[16] = {99};
    (void)p, (void)now, (void)err;
    if (!n_waiting)
        return 0;
    *ret = (struct vg_decision){.job = waiting[--n_waiting], .node = zero};
    if (cheat == NOWHERE)
        ret->node = far;
    if (cheat == GHOST)
        ret->job = 1; /* has not arrived */
    return 1;
}
static const struct vg_policy_ops cheating = {.name = "cheat",
                                              .make = cheat_make,
                                              .free = cheat_free,
                                              .submit = cheat_submit,
                                              .finish = cheat_finish,
                                              .next = cheat_next};

Test(loop, a_policy_that_breaks_a_rule_is_caught) {
    static const char *const words[] = {"where there is no room", "where there is no room",
                                        "does not wait"};
    for (int c = TWICE; c <= GHOST; c++) {
        struct small s = make(1, 1);
        struct vg_result r;
        struct vg_err err = VG_ERR_INIT;
        struct vg_run_opts o = {0};
        add(&s, 0, 100, 0, 1, 8);
        add(&s, 1, 100, 0, 1, 8);
        s.w.job = s.job, s.w.tenant = s.tenant, s.w.node = s.node, s.w.kind = s.kind;
        cheat = c;
        cr_assert_lt(vg_run(&s.w, &cheating, &o, &r, &err), 0);
        cr_assert(strstr(err.msg, words[c]), "%s", err.msg);
    }
}

Test(loop, the_same_seed_gives_the_same_result) {
    struct vg_trace_jobs t;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_trace_read_jobs(VG_TRACES "/philly.csv.gz", &t, &err), 0, "%s", err.msg);
    struct vg_work_trace_opts wo = {.gpus = 128, .per_node = 8, .load = 1.1, .take = 3000};
    struct vg_workload w;
    cr_assert_eq(vg_workload_from_trace(&t, &wo, &w, &err), 0, "%s", err.msg);
    assert_near(vg_workload_load(&w), 1.1);
    for (const char *const *name = vg_policy_names(); *name; name++) {
        double wait[3];
        for (int i = 0; i < 3; i++) {
            struct vg_run_opts o = {.policy = {.seed = i == 2 ? 2 : 1}};
            struct vg_result r;
            cr_assert_eq(vg_run(&w, vg_policy_find(*name), &o, &r, &err), 0, "%s: %s", *name,
                         err.msg);
            cr_assert_eq(r.unfinished, 0, "%s left jobs behind", *name);
            wait[i] = r.wait_mean_s;
            vg_result_done(&r);
        }
        cr_assert_eq(wait[0], wait[1], "%s", *name);
        if (strcmp(*name, "random") == 0)
            cr_assert_neq(wait[0], wait[2], "another seed is another story");
    }
    vg_workload_done(&w);
    vg_trace_jobs_done(&t);
}

Test(loop, jobs_that_ask_for_more_than_there_is_are_dropped_and_counted) {
    struct vg_trace_job j[] = {{0, 10, 8, 0}, {1, 10, 17, 0}, {2, 10, 12, 0}};
    const char *name[] = {"a"};
    struct vg_trace_jobs t = {.job = j, .n = 3, .tenant = name, .n_tenants = 1};
    struct vg_work_trace_opts o = {.gpus = 16, .per_node = 8};
    struct vg_workload w;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_workload_from_trace(&t, &o, &w, &err), 0);
    cr_assert_eq(w.dropped, 1);
    cr_assert_eq(w.n_jobs, 2);
    cr_assert_eq(w.job[1].members, 2, "12 GPUs are two members of 6");
    cr_assert_eq(w.job[1].units, 6);
    vg_workload_done(&w);
}

static struct vg_result replay(const struct vg_workload *w, const char *policy, bool preempt) {
    struct vg_run_opts o = {.fairness = true, .policy = {.seed = 1, .preempt = preempt}};
    struct vg_result r;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_run(w, vg_policy_find(policy), &o, &r, &err), 0, "%s: %s", policy, err.msg);
    cr_assert_eq(r.unfinished, 0, "%s left jobs behind", policy);
    return r;
}

Test(loop, virga_waits_less_and_is_fairer_than_fifo_and_easy) {
    struct vg_trace_jobs t;
    struct vg_workload w;
    struct vg_err err = VG_ERR_INIT;
    struct vg_work_trace_opts o = {.gpus = 600, .per_node = 8, .load = 0.9, .take = 20000};
    cr_assert_eq(vg_trace_read_jobs(VG_TRACES "/philly.csv.gz", &t, &err), 0, "%s", err.msg);
    cr_assert_eq(vg_workload_from_trace(&t, &o, &w, &err), 0, "%s", err.msg);
    struct vg_result fifo = replay(&w, "fifo", false), easy = replay(&w, "easy", false);
    for (int preempt = 0; preempt < 2; preempt++) {
        struct vg_result r = replay(&w, "virga", preempt);
        cr_expect_lt(r.wait_mean_s, easy.wait_mean_s);
        cr_expect_lt(r.slowdown_p95, easy.slowdown_p95);
        cr_expect_gt(r.service_worst, easy.service_worst);
        cr_expect_gt(r.service_worst, fifo.service_worst);
        cr_expect_eq(r.stops > 0, preempt, "%llu jobs were stopped", (unsigned long long)r.stops);
        vg_result_done(&r);
    }
    vg_result_done(&fifo);
    vg_result_done(&easy);
    vg_workload_done(&w);
    vg_trace_jobs_done(&t);
}
