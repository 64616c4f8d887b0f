#pragma once
/* What a file is, without and with reading it: stat, stamp, file id. Pure. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#define VG_LEAF (256u << 10)
#define VG_MID 16                      /* bytes of a machine's, epoch's, daemon's name */
#define VG_HASH 32                     /* SHA-256 */
#define VG_OBJ_NEW (UINT64_C(1) << 63) /* the node numbered it */
#define VG_OBJ_ROOT UINT64_C(1)

/* Times in nanoseconds since 1970. */
struct vg_mstat {
    uint64_t dev, ino, rdev, size, blocks;
    int64_t mtime, ctime, atime;
    uint32_t mode, nlink, uid, gid;
};

enum vg_mset { /* bits of Op.valid */
               VG_MSET_MODE = 1,
               VG_MSET_UID = 2,
               VG_MSET_GID = 4,
               VG_MSET_SIZE = 8,
               VG_MSET_ATIME = 16,
               VG_MSET_MTIME = 32,
               VG_MSET_ATIME_NOW = 64,
               VG_MSET_MTIME_NOW = 128,
};

void vg_mstat_from(struct vg_mstat *out, const struct stat *st);

/* SHA-256 over (machine, dev, ino, size, mtime, ctime). */
void vg_stamp(const uint8_t machine[VG_MID], const struct vg_mstat *st, uint8_t out[VG_HASH]);

/* A short name of the same state, never 0: enough to tell two states of one file apart. */
uint32_t vg_state_tag(const struct vg_mstat *st);

static inline uint64_t vg_leaves(uint64_t size) { /* an empty file has one leaf of 0 bytes */
    return size ? (size + VG_LEAF - 1) / VG_LEAF : 1;
}
void vg_leaf_hash(const void *data, size_t n, uint8_t out[VG_HASH]);
/* From the hashes of all leaves, one after another. */
void vg_file_id(uint64_t size, const uint8_t *leaf_hashes, uint64_t n, uint8_t out[VG_HASH]);
/* The name of an object in a tenant's cache: HMAC-SHA-256(key, what). Hex, 64 digits and NUL. */
void vg_cache_name(const uint8_t key[VG_HASH], const uint8_t what[VG_HASH], char out[65]);
/* 2n lower-case digits and NUL. */
void vg_hex(const uint8_t *p, size_t n, char *out);
