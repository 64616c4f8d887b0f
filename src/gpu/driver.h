#pragma once
/* The files of this node's GPU driver, for tasks that brought another machine's files: that machine
   may have no such card, and if it has, its driver is another.

   Where they are looked for: what the configuration names; else what a CDI specification lists;
   else the loader's cache, the loader's path and the folders that vendors use. Of several drivers
   on the disk only the one counts whose version is that of the kernel module: a library of another
   refuses to work. Reads files only; any thread. */
#include "gpu/cdi.h"

#include <stdbool.h>
#include <stddef.h>

#define VG_DRIVER_FILES_MAX 256
#define VG_DRIVER_FOLDERS_MAX 6 /* that the files lie in */

enum vg_driver_source { VG_DRIVER_NONE, VG_DRIVER_CONFIGURED, VG_DRIVER_CDI, VG_DRIVER_FOUND };

struct vg_driver {
    char **path; /* owned, absolute; no two with the same name */
    size_t n, cap;
    enum vg_driver_source source;
    char version[32];        /* of the kernel module; "" when it does not say */
    struct vg_cdi cdi;       /* empty without one */
    char remark[VG_ERR_MAX]; /* for the log, when something was odd; else "" */
};

struct vg_driver_where {
    const char *root;         /* put before every path: "" but for tests */
    const char *library_path; /* LD_LIBRARY_PATH, or NULL */
    char *const *patterns; /* configured: names where a loader looks, absolute ones as they are */
    size_t n_patterns;     /* 0: find out */
};

/* 0 or -ENOMEM. A machine without a card has no files and no remark. */
int vg_driver_find(const struct vg_driver_where *w, struct vg_driver *ret);
void vg_driver_done(struct vg_driver *d);
const char *vg_driver_source_name(enum vg_driver_source s);

/* Every path on this node by which a program could come to the driver's libcuda or to its
   management library: added to `ret`, without `root`. `d` is what vg_driver_find() found. -ENOMEM,
   -E2BIG. */
int vg_driver_places(const struct vg_driver_where *w, const struct vg_driver *d,
                     struct vg_cdi_list *ret);
/* The driver's own libcuda (VG_DRIVER_CUDA) or management library: a path in `d`; NULL: none. */
#define VG_DRIVER_CUDA "libcuda.so"
#define VG_DRIVER_NVML "libnvidia-ml.so"
const char *vg_driver_library(const struct vg_driver *d, const char *name);

/* Whether a file of this name belongs to another driver than `version`: libcuda.so.535.54 does not
   go with 580.1. Names without a driver's version belong to any. */
bool vg_driver_is_other(const char *name, const char *version);
/* Of the kernel module, below `root` ("": this machine); "" when it does not say. */
void vg_driver_version(const char *root, char *ret, size_t n);
