#pragma once
/* Inside the engine: the order in which those who wait would start, if all that counted were whose
   turn it is. */
#include "sched/lanes.h"

struct turns;

/* Everybody who waits for one of these pools (a set of epool.at) and is not held back by a limit;
   and `extra` unless it is NULL: a task that is not there, with a shape of its own. Nothing may
   change while it is used. NULL: no memory. */
struct turns *vg_turns_new(const struct vg_eng *e, const uint64_t pools[4], struct etask *extra);
void vg_turns_free(struct turns *t);
struct etask *
vg_turns_next(struct turns *t); /* of a gang: the one that stands for it; NULL: none */
/* Time passes: part of what everybody holds, and of what was given out, has ended. */
void vg_turns_pass(struct turns *t, uint64_t usec);
