/* The whole agent, as a process of its own, between a control plane and keepers that this test
   plays. Every wait is for a message; an alarm ends a test that waits in vain. */
#include "agent/agent.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/util.h"
#include "net/wire.h"
#include "proto/virga.pb-c.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEASE_USEC (60 * VG_USEC)

static char home[PATH_MAX];
static int listener, conn = -1;
static pid_t agent;
static struct vg_buf in;
static size_t used;           /* bytes of the frame that was looked at last */
static Vg__Pb__Envelope *got; /* the last message */

/* ------------------------------------------------------------------ the control plane's side */

static void send_frame(enum vg_frame_kind kind, uint32_t stream, const void *p, size_t n) {
    uint8_t h[VG_WIRE_HEADER];
    vg_frame_header(h, kind, stream, (uint32_t)n);
    cr_assert_eq(vg_write_full(conn, h, sizeof(h)), 0);
    cr_assert_eq(vg_write_full(conn, p, n), 0);
}

static void send_env(const Vg__Pb__Envelope *env) {
    size_t n = vg__pb__envelope__get_packed_size(env);
    uint8_t *p = malloc(n);
    vg__pb__envelope__pack(env, p);
    send_frame(VG_FRAME_MSG, 0, p, n);
    free(p);
}

/* The next frame; PINGs and CREDITs are of no interest here. */
static struct vg_frame next_frame(void) {
    vg_buf_consume(&in, used);
    used = 0;
    for (;;) {
        struct vg_frame f;
        size_t need;
        struct vg_err err;
        int r = vg_frame_parse(vg_buf_data(&in), vg_buf_len(&in), &f, &need, &err);
        cr_assert_geq(r, 0);
        if (r > 0 && f.kind != VG_FRAME_PING && f.kind != VG_FRAME_CREDIT) {
            used = (size_t)r;
            return f;
        }
        if (r > 0) {
            vg_buf_consume(&in, (size_t)r);
            continue;
        }
        uint8_t *p = vg_buf_reserve(&in, 65536);
        ssize_t n = read(conn, p, 65536);
        cr_assert_gt(n, 0, "the agent closed the connection");
        vg_buf_commit(&in, (size_t)n);
    }
}

/* Waits for a message of this kind; heartbeats are answered on the way. */
static const Vg__Pb__Envelope *expect(Vg__Pb__Envelope__BodyCase kind) {
    for (;;) {
        struct vg_frame f = next_frame();
        if (f.kind != VG_FRAME_MSG)
            continue;
        if (got)
            vg__pb__envelope__free_unpacked(got, NULL);
        got = vg__pb__envelope__unpack(NULL, f.len, f.payload);
        cr_assert_not_null(got);
        if (got->body_case == VG__PB__ENVELOPE__BODY_HEARTBEAT &&
            kind != VG__PB__ENVELOPE__BODY_HEARTBEAT)
            continue;
        if (got->body_case == VG__PB__ENVELOPE__BODY_HELLO)
            continue;
        cr_assert_eq(got->body_case, kind, "got message %d instead of %d", (int)got->body_case,
                     (int)kind);
        return got;
    }
}

static const Vg__Pb__AgentHello *meet(void) {
    conn = accept(listener, NULL, NULL);
    cr_assert_geq(conn, 0);
    vg_buf_clear(&in);
    used = 0;
    return expect(VG__PB__ENVELOPE__BODY_AGENT_HELLO)->agent_hello;
}

static void welcome(uint64_t lease_usec) {
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__AgentHelloOk ok = VG__PB__AGENT_HELLO_OK__INIT;
    ok.has_lease_usec = ok.has_heartbeat_usec = true;
    ok.lease_usec = lease_usec;
    ok.heartbeat_usec = 10 * VG_USEC;
    ok.name = "here";
    env.body_case = VG__PB__ENVELOPE__BODY_AGENT_HELLO_OK;
    env.agent_hello_ok = &ok;
    send_env(&env);
}

static void hang_up(void) {
    close(conn);
    conn = -1;
}

struct order {
    uint64_t id;
    uint32_t attempt;
    const char *word, *arg, *session, *network;
    uint32_t stream;
    uint32_t milli; /* its share of card 0 */
    uint64_t turn_usec;
    const char *secret;
};

