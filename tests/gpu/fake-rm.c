/* The stand-in driver; see the header. A table and straight lines: nothing here need be fast. */
#include "fake-rm.h"

#include "gpu/rm.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OBJECTS 65536u
#define PAGE UINT64_C(65536)
#define GROUP_BYTES (UINT64_C(2) << 20) /* buffers and page tables of a group of channels */

struct object {
    bool live, shared;
    uint32_t client, handle, parent, class_id;
    uint32_t memory; /* index of the memory it names, + 1 */
    uint64_t slice;
    bool held;
    uint32_t card;
    uint64_t process; /* of a client */
};

struct memory {
    uint64_t bytes;
    uint32_t refs, card;
};

struct fake_rm {
    pthread_mutex_t lock;
    uint64_t card, used, peak, more;
    uint32_t more_n, fail_n, n, n_memory, next, calls[256];
    struct fake_rm_card cards[FAKE_RM_CARDS];
    bool (*may)(void *ud, uint64_t process, uint32_t card);
    void *may_ud;
    struct object object[OBJECTS];
    struct memory memory[OBJECTS];
};

struct fake_rm *fake_rm_new(uint64_t card_bytes) {
    struct fake_rm *rm = calloc(1, sizeof(*rm));
    if (!rm)
        abort();
    pthread_mutex_init(&rm->lock, NULL);
    rm->card = card_bytes;
    rm->next = 0xc1d00001;
    return rm;
}

void fake_rm_free(struct fake_rm *rm) {
    pthread_mutex_destroy(&rm->lock);
    free(rm);
}

static struct object *find(struct fake_rm *rm, uint32_t client, uint32_t handle) {
    for (uint32_t i = 0; i < rm->n; i++)
        if (rm->object[i].live && rm->object[i].client == client && rm->object[i].handle == handle)
            return &rm->object[i];
    return NULL;
}

static struct object *add(struct fake_rm *rm, uint32_t client, uint32_t parent, uint32_t handle,
                          uint32_t class_id) {
    uint32_t i = 0;
    while (i < rm->n && rm->object[i].live)
        i++;
    if (i == OBJECTS)
        abort();
    if (i == rm->n)
        rm->n++;
    rm->object[i] = (struct object){
        .live = true, .client = client, .handle = handle, .parent = parent, .class_id = class_id};
    return &rm->object[i];
}

static void release(struct fake_rm *rm, uint32_t memory) {
    struct memory *m = memory ? &rm->memory[memory - 1] : NULL;
    if (m && --m->refs == 0) {
        rm->used -= m->bytes;
        rm->cards[m->card].used -= m->bytes;
    }
}

static void drop(struct fake_rm *rm, struct object *o) {
    o->live = false;
    release(rm, o->memory);
    for (uint32_t i = 0; i < rm->n; i++) {
        struct object *below = &rm->object[i];
        if (below->live && below->client == o->client && below->parent == o->handle && below != o)
            drop(rm, below);
    }
}

uint32_t fake_rm_client(struct fake_rm *rm, uint64_t process) {
    pthread_mutex_lock(&rm->lock);
    uint32_t handle = rm->next++;
    add(rm, handle, 0, handle, VG_RM_CLASS_ROOT_CLIENT)->process = process;
    pthread_mutex_unlock(&rm->lock);
    return handle;
}

static uint32_t take_bytes(struct fake_rm *rm, struct object *o, uint64_t bytes) {
    struct fake_rm_card *card = &rm->cards[o->card];
    if (card->lost)
        return FAKE_RM_LOST;
    if (bytes > rm->card - card->used)
        return VG_RM_NO_MEMORY;
    uint32_t i = 0;
    while (i < rm->n_memory && rm->memory[i].refs)
        i++;
    if (i == OBJECTS)
        abort();
    if (i == rm->n_memory)
        rm->n_memory++;
    rm->used += bytes;
    card->used += bytes;
    if (rm->used > rm->peak)
        rm->peak = rm->used;
    if (card->used > card->peak)
        card->peak = card->used;
    rm->memory[i] = (struct memory){bytes, 1, o->card};
    o->memory = i + 1;
    return VG_RM_OK;
}

static uint32_t take(struct fake_rm *rm, struct object *o, struct vg_rm_memory *m) {
    uint64_t bytes = (m->size + PAGE - 1) / PAGE * PAGE;
    if (rm->more_n) {
        rm->more_n--;
        bytes += rm->more;
    }
    if (rm->fail_n) {
        rm->fail_n--;
        return VG_RM_NO_MEMORY;
    }
    uint32_t status = take_bytes(rm, o, bytes);
    if (status == VG_RM_OK)
        m->size = bytes;
    return status;
}

