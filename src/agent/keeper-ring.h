#pragma once
/* The ring that holds a task's newest output records (docs/protocol.md, "Output records").
   Offsets are absolute and count every record byte since the task began; the ring holds
   [begin, end). begin always lies on a record's first byte. No I/O but reading a descriptor. */
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct vg_ring {
    uint8_t *base; /* owned mapping, or NULL before the first record */
    int fd;        /* owned memfd behind it: others may map it, for reading only; -1 before */
    size_t size;   /* a power of two */
    uint64_t begin, end;
};

/* `keep`: bytes that should stay readable behind the end. Nothing is mapped yet. */
void vg_ring_init(struct vg_ring *r, size_t keep);
void vg_ring_done(struct vg_ring *r);

/* Drops whole records from the front, none of them at or after `floor`, until n bytes are free.
   Returns the bytes that are free (may be less than n). */
size_t vg_ring_make_room(struct vg_ring *r, size_t n, uint64_t floor);
/* Reads once from fd into a new record of at most `room` bytes, header included.
   Returns the data bytes, 0 at end of file, -errno. */
ssize_t vg_ring_read(struct vg_ring *r, int fd, int stream, size_t room, uint64_t wall_usec);
/* Appends a record from memory. The room must be there. */
int vg_ring_put(struct vg_ring *r, int stream, const void *data, size_t n, uint64_t wall_usec);

/* The two pieces of [from, from+n) in the ring; returns how many iovecs were filled. */
int vg_ring_iov(const struct vg_ring *r, uint64_t from, size_t n, struct iovec out[2]);
void vg_ring_copy(const struct vg_ring *r, uint64_t from, void *out, size_t n);
/* Length of the record that starts at `at`, header included. */
size_t vg_ring_record_len(const struct vg_ring *r, uint64_t at);
/* How many bytes of whole records lie from `from` on, at most `max` (0 when the first is longer).
 */
size_t vg_ring_whole(const struct vg_ring *r, uint64_t from, size_t max);
/* First record at or after `want`. */
uint64_t vg_ring_seek(const struct vg_ring *r, uint64_t want);
