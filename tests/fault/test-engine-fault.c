/* Every allocation of the engine fails once: the call that met it says so and leaves everything as
   it was, decisions go on, and the books stay right. */
#include "fault.h"
#include "sched/engine.h"

#define MINUTE (60 * 1000000ULL)

static void sound(const struct vg_eng *e) {
    const char *bad = vg_eng_check(e);
    cr_assert_null(bad, "%s", bad);
}

static bool done_or_no_memory(struct vg_eng *e, int r) {
    cr_assert(r == 0 || r == -ENOMEM || r == -EIO, "%d", r);
    sound(e);
    return r == 0;
}

static bool tenant(struct vg_eng *e, uint64_t id, uint64_t parent, uint64_t quota_gpus) {
    struct vg_eng_tenant t = {
        .id = id, .parent = parent, .name = "t", .limit = VG_ENG_NO_LIMIT, .weight = 1};
    t.quota.gpu_milli = 1000 * quota_gpus;
    return done_or_no_memory(e, vg_eng_set_tenant(e, &t));
}

static struct vg_eng_req req(uint64_t id, uint64_t who, uint32_t gpus) {
    return (struct vg_eng_req){.task = id,
                               .tenant = who,
                               .pool = {1},
                               .n_pools = 1,
                               .res = {.gpus = gpus, .cpu_milli = 100},
                               .order = id};
}

static bool submit(struct vg_eng *e, const struct vg_eng_req *r) {
    struct vg_err err = VG_ERR_INIT;
    size_t before = vg_eng_queued(e);
    bool ok = done_or_no_memory(e, vg_eng_submit(e, r, &err));
    cr_assert_eq(vg_eng_queued(e), before + ok, "it waits, or it was never there");
    return ok;
}

static bool submit_gang(struct vg_eng *e, uint64_t id, uint64_t who) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_eng_req r = req(0, who, 1);
    uint64_t ids[3] = {id, id + 1, id + 2};
    size_t before = vg_eng_queued(e);
    r.gang = id;
    r.order = id;
    bool ok = done_or_no_memory(e, vg_eng_submit_gang(e, &r, ids, 3, &err));
    cr_assert_eq(vg_eng_queued(e), before + (ok ? 3 : 0), "all of them, or none");
    return ok;
}

/* Takes what is decided; who is stopped leaves at once. */
static void settle(struct vg_eng *e) {
    struct vg_eng_decision d;
    for (int n = 0; n < 100 && vg_eng_next(e, &d); n++) {
        if (d.what == VG_ENG_PREEMPT)
            vg_eng_release(e, d.task, VG_ENG_PREEMPTED);
        sound(e);
    }
}

static bool set_up(struct vg_eng *e) {
    struct vg_eng_pool p = {.name = "p", .id = 1};
    struct vg_eng_gpu g[4] = {{.index = 0}, {.index = 1}, {.index = 2}, {.index = 3}};
    bool ok = done_or_no_memory(e, vg_eng_set_pool(e, &p));
    for (uint64_t i = 1; i <= 2; i++) {
        struct vg_eng_node n = {.id = i,
                                .name = "n",
                                .total = {.cpu_milli = 8000},
                                .gpu = g,
                                .n_gpus = 4,
                                .usable = true};
        ok = done_or_no_memory(e, vg_eng_set_node(e, &n)) && ok;
    }
    return tenant(e, 10, 0, 0) && tenant(e, 1, 10, 0) && tenant(e, 2, 0, 4) && ok;
}

/* A share on a card of its own node becomes smaller and larger. */
static void change_share(struct vg_eng *e) {
    struct vg_eng_gpu g = {.index = 0, .mem_bytes = 80ULL << 30};
    struct vg_eng_node n = {
        .id = 3, .name = "n", .total = {.cpu_milli = 8000}, .gpu = &g, .n_gpus = 1, .usable = true};
    struct vg_eng_req r = req(60, 1, 0);
    r.res.gpu_milli = 300;
    r.gpu_class = 1;
    if (!done_or_no_memory(e, vg_eng_set_node(e, &n)) || vg_eng_adopt(e, &r, 3, 1, 0) < 0)
        return;
    for (uint32_t milli = 100; milli < 1000; milli += 400) {
        struct vg_err err = VG_ERR_INIT;
        done_or_no_memory(e, vg_eng_reshare(e, 60, milli, 1ULL << 30, false, &err));
    }
}

/* Somebody has a node to itself; another waits for it. */
static void take_a_node(struct vg_eng *e) {
    struct vg_eng_req r = req(70, 2, 0), next = req(71, 1, 4);
    r.whole = true;
    submit(e, &r);
    settle(e);
    submit(e, &next);
    settle(e);
    vg_eng_release(e, 70, VG_ENG_ENDED);
    settle(e);
    vg_eng_release(e, 71, VG_ENG_ENDED);
}

static void play(void *ctx, bool armed) {
    struct vg_eng *e = vg_eng_new();
    uint64_t *whole = ctx;
    (void)armed;
    if (!e)
        return;
    if (set_up(e)) {
        struct vg_eng_req r;
        for (uint64_t i = 1; i <= 12; i++) {
            r = req(i, 1, 1 + (i > 8));
            r.priority = i % 2;
            submit(e, &r);
        }
        settle(e);
        vg_eng_now(e, 10 * MINUTE);
        r = req(20, 2, 2); /* reclaims */
        submit(e, &r);
        submit_gang(e, 30, 2);
        r = req(40, 1, 1);
        r.node = 7; /* not there */
        submit(e, &r);
        settle(e);
        tenant(e, 1, 0, 0); /* moves, with what it holds and waits for */
        struct vg_eng_conf c = vg_eng_conf_default();
        c.age_usec = MINUTE;
        done_or_no_memory(e, vg_eng_set_conf(e, &c));
        vg_eng_release(e, 31, VG_ENG_CANCELLED);
        sound(e);
        vg_eng_remove_node(e, 2);
        sound(e);
        settle(e);
        r = req(50, 2, 1);
        int rc = vg_eng_adopt(e, &r, 1, 1, 0);
        cr_assert(rc == 0 || rc == -ENOMEM);
        change_share(e);
        for (uint64_t i = 1; i <= 60; i++)
            vg_eng_release(e, i, VG_ENG_ENDED);
        sound(e);
        take_a_node(e);
        sound(e);
        cr_assert_eq(vg_eng_queued(e), 0);
        ++*whole;
    }
    vg_eng_free(e);
}

Test(engine_fault, every_event_happens_whole_or_not_at_all) {
    uint64_t whole = 0;
    unsigned n = fault_each(ENOMEM, "alloc", play, &whole);
    cr_assert_geq(n, 200, "%u", n);
    cr_assert_gt(whole, 100);
}
