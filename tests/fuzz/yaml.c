/* Any bytes as a configuration: either a valid one or an error with a sentence, never a crash. */
#include "conf/conf.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct vg_conf c = {0};
    struct vg_err err = VG_ERR_INIT;
    int r = vg_conf_parse((const char *)data, size, "fuzz.yaml", &c, &err);
    if (r < 0) {
        if (err.code != r || !err.msg[0])
            abort();
        return 0;
    }
    if (!c.n_pools || !vg_conf_pool(&c, c.default_pool) || !c.listen || !c.advertise)
        abort();
    vg_conf_done(&c);
    return 0;
}
