/* A task as people and programs read it. No state; any thread. */
#include "cli/task-show.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/amount.h"
#include "cli/gpu-show.h"
#include "cli/progress.h"

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
    char progress[64];
    if (t->progress && t->progress->total)
        snprintf(out, n, "%s %s%s", text(t->state), t->members ? "" : "+",
                 vg_progress_short(t->progress, progress, sizeof(progress)));
    else if (t->state && strcmp(t->state, "failed") == 0 && t->has_status)
        snprintf(out, n, "failed (%d)", t->status);
    else
        snprintf(out, n, "%s", text(t->state));
    return out;
}

char *vg_resources_text(const Vg__Pb__Resources *r, char *out, size_t n) {
    char mem[32], piece[64];
    size_t at = 0;
    out[0] = 0;
#define PUT(...)                                                                 \
    do {                                                                         \
        snprintf(piece, sizeof(piece), __VA_ARGS__);                             \
        at += (size_t)snprintf(out + at, n - at, "%s%s", at ? ", " : "", piece); \
        at = VG_MIN(at, n - 1);                                                  \
    } while (0)
    if (r && r->gpus)
        PUT("%u GPU%s", r->gpus, r->gpus > 1 ? "s" : "");
    if (r && r->gpu_milli)
        PUT("%g GPU", r->gpu_milli / 1000.0);
    if (r && r->gpu_mem_bytes)
        PUT("%s GPU memory", vg_format_size(r->gpu_mem_bytes, mem, sizeof(mem)));
    if (r && r->cpu_milli)
        PUT("%g CPU%s", r->cpu_milli / 1000.0, r->cpu_milli > 1000 ? "s" : "");
    if (r && r->mem_bytes)
        PUT("%s memory", vg_format_size(r->mem_bytes, mem, sizeof(mem)));
#undef PUT
    return out;
}

char *vg_soon(uint64_t wall_usec, char *out, size_t n) {
    char when[32], wait[32];
    uint64_t now = vg_wall_usec();
    if (!wall_usec)
        return snprintf(out, n, "-"), out;
    if (wall_usec <= now)
        return snprintf(out, n, "now"), out;
    snprintf(out, n, "%s (in %s)", vg_when(wall_usec, when, sizeof(when)),
             vg_format_duration(wall_usec - now, wait, sizeof(wait)));
    return out;
}

int vg_task_exit(const Vg__Pb__TaskInfo *t) {
    if (t->has_status && t->status)
        return t->status & 255;
    bool good = t->state && strcmp(t->state, "succeeded") == 0;
    return good ? 0 : vg_reason_exit(VG_INTERNAL);
}

struct vg_table *vg_task_table(void) {
    static const char *const headings[] = {"TASK", "NAME", "STATE", "USER",    "POOL",
                                           "NODE", "TIME", "COST",  "COMMAND", NULL};
    struct vg_table *t = vg_table_new(headings);
    vg_table_optional(t, 7); /* where nothing has a price */
    return t;
}

void vg_task_row(struct vg_table *table, const Vg__Pb__TaskInfo *t) {
    char id[VG_ID_LEN + 1], state[64], time[32], cost[64], amount[40], command[512];
    vg_id_format(t->id, id);
    id[VG_TASK_SHORT_ID] = 0;
    snprintf(cost, sizeof(cost), "%s %s",
             vg_micro_text((int64_t)t->cost_micro, amount, sizeof(amount)),
             t->currency ? t->currency : "");
    const char *cells[] = {id,
                           t->name,
                           vg_task_state(t, state, sizeof(state)),
                           t->user,
                           t->pool,
                           t->node,
                           vg_task_time(t, time, sizeof(time)),
                           t->has_cost_micro ? cost : NULL,
                           vg_task_command(t, command, sizeof(command))};
    vg_table_row(table, cells);
}

static void line(const char *key, const char *value) {
    char clean[1024];
    if (value && *value)
        printf("%-10s%s%s\n", key, strlen(key) > 9 ? " " : "",
               vg_clean(clean, sizeof(clean), value, strlen(value)));
}

/* What holds for batch tasks alone. */
static void print_batch(const Vg__Pb__TaskInfo *t) {
    char id[VG_ID_LEN + 1], b[256];
    if (t->progress && t->progress->total)
        line(t->members ? "progress" : "children",
             vg_progress_line(t->progress, vg_wall_usec(), 0, UINT32_MAX, 0, b, sizeof(b)));
    if (t->group) {
        vg_id_format(t->group, id);
        snprintf(b, sizeof(b), "%u of %u in %s %s", t->index, t->of, t->gang ? "gang" : "group",
                 id);
        line("member", b);
    } else if (t->gang) {
        line("gang", "starts whole or not at all");
    }
    for (size_t i = 0; i < t->n_after; i++)
        line(i ? "" : "after", t->after[i]);
    if (t->has_priority)
        printf("%-10s%u\n", "priority", t->priority);
    line("key", t->key);
    if (t->schedule) {
        vg_id_format(t->schedule, id);
        line("schedule", id);
    }
    if (t->parent) {
        vg_id_format(t->parent, id);
        line("parent", id);
    }
    if (t->retries_left)
        printf("%-10s%u left\n", "retries", t->retries_left);
    if (t->preempted)
        printf("%-10s%u times\n", "preempted", t->preempted);
    if (t->due_usec > vg_wall_usec())
        line("not before", vg_soon(t->due_usec, b, sizeof(b)));
    if (t->expected_start_usec && !t->started_usec)
        line("expected", vg_soon(t->expected_start_usec, b, sizeof(b)));
    if (t->expected_end_usec > vg_wall_usec() && !t->ended_usec)
        line("ends about", vg_soon(t->expected_end_usec, b, sizeof(b)));
}

