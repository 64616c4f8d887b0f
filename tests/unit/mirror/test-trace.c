/* Traces: order, folding, forgetting, packing, keys. */
#include "mirror/trace.h"

#include "base/fault.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static void add(struct vg_trace *t, const char *path, const char *leaves) {
    uint32_t leaf[16], n = 0;
    for (const char *s = leaves; s && *s; s++)
        leaf[n++] = (uint32_t)(*s - '0');
    cr_assert_eq(vg_trace_add(t, path, leaves == NULL, leaf, n), 0);
}

/* "/a 12, /b/ " : paths, a slash behind folders, leaves. */
static void expect(const struct vg_trace *t, const char *want) {
    char got[512] = "";
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++) {
        n += (size_t)snprintf(got + n, sizeof(got) - n, "%s%s%s", i ? " " : "", t->item[i].path,
                              t->item[i].folder ? "/" : ":");
        for (uint32_t k = 0; k < t->item[i].n_leaf; k++)
            n += (size_t)snprintf(got + n, sizeof(got) - n, "%u", t->item[i].leaf[k]);
    }
    cr_assert_str_eq(got, want);
}

Test(trace, leaves_are_sorted_and_unique) {
    struct vg_trace t = {0};
    add(&t, "/x", "31231");
    expect(&t, "/x:123");
    cr_assert_eq(vg_trace_add(&t, "relative", false, NULL, 0), -EINVAL);
    vg_trace_done(&t);
}

Test(trace, a_whole_run_sets_the_order_and_a_part_adds_to_the_end) {
    struct vg_trace kept = {0}, run = {0};
    add(&kept, "/a", "1");
    add(&kept, "/d", NULL);
    add(&kept, "/b", "0");
    add(&run, "/b", "2");
    add(&run, "/new", "");
    add(&run, "/a", "");
    cr_assert_eq(vg_trace_merge(&kept, &run, false), 0);
    expect(&kept, "/a:1 /d/ /b:02 /new:");
    cr_assert_eq(vg_trace_merge(&kept, &run, true), 0);
    expect(&kept, "/b:2 /new: /a:1 /d/ /b:0");
    vg_trace_done(&kept);
    vg_trace_done(&run);
}

Test(trace, what_three_whole_runs_did_not_use_is_forgotten) {
    struct vg_trace kept = {0}, run = {0}, other = {0};
    add(&kept, "/old", "0");
    add(&kept, "/now", "0");
    add(&run, "/now", "0");
    add(&other, "/old", "0");
    vg_trace_merge(&kept, &run, true);
    vg_trace_merge(&kept, &run, true);
    vg_trace_merge(&kept, &run, false); /* a part says nothing about the rest */
    expect(&kept, "/now:0 /old:0");
    vg_trace_merge(&kept, &other, true); /* used again: counted from the start */
    vg_trace_merge(&kept, &run, true);
    vg_trace_merge(&kept, &run, true);
    expect(&kept, "/now:0 /old:0");
    vg_trace_merge(&kept, &run, true);
    expect(&kept, "/now:0");
    vg_trace_done(&kept);
    vg_trace_done(&run);
    vg_trace_done(&other);
}

Test(trace, a_path_named_twice_in_a_run_is_one) {
    struct vg_trace kept = {0}, run = {0};
    add(&run, "/a", "1");
    add(&run, "/a", "2");
    cr_assert_eq(vg_trace_merge(&kept, &run, true), 0);
    expect(&kept, "/a:12");
    vg_trace_done(&kept);
    vg_trace_done(&run);
}

Test(trace, files_that_took_turns_keep_their_order) {
    struct vg_trace kept = {0}, run = {0};
    add(&run, "/program", "09");
    add(&run, "/lib", "0");
    add(&run, "/program", "159");
    add(&run, "/program", "2");
    cr_assert_eq(vg_trace_merge(&kept, &run, true), 0);
    expect(&kept, "/program:09 /lib:0 /program:15 /program:2");
    cr_assert_eq(vg_trace_merge(&kept, &run, true), 0);
    cr_assert_eq(vg_trace_merge(&kept, &run, false), 0);
    expect(&kept, "/program:09 /lib:0 /program:15 /program:2");
    vg_trace_done(&kept);
    vg_trace_done(&run);
}

