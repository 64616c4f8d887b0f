/* Decides about each call of a task on a shared GPU; see the header. One thread. */
#include "gpu/warden.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "gpu/warden-int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_BYTES UINT64_C(65536) /* the least the driver hands out */

static const struct vg_warden_answer let = {.let = true};

static struct vg_warden_answer failed(int error) {
    return (struct vg_warden_answer){.error = error};
}

static struct vg_warden_answer done(int64_t value) {
    return value < 0 ? failed((int)value) : (struct vg_warden_answer){.value = value};
}

int vg_warden_new(const struct vg_warden_ops *ops, uint64_t limit_bytes, struct vg_warden **ret) {
    struct vg_warden *w = vg_alloc(sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->ops = *ops;
    vg_list_init(&w->in_order);
    vg_list_init(&w->spaces);
    w->uvm_cards = VG_UVM_CARDS;
    w->stat.limit_bytes = limit_bytes;
    *ret = w;
    return 0;
}

void vg_warden_free(struct vg_warden *w) {
    if (!w)
        return;
    vg_wuvm_done(w);
    for (struct vg_map_slot *s; (s = vg_map_next(&w->clients, NULL));)
        vg_wbooks_drop_client(w, s->value);
    for (struct vg_map_slot *s = NULL; (s = vg_map_next(&w->processes, s));)
        free(s->value);
    vg_map_done(&w->clients);
    vg_map_done(&w->objects);
    vg_map_done(&w->processes);
    free(w);
}

void vg_warden_old_uvm(struct vg_warden *w) {
    w->uvm_cards = VG_UVM_CARDS_OLD;
}

/* ---- time slices ----------------------------------------------------------------------------- */

static int slice_control(struct vg_warden *w, const struct vg_wobject *o, uint32_t command,
                         uint64_t *usec) {
    struct vg_rm_control c = {.client = o->client->handle,
                              .object = o->handle,
                              .command = command,
                              .params = (uint64_t)(uintptr_t)usec,
                              .params_bytes = sizeof(*usec)};
    uint32_t cmd = 3u << 30 | (uint32_t)sizeof(c) << 16 | VG_RM_TYPE << 8 | VG_RM_CONTROL;
    int64_t r = w->ops.issue(w->ops.ud, o->client->process, o->client->fd, cmd, &c);
    return r < 0 ? (int)r : c.status != VG_RM_OK ? -EIO : 0;
}

static void set_slice(struct vg_warden *w, const struct vg_wobject *o) {
    uint64_t usec = w->slice_usec;
    if (usec && o->client->fd >= 0)
        (void)slice_control(w, o, VG_RM_SET_TIMESLICE, &usec); /* asserted each second anyway */
}

void vg_warden_slice(struct vg_warden *w, uint32_t usec) {
    w->slice_usec = usec;
    for (struct vg_map_slot *s = NULL; (s = vg_map_next(&w->objects, s));) {
        const struct vg_wobject *o = s->value;
        if (o->class_id == VG_RM_CLASS_CHANNEL_GROUP)
            set_slice(w, o);
    }
}

uint32_t vg_warden_assert_slices(struct vg_warden *w) {
    uint32_t n = 0;
    for (struct vg_map_slot *s = NULL; w->slice_usec && (s = vg_map_next(&w->objects, s));) {
        const struct vg_wobject *o = s->value;
        uint64_t now = 0;
        if (o->class_id != VG_RM_CLASS_CHANNEL_GROUP || o->client->fd < 0 ||
            slice_control(w, o, VG_RM_GET_TIMESLICE, &now) < 0 || now == w->slice_usec)
            continue;
        set_slice(w, o);
        n++;
    }
    w->stat.retaken += n;
    return n;
}

/* ---- allocating ------------------------------------------------------------------------------ */

/* The parameters of an allocation, in the warden's own hands. */
struct request {
    struct vg_rm_alloc a;
    bool old; /* the older form of the call */
    _Alignas(16) uint8_t params[VG_WARDEN_PARAMS_MAX];
    uint8_t before[VG_WARDEN_PARAMS_MAX];
    size_t n; /* of params */
    uint32_t rights;
};

static size_t form_bytes(const struct request *q) {
    return q->old ? sizeof(struct vg_rm_alloc_old) : sizeof(struct vg_rm_alloc);
}

static int fetch_form(struct vg_warden *w, const struct vg_warden_call *k, struct request *q) {
    struct vg_rm_alloc_old o;
    uint32_t bytes = k->cmd >> 16 & 0x3fff;
    q->old = bytes == sizeof(o);
    if (!q->old && bytes != sizeof(q->a))
        return -EINVAL;
    void *into = q->old ? (void *)&o : (void *)&q->a;
    if (w->ops.read(k->caller, k->arg, into, bytes) != (int64_t)bytes)
        return -EFAULT;
    if (q->old)
        q->a = (struct vg_rm_alloc){.client = o.client,
                                    .parent = o.parent,
                                    .object = o.object,
                                    .class_id = o.class_id,
                                    .params = o.params,
                                    .params_bytes = o.params_bytes};
    return 0;
}

/* As much as the driver could want and the caller has: the size is the driver's knowledge. */
static int fetch_params(struct vg_warden *w, const struct vg_warden_call *k, struct request *q) {
    if (q->a.rights && w->ops.read(k->caller, q->a.rights, &q->rights, sizeof(q->rights)) !=
                           (int64_t)sizeof(q->rights))
        return -EFAULT;
    if (!q->a.params)
        return 0;
    int64_t n = w->ops.read(k->caller, q->a.params, q->params, sizeof(q->params));
    if (n <= 0)
        return -EFAULT;
    q->n = (size_t)n;
    memcpy(q->before, q->params, q->n);
    return 0;
}

/* What the driver changed goes back, and nothing else: the caller may have written beside it. */
static void return_params(struct vg_warden *w, const struct vg_warden_call *k,
                          const struct request *q) {
    for (size_t i = 0; i < q->n;) {
        size_t end = i;
        while (end < q->n && q->params[end] != q->before[end])
            end++;
        if (end > i)
            (void)w->ops.write(k->caller, q->a.params + i, q->params + i, end - i);
        i = end > i ? end : i + 1;
    }
}

static void return_form(struct vg_warden *w, const struct vg_warden_call *k, struct request *q) {
    struct vg_rm_alloc_old o = {q->a.client, q->a.parent,       q->a.object, q->a.class_id,
                                q->a.params, q->a.params_bytes, q->a.status};
    (void)w->ops.write(k->caller, k->arg, q->old ? (void *)&o : (void *)&q->a, form_bytes(q));
}

static struct vg_warden_answer refuse(struct vg_warden *w, const struct vg_warden_call *k,
                                      struct request *q, uint32_t status) {
    q->a.status = status;
    return_form(w, k, q);
    return done(0);
}

/* The driver's answer is in q->a and q->params; the caller's pointers are put back. */
static int64_t issue(struct vg_warden *w, const struct vg_warden_call *k, int fd,
                     struct request *q) {
    uint64_t params = q->a.params, rights = q->a.rights;
    q->a.params = params ? (uint64_t)(uintptr_t)q->params : 0;
    q->a.rights = rights ? (uint64_t)(uintptr_t)&q->rights : 0;
    int64_t r;
    if (q->old) {
        struct vg_rm_alloc_old o = {q->a.client,
                                    q->a.parent,
                                    q->a.object,
                                    q->a.class_id,
                                    q->a.params,
                                    q->a.params_bytes,
                                    0};
        r = w->ops.issue(w->ops.ud, k->process, fd, k->cmd, &o);
        q->a.object = o.object;
        q->a.status = o.status;
    } else {
        r = w->ops.issue(w->ops.ud, k->process, fd, k->cmd, &q->a);
    }
    q->a.params = params;
    q->a.rights = rights;
    return r;
}

static uint64_t rounded(uint64_t bytes) {
    return bytes > UINT64_MAX - PAGE_BYTES ? UINT64_MAX
                                           : (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static uint64_t card_bytes(const struct request *q) {
    struct vg_rm_memory m;
    if (q->a.class_id == VG_RM_CLASS_CHANNEL_GROUP)
        return VG_WARDEN_GROUP_BYTES;
    if (q->a.class_id != VG_RM_CLASS_MEMORY_LOCAL)
        return 0;
    if (q->n < sizeof(m))
        return UINT64_MAX; /* fits nowhere */
    memcpy(&m, q->params, sizeof(m));
    return m.flags & VG_RM_MEMORY_VIRTUAL ? 0 : rounded(m.size);
}

/* The client that a call names, in the books from its first object on. The descriptor is kept: on
   it the client is freed when its process is gone, and its time slices are set. */
static int know_client(struct vg_warden *w, const struct vg_warden_call *k, uint32_t handle,
                       struct vg_wclient **ret) {
    *ret = vg_wbooks_client(w, handle);
    if (*ret)
        return 0;
    int kept = w->ops.borrow(k->caller, k->fd);
    if (kept < 0)
        return kept;
    int r = vg_wbooks_add_client(w, handle, k->process, kept, ret);
    if (r < 0)
        w->ops.close(w->ops.ud, kept);
    return r;
}

/* Bytes are in the books already; they stay there with the new object. */
static int enter(struct vg_warden *w, const struct vg_warden_call *k, const struct request *q,
                 uint64_t bytes) {
    struct vg_wclient *c;
    struct vg_wmem *mem = NULL;
    int r = know_client(w, k, q->a.client, &c);
    if (r >= 0 && bytes) {
        mem = vg_wmem_new(w, c->process, bytes);
        if (!mem)
            r = -ENOMEM;
    }
    if (r >= 0)
        r = vg_wbooks_add(w, c, q->a.parent, q->a.object, q->a.class_id, mem);
    if (r < 0 && mem) {
        mem->owner->used_bytes -= bytes;
        free(mem);
    }
    if (r >= 0 && q->a.class_id == VG_RM_CLASS_CHANNEL_GROUP)
        set_slice(w, vg_wbooks_object(w, q->a.client, q->a.object));
    return r;
}

/* An object that the books cannot hold must not be. */
static void undo(struct vg_warden *w, uint64_t process, int fd, uint32_t client, uint32_t parent,
                 uint32_t object) {
    struct vg_rm_free f = {.client = client, .parent = parent, .object = object};
    uint32_t cmd = 3u << 30 | (uint32_t)sizeof(f) << 16 | VG_RM_TYPE << 8 | VG_RM_FREE;
    (void)w->ops.issue(w->ops.ud, process, fd, cmd, &f);
}

static struct vg_warden_answer allocate(struct vg_warden *w, const struct vg_warden_call *k, int fd,
                                        struct request *q) {
    uint64_t bytes = card_bytes(q);
    if (bytes && !vg_wbooks_fits(w, bytes)) {
        w->stat.refused++;
        return refuse(w, k, q, VG_RM_NO_MEMORY);
    }
    vg_wbooks_take(w, bytes);
    int64_t r = issue(w, k, fd, q);
    uint64_t got = r < 0 || q->a.status != VG_RM_OK ? 0 : card_bytes(q); /* it may round up */
    vg_wbooks_give(w, bytes);
    vg_wbooks_take(w, got);
    bool made = r >= 0 && q->a.status == VG_RM_OK;
    if (made &&
        ((got > bytes && w->stat.used_bytes > w->stat.limit_bytes) || enter(w, k, q, got) < 0)) {
        undo(w, k->process, fd, q->a.client, q->a.parent, q->a.object);
        vg_wbooks_give(w, got);
        return refuse(w, k, q, VG_RM_NO_MEMORY);
    }
    return_params(w, k, q);
    return_form(w, k, q);
    return done(r);
}

/* A program that does not find MPS, or does not want to, would compute beside it, in turns with all
   of its clients: a channel of a group that is not the server's. */
static bool beside_mps(struct vg_warden *w, const struct request *q) {
    if (!w->mps || (q->a.class_id & 0xff) != VG_RM_CLASS_COMPUTE)
        return false;
    const struct vg_wobject *channel = vg_wbooks_object(w, q->a.client, q->a.parent);
    return !channel || !channel->parent || channel->parent->class_id != VG_WCLASS_SERVERS;
}

void vg_warden_mps(struct vg_warden *w) {
    w->mps = true;
}

static struct vg_warden_answer on_alloc(struct vg_warden *w, const struct vg_warden_call *k) {
    vg_auto_free struct request *q = vg_alloc(sizeof(*q));
    int r = q ? fetch_form(w, k, q) : -ENOMEM;
    if (r < 0)
        return failed(r);
    switch (q->a.class_id) {
    case VG_RM_CLASS_ROOT:
    case VG_RM_CLASS_ROOT_NON_PRIV:
    case VG_RM_CLASS_ROOT_CLIENT: /* belongs to the process that makes it */
    case VG_RM_CLASS_EVENT:
    case VG_RM_CLASS_EVENT_OS: /* names a descriptor of the caller; holds no memory */
        return let;
    default:
        break;
    }
    if (vg_wrefused_class(q->a.class_id)) {
        w->stat.strange++;
        return refuse(w, k, q, VG_RM_INVALID_CLASS);
    }
    if (w->stat.objects >= VG_WARDEN_OBJECTS_MAX)
        return refuse(w, k, q, VG_RM_INSUFFICIENT_RESOURCES);
    if (beside_mps(w, q)) {
        w->stat.beside++;
        return refuse(w, k, q, VG_RM_INSUFFICIENT_RESOURCES);
    }
    r = fetch_params(w, k, q);
    if (r < 0)
        return failed(r);
    int fd = w->ops.borrow(k->caller, k->fd);
    if (fd < 0)
        return failed(fd);
    struct vg_warden_answer a = allocate(w, k, fd, q);
    w->ops.close(w->ops.ud, fd);
    return a;
}

/* ---- the other calls ------------------------------------------------------------------------- */

static struct vg_warden_answer on_free(struct vg_warden *w, const struct vg_warden_call *k) {
    struct vg_rm_free f;
    if (w->ops.read(k->caller, k->arg, &f, sizeof(f)) != (int64_t)sizeof(f))
        return failed(-EFAULT);
    int fd = w->ops.borrow(k->caller, k->fd);
    if (fd < 0)
        return failed(fd);
    int64_t r = w->ops.issue(w->ops.ud, k->process, fd, k->cmd, &f);
    w->ops.close(w->ops.ud, fd);
    if (r >= 0 && f.status == VG_RM_OK)
        vg_wbooks_remove(w, f.client, f.object);
    (void)w->ops.write(k->caller, k->arg, &f, sizeof(f));
    return done(r);
}

/* Another name for an object of the same process keeps its memory. What MPS's server shares with
   its clients is the server's; whether it does share is for the driver to say. */
static struct vg_warden_answer on_dup(struct vg_warden *w, const struct vg_warden_call *k) {
    struct vg_rm_dup d;
    if (w->ops.read(k->caller, k->arg, &d, sizeof(d)) != (int64_t)sizeof(d))
        return failed(-EFAULT);
    struct vg_wclient *from = vg_wbooks_client(w, d.from_client), *to;
    struct vg_wobject *o = vg_wbooks_object(w, d.from_client, d.from_object);
    bool own = from && o && from->process == k->process, servers = w->mps && !from;
    if ((!own && !servers) || w->stat.objects >= VG_WARDEN_OBJECTS_MAX) {
        w->stat.strange++;
        return failed(-EPERM);
    }
    int fd = w->ops.borrow(k->caller, k->fd);
    if (fd < 0)
        return failed(fd);
    int64_t r = know_client(w, k, d.client, &to);
    if (r >= 0 && to->process != k->process)
        r = -EPERM;
    if (r >= 0)
        r = w->ops.issue(w->ops.ud, k->process, fd, k->cmd, &d);
    if (r >= 0 && d.status == VG_RM_OK) {
        struct vg_wmem *mem = o ? o->mem : NULL;
        if (mem)
            mem->refs++;
        if (vg_wbooks_add(w, to, d.parent, d.object, o ? o->class_id : VG_WCLASS_SERVERS, mem) <
            0) {
            undo(w, k->process, fd, d.client, d.parent, d.object);
            vg_wmem_unref(w, mem);
            r = -ENOMEM;
        }
    }
    w->ops.close(w->ops.ud, fd);
    (void)w->ops.write(k->caller, k->arg, &d, sizeof(d));
    return done(r);
}

static struct vg_warden_answer on_control(struct vg_warden *w, const struct vg_warden_call *k) {
    struct vg_rm_control c;
    if (w->ops.read(k->caller, k->arg, &c, sizeof(c)) != (int64_t)sizeof(c))
        return failed(-EFAULT);
    bool slice = c.command == VG_RM_SET_TIMESLICE && w->slice_usec;
    if (!slice && !vg_wrefused_control(c.command, w->mps))
        return let;
    /* The CUDA library sets a slice for each group it makes, and believes that it did. */
    c.status = slice ? VG_RM_OK : VG_RM_NOT_SUPPORTED;
    w->stat.strange += !slice;
    (void)w->ops.write(k->caller, k->arg, &c, sizeof(c));
    return done(0);
}

static struct vg_warden_answer on_alloc_memory(struct vg_warden *w,
                                               const struct vg_warden_call *k) {
    struct vg_rm_alloc_memory m;
    if (w->ops.read(k->caller, k->arg, &m, sizeof(m)) != (int64_t)sizeof(m))
        return failed(-EFAULT);
    if (m.class_id == VG_RM_CLASS_MEMORY_PINNED || m.class_id == VG_RM_CLASS_MEMORY_SYSTEM)
        return let;
    w->stat.strange++;
    return failed(-EPERM);
}

struct vg_warden_answer vg_warden_ioctl(struct vg_warden *w, const struct vg_warden_call *call) {
    if ((call->cmd >> 8 & 0xff) != VG_RM_TYPE)
        return vg_wuvm_call(w, call);
    switch (call->cmd & 0xff) {
    case VG_RM_ALLOC:
        return on_alloc(w, call);
    case VG_RM_FREE:
        return on_free(w, call);
    case VG_RM_CONTROL:
        return on_control(w, call);
    case VG_RM_DUP_OBJECT:
        return on_dup(w, call);
    case VG_RM_ALLOC_MEMORY:
        return on_alloc_memory(w, call);
    default: /* older ways to the same, ways around, and objects out of a descriptor */
        w->stat.strange++;
        return failed(-EPERM);
    }
}

/* ---- managed memory, processes --------------------------------------------------------------- */

static void set_managed(struct vg_warden *w, struct vg_wprocess *p, uint64_t bytes) {
    vg_wbooks_give(w, p->managed_bytes);
    w->stat.managed_bytes -= p->managed_bytes;
    p->used_bytes += bytes - p->managed_bytes;
    p->managed_bytes = bytes;
    w->stat.managed_bytes += bytes;
    vg_wbooks_take(w, bytes);
}

void vg_warden_managed_now(struct vg_warden *w, uint64_t process, uint64_t mapped) {
    struct vg_wprocess *p = vg_map_get_u64(&w->processes, process);
    if (p && mapped < p->managed_bytes)
        set_managed(w, p, mapped);
}

bool vg_warden_managed(struct vg_warden *w, uint64_t process, uint64_t mapped, uint64_t bytes) {
    struct vg_wprocess *p = vg_wbooks_process(w, process);
    uint64_t need = rounded(bytes);
    if (!p)
        return false;
    if (mapped > p->managed_bytes)
        set_managed(w, p, mapped);
    if (need > UINT64_MAX - p->managed_bytes || !vg_wbooks_fits(w, need)) {
        w->stat.refused++;
        return false;
    }
    set_managed(w, p, p->managed_bytes + need);
    return true;
}

void vg_warden_gone(struct vg_warden *w, uint64_t process) {
    struct vg_wclient *c;
    vg_wuvm_gone(w, process);
    do {
        c = NULL;
        for (struct vg_map_slot *s = NULL; !c && (s = vg_map_next(&w->clients, s));)
            if (((struct vg_wclient *)s->value)->process == process)
                c = s->value;
        if (c) {
            undo(w, process, c->fd, c->handle, 0, c->handle);
            vg_wbooks_drop_client(w, c);
        }
    } while (c);
    struct vg_wprocess *p = vg_map_del_u64(&w->processes, process);
    if (!p)
        return;
    set_managed(w, p, 0);
    vg_list_remove(&p->all);
    free(p);
}

void vg_warden_limit(struct vg_warden *w, uint64_t limit_bytes) {
    w->stat.limit_bytes = limit_bytes;
}

void vg_warden_stat(const struct vg_warden *w, struct vg_warden_stat *ret) {
    *ret = w->stat;
}

size_t vg_warden_processes(const struct vg_warden *w, struct vg_warden_process *ret, size_t max) {
    size_t n = 0;
    for (struct vg_list *l = w->in_order.next; l != &w->in_order && n < max; l = l->next) {
        const struct vg_wprocess *p = vg_list_entry(l, struct vg_wprocess, all);
        if (p->used_bytes)
            ret[n++] = (struct vg_warden_process){p->number, 0, 0, p->used_bytes, p->managed_bytes};
    }
    return n;
}
