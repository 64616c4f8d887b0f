#pragma once
/* Shared by machine.c (life, links), machine-gen.c (the environment's views), machine-run.c
   (runs, barriers, traces) and machine-keep.c (what a task changed goes to the store). */
#include "base/list.h"
#include "fs/node/compile.h"
#include "fs/node/machine.h"
#include "fs/node/voided.h"

#include <pthread.h>

#define MACHINE_VIEWS 64u         /* project views of one machine */
#define MACHINE_STASH (64u << 20) /* bytes of records that came before their view */

struct mview {       /* a project; lives as long as the machine */
    char *path, *at; /* owned */
    uint32_t id;
    uint64_t epoch;
    struct vg_proj *proj;
    unsigned users;
};

struct mgen { /* a view of the environment, for the tasks that began while it was true */
    struct vg_list link;
    struct vg_env *env;
    struct vg_compile *compile; /* NULL: environments are not compiled */
    char *at, *compiled;        /* owned */
    unsigned users;             /* tasks */
    bool frozen;                /* the receiving thread's */
};

struct mtask {
    struct vg_list link;
    uint64_t task;
    bool wanted;  /* a keeper asked */
    bool run;     /* Run has come */
    bool started; /* its views were made ready, or not: code, text */
    bool told;    /* and the keeper knows */
    bool traced, ended, strict, gone;
    uint64_t since_usec;
    struct mgen *gen;       /* NULL: its Run has not come */
    bool known;             /* the service has a trace of this command */
    struct vg_image *image; /* owned reference; NULL: it runs on FUSE alone */
    unsigned jobs;          /* threads that work for it */
    int code;
    char text[240];
    bool on_disk;       /* what it changes shall not lie in memory */
    char *place;        /* owned: where it lies; NULL: not on disk */
    struct mkeep *keep; /* owned; NULL: what it changes is written back, or dropped */
    struct mview *view[16];
    bool sync[16];
    size_t n_view;
};

struct stashed {
    struct vg_list link;
    size_t len;
    uint8_t rec[];
};

struct vg_machine {
    struct vg_machine_conf conf;
    char *dir, *cache_dir; /* owned */
    struct vg_links *links;
    struct mgen *gen;    /* the present one */
    struct vg_list gens; /* all, oldest first */
    uint64_t n_gens;
    uint64_t root_object;
    uint64_t *pending; /* folders that changed since it was frozen; the receiving thread's */
    size_t n_pending, cap_pending;
    bool pending_all;
    struct vg_oplog *log;
    uint64_t epoch;                   /* how many services were met */
    bool told;                        /* something by this service; the receiving thread's */
    struct mview view[MACHINE_VIEWS]; /* added by the receiving thread alone */
    size_t n_view;
    struct vg_voided voided; /* the receiving thread's */
    struct vg_list stash;    /* the receiving thread's */
    size_t stash_bytes;
    pthread_mutex_t lock; /* tasks, jobs, n_view, gens */
    pthread_cond_t idle;
    pthread_cond_t kept; /* an answer to Keep came, another link carries it, or all ends */
    bool keeping;        /* a task's changes are being told */
    uint64_t resends;    /* links that carried operations */
    bool stopping;
    struct vg_list tasks;
    unsigned jobs;
};

struct mtask *vg_mtask(struct vg_machine *m, uint64_t task); /* locked; NULL: unknown */
struct mtask *vg_mtask_have(struct vg_machine *m, uint64_t task);
void vg_mtask_put(struct vg_machine *m, struct mtask *t); /* locked; frees it when it is over */
void vg_machine_on_run(struct vg_machine *m, const Vg__Mr__Run *run); /* receiving thread */

/* machine-keep.c */
/* Tells the store what the task changed, and waits until it has that. On a thread of the task's; 0
   or -errno and a sentence. */
int vg_mkeep_tell(struct vg_machine *m, struct mtask *t, char *text, size_t n);
void vg_mkeep_answered(struct vg_machine *m, const Vg__Mr__Kept *k); /* receiving thread */
void vg_mkeep_resend(struct vg_machine *m);                          /* receiving thread */
void vg_mkeep_free(struct mkeep *k);
/* Locked: makes the task's place on disk. A detached mount of it, or -1: its changes lie in memory
   then, as everybody's do. */
int vg_mkeep_place(struct vg_machine *m, struct mtask *t);
void vg_mkeep_clear(struct vg_machine *m, struct mtask *t, void *arg); /* a job: removes it */

/* machine-gen.c; receiving thread, or nobody else is there */
int vg_gen_first(struct vg_machine *m, struct vg_err *err);
int vg_gen_new(struct vg_machine *m, struct mgen **ret, struct vg_err *err);
void vg_gen_free(struct mgen *g);
void vg_gen_remember(struct vg_machine *m, uint64_t folder); /* the next view asks for it */
void vg_gen_inval(struct vg_machine *m, const Vg__Mr__Inval *i);
void vg_gen_epoch(struct vg_machine *m, uint64_t root_object);
int vg_gen_for_run(struct vg_machine *m, struct vg_err *err); /* m->gen is what is true now */
