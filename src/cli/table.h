#pragma once
/* Tables for people: aligned columns, trimmed to the terminal's width. Text from tasks and other
   users is made harmless first: control characters never reach the terminal. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct vg_table;

/* Headings, NULL-ended, borrowed. The last column is the one that is cut when lines are too long.
 */
struct vg_table *vg_table_new(const char *const *headings);
/* That column is left out where nobody has anything in it. */
void vg_table_optional(struct vg_table *t, size_t column);
/* Copies one row: as many strings as headings; NULL prints as "-". Out of memory drops the row. */
void vg_table_row(struct vg_table *t, const char *const *cells);
/* Prints and frees. width 0: the terminal's, or unlimited when `out` is none. Where the width is
   limited, columns without a single value are left out. */
void vg_table_print(struct vg_table *t, FILE *out, unsigned width);

void vg_table_free(struct vg_table *t); /* NULL is fine */

/* Columns of the terminal behind `out`, or 0 when it is none. */
unsigned vg_table_width(FILE *out);

/* Copies text with control characters (and broken UTF-8) replaced by '?'; ends with NUL; returns
   out. Cut where the room ends, never inside a character. */
char *vg_clean(char *out, size_t room, const void *text, size_t n);

/* "3m ago" for a wall time, "-" for 0. */
char *vg_ago(uint64_t wall_usec, char *out, size_t n);
/* "2026-11-15 08:30:12" local time. */
char *vg_when(uint64_t wall_usec, char *out, size_t n);
