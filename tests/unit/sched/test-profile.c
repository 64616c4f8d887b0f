/* Time: promises to blocked tasks and what is let past them, room that is kept, maintenance and
   advance reservations. */
#include "base/fault.h"
#include "engine-kit.h"
#include "sched/profile.h"

#define MINUTE (60 * VG_USEC)
#define HOUR (60 * MINUTE)
#define START (1000 * HOUR)

static struct vg_eng *make(uint64_t nodes, uint32_t gpus) {
    struct vg_eng *e = kit_new(nodes, gpus);
    struct vg_eng_conf c = vg_eng_conf_default();
    c.preempt = false;
    c.half_life_usec = 0;
    cr_assert_eq(vg_eng_set_conf(e, &c), 0);
    vg_eng_now(e, START);
    return e;
}

/* With a limit below every guess, it is expected to run just so long. */
static void submit(struct vg_eng *e, uint64_t id, uint32_t gpus, uint64_t run) {
    struct vg_eng_req r = kit_req(id, 1, gpus);
    r.limit_usec = run;
    kit_send(e, &r);
}

static void submit_gang(struct vg_eng *e, uint64_t first, size_t n, uint32_t gpus, uint64_t run) {
    uint64_t task[16];
    struct vg_err err = VG_ERR_INIT;
    struct vg_eng_req r = kit_req(first, 1, gpus);
    r.limit_usec = run;
    r.gang = first;
    for (size_t i = 0; i < n; i++)
        task[i] = first + i;
    cr_assert_eq(vg_eng_submit_gang(e, &r, task, n, &err), 0, "%s", err.msg);
}

static void check(const struct vg_eng *e) {
    const char *bad = vg_eng_check(e);
    if (!bad)
        bad = vg_time_check(e);
    cr_assert_null(bad, "%s", bad);
}

static struct etask *task(const struct vg_eng *e, uint64_t id) {
    return vg_map_get_u64(&e->tasks, id);
}

static const struct reservation *promise(const struct vg_eng *e, uint64_t id) {
    return task(e, id)->shape->reservation;
}

static const struct hold *first_hold(const struct reservation *r) {
    return vg_list_entry(r->holds.next, struct hold, link);
}

static void ends(struct vg_eng *e, uint64_t at, uint64_t id) {
    vg_eng_now(e, at);
    vg_eng_release(e, id, VG_ENG_CANCELLED); /* teaches nothing: estimates stay what they are */
}

Test(profile, a_blocked_task_is_promised_the_place_that_frees_first) {
    struct vg_eng *e = make(2, 8);
    submit(e, 1, 8, 20 * MINUTE);
    submit(e, 2, 8, 10 * MINUTE);
    cr_assert_eq(kit_next(e), 1);
    cr_assert_eq(kit_next(e), 2);
    submit(e, 3, 8, 10 * MINUTE);
    cr_assert_eq(kit_next(e), 0);
    cr_assert(promise(e, 3));
    cr_expect_eq(promise(e, 3)->from, START + 10 * MINUTE);
    cr_expect_eq(first_hold(promise(e, 3))->node, task(e, 2)->node);
    cr_expect_eq(vg_eng_wake(e), START + 10 * MINUTE);
    check(e);
    vg_eng_free(e);
}

Test(profile, what_ends_before_the_promise_is_let_past_and_what_does_not_waits) {
    struct vg_eng *e = make(1, 8);
    submit(e, 1, 6, 20 * MINUTE);
    cr_assert_eq(kit_next(e), 1);
    submit(e, 2, 8, 10 * MINUTE); /* needs the whole node, in 20 minutes */
    submit(e, 3, 1, 30 * MINUTE); /* would still run then */
    submit(e, 4, 1, 4 * MINUTE);
    cr_assert_eq(kit_next(e), 4);
    cr_assert_eq(kit_next(e), 0);
    cr_expect_eq(task(e, 3)->shape->code, VG_ENG_KEPT);
    ends(e, START + 4 * MINUTE, 4);
    cr_assert_eq(kit_next(e), 0);
    ends(e, START + 20 * MINUTE, 1);
    cr_assert_eq(kit_next(e), 2, "the promise is kept");
    cr_assert_eq(kit_next(e), 0);
    ends(e, START + 30 * MINUTE, 2);
    cr_assert_eq(kit_next(e), 3);
    check(e);
    vg_eng_free(e);
}

