/* Organisations and teams. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/audit.h"
#include "control/kept.h"
#include "control/later.h"
#include "control/policy.h"
#include "control/secrets.h"
#include "control/users.h"

#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name

static void out_of_memory(struct vg_call *call) {
    vg_peer_error(call->peer, call->req, VG_INTERNAL, "the control plane is out of memory");
}

static const char *name_in(const Vg__Pb__NameRef *m) {
    return m->name ? m->name : "";
}

static int no_such(const char *what, const char *name, struct vg_err *err) {
    return vg_err_set(err, VG_NOT_FOUND, "there is no %s '%.64s': 'virga %s list' shows them",
                      strcmp(what, "org") == 0 ? "organisation" : what, name, what);
}

/* ------------------------------------------------------------------ organisations */

void vg_api_org_set(struct vg_call *call) {
    const Vg__Pb__OrgSet *m = call->env->org_set;
    struct vg_err err = VG_ERR_INIT;
    uint64_t now = vg_wall_usec();
    /* Of one that there is nothing changes; that it is stored is answered by the store. */
    bool there = m->name && vg_tenants_org(&call->ctl->tenants, m->name);
    if (!there && vg_tenants_add_org(&call->ctl->tenants, m->name, now, &err) < 0) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    if (!there)
        vg_audit(call, "organisation %s added", m->name);
    struct vg_org_row row = {.name = m->name, .created_usec = now};
    struct vg_later *l = vg_later_new(call);
    if (!l || vg_store_put_org(call->ctl->store, &row, vg_later_stored, l) < 0) {
        free(l);
        if (!there)
            vg_tenants_remove_org(&call->ctl->tenants, m->name);
        out_of_memory(call);
    }
}

static int check_org_removal(struct vg_call *call, const char *name, struct vg_err *err) {
    if (!vg_tenants_org(&call->ctl->tenants, name))
        return no_such("org", name, err);
    if (strcmp(name, VG_ORG_DEFAULT) == 0)
        return vg_err_set(err, VG_CONFLICT,
                          "organisation '%s' stays: people who belong nowhere else are in it",
                          name);
    vg_map_for_each (s, &call->ctl->tenants.teams) {
        const struct vg_team *t = s->value;
        if (strcmp(t->org, name) == 0)
            return vg_err_set(err, VG_CONFLICT,
                              "organisation '%s' has teams, such as '%s': move or remove them "
                              "first",
                              name, t->name);
    }
    return 0;
}

void vg_api_org_remove(struct vg_call *call) {
    const char *name = name_in(call->env->org_remove);
    struct vg_err err = VG_ERR_INIT;
    if (check_org_removal(call, name, &err) < 0) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    vg_audit(call, "organisation %s removed", name);
    struct vg_later *l = vg_later_new(call);
    if (!l || vg_store_del_org(call->ctl->store, name, vg_later_stored, l) < 0) {
        free(l);
        out_of_memory(call);
        return;
    }
    vg_tenants_remove_org(&call->ctl->tenants, name);
}

/* Numbers are for those who may see everything: how large others are is theirs to tell. */
void vg_api_org_list(struct vg_call *call) {
    struct vg_control *c = call->ctl;
    bool all = vg_user_may(call->user, VG_ACT_SEE_ALL);
    size_t n = 0, max = vg_map_len(&c->tenants.orgs) + 1;
    vg_auto_free Vg__Pb__OrgInfo *info = vg_alloc(max * sizeof *info);
    vg_auto_free Vg__Pb__OrgInfo **list = vg_alloc(max * sizeof *list);
    if (!info || !list) {
        out_of_memory(call);
        return;
    }
    vg_map_for_each (s, &c->tenants.orgs) {
        const struct vg_org *o = s->value;
        if (!all && strcmp(o->name, call->user->team->org) != 0)
            continue;
        Vg__Pb__OrgInfo *m = list[n] = &info[n];
        n++;
        vg__pb__org_info__init(m);
        m->name = o->name;
        m->has_created_usec = 1;
        m->created_usec = o->created_usec;
        m->has_teams = m->has_users = all;
        vg_map_for_each (k, &c->tenants.teams) {
            const struct vg_team *t = k->value;
            bool in = all && strcmp(t->org, o->name) == 0;
            m->teams += in;
            m->users += in ? t->users : 0;
        }
    }
    VG_ENVELOPE(env);
    Vg__Pb__OrgList m = VG__PB__ORG_LIST__INIT;
    m.org = list;
    m.n_org = n;
    env.body_case = B(ORGS);
    env.orgs = &m;
    vg_peer_send(call->peer, call->req, false, &env);
}

/* ------------------------------------------------------------------ teams */

static int store_team(struct vg_call *call, const struct vg_team *t) {
    struct vg_team_row row = {.name = t->name, .org = t->org, .created_usec = t->created_usec};
    struct vg_later *l = vg_later_new(call);
    int r = l ? vg_store_put_team(call->ctl->store, &row, vg_later_stored, l) : -ENOMEM;
    if (r < 0)
        free(l);
    return r;
}

