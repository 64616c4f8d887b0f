/* `virga task`: list, get, wait, why. The others have files of their own. */
#include "cli/cmd-task.h"

#include "base/cleanup.h"
#include "base/util.h"
#include "cli/client.h"
#include "cli/cmd-env.h"
#include "cli/task-show.h"
#include "cli/why-show.h"
#include "view/views.h"

#include <string.h>
#include <unistd.h>

#define LIST_DEFAULT 50
#define LIST_MAX 10000000
#define PAGE_MAX 1000 /* rows of one answer */

/* ------------------------------------------------------------------ list */

struct list {
    struct vg_table *table; /* one of these */
    json_t *array;
    size_t n;
    uint64_t total;
    char next[64]; /* where the next page begins; "": this was the last */
};

static int on_list(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    struct list *list = user;
    if (env->body_case != VG__PB__ENVELOPE__BODY_TASKS)
        return vg_unexpected(env, err);
    for (size_t i = 0; i < env->tasks->n_task; i++)
        if (list->array)
            json_array_append_new(list->array, vg_view_json(&vg_view_task, env->tasks->task[i]));
        else
            vg_task_row(list->table, env->tasks->task[i]);
    list->n += env->tasks->n_task;
    list->total = VG_MAX(list->total, env->tasks->total);
    const char *next = env->tasks->n_task && env->tasks->next ? env->tasks->next : "";
    snprintf(list->next, sizeof(list->next), "%s", next);
    return 0;
}

/* Asks page by page until there are `limit` or no more. */
static int collect(struct list *list, Vg__Pb__TaskQuery *q, uint64_t limit, struct vg_err *err) {
    Vg__Pb__Envelope req = vg_request(TASK_LIST, task_list, q);
    struct vg_client *c;
    char before[sizeof(list->next)];
    int r = vg_client_open(&c, err);
    if (r < 0)
        return r;
    do {
        q->has_limit = true;
        q->limit = (uint32_t)VG_MIN(limit - list->n, (uint64_t)PAGE_MAX);
        r = vg_call(c, &req, VG_CALL_TIMEOUT_USEC, on_list, list, err);
        memcpy(before, list->next, sizeof(before));
        q->before = before;
    } while (r >= 0 && list->next[0] && list->n < limit);
    q->before = NULL;
    vg_client_close(c);
    return r;
}

static void say_rest(const struct list *list, const struct vg_task_filter *f) {
    if (!isatty(STDOUT_FILENO))
        return;
    if (!list->n)
        fprintf(stderr, "no %stasks%s\n", f->ended ? "" : "unfinished ",
                f->ended ? "" : " ('virga task list -a' shows ended ones)");
    else if (list->next[0])
        fprintf(stderr, "%zu of %llu; go on with --before %s, or --limit for more at once\n",
                list->n, (unsigned long long)list->total, list->next);
}

static int list_tasks(Vg__Pb__TaskQuery *q, const struct vg_task_filter *f, bool json) {
    struct vg_err err = VG_ERR_INIT;
    struct list list = {.table = json ? NULL : vg_task_table(),
                        .array = json ? json_array() : NULL};
    if (collect(&list, q, f->limit, &err) < 0) {
        vg_table_free(list.table);
        json_decref(list.array);
        return vg_cmd_fail(&err);
    }
    if (json)
        return vg_json_print(list.array);
    if (list.n || !isatty(STDOUT_FILENO))
        vg_table_print(vg_take_ptr(list.table), stdout, 0);
    vg_table_free(list.table);
    say_rest(&list, f);
    return 0;
}

static const struct vg_opt list_opts[] = {
    VG_TASK_FILTER_OPTS,
    {"flat", 0, NULL, "members and children as rows of their own", 'f'},
    {"limit", 0, "N", "at most so many (50)", 'N'},
    {"before", 0, "TASK", "the page after this one: older tasks", 'b'},
    VG_CMD_OUTPUT,
};

static int list_run(struct vg_cmd_line *l) {
    struct vg_task_filter f = {.limit = LIST_DEFAULT};
    Vg__Pb__TaskQuery q = VG__PB__TASK_QUERY__INIT;
    const char *arg;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        int r = id == VG_OPT_ERROR ? -1 : vg_task_filter_opt(l, &f, id, arg);
        if (r == 0 && id == 'N' && vg_opt_u64(&l->st, arg, 1, LIST_MAX, &f.limit) < 0) {
            l->exit = vg_cmd_fail_opt(l);
            r = -1;
        }
        if (r < 0)
            return l->exit;
        if (id == 'f')
            q.has_flat = q.flat = true;
        if (id == 'b')
            q.before = (char *)arg;
    }
    if (!vg_cmd_args(l, 0, 0))
        return l->exit;
    vg_task_filter_finish(&f);
    vg_task_filter_query(&f, &q);
    return list_tasks(&q, &f, l->json);
}

/* ------------------------------------------------------------------ get */

