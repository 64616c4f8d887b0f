#pragma once
/* The compiled form of an environment: what is known and complete of it as an EROFS image whose
   files' content lies in the cache, laid over the FUSE view. The kernel then opens such files
   without asking anybody; everything else falls through to FUSE.

   An image is made in the background after tasks have ended. It shows a moment of the machine, so
   each task asks whether it is still true: every folder in it must be proven and unchanged since.
   Otherwise the task runs on FUSE alone and another image is made. A folder that changes again and
   again is left out but for the way to its sub-folders.

   Content that an image points to is held in the cache while a task may use it. */
#include "fs/node/machine.h"

struct vg_compile; /* one a view */
struct vg_image;   /* one image, counted */

struct vg_compile_conf {
    struct vg_env *env;
    struct vg_cache *cache;
    const char *dir;       /* of its own, for images and where they are mounted */
    const char *cache_dir; /* the cache's folder: below it id/ is the data-only layer */
    uint64_t delay_usec;   /* between a task's end and compiling */
    size_t min_files;      /* fewer are not worth it */
};
/* Starts its thread. */
int vg_compile_new(const struct vg_compile_conf *conf, struct vg_compile **ret, struct vg_err *err);
/* Every image must have been unref'd. */
void vg_compile_free(struct vg_compile *c);
/* A task has ended: there may be more to compile. */
void vg_compile_kick(struct vg_compile *c);
/* Waits until the thread has done what it was told. */
void vg_compile_settle(struct vg_compile *c);

/* The image that is true at this moment, for a task to hold until its end; NULL: none. */
struct vg_image *vg_compile_take(struct vg_compile *c);
void vg_image_unref(struct vg_image *i);
/* Detached mounts: the image, to lie over the view, and its data-only layer. */
int vg_image_mounts(const struct vg_image *i, int *ret_image, int *ret_data);

struct vg_compile_stat {
    uint64_t images, files, folders, bytes; /* bytes: of the present image */
    uint64_t held_bytes;                    /* content that it holds */
    uint64_t taken, refused;                /* tasks that had one; for which it was not true */
    bool unable;                            /* this kernel does not mount EROFS from files */
};
void vg_compile_stats(struct vg_compile *c, struct vg_compile_stat *ret);
