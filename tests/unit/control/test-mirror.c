/* Offers of files and the links they become, between played services and agents. */
#include "base/util.h"
#include "control/job.h"
#include "control/mirror.h"
#include "control/nodes.h"
#include "world.h"

#include <stdio.h>
#include <string.h>

#define T1 0x5151000000000001ULL
#define T2 0x5151000000000002ULL

static struct world w;
static struct side client, service, agent, second;
static uint8_t machine[16] = "a machine's name";
static uint8_t other[16] = "another machine!";
static Vg__Pb__MirrorSpec mirror;

/* One end of a link, at the service or at the agent. */
struct end {
    struct vg_stream *stream;
    char got[64];
    size_t n;
    bool reset;
};
static struct end near, far;

static void on_data(struct vg_stream *s, void *user, const uint8_t *data, size_t n) {
    struct end *e = user;
    memcpy(e->got + e->n, data, VG_MIN(n, sizeof e->got - e->n));
    e->n += n;
    vg_stream_consumed(s, n);
}

static void on_reset(struct vg_stream *s, void *user, enum vg_reason reason) {
    struct end *e = user;
    (void)s;
    (void)reason;
    e->reset = true;
    e->stream = NULL;
}

static const struct vg_stream_ops end_ops = {.on_data = on_data, .on_reset = on_reset};

static struct end between[2]; /* a link between two nodes, at each */

static void open_far(struct side *s, const Vg__Pb__Envelope *env) {
    if (env->body_case == BODY(MIRROR_LINK) && env->mirror_link->peer) {
        struct end *e = &between[s == &second];
        e->stream = vg_stream_new(s->conn, env->mirror_link->stream, &end_ops, e);
        return;
    }
    if (s == &agent && env->body_case == BODY(MIRROR_LINK))
        far.stream = vg_stream_new(s->conn, env->mirror_link->stream, &end_ops, &far);
}

static void setup(void) {
    world_up(&w, NULL);
    near = far = between[0] = between[1] = (struct end){0};
    side_hook = open_far;
    vg__pb__mirror_spec__init(&mirror);
    mirror.has_machine = 1;
    mirror.machine = (ProtobufCBinaryData){.data = machine, .len = sizeof machine};
}

static void teardown(void) {
    side_hook = NULL;
    side_close(&w, &client);
    side_close(&w, &service);
    side_close(&w, &agent);
    side_close(&w, &second);
    world_down(&w);
}

TestSuite(mirror, .init = setup, .fini = teardown, .timeout = 120);

static void with_mirror(Vg__Pb__RunReq *r) {
    r->spec->mirror = &mirror;
}

static void mirrors(Vg__Pb__RunReq *r) {
    r->has_mirrors = r->mirrors = 1;
}

static void offer(uint64_t task, uint8_t *of, Vg__Pb__MirrorSpec *spec) {
    Vg__Pb__MirrorOffer m = VG__PB__MIRROR_OFFER__INIT;
    near = (struct end){0};
    near.stream = vg_stream_new(service.conn, 0, &end_ops, &near);
    m.has_task_id = m.has_stream = m.has_machine = 1;
    m.task_id = task;
    m.stream = vg_stream_id(near.stream);
    m.machine = (ProtobufCBinaryData){.data = of, .len = 16};
    m.spec = spec;
    ENV(env, MIRROR_OFFER, mirror_offer, &m);
    side_send(&service, &env, NULL, 0);
}

static void expect_ok(void) {
    struct msg m = side_expect(&w, &service, BODY(OK));
    msg_done(&m);
}

static void expect_refusal(enum vg_reason reason) {
    struct msg m = side_expect(&w, &service, BODY(ERROR));
    cr_assert_eq(m.env->error->reason, (uint32_t)reason, "%s", m.env->error->text);
    msg_done(&m);
}

static void expect_link(uint64_t task, uint32_t attempt) {
    struct msg m = side_expect(&w, &agent, BODY(MIRROR_LINK));
    const Vg__Pb__MirrorLink *l = m.env->mirror_link;
    cr_assert_eq(l->task_id, task);
    cr_assert_eq(l->attempt, attempt);
    cr_assert_eq(memcmp(l->machine.data, machine, 16), 0);
    cr_assert_str_eq(l->who->user, "root");
    cr_assert(far.stream);
    msg_done(&m);
}

