#pragma once
/* Inside sched: an ordered tree (treap) of intrusive items that knows its sizes, so that "first",
   "how many before me" and a pruned search cost O(log n). The shape follows from each item's
   `rank_bits` alone (a hash of an id), so equal histories give equal trees. */
#include <stddef.h>
#include <stdint.h>

struct tree_item {
    struct tree_item *left, *right;
    uint64_t rank_bits; /* the heap order; set before insert */
    uint32_t size;      /* of the subtree */
};

struct tree {
    struct tree_item *root;
    int (*cmp)(const struct tree_item *, const struct tree_item *); /* never 0 for two items */
    void (*pull)(
        struct tree_item *); /* recomputes what an item knows of its subtree; may be NULL */
};

/* An item is in one tree at a time; what cmp reads must not change meanwhile. */
void tree_insert(struct tree *t, struct tree_item *item);
void tree_remove(struct tree *t, struct tree_item *item);
/* What pull reads of this item changed, what cmp reads did not. */
void tree_touch(struct tree *t, struct tree_item *item);
struct tree_item *tree_first(const struct tree *t); /* NULL: empty */
uint32_t tree_before(const struct tree *t, const struct tree_item *item);
static inline uint32_t tree_size(const struct tree *t) {
    return t->root ? t->root->size : 0;
}
/* Spreads the bits of an id (splitmix64's finaliser). */
static inline uint64_t tree_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}