static void start(struct order o) {
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__Start s = VG__PB__START__INIT;
    Vg__Pb__TaskSpec spec = VG__PB__TASK_SPEC__INIT;
    Vg__Pb__Identity who = VG__PB__IDENTITY__INIT;
    Vg__Pb__Resources grant = VG__PB__RESOURCES__INIT;
    uint32_t card = 0;
    ProtobufCBinaryData argv[2] = {{strlen(o.word), (uint8_t *)o.word},
                                   {o.arg ? strlen(o.arg) : 0, (uint8_t *)o.arg}};
    spec.argv = argv;
    spec.n_argv = o.arg ? 2 : 1;
    who.has_uid = who.has_gid = who.has_slot = true;
    s.has_task_id = s.has_attempt = true;
    s.task_id = o.id;
    s.attempt = o.attempt ? o.attempt : 1;
    s.spec = &spec;
    s.who = &who;
    s.network = (char *)(o.network ? o.network : "host");
    s.session_key = (char *)o.session;
    s.has_stream = o.stream != 0;
    s.stream = o.stream;
    if (o.milli) {
        s.class_name = "shared";
        grant.has_gpu_milli = grant.has_gpu_mem_bytes = s.has_gpu_turn_usec = true;
        grant.gpu_milli = o.milli;
        grant.gpu_mem_bytes = 1 << 30;
        s.grant = &grant;
        s.gpu = &card;
        s.n_gpu = 1;
        s.gpu_turn_usec = o.turn_usec;
    }
    Vg__Pb__SecretValue value = VG__PB__SECRET_VALUE__INIT, *list[] = {&value};
    if (o.secret) {
        value.as_var = "S";
        value.has_value = true;
        value.value = (ProtobufCBinaryData){strlen(o.secret), (uint8_t *)o.secret};
        s.secret = list;
        s.n_secret = 1;
    }
    env.body_case = VG__PB__ENVELOPE__BODY_START;
    env.start = &s;
    send_env(&env);
}

static void ack_exit(uint64_t id) {
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__ExitAck ack = VG__PB__EXIT_ACK__INIT;
    ack.has_task_id = ack.has_attempt = true;
    ack.task_id = id;
    ack.attempt = 1;
    env.body_case = VG__PB__ENVELOPE__BODY_EXIT_ACK;
    env.exit_ack = &ack;
    send_env(&env);
}

static void kill_task(uint64_t id, uint32_t sig) {
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__KillReq k = VG__PB__KILL_REQ__INIT;
    k.has_task_id = k.has_attempt = k.has_signal = true;
    k.task_id = id;
    k.attempt = 1;
    k.signal = sig;
    k.text = "as told";
    env.body_case = VG__PB__ENVELOPE__BODY_KILL;
    env.kill = &k;
    send_env(&env);
}

static const Vg__Pb__TaskExited *ended(uint64_t id, int32_t status) {
    const Vg__Pb__TaskExited *x = expect(VG__PB__ENVELOPE__BODY_TASK_EXITED)->task_exited;
    cr_assert_eq(x->task_id, id);
    cr_assert_eq(x->status, status, "status %d: %s", x->status, x->text);
    return x;
}

static void started(uint64_t id) {
    cr_assert_eq(expect(VG__PB__ENVELOPE__BODY_TASK_STARTED)->task_started->task_id, id);
}

/* ------------------------------------------------------------------ around each test */

static void launch(void) {
    agent = fork();
    cr_assert_geq(agent, 0);
    if (agent == 0) {
        char *argv[] = {"agent", "--home", home, "--gpus", "0", "--name", "t", "--warm", "1", NULL};
        prctl(PR_SET_PDEATHSIG, SIGUSR2); /* a test that fails leaves no agent behind */
        close(listener);
        if (conn >= 0)
            close(conn);
        setenv("VIRGA_LOG", "error", 1);
        _exit(vg_agent_main(9, argv));
    }
}

static void set_up(void) {
    char path[PATH_MAX + 8];
    if (geteuid() != 0)
        cr_skip_test("the agent needs root");
    alarm(30);
    snprintf(home, sizeof(home), "/tmp/vg-agent-XXXXXX");
    cr_assert_not_null(mkdtemp(home));
    snprintf(path, sizeof(path), "%s/sock", home);
    listener = vg_unix_listen(path, SOCK_STREAM, 0600);
    cr_assert_geq(listener, 0);
    vg_set_nonblock(listener, false);
    launch();
}

