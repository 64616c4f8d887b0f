/* The loader's cache in all its layouts, and this machine's own. */
#include "base/cleanup.h"
#include "base/util.h"
#include "gpu/ldcache.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

struct made {
    uint8_t p[4096];
    size_t n;
};

static void add(struct made *m, const void *p, size_t n) {
    memcpy(m->p + m->n, p, n);
    m->n += n;
}

static void add32(struct made *m, uint32_t v) {
    add(m, &v, sizeof v);
}

/* One library, "libcuda.so.1" -> "/x/libcuda.so.1". */
static const char strings[] = "libcuda.so.1\0/x/libcuda.so.1";

static void add_new(struct made *m, uint32_t flags) {
    add(m, "glibc-ld.so.cache1.1", 20);
    add32(m, 1);
    add32(m, sizeof strings);
    for (int i = 0; i < 5; i++)
        add32(m, 0);
    add32(m, flags);
    add32(m, 48 + 24);
    add32(m, 48 + 24 + 13);
    for (int i = 0; i < 3; i++)
        add32(m, 0);
    add(m, strings, sizeof strings);
}

static void add_old(struct made *m) {
    add(m, "ld.so-1.7.0\0", 12);
    add32(m, 1);
    add32(m, 3);
    add32(m, 0);
    add32(m, 13);
}

struct seen {
    size_t n;
    uint32_t flags;
    char name[64], path[256];
};

static int see(void *arg, uint32_t flags, const char *name, const char *path) {
    struct seen *s = arg;
    s->n++;
    s->flags = flags;
    snprintf(s->name, sizeof s->name, "%s", name);
    snprintf(s->path, sizeof s->path, "%s", path);
    return 0;
}

static void expect(const struct made *m, uint32_t flags) {
    struct seen s = {0};
    cr_assert_eq(vg_ldcache_walk(m->p, m->n, see, &s), 0);
    cr_assert_eq(s.n, 1u);
    cr_assert_eq(s.flags, flags);
    cr_assert_str_eq(s.name, "libcuda.so.1");
    cr_assert_str_eq(s.path, "/x/libcuda.so.1");
}

Test(ldcache, the_new_layout) {
    struct made m = {.n = 0};
    add_new(&m, 0x303);
    expect(&m, 0x303);
}

Test(ldcache, the_old_layout) {
    struct made m = {.n = 0};
    add_old(&m);
    add(&m, strings, sizeof strings);
    expect(&m, 3);
}

Test(ldcache, the_new_layout_behind_the_old) {
    struct made m = {.n = 0};
    add_old(&m);
    add32(&m, 0); /* to a multiple of eight */
    add_new(&m, 0xa03);
    expect(&m, 0xa03);
}

Test(ldcache, every_truncation_is_refused_or_shorter) {
    struct made m = {.n = 0};
    add_new(&m, 0x303);
    for (size_t n = 0; n < m.n; n++) {
        struct seen s = {0};
        int r = vg_ldcache_walk(m.p, n, see, &s);
        cr_assert(r == 0 || r == -EINVAL);
        cr_assert_eq(s.n, 0u, "its last string has lost its end");
    }
}

Test(ldcache, counts_beyond_the_file_are_refused) {
    struct made m = {.n = 0};
    struct seen s = {0};
    add_new(&m, 0x303);
    memset(m.p + 20, 0xff, 4);
    cr_assert_eq(vg_ldcache_walk(m.p, m.n, see, &s), -EINVAL);
    cr_assert_eq(s.n, 0u);
}

static int see_libc(void *arg, uint32_t flags, const char *name, const char *path) {
    bool own = (flags & 0xffff) == vg_ldcache_own_flags();
    if (own && !strcmp(name, "libc.so.6") && access(path, R_OK) == 0)
        *(bool *)arg = true;
    return 0;
}

Test(ldcache, this_machines_cache_knows_the_c_library) {
    vg_auto_free char *data = NULL;
    size_t len;
    bool libc = false;
    if (vg_read_file("/etc/ld.so.cache", VG_LDCACHE_BYTES_MAX, &data, &len) < 0)
        cr_skip("this machine's loader has no cache");
    cr_assert_eq(vg_ldcache_walk(data, len, see_libc, &libc), 0);
    cr_assert(libc);
}
