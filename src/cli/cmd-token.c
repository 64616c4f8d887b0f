/* `virga token`: keys for people and programs on other machines. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/list.h"

static void rows(const Vg__Pb__Envelope *env, struct vg_table *t) {
    for (size_t i = 0; i < env->tokens->n_token; i++) {
        const Vg__Pb__TokenInfo *k = env->tokens->token[i];
        char age[48], used[48], until[32];
        const char *cells[] = {k->id,
                               k->user,
                               k->name,
                               vg_ago(k->created_usec, age, sizeof(age)),
                               vg_ago(k->used_usec, used, sizeof(used)),
                               vg_when(k->expires_usec, until, sizeof(until))};
        vg_table_row(t, cells);
    }
}

static const struct vg_lister lister = {
    .body = VG__PB__ENVELOPE__BODY_TOKENS,
    .headings = (const char *const[]){"TOKEN", "USER", "NAME", "CREATED", "USED", "EXPIRES", NULL},
    .rows = rows,
    .view = &vg_view_tokens};

static int list_run(struct vg_cmd_line *l) {
    Vg__Pb__Empty body = VG__PB__EMPTY__INIT;
    Vg__Pb__Envelope req = vg_request(TOKEN_LIST, token_list, &body);
    return vg_list_run(l, &req, &lister);
}

static int on_created(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    const struct vg_cmd_line *l = user;
    if (env->body_case != VG__PB__ENVELOPE__BODY_TOKEN_NEW || !env->token_new->token)
        return vg_unexpected(env, err);
    if (!l->json) {
        printf("%s\n", env->token_new->token);
        return 0;
    }
    vg_json_print(vg_view_json(&vg_view_token_new, env->token_new));
    return 0;
}

static const struct vg_opt create_opts[] = {
    {"user", 'u', "USER", "for this user (default: yourself)", 'u'},
    {"name", 'n', "NAME", "what it is for", 'n'},
    {"ttl", 0, "DURATION", "how long it is good (default: for ever)", 't'},
    VG_CMD_OUTPUT,
};

static int create_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__TokenReq q = VG__PB__TOKEN_REQ__INIT;
    Vg__Pb__Envelope req = vg_request(TOKEN_CREATE, token_create, &q);
    const char *arg;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return l->exit;
        if (id == 'u')
            q.user = (char *)arg;
        if (id == 'n')
            q.name = (char *)arg;
        if (id == 't' && vg_opt_duration(&l->st, arg, &q.ttl_usec) < 0)
            return vg_cmd_fail_opt(l);
        q.has_ttl_usec |= id == 't';
    }
    if (!vg_cmd_args(l, 0, 0))
        return l->exit;
    return vg_call_once(&req, on_created, l, &err) < 0 ? vg_cmd_fail(&err) : 0;
}

static int revoke_run(struct vg_cmd_line *l) {
    Vg__Pb__NameRef ref = VG__PB__NAME_REF__INIT;
    Vg__Pb__Envelope req = vg_request(TOKEN_REVOKE, token_revoke, &ref);
    if (!vg_cmd_plain(l, 1, 1))
        return l->exit;
    ref.name = l->args[0];
    return vg_change_run(&req);
}

static const struct vg_cmd subs[] = {
    {"list", "", "tokens by their ids; secrets are not stored", VG_LIST_OPTS, .run = list_run},
    {"create", "", "print a new token; it is shown only once", create_opts, VG_COUNT(create_opts),
     .run = create_run},
    {"revoke", "TOKEN", "make a token worthless", .run = revoke_run},
};

const struct vg_cmd vg_cmd_token = {.name = "token",
                                    .args = "",
                                    .summary = "keys for other machines: list, create, revoke",
                                    .subs = subs,
                                    .n_subs = VG_COUNT(subs)};
