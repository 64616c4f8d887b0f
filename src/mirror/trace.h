#pragma once
/* What a command used the last times: kept by the client, by path. Pure. */
#include "base/buf.h"
#include "mirror/stamp.h"

#define VG_TRACE_ITEMS (1u << 18)
#define VG_TRACE_LEAVES (1u << 22) /* of one file: 1 TiB */

struct vg_trace_item {
    char *path;
    bool folder;
    uint32_t *leaf; /* sorted; none: opened only */
    uint32_t n_leaf;
    uint8_t unused; /* whole traces in a row without it; dropped at 3 */
};
struct vg_trace {
    struct vg_trace_item *item; /* in order of first use; a file of which parts were used in between
                                   others has several */
    size_t n;
};
void vg_trace_done(struct vg_trace *t);
/* Appends. Path absolute; leaves in any order. -EINVAL, -E2BIG (a limit above), -ENOMEM. */
int vg_trace_add(struct vg_trace *t, const char *path, bool folder, const uint32_t *leaf,
                 uint32_t n_leaf);
/* Folds a run's trace into what is kept. `whole`: what it does not name was not used, and its
   order is the new order; else what is new goes to the end. Leaves are only ever added: a file
   that was opened but not fetched lay in a cache. On failure `kept` is as it was. */
int vg_trace_merge(struct vg_trace *kept, const struct vg_trace *run, bool whole);
int vg_trace_pack(const struct vg_trace *t, struct vg_buf *out); /* for a file; zstd inside */
/* Replaces *t. -EBADMSG: broken; *t is as it was. */
int vg_trace_unpack(struct vg_trace *t, const void *data, size_t n);
/* Keys, from exact to vague: program + arguments + project; program; project. Hex in out[i];
   returns how many. argv[0] is the resolved program. Of the arguments the first two count that are
   no numbers; of --name=value only the name. project may be NULL. */
size_t vg_trace_keys(const char *const *argv, size_t n, const char *project, char out[3][65]);
