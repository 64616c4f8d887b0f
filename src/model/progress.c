/* Counting members. The text form is "n n n n n n n index status", in the order of the states.
 * Pure. */
#include "model/progress.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

static const bool final[] = {
#define TASK_STATE(name, text, is_final) [VG_TASK_##name] = is_final,
#include "model/task-states.tbl"
#undef TASK_STATE
};

uint32_t vg_progress_total(const struct vg_progress *p) {
    uint32_t n = 0;
    for (unsigned i = 0; i < VG_TASK_STATES; i++)
        n += p->n[i];
    return n;
}

uint32_t vg_progress_open(const struct vg_progress *p) {
    uint32_t n = 0;
    for (unsigned i = 0; i < VG_TASK_STATES; i++)
        n += final[i] ? 0 : p->n[i];
    return n;
}

void vg_progress_move(struct vg_progress *p, enum vg_task_state from, enum vg_task_state to) {
    if (from < VG_TASK_STATES && p->n[from])
        p->n[from]--;
    p->n[to]++;
}

void vg_progress_close(struct vg_progress *p, enum vg_task_state to) {
    for (unsigned i = 0; i < VG_TASK_STATES; i++)
        if (!final[i]) {
            p->n[to] += p->n[i];
            p->n[i] = 0;
        }
}

void vg_progress_status(struct vg_progress *p, uint32_t index, int32_t status) {
    if (!status || (p->bad_index != VG_PROGRESS_NONE && p->bad_index <= index))
        return;
    p->bad_index = index;
    p->bad_status = status;
}

enum vg_task_state vg_progress_state(const struct vg_progress *p, enum vg_task_state was) {
    uint32_t open = vg_progress_open(p), total = vg_progress_total(p);
    if (open == 0)
        return p->n[VG_TASK_FAILED]      ? VG_TASK_FAILED
               : p->n[VG_TASK_CANCELLED] ? VG_TASK_CANCELLED
                                         : VG_TASK_SUCCEEDED;
    if (was == VG_TASK_RUNNING || p->n[VG_TASK_RUNNING] || p->n[VG_TASK_STARTING])
        return VG_TASK_RUNNING;
    return p->n[VG_TASK_BLOCKED] == total ? VG_TASK_BLOCKED : VG_TASK_QUEUED;
}

void vg_progress_format(const struct vg_progress *p, char out[static VG_PROGRESS_TEXT]) {
    size_t at = 0;
    for (unsigned i = 0; i < VG_TASK_STATES; i++)
        at += (size_t)snprintf(out + at, VG_PROGRESS_TEXT - at, "%" PRIu32 " ", p->n[i]);
    snprintf(out + at, VG_PROGRESS_TEXT - at, "%" PRIu32 " %" PRId32, p->bad_index, p->bad_status);
}

int vg_progress_parse(const char *s, struct vg_progress *ret) {
    struct vg_progress p = VG_PROGRESS_INIT;
    int n = 0;
    for (unsigned i = 0; i < VG_TASK_STATES; i++, s += n)
        if (sscanf(s, "%" SCNu32 "%n", &p.n[i], &n) != 1)
            return -EBADMSG;
    if (sscanf(s, "%" SCNu32 " %" SCNd32 "%n", &p.bad_index, &p.bad_status, &n) != 2 || s[n])
        return -EBADMSG;
    *ret = p;
    return 0;
}
