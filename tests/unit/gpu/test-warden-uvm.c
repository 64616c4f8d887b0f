/* The driver's other device: mapped memory counts until it is unmapped, and pages of a process do
   not move to the card. */
#include "warden-world.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define UVM 100
#define AT UINT64_C(0x7f0000000000)

static void same(struct ww *v) {
    cr_expect(eq(u64, ww_stat(v).used_bytes, fake_rm_used(v->rm)));
    cr_expect(eq(u64, ww_stat(v).used_bytes, ww_sum_of_processes(v)));
    cr_expect(le(u64, fake_rm_peak(v->rm), CAP));
}

static void done(struct ww *v) {
    cr_expect(eq(int, ww_teardown(v), 0), "a descriptor was not given back");
}

Test(warden_uvm, memory_whose_object_is_freed_counts_while_it_is_mapped) {
    struct ww v;
    ww_setup(&v);
    uint32_t object, more;
    cr_assert(eq(u32, ww_open(&v, 1, UVM), VG_RM_OK));
    for (int i = 0; i < 3; i++) { /* would be three times the share */
        uint32_t status = ww_take(&v, CAP, &object);
        cr_expect(eq(u32, status, i ? VG_RM_NO_MEMORY : VG_RM_OK));
        if (status != VG_RM_OK)
            break;
        cr_expect(ww_map(&v, 1, UVM, AT, CAP, v.client, object) == VG_RM_OK);
        cr_expect(eq(u32, ww_give(&v, v.client, object), VG_RM_OK));
        cr_expect(eq(u64, ww_stat(&v).used_bytes, CAP), "the driver still has it");
        same(&v);
    }
    struct vg_uvm_free f = {.base = AT, .length = CAP, .status = 0x77};
    cr_expect(eq(int, ww_call_on(&v, 1, UVM, VG_UVM_FREE, &f).error, 0));
    cr_expect(eq(u32, f.status, VG_RM_OK));
    cr_expect(eq(u64, ww_stat(&v).used_bytes, 0));
    same(&v);
    cr_expect(eq(u32, ww_take(&v, CAP, &more), VG_RM_OK));
    done(&v);
}

Test(warden_uvm, parts_are_unmapped_one_by_one) {
    struct ww v;
    ww_setup(&v);
    uint32_t object;
    ww_open(&v, 1, UVM);
    ww_take(&v, 10 * MIB, &object);
    ww_map(&v, 1, UVM, AT, 10 * MIB, v.client, object);
    ww_give(&v, v.client, object);
    const struct {
        unsigned at, n, left; /* MiB */
    } part[] = {{4, 2, 8}, {0, 1, 7}, {9, 1, 6}, {2, 2, 4}, {1, 2, 3}, {6, 3, 0}};
    for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++) {
        cr_expect(eq(u64, ww_stat(&v).used_bytes, 10 * MIB));
        cr_expect(ww_unmap(&v, 1, UVM, AT + part[i].at * MIB, part[i].n * MIB) == VG_RM_OK);
        cr_expect(eq(u64, fake_uvm_mapped(v.uvm), part[i].left * MIB));
        same(&v);
    }
    cr_expect(eq(u64, ww_stat(&v).used_bytes, 0));
    done(&v);
}

Test(warden_uvm, what_is_mapped_over_is_no_longer_held) {
    struct ww v;
    ww_setup(&v);
    uint32_t a, b;
    ww_open(&v, 1, UVM);
    ww_take(&v, 10 * MIB, &a);
    ww_take(&v, 20 * MIB, &b);
    ww_map(&v, 1, UVM, AT, 10 * MIB, v.client, a);
    ww_give(&v, v.client, a);
    cr_expect(eq(u64, ww_stat(&v).used_bytes, 30 * MIB));
    ww_map(&v, 1, UVM, AT, 20 * MIB, v.client, b);
    cr_expect(eq(u64, ww_stat(&v).used_bytes, 20 * MIB));
    same(&v);
    done(&v);
}

Test(warden_uvm, openings_are_told_apart) {
    struct ww v;
    ww_setup(&v);
    uint32_t big, small;
    ww_open(&v, 1, UVM);
    ww_open(&v, 1, UVM + 1);
    ww_take(&v, 50 * MIB, &big);
    ww_take(&v, 1 * MIB, &small);
    ww_map(&v, 1, UVM, AT, 50 * MIB, v.client, big);
    ww_map(&v, 1, UVM + 1, AT, 1 * MIB, v.client, small);
    ww_give(&v, v.client, big);
    cr_expect(eq(u32, ww_unmap(&v, 1, UVM + 1, AT, 50 * MIB), VG_RM_OK));
    cr_expect(eq(u64, ww_stat(&v).used_bytes, 51 * MIB), "it was the other opening's");
    same(&v);
    struct vg_uvm_card card = {.uuid = "the card", .status = 0x77};
    ww_call_on(&v, 1, UVM, VG_UVM_UNREGISTER_SPACE, &card);
    cr_expect(eq(u64, ww_stat(&v).used_bytes, 1 * MIB));
    same(&v);
    done(&v);
}

