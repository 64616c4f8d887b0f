#pragma once
/* A task's output on standard output and error, its streams apart again. Of a group, every line
   begins with its member's number in brackets and is written whole. Thread: the caller's. */
#include "base/err.h"
#include "base/map.h"
#include "proto/virga.pb-c.h"

#include <stdbool.h>

struct vg_log_show {
    bool times;            /* each line begins with its time */
    void (*wiped)(void *); /* called before something is written; may be NULL */
    void *user;            /* its argument */
    struct vg_map flows;   /* owned: by task id, 0 for a task alone */
};

/* Handles one answer. 0, or -errno with err; -EPIPE when our own reader left. */
int vg_log_show(struct vg_log_show *g, const Vg__Pb__LogData *d, struct vg_err *err);
/* The same output is about to come again from its beginning: what was shown is skipped. */
void vg_log_show_again(struct vg_log_show *g);
/* Nothing more will come: lines without an end are written too. 0 or -errno with err. */
int vg_log_show_end(struct vg_log_show *g, struct vg_err *err);
void vg_log_show_done(struct vg_log_show *g);
