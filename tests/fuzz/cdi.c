/* Any bytes as a CDI specification: taken or refused with a sentence, and freed whole. */
#include "gpu/cdi.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct vg_cdi c = {0};
    struct vg_err err = VG_ERR_INIT;
    int r = vg_cdi_parse(&c, (const char *)data, size, &err);
    if (r < 0 && !*err.msg)
        abort();
    for (size_t i = 0; i < c.common.nodes.n; i++)
        if (strncmp(c.common.nodes.item[i], "/dev/", 5) != 0)
            abort();
    vg_cdi_done(&c);
    return 0;
}
