#pragma once
/* Links overtake each other: a folder's record that was made before an Inval may come after it on
   another link. Remembers up to which sequence each folder's records are void. One thread. */
#include "base/map.h"

#define VG_VOIDED_MAX 65536u /* folders; beyond it all records of before are void */

struct vg_voided {
    struct vg_map folder; /* to the sequence (+2) of its last Inval */
    uint64_t all;
};
/* folder 0: every one. */
void vg_voided_add(struct vg_voided *v, uint64_t folder, uint64_t seq);
bool vg_voided_is(const struct vg_voided *v, uint64_t folder, uint64_t seq);
void vg_voided_clear(struct vg_voided *v); /* another service counts anew */
