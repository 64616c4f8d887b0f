/* Secrets in memory, and the requests about them. Loop thread. */
#include "control/secrets-int.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/audit.h"
#include "control/later.h"
#include "control/secrets-ring.h"
#include "control/users.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name

/* ------------------------------------------------------------------ one secret */

static void secret_free(struct vg_secret *s) {
    if (!s)
        return;
    free(s->path);
    free(s->scope);
    free(s->name);
    free(s->set_by);
    free(s->sealed);
    free(s);
}

static struct vg_secret *secret_new(const char *scope, const char *name, const char *set_by,
                                    size_t sealed_len) {
    struct vg_secret *s = vg_alloc(sizeof *s);
    if (!s)
        return NULL;
    s->path = vg_fmt("%s/%s", scope, name);
    s->scope = vg_strdup(scope);
    s->name = vg_strdup(name);
    s->set_by = vg_strdup(set_by);
    s->sealed = vg_alloc(sealed_len + 1);
    s->sealed_len = sealed_len;
    if (s->path && s->scope && s->name && s->set_by && s->sealed)
        return s;
    secret_free(s);
    return NULL;
}

static int put(struct vg_secrets *x, struct vg_secret *s) {
    secret_free(vg_map_del(&x->map, s->path));
    return vg_map_put(&x->map, s->path, s);
}

int secrets_store(struct vg_control *c, const struct vg_secret *s, vg_store_cb *cb, void *arg) {
    struct vg_secret_row row = {.scope = s->scope,
                                .name = s->name,
                                .version = s->version,
                                .key = s->key,
                                .wrapped = {s->wrapped, sizeof s->wrapped},
                                .sealed = {s->sealed, s->sealed_len},
                                .set_by = s->set_by,
                                .created_usec = s->created_usec,
                                .changed_usec = s->changed_usec};
    return vg_store_put_secret(c->store, &row, cb, arg);
}

void secrets_seal(const struct vg_ring *ring, struct vg_secret *s, const uint8_t *value,
                  size_t len) {
    struct vg_seal_name n = {s->scope, s->name, s->version};
    vg_seal(ring, &n, value, len, s->wrapped, s->sealed);
    snprintf(s->key, sizeof s->key, "%s", vg_ring_newest(ring));
}

static int load_row(void *arg, const struct vg_secret_row *row) {
    struct vg_control *c = arg;
    struct vg_secret *s = secret_new(row->scope, row->name, row->set_by, row->sealed.len);
    if (!s)
        return -ENOMEM;
    s->version = row->version;
    s->created_usec = row->created_usec;
    s->changed_usec = row->changed_usec;
    snprintf(s->key, sizeof s->key, "%s", row->key);
    memcpy(s->sealed, row->sealed.data, row->sealed.len);
    if (row->wrapped.len == sizeof s->wrapped) /* else it does not open, which is told then */
        memcpy(s->wrapped, row->wrapped.data, sizeof s->wrapped);
    int r = put(c->secrets, s);
    if (r < 0)
        secret_free(s);
    return r;
}

int vg_secrets_load(struct vg_control *c, struct vg_err *err) {
    struct vg_secrets *x = c->secrets = vg_alloc(sizeof *x);
    if (!x)
        return vg_err_sys(err, ENOMEM, "cannot load secrets");
    *x = (struct vg_secrets){0};
    vg_list_init(&x->waiting);
    int r = vg_store_load_secrets(c->store, load_row, c);
    if (r < 0)
        return vg_err_sys(err, r, "cannot load secrets from %s", c->home.db);
    return vg_map_len(&x->map) ? secrets_first_keys(c, err) : 0;
}

void vg_secrets_done(struct vg_control *c) {
    struct vg_secrets *x = c->secrets;
    if (!x)
        return;
    vg_list_for_each_safe (it, &x->waiting)
        secrets_setting_free(vg_list_entry(it, struct setting, link));
    vg_map_for_each (s, &x->map) {
        secret_free(s->value);
    }
    vg_map_done(&x->map);
    if (x->rotation) {
        free(x->rotation->user);
        free(x->rotation);
    }
    vg_ring_free(x->ring);
    free(vg_take_ptr(c->secrets));
}

/* ------------------------------------------------------------------ whose */

static void forget(struct vg_control *c, const char *kind, const char *owner) {
    vg_auto_free char *scope = vg_fmt("%s:%s", kind, owner);
    vg_map_for_each (s, &c->secrets->map) {
        struct vg_secret *e = s->value;
        if (scope && strcmp(e->scope, scope) == 0)
            secret_free(vg_map_del(&c->secrets->map, e->path));
    }
}

void vg_secrets_forget_user(struct vg_control *c, const char *user) {
    forget(c, "user", user);
}

void vg_secrets_forget_team(struct vg_control *c, const char *team) {
    forget(c, "team", team);
}

