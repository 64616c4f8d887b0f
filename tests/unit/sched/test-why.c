/* Sentences: why a task waits, who holds what it needs, and when it should start. */
#include "engine-kit.h"
#include "sched/engine-int.h"

#define MINUTE (60 * VG_USEC)
#define HOUR (60 * MINUTE)
#define START (1000 * HOUR)

static void tenant(struct vg_eng *e, uint64_t id, const char *name, uint64_t limit) {
    struct vg_eng_tenant t = {.id = id, .name = name, .limit = VG_ENG_NO_LIMIT, .weight = 1};
    t.limit.gpu_milli = limit ? limit * 1000 : UINT64_MAX;
    cr_assert_eq(vg_eng_set_tenant(e, &t), 0);
}

static void node(struct vg_eng *e, uint64_t id, const char *name, uint32_t gpus, bool usable) {
    struct vg_eng_gpu g[VG_NODE_GPUS_MAX] = {0};
    for (uint32_t i = 0; i < gpus; i++)
        g[i] = (struct vg_eng_gpu){.index = i, .mem_bytes = 80ULL << 30};
    struct vg_eng_node n = {.id = id,
                            .name = name,
                            .total = {.cpu_milli = 64000, .mem_bytes = 512ULL << 30},
                            .gpu = g,
                            .n_gpus = gpus,
                            .model = "A100",
                            .usable = usable};
    cr_assert_eq(vg_eng_set_node(e, &n), 0);
}

static struct vg_eng *make(void) {
    struct vg_eng *e = vg_eng_new();
    cr_assert(e);
    struct vg_eng_pool p = {.name = "a100", .id = 1}, q = {.name = "any", .id = 2};
    struct vg_eng_conf c = vg_eng_conf_default();
    c.preempt = false;
    cr_assert_eq(vg_eng_set_conf(e, &c), 0);
    cr_assert_eq(vg_eng_set_pool(e, &p), 0);
    cr_assert_eq(vg_eng_set_pool(e, &q), 0);
    tenant(e, 1, "alice", 0);
    tenant(e, 2, "bob", 0);
    vg_eng_now(e, START);
    return e;
}

static void submit(struct vg_eng *e, uint64_t id, uint64_t who, uint32_t gpus, uint64_t run) {
    struct vg_eng_req r = kit_req(id, who, gpus);
    r.limit_usec = run;
    kit_send(e, &r);
}

static struct vg_eng_why w;

static void says(struct vg_eng *e, uint64_t task, enum vg_eng_code code, const char *text) {
    cr_assert_eq(vg_eng_why(e, task, &w), 0);
    cr_expect_str_eq(w.text, text);
    cr_expect_eq(w.code, code, "%d: %s", w.code, w.text);
}

static const char *brief(struct vg_eng *e, uint64_t task) {
    static char line[200];
    cr_assert_eq(vg_eng_brief(e, task, line, sizeof line), 0);
    return line;
}

Test(why, a_first_node_that_is_full_at_once_is_busy_not_missing) {
    struct vg_eng *e = make();
    submit(e, 1, 1, 8, 20 * MINUTE);
    submit(e, 2, 1, 8, 20 * MINUTE);
    cr_assert_eq(kit_next(e), 0);
    cr_assert_eq(vg_eng_why(e, 2, &w), 0);
    cr_assert_eq(w.code, VG_ENG_NO_NODES);
    node(e, 1, "n1", 8, true);
    cr_assert_eq(kit_next(e), 1);
    cr_assert_eq(kit_next(e), 0);
    cr_assert_eq(vg_eng_why(e, 2, &w), 0);
    cr_assert_eq(w.code, VG_ENG_BUSY, "%s", w.text);
    cr_assert_eq(w.start_usec, START + 20 * MINUTE, "and it was promised the place");
    vg_eng_free(e);
}

