/* `virga schedule`: what makes tasks again and again (vbatch --every, --cron). */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/list.h"
#include "cli/task-show.h"

static char *command(const Vg__Pb__ScheduleInfo *s, char *out, size_t n) {
    Vg__Pb__TaskInfo t = VG__PB__TASK_INFO__INIT;
    t.argv = s->argv;
    t.n_argv = s->n_argv;
    return vg_task_command(&t, out, n);
}

static void rows(const Vg__Pb__Envelope *env, struct vg_table *t) {
    for (size_t i = 0; i < env->schedules->n_schedule; i++) {
        const Vg__Pb__ScheduleInfo *s = env->schedules->schedule[i];
        char id[VG_ID_LEN + 1], next[80], last[48], made[16], text[512];
        vg_id_format(s->id, id);
        id[VG_TASK_SHORT_ID] = 0;
        snprintf(made, sizeof(made), "%u", s->made);
        const char *cells[] = {id,
                               s->name,
                               s->user,
                               s->when,
                               vg_soon(s->next_usec, next, sizeof(next)),
                               vg_ago(s->last_usec, last, sizeof(last)),
                               made,
                               command(s, text, sizeof(text))};
        vg_table_row(t, cells);
    }
}

static const struct vg_lister lister = {
    .body = VG__PB__ENVELOPE__BODY_SCHEDULES,
    .headings = (const char *const[]){"SCHEDULE", "NAME", "USER", "WHEN", "NEXT", "LAST", "MADE",
                                      "COMMAND", NULL},
    .rows = rows,
    .view = &vg_view_schedules};

static int list_run(struct vg_cmd_line *l) {
    Vg__Pb__Empty body = VG__PB__EMPTY__INIT;
    Vg__Pb__Envelope req = vg_request(SCHEDULE_LIST, schedule_list, &body);
    return vg_list_run(l, &req, &lister);
}

static int remove_run(struct vg_cmd_line *l) {
    Vg__Pb__NameRef ref = VG__PB__NAME_REF__INIT;
    Vg__Pb__Envelope req = vg_request(SCHEDULE_REMOVE, schedule_remove, &ref);
    if (!vg_cmd_plain(l, 1, 1))
        return l->exit;
    ref.name = l->args[0];
    return vg_change_run(&req);
}

static const struct vg_cmd subs[] = {
    {"list", "", "what makes tasks again and again", VG_LIST_OPTS, .run = list_run},
    {"remove", "SCHEDULE", "make no more of them; what runs goes on", .run = remove_run},
};

const struct vg_cmd vg_cmd_schedule = {.name = "schedule",
                                       .args = "",
                                       .summary = "tasks that come again: list, remove",
                                       .subs = subs,
                                       .n_subs = VG_COUNT(subs)};
