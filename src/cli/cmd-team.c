/* `virga team` and `virga org`: where people belong. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/list.h"

static const char *number(bool known, uint32_t n, char out[static 16]) {
    snprintf(out, 16, "%u", n);
    return known ? out : NULL;
}

/* ------------------------------------------------------------------ teams */

static void team_rows(const Vg__Pb__Envelope *env, struct vg_table *t) {
    for (size_t i = 0; i < env->teams->n_team; i++) {
        const Vg__Pb__TeamInfo *m = env->teams->team[i];
        char age[48], users[16];
        const char *cells[] = {m->name, m->org, number(m->has_users, m->users, users),
                               vg_ago(m->created_usec, age, sizeof(age))};
        vg_table_row(t, cells);
    }
}

static const struct vg_lister team_lister = {
    .body = VG__PB__ENVELOPE__BODY_TEAMS,
    .headings = (const char *const[]){"TEAM", "ORG", "USERS", "ADDED", NULL},
    .rows = team_rows,
    .view = &vg_view_teams};

static int team_list_run(struct vg_cmd_line *l) {
    Vg__Pb__Empty body = VG__PB__EMPTY__INIT;
    Vg__Pb__Envelope req = vg_request(TEAM_LIST, team_list, &body);
    return vg_list_run(l, &req, &team_lister);
}

static const struct vg_opt org_opts[] = {
    {"org", 0, "ORG", "the organisation that the team is in", 'O'},
};

/* TEAM and --org. */
static bool team_parse(struct vg_cmd_line *l, char **team, char **org) {
    const char *arg;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return false;
        *org = (char *)arg;
    }
    if (!vg_cmd_args(l, 1, 1))
        return false;
    *team = l->args[0];
    return true;
}

static int team_add_run(struct vg_cmd_line *l) {
    Vg__Pb__UserSet u = VG__PB__USER_SET__INIT;
    Vg__Pb__Envelope req = vg_request(TEAM_ADD, team_add, &u);
    return team_parse(l, &u.name, &u.org) ? vg_change_run(&req) : l->exit;
}

static int team_set_run(struct vg_cmd_line *l) {
    Vg__Pb__TeamSet t = VG__PB__TEAM_SET__INIT;
    Vg__Pb__Envelope req = vg_request(TEAM_SET, team_set, &t);
    return team_parse(l, &t.name, &t.org) ? vg_change_run(&req) : l->exit;
}

static int team_rm_run(struct vg_cmd_line *l) {
    Vg__Pb__NameRef ref = VG__PB__NAME_REF__INIT;
    Vg__Pb__Envelope req = vg_request(TEAM_REMOVE, team_remove, &ref);
    return vg_name_run(l, &ref.name, &req);
}

static const struct vg_cmd team_subs[] = {
    {"list", "", "teams of your organisation", VG_LIST_OPTS, .run = team_list_run},
    {"add", "TEAM", "make a team", org_opts, VG_COUNT(org_opts), .run = team_add_run},
    {"set", "TEAM", "move a team to another organisation", org_opts, VG_COUNT(org_opts),
     .run = team_set_run},
    {"rm", "TEAM", "remove a team in which nobody is", .run = team_rm_run},
};

const struct vg_cmd vg_cmd_team = {.name = "team",
                                   .args = "",
                                   .summary = "teams: list, add, set, rm",
                                   .subs = team_subs,
                                   .n_subs = VG_COUNT(team_subs)};

/* ------------------------------------------------------------------ organisations */

static void org_rows(const Vg__Pb__Envelope *env, struct vg_table *t) {
    for (size_t i = 0; i < env->orgs->n_org; i++) {
        const Vg__Pb__OrgInfo *m = env->orgs->org[i];
        char age[48], users[16], teams[16];
        const char *cells[] = {m->name, number(m->has_teams, m->teams, teams),
                               number(m->has_users, m->users, users),
                               vg_ago(m->created_usec, age, sizeof(age))};
        vg_table_row(t, cells);
    }
}

static const struct vg_lister org_lister = {
    .body = VG__PB__ENVELOPE__BODY_ORGS,
    .headings = (const char *const[]){"ORG", "TEAMS", "USERS", "ADDED", NULL},
    .rows = org_rows,
    .view = &vg_view_orgs};

static int org_list_run(struct vg_cmd_line *l) {
    Vg__Pb__Empty body = VG__PB__EMPTY__INIT;
    Vg__Pb__Envelope req = vg_request(ORG_LIST, org_list, &body);
    return vg_list_run(l, &req, &org_lister);
}

static int org_add_run(struct vg_cmd_line *l) {
    Vg__Pb__OrgSet o = VG__PB__ORG_SET__INIT;
    Vg__Pb__Envelope req = vg_request(ORG_SET, org_set, &o);
    return vg_name_run(l, &o.name, &req);
}

static int org_rm_run(struct vg_cmd_line *l) {
    Vg__Pb__NameRef ref = VG__PB__NAME_REF__INIT;
    Vg__Pb__Envelope req = vg_request(ORG_REMOVE, org_remove, &ref);
    return vg_name_run(l, &ref.name, &req);
}

static const struct vg_cmd org_subs[] = {
    {"list", "", "organisations of the cloud that you may know of", VG_LIST_OPTS,
     .run = org_list_run},
    {"add", "ORG", "make an organisation", .run = org_add_run},
    {"rm", "ORG", "remove an organisation that has no teams", .run = org_rm_run},
};

const struct vg_cmd vg_cmd_org = {.name = "org",
                                  .args = "",
                                  .summary = "organisations: list, add, rm",
                                  .subs = org_subs,
                                  .n_subs = VG_COUNT(org_subs)};
