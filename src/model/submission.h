#pragma once
/* Inside model: what the tasks of one submission have in common; counted. */
#include "model/task.h"

struct vg_block;

struct vg_submission {
    uint32_t refs;
    char *user, *team;      /* owned */
    Vg__Pb__TaskSpec *spec; /* owned; parts of it belong to `block` */
    Vg__Pb__Identity *who;  /* owned, by `block` if there is one; NULL until known */
    struct vg_block *block; /* one reference; NULL: everything is its own */
};

/* Takes the shared parts out of spec and who, so that these can be freed. */
void vg_block_unref(struct vg_block *b, Vg__Pb__TaskSpec *spec, Vg__Pb__Identity **who);
