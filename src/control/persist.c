/* Writing behind: jobs that changed are gathered and handed to the store together, so that a short
   task costs one row. Reading: what the store knew at start. */
#include "control/persist.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/audit.h"
#include "control/family.h"
#include "control/keys.h"
#include "control/nodes.h"
#include "control/place.h"
#include "control/schedule.h"
#include "control/secrets.h"
#include "model/session.h"
#include "model/task-row.h"

#include <string.h>

#define BEHIND_MS 10

struct pending {
    struct vg_control *ctl;
    uint64_t task;
    void (*cb)(struct vg_job *j, uint64_t cookie, int result);
    uint64_t cookie;
};

static void written(void *arg, int result) {
    vg_auto_free struct pending *p = arg;
    struct vg_job *j = vg_job_get(p->ctl, p->task);
    if (j && p->cb)
        p->cb(j, p->cookie, result);
}

static int write_job(struct vg_job *j, enum vg_store_sync sync, vg_store_cb *cb, void *arg) {
    struct vg_task_pack pack = {0};
    struct vg_task_row row;
    int r = vg_task_to_row(j->task, !j->stored, &pack, &row);
    vg_store_group_begin(j->ctl->store);
    if (r >= 0)
        r = vg_store_put_task(j->ctl->store, &row, sync, cb, arg);
    if (r >= 0 && !j->stored && j->from)
        vg_audit_submitted(j);
    vg_store_group_end(j->ctl->store);
    vg_task_pack_done(&pack);
    if (r < 0)
        return r;
    j->stored = true;
    free(vg_take_ptr(j->from));
    vg_list_remove(&j->dirty);
    return 0;
}

int vg_persist_now(struct vg_job *j, enum vg_store_sync sync,
                   void (*cb)(struct vg_job *j, uint64_t cookie, int result), uint64_t cookie) {
    struct pending *p = vg_alloc(sizeof *p);
    if (!p)
        return -ENOMEM;
    *p = (struct pending){.ctl = j->ctl, .task = j->task->id, .cb = cb, .cookie = cookie};
    int r = write_job(j, sync, written, p);
    if (r < 0) {
        free(p);
        vg_persist_later(j);
    }
    return r;
}

void vg_persist_write(struct vg_job *j) {
    if (write_job(j, VG_STORE_LAZY, NULL, NULL) < 0)
        vg_persist_later(j);
}

void vg_persist_flush(struct vg_control *c) {
    vg_list_for_each_safe (it, &c->dirty) {
        struct vg_job *j = vg_list_entry(it, struct vg_job, dirty);
        if (vg_task_is_ended(j->task) && !j->ending)
            vg_job_store_end(j);
        else if (write_job(j, VG_STORE_LAZY, NULL, NULL) < 0)
            break; /* the store is behind: the next round tries again */
    }
}

static void tell_news(struct vg_control *c) {
    while (!vg_list_empty(&c->news)) {
        struct vg_job *j = vg_list_entry(vg_list_first(&c->news), struct vg_job, news);
        vg_list_remove(&j->news);
        vg_watch_tell(c, j->task);
    }
}

static void on_behind(uv_timer_t *t) {
    struct vg_control *c = t->data;
    c->write_armed = false;
    vg_persist_flush(c);
    tell_news(c);
}

static void arm(struct vg_control *c) {
    if (!c->write_armed && !c->stopping) {
        c->write_armed = true;
        uv_timer_start(&c->write_behind, on_behind, BEHIND_MS, 0);
    }
}

void vg_persist_news(struct vg_job *j) {
    if (vg_list_empty(&j->ctl->watches) || !vg_list_empty(&j->news))
        return;
    vg_list_push_back(&j->ctl->news, &j->news);
    arm(j->ctl);
}

void vg_persist_later(struct vg_job *j) {
    struct vg_control *c = j->ctl;
    /* Hearsay is not turned into knowledge: after a restart its node tells it again. */
    if (j->hearsay && !vg_task_is_ended(j->task))
        return;
    if (vg_list_empty(&j->dirty))
        vg_list_push_back(&c->dirty, &j->dirty);
    arm(c);
}

