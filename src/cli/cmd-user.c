/* `virga user` and `virga team`: who may use the cloud. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/list.h"

static void rows(const Vg__Pb__Envelope *env, struct vg_table *t) {
    for (size_t i = 0; i < env->users->n_user; i++) {
        const Vg__Pb__UserInfo *u = env->users->user[i];
        char uid[16], age[48];
        snprintf(uid, sizeof(uid), "%u", u->uid);
        const char *cells[] = {u->name, u->team, u->role, u->has_uid ? uid : NULL,
                               vg_ago(u->created_usec, age, sizeof(age))};
        vg_table_row(t, cells);
    }
}

static const struct vg_lister lister = {
    .body = VG__PB__ENVELOPE__BODY_USERS,
    .headings = (const char *const[]){"USER", "TEAM", "ROLE", "UID", "ADDED", NULL},
    .rows = rows,
    .view = &vg_view_users};

static int list_run(struct vg_cmd_line *l) {
    Vg__Pb__Empty body = VG__PB__EMPTY__INIT;
    Vg__Pb__Envelope req = vg_request(USER_LIST, user_list, &body);
    return vg_list_run(l, &req, &lister);
}

static const struct vg_opt add_opts[] = {
    {"team", 't', "TEAM", "the team they belong to", 't'},
    {"role", 'r', "ROLE", "admin, lead, member (default) or viewer", 'r'},
    {"uid", 0, "UID", "the unix user of this machine they are", 'u'},
    {"gid", 0, "GID", "and the group", 'g'},
};

static int add_parse(struct vg_cmd_line *l, Vg__Pb__UserSet *u) {
    static const char *const roles[] = {"admin", "lead", "member", "viewer", NULL};
    const char *arg;
    uint64_t n = 0;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        int which, r = 0;
        if (id == VG_OPT_ERROR)
            return -1;
        if (id == 't')
            u->team = (char *)arg;
        if (id == 'r' && (r = vg_opt_choice(&l->st, arg, roles, &which)) == 0)
            u->role = (char *)arg;
        if (id == 'u' && (r = vg_opt_u64(&l->st, arg, 0, UINT32_MAX - 1, &n)) == 0)
            u->has_uid = true, u->uid = (uint32_t)n;
        if (id == 'g' && (r = vg_opt_u64(&l->st, arg, 0, UINT32_MAX - 1, &n)) == 0)
            u->has_gid = true, u->gid = (uint32_t)n;
        if (r < 0) {
            l->exit = vg_cmd_fail_opt(l);
            return -1;
        }
    }
    return vg_cmd_args(l, 1, 1) ? 0 : -1;
}

static int add_run(struct vg_cmd_line *l) {
    Vg__Pb__UserSet u = VG__PB__USER_SET__INIT;
    Vg__Pb__Envelope req = vg_request(USER_ADD, user_add, &u);
    if (add_parse(l, &u) < 0)
        return l->exit;
    u.name = l->args[0];
    return vg_change_run(&req);
}

static int rm_run(struct vg_cmd_line *l) {
    Vg__Pb__NameRef ref = VG__PB__NAME_REF__INIT;
    Vg__Pb__Envelope req = vg_request(USER_REMOVE, user_remove, &ref);
    if (!vg_cmd_plain(l, 1, 1))
        return l->exit;
    ref.name = l->args[0];
    return vg_change_run(&req);
}

static const struct vg_cmd user_subs[] = {
    {"list", "", "who may use the cloud", VG_LIST_OPTS, .run = list_run},
    {"add", "USER", "let somebody in (then: virga token create --user USER)", add_opts,
     VG_COUNT(add_opts), .run = add_run},
    {"rm", "USER", "take somebody's access away", .run = rm_run},
};

const struct vg_cmd vg_cmd_user = {.name = "user",
                                   .args = "",
                                   .summary = "people: list, add, rm",
                                   .subs = user_subs,
                                   .n_subs = VG_COUNT(user_subs)};

/* ------------------------------------------------------------------ teams */

static void team_rows(const Vg__Pb__Envelope *env, struct vg_table *t) {
    for (size_t i = 0; i < env->users->n_user; i++) {
        char age[48];
        const Vg__Pb__UserInfo *u = env->users->user[i];
        const char *cells[] = {u->name, vg_ago(u->created_usec, age, sizeof(age))};
        vg_table_row(t, cells);
    }
}

static void team_items(const Vg__Pb__Envelope *env, json_t *array) {
    for (size_t i = 0; i < env->users->n_user; i++) {
        const Vg__Pb__UserInfo *u = env->users->user[i];
        json_t *j = json_object();
        json_object_set_new(j, "name", vg_json_text(u->name));
        json_object_set_new(j, "created_usec", vg_json_u64(u->created_usec));
        json_array_append_new(array, j);
    }
}

static const struct vg_lister team_lister = {.body = VG__PB__ENVELOPE__BODY_USERS,
                                             .headings =
                                                 (const char *const[]){"TEAM", "ADDED", NULL},
                                             .rows = team_rows,
                                             .items = team_items};

static int team_list_run(struct vg_cmd_line *l) {
    Vg__Pb__Empty body = VG__PB__EMPTY__INIT;
    Vg__Pb__Envelope req = vg_request(TEAM_LIST, team_list, &body);
    return vg_list_run(l, &req, &team_lister);
}

static int team_add_run(struct vg_cmd_line *l) {
    Vg__Pb__UserSet u = VG__PB__USER_SET__INIT;
    Vg__Pb__Envelope req = vg_request(TEAM_ADD, team_add, &u);
    if (!vg_cmd_plain(l, 1, 1))
        return l->exit;
    u.name = l->args[0];
    return vg_change_run(&req);
}

static const struct vg_cmd team_subs[] = {
    {"list", "", "teams of the organisation", VG_LIST_OPTS, .run = team_list_run},
    {"add", "TEAM", "make a team", .run = team_add_run},
};

const struct vg_cmd vg_cmd_team = {.name = "team",
                                   .args = "",
                                   .summary = "teams: list, add",
                                   .subs = team_subs,
                                   .n_subs = VG_COUNT(team_subs)};
