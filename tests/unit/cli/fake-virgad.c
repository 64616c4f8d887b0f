/* A control plane that only answers `status`: enough for `virga up` and the client to be tested
   without the real one. VIRGAD_FAILS makes it die at once, as a misconfigured one would. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/util.h"
#include "net/conn.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>

static uv_loop_t loop;
static char home[512], sock[600];

static void on_ready(struct vg_conn *c, void *user) {
    (void)c, (void)user;
}

static void answer(struct vg_conn *c, uint32_t req) {
    Vg__Pb__StatusInfo s = VG__PB__STATUS_INFO__INIT;
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    s.cloud = (char *)"fake";
    s.version = (char *)"0";
    s.has_pid = s.has_nodes = s.has_nodes_ready = true;
    s.pid = (uint32_t)getpid();
    s.nodes = s.nodes_ready = 1;
    env.has_req = true;
    env.req = req;
    env.body_case = VG__PB__ENVELOPE__BODY_STATUS_INFO;
    env.status_info = &s;
    vg_conn_send(c, &env, NULL, 0);
}

static void refuse(struct vg_conn *c, uint32_t req) {
    Vg__Pb__Error e = VG__PB__ERROR__INIT;
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    e.has_reason = true;
    e.reason = VG_NOT_FOUND;
    e.text = (char *)"there is no such thing here";
    env.has_req = true;
    env.req = req;
    env.body_case = VG__PB__ENVELOPE__BODY_ERROR;
    env.error = &e;
    vg_conn_send(c, &env, NULL, 0);
}

static void on_msg(struct vg_conn *c, void *user, const Vg__Pb__Envelope *env, int *fds,
                   size_t n_fds) {
    (void)user, (void)fds, (void)n_fds;
    if (env->body_case == VG__PB__ENVELOPE__BODY_STATUS)
        answer(c, env->req);
    else if (env->body_case == VG__PB__ENVELOPE__BODY_TASK_GET)
        vg_conn_abort(c, VG_LOST, "crash"); /* as if killed in the middle of a call */
    else if (env->body_case != VG__PB__ENVELOPE__BODY_HELLO)
        refuse(c, env->req);
}

static void on_close(struct vg_conn *c, void *user, const struct vg_err *why) {
    (void)c, (void)user, (void)why;
}

static const struct vg_conn_ops ops = {on_ready, on_msg, on_close};

static void accepted(int fd, void *user) {
    struct vg_conn *c;
    struct vg_err err = VG_ERR_INIT;
    (void)user;
    vg_conn_new(&loop, fd, NULL, false, &ops, NULL, &c, &err);
}

static void on_term(uv_signal_t *s, int signo) {
    (void)s, (void)signo;
    unlink(sock);
    exit(0);
}

static int take_place(void) {
    char path[600], pid[16];
    snprintf(path, sizeof(path), "%s/control", home);
    vg_mkdir_p(path, 0700);
    snprintf(path, sizeof(path), "%s/control/lock", home);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0)
        return -1;
    snprintf(path, sizeof(path), "%s/control/pid", home);
    int n = snprintf(pid, sizeof(pid), "%d\n", (int)getpid());
    return vg_write_file(path, pid, (size_t)n, 0644);
}

/* Leaves its command line where the test finds it. */
static void note_args(char **argv) {
    char path[600], line[512];
    size_t n = 0;
    for (int i = 0; argv[i] && n < sizeof(line); i++)
        n += (size_t)snprintf(line + n, sizeof(line) - n, "%s%s", i ? " " : "", argv[i]);
    snprintf(path, sizeof(path), "%s/control/args", home);
    vg_write_file(path, line, strlen(line), 0600);
}

int main(int argc, char **argv) {
    struct vg_listener *l;
    uv_signal_t term;
    vg_log_init("virgad");
    snprintf(home, sizeof(home), "%s", getenv("VIRGA_HOME"));
    snprintf(sock, sizeof(sock), "%s/sock", home);
    if (getenv("VIRGAD_FAILS")) {
        vg_error("config.yaml:3: unknown key 'pols'");
        return 1;
    }
    if (take_place() < 0)
        return 2;
    note_args(argv);
    (void)argc;
    uv_loop_init(&loop);
    uv_signal_init(&loop, &term);
    uv_signal_start(&term, on_term, SIGTERM);
    int fd = vg_unix_listen(sock, SOCK_STREAM, 0666);
    if (fd < 0 || vg_listen_fd(&loop, fd, accepted, NULL, &l) < 0)
        return 3;
    return uv_run(&loop, UV_RUN_DEFAULT);
}
