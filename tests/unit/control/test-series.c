/* What nodes say of the use of tasks: believed of their own tasks alone, told while they run and
   after, to those who may see the task. */
#include "base/util.h"
#include "world.h"

#define T1 0x1111111111111111ULL
#define MIB (1ULL << 20)

static struct world w;
static struct side client, agent, other;

static void setup(void) {
    world_up(&w, NULL);
}

static void teardown(void) {
    side_close(&w, &client);
    side_close(&w, &agent);
    side_close(&w, &other);
    world_down(&w);
}

TestSuite(series, .init = setup, .fini = teardown, .timeout = 120);

static void report(struct side *s, uint64_t task, uint32_t attempt, uint64_t when, uint64_t cpu,
                   uint64_t mem) {
    Vg__Pb__UseReport r = VG__PB__USE_REPORT__INIT;
    Vg__Pb__TaskUse u = VG__PB__TASK_USE__INIT, *list[] = {&u};
    u.has_task_id = u.has_attempt = u.has_cpu_usec = u.has_mem_bytes = 1;
    u.task_id = task;
    u.attempt = attempt;
    u.cpu_usec = cpu;
    u.mem_bytes = mem;
    r.has_when_usec = r.has_node_cpu_milli = r.has_node_mem_bytes = 1;
    r.when_usec = when;
    r.node_cpu_milli = 1500;
    r.node_mem_bytes = 64 * MIB;
    r.task = list;
    r.n_task = 1;
    ENV(env, USE_REPORT, use_report, &r);
    side_send(s, &env, NULL, 0);
    side_sync(&w, s);
}

static struct msg ask(const char *task, const char *node, bool live) {
    Vg__Pb__SeriesQuery q = VG__PB__SERIES_QUERY__INIT;
    q.task = (char *)task;
    q.node = (char *)node;
    q.has_live = live;
    q.live = live;
    ENV(env, SERIES, series, &q);
    side_send(&client, &env, NULL, 0);
    return side_expect(&w, &client, task || node ? BODY(SERIES_INFO) : BODY(ERROR));
}

static void begin(void) {
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    side_hello(&client, NULL);
    play_run(&client, T1, NULL);
    struct msg start = side_expect(&w, &agent, BODY(START));
    msg_done(&start);
    play_started(&agent, T1, 1);
    side_sync(&w, &agent);
}

Test(series, rates_of_a_running_task_and_its_node) {
    begin();
    uint64_t now = vg_wall_usec() + 10 * VG_USEC;
    report(&agent, T1, 1, now, 0, 10 * MIB);
    struct msg m = ask("1111111111111111", NULL, false);
    cr_assert_eq(m.env->series_info->n_when_usec, 1);
    cr_expect_eq(m.env->series_info->cpu_milli[0], -1, "counters that begin tell nothing");
    cr_expect_eq(m.env->series_info->mem_bytes[0], 10 * MIB);
    cr_expect_eq(m.env->series_info->gpu_percent[0], -1);
    msg_done(&m);
    report(&agent, T1, 1, now + 2 * VG_USEC, 3 * VG_USEC, 20 * MIB);
    m = ask("1111111111111111", NULL, false);
    size_t n = m.env->series_info->n_when_usec;
    cr_assert(n == 1 || n == 2); /* by this machine's clock both may be of one second */
    cr_expect_eq(m.env->series_info->cpu_milli[n - 1], 1500);
    msg_done(&m);
    m = ask(NULL, "n1", false);
    cr_assert_geq(m.env->series_info->n_when_usec, 1);
    cr_expect_eq(m.env->series_info->cpu_milli[0], 1500);
    cr_expect_eq(m.env->series_info->mem_bytes[0], 64 * MIB);
    cr_expect(m.env->series_info->has_cpu_milli_limit);
    msg_done(&m);
}

Test(series, whoever_looks_has_the_node_report_every_second) {
    begin();
    struct msg m = ask("1111111111111111", NULL, false);
    cr_expect_eq(m.env->series_info->n_when_usec, 0);
    msg_done(&m);
    side_sync(&w, &agent);
    cr_expect(!side_has(&agent, BODY(USE_POLL)));
    m = ask("1111111111111111", NULL, true);
    msg_done(&m);
    m = side_expect(&w, &agent, BODY(USE_POLL));
    cr_expect(m.env->use_poll->usec >= 5 * VG_USEC && m.env->use_poll->usec <= 60 * VG_USEC);
    msg_done(&m);
}

Test(series, only_its_node_and_its_attempt_are_believed) {
    begin();
    play_agent(&w, &other, "n2", 0, NULL, 0);
    uint64_t now = vg_wall_usec();
    report(&other, T1, 1, now, VG_USEC, MIB);
    report(&agent, T1, 2, now, VG_USEC, MIB);
    report(&agent, T1 + 1, 1, now, VG_USEC, MIB);
    struct msg m = ask("1111111111111111", NULL, false);
    cr_expect_eq(m.env->series_info->n_when_usec, 0);
    msg_done(&m);
    report(&agent, T1, 1, UINT64_MAX, UINT64_MAX, UINT64_MAX); /* nonsense is no number */
    m = ask("1111111111111111", NULL, false);
    cr_expect_eq(m.env->series_info->n_when_usec, 1);
    cr_expect_eq(m.env->series_info->cpu_milli[0], -1);
    cr_expect_eq(m.env->series_info->mem_bytes[0], -1);
    msg_done(&m);
}

Test(series, an_ended_task_keeps_its_plot) {
    begin();
    uint64_t now = vg_wall_usec() + 10 * VG_USEC;
    report(&agent, T1, 1, now, VG_USEC, 10 * MIB);
    report(&agent, T1, 1, now + VG_USEC, 2 * VG_USEC, 30 * MIB);
    play_exited(&agent, T1, 1, 0);
    struct msg m = side_expect(&w, &agent, BODY(EXIT_ACK)); /* its end is stored */
    msg_done(&m);
    world_stop(&w);
    side_close(&w, &client);
    world_start(&w);
    side_open(&w, &client);
    side_hello(&client, NULL);
    m = ask("1111111111111111", NULL, true);
    cr_assert_geq(m.env->series_info->n_when_usec, 1);
    cr_expect_eq(m.env->series_info->n_when_usec, m.env->series_info->n_mem_bytes);
    cr_expect_geq(m.env->series_info->mem_bytes[0], (int64_t)(10 * MIB));
    msg_done(&m);
}

Test(series, one_thing_at_a_time) {
    begin();
    struct msg m = ask(NULL, NULL, false);
    cr_expect_eq(m.env->error->reason, VG_INVALID);
    msg_done(&m);
}
