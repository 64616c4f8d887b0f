/* A layer of an image as a registry may send it: the first byte says how it is packed, the rest is
   read as a tar archive through the unpacker. What it grows to is bounded here, as a disk would. */
#include "fs/store/oci-layer.h"
#include "fs/store/tar.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define GROWN_MAX (4u << 20)

struct source {
    struct vg_unpack *unpack;
    size_t left;
};

static ssize_t give(void *user, void *data, size_t n) {
    struct source *s = user;
    if (n > s->left)
        return -EFBIG;
    ssize_t k = vg_unpack_read(s->unpack, data, n);
    if (k > (ssize_t)n)
        abort();
    s->left -= k > 0 ? (size_t)k : 0;
    return k;
}

static void read_layer(struct source *s) {
    struct vg_tar *t = calloc(1, sizeof(*t));
    char part[4096];
    if (!t)
        abort();
    t->read = give;
    t->user = s;
    while (vg_tar_next(t) > 0)
        while (vg_tar_read(t, part, sizeof(part)) > 0)
            ;
    vg_tar_done(t);
    free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0)
        return 0;
    int fd = memfd_create("layer", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data + 1, size - 1) != (ssize_t)(size - 1))
        abort();
    struct vg_oci_blob blob = {.fd = fd, .size = size - 1};
    struct source s = {.left = GROWN_MAX};
    if (vg_unpack_new(&blob, (enum vg_packing)(data[0] % 3), &s.unpack) < 0)
        abort();
    read_layer(&s);
    char digest[72];
    vg_oci_digest(data + 1, size - 1, digest);
    int r = vg_unpack_finish(s.unpack, digest);
    if (r < 0 && r != -EBADMSG)
        abort();
    vg_unpack_free(s.unpack);
    close(fd);
    return 0;
}
