/* `virga session`: the named places that several commands share (`vrun -s NAME`). */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/list.h"

static void rows(const Vg__Pb__Envelope *env, struct vg_table *t) {
    for (size_t i = 0; i < env->sessions->n_session; i++) {
        const Vg__Pb__SessionInfo *s = env->sessions->session[i];
        char tasks[16], age[48], keep[32];
        snprintf(tasks, sizeof(tasks), "%u", s->tasks);
        vg_format_duration(s->keep_usec, keep, sizeof(keep));
        const char *cells[] = {s->name,
                               s->user,
                               s->pool,
                               s->node,
                               tasks,
                               s->keep_usec ? keep : NULL,
                               vg_ago(s->created_usec, age, sizeof(age))};
        vg_table_row(t, cells);
    }
}

static const struct vg_lister lister = {
    .body = VG__PB__ENVELOPE__BODY_SESSIONS,
    .headings =
        (const char *const[]){"SESSION", "USER", "POOL", "NODE", "TASKS", "KEEP", "AGE", NULL},
    .rows = rows,
    .view = &vg_view_sessions};

static int list_run(struct vg_cmd_line *l) {
    Vg__Pb__Empty body = VG__PB__EMPTY__INIT;
    Vg__Pb__Envelope req = vg_request(SESSION_LIST, session_list, &body);
    return vg_list_run(l, &req, &lister);
}

static int end_run(struct vg_cmd_line *l) {
    Vg__Pb__NameRef ref = VG__PB__NAME_REF__INIT;
    Vg__Pb__Envelope req = vg_request(SESSION_END, session_end, &ref);
    if (!vg_cmd_plain(l, 1, 1))
        return l->exit;
    ref.name = l->args[0];
    return vg_change_run(&req);
}

static const struct vg_cmd subs[] = {
    {"list", "", "sessions that are kept", VG_LIST_OPTS, .run = list_run},
    {"end", "SESSION", "end a session and what runs in it", .run = end_run},
};

const struct vg_cmd vg_cmd_session = {.name = "session",
                                      .args = "",
                                      .summary = "places that commands share: list, end",
                                      .subs = subs,
                                      .n_subs = VG_COUNT(subs)};
