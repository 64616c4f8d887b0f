/* Reconnect pauses; see the header. */
#include "agent/agent-backoff.h"

uint64_t vg_backoff_next_usec(struct vg_backoff *b, uint32_t random) {
    uint64_t step = VG_BACKOFF_MIN_USEC;
    for (uint32_t i = 0; i < b->tries && step < VG_BACKOFF_MAX_USEC; i++)
        step *= 2;
    if (step > VG_BACKOFF_MAX_USEC)
        step = VG_BACKOFF_MAX_USEC;
    if (b->tries < UINT32_MAX)
        b->tries++;
    return step / 2 + (step / 2) * random / UINT32_MAX;
}
