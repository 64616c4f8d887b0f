/* `virga env`: environments in the cloud's store: names, versions, readers. What moves trees is in
   cmd-env-move.c. */
#include "cli/cmd-env-changes.h"

#include "base/cleanup.h"
#include "base/util.h"
#include "cli/list.h"
#include "fs/store/envd.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define OP(name) VG__PB__ENV_REQ__OP__##name

/* What a task changed is kept like an environment, but is none. */
static bool is_changes(const Vg__Pb__EnvInfo *e) {
    return strncmp(e->name, VG_KEEP_PREFIX, strlen(VG_KEEP_PREFIX)) == 0;
}

static void rows(const Vg__Pb__Envelope *env, struct vg_table *t) {
    for (size_t i = 0; i < env->envs->n_env; i++) {
        const Vg__Pb__EnvInfo *e = env->envs->env[i];
        if (is_changes(e))
            continue;
        char name[512], files[32], size[32], missing[32], age[48];
        snprintf(name, sizeof(name), "%s@%u", e->name, e->version);
        snprintf(files, sizeof(files), "%" PRIu64, e->files);
        snprintf(missing, sizeof(missing), "%u", e->missing);
        const char *cells[] = {name,
                               e->owner,
                               files,
                               vg_format_size(e->bytes, size, sizeof(size)),
                               e->missing ? missing : NULL,
                               e->source,
                               vg_ago(e->created_usec, age, sizeof(age))};
        vg_table_row(t, cells);
    }
}

static void items(const Vg__Pb__Envelope *env, json_t *array) {
    for (size_t i = 0; i < env->envs->n_env; i++)
        if (!is_changes(env->envs->env[i]))
            json_array_append_new(array, vg_view_json(&vg_view_environment, env->envs->env[i]));
}

static const struct vg_lister lister = {
    .body = VG__PB__ENVELOPE__BODY_ENVS,
    .headings = (const char *const[]){"ENVIRONMENT", "OWNER", "FILES", "SIZE", "MISSING", "FROM",
                                      "AGE", NULL},
    .rows = rows,
    .items = items};

Vg__Pb__EnvReq vg_ecmd_request(Vg__Pb__EnvReq__Op op, const char *ref) {
    Vg__Pb__EnvReq m = VG__PB__ENV_REQ__INIT;
    m.has_op = true;
    m.op = op;
    m.ref = (char *)ref;
    return m;
}

static int list_run(struct vg_cmd_line *l) {
    Vg__Pb__EnvReq m = vg_ecmd_request(OP(LIST), NULL);
    Vg__Pb__Envelope req = vg_request(ENV, env, &m);
    return vg_list_run(l, &req, &lister);
}

static int show_one(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    const struct vg_cmd_line *l = user;
    char size[32], age[48];
    if (env->body_case != VG__PB__ENVELOPE__BODY_ENVS || env->envs->n_env != 1)
        return vg_unexpected(env, err);
    const Vg__Pb__EnvInfo *e = env->envs->env[0];
    if (l->json) {
        vg_json_print(vg_view_json(&vg_view_environment, e));
        return 0;
    }
    printf("name      %s\nversion   %u\nowner     %s\nfiles     %" PRIu64 "\nsize      %s\n",
           e->name, e->version, e->owner, e->files, vg_format_size(e->bytes, size, sizeof(size)));
    printf("missing   %u\nfrom      %s\nsaved     %s ago\n", e->missing, e->source,
           vg_ago(e->created_usec, age, sizeof(age)));
    return 0;
}

static int show_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    if (!vg_cmd_plain(l, 1, 1))
        return l->exit;
    Vg__Pb__EnvReq m = vg_ecmd_request(OP(GET), l->args[0]);
    Vg__Pb__Envelope req = vg_request(ENV, env, &m);
    return vg_call_once(&req, show_one, l, &err) < 0 ? vg_cmd_fail(&err) : 0;
}

static int remove_run(struct vg_cmd_line *l) {
    if (!vg_cmd_plain(l, 1, 1))
        return l->exit;
    char name[VG_ENV_NAME_MAX + 1];
    uint64_t task;
    struct vg_err err = VG_ERR_INIT;
    bool id = vg_id_parse(l->args[0], &task) == 0; /* a name of 16 hex digits is nobody's choice */
    if (id && vg_ecmd_task_ref(l->args[0], name, &task, &err) < 0)
        return vg_cmd_fail(&err);
    Vg__Pb__EnvReq m = vg_ecmd_request(OP(REMOVE), id ? name : l->args[0]);
    Vg__Pb__Envelope req = vg_request(ENV, env, &m);
    return vg_change_run(&req);
}

static const struct vg_opt share_opts[] = {
    {"team", 't', "TEAM", "who may use it, and read all of it", 't'},
    {"stop", 0, NULL, "they may no longer", 's'}};

static int share_run(struct vg_cmd_line *l) {
    const char *arg, *team = NULL;
    bool stop = false;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return l->exit;
        if (id == 't')
            team = arg;
        stop = stop || id == 's';
    }
    if (!vg_cmd_args(l, 1, 1))
        return l->exit;
    if (!team) {
        vg_cmd_say("say with whom: virga env share %s --team TEAM", l->args[0]);
        return vg_reason_exit(VG_INVALID);
    }
    Vg__Pb__EnvReq m = vg_ecmd_request(stop ? OP(UNSHARE) : OP(SHARE), l->args[0]);
    m.team = (char *)team;
    Vg__Pb__Envelope req = vg_request(ENV, env, &m);
    return vg_change_run(&req);
}

static const struct vg_opt import_opts[] = {
    {"name", 'n', "NAME", "what it is called here (default: made from the image's)", 'n'},
    {"platform", 0, "OS/ARCH", "of an image for several (default: this machine's)", 'p'},
    {"ca", 0, "FILE", "trust this authority's certificates, too, when a registry shows one", 'c'}};
static const struct vg_opt export_opts[] = {
    {"oci", 0, "FILE", "an OCI archive; - for stdout", 'f'}};

static const struct vg_cmd subs[] = {
    {"list", "", "environments that you may use", VG_LIST_OPTS, .run = list_run},
    {"show", "NAME[@VERSION]", "one of them", VG_LIST_OPTS, .run = show_run},
    {"save", "NAME [PATH...]", "keep this machine's files, or what lies below these, as one",
     .run = vg_ecmd_save_run},
    {"import", "IMAGE", "make one from an OCI archive, an OCI layout or a registry",
     .opts = import_opts, .n_opts = VG_COUNT(import_opts), .run = vg_ecmd_import_run},
    {"export", "NAME[@VERSION]", "write one as an OCI archive", .opts = export_opts,
     .n_opts = VG_COUNT(export_opts), .run = vg_ecmd_export_run},
    {"diff", "A B|TASK", "what differs between two, or what a task changed", VG_LIST_OPTS,
     .run = vg_ecmd_diff_run},
    {"apply", "TASK [DIR]", "bring what a task changed into this machine's folder",
     .run = vg_ecmd_apply_run},
    {"share", "NAME", "let a team use it", .opts = share_opts, .n_opts = VG_COUNT(share_opts),
     .run = share_run},
    {"rm", "NAME[@VERSION]|TASK", "remove a version, all, or a task's changes", .run = remove_run},
};

const struct vg_cmd vg_cmd_env = {
    .name = "env",
    .args = "",
    .summary = "environments: list, show, save, import, export, diff, apply, share, rm",
    .subs = subs,
    .n_subs = VG_COUNT(subs)};
const struct vg_cmd vg_cmd_envd = {.name = "envd", .args = "", .raw = vg_envd_main};
