#pragma once
/* A folder's record: its own stat and every entry with full stat, link target and, when known, the
   content's id. It is what DIR frames carry, what the node keeps, and, hashed, what snapshots are
   made of. Little-endian, no padding between entries:

       u32 magic "VGD1"  u32 entries  u64 object  u64 sequence  stat (80 bytes)      = 104 bytes
       entry: u16 length of the entry  u8 flags  u8 zero  u16 name  u16 target  u64 object
              stat (80)  [file id (32), flag 1]  name  target

       stat: u64 dev ino rdev size blocks, i64 mtime ctime atime, u32 mode nlink uid gid

   Entries are sorted by name (memcmp), each name once; only links have a target. Pure; nothing here
   trusts the bytes. */
#include "mirror/stamp.h"

#include "base/buf.h"

enum {
    VG_DE_ID = 1,     /* a file id follows */
    VG_DE_DENIED = 2, /* policy refuses the content */
    VG_DE_SECRET = 4, /* allowed by hand: memory only on the node */
    VG_DE_OTHER = 8,  /* root of another view: not to be entered here */
    VG_DE_EMPTY = 16, /* a folder shown empty (kernel's own, another machine's business) */
    VG_DE_XATTR = 32, /* has extended attributes */
};

struct vg_dirent {
    uint64_t object;
    struct vg_mstat st;
    const char *name; /* not terminated */
    const char *target;
    uint16_t name_len, target_len;
    uint8_t flags;
    const uint8_t *id; /* VG_HASH bytes or NULL */
};

#define VG_DIRREC_MAX (64u << 20) /* bytes of a record */
#define VG_NAME_MAX 255
#define VG_TARGET_MAX 4095

/* Building into an empty buffer: begin, add sorted entries, end. -EINVAL: the buffer was not empty,
   an entry breaks a rule above or comes out of order (found by end); -EFBIG; -ENOMEM. */
int vg_dirrec_begin(struct vg_buf *b, uint64_t object, uint64_t seq, const struct vg_mstat *st);
int vg_dirrec_add(struct vg_buf *b, const struct vg_dirent *e);
int vg_dirrec_end(struct vg_buf *b);
/* A finished record that is still true is told again, under a later sequence. */
void vg_dirrec_set_seq(struct vg_buf *b, uint64_t seq);

/* Reading. `rec` must stay. */
struct vg_dirrec {
    const uint8_t *base;
    size_t len;
    uint64_t object, seq;
    struct vg_mstat st;
    uint32_t n;
};
/* Checks every entry (bounds, order, names without '/' or NUL, not "." or ".."): 0 or -EBADMSG. */
int vg_dirrec_open(struct vg_dirrec *r, const void *rec, size_t len);
/* Iterates: *at starts at 0. False at the end. */
bool vg_dirrec_next(const struct vg_dirrec *r, size_t *at, struct vg_dirent *ret);
/* The entry called so: binary search is not possible in place, so this walks. */
bool vg_dirrec_find(const struct vg_dirrec *r, const char *name, size_t n, struct vg_dirent *ret);
/* Merkle: the hash of the record with objects, sequence, dev, ino, blocks, atime and ctime left
   out. */
void vg_dirrec_hash(const struct vg_dirrec *r, uint8_t out[VG_HASH]);
/* The hash of the folder's state: objects, sequence, blocks, atime and file ids are left out, dev,
   ino and ctime are in. Two records with one state describe the same unread files, whichever life
   of the service made them. */
void vg_dirrec_state(const struct vg_dirrec *r, uint8_t out[VG_HASH]);