static void expect_start(uint64_t task, uint32_t attempt, bool mirrored) {
    struct msg m = side_expect(&w, &agent, BODY(START));
    cr_assert_eq(m.env->start->task_id, task);
    cr_assert_eq(m.env->start->attempt, attempt);
    cr_assert_eq(m.env->start->spec->mirror != NULL, mirrored);
    msg_done(&m);
}

static void run_until_got(struct end *e, size_t n) {
    for (int i = 0; e->n < n && i < 100000; i++)
        uv_run(&w.loop, UV_RUN_ONCE);
    cr_assert_eq(e->n, n);
}

static void expect_bytes_both_ways(void) {
    near.n = far.n = 0;
    cr_assert_eq(vg_stream_send(near.stream, "flight", 6), 0);
    run_until_got(&far, 6);
    cr_assert_eq(memcmp(far.got, "flight", 6), 0);
    cr_assert_eq(vg_stream_send(far.stream, "get", 3), 0);
    run_until_got(&near, 3);
    cr_assert_eq(memcmp(near.got, "get", 3), 0);
}

/* An agent on another machine than the control plane's. */
static uint64_t agent_elsewhere(uint64_t id) {
    id = play_agent(&w, &agent, "n1", id, NULL, 0);
    snprintf(w.c.machine_id, sizeof w.c.machine_id, "here"); /* it said what this was before */
    vg_nodelink_get(&w.c, id)->local = false;
    return id;
}

Test(mirror, an_offer_that_comes_first_waits_for_its_task) {
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &service);
    side_open(&w, &client);
    offer(T1, machine, NULL);
    expect_ok();
    cr_assert(!side_has(&agent, BODY(MIRROR_LINK)));
    play_run(&client, T1, with_mirror);
    expect_start(T1, 1, true);
    expect_link(T1, 1);
    expect_bytes_both_ways();
}

Test(mirror, an_offer_that_comes_second_is_linked_at_once) {
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &service);
    side_open(&w, &client);
    play_run(&client, T1, with_mirror);
    expect_start(T1, 1, true);
    offer(T1, machine, NULL);
    expect_ok();
    expect_link(T1, 1);
    expect_bytes_both_ways();
}

Test(mirror, a_broken_link_is_seen_by_the_service_and_another_takes_its_place) {
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &service);
    side_open(&w, &client);
    play_run(&client, T1, with_mirror);
    expect_start(T1, 1, true);
    offer(T1, machine, NULL);
    expect_ok();
    expect_link(T1, 1);
    vg_stream_free(far.stream, VG_LOST);
    for (int i = 0; !near.reset && i < 100000; i++)
        uv_run(&w.loop, UV_RUN_ONCE);
    cr_assert(near.reset);
    far = (struct end){0};
    offer(T1, machine, NULL);
    expect_ok();
    expect_link(T1, 1);
    expect_bytes_both_ways();
}

Test(mirror, an_offer_that_comes_while_the_node_is_away_is_linked_when_it_is_back) {
    uint64_t node = play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &service);
    side_open(&w, &client);
    play_run(&client, T1, with_mirror);
    expect_start(T1, 1, true);
    play_started(&agent, T1, 1);
    side_sync(&w, &agent);
    side_close(&w, &agent);
    offer(T1, machine, NULL);
    expect_ok();
    Vg__Pb__TaskReport r = VG__PB__TASK_REPORT__INIT, *list[1] = {&r};
    r.has_task_id = r.has_attempt = r.has_state = 1;
    r.task_id = T1;
    r.attempt = 1;
    r.state = VG__PB__TASK_REPORT__STATE__RUNNING;
    play_agent(&w, &agent, "n1", node, list, 1);
    expect_link(T1, 1);
    expect_bytes_both_ways();
}

Test(mirror, an_offer_for_the_files_of_another_machine_is_refused) {
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &service);
    side_open(&w, &client);
    play_run(&client, T1, with_mirror);
    expect_start(T1, 1, true);
    offer(T1, other, NULL);
    expect_refusal(VG_CONFLICT);
    offer(0, machine, NULL);
    expect_refusal(VG_INVALID);
    cr_assert(!side_has(&agent, BODY(MIRROR_LINK)));
}