Test(warden_uvm, a_process_that_ends_leaves_nothing_mapped) {
    struct ww v;
    ww_setup(&v);
    uint32_t object;
    ww_open(&v, 1, UVM);
    ww_take(&v, 50 * MIB, &object);
    ww_map(&v, 1, UVM, AT, 25 * MIB, v.client, object);
    ww_map(&v, 1, UVM, AT + 100 * MIB, 25 * MIB, v.client, object);
    ww_give(&v, v.client, object);
    vg_warden_gone(v.w, 1);
    cr_expect(eq(u64, ww_stat(&v).used_bytes, 0));
    cr_expect(eq(u64, fake_uvm_mapped(v.uvm), 0), "a child that has the descriptor would keep it");
    same(&v);
    done(&v);
}

Test(warden_uvm, only_what_is_ones_own_is_mapped) {
    struct ww v;
    ww_setup(&v);
    uint32_t object;
    ww_open(&v, 1, UVM);
    ww_open(&v, 2, UVM + 1);
    ww_take(&v, 1 * MIB, &object);
    uint64_t strange = ww_stat(&v).strange;
    cr_expect(ww_map(&v, 2, UVM + 1, AT, MIB, v.client, object) == VG_RM_NOT_SUPPORTED);
    cr_expect(ww_map(&v, 1, UVM + 1, AT, MIB, v.client, object) == VG_RM_NOT_SUPPORTED);
    cr_expect(ww_map(&v, 1, UVM, AT, MIB, 0xdead, object) == VG_RM_NOT_SUPPORTED);
    cr_expect(ww_map(&v, 1, UVM, UINT64_MAX, MIB, v.client, object) == VG_RM_NOT_SUPPORTED);
    cr_expect(ww_map(&v, 1, WW_CTL, AT, MIB, v.client, object) == 0x1000u + ENOTTY);
    cr_expect(eq(u64, ww_stat(&v).strange, strange + 4));
    cr_expect(eq(u64, fake_uvm_mapped(v.uvm), 0));
    done(&v);
}

/* Made behind the warden's back: by a call that it let through, and whose parameters changed. */
Test(warden_uvm, memory_of_the_card_that_is_in_no_book_is_not_mapped) {
    struct ww v;
    ww_setup(&v);
    struct vg_rm_memory m = {.size = 8 * MIB};
    struct vg_rm_alloc a = {.client = v.client,
                            .parent = v.client,
                            .class_id = VG_RM_CLASS_MEMORY_LOCAL,
                            .params = (uint64_t)(uintptr_t)&m};
    uint32_t known;
    ww_open(&v, 1, UVM);
    ww_take(&v, MIB, &known);
    fake_rm_ioctl(v.rm, 1, WW_CMD(VG_RM_ALLOC, a), &a);
    cr_expect(ww_map(&v, 1, UVM, AT, MIB, v.client, a.object) == VG_RM_NOT_SUPPORTED);
    a.object = 0;
    a.class_id = VG_RM_CLASS_MEMORY_PINNED;
    fake_rm_ioctl(v.rm, 1, WW_CMD(VG_RM_ALLOC, a), &a);
    cr_expect(ww_map(&v, 1, UVM, AT, MIB, v.client, a.object) == VG_RM_OK, "the host's may be");
    done(&v);
}

Test(warden_uvm, a_card_is_not_registered_where_pages_could_move_to_it) {
    struct ww v;
    ww_setup(&v);
    struct vg_uvm_register r = {.uuid = "the card", .status = 0x77};
    ww_call_on(&v, 1, UVM, VG_UVM_REGISTER, &r);
    cr_expect(eq(u32, r.status, VG_RM_NOT_SUPPORTED), "it was not begun at all");
    const uint64_t flags[] = {0, 2, 3}; /* a thread wrote them after the warden had */
    for (int i = 0; i < 3; i++) {
        fake_uvm_begin(v.uvm, UVM + 1 + (uint64_t)i, flags[i]);
        r.status = 0x77;
        ww_call_on(&v, 1, UVM + 1 + i, VG_UVM_REGISTER, &r);
        cr_expect(eq(u32, r.status, VG_RM_NOT_SUPPORTED));
    }
    cr_expect(eq(u32, ww_open(&v, 1, UVM + 9), VG_RM_OK));
    done(&v);
}

