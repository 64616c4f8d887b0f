#pragma once
/* Bytes of a layer, unpacked and hashed on the way. */
#include "fs/store/oci.h"

struct vg_unpack;
enum vg_packing { VG_PACK_NONE, VG_PACK_GZIP, VG_PACK_ZSTD };
int vg_unpack_new(const struct vg_oci_blob *b, enum vg_packing how, struct vg_unpack **ret);
ssize_t vg_unpack_read(void *unpack, void *data, size_t n); /* fewer than n: the end */
/* Reads on to the end of the blob and compares. */
int vg_unpack_finish(struct vg_unpack *u, const char *digest);
void vg_unpack_free(struct vg_unpack *u);

int vg_oci_layer(struct vg_ftree *t, struct vg_estore *store, const struct vg_oci_blob *b,
                 enum vg_packing how, const char *digest, struct vg_err *err);
