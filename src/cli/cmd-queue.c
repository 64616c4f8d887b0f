/* `virga queue`: who goes next, and each tenant's share against what it is due. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/client.h"
#include "cli/cmd.h"
#include "cli/table.h"
#include "cli/task-show.h"
#include "cli/why-show.h"
#include "view/views.h"

#define ROWS_DEFAULT 20
#define ROWS_MAX 10000

static void print_order(const Vg__Pb__QueueInfo *q) {
    static const char *const headings[] = {"#",    "TASK", "NAME",  "USER",     "TEAM",  "POOL",
                                           "PRIO", "SIZE", "WAITS", "EXPECTED", "WANTS", NULL};
    struct vg_table *t = vg_table_new(headings);
    for (size_t i = 0; i < q->n_row; i++) {
        const Vg__Pb__QueueRow *r = q->row[i];
        char id[VG_ID_LEN + 1], at[24], prio[16], size[16], waits[32], start[80], want[128];
        uint64_t now = vg_wall_usec();
        vg_id_format(r->task_id, id);
        id[VG_TASK_SHORT_ID] = 0;
        snprintf(at, sizeof(at), "%zu", i + 1);
        snprintf(prio, sizeof(prio), "%u", r->priority);
        snprintf(size, sizeof(size), "%u", r->members);
        vg_format_duration(now > r->created_usec ? now - r->created_usec : 0, waits, sizeof(waits));
        const char *cells[] = {at,
                               id,
                               r->name,
                               r->user,
                               r->team,
                               r->pool,
                               prio,
                               r->members > 1 ? size : NULL,
                               waits,
                               vg_soon(r->expected_start_usec, start, sizeof(start)),
                               vg_resources_text(r->want, want, sizeof(want))};
        vg_table_row(t, cells);
    }
    vg_table_print(t, stdout, 0);
}

static const char *percent(uint32_t ppm, char *out, size_t n) {
    snprintf(out, n, "%u.%u %%", ppm / 10000, ppm / 1000 % 10);
    return out;
}

static void print_tenants(const Vg__Pb__QueueInfo *q) {
    static const char *const headings[] = {"TENANT", "RUNNING", "QUEUED", "GPUS",  "CPUS", "QUOTA",
                                           "LIMIT",  "WEIGHT",  "FAIR",   "SHARE", "USED", NULL};
    struct vg_table *t = vg_table_new(headings);
    for (size_t i = 0; i < q->n_tenant; i++) {
        const Vg__Pb__TenantRow *r = q->tenant[i];
        char running[16], queued[16], gpus[32], cpus[32], quota[32], limit[32], weight[16],
            fair[24], share[24], used[24];
        snprintf(running, sizeof(running), "%u", r->running);
        snprintf(queued, sizeof(queued), "%u", r->queued);
        snprintf(weight, sizeof(weight), "%u", r->weight);
        const char *cells[] = {
            r->name,
            running,
            queued,
            vg_milli_text(r->gpu_milli, gpus, sizeof(gpus)),
            vg_milli_text(r->cpu_milli, cpus, sizeof(cpus)),
            vg_milli_text(r->quota_gpu_milli, quota, sizeof(quota)),
            r->has_limit_gpu_milli ? vg_milli_text(r->limit_gpu_milli, limit, sizeof(limit)) : NULL,
            weight,
            percent(r->fair_ppm, fair, sizeof(fair)),
            percent(r->share_ppm, share, sizeof(share)),
            percent(r->usage_ppm, used, sizeof(used))};
        vg_table_row(t, cells);
    }
    vg_table_print(t, stdout, 0);
}

static int on_queue(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    const struct vg_cmd_line *l = user;
    if (env->body_case != VG__PB__ENVELOPE__BODY_QUEUE_INFO)
        return vg_unexpected(env, err);
    const Vg__Pb__QueueInfo *q = env->queue_info;
    if (l->json) {
        vg_json_print(vg_view_json(&vg_view_queue, q));
        return 0;
    }
    print_tenants(q);
    if (q->n_row) {
        printf("\n");
        print_order(q);
    }
    if (q->total > q->n_row)
        fprintf(stderr, "the first %zu of %llu; --limit shows more\n", q->n_row,
                (unsigned long long)q->total);
    return 0;
}

static const struct vg_opt opts[] = {
    {"pool", 'P', "POOL", "only what waits for this pool", 'P'},
    {"limit", 0, "N", "at most so many tasks of the order (20)", 'N'},
    VG_CMD_OUTPUT,
};

static int run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__QueueQuery q = VG__PB__QUEUE_QUERY__INIT;
    Vg__Pb__Envelope req = vg_request(QUEUE, queue, &q);
    uint64_t limit = ROWS_DEFAULT;
    const char *arg;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return l->exit;
        if (id == 'P')
            q.pool = (char *)arg;
        if (id == 'N' && vg_opt_u64(&l->st, arg, 1, ROWS_MAX, &limit) < 0)
            return vg_cmd_fail_opt(l);
    }
    if (!vg_cmd_args(l, 0, 0))
        return l->exit;
    q.has_limit = true;
    q.limit = (uint32_t)limit;
    return vg_call_once(&req, on_queue, l, &err) < 0 ? vg_cmd_fail(&err) : 0;
}

const struct vg_cmd vg_cmd_queue = {.name = "queue",
                                    .args = "",
                                    .summary = "who goes next, and each tenant's share",
                                    .opts = opts,
                                    .n_opts = VG_COUNT(opts),
                                    .run = run};