Test(why, next_in_line_says_what_is_short_who_holds_it_and_when) {
    struct vg_eng *e = make();
    node(e, 1, "n1", 8, true);
    submit(e, 1, 1, 5, 20 * MINUTE);
    submit(e, 2, 2, 2, 10 * MINUTE);
    cr_assert_neq(kit_next(e), 0);
    cr_assert_neq(kit_next(e), 0);
    submit(e, 3, 1, 2, 5 * MINUTE);
    cr_assert_eq(kit_next(e), 0);
    says(e, 3, VG_ENG_BUSY,
         "next on a100: it needs 2 GPUs on one node and at most 1 is free; held by alice (5 GPUs) "
         "and bob (2); it should start in about 10 min");
    cr_expect_eq(w.start_usec, START + 10 * MINUTE);
    cr_expect_eq(vg_eng_ends(e, 2), START + 10 * MINUTE);
    cr_expect_eq(vg_eng_ends(e, 3), VG_ENG_NEVER, "it does not run");
    cr_expect_eq(w.node, 1);
    cr_expect_eq(w.run_usec, 5 * MINUTE);
    cr_expect_eq(w.n_holders, 2);
    cr_expect_eq(w.holder[0].tenant, 1);
    cr_expect_eq(w.holder[0].gpu_milli, 5000);
    cr_expect_eq(w.holder[0].until_usec, START + 20 * MINUTE);
    cr_expect_eq(w.holder[1].tasks, 1);
    cr_expect_str_eq(w.basis, "a place promised on n1, by the expected ends of the tasks there");
    cr_expect_str_eq(brief(e, 3), "you are next on a100, about 10 min");
    cr_expect_eq(vg_eng_why(e, 1, &w), -ENOENT, "it runs");
    cr_expect_eq(vg_eng_why(e, 99, &w), -ENOENT);
    char line[8];
    cr_expect_eq(vg_eng_brief(e, 1, line, sizeof line), -ENOENT);
    vg_eng_free(e);
}

Test(why, behind_others_it_counts_them) {
    struct vg_eng *e = make();
    node(e, 1, "n1", 1, true);
    submit(e, 1, 1, 1, 10 * MINUTE);
    cr_assert_eq(kit_next(e), 1);
    for (uint64_t i = 2; i < 5; i++)
        submit(e, i, 1, 1, 10 * MINUTE);
    cr_assert_eq(kit_next(e), 0);
    says(e, 4, VG_ENG_AHEAD,
         "2 ahead of you on a100; held by alice (1 GPU); it should start in about 30 min");
    cr_expect_eq(w.ahead, 2);
    cr_expect(w.start_usec >= START + 30 * MINUTE && w.start_usec < START + 33 * MINUTE,
              "three runs of ten minutes, and what the steps of time add");
    cr_expect_str_eq(w.basis, "the expected run times of what runs and of the 2 before it");
    cr_expect_str_eq(brief(e, 4), "2 ahead of you on a100, about 30 min");
    vg_eng_free(e);
}

Test(why, what_is_let_past_is_not_expected_behind_what_blocks) {
    struct vg_eng *e = make();
    node(e, 1, "n1", 8, true);
    submit(e, 1, 1, 6, 28 * MINUTE);
    cr_assert_eq(kit_next(e), 1);
    submit(e, 2, 1, 8, 28 * MINUTE); /* in 28 minutes */
    submit(e, 3, 1, 2, 4 * MINUTE);  /* now */
    cr_assert_eq(kit_next(e), 3);
    submit(e, 4, 1, 2, 4 * MINUTE);
    cr_assert_eq(kit_next(e), 0);
    cr_assert_eq(vg_eng_why(e, 4, &w), 0);
    cr_expect_lt(w.start_usec, START + 6 * MINUTE, "%s", w.text);
    vg_eng_free(e);
}

