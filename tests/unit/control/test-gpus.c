/* What a node says of its GPUs: believed about itself and within bounds, remembered when it is bad.
 */
#include "base/util.h"
#include "control/metrics.h"
#include "control/node-gpus.h"
#include "world.h"

#include <string.h>

#define T1 0x1111111111111111ULL
#define GIB (1ULL << 30)

static struct world w;
static struct side client, agent, other;

static void setup(void) {
    world_up(
        &w,
        "metrics: 127.0.0.1:0\npools:\n  - name: default\n    idle_warn: 5s\n    idle_end: 10s\n");
}

static void teardown(void) {
    side_close(&w, &client);
    side_close(&w, &agent);
    side_close(&w, &other);
    world_down(&w);
}

TestSuite(gpus, .init = setup, .fini = teardown, .timeout = 120);

/* A node with two GPUs of which nothing is known yet. */
static uint64_t play_gpus(struct side *s, const char *name, uint64_t id) {
    id = play_gpu_node(&w, s, name, id, 2, 0, NULL, 0);
    side_sync(&w, s);
    return id;
}

static void report(struct side *s, uint32_t index, uint64_t mem, const char *model,
                   const char *fault) {
    Vg__Pb__GpuReport r = VG__PB__GPU_REPORT__INIT;
    Vg__Pb__GpuState g = VG__PB__GPU_STATE__INIT, *list[] = {&g};
    g.has_index = g.has_mem_bytes = 1;
    g.index = index;
    g.mem_bytes = mem;
    g.model = (char *)model;
    g.fault = (char *)fault;
    r.gpu = list;
    r.n_gpu = 1;
    ENV(env, GPU_REPORT, gpu_report, &r);
    side_send(s, &env, NULL, 0);
    side_sync(&w, s);
}

static void report_use(struct side *s, uint64_t task, uint32_t attempt, uint64_t idle_usec) {
    Vg__Pb__GpuReport r = VG__PB__GPU_REPORT__INIT;
    Vg__Pb__TaskGpuUse u = VG__PB__TASK_GPU_USE__INIT, *list[] = {&u};
    Vg__Pb__GpuUsage usage = VG__PB__GPU_USAGE__INIT;
    usage.has_idle_usec = 1;
    usage.idle_usec = idle_usec;
    u.has_task_id = u.has_attempt = 1;
    u.task_id = task;
    u.attempt = attempt;
    u.usage = &usage;
    r.task = list;
    r.n_task = 1;
    ENV(env, GPU_REPORT, gpu_report, &r);
    side_send(s, &env, NULL, 0);
    side_sync(&w, s);
}

static struct msg list(void) {
    Vg__Pb__GpuQuery q = VG__PB__GPU_QUERY__INIT;
    ENV(env, GPU_LIST, gpu_list, &q);
    if (!client.conn)
        side_open(&w, &client);
    side_send(&client, &env, NULL, 0);
    return side_expect(&w, &client, BODY(GPUS));
}

static void expect_state(size_t at, const char *state) {
    struct msg m = list();
    cr_assert_gt(m.env->gpus->n_gpu, at);
    cr_assert_str_eq(m.env->gpus->gpu[at]->state, state);
    msg_done(&m);
}

static void two_gpus(Vg__Pb__RunReq *r) {
    static Vg__Pb__Resources want;
    vg__pb__resources__init(&want);
    want.has_gpus = 1;
    want.gpus = 2;
    r->spec->want = &want;
}

Test(gpus, what_a_report_says_of_cards_it_does_not_have_is_dropped) {
    play_gpus(&agent, "n", 0);
    report(&agent, 7, GIB, "x", "broken");
    report(&agent, 64, GIB, "x", "broken");
    report(&agent, UINT32_MAX, GIB, "x", "broken");
    struct msg m = list();
    cr_assert_eq(m.env->gpus->n_gpu, 2);
    cr_assert_null(m.env->gpus->gpu[0]->fault);
    msg_done(&m);
}

/* Both cards of a node say how near the other is, in rows of this length. */
static void report_near(struct side *s, size_t n, uint32_t value) {
    static uint32_t row[1000];
    Vg__Pb__GpuReport r = VG__PB__GPU_REPORT__INIT;
    Vg__Pb__GpuState g[2], *both[] = {&g[0], &g[1]};
    for (size_t i = 0; i < n; i++)
        row[i] = value;
    for (uint32_t i = 0; i < 2; i++) {
        vg__pb__gpu_state__init(&g[i]);
        g[i].has_index = 1;
        g[i].index = i;
        g[i].near = row;
        g[i].n_near = n;
    }
    r.gpu = both;
    r.n_gpu = 2;
    ENV(env, GPU_REPORT, gpu_report, &r);
    side_send(s, &env, NULL, 0);
    side_sync(&w, s);
}

