/* What a machine that has joined, and was then broken into, can do to the rest: nothing. */
#include "base/util.h"
#include "control/job.h"
#include "control/nodes.h"
#include "model/session.h"
#include "world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define T1 0x1111000000000001ULL

static struct world w;
static struct side local, node, root;
static char *cert, *key;
static char node_id[VG_ID_LEN + 1];

static void join(void) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__InviteReq q = VG__PB__INVITE_REQ__INIT;
    ENV(invite, NODE_INVITE, node_invite, &q);
    side_open(&w, &root);
    side_send(&root, &invite, NULL, 0);
    struct msg m = side_expect(&w, &root, BODY(TOKEN_NEW));
    uint8_t *csr = NULL;
    size_t len = 0;
    cr_assert_eq(vg_key_create(&key, &err), 0);
    cr_assert_eq(vg_csr_create(key, "anything", &csr, &len, &err), 0);
    Vg__Pb__JoinReq j = VG__PB__JOIN_REQ__INIT;
    j.token = m.env->token_new->token;
    j.has_csr_der = 1;
    j.csr_der = (ProtobufCBinaryData){.data = csr, .len = len};
    ENV(env, JOIN, join, &j);
    side_open_tls(&w, &node, NULL, NULL);
    side_send(&node, &env, NULL, 0);
    msg_done(&m);
    free(csr);
    m = side_expect(&w, &node, BODY(JOIN_OK));
    memcpy(node_id, m.env->join_ok->node_id, sizeof node_id);
    cert = strndup((char *)m.env->join_ok->cert_pem.data, m.env->join_ok->cert_pem.len);
    msg_done(&m);
    side_close(&w, &node);
}

static void setup(void) {
    world_up(&w, NULL);
    memset(&local, 0, sizeof local);
    join();
}

static void teardown(void) {
    side_close(&w, &local);
    side_close(&w, &node);
    side_close(&w, &root);
    free(cert);
    free(key);
    world_down(&w);
}

TestSuite(node_trust, .init = setup, .fini = teardown);

/* The joined node says hello and reports a running task of root, as it likes to tell it. */
static void report(uint64_t task, char *token, uint32_t retries) {
    Vg__Pb__Identity who = VG__PB__IDENTITY__INIT;
    Vg__Pb__TaskSpec spec = VG__PB__TASK_SPEC__INIT;
    Vg__Pb__Start start = VG__PB__START__INIT;
    Vg__Pb__TaskReport r = VG__PB__TASK_REPORT__INIT, *list[1] = {&r};
    Vg__Pb__AgentHello h = VG__PB__AGENT_HELLO__INIT;
    Vg__Pb__Resources total = VG__PB__RESOURCES__INIT;
    ProtobufCBinaryData argv[1] = {{.data = (uint8_t *)"evil", .len = 4}};
    char made[VG_TASK_TOKEN_MAX];
    who.user = "root";
    who.has_uid = who.has_local = who.local = 1;
    if (!token) {
        cr_assert_eq(vg_task_token_make(w.c.ca.task_key, task, &who, made), 0);
        token = made;
    }
    spec.argv = argv;
    spec.n_argv = 1;
    spec.pool = "default";
    spec.has_detached = spec.detached = spec.has_retries = 1;
    spec.retries = retries;
    start.has_task_id = 1;
    start.task_id = task;
    start.spec = &spec;
    start.who = &who;
    start.task_token = token;
    r.has_task_id = r.has_attempt = r.has_state = 1;
    r.task_id = task;
    r.attempt = 1;
    r.state = VG__PB__TASK_REPORT__STATE__RUNNING;
    r.start = &start;
    total.has_cpu_milli = 1;
    total.cpu_milli = 1000;
    h.node_id = node_id;
    h.name = "far";
    h.total = &total;
    h.task = list;
    h.n_task = 1;
    ENV(env, AGENT_HELLO, agent_hello, &h);
    side_open_tls(&w, &node, cert, key);
    side_send(&node, &env, NULL, 0);
    struct msg m = side_expect(&w, &node, BODY(AGENT_HELLO_OK));
    msg_done(&m);
    side_sync(&w, &node);
}

Test(node_trust, a_made_up_task_is_killed_not_believed) {
    report(T1, "vgk_1111000000000001_00000000000000000000000000000000", 0);
    struct msg m = side_expect(&w, &node, BODY(KILL));
    cr_assert_eq(m.env->kill->task_id, T1);
    msg_done(&m);
    cr_assert_eq(vg_map_len(&w.c.jobs), 0);
}

Test(node_trust, the_token_of_one_owner_does_not_make_a_task_of_another) {
    char token[VG_TASK_TOKEN_MAX];
    Vg__Pb__Identity eve = VG__PB__IDENTITY__INIT;
    eve.user = "eve";
    cr_assert_eq(vg_task_token_make(w.c.ca.task_key, T1, &eve, token), 0);
    report(T1, token, 0);
    cr_assert_null(vg_job_get(&w.c, T1));
}

Test(node_trust, what_only_a_far_node_knows_is_never_started_elsewhere) {
    play_agent(&w, &local, "here", 0, NULL, 0);
    report(T1, NULL, 3);
    cr_assert(vg_job_get(&w.c, T1), "a task that we did give to it is believed");
    play_exited(&node, T1, 1, 1);
    struct msg m = side_expect(&w, &node, BODY(EXIT_ACK));
    msg_done(&m);
    side_sync(&w, &local);
    cr_assert_not(side_has(&local, BODY(START)), "its retries were started on another node");
}

