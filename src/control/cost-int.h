#pragma once
/* Between cost.c, which takes questions and reads the ledger, and cost-answer.c. */
#include "control/cost.h"
#include "meter/tally.h"

#include <uv.h>

struct vg_peer;

struct vg_kept_row {
    struct vg_ledger_row row;
    char *text; /* owned: everything that the row borrows */
};

struct vg_ask {
    struct vg_list link; /* in vg_control.asked until it is answered */
    uv_work_t work;
    struct vg_control *ctl;
    uint64_t peer;
    uint32_t req;
    bool reading, pages;
    vg_cost_sum_fn *sum; /* not a question of a peer's but of this */
    void *sum_arg;
    char *path; /* owned */
    char user[64], team[64], org[64], pool[64], project[64], currency[VG_CURRENCY_MAX + 1];
    struct vg_ledger_filter f;
    struct vg_tally tally;
    uint32_t limit;
    int64_t running_micro;
    struct vg_kept_row *rows; /* owned; of a page */
    size_t n_rows, rows_cap;
    int result;
};

/* Sends what the question came to. */
void vg_cost_send(struct vg_ask *a, struct vg_peer *p);
void vg_cost_send_rows(struct vg_ask *a, struct vg_peer *p);
