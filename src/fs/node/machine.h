#pragma once
/* A client's machine as this node knows it: links, cache, views, tasks. Glue between link.h and the
   views; owned by fsd.c. */
#include "fs/node/cache.h"
#include "fs/node/fuse.h"
#include "fs/node/link.h"

struct vg_env;  /* environment view: env.c */
struct vg_proj; /* project view: proj.c */

struct vg_fs_ids { /* client's numbers to what the kernel shall see: the user's private range */
    uint32_t slot;
};
uint32_t vg_fs_id_out(const struct vg_fs_ids *ids, uint32_t client_id); /* to the kernel */
uint32_t vg_fs_id_in(const struct vg_fs_ids *ids, uint32_t kernel_id);  /* from the kernel */

struct vg_view_conf {
    struct vg_links *links;
    struct vg_cache *cache;
    struct vg_fs_ids ids;
    uint8_t machine[VG_MID];
    const char *dir; /* a folder of the view's own on the node's disk */
    const char *at;  /* where to mount it in fsd's own namespace */
    bool no_passthrough;
    bool strict;
    /* A sentence for the people whose tasks use this view. */
    void (*note)(void *user, const char *text);
    void *user;
};

/* The environment. All calls thread-safe. */
int vg_env_new(const struct vg_view_conf *conf, const struct vg_mstat *root, struct vg_env **ret,
               struct vg_err *err);
void vg_env_free(struct vg_env *e);
int vg_env_mount(struct vg_env *e); /* a detached clone */
void vg_env_dir(struct vg_env *e, uint64_t req, const struct vg_dirrec *rec);
bool vg_env_data(struct vg_env *e, uint64_t object, uint64_t off, uint64_t size, const void *data,
                 size_t n); /* false: not an object of this view */
bool vg_env_fail(struct vg_env *e, const Vg__Mr__Fail *m);
void vg_env_inval(struct vg_env *e, const Vg__Mr__Inval *m);
void vg_env_new_epoch(struct vg_env *e);
/* What was used since the task began, into *out (a packed vg.mr.Trace follows from it). */
int vg_env_trace_begin(struct vg_env *e, uint64_t task);
int vg_env_trace_end(struct vg_env *e, uint64_t task, Vg__Mr__Trace **ret);

/* A project. The same, and writing. Owns its part of the op log; numbers come from the machine's
   one counter. */
struct vg_oplog; /* shared by the projects of a machine: proj-log.c */
int vg_oplog_new(struct vg_links *links, const char *dir, struct vg_oplog **ret);
void vg_oplog_free(struct vg_oplog *log);
void vg_oplog_ack(struct vg_oplog *log, const Vg__Mr__Ack *m); /* dispatches to the views */
void vg_oplog_resend(struct vg_oplog *log);
uint64_t vg_oplog_next(struct vg_oplog *log); /* oldest number not acknowledged */
/* done(user, code, text) when everything that was in the log at this moment is acknowledged. */
void vg_oplog_barrier(struct vg_oplog *log, void (*done)(void *user, int code, const char *text),
                      void *user);

int vg_proj_new(const struct vg_view_conf *conf, struct vg_oplog *log, uint32_t view,
                uint64_t root_object, const struct vg_mstat *root, bool sync, struct vg_proj **ret,
                struct vg_err *err);
void vg_proj_free(struct vg_proj *p);
int vg_proj_mount(struct vg_proj *p);
bool vg_proj_dir(struct vg_proj *p, uint64_t req, const struct vg_dirrec *rec);
bool vg_proj_data(struct vg_proj *p, uint64_t object, uint64_t off, uint64_t size, const void *data,
                  size_t n);
bool vg_proj_fail(struct vg_proj *p, const Vg__Mr__Fail *m);
bool vg_proj_inval(struct vg_proj *p, uint64_t folder); /* 0: every folder of the view */
void vg_proj_new_epoch(struct vg_proj *p, uint32_t view, uint64_t root_object);
/* A task that uses it is about to begin. Waits until what was said to be outdated is known again and
   the kernel has been told: not on the links' receiving thread. Conflicts are named after the last
   task. -ETIMEDOUT when the client does not answer. */
int vg_proj_begin(struct vg_proj *p, uint64_t task, bool sync);
/* No task uses it now: from here on what tasks changed shows the inode numbers and change times
   that the client gave it. (They stay as they are under a running program: tar, find and SQLite
   take another number for another file.) */
void vg_proj_settle(struct vg_proj *p);
/* Puts everything dirty into the log (open files too); the barrier comes after it. */
int vg_proj_flush(struct vg_proj *p);