Test(trace, packing_and_unpacking_give_it_back) {
    struct vg_trace t = {0}, u = {0}, run = {0};
    struct vg_buf b = {0};
    uint32_t far[] = {0, 1, 127, 128, 70000, UINT32_MAX};
    add(&t, "/folder", NULL);
    add(&t, "/gone", "0");
    cr_assert_eq(vg_trace_add(&t, "/big", false, far, 6), 0);
    add(&run, "/folder", NULL);
    vg_trace_merge(&t, &run, true);
    cr_assert_eq(vg_trace_pack(&t, &b), 0);
    cr_assert_eq(vg_trace_unpack(&u, vg_buf_data(&b), vg_buf_len(&b)), 0);
    expect(&u, "/folder/ /gone:0 /big:01127128700004294967295");
    cr_assert(u.item[0].unused == 0 && u.item[1].unused == 1);
    for (size_t n = 0; n < vg_buf_len(&b); n++)
        cr_assert_eq(vg_trace_unpack(&u, vg_buf_data(&b), n), -EBADMSG);
    cr_assert_eq(u.n, 3, "a failure leaves it as it was");
    vg_trace_done(&t);
    vg_trace_done(&u);
    vg_trace_done(&run);
    vg_buf_done(&b);
}

static const char *key(const char *const *argv, const char *project, size_t which) {
    static char out[3][65];
    size_t n = 0;
    while (argv[n])
        n++;
    cr_assert_lt(which, vg_trace_keys(argv, n, project, out));
    return out[which];
}

static bool differ(const char *const *a, const char *const *b) {
    char first[65];
    snprintf(first, sizeof(first), "%s", key(a, "/p", 0));
    return strcmp(first, key(b, "/p", 0)) != 0;
}
#define ARGV(...) ((const char *const[]){__VA_ARGS__, NULL})

Test(trace, keys_follow_the_command_and_not_its_numbers) {
    const char *const *base = ARGV("/usr/bin/python3", "train.py", "--lr=0.1", "3");
    cr_assert(!differ(base, ARGV("/usr/bin/python3", "train.py", "--lr=0.2", "7")));
    cr_assert(!differ(base, ARGV("/usr/bin/python3", "1e-3", "train.py", "--lr=0.1", "other")));
    cr_assert(differ(base, ARGV("/usr/bin/python3", "eval.py", "--lr=0.1")));
    cr_assert(differ(base, ARGV("/usr/bin/python3.11", "train.py", "--lr=0.1")));
    cr_assert(differ(ARGV("/p", "ab", "c"), ARGV("/p", "a", "bc")));
    char out[3][65];
    cr_assert_eq(vg_trace_keys(base, 4, "/p", out), 3);
    cr_assert(strcmp(out[0], out[1]) && strcmp(out[1], out[2]) && strlen(out[2]) == 64);
    char there[65];
    snprintf(there, sizeof(there), "%s", out[0]);
    vg_trace_keys(base, 4, "/q", out);
    cr_assert(strcmp(there, out[0]) != 0);
    cr_assert_eq(vg_trace_keys(base, 4, NULL, out), 2);
    cr_assert_eq(vg_trace_keys(NULL, 0, "/p", out), 1);
}

Test(trace, no_memory_changes_nothing) {
    bool fired = true;
    for (uint64_t nth = 1; fired; nth++) {
        struct vg_trace kept = {0}, run = {0}, u = {0};
        struct vg_buf b = {0};
        add(&kept, "/a", "1");
        add(&run, "/b", "2");
        vg_fault_arm(nth, ENOMEM, NULL);
        int r = vg_trace_merge(&kept, &run, false);
        bool merged = r == 0;
        if (r == 0)
            r = vg_trace_pack(&kept, &b);
        if (r == 0)
            r = vg_trace_unpack(&u, vg_buf_data(&b), vg_buf_len(&b));
        fired = vg_fault_disarm();
        cr_assert_eq(r, fired ? -ENOMEM : 0);
        expect(&kept, merged ? "/a:1 /b:2" : "/a:1");
        vg_trace_done(&kept);
        vg_trace_done(&run);
        vg_trace_done(&u);
        vg_buf_done(&b);
    }
}
