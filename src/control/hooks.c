/* The table of hooks, what happens and what waits; see the header. */
#include "control/hooks.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/hooks-int.h"
#include "control/job.h"
#include "control/nodes.h"
#include "control/users.h"
#include "view/views.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------ the table */

struct vg_hooks *vg_hooks_need(struct vg_control *c) {
    if (!c->hooks && (c->hooks = vg_alloc(sizeof *c->hooks)))
        vg_list_init(&c->hooks->trials);
    return c->hooks;
}

struct vg_hook *vg_hook_new(struct vg_control *c, const char *user, const char *name) {
    struct vg_hooks *all = vg_hooks_need(c);
    struct vg_hook *h = all ? vg_alloc(sizeof *h) : NULL;
    if (!h)
        return NULL;
    h->ctl = c;
    h->key = vg_fmt("%s/%s", user, name);
    h->user = vg_strdup(user);
    h->name = vg_strdup(name);
    h->url = vg_strdup("");
    h->scope = vg_strdup("");
    vg_list_init(&h->waiting);
    if (h->key && h->user && h->name && h->url && h->scope && vg_map_put(&all->map, h->key, h) >= 0)
        return h;
    vg_hook_free(h);
    return NULL;
}

static void drop(struct vg_hook *h, struct vg_delivery *d) {
    vg_list_remove(&d->link);
    h->n_waiting--;
    h->ctl->hooks->bytes -= d->body_bytes;
    free(d->body);
    free(d);
}

void vg_hook_free(struct vg_hook *h) {
    if (!h)
        return;
    vg_fetch_cancel(h->call);
    vg_timer_stop(&h->again);
    vg_list_for_each_safe (it, &h->waiting)
        drop(h, vg_list_entry(it, struct vg_delivery, link));
    if (h->key && vg_map_get(&h->ctl->hooks->map, h->key) == h)
        vg_map_del(&h->ctl->hooks->map, h->key);
    OPENSSL_cleanse(h->sealed, sizeof h->sealed);
    free(h->key);
    free(h->user);
    free(h->name);
    free(h->url);
    free(h->scope);
    free(h);
}

void vg_hooks_changed(struct vg_control *c) {
    c->hooks->wanted = 0;
    vg_map_for_each (s, &c->hooks->map) {
        const struct vg_hook *h = s->value;
        c->hooks->wanted |= h->paused ? 0 : h->events;
    }
}

/* "task.ended\ntask.failed\n" */
static int events_text(uint32_t events, struct vg_buf *to) {
    int r = 0;
    for (int i = 0; r >= 0 && i < VG_HOOK_EVENTS; i++)
        if (events >> i & 1)
            r = vg_buf_printf(to, "%s\n", vg_hook_event_name((enum vg_hook_event_id)i));
    return r < 0 ? r : vg_buf_append(to, "", 1);
}

int vg_hook_store(const struct vg_hook *h, enum vg_store_sync sync, vg_store_cb *cb, void *arg) {
    struct vg_buf events = {0};
    int r = events_text(h->events, &events);
    struct vg_hook_row row = {.user = h->user,
                              .name = h->name,
                              .url = h->url,
                              .scope = h->scope,
                              .events = r < 0 ? "" : (const char *)vg_buf_data(&events),
                              .sealed = {h->sealed, h->sealed_bytes},
                              .paused = h->paused,
                              .created_usec = h->created_usec,
                              .sent = h->sent,
                              .failed = h->failed,
                              .last_usec = h->last_usec,
                              .failing_usec = h->failing_usec,
                              .last_error = h->last_error};
    if (r >= 0)
        r = vg_store_put_hook(h->ctl->store, &row, sync, cb, arg);
    vg_buf_done(&events);
    return r;
}

/* ------------------------------------------------------------------ what waits */

