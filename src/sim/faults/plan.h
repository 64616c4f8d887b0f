#pragma once
/* What a seed decides beforehand: tasks, faults, clocks. A plan is data, so that it can be made
   smaller: a run of a plan without some of its tasks and faults is as exact as the whole. */
#include <stdbool.h>
#include <stdint.h>

#define VG_PLAN_NODES_MAX 8
#define VG_PLAN_TASKS_MAX 200
#define VG_PLAN_FAULTS_MAX 200
#define VG_PLAN_GANG_MAX 4

enum vg_plant {
#define PLANT(name, word, text) VG_PLANT_##name,
#include "sim/faults/plants.tbl"
#undef PLANT
    VG_PLANTS
};

enum vg_fault_kind {
#define FAULT(name, word, text) VG_FAULT_##name,
#include "sim/faults/kinds.tbl"
#undef FAULT
    VG_FAULT_KINDS
};

struct vg_plan_task {
    uint64_t at_usec, run_usec;
    bool interactive, remote, follow, ignores_term;
    int32_t status;
    uint32_t retries, gpus, cpu_milli, records;
    uint32_t share_milli; /* of one GPU, in the pool that shares; gpus is then 0 */
    uint32_t gang;        /* members; 0: one task */
    uint64_t cancel_usec; /* after it was accepted; 0: never */
    bool off;             /* left out */
};

struct vg_plan_fault {
    uint64_t at_usec, for_usec;
    enum vg_fault_kind kind;
    int target; /* node, task, or machine; depends on the kind */
    int64_t amount;
    bool off; /* left out */
};

/* Seeds from here on have tasks with shares of a GPU, too; what earlier ones decide stays. */
#define VG_PLAN_SHARES_FROM 100000

struct vg_plan {
    uint64_t seed;
    bool shares;
    enum vg_plant plant;
    int n_nodes, n_tasks, n_faults;
    bool local_node;    /* node 0 is on virgad's machine */
    uint64_t calm_usec; /* after the last fault is over */
    struct vg_plan_task task[VG_PLAN_TASKS_MAX];
    struct vg_plan_fault fault[VG_PLAN_FAULTS_MAX];
    uint64_t task_id[VG_PLAN_TASKS_MAX];
};

struct vg_plan_size {
    int nodes, tasks; /* 0: by the seed */
};
void vg_plan_make(struct vg_plan *p, uint64_t seed, const struct vg_plan_size *size,
                  enum vg_plant plant);
const char *vg_plan_fault_word(enum vg_fault_kind k);
const char *vg_plan_fault_text(enum vg_fault_kind k);
const char *vg_plan_plant_word(enum vg_plant p);
const char *vg_plan_plant_text(enum vg_plant p);
/* One line for people. */
void vg_plan_fault_say(const struct vg_plan *p, const struct vg_plan_fault *f, char *out, int n);
void vg_plan_task_say(const struct vg_plan_task *t, int index, char *out, int n);
