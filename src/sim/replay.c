/* virga-sim replay. */
#include "sim/sim.h"

int vg_sim_replay(int argc, char **argv) {
    struct vg_err err = VG_ERR_INIT;
    (void)argc;
    vg_err_set(&err, VG_UNSUPPORTED, "this build has no 'replay': use a newer virga-sim");
    return vg_sim_fail(argv[0], &err);
}