/* "2.1 GiB of 8 GiB, at most 3.5 GiB; 4 requests refused" */
static const char *share_text(const Vg__Pb__GpuUsage *u, bool ended, char *out, size_t n) {
    char used[32], limit[32], most[32];
    vg_format_size(u->share_used_bytes, used, sizeof(used));
    vg_format_size(u->share_limit_bytes, limit, sizeof(limit));
    vg_format_size(u->share_peak_bytes, most, sizeof(most));
    int len = ended ? snprintf(out, n, "at most %s of %s", most, limit)
                    : snprintf(out, n, "%s of %s, at most %s", used, limit, most);
    if (u->share_refused)
        snprintf(out + len, n - (size_t)len, "; %llu requests refused",
                 (unsigned long long)u->share_refused);
    return out;
}

static char *bus_text(const Vg__Pb__GpuUsage *u, char *out, size_t n) {
    char to[32], from[32];
    snprintf(out, n, "%s to the GPU, %s from it", vg_format_size(u->pcie_rx_bytes, to, sizeof(to)),
             vg_format_size(u->pcie_tx_bytes, from, sizeof(from)));
    return out;
}

static void print_gpus(const Vg__Pb__TaskInfo *t) {
    const Vg__Pb__GpuUsage *u = t->gpu_usage;
    char b[128];
    if (t->n_gpu) {
        printf("%-10s", "gpus");
        for (size_t i = 0; i < t->n_gpu; i++)
            printf("%s%u", i ? ", " : "", t->gpu[i]);
        puts(t->gpu_hard ? " (hard share)" : "");
    }
    if (!u)
        return;
    if (u->has_sm_mean_milli)
        line("gpu used", vg_gpu_use_text(u->sm_mean_milli, u->sm_max_percent, b, sizeof(b)));
    if (u->has_share_limit_bytes)
        line("gpu mem", share_text(u, t->ended_usec != 0, b, sizeof(b)));
    else if (u->has_mem_peak_bytes)
        line("gpu mem", vg_format_size(u->mem_peak_bytes, b, sizeof(b)));
    if (u->has_energy_mj)
        line("energy", vg_gpu_energy_text(u->energy_mj, b, sizeof(b)));
    if (u->has_pcie_rx_bytes && u->has_pcie_tx_bytes)
        line("gpu bus", bus_text(u, b, sizeof(b)));
    if (u->has_idle_usec && !t->ended_usec && u->idle_usec >= 60 * VG_USEC)
        line("gpu idle", vg_format_duration(u->idle_usec, b, sizeof(b)));
}

void vg_task_print(const Vg__Pb__TaskInfo *t) {
    char id[VG_ID_LEN + 1], b[1024];
    vg_id_format(t->id, id);
    line("task", id);
    line("name", t->name);
    line("state", vg_task_state(t, b, sizeof(b)));
    line("reason", t->reason);
    line("notice", t->notice);
    line("command", vg_task_command(t, b, sizeof(b)));
    line("directory",
         vg_clean(b, sizeof(b), t->cwd.data ? t->cwd.data : (uint8_t *)"", t->cwd.len));
    line("user", t->user);
    line("team", t->team);
    if (t->project && *t->project)
        line("project", t->project);
    line("pool", t->pool);
    line("node", t->node);
    line("session", t->session);
    if (t->snapshot)
        line("files", "a copy of its machine's ('virga env diff' names what it changed)");
    line("wants", vg_resources_text(t->want, b, sizeof(b)));
    for (size_t i = 0; i < t->n_label; i++)
        line(i ? "" : "labels", t->label[i]);
    for (size_t i = 0; i < t->n_secret; i++)
        line(i ? "" : "secrets", t->secret[i]);
    print_batch(t);
    line("created", vg_when(t->created_usec, b, sizeof(b)));
    if (t->started_usec)
        line("started", vg_when(t->started_usec, b, sizeof(b)));
    if (t->ended_usec)
        line("ended", vg_when(t->ended_usec, b, sizeof(b)));
    if (t->started_usec)
        line("time", vg_task_time(t, b, sizeof(b)));
    if (t->has_cost_micro) {
        char cost[40];
        snprintf(b, sizeof(b), "%s %s", vg_micro_text((int64_t)t->cost_micro, cost, sizeof(cost)),
                 t->currency ? t->currency : "");
        line("cost", b);
    }
    if (t->cpu_usec)
        line("cpu", vg_format_duration(t->cpu_usec, b, sizeof(b)));
    if (t->mem_peak_bytes)
        line("memory", vg_format_size(t->mem_peak_bytes, b, sizeof(b)));
    print_gpus(t);
    if (t->out_bytes)
        line("output", vg_format_size(t->out_bytes, b, sizeof(b)));
    if (t->attempt > 1)
        printf("%-10s%u\n", "attempt", t->attempt);
    for (size_t i = 0; i < t->n_wiped; i++)
        line(i ? "" : "wiped", t->wiped[i]);
}

Vg__Pb__TaskInfo *vg_task_copy(const Vg__Pb__TaskInfo *t) {
    size_t n = vg__pb__task_info__get_packed_size(t);
    vg_auto_free uint8_t *packed = vg_alloc(n);
    if (!packed)
        return NULL;
    vg__pb__task_info__pack(t, packed);
    return vg__pb__task_info__unpack(NULL, n, packed);
}
