/* virga-sim whatif: recorded load under the present and a changed configuration. */
#include "sim/whatif.h"

#include "base/cleanup.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/table.h"
#include "sim/sim.h"
#include "view/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { O_DB = 1, O_CONF, O_OLD, O_SINCE, O_OUTPUT };

static const struct vg_opt opts[] = {
    {"db", 0, "FILE", "the cloud's store, control/state.db in its home; only read", O_DB},
    {"conf", 0, "FILE", "the configuration to try", O_CONF},
    {"old", 0, "FILE", "the one to compare with (config.yaml of the same home, else the defaults)",
     O_OLD},
    {"since", 0, "DURATION", "how far back from the last end (7d); 0: everything", O_SINCE},
    {"output", 'o', "FORMAT", "table or json (one object a line)", O_OUTPUT},
};

struct whatif {
    const char *db, *conf, *old;
    uint64_t since_usec;
    bool json;
    struct vg_recorded rec;
    struct vg_whatif before, after;
};

/* A group of tasks: a user, a pool, or all. */
struct group {
    char *name; /* owned */
    const char *kind;
    size_t tasks;
    double gpu_hours, was_s; /* was: the waits as recorded, summed */
    double *old_s, *new_s;   /* owned; waits */
    size_t n_old, n_new, old_cap, new_cap;
    uint32_t stops_old, stops_new;
};

struct groups {
    struct group **item; /* owned, as are the groups */
    size_t n, cap;
    struct vg_map by_name; /* kind's first letter and name */
};

static struct group *group_of(struct groups *g, const char *kind, const char *name) {
    vg_auto_free char *key = vg_fmt("%c%s", *kind, name);
    struct group *x = key ? vg_map_get(&g->by_name, key) : NULL;
    if (x || !key)
        return x;
    struct group **grown = vg_grow(g->item, &g->cap, g->n + 1, sizeof *grown);
    if (!grown)
        return NULL;
    g->item = grown;
    x = vg_alloc(sizeof *x);
    if (!x)
        return NULL;
    *x = (struct group){.name = vg_take_ptr(key), .kind = kind};
    if (vg_map_put(&g->by_name, x->name, x) < 0) {
        free(x->name);
        free(x);
        return NULL;
    }
    return g->item[g->n++] = x;
}

static void groups_done(struct groups *g) {
    for (size_t i = 0; i < g->n; i++) {
        free(g->item[i]->name);
        free(g->item[i]->old_s);
        free(g->item[i]->new_s);
        free(g->item[i]);
    }
    free(g->item);
    vg_map_done(&g->by_name);
}

static int push(double **v, size_t *n, size_t *cap, double x) {
    double *grown = vg_grow(*v, cap, *n + 1, sizeof *grown);
    if (!grown)
        return -ENOMEM;
    *v = grown;
    (*v)[(*n)++] = x;
    return 0;
}

static int count(const struct whatif *w, struct groups *g, const char *kind, const char *name,
                 size_t i) {
    const struct vg_rec_task *t = &w->rec.task[i];
    const struct vg_whatif_task *old = &w->before.task[i], *new = &w->after.task[i];
    struct group *x = group_of(g, kind, name);
    if (!x)
        return -ENOMEM;
    x->tasks++;
    x->gpu_hours += (t->res.gpus + t->res.gpu_milli / 1000.0) * (double)t->run_usec / 3.6e9;
    x->was_s += t->start_usec > t->ready_usec ? (double)(t->start_usec - t->ready_usec) / 1e6 : 0;
    x->stops_old += old->stops;
    x->stops_new += new->stops;
    if (old->ended && push(&x->old_s, &x->n_old, &x->old_cap, (double)old->wait_usec / 1e6) < 0)
        return -ENOMEM;
    if (new->ended && push(&x->new_s, &x->n_new, &x->new_cap, (double)new->wait_usec / 1e6) < 0)
        return -ENOMEM;
    return 0;
}

