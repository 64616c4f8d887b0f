/* The whole program is whole already. */
#include "base/util.h"
#include "cli/cmd-env.h"
#include "cli/follow.h"
#include "cli/run-int.h"
#include "cli/spec-values.h"
#include "cli/why-show.h"

#include <stdio.h>

int run_become_full(char **argv, struct vg_err *err) {
    (void)argv;
    (void)err;
    return 0;
}

int run_forecast(struct run *r, const Vg__Pb__RunEvent *ev, struct vg_err *err) {
    if (!ev->forecast)
        return vg_err_set(err, VG_UNSUPPORTED,
                          "this cloud cannot tell beforehand: install the same version on both "
                          "sides");
    if (vg_why_hopeless(ev->forecast))
        return vg_err_set(err, VG_INVALID, "%s",
                          ev->forecast->text ? ev->forecast->text : "it could never run");
    vg_why_print(stdout, ev->forecast);
    r->exited = true;
    r->status = fflush(stdout) == 0 ? 0 : 125;
    return 0;
}

int run_follow_stored(const struct run *r) {
    char id[VG_ID_LEN + 1];
    struct vg_follow_how how = {.program = r->program,
                                .logs = true,
                                .alone = vg_spec_count(&r->spec) == 1 && !r->spec.gang &&
                                         !r->spec.n_sweep,
                                .quiet = r->quiet};
    vg_id_format(r->task_id, id);
    return vg_follow_task(&r->ep, id, &how);
}

void run_say_kept(const struct run *r) {
    vg_ecmd_say_kept(r->task_id);
}
