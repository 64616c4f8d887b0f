#pragma once
/* Master keys, and what is sealed with them. A key is 32 random bytes; its id is made from it, so
   that a file of keys is lines of 64 hex digits and nothing can be confused. The last line is the
   newest.

   A value is sealed with a data key of its own, which is wrapped by a master key:
   XChaCha20-Poly1305 both times, bound to whose it is, its name and its version, so that a row that
   was moved or renamed does not open.

   Keys lie in locked memory that core dumps leave out. Nothing here is written in the clear but
   the file of keys. Blocking calls say so: they belong on a worker thread or before the loop. */
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

#define VG_RING_KEYS 16
#define VG_RING_ID 16       /* hex digits */
#define VG_SEAL_EXTRA 40    /* nonce and tag: how much longer than the value */
#define VG_SEAL_WRAPPED 72  /* a wrapped data key */
#define VG_SECRET_MAX 65536 /* bytes of a value */

/* Locked memory that core dumps leave out, to be given back by sodium_free, which wipes it. NULL:
   none. */
void *vg_hidden_alloc(size_t n);

struct vg_ring;

void vg_ring_free(struct vg_ring *r); /* wipes; accepts NULL */
size_t vg_ring_len(const struct vg_ring *r);
const char *vg_ring_newest(const struct vg_ring *r); /* its id */
/* From text: lines of 64 hex digits, blank ones and '#' left out. At least one. `from` names it in
   messages, which never hold a part of it. */
int vg_ring_parse(const char *text, size_t len, const char *from, struct vg_ring **ret,
                  struct vg_err *err);

/* Blocking. The file must be nobody else's (0600). -ENOENT with a sentence when there is none. */
int vg_ring_read_file(const char *path, struct vg_ring **ret, struct vg_err *err);
/* Blocking. Runs argv without a shell and reads its standard output until it has ended; whoever
   takes longer is killed with all it has started. */
int vg_ring_read_command(char *const *argv, uint64_t most_usec, struct vg_ring **ret,
                         struct vg_err *err);
/* Blocking. Writes `old` (may be NULL) with a new key at its end, durably, and gives that. */
int vg_ring_grow_file(const char *path, const struct vg_ring *old, struct vg_ring **ret,
                      struct vg_err *err);
/* Blocking. Writes the newest key alone, durably. */
int vg_ring_shrink_file(const char *path, const struct vg_ring *r, struct vg_err *err);

/* What a value is bound to. */
struct vg_seal_name {
    const char *scope, *name;
    uint32_t version;
};
/* Seals with the newest key. `sealed` has len + VG_SEAL_EXTRA bytes. */
void vg_seal(const struct vg_ring *r, const struct vg_seal_name *n, const void *value, size_t len,
             uint8_t wrapped[static VG_SEAL_WRAPPED], uint8_t *sealed);
/* Opens; `value` has room for sealed_len - VG_SEAL_EXTRA. NOT_FOUND: the key `id` is not in the
   ring; INVALID: what is stored was changed, or belongs elsewhere. Sentences. */
int vg_unseal(const struct vg_ring *r, const char *id, const struct vg_seal_name *n,
              const uint8_t *wrapped, size_t wrapped_len, const uint8_t *sealed, size_t sealed_len,
              uint8_t *value, struct vg_err *err);
