#pragma once
/* A task while it is in memory: the model's task, who follows it, what was handed over for its
   input and output, its log. It leaves memory when it has ended and that is stored. */
#include "control/chan.h"
#include "control/control.h"
#include "control/log-file.h"
#include "control/spec-check.h"
#include "control/timer.h"
#include "model/task.h"

struct vg_peer;
struct vg_session;
struct vg_gang;

#define VG_TICKET 32
#define VG_GRACE_USEC (10 * 1000000ULL)        /* between TERM and KILL */
#define VG_BACKOFF_MAX_USEC (600 * 1000000ULL) /* between retries, when nothing is said */
#define VG_LOST_MAX 5                          /* attempts that may get lost before we give up */

/* What a job has that others depend on. */
struct vg_head {
    struct vg_list under;   /* struct vg_job.sibling: members or children in memory */
    struct vg_list waiting; /* struct vg_edge.on_target: who waits for its end */
};

struct vg_job {
    struct vg_control *ctl;
    struct vg_task *task; /* owned */
    struct vg_list dirty; /* in vg_control.dirty */
    struct vg_list follows;
    struct vg_head *head;         /* owned; NULL: nobody depends on it */
    struct vg_job *above;         /* borrowed; its group or parent; NULL: none */
    struct vg_list sibling;       /* in above->head->under */
    struct vg_list news;          /* in vg_control.news */
    struct vg_list edges;         /* struct vg_edge.on_job: what it waits for */
    char *idem;                   /* owned; its key in vg_control.idem, or NULL */
    struct vg_timer *due;         /* until its due time */
    struct vg_gang *gang;         /* owned; of a gang's group; NULL: nothing to say yet */
    bool ready, gone;             /* of a gang's member: prepared; told to begin */
    struct vg_chan chan;          /* a client's input and output, until the task is placed */
    struct vg_logfile *log;       /* owned; of the current attempt */
    struct vg_session *session;   /* borrowed; NULL: none */
    struct vg_timer *limit;       /* --time */
    struct vg_timer *cost;        /* --max-cost */
    struct vg_meter *meter;       /* owned; what of it is in the ledger; NULL: nothing */
    struct vg_timer *hold;        /* a queued task whose remote client went away */
    struct vg_timer *again;       /* the store could not take the attempt: the next try */
    struct vg_timer *mirror_wait; /* placed, not sent: its client's files were not offered yet */
    uint64_t mirror_waited;       /* how long so far, roughly */
    uint64_t preempt_grace_usec;
    uint8_t preempt_signal;     /* 0: not preempted in this life */
    uint32_t lost;              /* attempts lost so far */
    enum vg_task_state counted; /* the state in which its head counts it; STATES: not yet */
    bool lingering;             /* ended and stored; here for what is under it */
    uint64_t ready_usec;        /* since when it could have started, in this life; 0: not yet */
    uint64_t over_usec;         /* when its attempt ended, by our clock; 0: now */
    uint64_t over_cpu_usec, over_mem_bytes; /* what that attempt used */
    uint32_t told;                          /* gist of the last QUEUED event; 0: none */
    bool waits;                             /* in the scheduler's queue */
    bool attempt_lost;                      /* its attempt that is over was lost */
    bool ack_over;      /* its keeper is let go when what the attempt held is stored */
    bool stored;        /* the whole row was handed to the store */
    bool accepting;     /* durable: the store has not said yes yet */
    bool kept;          /* not given to the scheduler: a budget is used up */
    bool held;          /* not given to the scheduler: waits until nodes have reported */
    bool loaded;        /* from an earlier life */
    bool hearsay;       /* known by the word of another machine alone: runs only there */
    bool ending;        /* ended; the store is writing that */
    bool timed_out;     /* --time or --max-cost ended it */
    bool broke;         /* --max-cost did */
    uint32_t log_round; /* not 0: its keeper was asked for output that an earlier life had
                           acknowledged; its end counts only with this number */
    bool ack_exit;      /* the agent waits for our word that the end is stored */
    bool entered;       /* counted in its session */
    bool has_ticket;
    uint8_t ticket[VG_TICKET]; /* opens one direct stream to the current attempt */
    bool sent;                 /* the current attempt's Start went out, or its node reported it */
    uint64_t sent_usec;        /* boot clock: its Start went out; 0: in an earlier life */
    Vg__Pb__GpuUsage *gpu_use; /* owned; of its newest attempt, as its node last told; NULL */
    uint64_t share_counted; /* what is held for it on the GPU it shares (share.h); 0: its limit */
    char *wiped;            /* owned; lines: what was cleared away after it; NULL */
    struct vg_track *track; /* owned; what it used over time (series.c); NULL: nothing was told */
    bool idle_told;         /* that its GPUs are not used */
    char *from;   /* owned; where it was submitted, until that is in the audit log; NULL */
    char *notice; /* owned; what its owner should know while it runs; NULL */
    bool owned;   /* counted in its owner's open_tasks */
    bool seen;    /* scratch: named by the report that is being read */
};

enum vg_follow_kind {
    VG_FOLLOW_RUN,
    VG_FOLLOW_WAIT,
    VG_FOLLOW_WATCH,
    VG_FOLLOW_LOG,
    VG_FOLLOW_GROUP_LOG,
    VG_FOLLOW_EVENTS,
};

