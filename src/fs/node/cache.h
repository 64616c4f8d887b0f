#pragma once
/* Content on the node's disk, of one tenant: found by stamp or by file id, whole or in part.
   Thread-safe. Every name is an HMAC under the tenant's key; the folder is root's alone.

       dir/key  dir/lock
       dir/id/xx/<name>      a complete content
       dir/stamp/xx/<name>   a symbolic link that nobody follows: its text is the file id
       dir/part/<name>{,.map} what is not complete yet, and the hashes of the leaves it has
       dir/used  dir/mark    what is used; up to when everything is on the disk for certain
       dir/trash/            on its way out

   Objects are ordinary files 0444, so that the kernel can read them without us. Nothing is synced
   when it comes in: after a kill every claim on the disk is true; after a power failure what is
   younger than `mark` is not believed. */
#include "base/buf.h"
#include "base/err.h"
#include "mirror/stamp.h"

struct vg_cache;
struct vg_blob; /* one content, counted */

#define VG_CACHE_FILE_MAX (UINT64_C(16) << 40)   /* of one file: its leaves are counted in memory */
#define VG_CACHE_SECRET_MAX (UINT64_C(64) << 20) /* of one secret: it lives in memory */

struct vg_cache_conf {
    const char *dir;
    uint64_t max_bytes;     /* 0: a tenth of the disk */
    uint64_t keep_free;     /* of the disk; 0: 1 GiB or 5 %, the smaller one */
    const char *public_dir; /* the operator's store (public.h), read only; NULL: none */
    const char *boot;       /* names this boot of the machine; NULL: the kernel's own */
    uint64_t wait_usec;     /* for another process to let go of it */
    bool inline_work;       /* no thread of its own: the caller calls vg_cache_work */
};
/* -EBUSY: another process has it open still. Raises the process's limit of descriptors to the hard
 * one.
 */
int vg_cache_open(const struct vg_cache_conf *conf, struct vg_cache **ret, struct vg_err *err);
/* All blobs must have been put. */
void vg_cache_close(struct vg_cache *c);

/* The content with that stamp, and id when known: complete, partial, or new and empty (size bytes
   long, no leaf yet). One struct per content, however many ask. `secret`: in memory only, gone with
   the last holder. -EFBIG: beyond the limits above; -EBADMSG: the size is not what was said before
   of the same content. */
int vg_blob_get(struct vg_cache *c, const uint8_t stamp[VG_HASH], const uint8_t *id, uint64_t size,
                bool secret, struct vg_blob **ret);
/* Is it there, complete? Opens nothing. */
bool vg_cache_has(struct vg_cache *c, const uint8_t stamp[VG_HASH], const uint8_t *id);
struct vg_blob *vg_blob_ref(struct vg_blob *b);
void vg_blob_put(struct vg_blob *b);

uint64_t vg_blob_size(const struct vg_blob *b);
bool vg_blob_complete(const struct vg_blob *b);
/* Leaves that cover [off, off+len) are all there. Beyond the end there is nothing to have: true. */
bool vg_blob_has(const struct vg_blob *b, uint64_t off, uint64_t len);
bool vg_blob_has_leaf(const struct vg_blob *b, uint64_t leaf);
/* Whole leaves (the last one may be short), else -EINVAL; leaves that are there already are not
   written again. Verifies against `id` when the last one arrives: -EBADMSG, and all leaves are
   forgotten. -ENOSPC after evicting all it could. 1 when it has become complete. `wanted`: a task
   waits for it, so only the disk is a limit; a guess stays below the cache's. */
int vg_blob_write(struct vg_blob *b, uint64_t off, const void *data, size_t n, bool wanted);
/* For pread, mmap, passthrough. Read-only. The blob's own: do not close. Descriptors are limited:
   opened on demand, closed when the last user unpins. -errno. */
int vg_blob_pin(struct vg_blob *b);
void vg_blob_unpin(struct vg_blob *b);
/* The file id when complete (computed while it came in), else NULL. */
const uint8_t *vg_blob_id(const struct vg_blob *b);
/* Path below dir of a complete one ("id/xx/<name>"), for data-only layers. -EAGAIN: not complete;
   -EXDEV: its bytes lie elsewhere (secret, or public on another file system). */
int vg_blob_path(const struct vg_blob *b, char out[80]);

/* Whole contents by id alone, to and from other nodes of the same tenant: intake.c. */
struct vg_intake;
/* -EEXIST: it is here. */
int vg_intake_new(struct vg_cache *c, const uint8_t id[VG_HASH], uint64_t size,
                  struct vg_intake **ret);
/* The next leaf. Nobody sees any of it before all has come and is what the id says: then 1, and
   whoever holds the content has all its leaves. -EBADMSG; -EINVAL: not the next leaf; -ENOSPC. */
int vg_intake_write(struct vg_intake *in, uint64_t off, const void *data, size_t n);
void vg_intake_free(struct vg_intake *in);
/* A complete content of the tenant's own: a descriptor for reading, the caller's. -ENOENT. */
int vg_cache_open_id(struct vg_cache *c, const uint8_t id[VG_HASH], uint64_t size);

/* Objects held are never evicted. Returns how much is used after evicting down to the limit. */
uint64_t vg_cache_trim(struct vg_cache *c);
/* There is no room even after evicting: new tasks had better go elsewhere. Those that run may
   still use a quarter more than the limit and half of what is kept free. */
bool vg_cache_full(struct vg_cache *c);
/* Of these, the disk and not the limit. Evicts nothing. */
bool vg_cache_disk_full(struct vg_cache *c);
struct vg_cache_stat {
    uint64_t bytes, objects, partial, hits, misses, evicted, bad;
    uint64_t public_hits, max_bytes, disk_free, keep_free, scrubbed_bytes;
    bool full;
};
void vg_cache_stats(struct vg_cache *c, struct vg_cache_stat *ret);
/* The same as a JSON object, for VG_FSD_STATUS. */
int vg_cache_json(struct vg_cache *c, struct vg_buf *out);
/* Reads `budget` bytes of what is kept and compares with its ids; bad ones are dropped. Goes on
   where it stopped. Returns how many were bad, or -errno. */
int vg_cache_scrub(struct vg_cache *c, uint64_t budget);
/* What the cache's own thread does every now and then. */
void vg_cache_work(struct vg_cache *c);

/* The disk below dir has less left than is kept free. */
bool vg_cache_disk_low(const char *dir);
/* While that is so: evicts in the caches ($fs_dir/SLOT/cache) that no daemon has open. Blocks. */
void vg_cache_trim_idle(const char *fs_dir);
