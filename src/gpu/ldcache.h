#pragma once
/* The loader's cache (/etc/ld.so.cache), read as bytes: which library lies where. Both layouts that
   glibc writes: the old one, the new one, and the new one behind an old one. Nothing in it is
   believed: every offset is checked against the file's length. Pure; any thread. */
#include <stddef.h>
#include <stdint.h>

#define VG_LDCACHE_BYTES_MAX (16u << 20)
#define VG_LDCACHE_LIBS_MAX (1u << 18)

/* `flags` is what glibc says of the library's kind (0x0303: 64 bit, x86). Not 0: ends the walk. */
typedef int vg_ldcache_fn(void *arg, uint32_t flags, const char *name, const char *path);

/* Calls `fn` for each entry, in the cache's order. Returns the first value of `fn` that is not 0,
   else 0; -EINVAL: not such a cache. Entries that point outside are left out. */
int vg_ldcache_walk(const void *data, size_t len, vg_ldcache_fn *fn, void *arg);

/* What entries for programs of this machine's own kind carry. */
uint32_t vg_ldcache_own_flags(void);
