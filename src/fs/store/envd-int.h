#pragma once
/* The parts of envd: work.c has what requests do, on threads; envd.c the loop that hears and
 * answers. */
#include "base/list.h"
#include "base/map.h"
#include "fs/store/estore.h"
#include "fs/store/ftree.h"
#include "net/conn.h"

#include <pthread.h>

#define VG_ENVD_THREADS_MAX 4096 /* a link has one, and so has a request */
#define VG_ENVD_STACK (1u << 20)
#define VG_TREE_KEY (2 * VG_MID + VG_ENV_NAME_MAX + 2)

struct vg_envd;

/* Threads do things in any order; a RELEASE must not be overtaken by the HOLD it ends. */
#define VG_HOLDING ((void *)2)
#define VG_RELEASED ((void *)3)

/* A request on its way. The answer is posted once; work may go on after that (a link). */
struct vg_work {
    struct vg_list in_queue; /* vg_envd.answers */
    struct vg_envd *d;
    uint32_t req;
    const Vg__Pb__EnvReq *m; /* of env; NULL: the time has come to remove what is old */
    Vg__Pb__Envelope *env;   /* owned */
    int fd;                  /* owned; -1: none came */
    struct vg_err err;       /* msg[0]: the answer is an error */
    Vg__Pb__EnvList *list;   /* owned; NULL: Ok */
    bool answered, over;     /* under the lock: posted; the thread has ended */
    bool sent;               /* loop: the answer went out */
};

/* What a batch task's client sends: filled while it is connected. */
struct vg_pin {
    uint64_t task;
    char user[VG_ENV_NAME_MAX + 1];
    struct vg_ftree *tree; /* counted */
    bool complete;         /* what was asked for is here */
};

struct vg_envd {
    uv_loop_t *loop;
    uv_async_t wake;
    struct vg_conn *conn;
    const char *dir;
    uint64_t quota_bytes, cache_bytes;
    uint64_t changes_sec; /* that what tasks changed is kept; 0: for ever */
    struct vg_s3 *bucket; /* owned; NULL: everything is kept here */
    struct vg_err broken; /* msg[0]: there should be a bucket and cannot be one */
    pthread_mutex_t claiming;
    bool claimed; /* under it: the bucket is known to be ours */
    pthread_mutex_t lock;
    pthread_cond_t pinned; /* a pin came or went */
    pthread_cond_t opened; /* a store is open now, or could not be opened */
    struct vg_map stores;  /* user -> struct vg_envstore, owned */
    struct vg_map trees;   /* its key -> struct vg_envtree, owned */
    struct vg_map pins;    /* task -> struct vg_pin, owned */
    struct vg_map holding; /* task -> VG_HOLDING or VG_RELEASED, while a HOLD is being done */
    struct vg_list answers;
    unsigned threads;
};
struct vg_envstore {
    char user[VG_ENV_NAME_MAX + 1];
    struct vg_estore *s; /* NULL: being opened, by one thread */
};
struct vg_envtree {
    char key[VG_TREE_KEY]; /* machine and user */
    struct vg_ftree *t;    /* counted */
    unsigned users;
};

/* On a thread of its own: does it, posts the answer, sees to what follows. */
void vg_work_do(struct vg_work *w);
/* Tells the loop that there is an answer. */
void vg_work_post(struct vg_work *w);
/* The user's store; `make`: even when there is none yet. NULL: err says why. */
struct vg_estore *vg_envd_store(struct vg_envd *d, const char *user, bool make, struct vg_err *err);
/* Removes what nothing holds; errors are logged. */
void vg_envd_collect(struct vg_estore *s);
/* envd-pin.c */
void vg_work_pin(struct vg_work *w);
void vg_work_save(struct vg_work *w);
void vg_work_link(struct vg_work *w);
/* Serves a root until the link ends; trees of one root are shared. */
int vg_envd_serve(struct vg_work *w, struct vg_estore *s, const uint8_t root[VG_HASH]);
/* A list with room for n. NULL: no memory. */
Vg__Pb__EnvList *vg_envlist_new(size_t n);
int vg_envlist_add(Vg__Pb__EnvList *l, const char *owner, const char *name,
                   const struct vg_eversion *v, bool config);
/* Where a reference leads, for this user: the owner's store and the version. */
int vg_envd_find(struct vg_work *w, struct vg_estore **ret, char owner[VG_ENV_NAME_MAX + 1],
                 char name[VG_ENV_NAME_MAX + 1], struct vg_eversion *v);
