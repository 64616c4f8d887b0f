/* `virga user`: who may use the cloud. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/list.h"

#include <string.h>

static void rows(const Vg__Pb__Envelope *env, struct vg_table *t) {
    for (size_t i = 0; i < env->users->n_user; i++) {
        const Vg__Pb__UserInfo *u = env->users->user[i];
        char uid[16], age[48], seen[48];
        snprintf(uid, sizeof(uid), "%u", u->uid);
        const char *cells[] = {u->name,
                               u->team,
                               u->role,
                               u->disabled  ? "disabled"
                               : u->service ? "service"
                                            : NULL,
                               u->has_uid ? uid : NULL,
                               vg_ago(u->created_usec, age, sizeof(age)),
                               u->seen_usec ? vg_ago(u->seen_usec, seen, sizeof(seen)) : NULL,
                               u->full_name};
        vg_table_row(t, cells);
    }
}

static const struct vg_lister lister = {
    .body = VG__PB__ENVELOPE__BODY_USERS,
    .headings = (const char *const[]){"USER", "TEAM", "ROLE", "STATE", "UID", "ADDED", "SEEN",
                                      "FULL NAME", NULL},
    .rows = rows,
    .view = &vg_view_users};

static int list_run(struct vg_cmd_line *l) {
    Vg__Pb__Empty body = VG__PB__EMPTY__INIT;
    Vg__Pb__Envelope req = vg_request(USER_LIST, user_list, &body);
    return vg_list_run(l, &req, &lister);
}

/* ------------------------------------------------------------------ adding, changing */

#define ABOUT_OPTS                                                   \
    {"team", 't', "TEAM", "the team they belong to", 't'},           \
        {"role", 'r', "ROLE", "admin, lead, member or viewer", 'r'}, \
        {"email", 0, "ADDRESS", "where messages to them go", 'e'}, { \
        "full-name", 0, "NAME", "how people call them", 'n'          \
    }

static const struct vg_opt add_opts[] = {
    ABOUT_OPTS,
    {"service", 0, NULL, "an account for programs: it has tokens and no other way in", 's'},
    {"uid", 0, "UID", "the unix user of this machine they are", 'u'},
    {"gid", 0, "GID", "and the group", 'g'},
};

static const struct vg_opt set_opts[] = {
    ABOUT_OPTS,
    {"disable", 0, NULL, "answer nothing to them, at once, until --enable", 'd'},
    {"enable", 0, NULL, "let them in again", 'E'},
};

/* What --uid, --gid and the others say. */
static int take(struct vg_cmd_line *l, int id, const char *arg, Vg__Pb__UserSet *u) {
    static const char *const roles[] = {"admin", "lead", "member", "viewer", NULL};
    uint64_t n = 0;
    int which, r = 0;
    if (id == 't')
        u->team = (char *)arg;
    if (id == 'e')
        u->email = (char *)arg;
    if (id == 'n')
        u->full_name = (char *)arg;
    if (id == 's')
        u->has_service = u->service = true;
    if (id == 'd' || id == 'E') {
        u->has_disabled = true;
        u->disabled = id == 'd';
    }
    if (id == 'r' && (r = vg_opt_choice(&l->st, arg, roles, &which)) == 0)
        u->role = (char *)arg;
    if (id == 'u' && (r = vg_opt_u64(&l->st, arg, 0, UINT32_MAX - 1, &n)) == 0)
        u->has_uid = true, u->uid = (uint32_t)n;
    if (id == 'g' && (r = vg_opt_u64(&l->st, arg, 0, UINT32_MAX - 1, &n)) == 0)
        u->has_gid = true, u->gid = (uint32_t)n;
    return r;
}

static int parse(struct vg_cmd_line *l, Vg__Pb__UserSet *u) {
    const char *arg;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return -1;
        if (take(l, id, arg, u) < 0) {
            l->exit = vg_cmd_fail_opt(l);
            return -1;
        }
    }
    if (!vg_cmd_args(l, 1, 1))
        return -1;
    u->name = l->args[0];
    return 0;
}

static int add_run(struct vg_cmd_line *l) {
    Vg__Pb__UserSet u = VG__PB__USER_SET__INIT;
    Vg__Pb__Envelope req = vg_request(USER_ADD, user_add, &u);
    return parse(l, &u) < 0 ? l->exit : vg_change_run(&req);
}

static int set_run(struct vg_cmd_line *l) {
    Vg__Pb__UserSet u = VG__PB__USER_SET__INIT;
    Vg__Pb__Envelope req = vg_request(USER_SET, user_set, &u);
    return parse(l, &u) < 0 ? l->exit : vg_change_run(&req);
}

static int rm_run(struct vg_cmd_line *l) {
    Vg__Pb__NameRef ref = VG__PB__NAME_REF__INIT;
    Vg__Pb__Envelope req = vg_request(USER_REMOVE, user_remove, &ref);
    return vg_name_run(l, &ref.name, &req);
}

/* ------------------------------------------------------------------ oneself */

static void say(const char *what, const char *text) {
    char clean[512];
    if (text && *text)
        printf("%-9s %s\n", what, vg_clean(clean, sizeof(clean), text, strlen(text)));
}

static int on_me(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    const struct vg_cmd_line *l = user;
    if (env->body_case != VG__PB__ENVELOPE__BODY_ME_INFO)
        return vg_unexpected(env, err);
    const Vg__Pb__MeInfo *m = env->me_info;
    if (l->json) {
        vg_json_print(vg_view_json(&vg_view_me, m));
        return 0;
    }
    char until[32];
    say("user", m->user);
    say("name", m->full_name);
    say("e-mail", m->email);
    say("team", m->team);
    say("org", m->org);
    say("role", m->role);
    if (m->expires_usec)
        say("until", vg_when(m->expires_usec, until, sizeof(until)));
    for (size_t i = 0; i < m->n_act; i++)
        printf("%-9s %s\n", i ? "" : "may", m->act[i]);
    return 0;
}

static int me_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__Empty body = VG__PB__EMPTY__INIT;
    Vg__Pb__Envelope req = vg_request(ME, me, &body);
    if (!vg_cmd_plain(l, 0, 0))
        return l->exit;
    return vg_call_once(&req, on_me, l, &err) < 0 ? vg_cmd_fail(&err) : 0;
}

static const struct vg_cmd subs[] = {
    {"list", "", "who may use the cloud", VG_LIST_OPTS, .run = list_run},
    {"add", "USER", "let somebody in (then: virga token create --user USER)", add_opts,
     VG_COUNT(add_opts), .run = add_run},
    {"set", "USER", "change what is known of somebody, and what they may", set_opts,
     VG_COUNT(set_opts), .run = set_run},
    {"rm", "USER", "take somebody's access away", .run = rm_run},
    {"me", "", "who you are to the cloud, and what you may do there", VG_LIST_OPTS, .run = me_run},
};

const struct vg_cmd vg_cmd_user = {.name = "user",
                                   .args = "",
                                   .summary = "people: list, add, set, rm, me",
                                   .subs = subs,
                                   .n_subs = VG_COUNT(subs)};
