/* Gangs on two played nodes: together or not at all, and what the loss of a member means. */
#include "base/cleanup.h"
#include "base/util.h"
#include "control/job.h"
#include "control/nodes.h"
#include "world.h"

#include <signal.h>
#include <string.h>

#define G1 0x1111111111111111ULL
#define N 4

static struct world w;
static struct side client, node[2];

static void setup(void) {
    world_up(&w, NULL);
    play_agent(&w, &node[0], "n1", 0, NULL, 0);
    play_agent(&w, &node[1], "n2", 0, NULL, 0);
    side_open(&w, &client);
}

static void teardown(void) {
    side_close(&w, &client);
    side_close(&w, &node[0]);
    side_close(&w, &node[1]);
    world_down(&w);
}

TestSuite(gang, .init = setup, .fini = teardown, .timeout = 120);

/* ------------------------------------------------------------------ playing */

static Vg__Pb__TaskSpec__GangPolicy policy;
static uint32_t retries;

static void tweak(Vg__Pb__RunReq *r) {
    static Vg__Pb__Resources want;
    Vg__Pb__TaskSpec *s = r->spec;
    vg__pb__resources__init(&want);
    want.has_cpu_milli = 1;
    want.cpu_milli = 1000; /* two on each node */
    s->want = &want;
    s->interactive = 0;
    s->has_detached = s->detached = 1;
    r->has_wait_durable = r->wait_durable = 1;
    s->has_shards = s->has_gang = s->gang = 1;
    s->shards = N;
    s->has_gang_policy = policy != 0;
    s->gang_policy = policy;
    s->has_retries = 1;
    s->retries = retries;
}

/* One member as its node sees it. */
struct member {
    struct side *at;
    uint32_t attempt;
    bool meeting;
    bool gated;
};

static uint32_t rank_of(uint64_t task) {
    for (uint32_t i = 0; i < N; i++)
        if (vg_task_member_id(G1, i) == task)
            return i;
    cr_assert_fail("not a member");
    return 0;
}

static void submit(void) {
    struct msg m;
    play_run(&client, G1, tweak);
    expect_event(&w, &client, VG__PB__RUN_EVENT__KIND__ACCEPTED, &m);
    msg_done(&m);
}

static bool take_start(struct side *s, struct member *all) {
    if (!side_has(s, BODY(START)))
        return false;
    struct msg m = side_expect(&w, s, BODY(START));
    const Vg__Pb__Start *st = m.env->start;
    all[rank_of(st->task_id)] = (struct member){s, st->attempt, st->meeting, st->gated};
    msg_done(&m);
    return true;
}

/* Waits for `n` Starts on whichever nodes. */
static void expect_starts(struct member *all, unsigned n) {
    while (n > 0) {
        unsigned got = take_start(&node[0], all) + take_start(&node[1], all);
        n -= got;
        if (!got)
            uv_run(&w.loop, UV_RUN_ONCE);
    }
}

static void say_ready(const struct member *m, uint32_t rank) {
    Vg__Pb__TaskReady r = VG__PB__TASK_READY__INIT;
    r.has_task_id = r.has_attempt = 1;
    r.task_id = vg_task_member_id(G1, rank);
    r.attempt = m->attempt;
    if (m->meeting) {
        r.has_port = 1;
        r.port = 4711;
        r.address = "192.0.2.7";
    }
    ENV(env, TASK_READY, task_ready, &r);
    side_send(m->at, &env, NULL, 0);
}

static bool go_has(const struct msg *m, const char *text) {
    const Vg__Pb__TaskGo *g = m->env->task_go;
    for (size_t i = 0; i < g->n_env; i++)
        if (g->env[i].len == strlen(text) && memcmp(g->env[i].data, text, strlen(text)) == 0)
            return true;
    return false;
}

static void expect_go(const struct member *m) {
    struct msg go = side_expect(&w, m->at, BODY(TASK_GO));
    cr_assert(go_has(&go, "MASTER_ADDR=192.0.2.7"));
    cr_assert(go_has(&go, "MASTER_PORT=4711"));
    msg_done(&go);
}

