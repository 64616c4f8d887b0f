#pragma once
/* What users keep in the store of environments, and what that costs: rows of the ledger of kind
   "storage", one user's following each other.

   Only the store's process (env.h) knows what there is: it is asked when virgad starts and when
   something was saved or removed. A version costs from its creation, which the store keeps, until
   its removal is asked for; a removal goes on to the store when the row until then is stored. So
   what is not written yet can always be worked out from the last row and from what is there: a
   program that is killed in between neither loses nor doubles anything. As long as nothing that
   is kept has a price, nothing is asked and nothing waits. Loop thread. */
#include "control/control.h"

struct vg_call;

#define VG_KEPT_ASKING_MAX 64    /* users whom the store is asked about at once */
#define VG_KEPT_REMOVALS_MAX 512 /* that wait for their rows */

int vg_kept_open(struct vg_control *c, struct vg_err *err);
void vg_kept_done(struct vg_control *c);
/* Prices changed: what is kept may cost something now. */
void vg_kept_look(struct vg_control *c);
/* Something of the user's was stored or is gone: the store is asked. */
void vg_kept_ask(struct vg_control *c, const char *user);
/* What the store answered; NULL: it could not. */
void vg_kept_told(struct vg_control *c, const char *user, const Vg__Pb__EnvList *list);
/* The user's team or organisation changes now (NULL: everybody's may), or he is removed. */
void vg_kept_cut(struct vg_control *c, const char *user);
void vg_kept_forget(struct vg_control *c, const char *user);
/* A client asks for a removal. True: it is passed on (vg_envs_remove) when its row is stored, and
   answered then; false: nothing has to wait. */
bool vg_kept_remove(struct vg_call *call, const char *ref);
/* It was passed on and has been answered. */
void vg_kept_removed(struct vg_control *c, const char *user);
/* More of the ledger is stored. */
void vg_kept_go_on(struct vg_control *c);
/* What is kept is written until midnight; what could not be asked is asked again. */
void vg_kept_tick(struct vg_control *c);

/* What is kept and not written yet, as rows without a number. */
void vg_kept_running(struct vg_control *c, uint64_t now_usec, vg_ledger_row_cb *cb, void *arg);
/* What an hour of it costs now, of each user who keeps something that costs. */
typedef void vg_kept_rate_fn(void *arg, const char *user, const struct vg_team *team,
                             uint64_t rate_micro_hour);
void vg_kept_rates(struct vg_control *c, uint64_t now_usec, vg_kept_rate_fn *fn, void *arg);
