/* `virga env import` and `export`: images of others, and for others. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/cmd-env.h"
#include "fs/store/oci.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A name for an image that came without one: its file's. */
static void name_from(const char *from, char out[VG_ENV_NAME_MAX + 1]) {
    const char *slash = strrchr(from, '/'), *p = slash && slash[1] ? slash + 1 : from;
    size_t n = 0;
    for (; *p && n < VG_ENV_NAME_MAX; p++)
        out[n++] = strchr("._-/:@+", *p) || (*p >= '0' && *p <= '9') ||
                           ((*p | 32) >= 'a' && (*p | 32) <= 'z')
                       ? *p
                       : '-';
    out[n] = '\0';
    if (n > 4 && strcmp(out + n - 4, ".tar") == 0)
        out[n - 4] = '\0';
}

int vg_ecmd_import(const char *image, const struct vg_ecmd_from *from, const char *name_wanted,
                   char name[VG_ENV_NAME_MAX + 1], uint32_t *ret_version, struct vg_err *err) {
    struct vg_ecmd_box box = {0};
    struct vg_ftree *t = NULL;
    char *config = NULL, own[256] = "", source[300];
    bool local = access(image, F_OK) == 0;
    int r = vg_ecmd_box_open(&box, err);
    if (r == 0)
        r = local ? vg_oci_import(image, from->platform, box.store, &t, &config, own, err)
                  : vg_oci_pull(image, from->platform, from->ca, box.store, &t, &config, err);
    if (name_wanted)
        snprintf(name, VG_ENV_NAME_MAX + 1, "%s", name_wanted);
    else if (!local)
        snprintf(name, VG_ENV_NAME_MAX + 1, "%s", image);
    else
        name_from(*own ? own : image, name);
    snprintf(source, sizeof(source), "image %.280s", image);
    if (r == 0)
        r = vg_env_name_check(name, err);
    if (r == 0)
        r = vg_ecmd_put(t, name, source, config, ret_version, err);
    vg_ftree_unref(t);
    free(config);
    vg_ecmd_box_close(&box);
    return r;
}

int vg_ecmd_import_run(struct vg_cmd_line *l) {
    const char *arg, *wanted = NULL;
    struct vg_ecmd_from from = {0};
    char name[VG_ENV_NAME_MAX + 1];
    uint32_t version;
    struct vg_err err = VG_ERR_INIT;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return l->exit;
        *(id == 'n' ? &wanted : id == 'c' ? &from.ca : &from.platform) = arg;
    }
    if (!vg_cmd_args(l, 1, 1))
        return l->exit;
    if (vg_ecmd_import(l->args[0], &from, wanted, name, &version, &err) < 0)
        return vg_cmd_fail(&err);
    printf("%s@%u\n", name, version);
    return 0;
}

static int export_to(const char *ref, int fd, struct vg_err *err) {
    struct vg_ecmd_box box = {0};
    struct vg_ftree *t = NULL;
    char *config = NULL;
    int r = vg_ecmd_box_open(&box, err);
    if (r == 0)
        r = vg_ecmd_take(box.store, ref, false, &t, &config, err);
    if (r == 0)
        r = vg_oci_export(t, box.store, config, ref, fd, err);
    vg_ftree_unref(t);
    free(config);
    vg_ecmd_box_close(&box);
    return r;
}

int vg_ecmd_export_run(struct vg_cmd_line *l) {
    const char *arg, *file = NULL;
    struct vg_err err = VG_ERR_INIT;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return l->exit;
        file = arg;
    }
    if (!vg_cmd_args(l, 1, 1))
        return l->exit;
    if (!file) {
        vg_cmd_say("say where to: virga env export %s --oci FILE", l->args[0]);
        return vg_reason_exit(VG_INVALID);
    }
    bool out = strcmp(file, "-") == 0;
    int fd = out ? STDOUT_FILENO : open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        vg_err_sys(&err, errno, "cannot write %s", file);
        return vg_cmd_fail(&err);
    }
    int r = export_to(l->args[0], fd, &err);
    if (!out && close(fd) < 0 && r == 0)
        r = vg_err_sys(&err, errno, "cannot write %s", file);
    if (r < 0 && !out)
        unlink(file); /* half an archive is of no use */
    return r < 0 ? vg_cmd_fail(&err) : 0;
}
