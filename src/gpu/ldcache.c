/* The loader's cache; see the header. */
#include "gpu/ldcache.h"

#include <errno.h>
#include <string.h>

#define OLD_MAGIC "ld.so-1.7.0"
#define NEW_MAGIC "glibc-ld.so.cache1.1"
#define OLD_HEADER 16u
#define OLD_ENTRY 12u
#define NEW_HEADER 48u
#define NEW_ENTRY 24u
#define NEW_ALIGN 8u
#define ENDIAN_AT 28u
#define ENDIAN_BIG 3u

/* Where entries begin, and what their offsets count from. */
struct table {
    const uint8_t *entry, *base;
    size_t base_len; /* bytes from `base` to the end of the file */
    uint32_t n, step;
};

static uint32_t u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static int open_new(const uint8_t *p, size_t len, struct table *ret) {
    if (len < NEW_HEADER || memcmp(p, NEW_MAGIC, sizeof(NEW_MAGIC) - 1) != 0 ||
        (p[ENDIAN_AT] & 3) == ENDIAN_BIG)
        return -EINVAL;
    uint32_t n = u32(p + sizeof(NEW_MAGIC) - 1);
    if (n > VG_LDCACHE_LIBS_MAX || n > (len - NEW_HEADER) / NEW_ENTRY)
        return -EINVAL;
    *ret = (struct table){p + NEW_HEADER, p, len, n, NEW_ENTRY};
    return 0;
}

static int open_table(const uint8_t *p, size_t len, struct table *ret) {
    if (open_new(p, len, ret) == 0)
        return 0;
    if (len < OLD_HEADER || memcmp(p, OLD_MAGIC, sizeof(OLD_MAGIC) - 1) != 0)
        return -EINVAL;
    uint32_t n = u32(p + OLD_HEADER - 4);
    if (n > VG_LDCACHE_LIBS_MAX || n > (len - OLD_HEADER) / OLD_ENTRY)
        return -EINVAL;
    size_t end = OLD_HEADER + (size_t)n * OLD_ENTRY;
    size_t aligned = (end + NEW_ALIGN - 1) / NEW_ALIGN * NEW_ALIGN;
    if (aligned < len && open_new(p + aligned, len - aligned, ret) == 0)
        return 0;
    *ret = (struct table){p + OLD_HEADER, p + end, len - end, n, OLD_ENTRY};
    return 0;
}

static const char *text_at(const struct table *t, uint32_t at) {
    if (at >= t->base_len || !memchr(t->base + at, 0, t->base_len - at))
        return NULL;
    return (const char *)t->base + at;
}

int vg_ldcache_walk(const void *data, size_t len, vg_ldcache_fn *fn, void *arg) {
    struct table t;
    int r = len > VG_LDCACHE_BYTES_MAX ? -EINVAL : open_table(data, len, &t);
    if (r < 0)
        return r;
    for (uint32_t i = 0; r == 0 && i < t.n; i++) {
        const uint8_t *e = t.entry + (size_t)i * t.step;
        const char *name = text_at(&t, u32(e + 4)), *path = text_at(&t, u32(e + 8));
        if (name && path && path[0] == '/')
            r = fn(arg, u32(e), name, path);
    }
    return r;
}

uint32_t vg_ldcache_own_flags(void) {
#if defined(__x86_64__)
    return 0x0303;
#elif defined(__aarch64__)
    return 0x0a03;
#else
    return 0x0003;
#endif
}