void vg_api_team_add(struct vg_call *call) {
    const Vg__Pb__UserSet *m = call->env->team_add;
    struct vg_tenants *all = &call->ctl->tenants;
    struct vg_err err = VG_ERR_INIT;
    struct vg_team *t = NULL;
    const char *name = m->team && *m->team ? m->team : m->name;
    const char *org = m->org && *m->org ? m->org : call->user->team->org;
    int r = vg_tenants_org(all, org) ? 0 : no_such("org", org, &err);
    if (r >= 0)
        r = vg_tenants_add_team(all, org, name, vg_wall_usec(), &t, &err);
    if (r < 0) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    vg_audit(call, "team %s added to organisation %s", name, org);
    if (store_team(call, t) < 0) {
        vg_tenants_remove_team(all, name);
        out_of_memory(call);
    }
}

static struct vg_team *find_team(struct vg_call *call, const char *name, struct vg_err *err) {
    struct vg_team *t = vg_tenants_team(&call->ctl->tenants, name);
    if (!t)
        no_such("team", name, err);
    else if (strcmp(name, VG_TEAM_DEFAULT) == 0)
        vg_err_set(err, VG_CONFLICT,
                   "team '%s' stays where it is: people whom nobody has put into a team are in it",
                   name);
    return err->reason ? NULL : t;
}

/* What its people have in the queue is ordered by where the team stands. */
static bool has_open_tasks(const struct vg_control *c, const struct vg_team *t) {
    vg_map_for_each (s, &c->jobs) {
        const struct vg_task *k = ((const struct vg_job *)s->value)->task;
        if (!vg_task_is_ended(k) && strcmp(k->team, t->name) == 0)
            return true;
    }
    return false;
}

void vg_api_team_set(struct vg_call *call) {
    const Vg__Pb__TeamSet *m = call->env->team_set;
    struct vg_control *c = call->ctl;
    struct vg_err err = VG_ERR_INIT;
    struct vg_team *t = find_team(call, m->name ? m->name : "", &err);
    const char *org = m->org ? m->org : "";
    int r = t ? 0 : -ENOENT;
    if (t && !vg_tenants_org(&c->tenants, org))
        r = no_such("org", org, &err);
    else if (t && has_open_tasks(c, t))
        r = vg_err_set(&err, VG_CONFLICT,
                       "team '%s' has unfinished tasks: wait until they have ended, then move it",
                       t->name);
    if (r >= 0)
        vg_kept_cut(c, NULL);
    if (r >= 0 && vg_tenants_move_team(&c->tenants, t, org) < 0)
        r = vg_err_sys(&err, -ENOMEM, "cannot move the team");
    if (r < 0) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    vg_policy_forget_team(&c->policy, t->name);
    vg_audit(call, "team %s moved to organisation %s", t->name, org);
    if (store_team(call, t) < 0)
        out_of_memory(call);
}

void vg_api_team_remove(struct vg_call *call) {
    const char *name = name_in(call->env->team_remove);
    struct vg_control *c = call->ctl;
    struct vg_err err = VG_ERR_INIT;
    struct vg_team *t = find_team(call, name, &err);
    if (t && t->users)
        vg_err_set(&err, VG_CONFLICT,
                   "team '%s' has %u user%s: 'virga user set NAME --team OTHER' moves them", name,
                   t->users, t->users == 1 ? "" : "s");
    else if (t && has_open_tasks(c, t))
        vg_err_set(&err, VG_CONFLICT,
                   "team '%s' has unfinished tasks: wait until they have ended, then remove it",
                   name);
    if (err.reason) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    vg_audit(call, "team %s removed", name);
    struct vg_later *l = vg_later_new(call);
    if (!l || vg_store_del_team(c->store, name, vg_later_stored, l) < 0) {
        free(l);
        out_of_memory(call);
        return;
    }
    vg_policy_forget_team(&c->policy, name);
    vg_secrets_forget_team(c, name);
    vg_tenants_remove_team(&c->tenants, name);
}

void vg_api_team_list(struct vg_call *call) {
    struct vg_control *c = call->ctl;
    size_t n = 0, max = vg_map_len(&c->tenants.teams) + 1;
    vg_auto_free Vg__Pb__TeamInfo *info = vg_alloc(max * sizeof *info);
    vg_auto_free Vg__Pb__TeamInfo **list = vg_alloc(max * sizeof *list);
    if (!info || !list) {
        out_of_memory(call);
        return;
    }
    vg_map_for_each (s, &c->tenants.teams) {
        const struct vg_team *t = s->value;
        if (!vg_users_know_team(call->user, t))
            continue;
        Vg__Pb__TeamInfo *m = list[n] = &info[n];
        n++;
        vg__pb__team_info__init(m);
        m->name = t->name;
        m->org = t->org;
        m->has_users = vg_users_may_see(call->user, "", t->name);
        m->users = m->has_users ? t->users : 0;
        m->has_created_usec = m->has_users;
        m->created_usec = m->has_users ? t->created_usec : 0;
    }
    VG_ENVELOPE(env);
    Vg__Pb__TeamList m = VG__PB__TEAM_LIST__INIT;
    m.team = list;
    m.n_team = n;
    env.body_case = B(TEAMS);
    env.teams = &m;
    vg_peer_send(call->peer, call->req, false, &env);
}
