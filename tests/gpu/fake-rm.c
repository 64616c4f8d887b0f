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

struct object {
    bool live;
    uint32_t client, handle, parent, class_id;
    uint32_t memory; /* index of the memory it names, + 1 */
    uint64_t slice;
};

struct memory {
    uint64_t bytes;
    uint32_t refs;
};

struct fake_rm {
    pthread_mutex_t lock;
    uint64_t card, used, peak, more;
    uint32_t more_n, n, n_memory, next, calls[256];
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
    rm->object[i] = (struct object){true, client, handle, parent, class_id, 0, 0};
    return &rm->object[i];
}

static void drop(struct fake_rm *rm, struct object *o) {
    o->live = false;
    if (o->memory) {
        struct memory *m = &rm->memory[o->memory - 1];
        if (--m->refs == 0)
            rm->used -= m->bytes;
    }
    for (uint32_t i = 0; i < rm->n; i++) {
        struct object *below = &rm->object[i];
        if (below->live && below->client == o->client && below->parent == o->handle && below != o)
            drop(rm, below);
    }
}

uint32_t fake_rm_client(struct fake_rm *rm, uint64_t process) {
    (void)process;
    pthread_mutex_lock(&rm->lock);
    uint32_t handle = rm->next++;
    add(rm, handle, 0, handle, VG_RM_CLASS_ROOT_CLIENT);
    pthread_mutex_unlock(&rm->lock);
    return handle;
}

static uint32_t take(struct fake_rm *rm, struct object *o, struct vg_rm_memory *m) {
    uint64_t bytes = (m->size + PAGE - 1) / PAGE * PAGE;
    if (rm->more_n) {
        rm->more_n--;
        bytes += rm->more;
    }
    if (bytes > rm->card - rm->used)
        return VG_RM_NO_MEMORY;
    if (rm->n_memory == OBJECTS)
        abort();
    rm->used += bytes;
    if (rm->used > rm->peak)
        rm->peak = rm->used;
    rm->memory[rm->n_memory] = (struct memory){bytes, 1};
    o->memory = ++rm->n_memory;
    m->size = bytes;
    return VG_RM_OK;
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
    uint32_t status = VG_RM_OK;
    if (class_id == VG_RM_CLASS_MEMORY_LOCAL && !(m->flags & VG_RM_MEMORY_VIRTUAL))
        status = take(rm, o, m);
    if (class_id == VG_RM_CLASS_CHANNEL_GROUP)
        o->slice = 2048;
    if (status != VG_RM_OK)
        o->live = false;
    return status;
}

static void dup(struct fake_rm *rm, struct vg_rm_dup *d) {
    struct object *from = find(rm, d->from_client, d->from_object);
    d->status = VG_RM_INSUFFICIENT_RESOURCES;
    if (!from || !find(rm, d->client, d->parent))
        return;
    if (!d->object)
        d->object = rm->next++;
    struct object *o = add(rm, d->client, d->parent, d->object, from->class_id);
    o->memory = from->memory;
    if (o->memory)
        rm->memory[o->memory - 1].refs++;
    d->status = VG_RM_OK;
}

static void control(struct fake_rm *rm, struct vg_rm_control *c) {
    struct object *o = find(rm, c->client, c->object);
    uint64_t *usec = (uint64_t *)(uintptr_t)c->params;
    if (c->command != VG_RM_SET_TIMESLICE && c->command != VG_RM_GET_TIMESLICE)
        abort();
    c->status = o && o->class_id == VG_RM_CLASS_CHANNEL_GROUP ? VG_RM_OK : VG_RM_INVALID_CLASS;
    if (c->status == VG_RM_OK && c->command == VG_RM_SET_TIMESLICE)
        o->slice = *usec;
    else if (c->status == VG_RM_OK)
        *usec = o->slice;
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
