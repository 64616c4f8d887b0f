/* Which tasks: the options that list, watch and cancel share. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/cmd-task.h"
#include "cli/spec-values.h"

#include <string.h>

static const char *const states[] = {"blocked",   "queued", "starting",  "running",
                                     "succeeded", "failed", "cancelled", NULL};
#define N_UNFINISHED 4

static int add_label(struct vg_cmd_line *l, struct vg_task_filter *f, const char *arg) {
    if (!strchr(arg, '='))
        return vg_opt_bad(&l->st, "'%.60s' is not a label such as team=vision", arg);
    if (f->n_labels == VG_LABELS_MAX)
        return vg_opt_bad(&l->st, "at most %d labels may be given", VG_LABELS_MAX);
    f->labels[f->n_labels++] = arg;
    return 0;
}

static int add_state(struct vg_cmd_line *l, struct vg_task_filter *f, const char *arg) {
    int which, r = vg_opt_choice(&l->st, arg, states, &which);
    if (r == 0 && f->n_states < VG_LABELS_MAX)
        f->states[f->n_states++] = arg;
    return r;
}

int vg_task_filter_opt(struct vg_cmd_line *l, struct vg_task_filter *f, int id, const char *arg) {
    int r = 0;
    switch (id) {
    case 'a':
        f->ended = true;
        return 1;
    case 'A':
        f->all_users = true;
        return 1;
    case 'P':
        f->pool = arg;
        break;
    case 'n':
        f->name = arg;
        break;
    case 'O':
        f->of = arg;
        break;
    case 'S':
        f->search = arg;
        break;
    case 'Y':
        r = vg_spec_since(&l->st, arg, vg_wall_usec(), &f->since_usec);
        break;
    case 's':
        r = add_state(l, f, arg);
        break;
    case 'l':
        r = add_label(l, f, arg);
        break;
    default:
        return 0;
    }
    f->any = true;
    if (r == 0)
        return 1;
    l->exit = vg_cmd_fail_opt(l);
    return -1;
}

void vg_task_filter_finish(struct vg_task_filter *f) {
    if (f->n_states || f->ended)
        return;
    for (; f->n_states < N_UNFINISHED; f->n_states++)
        f->states[f->n_states] = states[f->n_states];
}

void vg_task_filter_query(const struct vg_task_filter *f, Vg__Pb__TaskQuery *q) {
    q->has_all_users = q->all_users = f->all_users;
    q->n_state = f->n_states;
    q->state = (char **)f->states;
    q->n_label = f->n_labels;
    q->label = (char **)f->labels;
    q->pool = (char *)f->pool;
    q->name = (char *)f->name;
    q->of = (char *)f->of;
    q->search = (char *)f->search;
    q->has_since_usec = f->since_usec != 0;
    q->since_usec = f->since_usec;
}
