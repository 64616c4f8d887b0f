#pragma once
/* What the files of `virga env` share. */
#include "cli/client.h"
#include "cli/cmd.h"
#include "fs/store/ftree.h"

Vg__Pb__EnvReq vg_ecmd_request(Vg__Pb__EnvReq__Op op, const char *ref);
int vg_ecmd_save_run(struct vg_cmd_line *l);
int vg_ecmd_import_run(struct vg_cmd_line *l);
int vg_ecmd_export_run(struct vg_cmd_line *l);
int vg_ecmd_diff_run(struct vg_cmd_line *l);

/* A store of one's own for a while, in $TMPDIR. */
struct vg_ecmd_box {
    char dir[4096];
    struct vg_estore *store;
};
int vg_ecmd_box_open(struct vg_ecmd_box *b, struct vg_err *err);
void vg_ecmd_box_close(struct vg_ecmd_box *b); /* and removes it; zeroed is fine */

/* Saves a tree under a name; prints nothing. *ret_version of the new one. */
int vg_ecmd_put(struct vg_ftree *t, const char *name, const char *source, const char *config,
                uint32_t *ret_version, struct vg_err *err);
/* Brings one here; `names`: without contents. `config` (may be NULL) becomes the caller's. */
int vg_ecmd_take(struct vg_estore *into, const char *ref, bool names, struct vg_ftree **ret,
                 char **ret_config, struct vg_err *err);
/* Says on stderr how many changes of an ended task are kept, and how to get them, if any are. */
void vg_ecmd_say_kept(uint64_t task);
/* An image into the cloud's store: a file, a folder, or a registry's name. */
struct vg_ecmd_from {
    const char *platform; /* "linux/amd64"; NULL: this machine's */
    const char *ca;       /* a file of certificates to trust in a registry; NULL: vg_oci_pull */
};
int vg_ecmd_import(const char *image, const struct vg_ecmd_from *from, const char *name_wanted,
                   char name[VG_ENV_NAME_MAX + 1], uint32_t *ret_version, struct vg_err *err);
