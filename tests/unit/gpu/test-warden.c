/* The warden against the stand-in driver: what a task holds never exceeds its share, by either's
   count, whatever the order of calls. */
#include "warden-world.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void same(struct ww *v) {
    cr_expect(eq(u64, ww_stat(v).used_bytes, ww_sum_of_processes(v)));
    cr_expect(eq(u64, ww_stat(v).used_bytes, fake_rm_used(v->rm)));
    cr_expect(le(u64, fake_rm_peak(v->rm), CAP), "the card gave more than the share");
}

Test(warden, memory_is_given_up_to_the_share_and_then_refused_as_out_of_memory) {
    struct ww v;
    ww_setup(&v);
    uint32_t object[80], n = 0;
    while (n < 80 && ww_take(&v, MIB, &object[n]) == VG_RM_OK)
        n++;
    cr_expect(eq(u32, n, 64));
    cr_expect(eq(u64, ww_stat(&v).refused, 1));
    same(&v);
    cr_expect(eq(u32, ww_give(&v, v.client, object[3]), VG_RM_OK));
    cr_expect(eq(u32, ww_take(&v, MIB + 1, &object[3]), VG_RM_NO_MEMORY),
              "rounded up, it is too much");
    cr_expect(eq(u32, ww_take(&v, MIB, &object[3]), VG_RM_OK));
    same(&v);
    cr_expect(eq(int, ww_teardown(&v), 0), "a descriptor was not given back");
}

Test(warden, absurd_sizes_are_refused) {
    struct ww v;
    ww_setup(&v);
    const uint64_t sizes[] = {CAP + 1, UINT64_MAX, UINT64_MAX - 65535, UINT64_C(1) << 63};
    uint32_t object;
    for (size_t i = 0; i < 4; i++)
        cr_expect(eq(u32, ww_take(&v, sizes[i], &object), VG_RM_NO_MEMORY));
    cr_expect(eq(u32, fake_rm_calls(v.rm, VG_RM_ALLOC), 0), "the driver was asked");
    same(&v);
    cr_expect(eq(int, ww_teardown(&v), 0), "a descriptor was not given back");
}

Test(warden, addresses_and_other_objects_cost_nothing) {
    struct ww v;
    ww_setup(&v);
    uint32_t object = 0;
    cr_expect(ww_alloc(&v, v.client, v.client, &object, VG_RM_CLASS_MEMORY_LOCAL, 500 * MIB,
                       VG_RM_MEMORY_VIRTUAL) == VG_RM_OK);
    object = 0;
    cr_expect(ww_alloc(&v, v.client, v.client, &object, 0x80, 500 * MIB, 0) == VG_RM_OK);
    cr_expect(eq(u64, ww_stat(&v).used_bytes, 0));
    cr_expect(eq(int, ww_teardown(&v), 0), "a descriptor was not given back");
}

Test(warden, what_the_driver_takes_for_channels_is_counted) {
    struct ww v;
    ww_setup(&v);
    uint32_t memory, device = 0, group = 0, n = 0;
    ww_alloc(&v, v.client, v.client, &device, 0x80, 0, 0);
    cr_assert(eq(u32, ww_take(&v, 61 * MIB, &memory), VG_RM_OK));
    while (n < 9 &&
           ww_alloc(&v, v.client, device, &group, VG_RM_CLASS_CHANNEL_GROUP, 0, 0) == VG_RM_OK) {
        n++;
        group = 0;
    }
    cr_expect(eq(u32, n, 1), "a second one does not fit");
    cr_expect(eq(u64, ww_stat(&v).refused, 1));
    same(&v);
    cr_expect(eq(u64, ww_stat(&v).used_bytes, 63 * MIB));
    ww_give(&v, v.client, memory);
    for (n = 0; n < 40; n++) {
        group = 0;
        if (ww_alloc(&v, v.client, device, &group, VG_RM_CLASS_CHANNEL_GROUP, 0, 0) != VG_RM_OK)
            break;
    }
    cr_expect(eq(u32, n, 31));
    same(&v);
    ww_give(&v, v.client, device);
    cr_expect(eq(u64, ww_stat(&v).used_bytes, 0), "they went with what they hung below");
    same(&v);
    cr_expect(eq(int, ww_teardown(&v), 0), "a descriptor was not given back");
}

