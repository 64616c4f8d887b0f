#pragma once
/* Amounts and times of `virga price`, `cost`, `usage` and `budget`, as people write and read them.
 */
#include "cli/amount.h"
#include "cli/cmd.h"

#include <stdint.h>

/* "2.49" -> millionths; 0 is one. 0, or VG_OPT_ERROR with the sentence set. */
int vg_opt_micro(struct vg_cmd_line *l, const char *arg, uint64_t *ret);
/* "30", "12.5%" -> thousandths of a percent. */
int vg_opt_percent(struct vg_cmd_line *l, const char *arg, uint32_t *ret);
/* "2026-11-01", "2026-11-01 08:00", with a zone if wanted; "now"; "7d" (so long ago). */
int vg_opt_when(struct vg_cmd_line *l, const char *arg, uint64_t *ret_usec);
