/* Rows to operations. Loop thread. */
#include "base/cleanup.h"
#include "base/util.h"
#include "store/internal.h"

#define VALS_MAX 48

struct vals {
    struct val val[VALS_MAX];
    char hex[6][VG_ID_LEN + 1]; /* ids as text */
    unsigned n, n_hex;
};

static void add_int(struct vals *v, int64_t i) {
    v->val[v->n++] = (struct val){.kind = VAL_INT, .i = i};
}

static void add_text(struct vals *v, const char *s) {
    v->val[v->n++] = (struct val){.kind = VAL_TEXT, .p = s, .len = s ? strlen(s) : 0};
}

static void add_blob(struct vals *v, struct vg_bytes b) {
    v->val[v->n++] = (struct val){.kind = VAL_BLOB, .p = b.data, .len = b.len};
}

static void add_id(struct vals *v, uint64_t id) {
    char *hex = v->hex[v->n_hex++];
    if (id)
        vg_id_format(id, hex);
    else
        hex[0] = 0;
    add_text(v, hex);
}

static int queue(struct vg_store *s, enum stmt stmt, enum vg_store_sync sync, const struct vals *v,
                 vg_store_cb *cb, void *arg) {
    return store_queue(s, stmt, sync, v->val, v->n, cb, arg);
}

#define ADD_TEXT(x) add_text(&v, x)
#define ADD_BOOL(x) add_int(&v, x)
#define ADD_U32(x) add_int(&v, x)
#define ADD_I32(x) add_int(&v, x)
#define ADD_U64(x) add_int(&v, (int64_t)(x))
#define ADD_ID(x) add_id(&v, x)

int vg_store_put_task(struct vg_store *s, const struct vg_task_row *row, enum vg_store_sync sync,
                      vg_store_cb *cb, void *arg) {
    struct vals v = {0};
    bool whole = row->spec.len > 0 || row->insert;
    if (whole)
        add_id(&v, row->id);
#define COL(column, kind, field) ADD_##kind(row->field);
#include "store/task-columns.tbl"
    if (!whole) {
        add_id(&v, row->id);
        return queue(s, STMT_TASK_UPDATE, sync, &v, cb, arg);
    }
#define BLOB_COL(column, field) add_blob(&v, row->field);
#include "store/task-columns.tbl"
    return queue(s, STMT_TASK_PUT, sync, &v, cb, arg);
}

int vg_store_prune_tasks(struct vg_store *s, uint64_t before_usec, uint32_t limit, vg_store_cb *cb,
                         void *arg) {
    struct vals v = {0};
    ADD_U64(before_usec);
    ADD_U32(limit);
    return queue(s, STMT_TASK_PRUNE, VG_STORE_LAZY, &v, cb, arg);
}

int vg_store_put_node(struct vg_store *s, const struct vg_node_row *row, enum vg_store_sync sync,
                      vg_store_cb *cb, void *arg) {
    struct vals v = {0};
    add_id(&v, row->id);
    add_text(&v, row->name);
    add_text(&v, row->state);
    add_text(&v, row->labels);
    add_blob(&v, row->total);
    add_text(&v, row->gpu_model);
    add_text(&v, row->version);
    add_text(&v, row->address);
    add_text(&v, row->machine_id);
    ADD_U64(row->joined_usec);
    ADD_U64(row->seen_usec);
    ADD_U64(row->cert_expires_usec);
    return queue(s, STMT_NODE_PUT, sync, &v, cb, arg);
}

int vg_store_del_node(struct vg_store *s, uint64_t id, enum vg_store_sync sync, vg_store_cb *cb,
                      void *arg) {
    struct vals v = {0};
    add_id(&v, id);
    return queue(s, STMT_NODE_DEL, sync, &v, cb, arg);
}

int vg_store_put_org(struct vg_store *s, const struct vg_org_row *row, vg_store_cb *cb, void *arg) {
    struct vals v = {0};
    add_text(&v, row->name);
    ADD_U64(row->created_usec);
    return queue(s, STMT_ORG_PUT, VG_STORE_DURABLE, &v, cb, arg);
}

