/* Calls to a driver that is a process: what it answers, and what it fails to. */
#include "gpu/fake-call.h"
#include "gpu/rm.h"

#include "base/util.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CMD(nr, type) (3u << 30 | (uint32_t)sizeof(type) << 16 | VG_RM_TYPE << 8 | (nr))

enum manner { ANSWERS, SHORTENS, LEAVES };

struct driver {
    int fd;
    enum manner manner;
    struct vg_fake_call head;
    pthread_t thread;
};

/* One call: the parameters' first byte comes back one more, and the status is 7. */
static void *serve(void *arg) {
    struct driver *d = arg;
    _Alignas(16) uint8_t packet[VG_FAKE_CALL_MAX];
    int back = -1;
    size_t n_fds = 1;
    ssize_t n = vg_recv_fds(d->fd, packet, sizeof(packet), &back, &n_fds, 0);
    memcpy(&d->head, packet, sizeof(d->head));
    struct vg_rm_control *c = (void *)(packet + sizeof(d->head));
    if (n > 0 && d->head.params_bytes)
        packet[sizeof(d->head) + sizeof(*c)]++;
    ((struct vg_fake_call *)packet)->value = 3;
    c->status = 7;
    c->params = 0xdead; /* an address of the driver's own */
    if (n > 0 && d->manner != LEAVES)
        (void)!send(back, packet, (size_t)n - (d->manner == SHORTENS), 0);
    close(back);
    return NULL;
}

static int begin(struct driver *d, enum manner manner) {
    int pair[2];
    cr_assert(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    *d = (struct driver){.fd = pair[1], .manner = manner};
    cr_assert(pthread_create(&d->thread, NULL, serve, d) == 0);
    return pair[0];
}

static void finish(struct driver *d, int fd) {
    pthread_join(d->thread, NULL);
    close(d->fd);
    close(fd);
}

Test(fake_call, the_answer_comes_back_and_pointers_stay) {
    struct driver d;
    uint8_t params[8] = {41};
    struct vg_rm_control c = {.params = (uint64_t)(uintptr_t)params,
                              .params_bytes = sizeof(params)};
    int fd = begin(&d, ANSWERS);
    cr_expect(eq(i64, vg_fake_call(fd, CMD(VG_RM_CONTROL, c), &c, true), 3));
    finish(&d, fd);
    cr_expect(eq(u32, c.status, 7));
    cr_expect(eq(u64, c.params, (uint64_t)(uintptr_t)params));
    cr_expect(eq(u8, params[0], 42));
    cr_expect(eq(u8, d.head.in_stead, 1));
    cr_expect(eq(u32, d.head.params_bytes, sizeof(params)));
}

Test(fake_call, a_driver_that_fails_is_an_error) {
    static const struct {
        enum manner manner;
        int64_t want;
    } cases[] = {{SHORTENS, -EIO}, {LEAVES, -EIO}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct driver d;
        struct vg_rm_control c = {0};
        int fd = begin(&d, cases[i].manner);
        cr_expect(eq(i64, vg_fake_call(fd, CMD(VG_RM_CONTROL, c), &c, false), cases[i].want));
        finish(&d, fd);
    }
}

Test(fake_call, what_is_no_driver_is_an_error) {
    struct vg_rm_control c = {0};
    int pair[2], file = open("/dev/null", O_RDWR | O_CLOEXEC);
    cr_expect(eq(i64, vg_fake_call(file, CMD(VG_RM_CONTROL, c), &c, true), -ENOTSOCK));
    cr_expect(eq(i64, vg_fake_call(-1, CMD(VG_RM_CONTROL, c), &c, true), -EBADF));
    close(file);
    cr_assert(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    close(pair[1]);
    cr_expect(lt(i64, vg_fake_call(pair[0], CMD(VG_RM_CONTROL, c), &c, true), 0));
    close(pair[0]);
}

Test(fake_call, parameters_are_those_of_the_calls_that_have_some) {
    size_t at = 0;
    struct vg_rm_alloc a = {.params = 1, .params_bytes = 80};
    struct vg_rm_alloc_old old = {.params = 1, .params_bytes = 12};
    struct vg_rm_control c = {.params = 1, .params_bytes = 8};
    struct vg_rm_free f = {0};
    cr_expect(eq(sz, vg_fake_call_params(CMD(VG_RM_ALLOC, a), &a, &at), 80));
    cr_expect(eq(sz, at, offsetof(struct vg_rm_alloc, params)));
    cr_expect(eq(sz, vg_fake_call_params(CMD(VG_RM_ALLOC, old), &old, &at), 12));
    cr_expect(eq(sz, vg_fake_call_params(CMD(VG_RM_CONTROL, c), &c, &at), 8));
    cr_expect(eq(sz, vg_fake_call_params(CMD(VG_RM_FREE, f), &f, &at), 0));
    c.params_bytes = 1 << 20;
    cr_expect(eq(sz, vg_fake_call_params(CMD(VG_RM_CONTROL, c), &c, &at), 0), "too many");
    a.params = 0;
    cr_expect(eq(sz, vg_fake_call_params(CMD(VG_RM_ALLOC, a), &a, &at), 0), "nowhere");
}