Test(warden, what_hangs_below_a_freed_object_is_given_back) {
    struct ww v;
    ww_setup(&v);
    uint32_t device = 0, below = 0, deep = 0;
    ww_alloc(&v, v.client, v.client, &device, 0x80, 0, 0);
    ww_alloc(&v, v.client, device, &below, VG_RM_CLASS_MEMORY_LOCAL, 10 * MIB, 0);
    ww_alloc(&v, v.client, below, &deep, VG_RM_CLASS_MEMORY_LOCAL, 20 * MIB, 0);
    cr_expect(eq(u64, ww_stat(&v).used_bytes, 30 * MIB));
    ww_give(&v, v.client, device);
    cr_expect(eq(u64, ww_stat(&v).used_bytes, 0));
    cr_expect(eq(u32, ww_stat(&v).objects, 0));
    same(&v);
    cr_expect(eq(int, ww_teardown(&v), 0), "a descriptor was not given back");
}

Test(warden, a_chain_of_objects_as_deep_as_allowed_is_no_danger) {
    struct ww v;
    ww_setup(&v);
    uint32_t parent = v.client, first = 0;
    for (int i = 0; i < 3000; i++) {
        uint32_t object = 0;
        cr_assert(ww_alloc(&v, v.client, parent, &object, VG_RM_CLASS_MEMORY_LOCAL, 1, 0) ==
                  (i < 1024 ? VG_RM_OK : VG_RM_NO_MEMORY));
        if (i >= 1024)
            break;
        parent = object;
        first = first ? first : object;
    }
    ww_give(&v, v.client, first);
    cr_expect(eq(u32, ww_stat(&v).objects, 0));
    same(&v);
    cr_expect(eq(int, ww_teardown(&v), 0), "a descriptor was not given back");
}

Test(warden, the_older_form_of_the_call_counts_alike) {
    struct ww v;
    ww_setup(&v);
    struct vg_rm_memory m = {.size = 65 * MIB};
    struct vg_rm_alloc_old a = {.client = v.client,
                                .parent = v.client,
                                .class_id = VG_RM_CLASS_MEMORY_LOCAL,
                                .params = (uint64_t)(uintptr_t)&m};
    ww_call(&v, 1, WW_CMD(VG_RM_ALLOC, a), &a);
    cr_expect(eq(u32, a.status, VG_RM_NO_MEMORY));
    m.size = 64 * MIB;
    ww_call(&v, 1, WW_CMD(VG_RM_ALLOC, a), &a);
    cr_expect(eq(u32, a.status, VG_RM_OK));
    cr_expect(ne(u32, a.object, 0));
    same(&v);
    cr_expect(eq(int, ww_teardown(&v), 0), "a descriptor was not given back");
}

Test(warden, a_driver_that_rounds_up_does_not_lead_past_the_share) {
    struct ww v;
    ww_setup(&v);
    uint32_t object;
    fake_rm_round_up(v.rm, 1, 2 * MIB);
    cr_expect(eq(u32, ww_take(&v, 10 * MIB, &object), VG_RM_OK));
    cr_expect(eq(u64, ww_stat(&v).used_bytes, 12 * MIB));
    fake_rm_round_up(v.rm, 1, 2 * MIB);
    cr_expect(eq(u32, ww_take(&v, 51 * MIB, &object), VG_RM_NO_MEMORY));
    cr_expect(eq(u64, ww_stat(&v).used_bytes, 12 * MIB));
    cr_expect(eq(u64, fake_rm_used(v.rm), 12 * MIB), "what was too much was not given back");
    cr_expect(eq(int, ww_teardown(&v), 0), "a descriptor was not given back");
}

