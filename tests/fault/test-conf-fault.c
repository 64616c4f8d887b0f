/* Every allocation of the configuration's reading fails once. */
#include "base/util.h"
#include "conf/conf.h"
#include "fault.h"
#include "model/task-row.h"
#include "sched/configure.h"

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

/* A group with everything it may carry, and one of its members, there and back. */
static void group_and_back(void *ctx, bool armed) {
    struct vg_task *group = ctx, *back = NULL, *member = vg_task_new_member(group, 1),
                   *again = NULL;
    struct vg_task_pack pack = {0};
    struct vg_task_row row;
    (void)armed;
    int r = vg_task_to_row(group, true, &pack, &row);
    if (r == 0)
        r = vg_task_from_row(&row, NULL, &back);
    vg_task_pack_done(&pack);
    if (r == 0 && member)
        r = vg_task_to_row(member, true, &pack, &row);
    if (r == 0 && member)
        r = vg_task_from_row(&row, back, &again);
    cr_assert(r == 0 || r == -ENOMEM);
    cr_assert(r == 0 || !again);
    if (r == 0)
        cr_assert(back->n_after == 2 && vg_progress_total(back->progress) == 3);
    vg_task_pack_done(&pack);
    vg_task_free(back);
    vg_task_free(member);
    vg_task_free(again);
}

Test(model_fault, groups_fail_cleanly) {
    Vg__Pb__TaskSpec *spec = malloc(sizeof *spec);
    vg__pb__task_spec__init(spec);
    struct vg_task *t = vg_task_new(1, "ann", "vision", spec, true, 1);
    t->members = 3;
    cr_assert_eq(vg_task_need_progress(t), 0);
    t->progress->n[VG_TASK_BLOCKED] = 3;
    cr_assert_eq(vg_task_add_after(t, 5, VG_AFTER_ANY), 0);
    cr_assert_eq(vg_task_add_after(t, 6, VG_AFTER_SUCCESS), 0);
    cr_assert_geq(fault_each(ENOMEM, "alloc", group_and_back, t), 8);
    vg_task_free(t);
}

/* Nodes and tasks come and go; whatever fails, the invariants hold and a second try works. */
/* Every event fails whole: the engine is as before, in order, and takes the event when it is told
   again. Decisions need no memory that may be missing. */
static void schedule(void *ctx, bool armed) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_eng *e = vg_eng_new();
    struct vg_eng_decision d;
    (void)ctx;
    (void)armed;
    if (!e)
        return;
    struct vg_eng_tenant team = {.id = 1, .name = "team", .limit = VG_ENG_NO_LIMIT, .weight = 1};
    struct vg_eng_pool pool = {.id = 1, .name = "p"};
    struct vg_eng_gpu gpu = {.mem_bytes = 1ULL << 34};
    struct vg_eng_node n = {.id = 1,
                            .name = "n",
                            .total = {.cpu_milli = 4000},
                            .gpu = &gpu,
                            .n_gpus = 1,
                            .usable = true};
    struct vg_eng_req r = {
        .task = 1, .tenant = 1, .pool = {1}, .n_pools = 1, .res = {.cpu_milli = 1000, .gpus = 1}};
    struct vg_eng_req g = {
        .tenant = 1, .pool = {1}, .n_pools = 1, .res = {.cpu_milli = 1000}, .gang = 9};
    const uint64_t members[] = {2, 3};
#define AGAIN(call)                          \
    do {                                     \
        if ((call) < 0) {                    \
            cr_assert_null(vg_eng_check(e)); \
            cr_assert_eq((call), 0);         \
        }                                    \
    } while (0)
    AGAIN(vg_eng_set_tenant(e, &team));
    AGAIN(vg_eng_set_pool(e, &pool));
    AGAIN(vg_eng_set_node(e, &n));
    AGAIN(vg_eng_submit(e, &r, &err));
    AGAIN(vg_eng_submit_gang(e, &g, members, 2, &err));
    n.total.cpu_milli = 8000;
    AGAIN(vg_eng_set_node(e, &n));
#undef AGAIN
    size_t started = 0;
    for (uint64_t now = 1; now <= 2; now++) { /* what found no memory is decided at the next look */
        vg_eng_now(e, now * 60000000);
        vg_eng_set_node(e, &n);
        while (vg_eng_next(e, &d) > 0)
            started += d.what == VG_ENG_START;
    }
    cr_assert_null(vg_eng_check(e));
    cr_assert_eq(started, 3);
    vg_eng_free(e);
}

Test(sched_fault, events_fail_whole) {
    cr_assert_geq(fault_each(ENOMEM, "alloc", schedule, NULL), 8);
}

/* An engine from a configuration: whole, or a second try makes it so. */
static void configure(void *ctx, bool armed) {
    struct vg_eng *e = vg_eng_new();
    struct vg_eng_home h;
    (void)armed;
    if (!e)
        return;
    int r = vg_eng_configure(e, ctx);
    cr_assert(r == 0 || r == -ENOMEM);
    cr_assert_null(vg_eng_check(e));
    if (r < 0)
        cr_assert_eq(vg_eng_configure(e, ctx), 0);
    r = vg_eng_user(e, ctx, "main", "t", "u", &h);
    cr_assert(r == 0 || r == -ENOMEM);
    if (r < 0)
        cr_assert_eq(vg_eng_user(e, ctx, "main", "t", "u", &h), 0);
    cr_assert_str_eq(h.path, "q/u");
    cr_assert_null(vg_eng_check(e));
    vg_eng_free(e);
}

Test(sched_fault, a_configuration_becomes_an_engine_whole) {
    struct vg_conf c;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_conf_parse(text, sizeof text - 1, "c.yaml", &c, &err), 0);
    cr_assert_geq(fault_each(ENOMEM, "alloc", configure, &c), 10);
    vg_conf_done(&c);
}
