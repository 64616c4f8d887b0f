/* virga-sim faults: seeds, one after the other, until a promise is broken; then the shortest story. */
#include "sim/sim.h"

#include "base/cleanup.h"
#include "sim/faults/world.h"

#include <stdio.h>
#include <string.h>

int vg_sim_faults(int argc, char **argv) {
    struct vg_err err = VG_ERR_INIT;
    static struct vg_plan plan;
    struct vg_plan_size size = {0};
    struct vg_w_result r;
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1, n = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    bool tell = argc > 3;
    if (vg_w_vfs_install(&err) < 0 || vg_w_virgad_setup(&err) < 0)
        return vg_sim_fail(argv[0], &err);
    for (uint64_t i = 0; i < n; i++) {
        vg_plan_make(&plan, seed + i, &size, VG_PLANT_NONE);
        vg_w_run(&plan, tell ? stdout : NULL, &r);
        printf("seed %llu: steps %llu %.1f s lives %llu %s %s\n", (unsigned long long)(seed + i), (unsigned long long)r.steps, (double)r.virtual_usec/1e6, (unsigned long long)r.lives, r.broken, r.why);
    }
    vg_w_virgad_cleanup();
    return 0;
}