Test(warden, a_second_name_keeps_the_memory) {
    struct ww v;
    ww_setup(&v);
    uint32_t object;
    ww_take(&v, 40 * MIB, &object);
    struct vg_rm_dup d = {v.client, v.client, 0, v.client, object, 0, 0x77};
    cr_assert(ww_call(&v, 1, WW_CMD(VG_RM_DUP_OBJECT, d), &d).error == 0);
    cr_expect(eq(u32, d.status, VG_RM_OK));
    ww_give(&v, v.client, object);
    cr_expect(eq(u64, ww_stat(&v).used_bytes, 40 * MIB), "the other name still holds it");
    same(&v);
    ww_give(&v, v.client, d.object);
    cr_expect(eq(u64, ww_stat(&v).used_bytes, 0));
    same(&v);
    cr_expect(eq(int, ww_teardown(&v), 0), "a descriptor was not given back");
}

Test(warden, names_of_what_another_process_has_are_refused) {
    struct ww v;
    ww_setup(&v);
    uint32_t object, other = fake_rm_client(v.rm, 2);
    ww_take(&v, MIB, &object);
    struct vg_rm_dup d = {other, other, 0, v.client, object, 0, 0};
    cr_expect(eq(int, ww_call(&v, 2, WW_CMD(VG_RM_DUP_OBJECT, d), &d).error, -EPERM));
    struct vg_rm_dup unknown = {v.client, v.client, 0, 0xdead, object, 0, 0};
    cr_expect(eq(int, ww_call(&v, 1, WW_CMD(VG_RM_DUP_OBJECT, unknown), &unknown).error, -EPERM));
    cr_expect(eq(u32, fake_rm_calls(v.rm, VG_RM_DUP_OBJECT), 0));
    cr_expect(eq(int, ww_teardown(&v), 0), "a descriptor was not given back");
}

/* A channel of that group with a compute object in it: the status of the latter. */
static uint32_t compute_in(struct ww *v, uint32_t group) {
    uint32_t channel = 0, engine = 0;
    cr_assert(eq(u32, ww_alloc(v, v->client, group, &channel, 0xc86f, 0, 0), VG_RM_OK));
    return ww_alloc(v, v->client, channel, &engine, 0xcbc0, 0, 0);
}

Test(warden, a_client_of_mps_computes_in_the_servers_group_only) {
    struct ww v;
    ww_setup(&v);
    uint32_t server = fake_rm_client(v.rm, 9), theirs = 0, own = 0;
    struct vg_rm_alloc a = {
        .client = server, .parent = server, .class_id = VG_RM_CLASS_CHANNEL_GROUP};
    cr_assert(fake_rm_ioctl(v.rm, 9, WW_CMD(VG_RM_ALLOC, a), &a) == 0 && a.status == VG_RM_OK);
    theirs = a.object;
    struct vg_rm_dup d = {v.client, v.client, 0, server, theirs, 0, 0x77};
    cr_expect(eq(int, ww_call(&v, 1, WW_CMD(VG_RM_DUP_OBJECT, d), &d).error, -EPERM),
              "a task without MPS has nothing to do with it");
    cr_assert(
        eq(u32, ww_alloc(&v, v.client, v.client, &own, VG_RM_CLASS_CHANNEL_GROUP, 0, 0), VG_RM_OK));
    cr_expect(eq(u32, compute_in(&v, own), VG_RM_OK), "it computes as it likes");

    vg_warden_mps(v.w);
    cr_assert(ww_call(&v, 1, WW_CMD(VG_RM_DUP_OBJECT, d), &d).error == 0);
    cr_expect(eq(u32, d.status, VG_RM_OK));
    cr_expect(eq(u32, compute_in(&v, d.object), VG_RM_OK));
    cr_expect(eq(u64, ww_stat(&v).beside, 0));
    cr_expect(eq(u32, compute_in(&v, own), VG_RM_INSUFFICIENT_RESOURCES));
    uint32_t engine = 0;
    cr_expect(eq(u32, ww_alloc(&v, v.client, v.client, &engine, 0xcbc0, 0, 0),
                 VG_RM_INSUFFICIENT_RESOURCES),
              "nor without a channel");
    cr_expect(eq(u64, ww_stat(&v).beside, 2));
    ww_take(&v, 40 * MIB, &own);
    cr_expect(eq(u32, ww_take(&v, 40 * MIB, &own), VG_RM_NO_MEMORY), "its memory is held as ever");
    cr_expect(eq(int, ww_teardown(&v), 0), "a descriptor was not given back");
}