Test(warden_uvm, page_tables_of_addresses_without_memory_count) {
    struct ww v;
    ww_setup(&v);
    const uint64_t tib = UINT64_C(1) << 40;
    struct vg_uvm_unmap f = {.base = AT, .length = tib / 4, .uuid = "the card", .status = 0x77};
    ww_open(&v, 1, UVM);
    ww_call_on(&v, 1, UVM, VG_UVM_SPARSE, &f);
    cr_expect(eq(u32, f.status, VG_RM_OK));
    cr_expect(eq(u64, ww_stat(&v).used_bytes, 32 * MIB + 8));
    cr_expect(eq(u64, ww_sum_of_processes(&v), 32 * MIB + 8));
    f = (struct vg_uvm_unmap){.base = AT + tib, .length = tib, .uuid = "the card", .status = 0x77};
    ww_call_on(&v, 1, UVM, VG_UVM_SPARSE, &f);
    cr_expect(eq(u32, f.status, VG_RM_NO_MEMORY), "would be 128 MiB");
    f = (struct vg_uvm_unmap){.base = AT + tib, .length = MIB, .uuid = "another", .status = 0x77};
    ww_call_on(&v, 1, UVM, VG_UVM_SPARSE, &f);
    cr_expect(eq(u32, f.status, VG_RM_NOT_SUPPORTED), "the driver's word");
    cr_expect(eq(u64, ww_stat(&v).used_bytes, 32 * MIB + 8));
    cr_expect(eq(u32, ww_unmap(&v, 1, UVM, AT, tib / 4), VG_RM_OK));
    cr_expect(eq(u64, ww_stat(&v).used_bytes, 0));
    done(&v);
}

Test(warden_uvm, bad_addresses_and_other_numbers_fail) {
    struct ww v;
    ww_setup(&v);
    const uint32_t number[] = {
        VG_UVM_INITIALIZE, VG_UVM_REGISTER,         VG_UVM_MAP,   VG_UVM_FREE, VG_UVM_UNMAP,
        VG_UVM_UNREGISTER, VG_UVM_UNREGISTER_SPACE, VG_UVM_SPARSE};
    for (size_t i = 0; i < sizeof(number) / sizeof(number[0]); i++) {
        cr_expect(eq(int, ww_call_on(&v, 1, UVM, number[i], NULL).error, -EFAULT));
        cr_expect(eq(int, ww_call_on(&v, 1, WW_CTL, number[i], NULL).error, -ENOTTY));
    }
    cr_expect(eq(int, ww_call_on(&v, 1, UVM, 51, NULL).error, -EPERM));
    done(&v);
}

Test(warden_uvm, a_client_of_mps_uses_the_device_as_it_is) {
    struct ww v;
    ww_setup(&v);
    struct vg_uvm_initialize i = {.flags = 2};
    vg_warden_mps(v.w);
    cr_expect(ww_call_on(&v, 1, UVM, VG_UVM_INITIALIZE, &i).let);
    cr_expect(eq(u64, i.flags, 2));
    cr_expect(ww_call_on(&v, 1, UVM, VG_UVM_MAP, &i).let);
    done(&v);
}

/* Random maps and unmaps of few addresses: both sides agree after each. */
Test(warden_uvm, random_mappings_keep_the_books_right) {
    for (unsigned seed = 1; seed <= 10; seed++) {
        struct ww v;
        ww_setup(&v);
        srand(seed);
        uint32_t object[8] = {0};
        for (int i = 0; i < 2; i++)
            ww_open(&v, 1, UVM + i);
        for (int i = 0; i < 2000; i++) {
            unsigned slot = (unsigned)rand() % 8, what = (unsigned)rand() % 8;
            int fd = UVM + rand() % 2;
            uint64_t base = AT + (uint64_t)(rand() % 16) * MIB,
                     bytes = (uint64_t)(1 + rand() % 6) * MIB;
            if (what < 2)
                ww_take(&v, bytes, &object[slot]);
            else if (what < 3)
                ww_give(&v, v.client, object[slot]);
            else if (what < 6)
                ww_map(&v, 1, fd, base, bytes, v.client, object[slot]);
            else
                ww_unmap(&v, 1, fd, base, bytes);
            cr_assert(eq(u64, ww_stat(&v).used_bytes, fake_rm_used(v.rm)), "seed %u step %d", seed,
                      i);
            cr_assert(le(u64, fake_rm_used(v.rm), CAP));
        }
        vg_warden_gone(v.w, 1);
        same(&v);
        cr_assert(eq(u64, ww_stat(&v).used_bytes, 0));
        done(&v);
    }
}
