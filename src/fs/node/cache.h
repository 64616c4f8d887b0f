#pragma once
/* Content on the node's disk, of one tenant: found by stamp or by file id, whole or in part.
   Thread-safe. Every name is an HMAC under the tenant's key; the folder is root's alone.

       dir/key  dir/stamp/xx/<name>  dir/id/xx/<name>   (hard links of one file)
       dir/part/<name>{,.map}        (what is not complete yet, and which leaves it has)

   Objects are ordinary files 0444, so that the kernel can read them without us. */
#include "base/err.h"
#include "mirror/stamp.h"

struct vg_cache;
struct vg_blob; /* one content, counted */

struct vg_cache_conf {
    const char *dir;
    uint64_t max_bytes;
    uint64_t keep_free; /* of the disk; 0: 1 GiB or 5 % */
};
int vg_cache_open(const struct vg_cache_conf *conf, struct vg_cache **ret, struct vg_err *err);
void vg_cache_close(struct vg_cache *c);

/* The content with that stamp, and id when known: complete, partial, or new and empty (size bytes
   long, no leaf yet). One struct per content, however many ask. `secret`: in memory only. */
int vg_blob_get(struct vg_cache *c, const uint8_t stamp[VG_HASH], const uint8_t *id, uint64_t size,
                bool secret, struct vg_blob **ret);
/* Is it there, complete? Opens nothing. */
bool vg_cache_has(struct vg_cache *c, const uint8_t stamp[VG_HASH], const uint8_t *id);
struct vg_blob *vg_blob_ref(struct vg_blob *b);
void vg_blob_put(struct vg_blob *b);

uint64_t vg_blob_size(const struct vg_blob *b);
bool vg_blob_complete(const struct vg_blob *b);
/* Leaves that cover [off, off+len) are all there. */
bool vg_blob_has(const struct vg_blob *b, uint64_t off, uint64_t len);
bool vg_blob_has_leaf(const struct vg_blob *b, uint64_t leaf);
/* Whole leaves. Verifies against `id` when the last one arrives: -EBADMSG and the content is
   dropped. -ENOSPC after evicting all it could. 1 when it has become complete. */
int vg_blob_write(struct vg_blob *b, uint64_t off, const void *data, size_t n);
/* For pread, mmap, passthrough. Read-only. The blob's own: do not close. Descriptors are limited:
   opened on demand, closed when the last user unpins. -errno. */
int vg_blob_pin(struct vg_blob *b);
void vg_blob_unpin(struct vg_blob *b);
/* The file id when complete (computed while it came in), else NULL. */
const uint8_t *vg_blob_id(const struct vg_blob *b);
/* Path below dir of a complete one ("id/xx/<name>"), for data-only layers. */
int vg_blob_path(const struct vg_blob *b, char out[80]);

/* Objects held are never evicted. Returns how much is used after evicting down to the limit. */
uint64_t vg_cache_trim(struct vg_cache *c);
struct vg_cache_stat {
    uint64_t bytes, objects, partial, hits, misses, evicted, bad;
};
void vg_cache_stats(struct vg_cache *c, struct vg_cache_stat *ret);
/* Reads `budget` bytes of what is kept and compares with its ids; bad ones are dropped. */
int vg_cache_scrub(struct vg_cache *c, uint64_t budget);
