#pragma once
/* The shape of every `... list`: one call, answers shown as a table or as a JSON array. */
#include "cli/client.h"
#include "cli/cmd.h"
#include "cli/table.h"
#include "view/views.h"

struct vg_lister {
    Vg__Pb__Envelope__BodyCase body; /* the answer's kind */
    const char *const *headings;
    void (*rows)(const Vg__Pb__Envelope *env, struct vg_table *t);
    struct vg_view *view; /* of the list: its elements are printed; or */
    void (*items)(const Vg__Pb__Envelope *env, json_t *array);
};

/* Reads the command line (only -o), calls, prints. Returns the exit status. */
int vg_list_run(struct vg_cmd_line *l, Vg__Pb__Envelope *req, const struct vg_lister *how);
/* The same for a command that has read its command line. */
int vg_list_show(struct vg_cmd_line *l, Vg__Pb__Envelope *req, const struct vg_lister *how);

extern const struct vg_opt vg_list_opts[1]; /* -o alone */
#define VG_LIST_OPTS .opts = vg_list_opts, .n_opts = 1

/* Opens, calls, ignores what the answer holds: for commands that change something. */
int vg_change_run(Vg__Pb__Envelope *req);
/* The same for commands that are about one thing: the only argument is its name, put where `name`
   points (into the request). */
int vg_name_run(struct vg_cmd_line *l, char **name, Vg__Pb__Envelope *req);
