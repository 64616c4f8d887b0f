/* Listening sockets. Loop thread only. When the process has no descriptor left, a spare one is
   given up for a moment to accept and drop the caller, who then learns it at once instead of
   hanging in a queue that wakes us for ever. */
#include "base/fault.h"
#include "base/mem.h"
#include "base/util.h"
#include "net/conn.h"

#include "base/cleanup.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>

#define ACCEPTS 64 /* a turn of the loop */

struct vg_listener {
    uv_poll_t poll;
    int fd, spare; /* owned */
    bool dead;
    void (*accepted)(int fd, void *user);
    void *user;
};

static void refuse_one(struct vg_listener *l) {
    vg_close(&l->spare);
    int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC);
    vg_close(&fd);
    l->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void on_readable(uv_poll_t *handle, int status, int events) {
    struct vg_listener *l = handle->data;
    (void)status;
    (void)events;
    for (int i = 0; i < ACCEPTS && !l->dead; i++) {
        int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            l->accepted(fd, l->user);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE)
            refuse_one(l);
        else if (errno != EINTR && errno != ECONNABORTED)
            return;
    }
}

static void on_closed(uv_handle_t *handle) {
    free(handle->data);
}

void vg_listener_free(struct vg_listener *l) {
    if (!l || l->dead)
        return;
    l->dead = true;
    uv_close((uv_handle_t *)&l->poll, on_closed);
    vg_close(&l->fd);
    vg_close(&l->spare);
}

int vg_listen_fd(uv_loop_t *loop, int fd_in, void (*accepted)(int fd, void *user), void *user,
                 struct vg_listener **ret) {
    vg_auto_fd int fd = fd_in;
    vg_auto_free struct vg_listener *l = vg_alloc(sizeof(*l));
    if (!l)
        return -ENOMEM;
    int r = vg_set_nonblock(fd, true);
    if (r < 0)
        return r;
    *l = (struct vg_listener){.fd = fd, .accepted = accepted, .user = user};
    r = uv_poll_init(loop, &l->poll, fd);
    if (r < 0)
        return r;
    l->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    l->poll.data = l;
    fd = -1;
    struct vg_listener *made = vg_take_ptr(l);
    r = uv_poll_start(&made->poll, UV_READABLE, on_readable);
    if (r < 0) {
        vg_listener_free(made);
        return r;
    }
    *ret = made;
    return 0;
}

static int bind_one(const struct addrinfo *ai) {
    vg_auto_fd int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int one = 1;
    if (fd < 0)
        return -errno;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, ai->ai_addr, ai->ai_addrlen) < 0 || listen(fd, 4096) < 0)
        return -errno;
    return vg_take_fd(fd);
}

static uint16_t bound_port(int fd) {
    struct sockaddr_storage ss = {0};
    socklen_t len = sizeof(ss);
    if (getsockname(fd, (struct sockaddr *)&ss, &len) < 0)
        return 0;
    return ntohs(ss.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&ss)->sin6_port
                                          : ((struct sockaddr_in *)&ss)->sin_port);
}

int vg_listen_tcp(uv_loop_t *loop, const char *host, uint16_t port,
                  void (*accepted)(int fd, void *user), void *user, struct vg_listener **ret,
                  uint16_t *ret_port, struct vg_err *err) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    char text[8];
    (void)snprintf(text, sizeof(text), "%u", port);
    int r = getaddrinfo(host && *host ? host : NULL, text, &hints, &list);
    if (r != 0)
        return vg_err_set(err, VG_INVALID, "cannot listen on '%s': %s", host ? host : "",
                          gai_strerror(r));
    int fd = -EADDRNOTAVAIL;
    for (struct addrinfo *ai = list; ai && fd < 0; ai = ai->ai_next)
        fd = bind_one(ai);
    freeaddrinfo(list);
    if (fd < 0)
        return vg_err_sys(err, fd, "cannot listen on %s:%u (is another program using the port?)",
                          host && *host ? host : "*", port);
    uint16_t real = bound_port(fd);
    r = vg_listen_fd(loop, fd, accepted, user, ret);
    if (r < 0)
        return vg_err_sys(err, r, "cannot listen on %s:%u", host && *host ? host : "*", port);
    if (ret_port)
        *ret_port = real;
    return 0;
}
