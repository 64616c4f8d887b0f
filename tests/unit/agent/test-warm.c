/* The warm pool's policy: who may hold how many ready keepers. */
#include "agent/agent-warm.h"

#include "base/fault.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

static struct vg_warm w;

static struct vg_warm_profile *use(uint32_t slot, uint64_t now) {
    struct vg_warm_key key = {.slot = slot, .uid = 1000 + slot, .gid = 100, .home = "/home/x"};
    return vg_warm_use(&w, &key, now);
}

static uint32_t total(void) {
    uint32_t n = 0;
    vg_list_for_each (it, &w.profiles)
        n += vg_warm_allowance(&w, vg_list_entry(it, struct vg_warm_profile, link));
    return n;
}

Test(warm, a_profile_in_use_holds_the_base) {
    vg_warm_init(&w, 2);
    cr_assert_eq(vg_warm_allowance(&w, use(1, 0)), 2);
    vg_warm_done(&w);
}

Test(warm, the_same_key_is_the_same_profile_and_any_difference_another) {
    vg_warm_init(&w, 2);
    struct vg_warm_key a = {.slot = 1, .uid = 5, .gid = 6, .home = "/home/x"};
    struct vg_warm_profile *p = vg_warm_use(&w, &a, 0);
    cr_assert_eq(vg_warm_use(&w, &a, 1), p);
    struct vg_warm_key b[6] = {a, a, a, a, a, a};
    b[0].slot = 2;
    b[1].uid = 7;
    b[2].gid = 7;
    b[3].local_root = true;
    b[4].net = VG_NET_HOST;
    b[5].home = NULL;
    for (int i = 0; i < 6; i++)
        cr_assert_neq(vg_warm_use(&w, &b[i], 2), p, "difference %d", i);
    vg_warm_done(&w);
}

Test(warm, misses_double_up_to_the_limit) {
    vg_warm_init(&w, 2);
    struct vg_warm_profile *p = use(1, 0);
    const uint32_t want[] = {4, 8, 16, 16, 16};
    for (int i = 0; i < 5; i++) {
        vg_warm_missed(&w, p);
        cr_assert_eq(p->target, want[i]);
    }
    vg_warm_done(&w);
}

Test(warm, base_zero_never_warms) {
    vg_warm_init(&w, 0);
    struct vg_warm_profile *p = use(1, 0);
    vg_warm_missed(&w, p);
    cr_assert_eq(vg_warm_allowance(&w, p), 0);
    vg_warm_done(&w);
}

Test(warm, the_sum_is_bounded_and_recent_profiles_come_first) {
    vg_warm_init(&w, 2);
    struct vg_warm_profile *p[5];
    for (uint32_t i = 0; i < 5; i++) {
        p[i] = use(i, i);
        for (int k = 0; k < 5; k++)
            vg_warm_missed(&w, p[i]);
    }
    cr_assert_eq(total(), VG_WARM_TOTAL);
    cr_assert_eq(vg_warm_allowance(&w, p[4]), 16);
    cr_assert_eq(vg_warm_allowance(&w, p[3]), 16);
    cr_assert_eq(vg_warm_allowance(&w, p[0]), 0);
    use(0, 10);
    cr_assert_eq(vg_warm_allowance(&w, p[0]), 16);
    cr_assert_eq(vg_warm_allowance(&w, p[3]), 0);
    vg_warm_done(&w);
}

Test(warm, decay_returns_idle_profiles_to_the_base_and_says_when_it_is_over) {
    vg_warm_init(&w, 2);
    struct vg_warm_profile *p = use(1, 0), *q;
    for (int i = 0; i < 3; i++)
        vg_warm_missed(&w, p);
    q = use(2, VG_WARM_IDLE_USEC);
    vg_warm_missed(&w, q);
    cr_assert(vg_warm_decay(&w, VG_WARM_IDLE_USEC));
    cr_assert_eq(p->target, 8);
    cr_assert_eq(q->target, 4, "a profile in use keeps its target");
    cr_assert(vg_warm_decay(&w, 3 * VG_WARM_IDLE_USEC));
    cr_assert_not(vg_warm_decay(&w, 3 * VG_WARM_IDLE_USEC));
    cr_assert_eq(p->target, 2);
    cr_assert_eq(q->target, 2);
    vg_warm_done(&w);
}

Test(warm, only_profiles_without_anybody_are_forgotten) {
    vg_warm_init(&w, 2);
    struct vg_warm_profile *busy = use(0, 0);
    busy->n_waiting = 1;
    for (uint32_t i = 1; i < 3 * VG_WARM_PROFILES; i++)
        use(i, i);
    vg_warm_trim(&w);
    size_t n = 0;
    bool found = false;
    vg_list_for_each (it, &w.profiles) {
        n++;
        found = found || vg_list_entry(it, struct vg_warm_profile, link) == busy;
    }
    cr_assert_eq(n, VG_WARM_PROFILES + 1);
    cr_assert(found);
    cr_assert_eq(vg_warm_allowance(&w, busy), 0);
    vg_warm_done(&w);
}

Test(warm, what_is_saved_is_loaded_in_the_same_order) {
    vg_warm_init(&w, 2);
    for (uint32_t i = 0; i < 6; i++)
        use(i, i);
    struct vg_warm_key odd = {.slot = 9, .local_root = true, .net = VG_NET_NONE, .home = "/a b/c"};
    vg_warm_use(&w, &odd, 9);
    struct vg_buf text = {0}, again = {0};
    cr_assert_eq(vg_warm_save(&w, &text), 0);
    vg_buf_append(&text, "", 1);
    vg_warm_done(&w);
    vg_warm_init(&w, 2);
    char *copy = strdup((char *)vg_buf_data(&text));
    cr_assert_eq(vg_warm_load(&w, copy), 0);
    vg_warm_save(&w, &again);
    vg_buf_append(&again, "", 1);
    cr_assert_str_eq((char *)vg_buf_data(&again), (char *)vg_buf_data(&text));
    struct vg_warm_profile *first =
        vg_list_entry(vg_list_first(&w.profiles), struct vg_warm_profile, link);
    cr_assert_str_eq(first->key.home, "/a b/c");
    cr_assert_eq(first->key.net, VG_NET_NONE);
    free(copy);
    vg_buf_done(&text);
    vg_buf_done(&again);
    vg_warm_done(&w);
}

Test(warm, lines_that_make_no_sense_are_skipped) {
    vg_warm_init(&w, 2);
    char text[] = "nonsense\n1 2 3 4 5 /x\n1 2 3 0 9 /x\n1 2 3 0 0 relative\n";
    cr_assert_eq(vg_warm_load(&w, text), 0);
    cr_assert(vg_list_empty(&w.profiles));
    char good[] = "\n1 2 3 0 0 -";
    cr_assert_eq(vg_warm_load(&w, good), 0);
    cr_assert_not(vg_list_empty(&w.profiles));
    vg_warm_done(&w);
}

Test(warm, every_failed_allocation_is_told) {
    for (uint64_t nth = 1;; nth++) {
        vg_warm_init(&w, 2);
        vg_fault_arm(nth, ENOMEM, NULL);
        struct vg_warm_profile *p = use(1, 0);
        bool fired = vg_fault_disarm();
        cr_assert_eq(fired, p == NULL);
        vg_warm_done(&w);
        if (!fired)
            break;
        cr_assert_lt(nth, 10);
    }
}
