/* `virga hook`: whom people want to be told. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/audit.h"
#include "control/hooks-int.h"
#include "control/later.h"
#include "control/users.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define SECRET_MIN 16

/* ------------------------------------------------------------------ as people see them */

struct shown {
    Vg__Pb__HookInfo info;
    Vg__Pb__HookSet set;
    char *events[VG_HOOK_EVENTS];
    char host[300];
};

static void show(const struct vg_hook *h, const struct vg_user *to, struct shown *s) {
    vg__pb__hook_info__init(&s->info);
    vg__pb__hook_set__init(&s->set);
    s->info.hook = &s->set;
    s->info.user = h->user;
    s->set.name = h->name;
    s->set.url = h->url;
    if (strcmp(h->user, to->name) != 0) /* what follows the host is often a password */
        s->set.url = vg_hook_url_host(h->url, s->host, sizeof s->host);
    s->set.scope = h->scope;
    s->set.has_paused = true;
    s->set.paused = h->paused;
    s->set.event = s->events;
    for (int i = 0; i < VG_HOOK_EVENTS; i++)
        if (h->events >> i & 1)
            s->events[s->set.n_event++] = (char *)vg_hook_event_name((enum vg_hook_event_id)i);
    s->info.has_sent = s->info.has_failed = s->info.has_waiting = s->info.has_last_usec = true;
    s->info.sent = h->sent;
    s->info.failed = h->failed;
    s->info.waiting = h->n_waiting;
    s->info.last_usec = h->last_usec;
    s->info.last_error = (char *)h->last_error;
}

static int by_key(const void *x, const void *y) {
    const struct vg_hook *a = *(struct vg_hook *const *)x, *b = *(struct vg_hook *const *)y;
    return strcmp(a->key, b->key);
}

void vg_api_hook_list(struct vg_call *call) {
    struct vg_hooks *all = call->ctl->hooks;
    size_t most = all ? vg_map_len(&all->map) : 0, n = 0;
    vg_auto_free struct vg_hook **hooks = vg_alloc((most + 1) * sizeof *hooks);
    vg_auto_free struct shown *shown = vg_alloc((most + 1) * sizeof *shown);
    vg_auto_free Vg__Pb__HookInfo **list = vg_alloc((most + 1) * sizeof *list);
    if (!hooks || !shown || !list) {
        vg_peer_error(call->peer, call->req, VG_INTERNAL, "the control plane is out of memory");
        return;
    }
    bool every = vg_user_may(call->user, VG_ACT_SEE_ALL);
    if (all)
        vg_map_for_each (s, &all->map) {
            struct vg_hook *h = s->value;
            if (every || strcmp(h->user, call->user->name) == 0)
                hooks[n++] = h;
        }
    if (n)
        qsort(hooks, n, sizeof *hooks, by_key);
    for (size_t i = 0; i < n; i++) {
        show(hooks[i], call->user, &shown[i]);
        list[i] = &shown[i].info;
    }
    VG_ENVELOPE(env);
    Vg__Pb__HookList m = VG__PB__HOOK_LIST__INIT;
    m.n_hook = n;
    m.hook = list;
    env.body_case = B(HOOKS);
    env.hooks = &m;
    vg_peer_send(call->peer, call->req, false, &env);
}

/* NAME of one's own, or for administrators USER/NAME. */
static struct vg_hook *find(struct vg_call *call, const char *ref, struct vg_err *err) {
    struct vg_hooks *all = call->ctl->hooks;
    bool others = ref && strchr(ref, '/') && vg_user_may(call->user, VG_ACT_SEE_ALL);
    vg_auto_free char *key =
        others ? vg_strdup(ref) : vg_fmt("%s/%s", call->user->name, ref ? ref : "");
    struct vg_hook *h = all && key ? vg_map_get(&all->map, key) : NULL;
    if (!h)
        vg_err_set(err, VG_NOT_FOUND, "there is no hook '%.64s': 'virga hook list' shows them",
                   ref ? ref : "");
    return h;
}

/* ------------------------------------------------------------------ set */

/* A request that was checked. */
struct change {
    const char *name, *url, *scope, *secret;
    uint32_t events;
    bool is_new;
};

static int check_events(const Vg__Pb__HookSet *m, uint32_t *ret, struct vg_err *err) {
    const char *names[VG_HOOK_EVENTS];
    for (int i = 0; i < VG_HOOK_EVENTS; i++)
        names[i] = vg_hook_event_name((enum vg_hook_event_id)i);
    for (size_t i = 0; i < m->n_event; i++) {
        int found = vg_hook_event_find(m->event[i]);
        const char *near = vg_conf_nearest(m->event[i], names, VG_HOOK_EVENTS);
        if (found < 0)
            return vg_err_set(err, VG_INVALID, "there is no event '%.40s'%s%s%s", m->event[i],
                              near ? "; did you mean '" : ": see virga-hook(1)", near ? near : "",
                              near ? "'?" : "");
        *ret |= 1u << found;
    }
    return *ret ? 0 : vg_err_set(err, VG_INVALID, "say which events: --event task.ended");
}

