#pragma once
/* The warden's own books; see warden.h. */
#include "base/list.h"
#include "base/map.h"
#include "gpu/rm.h"
#include "gpu/warden.h"

/* Memory of the card; several objects can be names of it (duplicates). */
struct vg_wmem {
    uint64_t bytes;
    uint32_t refs;
    struct vg_wprocess *owner; /* borrowed: names of it are its own only, so it outlives them */
};

#define VG_WCLASS_SERVERS UINT32_MAX /* another name for something of MPS's server */

struct vg_wobject {
    uint32_t handle, class_id;
    struct vg_wclient *client; /* borrowed */
    struct vg_wobject *parent; /* borrowed; NULL: the client itself */
    struct vg_list siblings;   /* in the parent's or the client's children */
    struct vg_list children;
    struct vg_wmem *mem; /* one reference; NULL: it holds none */
};

struct vg_wclient {
    uint32_t handle;
    uint64_t process;
    int fd; /* owned: a duplicate of the descriptor it was made on; keeps it until its process ends
             */
    struct vg_list children;
};

struct vg_wprocess {
    uint64_t number;
    uint64_t used_bytes; /* managed memory included */
    uint64_t managed_bytes;
    struct vg_list all;
};

struct vg_warden {
    struct vg_warden_ops ops;
    struct vg_map clients;   /* handle -> vg_wclient */
    struct vg_map objects;   /* client and handle -> vg_wobject */
    struct vg_map processes; /* number -> vg_wprocess */
    struct vg_list in_order; /* of processes */
    struct vg_list spaces;   /* vg_wspace */
    size_t n_spaces, n_maps;
    uint32_t uvm_cards; /* how many the driver's forms have room for */
    struct vg_warden_stat stat;
    uint32_t slice_usec;
    bool mps;
};

/* ---- warden-books.c: what a task has --------------------------------------------------------- */

bool vg_wbooks_fits(struct vg_warden *w, uint64_t bytes);
void vg_wbooks_take(struct vg_warden *w, uint64_t bytes);
void vg_wbooks_give(struct vg_warden *w, uint64_t bytes);

/* The process of that number, new when it has none; NULL: no memory. */
struct vg_wprocess *vg_wbooks_process(struct vg_warden *w, uint64_t number);
struct vg_wclient *vg_wbooks_client(struct vg_warden *w, uint32_t handle);
/* Takes `fd` on success. */
int vg_wbooks_add_client(struct vg_warden *w, uint32_t handle, uint64_t process, int fd,
                         struct vg_wclient **ret);
struct vg_wobject *vg_wbooks_object(struct vg_warden *w, uint32_t client, uint32_t handle);
/* Takes a reference of `mem` (or NULL). An object of that name that is still in the books is
   forgotten first: the driver would not have given its name away again otherwise. */
int vg_wbooks_add(struct vg_warden *w, struct vg_wclient *c, uint32_t parent, uint32_t handle,
                  uint32_t class_id, struct vg_wmem *mem);
/* The object and all below it; a client by its own handle. */
void vg_wbooks_remove(struct vg_warden *w, uint32_t client, uint32_t handle);
void vg_wbooks_drop_client(struct vg_warden *w, struct vg_wclient *c);
/* For bytes that are taken already; NULL: no memory. */
struct vg_wmem *vg_wmem_new(struct vg_warden *w, uint64_t process, uint64_t bytes);
void vg_wmem_unref(struct vg_warden *w, struct vg_wmem *mem);

/* ---- warden-uvm.c: the driver's other device ------------------------------------------------- */

struct vg_warden_answer vg_wuvm_call(struct vg_warden *w, const struct vg_warden_call *k);
/* What the process has mapped is unmapped and forgotten; before what it owns is. */
void vg_wuvm_gone(struct vg_warden *w, uint64_t process);
void vg_wuvm_done(struct vg_warden *w);

/* ---- warden-refused.c: what is refused by its name ------------------------------------------- */

bool vg_wrefused_class(uint32_t class_id);
bool vg_wrefused_control(uint32_t command, bool mps);
