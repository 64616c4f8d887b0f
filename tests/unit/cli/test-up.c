/* `virga up`, `virga down` and the client against a control plane that only answers `status`.
   Needs root, as `virga up` does. Nothing here waits for a time: it waits for a thing to happen,
   for at most ten seconds. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/cloud.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char home[64], out[8192];

/* Runs `virga <args>`; its output, both streams, is in `out`. Returns the exit status. */
static int virga(const char *args) {
    char *argv[16] = {(char *)"virga"}, line[256], *save = NULL;
    int n = 1, p[2], status;
    snprintf(line, sizeof(line), "%s", args);
    for (char *w = strtok_r(line, " ", &save); w; w = strtok_r(NULL, " ", &save))
        argv[n++] = w;
    cr_assert_eq(pipe(p), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(p[1], 1);
        dup2(p[1], 2);
        close(p[0]);
        close(p[1]);
        execv(getenv("VIRGA_PROGRAM"), argv);
        _exit(99);
    }
    close(p[1]);
    ssize_t got = vg_read_full(p[0], out, sizeof(out) - 1);
    out[got > 0 ? got : 0] = 0;
    close(p[0]);
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static pid_t pid_of(enum vg_part part) {
    pid_t pid = 0;
    int fd = vg_part_open(home, part, &pid);
    if (fd < 0)
        return 0;
    close(fd);
    return pid;
}

/* The part's pid once it runs and is not `other`. */
static pid_t await_other(enum vg_part part, pid_t other) {
    uint64_t until = vg_now_usec() + 40 * VG_USEC;
    for (pid_t pid; vg_now_usec() < until; poll(NULL, 0, 5))
        if ((pid = pid_of(part)) && pid != other)
            return pid;
    return 0;
}

static void end(pid_t pid) {
    uint64_t until = vg_now_usec() + 40 * VG_USEC;
    kill(pid, SIGKILL);
    while (kill(pid, 0) == 0 && vg_now_usec() < until)
        poll(NULL, 0, 2);
}

static void setup(void) {
    if (geteuid() != 0 || !getenv("VIRGA_PROGRAM"))
        cr_skip_test("needs root and VIRGA_PROGRAM");
    snprintf(home, sizeof(home), "/tmp/virga-up-XXXXXX");
    cr_assert_not_null(mkdtemp(home));
    setenv("VIRGA_HOME", home, 1);
    setenv("PATH", getenv("FAKE_DIR"), 1);
    unsetenv("VIRGA_TASK_ID");
    unsetenv("VIRGA_SOCKET");
}

static void teardown(void) {
    char cmd[128];
    if (!*home)
        return;
    virga("down");
    pid_t pid = fork();
    if (pid == 0) {
        snprintf(cmd, sizeof(cmd), "%s", home);
        execl("/bin/rm", "rm", "-rf", cmd, NULL);
        _exit(1);
    }
    waitpid(pid, NULL, 0);
}

TestSuite(up, .init = setup, .fini = teardown, .timeout = 60);

Test(up, starts_says_so_in_three_lines_and_is_idempotent) {
    cr_assert_eq(virga("up --no-agent"), 0, "%s", out);
    cr_expect(strstr(out, "is up at "), "%s", out);
    cr_expect(strstr(out, "next: vrun hostname\n"), "%s", out);
    pid_t control = pid_of(VG_PART_VIRGAD), supervisor = pid_of(VG_PART_UP);
    cr_assert_gt(control, 1);
    cr_assert_gt(supervisor, 1);
    cr_assert_eq(virga("up --no-agent"), 0, "%s", out);
    cr_expect(strstr(out, "is already up at "), "%s", out);
    cr_expect_eq(pid_of(VG_PART_VIRGAD), control);
    cr_expect_eq(pid_of(VG_PART_UP), supervisor);
    cr_assert_eq(virga("status"), 0, "%s", out);
    cr_expect(strstr(out, "cloud     fake\n"), "%s", out);
    cr_assert_eq(virga("status -o json"), 0);
    cr_expect(strstr(out, "\"cloud\": \"fake\""), "%s", out);
}

Test(up, down_leaves_nothing_running_and_no_socket) {
    char sock[128];
    cr_assert_eq(virga("up --no-agent"), 0, "%s", out);
    pid_t control = pid_of(VG_PART_VIRGAD), supervisor = pid_of(VG_PART_UP);
    cr_assert_eq(virga("down"), 0, "%s", out);
    cr_expect(strstr(out, "is down\n"), "%s", out);
    cr_expect_not(vg_part_runs(home, VG_PART_UP));
    cr_expect_not(vg_part_runs(home, VG_PART_VIRGAD));
    cr_expect_eq(pid_of(VG_PART_VIRGAD), 0, "was %d, supervisor %d", (int)control, (int)supervisor);
    snprintf(sock, sizeof(sock), "%s/sock", home);
    cr_expect_neq(access(sock, F_OK), 0);
    cr_assert_eq(virga("down"), 0);
    cr_expect(strstr(out, "Virga is not running at "), "%s", out);
    cr_assert_eq(virga("up --no-agent"), 0, "%s", out);
}

Test(up, a_killed_control_plane_comes_back) {
    cr_assert_eq(virga("up --no-agent"), 0, "%s", out);
    pid_t pid = pid_of(VG_PART_VIRGAD);
    for (int i = 0; i < 3; i++) {
        end(pid);
        pid_t next = await_other(VG_PART_VIRGAD, pid);
        cr_assert_gt(next, 1);
        pid = next;
    }
}

Test(up, a_killed_supervisor_is_replaced_and_adopts_what_runs) {
    cr_assert_eq(virga("up --no-agent"), 0, "%s", out);
    pid_t control = pid_of(VG_PART_VIRGAD);
    end(pid_of(VG_PART_UP));
    cr_expect_eq(pid_of(VG_PART_VIRGAD), control);
    cr_assert_eq(virga("up --no-agent"), 0, "%s", out);
    cr_expect_eq(pid_of(VG_PART_VIRGAD), control);
    cr_assert_gt(pid_of(VG_PART_UP), 1);
    end(control);
    cr_expect_gt(await_other(VG_PART_VIRGAD, control), 1, "the adopted one is watched as well");
}

Test(up, down_ends_what_lost_its_supervisor) {
    cr_assert_eq(virga("up --no-agent"), 0, "%s", out);
    end(pid_of(VG_PART_UP));
    cr_assert_eq(virga("down"), 0, "%s", out);
    cr_expect_not(vg_part_runs(home, VG_PART_VIRGAD));
}

Test(up, down_clears_up_after_crashes) {
    char sock[128];
    cr_assert_eq(virga("up --no-agent"), 0, "%s", out);
    pid_t control = pid_of(VG_PART_VIRGAD);
    end(pid_of(VG_PART_UP));
    snprintf(sock, sizeof(sock), "%s/sock", home);
    cr_assert_eq(access(sock, F_OK), 0, "the control: it is there before");
    kill(control, SIGSTOP); /* neither runs on nor clears up by itself */
    kill(control, SIGKILL);
    cr_assert_eq(virga("down"), 0, "%s", out);
    cr_expect_not(vg_part_runs(home, VG_PART_VIRGAD));
    cr_assert_eq(virga("status"), 125);
    cr_expect(strstr(out, "no Virga cloud answers at "), "%s", out);
}

Test(up, a_control_plane_that_cannot_start_is_explained_in_one_sentence) {
    setenv("VIRGAD_FAILS", "1", 1);
    cr_assert_eq(virga("up --no-agent"), 125);
    unsetenv("VIRGAD_FAILS");
    cr_expect(
        strstr(out, "virga: virgad could not start: config.yaml:3: unknown key 'pols' (log: "),
        "%s", out);
    cr_expect_not(vg_part_runs(home, VG_PART_UP), "nobody tries on after the sentence");
}

Test(up, refusals_and_crashes_of_the_control_plane_are_one_sentence) {
    cr_assert_eq(virga("up --no-agent"), 0, "%s", out);
    cr_assert_eq(virga("pool list"), 125);
    cr_expect_str_eq(out, "virga: there is no such thing here\n");
    cr_assert_eq(virga("task get 1234"), 125);
    cr_expect(strstr(out, "virga: the control plane at "), "%s", out);
    cr_expect(strstr(out, " went away"), "%s", out);
}

Test(up, what_it_was_told_is_remembered) {
    char path[128];
    vg_auto_free char *args = NULL;
    snprintf(path, sizeof(path), "%s/control/args", home);
    cr_assert_eq(virga("up --no-agent --listen 127.0.0.1:7001"), 0, "%s", out);
    cr_assert_eq(virga("down"), 0, "%s", out);
    cr_assert_eq(virga("up --no-agent"), 0, "%s", out);
    cr_assert_eq(vg_read_file(path, 4096, &args, NULL), 0);
    cr_expect_str_eq(args, "virgad --web 127.0.0.1:0 --listen 127.0.0.1:7001");
}
