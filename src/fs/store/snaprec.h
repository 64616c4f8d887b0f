#pragma once
/* A folder of a snapshot: a folder record (mirror/dirrec.h) without what belongs to one machine's
   life (objects, sequence, dev, ino, blocks, ctime, atime), and beside it what a snapshot needs
   more:

       "VGS1"  u32 length of the record  the record
       then, sorted by (entry, kind, name):
       u32 entry (0xffffffff: the folder itself)  u8 kind  u8 zero  u16 name  u32 value  name  value

   kind 1: the hash of a child folder (32 bytes, no name); kind 2: an extended attribute. A file's
   entry carries its file id; one without has no content here (VG_DE_DENIED, or it never came), nor
   has a folder without a hash. Little-endian. Pure; nothing here trusts the bytes. */
#include "mirror/dirrec.h"

#define VG_SNAP_SELF UINT32_MAX
#define VG_XATTR_NAME_MAX 255
#define VG_XATTR_VALUE_MAX 65536

struct vg_snaprec {
    struct vg_dirrec rec;
    const uint8_t *ext; /* the part after the record */
    size_t ext_len;
};
/* The part beside the record, in order. */
struct vg_snapext {
    uint32_t entry;
    uint8_t kind;
    uint16_t name_len;
    uint32_t value_len;
    const char *name;
    const uint8_t *value;
};
enum { VG_SNAP_CHILD = 1, VG_SNAP_XATTR = 2 };

/* Checks everything: -EBADMSG. `data` must stay. */
int vg_snaprec_open(struct vg_snaprec *r, const void *data, size_t n);
bool vg_snaprec_next_ext(const struct vg_snaprec *r, size_t *at, struct vg_snapext *ret);
/* The child's hash of entry number i; NULL: none. */
const uint8_t *vg_snaprec_child(const struct vg_snaprec *r, uint32_t entry);

/* Building: begin, entries sorted by name, each followed by its ext, end. `child` NULL: none. */
struct vg_snapbuild {
    struct vg_buf rec, ext;
    uint32_t n;
};
int vg_snapbuild_begin(struct vg_snapbuild *b, const struct vg_mstat *st);
int vg_snapbuild_add(struct vg_snapbuild *b, const struct vg_dirent *e, const uint8_t *child);
/* Of the entry that was added last, or of the folder itself before any was. Sorted by name. */
int vg_snapbuild_xattr(struct vg_snapbuild *b, const char *name, size_t name_len, const void *value,
                       size_t n);
int vg_snapbuild_end(struct vg_snapbuild *b, struct vg_buf *out);
void vg_snapbuild_done(struct vg_snapbuild *b);
/* Leaves only what a snapshot says of a file. */
void vg_snap_stat(struct vg_mstat *st);
