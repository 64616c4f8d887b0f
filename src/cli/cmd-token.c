/* `virga token`: keys for people and programs on other machines. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/list.h"

#include <string.h>

#define SCOPES_MAX 8

static const char *scopes(const Vg__Pb__TokenInfo *k, char *out, size_t n) {
    size_t used = 0;
    for (size_t i = 0; i < k->n_scope && used < n; i++)
        used += (size_t)snprintf(out + used, n - used, "%s%s", i ? "," : "", k->scope[i]);
    return k->n_scope ? out : NULL;
}

static void rows(const Vg__Pb__Envelope *env, struct vg_table *t) {
    for (size_t i = 0; i < env->tokens->n_token; i++) {
        const Vg__Pb__TokenInfo *k = env->tokens->token[i];
        char age[48], used[48], until[32], scope[64];
        const char *cells[] = {k->id,
                               k->user,
                               k->name,
                               scopes(k, scope, sizeof(scope)),
                               vg_ago(k->created_usec, age, sizeof(age)),
                               vg_ago(k->used_usec, used, sizeof(used)),
                               vg_when(k->expires_usec, until, sizeof(until))};
        vg_table_row(t, cells);
    }
}

static const struct vg_lister lister = {
    .body = VG__PB__ENVELOPE__BODY_TOKENS,
    .headings =
        (const char *const[]){"TOKEN", "USER", "NAME", "SCOPE", "CREATED", "USED", "EXPIRES", NULL},
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
    {"scope", 's', "SCOPE", "what it may do: read, run, secrets, admin (default: all); repeatable",
     's'},
    VG_CMD_OUTPUT,
};

static int create_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__TokenReq q = VG__PB__TOKEN_REQ__INIT;
    Vg__Pb__Envelope req = vg_request(TOKEN_CREATE, token_create, &q);
    const char *arg;
    char *scope[SCOPES_MAX];
    q.scope = scope;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return l->exit;
        if (id == 's' && q.n_scope < SCOPES_MAX)
            scope[q.n_scope++] = (char *)arg;
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

static const struct vg_opt rotate_opts[] = {
    {"ttl", 0, "DURATION", "how long the new one is good (default: as long as the old)", 't'},
    VG_CMD_OUTPUT,
};

/* Without an argument it is the token that this machine is logged in with, and the new one takes
   its place there. */
struct rotation {
    struct vg_cmd_line *l;
    struct vg_endpoint at;
    char path[VG_ENDPOINT_PATH_MAX];
};

static int on_rotated(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    struct rotation *t = user;
    int r = on_created(env, t->l, err);
    if (r < 0 || !t->path[0])
        return r;
    snprintf(t->at.token, sizeof(t->at.token), "%s", env->token_new->token);
    return vg_login_write(t->path, &t->at, err);
}

static int own_token(struct rotation *t, char id[static 17], struct vg_err *err) {
    int r = vg_endpoint_find(&t->at, err);
    if (r >= 0)
        r = vg_home_dir(t->path, sizeof(t->path) - 16, err);
    if (r < 0)
        return r;
    memcpy(t->path + strlen(t->path), "/client", sizeof("/client"));
    if (t->at.kind != VG_ENDPOINT_TLS || strncmp(t->at.token, "vgt_", 4) != 0)
        return vg_err_set(err, VG_INVALID,
                          "you are not logged in with a token here: say which one, as 'virga token "
                          "list' shows them");
    snprintf(id, 17, "%.16s", t->at.token + 4);
    return 0;
}

static int rotate_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    struct rotation t = {.l = l};
    Vg__Pb__TokenReq q = VG__PB__TOKEN_REQ__INIT;
    Vg__Pb__Envelope req = vg_request(TOKEN_CREATE, token_create, &q);
    const char *arg;
    char own[17];
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return l->exit;
        if (id == 't' && vg_opt_duration(&l->st, arg, &q.ttl_usec) < 0)
            return vg_cmd_fail_opt(l);
        q.has_ttl_usec |= id == 't';
    }
    if (!vg_cmd_args(l, 0, 1))
        return l->exit;
    q.replaces = l->n_args ? l->args[0] : own;
    if (!l->n_args && own_token(&t, own, &err) < 0)
        return vg_cmd_fail(&err);
    return vg_call_once(&req, on_rotated, &t, &err) < 0 ? vg_cmd_fail(&err) : 0;
}

static int revoke_run(struct vg_cmd_line *l) {
    Vg__Pb__NameRef ref = VG__PB__NAME_REF__INIT;
    Vg__Pb__Envelope req = vg_request(TOKEN_REVOKE, token_revoke, &ref);
    return vg_name_run(l, &ref.name, &req);
}

static const struct vg_cmd subs[] = {
    {"list", "", "tokens by their ids; secrets are not stored", VG_LIST_OPTS, .run = list_run},
    {"create", "", "print a new token; it is shown only once", create_opts, VG_COUNT(create_opts),
     .run = create_run},
    {"rotate", "[TOKEN]", "a new one in the place of a token, which ends; your own by default",
     rotate_opts, VG_COUNT(rotate_opts), .run = rotate_run},
    {"revoke", "TOKEN", "make a token worthless", .run = revoke_run},
};

const struct vg_cmd vg_cmd_token = {.name = "token",
                                    .args = "",
                                    .summary =
                                        "keys for other machines: list, create, rotate, revoke",
                                    .subs = subs,
                                    .n_subs = VG_COUNT(subs)};
