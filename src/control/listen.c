/* Where people and nodes reach us. */
#include "control/listen.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/peer.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define SYSTEM_DIR "/run/virga"
#define SYSTEM_SOCK SYSTEM_DIR "/sock"

static int listen_unix(struct vg_control *c, const char *path, int slot, struct vg_err *err) {
    int fd = vg_unix_listen(path, SOCK_STREAM, 0666);
    if (fd < 0)
        return vg_err_sys(err, fd, "cannot listen on %s", path);
    int r = vg_listen_fd(c->loop, fd, vg_peer_accept_unix, c, &c->listeners[slot]);
    return r < 0 ? vg_err_sys(err, r, "cannot listen on %s", path) : 0;
}

/* Whether every folder above `path` lets everybody pass. */
static bool reachable(const char *path) {
    vg_auto_free char *p = vg_strdup(path);
    for (char *slash = p; slash && (slash = strrchr(p, '/'));) {
        struct stat st;
        *slash = '\0';
        if (stat(*p ? p : "/", &st) < 0 || !(st.st_mode & S_IXOTH))
            return false;
        if (!*p)
            return true;
    }
    return false;
}

/* The machine's own cloud also has a well-known place, so that other users find it: root's, when
   its home lies below a folder that they cannot enter. */
static bool is_system_cloud(const struct vg_control *c) {
    const char *env = getenv("VIRGA_SYSTEM");
    if (env && *env)
        return strcmp(env, "1") == 0;
    return geteuid() == 0 && !reachable(c->home.dir);
}

static void listen_system(struct vg_control *c) {
    struct vg_err err = VG_ERR_INIT;
    int other = vg_unix_connect(SYSTEM_SOCK, SOCK_STREAM);
    if (other >= 0) {
        close(other);
        vg_warn("another cloud listens on %s, and %s lies where other users cannot reach it: move "
                "VIRGA_HOME to a folder that they can enter",
                SYSTEM_SOCK, c->home.dir);
        return;
    }
    if (vg_mkdir_p(SYSTEM_DIR, 0755) < 0 || listen_unix(c, SYSTEM_SOCK, 1, &err) < 0)
        vg_warn("other users cannot find this cloud: %s", err.msg);
}

uint16_t vg_listen_last_port(const char *path) {
    vg_auto_free char *text = NULL;
    size_t n = 0;
    uint64_t port = 0;
    if (vg_read_file(path, 512, &text, &n) < 0)
        return 0;
    text[strcspn(text, "\n")] = '\0';
    char *colon = strrchr(text, ':');
    return colon && vg_parse_u64(colon + 1, &port) == 0 && port < 65536 ? (uint16_t)port : 0;
}

int vg_listen_split(const char *text, char *host, size_t n, uint64_t *ret_port,
                    struct vg_err *err) {
    const char *colon = strrchr(text, ':');
    if (!colon || (size_t)(colon - text) >= n || vg_parse_u64(colon + 1, ret_port) < 0 ||
        *ret_port > 65535)
        return vg_err_set(err, VG_INVALID,
                          "'%.128s' is not an address to listen on: write HOST:PORT", text);
    const char *begin = text, *end = colon;
    if (*begin == '[' && end > begin + 1 && end[-1] == ']') {
        begin++;
        end--;
    }
    snprintf(host, n, "%.*s", (int)(end - begin), begin);
    return 0;
}

static int listen_tls(struct vg_control *c, const char *text, struct vg_err *err) {
    char host[256];
    uint64_t want = 0;
    uint16_t port = 0;
    struct vg_err taken = VG_ERR_INIT;
    int r = vg_listen_split(text, host, sizeof host, &want, err);
    if (r < 0)
        return r;
    uint16_t first = want ? (uint16_t)want : vg_listen_last_port(c->home.address);
    r = first ? vg_listen_tcp(c->loop, host, first, vg_peer_accept_tls, c, &c->listeners[2], &port,
                              &taken)
              : -ENOENT;
    if (r < 0 && want) {
        *err = taken;
        return vg_err_wrap(err, "cannot listen on %s (choose another address under 'listen' in %s)",
                           text, c->home.config);
    }
    if (r < 0)
        r = vg_listen_tcp(c->loop, host, 0, vg_peer_accept_tls, c, &c->listeners[2], &port, err);
    if (r < 0)
        return r;
    const char *told = c->conf.advertise && *c->conf.advertise ? c->conf.advertise : NULL;
    if (told && strrchr(told, ':') && !strchr(told, ']'))
        snprintf(c->address, sizeof c->address, "%s", told);
    else
        snprintf(c->address, sizeof c->address,
                 strchr(told ? told : host, ':') ? "[%s]:%u" : "%s:%u", told ? told : host, port);
    return 0;
}

int vg_listen_start(struct vg_control *c, const char *listen, struct vg_err *err) {
    int r = listen_tls(c, listen ? listen : c->conf.listen, err);
    if (r < 0)
        return r;
    vg_auto_free char *line = vg_fmt("%s\n", c->address);
    r = line ? vg_write_file(c->home.address, line, strlen(line), 0644) : -ENOMEM;
    if (r < 0)
        return vg_err_sys(err, r, "cannot write %s", c->home.address);
    if (is_system_cloud(c))
        listen_system(c);
    return listen_unix(c, c->home.sock, 0, err);
}

void vg_listen_stop(struct vg_control *c) {
    if (c->listeners[1])
        unlink(SYSTEM_SOCK);
    for (size_t i = 0; i < VG_COUNT(c->listeners); i++) {
        if (c->listeners[i])
            vg_listener_free(c->listeners[i]);
        c->listeners[i] = NULL;
    }
}