static struct vg_delivery *delivery_new(struct vg_hook *h, const char *id, const char *event,
                                        const char *body, size_t n, uint64_t created_usec) {
    struct vg_delivery *d = vg_alloc(sizeof *d);
    if (!d || !(d->body = vg_alloc(n + 1))) {
        free(d);
        return NULL;
    }
    memcpy(d->body, body, n);
    d->body_bytes = n;
    d->created_usec = created_usec;
    snprintf(d->id, sizeof d->id, "%s", id);
    snprintf(d->event, sizeof d->event, "%s", event);
    vg_list_push_back(&h->waiting, &d->link);
    h->n_waiting++;
    h->ctl->hooks->bytes += n;
    return d;
}

void vg_hook_pop(struct vg_hook *h) {
    struct vg_delivery *d = vg_list_entry(vg_list_first(&h->waiting), struct vg_delivery, link);
    vg_store_del_outbox(h->ctl->store, d->id);
    drop(h, d);
    h->tries = 0;
}

static bool is_waiting(const struct vg_hook *h, const char *id) {
    vg_list_for_each (it, &h->waiting)
        if (strcmp(vg_list_entry(it, struct vg_delivery, link)->id, id) == 0)
            return true;
    return false;
}

static bool has_room(const struct vg_hook *h, size_t n) {
    return h->n_waiting < VG_HOOK_WAITING && n <= VG_HOOK_BODY_MAX &&
           h->ctl->hooks->bytes + n <= VG_HOOK_BYTES_MAX;
}

static void dropped(struct vg_hook *h, const char *event, const char *why) {
    h->ctl->hooks->dropped++;
    h->failed++;
    snprintf(h->last_error, sizeof h->last_error, "%s was not kept: %s", event, why);
    vg_warn("hook=%s %s", h->key, h->last_error);
}

/* The same text for every hook but for what names the hook itself. */
static char *body_of(const struct vg_hook *h, const struct vg_hook_event *e, const char *id) {
    json_t *j = json_object();
    json_object_set_new(j, "id", json_string(id));
    json_object_set_new(j, "event", json_string(e->name));
    json_object_set_new(j, "created_usec", vg_json_u64(vg_wall_usec()));
    json_object_set_new(j, "cloud", json_string(h->ctl->cloud));
    json_object_set_new(j, "hook", json_string(h->name));
    json_object_set_new(j, "user", json_string(h->user));
    json_object_set(j, "data", e->data);
    char *text = json_dumps(j, JSON_COMPACT);
    json_decref(j);
    return text;
}

static void enqueue(struct vg_hook *h, const struct vg_hook_event *e) {
    char id[33], some[33];
    uint64_t chance[2];
    vg_random(chance, sizeof chance);
    snprintf(some, sizeof some, "%016llx%016llx", (unsigned long long)chance[0],
             (unsigned long long)chance[1]);
    vg_hook_id(h->key, e->name, e->key ? e->key : some, id);
    if (is_waiting(h, id))
        return;
    vg_auto_free char *body = body_of(h, e, id);
    size_t n = body ? strlen(body) : 0;
    if (!body || !has_room(h, n)) {
        dropped(h, e->name, body ? "too much waits for this hook" : "out of memory");
        return;
    }
    struct vg_delivery *d = delivery_new(h, id, e->name, body, n, vg_wall_usec());
    struct vg_outbox_row row = {.id = id,
                                .user = h->user,
                                .hook = h->name,
                                .event = e->name,
                                .body = {body, n},
                                .created_usec = d ? d->created_usec : 0};
    if (!d)
        dropped(h, e->name, "out of memory");
    else if (vg_store_put_outbox(h->ctl->store, &row) < 0)
        vg_warn("hook=%s %s is sent, but not kept until then", h->key, e->name);
    vg_hook_send(h);
}

/* ------------------------------------------------------------------ who hears what */

bool vg_hook_is_admins(const struct vg_hook *h) {
    const struct vg_user *u = vg_tenants_user(&h->ctl->tenants, h->user);
    return u && !u->disabled && vg_user_may(u, VG_ACT_MANAGE_NODES);
}

