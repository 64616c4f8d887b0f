/* virga-sim pack: how many GPUs stay usable when tasks arrive until nothing fits. */
#include "sim/sim.h"

int vg_sim_pack(int argc, char **argv) {
    struct vg_err err = VG_ERR_INIT;
    (void)argc;
    vg_err_set(&err, VG_UNSUPPORTED, "this build has no 'pack': use a newer virga-sim");
    return vg_sim_fail(argv[0], &err);
}
