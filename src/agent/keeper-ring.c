/* The ring of output records. Records may wrap around the end of the mapping; callers get two
   pieces. The mapping is made with the first record, so that silent tasks cost no memory. */
#include "agent/keeper-ring.h"

#include "base/cleanup.h"
#include "base/fault.h"
#include "net/tio.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RING_AHEAD (1u << 20) /* room beyond what is kept, so that reads need not wait for acks */

void vg_ring_init(struct vg_ring *r, size_t keep) {
    size_t size = 1u << 20;
    while (size < keep + RING_AHEAD)
        size *= 2;
    *r = (struct vg_ring){.size = size, .fd = -1};
}

void vg_ring_done(struct vg_ring *r) {
    if (r->base)
        munmap(r->base, r->size);
    r->base = NULL;
    vg_close(&r->fd);
}

static int ring_map(struct vg_ring *r) {
    if (r->base)
        return 0;
    if (vg_fault("alloc") < 0)
        return -ENOMEM;
    vg_auto_fd int fd = memfd_create("virga-output", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)r->size) < 0)
        return -errno;
    void *p = mmap(NULL, r->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return -errno;
    /* From here on nobody else can write to it, whoever gets the descriptor. */
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW) < 0) {
        int e = errno;
        munmap(p, r->size);
        return -e;
    }
    r->base = p;
    r->fd = vg_take_fd(fd);
    return 0;
}

int vg_ring_iov(const struct vg_ring *r, uint64_t from, size_t n, struct iovec out[2]) {
    size_t at = (size_t)(from & (r->size - 1)), first = VG_MIN(n, r->size - at);
    out[0] = (struct iovec){.iov_base = r->base + at, .iov_len = first};
    if (first == n)
        return 1;
    out[1] = (struct iovec){.iov_base = r->base, .iov_len = n - first};
    return 2;
}

void vg_ring_copy(const struct vg_ring *r, uint64_t from, void *out, size_t n) {
    struct iovec v[2];
    int k = vg_ring_iov(r, from, n, v);
    memcpy(out, v[0].iov_base, v[0].iov_len);
    if (k == 2)
        memcpy((uint8_t *)out + v[0].iov_len, v[1].iov_base, v[1].iov_len);
}

static void ring_store(struct vg_ring *r, uint64_t at, const void *data, size_t n) {
    struct iovec v[2];
    int k = vg_ring_iov(r, at, n, v);
    memcpy(v[0].iov_base, data, v[0].iov_len);
    if (k == 2)
        memcpy(v[1].iov_base, (const uint8_t *)data + v[0].iov_len, v[1].iov_len);
}

size_t vg_ring_record_len(const struct vg_ring *r, uint64_t at) {
    uint8_t h[4];
    assert(at >= r->begin && at < r->end);
    vg_ring_copy(r, at, h, sizeof(h));
    return VG_REC_HEADER + (size_t)vg_get32(h);
}

size_t vg_ring_make_room(struct vg_ring *r, size_t n, uint64_t floor) {
    while (r->size - (size_t)(r->end - r->begin) < n && r->begin < r->end) {
        size_t len = vg_ring_record_len(r, r->begin);
        if (r->begin + len > floor)
            break;
        r->begin += len;
    }
    return r->size - (size_t)(r->end - r->begin);
}

ssize_t vg_ring_read(struct vg_ring *r, int fd, int stream, size_t room, uint64_t wall_usec) {
    int e = ring_map(r);
    if (e < 0)
        return e;
    assert(room > VG_REC_HEADER);
    size_t max = VG_MIN(room - VG_REC_HEADER, (size_t)VG_REC_MAX);
    struct iovec v[2];
    int k = vg_ring_iov(r, r->end + VG_REC_HEADER, max, v);
    ssize_t n;
    do
        n = readv(fd, v, k);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return n < 0 ? -errno : 0;
    uint8_t h[VG_REC_HEADER];
    vg_rec_header(h, (enum vg_rec_stream)stream, (uint32_t)n, wall_usec);
    ring_store(r, r->end, h, sizeof(h));
    r->end += VG_REC_HEADER + (uint64_t)n;
    return n;
}

int vg_ring_put(struct vg_ring *r, int stream, const void *data, size_t n, uint64_t wall_usec) {
    int e = ring_map(r);
    if (e < 0)
        return e;
    assert(n <= VG_REC_MAX);
    uint8_t h[VG_REC_HEADER];
    vg_rec_header(h, (enum vg_rec_stream)stream, (uint32_t)n, wall_usec);
    ring_store(r, r->end, h, sizeof(h));
    ring_store(r, r->end + VG_REC_HEADER, data, n);
    r->end += VG_REC_HEADER + n;
    return 0;
}

size_t vg_ring_whole(const struct vg_ring *r, uint64_t from, size_t max) {
    size_t n = 0;
    while (from + n < r->end) {
        size_t len = vg_ring_record_len(r, from + n);
        if (n + len > max)
            break;
        n += len;
    }
    return n;
}

uint64_t vg_ring_seek(const struct vg_ring *r, uint64_t want) {
    uint64_t at = r->begin;
    while (at < want && at < r->end)
        at += vg_ring_record_len(r, at);
    return at;
}
