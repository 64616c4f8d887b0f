/* Any bytes as calls of three processes to the warden of a shared GPU, before the stand-in driver:
   known and mangled handles, forms that are not there, descriptors and memory that cannot be had,
   drivers that round up, processes that end, shares that change. After each, both sides count the
   same and no more is out than the share; in the end nothing is. */
#include "base/fault.h"
#include "warden-world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CLIENTS 4u
#define HANDLES 12u
#define UVM 100
#define AT UINT64_C(0x7f0000000000)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    const uint8_t *at, *end;
};

static uint8_t byte(struct input *in) {
    return in->at < in->end ? *in->at++ : 0;
}

struct play {
    struct ww v;
    struct input in;
    uint32_t client[CLIENTS];
    uint32_t handle[HANDLES];
};

/* Mostly one that means something. */
static uint32_t a_client(struct play *p) {
    uint8_t b = byte(&p->in);
    return b < 240 ? p->client[b % CLIENTS] : b * 0x01010101u;
}

static uint32_t a_handle(struct play *p) {
    uint8_t b = byte(&p->in);
    return b < 240 ? p->handle[b % HANDLES] : b < 248 ? p->client[b % CLIENTS] : b * 0x00010101u;
}

static uint64_t a_process(struct play *p) {
    return 1 + byte(&p->in) % 3u;
}

static uint64_t a_size(struct play *p) {
    uint8_t b = byte(&p->in);
    return b < 250 ? (uint64_t)b * 65536u * (byte(&p->in) % 8u) + b % 3u : UINT64_MAX - (b % 4u);
}

static uint32_t a_class(struct play *p) {
    static const uint16_t classes[] = {0x40, 0x40, 0x40, 0x40, 0x80, 0x3e,   0x71,   0xa06c,
                                       0x00, 0x01, 0x05, 0x41, 0x79, 0x0078, 0x007e, 0x2080};
    return classes[byte(&p->in) % 16];
}

static void *or_nothing(struct play *p, void *form) {
    return byte(&p->in) == 255 ? NULL : form;
}

static void allocate(struct play *p, bool old) {
    struct vg_rm_memory m = {.owner = byte(&p->in) % 3u, .size = a_size(p)};
    m.flags = byte(&p->in) > 250 ? VG_RM_MEMORY_VIRTUAL : 0;
    struct vg_rm_alloc a = {.client = a_client(p)};
    uint8_t how = byte(&p->in);
    a.parent = how & 1 ? a_handle(p) : a.client;
    a.object = how & 2 ? a_handle(p) : 0;
    a.class_id = a_class(p);
    a.params = how >= 252 ? how % 2 : (uint64_t)(uintptr_t)&m;
    a.rights = how == 251 ? 4096 : 0;
    struct vg_rm_alloc_old o = {a.client, a.parent, a.object, a.class_id, a.params, 0, 0};
    uint64_t who = a_process(p);
    uint32_t *object = &p->handle[byte(&p->in) % HANDLES];
    if (old && !ww_call(&p->v, who, WW_CMD(VG_RM_ALLOC, o), or_nothing(p, &o)).error && !o.status)
        *object = o.object;
    if (!old && !ww_call(&p->v, who, WW_CMD(VG_RM_ALLOC, a), or_nothing(p, &a)).error && !a.status)
        *object = a.object;
}

static void release(struct play *p) {
    uint32_t client = a_client(p);
    struct vg_rm_free f = {client, client, a_handle(p), 0};
    ww_call(&p->v, a_process(p), WW_CMD(VG_RM_FREE, f), or_nothing(p, &f));
}

static void name_again(struct play *p) {
    struct vg_rm_dup d = {.client = a_client(p)};
    uint8_t how = byte(&p->in);
    d.parent = how & 1 ? a_handle(p) : d.client;
    d.object = how & 2 ? a_handle(p) : 0;
    d.from_client = how & 4 ? a_client(p) : d.client;
    d.from_object = a_handle(p);
    if (!ww_call(&p->v, a_process(p), WW_CMD(VG_RM_DUP_OBJECT, d), or_nothing(p, &d)).error &&
        !d.status)
        p->handle[how % HANDLES] = d.object;
}

static void control(struct play *p) {
    static const uint32_t commands[] = {VG_RM_SET_TIMESLICE, VG_RM_GET_TIMESLICE, 0xa06c0110,
                                        0x20800102};
    uint64_t usec = byte(&p->in);
    struct vg_rm_control c = {.client = a_client(p),
                              .object = a_handle(p),
                              .command = commands[byte(&p->in) % 4],
                              .params = (uint64_t)(uintptr_t)&usec};
    ww_call(&p->v, a_process(p), WW_CMD(VG_RM_CONTROL, c), or_nothing(p, &c));
}

