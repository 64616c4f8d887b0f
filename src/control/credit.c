/* Corrections of the ledger: a row of its own, with who gave it and why. */
#include "base/util.h"
#include "control/api.h"
#include "control/audit.h"
#include "control/cost.h"
#include "control/later.h"
#include "control/ledger.h"

#include <string.h>

static int check_credit(const struct vg_call *call, const Vg__Pb__CreditAdd *m, const char **team,
                        const char **org, struct vg_err *err) {
    const struct vg_tenants *all = &call->ctl->tenants;
    const struct vg_user *u = m->user && *m->user ? vg_tenants_user(all, m->user) : NULL;
    const struct vg_team *t = m->team && *m->team ? vg_tenants_team(all, m->team)
                              : u                 ? u->team
                                                  : NULL;
    if (m->user && *m->user && !u)
        return vg_err_set(err, VG_NOT_FOUND, "there is no user '%.63s'", m->user);
    if (!t)
        return vg_err_set(err, m->team && *m->team ? VG_NOT_FOUND : VG_INVALID,
                          m->team && *m->team ? "there is no such team"
                                              : "say whose: --user or --team");
    if (!m->amount_micro || m->amount_micro > INT64_MAX / 4 || m->amount_micro < -INT64_MAX / 4)
        return vg_err_set(err, VG_INVALID, "say how much");
    if (!m->text || !*m->text || strlen(m->text) > 500)
        return vg_err_set(err, VG_INVALID, "say why: it stands in the ledger for ever");
    *team = t->name;
    *org = t->org;
    return 0;
}

void vg_api_credit(struct vg_call *call) {
    const Vg__Pb__CreditAdd *m = call->env->credit;
    struct vg_err err = VG_ERR_INIT;
    const char *team = "", *org = "";
    int r = check_credit(call, m, &team, &org, &err);
    struct vg_later *l = r >= 0 ? vg_later_new(call) : NULL;
    if (r >= 0 && !l)
        r = vg_err_sys(&err, ENOMEM, "cannot give it");
    if (r < 0) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    uint64_t now = vg_wall_usec();
    struct vg_ledger_row row = {.kind = VG_LEDGER_CREDIT,
                                .from_usec = now,
                                .until_usec = now,
                                .user = m->user ? m->user : "",
                                .team = team,
                                .org = org,
                                .project = m->project ? m->project : "",
                                .currency = call->ctl->conf.currency,
                                .cost_micro = -m->amount_micro,
                                .text = m->text,
                                .who = call->user->name};
    r = vg_ledger_add(call->ctl, &row, vg_later_stored, l);
    if (r < 0) {
        vg_later_stored(l, r);
        return;
    }
    vg_audit(call, "credit of %lld millionths of %s to user '%s' of team '%s': %.200s",
             (long long)m->amount_micro, row.currency, row.user, team, m->text);
}