const struct vg_secret *vg_secret_find(struct vg_control *c, const struct vg_user *u,
                                       const char *ref) {
    const char *slash = strchr(ref, '/');
    size_t n = slash ? (size_t)(slash - ref) : 0;
    if (slash && (strlen(u->team->name) != n || memcmp(u->team->name, ref, n) != 0))
        return NULL;
    vg_auto_free char *key = slash ? vg_fmt("team:%s", ref) : vg_fmt("user:%s/%s", u->name, ref);
    return key ? vg_map_get(&c->secrets->map, key) : NULL;
}

/* The scope that a request is about, owned by the caller. */
static int scope_of(struct vg_call *call, const char *team, char **ret, struct vg_err *err) {
    if (team && strcmp(team, VG_TEAM_DEFAULT) == 0)
        return vg_err_set(
            err, VG_INVALID,
            "team '%s' is where people are whom nobody has put into a team: it shares "
            "no secrets",
            team);
    if (team && *team && !vg_users_lead(call->user, team))
        return vg_err_set(err, VG_FORBIDDEN,
                          "only a lead of team '%.64s' or an administrator may set or remove its "
                          "secrets: set one of your own without --team",
                          team);
    if (team && *team && !vg_tenants_team(&call->ctl->tenants, team))
        return vg_err_set(err, VG_NOT_FOUND,
                          "there is no team '%.64s': 'virga team list' shows them", team);
    *ret = team && *team ? vg_fmt("team:%s", team) : vg_fmt("user:%s", call->user->name);
    return *ret ? 0 : vg_err_sys(err, ENOMEM, "cannot take the secret");
}

/* ------------------------------------------------------------------ set */

void secrets_setting_free(struct setting *g) {
    vg_list_remove(&g->link);
    free(g->later);
    free(g->scope);
    free(g->name);
    free(g->user);
    sodium_free(g->value);
    free(g);
}

void secrets_setting_failed(struct vg_control *c, struct setting *g, const struct vg_err *err) {
    struct vg_peer *p = vg_peer_find(c, g->later->peer);
    if (p)
        vg_peer_fail(p, g->later->req, err);
    secrets_setting_free(g);
}

void secrets_set_now(struct vg_control *c, struct setting *g) {
    struct vg_secrets *x = c->secrets;
    struct vg_err err = VG_ERR_INIT;
    vg_auto_free char *key = vg_fmt("%s/%s", g->scope, g->name);
    const struct vg_secret *old = key ? vg_map_get(&x->map, key) : NULL;
    struct vg_secret *s =
        key ? secret_new(g->scope, g->name, g->user, g->len + VG_SEAL_EXTRA) : NULL;
    if (s) {
        s->changed_usec = vg_wall_usec();
        s->created_usec = old ? old->created_usec : s->changed_usec;
        s->version = old ? old->version + 1 : 1;
        secrets_seal(x->ring, s, g->value, g->len);
    }
    vg_store_group_begin(c->store);
    int r = s ? secrets_store(c, s, vg_later_stored, g->later) : -ENOMEM;
    if (r >= 0)
        vg_audit_note(c, g->user, g->from, "secret %s of %s set", g->name, g->scope);
    vg_store_group_end(c->store);
    if (r < 0) {
        secret_free(s);
        vg_err_sys(&err, ENOMEM, "cannot store the secret");
        secrets_setting_failed(c, g, &err);
        return;
    }
    g->later = NULL; /* the store's */
    if (put(x, s) < 0)
        secret_free(s); /* it is stored: known again after a restart */
    secrets_setting_free(g);
}

static struct setting *setting_new(struct vg_call *call, const char *scope, const char *name,
                                   const ProtobufCBinaryData *value) {
    struct setting *g = vg_alloc(sizeof *g);
    if (!g)
        return NULL;
    *g = (struct setting){.later = vg_later_new(call),
                          .scope = vg_strdup(scope),
                          .name = vg_strdup(name),
                          .user = vg_strdup(call->user->name),
                          .value = vg_hidden_alloc(value->len),
                          .len = value->len};
    vg_list_init(&g->link);
    if (!g->later || !g->scope || !g->name || !g->user || !g->value) {
        secrets_setting_free(g);
        return NULL;
    }
    memcpy(g->value, value->data, value->len);
    snprintf(g->from, sizeof g->from, "%s", call->peer->who.from);
    return g;
}

static int check_set(struct vg_call *call, const char *scope, const Vg__Pb__SecretSet *m,
                     struct vg_err *err) {
    struct vg_map *map = &call->ctl->secrets->map;
    size_t n = 0;
    if (!m->name || !vg_conf_name_valid(m->name))
        return vg_err_set(err, VG_INVALID,
                          "'%.64s' cannot name a secret: use 1 to %d letters, digits, '.', '_' or "
                          "'-', beginning with a letter or digit",
                          m->name ? m->name : "", VG_CONF_NAME_MAX);
    if (m->value.len == 0)
        return vg_err_set(err, VG_INVALID, "the value of secret '%s' is empty", m->name);
    if (m->value.len > VG_SECRET_MAX)
        return vg_err_set(err, VG_TOO_BIG, "secret '%s' has %zu bytes, the limit is %d", m->name,
                          m->value.len, VG_SECRET_MAX);
    vg_auto_free char *key = vg_fmt("%s/%s", scope, m->name);
    if (key && vg_map_get(map, key))
        return 0;
    vg_map_for_each (s, map) {
        n += strcmp(((struct vg_secret *)s->value)->scope, scope) == 0;
    }
    if (n >= VG_SECRETS_EACH)
        return vg_err_set(err, VG_TOO_BIG, "there are %zu secrets there already: remove some", n);
    return 0;
}

