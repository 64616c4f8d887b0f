#pragma once
/* How something went over time: samples of a task or a node, kept in bounded memory. Pure.

   What always holds: points are in the order of time; the whole life is covered by at most
   VG_SERIES_POINTS means over equal spans, whose length doubles when they no longer suffice; the
   last VG_SERIES_FINE samples are kept as they came, as long as somebody looks. All series together
   take no more than the room that they share: when it is used up they get coarser, not longer. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VG_SERIES_POINTS 240
#define VG_SERIES_FINE 600

enum vg_series_value {
    VG_SERIES_CPU_MILLI,
    VG_SERIES_MEM_BYTES,
    VG_SERIES_GPU_PERCENT,
    VG_SERIES_GPU_MEM_BYTES,
    VG_SERIES_POWER_MW,
    VG_SERIES_READ_BYTES, /* a second */
    VG_SERIES_WRITE_BYTES,
    VG_SERIES_VALUES,
};

struct vg_point {
    uint64_t when_usec;
    int64_t value[VG_SERIES_VALUES]; /* -1: nobody told */
};

struct vg_series {
    struct vg_span *span; /* owned */
    struct vg_fine *fine; /* owned; NULL: nobody looks */
    uint64_t begin_usec;  /* of the first point */
    uint32_t n, cap;
    uint32_t step_sec; /* length of a span */
};

/* A point of now: one that is older than the last is taken as of the last's second. `fine`: also
   kept as it is. *room is what all series together may still take, in bytes. 0, or -ENOMEM when
   even the first point found no room. */
int vg_series_add(struct vg_series *s, const struct vg_point *p, bool fine, size_t *room);
/* Nobody looks any more. */
void vg_series_coarse(struct vg_series *s, size_t *room);
void vg_series_done(struct vg_series *s, size_t *room);

/* Points from since_usec on, as many as there are or, by means of neighbours, at most `max`.
   Returns how many. */
size_t vg_series_read(const struct vg_series *s, uint64_t since_usec, struct vg_point *to,
                      size_t max);
/* Folds n points to at most max by means of neighbours; returns how many. */
size_t vg_points_thin(struct vg_point *p, size_t n, size_t max);