Test(warden, a_process_that_ends_gives_everything_back) {
    struct ww v;
    ww_setup(&v);
    uint32_t object, other = fake_rm_client(v.rm, 2), theirs = 0;
    ww_take(&v, 30 * MIB, &object);
    struct vg_rm_memory m = {.size = 10 * MIB};
    struct vg_rm_alloc a = {.client = other,
                            .parent = other,
                            .class_id = VG_RM_CLASS_MEMORY_LOCAL,
                            .params = (uint64_t)(uintptr_t)&m};
    ww_call(&v, 2, WW_CMD(VG_RM_ALLOC, a), &a);
    theirs = a.object;
    cr_expect(vg_warden_managed(v.w, 1, 0, 20 * MIB));
    cr_expect(eq(u64, ww_stat(&v).used_bytes, 60 * MIB));
    struct vg_warden_process p[2];
    cr_assert(eq(sz, vg_warden_processes(v.w, p, 2), 2));
    cr_expect(p[0].process == 1 && p[0].used_bytes == 50 * MIB && p[0].managed_bytes == 20 * MIB);
    cr_expect(p[1].process == 2 && p[1].used_bytes == 10 * MIB && p[1].managed_bytes == 0);
    cr_expect(eq(sz, vg_warden_processes(v.w, p, 1), 1));
    vg_warden_gone(v.w, 1);
    cr_expect(vg_warden_processes(v.w, p, 2) == 1 && p[0].process == 2);
    cr_expect(eq(u64, ww_stat(&v).used_bytes, 10 * MIB));
    same(&v);
    vg_warden_gone(v.w, 1);
    vg_warden_gone(v.w, 99);
    vg_warden_gone(v.w, 2);
    cr_expect(eq(u64, ww_stat(&v).used_bytes, 0));
    cr_expect(eq(u32, ww_stat(&v).clients, 0));
    cr_expect(ne(u32, theirs, 0));
    same(&v);
    cr_expect(eq(int, ww_teardown(&v), 0), "a descriptor was not given back");
}

Test(warden, managed_memory_counts_from_the_moment_it_is_mapped) {
    struct ww v;
    ww_setup(&v);
    uint32_t object;
    ww_take(&v, 32 * MIB, &object);
    cr_expect(not(vg_warden_managed(v.w, 1, 0, 33 * MIB)));
    cr_expect(vg_warden_managed(v.w, 1, 0, 32 * MIB));
    cr_expect(eq(u32, ww_take(&v, 1, &object), VG_RM_NO_MEMORY));
    vg_warden_managed_now(v.w, 1, 8 * MIB);
    cr_expect(eq(u32, ww_take(&v, 24 * MIB, &object), VG_RM_OK));
    vg_warden_managed_now(v.w, 1, 500 * MIB); /* more than was allowed cannot be unmapping */
    cr_expect(eq(u64, ww_stat(&v).used_bytes, CAP));
    cr_expect(not(vg_warden_managed(v.w, 2, 0, 1)));
    cr_expect(not(vg_warden_managed(v.w, 1, UINT64_MAX, UINT64_MAX)));
    cr_expect(eq(int, ww_teardown(&v), 0), "a descriptor was not given back");
}

