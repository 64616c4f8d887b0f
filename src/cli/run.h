#pragma once
/* vrun, vbatch and attach: a command elsewhere that feels as if it ran here. */
#include "cli/opt.h"

#include <stdbool.h>
#include <stddef.h>

int vg_run_main(int argc, char **argv, bool batch); /* vrun, vbatch; returns the exit status */
int vg_attach_main(int argc, char **argv);          /* virga attach TASK */
/* The options, for completion; borrowed. */
const struct vg_opt *vg_run_options(bool batch, size_t *ret_n);