int vg_store_put_team(struct vg_store *s, const struct vg_team_row *row, vg_store_cb *cb,
                      void *arg) {
    struct vals v = {0};
    add_text(&v, row->name);
    add_text(&v, row->org);
    ADD_U64(row->created_usec);
    return queue(s, STMT_TEAM_PUT, VG_STORE_DURABLE, &v, cb, arg);
}

static int put_user(struct vg_store *s, enum stmt stmt, const struct vg_user_row *row,
                    vg_store_cb *cb, void *arg) {
    struct vals v = {0};
    add_text(&v, row->name);
    add_text(&v, row->team);
    add_text(&v, row->role);
    add_int(&v, row->uid);
    add_int(&v, row->gid);
    add_int(&v, row->slot);
    ADD_U64(row->created_usec);
    ADD_BOOL(row->service);
    ADD_BOOL(row->disabled);
    add_text(&v, row->email);
    add_text(&v, row->full_name);
    add_text(&v, row->subject);
    return queue(s, stmt, VG_STORE_DURABLE, &v, cb, arg);
}

int vg_store_put_user(struct vg_store *s, const struct vg_user_row *row, vg_store_cb *cb,
                      void *arg) {
    return put_user(s, STMT_USER_PUT, row, cb, arg);
}

int vg_store_add_user(struct vg_store *s, const struct vg_user_row *row, vg_store_cb *cb,
                      void *arg) {
    return put_user(s, STMT_USER_ADD, row, cb, arg);
}

static int del_by_name(struct vg_store *s, enum stmt stmt, const char *name, vg_store_cb *cb,
                       void *arg) {
    struct vals v = {0};
    add_text(&v, name);
    return queue(s, stmt, VG_STORE_DURABLE, &v, cb, arg);
}

int vg_store_del_user(struct vg_store *s, const char *name, vg_store_cb *cb, void *arg) {
    return del_by_name(s, STMT_USER_DEL, name, cb, arg);
}

int vg_store_del_team(struct vg_store *s, const char *name, vg_store_cb *cb, void *arg) {
    return del_by_name(s, STMT_TEAM_DEL, name, cb, arg);
}

int vg_store_del_org(struct vg_store *s, const char *name, vg_store_cb *cb, void *arg) {
    return del_by_name(s, STMT_ORG_DEL, name, cb, arg);
}

int vg_store_add_token(struct vg_store *s, const struct vg_token_row *row, vg_store_cb *cb,
                       void *arg) {
    struct vals v = {0};
    add_text(&v, row->id);
    add_text(&v, row->user);
    add_text(&v, row->name);
    add_blob(&v, row->hash);
    ADD_U64(row->created_usec);
    ADD_U64(row->expires_usec);
    ADD_U64(row->used_usec);
    ADD_U32(row->scope);
    return queue(s, STMT_TOKEN_ADD, VG_STORE_DURABLE, &v, cb, arg);
}

int vg_store_del_token(struct vg_store *s, const char *id, vg_store_cb *cb, void *arg) {
    return del_by_name(s, STMT_TOKEN_DEL, id, cb, arg);
}

int vg_store_touch_token(struct vg_store *s, const char *id, uint64_t used_usec) {
    struct vals v = {0};
    ADD_U64(used_usec);
    add_text(&v, id);
    return queue(s, STMT_TOKEN_TOUCH, VG_STORE_LAZY, &v, NULL, NULL);
}

int vg_store_put_secret(struct vg_store *s, const struct vg_secret_row *row, vg_store_cb *cb,
                        void *arg) {
    struct vals v = {0};
    add_text(&v, row->scope);
    add_text(&v, row->name);
    ADD_U32(row->version);
    add_text(&v, row->key);
    add_blob(&v, row->wrapped);
    add_blob(&v, row->sealed);
    add_text(&v, row->set_by);
    ADD_U64(row->created_usec);
    ADD_U64(row->changed_usec);
    return queue(s, STMT_SECRET_PUT, VG_STORE_DURABLE, &v, cb, arg);
}

int vg_store_del_secret(struct vg_store *s, const char *scope, const char *name, vg_store_cb *cb,
                        void *arg) {
    struct vals v = {0};
    add_text(&v, scope);
    add_text(&v, name);
    return queue(s, STMT_SECRET_DEL, VG_STORE_DURABLE, &v, cb, arg);
}

