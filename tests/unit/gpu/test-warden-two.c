/* Two wardens before one driver, whose tasks hand each other descriptors; and as much as one may
   hold. */
#include "warden-world.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>

/* A descriptor came over a socket: so one task can name what the other has made on it. */
Test(warden_two, what_is_made_on_anothers_descriptor_is_ones_own_to_pay_for) {
    struct ww a, b;
    ww_setup(&a);
    b = (struct ww){.rm = a.rm, .uvm = a.uvm, .client = a.client};
    ww_adopt(&b);
    uint32_t first, theirs, dup_of = 0;
    cr_assert(eq(u32, ww_take(&a, 60 * MIB, &first), VG_RM_OK));
    cr_assert(eq(u32, ww_take(&b, 60 * MIB, &theirs), VG_RM_OK));
    cr_expect(eq(u32, ww_take(&b, 5 * MIB, &dup_of), VG_RM_NO_MEMORY), "its own share");
    cr_expect(eq(u64, ww_stat(&a).used_bytes, 60 * MIB));
    cr_expect(eq(u64, ww_stat(&b).used_bytes, 60 * MIB));

    struct vg_rm_dup d = {a.client, a.client, 0, a.client, first, 0, 0};
    cr_expect(eq(int, ww_call(&b, 1, WW_CMD(VG_RM_DUP_OBJECT, d), &d).error, -EPERM),
              "what the other pays for is not kept by one more name");
    cr_expect(ww_open(&b, 1, 100) == VG_RM_OK);
    cr_expect(ww_map(&b, 1, 100, 1 << 21, MIB, a.client, first) == VG_RM_NOT_SUPPORTED,
              "nor by a mapping");

    cr_expect(eq(u32, ww_give(&b, a.client, first), VG_RM_OK), "it may free it");
    cr_expect(eq(u64, ww_stat(&a).used_bytes, 60 * MIB),
              "too much is counted then, never too little");
    vg_warden_gone(a.w, 1);
    cr_expect(eq(u64, fake_rm_used(a.rm), 0), "with the client goes all that was made there");
    cr_expect(eq(u64, ww_stat(&a).used_bytes, 0));
    vg_warden_gone(b.w, 1);
    cr_expect(eq(u64, ww_stat(&b).used_bytes, 0));
    vg_warden_free(b.w);
    cr_expect(eq(int, ww_teardown(&a) + b.lent, 0));
}

/* A driver that says yes to everything. */
static int64_t yes(void *ud, uint64_t process, int fd, uint32_t cmd, void *arg) {
    static uint32_t next = 1;
    struct vg_rm_alloc *a = arg;
    (void)ud, (void)process, (void)fd;
    if ((cmd & 0xff) == VG_RM_ALLOC) {
        a->object = next++;
        a->status = VG_RM_OK;
    }
    return 0;
}

Test(warden_two, a_task_has_so_many_objects_and_no_more) {
    struct ww v;
    ww_setup(&v);
    v.instead = yes;
    uint32_t object, parent = v.client;
    for (uint32_t i = 0; i < VG_WARDEN_OBJECTS_MAX; i++) {
        object = 0;
        cr_assert(ww_alloc(&v, v.client, parent, &object, 0x2080, 0, 0) == VG_RM_OK);
        parent = i % 3 ? v.client : object; /* some below others, down to the bottom */
    }
    object = 0;
    cr_expect(eq(u32, ww_alloc(&v, v.client, v.client, &object, 0x2080, 0, 0),
                 VG_RM_INSUFFICIENT_RESOURCES));
    cr_expect(eq(u32, ww_stat(&v).objects, VG_WARDEN_OBJECTS_MAX));
    vg_warden_gone(v.w, 1);
    cr_expect(eq(u32, ww_stat(&v).objects, 0));
    for (uint32_t i = 0; i < VG_WARDEN_CLIENTS_MAX; i++) {
        object = 0;
        cr_assert(ww_alloc(&v, 0x1000000 + i, 0x1000000 + i, &object, 0x80, 0, 0) == VG_RM_OK);
    }
    object = 0;
    cr_expect(ne(u32, ww_alloc(&v, 0x2000000, 0x2000000, &object, 0x80, 0, 0), VG_RM_OK),
              "each costs a descriptor");
    cr_expect(eq(u32, ww_stat(&v).clients, VG_WARDEN_CLIENTS_MAX));
    cr_expect(eq(int, ww_teardown(&v), 0));
}
