/* `virga task watch`: tasks as they change. On a terminal the table is drawn again, or the progress
   of the one group that was named; elsewhere each change is a line. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/client.h"
#include "cli/cmd-task.h"
#include "cli/follow.h"
#include "cli/task-show.h"
#include "view/views.h"

#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define WATCH_MAX 2000 /* tasks remembered for the table */

struct watch {
    bool json, screen;
    Vg__Pb__TaskInfo **tasks; /* owned copies, in order of arrival */
    size_t n, cap;
};

static void forget(struct watch *w, size_t i) {
    vg__pb__task_info__free_unpacked(w->tasks[i], NULL);
    memmove(&w->tasks[i], &w->tasks[i + 1], (w->n - i - 1) * sizeof(w->tasks[0]));
    w->n--;
}

static void remember(struct watch *w, const Vg__Pb__TaskInfo *t) {
    Vg__Pb__TaskInfo *mine = vg_task_copy(t);
    if (!mine)
        return;
    for (size_t i = 0; i < w->n; i++)
        if (w->tasks[i]->id == t->id) {
            vg__pb__task_info__free_unpacked(w->tasks[i], NULL);
            w->tasks[i] = mine;
            return;
        }
    if (w->n == WATCH_MAX)
        forget(w, 0);
    Vg__Pb__TaskInfo **grown = vg_grow(w->tasks, &w->cap, w->n + 1, sizeof(w->tasks[0]));
    if (!grown) {
        vg__pb__task_info__free_unpacked(mine, NULL);
        return;
    }
    w->tasks = grown;
    w->tasks[w->n++] = mine;
}

/* As many of the newest as the screen has lines. */
static void draw(const struct watch *w) {
    struct winsize ws = {.ws_row = 24};
    ioctl(STDOUT_FILENO, TIOCGWINSZ, &ws);
    size_t room = ws.ws_row > 3 ? ws.ws_row - 2u : 1, first = w->n > room ? w->n - room : 0;
    struct vg_table *table = vg_task_table();
    for (size_t i = first; i < w->n; i++)
        vg_task_row(table, w->tasks[i]);
    fputs("\033[H\033[2J", stdout);
    vg_table_print(table, stdout, 0);
    fflush(stdout);
}

static void print_change(const struct watch *w, const Vg__Pb__TaskInfo *t) {
    char id[VG_ID_LEN + 1], when[32], state[64], command[512];
    if (w->json) {
        vg_json_print_line(vg_view_json(&vg_view_task, t));
        return;
    }
    vg_id_format(t->id, id);
    printf("%s %s %s %s%s%s\n", vg_when(vg_wall_usec(), when, sizeof(when)), id,
           vg_task_state(t, state, sizeof(state)), t->node && *t->node ? t->node : "",
           t->node && *t->node ? " " : "", vg_task_command(t, command, sizeof(command)));
    fflush(stdout);
}

static void change(struct watch *w, const Vg__Pb__TaskInfo *t) {
    if (w->screen)
        remember(w, t);
    else
        print_change(w, t);
}

static int on_watch(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    struct watch *w = user;
    if (env->body_case == VG__PB__ENVELOPE__BODY_TASK)
        change(w, env->task);
    else if (env->body_case == VG__PB__ENVELOPE__BODY_TASKS)
        for (size_t i = 0; i < env->tasks->n_task; i++)
            change(w, env->tasks->task[i]);
    else if (env->body_case != VG__PB__ENVELOPE__BODY_OK)
        return vg_unexpected(env, err);
    if (w->screen)
        draw(w);
    if (!ferror(stdout))
        return 0;
    vg_err_sys(err, EPIPE, "cannot write the output");
    err->reason = VG_INTERNAL; /* not LOST: it is our reader who left, not the control plane */
    return err->code;
}

static void again(void *user) {
    struct watch *w = user;
    while (w->n)
        forget(w, w->n - 1);
}

const struct vg_opt vg_task_watch_opts[10] = {VG_TASK_FILTER_OPTS, VG_CMD_OUTPUT};

static int call(struct vg_cmd_line *l, struct vg_task_filter *f, struct watch *w,
                struct vg_err *err) {
    Vg__Pb__TaskQuery q = VG__PB__TASK_QUERY__INIT;
    vg_task_filter_query(f, &q);
    q.n_task = (size_t)l->n_args;
    q.task = l->args;
    Vg__Pb__Envelope req = vg_request(TASK_WATCH, task_watch, &q);
    return vg_call_patient(&req, on_watch, again, w, err);
}

static int on_look(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    (void)err;
    *(bool *)user = env->body_case == VG__PB__ENVELOPE__BODY_TASK && env->task->members > 0;
    return 0;
}

/* One group on a terminal is one line that is drawn again. */
static bool is_group(const char *task) {
    struct vg_err err = VG_ERR_INIT;
    bool group = false;
    Vg__Pb__TaskRef ref = VG__PB__TASK_REF__INIT;
    Vg__Pb__Envelope req = vg_request(TASK_GET, task_get, &ref);
    ref.task = (char *)task;
    return vg_call_once(&req, on_look, &group, &err) >= 0 && group;
}

static int watch_group(const char *task) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_endpoint ep;
    struct vg_follow_how how = {.program = "virga"};
    if (vg_endpoint_find(&ep, &err) < 0)
        return vg_cmd_fail(&err);
    return vg_follow_task(&ep, task, &how);
}

int vg_task_watch_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_task_filter f = {0};
    const char *arg;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;)
        if (id == VG_OPT_ERROR || vg_task_filter_opt(l, &f, id, arg) < 0)
            return l->exit;
    struct watch w = {.json = l->json, .screen = !l->json && isatty(STDOUT_FILENO)};
    if (w.screen && l->n_args == 1 && is_group(l->args[0]))
        return watch_group(l->args[0]);
    int r = call(l, &f, &w, &err);
    again(&w);
    free(w.tasks);
    if (r == -EPIPE)
        return 141;
    return r < 0 ? vg_cmd_fail(&err) : 0;
}
