/* Any bytes as a loader's cache: what is found are strings inside it. */
#include "gpu/ldcache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    const uint8_t *p;
    size_t n;
};

static void inside(const struct input *in, const char *s) {
    const uint8_t *at = (const uint8_t *)s;
    if (at < in->p || at >= in->p + in->n || !memchr(at, 0, in->n - (size_t)(at - in->p)))
        abort();
}

static int see(void *arg, uint32_t flags, const char *name, const char *path) {
    (void)flags;
    inside(arg, name);
    inside(arg, path);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input in = {data, size};
    int r = vg_ldcache_walk(data, size, see, &in);
    if (r != 0 && r != -EINVAL)
        abort();
    return 0;
}
