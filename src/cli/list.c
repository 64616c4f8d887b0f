/* The shape of every list command. No state; one thread. */
#include "cli/list.h"

const struct vg_opt vg_list_opts[1] = {VG_CMD_OUTPUT};

struct listing {
    const struct vg_lister *how;
    struct vg_table *table; /* one of these */
    json_t *array;
};

static int on_answer(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    struct listing *g = user;
    if (env->body_case != g->how->body)
        return vg_unexpected(env, err);
    if (g->array && g->how->view)
        vg_view_elements(g->array, g->how->view, env->ok);
    else if (g->array)
        g->how->items(env, g->array);
    else
        g->how->rows(env, g->table);
    return 0;
}

int vg_list_run(struct vg_cmd_line *l, Vg__Pb__Envelope *req, const struct vg_lister *how) {
    return vg_cmd_plain(l, 0, 0) ? vg_list_show(l, req, how) : l->exit;
}

int vg_list_show(struct vg_cmd_line *l, Vg__Pb__Envelope *req, const struct vg_lister *how) {
    struct vg_err err = VG_ERR_INIT;
    struct listing g = {.how = how};
    if (l->json)
        g.array = json_array();
    else
        g.table = vg_table_new(how->headings);
    if (vg_call_once(req, on_answer, &g, &err) < 0) {
        vg_table_free(g.table);
        json_decref(g.array);
        return vg_cmd_fail(&err);
    }
    if (g.array)
        return vg_json_print(g.array);
    vg_table_print(g.table, stdout, 0);
    return 0;
}

int vg_change_run(Vg__Pb__Envelope *req) {
    struct vg_err err = VG_ERR_INIT;
    return vg_call_once(req, NULL, NULL, &err) < 0 ? vg_cmd_fail(&err) : 0;
}

int vg_name_run(struct vg_cmd_line *l, char **name, Vg__Pb__Envelope *req) {
    if (!vg_cmd_plain(l, 1, 1))
        return l->exit;
    *name = l->args[0];
    return vg_change_run(req);
}
