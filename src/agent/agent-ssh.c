/* The node's OpenSSH server for tasks whose own root has none (virga ssh): copies of the program
   and of the libraries it needs, in the folder that every task sees as /run/virga/s. Made when the
   first such task comes, and again when the node's own has changed. What is copied is what
   everybody on the node can read.

   The script in the task (cli/ssh-serve.sh) starts it by its own loader, so that nothing of the
   task's root need fit it. OpenSSH 9.8 and later execute a second program by a path of their own
   and are not offered. Loop thread; the first time blocks it for some ten milliseconds. */
#include "agent/agent-int.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIST_MAX 65536
#define FILE_MAX (64u << 20)
#define FILES_MAX 200

static const char *const servers[] = {"/usr/sbin/sshd", "/usr/local/sbin/sshd"};
static const char *const helpers[] = {"/usr/bin/ssh-keygen", "/usr/lib/openssh/sftp-server",
                                      "/usr/libexec/openssh/sftp-server"};
static const char *const split[] = {"/usr/lib/openssh/sshd-session",
                                    "/usr/libexec/openssh/sshd-session"};

static int copy(const char *from, const char *to) {
    struct stat st;
    vg_auto_fd int in = open(from, O_RDONLY | O_CLOEXEC);
    if (in < 0 || fstat(in, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || st.st_size > (off_t)FILE_MAX)
        return -EINVAL;
    vg_auto_fd int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    if (out < 0)
        return -errno;
    for (off_t left = st.st_size; left > 0;) {
        ssize_t n = sendfile(out, in, NULL, (size_t)left);
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        left -= n;
    }
    struct timespec times[2] = {st.st_atim, st.st_mtim};
    return fchmod(out, 0755) < 0 || futimens(out, times) < 0 ? -errno : 0;
}

/* What the loader says that a program needs: one path a line among other words. */
static int list(const char *program, char out[static LIST_MAX]) {
    char *argv[] = {(char *)program, NULL}, *env[] = {"LD_TRACE_LOADED_OBJECTS=1", NULL};
    posix_spawn_file_actions_t fa;
    int p[2], status = 0;
    pid_t pid;
    if (pipe2(p, O_CLOEXEC) < 0)
        return -errno;
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_adddup2(&fa, p[1], STDOUT_FILENO);
    int e = posix_spawn(&pid, program, &fa, NULL, argv, env);
    posix_spawn_file_actions_destroy(&fa);
    close(p[1]);
    ssize_t n = e ? -e : vg_read_full(p[0], out, LIST_MAX - 1);
    close(p[0]);
    if (e)
        return -e;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (n < 0 || status)
        return n < 0 ? (int)n : -ENOEXEC;
    out[n] = 0;
    return 0;
}

static int copy_to(const char *dir, const char *part, const char *from) {
    vg_auto_free char *to = vg_fmt("%s/%s%s", dir, part, strrchr(from, '/') + 1);
    return to ? copy(from, to) : -ENOMEM;
}

/* The program, its libraries, and the loader, which comes by an absolute name without an arrow. */
static int add_program(const char *dir, const char *program) {
    vg_auto_free char *text = vg_alloc(LIST_MAX), *loader = vg_fmt("%s/ld.so", dir);
    size_t n = 0;
    int r = text && loader ? list(program, text) : -ENOMEM;
    if (r >= 0)
        r = copy_to(dir, "", program);
    for (char *save = NULL, *l = text ? strtok_r(text, "\n", &save) : NULL; r >= 0 && l;
         l = strtok_r(NULL, "\n", &save)) {
        char *path = strchr(l, '/');
        bool arrow = strstr(l, "=>");
        if (!path || n++ > FILES_MAX)
            continue;
        path[strcspn(path, " \t")] = 0;
        r = arrow ? copy_to(dir, "lib/", path) : copy(path, loader);
    }
    return r;
}

static int drop(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static int make(const char *dir, const char *server) {
    vg_auto_free char *fresh = vg_fmt("%s.new", dir), *lib = vg_fmt("%s.new/lib", dir);
    if (!fresh || !lib)
        return -ENOMEM;
    nftw(fresh, drop, 8, FTW_DEPTH | FTW_PHYS);
    int r = vg_mkdir_p(lib, 0755);
    if (r >= 0)
        r = add_program(fresh, server);
    for (size_t i = 0; r >= 0 && i < VG_COUNT(helpers); i++)
        if (access(helpers[i], R_OK) == 0)
            r = add_program(fresh, helpers[i]);
    if (r >= 0) {
        nftw(dir, drop, 8, FTW_DEPTH | FTW_PHYS);
        r = rename(fresh, dir) < 0 ? -errno : 0;
    }
    if (r < 0)
        nftw(fresh, drop, 8, FTW_DEPTH | FTW_PHYS);
    return r;
}

static bool is_same(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_size == y.st_size &&
           x.st_mtim.tv_sec == y.st_mtim.tv_sec;
}

bool vg_ssh_is_wanted(const Vg__Pb__Start *start) {
    static const char mark[] = "virga-ssh"; /* what cli/cmd-ssh-proxy.c calls its script */
    const Vg__Pb__TaskSpec *s = start->spec;
    return s && s->mirror && s->n_argv > 3 && s->argv[3].len == sizeof(mark) - 1 &&
           memcmp(s->argv[3].data, mark, sizeof(mark) - 1) == 0;
}

void vg_ssh_offer(struct vg_agent *a) {
    vg_auto_free char *dir = vg_agent_path(a, VG_AGENT_INSIDE "/ssh");
    const char *server = NULL;
    for (size_t i = 0; i < VG_COUNT(servers) && !server; i++)
        if (access(servers[i], R_OK) == 0)
            server = servers[i];
    for (size_t i = 0; i < VG_COUNT(split); i++)
        if (access(split[i], F_OK) == 0)
            server = NULL;
    vg_auto_free char *had = dir ? vg_fmt("%s/sshd", dir) : NULL;
    if (!server || !had || is_same(server, had))
        return;
    int r = make(dir, server);
    if (r < 0)
        vg_warn("the node's OpenSSH server cannot be offered to tasks: %s", strerror(-r));
}

void vg_ssh_forget(struct vg_agent *a) {
    vg_auto_free char *dir = vg_agent_path(a, VG_AGENT_INSIDE "/ssh");
    if (dir)
        nftw(dir, drop, 8, FTW_DEPTH | FTW_PHYS);
}