static int on_get(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    const struct vg_cmd_line *l = user;
    if (env->body_case != VG__PB__ENVELOPE__BODY_TASK)
        return vg_unexpected(env, err);
    if (l->json)
        vg_json_print(vg_view_json(&vg_view_task, env->task));
    else
        vg_task_print(env->task);
    return 0;
}

static const struct vg_opt output_opts[] = {VG_CMD_OUTPUT};

static int get_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__TaskRef ref = VG__PB__TASK_REF__INIT;
    Vg__Pb__Envelope req = vg_request(TASK_GET, task_get, &ref);
    if (!vg_cmd_plain(l, 1, 1))
        return l->exit;
    ref.task = l->args[0];
    return vg_call_once(&req, on_get, l, &err) < 0 ? vg_cmd_fail(&err) : 0;
}

/* ------------------------------------------------------------------ wait */

struct wait {
    bool json;
    int exit;
    uint64_t snapshot; /* the task ran on a copy of its machine's files */
};

static int on_wait(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    struct wait *w = user;
    if (env->body_case != VG__PB__ENVELOPE__BODY_TASK)
        return vg_unexpected(env, err);
    if (env->more)
        return 0;
    if (w->json)
        vg_json_print_line(vg_view_json(&vg_view_task, env->task));
    int status = vg_task_exit(env->task);
    if (status && env->task->reason && *env->task->reason)
        vg_cmd_say("%s", env->task->reason);
    if (!w->exit)
        w->exit = status;
    w->snapshot = env->task->snapshot && !env->task->members ? env->task->id : 0;
    return 0;
}

static int wait_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    if (!vg_cmd_plain(l, 1, -1))
        return l->exit;
    struct wait w = {.json = l->json};
    for (int i = 0; i < l->n_args; i++) {
        Vg__Pb__TaskRef ref = VG__PB__TASK_REF__INIT;
        Vg__Pb__Envelope req = vg_request(TASK_WAIT, task_wait, &ref);
        ref.task = l->args[i];
        if (vg_call_patient(&req, on_wait, NULL, &w, &err) < 0)
            return vg_cmd_fail(&err);
        if (w.snapshot)
            vg_ecmd_say_kept(w.snapshot);
    }
    return w.exit;
}

/* ------------------------------------------------------------------ why */

static int on_why(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    const struct vg_cmd_line *l = user;
    if (env->body_case != VG__PB__ENVELOPE__BODY_WHY)
        return vg_unexpected(env, err);
    if (l->json)
        vg_json_print(vg_view_json(&vg_view_why, env->why));
    else
        vg_why_print(stdout, env->why);
    return 0;
}

static int why_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__TaskRef ref = VG__PB__TASK_REF__INIT;
    Vg__Pb__Envelope req = vg_request(TASK_WHY, task_why, &ref);
    if (!vg_cmd_plain(l, 1, 1))
        return l->exit;
    ref.task = l->args[0];
    return vg_call_once(&req, on_why, l, &err) < 0 ? vg_cmd_fail(&err) : 0;
}

#define OUTPUT_ONLY .opts = output_opts, .n_opts = VG_COUNT(output_opts)

static const struct vg_cmd subs[] = {
    {"list", "", "tasks that wait or run", list_opts, VG_COUNT(list_opts), .run = list_run},
    {"get", "TASK", "all about one task", OUTPUT_ONLY, .run = get_run},
    {"logs", "TASK", "its output, also after it ended", vg_task_logs_opts,
     VG_COUNT(vg_task_logs_opts), .run = vg_task_logs_run},
    {"watch", "[TASK...]", "tasks as they change", vg_task_watch_opts, VG_COUNT(vg_task_watch_opts),
     .run = vg_task_watch_run},
    {"top", "", "what running tasks use, again and again", vg_task_top_opts,
     VG_COUNT(vg_task_top_opts), .run = vg_task_top_run},
    {"plot", "[TASK]", "what it used over time, also after it ended", vg_task_plot_opts,
     VG_COUNT(vg_task_plot_opts), .run = vg_task_plot_run},
    {"wait", "TASK...", "wait for the end; exits with the task's status", OUTPUT_ONLY,
     .run = wait_run},
    {"why", "TASK", "what it waits for, and until when", OUTPUT_ONLY, .run = why_run},
    {"attempts", "TASK", "each of its starts: where, how long, what it held", OUTPUT_ONLY,
     .run = vg_task_attempts_run},
    {"cancel", "[TASK...]", "end tasks: TERM, then KILL", vg_task_cancel_opts,
     VG_COUNT(vg_task_cancel_opts), .run = vg_task_cancel_run},
    {"signal", "TASK SIGNAL", "send a signal to a task", .run = vg_task_signal_run},
    {"share", "TASK", "change its share of a GPU while it runs", vg_task_share_opts,
     VG_COUNT(vg_task_share_opts), .run = vg_task_share_run},
};

const struct vg_cmd vg_cmd_task = {
    .name = "task",
    .args = "",
    .summary =
        "tasks: list, get, logs, watch, top, plot, wait, why, attempts, cancel, signal, share",
    .subs = subs,
    .n_subs = VG_COUNT(subs)};
