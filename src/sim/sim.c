/* What the sub-commands share. */
#include "sim/sim.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

int vg_sim_fail(const char *command, const struct vg_err *err) {
    fflush(stdout);
    fprintf(stderr, "virga-sim %s: %s\n", command, err->msg);
    return VG_SIM_REFUSED;
}

int vg_sim_help(const char *usage, const char *about, const struct vg_opt *opts, size_t n_opts) {
    printf("Usage: %s\n\n%s\n\n", usage, about);
    vg_opt_help(stdout, opts, n_opts);
    return 0;
}

int vg_sim_opt_output(struct vg_opt_state *st, const char *arg, bool *ret_json) {
    static const char *const words[] = {"table", "json", NULL};
    int i = 0, r = vg_opt_choice(st, arg, words, &i);
    if (r == 0)
        *ret_json = i == 1;
    return r;
}

static double seconds(clockid_t clock) {
    struct timespec t = {0};
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

double vg_sim_cpu_seconds(void) {
    return seconds(CLOCK_PROCESS_CPUTIME_ID);
}

double vg_sim_wall_seconds(void) {
    return seconds(CLOCK_MONOTONIC);
}

uint64_t vg_sim_rss_bytes(void) {
    unsigned long long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f)
        return 0;
    if (fscanf(f, "%llu %llu", &size, &resident) != 2)
        resident = 0;
    fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}
