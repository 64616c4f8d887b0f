/* Numbers for Prometheus; see the header. A family of numbers is one line of the table below and
   one part of the page, so that a large cloud's numbers hold up the loop for one family at a time.
   What needs a walk over all tasks is gathered before the first. */
#include "control/metrics.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/history.h"
#include "control/job.h"
#include "control/listen.h"
#include "control/metrics-int.h"
#include "control/node-gpus.h"
#include "control/ready.h"
#include "http/pages.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#define GATHER_USEC VG_USEC       /* not more often, however often somebody asks */
#define FRESH_USEC (90 * VG_USEC) /* nodes tell every 30 s at least */

struct vg_metrics {
    struct vg_web *web;
    uint16_t port;
    uint64_t gathered_usec;         /* boot clock; 0: never */
    uint64_t tasks[VG_TASK_STATES]; /* in memory, by state; groups are not tasks */
};

/* ------------------------------------------------------------------ lines */

static int put_escaped(struct vg_buf *to, const char *value) {
    int r = 0;
    while (r >= 0 && *value) {
        size_t n = strcspn(value, "\\\"\n");
        r = vg_buf_append(to, value, n);
        value += n;
        if (r >= 0 && *value)
            r = vg_buf_printf(to, "\\%c", *value == '\n' ? 'n' : *value);
        value += *value != 0;
    }
    return r;
}

int vg_metric_label(struct vg_buf *to, const char *before, const char *name, const char *value) {
    int r = vg_buf_printf(to, "%s%s=\"", before, name);
    if (r >= 0)
        r = put_escaped(to, value);
    return r < 0 ? r : vg_buf_append(to, "\"", 1);
}

int vg_metric_value(struct vg_buf *to, double v) {
    return vg_buf_printf(to, " %.15g\n", v);
}

int vg_metric_put(struct vg_buf *to, const struct vg_family *f, const char *label, const char *text,
                  double v) {
    int r = vg_buf_printf(to, "%s%s", f->name, label ? "{" : "");
    if (r >= 0 && label)
        r = vg_metric_label(to, "", label, text);
    if (r >= 0 && label)
        r = vg_buf_append(to, "}", 1);
    return r < 0 ? r : vg_metric_value(to, v);
}

/* ------------------------------------------------------------------ what is gathered */

static void gather_job(struct vg_control *c, const struct vg_job *j) {
    const struct vg_task *t = j->task;
    struct vg_nodelink *n = t->attempt.node ? vg_nodelink_get(c, t->attempt.node) : NULL;
    struct vg_res held = vg_task_held(t);
    struct vg_used used = {0};
    if (!vg_task_is_group(t))
        c->metrics->tasks[t->state]++;
    for (uint32_t i = 0; n && n->gpu && i < VG_NODE_GPUS_MAX; i++)
        if (t->gpus >> i & 1)
            n->gpu[i].held_milli += held.gpus ? 1000 : held.gpu_milli;
    if (t->state != VG_TASK_RUNNING)
        return;
    struct vg_sum *sum = vg_counts_sum(&c->counts, vg_task_pool(t), t->team);
    used.gpu_milli_usec = vg_task_gpu_held(t, vg_wall_usec());
    used.energy_mj = j->gpu_use && j->gpu_use->has_energy_mj ? j->gpu_use->energy_mj : 0;
    if (sum)
        vg_used_add(&sum->now, &used);
}

/* A counter never goes back, though an attempt may turn out to have ended before it was last seen
   running. */
static void settle(struct vg_sum *s) {
    struct vg_used all = s->over;
    vg_used_add(&all, &s->now);
    s->told.gpu_milli_usec = VG_MAX(s->told.gpu_milli_usec, all.gpu_milli_usec);
    s->told.cpu_usec = VG_MAX(s->told.cpu_usec, all.cpu_usec);
    s->told.energy_mj = VG_MAX(s->told.energy_mj, all.energy_mj);
}

static void gather(struct vg_control *c) {
    struct vg_metrics *m = c->metrics;
    uint64_t now = vg_now_usec();
    if (m->gathered_usec && now - m->gathered_usec < GATHER_USEC)
        return;
    m->gathered_usec = now;
    memset(m->tasks, 0, sizeof m->tasks);
    vg_map_for_each (s, &c->counts.sums)
        ((struct vg_sum *)s->value)->now = (struct vg_used){0};
    vg_map_for_each (s, &c->nodes) {
        const struct vg_nodelink *n = s->value;
        for (uint32_t i = 0; n->gpu && i < VG_NODE_GPUS_MAX; i++)
            n->gpu[i].held_milli = 0;
    }
    vg_map_for_each (s, &c->jobs)
        gather_job(c, s->value);
    vg_map_for_each (s, &c->counts.sums)
        settle(s->value);
}

