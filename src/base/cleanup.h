#pragma once
/* Ownership helpers: variables that clean up after themselves, and handing over. */
#include <stdlib.h>
#include <unistd.h>

static inline void vg_cleanup_free(void *p) {
    free(*(void **)p);
}
static inline void vg_cleanup_fd(int *fd) {
    if (*fd >= 0)
        close(*fd);
}

#define vg_auto_free __attribute__((cleanup(vg_cleanup_free)))
#define vg_auto_fd __attribute__((cleanup(vg_cleanup_fd)))

/* Gives the value away and leaves NULL (or -1) behind, so that the cleanup does nothing. */
#define vg_take_ptr(p)                      \
    ({                                      \
        __auto_type vg_place_ = &(p);       \
        __auto_type vg_taken_ = *vg_place_; \
        *vg_place_ = NULL;                  \
        vg_taken_;                          \
    })
#define vg_take_fd(fd)              \
    ({                              \
        int *vg_place_ = &(fd);     \
        int vg_taken_ = *vg_place_; \
        *vg_place_ = -1;            \
        vg_taken_;                  \
    })

/* Closes if open; leaves -1 behind. */
static inline void vg_close(int *fd) {
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

#define VG_COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define VG_MIN(a, b) ((a) < (b) ? (a) : (b))
#define VG_MAX(a, b) ((a) > (b) ? (a) : (b))
#define vg_container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))
