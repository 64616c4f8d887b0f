/* Packets between agent and keeper: one sendmsg, one recvmsg. */
#include "agent/keeper.h"
#include "base/util.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

int vg_kpkt_send(int sock, enum vg_kpkt_kind kind, uint64_t id, uint64_t a, uint64_t b,
                 const void *payload, size_t len, const int *fds, size_t n_fds) {
    struct vg_kpkt h = {.kind = kind, .len = (uint32_t)len, .id = id, .a = a, .b = b};
    struct iovec iov[2] = {{.iov_base = &h, .iov_len = sizeof(h)},
                           {.iov_base = (void *)payload, .iov_len = len}};
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int) * VG_FDS_MAX)];
    } u = {0};
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = len ? 2 : 1};
    if (sizeof(h) + len > VG_KPKT_MAX || n_fds > VG_FDS_MAX)
        return -E2BIG;
    if (n_fds) {
        msg.msg_control = u.buf;
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
    }
    ssize_t r;
    do
        r = sendmsg(sock, &msg, MSG_NOSIGNAL);
    while (r < 0 && errno == EINTR);
    return r < 0 ? -errno : 0;
}

ssize_t vg_kpkt_recv(int sock, struct vg_kpkt *ret, uint8_t *buf, int *fds, size_t *n_fds) {
    ssize_t n = vg_recv_fds(sock, buf, VG_KPKT_MAX, fds, n_fds, MSG_DONTWAIT);
    if (n == 0)
        return -ECONNRESET;
    if (n < 0)
        return n;
    if ((size_t)n < sizeof(*ret))
        return -EPROTO;
    memcpy(ret, buf, sizeof(*ret));
    if (ret->len != (size_t)n - sizeof(*ret))
        return -EPROTO;
    memmove(buf, buf + sizeof(*ret), ret->len);
    return (ssize_t)ret->len;
}

static bool has_part(const Vg__Pb__Start *start, const char *class_name) {
    return start->class_name && !strcmp(start->class_name, class_name) && start->n_gpu == 1 &&
           start->grant && start->grant->gpu_milli;
}

bool vg_start_is_mps(const Vg__Pb__Start *start) {
    return has_part(start, "mps");
}

bool vg_start_is_share(const Vg__Pb__Start *start) {
    return has_part(start, "shared") || vg_start_is_mps(start);
}

const char *vg_kshare_word(const char *words, size_t len, size_t n) {
    const char *end = words + len;
    while (words && words < end) {
        const char *stop = memchr(words, 0, (size_t)(end - words));
        if (!stop)
            return NULL;
        if (n-- == 0)
            return words;
        words = stop + 1;
    }
    return NULL;
}