Test(profile, without_reservations_whatever_fits_starts) {
    struct vg_eng *e = make(1, 8);
    struct vg_eng_conf c = e->conf;
    c.reserve = 0;
    cr_assert_eq(vg_eng_set_conf(e, &c), 0);
    submit(e, 1, 6, 20 * MINUTE);
    cr_assert_eq(kit_next(e), 1);
    submit(e, 2, 8, 10 * MINUTE);
    submit(e, 3, 1, 30 * MINUTE);
    cr_expect_eq(kit_next(e), 3, "control: nothing is promised to the larger one");
    vg_eng_free(e);
}

Test(profile, a_promise_leaves_the_other_gpus_of_its_node_alone) {
    struct vg_eng *e = make(1, 8);
    submit(e, 1, 4, 20 * MINUTE);
    submit(e, 2, 2, 4 * HOUR);
    cr_assert_eq(kit_next(e), 1);
    cr_assert_eq(kit_next(e), 2);
    submit(e, 3, 4, 10 * MINUTE); /* 2 are free now: 4 will be once the first ends */
    submit(e, 4, 2, 25 * MINUTE); /* the two that are free may not be among them: 6 will be free */
    cr_assert_eq(kit_next(e), 4, "4 of the 6 are enough for the promise");
    cr_assert_eq(kit_next(e), 0);
    cr_expect_eq(promise(e, 3)->from, START + 20 * MINUTE);
    check(e);
    vg_eng_free(e);
}

Test(profile, cpu_and_memory_are_promised_too) {
    struct vg_eng *e = make(1, 0);
    struct vg_eng_req r = kit_req(1, 1, 0);
    r.res.cpu_milli = 40000;
    r.limit_usec = 20 * MINUTE;
    kit_send(e, &r);
    cr_assert_eq(kit_next(e), 1);
    r.task = r.order = 2;
    r.res.cpu_milli = 60000;
    kit_send(e, &r);
    r.task = r.order = 3;
    r.res.cpu_milli = 5000;
    r.limit_usec = 28 * MINUTE;
    kit_send(e, &r); /* beside the promised 60 there are only 4 CPUs left */
    r.task = r.order = 4;
    r.res.cpu_milli = 4000;
    kit_send(e, &r);
    cr_assert_eq(kit_next(e), 4);
    cr_assert_eq(kit_next(e), 0);
    cr_expect_eq(task(e, 3)->shape->code, VG_ENG_KEPT);
    check(e);
    vg_eng_free(e);
}

Test(profile, shares_of_a_gpu_are_promised_by_the_thousandth) {
    struct vg_eng *e = make(1, 1);
    struct vg_eng_req r = kit_req(1, 1, 0);
    r.res.gpu_milli = 600;
    r.limit_usec = 20 * MINUTE;
    kit_send(e, &r);
    cr_assert_eq(kit_next(e), 1);
    r.task = r.order = 2;
    r.res.gpu_milli = 700;
    kit_send(e, &r);
    cr_assert_eq(kit_next(e), 0);
    r.task = r.order = 3;
    r.res.gpu_milli = 350;
    r.limit_usec = 28 * MINUTE;
    kit_send(e, &r);
    cr_assert_eq(kit_next(e), 0, "700 and 350 do not go together in 20 minutes");
    cr_expect_eq(task(e, 3)->shape->code, VG_ENG_KEPT);
    r.task = r.order = 4;
    r.res.gpu_milli = 300;
    kit_send(e, &r);
    cr_assert_eq(kit_next(e), 4, "700 and 300 do");
    check(e);
    vg_eng_free(e);
}

