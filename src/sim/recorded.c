/* Reading a cloud's store. Opened read-only: virgad may be running. */
#include "sim/recorded.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <sqlite3.h>
#include <string.h>

#define TASKS                                                                                     \
    "SELECT task,user,team,pools,models,labels,cpu_milli,mem_bytes,gpus,gpu_milli,gpu_mem_bytes," \
    "priority,preemptible,fixed,limit_usec,kin,gang,members,ready_usec,start_usec,run_usec "      \
    "FROM load WHERE ready_usec>=?1 ORDER BY ready_usec,task"

struct reader {
    sqlite3 *db;
    sqlite3_stmt *q;
    const char *path;
    struct vg_recorded *r;
    struct vg_err *err;
};

static int damaged(const struct reader *rd, const char *what) {
    return vg_err_set(rd->err, VG_INVALID, "cannot read %s of '%s': %s", what, rd->path,
                      rd->db ? sqlite3_errmsg(rd->db) : "no memory");
}

static char *text(sqlite3_stmt *q, int i) {
    const char *s = (const char *)sqlite3_column_text(q, i);
    return vg_strdup(s ? s : "");
}

static uint64_t number(sqlite3_stmt *q, int i) {
    return (uint64_t)sqlite3_column_int64(q, i);
}

static uint64_t id_of(sqlite3_stmt *q, int i) {
    const char *s = (const char *)sqlite3_column_text(q, i);
    uint64_t id = 0;
    return s && vg_id_parse(s, &id) == 0 ? id : 0;
}

static int task_row(struct reader *rd) {
    struct vg_recorded *r = rd->r;
    sqlite3_stmt *q = rd->q;
    if (!number(q, 19)) {
        r->never_ran++;
        return 0;
    }
    struct vg_rec_task *grown = vg_grow(r->task, &r->tasks_cap, r->n_tasks + 1, sizeof(*grown));
    if (!grown)
        return -ENOMEM;
    r->task = grown;
    struct vg_rec_task *t = &r->task[r->n_tasks++];
    *t = (struct vg_rec_task){.id = id_of(q, 0),
                              .user = text(q, 1),
                              .team = text(q, 2),
                              .pools = text(q, 3),
                              .models = text(q, 4),
                              .labels = text(q, 5),
                              .res = {.cpu_milli = (uint32_t)number(q, 6),
                                      .mem_bytes = number(q, 7),
                                      .gpus = (uint32_t)number(q, 8),
                                      .gpu_milli = (uint32_t)number(q, 9),
                                      .gpu_mem_bytes = number(q, 10)},
                              .priority = (uint32_t)number(q, 11),
                              .preemptible = number(q, 12) != 0,
                              .fixed = number(q, 13) != 0,
                              .limit_usec = number(q, 14),
                              .kin = number(q, 15),
                              .gang = id_of(q, 16),
                              .members = (uint32_t)number(q, 17),
                              .ready_usec = number(q, 18),
                              .start_usec = number(q, 19),
                              .run_usec = VG_MAX(number(q, 20), (uint64_t)1)};
    return t->user && t->team && t->pools && t->models && t->labels ? 0 : -ENOMEM;
}

static int node_row(struct reader *rd) {
    struct vg_recorded *r = rd->r;
    sqlite3_stmt *q = rd->q;
    struct vg_rec_node *grown = vg_grow(r->node, &r->nodes_cap, r->n_nodes + 1, sizeof(*grown));
    if (!grown)
        return -ENOMEM;
    r->node = grown;
    struct vg_rec_node *n = &r->node[r->n_nodes++];
    *n = (struct vg_rec_node){
        .id = id_of(q, 0), .name = text(q, 1), .labels = text(q, 2), .model = text(q, 4)};
    Vg__Pb__Resources *pb = vg__pb__resources__unpack(NULL, (size_t)sqlite3_column_bytes(q, 3),
                                                      sqlite3_column_blob(q, 3));
    n->total = vg_res_from_pb(pb);
    if (pb)
        vg__pb__resources__free_unpacked(pb, NULL);
    return n->name && n->labels && n->model ? 0 : -ENOMEM;
}

static int team_row(struct reader *rd) {
    struct vg_recorded *r = rd->r;
    struct vg_rec_team *grown = vg_grow(r->team, &r->teams_cap, r->n_teams + 1, sizeof(*grown));
    if (!grown)
        return -ENOMEM;
    r->team = grown;
    r->team[r->n_teams++] = (struct vg_rec_team){text(rd->q, 0), text(rd->q, 1)};
    return r->team[r->n_teams - 1].name && r->team[r->n_teams - 1].org ? 0 : -ENOMEM;
}

