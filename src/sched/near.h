#pragma once
/* Which cards of a node a task should get, by how far they are from each other. Pure.

   Of all sets of `count` free cards the best is the one whose farthest two are nearest; then the
   one with the least sum of distances; then the one that leaves the best sets to others (the
   farthest, in sum, from the cards that stay free); then the one with the lowest indexes. Found
   exactly where that takes few steps, as on nodes of eight cards it always does; else it is the
   best that was found in so many, and never worse than the nearest neighbours of some card. */
#include "conf/res.h"

#include <stddef.h>

struct near {
    uint32_t n;    /* indexes 0 .. n - 1 */
    uint8_t far[]; /* n * n distances; of both directions the greater */
};

/* `far` as vg_eng_node's, for indexes below n. NULL: no memory. */
struct near *vg_near_new(const uint8_t (*far)[VG_NODE_GPUS_MAX], uint32_t n);
/* Whether all are equally far from each other, so that any set is as good as another. */
bool vg_near_flat(const struct near *w, uint64_t cards);
/* The best `count` of these; all of them where there are no more. `w` NULL: the lowest indexes. */
uint64_t vg_near_pick(const struct near *w, uint64_t free, uint32_t count);