Test(profile, a_share_does_not_grow_into_what_was_promised) {
    struct vg_eng *e = make(1, 1);
    struct vg_eng_req r = kit_req(1, 1, 0);
    struct vg_err err = VG_ERR_INIT;
    r.res.gpu_milli = 300;
    r.limit_usec = 60 * MINUTE;
    kit_send(e, &r);
    r.task = r.order = 2;
    r.res.gpu_milli = 400;
    r.limit_usec = 20 * MINUTE;
    kit_send(e, &r);
    cr_assert_eq(kit_next(e), 1);
    cr_assert_eq(kit_next(e), 2);
    r.task = r.order = 3;
    r.res.gpu_milli = 600;
    kit_send(e, &r);
    cr_assert_eq(kit_next(e), 0);
    cr_expect_eq(promise(e, 3)->from, START + 20 * MINUTE);
    cr_assert_lt(vg_eng_reshare(e, 1, 450, 8ULL << 30, false, &err), 0);
    cr_assert_str_eq(err.msg,
                     "what is free on GPU 0 of node node is kept for a task that waits for "
                     "it: ask for less, or ask again when that has run");
    cr_assert_eq(vg_eng_reshare(e, 1, 400, 8ULL << 30, false, &err), 0, "600 and 400 go together");
    check(e);
    cr_assert_eq(vg_eng_reshare(e, 2, 600, 48ULL << 30, false, &err), 0, "gone by then: %s",
                 err.msg);
    check(e);
    ends(e, START + 20 * MINUTE, 2);
    cr_assert_eq(kit_next(e), 3);
    check(e);
    vg_eng_free(e);
}

Test(profile, a_promised_card_is_kept_from_other_classes) {
    struct vg_eng *e = make(1, 1);
    struct vg_eng_req r = kit_req(1, 1, 0);
    r.res.gpu_milli = 600;
    r.gpu_class = 1;
    r.limit_usec = 20 * MINUTE;
    kit_send(e, &r);
    cr_assert_eq(kit_next(e), 1);
    r.task = r.order = 2;
    r.gpu_class = 2;
    r.res.gpu_milli = 100;
    kit_send(e, &r);
    cr_assert_eq(kit_next(e), 0, "another class has the card");
    cr_expect_eq(promise(e, 2)->from, START + 20 * MINUTE);
    r.task = r.order = 3;
    r.gpu_class = 1;
    r.limit_usec = 28 * MINUTE;
    kit_send(e, &r);
    cr_assert_eq(kit_next(e), 0, "it would still be there when the card changes its class");
    cr_expect_eq(task(e, 3)->shape->code, VG_ENG_KEPT);
    r.task = r.order = 4;
    r.limit_usec = 15 * MINUTE;
    kit_send(e, &r);
    cr_assert_eq(kit_next(e), 4, "it is gone by then");
    check(e);
    ends(e, START + 15 * MINUTE, 4);
    ends(e, START + 20 * MINUTE, 1);
    cr_assert_eq(kit_next(e), 2);
    check(e);
    vg_eng_free(e);
}

Test(profile, a_task_that_ends_early_brings_a_promise_forward) {
    struct vg_eng *e = make(3, 8);
    submit(e, 1, 4, 28 * MINUTE);
    submit(e, 2, 4, 28 * MINUTE); /* both on the first node */
    submit(e, 3, 8, 25 * MINUTE);
    submit(e, 4, 8, 26 * MINUTE);
    for (uint64_t i = 1; i <= 4; i++)
        cr_assert_eq(kit_next(e), i);
    cr_assert_eq(task(e, 1)->node, task(e, 2)->node);
    submit(e, 5, 8, 10 * MINUTE);
    cr_assert_eq(kit_next(e), 0);
    cr_expect_eq(promise(e, 5)->from, START + 25 * MINUTE);
    struct etask *first = task(e, 1);
    ends(e, START + MINUTE, 2);
    cr_assert_eq(kit_next(e), 0);
    cr_expect_eq(promise(e, 5)->from, START + 25 * MINUTE, "28 minutes are no better");
    first->limit_usec = 5 * MINUTE; /* learnt: it will end soon */
    vg_profile_end(e, first);
    first->expect_usec = 5 * MINUTE;
    vg_profile_begin(e, first);
    e->profile->freed[e->profile->n_freed++] = first->node->id;
    cr_assert_eq(kit_next(e), 0);
    cr_expect_eq(promise(e, 5)->from, START + 5 * MINUTE);
    cr_expect_eq(first_hold(promise(e, 5))->node, first->node);
    check(e);
    vg_eng_free(e);
}

