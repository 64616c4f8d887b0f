/* Shares of a GPU in the control plane: what a node is told, what may be changed under a task that
   runs, and that none of it is forgotten. */
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
static uint64_t node;
static Vg__Pb__Resources want;

static void setup(void) {
    world_up(&w, "default_pool: part\n"
                 "pools:\n"
                 "- {name: part, class: shared, gpu_turn: 500us, max: {gpus: 0.8, gpu_mem: 60G}}\n"
                 "- {name: many, class: mps}\n"
                 "- {name: whole}\n");
    node = play_gpu_node(&w, &agent, "n", 0, 1, 80 * GIB, NULL, 0);
    side_open(&w, &client);
}

static void teardown(void) {
    side_close(&w, &client);
    side_close(&w, &agent);
    world_down(&w);
}

TestSuite(share, .init = setup, .fini = teardown, .timeout = 120);

static char *pool;
static uint64_t max_cost;

static void tweak(Vg__Pb__RunReq *r) {
    r->spec->want = &want;
    r->spec->pool = pool;
    r->spec->has_max_cost_micro = max_cost != 0;
    r->spec->max_cost_micro = max_cost;
    r->spec->interactive = 0;
    r->spec->has_detached = r->spec->detached = 1;
    r->spec->has_gpu_hard = r->spec->gpu_hard = want.gpu_milli == 300 && pool;
}

static void run(uint64_t task, uint32_t milli, uint64_t mem_bytes) {
    vg__pb__resources__init(&want);
    want.has_gpu_milli = want.has_gpu_mem_bytes = 1;
    want.gpu_milli = milli;
    want.gpu_mem_bytes = mem_bytes;
    play_run(&client, task, tweak);
}

static struct msg begin(uint64_t task, uint32_t milli, uint64_t mem_bytes) {
    run(task, milli, mem_bytes);
    struct msg m = side_expect(&w, &agent, BODY(START));
    play_started(&agent, task, 1);
    side_sync(&w, &agent);
    return m;
}

/* 0 leaves it as it is. */
static void send_share(uint64_t task, uint32_t milli, uint64_t mem_bytes, int hard) {
    Vg__Pb__TaskShare s = VG__PB__TASK_SHARE__INIT;
    char ref[VG_ID_LEN + 1];
    vg_id_format(task, ref);
    s.task = ref;
    s.has_gpu_milli = milli != 0;
    s.gpu_milli = milli;
    s.has_gpu_mem_bytes = mem_bytes != 0;
    s.gpu_mem_bytes = mem_bytes;
    s.has_gpu_hard = hard != 0;
    s.gpu_hard = hard > 0;
    ENV(env, SHARE_SET, share_set, &s);
    side_send(&client, &env, NULL, 0);
}

static void change(uint64_t task, uint32_t milli, uint64_t mem_bytes, int hard) {
    send_share(task, milli, mem_bytes, hard);
    struct msg m = side_expect(&w, &client, BODY(TASK));
    msg_done(&m);
}

static void refused(uint64_t task, uint32_t milli, uint64_t mem_bytes, int hard, const char *why) {
    send_share(task, milli, mem_bytes, hard);
    struct msg m = side_expect(&w, &client, BODY(ERROR));
    cr_assert(strstr(m.env->error->text, why), "%s", m.env->error->text);
    msg_done(&m);
}

static void expect_told(uint64_t task, uint32_t milli, uint64_t mem_bytes, bool hard) {
    struct msg m = side_expect(&w, &agent, BODY(TASK_SHARE));
    const Vg__Pb__TaskShare *s = m.env->task_share;
    cr_assert(s->task_id == task && s->attempt == 1);
    cr_assert_eq(s->gpu_milli, milli);
    cr_assert_eq(s->gpu_mem_bytes, mem_bytes);
    cr_assert_eq(s->gpu_hard, hard);
    msg_done(&m);
}

/* The node tells what it holds the task to, and what that uses; `limit` 0: it holds it to nothing.
 */
static void tell_use(uint64_t id, uint64_t limit, uint64_t used) {
    Vg__Pb__GpuReport r = VG__PB__GPU_REPORT__INIT;
    Vg__Pb__TaskGpuUse u = VG__PB__TASK_GPU_USE__INIT, *list[] = {&u};
    Vg__Pb__GpuUsage usage = VG__PB__GPU_USAGE__INIT;
    usage.has_share_limit_bytes = usage.has_share_used_bytes = limit != 0;
    usage.share_limit_bytes = limit;
    usage.share_used_bytes = used;
    u.has_task_id = u.has_attempt = 1;
    u.task_id = id;
    u.attempt = 1;
    u.usage = &usage;
    r.task = list;
    r.n_task = 1;
    ENV(env, GPU_REPORT, gpu_report, &r);
    side_send(&agent, &env, NULL, 0);
    side_sync(&w, &agent);
}

