/* Any bytes as a folder's record: refused, or every entry obeys the rules and the record can be
   built again from its entries, byte for byte. */
#include "mirror/dirrec.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct vg_dirrec r;
    struct vg_dirent e, again;
    struct vg_buf b = {0};
    uint32_t n = 0;
    if (vg_dirrec_open(&r, data, size) < 0)
        return 0;
    if (vg_dirrec_begin(&b, r.object, r.seq, &r.st) < 0)
        abort();
    for (size_t at = 0; vg_dirrec_next(&r, &at, &e); n++) {
        if (!e.name_len || memchr(e.name, '/', e.name_len) || memchr(e.name, 0, e.name_len))
            abort();
        if (!vg_dirrec_find(&r, e.name, e.name_len, &again) || again.name != e.name)
            abort();
        if (vg_dirrec_add(&b, &e) < 0)
            abort();
    }
    if (n != r.n || vg_dirrec_end(&b) < 0 || vg_buf_len(&b) != size ||
        memcmp(vg_buf_data(&b), data, size) != 0)
        abort();
    uint8_t h[VG_HASH];
    vg_dirrec_hash(&r, h);
    vg_dirrec_state(&r, h);
    vg_buf_done(&b);
    return 0;
}
