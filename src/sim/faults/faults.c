/* virga-sim faults: seeds, one after the other. A seed that breaks a promise is made as small as it
   can be and tells its story; a planted bug must be found. */
#include "base/cleanup.h"
#include "base/util.h"
#include "sim/faults/shrink.h"
#include "sim/faults/world.h"
#include "sim/sim.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define SEEDS_DEFAULT 1000
#define PLANT_SEEDS 2000 /* within which a planted bug must be found */

struct faults {
    uint64_t seed, seeds, nodes, tasks, for_usec;
    bool json, verbose, all_plants, seeds_given;
    enum vg_plant plant;
};

struct tally {
    uint64_t seeds, broken, first, steps, virtual_usec, lives;
    char promise[32];
};

/* ------------------------------------------------------------------ one seed */

static void say_plan(const struct vg_plan *p, FILE *out) {
    char line[240];
    for (int i = 0; i < p->n_tasks; i++)
        if (!p->task[i].off) {
            vg_plan_task_say(&p->task[i], i, line, sizeof line);
            fprintf(out, "  %s\n", line);
        }
}

static void tell_story(const struct faults *f, uint64_t seed, const struct vg_w_result *first) {
    static struct vg_plan plan;
    struct vg_plan_size size = {(int)f->nodes, (int)f->tasks};
    struct vg_shrunk s;
    struct vg_w_result r;
    FILE *out = f->json ? stderr : stdout;
    vg_plan_make(&plan, seed, &size, f->plant);
    int tasks = plan.n_tasks, faults = plan.n_faults;
    vg_plan_shrink(&plan, first->broken, &s);
    fprintf(out, "seed %llu breaks '%s': %s\n", (unsigned long long)seed, first->broken,
            first->why);
    fprintf(out, "%d of %d faults and %d of %d tasks are enough (found in %d runs):\n", s.faults,
            faults, s.tasks, tasks, s.runs);
    say_plan(&plan, out);
    vg_w_run(&plan, out, &r);
    fprintf(out, "\n");
}

static void note(struct tally *t, const struct vg_w_result *r) {
    t->seeds++;
    t->steps += r->steps;
    t->virtual_usec += r->virtual_usec;
    t->lives += r->lives;
}

/* Seeds until `limit` are done, or until the first that breaks when `one` is enough. */
static void run_seeds(const struct faults *f, uint64_t limit, bool one, struct tally *t) {
    static struct vg_plan plan;
    struct vg_plan_size size = {(int)f->nodes, (int)f->tasks};
    *t = (struct tally){0};
    double until = f->for_usec ? vg_sim_wall_seconds() + (double)f->for_usec / 1e6 : 1e300;
    for (uint64_t i = 0; i < limit && !(one && t->broken); i++) {
        if (vg_sim_wall_seconds() > until)
            break;
        struct vg_w_result r;
        uint64_t seed = f->seed + i;
        vg_plan_make(&plan, seed, &size, f->plant);
        if (f->verbose && !f->json)
            say_plan(&plan, stdout);
        vg_w_run(&plan, f->verbose && !f->json ? stdout : NULL, &r);
        note(t, &r);
        if (!r.broken[0])
            continue;
        if (t->broken++ == 0) {
            t->first = seed;
            memcpy(t->promise, r.broken, sizeof t->promise);
            tell_story(f, seed, &r);
        } else {
            fprintf(f->json ? stderr : stdout, "seed %llu breaks '%s': %s\n",
                    (unsigned long long)seed, r.broken, r.why);
        }
    }
}

/* ------------------------------------------------------------------ results */

static int hunt(struct faults *f) {
    struct tally t;
    double begun = vg_sim_wall_seconds();
    run_seeds(f, f->seeds, false, &t);
    double took = vg_sim_wall_seconds() - begun;
    if (f->json) {
        json_t *o = json_pack("{s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "seeds",
                              (json_int_t)t.seeds, "first_seed", (json_int_t)f->seed, "violations",
                              (json_int_t)t.broken, "events", (json_int_t)t.steps, "control_lives",
                              (json_int_t)t.lives, "virtual_hours", (double)t.virtual_usec / 3.6e9,
                              "seconds", took, "seeds_per_second", (double)t.seeds / took);
        json_dumpf(o, stdout, JSON_COMPACT);
        printf("\n");
        json_decref(o);
    } else {
        printf("%llu seeds, %llu broke a promise; %llu events, %llu lives of virgad, %.1f hours of "
               "virtual time in %.1f s (%.0f seeds/s)\n",
               (unsigned long long)t.seeds, (unsigned long long)t.broken,
               (unsigned long long)t.steps, (unsigned long long)t.lives,
               (double)t.virtual_usec / 3.6e9, took, (double)t.seeds / took);
    }
    return t.broken ? 1 : 0;
}

static bool show_plant(struct faults *f, enum vg_plant plant) {
    struct tally t;
    f->plant = plant;
    if (!f->json)
        printf("--- %s: %s\n", vg_plan_plant_word(plant), vg_plan_plant_text(plant));
    run_seeds(f, f->seeds_given ? f->seeds : PLANT_SEEDS, true, &t);
    if (f->json) {
        json_t *o = json_pack("{s:s, s:b, s:I, s:I, s:s}", "planted", vg_plan_plant_word(plant),
                              "found", (int)(t.broken > 0), "seed", (json_int_t)t.first,
                              "seeds_needed", (json_int_t)t.seeds, "promise", t.promise);
        json_dumpf(o, stdout, JSON_COMPACT);
        printf("\n");
        json_decref(o);
    } else if (t.broken) {
        printf("found: seed %llu, after %llu seeds, by '%s'\n\n", (unsigned long long)t.first,
               (unsigned long long)t.seeds, t.promise);
    } else {
        printf("NOT FOUND in %llu seeds\n\n", (unsigned long long)t.seeds);
    }
    return t.broken > 0;
}