/* ------------------------------------------------------------------ virgad itself */

static int build_info(struct vg_control *c, const struct vg_family *f, struct vg_buf *to) {
    (void)c;
    return vg_metric_put(to, f, "version", VG_VERSION, 1);
}

static int process_cpu(struct vg_control *c, const struct vg_family *f, struct vg_buf *to) {
    struct rusage u;
    (void)c;
    if (getrusage(RUSAGE_SELF, &u) < 0)
        return 0;
    return vg_metric_put(to, f, NULL, NULL,
                         (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                             (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6);
}

static int process_memory(struct vg_control *c, const struct vg_family *f, struct vg_buf *to) {
    (void)c;
    uint64_t bytes = vg_resident_bytes();
    return bytes ? vg_metric_put(to, f, NULL, NULL, (double)bytes) : 0;
}

static int process_fds(struct vg_control *c, const struct vg_family *f, struct vg_buf *to) {
    DIR *d = opendir("/proc/self/fd");
    double n = -3; /* itself, and the two that every folder has */
    (void)c;
    if (!d)
        return 0;
    while (readdir(d))
        n++;
    closedir(d);
    return vg_metric_put(to, f, NULL, NULL, n);
}

static int process_start(struct vg_control *c, const struct vg_family *f, struct vg_buf *to) {
    uint64_t up = vg_now_usec() - c->started_usec;
    return vg_metric_put(to, f, NULL, NULL, (double)(vg_wall_usec() - up) / 1e6);
}

/* ------------------------------------------------------------------ nodes, pools, tasks */

static int nodes_by_state(struct vg_control *c, const struct vg_family *f, struct vg_buf *to) {
    uint64_t n[VG_NODE_STATES] = {0};
    int r = 0;
    vg_map_for_each (s, &c->nodes)
        n[((struct vg_nodelink *)s->value)->node->state]++;
    for (int i = 0; r >= 0 && i < VG_NODE_STATES; i++)
        r = vg_metric_put(to, f, "state", vg_node_state_name((enum vg_node_state)i), (double)n[i]);
    return r;
}

static int node_up(struct vg_control *c, const struct vg_family *f, struct vg_buf *to) {
    int r = 0;
    vg_map_for_each (s, &c->nodes) {
        const struct vg_nodelink *n = s->value;
        if (r >= 0)
            r = vg_metric_put(to, f, "node", n->node->name, vg_nodelink_hears(n));
    }
    return r;
}

static double pool_value(const struct vg_family *f, const struct vg_eng_pool_info *i) {
    const char *what = strrchr(f->name, '_') + 1; /* virga_pool_queued */
    const struct {
        const char *name;
        uint32_t value;
    } all[] = {{"nodes", i->usable},
               {"slots", i->total_slots},
               {"free", i->free_slots},
               {"queued", i->queued},
               {"running", i->running}};
    for (size_t k = 0; k < VG_COUNT(all); k++)
        if (!strcmp(all[k].name, what))
            return all[k].value;
    return 0;
}

static int pools(struct vg_control *c, const struct vg_family *f, struct vg_buf *to) {
    int r = 0;
    for (size_t i = 0; r >= 0 && i < c->conf.n_pools; i++) {
        struct vg_eng_pool_info info = {0};
        const char *name = c->conf.pool[i].name;
        vg_eng_pool_info(c->policy.eng, vg_eng_pool_id(name), &info);
        r = vg_metric_put(to, f, "pool", name, pool_value(f, &info));
    }
    return r;
}

static int tasks_by_state(struct vg_control *c, const struct vg_family *f, struct vg_buf *to) {
    int r = 0;
    for (int i = 0; r >= 0 && i < VG_TASK_STATES; i++)
        if (!vg_task_state_final((enum vg_task_state)i))
            r = vg_metric_put(to, f, "state", vg_task_state_name((enum vg_task_state)i),
                              (double)c->metrics->tasks[i]);
    return r;
}

static int tasks_submitted(struct vg_control *c, const struct vg_family *f, struct vg_buf *to) {
    return vg_metric_put(to, f, NULL, NULL, (double)c->counts.submitted);
}

static int tasks_ended(struct vg_control *c, const struct vg_family *f, struct vg_buf *to) {
    int r = 0;
    for (int i = 0; r >= 0 && i < VG_TASK_STATES; i++)
        if (vg_task_state_final((enum vg_task_state)i))
            r = vg_metric_put(to, f, "outcome", vg_task_state_name((enum vg_task_state)i),
                              (double)c->counts.ended[i]);
    return r;
}

static int attempts_ended(struct vg_control *c, const struct vg_family *f, struct vg_buf *to) {
    int r = 0;
    for (size_t i = 0; r >= 0 && i < VG_COUNT(c->counts.attempts); i++)
        r = vg_metric_put(to, f, "how", vg_history_how((enum vg_eng_end)i),
                          (double)c->counts.attempts[i]);
    return r;
}

static int decisions(struct vg_control *c, const struct vg_family *f, struct vg_buf *to) {
    int r = vg_metric_put(to, f, "decision", "start", (double)c->counts.started);
    return r < 0 ? r : vg_metric_put(to, f, "decision", "preempt", (double)c->counts.preempted);
}

static int teams(struct vg_control *c, const struct vg_family *f, struct vg_buf *to) {
    int r = 0;
    vg_map_for_each (m, &c->counts.sums) {
        const struct vg_sum *s = m->value;
        double v = strstr(f->name, "gpu_seconds") ? (double)s->told.gpu_milli_usec / 1e9
                   : strstr(f->name, "joules")    ? (double)s->told.energy_mj / 1e3
                                                  : (double)s->told.cpu_usec / 1e6;
        if (r >= 0)
            r = vg_buf_printf(to, "%s{", f->name);
        if (r >= 0)
            r = vg_metric_label(to, "", "pool", s->pool);
        if (r >= 0)
            r = vg_metric_label(to, ",", "team", s->team);
        if (r >= 0)
            r = vg_buf_append(to, "}", 1);
        if (r >= 0)
            r = vg_metric_value(to, v);
    }
    return r;
}

/* ------------------------------------------------------------------ GPUs */

static int put_gpu(struct vg_buf *to, const struct vg_family *f, const struct vg_nodelink *n,
                   uint32_t index, double v) {
    const Vg__Pb__GpuState *g = n->gpu[index].state;
    const char *model = g && g->model ? g->model : n->node->gpu_model;
    int r = vg_buf_printf(to, "%s{", f->name);
    if (r >= 0)
        r = vg_metric_label(to, "", "node", n->node->name);
    if (r >= 0)
        r = vg_buf_printf(to, ",index=\"%u\"", index);
    if (r >= 0)
        r = vg_metric_label(to, ",", "uuid", g && g->uuid ? g->uuid : "");
    if (r >= 0)
        r = vg_metric_label(to, ",", "model", model ? model : "");
    if (r >= 0)
        r = vg_buf_append(to, "}", 1);
    return r < 0 ? r : vg_metric_value(to, v);
}

static int gpus(struct vg_control *c, const struct vg_family *f, struct vg_buf *to) {
    int r = 0;
    vg_map_for_each (s, &c->nodes) {
        const struct vg_nodelink *n = s->value;
        for (uint32_t i = 0; r >= 0 && n->gpu && i < VG_NODE_GPUS_MAX; i++) {
            const struct vg_node_gpu *g = vg_node_gpu_get(n, i);
            double v;
            if (g && f->of_gpu(n, g, &v))
                r = put_gpu(to, f, n, i, v);
        }
    }
    return r;
}

/* A sample that is old, or of a node that is away, says nothing of now. */
static bool is_fresh(const struct vg_nodelink *n, const struct vg_node_gpu *g) {
    return g->state && vg_nodelink_hears(n) &&
           vg_now_usec() - g->seen_usec + g->state->age_usec < FRESH_USEC;
}

#define OF_GPU(name, field, unit)                                                             \
    static bool name(const struct vg_nodelink *n, const struct vg_node_gpu *g, double *ret) { \
        *ret = g->state && g->state->has_##field ? (double)g->state->field / (unit) : 0;      \
        return is_fresh(n, g) && g->state->has_##field;                                       \
    }
OF_GPU(gpu_sm, sm_percent, 100)
OF_GPU(gpu_mem_busy, mem_percent, 100)
OF_GPU(gpu_mem_used, mem_used_bytes, 1)
OF_GPU(gpu_mem, mem_bytes, 1)
OF_GPU(gpu_power, power_mw, 1e3)
OF_GPU(gpu_energy, energy_mj, 1e3)
OF_GPU(gpu_temp, temp_c, 1)
OF_GPU(gpu_ecc, ecc_uncorrected, 1)
OF_GPU(gpu_xid, xid, 1)

static bool gpu_held(const struct vg_nodelink *n, const struct vg_node_gpu *g, double *ret) {
    (void)n;
    *ret = (double)g->held_milli / 1e3;
    return true;
}

static bool gpu_drained(const struct vg_nodelink *n, const struct vg_node_gpu *g, double *ret) {
    (void)n;
    *ret = g->drained != NULL;
    return true;
}

/* ------------------------------------------------------------------ the pages */

static const struct vg_family families[] = {
    {"virga_build_info", "gauge", "The version of virgad; the value is 1.", build_info, NULL},
    {"process_cpu_seconds_total", "counter", "CPU time of virgad.", process_cpu, NULL},
    {"process_resident_memory_bytes", "gauge", "Memory of virgad.", process_memory, NULL},
    {"process_open_fds", "gauge", "Open files of virgad.", process_fds, NULL},
    {"process_start_time_seconds", "gauge", "When virgad started, since 1970.", process_start,
     NULL},
    {"virga_nodes", "gauge", "Nodes by state.", nodes_by_state, NULL},
    {"virga_node_up", "gauge", "Whether the node is connected.", node_up, NULL},
    {"virga_pool_nodes", "gauge", "Nodes of the pool that take tasks.", pools, NULL},
    {"virga_pool_slots", "gauge", "Places of the pool's shape.", pools, NULL},
    {"virga_pool_free", "gauge", "Places of the pool's shape that are free.", pools, NULL},
    {"virga_pool_queued", "gauge", "Tasks that wait for a place in the pool.", pools, NULL},
    {"virga_pool_running", "gauge", "Tasks that have a place in the pool.", pools, NULL},
    {"virga_tasks", "gauge", "Tasks that have not ended, by state.", tasks_by_state, NULL},
    {"virga_tasks_submitted_total", "counter", "Tasks taken in.", tasks_submitted, NULL},
    {"virga_tasks_ended_total", "counter", "Tasks that ended, by outcome.", tasks_ended, NULL},
    {"virga_attempts_ended_total", "counter", "Attempts that ran and are over, by how.",
     attempts_ended, NULL},
    {"virga_scheduler_decisions_total", "counter", "Decisions of the scheduler.", decisions, NULL},
    {"virga_team_gpu_seconds_total", "counter", "GPU time held by tasks of the team.", teams, NULL},
    {"virga_team_gpu_joules_total", "counter", "Energy of GPUs used by tasks of the team.", teams,
     NULL},
    {"virga_team_cpu_seconds_total", "counter", "CPU time of attempts of the team that are over.",
     teams, NULL},
    {"virga_gpu_utilization_ratio", "gauge", "Part of the time in which a kernel ran.", gpus,
     gpu_sm},
    {"virga_gpu_memory_utilization_ratio", "gauge",
     "Part of the time in which memory was read or written.", gpus, gpu_mem_busy},
    {"virga_gpu_memory_used_bytes", "gauge", "Memory in use.", gpus, gpu_mem_used},
    {"virga_gpu_memory_bytes", "gauge", "Memory of the GPU.", gpus, gpu_mem},
    {"virga_gpu_power_watts", "gauge", "Power.", gpus, gpu_power},
    {"virga_gpu_energy_joules_total", "counter", "The GPU's own counter.", gpus, gpu_energy},
    {"virga_gpu_temperature_celsius", "gauge", "Temperature.", gpus, gpu_temp},
    {"virga_gpu_uncorrected_errors_total", "counter", "Memory errors that were not corrected.",
     gpus, gpu_ecc},
    {"virga_gpu_last_xid", "gauge", "The driver's last complaint.", gpus, gpu_xid},
    {"virga_gpu_held_ratio", "gauge", "Part of the GPU that tasks hold.", gpus, gpu_held},
    {"virga_gpu_drained", "gauge", "Whether nothing new is placed there.", gpus, gpu_drained},
    {"virga_ready", "gauge", "Whether /readyz says so.", vg_metrics_ready, NULL},
    {"virga_store_backlog_bytes", "gauge", "What waits to be written to the disk.",
     vg_metrics_backlog, NULL},
    {"virga_series_memory_bytes", "gauge", "Memory of what tasks and nodes used over time.",
     vg_metrics_series, NULL},
    {"virga_http_requests_total", "counter", "Requests to the web port, by class of status.",
     vg_metrics_requests, NULL},
    {"virga_http_limited_total", "counter", "Requests that came too often.", vg_metrics_web, NULL},
    {"virga_http_connections", "gauge", "Connections to the web port.", vg_metrics_web, NULL},
    {"virga_http_streams", "gauge", "Event streams and WebSockets.", vg_metrics_web, NULL},
    {"virga_logins_total", "counter",
     "Sign-ins of browsers, and connections that showed a token, by result.", vg_metrics_logins,
     NULL},
    {"virga_hooks", "gauge", "Hooks by state.", vg_metrics_hooks, NULL},
    {"virga_hook_waiting", "gauge", "Events that wait to be sent.", vg_metrics_hook, NULL},
    {"virga_hook_sent_total", "counter", "Events that servers have taken.", vg_metrics_hook, NULL},
    {"virga_hook_failed_total", "counter", "Tries that failed.", vg_metrics_hook, NULL},
    {"virga_hook_dropped_total", "counter", "Events that were given up.", vg_metrics_hook, NULL},
    {"virga_charged_total", "counter", "What the ledger charged since virgad started.",
     vg_metrics_charged, NULL},
    {"virga_budget_spent_ratio", "gauge", "Part of the budget that is spent in its period.",
     vg_metrics_budgets, NULL},
};

int vg_metrics_part(void *control, size_t i, struct vg_buf *to) {
    struct vg_control *c = control;
    if (i == VG_COUNT(families))
        return 0;
    if (i == 0)
        gather(c);
    const struct vg_family *f = &families[i];
    int r = vg_buf_printf(to, "# HELP %s %s\n# TYPE %s %s\n", f->name, f->help, f->name, f->type);
    if (r >= 0)
        r = f->fill(c, f, to);
    return r < 0 ? r : 1;
}

static int health_part(void *user, size_t i, struct vg_buf *to) {
    (void)user;
    if (i)
        return 0;
    return vg_buf_append(to, "ok\n", 3) < 0 ? -ENOMEM : 1;
}

static int ready_part(void *user, size_t i, struct vg_buf *to) {
    if (i)
        return 0;
    vg_auto_free char *text = vg_ready_text(user);
    return !text || vg_buf_printf(to, "%s\n", text) < 0 ? -ENOMEM : 1;
}

static int ready_status(void *user) {
    return vg_ready(user) ? 200 : 503;
}

static const struct vg_web_page pages[] = {
    {"/metrics", "text/plain; version=0.0.4; charset=utf-8", vg_metrics_part, NULL},
    {"/healthz", "text/plain; charset=utf-8", health_part, NULL},
    {"/readyz", "application/json", ready_part, ready_status},
    {NULL, NULL, NULL, NULL},
};

/* ------------------------------------------------------------------ life */

static void on_request(struct vg_web_req *req, void *user) {
    vg_web_pages_answer(pages, user, req);
}

int vg_metrics_start(struct vg_control *c, struct vg_err *err) {
    static const struct vg_web_ops ops = {.on_request = on_request};
    /* For programs that look from outside: few, and with short questions. */
    static const struct vg_web_limits limits = {
        .conns_max = 32, .conns_peer_max = 32, .head_max = 4096, .body_max = 1};
    char host[256];
    uint64_t port;
    if (!*c->conf.metrics)
        return 0;
    int r = vg_listen_split(c->conf.metrics, host, sizeof host, &port, err);
    if (r < 0)
        return r;
    c->metrics = vg_alloc(sizeof *c->metrics);
    if (!c->metrics)
        return vg_err_sys(err, -ENOMEM, "cannot serve metrics");
    r = vg_web_start(c->loop, host, (uint16_t)port, NULL, &limits, &ops, c, &c->metrics->web,
                     &c->metrics->port, err);
    if (r < 0)
        return vg_err_wrap(err,
                           "cannot serve metrics (choose another address under 'metrics' in %s)",
                           c->home.config);
    vg_info("metrics=http://%s:%u/metrics", host, c->metrics->port);
    return 0;
}

void vg_metrics_stop(struct vg_control *c) {
    if (c->metrics)
        vg_web_stop(c->metrics->web);
    free(vg_take_ptr(c->metrics));
}
