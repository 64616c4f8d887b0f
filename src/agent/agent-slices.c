/* Dividing a card's time; see the header. */
#include "agent/agent-slices.h"

#include "base/cleanup.h"

#include <assert.h>

struct sums {
    uint64_t weight, largest; /* of those that are not at the minimum */
    size_t n;
};

static struct sums sum_up(const uint32_t *weight, const uint32_t *usec, size_t n) {
    struct sums s = {0};
    for (size_t i = 0; i < n; i++)
        if (!usec[i]) {
            s.weight += weight[i];
            s.largest = VG_MAX(s.largest, (uint64_t)weight[i]);
            s.n++;
        }
    return s;
}

/* The slice of the largest share, when those that are at the minimum have had theirs. */
static uint64_t top_of(const struct sums *s, size_t n, uint64_t smallest, uint64_t least,
                       uint64_t turn_usec) {
    uint64_t taken = (n - s->n) * least;
    uint64_t room = taken < VG_SLICE_ROUND_USEC ? VG_SLICE_ROUND_USEC - taken : 0;
    uint64_t top =
        VG_MIN(VG_SLICE_BASE_USEC * s->largest / smallest, room * s->largest / s->weight);
    return turn_usec ? VG_MIN(top, turn_usec) : top;
}

bool vg_slices_divide(const uint32_t *weight, size_t n, uint64_t turn_usec, uint32_t *ret_usec) {
    uint64_t least = turn_usec ? VG_SLICE_SHORT_USEC : VG_SLICE_MIN_USEC, smallest = UINT32_MAX;
    bool exact = true;
    assert(n <= VG_SLICES_MAX);
    if (turn_usec)
        turn_usec = VG_MAX(turn_usec, least);
    for (size_t i = 0; i < n; i++) {
        assert(weight[i]);
        smallest = VG_MIN(smallest, (uint64_t)weight[i]);
        ret_usec[i] = 0; /* not known yet: none is 0 in the end */
    }
    /* Each pass puts at least one more at the minimum, or is the last. */
    for (bool again = true; again;) {
        again = false;
        struct sums s = sum_up(weight, ret_usec, n);
        if (!s.n)
            break;
        uint64_t top = top_of(&s, n, smallest, least, turn_usec);
        for (size_t i = 0; i < n; i++)
            if (!ret_usec[i] && weight[i] * top < least * s.largest) {
                ret_usec[i] = (uint32_t)least;
                exact = false;
                again = true;
            }
        for (size_t i = 0; i < n && !again; i++)
            if (!ret_usec[i])
                ret_usec[i] = (uint32_t)((weight[i] * top + s.largest / 2) / s.largest);
    }
    return exact;
}
