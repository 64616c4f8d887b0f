/* Tickets work once, for their task, for their time; the table is bounded. */
#include "agent/agent-ticket.h"

#include "base/fault.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

static void numbered(uint64_t n, uint8_t out[16]) {
    memset(out, 0x5a, 16);
    memcpy(out, &n, sizeof(n));
}

static int add(struct vg_tickets *t, uint64_t n, uint64_t task, uint64_t now) {
    uint8_t k[16];
    numbered(n, k);
    return vg_tickets_add(t, k, sizeof(k), task, now);
}

static int use(struct vg_tickets *t, uint64_t n, uint64_t now, uint64_t *task) {
    uint8_t k[16];
    numbered(n, k);
    return vg_tickets_use(t, k, sizeof(k), now, task);
}

Test(ticket, works_once_and_names_its_task) {
    struct vg_tickets t = {0};
    uint64_t task = 0;
    cr_assert_eq(add(&t, 1, 77, 0), 0);
    cr_assert_eq(use(&t, 2, 1, &task), -EACCES);
    cr_assert_eq(use(&t, 1, 1, &task), 0);
    cr_assert_eq(task, 77);
    cr_assert_eq(use(&t, 1, 1, &task), -EACCES);
    vg_tickets_done(&t);
}

Test(ticket, expires) {
    struct vg_tickets t = {0};
    uint64_t task;
    add(&t, 1, 7, 100);
    add(&t, 2, 8, 100);
    cr_assert_eq(use(&t, 1, 100 + VG_TICKET_LIFE_USEC - 1, &task), 0);
    cr_assert_eq(use(&t, 2, 100 + VG_TICKET_LIFE_USEC, &task), -EACCES);
    vg_tickets_done(&t);
}

Test(ticket, a_prefix_or_an_extension_is_refused) {
    struct vg_tickets t = {0};
    uint8_t longer[VG_TICKET_MAX_BYTES] = {0};
    uint64_t task;
    numbered(1, longer);
    cr_assert_eq(vg_tickets_add(&t, longer, 16, 7, 0), 0);
    cr_assert_eq(vg_tickets_use(&t, longer, 17, 0, &task), -EACCES);
    cr_assert_eq(vg_tickets_use(&t, longer, 0, 0, &task), -EACCES);
    cr_assert_eq(vg_tickets_use(&t, longer, 16, 0, &task), 0);
    vg_tickets_done(&t);
}

Test(ticket, lengths_out_of_bounds_are_refused) {
    struct vg_tickets t = {0};
    uint8_t k[64] = {1};
    cr_assert_eq(vg_tickets_add(&t, k, VG_TICKET_MIN_BYTES - 1, 7, 0), -EINVAL);
    cr_assert_eq(vg_tickets_add(&t, k, VG_TICKET_MAX_BYTES + 1, 7, 0), -EINVAL);
    vg_tickets_done(&t);
}

Test(ticket, the_table_is_bounded_and_the_oldest_gives_way) {
    struct vg_tickets t = {0};
    uint64_t task;
    for (uint64_t i = 0; i < VG_TICKETS_MAX + 3; i++)
        cr_assert_eq(add(&t, i, i, i), 0);
    cr_assert_eq(t.n, VG_TICKETS_MAX);
    cr_assert_eq(use(&t, 2, 5, &task), -EACCES);
    cr_assert_eq(use(&t, 3, 5, &task), 0);
    vg_tickets_done(&t);
}

Test(ticket, a_task_that_ends_takes_its_tickets_along) {
    struct vg_tickets t = {0};
    uint64_t task;
    add(&t, 1, 7, 0);
    add(&t, 2, 8, 0);
    add(&t, 3, 7, 0);
    vg_tickets_drop_task(&t, 7);
    cr_assert_eq(use(&t, 1, 0, &task), -EACCES);
    cr_assert_eq(use(&t, 3, 0, &task), -EACCES);
    cr_assert_eq(use(&t, 2, 0, &task), 0);
    vg_tickets_done(&t);
}

Test(ticket, no_memory_leaves_the_table_whole) {
    struct vg_tickets t = {0};
    uint64_t task;
    add(&t, 1, 7, 0);
    while (t.n < t.cap)
        add(&t, 100 + t.n, 9, 0);
    vg_fault_arm(1, ENOMEM, NULL);
    int r = add(&t, 2, 8, 0);
    cr_assert(vg_fault_disarm());
    cr_assert_eq(r, -ENOMEM);
    cr_assert_eq(use(&t, 1, 0, &task), 0);
    vg_tickets_done(&t);
}

Test(ticket, hex_is_read_exactly) {
    uint8_t out[VG_TICKET_MAX_BYTES];
    cr_assert_eq(vg_ticket_parse("000102030405060708090a0b0c0d0eff", out), 16);
    cr_assert_eq(out[1], 1);
    cr_assert_eq(out[15], 255);
    cr_assert_eq(vg_ticket_parse("", out), -EINVAL);
    cr_assert_eq(vg_ticket_parse("000102030405060708090a0b0c0d0ef", out), -EINVAL);
    cr_assert_eq(vg_ticket_parse("000102030405060708090a0b0c0d0egg", out), -EINVAL);
    char big[2 * VG_TICKET_MAX_BYTES + 3];
    memset(big, 'a', sizeof(big) - 1);
    big[sizeof(big) - 1] = 0;
    cr_assert_eq(vg_ticket_parse(big, out), -EINVAL);
}