static int drop(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static int stop(int sig) {
    int status;
    kill(agent, sig);
    cr_assert_eq(waitpid(agent, &status, 0), agent);
    agent = 0;
    return status;
}

static void tear_down(void) {
    if (agent > 0)
        cr_assert_eq(stop(SIGUSR2), 0);
    nftw(home, drop, 16, FTW_DEPTH | FTW_PHYS);
}

TestSuite(agent_loop, .init = set_up, .fini = tear_down);

static void begin(void) {
    meet();
    welcome(LEASE_USEC);
}

/* ------------------------------------------------------------------ tests */

Test(agent_loop, the_first_message_tells_what_the_node_has) {
    const Vg__Pb__AgentHello *h = meet();
    cr_assert_str_eq(h->name, "t");
    cr_assert_eq(strlen(h->node_id), 16);
    cr_assert_gt(h->total->cpu_milli, 0);
    cr_assert_gt(h->total->mem_bytes, 0);
    cr_assert_eq(h->n_task, 0);
    welcome(LEASE_USEC);
}

Test(agent_loop, a_task_starts_and_its_exit_is_told) {
    begin();
    for (uint64_t id = 1; id <= 5; id++) {
        start((struct order){.id = id, .word = "exit", .arg = "7"});
        started(id);
        ended(id, 7);
        ack_exit(id);
    }
}

Test(agent_loop, many_starts_at_once_all_run) {
    begin();
    for (uint64_t id = 1; id <= 50; id++)
        start((struct order){.id = id, .word = "exit", .arg = "0"});
    size_t n_started = 0, n_ended = 0;
    while (n_ended < 50) {
        struct vg_frame f = next_frame();
        if (f.kind != VG_FRAME_MSG)
            continue;
        Vg__Pb__Envelope *e = vg__pb__envelope__unpack(NULL, f.len, f.payload);
        n_started += e->body_case == VG__PB__ENVELOPE__BODY_TASK_STARTED;
        if (e->body_case == VG__PB__ENVELOPE__BODY_TASK_EXITED) {
            n_ended++;
            ack_exit(e->task_exited->task_id);
        }
        vg__pb__envelope__free_unpacked(e, NULL);
    }
    cr_assert_eq(n_started, 50);
}

Test(agent_loop, an_attempt_is_taken_once) {
    begin();
    start((struct order){.id = 1, .word = "hold"});
    started(1);
    start((struct order){.id = 1, .word = "exit", .arg = "9"});
    started(1); /* its state again, not another start */
    kill_task(1, SIGTERM);
    ended(1, 128 + SIGTERM);
    start((struct order){.id = 1, .word = "hold"});
    ended(1, 128 + SIGTERM);
    ack_exit(1);
    start((struct order){.id = 1, .word = "hold"});
    ended(1, 128 + SIGTERM);
}

/* The sandboxes of this test have used a second of CPU time each, whoever asks. */
Test(agent_loop, whoever_looks_hears_at_once_what_running_tasks_use_and_then_again) {
    begin();
    start((struct order){.id = 1, .word = "exit", .arg = "0"}); /* it is over: not told of */
    started(1);
    ended(1, 0);
    ack_exit(1);
    start((struct order){.id = 2, .word = "hold"});
    started(2);
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__UsePoll m = VG__PB__USE_POLL__INIT;
    m.has_usec = true;
    m.usec = 10 * VG_USEC;
    env.body_case = VG__PB__ENVELOPE__BODY_USE_POLL;
    env.use_poll = &m;
    send_env(&env);
    for (int i = 0; i < 2; i++) {
        const Vg__Pb__UseReport *r = expect(VG__PB__ENVELOPE__BODY_USE_REPORT)->use_report;
        cr_assert_eq(r->n_task, 1);
        cr_expect_eq(r->task[0]->task_id, 2);
        cr_expect_eq(r->task[0]->attempt, 1);
        cr_expect_eq(r->task[0]->mem_bytes, 4096);
        cr_expect_leq(r->task[0]->cpu_usec, 1000000);
        cr_expect(r->has_node_mem_bytes && r->node_mem_bytes > 0);
        cr_expect_eq(r->has_node_cpu_milli, i > 0, "a rate needs two looks");
    }
}

Test(agent_loop, the_reason_of_a_kill_comes_back_with_the_exit) {
    begin();
    start((struct order){.id = 1, .word = "hold"});
    started(1);
    kill_task(1, SIGKILL);
    cr_assert_str_eq(ended(1, 137)->text, "as told");
    ack_exit(1);
}

Test(agent_loop, a_kill_of_an_unknown_task_is_answered) {
    begin();
    kill_task(99, SIGKILL);
    cr_assert_eq(ended(99, 137)->reason, VG_LOST);
}

Test(agent_loop, a_network_the_node_lacks_is_refused_with_its_reason) {
    begin();
    start((struct order){.id = 1, .word = "hold", .network = "nat"});
    const Vg__Pb__TaskExited *x = ended(1, 125);
    cr_assert(x->never_ran);
    cr_assert_str_eq(x->text, "the node has no networks for tasks: this machine is a test");
}

Test(agent_loop, an_exit_is_repeated_until_it_is_acknowledged) {
    begin();
    start((struct order){.id = 1, .word = "exit", .arg = "3"});
    started(1);
    ended(1, 3);
    hang_up();
    const Vg__Pb__AgentHello *h = meet();
    cr_assert_eq(h->n_task, 1);
    cr_assert_eq(h->task[0]->state, VG__PB__TASK_REPORT__STATE__EXITED);
    cr_assert_eq(h->task[0]->exited->status, 3);
    welcome(LEASE_USEC);
    ended(1, 3);
    ack_exit(1);
    /* Messages are handled in order: when this one is answered the ack has been handled. */
    kill_task(99, SIGKILL);
    ended(99, 137);
    hang_up();
    cr_assert_eq(meet()->n_task, 0);
    welcome(LEASE_USEC);
}

Test(agent_loop, log_that_was_lost_on_the_way_is_sent_again) {
    begin();
    start((struct order){.id = 1, .word = "log", .arg = "hello"});
    started(1);
    const Vg__Pb__LogAppend *log = expect(VG__PB__ENVELOPE__BODY_LOG_APPEND)->log_append;
    cr_assert_eq(log->records.len, 5);
    hang_up();
    meet();
    welcome(LEASE_USEC);
    log = expect(VG__PB__ENVELOPE__BODY_LOG_APPEND)->log_append;
    cr_assert_eq(memcmp(log->records.data, "hello", 5), 0);
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__LogAck ack = VG__PB__LOG_ACK__INIT;
    ack.has_task_id = ack.has_attempt = ack.has_offset = true;
    ack.task_id = ack.attempt = 1;
    ack.offset = 5;
    env.body_case = VG__PB__ENVELOPE__BODY_LOG_ACK;
    env.log_ack = &ack;
    send_env(&env);
    ended(1, 0);
    ack_exit(1);
}

static void restart_with(int sig) {
    begin();
    start((struct order){.id = 1, .word = "hold", .session = "u/s"});
    started(1);
    start((struct order){.id = 2, .word = "exit", .arg = "5"});
    started(2);
    ended(2, 5);
    stop(sig);
    hang_up();
    launch();
    const Vg__Pb__AgentHello *h = meet();
    cr_assert_eq(h->n_task, 2);
    for (size_t i = 0; i < 2; i++) {
        const Vg__Pb__TaskReport *r = h->task[i];
        cr_assert_not_null(r->start);
        cr_assert_eq(r->start->task_id, r->task_id);
        cr_assert_eq(r->state, r->task_id == 1 ? VG__PB__TASK_REPORT__STATE__RUNNING
                                               : VG__PB__TASK_REPORT__STATE__EXITED);
    }
    cr_assert_eq(h->n_session, 1);
    cr_assert_str_eq(h->session[0]->key, "u/s");
    welcome(LEASE_USEC);
    ended(2, 5);
    ack_exit(2);
    kill_task(1, SIGTERM);
    ended(1, 128 + SIGTERM);
    ack_exit(1);
}

Test(agent_loop, a_killed_agents_tasks_are_found_again) {
    restart_with(SIGKILL);
}

Test(agent_loop, an_agent_that_is_asked_to_leave_leaves_its_tasks_alone) {
    restart_with(SIGTERM);
}

/* This keeper leaves them where they came, so what is told after a restart is the agent's own care.
 */
Test(agent_loop, secrets_reach_the_keeper_and_are_never_told_again) {
    begin();
    start((struct order){.id = 1, .word = "secret", .arg = "open sesame", .secret = "open sesame"});
    started(1);
    ended(1, 0);
    ack_exit(1);
    start((struct order){.id = 2, .word = "keep", .arg = "open sesame", .secret = "open sesame"});
    started(2);
    for (int i = 0; i < 2; i++) {
        if (i) {
            stop(SIGKILL);
            hang_up();
            launch();
        } else {
            hang_up();
        }
        const Vg__Pb__AgentHello *h = meet();
        cr_assert_eq(h->n_task, 1);
        cr_assert(h->task[0]->start && h->task[0]->start->n_secret == 0);
        welcome(LEASE_USEC);
    }
    kill_task(2, SIGTERM);
    ended(2, 128 + SIGTERM);
    ack_exit(2);
}

Test(agent_loop, a_dead_keeper_means_a_lost_task) {
    begin();
    start((struct order){.id = 1, .word = "exit", .arg = "0", .session = "u/s"});
    started(1);
    pid_t keeper = (pid_t)ended(1, 0)->mem_peak_bytes;
    start((struct order){.id = 2, .word = "hold", .session = "u/s"});
    started(2);
    cr_assert_eq(kill(keeper, SIGKILL), 0);
    cr_assert_str_eq(expect(VG__PB__ENVELOPE__BODY_SESSION_ENDED)->session_ended->key, "u/s");
    const Vg__Pb__TaskExited *x = ended(2, 137);
    cr_assert_eq(x->reason, VG_LOST);
    cr_assert_str_eq(x->text, "the keeper of this task was killed");
}

Test(agent_loop, tasks_of_a_session_share_a_keeper_and_others_do_not) {
    begin();
    uint64_t pid[3];
    const char *key[] = {"u/s", "u/s", NULL};
    for (uint64_t i = 0; i < 3; i++) {
        start((struct order){.id = i + 1, .word = "exit", .arg = "0", .session = key[i]});
        started(i + 1);
        pid[i] = ended(i + 1, 0)->mem_peak_bytes;
        ack_exit(i + 1);
    }
    cr_assert_eq(pid[0], pid[1]);
    cr_assert_neq(pid[0], pid[2]);
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__NameRef name = VG__PB__NAME_REF__INIT;
    name.name = "u/s";
    env.body_case = VG__PB__ENVELOPE__BODY_END_SESSION;
    env.end_session = &name;
    send_env(&env);
    start((struct order){.id = 4, .word = "exit", .arg = "0", .session = "u/s"});
    cr_assert_str_eq(expect(VG__PB__ENVELOPE__BODY_SESSION_ENDED)->session_ended->key, "u/s");
    started(4);
    cr_assert_neq(ended(4, 0)->mem_peak_bytes, pid[0],
                  "a session that was ended is not gone on with");
}

Test(agent_loop, tasks_end_with_the_lease) {
    meet();
    welcome(VG_USEC / 2); /* and no heartbeat is ever answered */
    start((struct order){.id = 1, .word = "hold"});
    started(1);
    cr_assert_str_eq(ended(1, 137)->text, "the node lost contact with the control plane");
    start((struct order){.id = 2, .word = "hold"});
    cr_assert(ended(2, 125)->never_ran);
}

static void expect_bytes(uint32_t stream, const char *text) {
    size_t at = 0;
    while (at < strlen(text)) {
        struct vg_frame f = next_frame();
        if (f.kind != VG_FRAME_DATA)
            continue;
        cr_assert_eq(f.stream, stream);
        cr_assert_eq(memcmp(f.payload, text + at, f.len), 0);
        at += f.len;
    }
}

Test(agent_loop, a_relayed_start_has_its_channel) {
    begin();
    start((struct order){.id = 1, .word = "say", .arg = "from the task", .stream = 2});
    expect_bytes(2, "from the task");
}

Test(agent_loop, an_attach_reaches_the_keeper) {
    begin();
    start((struct order){.id = 1, .word = "hold"});
    started(1);
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__TaskAttach x = VG__PB__TASK_ATTACH__INIT;
    x.has_task_id = x.has_stream = true;
    x.task_id = 1;
    x.stream = 4;
    env.body_case = VG__PB__ENVELOPE__BODY_TASK_ATTACH;
    env.task_attach = &x;
    send_env(&env);
    expect_bytes(4, "attached");
}

static void forward(uint32_t port, uint32_t stream) {
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__TaskForward x = VG__PB__TASK_FORWARD__INIT;
    x.has_task_id = x.has_port = x.has_stream = true;
    x.task_id = 1;
    x.port = port;
    x.stream = stream;
    env.body_case = VG__PB__ENVELOPE__BODY_TASK_FORWARD;
    env.task_forward = &x;
    send_env(&env);
}

Test(agent_loop, a_forwarded_port_is_a_stream_and_a_closed_one_a_reset) {
    begin();
    start((struct order){.id = 1, .word = "hold"});
    started(1);
    forward(80, 6);
    expect_bytes(6, "port");
    forward(1, 8);
    for (;;) {
        struct vg_frame f = next_frame();
        if (f.kind == VG_FRAME_RESET && f.stream == 8)
            break;
        cr_assert_neq(f.stream, 8);
    }
}

Test(agent_loop, a_client_inside_a_task_gets_a_stream) {
    char path[PATH_MAX + 32];
    begin();
    start((struct order){.id = 1, .word = "exit", .arg = "0"});
    started(1);
    ended(1, 0);
    snprintf(path, sizeof(path), "%s/node/inside/agent.sock", home);
    int fd = vg_unix_connect(path, SOCK_STREAM);
    cr_assert_geq(fd, 0);
    uint32_t stream = expect(VG__PB__ENVELOPE__BODY_NESTED)->nested->stream;
    cr_assert_eq(stream % 2, 1);
    cr_assert_eq(write(fd, "inside", 6), 6);
    expect_bytes(stream, "inside");
    char back[4];
    send_frame(VG_FRAME_DATA, stream, "back", 4);
    cr_assert_eq(vg_read_full(fd, back, 4), 4);
    close(fd);
}

Test(agent_loop, going_down_ends_every_task_and_leaves_nothing) {
    char path[PATH_MAX + 32];
    begin();
    start((struct order){.id = 1, .word = "exit", .arg = "0", .session = "u/s"});
    started(1);
    pid_t keeper = (pid_t)ended(1, 0)->mem_peak_bytes;
    start((struct order){.id = 2, .word = "hold", .session = "u/s"});
    started(2);
    kill(agent, SIGUSR2);
    cr_assert_str_eq(ended(2, 137)->text, "the node is going down");
    ack_exit(1);
    ack_exit(2);
    int status;
    cr_assert_eq(waitpid(agent, &status, 0), agent);
    agent = 0;
    cr_assert_eq(status, 0);
    cr_assert_eq(kill(keeper, 0), -1);
    snprintf(path, sizeof(path), "%s/node/keepers", home);
    cr_assert_eq(access(path, F_OK), -1);
}

Test(agent_loop, a_second_agent_for_the_same_home_is_refused) {
    begin();
    pid_t first = agent;
    int status;
    launch();
    cr_assert_eq(waitpid(agent, &status, 0), agent);
    cr_assert_eq(WEXITSTATUS(status), 125);
    agent = first;
}

/* ------------------------------------------------------------------ shares of a GPU */

/* What the agent says next, as text. */
static void say_next(char *out, size_t n) {
    struct vg_frame f = next_frame();
    out[0] = 0;
    if (f.kind != VG_FRAME_MSG)
        return;
    Vg__Pb__Envelope *e = vg__pb__envelope__unpack(NULL, f.len, f.payload);
    if (e->body_case == VG__PB__ENVELOPE__BODY_TASK_STARTED)
        snprintf(out, n, "%d started", (int)e->task_started->task_id);
    else if (e->body_case == VG__PB__ENVELOPE__BODY_TASK_EXITED)
        snprintf(out, n, "%d ended", (int)e->task_exited->task_id);
    else if (e->body_case == VG__PB__ENVELOPE__BODY_LOG_APPEND)
        snprintf(out, n, "%d %.*s", (int)e->log_append->task_id, (int)e->log_append->records.len,
                 (const char *)e->log_append->records.data);
    vg__pb__envelope__free_unpacked(e, NULL);
}

/* Waits for all of these and nothing else, but `perhaps`, which may come or not: keepers are
   independent, so the order is not told. */
static void hear(const char *perhaps, const char *const *want) {
    char said[100];
    unsigned heard = 0, all = 0;
    for (int i = 0; want[i]; i++)
        all |= 1u << i;
    while (heard != all) {
        say_next(said, sizeof(said));
        if (perhaps && !strcmp(said, perhaps))
            continue;
        int i = 0;
        while (want[i] && (heard >> i & 1 || strcmp(want[i], said) != 0))
            i++;
        cr_assert(!said[0] || want[i], "the agent says '%s'", said);
        if (said[0])
            heard |= 1u << i;
    }
}
#define HEAR(...) hear(NULL, (const char *const[]){__VA_ARGS__, NULL})

static void share(uint64_t id, uint32_t milli, uint64_t turn_usec) {
    start((struct order){.id = id, .word = "share", .milli = milli, .turn_usec = turn_usec});
}

static void send_change(uint64_t id, Vg__Pb__TaskShare m) {
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    m.has_task_id = m.has_attempt = true;
    m.task_id = id;
    m.attempt = 1;
    env.body_case = VG__PB__ENVELOPE__BODY_TASK_SHARE;
    env.task_share = &m;
    send_env(&env);
}

static void change_share(uint64_t id, uint32_t milli, uint64_t mem_bytes) {
    Vg__Pb__TaskShare m = VG__PB__TASK_SHARE__INIT;
    m.has_gpu_milli = milli != 0;
    m.gpu_milli = milli;
    m.has_gpu_mem_bytes = mem_bytes != 0;
    m.gpu_mem_bytes = mem_bytes;
    send_change(id, m);
}

Test(agent_loop, a_card_is_divided_anew_when_a_share_comes_changes_or_goes) {
    begin();
    share(1, 700, 0);
    HEAR("1 started", "1 slice 3000");
    share(2, 300, 0);
    HEAR("2 started", "1 slice 7000", "2 slice 3000");
    change_share(1, 600, 0);
    HEAR("1 memory 1073741824", "1 slice 6000");
    change_share(1, 0, 2 << 20);
    HEAR("1 memory 2097152");
    kill_task(2, SIGTERM);
    HEAR("2 ended", "1 slice 3000");
}

Test(agent_loop, a_share_that_asks_for_short_turns_shortens_everybodys) {
    begin();
    share(1, 500, 0);
    HEAR("1 started", "1 slice 3000");
    share(2, 500, 500);
    HEAR("2 started", "1 slice 500", "2 slice 500");
}

Test(agent_loop, shares_are_divided_again_by_an_agent_that_finds_them) {
    begin();
    share(1, 700, 0);
    HEAR("1 started", "1 slice 3000");
    change_share(1, 200, 0);
    HEAR("1 memory 1073741824");
    stop(SIGKILL);
    hang_up();
    launch();
    const Vg__Pb__AgentHello *h = meet();
    cr_assert_eq(h->n_task, 1);
    cr_assert_eq(h->task[0]->start->grant->gpu_milli, 200, "as it was changed");
    welcome(LEASE_USEC);
    share(2, 100, 0);
    /* What a task says before the greeting is over is not passed on. */
    hear("1 slice 3000", (const char *const[]){"1 slice 6000", "2 started", "2 slice 3000", NULL});
}

Test(agent_loop, a_change_that_makes_no_sense_changes_nothing) {
    begin();
    share(1, 700, 0);
    HEAR("1 started", "1 slice 3000");
    change_share(1, 1001, 0);
    change_share(9, 100, 0);
    start((struct order){.id = 2, .word = "hold"});
    HEAR("2 started");
    change_share(2, 100, 0);
    change_share(1, 0, 5 << 20);
    HEAR("1 memory 5242880");
}
