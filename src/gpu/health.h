#pragma once
/* Whether a card may be used: a judgement of what its driver says. Pure. A fault stays until
   somebody who knows better clears it: a card that failed once and answers again is not well. */
#include "gpu/card.h"

struct vg_health {
    char fault[160];    /* "" while it is well: one clause, "fell off the bus" */
    uint64_t ecc_first; /* uncorrected errors when we first looked; VG_NONE64: unknown */
    uint32_t xid;       /* the last, whoever's fault; 0: none */
    uint32_t lost_in_a_row;
};

void vg_health_init(struct vg_health *h);
/* 1: it became faulty with this. */
int vg_health_sample(struct vg_health *h, const struct vg_card_sample *s);
int vg_health_event(struct vg_health *h, const struct vg_card_event *e);
/* The driver has said nothing for so long. */
int vg_health_silent(struct vg_health *h, uint64_t usec);
/* What a number means; NULL: it is no sign of a bad card (a program's own mistake). */
const char *vg_health_xid(uint32_t xid);