Test(why, at_its_limit_it_names_the_tenant_and_when_it_will_hold_less) {
    struct vg_eng *e = make();
    tenant(e, 3, "vision", 4);
    node(e, 1, "n1", 8, true);
    submit(e, 1, 3, 3, 20 * MINUTE);
    submit(e, 2, 3, 1, 10 * MINUTE);
    cr_assert_eq(kit_next(e), 1);
    cr_assert_eq(kit_next(e), 2);
    submit(e, 3, 3, 2, 5 * MINUTE);
    cr_assert_eq(kit_next(e), 0);
    says(e, 3, VG_ENG_AT_LIMIT,
         "vision is at its limit: it holds 4 of 4 GPUs; it should start in about 20 min");
    cr_expect_str_eq(w.basis, "the expected ends of what vision runs");
    cr_expect_str_eq(brief(e, 3), w.text);
    struct vg_eng_tenant t = {
        .id = 4, .name = "guests", .quota.gpu_milli = 1000, .limit = VG_ENG_NO_LIMIT, .weight = 0};
    cr_assert_eq(vg_eng_set_tenant(e, &t), 0);
    submit(e, 4, 4, 2, 5 * MINUTE);
    cr_assert_eq(kit_next(e), 0);
    says(e, 4, VG_ENG_AT_LIMIT,
         "guests may have nothing beyond its quota, and 2 GPUs more would be");
    t = (struct vg_eng_tenant){.id = 5, .name = "small", .limit = VG_ENG_NO_LIMIT, .weight = 1};
    t.limit.cpu_milli = 500;
    t.limit.mem_bytes = 1 << 30;
    cr_assert_eq(vg_eng_set_tenant(e, &t), 0);
    struct vg_eng_req r = kit_req(5, 5, 0);
    r.res.cpu_milli = 1000;
    kit_send(e, &r);
    r.task = r.order = 6;
    r.res.cpu_milli = 0;
    r.res.mem_bytes = 2ULL << 30;
    kit_send(e, &r);
    cr_assert_eq(kit_next(e), 0);
    says(e, 5, VG_ENG_AT_LIMIT, "small is at its limit: it holds 0 of 0.5 CPUs");
    says(e, 6, VG_ENG_AT_LIMIT, "small is at its limit: it holds 0 B of 1 GiB of memory");
    vg_eng_free(e);
}

Test(why, a_promise_in_the_way_is_named) {
    struct vg_eng *e = make();
    node(e, 1, "n1", 8, true);
    submit(e, 1, 1, 6, 20 * MINUTE);
    cr_assert_eq(kit_next(e), 1);
    submit(e, 2, 2, 8, 10 * MINUTE);
    submit(e, 3, 1, 1, 30 * MINUTE);
    cr_assert_eq(kit_next(e), 0);
    cr_assert_eq(vg_eng_why(e, 3, &w), 0);
    cr_expect_eq(w.code, VG_ENG_KEPT);
    cr_expect(strstr(w.text,
                     "it would fit, but would delay a task of bob that is before it and is "
                     "to have 8 GPUs of n1 in 20 min; it should start in about 30 min") == w.text,
              "%s", w.text);
    vg_eng_free(e);
}

Test(why, maintenance_and_reservations_are_named) {
    struct vg_eng *e = make();
    node(e, 1, "n1", 8, true);
    struct vg_eng_window m = {.id = 1,
                              .from_usec = START + 10 * MINUTE,
                              .until_usec = START + HOUR,
                              .node = 1,
                              .why = "new disks"};
    cr_assert_eq(vg_eng_set_window(e, &m), 0);
    submit(e, 1, 1, 1, 20 * MINUTE);
    cr_assert_eq(kit_next(e), 0);
    says(e, 1, VG_ENG_WINDOW,
         "maintenance of pool a100: new disks begins in 10 min, and it might still run then; it "
         "should start in about 60 min");
    cr_expect_eq(w.start_usec, START + HOUR);
    vg_eng_now(e, START + 20 * MINUTE);
    cr_assert_eq(kit_next(e), 0);
    says(e, 1, VG_ENG_WINDOW,
         "maintenance of pool a100: new disks has begun, and it might still run then; it should "
         "start in about 40 min");
    vg_eng_remove_window(e, 1);
    struct vg_eng_window k = {.id = 2,
                              .from_usec = START + 30 * MINUTE,
                              .until_usec = START + 2 * HOUR,
                              .pool = 1,
                              .tenant = 2,
                              .gpus = 8,
                              .why = "the demo"};
    cr_assert_eq(vg_eng_set_window(e, &k), 0);
    cr_assert_eq(kit_next(e), 0);
    says(e, 1, VG_ENG_WINDOW,
         "what is free in pool a100 is kept for bob: the demo, whose reservation begins in 10 min, "
         "and it might still run then; it should start in about 2 h");
    vg_eng_free(e);
}

