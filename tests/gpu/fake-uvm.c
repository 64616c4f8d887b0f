/* See the header. Straight lines: nothing here need be fast. */
#include "fake-uvm.h"

#include "gpu/rm.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define OPENINGS 64u
#define MAPPED 8192u

struct opening {
    uint64_t number, flags;
    bool begun, card;
};

struct mapped {
    bool live;
    uint64_t opening, base, end;
    uint32_t memory; /* as fake_rm_hold() names it */
};

struct fake_uvm {
    pthread_mutex_t lock;
    struct fake_rm *rm;
    struct opening opening[OPENINGS];
    struct mapped mapped[MAPPED];
    uint32_t n_mapped;
};

struct fake_uvm *fake_uvm_new(struct fake_rm *rm) {
    struct fake_uvm *u = calloc(1, sizeof(*u));
    if (!u)
        abort();
    pthread_mutex_init(&u->lock, NULL);
    u->rm = rm;
    return u;
}

void fake_uvm_free(struct fake_uvm *u) {
    pthread_mutex_destroy(&u->lock);
    free(u);
}

static bool is_the_card(const uint8_t uuid[16]) {
    return memcmp(uuid, "the card\0\0\0\0\0\0\0", 16) == 0;
}

static struct opening *open_of(struct fake_uvm *u, uint64_t number) {
    struct opening *o = u->opening;
    while (o->begun && o->number != number)
        if (++o == u->opening + OPENINGS)
            abort();
    o->number = number;
    return o;
}

void fake_uvm_begin(struct fake_uvm *u, uint64_t opening, uint64_t flags) {
    pthread_mutex_lock(&u->lock);
    struct opening *o = open_of(u, opening);
    if (!o->begun)
        o->flags = flags;
    o->begun = true;
    pthread_mutex_unlock(&u->lock);
}

static struct mapped *put_mapped(struct fake_uvm *u, struct mapped m) {
    uint32_t i = 0;
    while (i < u->n_mapped && u->mapped[i].live)
        i++;
    if (i == MAPPED)
        abort();
    if (i == u->n_mapped)
        u->n_mapped++;
    u->mapped[i] = m;
    return &u->mapped[i];
}

/* How many were touched. */
static unsigned unmap(struct fake_uvm *u, uint64_t opening, uint64_t from, uint64_t to) {
    unsigned n = 0;
    for (uint32_t i = 0; i < u->n_mapped; i++) {
        struct mapped *m = &u->mapped[i];
        if (!m->live || m->opening != opening || m->end <= from || to <= m->base)
            continue;
        n++;
        struct mapped rest = *m;
        rest.base = to;
        if (to < m->end) {
            fake_rm_hold_more(u->rm, m->memory);
            put_mapped(u, rest);
        }
        if (m->base < from) {
            m->end = from;
        } else {
            m->live = false;
            fake_rm_let_go(u->rm, m->memory);
        }
    }
    return n;
}

static uint32_t map(struct fake_uvm *u, const struct opening *o, const uint8_t *form) {
    const size_t tail = VG_UVM_MAP_HEAD + VG_UVM_MAP_CARD * VG_UVM_CARDS;
    uint64_t base, length, cards;
    uint32_t client, object;
    memcpy(&base, form, 8);
    memcpy(&length, form + 8, 8);
    memcpy(&cards, form + tail, 8);
    memcpy(&client, form + tail + 12, 4);
    memcpy(&object, form + tail + 16, 4);
    uint32_t memory;
    if (!o->card || cards != 1 || !length || base + length < base)
        return VG_RM_NOT_SUPPORTED;
    if (fake_rm_hold(u->rm, client, object, &memory) < 0)
        return VG_RM_INSUFFICIENT_RESOURCES;
    unmap(u, o->number, base, base + length);
    put_mapped(u, (struct mapped){true, o->number, base, base + length, memory});
    return VG_RM_OK;
}