static int show_plants(struct faults *f) {
    enum vg_plant from = f->all_plants ? VG_PLANT_NONE + 1 : f->plant;
    enum vg_plant to = f->all_plants ? VG_PLANTS - 1 : f->plant;
    int missed = 0;
    for (enum vg_plant p = from; p <= to; p++)
        missed += !show_plant(f, p);
    return missed ? 1 : 0;
}

/* ------------------------------------------------------------------ options */

static const struct vg_opt table[] = {
    {"seeds", 0, "N", "how many (1000)", 1},
    {"seed", 0, "N", "the first, or the only one (1)", 2},
    {"nodes", 0, "N", "nodes of each world (by the seed, 1 to 4)", 3},
    {"tasks", 0, "N", "tasks of each world (by the seed, 2 to 16)", 4},
    {"plant", 0, "BUG", "plant a bug and show that it is found; 'all' for each, 'list' to see them",
     5},
    {"for", 0, "TIME", "begin no further seed after that long", 8},
    {"verbose", 'v', NULL, "everything that happens", 6},
    {"output", 'o', "FORMAT", "table or json", 7},
};

static int choose_plant(struct faults *f, struct vg_opt_state *st, const char *arg) {
    const char *words[VG_PLANTS + 1] = {0};
    int which = 0;
    for (int i = 0; i < VG_PLANTS; i++)
        words[i] = vg_plan_plant_word((enum vg_plant)i);
    if (strcmp(arg, "all") == 0) {
        f->all_plants = true;
        return 0;
    }
    int r = vg_opt_choice(st, arg, words, &which);
    f->plant = (enum vg_plant)which;
    return r;
}

static int list_plants(void) {
    for (int i = 1; i < VG_PLANTS; i++)
        printf("%-16s %s\n", vg_plan_plant_word((enum vg_plant)i),
               vg_plan_plant_text((enum vg_plant)i));
    return 0;
}

/* 0: go on; 1: done already; VG_OPT_ERROR. */
static int parse(struct faults *f, struct vg_opt_state *st) {
    const char *arg;
    int r = 0;
    for (int id; r == 0 && (id = vg_opt_next(st, &arg)) != VG_OPT_END;)
        switch (id) {
        case 1:
            f->seeds_given = true;
            r = vg_opt_u64(st, arg, 1, UINT32_MAX, &f->seeds);
            break;
        case 2:
            r = vg_opt_u64(st, arg, 0, UINT64_MAX / 2, &f->seed);
            f->seeds = f->seeds_given ? f->seeds : 1;
            f->seeds_given = true;
            break;
        case 3:
            r = vg_opt_u64(st, arg, 1, VG_PLAN_NODES_MAX, &f->nodes);
            break;
        case 4:
            r = vg_opt_u64(st, arg, 1, VG_PLAN_TASKS_MAX, &f->tasks);
            break;
        case 5:
            if (strcmp(arg, "list") == 0)
                return list_plants() + 1;
            r = choose_plant(f, st, arg);
            break;
        case 6:
            f->verbose = true;
            break;
        case 7:
            r = vg_sim_opt_output(st, arg, &f->json);
            break;
        case 8:
            r = vg_opt_duration(st, arg, &f->for_usec);
            break;
        case VG_OPT_HELP:
            vg_sim_help("virga-sim faults [options]",
                        "Runs virgad, its agents and clients in virtual time while machines crash, "
                        "networks break and disks lose writes, all by a seed, and checks what the "
                        "design promises after every step. A seed that breaks a promise is printed "
                        "with its shortest story.",
                        table, VG_COUNT(table));
            return 1;
        case VG_OPT_ARG:
            return vg_opt_bad(st, "'%s' is not an option", arg);
        default:
            return VG_OPT_ERROR;
        }
    return r;
}

/* What is made once a process (the empty database) is made in a world of its own, so that every
   seed finds the same. */
static void make_ready(void) {
    static struct vg_plan plan;
    struct vg_w_result r;
    vg_plan_make(&plan, 0, &(struct vg_plan_size){1, 1}, VG_PLANT_NONE);
    plan.n_tasks = plan.n_faults = 0;
    plan.calm_usec = 1;
    vg_w_run(&plan, NULL, &r);
}

int vg_sim_faults(int argc, char **argv) {
    struct faults f = {.seed = 1, .seeds = SEEDS_DEFAULT};
    struct vg_opt_state st = {.program = "virga-sim faults",
                              .opts = table,
                              .n_opts = VG_COUNT(table),
                              .argc = argc,
                              .argv = argv,
                              .index = 1};
    int r = parse(&f, &st);
    if (r == 1)
        return 0;
    if (r < 0)
        return vg_sim_fail(argv[0], &st.err);
    struct vg_err err = VG_ERR_INIT;
    if (vg_w_vfs_install(&err) < 0 || vg_w_virgad_setup(&err) < 0)
        return vg_sim_fail(argv[0], &err);
    make_ready();
    r = f.all_plants || f.plant ? show_plants(&f) : hunt(&f);
    vg_w_virgad_cleanup();
    return r;
}
