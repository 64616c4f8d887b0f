#pragma once
/* OCI images into trees and back. Blobs come from a layout folder, an archive of one, or a registry
   (oci-registry.c); every one is compared with its digest. Layers (tar, gzip or zstd) are laid upon
   each other, whiteouts and opaque folders as the specification says. Blocking. */
#include "fs/store/ftree.h"

#include <jansson.h>

struct vg_oci_blob {
    int fd; /* owned by who got it */
    uint64_t off, size;
};
/* Where blobs come from. */
struct vg_oci {
    int (*blob)(void *user, const char *digest, struct vg_oci_blob *ret, struct vg_err *err);
    void *user;
    const char *platform; /* "linux/amd64"; NULL: this machine's */
};
/* `descriptor`: of a manifest or of an index of several. The tree is built in `store`; the image's
   configuration is JSON text, the caller's. */
int vg_oci_unpack(const struct vg_oci *o, const json_t *descriptor, struct vg_estore *store,
                  struct vg_ftree **ret, char **ret_config, struct vg_err *err);
/* A layout folder, or an archive (tar) of one. `name` gets the image's own, or "". */
int vg_oci_import(const char *path, const char *platform, struct vg_estore *store,
                  struct vg_ftree **ret, char **ret_config, char name[256], struct vg_err *err);
/* host[:port]/repository[:tag][@digest], with Docker's short forms. `ca`: a file of certificates to
   trust besides the system's; NULL: what Docker has in its certs.d for that host, if anything. */
int vg_oci_pull(const char *ref, const char *platform, const char *ca, struct vg_estore *store,
                struct vg_ftree **ret, char **ret_config, struct vg_err *err);
/* Writes the tree as an archive with one layer. `config`: the image's, or NULL. */
int vg_oci_export(struct vg_ftree *t, struct vg_estore *store, const char *config, const char *name,
                  int fd, struct vg_err *err);

/* For sources: whole small blobs, checked. */
#define VG_OCI_JSON_MAX (8u << 20)
int vg_oci_text(const struct vg_oci *o, const char *digest, char **ret, struct vg_err *err);
bool vg_oci_digest_good(const char *digest); /* "sha256:" and 64 digits */
/* sha256 of bytes as "sha256:…". */
void vg_oci_digest(const void *data, size_t n, char out[72]);
