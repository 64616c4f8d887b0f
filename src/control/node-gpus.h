#pragma once
/* The GPUs of nodes, as their agents report them: facts, samples, health. A GPU that is not well is
   drained: nothing new is put there until an administrator says so; that outlives restarts. */
#include "control/nodes.h"
#include "store/store.h"

#define VG_GPU_REASON_MAX 200

struct vg_node_gpu {
    Vg__Pb__GpuState *state; /* owned; the last that was told; NULL: nothing yet */
    uint64_t seen_usec;      /* vg_now_usec() of it */
    char *drained;           /* owned; why nothing new is put there; NULL: it is in use */
    uint32_t held_milli;     /* metrics.c's: by tasks, when it last looked */
};

/* The node has greeted: what is known of its GPUs from before is looked up. */
void vg_node_gpus_load(struct vg_nodelink *a);
void vg_node_gpus_free(struct vg_nodelink *a);
/* NULL: nothing is known of it. */
const struct vg_node_gpu *vg_node_gpu_get(const struct vg_nodelink *a, uint32_t index);
/* It shall report every second for a while: somebody looks. */
void vg_node_gpus_ask(struct vg_nodelink *a);
uint64_t vg_node_gpu_mem(const struct vg_nodelink *a, uint32_t index); /* 0: not known */
/* Takes it out of use, or (`why` NULL) back into use; the store, the scheduler and whoever has
   tasks there hear of it; cb (may be NULL) when the store has it. -ENOENT: no such GPU; -errno: it
   could not be handed to the store, or not even be done; cb will not run. */
int vg_node_gpu_drain(struct vg_nodelink *a, uint32_t index, const char *why, vg_store_cb *cb,
                      void *arg);

/* One sentence that a task's owner should know: to whoever is attached, and shown with the task. */
void vg_job_notice(struct vg_job *j, const char *text);

/* What its newest attempt has used so far; copied. */
void vg_job_forget_gpu_use(struct vg_job *j); /* a new attempt begins */
void vg_job_take_gpu_use(struct vg_job *j, const Vg__Pb__GpuUsage *use);

/* gpu-idle.c: the pool's rule for GPUs that are held and not used. */
void vg_gpu_idle_check(struct vg_job *j, const Vg__Pb__GpuUsage *use);
