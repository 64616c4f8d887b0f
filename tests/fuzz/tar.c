/* Any bytes as a tar archive: refused, or every entry has a name and exactly the content that its
   size says. Checksums of headers are made good first, or few inputs would get further. */
#include "fs/store/tar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 512
#define SUM_AT 148

struct bytes {
    const uint8_t *p;
    size_t left;
};

static void make_sum_good(uint8_t block[BLOCK]) {
    unsigned sum = 0;
    memset(block + SUM_AT, ' ', 8);
    for (size_t i = 0; i < BLOCK; i++)
        sum += block[i];
    snprintf((char *)block + SUM_AT, 8, "%06o", sum);
}

static ssize_t give(void *user, void *data, size_t n) {
    struct bytes *b = user;
    n = n < b->left ? n : b->left;
    memcpy(data, b->p, n);
    b->p += n;
    b->left -= n;
    static const uint8_t zero[BLOCK];
    if (n == BLOCK && memcmp(data, zero, BLOCK) != 0)
        make_sum_good(data);
    return (ssize_t)n;
}

static void check(const struct vg_tar_entry *e) {
    if (!e->path[0] || strlen(e->path) >= sizeof(e->path) || strlen(e->link) >= sizeof(e->link) ||
        e->n_xattr > VG_TAR_XATTRS_MAX || (e->st.mode & ~07777u) == 0)
        abort();
    for (size_t i = 0; i < e->n_xattr; i++)
        if (!e->xattr[i].name || !e->xattr[i].value)
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct bytes b = {data, size};
    struct vg_tar *t = calloc(1, sizeof(*t)); /* large: names and attributes */
    if (!t)
        abort();
    t->read = give;
    t->user = &b;
    while (vg_tar_next(t) > 0) {
        check(&t->e);
        char part[700];
        uint64_t came = 0, said = t->left;
        ssize_t n;
        while ((n = vg_tar_read(t, part, sizeof(part))) > 0)
            came += (uint64_t)n;
        if (n == 0 && came != said)
            abort();
    }
    vg_tar_done(t);
    free(t);
    return 0;
}
