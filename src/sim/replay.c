/* virga-sim replay: a trace through several policies side by side. */
#include "base/cleanup.h"
#include "base/util.h"
#include "sim/report.h"
#include "sim/run.h"
#include "sim/sim.h"

#include <stdio.h>
#include <string.h>

enum {
    O_TRACE = 1,
    O_POLICY,
    O_GPUS,
    O_PER_NODE,
    O_LOAD,
    O_TAKE,
    O_ORACLE,
    O_PREEMPT,
    O_CHECKPOINT,
    O_SEED,
    O_OUTPUT,
    O_PLOT,
    O_TENANTS,
    O_HALF_LIFE,
    O_AGE,
    O_RESERVE,
    O_MIN_RUN,
    O_ESTIMATES
};

static const struct vg_opt opts[] = {
    {"trace", 0, "FILE", "Philly's jobs, plain or gzip", O_TRACE},
    {"policy", 0, "A,B", "policies to compare (fifo,easy,drf,random,virga); default all", O_POLICY},
    {"gpus", 0, "N", "GPUs of the cluster (2490)", O_GPUS},
    {"per-node", 0, "N", "GPUs of a node (8)", O_PER_NODE},
    {"load", 0, "A,B",
     "squeeze arrivals so that the work offered is so many times the capacity; "
     "'recorded' leaves them (recorded,0.9)",
     O_LOAD},
    {"jobs", 0, "N", "only the first N jobs", O_TAKE},
    {"oracle", 0, NULL, "every policy knows true run times", O_ORACLE},
    {"preempt", 0, "on|off|both", "may policies that can stop running jobs (both)", O_PREEMPT},
    {"checkpoint", 0, "DURATION",
     "work a stopped job keeps comes in these steps; 0: it loses all "
     "(0)",
     O_CHECKPOINT},
    {"half-life", 0, "DURATION", "virga: after which past usage counts half", O_HALF_LIFE},
    {"age", 0, "DURATION", "virga: waiting so long is worth one step of priority; 0: none", O_AGE},
    {"reserve", 0, "N", "virga: blocked shapes that hold a reservation", O_RESERVE},
    {"min-run", 0, "DURATION", "virga: no job is stopped before it ran so long", O_MIN_RUN},
    {"estimates", 0, NULL,
     "virga: compare when jobs were expected to start with when they did (one in eight)",
     O_ESTIMATES},
    {"seed", 0, "N", "of random choices (1)", O_SEED},
    {"tenants", 0, NULL, "show each tenant too", O_TENANTS},
    {"output", 'o', "FORMAT", "table or json (one object a line)", O_OUTPUT},
    {"plot", 0, "FILE.svg", "draw waits, utilisation and tenants", O_PLOT},
};

struct replay {
    const char *trace, *plot;
    const struct vg_policy_ops *policy[8];
    size_t n_policies;
    double load[8]; /* 0: as recorded */
    size_t n_loads;
    struct vg_work_trace_opts work;
    struct vg_run_opts run;
    struct vg_eng_conf engine;
    bool off, on; /* preemption */
    bool json, tenants, estimates;
    struct vg_report report;
};

#define DEFAULT_LOAD 0.9

static int parse_policies(struct vg_opt_state *st, const char *arg, struct replay *r) {
    r->n_policies = 0;
    for (const char *p = arg; p;) {
        char word[32];
        size_t n = strcspn(p, ",");
        snprintf(word, sizeof(word), "%.*s", (int)VG_MIN(n, sizeof(word) - 1), p);
        int i;
        if (vg_opt_choice(st, word, vg_policy_names(), &i) < 0)
            return VG_OPT_ERROR;
        if (r->n_policies == VG_COUNT(r->policy))
            return vg_opt_bad(st, "more than %zu policies: name each once", VG_COUNT(r->policy));
        r->policy[r->n_policies++] = vg_policy_find(word);
        p = p[n] ? p + n + 1 : NULL;
    }
    return 0;
}