static void map(struct play *p, bool undo) {
    uint64_t who = a_process(p), base = AT + byte(&p->in) % 32u * MIB, bytes = a_size(p);
    int fd = UVM + byte(&p->in) % 4;
    if (byte(&p->in) > 250)
        base = UINT64_MAX - base;
    if (undo)
        ww_unmap(&p->v, who, fd, base, bytes);
    else
        ww_map(&p->v, who, fd, base, bytes, a_client(p), a_handle(p));
}

static void other_device(struct play *p) {
    static const uint32_t numbers[] = {VG_UVM_FREE,     VG_UVM_UNREGISTER_SPACE, VG_UVM_UNREGISTER,
                                       VG_UVM_REGISTER, VG_UVM_INITIALIZE,       51};
    union {
        struct vg_uvm_free free;
        struct vg_uvm_card card;
        struct vg_uvm_register reg;
    } f = {.free = {.base = AT + byte(&p->in) % 32u * MIB, .length = a_size(p)}};
    uint32_t number = numbers[byte(&p->in) % 6];
    if (number == VG_UVM_UNREGISTER_SPACE || number == VG_UVM_UNREGISTER)
        memcpy(f.card.uuid, "the card", 9);
    ww_call_on(&p->v, a_process(p), UVM + byte(&p->in) % 5, number, or_nothing(p, &f));
}

static void anything(struct play *p) {
    uint8_t form[64];
    for (size_t i = 0; i < sizeof(form); i++)
        form[i] = byte(&p->in);
    uint32_t cmd = (uint32_t)byte(&p->in) << 16 | VG_RM_TYPE << 8;
    static const uint8_t numbers[] = {VG_RM_ALLOC_MEMORY, VG_RM_ALLOC_OBJECT, VG_RM_VID_HEAP,
                                      VG_RM_IMPORT_FD,    VG_RM_SHARE,        0xff};
    ww_call(&p->v, a_process(p), cmd | numbers[byte(&p->in) % 6], form);
}

static void step(struct play *p) {
    switch (byte(&p->in) % 16) {
    case 0:
    case 1:
    case 2:
        allocate(p, false);
        break;
    case 3:
        allocate(p, true);
        break;
    case 4:
    case 5:
        release(p);
        break;
    case 6:
        name_again(p);
        break;
    case 7:
        control(p);
        break;
    case 8:
    case 9:
        map(p, false);
        break;
    case 10:
        map(p, true);
        break;
    case 11:
        other_device(p);
        break;
    case 12:
        anything(p);
        break;
    case 13:
        (void)vg_warden_managed(p->v.w, a_process(p), byte(&p->in) * MIB / 8, a_size(p));
        vg_warden_managed_now(p->v.w, a_process(p), byte(&p->in) * MIB / 8);
        break;
    case 14:
        vg_warden_limit(p->v.w, byte(&p->in) % 65u * MIB);
        vg_warden_slice(p->v.w, byte(&p->in));
        (void)vg_warden_assert_slices(p->v.w);
        fake_rm_round_up(p->v.rm, byte(&p->in) % 2u, MIB);
        p->v.refuse = byte(&p->in) % 4u;
        if (byte(&p->in) % 2u)
            vg_fault_arm(1 + byte(&p->in) % 8u, ENOMEM, NULL);
        break;
    default:
        if (byte(&p->in) % 4u == 0)
            vg_warden_gone(p->v.w, a_process(p));
    }
}

static void check(struct play *p, uint64_t before) {
    struct vg_warden_stat s = ww_stat(&p->v);
    if (fake_rm_used(p->v.rm) > before && s.used_bytes > s.limit_bytes)
        abort(); /* more was given, and it was too much */
    if (s.used_bytes - s.managed_bytes != fake_rm_used(p->v.rm) ||
        s.used_bytes != ww_sum_of_processes(&p->v) || fake_rm_used(p->v.rm) > CAP)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct play p = {.in = {data, data + size}};
    ww_setup(&p.v);
    for (unsigned i = 0; i < CLIENTS; i++)
        p.client[i] = fake_rm_client(p.v.rm, 1);
    for (int i = 0; i < 3; i++)
        (void)ww_open(&p.v, (uint64_t)(1 + i), UVM + i);
    for (unsigned n = 0; p.in.at < p.in.end && n < 400; n++) {
        uint64_t before = fake_rm_used(p.v.rm);
        step(&p);
        check(&p, before);
    }
    (void)vg_fault_disarm();
    for (uint64_t who = 1; who <= 3; who++)
        vg_warden_gone(p.v.w, who);
    struct vg_warden_stat s = ww_stat(&p.v);
    if (s.used_bytes || s.objects || s.clients || fake_rm_used(p.v.rm))
        abort();
    if (ww_teardown(&p.v) != 0)
        abort();
    return 0;
}
