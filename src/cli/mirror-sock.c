#include "cli/mirror-sock.h"

#include "base/cleanup.h"
#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALL_MS 30000
#define START_MS 10000
#define STARTS 8

/* ---- packets ---- */

void vg_mpkt_clear(struct vg_mpkt *p) {
    p->n = 0;
}

int vg_mpkt_add(struct vg_mpkt *p, const char *key, const char *value) {
    size_t k = strlen(key), v = strlen(value);
    if (k + v + 2 > sizeof(p->text) - p->n)
        return -E2BIG;
    memcpy(p->text + p->n, key, k);
    p->text[p->n + k] = '=';
    memcpy(p->text + p->n + k + 1, value, v + 1);
    p->n += k + v + 2;
    return 0;
}

const char *vg_mpkt_next(const struct vg_mpkt *p, const char *key, size_t *at) {
    size_t k = strlen(key);
    while (*at < p->n) {
        const char *s = p->text + *at;
        *at += strlen(s) + 1;
        if (strncmp(s, key, k) == 0 && s[k] == '=')
            return s + k + 1;
    }
    return NULL;
}

const char *vg_mpkt_get(const struct vg_mpkt *p, const char *key) {
    size_t at = 0;
    return vg_mpkt_next(p, key, &at);
}

int vg_mpkt_send(int fd, const struct vg_mpkt *p, int with_fd) {
    ssize_t n = vg_send_fds(fd, p->text, p->n, &with_fd, with_fd >= 0 ? 1 : 0, 0);
    return n < 0 ? (int)n : 0;
}

int vg_mpkt_recv(int fd, struct vg_mpkt *p, int *ret_fd) {
    int came = -1;
    size_t n_fds = 1;
    ssize_t n = vg_recv_fds(fd, p->text, sizeof(p->text), &came, &n_fds, MSG_TRUNC);
    vg_auto_fd int with = n >= 0 && n_fds ? came : -1;
    if (n < 0)
        return (int)n;
    p->n = 0;
    if (ret_fd)
        *ret_fd = -1;
    if (n == 0)
        return 0;
    if ((size_t)n > sizeof(p->text) || p->text[n - 1])
        return -EBADMSG;
    p->n = (size_t)n;
    if (ret_fd)
        *ret_fd = vg_take_fd(with);
    return 1;
}

/* ---- the service ---- */

static uint64_t mix(uint64_t h, const char *s) {
    for (; *s; s++)
        h = (h ^ (uint8_t)*s) * 0x100000001b3u;
    return (h ^ 0xff) * 0x100000001b3u;
}

static int check_dir(const char *dir, struct vg_err *err) {
    struct stat st;
    int r = vg_mkdir_p(dir, 0700);
    if (r < 0)
        return vg_err_sys(err, r, "cannot make %s", dir);
    if (lstat(dir, &st) < 0)
        return vg_err_sys(err, errno, "cannot look at %s", dir);
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022))
        return vg_err_set(err, VG_FORBIDDEN,
                          "%s must be a folder of yours that nobody else can write", dir);
    return 0;
}

int vg_mirror_sock_path(const struct vg_endpoint *e, char *ret, size_t n, struct vg_err *err) {
    char dir[PATH_MAX];
    const char *run = getenv("XDG_RUNTIME_DIR");
    if (run && run[0] == '/' && !getenv("VIRGA_HOME")) {
        snprintf(dir, sizeof(dir), "%s/virga", run);
    } else {
        int r = vg_home_dir(dir, sizeof(dir) - 8, err);
        if (r < 0)
            return r;
        snprintf(dir + strlen(dir), 8, "/run");
    }
    int r = check_dir(dir, err);
    if (r < 0)
        return r;
    bool tls = e->kind == VG_ENDPOINT_TLS;
    /* Who logs in as somebody else has another service, too. Of the token go in few bits: names of
       sockets are public. */
    uint64_t h = mix(mix(0, e->token) >> 48, tls ? e->address : e->path);
    if (snprintf(ret, n, "%s/mirror-%016llx", dir, (unsigned long long)mix(h, tls ? e->ca : "")) >=
        (int)n)
        return vg_err_set(err, VG_INVALID, "the path of the runtime folder is too long");
    return 0;
}

int vg_mirror_sock_connect(const char *path) {
    struct ucred who;
    socklen_t n = sizeof(who);
    int fd = vg_unix_connect(path, SOCK_SEQPACKET);
    if (fd < 0)
        return fd;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) < 0 || who.uid != geteuid()) {
        close(fd);
        return -EPERM;
    }
    return fd;
}