Test(mirror, a_waiting_offer_of_the_wrong_machine_is_dropped) {
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &service);
    side_open(&w, &client);
    offer(T1, other, NULL);
    expect_ok();
    play_run(&client, T1, with_mirror);
    expect_start(T1, 1, true);
    for (int i = 0; !near.reset && i < 100000; i++)
        uv_run(&w.loop, UV_RUN_ONCE);
    cr_assert(near.reset);
    cr_assert(!side_has(&agent, BODY(MIRROR_LINK)));
}

Test(mirror, offers_of_one_user_are_bounded) {
    side_open(&w, &service);
    for (uint64_t i = 0; i < VG_OFFERS_USER_MAX; i++) {
        offer(T1 + i, machine, NULL);
        expect_ok();
    }
    offer(T1 + 1, machine, NULL); /* takes the older one's place */
    expect_ok();
    offer(T1 + VG_OFFERS_USER_MAX, machine, NULL);
    expect_refusal(VG_NO_CAPACITY);
}

Test(mirror, an_offer_goes_with_its_connection) {
    side_open(&w, &service);
    side_open(&w, &client);
    offer(T1, machine, NULL);
    expect_ok();
    side_close(&w, &service);
    side_sync(&w, &client);
    cr_assert_eq(vg_map_len(&w.c.offers), 1u);
    vg_mlink_tick(&w.c);
    cr_assert_eq(vg_map_len(&w.c.offers), 0u);
}

Test(mirror, a_task_placed_elsewhere_waits_for_its_clients_files) {
    agent_elsewhere(0);
    side_open(&w, &service);
    side_open(&w, &client);
    play_run(&client, T1, mirrors);
    struct msg m;
    expect_event(&w, &client, VG__PB__RUN_EVENT__KIND__NEED_MIRROR, &m);
    msg_done(&m);
    side_sync(&w, &agent);
    cr_assert(!side_has(&agent, BODY(START)));
    offer(T1, machine, &mirror);
    expect_ok();
    expect_start(T1, 1, true);
    expect_link(T1, 1);
    expect_bytes_both_ways();
    play_exited(&agent, T1, 1, 0);
    expect_event(&w, &client, VG__PB__RUN_EVENT__KIND__ENDED, &m);
    msg_done(&m);
}

Test(mirror, an_offer_with_a_spec_that_came_first_spares_the_asking) {
    agent_elsewhere(0);
    side_open(&w, &service);
    side_open(&w, &client);
    offer(T1, machine, &mirror);
    expect_ok();
    play_run(&client, T1, mirrors);
    expect_start(T1, 1, true);
    expect_link(T1, 1);
    cr_assert(!side_has(&client, BODY(ERROR)));
}

Test(mirror, a_client_that_cannot_offer_files_gets_a_sentence) {
    agent_elsewhere(0);
    side_open(&w, &client);
    play_run(&client, T1, NULL);
    struct msg m;
    expect_event(&w, &client, VG__PB__RUN_EVENT__KIND__ENDED, &m);
    cr_assert_eq(m.env->run_event->reason, (uint32_t)VG_UNSUPPORTED);
    cr_assert(strstr(m.env->run_event->text, "another machine"));
    msg_done(&m);
    cr_assert(!side_has(&agent, BODY(START)));
}

Test(mirror, a_client_that_leaves_while_its_files_are_awaited_takes_its_task_along) {
    agent_elsewhere(0);
    side_open(&w, &service);
    side_open(&w, &client);
    play_run(&client, T1, mirrors);
    struct msg m;
    expect_event(&w, &client, VG__PB__RUN_EVENT__KIND__NEED_MIRROR, &m);
    msg_done(&m);
    side_close(&w, &client);
    side_sync(&w, &service);
    struct vg_job *j = vg_job_get(&w.c, T1);
    cr_assert(!j || vg_task_is_ended(j->task));
    cr_assert(!side_has(&agent, BODY(START)));
}

Test(mirror, a_task_on_the_same_machine_never_waits) {
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, mirrors);
    expect_start(T1, 1, false);
}

