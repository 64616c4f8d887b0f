#pragma once
/* Intrusive doubly linked list. A head points to itself when empty. */
#include "base/cleanup.h"

#include <stdbool.h>
#include <stddef.h>

struct vg_list {
    struct vg_list *prev, *next;
};

static inline void vg_list_init(struct vg_list *l) {
    l->prev = l->next = l;
}
static inline bool vg_list_empty(const struct vg_list *l) {
    return l->next == l;
}
static inline void vg_list_insert(struct vg_list *prev, struct vg_list *item) {
    item->prev = prev;
    item->next = prev->next;
    prev->next->prev = item;
    prev->next = item;
}
static inline void vg_list_push_front(struct vg_list *l, struct vg_list *item) {
    vg_list_insert(l, item);
}
static inline void vg_list_push_back(struct vg_list *l, struct vg_list *item) {
    vg_list_insert(l->prev, item);
}
/* Safe to call twice: a removed item is a list of its own. */
static inline void vg_list_remove(struct vg_list *item) {
    item->prev->next = item->next;
    item->next->prev = item->prev;
    vg_list_init(item);
}
static inline struct vg_list *vg_list_first(struct vg_list *l) {
    return vg_list_empty(l) ? NULL : l->next;
}

#define vg_list_entry(item, type, member) vg_container_of(item, type, member)
#define vg_list_for_each(it, head) \
    for (struct vg_list *it = (head)->next; it != (head); it = it->next)
#define vg_list_for_each_safe(it, head)                                       \
    for (struct vg_list *it = (head)->next, *it##_n = it->next; it != (head); \
         it = it##_n, it##_n = it->next)