/* A peer waits for news of a job (or, for watchers, of all). */
struct vg_follow {
    struct vg_list on_job;  /* vg_job.follows or vg_control.watches */
    struct vg_list on_peer; /* vg_peer.follows */
    struct vg_peer *peer;
    struct vg_job *job; /* NULL for watchers */
    enum vg_follow_kind kind;
    uint32_t req;
    bool owner;   /* of the input and output: when it leaves a queued task, the task is cancelled */
    bool mirrors; /* it can have its machine's files offered */
    void *data;   /* owned by the kind; freed by free_data */
    void (*free_data)(void *data);
};

struct vg_job *vg_job_get(struct vg_control *c, uint64_t id);
/* Takes the task. NULL: no memory. */
struct vg_job *vg_job_new(struct vg_control *c, struct vg_task *task);
/* Forgets a job that is stored (or was never accepted). Followers must have been answered. */
void vg_job_free(struct vg_job *j);

/* NULL: no memory or too many unanswered requests. */
struct vg_follow *vg_follow_new(struct vg_peer *p, struct vg_job *j, enum vg_follow_kind kind,
                                uint32_t req);
void vg_follow_free(struct vg_follow *f);
/* Its peer is gone: frees it; a queued interactive task loses its client. */
void vg_follow_abandon(struct vg_follow *f);

/* Makes room for what depends on it. 0 or -ENOMEM. */
int vg_job_need_head(struct vg_job *j);
/* It was accepted: blocked until what it waits for has ended, aside until it is due or the nodes
   have reported, else into the scheduler. The job may be over when this returns. */
void vg_job_begin(struct vg_job *j);
/* Queued: into the scheduler, or aside until it is due. As vg_place_submit. */
int vg_job_submit(struct vg_job *j, struct vg_err *err);

/* Something changed: watchers hear of it and the row will be written. */
void vg_job_changed(struct vg_job *j);
/* A RunEvent to everybody who ran it or attached. */
void vg_job_event(struct vg_job *j, Vg__Pb__RunEvent__Kind kind, const char *text);
/* The same to one. */
void vg_follow_event(struct vg_follow *f, Vg__Pb__RunEvent__Kind kind, const char *text);
/* The last answer to everybody. */
void vg_job_answer_followers(struct vg_job *j);
/* Final: by exit status; frees its place, answers followers, stores, and then lets the keeper go
   (ack_exit) and the job out of memory. `why` NULL: nothing to say. */
void vg_job_end(struct vg_job *j, int32_t status, enum vg_reason reason, const char *why);
/* The current attempt is over without a result: queued again, or ended with LOST. `ran`: the
   command may have begun. */
void vg_job_lost(struct vg_job *j, bool ran, const char *why);
/* Hands the end of an ended job to the store (again). */
void vg_job_store_end(struct vg_job *j);
/* Queued again after an attempt that is over. */
void vg_job_requeue(struct vg_job *j, const char *why);
/* Starts the clock of --time when the task runs. */
void vg_job_arm_limit(struct vg_job *j);
/* The same of --max-cost; again whenever prices or its share change. */
void vg_job_arm_cost(struct vg_job *j);
/* Asks for its end, and that of everything under it: at once when it waits, by signal when it runs.
 */
void vg_job_cancel(struct vg_job *j, uint64_t grace_usec, const char *why);
/* The same with another signal than TERM. */
void vg_job_end_early(struct vg_job *j, uint32_t sig, uint64_t grace_usec, const char *why);

/* It must give way: the signal (0: the task's own, else TERM), KILL after the grace time (0: the
   task's own, else VG_GRACE_USEC), then back into the queue. The attempt's output is kept, its
   retries are not touched. A task that ends by itself with status 0 in the meantime has succeeded.
   -EINVAL: it is not on a node, or is being ended or preempted already. */
int vg_job_preempt(struct vg_job *j, uint64_t grace_usec, uint32_t sig, const char *why);
/* The same without counting: for members of a gang that start again together. */
int vg_job_stop(struct vg_job *j, uint64_t grace_usec, uint32_t sig, const char *why);
/* Its preempted attempt is over: back into the queue (a vrun that somebody sits at ends). */
void vg_job_give_way(struct vg_job *j, int32_t status);
/* Reported by its node while it should give way: told again. */
void vg_job_preempt_again(struct vg_job *j);

/* What a task gets before KILL when it is preempted or out of time, and how long it has then. */
uint32_t vg_job_grace_signal(const struct vg_job *j);
uint64_t vg_job_grace_usec(const struct vg_job *j);

/* A task for people. `ret` borrows from `t`. */
#define VG_INFO_AFTER 16
/* Forgets what groups cost. */
void vg_group_costs_done(struct vg_control *c);
struct vg_task_info {
    Vg__Pb__TaskInfo pb;
    Vg__Pb__Resources want;
    Vg__Pb__Progress progress;
    uint32_t gpu[VG_NODE_GPUS_MAX];
    char after[VG_INFO_AFTER][40];
    char *after_list[VG_INFO_AFTER];
    char node[VG_TENANT_NAME_MAX + 1];
    char *secret[VG_SPEC_SECRETS_MAX]; /* borrowed */
};
void vg_task_info(struct vg_control *c, const struct vg_task *t, struct vg_task_info *ret);
