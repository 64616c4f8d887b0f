/* Whole nodes in the control plane: what a node is told, that it is alone, what it may say that it
   wiped, and that an unfit one is left alone. */
#include "base/util.h"
#include "control/control.h"
#include "control/job.h"
#include "model/task.h"
#include "world.h"

#include <string.h>

#define T1 0x1111111111111111ULL
#define T2 0x2222222222222222ULL
#define GIB (1ULL << 30)

static struct world w;
static struct side client, agent;
static char *pool;

static void setup(void) {
    world_up(&w, "default_pool: whole\n"
                 "pools:\n"
                 "- {name: whole, class: bare-metal}\n"
                 "- {name: parts}\n");
    play_gpu_node(&w, &agent, "n", 0, 4, 80 * GIB, NULL, 0);
    side_open(&w, &client);
    pool = NULL;
}

static void teardown(void) {
    side_close(&w, &client);
    side_close(&w, &agent);
    world_down(&w);
}

TestSuite(bare, .init = setup, .fini = teardown, .timeout = 120);

static void tweak(Vg__Pb__RunReq *r) {
    r->spec->pool = pool;
    r->spec->interactive = 0;
    r->spec->has_detached = r->spec->detached = 1;
}

static void begin(uint64_t task) {
    play_run(&client, task, tweak);
    struct msg m = side_expect(&w, &agent, BODY(START));
    const Vg__Pb__Start *s = m.env->start;
    cr_assert_eq(s->task_id, task);
    cr_assert_str_eq(s->class_name, "bare-metal");
    cr_assert_str_eq(s->network, "host");
    cr_assert(s->n_gpu == 4 && s->grant->gpus == 4);
    cr_assert_gt(s->grant->cpu_milli, 0);
    msg_done(&m);
    play_started(&agent, task, 1);
    side_sync(&w, &agent);
}

static void beat(char *unfit) {
    Vg__Pb__Heartbeat b = VG__PB__HEARTBEAT__INIT;
    ENV(env, HEARTBEAT, heartbeat, &b);
    b.unfit = unfit;
    side_send(&agent, &env, NULL, 0);
    side_sync(&w, &agent);
}

static void end(uint64_t task, char **wiped, size_t n) {
    Vg__Pb__TaskExited m = VG__PB__TASK_EXITED__INIT;
    m.has_task_id = m.has_attempt = m.has_status = m.has_started_usec = m.has_ended_usec = 1;
    m.task_id = task;
    m.attempt = 1;
    m.started_usec = 1;
    m.ended_usec = vg_wall_usec();
    m.wiped = wiped;
    m.n_wiped = n;
    ENV(env, TASK_EXITED, task_exited, &m);
    side_send(&agent, &env, NULL, 0);
    struct msg ack = side_expect(&w, &agent, BODY(EXIT_ACK));
    msg_done(&ack);
}

static struct msg get(uint64_t task) {
    Vg__Pb__TaskRef r = VG__PB__TASK_REF__INIT;
    char ref[VG_ID_LEN + 1];
    vg_id_format(task, ref);
    r.task = ref;
    ENV(env, TASK_GET, task_get, &r);
    side_send(&client, &env, NULL, 0);
    return side_expect(&w, &client, BODY(TASK));
}

Test(bare, it_gets_all_that_the_node_has_and_nobody_is_beside_it) {
    begin(T1);
    pool = "parts";
    play_run(&client, T2, tweak);
    side_sync(&w, &client);
    side_sync(&w, &agent);
    cr_assert(!side_has(&agent, BODY(START)), "somebody was sent beside it");
    end(T1, NULL, 0);
    struct msg m = side_expect(&w, &agent, BODY(START));
    cr_assert_eq(m.env->start->task_id, T2);
    cr_assert_str_eq(m.env->start->class_name, "dedicated");
    msg_done(&m);
}

Test(bare, what_was_wiped_is_kept_with_the_task) {
    char *lines[] = {"processes: none left behind", "GPU 0: cleared"};
    begin(T1);
    end(T1, lines, 2);
    struct msg m = get(T1);
    cr_assert_eq(m.env->task->n_wiped, 2);
    cr_assert_str_eq(m.env->task->wiped[1], "GPU 0: cleared");
    cr_assert_eq(m.env->task->want->gpus, 4, "what it had, not what it asked for");
    msg_done(&m);
}

/* A node that was broken into may say anything. */
Test(bare, what_a_node_says_is_bounded_and_printable) {
    static char huge[5000];
    char *lines[200];
    memset(huge, 'x', sizeof(huge) - 1);
    memcpy(huge, "\033[2J\nspoof\n", 11);
    for (size_t i = 0; i < VG_COUNT(lines); i++)
        lines[i] = huge;
    begin(T1);
    end(T1, lines, VG_COUNT(lines));
    struct msg m = get(T1);
    cr_assert_eq(m.env->task->n_wiped, 64);
    for (size_t i = 0; i < m.env->task->n_wiped; i++) {
        cr_assert_lt(strlen(m.env->task->wiped[i]), 300);
        for (const char *p = m.env->task->wiped[i]; *p; p++)
            cr_assert((unsigned char)*p >= ' ');
    }
    msg_done(&m);
}

Test(bare, an_unfit_node_takes_nothing_until_it_is_fit) {
    Vg__Pb__Empty none = VG__PB__EMPTY__INIT;
    pool = "parts";
    beat("not wiped after task 1111111111111111: GPU 0\n\033[2J");
    play_run(&client, T2, tweak);
    side_sync(&w, &client);
    side_sync(&w, &agent);
    cr_assert(!side_has(&agent, BODY(START)));
    ENV(env, NODE_LIST, node_list, &none);
    side_send(&client, &env, NULL, 0);
    struct msg m = side_expect(&w, &client, BODY(NODES));
    cr_assert_str_eq(m.env->nodes->node[0]->state, "unfit");
    cr_assert(strstr(m.env->nodes->node[0]->unfit, "GPU 0"));
    cr_assert(!strchr(m.env->nodes->node[0]->unfit, '\n') &&
              !strchr(m.env->nodes->node[0]->unfit, '\033'));
    msg_done(&m);
    beat(NULL);
    m = side_expect(&w, &agent, BODY(START));
    cr_assert_eq(m.env->start->task_id, T2);
    msg_done(&m);
}