Test(warden, a_smaller_share_leaves_what_is_held) {
    struct ww v;
    ww_setup(&v);
    uint32_t a, b;
    ww_take(&v, 40 * MIB, &a);
    vg_warden_limit(v.w, 20 * MIB);
    cr_expect(eq(u32, ww_take(&v, 1, &b), VG_RM_NO_MEMORY));
    ww_give(&v, v.client, a);
    cr_expect(eq(u32, ww_take(&v, 20 * MIB, &b), VG_RM_OK));
    cr_expect(eq(u32, ww_take(&v, 1, &a), VG_RM_NO_MEMORY));
    cr_expect(eq(int, ww_teardown(&v), 0), "a descriptor was not given back");
}

Test(warden, time_slices_are_the_nodes_to_set) {
    struct ww v;
    ww_setup(&v);
    uint32_t group = 0, later = 0;
    ww_alloc(&v, v.client, v.client, &group, VG_RM_CLASS_CHANNEL_GROUP, 0, 0);
    cr_expect(eq(u64, fake_rm_slice(v.rm, v.client, group), 2048));
    vg_warden_slice(v.w, 3000);
    ww_alloc(&v, v.client, v.client, &later, VG_RM_CLASS_CHANNEL_GROUP, 0, 0);
    cr_expect(eq(u64, fake_rm_slice(v.rm, v.client, group), 3000));
    cr_expect(eq(u64, fake_rm_slice(v.rm, v.client, later), 3000));

    uint64_t mine = 20000;
    struct vg_rm_control c = {.client = v.client,
                              .object = group,
                              .command = VG_RM_SET_TIMESLICE,
                              .params = (uint64_t)(uintptr_t)&mine,
                              .params_bytes = 8,
                              .status = 0x77};
    struct vg_warden_answer r = ww_call(&v, 1, WW_CMD(VG_RM_CONTROL, c), &c);
    cr_expect(r.let == false && c.status == VG_RM_OK, "the CUDA library must believe it");
    cr_expect(eq(u64, fake_rm_slice(v.rm, v.client, group), 3000));

    fake_rm_set_slice(v.rm, v.client, later, 20000); /* by whatever way */
    cr_expect(eq(u32, vg_warden_assert_slices(v.w), 1));
    cr_expect(eq(u64, fake_rm_slice(v.rm, v.client, later), 3000));
    cr_expect(eq(u32, vg_warden_assert_slices(v.w), 0));
    cr_expect(eq(int, ww_teardown(&v), 0), "a descriptor was not given back");
}

Test(warden, ways_to_more_time_and_unknown_calls_are_refused) {
    struct ww v;
    ww_setup(&v);
    struct vg_rm_control c = {.client = v.client, .command = 0xa06c0110, .status = 0x77};
    cr_expect(not(ww_call(&v, 1, WW_CMD(VG_RM_CONTROL, c), &c).let));
    cr_expect(eq(u32, c.status, VG_RM_NOT_SUPPORTED));
    c.command = 0x20800102;
    cr_expect(ww_call(&v, 1, WW_CMD(VG_RM_CONTROL, c), &c).let, "an ordinary question");
    uint8_t any[64] = {0};
    const uint8_t numbers[] = {VG_RM_VID_HEAP, VG_RM_IMPORT_FD, VG_RM_ALLOC_OBJECT, 0x00, 0xff};
    for (size_t i = 0; i < sizeof(numbers); i++)
        cr_expect(eq(int, ww_call(&v, 1, WW_CMD(numbers[i], any), any).error, -EPERM));
    struct vg_rm_alloc_memory m = {.class_id = VG_RM_CLASS_MEMORY_LOCAL};
    cr_expect(eq(int, ww_call(&v, 1, WW_CMD(VG_RM_ALLOC_MEMORY, m), &m).error, -EPERM));
    m.class_id = VG_RM_CLASS_MEMORY_PINNED;
    cr_expect(ww_call(&v, 1, WW_CMD(VG_RM_ALLOC_MEMORY, m), &m).let);
    cr_expect(eq(int, ww_teardown(&v), 0), "a descriptor was not given back");
}

