/* Where the cloud is. No state; any thread. Reads the environment and looks at a few paths;
   nothing is connected here. */
#include "cli/endpoint.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define RESTART_USEC (5 * VG_USEC)

#define SYSTEM_SOCKET "/run/virga/sock"
#define LOGIN_MAX 4096

static const char *env(const char *name) {
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

static int copy(char *to, size_t room, const char *from, const char *what, struct vg_err *err) {
    size_t n = strlen(from);
    if (n >= room)
        return vg_err_set(err, VG_INVALID, "%s is too long: at most %zu bytes are allowed", what,
                          room - 1);
    memcpy(to, from, n + 1);
    return 0;
}

static int user_home(const char **ret, struct vg_err *err) {
    *ret = env("HOME");
    if (*ret)
        return 0;
    struct passwd *pw = getpwuid(getuid());
    if (!pw || !pw->pw_dir || !*pw->pw_dir)
        return vg_err_set(err, VG_INVALID,
                          "cannot tell your home folder: set HOME or VIRGA_HOME and try again");
    *ret = pw->pw_dir;
    return 0;
}

int vg_home_dir(char *ret, size_t n, struct vg_err *err) {
    const char *set = env("VIRGA_HOME"), *home;
    int len;
    if (set && *set == '/')
        len = snprintf(ret, n, "%s", set);
    else if (set) {
        char cwd[PATH_MAX];
        if (!getcwd(cwd, sizeof(cwd)))
            return vg_err_sys(err, errno,
                              "VIRGA_HOME is relative and the working directory is "
                              "gone, give an absolute path");
        len = snprintf(ret, n, "%s/%s", cwd, set);
    } else {
        int r = user_home(&home, err);
        if (r < 0)
            return r;
        len = snprintf(ret, n, "%s/.virga", home);
    }
    if (len < 0 || (size_t)len >= n)
        return vg_err_set(err, VG_INVALID, "VIRGA_HOME is too long: at most %zu bytes are allowed",
                          n - 1);
    while (len > 1 && ret[len - 1] == '/')
        ret[--len] = 0;
    return 0;
}

const char *vg_home_short(const char *path, char *out, size_t n) {
    const char *home = env("HOME");
    size_t len = home ? strlen(home) : 0;
    if (len > 1 && strncmp(path, home, len) == 0 && path[len] == '/')
        snprintf(out, n, "~%s", path + len);
    else
        snprintf(out, n, "%s", path);
    return out;
}

int vg_token_ca(const char *token, char ret_ca[static 33]) {
    const char *last = strrchr(token, '_');
    if (!last || (strncmp(token, "vgt_", 4) != 0 && strncmp(token, "vgj_", 4) != 0))
        return -EINVAL;
    if (strlen(last + 1) != 32 || strspn(last + 1, "0123456789abcdef") != 32)
        return -EINVAL;
    memcpy(ret_ca, last + 1, 33);
    return 0;
}

static int login_line(char *line, const char *path, struct vg_endpoint *e, struct vg_err *err) {
    char *value = strchr(line, '=');
    if (!*line || *line == '#')
        return 0;
    if (!value)
        return vg_err_set(err, VG_INVALID, "%s is damaged: log in again with 'virga login'", path);
    *value++ = 0;
    if (strcmp(line, "address") == 0)
        return copy(e->address, sizeof(e->address), value, "the address in the login file", err);
    if (strcmp(line, "token") == 0)
        return copy(e->token, sizeof(e->token), value, "the token in the login file", err);
    if (strcmp(line, "ca") == 0)
        return copy(e->ca, sizeof(e->ca), value, "the fingerprint in the login file", err);
    return 0; /* a newer program's key */
}

int vg_login_read(const char *path, struct vg_endpoint *ret, struct vg_err *err) {
    vg_auto_free char *data = NULL;
    size_t len;
    struct vg_endpoint e = {.kind = VG_ENDPOINT_TLS};
    int r = vg_read_file(path, LOGIN_MAX, &data, &len);
    if (r < 0)
        return vg_err_sys(err, r, "cannot read the login file %s", path);
    for (char *line = data, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        r = login_line(line, path, &e, err);
        if (r < 0)
            return r;
    }
    if (!*e.address || !*e.token || strlen(e.ca) != 32)
        return vg_err_set(err, VG_INVALID, "%s is damaged: log in again with 'virga login'", path);
    *ret = e;
    return 0;
}

int vg_login_write(const char *path, const struct vg_endpoint *e, struct vg_err *err) {
    vg_auto_free char *text = vg_fmt("address=%s\ntoken=%s\nca=%s\n", e->address, e->token, e->ca);
    if (!text)
        return vg_err_sys(err, ENOMEM, "cannot write %s", path);
    int r = vg_write_file(path, text, strlen(text), 0600);
    return r < 0 ? vg_err_sys(err, r, "cannot write the login file %s", path) : 0;
}

static int set_unix(struct vg_endpoint *e, const char *path, struct vg_err *err) {
    *e = (struct vg_endpoint){.kind = VG_ENDPOINT_UNIX};
    return copy(e->path, sizeof(e->path), path, "the socket's path", err);
}

/* The home folder's socket, else its login: 1 found, 0 neither is there. */
static int find_in_home(const char *home, struct vg_endpoint *e, struct vg_err *err) {
    char path[VG_ENDPOINT_PATH_MAX];
    if ((size_t)snprintf(path, sizeof(path), "%s/sock", home) >= sizeof(path))
        return 0;
    if (access(path, F_OK) == 0) {
        int r = set_unix(e, path, err);
        return r < 0 ? r : 1;
    }
    snprintf(path, sizeof(path), "%s/client", home);
    if (access(path, R_OK) != 0)
        return 0;
    int r = vg_login_read(path, e, err);
    return r < 0 ? r : 1;
}

int vg_endpoint_find(struct vg_endpoint *ret, struct vg_err *err) {
    const char *token = env("VIRGA_TOKEN"), *sock = env("VIRGA_SOCKET");
    char home[VG_ENDPOINT_PATH_MAX - 16];
    /* A task inherits its caller's variables and sees its home: neither may lead it astray. */
    if (token && env("VIRGA_TASK_ID") && access(SYSTEM_SOCKET, F_OK) == 0) {
        int r = set_unix(ret, SYSTEM_SOCKET, err);
        return r < 0 ? r : copy(ret->token, sizeof(ret->token), token, "VIRGA_TOKEN", err);
    }
    if (sock)
        return set_unix(ret, sock, err);
    int r = vg_home_dir(home, sizeof(home), err);
    if (r < 0)
        return r;
    r = find_in_home(home, ret, err);
    if (r != 0)
        return r < 0 ? r : 0;
    if (!env("VIRGA_HOME") && access(SYSTEM_SOCKET, F_OK) == 0)
        return set_unix(ret, SYSTEM_SOCKET, err);
    char path[VG_ENDPOINT_PATH_MAX];
    snprintf(path, sizeof(path), "%s/sock", home);
    return set_unix(ret, path, err);
}

/* Whether somebody keeps the control plane behind this socket running, so that it will be back: the
   supervisor holds a lock on up.pid beside it. */
static bool supervised(const char *sock) {
    char path[VG_ENDPOINT_PATH_MAX + 8];
    snprintf(path, sizeof(path), "%s", sock);
    char *slash = strrchr(path, '/');
    if (!slash)
        return false;
    snprintf(slash, sizeof(path) - (size_t)(slash - path), "/up.pid");
    vg_auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
}

int vg_endpoint_connect(const struct vg_endpoint *e) {
    uint64_t until = 0;
    for (;;) {
        int fd = vg_unix_connect(e->path, SOCK_STREAM);
        if (fd != -ENOENT && fd != -ECONNREFUSED)
            return fd;
        uint64_t now = vg_now_usec();
        if (!until)
            until = now + RESTART_USEC;
        if (now > until || !supervised(e->path))
            return fd;
        poll(NULL, 0, 10);
    }
}

int vg_endpoint_refused(const struct vg_endpoint *e, int code, struct vg_err *err) {
    char where[VG_ENDPOINT_PATH_MAX];
    int no = code < 0 ? -code : code;
    if (e->kind == VG_ENDPOINT_TLS)
        return vg_err_set(err, VG_UNAVAILABLE,
                          "no Virga cloud answers at %s (%s): check the address and that it runs, "
                          "or log in to another with 'virga login HOST:PORT --token TOKEN'",
                          e->address, strerror(no));
    vg_home_short(e->path, where, sizeof(where));
    if (no == EACCES || no == EPERM)
        return vg_err_set(err, VG_FORBIDDEN,
                          "you may not use the Virga cloud at %s: ask its administrator for a "
                          "token and log in with 'virga login HOST:PORT --token TOKEN'",
                          where);
    return vg_err_set(err, VG_UNAVAILABLE,
                      "no Virga cloud answers at %s: start one with 'virga up' or log in to one "
                      "with 'virga login HOST:PORT --token TOKEN'",
                      where);
}
