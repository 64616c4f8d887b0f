#pragma once
/* One line that says how far a group is. Pure text: whoever draws it decides where and how often.
 */
#include "proto/virga.pb-c.h"

#include <stddef.h>
#include <stdint.h>

/* "[####----] 37/256, 8 running, 1 failed, about 12m left", at most `columns` wide (0: no limit,
   and no bar). Wall times; `begun_usec` is when the watching began and `done_then` how many had
   ended by then, for an estimate where the cloud gives none. Returns out. */
char *vg_progress_line(const Vg__Pb__Progress *p, uint64_t now_usec, uint64_t begun_usec,
                       uint32_t done_then, unsigned columns, char *out, size_t n);
/* "37/256", and "37/256, 2 failed" where some failed. */
char *vg_progress_short(const Vg__Pb__Progress *p, char *out, size_t n);
uint32_t vg_progress_done(const Vg__Pb__Progress *p);
