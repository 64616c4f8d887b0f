#pragma once
/* How far the members of a group, or the children of a task, have come: one counter a state, so
   that a change of one of them costs the same whether there are two or a hundred thousand. Pure. */
#include "model/task-state.h"

#include <stddef.h>
#include <stdint.h>

struct vg_progress {
    uint32_t n[VG_TASK_STATES];
    uint32_t bad_index; /* smallest index that ended with another status than 0; NONE: no one did */
    int32_t bad_status; /* that one's status */
};

#define VG_PROGRESS_NONE UINT32_MAX
#define VG_PROGRESS_INIT ((struct vg_progress){.bad_index = VG_PROGRESS_NONE})
#define VG_PROGRESS_TEXT 128

uint32_t vg_progress_total(const struct vg_progress *p);
uint32_t vg_progress_open(const struct vg_progress *p); /* that have not ended */
/* One came in state `to` (from == VG_TASK_STATES), or moved. */
void vg_progress_move(struct vg_progress *p, enum vg_task_state from, enum vg_task_state to);
/* All that have not ended are in state `to` (a final one) now. */
void vg_progress_close(struct vg_progress *p, enum vg_task_state to);
/* One ended with that status. */
void vg_progress_status(struct vg_progress *p, uint32_t index, int32_t status);

/* What the whole is, given what it was: blocked until a member may go; running from the first
   member's start until the last one's end; then failed when one failed, else cancelled when one was
   cancelled, else succeeded. */
enum vg_task_state vg_progress_state(const struct vg_progress *p, enum vg_task_state was);

/* As the store keeps it. Parsing: 0 or -EBADMSG (then *ret is untouched). */
void vg_progress_format(const struct vg_progress *p, char out[static VG_PROGRESS_TEXT]);
int vg_progress_parse(const char *s, struct vg_progress *ret);