Test(profile, an_overdue_task_breaks_a_promise_and_it_moves_elsewhere) {
    struct vg_eng *e = make(2, 8);
    submit(e, 1, 8, 10 * MINUTE);
    submit(e, 2, 8, 14 * MINUTE);
    cr_assert_eq(kit_next(e), 1);
    cr_assert_eq(kit_next(e), 2);
    submit(e, 3, 8, 10 * MINUTE);
    cr_assert_eq(kit_next(e), 0);
    cr_assert_eq(promise(e, 3)->from, START + 10 * MINUTE);
    vg_eng_now(e, START + 10 * MINUTE);
    cr_assert_eq(kit_next(e), 0, "the first still runs");
    cr_expect_gt(task(e, 1)->end_usec, START + 14 * MINUTE);
    cr_expect_eq(promise(e, 3)->from, START + 14 * MINUTE);
    cr_expect_eq(first_hold(promise(e, 3))->node, task(e, 2)->node);
    check(e);
    vg_eng_free(e);
}

Test(profile, what_was_let_past_and_keeps_its_estimate_pushes_nobody_back) {
    struct vg_eng *e = make(4, 8);
    uint64_t id = 1, now = START;
    for (int i = 0; i < 4; i++, id++)
        submit(e, id, 8, (20 + 2 * (uint64_t)i) * MINUTE);
    while (kit_next(e))
        ;
    uint64_t big = id++;
    submit(e, big, 8, 30 * MINUTE);
    cr_assert_eq(kit_next(e), 0);
    uint64_t from = promise(e, big)->from;
    for (int i = 0; i < 200; i++, id++)
        submit(e, id, 1 + (uint32_t)(i % 3), (1 + (uint64_t)(i * 7 % 25)) * MINUTE);
    for (now = START; task(e, big)->place != TASK_RUNS && now < START + 10 * HOUR; now += MINUTE) {
        vg_eng_now(e, now);
        for (uint64_t t = 1; t < id; t++)
            if (task(e, t) && task(e, t)->place == TASK_RUNS &&
                task(e, t)->started_usec + task(e, t)->limit_usec <= now)
                vg_eng_release(e, t, VG_ENG_CANCELLED);
        while (kit_next(e))
            ;
        check(e);
    }
    cr_expect_leq(task(e, big)->started_usec, from);
    vg_eng_free(e);
}

Test(profile, a_gang_is_promised_all_its_places_at_one_time) {
    struct vg_eng *e = make(4, 8);
    for (uint64_t i = 1; i <= 4; i++)
        submit(e, i, 8, (10 * i - 5) * MINUTE); /* 5, 15, 25, 35 -> 30 at most */
    for (uint64_t i = 1; i <= 4; i++)
        cr_assert_eq(kit_next(e), i);
    submit_gang(e, 10, 3, 8, 10 * MINUTE);
    submit(e, 20, 8, 28 * MINUTE);
    submit(e, 21, 8, 4 * MINUTE);
    cr_assert_eq(kit_next(e), 0);
    const struct reservation *r = promise(e, 10);
    cr_assert(r);
    cr_expect_eq(r->from, START + 25 * MINUTE);
    size_t holds = 0;
    vg_list_for_each (i, &r->holds)
        holds++;
    cr_expect_eq(holds, 3);
    ends(e, START + 5 * MINUTE, 1);
    cr_assert_eq(kit_next(e), 21, "this one is out again before the gang begins");
    cr_assert_eq(kit_next(e), 0);
    ends(e, START + 9 * MINUTE, 21);
    ends(e, START + 15 * MINUTE, 2);
    cr_assert_eq(kit_next(e), 0, "the longer one would be in the way");
    ends(e, START + 25 * MINUTE, 3);
    for (uint64_t i = 0; i < 3; i++)
        cr_assert_eq(kit_next(e), 10 + i);
    check(e);
    vg_eng_free(e);
}

