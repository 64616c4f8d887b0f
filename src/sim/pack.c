/* virga-sim pack: how much of the GPUs is in use once more was asked for than there is. */
#include "sim/pack.h"

#include "base/cleanup.h"
#include "sim/sim.h"
#include "sim/svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { O_NODES = 1, O_TASKS, O_DEMAND, O_SEEDS, O_SEED, O_POLICY, O_HISTORY, O_OUTPUT, O_PLOT };

static const struct vg_opt opts[] = {
    {"nodes", 0, "FILE", "node list of cluster-trace-gpu-v2023, plain or gzip", O_NODES},
    {"tasks", 0, "FILE", "pod list of the same", O_TASKS},
    {"demand", 0, "X", "tasks arrive until they asked for X times the GPUs (1.3)", O_DEMAND},
    {"seeds", 0, "N", "orders of arrival to try (10)", O_SEEDS},
    {"seed", 0, "N", "the first of them (42)", O_SEED},
    {"policy", 0, "A,B", "virga, bestfit, spread, random, fgd (virga)", O_POLICY},
    {"history", 0, "FILE",
     "pod list whose mix of requests the engine knows before; else it learns as they come",
     O_HISTORY},
    {"output", 'o', "FORMAT", "table or json (one object a line, the last one sums up)", O_OUTPUT},
    {"plot", 0, "FILE.svg", "draw what is in use against what was asked for", O_PLOT},
};

struct pack {
    const char *nodes, *tasks, *history, *plot;
    struct vg_pack_input in;
    uint64_t seeds, seed;
    const struct vg_packer *policy[8];
    size_t n_policies;
    bool json;
    struct vg_pack_result last[8]; /* of the last seed, by policy */
};

static int parse_policies(struct vg_opt_state *st, const char *arg, struct pack *p) {
    const char *words[16] = {0};
    for (size_t i = 0; i < vg_n_packers; i++)
        words[i] = vg_packers[i].name;
    p->n_policies = 0;
    for (const char *s = arg; s;) {
        char word[32];
        size_t n = strcspn(s, ",");
        int i;
        snprintf(word, sizeof word, "%.*s", (int)VG_MIN(n, sizeof word - 1), s);
        if (vg_opt_choice(st, word, words, &i) < 0)
            return VG_OPT_ERROR;
        if (p->n_policies == VG_COUNT(p->policy))
            return vg_opt_bad(st, "more than %zu policies: name each once", VG_COUNT(p->policy));
        p->policy[p->n_policies++] = &vg_packers[i];
        s = s[n] ? s + n + 1 : NULL;
    }
    return 0;
}

static int parse_demand(struct vg_opt_state *st, const char *arg, struct pack *p) {
    uint64_t milli;
    if (vg_opt_milli(st, arg, &milli) < 0)
        return VG_OPT_ERROR;
    if (!milli || milli > VG_PACK_STEPS * 10)
        return vg_opt_bad(st, "'%s' is not between 0.001 and %d", arg, VG_PACK_STEPS / 100);
    p->in.demand = (double)milli / 1000;
    return 0;
}

static int set(struct vg_opt_state *st, int id, const char *arg, struct pack *p) {
    switch (id) {
    case O_NODES:
        p->nodes = arg;
        return 0;
    case O_TASKS:
        p->tasks = arg;
        return 0;
    case O_HISTORY:
        p->history = arg;
        return 0;
    case O_DEMAND:
        return parse_demand(st, arg, p);
    case O_SEEDS:
        return vg_opt_u64(st, arg, 1, 100000, &p->seeds);
    case O_SEED:
        return vg_opt_u64(st, arg, 0, UINT64_MAX / 2, &p->seed);
    case O_POLICY:
        return parse_policies(st, arg, p);
    case O_OUTPUT:
        return vg_sim_opt_output(st, arg, &p->json);
    case O_PLOT:
        p->plot = arg;
        return 0;
    default:
        return vg_opt_bad(st, "'%s' is not expected: this command takes options only", arg);
    }
}

/* Over the seeds. */
struct sum {
    double pct, square, least, most, placed, dropped;
    double seconds, wall; /* of CPU time, and by the clock */
};

static void add(struct sum *s, const struct vg_pack_result *r, double seconds, double wall,
                bool first) {
    s->pct += r->allocated_pct;
    s->square += r->allocated_pct * r->allocated_pct;
    s->least = first ? r->allocated_pct : fmin(s->least, r->allocated_pct);
    s->most = first ? r->allocated_pct : fmax(s->most, r->allocated_pct);
    s->placed += (double)r->placed;
    s->dropped += (double)r->dropped;
    s->seconds += seconds;
    s->wall += wall;
}

static void print_seed(const struct vg_packer *p, uint64_t seed, const struct vg_pack_result *r,
                       double seconds) {
    printf("{\"policy\":\"%s\",\"seed\":%llu,\"gpu_allocated_pct\":%.3f,\"placed\":%llu,"
           "\"dropped\":%llu,\"seconds\":%.3f}\n",
           p->name, (unsigned long long)seed, r->allocated_pct, (unsigned long long)r->placed,
           (unsigned long long)r->dropped, seconds);
}

