/* What tasks and the node use of CPU, memory and disks: looked at every ten seconds while tasks
   run, every second while somebody looks, never else. Loop thread.

   Tasks of one session share a sandbox: each of them is told what the sandbox uses. A sandbox that
   served other tasks before has counters that begin with theirs, which is taken off. */
#include "agent/agent-int.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <stdio.h>
#include <string.h>

#define SLOW_MS 10000
#define LIVE_MS 1000
#define LIVE_MAX_USEC (60 * VG_USEC)

/* ------------------------------------------------------------------ the node */

static int read_start(const char *path, char *out, size_t n) {
    FILE *f = fopen(path, "re");
    size_t got = f ? fread(out, 1, n - 1, f) : 0;
    out[got] = '\0';
    if (f)
        fclose(f);
    return got ? 0 : -EIO;
}

/* Thousandths of a CPU since the last look; false: this is the first. */
static bool node_cpu(struct vg_use *u, uint64_t *ret_milli) {
    unsigned long long v[8] = {0};
    char text[512];
    uint64_t all = 0, cpus = (uint64_t)VG_MAX(sysconf(_SC_NPROCESSORS_ONLN), 1);
    if (read_start("/proc/stat", text, sizeof(text)) < 0 ||
        sscanf(text, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2], &v[3],
               &v[4], &v[5], &v[6], &v[7]) < 4)
        return false;
    for (size_t i = 0; i < VG_COUNT(v); i++)
        all += v[i];
    uint64_t busy = all - v[3] - v[4]; /* idle, and waiting for disks */
    bool told = u->cpu_all && all > u->cpu_all && busy >= u->cpu_busy;
    if (told)
        *ret_milli = (busy - u->cpu_busy) * cpus * 1000 / (all - u->cpu_all);
    u->cpu_busy = busy;
    u->cpu_all = all;
    return told;
}

static bool node_memory(uint64_t *ret_bytes) {
    char text[1024];
    unsigned long long total, available;
    if (read_start("/proc/meminfo", text, sizeof(text)) < 0)
        return false;
    const char *t = strstr(text, "MemTotal:"), *f = strstr(text, "MemAvailable:");
    if (!t || !f || sscanf(t, "MemTotal: %llu", &total) != 1 ||
        sscanf(f, "MemAvailable: %llu", &available) != 1 || available > total)
        return false;
    *ret_bytes = (total - available) * 1024;
    return true;
}

/* ------------------------------------------------------------------ tasks */

static bool look_at(struct vg_agent *a, struct vg_agent_task *t, Vg__Pb__TaskUse *ret) {
    const struct vg_agent_keeper *k = t->keeper;
    struct vg_sandbox_sample s;
    if (t->state != VG_AT_RUNNING || !k || vg_sandbox_sample(a->node, k->name, &s) < 0)
        return false;
    if (!t->use_seen) { /* what is not known to be others' counts from now on */
        t->use_cpu_usec =
            k->child && !t->session ? VG_MIN(k->spent_cpu_usec, s.cpu_usec) : s.cpu_usec;
        t->use_seen = true;
    }
    vg__pb__task_use__init(ret);
    ret->has_task_id = ret->has_attempt = ret->has_cpu_usec = ret->has_mem_bytes = true;
    ret->task_id = t->id;
    ret->attempt = t->attempt;
    ret->cpu_usec = s.cpu_usec - VG_MIN(t->use_cpu_usec, s.cpu_usec);
    ret->mem_bytes = s.mem_bytes;
    ret->has_read_bytes = ret->has_write_bytes = s.has_io;
    ret->read_bytes = s.read_bytes;
    ret->write_bytes = s.write_bytes;
    return true;
}

static void report(struct vg_agent *a, Vg__Pb__UseReport *m) {
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    m->has_when_usec = true;
    m->when_usec = vg_wall_usec();
    m->has_node_cpu_milli = node_cpu(&a->use, &m->node_cpu_milli);
    m->has_node_mem_bytes = node_memory(&m->node_mem_bytes);
    env.body_case = VG__PB__ENVELOPE__BODY_USE_REPORT;
    env.use_report = m;
    vg_link_send(a, &env);
}

/* How many tasks run. */
static size_t look(struct vg_agent *a) {
    size_t most = vg_map_len(&a->tasks), n = 0;
    Vg__Pb__UseReport m = VG__PB__USE_REPORT__INIT;
    vg_auto_free Vg__Pb__TaskUse *use = vg_alloc((most + 1) * sizeof(*use));
    vg_auto_free Vg__Pb__TaskUse **list = vg_alloc((most + 1) * sizeof(*list));
    if (!use || !list)
        return most; /* the next look, perhaps */
    vg_map_for_each (e, &a->tasks)
        if (look_at(a, e->value, &use[n])) {
            list[n] = &use[n];
            n++;
        }
    m.n_task = n;
    m.task = list;
    report(a, &m);
    return n;
}

/* ------------------------------------------------------------------ when */

static void on_tick(uv_timer_t *timer) {
    struct vg_agent *a = timer->data;
    bool live = vg_now_usec() < a->use.live_until_usec;
    if (!a->link.up) /* nobody hears it; the tasks' counters go on */
        return;
    if (!look(a) && !live) {
        uv_timer_stop(timer);
        a->use.cpu_all = 0;
    } else {
        uv_timer_set_repeat(timer, live ? LIVE_MS : SLOW_MS);
    }
}

void vg_use_begin(struct vg_agent *a) {
    if (!uv_is_active((uv_handle_t *)&a->use.timer))
        uv_timer_start(&a->use.timer, on_tick, SLOW_MS, SLOW_MS);
}

void vg_use_live(struct vg_agent *a, uint64_t usec) {
    uint64_t now = vg_now_usec();
    bool was = now < a->use.live_until_usec;
    a->use.live_until_usec = now + VG_MIN(usec, LIVE_MAX_USEC);
    vg_watch_live(a, usec);
    if (!was) {
        uv_timer_start(&a->use.timer, on_tick, LIVE_MS, LIVE_MS);
        look(a);
    }
}

void vg_use_init(struct vg_agent *a) {
    uv_timer_init(&a->loop, &a->use.timer);
    a->use.timer.data = a;
}

void vg_use_stop(struct vg_agent *a) {
    uv_timer_stop(&a->use.timer);
}
