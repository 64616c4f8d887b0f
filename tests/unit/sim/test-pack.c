/* Packing the Alibaba traces: the protocol is the published one (policies that were published land
   where they did), and the engine strands less than the best of them. */
#include "base/cleanup.h"
#include "sim/pack.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static void load(const char *tasks, struct vg_pack_input *ret) {
    struct vg_err err = VG_ERR_INIT;
    *ret = (struct vg_pack_input){.demand = 1.3};
    cr_assert_eq(
        vg_trace_read_nodes(VG_TRACES "/openb_node_list_gpu_node.csv.gz", &ret->nodes, &err), 0,
        "%s", err.msg);
    cr_assert_eq(vg_trace_read_tasks(tasks, &ret->tasks, &err), 0, "%s", err.msg);
}

static void unload(struct vg_pack_input *in) {
    vg_trace_nodes_done(&in->nodes);
    vg_trace_tasks_done(&in->tasks);
}

static double mean_of(const struct vg_pack_input *in, const char *policy) {
    const struct vg_packer *p = NULL;
    double sum = 0;
    for (size_t i = 0; i < vg_n_packers; i++)
        if (strcmp(vg_packers[i].name, policy) == 0)
            p = &vg_packers[i];
    cr_assert(p);
    for (uint64_t seed = 42; seed < 44; seed++) {
        struct vg_pack_result r;
        cr_assert_eq(vg_pack_run(in, p, seed, &r), 0);
        sum += r.allocated_pct / 2;
    }
    return sum;
}

/* Published means of ten seeds: random, best fit, FGD. */
static void compare(const char *tasks, double random, double bestfit, double fgd) {
    struct vg_pack_input in;
    load(tasks, &in);
    cr_expect_lt(fabs(mean_of(&in, "random") - random), 1.0);
    cr_expect_lt(fabs(mean_of(&in, "bestfit") - bestfit), 0.6);
    cr_expect_lt(fabs(mean_of(&in, "fgd") - fgd), 0.6);
    double ours = mean_of(&in, "virga");
    cr_expect_geq(ours, fgd + 0.1, "learnt: %.2f", ours);
    struct vg_pack_input informed = in;
    informed.history = in.tasks;
    double better = mean_of(&informed, "virga");
    cr_expect_geq(better, fgd + 0.5, "with history: %.2f", better);
    unload(&in);
}

Test(pack, the_default_trace_strands_less_than_published) {
    compare(VG_TRACES "/openb_pod_list_default.csv.gz", 87.47, 93.08, 95.39);
}

Test(pack, the_trace_of_shares_strands_less_than_published) {
    compare(VG_TRACES "/openb_pod_list_gpushare100.csv.gz", 79.44, 85.01, 86.90);
}

Test(pack, arrivals_are_every_task_once_and_then_more_until_the_demand) {
    struct vg_pack_input in;
    struct vg_pack_arrivals a, b;
    load(VG_TRACES "/openb_pod_list_default.csv.gz", &in);
    vg_auto_free uint8_t *seen = calloc(in.tasks.n, 1);
    cr_assert_eq(vg_pack_arrive(&in, 7, &a), 0);
    cr_assert_eq(vg_pack_arrive(&in, 7, &b), 0);
    cr_assert_gt(a.n, in.tasks.n);
    cr_assert_eq(a.n, b.n);
    cr_assert_eq(memcmp(a.task, b.task, a.n * sizeof a.task[0]), 0);
    uint64_t asked = 0, want = vg_pack_capacity(&in.nodes) * 13 / 10;
    for (size_t i = 0; i < a.n; i++) {
        asked += vg_pack_milli(&in.tasks.task[a.task[i]]);
        if (i < in.tasks.n)
            cr_assert_eq(seen[a.task[i]]++, 0);
    }
    cr_assert_leq(asked, want);
    cr_assert_gt(asked, want - 8000);
    free(a.task);
    free(b.task);
    in.demand = 0.1; /* less than the file asks for: tasks are left out */
    cr_assert_eq(vg_pack_arrive(&in, 7, &a), 0);
    cr_assert_lt(a.n, in.tasks.n);
    free(a.task);
    unload(&in);
}

Test(pack, the_same_seed_gives_the_same_result) {
    struct vg_pack_input in;
    load(VG_TRACES "/openb_pod_list_default.csv.gz", &in);
    for (size_t i = 0; i < vg_n_packers; i++) {
        struct vg_pack_result a, b;
        cr_assert_eq(vg_pack_run(&in, &vg_packers[i], 3, &a), 0);
        cr_assert_eq(vg_pack_run(&in, &vg_packers[i], 3, &b), 0);
        cr_assert_eq(a.placed, b.placed);
        cr_assert_eq(memcmp(a.curve, b.curve, sizeof a.curve), 0);
    }
    unload(&in);
}
