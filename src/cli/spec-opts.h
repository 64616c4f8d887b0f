#pragma once
/* The options of vrun and vbatch, and the part of a request that they make. Nothing here touches
   the cloud, so it is tested from memory. Values borrow from argv or live until the process ends.
 */
#include "cli/opt.h"
#include "cli/spec-values.h"

#include <stdbool.h>
#include <stddef.h>

#define VG_PORTS_MAX 64
#define VG_SPEC_LABELS 64
#define VG_SPEC_PATHS 11 /* --writable, --allow */
#define VG_SET_ENV_MAX 1024

struct vg_spec_opts {
    bool batch;
    Vg__Pb__TaskSpec spec;
    Vg__Pb__Resources want;
    bool quiet, follow, detach, no_input, duplex, dry_run;
    bool strict, sync, node_files, snapshot, live;
    int tty; /* 0 auto, 1 yes, 2 no */
    const char *dir;
    const char *id_file; /* borrowed from argv */
    const char *ports[VG_PORTS_MAX];
    size_t n_ports;
    const char *writable[VG_SPEC_PATHS], *allow[VG_SPEC_PATHS];
    size_t n_writable, n_allow;
    const char *environment; /* --env; NULL: this machine's, or the node's */
    const char *image;       /* --image */
    const char *set_env[VG_SET_ENV_MAX];
    size_t n_set_env;
    char *labels[VG_SPEC_LABELS], *node_labels[VG_SPEC_LABELS];
};

/* The table; borrowed. */
const struct vg_opt *vg_spec_table(bool batch, size_t *ret_n);
void vg_spec_opts_init(struct vg_spec_opts *o, bool batch);
/* Takes one option that vg_opt_next() returned. 0, or VG_OPT_ERROR with st->err set. */
int vg_spec_opt(struct vg_spec_opts *o, struct vg_opt_state *st, int id, const char *arg);
/* It makes more than one task, now or later. */
bool vg_spec_opts_several(const Vg__Pb__TaskSpec *s);
/* Detached, from another machine: it gets a copy of that one's files. */
bool vg_spec_opts_pins(const struct vg_spec_opts *o);
/* What can be said only when all options are known. 0, or -errno with err. */
int vg_spec_opts_check(const struct vg_spec_opts *o, struct vg_err *err);