/* Runs a query with one number and hands each row to `row`. */
static int each(struct reader *rd, const char *sql, uint64_t arg, int (*row)(struct reader *),
                const char *what) {
    int rc = sqlite3_prepare_v2(rd->db, sql, -1, &rd->q, NULL), r = 0;
    if (rc == SQLITE_OK && sqlite3_bind_parameter_count(rd->q))
        rc = sqlite3_bind_int64(rd->q, 1, (sqlite3_int64)arg);
    if (rc == SQLITE_OK)
        while ((rc = sqlite3_step(rd->q)) == SQLITE_ROW && (r = row(rd)) == 0)
            ;
    if (r < 0)
        vg_err_sys(rd->err, r, "cannot keep %s of '%s'", what, rd->path);
    else if (rc != SQLITE_DONE)
        r = damaged(rd, what);
    sqlite3_finalize(rd->q);
    rd->q = NULL;
    return r;
}

static int latest(struct reader *rd) {
    rd->r->until_usec = number(rd->q, 0);
    return 0;
}

/* Members of a gang follow its first. */
static int by_gang(const void *a, const void *b) {
    const struct vg_rec_task *x = a, *y = b;
    if (x->gang != y->gang)
        return x->gang < y->gang ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int by_ready(const void *a, const void *b) {
    const struct vg_rec_task *x = a, *y = b;
    if (x->ready_usec != y->ready_usec)
        return x->ready_usec < y->ready_usec ? -1 : 1;
    return by_gang(a, b);
}

/* A gang is ready with its last member; then they sort side by side. */
static void gather_gangs(struct vg_recorded *r) {
    qsort(r->task, r->n_tasks, sizeof(*r->task), by_gang);
    for (size_t i = 0, end; i < r->n_tasks; i = end) {
        uint64_t ready = 0;
        for (end = i; end < r->n_tasks && r->task[end].gang == r->task[i].gang; end++)
            ready = VG_MAX(ready, r->task[end].ready_usec);
        for (size_t k = i; r->task[i].gang && k < end; k++)
            r->task[k].ready_usec = ready;
    }
    qsort(r->task, r->n_tasks, sizeof(*r->task), by_ready);
}

int vg_recorded_read(const char *path, uint64_t since_usec, struct vg_recorded *ret,
                     struct vg_err *err) {
    struct reader rd = {.path = path, .r = ret, .err = err};
    *ret = (struct vg_recorded){0};
    int r = 0;
    if (sqlite3_open_v2(path, &rd.db, SQLITE_OPEN_READONLY, NULL) != SQLITE_OK)
        r = vg_err_set(err, VG_NOT_FOUND, "cannot open the store '%s': %s", path,
                       rd.db ? sqlite3_errmsg(rd.db) : "no memory");
    if (r == 0)
        r = each(&rd, "SELECT coalesce(max(end_usec),0) FROM load", 0, latest, "the recorded load");
    uint64_t from = since_usec && since_usec < ret->until_usec ? ret->until_usec - since_usec : 0;
    if (r == 0)
        r = each(&rd, TASKS, from, task_row, "the recorded load");
    if (r == 0)
        r = each(&rd, "SELECT id,name,labels,total,gpu_model FROM nodes ORDER BY id", 0, node_row,
                 "the nodes");
    if (r == 0)
        r = each(&rd, "SELECT name,org FROM teams ORDER BY name", 0, team_row, "the teams");
    sqlite3_close(rd.db);
    if (r < 0)
        vg_recorded_done(ret);
    else
        gather_gangs(ret);
    return r;
}

void vg_recorded_done(struct vg_recorded *r) {
    for (size_t i = 0; i < r->n_tasks; i++) {
        free(r->task[i].user);
        free(r->task[i].team);
        free(r->task[i].pools);
        free(r->task[i].models);
        free(r->task[i].labels);
    }
    for (size_t i = 0; i < r->n_nodes; i++) {
        free(r->node[i].name);
        free(r->node[i].labels);
        free(r->node[i].model);
    }
    for (size_t i = 0; i < r->n_teams; i++) {
        free(r->team[i].name);
        free(r->team[i].org);
    }
    free(r->task);
    free(r->node);
    free(r->team);
    *r = (struct vg_recorded){0};
}

const char *vg_recorded_org(const struct vg_recorded *r, const char *team) {
    for (size_t i = 0; i < r->n_teams; i++)
        if (strcmp(r->team[i].name, team) == 0)
            return r->team[i].org;
    return "";
}
