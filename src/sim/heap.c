/* A binary heap. */
#include "sim/heap.h"

#include "base/err.h"
#include "base/mem.h"

#include <stdbool.h>
#include <stdlib.h>

void vg_heap_done(struct vg_heap *h) {
    free(h->e);
    *h = (struct vg_heap){0};
}

static bool before(const struct vg_event *a, const struct vg_event *b) {
    return a->at_usec != b->at_usec ? a->at_usec < b->at_usec : a->seq < b->seq;
}

int vg_heap_put(struct vg_heap *h, uint64_t at, uint32_t job, uint32_t attempt) {
    struct vg_event *grown = vg_grow(h->e, &h->cap, h->n + 1, sizeof(*h->e));
    if (!grown)
        return -ENOMEM;
    h->e = grown;
    struct vg_event new = {.at_usec = at, .seq = h->seq++, .job = job, .attempt = attempt};
    size_t i = h->n++;
    for (; i && before(&new, &h->e[(i - 1) / 2]); i = (i - 1) / 2)
        h->e[i] = h->e[(i - 1) / 2];
    h->e[i] = new;
    return 0;
}

struct vg_event vg_heap_take(struct vg_heap *h) {
    struct vg_event first = h->e[0], last = h->e[--h->n];
    size_t i = 0;
    for (size_t c; (c = 2 * i + 1) < h->n; i = c) {
        if (c + 1 < h->n && before(&h->e[c + 1], &h->e[c]))
            c++;
        if (!before(&h->e[c], &last))
            break;
        h->e[i] = h->e[c];
    }
    h->e[i] = last;
    return first;
}