Test(gpus, whatever_a_node_says_of_nearness_its_cards_are_placed) {
    static const size_t lengths[] = {1, 2, 64, 65, 1000};
    play_gpus(&agent, "n", 0);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        report_near(&agent, lengths[i], i % 2 ? UINT32_MAX : 18);
        struct msg m = list();
        cr_assert_eq(m.env->gpus->gpu[0]->n_near, lengths[i], "it is shown as it was told");
        msg_done(&m);
    }
    play_run(&client, T1, two_gpus);
    struct msg m = side_expect(&w, &agent, BODY(START));
    cr_assert_eq(m.env->start->n_gpu, 2u);
    msg_done(&m);
}

Test(gpus, a_report_without_end_is_not_kept) {
    static char much[100001];
    memset(much, 'x', sizeof much - 1);
    play_gpus(&agent, "n", 0);
    report(&agent, 0, GIB, much, NULL);
    struct msg m = list();
    cr_assert_null(m.env->gpus->gpu[0]->uuid);
    cr_assert_not(m.env->gpus->gpu[0]->has_mem_bytes);
    msg_done(&m);
    report(&agent, 0, GIB, "H200", NULL);
    m = list();
    cr_assert_str_eq(m.env->gpus->gpu[0]->model, "H200", "control");
    msg_done(&m);
}

/* What a node calls its card goes into the numbers for Prometheus as a name and nothing else. */
Test(gpus, a_cards_name_adds_no_line_to_the_metrics) {
    struct vg_buf b = {0};
    play_gpus(&agent, "n", 0);
    report(&agent, 0, GIB, "a\"} 1\nvirga_evil 2\\", NULL);
    int r = 1;
    for (size_t i = 0; (r = vg_metrics_part(&w.c, i, &b)) > 0; i++)
        continue;
    cr_assert_eq(r, 0);
    cr_assert_eq(vg_buf_append(&b, "", 1), 0);
    const char *text = (const char *)vg_buf_data(&b);
    cr_assert(strstr(text,
                     "\nvirga_gpu_memory_bytes{node=\"n\",index=\"0\",uuid=\"\",model=\"a\\\"} "
                     "1\\nvirga_evil 2\\\\\"} 1073741824\n"),
              "%s", text);
    cr_assert_not(strstr(text, "\nvirga_evil"));
    vg_buf_done(&b);
}

Test(gpus, a_fault_drains_is_told_and_outlives_a_restart) {
    struct msg m;
    uint64_t id = play_gpus(&agent, "n", 0);
    side_open(&w, &client);
    play_run(&client, T1, two_gpus);
    m = side_expect(&w, &agent, BODY(START));
    msg_done(&m);
    play_started(&agent, T1, 1);
    report(&agent, 1, GIB, "x", "went\nup in \033smoke");
    expect_event(&w, &client, VG__PB__RUN_EVENT__KIND__NOTICE, &m);
    cr_assert(strstr(m.env->run_event->text, "GPU 1"), "%s", m.env->run_event->text);
    cr_assert_not(strpbrk(m.env->run_event->text, "\n\033"), "it reaches terminals");
    msg_done(&m);
    report(&agent, 1, GIB, "x", NULL);
    expect_state(1, "drained");
    play_exited(&agent, T1, 1, 0);
    side_sync(&w, &agent);
    side_close(&w, &client);
    side_close(&w, &agent);
    world_stop(&w);
    world_start(&w);
    play_gpus(&agent, "n", id);
    expect_state(0, "free");
    expect_state(1, "drained");
}

Test(gpus, a_node_cannot_speak_of_anothers_tasks) {
    play_gpus(&agent, "n", 0);
    side_open(&w, &client);
    play_run(&client, T1, two_gpus);
    struct msg m = side_expect(&w, &agent, BODY(START));
    msg_done(&m);
    play_started(&agent, T1, 1);
    side_sync(&w, &agent);
    play_gpus(&other, "m", 0);
    report_use(&other, T1, 1, 3600 * VG_USEC);
    report_use(&agent, T1, 2, 3600 * VG_USEC); /* nor of an attempt that is not */
    side_sync(&w, &client);
    cr_assert_not(side_has(&agent, BODY(KILL)));
    report_use(&agent, T1, 1, 6 * VG_USEC);
    expect_event(&w, &client, VG__PB__RUN_EVENT__KIND__NOTICE, &m);
    cr_assert(strstr(m.env->run_event->text, "not been used"), "%s", m.env->run_event->text);
    msg_done(&m);
    cr_assert_not(side_has(&agent, BODY(KILL)), "control: warned, not ended");
    report_use(&agent, T1, 1, 11 * VG_USEC);
    m = side_expect(&w, &agent, BODY(KILL));
    cr_assert(strstr(m.env->kill->text, "not used for"), "%s", m.env->kill->text);
    msg_done(&m);
}
