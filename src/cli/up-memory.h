#pragma once
/* What `virga up` was told, remembered in $VIRGA_HOME/up.conf so that the next `virga up` makes the
   same cloud: lines of key=value; listen, gpus. */
#include "base/err.h"

struct vg_up_memory {
    char listen[300], gpus[16]; /* empty: not said */
};

/* No file: everything is empty. */
int vg_up_memory_read(const char *home, struct vg_up_memory *ret, struct vg_err *err);
int vg_up_memory_write(const char *home, const struct vg_up_memory *m, struct vg_err *err);

/* Lets a unix group in: adds it to access.groups of $VIRGA_HOME/config.yaml, making the file when
   there is none. A file that has an access section already is not rewritten: INVALID says what to
   write there, unless the group stands in it. */
int vg_up_let_in(const char *home, const char *group, struct vg_err *err);
