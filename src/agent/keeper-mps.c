/* A task of class `mps`: the pipes of its card's server (agent-mps.c) are where the CUDA library
   looks for them without being told, so that a program which clears its environment finds them. */
#include "agent/keeper-int.h"
#include "base/cleanup.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

int kmps_bind(const struct keeper *k, const struct ktask *t, struct vg_bind *ret,
              struct vg_err *err) {
    if (!vg_start_is_mps(t->start))
        return 0;
    vg_auto_free char *path =
        vg_fmt("%s/mps/%u/pipe", k->birth.node_dir ? k->birth.node_dir : "", t->start->gpu[0]);
    int fd = path ? open(path, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd < 0)
        return vg_err_sys(err, path ? -errno : -ENOMEM, "cannot open the pipes of GPU %u's MPS",
                          t->start->gpu[0]);
    *ret = (struct vg_bind){.path = VG_MPS_INSIDE, .fd = fd, .read_only = true, .nodes = true};
    return 1;
}
