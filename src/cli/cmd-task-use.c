/* `virga task top` and `virga task plot`: what tasks use, now and over time. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/client.h"
#include "cli/cmd-task.h"
#include "cli/series-show.h"
#include "cli/task-show.h"
#include "cli/top.h"
#include "view/views.h"

#include <string.h>

#define TOP_TASKS 100           /* looked at, the newest first */
#define NOW_USEC (35 * VG_USEC) /* what is older says nothing of now */
#define ANSWER_USEC (5 * VG_USEC)
#define TEXT 64
#define LABELS 40 /* columns beside the bars of a plot */

/* ------------------------------------------------------------------ top */

struct seen {
    Vg__Pb__TaskInfo *task; /* owned */
    uint32_t req;
    int64_t cpu_milli, mem_bytes, gpu_percent, gpu_mem_bytes, power_mw; /* -1: not told */
    uint64_t cpu_limit, mem_limit;
};

struct looks {
    struct seen seen[TOP_TASKS];
    size_t n, answered;
    bool all_users;
};

static int on_tasks(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    struct looks *l = user;
    if (env->body_case != VG__PB__ENVELOPE__BODY_TASKS)
        return vg_unexpected(env, err);
    for (size_t i = 0; i < env->tasks->n_task && l->n < TOP_TASKS; i++)
        l->seen[l->n++] = (struct seen){.task = vg_task_copy(env->tasks->task[i])};
    return 0;
}

static int on_series(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    struct looks *l = user;
    const Vg__Pb__SeriesInfo *s = env->series_info;
    (void)err;
    for (size_t i = 0; i < l->n; i++) {
        struct seen *x = &l->seen[i];
        if (x->req != env->req)
            continue;
        l->answered++;
        x->cpu_milli = x->mem_bytes = x->gpu_percent = x->gpu_mem_bytes = x->power_mw = -1;
        if (env->body_case != VG__PB__ENVELOPE__BODY_SERIES_INFO)
            break; /* it has just ended, and is another's now: nothing is known */
        x->cpu_milli = vg_series_last(s->cpu_milli, s->n_cpu_milli);
        x->mem_bytes = vg_series_last(s->mem_bytes, s->n_mem_bytes);
        x->gpu_percent = vg_series_last(s->gpu_percent, s->n_gpu_percent);
        x->gpu_mem_bytes = vg_series_last(s->gpu_mem_bytes, s->n_gpu_mem_bytes);
        x->power_mw = vg_series_last(s->power_mw, s->n_power_mw);
        x->cpu_limit = s->cpu_milli_limit;
        x->mem_limit = s->mem_bytes_limit;
    }
    return l->answered == l->n;
}

/* All at once: one round trip, however many there are. */
static int ask_series(struct looks *l, struct vg_client *c, struct vg_err *err) {
    int r = 0;
    for (size_t i = 0; r >= 0 && i < l->n; i++) {
        char id[VG_ID_LEN + 1];
        Vg__Pb__SeriesQuery q = VG__PB__SERIES_QUERY__INIT;
        Vg__Pb__Envelope req = vg_request(SERIES, series, &q);
        vg_id_format(l->seen[i].task ? l->seen[i].task->id : 0, id);
        q.task = id;
        q.has_live = q.live = q.has_since_usec = true;
        q.since_usec = vg_wall_usec() - NOW_USEC;
        r = vg_client_send(c, &req, &l->seen[i].req, err);
    }
    while (r >= 0 && l->answered < l->n) {
        r = vg_client_turn(c, ANSWER_USEC, on_series, l, err);
        if (r == 0)
            return vg_err_set(err, VG_TIMEOUT, "the control plane does not answer");
    }
    return r;
}

static const char *cpus(const struct seen *x, char *out) {
    if (x->cpu_milli < 0)
        return NULL;
    int n = snprintf(out, TEXT, "%.2f", (double)x->cpu_milli / 1000);
    if (x->cpu_limit)
        snprintf(out + n, TEXT - (size_t)n, " of %g", (double)x->cpu_limit / 1000);
    return out;
}

static const char *memory(int64_t bytes, uint64_t limit, char *out) {
    char used[TEXT / 2], most[TEXT / 2];
    if (bytes < 0)
        return NULL;
    vg_format_size((uint64_t)bytes, used, sizeof used);
    if (limit)
        snprintf(out, TEXT, "%s of %s", used, vg_format_size(limit, most, sizeof most));
    else
        snprintf(out, TEXT, "%s", used);
    return out;
}

static void add_row(struct vg_table *t, const struct seen *x) {
    char id[VG_ID_LEN + 1], cpu[TEXT], mem[TEXT], gpu[TEXT], gmem[TEXT], power[TEXT], time[TEXT],
        command[256];
    vg_id_format(x->task->id, id);
    id[VG_TASK_SHORT_ID] = '\0';
    snprintf(gpu, sizeof gpu, "%lld %%", (long long)x->gpu_percent);
    snprintf(power, sizeof power, "%.0f W", (double)x->power_mw / 1000);
    const char *cells[] = {id,
                           x->task->user,
                           x->task->node,
                           vg_task_time(x->task, time, sizeof time),
                           cpus(x, cpu),
                           memory(x->mem_bytes, x->mem_limit, mem),
                           x->gpu_percent < 0 ? NULL : gpu,
                           memory(x->gpu_mem_bytes, 0, gmem),
                           x->power_mw < 0 ? NULL : power,
                           x->task->name && *x->task->name
                               ? x->task->name
                               : vg_task_command(x->task, command, sizeof command)};
    vg_table_row(t, cells);
}