static void print_sum(const struct pack *p, const struct vg_packer *q, const struct sum *s) {
    double n = (double)p->seeds, mean = s->pct / n;
    double sd = sqrt(fmax(0, s->square / n - mean * mean));
    if (!p->json) {
        printf("%-8s  %7.2f  %5.2f  %6.2f  %6.2f  %7.0f  %7.0f  %8.3f  %s\n", q->name, mean, sd,
               s->least, s->most, s->placed / n, s->dropped / n, s->seconds / n, q->about);
        return;
    }
    printf("{\"policy\":\"%s\",\"gpu_allocated_pct\":%.3f,\"sd\":%.3f,\"min\":%.3f,\"max\":%.3f,"
           "\"seeds\":%llu,\"demand\":%.3f,\"nodes\":%zu,\"gpus\":%llu,\"mix\":\"%s\","
           "\"placed\":%.1f,\"dropped\":%.1f,\"seconds_per_seed\":%.4f,"
           "\"wall_seconds_per_seed\":%.4f}\n",
           q->name, mean, sd, s->least, s->most, (unsigned long long)p->seeds, p->in.demand,
           p->in.nodes.n, (unsigned long long)(vg_pack_capacity(&p->in.nodes) / 1000),
           p->history ? "history" : "learnt", s->placed / n, s->dropped / n, s->seconds / n,
           s->wall / n);
}

static int one_policy(struct pack *p, size_t which, struct vg_err *err) {
    const struct vg_packer *q = p->policy[which];
    struct sum s = {0};
    for (uint64_t i = 0; i < p->seeds; i++) {
        struct vg_pack_result r;
        double wall = vg_sim_wall_seconds(), cpu = vg_sim_cpu_seconds();
        int e = vg_pack_run(&p->in, q, p->seed + i, &r);
        if (e < 0)
            return vg_err_sys(err, e, "cannot pack by '%s'", q->name);
        cpu = vg_sim_cpu_seconds() - cpu;
        add(&s, &r, cpu, vg_sim_wall_seconds() - wall, i == 0);
        if (p->json)
            print_seed(q, p->seed + i, &r, cpu);
        p->last[which] = r;
    }
    print_sum(p, q, &s);
    return 0;
}

/* One panel: what is in use (up) once so much was asked for (right). */
static int plot(const struct pack *p, struct vg_err *err) {
    FILE *f = vg_svg_open(p->plot, err);
    if (!f)
        return err->code;
    struct vg_svg_panel panel = {.f = f, .x = VG_SVG_LEFT, .y = VG_SVG_TOP};
    double right = 100 * p->in.demand, bottom = VG_SVG_TOP + VG_SVG_H;
    char label[32];
    vg_svg_begin(f, VG_SVG_LEFT + VG_SVG_W + VG_SVG_GAP_X, bottom + VG_SVG_GAP_Y);
    vg_svg_frame(&panel, "GPUs in use, by what was asked for");
    vg_svg_percents(&panel);
    snprintf(label, sizeof label, "%.0f %% asked for", right);
    vg_svg_text(f, panel.x + VG_SVG_W, bottom + 14, "end", 10, label);
    for (size_t i = 0; i < p->n_policies; i++) {
        const struct vg_pack_result *r = &p->last[i];
        vg_svg_line(&panel);
        for (uint32_t k = 0; k < r->n_curve; k++)
            vg_svg_point(&panel, VG_MIN(k / right, 1.0), r->curve[k] / 100);
        vg_svg_line_end(&panel, i, false);
        vg_svg_key(f, VG_SVG_LEFT + 90 * (double)i, bottom + 40, i, p->policy[i]->name);
    }
    return vg_svg_close(f, p->plot, err);
}

static int pack(struct pack *p, struct vg_err *err) {
    int r;
    if ((r = vg_trace_read_nodes(p->nodes, &p->in.nodes, err)) < 0 ||
        (r = vg_trace_read_tasks(p->tasks, &p->in.tasks, err)) < 0 ||
        (p->history && (r = vg_trace_read_tasks(p->history, &p->in.history, err)) < 0))
        return r;
    if (!vg_pack_capacity(&p->in.nodes))
        return vg_err_set(err, VG_INVALID, "'%s' has no GPUs: there is nothing to pack", p->nodes);
    if (!p->json)
        printf("%-8s  %7s  %5s  %6s  %6s  %7s  %7s  %8s\n", "POLICY", "GPU %", "SD", "MIN", "MAX",
               "PLACED", "DROPPED", "S/SEED");
    for (size_t i = 0; i < p->n_policies && r == 0; i++)
        r = one_policy(p, i, err);
    return r == 0 && p->plot ? plot(p, err) : r;
}

int vg_sim_pack(int argc, char **argv) {
    struct pack p = {.in = {.demand = 1.3}, .seeds = 10, .seed = 42};
    struct vg_opt_state st = {.program = "virga-sim pack",
                              .opts = opts,
                              .n_opts = VG_COUNT(opts),
                              .argc = argc,
                              .argv = argv,
                              .index = 1};
    const char *arg;
    p.policy[p.n_policies++] = &vg_packers[0];
    for (int id; (id = vg_opt_next(&st, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_HELP)
            return vg_sim_help("virga-sim pack --nodes FILE --tasks FILE [options]",
                               "Lets tasks arrive in random order until they asked for more than "
                               "there is and says how much of the GPUs is in use then.",
                               opts, VG_COUNT(opts));
        if (id == VG_OPT_ERROR || set(&st, id, arg, &p) < 0)
            return vg_sim_fail("pack", &st.err);
    }
    if (!p.nodes || !p.tasks) {
        vg_err_set(&st.err, VG_INVALID,
                   "which cluster and which tasks? give --nodes FILE and --tasks FILE "
                   "(see virga-sim(1))");
        return vg_sim_fail("pack", &st.err);
    }
    int r = pack(&p, &st.err);
    vg_trace_nodes_done(&p.in.nodes);
    vg_trace_tasks_done(&p.in.tasks);
    vg_trace_tasks_done(&p.in.history);
    return r < 0 ? vg_sim_fail("pack", &st.err) : 0;
}