/* A device object says which card what hangs below it is of. */
static uint32_t place(struct fake_rm *rm, struct object *o, const void *params) {
    struct object *up = find(rm, o->client, o->parent), *client = find(rm, o->client, o->client);
    o->card = up->card;
    if (o->class_id != FAKE_RM_CLASS_DEVICE)
        return VG_RM_OK;
    if (!params)
        return VG_RM_INVALID_CLASS;
    memcpy(&o->card, params, sizeof(o->card));
    if (o->card >= FAKE_RM_CARDS || (rm->may && !rm->may(rm->may_ud, client->process, o->card)))
        return VG_RM_NOT_SUPPORTED;
    return rm->cards[o->card].lost ? FAKE_RM_LOST : VG_RM_OK;
}

static uint32_t alloc(struct fake_rm *rm, uint32_t client, uint32_t parent, uint32_t *object,
                      uint32_t class_id, void *params) {
    if (class_id == VG_RM_CLASS_ROOT || class_id == VG_RM_CLASS_ROOT_CLIENT ||
        class_id == VG_RM_CLASS_EVENT_OS || class_id > 0xffff)
        abort(); /* never made in another's stead; no such class */
    if (!find(rm, client, client) || !find(rm, client, parent))
        return VG_RM_INSUFFICIENT_RESOURCES;
    if (!*object)
        *object = rm->next++;
    if (find(rm, client, *object))
        return VG_RM_INSUFFICIENT_RESOURCES;
    struct object *o = add(rm, client, parent, *object, class_id);
    struct vg_rm_memory *m = params;
    uint32_t status = place(rm, o, params);
    if (status == VG_RM_OK && class_id == VG_RM_CLASS_MEMORY_LOCAL &&
        !(m->flags & VG_RM_MEMORY_VIRTUAL))
        status = take(rm, o, m);
    if (status == VG_RM_OK && class_id == VG_RM_CLASS_CHANNEL_GROUP)
        status = take_bytes(rm, o, GROUP_BYTES); /* what nobody asked for */
    if (class_id == VG_RM_CLASS_CHANNEL_GROUP)
        o->slice = 2048;
    if (status != VG_RM_OK)
        o->live = false;
    return status;
}

static void dup(struct fake_rm *rm, struct vg_rm_dup *d) {
    struct object *from = find(rm, d->from_client, d->from_object);
    d->status = VG_RM_INSUFFICIENT_RESOURCES;
    if (!from || !find(rm, d->client, d->parent) || (d->object && find(rm, d->client, d->object)))
        return;
    if (!d->object)
        d->object = rm->next++;
    struct object *o = add(rm, d->client, d->parent, d->object, from->class_id);
    o->memory = from->memory;
    o->card = from->card;
    if (o->memory)
        rm->memory[o->memory - 1].refs++;
    d->status = VG_RM_OK;
}

static void memory_info(const struct fake_rm *rm, struct vg_rm_control *c) {
    struct fake_rm_info *info = (void *)(uintptr_t)c->params;
    if (c->params_bytes != sizeof(*info) || info->card >= FAKE_RM_CARDS)
        abort();
    info->total = rm->card;
    info->used = rm->cards[info->card].used;
    c->status = rm->cards[info->card].lost ? FAKE_RM_LOST : VG_RM_OK;
}

static void control(struct fake_rm *rm, struct vg_rm_control *c) {
    struct object *o = find(rm, c->client, c->object);
    uint64_t *usec = (uint64_t *)(uintptr_t)c->params;
    if (c->command == VG_RM_GET_SURFACE) {
        const struct vg_rm_surface *s = (void *)(uintptr_t)c->params;
        struct vg_rm_surface_info *info = (void *)(uintptr_t)s->list;
        c->status = o ? VG_RM_OK : VG_RM_INSUFFICIENT_RESOURCES;
        info->data = o && o->memory ? VG_RM_SPACE_HOST + 1 : VG_RM_SPACE_HOST;
        return;
    }
    if (c->command == FAKE_RM_MEMORY_INFO) {
        memory_info(rm, c);
        return;
    }
    c->status = o && o->class_id == VG_RM_CLASS_CHANNEL_GROUP ? VG_RM_OK : VG_RM_INVALID_CLASS;
    bool is_group = c->status == VG_RM_OK;
    switch (c->command) {
    case VG_RM_SET_TIMESLICE:
        if (is_group)
            o->slice = *usec;
        break;
    case VG_RM_GET_TIMESLICE:
        if (is_group)
            *usec = o->slice;
        break;
    case FAKE_RM_GROUP_SCHEDULE:
        if (is_group)
            o->held = !*(const uint8_t *)usec;
        break;
    default:
        fprintf(stderr, "fake-rm: unknown control %#x\n", c->command);
        abort();
    }
}

