#pragma once
/* An answer that waits until the store has what was changed: Ok, or a new token; or why not. */
#include "control/api.h"

struct vg_later {
    struct vg_control *ctl;
    uint64_t peer;
    uint32_t req;
    char token[96]; /* "": the answer is Ok */
    char id[17];
};

struct vg_later *vg_later_new(const struct vg_call *call); /* NULL: out of memory */
/* As the store's callback: answers, if somebody still waits, and frees it. */
void vg_later_stored(void *arg, int result);
