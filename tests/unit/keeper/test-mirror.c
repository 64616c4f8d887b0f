/* A task whose files come from another machine, between a played file daemon and a played sandbox:
   it begins when they are there, and ends when what it wrote is back. */
#include "bench.h"

#include "base/cleanup.h"
#include "base/util.h"
#include "net/tio.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static const char machine[] = "0123456789abcdef", other[] = "fedcba9876543210";
static const struct bench_start start = {.id = 7,
                                         .stdin_open = true,
                                         .remote = true,
                                         .hold_usec = 3600 * VG_USEC,
                                         .machine = machine,
                                         .uid = 1000};

static char dir[32];
static struct bench b;
static struct client c;
static int listener = -1, daemon_fd = -1;

static void setup(void) {
    char path[64];
    memcpy(dir, "/tmp/keeper-mirror-XXXXXX", 26);
    cr_assert(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/3", dir);
    cr_assert_eq(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/3/sock", dir);
    listener = vg_unix_listen(path, SOCK_SEQPACKET, 0600);
    cr_assert_geq(listener, 0);
    bench_fs_dir = dir;
    c = (struct client){.fd = -1, .acks = true};
    bench_open(&b, 1 << 20, 1 << 20);
}

static void teardown(void) {
    char path[64];
    client_done(&c);
    bench_close(&b);
    vg_close(&daemon_fd);
    vg_close(&listener);
    static const char *const names[] = {"/3/sock", "/3/start.lock", "/3", ""};
    for (size_t i = 0; i < VG_COUNT(names); i++) {
        snprintf(path, sizeof path, "%s%s", dir, names[i]);
        remove(path);
    }
}

TestSuite(mirror, .init = setup, .fini = teardown, .timeout = 60);

static void settle(void) {
    bench_settle(&b);
    while (c.fd >= 0 && client_read(&c, 1 << 20) > 0)
        bench_settle(&b);
}

/* The daemon takes the next connection and hears of the task. */
static void daemon_takes(uint64_t task) {
    struct vg_fsd_head head;
    struct vg_fsd_task t;
    size_t n = 0;
    vg_close(&daemon_fd);
    daemon_fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    cr_assert_geq(daemon_fd, 0);
    cr_assert_eq(vg_fsd_recv(daemon_fd, &head, &t, sizeof t, NULL, &n), 1);
    cr_assert_eq(head.kind, (uint32_t)VG_FSD_TASK);
    cr_assert_eq(t.task, task);
    cr_assert_eq(memcmp(t.machine, machine, 16), 0);
}

static void daemon_mounts(size_t lower, size_t data, size_t views, const char *paths, size_t len) {
    struct vg_fsd_mounts *m = calloc(1, sizeof *m + len);
    int fds[VG_FSD_FDS];
    *m = (struct vg_fsd_mounts){
        .n_lower = (uint32_t)lower, .n_data = (uint32_t)data, .n_views = (uint32_t)views};
    memcpy(m->paths, paths, len);
    size_t n = lower + data + views;
    for (size_t i = 0; i < n; i++)
        fds[i] = open("/", O_PATH | O_CLOEXEC);
    cr_assert_eq(vg_fsd_send(daemon_fd, VG_FSD_MOUNTS, m, sizeof *m + len, fds, n), 0);
    for (size_t i = 0; i < n; i++)
        close(fds[i]);
    free(m);
    settle();
}

static void daemon_says(enum vg_fsd_kind kind, int code, enum vg_reason reason, const char *text) {
    struct vg_fsd_failed f = {.code = code, .reason = reason};
    snprintf(f.text, sizeof f.text, "%s", text);
    cr_assert_eq(vg_fsd_send(daemon_fd, kind, &f, sizeof f, NULL, 0), 0);
    settle();
}

static void expect_packet(enum vg_fsd_kind kind) {
    struct vg_fsd_head head;
    char room[64];
    size_t n = 0;
    vg_set_nonblock(daemon_fd, true);
    cr_assert_eq(vg_fsd_recv(daemon_fd, &head, room, sizeof room, NULL, &n), 1);
    cr_assert_eq(head.kind, (uint32_t)kind);
}

static void begin(void) {
    bench_start(&b, &start, client_pair(&c, false));
    settle();
    daemon_takes(7);
}

/* As far as a running command. */
static void run(void) {
    begin();
    daemon_mounts(1, 0, 1, "/home/ann/p", 12);
    bench_event(&b, VG_SB_STARTED, 0, 0); /* ready */
    settle();
    bench_event(&b, VG_SB_STARTED, 7, 0);
    settle();
}

static void command_ends(int wait_status) {
    bench_close_command();
    bench_event(&b, VG_SB_EXITED, 7, wait_status);
    settle();
}

static size_t open_fds(void) {
    size_t n = 0;
    for (int i = 0; i < 256; i++)
        n += fcntl(i, F_GETFD) >= 0;
    return n;
}

Test(mirror, a_command_begins_when_its_files_are_there) {
    begin();
    cr_assert_eq(bench_begun, 0);
    cr_assert_eq(bench_command.fd[1], -1);
    daemon_mounts(2, 1, 2, "/home/ann/p\0/data", 18);
    cr_assert_eq(bench_begun, 1);
    cr_assert_eq(bench_root.n_lower, 2u);
    cr_assert_eq(bench_root.n_data, 1u);
    cr_assert_eq(bench_root.n_views, 2u);
    cr_assert_eq(bench_command.fd[1], -1, "not before the sandbox is ready");
    bench_event(&b, VG_SB_STARTED, 0, 0);
    settle();
    cr_assert_geq(bench_command.fd[1], 0);
}

Test(mirror, ids_are_the_persons_own_inside_and_private_outside) {
    run();
    cr_assert_eq(bench_root.uid, 1000u);
    cr_assert_eq(bench_root.outside_uid, 0u);
    cr_assert_eq(bench_command.uid, 1000u);
    cr_assert_eq(bench_command.n_groups, 2u, "a group beyond the range is left out");
}

Test(mirror, a_number_beyond_the_range_is_nobody) {
    struct bench_start s = start;
    s.uid = 1234567;
    bench_start(&b, &s, client_pair(&c, false));
    settle();
    daemon_takes(7);
    daemon_mounts(1, 0, 0, "", 0);
    bench_event(&b, VG_SB_STARTED, 0, 0);
    settle();
    cr_assert_eq(bench_command.uid, 65534u);
}

Test(mirror, input_that_came_before_the_files_reaches_the_command) {
    char got[16] = "";
    begin();
    cr_assert(c.welcomed);
    client_input(&c, 0, "early ", 6);
    settle();
    cr_assert_eq(c.in_acked, 0u);
    daemon_mounts(1, 0, 0, "", 0);
    client_input(&c, 6, "bytes", 5);
    settle();
    bench_event(&b, VG_SB_STARTED, 0, 0);
    settle();
    cr_assert_eq(read(bench_command.fd[0], got, sizeof got), 11);
    cr_assert_eq(memcmp(got, "early bytes", 11), 0);
    cr_assert_eq(c.in_acked, 11u);
}

Test(mirror, the_end_waits_until_what_was_written_is_safe) {
    run();
    cr_assert_eq(write(bench_command.fd[1], "out", 3), 3);
    command_ends(7 << 8);
    cr_assert(!c.exited);
    cr_assert_eq(vg_buf_len(&c.text), 3u, "but not its output");
    cr_assert_eq(b.exits, 0);
    expect_packet(VG_FSD_ENDED);
    expect_packet(VG_FSD_BARRIER);
    daemon_says(VG_FSD_SAFE, 0, VG_OK, "");
    cr_assert(c.exited);
    cr_assert_eq(c.status, 7);
    cr_assert_eq(b.exits, 1);
}

Test(mirror, what_could_not_be_written_back_is_no_success) {
    run();
    command_ends(0);
    daemon_says(VG_FSD_SAFE, ENOSPC, VG_DISK_FULL, "the disk of laptop is full");
    cr_assert_eq(c.status, 125);
    cr_assert_eq(b.reason, (uint32_t)VG_DISK_FULL);
    cr_assert_str_eq(b.text, "the disk of laptop is full");
}

Test(mirror, a_commands_own_failure_keeps_its_status) {
    run();
    command_ends(3 << 8);
    daemon_says(VG_FSD_SAFE, EIO, VG_LOST, "gone");
    cr_assert_eq(c.status, 3);
    cr_assert_str_eq(b.text, "gone");
}

Test(mirror, a_failure_of_the_daemon_is_the_tasks) {
    begin();
    daemon_says(VG_FSD_FAILED, EACCES, VG_FORBIDDEN, "a sentence");
    cr_assert_eq(c.status, 125);
    cr_assert_eq(b.reason, (uint32_t)VG_FORBIDDEN);
    cr_assert_str_eq(b.text, "a sentence");
}

Test(mirror, a_client_is_not_told_of_an_end_when_the_node_has_no_room) {
    begin();
    daemon_says(VG_FSD_FAILED, ENOSPC, VG_DISK_FULL, "no room");
    cr_assert_eq(b.reason, (uint32_t)VG_DISK_FULL);
    cr_assert(!c.exited, "it may be given to another node");
    cr_assert(c.ended, "its client looks where it is now");
}

Test(mirror, mounts_that_make_no_sense_are_refused_and_closed) {
    static const struct {
        size_t lower, data, views;
        const char *paths;
        size_t len;
    } bad[] = {{0, 1, 0, "", 0},         {1, 0, 1, "", 0},    {1, 0, 1, "/home", 5},
               {1, 0, 1, "relative", 9}, {1, 0, 1, "/", 2},   {1, 0, 2, "/a", 3},
               {1, 0, 1, "/a/../b", 8},  {1, 0, 1, "/a/", 4}, {1, 0, 1, "/./a", 5}};
    for (size_t i = 0; i < VG_COUNT(bad); i++) {
        size_t before = open_fds();
        begin();
        daemon_mounts(bad[i].lower, bad[i].data, bad[i].views, bad[i].paths, bad[i].len);
        cr_assert_eq(b.reason, (uint32_t)VG_PROTOCOL, "%zu", i);
        cr_assert_eq(bench_begun, 0);
        vg_kpkt_send(b.agent, VG_K_EXIT_ACK, 7, 0, 0, NULL, 0, NULL, 0);
        vg_close(&daemon_fd);
        client_close(&c);
        c.out_offset = 0;
        c.exited = false;
        b.k.had_task = false;
        settle();
        cr_assert_eq(open_fds(), before, "%zu: %zu, not %zu", i, open_fds(), before);
    }
}

Test(mirror, a_sandbox_that_cannot_be_made_fails_the_task) {
    begin();
    daemon_mounts(1, 0, 0, "", 0);
    bench_event(&b, VG_SB_STARTED, 0, ENODEV);
    settle();
    cr_assert_eq(c.status, 125);
    cr_assert(strstr(b.text, "cannot prepare a sandbox"));
}

Test(mirror, a_daemon_that_was_leaving_is_asked_again_once) {
    begin();
    vg_close(&daemon_fd);
    settle();
    daemon_takes(7);
    cr_assert_eq(b.exits, 0);
    vg_close(&daemon_fd);
    settle();
    cr_assert_eq(b.exits, 1);
    cr_assert_eq(b.reason, (uint32_t)VG_LOST, "another attempt is safe");
}

Test(mirror, a_daemon_that_dies_under_a_command_ends_it_as_lost) {
    run();
    bench_killed = false;
    vg_close(&daemon_fd);
    settle();
    cr_assert(bench_killed);
    command_ends(SIGKILL);
    cr_assert_eq(b.status, 128 + SIGKILL);
    cr_assert_eq(b.reason, (uint32_t)VG_LOST);
    cr_assert(strstr(b.text, "file daemon ended"));
}

Test(mirror, a_daemon_that_dies_before_all_is_safe_is_no_success) {
    run();
    command_ends(0);
    vg_close(&daemon_fd);
    settle();
    cr_assert_eq(c.status, 125);
    cr_assert(strstr(b.text, "written back"));
}

Test(mirror, a_task_that_waits_for_files_can_be_killed) {
    begin();
    vg_kpkt_send(b.agent, VG_K_KILL, 7, SIGTERM, 0, "enough", 6, NULL, 0);
    settle();
    cr_assert_eq(b.status, 128 + SIGTERM);
    cr_assert_str_eq(b.text, "enough");
    cr_assert_eq(bench_n_signals, 0);
}

Test(mirror, a_client_can_interrupt_the_wait_for_files) {
    uint8_t p[8];
    begin();
    vg_put32(p, SIGINT);
    vg_put32(p + 4, 1);
    client_send(&c, VG_TIO_SIGNAL, p, sizeof p, NULL, 0);
    settle();
    cr_assert_eq(c.status, 128 + SIGINT);
}

Test(mirror, a_kill_ends_the_wait_for_what_was_written) {
    run();
    command_ends(0);
    cr_assert_eq(b.exits, 0);
    vg_kpkt_send(b.agent, VG_K_KILL, 7, SIGKILL, 0, NULL, 0, NULL, 0);
    settle();
    settle();
    cr_assert_eq(b.status, 125);
    cr_assert(strstr(b.text, "not everything"));
}

Test(mirror, the_daemons_words_reach_the_person) {
    run();
    size_t before = c.came;
    cr_assert_eq(vg_fsd_send(daemon_fd, VG_FSD_NOTE, "laptop is away", 14, NULL, 0), 0);
    settle();
    cr_assert_eq(c.came, before + VG_TIO_HEADER + 14);
}

Test(mirror, a_session_keeps_its_sandbox_and_gets_new_folders) {
    struct bench_start s = start;
    s.session = "root/s";
    bench_start(&b, &s, client_pair(&c, false));
    settle();
    daemon_takes(7);
    daemon_mounts(1, 0, 1, "/home/ann/p", 12);
    bench_event(&b, VG_SB_STARTED, 0, 0);
    settle();
    cr_assert_eq(bench_command.n_binds, 0u);
    int first = vg_take_fd(daemon_fd);
    s.id = 8;
    bench_start(&b, &s, -1);
    settle();
    daemon_takes(8);
    daemon_mounts(1, 0, 2, "/home/ann/p\0/home/ann/q", 24);
    cr_assert_eq(bench_begun, 1);
    cr_assert_eq(bench_command.tag, 8u);
    cr_assert_eq(bench_command.n_binds, 2u);
    s.id = 9;
    s.machine = other;
    bench_start(&b, &s, -1);
    settle();
    cr_assert_eq(b.reason, (uint32_t)VG_CONFLICT);
    cr_assert(strstr(b.text, "another machine"));
    close(first);
}