Test(profile, kept_room_is_for_one_task_only) {
    struct vg_eng *e = make(1, 8);
    submit(e, 1, 4, 20 * MINUTE);
    submit(e, 2, 4, 20 * MINUTE);
    cr_assert_eq(kit_next(e), 1);
    cr_assert_eq(kit_next(e), 2);
    submit(e, 3, 4, 20 * MINUTE);
    cr_assert_eq(kit_next(e), 0);
    cr_assert_eq(vg_profile_keep(e, task(e, 3), task(e, 1)->node, task(e, 1)->gpus), 0);
    submit(e, 4, 1, MINUTE);
    struct vg_eng_req r = kit_req(5, 1, 4);
    r.limit_usec = 20 * MINUTE;
    r.priority = 9;
    r.res.cpu_milli = 200; /* another shape, and before everybody */
    kit_send(e, &r);
    ends(e, START + MINUTE, 1);
    cr_assert_eq(kit_next(e), 3);
    cr_assert_eq(kit_next(e), 0);
    check(e);
    vg_eng_free(e);
}

Test(profile, a_node_that_goes_takes_its_promises_with_it) {
    struct vg_eng *e = make(2, 8);
    submit(e, 1, 8, 20 * MINUTE);
    submit(e, 2, 8, 10 * MINUTE);
    cr_assert_eq(kit_next(e), 1);
    cr_assert_eq(kit_next(e), 2);
    submit(e, 3, 8, 10 * MINUTE);
    cr_assert_eq(kit_next(e), 0);
    uint64_t there = task(e, 2)->node->id;
    cr_assert_eq(first_hold(promise(e, 3))->node->id, there);
    kit_node(e, there, 8, false);
    cr_assert_eq(kit_next(e), 0);
    cr_expect_eq(promise(e, 3)->from, START + 20 * MINUTE, "draining: it is promised the other");
    vg_eng_remove_node(e, there);
    cr_assert_eq(kit_next(e), 0);
    check(e);
    vg_eng_remove_node(e, there == 1 ? 2 : 1);
    cr_assert_eq(kit_next(e), 0);
    cr_expect_null(promise(e, 3), "nothing can be promised without nodes");
    check(e);
    vg_eng_free(e);
}

/* ------------------------------------------------------------------ windows */

static void maintain(struct vg_eng *e, uint64_t node, uint64_t from, uint64_t until) {
    struct vg_eng_window w = {
        .id = 1, .from_usec = from, .until_usec = until, .node = node, .why = "new disks"};
    cr_assert_eq(vg_eng_set_window(e, &w), 0);
}

Test(window, no_task_runs_into_maintenance) {
    struct vg_eng *e = make(1, 8);
    maintain(e, 1, START + 10 * MINUTE, START + 60 * MINUTE);
    submit(e, 1, 1, 20 * MINUTE);
    submit(e, 2, 1, 4 * MINUTE);
    cr_assert_eq(kit_next(e), 2);
    cr_assert_eq(kit_next(e), 0);
    cr_expect_eq(task(e, 1)->shape->code, VG_ENG_WINDOW);
    cr_expect_eq(vg_eng_wake(e), START + 10 * MINUTE);
    ends(e, START + 10 * MINUTE, 2);
    submit(e, 3, 1, VG_USEC);
    cr_assert_eq(kit_next(e), 0, "it has begun");
    cr_expect_eq(vg_eng_wake(e), START + 60 * MINUTE);
    vg_eng_now(e, START + 60 * MINUTE);
    uint64_t a = kit_next(e), b = kit_next(e);
    cr_expect_eq(a + b, 4, "both start when it is over");
    check(e);
    vg_eng_free(e);
}

Test(window, a_window_that_is_taken_back_frees_those_it_held_up) {
    struct vg_eng *e = make(2, 8);
    maintain(e, 0, START + 10 * MINUTE, START + 60 * MINUTE);
    submit(e, 1, 1, 20 * MINUTE);
    cr_assert_eq(kit_next(e), 0, "of every node");
    vg_eng_remove_window(e, 1);
    cr_assert_eq(kit_next(e), 1);
    vg_eng_remove_window(e, 1);
    vg_eng_free(e);
}