Test(why, without_nodes_it_says_what_to_do) {
    struct vg_eng *e = make();
    submit(e, 1, 1, 1, 20 * MINUTE);
    cr_assert_eq(kit_next(e), 0);
    says(e, 1, VG_ENG_NO_NODES, "pool a100 has no nodes yet; 'virga node invite' adds one");
    cr_expect_eq(w.start_usec, VG_ENG_NEVER);
    cr_expect_str_eq(brief(e, 1), w.text);
    node(e, 1, "n1", 8, false);
    cr_assert_eq(kit_next(e), 0);
    says(e, 1, VG_ENG_NO_NODES,
         "no node of pool a100 takes tasks now: 1 is draining, lost or away");
    node(e, 2, "n2", 1, true);
    submit(e, 2, 1, 4, 20 * MINUTE);
    cr_assert_eq(kit_next(e), 1);
    cr_assert_eq(kit_next(e), 0);
    says(e, 2, VG_ENG_TOO_BIG,
         "the nodes of pool a100 that could hold its 4 GPUs take no tasks now");
    vg_eng_free(e);
}

Test(why, a_session_waits_for_its_node) {
    struct vg_eng *e = make();
    node(e, 1, "n1", 1, true);
    node(e, 2, "n2", 8, true);
    struct vg_eng_req r = kit_req(1, 1, 1);
    r.node = 1;
    r.limit_usec = 10 * MINUTE;
    for (r.task = r.order = 1; r.task < 4; r.task = ++r.order)
        kit_send(e, &r);
    cr_assert_eq(kit_next(e), 1);
    cr_assert_eq(kit_next(e), 0);
    says(e, 2, VG_ENG_PINNED,
         "it waits for 1 GPU on node n1, where its session is; it should start in about 10 min");
    says(e, 3, VG_ENG_PINNED,
         "1 ahead of you on node n1, where its session is; it should start in about 10 min");
    node(e, 1, "n1", 1, false);
    says(e, 2, VG_ENG_PINNED, "node n1, where its session is, takes no tasks now");
    vg_eng_remove_node(e, 1);
    says(e, 2, VG_ENG_PINNED, "the node where its session is has gone away");
    vg_eng_free(e);
}

Test(why, room_being_made_is_said) {
    struct vg_eng *e = make();
    node(e, 1, "n1", 4, true);
    submit(e, 1, 1, 2, 20 * MINUTE);
    submit(e, 2, 1, 2, 20 * MINUTE);
    cr_assert_eq(kit_next(e), 1);
    cr_assert_eq(kit_next(e), 2);
    submit(e, 3, 2, 4, 20 * MINUTE);
    cr_assert_eq(kit_next(e), 0);
    struct etask *a = vg_map_get_u64(&e->tasks, 1), *t = vg_map_get_u64(&e->tasks, 3);
    a->leaving = true;
    cr_assert_eq(vg_profile_keep(e, t, a->node, 0xf), 0);
    says(e, 3, VG_ENG_FREEING, "1 task is being stopped on n1 to make room for it");
    ((struct etask *)vg_map_get_u64(&e->tasks, 2))->leaving = true;
    says(e, 3, VG_ENG_FREEING, "2 tasks are being stopped on n1 to make room for it");
    vg_profile_unkeep(e, t);
    vg_eng_free(e);
}

