/* virga-sim: the scheduler in virtual time. This file only finds the sub-command. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "sim/sim.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"pack", vg_sim_pack, "fill a cluster with shares and whole GPUs; how much stays stranded"},
    {"replay", vg_sim_replay, "run a trace through several policies side by side"},
    {"load", vg_sim_load, "drain a made load of cohorts, queues and classes"},
    {"faults", vg_sim_faults, "crashes, partitions and lost writes by seed; check the promises"},
    {"whatif", vg_sim_whatif, "recorded load under a changed policy"},
};

static int usage(FILE *out) {
    fprintf(out, "Usage: virga-sim COMMAND [options]\n\nThe scheduler in virtual time; the same "
                 "seed gives the same result.\n\n");
    for (size_t i = 0; i < VG_COUNT(commands); i++)
        fprintf(out, "  %-8s  %s\n", commands[i].name, commands[i].help);
    fprintf(out, "\n'virga-sim COMMAND --help' lists the options of a command.\n");
    return out == stdout ? 0 : VG_SIM_REFUSED;
}

int main(int argc, char **argv) {
    const char *words[VG_COUNT(commands)];
    vg_mem_huge_heap(256u << 20);
    if (argc < 2)
        return usage(stderr);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return usage(stdout);
    if (strcmp(argv[1], "--version") == 0) {
        printf("virga-sim %s\n", VG_VERSION);
        return 0;
    }
    for (size_t i = 0; i < VG_COUNT(commands); i++) {
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
        words[i] = commands[i].name;
    }
    const char *near = vg_nearest(argv[1], words, VG_COUNT(commands));
    if (near)
        fprintf(stderr, "virga-sim: unknown command '%s': did you mean '%s'?\n", argv[1], near);
    else
        fprintf(stderr, "virga-sim: unknown command '%s': 'virga-sim --help' lists them\n",
                argv[1]);
    return VG_SIM_REFUSED;
}