bool vg_hook_scope_allowed(struct vg_control *c, const char *user, const char *scope) {
    const struct vg_user *u = vg_tenants_user(&c->tenants, user);
    if (!u || u->disabled)
        return false;
    if (!*scope)
        return true;
    if (strncmp(scope, "team:", 5) == 0)
        return vg_users_lead(u, scope + 5);
    return (strcmp(scope, "cloud") == 0 || strncmp(scope, "org:", 4) == 0) &&
           vg_user_may(u, VG_ACT_SEE_ALL);
}

static bool same(const char *a, const char *b) {
    return a && strcmp(a, b) == 0;
}

static bool in_scope(const struct vg_hook *h, const struct vg_hook_event *e) {
    bool its = !*h->scope                           ? same(e->user, h->user)
               : strncmp(h->scope, "team:", 5) == 0 ? same(e->team, h->scope + 5)
               : strncmp(h->scope, "org:", 4) == 0  ? same(e->org, h->scope + 4)
                                                    : true;
    return its && vg_hook_scope_allowed(h->ctl, h->user, h->scope);
}

bool vg_hook_wanted(const struct vg_control *c, const char *name) {
    int i = c->hooks && c->hooks->wanted && !c->stopping ? vg_hook_event_find(name) : -1;
    return i >= 0 && (c->hooks->wanted >> i & 1);
}

void vg_hook_event(struct vg_control *c, const struct vg_hook_event *e) {
    int bit = vg_hook_event_find(e->name);
    vg_auto_free struct vg_hook **hear = NULL;
    size_t n = 0;
    if (vg_hook_wanted(c, e->name))
        hear = vg_alloc((vg_map_len(&c->hooks->map) + 1) * sizeof *hear);
    for (struct vg_hook **to = hear; to; to = NULL)
        vg_map_for_each (s, &c->hooks->map) {
            struct vg_hook *h = s->value;
            if (!h->paused && (h->events >> bit & 1) && in_scope(h, e))
                to[n++] = h;
        }
    for (size_t i = 0; i < n; i++)
        enqueue(hear[i], e);
    json_decref(e->data);
}

/* ------------------------------------------------------------------ tasks, nodes, GPUs */

static const char *org_of(struct vg_control *c, const char *team) {
    const struct vg_team *t = team ? vg_tenants_team(&c->tenants, team) : NULL;
    return t ? t->org : NULL;
}

void vg_hook_task(struct vg_job *j, const char *name) {
    const struct vg_task *t = j->task;
    struct vg_task_info info;
    char key[64];
    if (!vg_hook_wanted(j->ctl, name) || t->group)
        return;
    snprintf(key, sizeof key, "%016llx %u", (unsigned long long)t->id, t->attempt.number);
    vg_task_info(j->ctl, t, &info);
    struct vg_hook_event e = {.name = name,
                              .user = t->user,
                              .team = t->team,
                              .org = org_of(j->ctl, t->team),
                              .key = key,
                              .data = vg_view_json(&vg_view_task, &info.pb)};
    vg_hook_event(j->ctl, &e);
}

void vg_hook_node(struct vg_nodelink *a, const char *name, const char *text) {
    if (!vg_hook_wanted(a->ctl, name))
        return;
    json_t *data = json_object();
    json_object_set_new(data, "node", vg_json_text(a->node->name));
    json_object_set_new(data, "state", vg_json_text(vg_node_state_name(a->node->state)));
    json_object_set_new(data, "text", vg_json_text(text));
    struct vg_hook_event e = {.name = name, .data = data};
    vg_hook_event(a->ctl, &e);
}

