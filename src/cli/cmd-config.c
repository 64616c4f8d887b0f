/* `virga config`: check a configuration file here, or have the control plane read its own again. */
#include "base/cleanup.h"
#include "cli/client.h"
#include "cli/cmd.h"
#include "conf/conf.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int check_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_conf conf = {0};
    char path[VG_ENDPOINT_PATH_MAX + 16];
    if (!vg_cmd_plain(l, 0, 1))
        return l->exit;
    if (!l->n_args) {
        if (vg_home_dir(path, sizeof(path) - 16, &err) < 0)
            return vg_cmd_fail(&err);
        snprintf(path + strlen(path), 16, "/config.yaml");
    }
    const char *file = l->n_args ? l->args[0] : path;
    if (!l->n_args && access(file, F_OK) < 0 && errno == ENOENT) {
        printf("%s does not exist: the defaults hold\n", file);
        return 0;
    }
    if (vg_conf_load(file, &conf, &err) < 0)
        return vg_cmd_fail(&err);
    printf("%s: good\n", file);
    vg_conf_done(&conf);
    return 0;
}

static int on_reload(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    (void)user;
    if (env->body_case != VG__PB__ENVELOPE__BODY_OK)
        return vg_unexpected(env, err);
    if (env->ok->text && *env->ok->text)
        printf("%s\n", env->ok->text);
    return 0;
}

static int reload_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__Empty body = VG__PB__EMPTY__INIT;
    Vg__Pb__Envelope req = vg_request(CONFIG_RELOAD, config_reload, &body);
    if (!vg_cmd_plain(l, 0, 0))
        return l->exit;
    return vg_call_once(&req, on_reload, NULL, &err) < 0 ? vg_cmd_fail(&err) : 0;
}

static const struct vg_cmd subs[] = {
    {"check", "[FILE]", "say whether a configuration file is good", .run = check_run},
    {"reload", "", "have the control plane read its file again", .run = reload_run},
};

const struct vg_cmd vg_cmd_config = {.name = "config",
                                     .args = "",
                                     .summary = "the configuration: check, reload",
                                     .subs = subs,
                                     .n_subs = VG_COUNT(subs)};
