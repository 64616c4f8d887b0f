#pragma once
/* Amounts of money as people read them. */
#include <stddef.h>
#include <stdint.h>

/* Millionths for people: "12.50", "-0.000003". At least two decimals, no more than needed. */
char *vg_micro_text(int64_t micro, char *out, size_t n);
/* Thousandths of a percent: "30%", "12.5%"; 0: NULL. */
char *vg_percent_text(uint32_t milli, char *out, size_t n);