static int gather(const struct whatif *w, struct groups *g) {
    int r = 0;
    for (size_t i = 0; r >= 0 && i < w->rec.n_tasks; i++) {
        const struct vg_rec_task *t = &w->rec.task[i];
        vg_auto_free char *who = vg_fmt("%s/%s", t->team, t->user);
        vg_auto_free char *pool = vg_strndup(t->pools, strcspn(t->pools, ","));
        if (!who || !pool)
            return -ENOMEM;
        r = count(w, g, "all", "", i);
        if (r >= 0)
            r = count(w, g, "tenant", who, i);
        if (r >= 0)
            r = count(w, g, "pool", pool, i);
    }
    return r;
}

static int by_size(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static double mean(const double *v, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += v[i];
    return n ? sum / (double)n : 0;
}

static double p95(double *v, size_t n) {
    if (!n)
        return 0;
    qsort(v, n, sizeof *v, by_size);
    return v[VG_MIN(n * 95 / 100, n - 1)];
}

static int by_kind(const void *x, const void *y) {
    const struct group *a = *(struct group *const *)x, *b = *(struct group *const *)y;
    int kind = strcmp(a->kind, b->kind);
    return kind ? kind : strcmp(a->name, b->name);
}

static void print_json(struct group *x) {
    vg_json_print_line(json_pack(
        "{s:s, s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I}", "of", x->kind, "name",
        x->name + 1, "tasks", (json_int_t)x->tasks, "gpu_hours", x->gpu_hours, "wait_recorded_s",
        x->was_s / (double)x->tasks, "wait_mean_old_s", mean(x->old_s, x->n_old), "wait_mean_new_s",
        mean(x->new_s, x->n_new), "wait_p95_old_s", p95(x->old_s, x->n_old), "wait_p95_new_s",
        p95(x->new_s, x->n_new), "stops_old", (json_int_t)x->stops_old, "stops_new",
        (json_int_t)x->stops_new));
}

static void print_row(struct vg_table *t, struct group *x) {
    char c[9][40];
    double old = mean(x->old_s, x->n_old), new = mean(x->new_s, x->n_new);
    snprintf(c[0], sizeof c[0], "%zu", x->tasks);
    snprintf(c[1], sizeof c[1], "%.1f", x->gpu_hours);
    snprintf(c[2], sizeof c[2], "%.1f s", x->was_s / (double)x->tasks);
    snprintf(c[3], sizeof c[3], "%.1f s", old);
    snprintf(c[4], sizeof c[4], "%.1f s", new);
    snprintf(c[5], sizeof c[5], "%+.1f s", new - old);
    snprintf(c[6], sizeof c[6], "%.1f s", p95(x->old_s, x->n_old));
    snprintf(c[7], sizeof c[7], "%.1f s", p95(x->new_s, x->n_new));
    snprintf(c[8], sizeof c[8], "%u to %u", x->stops_old, x->stops_new);
    const char *cells[] = {x->kind, x->name + 1, c[0], c[1], c[2], c[3],
                           c[4],    c[5],        c[6], c[7], c[8]};
    vg_table_row(t, cells);
}

static void print_text(const struct whatif *w, struct groups *g) {
    static const char *const head[] = {"OF",  "NAME",   "TASKS",   "GPU HOURS", "WAITED", "OLD",
                                       "NEW", "CHANGE", "P95 OLD", "P95 NEW",   "STOPS",  NULL};
    struct vg_table *t = vg_table_new(head);
    printf("%zu tasks on %zu nodes; %" PRIu64 " that never started are left out\n\n",
           w->rec.n_tasks, w->rec.n_nodes, w->rec.never_ran);
    for (size_t i = 0; t && i < g->n; i++)
        print_row(t, g->item[i]);
    if (t)
        vg_table_print(t, stdout, 0);
    if (w->before.refused || w->after.refused)
        printf("\nno place for %" PRIu64 " tasks under the old configuration, for %" PRIu64
               " under the new\n",
               w->before.refused, w->after.refused);
    if (w->before.unfinished || w->after.unfinished)
        printf("\nwaiting for ever: %" PRIu64 " tasks under the old configuration, %" PRIu64
               " under the new\n",
               w->before.unfinished, w->after.unfinished);
}

static int report(const struct whatif *w, struct vg_err *err) {
    struct groups g = {0};
    int r = gather(w, &g);
    if (r < 0)
        vg_err_sys(err, r, "cannot sum up");
    if (r >= 0 && g.n)
        qsort(g.item, g.n, sizeof *g.item, by_kind);
    for (size_t i = 0; r >= 0 && w->json && i < g.n; i++)
        print_json(g.item[i]);
    if (r >= 0 && !w->json)
        print_text(w, &g);
    groups_done(&g);
    return r;
}

/* The configuration in effect: named, or beside the store, or none. */
static int load_old(const struct whatif *w, struct vg_conf *ret, struct vg_err *err) {
    if (w->old)
        return vg_conf_load(w->old, ret, err);
    const char *slash = strrchr(w->db, '/');
    vg_auto_free char *path =
        vg_fmt("%.*s../config.yaml", slash ? (int)(slash - w->db + 1) : 0, w->db);
    if (!path)
        return vg_err_sys(err, -ENOMEM, "cannot read a configuration");
    if (access(path, F_OK) == 0)
        return vg_conf_load(path, ret, err);
    return vg_conf_default(ret) < 0 ? vg_err_sys(err, -ENOMEM, "cannot make a configuration") : 0;
}

static int whatif(struct whatif *w, struct vg_err *err) {
    struct vg_conf old = {0}, new = {0};
    int r = vg_conf_load(w->conf, &new, err);
    if (r >= 0)
        r = load_old(w, &old, err);
    if (r >= 0)
        r = vg_recorded_read(w->db, w->since_usec, &w->rec, err);
    if (r >= 0 && !w->rec.n_tasks)
        r = vg_err_set(err, VG_NOT_FOUND,
                       "'%s' has no task that ran in that time: give a longer --since", w->db);
    if (r >= 0)
        r = vg_whatif_run(&w->rec, &old, &w->before, err);
    if (r >= 0)
        r = vg_whatif_run(&w->rec, &new, &w->after, err);
    if (r >= 0)
        r = report(w, err);
    vg_whatif_done(&w->before);
    vg_whatif_done(&w->after);
    vg_recorded_done(&w->rec);
    vg_conf_done(&old);
    vg_conf_done(&new);
    return r;
}

static int set(struct vg_opt_state *st, int id, const char *arg, struct whatif *w) {
    switch (id) {
    case O_DB:
        w->db = arg;
        return 0;
    case O_CONF:
        w->conf = arg;
        return 0;
    case O_OLD:
        w->old = arg;
        return 0;
    case O_SINCE:
        return vg_opt_duration(st, arg, &w->since_usec);
    case O_OUTPUT:
        return vg_sim_opt_output(st, arg, &w->json);
    default:
        return vg_opt_bad(st, "'%s' is not expected: this command takes options only", arg);
    }
}

int vg_sim_whatif(int argc, char **argv) {
    struct whatif w = {.since_usec = 7 * 86400 * VG_USEC};
    struct vg_opt_state st = {.program = "virga-sim whatif",
                              .opts = opts,
                              .n_opts = VG_COUNT(opts),
                              .argc = argc,
                              .argv = argv,
                              .index = 1};
    const char *arg;
    for (int id; (id = vg_opt_next(&st, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_HELP)
            return vg_sim_help("virga-sim whatif --db FILE --conf FILE [options]",
                               "Plays recorded tasks under the present and under a changed "
                               "configuration and prints the difference.",
                               opts, VG_COUNT(opts));
        if (id == VG_OPT_ERROR || set(&st, id, arg, &w) < 0)
            return vg_sim_fail("whatif", &st.err);
    }
    if (!w.db || !w.conf) {
        vg_err_set(&st.err, VG_INVALID,
                   "give the store with --db and the configuration to try "
                   "with --conf");
        return vg_sim_fail("whatif", &st.err);
    }
    return whatif(&w, &st.err) < 0 ? vg_sim_fail("whatif", &st.err) : 0;
}
