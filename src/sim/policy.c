/* The policies by name. */
#include "sim/policy.h"

#include "base/cleanup.h"

#include <string.h>

static const struct vg_policy_ops *const all[] = {&vg_policy_fifo, &vg_policy_easy, &vg_policy_drf,
                                                  &vg_policy_random, &vg_policy_virga};

const struct vg_policy_ops *vg_policy_find(const char *name) {
    for (size_t i = 0; i < VG_COUNT(all); i++)
        if (strcmp(all[i]->name, name) == 0)
            return all[i];
    return NULL;
}

const char *const *vg_policy_names(void) {
    static const char *const names[] = {"fifo", "easy", "drf", "random", "virga", NULL};
    return names;
}
