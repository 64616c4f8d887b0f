#pragma once
/* Questions about the ledger: what was spent, the rows themselves, credits. Much may have to be
   read, so a thread of the loop's pool does, on a connection of its own; nothing waits for it.

   An answer is of one moment: what runs is worked out when the question comes, and of the ledger
   exactly the rows that had been queued by then are read, once all of them are stored. Loop thread.
 */
#include "control/control.h"

struct vg_call;

#define VG_ASKED_MAX 64    /* questions that wait or are read */
#define VG_ASKED_READ 2    /* of these: read at once */
#define VG_LEDGER_PAGE 500 /* rows of a page, unless less is asked for */
#define VG_LEDGER_PAGE_MAX 5000

void vg_api_cost(struct vg_call *call);
void vg_api_ledger(struct vg_call *call);
void vg_api_credit(struct vg_call *call);
/* The sum of what such rows cost in the cloud's currency, as of now; `fn` is called later, unless
   this fails. */
typedef void vg_cost_sum_fn(void *arg, int result, int64_t sum_micro);
int vg_cost_sum(struct vg_control *c, const struct vg_ledger_filter *f, vg_cost_sum_fn *fn,
                void *arg);
/* More of the ledger is stored: questions that waited for it are read. */
void vg_cost_go_on(struct vg_control *c);
void vg_cost_done(struct vg_control *c); /* after the loop's last turn */
