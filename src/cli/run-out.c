/* What the task writes comes out here: records in frames, or in the keeper's ring, which is mapped.
   A slow reader keeps its place. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/run-chan.h"
#include "net/tio.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define RING_MAX (1u << 30)
#ifndef RWF_NOWAIT
#define RWF_NOWAIT 8
#endif

/* Writes without waiting where the kernel can; a terminal or file is simply written. */
static ssize_t write_some(int fd, const struct iovec *v, int n) {
    /* Not every C library has pwritev2(). */
    ssize_t w = syscall(SYS_pwritev2, fd, v, n, -1L, -1L, RWF_NOWAIT);
    struct stat st;
    if (w < 0 && errno == EAGAIN) { /* a file that would wait for its disk is always "ready" */
        if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
            return writev(fd, v, n);
        errno = EAGAIN;
    }
    if (w < 0 && (errno == EOPNOTSUPP || errno == ESPIPE || errno == EINVAL || errno == ENOSYS)) {
        struct pollfd pf = {.fd = fd, .events = POLLOUT};
        if (poll(&pf, 1, 0) == 0) {
            errno = EAGAIN;
            return -1;
        }
        w = writev(fd, v, n);
    }
    return w;
}

/* n bytes at `at`, which wrap around at the end of a ring. */
static int pieces(const struct run_chan *c, const uint8_t *p, uint64_t at, size_t n,
                  struct iovec v[2]) {
    if (p) {
        v[0] = (struct iovec){(void *)p, n};
        return 1;
    }
    size_t from = (size_t)(at & (c->ring_size - 1)), first = VG_MIN(n, c->ring_size - from);
    v[0] = (struct iovec){(void *)(c->ring + from), first};
    v[1] = (struct iovec){(void *)c->ring, n - first};
    return first < n ? 2 : 1;
}

/* Writes a record's data, at p or (p NULL) in the ring. 1 written whole, 0 the reader is slow,
   progress is kept in rec_done. */
static int write_record(struct run *r, struct run_chan *c, unsigned stream, const uint8_t *p,
                        uint64_t at, size_t n) {
    int fd = stream == VG_REC_STDOUT ? STDOUT_FILENO : STDERR_FILENO;
    while (r->rec_done < n && !r->out_closed[fd]) {
        struct iovec v[2];
        int k = pieces(c, p ? p + r->rec_done : NULL, at + r->rec_done, n - r->rec_done, v);
        ssize_t w = write_some(fd, v, k);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0 && errno == EAGAIN) {
            r->out_full[fd] = true;
            return 0;
        }
        if (w < 0) { /* nobody reads (or the disk is full): the task's pipe closes too */
            int no = errno;
            r->out_closed[fd] = true;
            run_put_close_output(c, fd);
            if (no != EPIPE && no != EBADF) {
                r->out_failed = true;
                run_say(r, "cannot write to standard %s: %s", fd == 1 ? "output" : "error",
                        strerror(no));
            }
            break;
        }
        r->rec_done += (size_t)w;
    }
    r->rec_done = 0;
    return 1;
}

static void put_ack(struct run *r, struct run_chan *c) {
    uint8_t p[8];
    vg_put64(p, r->out_offset);
    run_put(c, VG_TIO_OUTPUT_ACK, p, sizeof(p));
}

/* Handles n bytes of whole records, the first at offset base; they lie at p, or (p NULL) in the
   ring. frame_pos keeps the progress. 1 done, 0 the reader is slow. */
static int on_records(struct run *r, struct run_chan *c, uint64_t base, const uint8_t *p,
                      size_t n) {
    while (c->frame_pos + VG_REC_HEADER <= n) {
        uint8_t copy[VG_REC_HEADER];
        const uint8_t *rec = p ? p + c->frame_pos : copy;
        uint64_t at = base + c->frame_pos;
        if (!p) {
            struct iovec v[2];
            int k = pieces(c, NULL, at, sizeof(copy), v);
            memcpy(copy, v[0].iov_base, v[0].iov_len);
            if (k == 2)
                memcpy(copy + v[0].iov_len, v[1].iov_base, v[1].iov_len);
        }
        size_t len = vg_get32(rec);
        unsigned stream = vg_get32(rec + 4);
        if (c->frame_pos + VG_REC_HEADER + len > n) {
            c->broken = true;
            return 1;
        }
        if (at >= r->out_offset) {
            if ((stream == VG_REC_STDOUT || stream == VG_REC_STDERR || stream == VG_REC_NOTE) &&
                write_record(r, c, stream, p ? rec + VG_REC_HEADER : NULL, at + VG_REC_HEADER,
                             len) == 0)
                return 0;
            r->out_offset = at + VG_REC_HEADER + len;
        }
        c->frame_pos += VG_REC_HEADER + len;
    }
    c->frame_pos = 0;
    put_ack(r, c);
    return 1;
}

int run_on_output(struct run *r, struct run_chan *c, unsigned kind, const uint8_t *p, size_t n) {
    if (kind == VG_TIO_OUTPUT)
        return on_records(r, c, vg_get64(p), p + 8, n - 8);
    if (n != 12 || !c->ring || vg_get32(p + 8) > c->ring_size) {
        c->broken = true;
        return 1;
    }
    return on_records(r, c, vg_get64(p), NULL, vg_get32(p + 8));
}

/* Whether all `size` bytes are there and will stay. */
static bool is_whole(int fd, uint64_t size) {
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && seals & F_SEAL_SHRINK && fstat(fd, &st) == 0 &&
           (uint64_t)st.st_size >= size;
}

void run_on_ring(struct run_chan *c, const uint8_t *p, size_t n) {
    uint64_t size = n == 8 ? vg_get64(p) : 0;
    void *map = MAP_FAILED;
    if (size && size <= RING_MAX && (size & (size - 1)) == 0 && c->ring_fd >= 0 && !c->ring &&
        is_whole(c->ring_fd, size))
        map = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, c->ring_fd, 0);
    vg_close(&c->ring_fd);
    if (map == MAP_FAILED) {
        c->broken = true;
        return;
    }
    c->ring = map;
    c->ring_size = (size_t)size;
}
