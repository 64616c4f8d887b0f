#pragma once
/* A scheduling policy as the simulator sees it: told what happens, asked what to do. The loop
   (run.h) keeps the clock and the true run times; a policy knows neither in advance. The baselines
   are written plainly after their descriptions in the literature; `virga` is the engine of
   src/sched. */
#include "sched/engine.h"
#include "sim/estimate.h"
#include "sim/workload.h"

#include <stdbool.h>

enum vg_decision_kind { VG_DECIDE_START, VG_DECIDE_STOP };

struct vg_decision {
    enum vg_decision_kind kind;
    uint32_t job;
    const uint32_t *node; /* START: one a member; borrowed until the next call */
};

struct vg_policy_opts {
    uint64_t seed;
    bool oracle;                      /* every policy is told true run times */
    bool preempt;                     /* those that can may stop running jobs */
    const struct vg_eng_conf *engine; /* virga's settings but for preempt and seed; NULL: default */
    struct vg_estimates *estimates;   /* virga: asked when each job will start; NULL: not asked */
};

struct vg_policy_ops {
    const char *name;
    const char *about;
    bool can_preempt;
    int (*make)(const struct vg_workload *w, const struct vg_policy_opts *o, void **ret,
                struct vg_err *err);
    void (*free)(void *p);
    /* A job arrived or came back after it was stopped. 0 or -ENOMEM. */
    int (*submit)(void *p, uint64_t now_usec, uint32_t job);
    /* A running job ended by itself; `ran_usec` is what it ran this time. */
    void (*finish)(void *p, uint64_t now_usec, uint32_t job, uint64_t ran_usec);
    /* 1: *ret is to be done now and counts as done; 0: nothing more now; negative: broken, with a
       sentence in err. */
    int (*next)(void *p, uint64_t now_usec, struct vg_decision *ret, struct vg_err *err);
    /* When it wants to be asked again although nothing happened; UINT64_MAX: never. May be NULL. */
    uint64_t (*wake)(void *p);
};

extern const struct vg_policy_ops vg_policy_fifo, vg_policy_easy, vg_policy_drf, vg_policy_random,
    vg_policy_virga;
const struct vg_policy_ops *vg_policy_find(const char *name); /* NULL: none of that name */
const char *const *vg_policy_names(void);                     /* NULL-ended */