Test(why, other_shortages_and_gangs) {
    struct vg_eng *e = make();
    struct vg_err err = VG_ERR_INIT;
    node(e, 1, "n1", 1, true);
    node(e, 2, "n2", 1, true);
    struct vg_eng_req r = kit_req(1, 1, 0);
    r.res = (struct vg_res){.gpu_milli = 600, .cpu_milli = 40000, .mem_bytes = 400ULL << 30};
    r.limit_usec = 10 * MINUTE;
    kit_send(e, &r);
    r.task = r.order = 2;
    kit_send(e, &r);
    cr_assert_eq(kit_next(e), 1);
    cr_assert_eq(kit_next(e), 2);
    r.task = r.order = 3;
    r.res.gpu_milli = 500;
    kit_send(e, &r);
    r.task = r.order = 4;
    r.res = (struct vg_res){.cpu_milli = 32000};
    kit_send(e, &r);
    r.task = r.order = 5;
    r.res = (struct vg_res){.mem_bytes = 200ULL << 30};
    r.pool[0] = 2;
    r.pool[1] = 1;
    r.n_pools = 2;
    kit_send(e, &r);
    uint64_t members[2] = {10, 11};
    r.res = (struct vg_res){.gpus = 1};
    r.gang = 10;
    r.n_pools = 1;
    cr_assert_eq(vg_eng_submit_gang(e, &r, members, 2, &err), 0, "%s", err.msg);
    cr_assert_eq(kit_next(e), 0);
    cr_assert_eq(vg_eng_why(e, 3, &w), 0);
    cr_expect(strstr(w.text, "it needs 0.5 of a GPU and at most 0.4 of one is free"), "%s", w.text);
    cr_assert_eq(vg_eng_why(e, 4, &w), 0);
    cr_expect(strstr(w.text, "ahead of you on a100; held by alice (2 tasks)") ||
                  strstr(w.text, "held by alice (1.2 GPUs)"),
              "%s", w.text);
    cr_assert_eq(vg_eng_why(e, 5, &w), 0);
    cr_expect(strstr(w.text, "on any or a100"), "%s", w.text);
    for (uint64_t i = 3; i < 6; i++)
        vg_eng_release(e, i, VG_ENG_CANCELLED);
    vg_eng_release(e, 2, VG_ENG_CANCELLED);
    cr_assert_eq(kit_next(e), 0);
    says(e, 11, VG_ENG_BUSY,
         "next on any: its 2 members need 1 GPU each and there is room for 1 now; held by alice "
         "(0.6 GPUs); it should start in about 10 min");
    vg_eng_free(e);
}

Test(why, a_share_says_what_its_card_is_short_of) {
    struct vg_eng *e = make();
    node(e, 1, "n1", 1, true);
    struct vg_eng_req r = kit_req(1, 1, 0);
    r.res = (struct vg_res){.gpu_milli = 300, .gpu_mem_bytes = 30ULL << 30};
    r.gpu_class = 1;
    r.limit_usec = 10 * MINUTE;
    kit_send(e, &r);
    cr_assert_eq(kit_next(e), 1);
    static const struct {
        struct vg_res res;
        uint8_t gpu_class;
        const char *says;
    } table[] = {
        {{.gpu_milli = 800}, 1, "it needs 0.8 of a GPU and at most 0.7 of one is free"},
        {{.gpu_milli = 800, .gpu_mem_bytes = 1ULL << 30},
         1,
         "it needs 0.8 of a GPU with 1 GiB and at most 0.7 of one is free"},
        {{.gpu_milli = 200, .gpu_mem_bytes = 60ULL << 30},
         1,
         "it needs 0.2 of a GPU with 60 GiB and a card with that much free has at most 50 GiB "
         "left"},
        {{.gpu_milli = 700},
         1,
         "it needs 0.7 of a GPU with its part of the memory and a card with that much free has at "
         "most 50 GiB left"},
        {{.gpu_milli = 100},
         2,
         "it needs 0.1 of a GPU, and what is free is on cards that another class holds"},
    };
    for (size_t i = 0; i < VG_COUNT(table); i++) {
        r.task = r.order = 2 + i;
        r.res = table[i].res;
        r.gpu_class = table[i].gpu_class;
        cr_assert_eq(vg_eng_forecast(e, &r, 1, &w), 0);
        cr_expect(w.code == VG_ENG_BUSY && strstr(w.text, table[i].says), "%zu: %s", i, w.text);
        cr_expect_eq(w.start_usec, START + 10 * MINUTE, "when the card is free");
    }
    vg_eng_release(e, 1, VG_ENG_ENDED);
    vg_eng_remove_node(e, 1);
    struct vg_eng_gpu g = {.index = 0};
    struct vg_eng_node blank = {.id = 2, .name = "n2", .gpu = &g, .n_gpus = 1, .usable = true};
    blank.total.cpu_milli = 1000;
    cr_assert_eq(vg_eng_set_node(e, &blank), 0);
    r.gpu_class = 1;
    r.res = (struct vg_res){.gpu_milli = 100};
    cr_assert_eq(vg_eng_forecast(e, &r, 1, &w), 0);
    cr_expect(strstr(w.text, "how much memory the cards have is not known yet"), "%s", w.text);
    vg_eng_free(e);
}

