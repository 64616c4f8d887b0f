/* A task as people and programs read it. No state; any thread. */
#include "cli/task-show.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/util.h"
#include "cli/json.h"

#include <string.h>

static const char *text(const char *s) {
    return s && *s ? s : "-";
}

bool vg_task_ended(const Vg__Pb__TaskInfo *t) {
    static const char *const names[] = {"succeeded", "failed", "cancelled"};
    for (unsigned i = 0; t->state && i < VG_COUNT(names); i++)
        if (strcmp(t->state, names[i]) == 0)
            return true;
    return false;
}

static bool plain(const char *s) {
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                         "_-./=:,@%+~");
    return *s && !s[n];
}

char *vg_task_command(const Vg__Pb__TaskInfo *t, char *out, size_t n) {
    size_t put = 0;
    out[0] = 0;
    for (size_t i = 0; i < t->n_argv && put + 8 < n; i++) {
        char word[512];
        vg_clean(word, sizeof(word), t->argv[i].data, t->argv[i].len);
        const char *q = plain(word) ? "" : strchr(word, '\'') ? "\"" : "'";
        int len = snprintf(out + put, n - put, "%s%s%s%s", i ? " " : "", q, word, q);
        put = VG_MIN(put + (size_t)VG_MAX(len, 0), n - 1);
    }
    return out;
}

char *vg_task_time(const Vg__Pb__TaskInfo *t, char *out, size_t n) {
    uint64_t end = t->ended_usec ? t->ended_usec : vg_wall_usec();
    uint64_t begin = t->started_usec ? t->started_usec : t->created_usec;
    return vg_format_duration(begin && end > begin ? end - begin : 0, out, n);
}

char *vg_task_state(const Vg__Pb__TaskInfo *t, char *out, size_t n) {
    if (t->state && strcmp(t->state, "failed") == 0 && t->has_status)
        snprintf(out, n, "failed (%d)", t->status);
    else
        snprintf(out, n, "%s", text(t->state));
    return out;
}

int vg_task_exit(const Vg__Pb__TaskInfo *t) {
    if (t->has_status && t->status)
        return t->status & 255;
    bool good = t->state && strcmp(t->state, "succeeded") == 0;
    return good ? 0 : vg_reason_exit(VG_INTERNAL);
}

struct vg_table *vg_task_table(void) {
    static const char *const headings[] = {"TASK", "NAME", "STATE",   "USER", "POOL",
                                           "NODE", "TIME", "COMMAND", NULL};
    return vg_table_new(headings);
}

void vg_task_row(struct vg_table *table, const Vg__Pb__TaskInfo *t) {
    char id[VG_ID_LEN + 1], state[64], time[32], command[512];
    vg_id_format(t->id, id);
    id[VG_TASK_SHORT_ID] = 0;
    const char *cells[] = {id,
                           t->name,
                           vg_task_state(t, state, sizeof(state)),
                           t->user,
                           t->pool,
                           t->node,
                           vg_task_time(t, time, sizeof(time)),
                           vg_task_command(t, command, sizeof(command))};
    vg_table_row(table, cells);
}

static void line(const char *key, const char *value) {
    char clean[1024];
    if (value && *value)
        printf("%-10s%s\n", key, vg_clean(clean, sizeof(clean), value, strlen(value)));
}

static void print_resources(const Vg__Pb__Resources *r) {
    char mem[32];
    if (!r || !(r->cpu_milli || r->mem_bytes || r->gpus))
        return;
    printf("%-10s", "wants");
    if (r->cpu_milli)
        printf("%g CPUs ", r->cpu_milli / 1000.0);
    if (r->mem_bytes)
        printf("%s memory ", vg_format_size(r->mem_bytes, mem, sizeof(mem)));
    if (r->gpus)
        printf("%u GPUs", r->gpus);
    printf("\n");
}

void vg_task_print(const Vg__Pb__TaskInfo *t) {
    char id[VG_ID_LEN + 1], b[1024];
    vg_id_format(t->id, id);
    line("task", id);
    line("name", t->name);
    line("state", vg_task_state(t, b, sizeof(b)));
    line("reason", t->reason);
    line("command", vg_task_command(t, b, sizeof(b)));
    line("directory",
         vg_clean(b, sizeof(b), t->cwd.data ? t->cwd.data : (uint8_t *)"", t->cwd.len));
    line("user", t->user);
    line("team", t->team);
    line("pool", t->pool);
    line("node", t->node);
    line("session", t->session);
    print_resources(t->want);
    for (size_t i = 0; i < t->n_label; i++)
        line(i ? "" : "labels", t->label[i]);
    line("created", vg_when(t->created_usec, b, sizeof(b)));
    if (t->started_usec)
        line("started", vg_when(t->started_usec, b, sizeof(b)));
    if (t->ended_usec)
        line("ended", vg_when(t->ended_usec, b, sizeof(b)));
    if (t->started_usec)
        line("time", vg_task_time(t, b, sizeof(b)));
    if (t->cpu_usec)
        line("cpu", vg_format_duration(t->cpu_usec, b, sizeof(b)));
    if (t->mem_peak_bytes)
        line("memory", vg_format_size(t->mem_peak_bytes, b, sizeof(b)));
    if (t->out_bytes)
        line("output", vg_format_size(t->out_bytes, b, sizeof(b)));
    if (t->attempt > 1)
        printf("%-10s%u\n", "attempt", t->attempt);
}

json_t *vg_task_json(const Vg__Pb__TaskInfo *t) {
    json_t *j = json_object(), *argv = json_array();
    for (size_t i = 0; i < t->n_argv; i++)
        json_array_append_new(argv, vg_json_bytes(t->argv[i].data, t->argv[i].len));
    json_object_set_new(j, "id", vg_json_id(t->id));
    json_object_set_new(j, "name", vg_json_text(t->name));
    json_object_set_new(j, "state", vg_json_text(t->state));
    json_object_set_new(j, "status", t->has_status ? json_integer(t->status) : json_null());
    json_object_set_new(j, "reason", vg_json_text(t->reason));
    json_object_set_new(j, "argv", argv);
    json_object_set_new(j, "cwd", vg_json_bytes(t->cwd.data, t->cwd.len));
    json_object_set_new(j, "user", vg_json_text(t->user));
    json_object_set_new(j, "team", vg_json_text(t->team));
    json_object_set_new(j, "pool", vg_json_text(t->pool));
    json_object_set_new(j, "node", vg_json_text(t->node));
    json_object_set_new(j, "session", vg_json_text(t->session));
    json_object_set_new(j, "attempt", vg_json_u64(t->attempt));
    json_object_set_new(j, "parent", vg_json_id(t->parent));
    json_object_set_new(j, "interactive", json_boolean(t->interactive));
    json_object_set_new(j, "want", vg_json_resources(t->want));
    json_object_set_new(j, "labels", vg_json_labels(t->label, t->n_label));
    json_object_set_new(j, "created_usec", vg_json_u64(t->created_usec));
    json_object_set_new(j, "started_usec", vg_json_u64(t->started_usec));
    json_object_set_new(j, "ended_usec", vg_json_u64(t->ended_usec));
    json_object_set_new(j, "time_limit_usec", vg_json_u64(t->time_limit_usec));
    json_object_set_new(j, "out_bytes", vg_json_u64(t->out_bytes));
    json_object_set_new(j, "cpu_usec", vg_json_u64(t->cpu_usec));
    json_object_set_new(j, "mem_peak_bytes", vg_json_u64(t->mem_peak_bytes));
    return j;
}
