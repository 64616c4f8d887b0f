/* The treap. Recursion is as deep as the tree, O(log n) with the bits of a good hash. Pure. */
#include "sched/tree.h"

static uint32_t size_of(const struct tree_item *x) {
    return x ? x->size : 0;
}

static void pull(const struct tree *t, struct tree_item *x) {
    x->size = 1 + size_of(x->left) + size_of(x->right);
    if (t->pull)
        t->pull(x);
}

/* Parts `x` into what comes before `key` and what comes after. */
static void split(const struct tree *t, struct tree_item *x, const struct tree_item *key,
                  struct tree_item **before, struct tree_item **after) {
    if (!x) {
        *before = *after = NULL;
        return;
    }
    if (t->cmp(x, key) < 0) {
        split(t, x->right, key, &x->right, after);
        *before = x;
    } else {
        split(t, x->left, key, before, &x->left);
        *after = x;
    }
    pull(t, x);
}

static struct tree_item *join(const struct tree *t, struct tree_item *a, struct tree_item *b) {
    if (!a || !b)
        return a ? a : b;
    if (a->rank_bits > b->rank_bits) {
        a->right = join(t, a->right, b);
        pull(t, a);
        return a;
    }
    b->left = join(t, a, b->left);
    pull(t, b);
    return b;
}

static struct tree_item *insert(const struct tree *t, struct tree_item *x, struct tree_item *item) {
    if (!x || item->rank_bits > x->rank_bits) {
        split(t, x, item, &item->left, &item->right);
        pull(t, item);
        return item;
    }
    if (t->cmp(item, x) < 0)
        x->left = insert(t, x->left, item);
    else
        x->right = insert(t, x->right, item);
    pull(t, x);
    return x;
}

static struct tree_item *drop(const struct tree *t, struct tree_item *x,
                              const struct tree_item *item) {
    if (x == item)
        return join(t, x->left, x->right);
    if (t->cmp(item, x) < 0)
        x->left = drop(t, x->left, item);
    else
        x->right = drop(t, x->right, item);
    pull(t, x);
    return x;
}

void tree_insert(struct tree *t, struct tree_item *item) {
    item->left = item->right = NULL;
    t->root = insert(t, t->root, item);
}

void tree_remove(struct tree *t, struct tree_item *item) {
    t->root = drop(t, t->root, item);
    item->left = item->right = NULL;
}

static void touch(const struct tree *t, struct tree_item *x, const struct tree_item *item) {
    if (x != item)
        touch(t, t->cmp(item, x) < 0 ? x->left : x->right, item);
    pull(t, x);
}

void tree_touch(struct tree *t, struct tree_item *item) {
    touch(t, t->root, item);
}

struct tree_item *tree_first(const struct tree *t) {
    struct tree_item *x = t->root;
    while (x && x->left)
        x = x->left;
    return x;
}

uint32_t tree_before(const struct tree *t, const struct tree_item *item) {
    uint32_t n = 0;
    for (const struct tree_item *x = t->root; x && x != item;) {
        if (t->cmp(item, x) < 0) {
            x = x->left;
        } else {
            n += 1 + size_of(x->left);
            x = x->right;
        }
    }
    return n + size_of(item->left);
}