int vg_store_add_join(struct vg_store *s, const struct vg_join_row *row, vg_store_cb *cb,
                      void *arg) {
    struct vals v = {0};
    add_text(&v, row->id);
    add_blob(&v, row->hash);
    add_text(&v, row->labels);
    ADD_U64(row->created_usec);
    ADD_U64(row->expires_usec);
    add_id(&v, row->node);
    return queue(s, STMT_JOIN_ADD, VG_STORE_DURABLE, &v, cb, arg);
}

int vg_store_use_join(struct vg_store *s, const char *id, uint64_t node, uint64_t now_usec,
                      vg_store_cb *cb, void *arg) {
    struct vals v = {0};
    add_id(&v, node);
    add_text(&v, id);
    ADD_U64(now_usec);
    return queue(s, STMT_JOIN_USE, VG_STORE_DURABLE, &v, cb, arg);
}

int vg_store_put_session(struct vg_store *s, const struct vg_session_row *row,
                         enum vg_store_sync sync, vg_store_cb *cb, void *arg) {
    struct vals v = {0};
    add_text(&v, row->user);
    add_text(&v, row->name);
    add_text(&v, row->pool);
    add_id(&v, row->node);
    ADD_U64(row->created_usec);
    ADD_U64(row->keep_usec);
    return queue(s, STMT_SESSION_PUT, sync, &v, cb, arg);
}

int vg_store_del_session(struct vg_store *s, const char *user, const char *name, vg_store_cb *cb,
                         void *arg) {
    struct vals v = {0};
    add_text(&v, user);
    add_text(&v, name);
    return queue(s, STMT_SESSION_DEL, VG_STORE_LAZY, &v, cb, arg);
}

int vg_store_audit(struct vg_store *s, const struct vg_audit_row *row) {
    struct vals v = {0};
    ADD_U64(row->when_usec);
    add_text(&v, row->who);
    add_text(&v, row->what);
    add_text(&v, row->from);
    return queue(s, STMT_AUDIT_ADD, VG_STORE_LAZY, &v, NULL, NULL);
}

int vg_store_then(struct vg_store *s, vg_store_cb *cb, void *arg) {
    struct vals v = {0};
    return queue(s, STMT_NOTHING, VG_STORE_COMMIT, &v, cb, arg);
}

int vg_store_put_schedule(struct vg_store *s, const struct vg_schedule_row *row,
                          enum vg_store_sync sync, vg_store_cb *cb, void *arg) {
    struct vals v = {0};
    add_id(&v, row->id);
    add_text(&v, row->user);
    add_text(&v, row->team);
    add_text(&v, row->name);
    add_blob(&v, row->spec);
    add_blob(&v, row->who);
    ADD_U64(row->created_usec);
    ADD_U64(row->next_usec);
    ADD_U64(row->last_usec);
    add_id(&v, row->last_task);
    ADD_U32(row->made);
    return queue(s, STMT_SCHEDULE_PUT, sync, &v, cb, arg);
}

int vg_store_del_schedule(struct vg_store *s, uint64_t id, vg_store_cb *cb, void *arg) {
    struct vals v = {0};
    add_id(&v, id);
    return queue(s, STMT_SCHEDULE_DEL, VG_STORE_DURABLE, &v, cb, arg);
}

int vg_store_put_meta(struct vg_store *s, const char *key, const char *value,
                      enum vg_store_sync sync, vg_store_cb *cb, void *arg) {
    struct vals v = {0};
    add_text(&v, key);
    add_text(&v, value);
    return queue(s, STMT_META_PUT, sync, &v, cb, arg);
}

/* ------------------------------------------------------------------ what was held, what came */

int vg_store_put_attempt(struct vg_store *s, const struct vg_attempt_row *row,
                         enum vg_store_sync sync, vg_store_cb *cb, void *arg) {
    struct vals v = {0};
    add_id(&v, row->task);
    ADD_U32(row->attempt);
    add_text(&v, row->user);
    add_text(&v, row->team);
    add_text(&v, row->pool);
    add_text(&v, row->node);
    ADD_U64(row->from_usec);
    ADD_U64(row->until_usec);
    add_text(&v, row->how);
    ADD_U64(row->cpu_milli);
    ADD_U64(row->mem_bytes);
    ADD_U64(row->gpu_milli);
    ADD_U64(row->cpu_usec);
    ADD_U64(row->mem_peak_bytes);
    add_int(&v, row->gpu.sm_milli);
    add_int(&v, row->gpu.sm_max);
    add_int(&v, row->gpu.mem_milli);
    add_int(&v, row->gpu.mem_max);
    add_int(&v, row->gpu.mem_peak_bytes);
    add_int(&v, row->gpu.energy_mj);
    add_int(&v, row->gpu.sampled_usec);
    add_text(&v, row->wiped);
    ADD_U64(row->gpu_held);
    add_int(&v, row->gpu.pcie_rx_bytes);
    add_int(&v, row->gpu.pcie_tx_bytes);
    return queue(s, STMT_ATTEMPT_PUT, sync, &v, cb, arg);
}

