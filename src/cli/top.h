#pragma once
/* Commands that look again and again: on a terminal the screen is drawn anew, elsewhere each look
   is printed. */
#include "cli/client.h"
#include "cli/cmd.h"

#define VG_TOP_OPTS                                                                          \
    {"count", 'n', "N", "leave after N looks (default: none on a terminal, else 1)", 'n'}, { \
        "interval", 'i', "DURATION", "between them (default 1s)", 'i'                        \
    }

struct vg_top {
    bool json, screen;
    uint64_t count, every_usec; /* count 0: for ever */
    /* One look: asks and prints. Negative: err is set. */
    int (*look)(struct vg_top *top, struct vg_client *c, struct vg_err *err);
    void *user;
};

void vg_top_init(struct vg_top *top);
/* Handles one of the options above: 1 taken, 0 not one of them, -1 l->exit is set. */
int vg_top_opt(struct vg_cmd_line *l, struct vg_top *top, int id, const char *arg);
/* All options are read: looks until it is done; the exit status. */
int vg_top_run(struct vg_cmd_line *l, struct vg_top *top);
/* Before and after a look's text. -EPIPE: whoever read it has left; err is set. */
void vg_top_clear(const struct vg_top *top);
int vg_top_shown(const struct vg_top *top, struct vg_err *err);