/* In the grandchild: nothing of vrun's may stay with it. */
static void become_service(int ready) {
    char path[PATH_MAX + 8], fd_text[12];
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX);
    int null = open("/dev/null", O_RDWR);
    if (n <= 0 || null < 0 || chdir("/") < 0)
        _exit(125);
    path[n] = 0;
    char *slash = strrchr(path, '/');
    snprintf(slash ? slash + 1 : path, 8, "virga");
    for (int fd = 0; fd < 3; fd++)
        dup2(null, fd);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (ready == 3) /* either way without close-on-exec */
        fcntl(3, F_SETFD, 0);
    else
        dup2(ready, 3);
    syscall(SYS_close_range, 4, ~0u, 0);
    snprintf(fd_text, sizeof(fd_text), "3");
    execl(path, "virga", "mirror", "serve", "--ready", fd_text, (char *)NULL);
    _exit(127);
}

/* Forks twice, so that it belongs to nobody's session and is nobody's child. */
static int spawn(int ready) {
    pid_t child = fork();
    if (child < 0)
        return -errno;
    if (child == 0) {
        setsid();
        pid_t inner = fork();
        if (inner == 0)
            become_service(ready);
        _exit(inner < 0 ? 1 : 0);
    }
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return 0;
}

/* What the new service said: "ok", or a sentence. */
static int await_ready(int fd, struct vg_err *err) {
    char text[512];
    size_t n = 0;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (n < sizeof(text) - 1 && poll(&p, 1, START_MS) > 0) {
        ssize_t k = read(fd, text + n, sizeof(text) - 1 - n);
        if (k <= 0)
            break;
        n += (size_t)k;
    }
    text[n] = 0;
    if (strncmp(text, "ok", 2) == 0)
        return 0;
    return vg_err_set(err, VG_UNAVAILABLE, "the file service did not start: %s",
                      n ? text : "it said nothing; try 'virga mirror serve' to see why");
}

static int start_one(struct vg_err *err) {
    int ready[2];
    if (pipe2(ready, O_CLOEXEC) < 0)
        return vg_err_sys(err, errno, "cannot start the file service");
    int r = spawn(ready[1]);
    vg_close(&ready[1]);
    r = r < 0 ? vg_err_sys(err, r, "cannot start the file service") : await_ready(ready[0], err);
    vg_close(&ready[0]);
    return r;
}

int vg_mirror_sock_start(const char *path, struct vg_err *err) {
    int fd = vg_mirror_sock_connect(path);
    /* The new one leaves to another that is there already. That may be about to listen; or it was
       about to end, and then nobody is there and one is started again. */
    for (int tries = 0; fd < 0 && tries < STARTS; tries++) {
        int r = start_one(err);
        if (r < 0)
            return r;
        for (int i = 0; i < 100 && (fd = vg_mirror_sock_connect(path)) < 0; i++)
            poll(NULL, 0, 5);
    }
    return fd < 0 ? vg_err_sys(err, fd, "cannot reach the file service at %s", path) : fd;
}

int vg_mirror_sock_call(int fd, struct vg_mpkt *p, int *ret_fd, struct vg_err *err) {
    struct pollfd pf = {.fd = fd, .events = POLLIN};
    size_t asked = p->n;
    int r = vg_mpkt_send(fd, p, -1);
    if (r == 0) {
        int k;
        while ((k = poll(&pf, 1, CALL_MS)) < 0 && errno == EINTR)
            ;
        r = k > 0 ? vg_mpkt_recv(fd, p, ret_fd) : -ETIMEDOUT;
    }
    if (r <= 0) {
        p->n = asked; /* nothing came: it can be asked again */
        return vg_err_sys(err, r < 0 ? r : -ECONNRESET, "the file service does not answer");
    }
    const char *error = vg_mpkt_get(p, "error"), *reason = vg_mpkt_get(p, "reason");
    uint64_t wire = VG_INTERNAL;
    if (!error)
        return 0;
    if (reason && vg_parse_u64(reason, &wire) < 0)
        wire = VG_INTERNAL;
    char text[VG_ERR_MAX];
    snprintf(text, sizeof(text), "%s", error);
    return vg_err_set(err, vg_reason_from_wire((unsigned)wire), "%s", text);
}
