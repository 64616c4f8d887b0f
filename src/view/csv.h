#pragma once
/* Lists as CSV (RFC 4180): what `-o csv` prints and what REST answers to text/csv. */
#include "base/buf.h"

#include <jansson.h>
#include <stdbool.h>

/* One line for each object of the array, its members in their order, after one of their names if
   wanted. 0 or -ENOMEM. */
int vg_csv_rows(struct vg_buf *out, const json_t *rows, bool heading);
