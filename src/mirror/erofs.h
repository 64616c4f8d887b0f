#pragma once
/* Writes an EROFS image that has names and attributes but no content: the compiled form of an
   environment (docs/mirror.md). Files are holes that carry overlayfs's marks "my data lie at this
   path of a data-only layer below". Pure: nodes in, bytes out; the same nodes give the same bytes.

   The image is for Linux's own overlayfs, trusted.overlay.{metacopy,redirect,opaque}. */
#include "base/buf.h"

#include <stdbool.h>
#include <stdint.h>

#define VG_EROFS_NODES (1u << 22)
#define VG_EROFS_ROOT 0u

struct vg_erofs_node {
    uint32_t parent; /* number of the folder it lies in; the root's is itself */
    const char *name;
    const char *target; /* links */
    /* Files with content: where it lies in a layer below. Folders, may be NULL: which folder of the
       layers below shows through, besides the one of the same path. Absolute, of that layer. */
    const char *redirect;
    uint16_t name_len, target_len;
    uint64_t size; /* files */
    int64_t mtime; /* nanoseconds since 1970 */
    uint32_t mode, uid, gid, nlink;
    bool opaque; /* a folder that hides the same folder in the layers below */
};

struct vg_erofs;
int vg_erofs_new(struct vg_erofs **ret);
void vg_erofs_free(struct vg_erofs *e);
/* Copies. The root first, without a name; then folders' entries, those of one folder one right
   after another and sorted by name (memcmp). Returns nothing but the number in *ret.
   -EINVAL: an entry that breaks a rule: no such folder, not in order, neither folder, file, link,
   fifo nor socket, a file with bytes and no redirect; -E2BIG; -ENOMEM. */
int vg_erofs_add(struct vg_erofs *e, const struct vg_erofs_node *n, uint32_t *ret);
/* Another name for a file that was added. */
int vg_erofs_link(struct vg_erofs *e, uint32_t parent, const char *name, uint16_t name_len,
                  uint32_t file);
size_t vg_erofs_count(const struct vg_erofs *e);
/* Appends the image to an empty buffer, a whole number of 4 KiB blocks. -EFBIG, -ENOMEM. */
int vg_erofs_write(struct vg_erofs *e, struct vg_buf *out);
