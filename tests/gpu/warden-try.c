/* A command under the warden of a shared GPU, without a cloud around it: for a real card.

       warden-try LIMIT_MIB SLICE_USEC COMMAND [ARG...]

   Says at the end what passed by, on stderr. */
#include "base/util.h"
#include "gpu/warden-notify.h"

#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static _Noreturn void confined(int socket, char **argv) {
    struct sock_fprog program;
    vg_warden_filter(&program);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    int listener = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                                SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    char c = 'x';
    if (listener < 0 || vg_send_fds(socket, &c, 1, &listener, 1, 0) < 0 || read(socket, &c, 1) != 1)
        _exit(125);
    close(listener);
    close(socket);
    execvp(argv[0], argv);
    _exit(127);
}

int main(int argc, char **argv) {
    int pair[2], listener = -1, status;
    if (argc < 4 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return 2;
    pid_t pid = fork();
    if (pid == 0)
        confined(pair[1], argv + 3);
    close(pair[1]);
    char c;
    size_t n = 1;
    struct stat st;
    const char *device = "/dev/nvidia0";
    if (vg_recv_fds(pair[0], &c, 1, &listener, &n, 0) != 1 || n != 1 ||
        stat("/dev/nvidia-uvm", &st) < 0)
        return 125;
    struct vg_err err = {0};
    struct vg_warden_watch *watch;
    const struct vg_warden_setup setup = {.listener = listener,
                                          .devices = &device,
                                          .n_devices = 1,
                                          .limit_bytes = strtoull(argv[1], NULL, 10) << 20,
                                          .slice_usec = (uint32_t)strtoul(argv[2], NULL, 10),
                                          .managed_device = st.st_rdev};
    if (vg_warden_start(&setup, &watch, &err) < 0) {
        fprintf(stderr, "warden-try: %s\n", err.msg);
        kill(pid, 9);
        return 125;
    }
    (void)!write(pair[0], "x", 1);
    waitpid(pid, &status, 0);
    struct vg_warden_stat s;
    vg_warden_look(watch, &s);
    fprintf(
        stderr,
        "warden: limit %.1f MiB, peak %.1f, now %.1f, managed %.1f, refused %llu, strange %llu, "
        "slices taken back %llu\n",
        (double)s.limit_bytes / 1048576, (double)s.peak_bytes / 1048576,
        (double)s.used_bytes / 1048576, (double)s.managed_bytes / 1048576,
        (unsigned long long)s.refused, (unsigned long long)s.strange,
        (unsigned long long)s.retaken);
    vg_warden_stop(watch);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
