#pragma once
/* A client's machine as this node knows it: links, cache, views, tasks. Glue between link.h and the
   views; owned by fsd.c. machine.c joins them; env*.c and proj*.c are the views. */
#include "fs/node/cache.h"
#include "fs/node/fuse.h"
#include "fs/node/link.h"

struct vg_env;  /* environment view: env.c */
struct vg_proj; /* project view: proj.c */

#define VG_FS_SLOT_NONE UINT32_MAX /* ids are shown as they are: for tests */
struct vg_fs_ids { /* client's numbers to what the kernel shall see: the user's private range */
    uint32_t slot;
};
uint32_t vg_fs_id_out(const struct vg_fs_ids *ids, uint32_t client_id); /* to the kernel */
uint32_t vg_fs_id_in(const struct vg_fs_ids *ids, uint32_t kernel_id);  /* from the kernel */

struct vg_peers;
struct vg_view_conf {
    struct vg_links *links;
    struct vg_cache *cache;
    struct vg_peers *peers; /* NULL: none */
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
/* False: not an object of this view. */
bool vg_env_dir(struct vg_env *e, uint64_t req, const struct vg_dirrec *rec);
/* 1: taken. 0: not ours, or not wanted. -ESTALE: of another state than is believed. */
int vg_env_data(struct vg_env *e, uint64_t object, uint64_t off, uint64_t size, uint32_t tag,
                const void *data, size_t n);
/* The answer was of another state: who waits for it looks at the folder's record again. */
void vg_env_missed(struct vg_env *e, uint64_t object);
/* No more of it is pushed: who waits for it asks. */
void vg_env_ended(struct vg_env *e, uint64_t object);
bool vg_env_fail(struct vg_env *e, const Vg__Mr__Fail *m);
void vg_env_inval(struct vg_env *e, const Vg__Mr__Inval *m);
/* Another life of the service: every record is unproven, objects have other numbers. */
void vg_env_new_epoch(struct vg_env *e, uint64_t root_object);
/* While it is frozen, what it has shown stays: Inval is not for it, records of folders that it has
   change nothing but what is yet to be fetched. */
void vg_env_freeze(struct vg_env *e, bool on);
bool vg_env_knows(struct vg_env *e, uint64_t folder); /* it has that folder's record */
/* Everything proven of `from`, into a new one. 0 or -ENOMEM: it has some of it. */
int vg_env_copy(struct vg_env *to, struct vg_env *from);
/* Waits until the kernel has been told of everything that was invalidated before: not on the
   receiving thread. */
void vg_env_settle(struct vg_env *e);
/* Some times a second: kept requests that are older than the limit fail with EIO, a note tells that
   the machine is waited for, killed processes are let go. */
void vg_env_tick(struct vg_env *e, uint64_t now_usec);
/* What is held for nobody may be evicted from now on. Whether there was anything. */
bool vg_env_let_go(struct vg_env *e);
bool vg_env_used(struct vg_env *e);                      /* by tasks */
void vg_env_wait_limit(struct vg_env *e, uint64_t usec); /* default 10 min */
void vg_env_set_strict(struct vg_env *e, bool strict);
/* What was used since the task began. Freed with vg__mr__trace__free_unpacked. */
int vg_env_trace_begin(struct vg_env *e, uint64_t task);
int vg_env_trace_end(struct vg_env *e, uint64_t task, Vg__Mr__Trace **ret);
struct vg_env_stat {
    uint64_t nodes, folders, opens, passthrough, reads, waits;
};
void vg_env_stats(struct vg_env *e, struct vg_env_stat *ret);

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
/* A record of it came that was outdated on its way: it is asked for again. */
bool vg_proj_dir_void(struct vg_proj *p, uint64_t object);
int vg_proj_data(struct vg_proj *p, uint64_t object, uint64_t off, uint64_t size, uint32_t tag,
                 const void *data, size_t n); /* as vg_env_data */
bool vg_proj_missed(struct vg_proj *p, uint64_t object);
bool vg_proj_ended(struct vg_proj *p, uint64_t object);
bool vg_proj_fail(struct vg_proj *p, const Vg__Mr__Fail *m);
bool vg_proj_inval(struct vg_proj *p, uint64_t folder); /* 0: every folder of the view */
/* Another service: the client's numbers mean nothing any more. With view 0 at its Hello, at once;
   with the view's id and root when its Run tells them: operations are held back until then. */
void vg_proj_new_epoch(struct vg_proj *p, uint32_t view, uint64_t root_object);
/* A task that uses it is about to begin. Waits until what was said to be outdated is known again
   and the kernel has been told: not on the links' receiving thread. Conflicts are named after the
   last task. -ETIMEDOUT when the client does not answer. */
/* What the task used of it from now on; at its end appended to `out`, whose `whole` is cleared when
   some may not have been seen. */
int vg_proj_trace_begin(struct vg_proj *p, uint64_t task);
void vg_proj_trace_end(struct vg_proj *p, uint64_t task, Vg__Mr__Trace *out);
int vg_proj_begin(struct vg_proj *p, uint64_t task, bool sync);
/* No task uses it now: from here on what tasks changed shows the inode numbers and change times
   that the client gave it. (They stay as they are under a running program: tar, find and SQLite
   take another number for another file.) */
void vg_proj_settle(struct vg_proj *p);
/* Puts everything dirty into the log (open files too); the barrier comes after it. */
int vg_proj_flush(struct vg_proj *p);

/* The machine as a whole. Calls are thread-safe; the callbacks come from its threads, none of them
   while a call to it is on the way. */
struct vg_machine_conf {
    struct vg_cache *cache; /* borrowed */
    struct vg_peers *peers; /* borrowed; NULL: none */
    struct vg_fs_ids ids;
    uint8_t machine[VG_MID], daemon[VG_MID];
    const char *node;      /* for messages */
    const char *dir;       /* an empty or absent folder of its own: views' data, mount points */
    const char *cache_dir; /* the cache's folder; NULL: environments are not compiled */
    bool no_passthrough;
    /* The environment uses passthrough, too. The kernel then counts it as one layer more, and a
       program in a task cannot lay an overlay over what it sees (containers do); what is read
       again and again comes from an image or from the page cache either way. */
    bool deep;
    uint64_t wait_limit_usec; /* 0: the default */
    /* The task's Run has come and its views are ready (code 0), or why not. */
    void (*ready)(void *user, uint64_t task, int code, const char *text);
    /* For the person behind the task; 0: behind every task of the machine. */
    void (*note)(void *user, uint64_t task, const char *text);
    void *user;
};
/* Mounts the environment in the caller's mount namespace. */
int vg_machine_new(const struct vg_machine_conf *conf, struct vg_machine **ret, struct vg_err *err);
/* Cuts off whoever still uses it, and leaves nothing in its folder. */
void vg_machine_free(struct vg_machine *m);
/* Removes what a machine left in its folder; vg_machine_free does it. */
void vg_machine_clear(const char *dir);
int vg_machine_link(struct vg_machine *m, int fd, uint64_t task); /* takes the socket */
/* A keeper wants the task's views: `ready` follows, maybe at once. `on_disk`: and a place on disk
   for what the task changes, if there is one. -EEXIST: another has it. */
int vg_machine_task(struct vg_machine *m, uint64_t task, bool on_disk);
struct vg_machine_mounts {
    int env;         /* detached mounts, the caller's */
    int image, data; /* the compiled form, over env, and its data-only layer; -1: there is none */
    int upper;       /* an empty folder on disk; -1: none was wanted, or can be had */
    int proj[16];
    char *path[16]; /* owned */
    size_t n_proj;
};
/* After `ready`. */
int vg_machine_mounts(struct vg_machine *m, uint64_t task, struct vg_machine_mounts *ret);
void vg_machine_mounts_done(struct vg_machine_mounts *t);
/* Before the barrier: what lies in the task's upper layer goes to the store, as far as it is below
   one of `paths` (each ends with NUL, `len` bytes in all; none: all of it). Takes the descriptors,
   also when it fails. -EALREADY: it was said before. */
int vg_machine_keep(struct vg_machine *m, uint64_t task, int upper, int merged, const char *paths,
                    size_t len);
/* done when all that the task wrote is at the client. */
int vg_machine_barrier(struct vg_machine *m, uint64_t task,
                       void (*done)(void *user, uint64_t task, int code, const char *text));
void vg_machine_ended(struct vg_machine *m, uint64_t task); /* sends its trace, once */
void vg_machine_gone(struct vg_machine *m, uint64_t task);  /* nobody uses its views any more */
/* Waits until what was used is compiled. */
void vg_machine_settle(struct vg_machine *m);
size_t vg_machine_tasks(struct vg_machine *m);
void vg_machine_tick(struct vg_machine *m, uint64_t now_usec);
/* vg_env_let_go() of its views; of those that tasks use only when `all`. */
void vg_machine_let_go(struct vg_machine *m, bool all);
struct json_t;
struct json_t *vg_machine_json(struct vg_machine *m);