int vg_store_add_price(struct vg_store *s, const struct vg_price_row *row, vg_store_cb *cb,
                       void *arg) {
    struct vals v = {0};
    ADD_U64(row->id);
    add_text(&v, row->pool);
    add_text(&v, row->class_name);
    ADD_U64(row->from_usec);
    ADD_U64(row->gpu_hour_micro);
    ADD_U64(row->cpu_hour_micro);
    ADD_U64(row->gib_hour_micro);
    ADD_U64(row->storage_gib_month_micro);
    ADD_U32(row->idle_milli);
    ADD_U32(row->preemptible_milli);
    add_text(&v, row->currency);
    add_text(&v, row->who);
    ADD_U64(row->set_usec);
    return queue(s, STMT_PRICE_ADD, cb ? VG_STORE_DURABLE : VG_STORE_LAZY, &v, cb, arg);
}

int vg_store_add_ledger(struct vg_store *s, const struct vg_ledger_row *row, vg_store_cb *cb,
                        void *arg) {
    struct vals v = {0};
    ADD_U64(row->seq);
    add_id(&v, row->task);
    ADD_U32(row->attempt);
    ADD_U32(row->part);
    add_text(&v, row->kind);
    ADD_U64(row->from_usec);
    ADD_U64(row->until_usec);
    add_text(&v, row->user);
    add_text(&v, row->team);
    add_text(&v, row->org);
    add_text(&v, row->project);
    add_text(&v, row->pool);
    add_text(&v, row->class_name);
    add_text(&v, row->node);
    add_text(&v, row->labels);
    ADD_U64(row->gpu_milli);
    ADD_U64(row->cpu_milli);
    ADD_U64(row->mem_bytes);
    ADD_BOOL(row->preemptible);
    ADD_U64(row->price);
    add_text(&v, row->currency);
    add_int(&v, row->cost_micro);
    ADD_U64(row->gpu_micro);
    ADD_U64(row->rest_hi);
    ADD_U64(row->rest_lo);
    ADD_U64(row->energy_mj);
    ADD_U64(row->gpu_busy_usec);
    ADD_U64(row->gpu_unused_usec);
    add_text(&v, row->text);
    add_text(&v, row->who);
    return queue(s, STMT_LEDGER_ADD, VG_STORE_LAZY, &v, cb, arg);
}

int vg_store_put_budget(struct vg_store *s, const struct vg_budget_row *row, vg_store_cb *cb,
                        void *arg) {
    struct vals v = {0};
    add_text(&v, row->name);
    add_text(&v, row->scope);
    add_text(&v, row->period);
    add_text(&v, row->policy);
    add_text(&v, row->who);
    add_text(&v, row->currency);
    add_text(&v, row->warn);
    ADD_U64(row->limit_micro);
    ADD_U64(row->grace_usec);
    ADD_U64(row->set_usec);
    ADD_BOOL(row->paused);
    ADD_U32(row->warned_percent);
    ADD_U64(row->warned_from_usec);
    ADD_U64(row->stopped_from_usec);
    return queue(s, STMT_BUDGET_PUT, cb ? VG_STORE_DURABLE : VG_STORE_LAZY, &v, cb, arg);
}

int vg_store_del_budget(struct vg_store *s, const char *name, vg_store_cb *cb, void *arg) {
    return del_by_name(s, STMT_BUDGET_DEL, name, cb, arg);
}