void vg_persist_sometime(struct vg_job *j) {
    if (vg_list_empty(&j->dirty))
        vg_list_push_back(&j->ctl->dirty, &j->dirty);
}

/* "k=v" lines. NULL: no memory. */
static char *join_lines(const struct vg_strings *labels) {
    struct vg_buf b = {0};
    for (size_t i = 0; i < labels->n; i++)
        if (vg_buf_printf(&b, "%s\n", labels->item[i]) < 0)
            break;
    char *out = vg_strndup(b.base ? (char *)vg_buf_data(&b) : "", vg_buf_len(&b));
    vg_buf_done(&b);
    return out;
}

static int put_node(struct vg_nodelink *a, enum vg_store_sync sync, vg_store_cb *cb, void *arg) {
    const struct vg_node *n = a->node;
    Vg__Pb__Resources total = vg_res_to_pb(n->total);
    uint8_t packed[128];
    vg_auto_free char *labels = join_lines(&n->labels);
    struct vg_node_row row = {.id = n->id,
                              .name = n->name,
                              .state = a->drain && n->state == VG_NODE_READY
                                           ? vg_node_state_name(VG_NODE_DRAINING)
                                           : vg_node_state_name(n->state),
                              .labels = labels,
                              .gpu_model = n->gpu_model,
                              .version = n->version,
                              .address = n->address,
                              .machine_id = n->machine_id,
                              .joined_usec = n->joined_usec,
                              .seen_usec = n->seen_usec,
                              .cert_expires_usec = n->cert_expires_usec};
    row.total = (struct vg_bytes){packed, vg__pb__resources__pack(&total, packed)};
    int r = vg_store_put_node(a->ctl->store, &row, sync, cb, arg);
    if (r < 0)
        vg_warn("cannot store node %s: %s", n->name, strerror(-r));
    return r;
}

void vg_persist_node(struct vg_nodelink *a, enum vg_store_sync sync) {
    put_node(a, sync, NULL, NULL);
}

int vg_persist_node_then(struct vg_nodelink *a, vg_store_cb *cb, void *arg) {
    return put_node(a, VG_STORE_COMMIT, cb, arg);
}

struct keeping {
    struct vg_control *ctl;
    uint64_t node;
    uint32_t which;
};

static void node_kept(void *arg, int result) {
    vg_auto_free struct keeping *k = arg;
    struct vg_nodelink *a = vg_nodelink_get(k->ctl, k->node);
    if (!a || a->keeping != k->which)
        return; /* removed, or lost in the meantime */
    a->keeping = 0;
    if (result < 0) {
        vg_error("node=%s cannot be stored and takes no tasks until it is: %s", a->node->name,
                 strerror(-result)); /* housekeeping tries again */
        return;
    }
    a->kept = true;
    vg_nodelink_update(a);
    vg_place_all(k->ctl);
}

void vg_persist_node_kept(struct vg_nodelink *a) {
    struct keeping *k = vg_alloc(sizeof *k);
    if (!k)
        return;
    a->keeping = ++a->keep_times;
    *k = (struct keeping){.ctl = a->ctl, .node = a->node->id, .which = a->keeping};
    if (put_node(a, VG_STORE_DURABLE, node_kept, k) < 0) {
        a->keeping = 0;
        free(k);
    }
}

/* ------------------------------------------------------------------ rows to tasks */

static int take_group(void *arg, const struct vg_task_row *row) {
    return vg_task_from_row(row, NULL, arg);
}

int vg_row_tasks_get(struct vg_row_tasks *r, const struct vg_task_row *row, struct vg_task **ret) {
    const struct vg_task *group = NULL;
    if (row->group) {
        struct vg_job *j = vg_job_get(r->ctl, row->group);
        group = j ? j->task : r->group;
        if (!group || group->id != row->group) {
            vg_task_free(vg_take_ptr(r->group));
            int e = vg_store_get_task(r->ctl->store, row->group, take_group, &r->group);
            if (e < 0)
                return e == -ENOENT ? -EBADMSG : e;
            group = r->group;
        }
    }
    return vg_task_from_row(row, group, ret);
}

