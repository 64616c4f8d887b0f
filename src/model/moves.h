#pragma once
/* A list of allowed moves, filled from a .tbl file. Short enough to be searched from the front. */
#include <stdbool.h>
#include <stddef.h>

struct vg_move {
    unsigned char from, to;
};

static inline bool vg_moves_allow(const struct vg_move *moves, size_t n, unsigned from,
                                  unsigned to) {
    for (size_t i = 0; i < n; i++)
        if (moves[i].from == from && moves[i].to == to)
            return true;
    return false;
}