static int64_t call(struct fake_rm *rm, uint32_t cmd, void *arg) {
    uint32_t bytes = cmd >> 16 & 0x3fff;
    struct vg_rm_alloc *a = arg;
    struct vg_rm_alloc_old *old = arg;
    struct vg_rm_free *f = arg;
    switch (cmd & 0xff) {
    case VG_RM_ALLOC:
        if (bytes == sizeof(*a))
            a->status = alloc(rm, a->client, a->parent, &a->object, a->class_id,
                              (void *)(uintptr_t)a->params);
        else if (bytes == sizeof(*old))
            old->status = alloc(rm, old->client, old->parent, &old->object, old->class_id,
                                (void *)(uintptr_t)old->params);
        else
            return -EINVAL;
        return 0;
    case VG_RM_FREE: {
        struct object *o = find(rm, f->client, f->object);
        f->status = o ? VG_RM_OK : VG_RM_INSUFFICIENT_RESOURCES;
        if (o)
            drop(rm, o);
        return 0;
    }
    case VG_RM_DUP_OBJECT:
        dup(rm, arg);
        return 0;
    case VG_RM_CONTROL:
        control(rm, arg);
        return 0;
    case VG_RM_SHARE: {
        struct vg_rm_share *h = arg;
        struct object *o = find(rm, h->client, h->object);
        h->status = o && h->type == VG_RM_SHARE_USER && h->rights == VG_RM_SHARE_DUP
                        ? VG_RM_OK
                        : VG_RM_INSUFFICIENT_RESOURCES;
        if (h->status == VG_RM_OK)
            o->shared = h->action != VG_RM_SHARE_REVOKE;
        return 0;
    }
    default:
        fprintf(stderr, "fake-rm: unknown call %#x\n", cmd);
        abort();
    }
}

int64_t fake_rm_ioctl(struct fake_rm *rm, uint64_t process, uint32_t cmd, void *arg) {
    (void)process;
    if ((cmd >> 8 & 0xff) != VG_RM_TYPE)
        abort();
    pthread_mutex_lock(&rm->lock);
    rm->calls[cmd & 0xff]++;
    int64_t r = call(rm, cmd, arg);
    pthread_mutex_unlock(&rm->lock);
    return r;
}

int fake_rm_hold(struct fake_rm *rm, uint32_t client, uint32_t object, uint32_t *ret) {
    pthread_mutex_lock(&rm->lock);
    struct object *o = find(rm, client, object);
    int r = o && o->shared ? 0 : -EPERM;
    if (r >= 0 && o->memory)
        rm->memory[o->memory - 1].refs++;
    if (r >= 0)
        *ret = o->memory;
    pthread_mutex_unlock(&rm->lock);
    return r;
}

void fake_rm_hold_more(struct fake_rm *rm, uint32_t memory) {
    pthread_mutex_lock(&rm->lock);
    if (memory)
        rm->memory[memory - 1].refs++;
    pthread_mutex_unlock(&rm->lock);
}

void fake_rm_let_go(struct fake_rm *rm, uint32_t memory) {
    pthread_mutex_lock(&rm->lock);
    release(rm, memory);
    pthread_mutex_unlock(&rm->lock);
}

static uint64_t locked(struct fake_rm *rm, const uint64_t *value) {
    pthread_mutex_lock(&rm->lock);
    uint64_t v = *value;
    pthread_mutex_unlock(&rm->lock);
    return v;
}

uint64_t fake_rm_used(struct fake_rm *rm) {
    return locked(rm, &rm->used);
}

uint64_t fake_rm_peak(struct fake_rm *rm) {
    return locked(rm, &rm->peak);
}

uint64_t fake_rm_slice(struct fake_rm *rm, uint32_t client, uint32_t group) {
    pthread_mutex_lock(&rm->lock);
    struct object *o = find(rm, client, group);
    uint64_t v = o ? o->slice : 0;
    pthread_mutex_unlock(&rm->lock);
    return v;
}