Test(warden, what_keeps_memory_beyond_its_object_is_refused) {
    struct ww v;
    ww_setup(&v);
    const uint32_t command[] = {0x3d05, 0x3d06, 0x3d0a, 0x3d0b, 0x3d0c};
    for (size_t i = 0; i < sizeof(command) / sizeof(command[0]); i++) {
        struct vg_rm_control c = {.client = v.client, .command = command[i], .status = 0x77};
        cr_expect(not(ww_call(&v, 1, WW_CMD(VG_RM_CONTROL, c), &c).let));
        cr_expect(eq(u32, c.status, VG_RM_NOT_SUPPORTED));
    }
    const uint32_t class_id[] = {0x3f, 0x82, 0xc2, 0xe0, 0xf3, 0xf8, 0xfd, 0x7e};
    for (size_t i = 0; i < sizeof(class_id) / sizeof(class_id[0]); i++) {
        uint32_t object = 0;
        cr_expect(eq(u32, ww_alloc(&v, v.client, v.client, &object, class_id[i], MIB, 0),
                     VG_RM_INVALID_CLASS));
    }
    uint8_t any[64] = {0};
    cr_expect(eq(int, ww_call(&v, 1, WW_CMD(VG_RM_ANY, any), any).error, -EPERM));
    cr_expect(eq(int, ww_call(&v, 1, WW_CMD(VG_RM_DMABUF, any), any).error, -EPERM));
    cr_expect(eq(int, ww_call_on(&v, 1, 100, VG_UVM_P2P, any).error, -EPERM));
    cr_expect(eq(u32, fake_rm_calls(v.rm, VG_RM_ALLOC), 0), "the driver was asked");
    vg_warden_mps(v.w);
    struct vg_rm_control c = {.client = v.client, .command = 0x3d06};
    cr_expect(ww_call(&v, 1, WW_CMD(VG_RM_CONTROL, c), &c).let, "MPS may need it");
    cr_expect(eq(int, ww_teardown(&v), 0), "a descriptor was not given back");
}

Test(warden, bad_addresses_and_forms_fail_and_change_nothing) {
    struct ww v;
    ww_setup(&v);
    cr_expect(
        eq(int, ww_call(&v, 1, WW_CMD(VG_RM_ALLOC, struct vg_rm_alloc), NULL).error, -EFAULT));
    cr_expect(eq(int, ww_call(&v, 1, WW_CMD(VG_RM_FREE, struct vg_rm_free), NULL).error, -EFAULT));
    uint8_t form[40] = {0};
    cr_expect(eq(int, ww_call(&v, 1, WW_CMD(VG_RM_ALLOC, form), form).error, -EINVAL));
    struct vg_rm_alloc a = {.client = v.client, .parent = v.client, .class_id = 0x40};
    ww_call(&v, 1, WW_CMD(VG_RM_ALLOC, a), &a); /* memory without parameters fits nowhere */
    cr_expect(eq(u32, a.status, VG_RM_NO_MEMORY));
    same(&v);
    cr_expect(eq(int, ww_teardown(&v), 0), "a descriptor was not given back");
}

