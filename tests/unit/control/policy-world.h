#pragma once
/* What the suites about policy and the queue stand on: a control plane whose one queue may hold one
   CPU of the node's two, a client and an agent. Included once by each suite, which has its own. */
#include "base/util.h"
#include "world.h"

#include <stdio.h>
#include <string.h>

#define T1 0x1111111111111111ULL
#define T2 0x2222222222222222ULL
#define UNUSED __attribute__((unused)) /* by one suite or the other */

static struct world w;
static struct side client, agent;

static const char config[] = "pools:\n"
                             "- name: a\n"
                             "  shape: {cpus: 1}\n"
                             "  price: {cpu_hour: 3.6}\n"
                             "- name: b\n"
                             "  shape: {cpus: 2}\n"
                             "queues:\n"
                             "- name: main\n"
                             "  limit: {cpus: 1}\n"
                             "  max_priority: 60\n"
                             "  default_priority: 20\n";

UNUSED static void setup(void) {
    world_up(&w, config);
}

UNUSED static void teardown(void) {
    side_close(&w, &client);
    side_close(&w, &agent);
    world_down(&w);
}

UNUSED static void batch(Vg__Pb__RunReq *r) {
    r->spec->interactive = 0;
    r->spec->has_detached = r->spec->detached = 1;
    r->has_wait_durable = r->wait_durable = 1;
}

UNUSED static void expect_start(uint64_t task, uint32_t attempt) {
    struct msg m = side_expect(&w, &agent, BODY(START));
    cr_assert_eq(m.env->start->task_id, task);
    cr_assert_eq(m.env->start->attempt, attempt);
    msg_done(&m);
}

UNUSED static void expect_kind(Vg__Pb__RunEvent__Kind kind) {
    struct msg m;
    expect_event(&w, &client, kind, &m);
    msg_done(&m);
}

UNUSED static void expect_error(enum vg_reason reason, const char *piece) {
    struct msg m = side_expect(&w, &client, BODY(ERROR));
    cr_assert_eq(m.env->error->reason, reason, "%s", m.env->error->text);
    cr_assert(strstr(m.env->error->text, piece), "%s", m.env->error->text);
    msg_done(&m);
}

UNUSED static void write_config(const char *text) {
    char path[96];
    snprintf(path, sizeof path, "%s/config.yaml", w.home);
    cr_assert_eq(vg_write_file(path, text, strlen(text), 0600), 0);
}

UNUSED static void send_reload(void) {
    Vg__Pb__Empty e = VG__PB__EMPTY__INIT;
    ENV(env, CONFIG_RELOAD, config_reload, &e);
    side_send(&client, &env, NULL, 0);
}

UNUSED static void reload(const char *text) {
    write_config(text);
    send_reload();
    struct msg m = side_expect(&w, &client, BODY(OK));
    msg_done(&m);
}
