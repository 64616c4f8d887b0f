/* Nothing is written in these tests: an operation is an error. */
#include "fs/client/apply.h"

#include "base/mem.h"

#include <errno.h>

int vg_apply_new(const struct vg_apply_conf *conf, struct vg_apply **ret) {
    (void)conf;
    *ret = vg_alloc(1);
    return *ret ? 0 : -ENOMEM;
}
void vg_apply_free(struct vg_apply *a) {
    free(a);
}
int vg_apply_allow(struct vg_apply *a, uint32_t view, struct vg_cobj *root) {
    (void)a, (void)view, (void)root;
    return 0;
}
int vg_apply_op(struct vg_apply *a, const Vg__Mr__Op *op) {
    (void)a, (void)op;
    return -EPROTO;
}
int vg_apply_write(struct vg_apply *a, uint64_t op, uint64_t object, uint64_t offset,
                   const void *data, size_t n) {
    (void)a, (void)op, (void)object, (void)offset, (void)data, (void)n;
    return -EPROTO;
}
bool vg_apply_ack(struct vg_apply *a, struct vg_buf *out) {
    (void)a, (void)out;
    return false;
}
