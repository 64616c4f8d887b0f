/* Schedules on a played cloud. The clock is not waited for: a schedule is made due by hand. */
#include "base/cleanup.h"
#include "base/util.h"
#include "control/schedule.h"
#include "world.h"

#include <string.h>

#define S1 0x1111111111111111ULL

static struct world w;
static struct side client, agent;
static char *when = "every 1h";

static void setup(void) {
    world_up(&w, NULL);
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
}

static void teardown(void) {
    side_close(&w, &client);
    side_close(&w, &agent);
    world_down(&w);
}

TestSuite(schedule, .init = setup, .fini = teardown, .timeout = 120);

static void tweak(Vg__Pb__RunReq *r) {
    r->spec->interactive = 0;
    r->spec->has_detached = r->spec->detached = 1;
    r->has_wait_durable = r->wait_durable = 1;
    r->spec->name = "nightly";
    r->spec->schedule = when;
}

static void add(void) {
    struct msg m;
    play_run(&client, S1, tweak);
    expect_event(&w, &client, VG__PB__RUN_EVENT__KIND__ACCEPTED, &m);
    cr_assert_eq(m.env->run_event->task_id, S1);
    cr_assert_not(m.env->more, "there is nothing to follow");
    msg_done(&m);
}

static struct vg_schedule *schedule(void) {
    return vg_map_get_u64(&w.c.schedules, S1);
}

static void fire(void) {
    schedule()->next_usec = 1;
    vg_schedules_tick(&w.c);
}

static uint64_t expect_start(void) {
    struct msg m = side_expect(&w, &agent, BODY(START));
    uint64_t id = m.env->start->task_id;
    cr_assert_eq(m.env->start->spec->made_by, S1);
    msg_done(&m);
    return id;
}

static void finish(uint64_t id) {
    play_started(&agent, id, 1);
    play_exited(&agent, id, 1, 0);
    struct msg m = side_expect(&w, &agent, BODY(EXIT_ACK));
    msg_done(&m);
}

Test(schedule, makes_a_task_when_it_is_due_and_not_before) {
    add();
    cr_assert_gt(schedule()->next_usec, vg_wall_usec());
    vg_schedules_tick(&w.c);
    side_sync(&w, &agent);
    cr_assert_not(side_has(&agent, BODY(START)));
    fire();
    uint64_t first = expect_start();
    cr_assert_gt(schedule()->next_usec, vg_wall_usec());
    finish(first);
    fire();
    cr_assert_neq(expect_start(), first);
    cr_assert_eq(schedule()->made, 2);
}

Test(schedule, skips_while_the_last_one_has_not_ended) {
    add();
    fire();
    uint64_t first = expect_start();
    fire();
    side_sync(&w, &agent);
    cr_assert_not(side_has(&agent, BODY(START)));
    cr_assert_eq(schedule()->made, 1);
    finish(first);
    fire();
    expect_start();
}

Test(schedule, what_was_missed_is_made_up_for_once) {
    add();
    schedule()->next_usec = 1; /* long ago */
    vg_schedules_tick(&w.c);
    finish(expect_start());
    vg_schedules_tick(&w.c);
    side_sync(&w, &agent);
    cr_assert_not(side_has(&agent, BODY(START)));
}

Test(schedule, survives_a_restart_and_makes_nothing_twice) {
    add();
    fire();
    uint64_t first = expect_start();
    finish(first);
    side_sync(&w, &agent);
    side_close(&w, &client);
    side_close(&w, &agent);
    world_stop(&w);
    world_start(&w);
    cr_assert(schedule());
    cr_assert_eq(schedule()->made, 1);
    cr_assert_eq(schedule()->last_task, first);
    /* As if the note that it was made had been lost. */
    schedule()->made = 0;
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    fire();
    side_sync(&w, &agent);
    cr_assert_eq(schedule()->made, 1);
    cr_assert_null(vg_job_get(&w.c, first), "it was made and has ended");
}

Test(schedule, is_listed_sent_again_and_removed) {
    Vg__Pb__Empty none = VG__PB__EMPTY__INIT;
    Vg__Pb__NameRef ref = VG__PB__NAME_REF__INIT;
    add();
    add(); /* the same request again is the same schedule */
    ENV(list, SCHEDULE_LIST, schedule_list, &none);
    side_send(&client, &list, NULL, 0);
    struct msg m = side_expect(&w, &client, BODY(SCHEDULES));
    cr_assert_eq(m.env->schedules->n_schedule, 1);
    cr_assert_str_eq(m.env->schedules->schedule[0]->when, "every 1h");
    cr_assert_str_eq(m.env->schedules->schedule[0]->name, "nightly");
    msg_done(&m);
    ref.name = "nothing";
    ENV(remove, SCHEDULE_REMOVE, schedule_remove, &ref);
    side_send(&client, &remove, NULL, 0);
    m = side_expect(&w, &client, BODY(ERROR));
    cr_assert_eq(m.env->error->reason, VG_NOT_FOUND);
    msg_done(&m);
    ref.name = "nightly";
    side_send(&client, &remove, NULL, 0);
    m = side_expect(&w, &client, BODY(OK));
    msg_done(&m);
    cr_assert_null(schedule());
    side_close(&w, &client);
    side_close(&w, &agent);
    world_stop(&w);
    world_start(&w);
    cr_assert_null(schedule());
}

Test(schedule, a_time_that_makes_no_sense_is_refused) {
    when = "every now and then";
    play_run(&client, S1, tweak);
    struct msg m = side_expect(&w, &client, BODY(ERROR));
    cr_assert_eq(m.env->error->reason, VG_INVALID);
    msg_done(&m);
}
