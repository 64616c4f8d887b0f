/* Made loads: they are what they say, and no schedule beats the floor. */
#include "base/cleanup.h"
#include "sim/run.h"
#include "sim/shape.h"

#include <criterion/criterion.h>

Test(shape, kueue_shapes_have_the_published_sizes) {
    static const struct {
        size_t jobs, queues;
        double work_s; /* a queue's work over its quota */
    } want[] = {{15000, 30, 66.0}, {50000, 1000, 4.025}};
    for (size_t i = 0; i < vg_n_shapes; i++) {
        struct vg_workload w;
        struct vg_err err = VG_ERR_INIT;
        double work = 0;
        cr_assert_eq(vg_shape_workload(&vg_shapes[i], 20, &w, &err), 0, "%s", err.msg);
        cr_assert_eq(w.n_jobs, want[i].jobs);
        cr_assert_eq(w.n_tenants, want[i].queues);
        for (size_t k = 0; k < w.n_jobs; k++)
            work += (double)w.job[k].run_usec / 1e6 * w.job[k].units;
        cr_assert_float_eq(work / (double)vg_workload_units(&w), want[i].work_s, 1e-9);
        cr_assert_geq(vg_shape_floor(&w).seconds, want[i].work_s);
        vg_workload_done(&w);
    }
}

Test(shape, nobody_drains_below_the_floor) {
    struct vg_workload w;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_shape_workload(&vg_shapes[0], 20, &w, &err), 0, "%s", err.msg);
    double floor = vg_shape_floor(&w).seconds;
    for (const char *const *name = vg_policy_names(); *name; name++) {
        struct vg_run_opts o = {.policy = {.seed = 1}};
        struct vg_result r;
        cr_assert_eq(vg_run(&w, vg_policy_find(*name), &o, &r, &err), 0, "%s", err.msg);
        cr_assert_eq(r.unfinished, 0, "%s", *name);
        cr_assert_geq(r.makespan_s, floor, "%s", *name);
        vg_result_done(&r);
    }
    vg_workload_done(&w);
}

Test(shape, nodes_too_small_for_the_largest_class_are_refused) {
    struct vg_workload w;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_lt(vg_shape_workload(&vg_shapes[0], 19, &w, &err), 0);
    cr_assert(strstr(err.msg, "cannot hold a job of 20"), "%s", err.msg);
}

Test(shape, virga_drains_both_shapes_within_one_and_a_half_floors) {
    for (size_t i = 0; i < vg_n_shapes; i++) {
        struct vg_workload w;
        struct vg_result r;
        struct vg_err err = VG_ERR_INIT;
        struct vg_run_opts o = {.policy = {.seed = 1}};
        cr_assert_eq(vg_shape_workload(&vg_shapes[i], 20, &w, &err), 0, "%s", err.msg);
        cr_assert_eq(vg_run(&w, vg_policy_find("virga"), &o, &r, &err), 0, "%s", err.msg);
        cr_expect_eq(r.unfinished, 0);
        cr_expect_lt(r.makespan_s, 1.5 * vg_shape_floor(&w).seconds, "%s", vg_shapes[i].name);
        vg_result_done(&r);
        vg_workload_done(&w);
    }
}