/* ------------------------------------------------------------------ forecasts */

static void foresees(struct vg_eng *e, uint64_t who, uint32_t gpus, size_t members,
                     enum vg_eng_code code, const char *text) {
    struct vg_eng_req r = kit_req(0, who, gpus);
    r.limit_usec = 10 * MINUTE;
    cr_assert_eq(vg_eng_forecast(e, &r, members, &w), 0);
    cr_expect_str_eq(w.text, text);
    cr_expect_eq(w.code, code);
    cr_assert_null(vg_eng_check(e), "looking ahead changes nothing");
}

Test(forecast, it_says_what_would_happen_and_changes_nothing) {
    struct vg_eng *e = make();
    node(e, 1, "n1", 4, true);
    node(e, 2, "n2", 4, true);
    foresees(e, 1, 4, 2, VG_ENG_FREE, "it would start now, on n1 and others");
    cr_expect_eq(w.start_usec, START);
    submit(e, 1, 1, 4, 20 * MINUTE);
    cr_assert_eq(kit_next(e), 1);
    struct vg_eng_req r = kit_req(0, 2, 4);
    cr_assert_eq(vg_eng_forecast(e, &r, 1, &w), 0);
    cr_expect_eq(w.code, VG_ENG_FREE);
    cr_expect_eq(w.run_usec, 30 * MINUTE, "a guess");
    submit(e, 2, 1, 4, 25 * MINUTE);
    cr_assert_eq(kit_next(e), 2);
    foresees(e, 2, 1, 1, VG_ENG_BUSY,
             "next on a100: it needs 1 GPU and 0 are free; held by alice (8 GPUs); it should "
             "start in about 20 min");
    submit(e, 3, 2, 4, 10 * MINUTE);
    cr_assert_eq(kit_next(e), 0);
    struct vg_eng_req same = kit_req(0, 2, 4);
    same.limit_usec = 10 * MINUTE;
    cr_assert_eq(vg_eng_forecast(e, &same, 1, &w), 0);
    cr_expect_eq(w.code, VG_ENG_AHEAD);
    cr_expect_eq(w.ahead, 1);
    cr_expect_geq(w.start_usec, START + 25 * MINUTE);
    cr_expect_leq(w.start_usec, START + 32 * MINUTE);
    same.res.gpus = 9;
    cr_expect_lt(vg_eng_forecast(e, &same, 1, &w), 0, "no node could ever");
    cr_expect_eq(vg_eng_queued(e), 1);
    vg_eng_free(e);
}

Test(forecast, limits_and_sessions) {
    struct vg_eng *e = make();
    tenant(e, 3, "vision", 1);
    node(e, 1, "n1", 4, true);
    foresees(e, 3, 2, 1, VG_ENG_AT_LIMIT, "vision is at its limit: it holds 0 of 1 GPUs");
    submit(e, 1, 1, 4, 20 * MINUTE);
    cr_assert_eq(kit_next(e), 1);
    struct vg_eng_req r = kit_req(0, 1, 1);
    r.node = 1;
    cr_assert_eq(vg_eng_forecast(e, &r, 1, &w), 0);
    cr_expect_str_eq(
        w.text, "it waits for 1 GPU on node n1, where its session is; it should start in about 20 "
                "min");
    r.node = 9;
    cr_assert_eq(vg_eng_forecast(e, &r, 1, &w), 0);
    cr_expect_str_eq(w.text, "the node where its session is has gone away");
    vg_eng_free(e);
}

