/* Every allocation of the configuration's reading fails once. */
#include "base/util.h"
#include "conf/conf.h"
#include "fault.h"
#include "model/task-row.h"
#include "sched/sched.h"

static const char text[] = "listen: a:1\nadvertise: b\naccess: {groups: [x, y], users: [z]}\n"
                           "default_pool: p\npools:\n"
                           "- {name: o, description: d, nodes: {labels: {k: v, l: w}}}\n"
                           "- {name: p, shape: {cpus: 1}, shared: [/a, /b], models: [m]}\n"
                           "currency: EUR\nqueues:\n"
                           "- {name: q, teams: [t], users: [{name: u}], queues: [{name: r}]}\n"
                           "maintenance:\n"
                           "- {start: 2026-12-01 02:00, duration: 1h, nodes: [n]}\n"
                           "- {name: w, start: 2026-12-01 02:00, duration: 1h, labels: {a: b}}\n"
                           "reservations:\n"
                           "- {queue: q/r, pool: p, gpus: 1, from: 2026-12-01 00:00,\n"
                           "   until: 2026-12-02 00:00}\n";

static void read_conf(void *ctx, bool armed) {
    struct vg_conf c = {.lease_usec = 77};
    struct vg_err err = VG_ERR_INIT;
    int r = vg_conf_parse(text, sizeof text - 1, "c.yaml", &c, &err);
    (void)ctx;
    (void)armed;
    if (r == 0) {
        cr_assert_eq(c.n_pools, 2);
        vg_conf_done(&c);
        return;
    }
    cr_assert_eq(r, -ENOMEM, "%d %s", r, err.msg);
    cr_assert_str_eq(err.msg, "cannot read c.yaml: Cannot allocate memory");
    cr_assert_eq(c.lease_usec, 77, "what was there is untouched");
}

Test(conf_fault, a_failed_read_leaves_nothing_behind) {
    cr_assert_geq(fault_each(ENOMEM, "alloc", read_conf, NULL), 20);
}

static void make_default(void *ctx, bool armed) {
    struct vg_conf c;
    (void)ctx;
    (void)armed;
    int r = vg_conf_default(&c);
    cr_assert(r == 0 || (r == -ENOMEM && !c.n_pools && !c.listen));
    vg_conf_done(&c);
}

Test(conf_fault, the_default_is_whole_or_empty) {
    cr_assert_geq(fault_each(ENOMEM, "alloc", make_default, NULL), 5);
}

/* A task there and back through its row. */
static void row_and_back(void *ctx, bool armed) {
    struct vg_task_pack pack = {0};
    struct vg_task_row row;
    struct vg_task *back = NULL;
    int r = vg_task_to_row(ctx, true, &pack, &row);
    (void)armed;
    if (r == 0) {
        r = vg_task_from_row(&row, NULL, &back);
        cr_assert(r == 0 || (r == -ENOMEM && !back));
    }
    cr_assert(r == 0 || r == -ENOMEM);
    vg_task_free(back);
    vg_task_pack_done(&pack);
}

Test(model_fault, rows_fail_cleanly) {
    Vg__Pb__TaskSpec *spec = malloc(sizeof *spec);
    vg__pb__task_spec__init(spec);
    struct vg_task *t = vg_task_new(1, "ann", "vision", spec, false, 1);
    cr_assert_geq(fault_each(ENOMEM, "alloc", row_and_back, t), 4);
    vg_task_free(t);
}

/* Nodes and tasks come and go; whatever fails, the invariants hold and a second try works. */
static void schedule(void *ctx, bool armed) {
    static struct vg_pool_conf pool = {.name = "p", .description = ""};
    struct vg_sched *s = vg_sched_new();
    struct vg_err err = VG_ERR_INIT;
    struct vg_sched_place p;
    (void)ctx;
    (void)armed;
    if (!s)
        return;
    struct vg_sched_node n = {.id = 1, .name = "n", .total = {.cpu_milli = 1000}, .usable = true};
    struct vg_sched_req r = {.task = 1, .pool = "p", .res = {.cpu_milli = 1000}};
    if (vg_sched_set_pool(s, &pool) < 0)
        cr_assert_eq(vg_sched_set_pool(s, &pool), 0);
    if (vg_sched_set_node(s, &n) < 0) {
        cr_assert_null(vg_sched_check(s));
        cr_assert_eq(vg_sched_set_node(s, &n), 0);
    }
    if (vg_sched_submit(s, &r, &err) < 0) {
        cr_assert_eq(err.code, -ENOMEM);
        cr_assert_null(vg_sched_check(s));
        cr_assert_eq(vg_sched_submit(s, &r, &err), 0);
    }
    n.total.cpu_milli = 2000;
    if (vg_sched_set_node(s, &n) < 0)
        cr_assert_eq(vg_sched_set_node(s, &n), 0);
    cr_assert_eq(vg_sched_next(s, &p), 1);
    cr_assert_null(vg_sched_check(s));
    vg_sched_free(s);
}

Test(sched_fault, events_fail_whole) {
    cr_assert_geq(fault_each(ENOMEM, "alloc", schedule, NULL), 8);
}
