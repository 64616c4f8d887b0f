/* The driver's other device, which maps memory for the card and manages what lives on both sides.
 *
 * Two things about it would lead past a share:
 * - A mapping keeps the memory after the object is freed that stood for it. So mappings of the
 *   card's memory are names of it like duplicates are, and are made and undone in the warden's
 *   hands. The driver lets only the process that owns an object map it: for the moment of the call
 *   the object is shared with the task's user, whose name the warden bears meanwhile.
 * - Pages of the process can move to the card when it is allowed to touch them (HMM). Each process
 *   says at the beginning whether it wants that: here it never does. The word is given by the
 *   process itself, so it could be another one in the end; before a card is registered, without
 *   which there is none to move to, the device is asked what it understood. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "gpu/warden-int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct vg_wmap {
    uint64_t base, end; /* of addresses; the end is behind it */
    uint8_t uuid[16];   /* the card that has them */
    struct vg_wmem *mem;
};

/* What one opening of the device has mapped, sorted by address. */
struct vg_wspace {
    struct vg_list all;
    uint64_t process;
    int fd; /* owned: a duplicate */
    struct vg_wmap *map;
    size_t n, room;
};

static struct vg_warden_answer failed(int64_t error) {
    return (struct vg_warden_answer){.error = (int)error};
}

/* The status is the last word of each form. */
static struct vg_warden_answer answer(struct vg_warden *w, const struct vg_warden_call *k,
                                      uint64_t at, uint32_t status) {
    (void)w->ops.write(k->caller, k->arg + at, &status, sizeof(status));
    return (struct vg_warden_answer){0};
}

/* ---- what is mapped -------------------------------------------------------------------------- */

static struct vg_wspace *space_of(struct vg_warden *w, int fd) {
    vg_list_for_each (item, &w->spaces) {
        struct vg_wspace *s = vg_list_entry(item, struct vg_wspace, all);
        if (w->ops.same(w->ops.ud, s->fd, fd))
            return s;
    }
    return NULL;
}

/* Takes `fd` when it is new, and leaves -1. */
static int know_space(struct vg_warden *w, uint64_t process, int *fd, struct vg_wspace **ret) {
    *ret = space_of(w, *fd);
    if (*ret)
        return 0;
    if (w->n_spaces >= VG_WARDEN_SPACES_MAX)
        return -EMFILE;
    struct vg_wspace *s = vg_alloc(sizeof(*s));
    if (!s)
        return -ENOMEM;
    *s = (struct vg_wspace){.process = process, .fd = vg_take_fd(*fd)};
    vg_list_push_back(&w->spaces, &s->all);
    w->n_spaces++;
    *ret = s;
    return 0;
}

/* Room for one more, and for the second half of one that is cut in two. */
static int make_room(const struct vg_warden *w, struct vg_wspace *s) {
    if (s->room - s->n >= 2)
        return 0;
    if (w->n_maps + 2 > VG_WARDEN_MAPS_MAX)
        return -ENOSPC;
    struct vg_wmap *grown = vg_grow(s->map, &s->room, s->n + 2, sizeof(*grown));
    if (!grown)
        return -ENOMEM;
    s->map = grown;
    return 0;
}

