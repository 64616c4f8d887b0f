/* Events on a played cloud: who is told what, and what happens to those who do not keep up. */
#include "base/cleanup.h"
#include "base/util.h"
#include "control/events.h"
#include "control/peer.h"
#include "world.h"

#include <string.h>

#define T1 0x1111111111111111ULL
#define T2 0x2222222222222222ULL
#define T3 0x3333333333333333ULL

static struct world w;
static struct side client, agent;

static void setup(void) {
    world_up(&w, NULL);
    side_open(&w, &client);
    side_hello(&client, NULL);
    side_sync(&w, &client);
}

static void teardown(void) {
    side_close(&w, &client);
    side_close(&w, &agent);
    world_down(&w);
}

TestSuite(events, .init = setup, .fini = teardown, .timeout = 120);

/* One who listens through a sink, and takes nothing while it is full. */
struct ear {
    struct vg_peer *peer;
    bool full;
    char state[4][16]; /* of tasks 1 to 3, as told last */
    unsigned told[4];
    unsigned nodes, errors;
    char node_state[16];
    uint64_t number; /* of the last event */
};

static void on_told(struct vg_peer *p, const Vg__Pb__Envelope *env, bool more) {
    struct ear *e = p->sink_user;
    cr_assert(!e->full, "it is told nothing that it has no room for");
    if (env->body_case == BODY(ERROR)) {
        e->errors++;
        return;
    }
    cr_assert(more && env->body_case == BODY(EVENT));
    cr_assert_gt(vg_events_number(&w.c), 0u);
    e->number = vg_events_number(&w.c);
    const Vg__Pb__Event *v = env->event;
    if (v->task) {
        size_t i = v->task->id & 15;
        e->told[i]++;
        snprintf(e->state[i], sizeof e->state[i], "%s", v->task->state);
    }
    if (v->node) {
        e->nodes++;
        snprintf(e->node_state, sizeof e->node_state, "%s", v->node->state);
    }
}

static size_t on_queued(const struct vg_peer *p) {
    const struct ear *e = p->sink_user;
    return e->full ? SIZE_MAX : 0;
}

static const struct vg_peer_sink sink = {.told = on_told, .queued = on_queued};

static void listen_to(struct ear *e, const char *topic) {
    struct vg_who who = {0};
    vg_map_for_each (s, &w.c.peers) {
        const struct vg_peer *p = s->value;
        if (p->kind == VG_PEER_CLIENT && p->conn)
            who = p->who;
    }
    who.groups = NULL;
    who.n_groups = 0;
    cr_assert_eq(vg_peer_new_inner(&w.c, &sink, e, &who, &e->peer), 0);
    e->peer->kind = VG_PEER_CLIENT;
    Vg__Pb__EventQuery q = VG__PB__EVENT_QUERY__INIT;
    char *topics[] = {(char *)topic};
    q.topic = topics;
    q.n_topic = 1;
    ENV(env, EVENTS, events, &q);
    vg_peer_ask(e->peer, &env);
}

static void detached(Vg__Pb__RunReq *r) {
    r->spec->interactive = 0;
    r->spec->has_detached = r->spec->detached = 1;
    r->has_wait_durable = r->wait_durable = 1;
}

static void submit(uint64_t task) {
    struct msg m;
    play_run(&client, task, detached);
    expect_event(&w, &client, VG__PB__RUN_EVENT__KIND__ACCEPTED, &m);
    msg_done(&m);
}

static void cancel(uint64_t task) {
    char id[VG_ID_LEN + 1];
    Vg__Pb__TaskSignal s = VG__PB__TASK_SIGNAL__INIT;
    vg_id_format(task, id);
    s.task = id;
    ENV(env, TASK_SIGNAL, task_signal, &s);
    side_send(&client, &env, NULL, 0);
    side_sync(&w, &client);
}

#define UNTIL(condition)              \
    do                                \
        uv_run(&w.loop, UV_RUN_ONCE); \
    while (!(condition))

Test(events, a_task_that_only_waits_is_told_and_so_is_its_end) {
    struct ear e = {0};
    listen_to(&e, "tasks");
    submit(T1);
    UNTIL(e.told[1]);
    cr_expect_str_eq(e.state[1], "queued");
    cancel(T1);
    UNTIL(strcmp(e.state[1], "cancelled") == 0);
    vg_peer_drop(e.peer);
    cr_expect_null(w.c.events, "nobody listens: nothing is kept");
}

Test(events, who_does_not_keep_up_gets_the_newest_state_once) {
    struct ear slow = {.full = true}, quick = {0};
    listen_to(&slow, "tasks");
    listen_to(&quick, "tasks");
    submit(T1);
    submit(T2);
    submit(T3);
    UNTIL(quick.told[1] && quick.told[2] && quick.told[3]);
    cancel(T1);
    UNTIL(strcmp(quick.state[1], "cancelled") == 0);
    cr_expect(!slow.told[1] && !slow.told[2]);
    slow.full = false;
    UNTIL(slow.told[1] && slow.told[2] && slow.told[3]);
    cr_expect_str_eq(slow.state[1], "cancelled");
    cr_expect_str_eq(slow.state[2], "queued");
    cr_expect_eq(slow.told[1], 1u, "not what it was in between");
    unsigned before = quick.told[1];
    for (int i = 0; i < 5; i++)
        uv_run(&w.loop, UV_RUN_ONCE);
    cr_expect_eq(quick.told[1], before, "who kept up is not told again");
    vg_peer_drop(slow.peer);
    vg_peer_drop(quick.peer);
}

Test(events, numbers_are_not_used_again_by_later_readers) {
    struct ear first = {0}, second = {0};
    listen_to(&first, "tasks");
    submit(T1);
    UNTIL(first.told[1]);
    vg_peer_drop(first.peer);
    listen_to(&second, "tasks");
    submit(T2);
    UNTIL(second.told[2]);
    cr_expect_gt(second.number, first.number);
    vg_peer_drop(second.peer);
}

Test(events, nodes_are_told_as_they_are_and_when_they_change) {
    struct ear e = {.full = true};
    listen_to(&e, "nodes");
    side_open(&w, &agent);
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    uv_run(&w.loop, UV_RUN_NOWAIT);
    e.full = false;
    UNTIL(e.nodes);
    cr_expect_str_eq(e.node_state, "ready");
    cr_expect_eq(e.told[1], 0u);
    vg_peer_drop(e.peer);
}

Test(events, a_topic_that_is_none_is_an_error) {
    struct ear e = {0};
    listen_to(&e, "weather");
    cr_expect_eq(e.errors, 1u);
    cr_expect_null(w.c.events);
    vg_peer_drop(e.peer);
}

Test(events, it_stops_while_somebody_listens) {
    struct ear e = {0};
    listen_to(&e, "tasks");
    submit(T1);
    world_stop(&w);
    cr_expect_null(w.c.events);
    vg_peer_drop(e.peer);
    world_start(&w);
}