static json_t *maybe(int64_t v) {
    return v < 0 ? json_null() : json_integer(v);
}

static void print_json(const struct looks *l) {
    json_t *array = json_array();
    for (size_t i = 0; i < l->n; i++) {
        const struct seen *x = &l->seen[i];
        if (!x->task)
            continue;
        json_t *o = json_object();
        json_object_set_new(o, "task", vg_json_id(x->task->id));
        json_object_set_new(o, "user", vg_json_text(x->task->user));
        json_object_set_new(o, "node", vg_json_text(x->task->node));
        json_object_set_new(o, "cpu_milli", maybe(x->cpu_milli));
        json_object_set_new(o, "mem_bytes", maybe(x->mem_bytes));
        json_object_set_new(o, "gpu_percent", maybe(x->gpu_percent));
        json_object_set_new(o, "gpu_mem_bytes", maybe(x->gpu_mem_bytes));
        json_object_set_new(o, "power_mw", maybe(x->power_mw));
        json_array_append_new(array, o);
    }
    vg_json_print_line(array);
}

static void print_table(const struct looks *l, const struct vg_top *top) {
    static const char *const headings[] = {"TASK", "USER",       "NODE",  "TIME", "CPUS", "MEMORY",
                                           "GPU",  "GPU MEMORY", "POWER", "NAME", NULL};
    struct vg_table *t = vg_table_new(headings);
    for (size_t i = 0; i < l->n; i++)
        if (l->seen[i].task)
            add_row(t, &l->seen[i]);
    vg_top_clear(top);
    vg_table_print(t, stdout, 0);
}

static int look(struct vg_top *top, struct vg_client *c, struct vg_err *err) {
    static char *running[] = {(char *)"running"};
    Vg__Pb__TaskQuery q = VG__PB__TASK_QUERY__INIT;
    Vg__Pb__Envelope req = vg_request(TASK_LIST, task_list, &q);
    vg_auto_free struct looks *l = vg_alloc(sizeof *l);
    if (!l)
        return vg_err_sys(err, -ENOMEM, "cannot look at tasks");
    q.state = running;
    q.n_state = 1;
    q.has_limit = q.has_all_users = q.has_flat = q.flat = true;
    q.limit = TOP_TASKS;
    q.all_users = *(const bool *)top->user;
    int r = vg_call(c, &req, VG_CALL_TIMEOUT_USEC, on_tasks, l, err);
    if (r >= 0 && l->n)
        r = ask_series(l, c, err);
    if (r >= 0 && top->json)
        print_json(l);
    else if (r >= 0)
        print_table(l, top);
    for (size_t i = 0; i < l->n; i++)
        if (l->seen[i].task)
            vg__pb__task_info__free_unpacked(l->seen[i].task, NULL);
    return r < 0 ? r : vg_top_shown(top, err);
}

const struct vg_opt vg_task_top_opts[4] = {
    {"all-users", 'A', NULL, "everybody's tasks", 'A'}, VG_TOP_OPTS, VG_CMD_OUTPUT};

int vg_task_top_run(struct vg_cmd_line *l) {
    bool all_users = false;
    struct vg_top top;
    const char *arg;
    vg_top_init(&top);
    top.look = look;
    top.user = &all_users;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR || vg_top_opt(l, &top, id, arg) < 0)
            return l->exit;
        all_users |= id == 'A';
    }
    return vg_cmd_args(l, 0, 0) ? vg_top_run(l, &top) : l->exit;
}

/* ------------------------------------------------------------------ plot */

static int on_plot(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    const struct vg_cmd_line *l = user;
    if (env->body_case != VG__PB__ENVELOPE__BODY_SERIES_INFO)
        return vg_unexpected(env, err);
    const Vg__Pb__SeriesInfo *s = env->series_info;
    unsigned columns = vg_table_width(stdout);
    if (l->json)
        vg_json_print(vg_view_json(&vg_view_series, s));
    else if (!s->n_when_usec)
        vg_cmd_say("nothing is known yet: nodes tell every ten seconds what runs there");
    else
        vg_series_print(s, columns > LABELS + 20 ? VG_MIN(columns - LABELS, 200u) : 60,
                        vg_series_utf8());
    return 0;
}

const struct vg_opt vg_task_plot_opts[3] = {{"node", 0, "NODE", "of a node instead of a task", 'N'},
                                            {"since", 0, "DURATION", "only the last so long", 's'},
                                            VG_CMD_OUTPUT};

int vg_task_plot_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__SeriesQuery q = VG__PB__SERIES_QUERY__INIT;
    Vg__Pb__Envelope req = vg_request(SERIES, series, &q);
    const char *arg;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        uint64_t ago;
        if (id == VG_OPT_ERROR)
            return l->exit;
        if (id == 'N')
            q.node = (char *)arg;
        if (id == 's' && vg_opt_duration(&l->st, arg, &ago) < 0)
            return vg_cmd_fail_opt(l);
        if (id == 's') {
            q.has_since_usec = true;
            q.since_usec = vg_wall_usec() - VG_MIN(ago, vg_wall_usec());
        }
    }
    if (!vg_cmd_args(l, q.node ? 0 : 1, q.node ? 0 : 1))
        return l->exit;
    q.task = q.node ? NULL : l->args[0];
    q.has_live = q.live = true;
    return vg_call_once(&req, on_plot, l, &err) < 0 ? vg_cmd_fail(&err) : 0;
}