static int check_scope(struct vg_call *call, const struct change *x, struct vg_err *err) {
    if (!vg_hook_scope_allowed(call->ctl, call->user->name, x->scope))
        return vg_err_set(err, VG_FORBIDDEN,
                          "'%.64s' is not for you to hear of: a lead may hear of team:NAME, an "
                          "administrator of team:NAME, org:NAME or cloud",
                          x->scope);
    for (int i = 0; i < VG_HOOK_EVENTS; i++)
        if ((x->events >> i & 1) && vg_hook_event_for_all((enum vg_hook_event_id)i) &&
            strcmp(x->scope, "cloud") != 0)
            return vg_err_set(err, VG_INVALID,
                              "'%s' is told to administrators alone: give --scope cloud",
                              vg_hook_event_name((enum vg_hook_event_id)i));
    return 0;
}

static int check_secret(const char *s, struct vg_err *err) {
    size_t n = s ? strlen(s) : 0;
    if (s && (n < SECRET_MIN || n > VG_HOOK_SECRET_MAX))
        return vg_err_set(err, VG_INVALID, "a hook's secret has %d to %d characters", SECRET_MIN,
                          VG_HOOK_SECRET_MAX);
    return 0;
}

static size_t count_of(const struct vg_control *c, const char *user) {
    size_t n = 0;
    if (c->hooks)
        vg_map_for_each (s, &c->hooks->map)
            n += strcmp(((struct vg_hook *)s->value)->user, user) == 0;
    return n;
}

/* What is not said stays as it was. */
static int check(struct vg_call *call, const Vg__Pb__HookSet *m, const struct vg_hook *old,
                 struct change *x, struct vg_err *err) {
    *x = (struct change){.name = m->name ? m->name : "",
                         .url = m->url && *m->url ? m->url
                                : old             ? old->url
                                                  : "",
                         .scope = m->scope ? m->scope
                                  : old    ? old->scope
                                           : "",
                         .secret = m->secret && *m->secret ? m->secret : NULL,
                         .is_new = !old};
    if (strncmp(x->scope, "user:", 5) == 0 && strcmp(x->scope + 5, call->user->name) == 0)
        x->scope = "";
    if (!vg_conf_name_valid(x->name))
        return vg_err_set(err, VG_INVALID,
                          "'%.64s' is no name for a hook: use letters, digits, '.', '_' or '-'",
                          x->name);
    if (!old && count_of(call->ctl, call->user->name) >= VG_HOOKS_EACH)
        return vg_err_set(err, VG_CONFLICT, "you have %d hooks already: remove one first",
                          VG_HOOKS_EACH);
    int r = vg_hook_url_check(x->url, err);
    if (r >= 0 && vg_hook_url_is_mail(x->url) && !call->ctl->conf.mail.server)
        r = vg_err_set(err, VG_CONFLICT,
                       "this cloud sends no mail: its administrator can set 'mail.server'");
    if (r >= 0 && old && !m->n_event)
        x->events = old->events;
    else if (r >= 0)
        r = check_events(m, &x->events, err);
    if (r >= 0)
        r = check_scope(call, x, err);
    return r < 0 ? r : check_secret(x->secret, err);
}

/* An answer that waits for the store, with the secret that is shown once. */
struct answer {
    struct vg_control *ctl;
    uint64_t peer;
    uint32_t req;
    char *key;
    char secret[VG_HOOK_SECRET_MAX + 1];
};

static void answer_free(struct answer *a) {
    if (!a)
        return;
    OPENSSL_cleanse(a->secret, sizeof a->secret);
    free(a->key);
    free(a);
}

static void set_stored(void *arg, int result) {
    struct answer *a = arg;
    struct vg_peer *p = vg_peer_find(a->ctl, a->peer);
    struct vg_err err = VG_ERR_INIT;
    const struct vg_user *u = p ? vg_peer_user(p, &err) : NULL;
    const struct vg_hook *h = a->ctl->hooks ? vg_map_get(&a->ctl->hooks->map, a->key) : NULL;
    if (p && result < 0) {
        vg_peer_error(p, a->req, result == -ENOSPC ? VG_DISK_FULL : VG_INTERNAL,
                      "the hook could not be stored: %s", strerror(-result));
    } else if (p && (!h || !u)) {
        vg_peer_error(p, a->req, VG_CONFLICT, "the hook was removed in the meantime");
    } else if (p) {
        struct shown s = {0};
        VG_ENVELOPE(env);
        Vg__Pb__HookList m = VG__PB__HOOK_LIST__INIT;
        Vg__Pb__HookInfo *list[] = {&s.info};
        show(h, u, &s);
        s.info.new_secret = a->secret;
        m.n_hook = 1;
        m.hook = list;
        env.body_case = B(HOOKS);
        env.hooks = &m;
        vg_peer_send(p, a->req, false, &env);
    }
    answer_free(a);
}

static bool replace(char **to, const char *text) {
    char *copy = vg_strdup(text);
    if (!copy)
        return false;
    free(*to);
    *to = copy;
    return true;
}

