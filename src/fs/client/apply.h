#pragma once
/* Performs a node's operations (Op, WRITE) on the real folders with the user's rights: beneath the
   view's root, never through a link, within the policy. In order; each number once, also across a
   restart of the service. Loop thread. */
#include "base/err.h"
#include "fs/client/tree.h"
#include "mirror/mwire.h"

struct vg_apply; /* one a (daemon, service) */
struct vg_apply_conf {
    struct vg_ctree *tree;
    uint8_t daemon[VG_MID];
    const char *node;  /* for messages */
    const char *state; /* folder where the last number done is remembered */
    /* Says something to the person who runs `task`. */
    void (*note)(void *user, uint64_t task, const char *text);
    void *user;
};
int vg_apply_new(const struct vg_apply_conf *conf, struct vg_apply **ret);
void vg_apply_free(struct vg_apply *a);
/* NodeHello.next_op, on every link: everything before it was acknowledged. */
void vg_apply_from(struct vg_apply *a, uint64_t next_op);
/* The views that may be written: others are refused (EACCES). Calling it again is fine. */
int vg_apply_allow(struct vg_apply *a, uint32_t view, struct vg_cobj *root);
/* Called in the order of arrival. What changed is collected for the next Ack. Numbers that were
   done are passed over, and so are those after a gap (the daemon sends them again when a link
   broke). -EPROTO: it does not come to reason, the link must be dropped. A failure of the operation
   itself is no error here: it is reported in Ack. */
int vg_apply_op(struct vg_apply *a, const Vg__Mr__Op *op);
int vg_apply_write(struct vg_apply *a, uint64_t op, uint64_t object, uint64_t offset,
                   const void *data, size_t n);
/* True when there was something to acknowledge; appends Ack frames. Call it when what has arrived
   is done (it also lets go of cached descriptors). */
bool vg_apply_ack(struct vg_apply *a, struct vg_buf *out);