/* The node comes again with a task that it was told to begin so. */
static void come_again(Vg__Pb__Start *start) {
    Vg__Pb__TaskReport r = VG__PB__TASK_REPORT__INIT, *reports[] = {&r};
    r.has_task_id = r.has_attempt = r.has_state = r.has_started_usec = 1;
    r.task_id = start->task_id;
    r.attempt = 1;
    r.state = VG__PB__TASK_REPORT__STATE__RUNNING;
    r.started_usec = vg_wall_usec();
    r.start = start;
    side_close(&w, &agent);
    play_gpu_node(&w, &agent, "n", node, 1, 80 * GIB, reports, 1);
    side_sync(&w, &agent);
}

static const struct vg_task *task(uint64_t id) {
    const struct vg_job *j = vg_job_get(&w.c, id);
    cr_assert(j);
    return j->task;
}

Test(share, a_node_is_told_what_the_task_has_of_its_card) {
    struct msg m = begin(T1, 300, 0);
    const Vg__Pb__Start *s = m.env->start;
    cr_assert(s->n_gpu == 1 && s->grant->gpus == 0 && s->grant->gpu_milli == 300);
    cr_assert_eq(s->grant->gpu_mem_bytes, 24 * GIB, "its part of the card");
    cr_assert_str_eq(s->class_name, "shared");
    cr_assert(s->gpu_turn_usec == 500 && !s->spec->gpu_hard);
    msg_done(&m);
    m = begin(T2, 100, 8 * GIB);
    cr_assert_eq(m.env->start->grant->gpu_mem_bytes, 8 * GIB);
    cr_assert_not(m.env->start->spec->gpu_hard);
    msg_done(&m);
}

Test(share, a_change_is_told_to_the_node_and_told_again_when_it_comes_back_without_it) {
    struct msg m = begin(T1, 300, 0);
    Vg__Pb__Start *start = m.env->start;
    refused(T1, 0, 0, 1, "only in pools of class mps");
    change(T1, 500, 0, -1);
    expect_told(T1, 500, 24 * GIB, false);
    change(T1, 0, 40 * GIB, 0);
    expect_told(T1, 500, 40 * GIB, false);
    come_again(start);
    expect_told(T1, 500, 40 * GIB, false);
    start->grant->gpu_milli = 500;
    start->grant->gpu_mem_bytes = 40 * GIB;
    start->spec->gpu_hard = 0;
    come_again(start);
    cr_assert_not(side_has(&agent, BODY(TASK_SHARE)), "it has it");
    msg_done(&m);
}

Test(share, a_change_outlives_a_restart_and_its_card_is_counted_by_it) {
    struct msg m = begin(T1, 300, 0);
    change(T1, 600, 50 * GIB, 0);
    side_close(&w, &client);
    side_close(&w, &agent);
    world_stop(&w);
    world_start(&w);
    come_again(m.env->start);
    expect_told(T1, 600, 50 * GIB, false);
    side_open(&w, &client);
    cr_assert_eq(task(T1)->grant.gpu_milli, 300, "what it asked for stays");
    refused(T1, 700, 81 * GIB, 0, "at most 1 of it and 80 GiB");
    struct msg second = begin(T2, 400, 30 * GIB); /* just what is left */
    msg_done(&second);
    refused(T1, 601, 0, 0, "at most 0.6 of it and 50 GiB");
    msg_done(&m);
}

Test(share, what_the_store_never_knew_is_learnt_from_the_node) {
    struct msg m = begin(T1, 300, 0);
    play_exited(&agent, T1, 1, 0);
    side_sync(&w, &agent);
    m.env->start->task_id = T2; /* another, of which the first write was lost with us */
    m.env->start->grant->gpu_milli = 450;
    m.env->start->grant->gpu_mem_bytes = 10 * GIB;
    come_again(m.env->start);
    cr_assert(task(T2)->share.milli == 450 && task(T2)->share.mem_bytes == 10 * GIB);
    cr_assert_eq(task(T2)->share.class, VG_CLASS_SHARED);
    refused(T2, 900, 81 * GIB, 0, "at most 1 of it and 80 GiB");
    msg_done(&m);
}

