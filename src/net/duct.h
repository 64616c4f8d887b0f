#pragma once
/* A duct: two threads or processes of one machine joined by memory, a stream of bytes each way. It
   does what a socket pair does, without carrying every byte through the kernel twice. Three
   descriptors make up an end: the memory, and one to be woken by for each side; the far end is
   opened from what vg_duct_new() gave.

   One thread an end. Poll vg_duct_fd() for reading, after vg_duct_arm() has said that there is
   nothing to do. An end trusts the other with no more than its own bytes: whatever that writes into
   the memory can break the stream, not this side. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#define VG_DUCT_FDS 3
#define VG_DUCT_SIZE (1u << 20) /* bytes in flight each way */

struct vg_duct;

/* 0 or -errno. `far` are descriptors for vg_duct_open() (the caller's, CLOEXEC). */
int vg_duct_new(struct vg_duct **ret, int far[static VG_DUCT_FDS]);
/* Takes the descriptors, on failure too. -EPROTO: they are not what they should be. */
int vg_duct_open(int fds[static VG_DUCT_FDS], struct vg_duct **ret);
/* The other end reads what was written, then finds the end. NULL is fine. */
void vg_duct_close(struct vg_duct *d);

int vg_duct_fd(const struct vg_duct *d);
/* Bytes at *p that came and were not consumed yet; 0: none now. -EPROTO: the other end is mad. */
ssize_t vg_duct_peek(struct vg_duct *d, const uint8_t **p);
void vg_duct_consume(struct vg_duct *d, size_t n);
/* Nothing more will come than the `left` bytes that were not consumed. */
bool vg_duct_ended(struct vg_duct *d, size_t left);
/* Bytes taken, 0 when it is full; -EPIPE: nobody reads any more. */
ssize_t vg_duct_write(struct vg_duct *d, const struct iovec *v, int n);
size_t vg_duct_room(const struct vg_duct *d);
void vg_duct_shut(struct vg_duct *d); /* nothing more will be written */
/* Forgets the last wake-up and asks for the next: when there are other bytes than the `seen` that
   the last peek showed, when the end came that vg_duct_ended() has not told yet, and (`room`) when
   a quarter is free. True: that is so already, do not wait. */
bool vg_duct_arm(struct vg_duct *d, size_t seen, bool room);
/* Wakes this end itself, for what it has left for later. */
void vg_duct_nudge(struct vg_duct *d);
