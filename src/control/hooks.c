/* Telling others what happened; see the header. */
#include "control/hooks.h"

bool vg_hook_wanted(const struct vg_control *c, const char *name) {
    (void)c, (void)name;
    return false; /* there are no hooks yet */
}

void vg_hook_event(struct vg_control *c, const struct vg_hook_event *e) {
    (void)c;
    json_decref(e->data);
}
