/* What a task changed in its copy of this machine's files (docs/mirror.md, Snapshots): shown by
   `virga env diff TASK`, brought here by `virga env apply TASK [DIR]`. */
#include "cli/cmd-env-changes.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "view/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OP(name) VG__PB__ENV_REQ__OP__##name

static int on_task(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    if (env->body_case != VG__PB__ENVELOPE__BODY_TASK)
        return vg_unexpected(env, err);
    *(uint64_t *)user = env->task->id;
    return 0;
}

int vg_ecmd_task_ref(const char *arg, char name[VG_ENV_NAME_MAX + 1], uint64_t *ret_task,
                     struct vg_err *err) {
    char id[VG_ID_LEN + 1];
    size_t n = strlen(VG_KEEP_PREFIX);
    if (strncmp(arg, VG_KEEP_PREFIX, n) == 0)
        arg += n;
    if (vg_id_parse(arg, ret_task) < 0) {
        Vg__Pb__TaskRef ref = VG__PB__TASK_REF__INIT;
        Vg__Pb__Envelope req = vg_request(TASK_GET, task_get, &ref);
        ref.task = (char *)arg;
        int r = vg_call_once(&req, on_task, ret_task, err);
        if (r < 0)
            return r;
    }
    vg_id_format(*ret_task, id);
    snprintf(name, VG_ENV_NAME_MAX + 1, VG_KEEP_PREFIX "%s", id);
    return 0;
}

static int on_count(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    if (env->body_case != VG__PB__ENVELOPE__BODY_ENVS || env->envs->n_env != 1)
        return vg_unexpected(env, err);
    *(uint64_t *)user = env->envs->env[0]->files;
    return 0;
}

void vg_ecmd_say_kept(uint64_t task) {
    char id[VG_ID_LEN + 1], name[VG_ENV_NAME_MAX + 1];
    uint64_t n = 0;
    struct vg_err err = VG_ERR_INIT;
    vg_id_format(task, id);
    snprintf(name, sizeof(name), VG_KEEP_PREFIX "%s", id);
    Vg__Pb__EnvReq m = vg_ecmd_request(OP(GET), name);
    Vg__Pb__Envelope req = vg_request(ENV, env, &m);
    if (vg_call_once(&req, on_count, &n, &err) == 0 && n)
        fprintf(stderr,
                "virga: %" PRIu64 " changes of the task are kept: 'virga env apply %s' "
                "brings them here\n",
                n, id);
}

/* ------------------------------------------------------------------ the list */

static int collect(void *user, const struct vg_fitem *i) {
    struct vg_changes *c = user;
    struct vg_change how;
    vg_change_of(i, &how);
    if (how.was == '?')
        return 0; /* a folder on the way to where the changes are */
    void *more = vg_grow(c->item, &c->cap, c->n + 1, sizeof(*c->item));
    if (!more)
        return -ENOMEM;
    c->item = more;
    c->item[c->n] = *i;
    c->item[c->n].path = vg_strdup(i->path);
    return c->item[c->n++].path ? 0 : -ENOMEM;
}

int vg_changes_load(struct vg_estore *box, const char *name, bool names, struct vg_changes *ret,
                    struct vg_err *err) {
    *ret = (struct vg_changes){0};
    int r = vg_ecmd_take(box, name, names, &ret->tree, NULL, err);
    if (r < 0 && err->reason == VG_NOT_FOUND)
        return vg_err_set(err, VG_NOT_FOUND,
                          "no changes of task %s are kept: it made none, they were removed, or it "
                          "did not run on a copy of its machine's files",
                          name + strlen(VG_KEEP_PREFIX));
    return r < 0 ? r : vg_ftree_each(ret->tree, collect, ret, err);
}

void vg_changes_done(struct vg_changes *c) {
    for (size_t i = 0; i < c->n; i++)
        free((char *)c->item[i].path);
    free(c->item);
    vg_ftree_unref(c->tree);
    *c = (struct vg_changes){0};
}

/* ------------------------------------------------------------------ diff */

static const char *kind_of(const struct vg_fitem *i, const struct vg_change *c) {
    if (c->gone)
        return c->was == 'd' ? "folder" : c->was == 'l' ? "link" : c->was == 'f' ? "file" : "other";
    return S_ISREG(i->st.mode)   ? "file"
           : S_ISDIR(i->st.mode) ? "folder"
           : S_ISLNK(i->st.mode) ? "link"
                                 : "other";
}

static json_t *as_json(const struct vg_fitem *i, const struct vg_change *c) {
    json_t *j = json_object();
    json_object_set_new(j, "path", vg_json_text(i->path));
    json_object_set_new(j, "change",
                        json_string(c->gone         ? "removed"
                                    : c->was == '-' ? "added"
                                                    : "changed"));
    json_object_set_new(j, "kind", json_string(kind_of(i, c)));
    json_object_set_new(j, "size", vg_json_u64(S_ISREG(i->st.mode) ? i->st.size : 0));
    return j;
}

static void print_line(const struct vg_fitem *i, const struct vg_change *c) {
    char size[32] = "";
    if (S_ISREG(i->st.mode))
        vg_format_size(i->st.size, size, sizeof(size));
    printf("%c %10s %s%s\n",
           c->gone         ? '-'
           : c->was == '-' ? '+'
                           : 'M',
           size, i->path, strcmp(kind_of(i, c), "folder") ? "" : "/");
}

int vg_ecmd_changes_run(struct vg_cmd_line *l) {
    struct vg_ecmd_box box = {0};
    struct vg_changes c = {0};
    struct vg_err err = VG_ERR_INIT;
    char name[VG_ENV_NAME_MAX + 1];
    uint64_t task;
    int r = vg_ecmd_task_ref(l->args[0], name, &task, &err);
    if (r == 0)
        r = vg_ecmd_box_open(&box, &err);
    if (r == 0)
        r = vg_changes_load(box.store, name, true, &c, &err);
    json_t *all = r == 0 && l->json ? json_array() : NULL;
    for (size_t i = 0; r == 0 && i < c.n; i++) {
        struct vg_change how;
        vg_change_of(&c.item[i], &how);
        if (!vg_change_counts(&c.item[i], &how))
            continue;
        if (all)
            json_array_append_new(all, as_json(&c.item[i], &how));
        else
            print_line(&c.item[i], &how);
    }
    int exit = r < 0 ? vg_cmd_fail(&err) : all ? vg_json_print(all) : 0;
    vg_changes_done(&c);
    vg_ecmd_box_close(&box);
    return exit;
}