/* All four placed, prepared, begun and running. */
static void run_all(struct member *all) {
    expect_starts(all, N);
    for (uint32_t i = 0; i < N; i++)
        say_ready(&all[i], i);
    for (uint32_t i = 0; i < N; i++)
        expect_go(&all[i]);
    for (uint32_t i = 0; i < N; i++)
        play_started(all[i].at, vg_task_member_id(G1, i), all[i].attempt);
    side_sync(&w, &node[0]);
    side_sync(&w, &node[1]);
}

static void end(const struct member *m, uint32_t rank, int32_t status) {
    play_exited(m->at, vg_task_member_id(G1, rank), m->attempt, status);
}

static int32_t wait_group(void) {
    Vg__Pb__TaskRef r = VG__PB__TASK_REF__INIT;
    r.task = "1111111111111111";
    ENV(env, TASK_WAIT, task_wait, &r);
    side_send(&client, &env, NULL, 0);
    struct msg m = side_expect(&w, &client, BODY(TASK));
    int32_t status = m.env->task->status;
    msg_done(&m);
    return status;
}

static void sync_all(void) {
    side_sync(&w, &node[0]);
    side_sync(&w, &node[1]);
}

/* ------------------------------------------------------------------ together */

Test(gang, nobody_begins_before_all_are_ready_and_then_all_do) {
    struct member all[N];
    submit();
    expect_starts(all, N);
    for (uint32_t i = 0; i < N; i++) {
        cr_assert(all[i].gated);
        cr_assert_eq(all[i].meeting, i == 0);
    }
    for (uint32_t i = 0; i < N; i++) {
        sync_all();
        cr_assert_not(side_has(&node[0], BODY(TASK_GO)) || side_has(&node[1], BODY(TASK_GO)));
        say_ready(&all[i], i);
    }
    for (uint32_t i = 0; i < N; i++)
        expect_go(&all[i]);
    for (uint32_t i = 0; i < N; i++) {
        play_started(all[i].at, vg_task_member_id(G1, i), 1);
        end(&all[i], i, 0);
    }
    cr_assert_eq(wait_group(), 0);
}

Test(gang, local_ranks_count_the_members_of_each_node) {
    struct member all[N];
    uint32_t seen[2][2] = {0};
    submit();
    expect_starts(all, N);
    for (uint32_t i = 0; i < N; i++)
        say_ready(&all[i], i);
    for (uint32_t i = 0; i < N; i++) {
        struct msg go = side_expect(&w, all[i].at, BODY(TASK_GO));
        cr_assert(go_has(&go, "LOCAL_WORLD_SIZE=2"));
        seen[all[i].at == &node[1]][go_has(&go, "LOCAL_RANK=1")]++;
        msg_done(&go);
    }
    for (int i = 0; i < 4; i++)
        cr_assert_eq(seen[i / 2][i % 2], 1);
}

Test(gang, a_node_that_refuses_keeps_everybody_from_beginning) {
    struct member all[N];
    submit();
    expect_starts(all, N);
    for (uint32_t i = 0; i < N - 1; i++)
        say_ready(&all[i], i);
    Vg__Pb__TaskExited x = VG__PB__TASK_EXITED__INIT;
    x.has_task_id = x.has_attempt = x.has_status = x.has_reason = x.has_never_ran = 1;
    x.task_id = vg_task_member_id(G1, N - 1);
    x.attempt = 1;
    x.status = 125;
    x.reason = VG_CONFLICT; /* may be tried again at once */
    x.never_ran = 1;
    ENV(env, TASK_EXITED, task_exited, &x);
    side_send(all[N - 1].at, &env, NULL, 0);
    for (uint32_t i = 0; i < N - 1; i++) {
        struct msg kill = side_expect(&w, all[i].at, BODY(KILL));
        cr_assert_eq(kill.env->kill->signal, SIGKILL);
        msg_done(&kill);
    }
    cr_assert_not(side_has(&node[0], BODY(TASK_GO)) || side_has(&node[1], BODY(TASK_GO)));
    struct member again[N];
    run_all(again);
    for (uint32_t i = 0; i < N; i++) {
        cr_assert_gt(again[i].attempt, all[i].attempt);
        end(&again[i], i, 0);
    }
    cr_assert_eq(wait_group(), 0);
}