Test(warden, an_audit_finds_what_did_not_pass_by) {
    struct ww v;
    ww_setup(&v);
    uint32_t object;
    uint64_t known;
    struct vg_warden_audit a = {0};
    ww_take(&v, 40 * MIB, &object);
    struct vg_warden_stat held = ww_stat(&v);
    uint64_t slack = VG_WARDEN_SLACK_BYTES + VG_WARDEN_SLACK_CLIENT_BYTES;
    cr_expect(eq(u32, vg_warden_audit(&a, &held, 40 * MIB + slack, &known), 0));
    cr_expect(eq(u64, known, 40 * MIB + slack));
    cr_expect(eq(u32, vg_warden_audit(&a, &held, 40 * MIB + slack + 1, &known), 1));
    cr_expect(eq(u32, vg_warden_audit(&a, &held, 40 * MIB + slack + 1, &known), 2), "in a row");
    cr_expect(eq(u32, vg_warden_audit(&a, &held, 0, &known), 0));
    cr_expect(eq(u32, vg_warden_audit(&a, &held, UINT64_MAX, &known), 1), "and anew");

    /* The driver was asked before it was freed. */
    ww_give(&v, v.client, object);
    struct vg_warden_stat freed = ww_stat(&v);
    vg_warden_audit_note(&a, &freed);
    cr_expect(eq(u32, vg_warden_audit(&a, &freed, 40 * MIB + slack, &known), 0));
    cr_expect(eq(u32, vg_warden_audit(&a, &freed, 40 * MIB + slack, &known), 0), "one round late");
    cr_expect(eq(u32, vg_warden_audit(&a, &freed, 40 * MIB + slack, &known), 1));

    /* Managed memory is in neither count. */
    cr_expect(vg_warden_managed(v.w, 1, 0, 60 * MIB));
    held = ww_stat(&v);
    vg_warden_audit(&a, &held, 0, &known);
    cr_expect(eq(u64, known, slack));
    cr_expect(eq(int, ww_teardown(&v), 0), "a descriptor was not given back");
}

/* Random calls of three processes; after each, both counts agree and the share holds. */
Test(warden, random_calls_keep_the_books_right) {
    for (unsigned seed = 1; seed <= 20; seed++) {
        struct ww v;
        ww_setup(&v);
        srand(seed);
        uint32_t client[3] = {v.client, fake_rm_client(v.rm, 2), fake_rm_client(v.rm, 3)};
        uint32_t known[3][64] = {{0}};
        for (int i = 0; i < 2000; i++) {
            unsigned who = (unsigned)rand() % 3, slot = (unsigned)rand() % 64,
                     what = (unsigned)rand() % 10;
            uint32_t *at = &known[who][slot], parent = known[who][(unsigned)rand() % 64];
            if (what < 6) {
                struct vg_rm_memory m = {.size = (uint64_t)rand() % (8 * MIB)};
                struct vg_rm_alloc a = {.client = client[who],
                                        .parent = parent && rand() % 2 ? parent : client[who],
                                        .class_id = rand() % 5 ? VG_RM_CLASS_MEMORY_LOCAL : 0x80,
                                        .params = (uint64_t)(uintptr_t)&m};
                ww_call(&v, who + 1, WW_CMD(VG_RM_ALLOC, a), &a);
                if (a.status == VG_RM_OK)
                    *at = a.object;
            } else if (what < 9) {
                struct vg_rm_free f = {client[who], client[who], *at, 0};
                ww_call(&v, who + 1, WW_CMD(VG_RM_FREE, f), &f);
            } else {
                struct vg_rm_dup d = {client[who], client[who], 0, client[who], *at, 0, 0};
                ww_call(&v, who + 1, WW_CMD(VG_RM_DUP_OBJECT, d), &d);
                if (d.status == VG_RM_OK && d.object)
                    known[who][(unsigned)rand() % 64] = d.object;
            }
            cr_assert(eq(u64, ww_stat(&v).used_bytes, fake_rm_used(v.rm)), "seed %u step %d", seed,
                      i);
            cr_assert(eq(u64, ww_stat(&v).used_bytes, ww_sum_of_processes(&v)));
            cr_assert(le(u64, fake_rm_used(v.rm), CAP));
        }
        for (uint64_t p = 1; p <= 3; p++)
            vg_warden_gone(v.w, p);
        cr_assert(eq(u64, ww_stat(&v).used_bytes, 0));
        cr_expect(eq(int, ww_teardown(&v), 0), "a descriptor was not given back");
    }
}
