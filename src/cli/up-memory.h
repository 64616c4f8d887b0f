#pragma once
/* What `virga up` was told, remembered in $VIRGA_HOME/up.conf so that the next `virga up` makes the
   same cloud: lines of key=value; listen, group, gpus. */
#include "base/err.h"

struct vg_up_memory {
    char listen[300], group[256], gpus[16]; /* empty: not said */
};

/* No file: everything is empty. */
int vg_up_memory_read(const char *home, struct vg_up_memory *ret, struct vg_err *err);
int vg_up_memory_write(const char *home, const struct vg_up_memory *m, struct vg_err *err);
