/* What a task has on the card: clients, objects below them, and the bytes that objects stand for.
   Bytes are given back when the last object that names them is gone. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "gpu/warden-int.h"

#include <errno.h>
#include <stdlib.h>

static uint64_t key(uint32_t client, uint32_t handle) {
    return (uint64_t)client << 32 | handle;
}

static bool fits(const struct vg_warden *w, uint64_t bytes) {
    return bytes <= w->stat.limit_bytes && w->stat.used_bytes <= w->stat.limit_bytes - bytes;
}

/* That managed memory was unmapped is noticed when somebody looks: so before anything is refused.
 */
bool vg_wbooks_fits(struct vg_warden *w, uint64_t bytes) {
    if (fits(w, bytes))
        return true;
    if (w->stat.managed_bytes && w->ops.recount)
        w->ops.recount(w->ops.ud);
    return fits(w, bytes);
}

void vg_wbooks_take(struct vg_warden *w, uint64_t bytes) {
    w->stat.used_bytes += bytes;
    if (w->stat.used_bytes > w->stat.peak_bytes)
        w->stat.peak_bytes = w->stat.used_bytes;
}

void vg_wbooks_give(struct vg_warden *w, uint64_t bytes) {
    w->stat.used_bytes -= bytes < w->stat.used_bytes ? bytes : w->stat.used_bytes;
}

void vg_wmem_unref(struct vg_warden *w, struct vg_wmem *mem) {
    if (!mem || --mem->refs)
        return;
    mem->owner->used_bytes -= mem->bytes;
    vg_wbooks_give(w, mem->bytes);
    free(mem);
}

struct vg_wmem *vg_wmem_new(struct vg_warden *w, uint64_t process, uint64_t bytes) {
    struct vg_wprocess *p = vg_wbooks_process(w, process);
    struct vg_wmem *mem = p ? vg_alloc(sizeof(*mem)) : NULL;
    if (!mem)
        return NULL;
    *mem = (struct vg_wmem){bytes, 1, p};
    p->used_bytes += bytes;
    return mem;
}

struct vg_wprocess *vg_wbooks_process(struct vg_warden *w, uint64_t number) {
    struct vg_wprocess *p = vg_map_get_u64(&w->processes, number);
    if (p)
        return p;
    p = vg_alloc(sizeof(*p));
    if (!p || vg_map_put_u64(&w->processes, number, p) < 0) {
        free(p);
        return NULL;
    }
    p->number = number;
    vg_list_push_back(&w->in_order, &p->all);
    return p;
}

struct vg_wclient *vg_wbooks_client(struct vg_warden *w, uint32_t handle) {
    return vg_map_get_u64(&w->clients, handle);
}

int vg_wbooks_add_client(struct vg_warden *w, uint32_t handle, uint64_t process, int fd,
                         struct vg_wclient **ret) {
    if (w->stat.clients >= VG_WARDEN_CLIENTS_MAX)
        return -EMFILE;
    struct vg_wclient *c = vg_alloc(sizeof(*c));
    if (!c)
        return -ENOMEM;
    *c = (struct vg_wclient){.handle = handle, .process = process, .fd = fd};
    vg_list_init(&c->children);
    if (vg_map_put_u64(&w->clients, handle, c) < 0) {
        free(c);
        return -ENOMEM;
    }
    w->stat.clients++;
    *ret = c;
    return 0;
}

struct vg_wobject *vg_wbooks_object(struct vg_warden *w, uint32_t client, uint32_t handle) {
    return vg_map_get_u64(&w->objects, key(client, handle));
}

static void forget(struct vg_warden *w, struct vg_wobject *o) {
    vg_map_del_u64(&w->objects, key(o->client->handle, o->handle));
    vg_list_remove(&o->siblings);
    vg_wmem_unref(w, o->mem);
    w->stat.objects--;
    if (o->class_id == VG_RM_CLASS_CHANNEL_GROUP)
        w->stat.groups--;
    free(o);
}

/* Depth comes from outside: no recursion. */
static void forget_all_below(struct vg_warden *w, struct vg_list *children) {
    struct vg_list *at = children;
    while (!vg_list_empty(children)) {
        struct vg_list *first = vg_list_first(at);
        if (!first) {
            struct vg_wobject *o = vg_container_of(at, struct vg_wobject, children);
            struct vg_list *up = o->parent ? &o->parent->children : &o->client->children;
            forget(w, o);
            at = up;
            continue;
        }
        at = &vg_container_of(first, struct vg_wobject, siblings)->children;
    }
}

void vg_wbooks_remove(struct vg_warden *w, uint32_t client, uint32_t handle) {
    struct vg_wclient *c = vg_wbooks_client(w, client);
    if (c && client == handle) {
        vg_wbooks_drop_client(w, c);
        return;
    }
    struct vg_wobject *o = vg_wbooks_object(w, client, handle);
    if (!o)
        return;
    forget_all_below(w, &o->children);
    forget(w, o);
}

void vg_wbooks_drop_client(struct vg_warden *w, struct vg_wclient *c) {
    forget_all_below(w, &c->children);
    vg_map_del_u64(&w->clients, c->handle);
    if (c->fd >= 0)
        w->ops.close(w->ops.ud, c->fd);
    w->stat.clients--;
    free(c);
}

int vg_wbooks_add(struct vg_warden *w, struct vg_wclient *c, uint32_t parent, uint32_t handle,
                  uint32_t class_id, struct vg_wmem *mem) {
    vg_wbooks_remove(w, c->handle, handle);
    struct vg_wobject *o = vg_alloc(sizeof(*o));
    if (!o)
        return -ENOMEM;
    struct vg_wobject *up = vg_wbooks_object(w, c->handle, parent);
    *o = (struct vg_wobject){
        .handle = handle, .class_id = class_id, .client = c, .parent = up, .mem = mem};
    vg_list_init(&o->children);
    if (vg_map_put_u64(&w->objects, key(c->handle, handle), o) < 0) {
        free(o);
        return -ENOMEM;
    }
    vg_list_push_back(up ? &up->children : &c->children, &o->siblings);
    w->stat.objects++;
    if (class_id == VG_RM_CLASS_CHANNEL_GROUP)
        w->stat.groups++;
    return 0;
}

/* ---- comparing ------------------------------------------------------------------------------- */

void vg_warden_audit_note(struct vg_warden_audit *a, const struct vg_warden_stat *now) {
    uint64_t held = now->used_bytes - now->managed_bytes;
    if (held > a->most)
        a->most = held;
}

uint32_t vg_warden_audit(struct vg_warden_audit *a, const struct vg_warden_stat *now,
                         uint64_t card_bytes, uint64_t *ret_known) {
    vg_warden_audit_note(a, now);
    *ret_known = (a->most > a->before ? a->most : a->before) + VG_WARDEN_SLACK_BYTES +
                 now->clients * VG_WARDEN_SLACK_CLIENT_BYTES;
    a->excesses = card_bytes > *ret_known ? a->excesses + 1 : 0;
    a->before = a->most;
    a->most = now->used_bytes - now->managed_bytes;
    return a->excesses;
}