static void batch(Vg__Pb__RunReq *r) {
    r->spec->interactive = 0;
    r->spec->has_detached = r->spec->detached = 1;
}

Test(node_trust, a_waiting_task_of_this_life_cannot_be_claimed) {
    play_run(&root, T1, batch);
    side_sync(&w, &root);
    report(T1, NULL, 0);
    struct vg_job *j = vg_job_get(&w.c, T1);
    cr_assert(j);
    cr_assert_eq(memcmp(j->task->spec->argv[0].data, "true", 4), 0);
    struct msg m = side_expect(&w, &node, BODY(KILL));
    msg_done(&m);
}

Test(node_trust, a_node_cannot_take_the_name_of_another) {
    struct vg_err err = VG_ERR_INIT;
    uint64_t first = play_agent(&w, &local, "far", 0, NULL, 0);
    report(T1, NULL, 0);
    struct vg_nodelink *named = vg_nodelink_find(&w.c, "far", &err);
    cr_assert(named);
    cr_assert_eq(named->node->id, first);
    char other[64];
    snprintf(other, sizeof other, "far-%s", node_id);
    cr_assert(vg_nodelink_find(&w.c, other, &err), "%s", err.msg);
    side_close(&w, &local);
    play_agent(&w, &local, "far", first, NULL, 0);
    cr_assert_str_eq(vg_nodelink_name(&w.c, first), "far", "its own name is not in its way");
}

/* ------------------------------------------------------------------ clocks */

#define HOUR (3600ULL * 1000000)

static struct vg_job *started(uint64_t said) {
    struct msg m = side_expect(&w, &local, BODY(START));
    Vg__Pb__TaskStarted s = VG__PB__TASK_STARTED__INIT;
    msg_done(&m);
    s.has_task_id = s.has_attempt = s.has_started_usec = 1;
    s.task_id = T1;
    s.attempt = 1;
    s.started_usec = said;
    ENV(env, TASK_STARTED, task_started, &s);
    side_send(&local, &env, NULL, 0);
    side_sync(&w, &local);
    return vg_job_get(&w.c, T1);
}

static Vg__Pb__GpuUsage *use; /* that it tells; NULL: none */

static void exited(uint64_t from, uint64_t until) {
    Vg__Pb__TaskExited x = VG__PB__TASK_EXITED__INIT;
    x.has_task_id = x.has_attempt = x.has_status = x.has_started_usec = x.has_ended_usec = 1;
    x.task_id = T1;
    x.attempt = 1;
    x.started_usec = from;
    x.ended_usec = until;
    x.gpu_usage = use;
    ENV(env, TASK_EXITED, task_exited, &x);
    side_send(&local, &env, NULL, 0);
    struct msg m = side_expect(&w, &local, BODY(EXIT_ACK));
    msg_done(&m);
}

#define MJ_MAX (24 * 3600 * 100000000ULL) /* of 100 kW, a day long */

static int sum_held(void *arg, const struct vg_ledger_row *row) {
    *(uint64_t *)arg += row->until_usec - row->from_usec;
    cr_assert_leq(row->energy_mj, MJ_MAX);
    cr_assert_leq(row->gpu_busy_usec, 64 * 24 * HOUR);
    cr_assert_leq(row->gpu_unused_usec, 64 * 24 * HOUR);
    return 0;
}

/* What the ledger says that it held. */
static uint64_t held_usec(void) {
    struct vg_ledger_filter f = {.task = T1};
    uint64_t sum = 0;
    vg_store_flush(w.c.store);
    cr_assert_eq(vg_store_load_ledger(w.c.store, &f, sum_held, &sum), 0);
    return sum;
}

/* Says that it began at `said`, and ended so much later; how long it held at most is what this test
 * took. */
static uint64_t charged(uint64_t said, uint64_t later) {
    uint64_t before = vg_wall_usec();
    play_agent(&w, &local, "here", 0, NULL, 0);
    play_run(&root, T1, batch);
    struct vg_job *j = started(said);
    cr_assert(j);
    cr_assert_geq(j->task->started_usec, before, "it began before it was sent");
    cr_assert_leq(j->task->started_usec, vg_wall_usec(), "it began in the future");
    exited(said, said + later);
    uint64_t held = held_usec();
    cr_assert_leq(held, vg_wall_usec() - before, "longer than there was time");
    return held;
}

Test(node_trust, a_clock_that_is_late_makes_nothing_dearer) {
    charged(vg_wall_usec() - HOUR, 2 * HOUR);
}

Test(node_trust, a_clock_that_is_early_makes_nothing_dearer) {
    charged(vg_wall_usec() + HOUR, 24 * HOUR);
}

Test(node_trust, what_a_node_measured_counts_whatever_its_clock_says) {
    cr_assert_eq(charged(vg_wall_usec() - 24 * HOUR, 1), 1);
}

Test(node_trust, the_end_of_time_is_no_time_to_pay_for) {
    charged(1, INT64_MAX);
}

Test(node_trust, a_beginning_beyond_all_clocks_is_now) {
    charged(UINT64_MAX - 5, 4);
}

Test(node_trust, energy_that_nobody_can_have_used_is_not_added_up) {
    Vg__Pb__GpuUsage u = VG__PB__GPU_USAGE__INIT;
    u.has_energy_mj = u.has_sampled_usec = u.has_unused_usec = u.has_sm_mean_milli = 1;
    u.energy_mj = u.sampled_usec = u.unused_usec = INT64_MAX;
    u.sm_mean_milli = UINT32_MAX;
    use = &u;
    charged(vg_wall_usec(), 1000);
    use = NULL;
}
