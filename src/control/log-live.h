#pragma once
/* Output of a running task straight from its keeper, for those who follow its log: the keeper sends
   only the beginning and the end of the output to be stored, and they want to see what is between.
   We observe as any client could (docs/protocol.md section 3): the task is never slowed down, and a
   reader that falls behind finds a gap. Loop thread. */
#include "control/job.h"

struct vg_loglive;

/* Begins to look at the job's current attempt, from that offset on. `readable` is called from the
   loop when vg_loglive_next has more to say than at its last call. NULL: the task is not on a node
   that can be asked now. */
struct vg_loglive *vg_loglive_new(struct vg_job *j, uint64_t at, void (*readable)(void *user),
                                  void *user);
/* Appends whole records from *at on and moves it; a gap record stands for what is gone. Records
   before *at are passed over. Returns 1 while there may be more, 0 when there is nothing now, or
   -EPIPE: nothing more will come. */
int vg_loglive_next(struct vg_loglive *l, uint64_t *at, struct vg_buf *out);
void vg_loglive_free(struct vg_loglive *l); /* NULL is allowed */
