#pragma once
/* How the time of a card is divided among the tasks that share it. Pure.

   A card gives each sharer its slice in turn; who has nothing to do gives its turn away. So the
   ratio of two slices is the ratio of what two busy tasks get (and no ceiling), and the round (all
   slices together) is how long one of them waits at most. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VG_SLICES_MAX 1024u        /* sharers of a card: a share is at least a thousandth */
#define VG_SLICE_BASE_USEC 3000u   /* of the smallest share */
#define VG_SLICE_MIN_USEC 1000u    /* below it switching costs more than it is worth … */
#define VG_SLICE_SHORT_USEC 100u   /* … unless somebody asked for short turns */
#define VG_SLICE_ROUND_USEC 40000u /* of all together, as long as the minimum allows it */

/* `weight` has `n` entries from 1 on, at most VG_SLICES_MAX. `turn_usec`: no slice is longer; 0: no
   wish. False when the slices are not in the ratio of the weights: the smallest would be too short.
 */
bool vg_slices_divide(const uint32_t *weight, size_t n, uint64_t turn_usec, uint32_t *ret_usec);