/* Mail is not signed. A new one gets a secret of ours, unless it brings one. */
static int set_secret(struct vg_hook *h, const struct change *x, struct answer *a,
                      struct vg_err *err) {
    uint8_t some[32];
    char made[2 * sizeof some + 1];
    const char *secret = x->secret;
    if (vg_hook_url_is_mail(h->url) || (!secret && h->sealed_bytes))
        return 0;
    if (!secret) {
        vg_random(some, sizeof some);
        for (size_t i = 0; i < sizeof some; i++)
            snprintf(made + 2 * i, 3, "%02x", some[i]);
        snprintf(a->secret, sizeof a->secret, "%s", made);
        secret = made;
    }
    int r = vg_hook_seal(h->ctl->ca.task_key, h->key, secret, h->sealed, &h->sealed_bytes);
    OPENSSL_cleanse(some, sizeof some);
    OPENSSL_cleanse(made, sizeof made);
    return r < 0 ? vg_err_set(err, VG_INTERNAL, "the hook's secret cannot be sealed") : 0;
}

static int apply(struct vg_call *call, struct vg_hook *h, const struct change *x, struct answer *a,
                 struct vg_err *err) {
    const Vg__Pb__HookSet *m = call->env->hook_set;
    if (!replace(&h->url, x->url) || !replace(&h->scope, x->scope))
        return vg_err_sys(err, -ENOMEM, "cannot set the hook");
    h->events = x->events;
    int r = set_secret(h, x, a, err);
    if (r < 0)
        return r;
    if (m->has_paused) {
        h->failing_usec = h->paused && !m->paused ? 0 : h->failing_usec;
        h->paused = m->paused;
    }
    if (x->is_new)
        h->created_usec = vg_wall_usec();
    char host[300];
    vg_audit(call, "hook %s: %s%s", h->name, vg_hook_url_host(h->url, host, sizeof host),
             h->paused ? ", paused" : "");
    r = vg_hook_store(h, VG_STORE_DURABLE, set_stored, a);
    return r < 0 ? vg_err_sys(err, r, "cannot store the hook") : 0;
}

void vg_api_hook_set(struct vg_call *call) {
    const Vg__Pb__HookSet *m = call->env->hook_set;
    struct vg_control *c = call->ctl;
    struct vg_err err = VG_ERR_INIT, none = VG_ERR_INIT;
    struct change x = {0};
    struct vg_hook *old = find(call, m->name, &none), *h = old;
    if (old && strcmp(old->user, call->user->name) != 0)
        h = old = NULL; /* nobody sets another's: USER/NAME is no name then */
    struct answer *a = vg_alloc(sizeof *a);
    int r = a ? check(call, m, old, &x, &err) : vg_err_sys(&err, -ENOMEM, "cannot set the hook");
    if (r >= 0 && !h && !(h = vg_hook_new(c, call->user->name, x.name)))
        r = vg_err_sys(&err, -ENOMEM, "cannot set the hook");
    if (r >= 0) {
        *a = (struct answer){
            .ctl = c, .peer = call->peer->serial, .req = call->req, .key = vg_strdup(h->key)};
        r = a->key ? apply(call, h, &x, a, &err) : vg_err_sys(&err, -ENOMEM, "cannot set the hook");
    }
    if (r < 0) {
        if (!old)
            vg_hook_free(h);
        answer_free(a);
        vg_peer_fail(call->peer, call->req, &err);
    }
    if (c->hooks)
        vg_hooks_changed(c);
    if (r >= 0) {
        vg_timer_stop(&h->again); /* what waits may go where it could not before */
        vg_hook_send(h);
    }
}

/* ------------------------------------------------------------------ remove, test */

void vg_api_hook_remove(struct vg_call *call) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_hook *h = find(call, call->env->hook_remove->name, &err);
    struct vg_later *l = h ? vg_later_new(call) : NULL;
    int r = l ? 0 : h ? vg_err_sys(&err, -ENOMEM, "cannot remove the hook") : -ENOENT;
    if (r >= 0) {
        vg_audit(call, "hook %s removed", h->key);
        r = vg_store_del_hook(call->ctl->store, h->user, h->name, vg_later_stored, l);
        if (r < 0)
            vg_err_sys(&err, r, "cannot remove the hook");
    }
    if (r < 0) {
        free(l);
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    vg_hook_free(h);
    vg_hooks_changed(call->ctl);
}

static void tested(void *user, const struct vg_err *err) {
    struct vg_later *l = user;
    struct vg_peer *p = vg_peer_find(l->ctl, l->peer);
    if (p && err)
        vg_peer_fail(p, l->req, err);
    else if (p)
        vg_peer_ok(p, l->req, "the server has taken it");
    free(l);
}

void vg_api_hook_test(struct vg_call *call) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_hook *h = find(call, call->env->hook_test->name, &err);
    struct vg_later *l = h ? vg_later_new(call) : NULL;
    int r = l   ? vg_hook_try(h, tested, l, &err)
            : h ? vg_err_sys(&err, -ENOMEM, "cannot send a test")
                : -ENOENT;
    if (r < 0) {
        free(l);
        vg_peer_fail(call->peer, call->req, &err);
    }
}
