#pragma once
/* What both shims are made of: a table of names, each leading somewhere. gen-shim makes the table
 * and the entries; before the first call through any of them the page is mapped and the node's
 * library loaded, once. Whatever fails there is told on standard error in one sentence, and from
 * then on every call fails: a program that takes the card for its own would fail later, and
 * without a reason. */
#include "page.h"

#include <stdbool.h>

enum vg_how { VG_PASS, VG_HOOK, VG_SHARE, VG_REFUSE, VG_ANSWER };

/* Made by gen-shim. */
extern void *vg_shim_table[];
extern void *const vg_shim_hooks[];
extern const char *const vg_shim_names[];
extern const uint8_t vg_shim_how[];
extern const unsigned vg_shim_count;

/* Said by the shim. */
struct vg_shim_kind {
    void *not_ready; /* what a call does when loading failed */
    void *refused;   /* what a refused call does */
    void *missing;   /* what a call does that the node's library does not have */
    bool tells;      /* a refused call says why on standard error: its code does not */
    const char *(*path)(const struct vg_vgpu_page *); /* the node's library */
    bool (*bind)(void *library); /* takes what the hooks call; false: that is not the library */
};
extern const struct vg_shim_kind vg_shim_kind;

struct vg_shim {
    const struct vg_vgpu_page *page; /* valid when `ready`, as is the next; never unmapped */
    void *library;                   /* the node's, never closed */
    bool ready;
};

/* Loads when that was not done yet; then tells how it went. */
const struct vg_shim *vg_shim_get(void);

/* Says a sentence on standard error, and makes every call fail from now on. */
void vg_shim_close(const char *sentence);

/* Where an entry leads now; called by the entries themselves: until everything is loaded, and by
 * those of refused names each time. */
void *vg_shim_resolve(unsigned index);

/* What the program is to get for an address in the node's library: the address, our hook, or what
 * refuses; NULL when that name is not in the table, and so does not exist. */
void *vg_shim_substitute(void *real);

/* The entry's index by name; -1: there is none. */
int vg_shim_find(const char *name);
