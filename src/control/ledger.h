#pragma once
/* The ledger: what each attempt held, at which price, and what that cost. Rows are only ever added.

   An attempt's rows follow each other without a gap from its start to its end; each ends where a
   day does, where the price or the task's share changed, or with the attempt. They are queued
   before the attempt's own row (history.h), so that a keeper is let go only when they are stored.
   What is not written yet is always worked out by the same walk from the last row on: a program
   that is killed in between neither loses nor doubles anything. docs/money.md has the rules.
   Loop thread. */
#include "control/job.h"
#include "meter/charge.h"

#define VG_LEDGER_HELD "held"
#define VG_LEDGER_BACK "back" /* held, taken back: the attempt had ended before */
#define VG_LEDGER_UNUSED "unused"
#define VG_LEDGER_STORAGE "storage"
#define VG_LEDGER_CREDIT "credit"

/* How far an attempt is written, and what the task's other attempts cost. */
struct vg_meter {
    uint32_t attempt;    /* that the rest is about */
    uint32_t part;       /* its rows so far */
    uint64_t until_usec; /* where they end; 0: there are none */
    vg_wide rest;        /* what is left of a millionth */
    char currency[VG_CURRENCY_MAX + 1];
    int64_t billed, earlier; /* by its rows; by those of other attempts */
    struct vg_money unused;  /* what would be off if its GPUs had done nothing so far */
    bool closed;             /* what is off is written */
    uint64_t energy_mj, busy_usec, unused_usec; /* what its rows have of these */
};

int vg_ledger_open(struct vg_control *c, struct vg_err *err);
/* What is written of the tasks in memory. */
int vg_ledger_restore(struct vg_control *c, struct vg_err *err);

/* The attempt's hold changes now: what it held until then is written. */
void vg_ledger_cut(struct vg_job *j, uint64_t now_usec);
/* The attempt is over. 0 or -errno. */
int vg_ledger_end(struct vg_job *j, uint64_t until_usec);
/* Once a day, what runs is written until midnight (UTC): months can be closed. */
void vg_ledger_tick(struct vg_control *c);
/* Adds a row; its number is given here. `cb` (may be NULL) is told when it is stored. 0 or -errno:
   it is not told. */
int vg_ledger_add(struct vg_control *c, struct vg_ledger_row *row, vg_store_cb *cb, void *arg);

/* What is held or kept and not written yet, as rows without a number. */
void vg_ledger_running(struct vg_control *c, uint64_t now_usec, vg_ledger_row_cb *cb, void *arg);
void vg_ledger_running_of(const struct vg_job *j, uint64_t now_usec, vg_ledger_row_cb *cb,
                          void *arg);
/* What the job has cost until now, all attempts together; below 0 only after credits. */
int64_t vg_ledger_spent(const struct vg_job *j, uint64_t now_usec);
/* What an hour of it costs now; 0 when it does not run. */
uint64_t vg_ledger_rate(const struct vg_job *j, uint64_t now_usec);
/* Until when --max-cost pays for the attempt that runs; UINT64_MAX: there is none, or for ever. */
uint64_t vg_ledger_pays_until(const struct vg_job *j);
/* Prices or shares changed: what --max-cost pays for is looked at again. */
void vg_ledger_look(struct vg_control *c);
/* What it is charged to: its project, or its label of that name; "": none. */
const char *vg_ledger_project(const Vg__Pb__TaskSpec *s);