void vg_api_secret_set(struct vg_call *call) {
    const Vg__Pb__SecretSet *m = call->env->secret_set;
    struct vg_secrets *x = call->ctl->secrets;
    struct vg_err err = VG_ERR_INIT;
    vg_auto_free char *scope = NULL;
    int r = scope_of(call, m->team, &scope, &err);
    if (r >= 0)
        r = check_set(call, scope, m, &err);
    struct setting *g = r >= 0 ? setting_new(call, scope, m->name, &m->value) : NULL;
    if (m->value.len)
        sodium_memzero(m->value.data, m->value.len);
    if (!g) {
        if (r >= 0)
            vg_err_sys(&err, ENOMEM, "cannot take the secret");
        vg_peer_fail(call->peer, call->req, &err);
    } else if (x->ring) {
        secrets_set_now(call->ctl, g);
    } else {
        vg_list_push_back(&x->waiting, &g->link);
        if (!x->busy)
            secrets_read_keys(call->ctl);
    }
}

/* ------------------------------------------------------------------ list, remove */

/* One's own, one's team's; an administrator sees which ones there are. */
static bool may_list(const struct vg_user *u, const char *scope) {
    const char *owner = strchr(scope, ':') + 1;
    return strcmp(owner, scope[0] == 'u' ? u->name : u->team->name) == 0 ||
           vg_user_may(u, VG_ACT_MANAGE_USERS);
}

static int by_name(const void *a, const void *b) {
    const Vg__Pb__SecretInfo *x = *(Vg__Pb__SecretInfo *const *)a;
    const Vg__Pb__SecretInfo *y = *(Vg__Pb__SecretInfo *const *)b;
    int r = strcmp(x->team ? x->team : "", y->team ? y->team : "");
    return r ? r : strcmp(x->name, y->name);
}

void vg_api_secret_list(struct vg_call *call) {
    struct vg_map *map = &call->ctl->secrets->map;
    size_t n = 0, max = vg_map_len(map) + 1;
    vg_auto_free Vg__Pb__SecretInfo *info = vg_alloc(max * sizeof *info);
    vg_auto_free Vg__Pb__SecretInfo **list = vg_alloc(max * sizeof *list);
    if (!info || !list) {
        vg_peer_error(call->peer, call->req, VG_INTERNAL, "the control plane is out of memory");
        return;
    }
    vg_map_for_each (it, map) {
        struct vg_secret *s = it->value;
        if (!may_list(call->user, s->scope))
            continue;
        Vg__Pb__SecretInfo *m = list[n] = &info[n];
        n++;
        vg__pb__secret_info__init(m);
        m->name = s->name;
        m->team = s->scope[0] == 't' ? strchr(s->scope, ':') + 1 : NULL;
        m->user = s->set_by;
        m->has_created_usec = m->has_changed_usec = m->has_version = m->has_size = 1;
        m->created_usec = s->created_usec;
        m->changed_usec = s->changed_usec;
        m->version = s->version;
        m->size = (uint32_t)(s->sealed_len - VG_MIN(s->sealed_len, (size_t)VG_SEAL_EXTRA));
    }
    qsort(list, n, sizeof *list, by_name);
    VG_ENVELOPE(env);
    Vg__Pb__SecretList m = VG__PB__SECRET_LIST__INIT;
    m.secret = list;
    m.n_secret = n;
    env.body_case = B(SECRETS);
    env.secrets = &m;
    vg_peer_send(call->peer, call->req, false, &env);
}

void vg_api_secret_remove(struct vg_call *call) {
    const Vg__Pb__SecretRef *m = call->env->secret_remove;
    struct vg_control *c = call->ctl;
    struct vg_err err = VG_ERR_INIT;
    vg_auto_free char *scope = NULL;
    const char *name = m->name ? m->name : "";
    if (scope_of(call, m->team, &scope, &err) < 0) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    vg_auto_free char *key = vg_fmt("%s/%.64s", scope, name);
    if (!key || !vg_map_get(&c->secrets->map, key)) {
        vg_peer_error(call->peer, call->req, VG_NOT_FOUND,
                      "there is no secret '%.64s' there: 'virga secret list' shows them", name);
        return;
    }
    struct vg_later *l = vg_later_new(call);
    if (!l || vg_store_del_secret(c->store, scope, name, vg_later_stored, l) < 0) {
        free(l);
        vg_peer_error(call->peer, call->req, VG_INTERNAL, "the control plane is out of memory");
        return;
    }
    vg_audit(call, "secret %s of %s removed", name, scope);
    secret_free(vg_map_del(&c->secrets->map, key));
}