static void uvm(struct fake_uvm *u, struct opening *o, uint32_t cmd, void *arg) {
    struct vg_uvm_initialize *init = arg;
    struct vg_uvm_pageable *pageable = arg;
    struct vg_uvm_card *card = arg;
    struct vg_uvm_unmap *range = arg;
    struct vg_uvm_free *whole = arg;
    switch (cmd) {
    case VG_UVM_INITIALIZE:
        if (!o->begun)
            abort(); /* it would be the warden's own */
        init->status = init->flags == o->flags ? VG_RM_OK : VG_RM_NOT_SUPPORTED;
        break;
    case VG_UVM_PAGEABLE:
        pageable->yes = !(o->flags & VG_UVM_NO_HMM);
        pageable->status = o->begun ? VG_RM_OK : VG_RM_NOT_SUPPORTED;
        break;
    case VG_UVM_REGISTER:
        if (!(o->flags & VG_UVM_NO_HMM))
            abort(); /* pages could move to the card from now on */
        o->card = true;
        ((struct vg_uvm_register *)arg)->status = VG_RM_OK;
        break;
    case VG_UVM_UNREGISTER:
    case VG_UVM_UNREGISTER_SPACE:
        card->status = o->card && is_the_card(card->uuid) ? VG_RM_OK : VG_RM_NOT_SUPPORTED;
        if (card->status != VG_RM_OK)
            break;
        unmap(u, o->number, 0, UINT64_MAX);
        if (cmd == VG_UVM_UNREGISTER)
            o->card = false;
        break;
    case VG_UVM_SPARSE:
        range->status = o->card && is_the_card(range->uuid) ? VG_RM_OK : VG_RM_NOT_SUPPORTED;
        if (range->status != VG_RM_OK)
            break;
        unmap(u, o->number, range->base, range->base + range->length);
        put_mapped(u,
                   (struct mapped){true, o->number, range->base, range->base + range->length, 0});
        break;
    case VG_UVM_UNMAP:
        range->status = is_the_card(range->uuid) && range->base + range->length > range->base &&
                                unmap(u, o->number, range->base, range->base + range->length)
                            ? VG_RM_OK
                            : VG_RM_NOT_SUPPORTED;
        break;
    case VG_UVM_FREE:
        whole->status = whole->base + whole->length > whole->base &&
                                unmap(u, o->number, whole->base, whole->base + whole->length)
                            ? VG_RM_OK
                            : VG_RM_NOT_SUPPORTED;
        break;
    default:
        abort();
    }
}

int64_t fake_uvm_ioctl(struct fake_uvm *u, uint64_t opening, uint32_t cmd, void *arg) {
    pthread_mutex_lock(&u->lock);
    struct opening *o = open_of(u, opening);
    if (cmd == VG_UVM_MAP) {
        uint32_t status = map(u, o, arg);
        memcpy((uint8_t *)arg + VG_UVM_MAP_BYTES_MAX - 4, &status, 4);
    } else {
        uvm(u, o, cmd, arg);
    }
    pthread_mutex_unlock(&u->lock);
    return 0;
}

uint64_t fake_uvm_mapped(struct fake_uvm *u) {
    pthread_mutex_lock(&u->lock);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < u->n_mapped; i++)
        if (u->mapped[i].live)
            sum += u->mapped[i].end - u->mapped[i].base;
    pthread_mutex_unlock(&u->lock);
    return sum;
}

void fake_uvm_form(uint8_t *form, uint64_t base, uint64_t bytes, uint32_t client, uint32_t object) {
    uint8_t *tail = form + VG_UVM_MAP_HEAD + VG_UVM_MAP_CARD * VG_UVM_CARDS;
    const uint64_t cards = 1;
    const uint32_t status = 0x77;
    memset(form, 0, VG_UVM_MAP_BYTES_MAX);
    memcpy(form, &base, 8);
    memcpy(form + 8, &bytes, 8);
    memcpy(form + VG_UVM_MAP_HEAD, "the card", 8);
    memcpy(tail, &cards, 8);
    memcpy(tail + 12, &client, 4);
    memcpy(tail + 16, &object, 4);
    memcpy(tail + 20, &status, 4);
}

uint32_t fake_uvm_status(const uint8_t *form) {
    uint32_t status;
    memcpy(&status, form + VG_UVM_MAP_BYTES_MAX - 4, 4);
    return status;
}