Test(gang, a_node_that_leaves_before_the_beginning_takes_it_back) {
    struct member all[N];
    submit();
    expect_starts(all, N);
    for (uint32_t i = 0; i < N; i++)
        if (all[i].at == &node[0])
            say_ready(&all[i], i);
    side_sync(&w, &node[0]);
    side_close(&w, &node[1]);
    struct msg kill = side_expect(&w, &node[0], BODY(KILL));
    msg_done(&kill);
    for (uint32_t i = 0; i < N; i++)
        cr_assert_eq(vg_job_get(&w.c, vg_task_member_id(G1, i))->task->state, VG_TASK_QUEUED);
    cr_assert_not(side_has(&node[0], BODY(TASK_GO)));
}

/* A node comes back with the members that it prepared, and says again that they are ready. */
static void come_back(struct side *s, const char *name, uint64_t id, const struct member *all) {
    Vg__Pb__TaskReport report[N], *reports[N];
    Vg__Pb__Start start = VG__PB__START__INIT;
    size_t n = 0;
    start.has_gated = start.gated = 1;
    for (uint32_t i = 0; i < N; i++) {
        if (all[i].at != s)
            continue;
        vg__pb__task_report__init(&report[n]);
        report[n].has_task_id = report[n].has_attempt = report[n].has_state = 1;
        report[n].task_id = vg_task_member_id(G1, i);
        report[n].attempt = all[i].attempt;
        report[n].state = VG__PB__TASK_REPORT__STATE__STARTING;
        report[n].start = &start;
        reports[n] = &report[n];
        n++;
    }
    play_agent(&w, s, name, id, reports, n);
}

Test(gang, a_restart_of_the_control_plane_between_ready_and_go_forgets_nothing) {
    struct member all[N];
    uint64_t ids[2] = {0};
    submit();
    expect_starts(all, N);
    vg_map_for_each (s, &w.c.nodes) {
        const struct vg_nodelink *a = s->value;
        ids[strcmp(a->node->name, "n2") == 0] = a->node->id;
    }
    for (uint32_t i = 0; i < N - 1; i++)
        say_ready(&all[i], i);
    sync_all();
    side_close(&w, &client);
    world_stop(&w);
    side_close(&w, &node[0]);
    side_close(&w, &node[1]);
    world_start(&w);
    side_open(&w, &client);
    come_back(&node[0], "n1", ids[0], all);
    come_back(&node[1], "n2", ids[1], all);
    for (uint32_t i = 0; i < N; i++)
        say_ready(&all[i], i);
    for (uint32_t i = 0; i < N; i++)
        expect_go(&all[i]);
    for (uint32_t i = 0; i < N; i++) {
        play_started(all[i].at, vg_task_member_id(G1, i), all[i].attempt);
        end(&all[i], i, 0);
    }
    cr_assert_eq(wait_group(), 0);
}

/* ------------------------------------------------------------------ losses */

Test(gang, heal_starts_the_killed_one_alone) {
    struct member all[N];
    submit();
    run_all(all);
    end(&all[2], 2, 128 + SIGKILL);
    expect_starts(all, 1);
    cr_assert_eq(all[2].attempt, 2);
    say_ready(&all[2], 2);
    expect_go(&all[2]);
    sync_all();
    cr_assert_not(side_has(&node[0], BODY(KILL)) || side_has(&node[1], BODY(KILL)));
    for (uint32_t i = 0; i < N; i++)
        end(&all[i], i, 0);
    cr_assert_eq(wait_group(), 0);
}

