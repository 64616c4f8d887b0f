#pragma once
/* What was used over time, as text. */
#include "proto/virga.pb-c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* `n` values as bars of eight heights between 0 and `most` (at least the largest), one character
   each; what nobody told (negative) is a space. Without UTF-8: as ASCII. Returns out, which has 3
   bytes for each and one more. */
char *vg_series_bars(const int64_t *v, size_t n, int64_t most, bool utf8, char *out);
/* Whether the terminal's people expect UTF-8, by the environment. */
bool vg_series_utf8(void);
/* The newest that was told, or -1. */
int64_t vg_series_last(const int64_t *v, size_t n);
/* A line for each number that was told at all, and when; `width` columns for the bars. */
void vg_series_print(const Vg__Pb__SeriesInfo *s, size_t width, bool utf8);