void vg_hook_gpu(struct vg_nodelink *a, uint32_t index, const char *text) {
    if (!vg_hook_wanted(a->ctl, "gpu.fault"))
        return;
    json_t *data = json_object();
    json_object_set_new(data, "node", vg_json_text(a->node->name));
    json_object_set_new(data, "index", json_integer(index));
    json_object_set_new(data, "text", vg_json_text(text));
    struct vg_hook_event e = {.name = "gpu.fault", .data = data};
    vg_hook_event(a->ctl, &e);
}

/* ------------------------------------------------------------------ life */

static bool set_text(char **to, const char *text) {
    char *copy = vg_strdup(text);
    if (copy) {
        free(*to);
        *to = copy;
    }
    return copy != NULL;
}

static int take_hook(void *arg, const struct vg_hook_row *row) {
    struct vg_hook *h = vg_hook_new(arg, row->user, row->name);
    if (!h || !set_text(&h->url, row->url) || !set_text(&h->scope, row->scope))
        return -ENOMEM;
    vg_auto_free char *names = vg_strdup(row->events);
    if (!names)
        return -ENOMEM;
    for (char *next = names, *name; (name = strsep(&next, "\n"));) {
        int i = vg_hook_event_find(name);
        h->events |= i < 0 ? 0 : 1u << i;
    }
    h->sealed_bytes = VG_MIN(row->sealed.len, sizeof h->sealed);
    memcpy(h->sealed, row->sealed.data, h->sealed_bytes);
    h->paused = row->paused;
    h->created_usec = row->created_usec;
    h->sent = row->sent;
    h->failed = row->failed;
    h->last_usec = row->last_usec;
    h->failing_usec = row->failing_usec;
    snprintf(h->last_error, sizeof h->last_error, "%s", row->last_error);
    return 0;
}

static int take_waiting(void *arg, const struct vg_outbox_row *row) {
    struct vg_control *c = arg;
    vg_auto_free char *key = vg_fmt("%s/%s", row->user, row->hook);
    struct vg_hook *h = key && c->hooks ? vg_map_get(&c->hooks->map, key) : NULL;
    if (!h) {
        vg_store_del_outbox(c->store, row->id);
        return 0;
    }
    return delivery_new(h, row->id, row->event, row->body.data, row->body.len, row->created_usec)
               ? 0
               : -ENOMEM;
}

int vg_hooks_load(struct vg_control *c, struct vg_err *err) {
    int r = vg_store_load_hooks(c->store, take_hook, c);
    if (r >= 0)
        r = vg_store_load_outbox(c->store, take_waiting, c);
    if (r < 0)
        return vg_err_sys(err, r, "cannot read the hooks");
    if (!c->hooks)
        return 0;
    vg_hooks_changed(c);
    vg_map_for_each (s, &c->hooks->map)
        vg_hook_send(s->value);
    return 0;
}

void vg_hooks_forget_user(struct vg_control *c, const char *user) {
    if (!c->hooks)
        return;
    vg_map_for_each (s, &c->hooks->map) {
        struct vg_hook *h = s->value;
        if (strcmp(h->user, user) == 0)
            vg_hook_free(h);
    }
    vg_hooks_changed(c);
}

void vg_hooks_stop(struct vg_control *c) {
    struct vg_hooks *all = c->hooks;
    if (!all)
        return;
    vg_hook_end_trials(all);
    vg_map_for_each (s, &all->map)
        vg_hook_free(s->value);
    vg_map_done(&all->map);
    vg_fetcher_free(all->fetcher);
    free(all);
    c->hooks = NULL;
}

struct vg_hook_counts vg_hooks_count(const struct vg_control *c) {
    struct vg_hook_counts n = {0};
    if (!c->hooks)
        return n;
    n = (struct vg_hook_counts){
        .sent = c->hooks->sent, .failed = c->hooks->failed, .dropped = c->hooks->dropped};
    vg_map_for_each (s, &c->hooks->map) {
        const struct vg_hook *h = s->value;
        n.hooks++;
        n.paused += h->paused;
        n.waiting += h->n_waiting;
    }
    return n;
}