Test(gang, restart_stops_the_others_and_starts_all_again) {
    struct member all[N], again[N];
    policy = VG__PB__TASK_SPEC__GANG_POLICY__RESTART;
    submit();
    run_all(all);
    end(&all[1], 1, 128 + SIGKILL);
    for (uint32_t i = 0; i < N; i++) {
        if (i == 1)
            continue;
        struct msg kill = side_expect(&w, all[i].at, BODY(KILL));
        cr_assert_eq(kill.env->kill->signal, SIGTERM);
        msg_done(&kill);
        sync_all();
        cr_assert_not(side_has(&node[0], BODY(START)) || side_has(&node[1], BODY(START)));
    }
    for (uint32_t i = 0; i < N; i++)
        if (i != 1)
            end(&all[i], i, 128 + SIGTERM);
    run_all(again);
    for (uint32_t i = 0; i < N; i++) {
        cr_assert_eq(again[i].attempt, 2);
        end(&again[i], i, 0);
    }
    cr_assert_eq(wait_group(), 0);
}

Test(gang, fail_stops_the_others_and_the_status_is_the_lost_ones) {
    struct member all[N];
    policy = VG__PB__TASK_SPEC__GANG_POLICY__FAIL;
    submit();
    run_all(all);
    end(&all[3], 3, 128 + SIGKILL);
    for (uint32_t i = 0; i < N - 1; i++) {
        struct msg kill = side_expect(&w, all[i].at, BODY(KILL));
        msg_done(&kill);
        end(&all[i], i, 128 + SIGTERM);
    }
    cr_assert_eq(wait_group(), 128 + SIGKILL);
}

Test(gang, a_member_that_fails_by_itself_ends_the_gang_unless_retries_are_left) {
    struct member all[N], again[N];
    policy = VG__PB__TASK_SPEC__GANG_POLICY__RESTART;
    retries = 1;
    submit();
    run_all(all);
    end(&all[0], 0, 3);
    for (uint32_t i = 1; i < N; i++) {
        struct msg kill = side_expect(&w, all[i].at, BODY(KILL));
        msg_done(&kill);
        end(&all[i], i, 128 + SIGTERM);
    }
    run_all(again);
    end(&again[0], 0, 3);
    for (uint32_t i = 1; i < N; i++) {
        struct msg kill = side_expect(&w, again[i].at, BODY(KILL));
        msg_done(&kill);
        end(&again[i], i, 128 + SIGTERM);
    }
    cr_assert_eq(wait_group(), 3);
}

Test(gang, giving_way_concerns_the_whole) {
    struct member all[N], again[N];
    submit();
    run_all(all);
    struct vg_job *j = vg_job_get(&w.c, vg_task_member_id(G1, 2));
    cr_assert_eq(vg_job_preempt(j, VG_USEC, SIGUSR1, "for others"), 0);
    for (uint32_t i = 0; i < N; i++) {
        struct msg kill = side_expect(&w, all[i].at, BODY(KILL));
        cr_assert_eq(kill.env->kill->signal, SIGUSR1);
        msg_done(&kill);
    }
    for (uint32_t i = 0; i < N; i++)
        end(&all[i], i, 128 + SIGUSR1);
    run_all(again);
    cr_assert_eq(j->task->preempted, 1);
    for (uint32_t i = 0; i < N; i++)
        end(&again[i], i, 0);
    cr_assert_eq(wait_group(), 0);
}

Test(gang, a_cancelled_gang_is_cancelled_whole) {
    struct member all[N];
    submit();
    run_all(all);
    vg_job_cancel(vg_job_get(&w.c, G1), 0, "cancelled by ann");
    for (uint32_t i = 0; i < N; i++) {
        struct msg kill = side_expect(&w, all[i].at, BODY(KILL));
        msg_done(&kill);
        end(&all[i], i, 128 + SIGTERM);
    }
    cr_assert_neq(wait_group(), 0);
}
