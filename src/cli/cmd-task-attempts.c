/* `virga task attempts`: each start of a task, where it was and what it held. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/cmd-task.h"
#include "cli/list.h"
#include "cli/task-show.h"

static void rows(const Vg__Pb__Envelope *env, struct vg_table *t) {
    for (size_t i = 0; i < env->attempts->n_attempt; i++) {
        const Vg__Pb__AttemptInfo *a = env->attempts->attempt[i];
        char number[16], from[32], time[32], held[128];
        uint64_t end = a->until_usec ? a->until_usec : vg_wall_usec();
        snprintf(number, sizeof(number), "%u", a->attempt);
        const char *cells[] = {
            number,
            a->node,
            a->pool,
            vg_when(a->from_usec, from, sizeof(from)),
            vg_format_duration(a->from_usec && end > a->from_usec ? end - a->from_usec : 0, time,
                               sizeof(time)),
            a->how,
            vg_resources_text(a->held, held, sizeof(held))};
        vg_table_row(t, cells);
    }
}

static const struct vg_lister lister = {
    .body = VG__PB__ENVELOPE__BODY_ATTEMPTS,
    .headings =
        (const char *const[]){"ATTEMPT", "NODE", "POOL", "FROM", "TIME", "HOW", "HELD", NULL},
    .rows = rows,
    .view = &vg_view_attempts};

int vg_task_attempts_run(struct vg_cmd_line *l) {
    Vg__Pb__AttemptQuery q = VG__PB__ATTEMPT_QUERY__INIT;
    Vg__Pb__Envelope req = vg_request(ATTEMPT_LIST, attempt_list, &q);
    if (!vg_cmd_plain(l, 1, 1))
        return l->exit;
    q.task = l->args[0];
    return vg_list_show(l, &req, &lister);
}