/* ------------------------------------------------------------------ deep queues */

Test(eta, a_deep_queue_is_estimated_by_its_pace) {
    struct vg_eng *e = make();
    node(e, 1, "n1", 4, true);
    for (uint64_t i = 1; i <= 4004; i++)
        submit(e, i, 1 + i % 2, 1, 10 * MINUTE);
    while (kit_next(e))
        ;
    cr_assert_eq(vg_eng_why(e, 4003, &w), 0);
    cr_expect(w.ahead > 3900 && w.ahead <= 4000, "%u", w.ahead);
    uint64_t wait = w.start_usec - START, real = 1000 * 10 * MINUTE;
    cr_expect(wait > real / 2 && wait < real * 2, "%s", w.text);
    cr_expect_str_eq(w.basis, "the pace at which those before it are expected to start");
    vg_eng_free(e);
}

static void refuses(struct vg_eng *e, const struct vg_eng_req *r, const char *text) {
    struct vg_err err = VG_ERR_INIT;
    cr_expect_lt(vg_eng_check_fit(e, r, 1, &err), 0);
    cr_expect_str_eq(err.msg, text);
    cr_expect_eq(err.reason, VG_NO_CAPACITY);
}

Test(why, what_can_never_be_is_refused_with_what_is_short) {
    struct vg_eng *e = make();
    node(e, 1, "n1", 8, true);
    struct vg_eng_req r = kit_req(1, 1, 16);
    refuses(e, &r,
            "no node of pool 'a100' has 16 GPUs (the largest has 8); ask for less or another pool");
    r.res = (struct vg_res){.cpu_milli = 96500};
    refuses(e, &r,
            "no node of pool 'a100' has 96.5 CPUs (the largest has 64); ask for less or another "
            "pool");
    r.res = (struct vg_res){.mem_bytes = 1ULL << 40};
    refuses(e, &r,
            "no node of pool 'a100' has 1 TiB of memory (the largest has 512 GiB); ask for less or "
            "another pool");
    r.res = (struct vg_res){.gpu_milli = 500, .gpu_mem_bytes = 96ULL << 30};
    refuses(e, &r,
            "no node of pool 'a100' has a GPU with 96 GiB of memory (the largest has 80 GiB); ask "
            "for less or another pool");
    node(e, 2, "n2", 0, true);
    struct vg_eng_node big = {.id = 3,
                              .name = "n3",
                              .total = {.cpu_milli = 256000, .mem_bytes = 1ULL << 30},
                              .usable = true};
    cr_assert_eq(vg_eng_set_node(e, &big), 0);
    r.res = (struct vg_res){.gpus = 8, .cpu_milli = 128000};
    refuses(e, &r,
            "no node of pool 'a100' has all that it asks for together; ask for less or another "
            "pool");
    r.res = (struct vg_res){.gpus = 1};
    r.model = "H100";
    r.pool[1] = 2;
    r.n_pools = 2;
    refuses(e, &r,
            "no node of pool 'a100' or the others it names has the GPU model or the labels that it "
            "asks for; ask for less or another pool");
    vg_eng_free(e);
}

Test(why, a_short_line_knows_of_tasks_that_came_a_moment_ago) {
    struct vg_eng *e = make();
    node(e, 1, "n1", 1, true);
    for (uint64_t i = 1; i <= 4; i++) {
        submit(e, i, 1, 1, 10 * MINUTE);
        if (i == 1)
            cr_assert_eq(kit_next(e), 1);
        else
            cr_assert_eq(kit_next(e), 0);
        if (i == 2)
            cr_expect_str_eq(brief(e, i), "you are next on a100, about 10 min");
        if (i == 3)
            cr_expect_str_eq(brief(e, i), "1 ahead of you on a100, about 20 min");
    }
    cr_expect_str_eq(brief(e, 4), "2 ahead of you on a100, about 30 min");
    vg_eng_free(e);
}
