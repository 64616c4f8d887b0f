#pragma once
/* The environment view's inside: env.c (life, requests), env-tree.c (nodes and records), env-file.c
   (content), env-wait.c (kept requests, notifications), env-trace.c.

   Always true, under the lock:
   1. A node is in `table` at its number while the kernel knows it or it lies in a folder's kids.
   2. A node's object is good when its epoch is the view's; `by_object` has only such nodes.
   3. A folder's kids are sorted by name; a kid's parent is that folder.
   4. A request that cannot be answered is in exactly one node's waits and in `waiting`; whatever
      changes for that node (record, content, failure, epoch) runs it again from its beginning. */
#include "base/list.h"
#include "base/map.h"
#include "fs/node/machine.h"

#include <pthread.h>

#define ENV_WAIT_NOTE_USEC (10ull * 1000000)
#define ENV_FAIL_USEC (2ull * 1000000)  /* how long a failed fetch is believed */
#define ENV_FULL_USEC (200ull * 1000)   /* and that there was no room for it */
#define ENV_IDLE_USEC (60ull * 1000000) /* files are held so long after the last task */
#define ENV_AHEAD_MAX 32u               /* leaves: 8 MiB, more than 1 Gbit/s carry in 50 ms */
#define ENV_IDLE_MAX 2048u              /* files held ready while nobody has them open */
#define ENV_NEGATIVE_MAX 4096u          /* missing names remembered a folder */
#define ENV_DEPTH_MAX 2048u             /* folders in folders: as many as a path has */
#define ENV_NOTIFY_ALL 128u             /* more names than this: ask for every name again */

struct env_folder {
    struct env_node **kid; /* owned array */
    uint32_t n;
    uint32_t epoch; /* of the record */
    bool proven;
    bool compiled;          /* an image shows it as it was at `changes` */
    struct vg_mstat st;     /* of its own record: the parent's may be older */
    uint64_t changes;       /* how often a record was another than the one before */
    uint64_t changed_usec;  /* when it last changed although it was compiled; 0: never */
    struct vg_map negative; /* names the kernel was told to be missing; keys owned */
    bool many_negative;     /* more than are remembered */
};

struct env_file {
    struct vg_blob *blob; /* of the node's present stamp; NULL until needed */
    uint32_t n_pass, n_cached;
    int backing_id;      /* 0: none */
    struct vg_list idle; /* in env->idle: held, not open */
    uint64_t read_end, ahead_end;
    uint32_t window;    /* leaves */
    uint64_t old_until; /* so many notes: the kernel may have pages of earlier content till then */
    uint8_t *used;      /* leaves noted in the trace generation used_gen */
    uint32_t used_gen;
};

struct env_open {
    struct vg_list link; /* in env->opens */
    struct env_node *node;
    struct vg_blob *blob; /* owned reference; NULL: empty file */
    bool pass, cached;    /* neither: past the page cache */
};

struct env_node {
    uint64_t number; /* the kernel's */
    uint64_t object;
    uint32_t epoch;
    uint32_t opens;
    uint32_t depth;          /* below the root */
    struct env_node *parent; /* NULL: the root, or lies nowhere any more */
    char *name, *target;     /* one allocation; target NULL but for links */
    uint16_t name_len, target_len;
    uint8_t flags;
    uint8_t id[VG_HASH]; /* with VG_DE_ID */
    struct vg_mstat st;
    uint64_t lookups;
    struct env_folder *dir;
    struct env_file *file;
    struct vg_buf *xattrs; /* name NUL u32 length value, ...; NULL: not asked */
    struct vg_list waits;  /* struct env_wait */
    bool used_before;      /* its content, in the view that this one is a copy of */
    bool stale; /* frozen, and another file at the client by now: its content cannot be fetched */
    int fail;   /* errno of the last fetch */
    uint64_t fail_usec;
    uint32_t used_gen;
};

struct env_wait {
    struct vg_list on_node, all;
    struct vg_fuse_req *r;
    uint64_t since;
};

enum note_kind { NOTE_ENTRY, NOTE_INODE, NOTE_ATTR, NOTE_NAMES };
struct env_note { /* for the kernel */
    enum note_kind kind;
    uint64_t node;
    char *name; /* owned */
};

struct env_use {
    uint64_t object;
    uint32_t leaf, epoch; /* UINT32_MAX: the thing itself */
};
struct env_task {
    struct vg_list link;
    uint64_t task;
    size_t from; /* in uses */
    bool whole;
};

