#pragma once
/* Why a task waits, as people and programs read it. */
#include "proto/virga.pb-c.h"

#include <stdbool.h>
#include <stdio.h>

/* The sentence, then when it is expected to start and who holds what it waits for, where known. */
void vg_why_print(FILE *out, const Vg__Pb__WhyInfo *w);
/* Whether it could never start, whatever ends and however long it waits. */
bool vg_why_hopeless(const Vg__Pb__WhyInfo *w);
/* "2", "0.25" from thousandths. Returns out. */
char *vg_milli_text(uint64_t milli, char *out, size_t n);
/* "12.50 EUR" from millionths. Returns out. */
char *vg_cost_text(uint64_t micro, const char *currency, char *out, size_t n);
