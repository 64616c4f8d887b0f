/* virga-sim load: drain a made load. */
#include "base/cleanup.h"
#include "sim/run.h"
#include "sim/shape.h"
#include "sim/sim.h"
#include "view/json.h"

#include <inttypes.h>
#include <stdio.h>

#define SHAPES_MAX 16

enum { O_SHAPE = 1, O_POLICY, O_NODE, O_PREEMPT, O_SEED, O_OUTPUT };

static const struct vg_opt opts[] = {
    {"shape", 0, "NAME", "kueue-baseline or kueue-large", O_SHAPE},
    {"policy", 0, "NAME", "who decides (virga)", O_POLICY},
    {"node", 0, "N", "units of a node (20: a queue's quota)", O_NODE},
    {"preempt", 0, NULL, "running jobs may be stopped for others", O_PREEMPT},
    {"seed", 0, "N", "of random choices (1)", O_SEED},
    {"output", 'o', "FORMAT", "table or json", O_OUTPUT},
};

struct load {
    const struct vg_shape *shape;
    const struct vg_policy_ops *policy;
    uint64_t node_units;
    struct vg_run_opts run;
    bool json;
};

static int parse_shape(struct vg_opt_state *st, const char *arg, struct load *l) {
    const char *words[SHAPES_MAX + 1] = {NULL};
    int i;
    for (size_t k = 0; k < VG_MIN(vg_n_shapes, (size_t)SHAPES_MAX); k++)
        words[k] = vg_shapes[k].name;
    if (vg_opt_choice(st, arg, words, &i) < 0)
        return VG_OPT_ERROR;
    l->shape = &vg_shapes[i];
    return 0;
}

static int set(struct vg_opt_state *st, int id, const char *arg, struct load *l) {
    int i;
    switch (id) {
    case O_SHAPE:
        return parse_shape(st, arg, l);
    case O_POLICY:
        if (vg_opt_choice(st, arg, vg_policy_names(), &i) < 0)
            return VG_OPT_ERROR;
        l->policy = vg_policy_find(vg_policy_names()[i]);
        return 0;
    case O_NODE:
        return vg_opt_u64(st, arg, 1, 64, &l->node_units);
    case O_PREEMPT:
        l->run.policy.preempt = true;
        return 0;
    case O_SEED:
        return vg_opt_u64(st, arg, 0, UINT64_MAX, &l->run.policy.seed);
    case O_OUTPUT:
        return vg_sim_opt_output(st, arg, &l->json);
    default:
        return vg_opt_bad(st, "'%s' is not expected: this command takes options only", arg);
    }
}

static void print_json(const struct load *l, const struct vg_workload *w,
                       const struct vg_shape_floor *f, const struct vg_result *x) {
    json_t *classes = json_array();
    for (uint32_t c = 0; c < l->shape->n_classes; c++)
        json_array_append_new(classes,
                              json_pack("{s:s, s:I, s:f}", "class", w->class_name[c], "jobs",
                                        (json_int_t)x->class_jobs[c], "wait_mean_s",
                                        x->class_wait_s[c] / (double)VG_MAX(x->class_jobs[c], 1u)));
    json_t *j =
        json_pack("{s:s, s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "shape",
                  l->shape->name, "policy", l->policy->name, "preempt", (int)l->run.policy.preempt,
                  "jobs", (json_int_t)x->jobs, "unfinished", (json_int_t)x->unfinished, "queues",
                  (json_int_t)w->n_tenants, "cohorts", (json_int_t)l->shape->cohorts, "nodes",
                  (json_int_t)w->n_nodes, "floor_s", f->seconds, "drained_s", x->makespan_s,
                  "ratio", x->makespan_s / f->seconds);
    json_t *k = json_pack("{s:I, s:I, s:f, s:f, s:o}", "decisions", (json_int_t)x->decisions,
                          "stops", (json_int_t)x->stops, "decide_seconds", x->policy_cpu_s,
                          "cpu_seconds", x->total_cpu_s, "classes", classes);
    if (j && k)
        json_object_update(j, k);
    json_decref(k);
    vg_json_print_line(j);
}

static void print_text(const struct load *l, const struct vg_workload *w,
                       const struct vg_shape_floor *f, const struct vg_result *x) {
    printf("%s: %zu jobs, %zu queues in %u cohorts, %zu nodes of %" PRIu64 " units; policy %s%s\n",
           l->shape->name, w->n_jobs, w->n_tenants, l->shape->cohorts, w->n_nodes, l->node_units,
           l->policy->name, l->run.policy.preempt ? ", preempting" : "");
    printf(
        "  floor      %.3f s: what arrives from %.3f s on takes %.3f s on its cohort's %u units, "
        "however it is ordered\n",
        f->seconds, f->from_s, f->work_s, l->shape->queues * l->shape->quota);
    printf("  drained    %.3f s: %.3f times the floor\n", x->makespan_s,
           x->makespan_s / f->seconds);
    printf("  decisions  %" PRIu64 " in %.3f s (%.0f a second); the whole run took %.3f s of CPU\n",
           x->decisions, x->policy_cpu_s,
           x->policy_cpu_s > 0 ? (double)x->decisions / x->policy_cpu_s : 0, x->total_cpu_s);
    for (uint32_t c = 0; c < l->shape->n_classes; c++)
        printf("  %-9s  %" PRIu64 " jobs, mean wait %.3f s\n", w->class_name[c], x->class_jobs[c],
               x->class_wait_s[c] / (double)VG_MAX(x->class_jobs[c], 1u));
    if (x->unfinished)
        printf("  %" PRIu64 " jobs never ran\n", x->unfinished);
}

static int load(const struct load *l, struct vg_err *err) {
    struct vg_workload w;
    struct vg_result x;
    int r = vg_shape_workload(l->shape, (uint32_t)l->node_units, &w, err);
    if (r < 0)
        return r;
    struct vg_shape_floor floor = vg_shape_floor(&w);
    r = vg_run(&w, l->policy, &l->run, &x, err);
    if (r == 0) {
        (l->json ? print_json : print_text)(l, &w, &floor, &x);
        r = x.unfinished ? 1 : 0;
        vg_result_done(&x);
    }
    vg_workload_done(&w);
    return r;
}

int vg_sim_load(int argc, char **argv) {
    struct load l = {.node_units = 20, .run = {.policy = {.seed = 1}}};
    struct vg_opt_state st = {.program = "virga-sim load",
                              .opts = opts,
                              .n_opts = VG_COUNT(opts),
                              .argc = argc,
                              .argv = argv,
                              .index = 1};
    const char *arg;
    l.policy = vg_policy_find("virga");
    for (int id; (id = vg_opt_next(&st, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_HELP)
            return vg_sim_help("virga-sim load --shape NAME [options]",
                               "Drains a made load of cohorts, queues and classes in virtual time.",
                               opts, VG_COUNT(opts));
        if (id == VG_OPT_ERROR || set(&st, id, arg, &l) < 0)
            return vg_sim_fail("load", &st.err);
    }
    if (!l.shape) {
        vg_err_set(&st.err, VG_INVALID,
                   "which load? give --shape kueue-baseline or --shape kueue-large");
        return vg_sim_fail("load", &st.err);
    }
    int r = load(&l, &st.err);
    return r < 0 ? vg_sim_fail("load", &st.err) : r;
}