struct vg_env {
    struct vg_view_conf conf;
    struct vg_fuse *fuse;
    pthread_mutex_t lock;
    struct env_node **table; /* by number; 0 unused */
    size_t n_table, cap_table;
    uint64_t *unused; /* numbers to give again */
    size_t n_unused, cap_unused;
    struct vg_map by_object;
    struct env_node *root;
    uint32_t epoch;
    bool strict, frozen;
    struct vg_list waiting; /* struct env_wait, oldest first */
    uint64_t note_usec;     /* the last "waiting for" */
    struct vg_list opens;   /* struct env_open */
    struct vg_list idle;    /* struct env_file, longest idle first */
    uint32_t n_idle;
    uint64_t wait_limit_usec;
    uint64_t used_usec; /* when a tick last saw a task */

    pthread_t notifier;
    bool notifying, stop;
    pthread_cond_t notes_changed;
    struct env_note *notes;
    size_t n_notes, cap_notes;
    uint64_t noted, told; /* how many notes there were, and how many the kernel has */
    bool notes_busy;

    struct env_use *uses;
    size_t n_uses, cap_uses;
    struct vg_list tasks;
    uint32_t trace_gen;
    bool traced_before;

    struct vg_env_stat stat;
};

struct env_call { /* a request on its way through */
    struct vg_env *e;
    struct vg_fuse_req *r;
    uint64_t since; /* 0: has not waited */
};

/* env-tree.c; all with the lock held. */
struct env_node *vg_env_node(struct vg_env *e, uint64_t number);
struct env_node *vg_env_node_new(struct vg_env *e, struct env_node *parent);
void vg_env_node_put(struct vg_env *e, struct env_node *n);    /* frees it when nothing needs it */
void vg_env_node_detach(struct vg_env *e, struct env_node *n); /* it lies nowhere any more */
int vg_env_node_update(struct vg_env *e, struct env_node *n, const struct vg_dirent *d);
int vg_env_have_folder(struct vg_env *e, struct env_node *n);
void vg_env_forget(struct vg_env *e, uint64_t number, uint64_t lookups);
struct env_node *vg_env_kid(const struct env_folder *f, const char *name, size_t n);
int vg_env_apply(struct vg_env *e, struct env_node *folder, const struct vg_dirrec *rec);
/* 0: the folder's record is there and true. 1: asked; *ret_wait is what to wait on. -errno. */
int vg_env_prove(struct vg_env *e, struct env_node *folder, struct env_node **ret_wait);
/* The same for the node's own object number (its folder's record). */
int vg_env_prove_node(struct vg_env *e, struct env_node *n, struct env_node **ret_wait);
void vg_env_unprove(struct vg_env *e, struct env_node *folder);
/* A record that a frozen view does not follow; what must not be fetched any more is marked, and
   those who wait for it are taken. */
void vg_env_mark(struct vg_env *e, struct env_node *folder, const struct vg_dirrec *rec,
                 struct vg_list *waits);
void vg_env_attr(const struct vg_env *e, const struct env_node *n, struct fuse_attr *out);
void vg_env_tree_free(struct vg_env *e);

/* env-wait.c */
/* With the lock held, which it gives up: keeps the request on the node. */
void vg_env_wait(struct env_call *c, struct env_node *on);
/* Takes the node's waits; run them after the lock was given up. */
void vg_env_wake(struct env_node *n, struct vg_list *to);
void vg_env_wake_all(struct vg_env *e, struct vg_list *to);
void vg_env_run(struct vg_env *e, struct vg_list *waits); /* without the lock */
void vg_env_notify(struct vg_env *e, enum note_kind kind, const struct env_node *n,
                   const char *name, size_t len);
int vg_env_notifier_start(struct vg_env *e);
void vg_env_notifier_stop(struct vg_env *e);

/* env-file.c */
void vg_env_open(struct env_call *c);
void vg_env_read(struct env_call *c);
void vg_env_release(struct env_call *c);
void vg_env_file_changed(struct vg_env *e, struct env_node *n); /* it has another stamp; locked */
void vg_env_file_free(struct vg_env *e, struct env_node *n);
void vg_env_stamp(const struct vg_env *e, const struct env_node *n, uint8_t out[VG_HASH]);
void vg_env_opens_free(struct vg_env *e);
void vg_env_drop_idle(struct vg_env *e, uint32_t keep);
/* Asks for what is missing of it, behind everything that somebody waits for. Locked. Returns the
   bytes of the file, 0 when nothing was asked. */
uint64_t vg_env_fetch_rest(struct vg_env *e, struct env_node *n);

/* env-xattr.c */
void vg_env_getxattr(struct env_call *c);
int vg_env_set_xattrs(struct env_node *n, const Vg__Mr__Fail *m); /* locked */

/* env-dir.c */
void vg_env_lookup(struct env_call *c);
void vg_env_getattr(struct env_call *c);
void vg_env_readlink(struct env_call *c);
void vg_env_readdir(struct env_call *c);

/* env-trace.c; with the lock held. */
void vg_env_use(struct vg_env *e, struct env_node *n);
void vg_env_use_leaf(struct vg_env *e, struct env_node *n, uint64_t first, uint64_t last);

void vg_env_request(struct env_call *c);