void fake_rm_set_slice(struct fake_rm *rm, uint32_t client, uint32_t group, uint64_t usec) {
    pthread_mutex_lock(&rm->lock);
    struct object *o = find(rm, client, group);
    if (!o)
        abort();
    o->slice = usec;
    pthread_mutex_unlock(&rm->lock);
}

void fake_rm_round_up(struct fake_rm *rm, uint32_t n, uint64_t more) {
    rm->more_n = n;
    rm->more = more;
}

uint32_t fake_rm_calls(struct fake_rm *rm, uint8_t number) {
    pthread_mutex_lock(&rm->lock);
    uint32_t n = rm->calls[number];
    pthread_mutex_unlock(&rm->lock);
    return n;
}

/* ---- several cards, processes, time ---------------------------------------------------------- */

void fake_rm_set_may(struct fake_rm *rm, bool (*may)(void *ud, uint64_t process, uint32_t card),
                     void *ud) {
    rm->may = may;
    rm->may_ud = ud;
}

void fake_rm_close(struct fake_rm *rm, uint32_t client) {
    pthread_mutex_lock(&rm->lock);
    struct object *o = find(rm, client, client);
    if (o) /* else it was freed by its name */
        drop(rm, o);
    pthread_mutex_unlock(&rm->lock);
}

static uint64_t bytes_of(const struct fake_rm *rm, uint32_t client) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < rm->n; i++) {
        const struct object *o = &rm->object[i];
        if (o->live && o->client == client && o->memory)
            sum += rm->memory[o->memory - 1].bytes;
    }
    return sum;
}

size_t fake_rm_clients(struct fake_rm *rm, struct fake_rm_client_stat *ret, size_t max) {
    size_t n = 0;
    pthread_mutex_lock(&rm->lock);
    for (uint32_t i = 0; i < rm->n && n < max; i++) {
        const struct object *o = &rm->object[i];
        if (o->live && o->client == o->handle)
            ret[n++] = (struct fake_rm_client_stat){o->client, o->process, bytes_of(rm, o->client)};
    }
    pthread_mutex_unlock(&rm->lock);
    return n;
}

size_t fake_rm_groups(struct fake_rm *rm, struct fake_rm_group *ret, size_t max) {
    size_t n = 0;
    pthread_mutex_lock(&rm->lock);
    for (uint32_t i = 0; i < rm->n && n < max; i++) {
        const struct object *o = &rm->object[i];
        if (!o->live || o->class_id != VG_RM_CLASS_CHANNEL_GROUP)
            continue;
        const struct object *client = find(rm, o->client, o->client);
        ret[n++] = (struct fake_rm_group){
            o->client, o->handle, o->card, client ? client->process : 0, o->slice, o->held};
    }
    pthread_mutex_unlock(&rm->lock);
    return n;
}

struct fake_rm_card fake_rm_card(struct fake_rm *rm, uint32_t card) {
    pthread_mutex_lock(&rm->lock);
    struct fake_rm_card c = rm->cards[card];
    pthread_mutex_unlock(&rm->lock);
    return c;
}

void fake_rm_new_peak(struct fake_rm *rm) {
    pthread_mutex_lock(&rm->lock);
    rm->peak = rm->used;
    for (uint32_t i = 0; i < FAKE_RM_CARDS; i++)
        rm->cards[i].peak = rm->cards[i].used;
    pthread_mutex_unlock(&rm->lock);
}

void fake_rm_lose(struct fake_rm *rm, uint32_t card, bool lost) {
    pthread_mutex_lock(&rm->lock);
    rm->cards[card].lost = lost;
    pthread_mutex_unlock(&rm->lock);
}

void fake_rm_fail(struct fake_rm *rm, uint32_t n) {
    pthread_mutex_lock(&rm->lock);
    rm->fail_n = n;
    pthread_mutex_unlock(&rm->lock);
}

void fake_rm_divide(const struct fake_rm_group *group, size_t n, uint64_t usec,
                    uint64_t *ret_usec) {
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        any |= !group[i].held && group[i].slice_usec;
        ret_usec[i] = 0;
    }
    for (size_t i = 0; any && usec; i = (i + 1) % n) {
        uint64_t turn = group[i].held ? 0 : group[i].slice_usec;
        turn = turn < usec ? turn : usec;
        ret_usec[i] += turn;
        usec -= turn;
    }
}
