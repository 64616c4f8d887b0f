/* Any bytes as a stored trace, packed and, with a first byte of 'U', as what is inside a packed
   one: refused, or it packs and unpacks to itself and can be folded. */
#include "mirror/trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const void *data, size_t n) {
    struct vg_trace t = {0}, u = {0};
    struct vg_buf b = {0};
    int r = vg_trace_unpack(&t, data, n);
    if (r == 0) {
        if (vg_trace_pack(&t, &b) < 0 || vg_trace_unpack(&u, vg_buf_data(&b), vg_buf_len(&b)) < 0 ||
            u.n != t.n)
            abort();
        for (size_t i = 0; i < t.n; i++)
            if (strcmp(t.item[i].path, u.item[i].path) != 0 || t.item[i].path[0] != '/' ||
                t.item[i].n_leaf != u.item[i].n_leaf)
                abort();
        if (vg_trace_merge(&u, &t, true) < 0)
            abort();
    } else if (r != -EBADMSG)
        abort();
    vg_trace_done(&t);
    vg_trace_done(&u);
    vg_buf_done(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    check(data, size);
    if (size && data[0] == 'U' && size < 65536) {
        size_t room = ZSTD_compressBound(size - 1);
        void *p = malloc(room);
        check(p, ZSTD_compress(p, room, data + 1, size - 1, 1));
        free(p);
    }
    return 0;
}