Test(share, what_cannot_be_is_refused_and_changes_nothing) {
    struct msg m = begin(T1, 300, 0);
    refused(T1, 0, 0, 0, "say what to change");
    refused(T1, 1000, 0, 0, "0.001 to 0.999");
    refused(T1, 0, 2ULL << 60, 0, "needs memory");
    refused(T2, 500, 0, 0, "there is no task");
    run(T2, 800, 60 * GIB);
    side_sync(&w, &client);
    refused(T2, 100, 0, 0, "is queued: a share is changed while its task runs");
    /* An administrator may go beyond the pool's max; others may not. */
    struct vg_user *u = vg_tenants_user(&w.c.tenants, task(T1)->user);
    change(T1, 850, 0, 0);
    u->role = VG_ROLE_MEMBER;
    refused(T1, 900, 0, 0, "gives a task at most 0.8 of a GPU (asked: 0.9)");
    refused(T1, 700, 70 * GIB, 0, "at most 60 GiB of GPU memory");
    change(T1, 700, 0, 0);
    u->role = VG_ROLE_VIEWER;
    send_share(T1, 100, 0, 0);
    struct msg e = side_expect(&w, &client, BODY(ERROR));
    cr_assert_eq(e.env->error->reason, VG_FORBIDDEN);
    msg_done(&e);
    cr_assert(task(T1)->share.milli == 700 && task(T1)->share.mem_bytes == 24 * GIB);
    msg_done(&m);
}

Test(share, of_class_mps_only_memory_is_changed_and_no_other_class_joins_it) {
    pool = "many";
    struct msg m = begin(T1, 300, 0);
    cr_assert_str_eq(m.env->start->class_name, "mps");
    refused(T1, 400, 0, 0, "only --gpu-mem can be changed");
    change(T1, 300, 30 * GIB, 1);
    expect_told(T1, 300, 30 * GIB, true);
    pool = NULL;
    run(T2, 100, GIB);
    side_sync(&w, &client);
    cr_assert_not(side_has(&agent, BODY(START)), "the card is MPS's");
    play_exited(&agent, T1, 1, 0);
    struct msg second = side_expect(&w, &agent, BODY(START));
    cr_assert(second.env->start->task_id == T2);
    cr_assert_str_eq(second.env->start->class_name, "shared");
    msg_done(&second);
    msg_done(&m);
}

Test(share, what_it_may_cost_binds_everybody) {
    max_cost = 1000000;
    struct msg m = begin(T1, 300, 0);
    refused(T1, 301, 0, 0, "it was submitted with --max-cost, which a larger share would break");
    change(T1, 200, 0, 0);
    max_cost = 0;
    msg_done(&m);
}

Test(share, what_is_given_up_is_others_when_the_node_says_that_it_is_free) {
    struct msg m = begin(T1, 800, 0);
    run(T2, 500, 0);
    side_sync(&w, &client);
    change(T1, 500, 40 * GIB, 0);
    expect_told(T1, 500, 40 * GIB, false);
    struct msg poll = side_expect(&w, &agent, BODY(GPU_POLL));
    msg_done(&poll);
    cr_assert_not(side_has(&agent, BODY(START)), "its memory may be in use");
    tell_use(T1, 64 * GIB, 20 * GIB);
    cr_assert_not(side_has(&agent, BODY(START)), "it may still take what it had");
    tell_use(T1, 40 * GIB, 50 * GIB);
    cr_assert_not(side_has(&agent, BODY(START)), "it took it");
    tell_use(T1, 40 * GIB, UINT64_MAX);
    cr_assert_not(side_has(&agent, BODY(START)), "whatever a node says");
    tell_use(T1, 40 * GIB, 39 * GIB);
    struct msg second = side_expect(&w, &agent, BODY(START));
    cr_assert_eq(second.env->start->task_id, T2);
    cr_assert_eq(second.env->start->grant->gpu_mem_bytes, 40 * GIB);
    msg_done(&second);
    msg_done(&m);
}

Test(share, memory_that_nobody_counts_is_free_at_once_and_the_ledger_has_the_sum) {
    struct msg m = begin(T1, 800, 0);
    tell_use(T1, 0, 0);
    run(T2, 500, 0);
    side_sync(&w, &client);
    cr_assert_not(side_has(&agent, BODY(START)));
    change(T1, 500, 40 * GIB, 0);
    struct msg second = side_expect(&w, &agent, BODY(START));
    cr_assert_eq(second.env->start->task_id, T2);
    uint64_t before = task(T1)->share.held;
    cr_assert_gt(before, 0);
    cr_assert_eq(vg_task_gpu_held(task(T1), task(T1)->share.since_usec + 10), before + 5000);
    msg_done(&second);
    msg_done(&m);
}