/* The first that ends behind `at`. */
static size_t find(const struct vg_wspace *s, uint64_t at) {
    size_t low = 0, high = s->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (s->map[mid].end <= at)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static void put(struct vg_warden *w, struct vg_wspace *s, size_t i, struct vg_wmap m) {
    memmove(s->map + i + 1, s->map + i, (s->n - i) * sizeof(m));
    s->map[i] = m;
    s->n++;
    w->n_maps++;
}

static void drop(struct vg_warden *w, struct vg_wspace *s, size_t i) {
    vg_wmem_unref(w, s->map[i].mem);
    memmove(s->map + i, s->map + i + 1, (s->n - i - 1) * sizeof(s->map[0]));
    s->n--;
    w->n_maps--;
}

/* Nothing is mapped there any more. Without room for a second half the whole stays: too much is
   counted then, never too little. */
static void cut(struct vg_warden *w, struct vg_wspace *s, uint64_t from, uint64_t to) {
    for (size_t i = find(s, from); i < s->n && s->map[i].base < to;) {
        struct vg_wmap *m = &s->map[i];
        if (from <= m->base && m->end <= to) {
            drop(w, s, i);
            continue;
        }
        if (m->base < from && to < m->end) {
            if (make_room(w, s) < 0)
                return;
            struct vg_wmap rest = s->map[i];
            rest.base = to;
            rest.mem->refs++;
            s->map[i].end = from;
            put(w, s, i + 1, rest);
            return;
        }
        if (m->base < from)
            m->end = from;
        else
            m->base = to;
        i++;
    }
}

static void cut_card(struct vg_warden *w, struct vg_wspace *s, const uint8_t uuid[16]) {
    for (size_t i = s->n; i-- > 0;)
        if (!memcmp(s->map[i].uuid, uuid, 16))
            drop(w, s, i);
}

static void drop_space(struct vg_warden *w, struct vg_wspace *s) {
    while (s->n)
        drop(w, s, s->n - 1);
    vg_list_remove(&s->all);
    w->n_spaces--;
    w->ops.close(w->ops.ud, s->fd);
    free(s->map);
    free(s);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static int64_t issue(struct vg_warden *w, uint64_t process, int fd, uint32_t cmd, void *form) {
    return w->ops.issue(w->ops.ud, process, fd, cmd, form);
}

/* What is undone is undone by the warden, so that it knows whether it was. Forms are small; the
   status is their last word. */
static struct vg_warden_answer on_undo(struct vg_warden *w, const struct vg_warden_call *k, int fd,
                                       size_t bytes) {
    union {
        struct vg_uvm_free free;
        struct vg_uvm_unmap unmap;
        struct vg_uvm_card card;
    } f = {0};
    size_t at = bytes == sizeof(f.card) ? 16 : bytes - 8;
    if (w->ops.read(k->caller, k->arg, &f, bytes) != (int64_t)bytes)
        return failed(-EFAULT);
    int64_t r = issue(w, k->process, fd, k->cmd, &f);
    if (r < 0)
        return failed(r);
    uint32_t status;
    memcpy(&status, (uint8_t *)&f + at, sizeof(status));
    struct vg_wspace *s = status == VG_RM_OK ? space_of(w, fd) : NULL;
    if (s && bytes == sizeof(f.card))
        cut_card(w, s, f.card.uuid);
    else if (s && f.free.length <= UINT64_MAX - f.free.base)
        cut(w, s, f.free.base, f.free.base + f.free.length);
    return answer(w, k, at, status);
}

/* The process makes this call itself: the device belongs to whose memory it is to map. */
static struct vg_warden_answer on_initialize(struct vg_warden *w, const struct vg_warden_call *k) {
    const uint64_t flags = VG_UVM_NO_HMM;
    if (w->ops.write(k->caller, k->arg, &flags, sizeof(flags)) != (int64_t)sizeof(flags))
        return failed(-EFAULT);
    return (struct vg_warden_answer){.let = true};
}

/* Whether the device was told what on_initialize() wrote: asked twice, it compares. It must have
   been begun before, or it would become the warden's own. */
static bool is_without_hmm(struct vg_warden *w, uint64_t process, int fd) {
    struct vg_uvm_pageable p = {.status = VG_RM_NOT_SUPPORTED};
    struct vg_uvm_initialize i = {.flags = VG_UVM_NO_HMM, .status = VG_RM_NOT_SUPPORTED};
    return issue(w, process, fd, VG_UVM_PAGEABLE, &p) >= 0 && p.status == VG_RM_OK && !p.yes &&
           issue(w, process, fd, VG_UVM_INITIALIZE, &i) >= 0 && i.status == VG_RM_OK;
}

static struct vg_warden_answer on_register(struct vg_warden *w, const struct vg_warden_call *k,
                                           int *fd) {
    struct vg_uvm_register r;
    struct vg_wspace *s;
    const size_t at = offsetof(struct vg_uvm_register, status);
    if (w->ops.read(k->caller, k->arg, &r, sizeof(r)) != (int64_t)sizeof(r))
        return failed(-EFAULT);
    if (!is_without_hmm(w, k->process, *fd)) {
        w->stat.strange++;
        return answer(w, k, at, VG_RM_NOT_SUPPORTED);
    }
    int e = know_space(w, k->process, fd, &s);
    if (e < 0)
        return failed(e);
    int64_t v = issue(w, k->process, s->fd, k->cmd, &r);
    if (v < 0)
        return failed(v);
    (void)w->ops.write(k->caller, k->arg, &r, sizeof(r));
    return (struct vg_warden_answer){0};
}

/* ---- mapping --------------------------------------------------------------------------------- */

/* What a form says; where it says it is another place since drivers know more cards. */
struct mapping {
    uint64_t base, length, cards;
    uint8_t uuid[16];
    uint32_t client, object;
    size_t bytes;
    _Alignas(8) uint8_t form[VG_UVM_MAP_BYTES_MAX];
};

static size_t tail_of(const struct vg_warden *w) {
    return VG_UVM_MAP_HEAD + VG_UVM_MAP_CARD * (size_t)w->uvm_cards;
}

static int fetch(struct vg_warden *w, const struct vg_warden_call *k, struct mapping *m) {
    size_t tail = tail_of(w);
    m->bytes = tail + VG_UVM_MAP_TAIL;
    if (w->ops.read(k->caller, k->arg, m->form, m->bytes) != (int64_t)m->bytes)
        return -EFAULT;
    memcpy(&m->base, m->form, 8);
    memcpy(&m->length, m->form + 8, 8);
    memcpy(m->uuid, m->form + VG_UVM_MAP_HEAD, sizeof(m->uuid));
    memcpy(&m->cards, m->form + tail, 8);
    memcpy(&m->client, m->form + tail + 12, 4);
    memcpy(&m->object, m->form + tail + 16, 4);
    return 0;
}

static uint32_t share(struct vg_warden *w, const struct vg_wclient *c, uint32_t object,
                      uint8_t action) {
    struct vg_rm_share s = {.client = c->handle,
                            .object = object,
                            .rights = VG_RM_SHARE_DUP,
                            .type = VG_RM_SHARE_USER,
                            .action = action,
                            .status = VG_RM_NOT_SUPPORTED};
    uint32_t cmd = 3u << 30 | (uint32_t)sizeof(s) << 16 | VG_RM_TYPE << 8 | VG_RM_SHARE;
    int64_t r = issue(w, c->process, c->fd, cmd, &s);
    return r < 0 ? VG_RM_NOT_SUPPORTED : s.status;
}

static uint32_t map(struct vg_warden *w, const struct vg_warden_call *k, struct vg_wspace *s,
                    const struct vg_wclient *c, struct mapping *m) {
    uint32_t status = share(w, c, m->object, 0);
    if (status != VG_RM_OK)
        return status;
    int64_t r = issue(w, k->process, s->fd, k->cmd, m->form);
    memcpy(&status, m->form + m->bytes - 4, sizeof(status));
    (void)share(w, c, m->object, VG_RM_SHARE_REVOKE);
    return r < 0 ? VG_RM_NOT_SUPPORTED : status;
}

/* Memory of the card that is in no book did not come through here. What is in none otherwise is the
   process's own, pinned. */
static bool is_stray(struct vg_warden *w, const struct vg_wclient *c, uint32_t object) {
    struct vg_rm_surface_info info = {.index = VG_RM_SURFACE_SPACE};
    struct vg_rm_surface s = {.n = 1, .list = (uint64_t)(uintptr_t)&info};
    struct vg_rm_control q = {.client = c->handle,
                              .object = object,
                              .command = VG_RM_GET_SURFACE,
                              .params = (uint64_t)(uintptr_t)&s,
                              .params_bytes = sizeof(s),
                              .status = VG_RM_NOT_SUPPORTED};
    uint32_t cmd = 3u << 30 | (uint32_t)sizeof(q) << 16 | VG_RM_TYPE << 8 | VG_RM_CONTROL;
    return issue(w, c->process, c->fd, cmd, &q) < 0 || q.status != VG_RM_OK ||
           info.data != VG_RM_SPACE_HOST;
}

static struct vg_warden_answer on_map(struct vg_warden *w, const struct vg_warden_call *k,
                                      int *fd) {
    struct vg_wspace *s;
    vg_auto_free struct mapping *m = vg_alloc(sizeof(*m));
    int r = m ? fetch(w, k, m) : -ENOMEM;
    if (r >= 0)
        r = know_space(w, k->process, fd, &s);
    if (r < 0)
        return failed(r);
    struct vg_wclient *c = vg_wbooks_client(w, m->client);
    struct vg_wobject *o = vg_wbooks_object(w, m->client, m->object);
    if (!c || c->process != k->process || s->process != k->process || m->cards != 1 ||
        m->length > UINT64_MAX - m->base || (!o && is_stray(w, c, m->object))) {
        w->stat.strange++;
        return answer(w, k, m->bytes - 4, VG_RM_NOT_SUPPORTED);
    }
    struct vg_wmem *mem = o ? o->mem : NULL;
    if (mem && make_room(w, s) < 0)
        return answer(w, k, m->bytes - 4, VG_RM_NO_MEMORY);
    uint32_t status = map(w, k, s, c, m);
    if (status == VG_RM_OK) { /* what was mapped there before no longer is */
        cut(w, s, m->base, m->base + m->length);
        if (mem && m->length) {
            mem->refs++;
            struct vg_wmap one = {m->base, m->base + m->length, {0}, mem};
            memcpy(one.uuid, m->uuid, sizeof(one.uuid));
            put(w, s, find(s, m->base), one);
        }
    }
    return answer(w, k, m->bytes - 4, status);
}

/* Addresses without memory: what counts are their page tables, an entry for each 64 KiB. */
static struct vg_warden_answer on_sparse(struct vg_warden *w, const struct vg_warden_call *k,
                                         int *fd) {
    struct vg_uvm_unmap f;
    struct vg_wspace *s;
    const size_t at = offsetof(struct vg_uvm_unmap, status);
    if (w->ops.read(k->caller, k->arg, &f, sizeof(f)) != (int64_t)sizeof(f))
        return failed(-EFAULT);
    int r = know_space(w, k->process, fd, &s);
    if (r < 0)
        return failed(r);
    uint64_t bytes = (f.length / 65536 + 1) * 8;
    if (s->process != k->process || f.length > UINT64_MAX - f.base || !f.length) {
        w->stat.strange++;
        return answer(w, k, at, VG_RM_NOT_SUPPORTED);
    }
    struct vg_wmem *mem = NULL;
    if (make_room(w, s) >= 0 && vg_wbooks_fits(w, bytes))
        mem = vg_wmem_new(w, k->process, bytes);
    if (!mem) {
        w->stat.refused++;
        return answer(w, k, at, VG_RM_NO_MEMORY);
    }
    vg_wbooks_take(w, bytes);
    int64_t v = issue(w, k->process, s->fd, k->cmd, &f);
    if (v < 0 || f.status != VG_RM_OK) {
        vg_wmem_unref(w, mem);
        return v < 0 ? failed(v) : answer(w, k, at, f.status);
    }
    cut(w, s, f.base, f.base + f.length);
    struct vg_wmap one = {f.base, f.base + f.length, {0}, mem};
    memcpy(one.uuid, f.uuid, sizeof(one.uuid));
    put(w, s, find(s, f.base), one);
    return answer(w, k, at, f.status);
}

static struct vg_warden_answer on_device(struct vg_warden *w, const struct vg_warden_call *k,
                                         int *fd) {
    switch (k->cmd) {
    case VG_UVM_INITIALIZE:
        return on_initialize(w, k);
    case VG_UVM_REGISTER:
        return on_register(w, k, fd);
    case VG_UVM_MAP:
        return on_map(w, k, fd);
    case VG_UVM_SPARSE:
        return on_sparse(w, k, fd);
    case VG_UVM_FREE:
        return on_undo(w, k, *fd, sizeof(struct vg_uvm_free));
    case VG_UVM_UNMAP:
        return on_undo(w, k, *fd, sizeof(struct vg_uvm_unmap));
    case VG_UVM_UNREGISTER:
    case VG_UVM_UNREGISTER_SPACE:
        return on_undo(w, k, *fd, sizeof(struct vg_uvm_card));
    default:
        w->stat.strange++;
        return failed(-EPERM);
    }
}

struct vg_warden_answer vg_wuvm_call(struct vg_warden *w, const struct vg_warden_call *k) {
    if (w->mps) /* its processes and the server's use each other's openings and objects */
        return (struct vg_warden_answer){.let = true};
    int fd = w->ops.borrow_uvm(k->caller, k->fd);
    if (fd < 0)
        return failed(fd);
    struct vg_warden_answer a = on_device(w, k, &fd);
    if (fd >= 0)
        w->ops.close(w->ops.ud, fd);
    return a;
}

/* The descriptor may live on in another process: what was mapped is undone at the device. */
static void unmap_all(struct vg_warden *w, struct vg_wspace *s) {
    while (s->n) {
        struct vg_uvm_card f = {.status = 0};
        memcpy(f.uuid, s->map[0].uuid, sizeof(f.uuid));
        (void)issue(w, s->process, s->fd, VG_UVM_UNREGISTER_SPACE, &f);
        cut_card(w, s, f.uuid);
    }
}

void vg_wuvm_gone(struct vg_warden *w, uint64_t process) {
    for (struct vg_list *item = w->spaces.next, *next; item != &w->spaces; item = next) {
        struct vg_wspace *s = vg_list_entry(item, struct vg_wspace, all);
        next = item->next;
        if (s->process != process)
            continue;
        unmap_all(w, s);
        drop_space(w, s);
    }
}

void vg_wuvm_done(struct vg_warden *w) {
    for (struct vg_list *item; (item = vg_list_first(&w->spaces));)
        drop_space(w, vg_list_entry(item, struct vg_wspace, all));
}