static int parse_loads(struct vg_opt_state *st, const char *arg, struct replay *r) {
    r->n_loads = 0;
    for (const char *p = arg; p;) {
        char word[32];
        size_t n = strcspn(p, ",");
        uint64_t milli = 0;
        snprintf(word, sizeof(word), "%.*s", (int)VG_MIN(n, sizeof(word) - 1), p);
        if (strcmp(word, "recorded") != 0 && (vg_opt_milli(st, word, &milli) < 0 || !milli))
            return vg_opt_bad(st, "'%s' is neither 'recorded' nor a number like 0.9", word);
        if (r->n_loads == VG_COUNT(r->load))
            return vg_opt_bad(st, "more than %zu loads", VG_COUNT(r->load));
        r->load[r->n_loads++] = (double)milli / 1000;
        p = p[n] ? p + n + 1 : NULL;
    }
    return 0;
}

static int parse_preempt(struct vg_opt_state *st, const char *arg, struct replay *r) {
    static const char *const words[] = {"off", "on", "both", NULL};
    int i = 0;
    if (vg_opt_choice(st, arg, words, &i) < 0)
        return VG_OPT_ERROR;
    r->off = i != 1;
    r->on = i != 0;
    return 0;
}

static int parse_u32(struct vg_opt_state *st, const char *arg, uint64_t max, uint32_t *ret) {
    uint64_t v;
    int r = vg_opt_u64(st, arg, 1, max, &v);
    if (r == 0)
        *ret = (uint32_t)v;
    return r;
}

static int set(struct vg_opt_state *st, int id, const char *arg, struct replay *r) {
    uint64_t v;
    switch (id) {
    case O_TRACE:
        r->trace = arg;
        return 0;
    case O_POLICY:
        return parse_policies(st, arg, r);
    case O_GPUS:
        return parse_u32(st, arg, 1000000, &r->work.gpus);
    case O_PER_NODE:
        return parse_u32(st, arg, 64, &r->work.per_node);
    case O_LOAD:
        return parse_loads(st, arg, r);
    case O_TAKE:
        if (vg_opt_u64(st, arg, 1, UINT32_MAX, &v) < 0)
            return VG_OPT_ERROR;
        r->work.take = v;
        return 0;
    case O_ORACLE:
        r->run.policy.oracle = true;
        return 0;
    case O_PREEMPT:
        return parse_preempt(st, arg, r);
    case O_CHECKPOINT:
        return vg_opt_duration(st, arg, &r->run.checkpoint_usec);
    case O_HALF_LIFE:
        return vg_opt_duration(st, arg, &r->engine.half_life_usec);
    case O_AGE:
        return vg_opt_duration(st, arg, &r->engine.age_usec);
    case O_MIN_RUN:
        return vg_opt_duration(st, arg, &r->engine.min_run_usec);
    case O_RESERVE:
        if (vg_opt_u64(st, arg, 0, 1000, &v) < 0)
            return VG_OPT_ERROR;
        r->engine.reserve = (uint32_t)v;
        return 0;
    case O_SEED:
        return vg_opt_u64(st, arg, 0, UINT64_MAX, &r->run.policy.seed);
    case O_TENANTS:
        r->tenants = true;
        return 0;
    case O_ESTIMATES:
        r->estimates = true;
        return 0;
    case O_PLOT:
        r->plot = arg;
        return 0;
    case O_OUTPUT:
        return vg_sim_opt_output(st, arg, &r->json);
    default:
        return vg_opt_bad(st, "'%s' is not expected: this command takes options only", arg);
    }
}

/* How good its estimates were. */
static int sum_estimates(struct replay *r, struct vg_estimates *e, struct vg_err *err) {
    struct vg_estimate_summary s;
    int rc = vg_estimates_sum(e, &s);
    if (rc < 0)
        return vg_err_sys(err, rc, "cannot sum up the estimates");
    vg_estimates_print(&s, r->json);
    return 0;
}

