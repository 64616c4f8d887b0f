#pragma once
/* Inside the trace readers: a file's lines, cut into columns in place. */
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

#define VG_CSV_COLUMNS_MAX 16

struct vg_csv {
    const char *path; /* borrowed; for messages */
    char *text;       /* owned until the trace takes it; NUL-ended */
    char *at;         /* the rest */
    unsigned line;    /* of the row that was read last */
    size_t columns;
    char *col[VG_CSV_COLUMNS_MAX]; /* into text */
};

/* Reads the file (plain or gzip) and checks that its first line is `header`. */
int vg_csv_open(struct vg_csv *c, const char *path, const char *header, struct vg_err *err);
void vg_csv_close(struct vg_csv *c);
/* 1: col[] holds the next row; 0: end; negative: a row with too few or too many columns. Empty
   lines are skipped. */
int vg_csv_next(struct vg_csv *c, struct vg_err *err);
/* Column i as a whole number up to max; an empty one is 0 only where `may_be_empty`. "66.0" is
   whole, "66.5" is rounded. */
int vg_csv_number(struct vg_csv *c, size_t i, uint64_t max, int may_be_empty, uint64_t *ret,
                  struct vg_err *err);
/* "file:line: " in front of a sentence about the present row. */
int vg_csv_bad(const struct vg_csv *c, struct vg_err *err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
