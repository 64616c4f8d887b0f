/* Calls of simulated cards; see the header. Stands alone: the tests' libraries are built of it,
 * too. Any thread. */
#include "gpu/fake-call.h"

#include "gpu/rm.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define PARAMS_MAX 4096u

size_t vg_fake_call_params(uint32_t cmd, const void *arg, size_t *ret_at) {
    const struct vg_rm_alloc *a = arg;
    const struct vg_rm_alloc_old *old = arg;
    const struct vg_rm_control *c = arg;
    uint64_t at = 0;
    uint32_t n = 0, bytes = cmd >> 16 & 0x3fff;
    if ((cmd & 0xff) == VG_RM_CONTROL && bytes == sizeof(*c)) {
        *ret_at = offsetof(struct vg_rm_control, params);
        at = c->params;
        n = c->params_bytes;
    } else if ((cmd & 0xff) == VG_RM_ALLOC && bytes == sizeof(*a)) {
        *ret_at = offsetof(struct vg_rm_alloc, params);
        at = a->params;
        n = a->params_bytes;
    } else if ((cmd & 0xff) == VG_RM_ALLOC && bytes == sizeof(*old)) {
        *ret_at = offsetof(struct vg_rm_alloc_old, params);
        at = old->params;
        n = old->params_bytes;
    }
    return at && n <= PARAMS_MAX ? n : 0;
}

static int send_call(int fd, int answer, const struct iovec *parts, size_t n) {
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    memset(&control, 0, sizeof(control));
    struct msghdr m = {.msg_iov = (struct iovec *)parts,
                       .msg_iovlen = n,
                       .msg_control = &control,
                       .msg_controllen = sizeof(control)};
    control.head = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.head), &answer, sizeof(answer));
    ssize_t r;
    do
        r = sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (r < 0 && errno == EINTR);
    return r < 0 ? -errno : 0;
}

static int64_t receive(int fd, struct iovec *parts, size_t n, size_t want) {
    struct pollfd p = {fd, POLLIN, 0};
    int ready;
    do
        ready = poll(&p, 1, VG_FAKE_CALL_MSEC);
    while (ready < 0 && errno == EINTR);
    if (ready <= 0)
        return ready < 0 ? -errno : -ETIMEDOUT;
    ssize_t r = readv(fd, parts, (int)n);
    return r < 0 ? -errno : (size_t)r == want ? 0 : -EIO;
}

int64_t vg_fake_call(int fd, uint32_t cmd, void *arg, bool in_stead) {
    struct vg_fake_call head = {.cmd = cmd, .in_stead = in_stead};
    size_t bytes = cmd >> 16 & 0x3fff, at = 0, params = vg_fake_call_params(cmd, arg, &at);
    uint64_t pointer = 0;
    int pair[2];
    if (params)
        memcpy(&pointer, (char *)arg + at, sizeof(pointer));
    head.params_bytes = (uint32_t)params;
    struct iovec parts[] = {
        {&head, sizeof(head)}, {arg, bytes}, {(void *)(uintptr_t)pointer, params}};
    size_t want = sizeof(head) + bytes + params;
    if (want > VG_FAKE_CALL_MAX)
        return -EINVAL;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    int64_t r = send_call(fd, pair[1], parts, 3);
    close(pair[1]); /* so that a driver that ends is noticed */
    if (r >= 0)
        r = receive(pair[0], parts, 3, want);
    close(pair[0]);
    if (r < 0)
        return r;
    if (params) /* it came back as the driver had it */
        memcpy((char *)arg + at, &pointer, sizeof(pointer));
    return head.value;
}