Test(mirror, a_pool_without_mirror_gives_the_nodes_own_files) {
    world_down(&w);
    world_up(&w, "pools: [{name: p, mirror: off}]\n");
    agent_elsewhere(0);
    side_open(&w, &service);
    side_open(&w, &client);
    offer(T2, machine, NULL);
    expect_ok();
    play_run(&client, T1, NULL);
    expect_start(T1, 1, false);
    play_run(&client, T2, with_mirror);
    expect_start(T2, 1, false);
    side_sync(&w, &agent);
    cr_assert(!side_has(&agent, BODY(MIRROR_LINK)));
}

/* As a node does when it cannot keep the files of one more. */
static void say_full(uint64_t task, uint32_t attempt) {
    Vg__Pb__TaskExited x = VG__PB__TASK_EXITED__INIT;
    x.has_task_id = x.has_attempt = x.has_status = x.has_reason = x.has_never_ran = 1;
    x.task_id = task;
    x.attempt = attempt;
    x.status = 125;
    x.reason = VG_DISK_FULL;
    x.never_ran = 1;
    x.text = "the node's disk is full";
    ENV(env, TASK_EXITED, task_exited, &x);
    side_send(&agent, &env, NULL, 0);
}

Test(mirror, a_task_that_a_full_node_refuses_goes_to_another) {
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, with_mirror);
    expect_start(T1, 1, true);
    play_agent(&w, &second, "n2", 0, NULL, 0);
    say_full(T1, 1);
    struct msg m = side_expect(&w, &second, BODY(START));
    cr_assert_eq(m.env->start->task_id, T1);
    cr_assert_eq(m.env->start->attempt, 2);
    msg_done(&m);
    cr_assert(!side_has(&agent, BODY(START)));
}

Test(mirror, a_task_that_the_only_node_refuses_waits_until_it_is_heard_of_again) {
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, with_mirror);
    expect_start(T1, 1, true);
    for (uint32_t attempt = 1; attempt < 20; attempt++) { /* however often: it is not given up */
        say_full(T1, attempt);
        side_sync(&w, &agent);
        cr_assert(!side_has(&agent, BODY(START)));
        Vg__Pb__Heartbeat beat = VG__PB__HEARTBEAT__INIT;
        ENV(env, HEARTBEAT, heartbeat, &beat);
        side_send(&agent, &env, NULL, 0);
        expect_start(T1, attempt + 1, true);
    }
}

static void expect_peer_link(struct side *s) {
    struct msg m;
    do {
        m = side_expect(&w, s, BODY(MIRROR_LINK));
        bool peer = m.env->mirror_link->peer;
        cr_assert(!peer || strcmp(m.env->mirror_link->who->user, "root") == 0);
        msg_done(&m);
        if (peer)
            return;
    } while (true);
}

Test(mirror, where_a_user_was_before_is_joined_to_where_he_is_now) {
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &service);
    side_open(&w, &client);
    play_run(&client, T1, with_mirror);
    expect_start(T1, 1, true);
    offer(T1, machine, NULL);
    expect_ok();
    expect_link(T1, 1);
    cr_assert(!side_has(&agent, BODY(MIRROR_LINK)), "nobody to be joined to");
    play_agent(&w, &second, "n2", 0, NULL, 0);
    say_full(T1, 1);
    struct msg m = side_expect(&w, &second, BODY(START));
    msg_done(&m);
    offer(T1, machine, NULL);
    expect_ok();
    expect_peer_link(&second);
    expect_peer_link(&agent);
    cr_assert(between[0].stream && between[1].stream);
    cr_assert_eq(vg_stream_send(between[0].stream, "asks", 4), 0);
    run_until_got(&between[1], 4);
    cr_assert_eq(vg_stream_send(between[1].stream, "has", 3), 0);
    run_until_got(&between[0], 3);
    cr_assert_eq(memcmp(between[0].got, "has", 3), 0);
    offer(T1, machine, NULL); /* a second link of the same task: they are joined already */
    expect_ok();
    side_sync(&w, &agent);
    cr_assert(!side_has(&agent, BODY(MIRROR_LINK)));
}
