#pragma once
/* The stored output of one attempt: a head file and a tail file of whole output records
   (docs/protocol.md section 3), addressed by offset. Appending the same bytes again changes
   nothing, so a keeper may resend whatever it is not sure of.

   <dir>/<first two digits of the id>/<id>.<attempt>.log   records from offset 0
   <dir>/<first two digits of the id>/<id>.<attempt>.tail  u64 offset of its first record, records

   Blocking file I/O of small bounded size; loop thread. */
#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct vg_logfile;

/* Opens or continues. Nothing is created on disk before the first append. `dir` is copied. */
int vg_logfile_new(const char *dir, uint64_t task, uint32_t attempt, uint64_t head_limit,
                   uint64_t tail_limit, struct vg_logfile **ret);
/* Closes the files; what is on disk stays. NULL is allowed. */
void vg_logfile_free(struct vg_logfile *l);

/* Stores records that begin at `offset`. *ret_ack: everything before it is stored, or will never
   be wanted. A full disk is no failure: storing stops, vg_logfile_note() says so, and the
   output counts as acknowledged so that the task goes on. -EINVAL: not whole records. */
int vg_logfile_append(struct vg_logfile *l, uint64_t offset, const uint8_t *data, size_t n,
                      bool tail, uint64_t *ret_ack);
/* Offset up to which the beginning of the output is stored, without a hole. -errno: its file cannot
   be read. */
int vg_logfile_head(struct vg_logfile *l, uint64_t *ret_end);
/* Forgets the end of the output: its keeper sends it again. */
void vg_logfile_drop_tail(struct vg_logfile *l);
uint64_t vg_logfile_bytes(const struct vg_logfile *l);   /* stored in both files */
const char *vg_logfile_note(const struct vg_logfile *l); /* NULL, or why output is missing */
/* Descriptors to sync before the attempt's end is acknowledged; -1 where there is no file. */
void vg_logfile_fds(const struct vg_logfile *l, int *ret_head, int *ret_tail);

/* Reads stored output piece by piece. `state` starts zeroed. Whole records are appended to `out`,
   about `want` bytes a call, with one gap record between head and tail where output was dropped.
   Returns 1 while there may be more, 0 at the end of what is stored now (call again later to
   follow), or -errno. */
struct vg_logread {
    int fd[2];   /* head, tail; 0: not opened yet */
    uint64_t at; /* next offset wanted */
    uint64_t tail_start;
    bool in_tail;
    bool head_only; /* set by the caller: do not go over to the tail yet */
};
int vg_logread_next(const char *dir, uint64_t task, uint32_t attempt, struct vg_logread *state,
                    struct vg_buf *out, size_t want);
void vg_logread_done(struct vg_logread *state);

/* Length of the longest prefix of whole records, or -EPROTO when a header breaks the format. */
ssize_t vg_records_whole(const uint8_t *data, size_t n);

/* Removes the files of an attempt. */
void vg_logfile_remove(const char *dir, uint64_t task, uint32_t attempt);
