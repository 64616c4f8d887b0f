#pragma once
/* What the sub-commands of virga-sim share. Each is `int vg_sim_NAME(int argc, char **argv)`:
   argv[0] is its name, options follow; it prints its result and returns the exit status (0 good, 1
   a check failed, 125 refused or broken). Single thread, virtual time, deterministic from --seed.
 */
#include "base/err.h"
#include "cli/opt.h"

#include <stdbool.h>
#include <stdint.h>

int vg_sim_pack(int argc, char **argv);
int vg_sim_replay(int argc, char **argv);
int vg_sim_load(int argc, char **argv);
int vg_sim_faults(int argc, char **argv);
int vg_sim_whatif(int argc, char **argv);

#define VG_SIM_REFUSED 125

/* "virga-sim replay: <message>" on stderr; returns VG_SIM_REFUSED. */
int vg_sim_fail(const char *command, const struct vg_err *err);
/* The text of --help: usage line, one paragraph, the options. Returns 0. */
int vg_sim_help(const char *usage, const char *about, const struct vg_opt *opts, size_t n_opts);
/* `-o`: "table" or "json". */
int vg_sim_opt_output(struct vg_opt_state *st, const char *arg, bool *ret_json);

double vg_sim_cpu_seconds(void);  /* this process's CPU time: for measuring, never for deciding */
double vg_sim_wall_seconds(void); /* likewise */
uint64_t vg_sim_rss_bytes(void);  /* resident now; 0 when unknown */
