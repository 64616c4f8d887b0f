#pragma once
/* Results side by side: tables for people, one JSON object a line for programs, an SVG. */
#include "sim/account.h"

#include <stdio.h>

struct vg_report_row {
    const char *policy; /* borrowed: a constant */
    char load[16];      /* "recorded", "0.90" */
    bool preempt, oracle;
    struct vg_result result; /* owned once added */
};

struct vg_report {
    struct vg_report_row *row; /* owned */
    size_t n, cap;
    char **tenant; /* owned; names for the plot, of the first workload */
    size_t n_tenants;
    uint64_t units;
};

/* Takes the row's result, also on failure. 0 or -ENOMEM. */
int vg_report_add(struct vg_report *r, struct vg_report_row *row, const struct vg_workload *w);
void vg_report_done(struct vg_report *r);
/* The rows from `first` on, which belong to one workload. */
void vg_report_print_tables(const struct vg_report *r, size_t first, const struct vg_workload *w,
                            bool tenants);
void vg_report_print_json(const struct vg_report *r, size_t row, const struct vg_workload *w);
int vg_report_plot(const struct vg_report *r, const char *path, struct vg_err *err);
