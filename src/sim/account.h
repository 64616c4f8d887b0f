#pragma once
/* What a policy did, in numbers. Every policy is measured by this and nothing else.

   wait      all the time between arrival and end in which a job did no useful work: queued, or
             doing what was lost when it was stopped
   slowdown  bounded: (wait + run) / max(run, 10 s), at least 1
   service   of a tenant: GPU time it was given while it wanted any, over the GPU time it was
             entitled to in that time. The entitlement is the max-min fair division of all GPUs by
             weight among the tenants that want GPUs at that moment (running and waiting), no tenant
             getting more than it wants */
#include "sim/workload.h"

#include <stdbool.h>

#define VG_ACCOUNT_BINS 400

struct vg_account_tenant {
    uint64_t jobs;
    double wait_sum_s, slowdown_sum;
    double served_s, entitled_s; /* GPU seconds */
    uint64_t wants, runs;        /* units, now */
    double service;              /* at the end; 1 when it never wanted anything */
};

struct vg_result {
    uint64_t jobs, dropped, unfinished;
    uint64_t starts, stops, decisions;
    double wait_mean_s, wait_p50_s, wait_p95_s, wait_max_s;
    uint32_t longest_tenant, longest_units; /* of the job that waited longest */
    double slowdown_mean, slowdown_p95;
    double service_worst, jain;
    size_t worst_tenant;
    double utilisation; /* while jobs arrived */
    double makespan_s;
    double lost_s; /* GPU seconds of work that stopping threw away */
    uint64_t class_jobs[VG_WORK_CLASSES_MAX];
    double class_wait_s[VG_WORK_CLASSES_MAX]; /* sums */
    double policy_cpu_s, total_cpu_s;
    struct vg_account_tenant *tenant;    /* owned */
    double *wait_s;                      /* owned; by size */
    double bin_s, busy[VG_ACCOUNT_BINS]; /* GPU seconds in equal parts of the makespan's bound */
};

struct vg_account {
    const struct vg_workload *w; /* borrowed */
    struct vg_result r;
    double *slowdown; /* owned */
    size_t n_ended;
    bool fairness; /* costs a pass over the tenants at each event */
    uint64_t last_usec, busy_units, bin_usec;
    double arrive_busy, longest_s;
    uint64_t last_arrival_usec;
    double *level; /* owned; scratch */
};

int vg_account_init(struct vg_account *a, const struct vg_workload *w, bool fairness);
void vg_account_done(struct vg_account *a);                  /* also frees what was not taken */
void vg_account_to(struct vg_account *a, uint64_t now_usec); /* time passes; before each event */
void vg_account_arrive(struct vg_account *a, uint32_t job);
void vg_account_start(struct vg_account *a, uint32_t job);
void vg_account_stop(struct vg_account *a, uint32_t job, uint64_t lost_usec);
void vg_account_end(struct vg_account *a, uint32_t job, uint64_t now_usec);
/* The result; the caller frees it with vg_result_done. */
struct vg_result vg_account_take(struct vg_account *a);
void vg_result_done(struct vg_result *r);