void vg_row_tasks_done(struct vg_row_tasks *r) {
    vg_task_free(vg_take_ptr(r->group));
}

struct one_task {
    struct vg_row_tasks rows;
    struct vg_task *task;
};

static int take_one(void *arg, const struct vg_task_row *row) {
    struct one_task *o = arg;
    return vg_row_tasks_get(&o->rows, row, &o->task);
}

int vg_persist_get(struct vg_control *c, uint64_t id, struct vg_task **ret) {
    struct one_task o = {.rows.ctl = c};
    int r = vg_store_get_task(c->store, id, take_one, &o);
    vg_row_tasks_done(&o.rows);
    if (r >= 0)
        *ret = o.task;
    return r;
}

/* ------------------------------------------------------------------ at start */

static int load_task(void *arg, const struct vg_task_row *row) {
    struct vg_control *c = arg;
    struct vg_row_tasks rows = {.ctl = c};
    struct vg_task *t = NULL;
    int r = vg_row_tasks_get(&rows, row, &t);
    vg_row_tasks_done(&rows);
    if (r == -EBADMSG) {
        vg_error("task %016llx in the store cannot be read and is left out",
                 (unsigned long long)row->id);
        return 0;
    }
    struct vg_job *j = r < 0 ? NULL : vg_job_new(c, t);
    if (!j) {
        vg_task_free(t);
        return -ENOMEM;
    }
    j->stored = j->loaded = true;
    j->held = t->state == VG_TASK_QUEUED;
    return 0;
}

int vg_persist_set_labels(struct vg_nodelink *a, const char *lines) {
    char *items[VG_CONF_LIST_MAX];
    size_t count = 0;
    vg_auto_free char *copy = vg_strdup(lines ? lines : "");
    char *save = NULL;
    for (char *l = copy ? strtok_r(copy, "\n", &save) : NULL; l && count < VG_COUNT(items);
         l = strtok_r(NULL, "\n", &save))
        items[count++] = l;
    return vg_node_set_labels(a->node, items, count);
}

static int load_node(void *arg, const struct vg_node_row *row) {
    struct vg_control *c = arg;
    struct vg_nodelink *a = vg_nodelink_new(c, row->id, row->name);
    if (!a)
        return -ENOMEM;
    struct vg_node *n = a->node;
    enum vg_node_state state = VG_NODE_LOST;
    vg_node_state_parse(row->state, &state);
    a->drain = state == VG_NODE_DRAINING;
    a->alive_before = a->kept = state == VG_NODE_READY || state == VG_NODE_DRAINING;
    if (state != VG_NODE_JOINING)
        vg_node_move(n, state, vg_wall_usec());
    Vg__Pb__Resources *total = vg__pb__resources__unpack(NULL, row->total.len, row->total.data);
    n->total = vg_res_from_pb(total);
    if (total)
        vg__pb__resources__free_unpacked(total, NULL);
    n->gpus = n->total.gpus >= 64 ? UINT64_MAX : (1ULL << n->total.gpus) - 1;
    n->gpu_model = vg_strdup(row->gpu_model);
    n->version = vg_strdup(row->version);
    n->address = vg_strdup(row->address);
    n->machine_id = vg_strdup(row->machine_id);
    n->joined_usec = row->joined_usec;
    n->seen_usec = row->seen_usec;
    n->cert_expires_usec = row->cert_expires_usec;
    /* Until it reports, its lease is what an earlier life may have granted just before we came. */
    vg_node_renew(n, vg_now_usec(), c->conf.lease_usec);
    vg_persist_set_labels(a, row->labels);
    vg_nodelink_update(a);
    return 0;
}

static int load_org(void *arg, const struct vg_org_row *row) {
    struct vg_control *c = arg;
    struct vg_err err = VG_ERR_INIT;
    return vg_tenants_add_org(&c->tenants, row->name, row->created_usec, &err);
}

static int load_team(void *arg, const struct vg_team_row *row) {
    struct vg_control *c = arg;
    struct vg_err err = VG_ERR_INIT;
    return vg_tenants_add_team(&c->tenants, row->org, row->name, row->created_usec, NULL, &err);
}