Test(window, wrong_windows_are_refused) {
    struct vg_eng *e = make(1, 8);
    struct vg_eng_window w = {.id = 1, .from_usec = START + 1, .until_usec = START + 1};
    cr_expect_eq(vg_eng_set_window(e, &w), -EINVAL);
    w.until_usec = START + HOUR;
    w.tenant = 77;
    cr_expect_eq(vg_eng_set_window(e, &w), -ENOENT);
    w.tenant = 0;
    w.from_usec = 1;
    w.until_usec = START;
    cr_expect_eq(vg_eng_set_window(e, &w), 0, "over already");
    submit(e, 1, 1, 20 * MINUTE);
    cr_expect_eq(kit_next(e), 1);
    vg_eng_free(e);
}

static void submit_for(struct vg_eng *e, uint64_t id, uint64_t tenant, uint32_t gpus,
                       uint64_t run) {
    struct vg_eng_req r = kit_req(id, tenant, gpus);
    r.limit_usec = run;
    kit_send(e, &r);
}

static void reserve_for(struct vg_eng *e, uint64_t tenant, uint32_t gpus) {
    struct vg_eng_window w = {.id = 5,
                              .from_usec = START + 10 * MINUTE,
                              .until_usec = START + 5 * HOUR,
                              .pool = 1,
                              .tenant = tenant,
                              .gpus = gpus,
                              .why = "the demo"};
    cr_assert_eq(vg_eng_set_window(e, &w), 0);
}

Test(window, an_advance_reservation_keeps_cards_for_its_tenant) {
    struct vg_eng *e = make(2, 8);
    kit_tenant(e, 2, 0, 1);
    kit_tenant(e, 3, 2, 1); /* below it */
    submit_for(e, 90, 3, 8, 20 * MINUTE);
    submit_for(e, 91, 1, 1, 20 * MINUTE);
    reserve_for(e, 2, 8); /* set while they wait: their shapes part */
    cr_assert_neq(task(e, 90)->shape->grant, task(e, 91)->shape->grant);
    vg_eng_release(e, 90, VG_ENG_CANCELLED);
    vg_eng_release(e, 91, VG_ENG_CANCELLED);
    for (uint64_t i = 1; i <= 10; i++)
        submit_for(e, i, 1, 1, 20 * MINUTE);
    for (int i = 0; i < 8; i++)
        cr_assert_neq(kit_next(e), 0);
    cr_assert_eq(kit_next(e), 0, "8 of 16 are kept");
    submit_for(e, 20, 1, 1, 4 * MINUTE);
    cr_assert_eq(kit_next(e), 20, "out again before it begins");
    cr_assert_eq(kit_next(e), 0);
    ends(e, START + 4 * MINUTE, 20);
    vg_eng_now(e, START + 10 * MINUTE);
    cr_assert_eq(kit_next(e), 0);
    submit_for(e, 30, 3, 8, HOUR / 2);
    cr_assert_eq(kit_next(e), 30, "a tenant below it may use what is kept");
    check(e);
    ends(e, START + 12 * MINUTE, 30);
    cr_assert_eq(kit_next(e), 0, "and it is kept again after");
    vg_eng_now(e, START + 5 * HOUR);
    uint64_t a = kit_next(e), b = kit_next(e);
    cr_expect_neq(a, 0);
    cr_expect_neq(b, 0, "over: the others start");
    check(e);
    vg_eng_free(e);
}

Test(window, cards_that_the_tenant_got_elsewhere_count) {
    struct vg_eng *e = make(2, 8);
    kit_tenant(e, 2, 0, 1);
    reserve_for(e, 2, 8);
    submit_for(e, 1, 1, 4, 20 * MINUTE);
    cr_assert_eq(kit_next(e), 1);
    vg_eng_now(e, START + 10 * MINUTE);
    cr_assert_eq(kit_next(e), 0);
    submit_for(e, 2, 2, 4, 20 * MINUTE);
    cr_assert_eq(kit_next(e), 2);
    for (uint64_t i = 10; i < 30; i++)
        submit_for(e, i, 1, 1, 20 * MINUTE);
    int others = 0;
    while (kit_next(e))
        others++;
    cr_expect_eq(others, 4, "16 less 4 held by others, 4 by the tenant, and 4 still kept for it");
    check(e);
    vg_eng_free(e);
}

