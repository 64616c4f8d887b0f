/* Any bytes as a link: frames come out within their limits or the link is dropped; records are
   checked as a node checks them. */
#include "mirror/mwire.h"

#include <errno.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct vg_mw_frame *f) {
    if (f->len > VG_MW_MAX || (f->len && !f->data) || (f->kind == VG_MW_MSG) != (f->msg != NULL))
        abort();
    if (f->kind == VG_MW_DATA &&
        (f->offset % VG_LEAF || f->len > VG_LEAF || f->offset + f->len > f->size))
        abort();
    uint8_t sum = 0;
    for (size_t i = 0; i < f->len; i++)
        sum ^= f->data[i]; /* a sanitizer sees bytes that are not there */
    struct vg_dirrec r;
    if (f->kind == VG_MW_DIR && vg_dirrec_open(&r, f->data, f->len) == 0 && sum == 0x5a)
        vg_dirrec_hash(&r, (uint8_t[VG_HASH]){0});
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct vg_mw_in in = {0};
    int r = 0;
    for (size_t at = 0, step = 1; at < size && r >= 0; at += step, step = step * 2 + 1) {
        size_t n = size - at < step ? size - at : step;
        if (vg_mw_feed(&in, data + at, n) < 0)
            abort();
        for (struct vg_mw_frame f; (r = vg_mw_next(&in, &f)) > 0; vg_mw_frame_done(&f))
            check(&f);
        if (r < 0 && r != -EBADMSG)
            abort();
    }
    vg_mw_in_done(&in);
    return 0;
}
