#pragma once
/* Budgets: what somebody may spend in a period, who is told when much of it is spent, and what
   happens when all of it is: nothing (warn), nothing new starts (queue), or what runs is ended by
   then, too (stop).

   Spent is what the ledger has of the period and what runs now. When a budget will be used up is
   worked out whenever something starts, ends or changes its price, and a timer waits for it: what a
   stopped task costs beyond the limit is what it takes to end it. Loop thread. */
#include "control/job.h"
#include "meter/period.h"
#include "store/rows.h"

struct vg_call;
struct vg_budgets;

#define VG_BUDGETS_MAX 10000
#define VG_BUDGET_WARNS_MAX 8
#define VG_BUDGET_GRACE_MAX (86400ULL * 1000000)

int vg_budgets_open(struct vg_control *c, struct vg_err *err);
void vg_budgets_stop(struct vg_control *c); /* before the loop's last turns */
void vg_budgets_done(struct vg_control *c);
/* A row was added to the ledger. */
void vg_budgets_charge(struct vg_control *c, const struct vg_ledger_row *row);
/* Something started, ended, or costs another price: soon everything is looked at. */
void vg_budgets_look(struct vg_control *c);
void vg_budgets_tick(struct vg_control *c);
/* Whether a budget keeps the task out of the scheduler: it is marked, and comes again when there
   is money. */
bool vg_budgets_hold(struct vg_job *j);
/* Why, in one sentence. */
void vg_budgets_why(const struct vg_job *j, char *out, size_t n);

void vg_api_budget_set(struct vg_call *call);
void vg_api_budget_list(struct vg_call *call);
void vg_api_budget_remove(struct vg_call *call);
