#pragma once
/* Memory that a message may take when it is unpacked: a small one on the wire must not become a
   huge one. */
#include "base/mem.h"

#include <protobuf-c/protobuf-c.h>
#include <stdlib.h>

struct vg_unpack_budget {
    size_t left;
};

static inline void *vg_unpack_alloc(void *budget, size_t size) {
    struct vg_unpack_budget *b = budget;
    if (size > b->left)
        return NULL;
    b->left -= size;
    return vg_alloc(size);
}

static inline void vg_unpack_release(void *budget, void *p) {
    (void)budget;
    free(p);
}

/* Borrows the budget. One without (NULL) frees only. */
static inline ProtobufCAllocator vg_unpack_within(struct vg_unpack_budget *b) {
    return (ProtobufCAllocator){
        .alloc = vg_unpack_alloc, .free = vg_unpack_release, .allocator_data = b};
}