Test(window, whole_nodes_can_be_reserved) {
    struct vg_eng *e = make(1, 8);
    kit_tenant(e, 2, 0, 1);
    reserve_for(e, 2, 0);
    vg_eng_now(e, START + 10 * MINUTE);
    submit_for(e, 1, 1, 1, MINUTE);
    submit_for(e, 2, 2, 1, MINUTE);
    cr_assert_eq(kit_next(e), 2);
    cr_assert_eq(kit_next(e), 0);
    cr_expect_eq(task(e, 1)->shape->code, VG_ENG_WINDOW);
    check(e);
    vg_eng_free(e);
}

/* ------------------------------------------------------------------ without memory */

static void take_all(struct vg_eng *e) {
    struct vg_eng_decision d;
    while (vg_eng_next(e, &d))
        ;
}

/* Everything of this part once, with the nth allocation failing; what was accepted runs in the end.
 */
static bool survives(uint64_t nth) {
    struct vg_eng *e = make(3, 8);
    struct vg_err err = VG_ERR_INIT;
    struct vg_eng_why w;
    uint64_t gang[] = {50, 51, 52}, order[64];
    struct vg_eng_tenant_info info[8];
    char line[200];
    kit_tenant(e, 2, 0, 1);
    vg_fault_arm(nth, ENOMEM, NULL);
    for (uint64_t id = 1; id <= 12; id++) {
        struct vg_eng_req r = kit_req(id, 1 + id % 2, 1 + 3 * (uint32_t)(id % 3));
        r.limit_usec = id * MINUTE;
        r.kin = id;
        (void)vg_eng_submit(e, &r, &err);
        take_all(e);
    }
    struct vg_eng_req g = kit_req(50, 1, 8);
    g.gang = 50;
    (void)vg_eng_submit_gang(e, &g, gang, VG_COUNT(gang), &err);
    struct vg_eng_window win = {.id = 1,
                                .from_usec = START + 10 * MINUTE,
                                .until_usec = START + HOUR,
                                .pool = 1,
                                .tenant = 2,
                                .gpus = 8};
    (void)vg_eng_set_window(e, &win);
    win = (struct vg_eng_window){
        .id = 2, .from_usec = START + 2 * HOUR, .until_usec = START + 3 * HOUR, .node = 1};
    (void)vg_eng_set_window(e, &win);
    take_all(e);
    for (uint64_t id = 1; id <= 12; id++) {
        (void)vg_eng_why(e, id, &w);
        (void)vg_eng_brief(e, id, line, sizeof line);
    }
    g.gang = 0;
    g.task = 0;
    (void)vg_eng_forecast(e, &g, 2, &w);
    (void)vg_eng_order(e, 0, order, VG_COUNT(order));
    (void)vg_eng_tenants(e, info, VG_COUNT(info));
    vg_eng_now(e, START + 11 * MINUTE);
    take_all(e);
    for (uint64_t id = 1; id <= 12; id += 2)
        vg_eng_release(e, id, VG_ENG_ENDED);
    take_all(e);
    bool fired = vg_fault_disarm();
    check(e);
    vg_eng_remove_window(e, 1);
    vg_eng_remove_window(e, 2);
    for (int round = 0; round < 100 && vg_eng_queued(e); round++) {
        vg_eng_now(e, e->now + HOUR);
        for (uint64_t id = 1; id <= 52; id++)
            if (task(e, id) && task(e, id)->place == TASK_RUNS)
                vg_eng_release(e, id, VG_ENG_ENDED);
        take_all(e);
    }
    check(e);
    cr_assert_eq(vg_eng_queued(e), 0, "allocation %llu: somebody waits for ever",
                 (unsigned long long)nth);
    vg_eng_free(e);
    return fired;
}

Test(profile, every_allocation_may_fail) {
    uint64_t nth = 1;
    while (survives(nth))
        nth++;
    cr_expect_gt(nth, 100, "the fault points were passed");
}
