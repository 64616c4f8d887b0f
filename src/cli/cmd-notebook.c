/* `virga notebook`: Jupyter in a task, with the files and packages of this machine, at a port here.
   Ends with Ctrl-C. Nothing of it is stored but the task; the token goes by standard input. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/around.h"
#include "cli/cmd.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PORT 8888
#define TRY_MS 100
#define ANSWER_MS 5000

static const char serve[] =
#include "notebook-serve.h"
    ;

static const char usage[] =
    "Usage: virga notebook [options] [DIR]\n\n"
    "JupyterLab (or whichever Jupyter the environment has) on the cloud, at a port of this "
    "machine.\n"
    "Prints the address with its token when it answers; ends with Ctrl-C. Options are vrun's.\n";

static int local(uint16_t port, struct sockaddr_in *ret) {
    *ret = (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons(port),
                                .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

/* 8888 when it is free here, as people expect, else any. 0: none. */
static uint16_t free_port(void) {
    for (uint16_t want = PORT;; want = 0) {
        struct sockaddr_in a;
        socklen_t len = sizeof(a);
        vg_auto_fd int fd = local(want, &a);
        int on = 1;
        if (fd >= 0)
            setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
        if (fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 &&
            getsockname(fd, (struct sockaddr *)&a, &len) == 0)
            return ntohs(a.sin_port);
        if (!want)
            return 0;
    }
}

/* Whether something that speaks HTTP answers there. */
static bool answers(uint16_t port) {
    static const char ask[] = "GET /api HTTP/1.0\r\nHost: localhost\r\n\r\n";
    struct sockaddr_in a;
    char word[8] = "";
    vg_auto_fd int fd = local(port, &a);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0 ||
        send(fd, ask, sizeof(ask) - 1, MSG_NOSIGNAL) < 0)
        return false;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, ANSWER_MS) == 1 && recv(fd, word, 5, MSG_WAITALL) == 5 &&
           memcmp(word, "HTTP/", 5) == 0;
}

static volatile sig_atomic_t interrupted;
static volatile pid_t child;

/* Ctrl-C goes to vrun by itself, for it is in the same group. */
static void on_signal(int signo) {
    interrupted = 1;
    if (signo == SIGTERM && child > 0)
        kill(child, signo);
}

/* Says where it is once it answers, or returns when the task has ended before. */
static void announce(pid_t pid, uint16_t port, const char *token) {
    vg_auto_fd int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd ended = {.fd = pidfd, .events = POLLIN};
    while (!interrupted && poll(&ended, pidfd >= 0, TRY_MS) == 0) {
        if (!answers(port))
            continue;
        printf("http://localhost:%u/?token=%s\n", port, token);
        fflush(stdout);
        if (isatty(STDERR_FILENO))
            fprintf(stderr, "virga: Ctrl-C ends it\n");
        return;
    }
}

static int run(const struct vg_around *a, uint16_t here, struct vg_err *err) {
    uint8_t raw[24];
    uint16_t there;
    char token[2 * sizeof(raw) + 2], ports[48], inner[8], line[VG_AROUND_LINE];
    int p[2], q[2];
    vg_random(raw, sizeof(raw));
    vg_random(&there, sizeof(there));
    for (size_t i = 0; i < sizeof(raw); i++)
        snprintf(token + 2 * i, 3, "%02x", raw[i]);
    /* On pools with the node's own network others have ports, too. */
    there = (uint16_t)(20000 + there % 12000);
    snprintf(ports, sizeof(ports), "127.0.0.1:%u:%u", here, there);
    snprintf(inner, sizeof(inner), "%u", there);
    vg_auto_free char **words = vg_alloc((a->n_options + 24) * sizeof(*words));
    if (!words || pipe2(p, O_CLOEXEC) < 0)
        return vg_err_sys(err, words ? errno : ENOMEM, "cannot start Jupyter");
    size_t n = 0;
    const char *const own[] = {"-n", "notebook", "--tty", "no", "-p", ports};
    for (; n < VG_COUNT(own); n++)
        words[n] = (char *)own[n];
    if (a->word) {
        words[n++] = (char *)"-C";
        words[n++] = (char *)a->word;
    }
    for (size_t i = 0; i < a->n_options; i++)
        words[n++] = a->options[i];
    char *const command[] = {(char *)"--",  (char *)"/bin/sh",        (char *)"-c",
                             (char *)serve, (char *)"virga-notebook", inner,
                             NULL};
    memcpy(words + n, command, sizeof(command));
    struct sigaction act = {.sa_handler = on_signal};
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    if (pipe2(q, O_CLOEXEC) < 0) {
        close(p[0]);
        close(p[1]);
        return vg_err_sys(err, errno, "cannot start Jupyter");
    }
    pid_t pid = child = vg_around_start(words, p[0], q[1], err);
    close(p[0]);
    close(q[1]);
    vg_auto_fd int in = p[1], out = q[0];
    if (pid < 0)
        return pid;
    if (interrupted) /* before there was whom to tell */
        kill(pid, SIGTERM);
    size_t len = strlen(token);
    token[len] = '\n';
    int r = vg_write_full(in, token, len + 1);
    token[len] = 0;
    vg_close(&in);
    /* It says a word when it has found Jupyter; ports lead nowhere before. */
    if (r >= 0 && vg_around_line(out, line) > 0)
        announce(pid, here, token);
    vg_around_relay(out);
    int status = vg_around_wait(pid);
    return interrupted ? 0 : status;
}

static int notebook_main(int argc, char **argv) {
    struct vg_err err = VG_ERR_INIT;
    vg_auto_free char **options = vg_alloc(((size_t)argc + 1) * sizeof(*options));
    struct vg_around a = {.program = "virga notebook", .usage = usage, .options = options};
    int r = options ? vg_around_read(&a, argc, argv, &err)
                    : vg_err_sys(&err, ENOMEM, "cannot start Jupyter");
    if (r > 0)
        return 0;
    if (r == 0 && a.rest < argc)
        r = vg_err_set(
            &err, VG_INVALID,
            "'virga notebook' takes one folder, not '%.60s': 'virga notebook --help' explains",
            argv[a.rest]);
    uint16_t port = r == 0 ? free_port() : 0;
    if (r == 0 && !port)
        r = vg_err_set(&err, VG_UNAVAILABLE, "this machine has no free port for the notebook");
    if (r == 0)
        r = run(&a, port, &err);
    return r < 0 ? vg_cmd_fail(&err) : r;
}

const struct vg_cmd vg_cmd_notebook = {.name = "notebook",
                                       .args = "[DIR]",
                                       .summary = "JupyterLab on the cloud, at a port here",
                                       .raw = notebook_main};
