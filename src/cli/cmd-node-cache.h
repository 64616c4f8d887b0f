#pragma once
/* `virga node seed` and `virga node cache`: a node's stores of files, on that node. */
#include "cli/cmd.h"

extern const struct vg_opt vg_node_seed_opts[2];
int vg_node_seed_run(struct vg_cmd_line *l);
int vg_node_cache_run(struct vg_cmd_line *l);
