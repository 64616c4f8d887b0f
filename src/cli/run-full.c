/* The whole program is whole already. */
#include "base/util.h"
#include "cli/follow.h"
#include "cli/run-int.h"

int run_become_full(char **argv, struct vg_err *err) {
    (void)argv;
    (void)err;
    return 0;
}

int run_follow_stored(const struct run *r) {
    char id[VG_ID_LEN + 1];
    struct vg_follow_how how = {.program = r->program, .logs = true, .quiet = r->quiet};
    vg_id_format(r->task_id, id);
    return vg_follow_task(&r->ep, id, &how);
}