static int load_user(void *arg, const struct vg_user_row *row) {
    struct vg_control *c = arg;
    struct vg_err err = VG_ERR_INIT;
    enum vg_role role = VG_ROLE_MEMBER;
    struct vg_user *u = NULL;
    vg_role_parse(row->role, &role);
    int r = vg_tenants_add_user(&c->tenants, row->name, row->team, role, row->uid, row->gid,
                                row->slot, row->created_usec, &u, &err);
    if (r < 0 && r != -ENOMEM) {
        vg_error("user '%s' in the store is left out: %s", row->name, err.msg);
        return 0;
    }
    if (r < 0)
        return r;
    u->service = row->service;
    u->disabled = row->disabled;
    r = vg_user_set_text(&u->email, row->email);
    if (r >= 0)
        r = vg_user_set_text(&u->full_name, row->full_name);
    return r < 0 ? r : vg_user_set_text(&u->subject, row->subject);
}

/* A user's id range names what nodes keep of him. Whoever comes after him must never get it. */
int vg_persist_last_slot(struct vg_control *c) {
    char text[16];
    snprintf(text, sizeof text, "%u", c->tenants.last_slot);
    return vg_store_put_meta(c->store, "last_slot", text, VG_STORE_COMMIT, NULL, NULL);
}

static int load_last_slot(struct vg_control *c) {
    vg_auto_free char *text = NULL;
    uint64_t last;
    int r = vg_store_get_meta(c->store, "last_slot", &text);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    if (vg_parse_u64(text, &last) == 0 && last > c->tenants.last_slot && last < UINT32_MAX)
        c->tenants.last_slot = (uint32_t)last;
    return 0;
}

static int load_token(void *arg, const struct vg_token_row *row) {
    int r = vg_key_add(arg, row);
    return r == -EINVAL ? 0 : r;
}

static int load_session(void *arg, const struct vg_session_row *row) {
    struct vg_control *c = arg;
    struct vg_session *s =
        vg_session_new(row->user, row->name, row->pool, row->keep_usec, row->created_usec);
    if (!s || vg_map_put(&c->sessions, s->key, s) < 0) {
        vg_session_free(s);
        return -ENOMEM;
    }
    if (row->node) {
        vg_session_enter(s, row->node, row->created_usec);
        vg_session_leave(s, vg_wall_usec());
    }
    return 0;
}

/* Sessions of loaded tasks: placed ones count again. */
static void rejoin_sessions(struct vg_control *c) {
    vg_map_for_each (s, &c->jobs) {
        struct vg_job *j = s->value;
        const struct vg_task *t = j->task;
        if (!t->spec->session || !*t->spec->session)
            continue;
        vg_auto_free char *key = vg_fmt("%s/%s", t->user, t->spec->session);
        j->session = key ? vg_map_get(&c->sessions, key) : NULL;
        if (j->session && t->attempt.node)
            j->entered = vg_session_enter(j->session, t->attempt.node, vg_wall_usec()) == 0;
    }
}

int vg_persist_load(struct vg_control *c, struct vg_err *err) {
    int r = vg_store_load_orgs(c->store, load_org, c);
    if (r >= 0)
        r = vg_store_load_teams(c->store, load_team, c);
    if (r >= 0)
        r = vg_store_load_users(c->store, load_user, c);
    if (r >= 0)
        r = load_last_slot(c);
    if (r >= 0)
        r = vg_store_load_tokens(c->store, load_token, c);
    if (r >= 0)
        r = vg_store_load_nodes(c->store, load_node, c);
    if (r >= 0)
        r = vg_store_load_sessions(c->store, load_session, c);
    if (r >= 0)
        r = vg_store_load_tasks(c->store, load_task, c);
    if (r < 0)
        return vg_err_sys(err, r, "cannot load the cloud's state from %s", c->home.db);
    r = vg_secrets_load(c, err);
    if (r < 0)
        return r;
    r = vg_schedules_load(c);
    if (r >= 0)
        r = vg_family_restore(c);
    if (r < 0)
        return vg_err_sys(err, r, "cannot load groups and schedules from %s", c->home.db);
    rejoin_sessions(c);
    return 0;
}
