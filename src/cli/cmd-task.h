#pragma once
/* The commands of `virga task` that have files of their own. */
#include "cli/cmd.h"
#include "proto/virga.pb-c.h"

#define VG_LABELS_MAX 64

/* A query built from options, shared by list, watch and cancel. */
struct vg_task_filter {
    const char *labels[VG_LABELS_MAX], *states[VG_LABELS_MAX];
    size_t n_labels, n_states;
    const char *pool, *name, *of, *search;
    uint64_t since_usec;
    bool all_users, ended;
    bool any; /* something was asked for that narrows the choice */
    uint64_t limit;
};

#define VG_TASK_CHOICE_OPTS                                                        \
    {"all-users", 'A', NULL, "everybody's tasks", 'A'},                            \
        {"state", 's', "STATE", "only tasks in this state (again for more)", 's'}, \
        {"label", 'l', "K=V", "only tasks with this label (again for more)", 'l'}, \
        {"search", 0, "TEXT", "only with this in name, command or labels", 'S'},   \
        {"of", 0, "TASK", "only members and children of this one", 'O'},           \
        {"since", 0, "TIME", "only made since: 2h (ago), 08:00, 2027-01-31", 'Y'}, \
        {"pool", 'P', "POOL", "only tasks of this pool", 'P'}, {                   \
        "name", 'n', "NAME", "only tasks of this name", 'n'                        \
    }
#define VG_TASK_FILTER_OPTS {"all", 'a', NULL, "ended tasks too", 'a'}, VG_TASK_CHOICE_OPTS

/* Handles one of the options above: 1 taken, 0 not one of them, -1 l->exit is set. */
int vg_task_filter_opt(struct vg_cmd_line *l, struct vg_task_filter *f, int id, const char *arg);
/* The states to ask for when none was named and ended tasks were not wanted. */
void vg_task_filter_finish(struct vg_task_filter *f);
/* Fills the query; it borrows from the filter. */
void vg_task_filter_query(const struct vg_task_filter *f, Vg__Pb__TaskQuery *q);

int vg_task_attempts_run(struct vg_cmd_line *l);
int vg_task_logs_run(struct vg_cmd_line *l);
int vg_task_watch_run(struct vg_cmd_line *l);
int vg_task_cancel_run(struct vg_cmd_line *l);
int vg_task_signal_run(struct vg_cmd_line *l);
int vg_task_top_run(struct vg_cmd_line *l);
int vg_task_plot_run(struct vg_cmd_line *l);
int vg_task_share_run(struct vg_cmd_line *l);
extern const struct vg_opt vg_task_share_opts[5], vg_task_top_opts[4], vg_task_plot_opts[3];
extern const struct vg_opt vg_task_logs_opts[4], vg_task_watch_opts[10], vg_task_cancel_opts[11];
