#pragma once
/* The loop: arrivals and ends in virtual time, one policy, one account. It keeps books of its own
   on every node and refuses a decision that promises a GPU twice or starts a job that does not
   wait. */
#include "sim/account.h"
#include "sim/policy.h"

struct vg_run_opts {
    struct vg_policy_opts policy;
    bool fairness;            /* account for tenants' service */
    uint64_t checkpoint_usec; /* a stopped job keeps whole multiples of this; 0: it loses all */
};

/* 0 and *ret (vg_result_done), or a sentence: out of memory, or a policy that broke a rule. */
int vg_run(const struct vg_workload *w, const struct vg_policy_ops *ops,
           const struct vg_run_opts *o, struct vg_result *ret, struct vg_err *err);