int vg_store_put_history(struct vg_store *s, const struct vg_history_row *row) {
    struct vals v = {0};
    add_id(&v, row->task);
    add_text(&v, row->queue);
    add_text(&v, row->user);
    add_text(&v, row->team);
    add_text(&v, row->pools);
    add_text(&v, row->models);
    add_text(&v, row->labels);
    ADD_U64(row->cpu_milli);
    ADD_U64(row->mem_bytes);
    ADD_U32(row->gpus);
    ADD_U32(row->gpu_milli);
    ADD_U64(row->gpu_mem_bytes);
    ADD_U32(row->priority);
    ADD_BOOL(row->preemptible);
    ADD_BOOL(row->fixed);
    ADD_U64(row->limit_usec);
    ADD_U64(row->kin);
    add_id(&v, row->gang);
    ADD_U32(row->members);
    ADD_U64(row->submit_usec);
    ADD_U64(row->ready_usec);
    ADD_U64(row->end_usec);
    add_text(&v, row->outcome);
    return queue(s, STMT_HISTORY_PUT, VG_STORE_LAZY, &v, NULL, NULL);
}

int vg_store_prune_history(struct vg_store *s, uint64_t before_usec, uint32_t limit) {
    struct vals v = {0};
    ADD_U64(before_usec);
    ADD_U32(limit);
    int r = queue(s, STMT_ATTEMPT_PRUNE, VG_STORE_LAZY, &v, NULL, NULL);
    return r < 0 ? r : queue(s, STMT_HISTORY_PRUNE, VG_STORE_LAZY, &v, NULL, NULL);
}

int vg_store_put_memory(struct vg_store *s, const struct vg_memory_row *row, uint64_t saved_usec) {
    struct vals v = {0};
    ADD_U32(row->kind);
    ADD_U64(row->key);
    for (int i = 0; i < 4; i++)
        ADD_U64(row->value[i]);
    ADD_U64(saved_usec);
    return queue(s, STMT_MEMORY_PUT, VG_STORE_LAZY, &v, NULL, NULL);
}

int vg_store_prune_memory(struct vg_store *s, uint64_t before_usec) {
    struct vals v = {0};
    ADD_U64(before_usec);
    return queue(s, STMT_MEMORY_PRUNE, VG_STORE_LAZY, &v, NULL, NULL);
}

int vg_store_put_series(struct vg_store *s, uint64_t task, struct vg_bytes data) {
    struct vals v = {0};
    add_id(&v, task);
    add_blob(&v, data);
    return queue(s, STMT_SERIES_PUT, VG_STORE_LAZY, &v, NULL, NULL);
}

/* ------------------------------------------------------------------ hooks */

int vg_store_put_hook(struct vg_store *s, const struct vg_hook_row *row, enum vg_store_sync sync,
                      vg_store_cb *cb, void *arg) {
    struct vals v = {0};
    add_text(&v, row->user);
    add_text(&v, row->name);
    add_text(&v, row->url);
    add_text(&v, row->scope);
    add_text(&v, row->events);
    add_blob(&v, row->sealed);
    ADD_BOOL(row->paused);
    ADD_U64(row->created_usec);
    ADD_U64(row->sent);
    ADD_U64(row->failed);
    ADD_U64(row->last_usec);
    ADD_U64(row->failing_usec);
    add_text(&v, row->last_error);
    return queue(s, STMT_HOOK_PUT, sync, &v, cb, arg);
}

int vg_store_del_hook(struct vg_store *s, const char *user, const char *name, vg_store_cb *cb,
                      void *arg) {
    struct vals v = {0};
    add_text(&v, user);
    add_text(&v, name);
    return queue(s, STMT_HOOK_DEL, VG_STORE_DURABLE, &v, cb, arg);
}

int vg_store_put_outbox(struct vg_store *s, const struct vg_outbox_row *row) {
    struct vals v = {0};
    add_text(&v, row->id);
    add_text(&v, row->user);
    add_text(&v, row->hook);
    add_text(&v, row->event);
    add_blob(&v, row->body);
    ADD_U64(row->created_usec);
    return queue(s, STMT_OUTBOX_PUT, VG_STORE_COMMIT, &v, NULL, NULL);
}

int vg_store_del_outbox(struct vg_store *s, const char *id) {
    struct vals v = {0};
    add_text(&v, id);
    return queue(s, STMT_OUTBOX_DEL, VG_STORE_LAZY, &v, NULL, NULL);
}
