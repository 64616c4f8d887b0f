#pragma once
/* Traces of real clusters, read strictly: a header that is not the known one, a missing column or a
   number that is none is an error that names file and line. Plain text or gzip, by content.
   A trace owns its text; every string in it is borrowed from there. */
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

#define VG_TRACE_BYTES_MAX (256u << 20) /* of a file, unpacked */
#define VG_TRACE_ROWS_MAX 10000000u

/* Alibaba cluster-trace-gpu-v2023, node list: sn,cpu_milli,memory_mib,gpu,model */
struct vg_trace_node {
    const char *name;
    uint32_t cpu_milli;
    uint32_t mem_mib;
    uint32_t gpus;
    const char *model; /* "" when it has none */
};

struct vg_trace_nodes {
    char *text;                 /* owned */
    struct vg_trace_node *node; /* owned */
    size_t n, cap;
};

/* The same, pod list: name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,
   creation_time,deletion_time,scheduled_time */
struct vg_trace_task {
    const char *name;
    uint32_t cpu_milli;
    uint32_t mem_mib;
    uint32_t gpus;
    uint32_t gpu_milli;   /* of each of them; 1000: whole; 0 where gpus is 0 */
    const char *gpu_spec; /* acceptable models, "A|B"; "": any */
    const char *qos, *phase;
    uint64_t created_s, deleted_s, scheduled_s; /* the last two 0 where the trace has none */
};

struct vg_trace_tasks {
    char *text;                 /* owned */
    struct vg_trace_task *task; /* owned */
    size_t n, cap;
};

/* On failure *ret is left empty and `err` is one sentence. */
int vg_trace_read_nodes(const char *path, struct vg_trace_nodes *ret, struct vg_err *err);
int vg_trace_read_tasks(const char *path, struct vg_trace_tasks *ret, struct vg_err *err);
void vg_trace_nodes_done(struct vg_trace_nodes *t);
void vg_trace_tasks_done(struct vg_trace_tasks *t);

/* Philly: timestamp,duration,num_gpus,gpu_time,cluster. Rows in any order; here by arrival. */
struct vg_trace_job {
    uint64_t arrive_sec; /* since the first arrival */
    uint64_t run_sec;    /* at least 1 */
    uint32_t gpus;       /* at least 1 */
    uint32_t tenant;     /* index into tenant[] */
};

struct vg_trace_jobs {
    char *text;               /* owned */
    struct vg_trace_job *job; /* owned; by arrival, then by line */
    size_t n, cap;
    const char **tenant; /* owned array; in the order of first appearance in time */
    size_t n_tenants, tenants_cap;
};

int vg_trace_read_jobs(const char *path, struct vg_trace_jobs *ret, struct vg_err *err);
void vg_trace_jobs_done(struct vg_trace_jobs *t);