static int one(struct replay *r, const struct vg_workload *w, const struct vg_policy_ops *ops,
               bool preempt, const char *load, struct vg_err *err) {
    struct vg_report_row row = {.policy = ops->name, .preempt = preempt};
    row.oracle = r->run.policy.oracle;
    snprintf(row.load, sizeof(row.load), "%s", load);
    r->run.policy.preempt = preempt;
    struct vg_estimates estimates = {0};
    if (r->estimates && ops == &vg_policy_virga) {
        if (vg_estimates_init(&estimates, w->n_jobs) < 0)
            return vg_err_sys(err, -ENOMEM, "cannot keep the estimates");
        r->run.policy.estimates = &estimates;
    }
    int e = vg_run(w, ops, &r->run, &row.result, err);
    if (e == 0 && r->run.policy.estimates)
        e = sum_estimates(r, &estimates, err);
    r->run.policy.estimates = NULL;
    vg_estimates_done(&estimates);
    if (e < 0)
        return e;
    e = vg_report_add(&r->report, &row, w);
    if (e < 0)
        return vg_err_sys(err, e, "cannot keep a result");
    if (r->json)
        vg_report_print_json(&r->report, r->report.n - 1, w);
    return 0;
}

static int one_load(struct replay *r, const struct vg_trace_jobs *jobs, double load,
                    struct vg_err *err) {
    struct vg_workload w;
    char name[16] = "recorded";
    size_t first = r->report.n;
    int e;
    if (load > 0)
        snprintf(name, sizeof(name), "%.2f", load);
    r->work.load = load;
    if ((e = vg_workload_from_trace(jobs, &r->work, &w, err)) < 0)
        return e;
    for (size_t i = 0; i < r->n_policies && e == 0; i++) {
        const struct vg_policy_ops *ops = r->policy[i];
        if (r->off || !ops->can_preempt)
            e = one(r, &w, ops, false, name, err);
        if (e == 0 && r->on && ops->can_preempt)
            e = one(r, &w, ops, true, name, err);
    }
    if (e == 0 && !r->json)
        vg_report_print_tables(&r->report, first, &w, r->tenants);
    vg_workload_done(&w);
    return e;
}

static int replay(struct replay *r, struct vg_err *err) {
    struct vg_trace_jobs jobs;
    int e = vg_trace_read_jobs(r->trace, &jobs, err);
    if (e < 0)
        return e;
    for (size_t i = 0; i < r->n_loads && e == 0; i++)
        e = one_load(r, &jobs, r->load[i], err);
    vg_trace_jobs_done(&jobs);
    if (e == 0 && r->plot)
        e = vg_report_plot(&r->report, r->plot, err);
    return e;
}

int vg_sim_replay(int argc, char **argv) {
    struct replay r = {.work = {.gpus = 2490, .per_node = 8},
                       .run = {.fairness = true, .policy = {.seed = 1}},
                       .load = {0, DEFAULT_LOAD},
                       .n_loads = 2,
                       .engine = vg_eng_conf_default(),
                       .off = true,
                       .on = true};
    struct vg_opt_state st = {.program = "virga-sim replay",
                              .opts = opts,
                              .n_opts = VG_COUNT(opts),
                              .argc = argc,
                              .argv = argv,
                              .index = 1};
    const char *arg;
    r.run.policy.engine = &r.engine;
    for (const char *const *n = vg_policy_names(); *n; n++)
        r.policy[r.n_policies++] = vg_policy_find(*n);
    for (int id; (id = vg_opt_next(&st, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_HELP)
            return vg_sim_help("virga-sim replay --trace FILE [options]",
                               "Runs the jobs of a trace through several policies in virtual time "
                               "and compares waits, fairness and use.",
                               opts, VG_COUNT(opts));
        if (id == VG_OPT_ERROR || set(&st, id, arg, &r) < 0)
            return vg_sim_fail("replay", &st.err);
    }
    if (!r.trace) {
        vg_err_set(&st.err, VG_INVALID, "which trace? give --trace FILE (see virga-sim(1))");
        return vg_sim_fail("replay", &st.err);
    }
    int e = replay(&r, &st.err);
    vg_report_done(&r.report);
    return e < 0 ? vg_sim_fail("replay", &st.err) : 0;
}
