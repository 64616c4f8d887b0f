/* Finding, filling and holding contents. */
#include "cache-helpers.h"

#include <sys/resource.h>

Test(cache, what_was_written_is_found_by_stamp_and_by_id) {
    struct place p = place_new();
    struct vg_cache *c = place_open(&p);
    const uint64_t sizes[] = {0, 1, VG_LEAF - 1, VG_LEAF, VG_LEAF + 1, 5 * VG_LEAF + 77};
    for (uint32_t i = 0; i < VG_COUNT(sizes); i++) {
        struct content t = content_new(i, sizes[i]);
        struct vg_blob *b;
        cr_assert_not(vg_cache_has(c, t.stamp, t.id));
        b = fill(c, &t, i % 2);
        cr_assert_eq(memcmp(vg_blob_id(b), t.id, VG_HASH), 0);
        vg_blob_put(b);
        cr_assert(vg_cache_has(c, t.stamp, NULL));
        uint8_t other[VG_HASH] = {(uint8_t)i, 1, 2};
        cr_assert_not(vg_cache_has(c, other, NULL));
        cr_assert(vg_cache_has(c, other, t.id));
        cr_assert_eq(vg_blob_get(c, other, t.id, t.size, false, &b), 0);
        cr_assert(vg_blob_complete(b) && vg_blob_has(b, 0, t.size) && vg_blob_size(b) == t.size);
        cr_assert_eq(check_bytes(b, &t), vg_leaves(t.size));
        vg_blob_put(b);
        cr_assert(vg_cache_has(c, other, NULL)); /* that stamp is known from now on */
        free(t.data);
    }
    cr_assert_eq(stat_of(c).objects, VG_COUNT(sizes));
    cr_assert_eq(stat_of(c).partial, 0);
    vg_cache_close(c);
    place_done(&p);
}

Test(cache, everything_is_there_after_a_restart_and_the_counters_too) {
    struct place p = place_new();
    struct vg_cache *c = place_open(&p);
    vg_cache_work(c);
    for (uint32_t i = 0; i < 20; i++)
        store(c, i, i * 50000);
    struct vg_cache_stat before = stat_of(c);
    vg_cache_close(c);
    c = place_open(&p);
    cr_assert(c->counted);
    cr_assert_eq(stat_of(c).bytes, before.bytes);
    cr_assert_eq(stat_of(c).objects, 20);
    cr_assert_eq(vg_cache_recount(c), 0);
    cr_assert_eq(stat_of(c).bytes, before.bytes);
    for (uint32_t i = 0; i < 20; i++) {
        struct content t = content_new(i, i * 50000);
        struct vg_blob *b;
        cr_assert_eq(vg_blob_get(c, t.stamp, NULL, t.size, false, &b), 0);
        cr_assert_eq(check_bytes(b, &t), vg_leaves(t.size));
        cr_assert_eq(memcmp(vg_blob_id(b), t.id, VG_HASH), 0);
        vg_blob_put(b);
        free(t.data);
    }
    vg_cache_close(c);
    place_done(&p);
}

Test(cache, one_struct_for_one_content_however_it_is_asked_for) {
    struct place p = place_new();
    struct vg_cache *c = place_open(&p);
    struct content t = content_new(1, 3 * VG_LEAF);
    uint8_t other[VG_HASH] = {9}, third[VG_HASH] = {8};
    struct vg_blob *a, *b, *d;
    cr_assert_eq(vg_blob_get(c, t.stamp, NULL, t.size, false, &a), 0);
    cr_assert_eq(put_leaf_of(a, &t, 1), 0);
    cr_assert_eq(vg_blob_get(c, t.stamp, t.id, t.size, false, &b), 0);
    cr_assert_eq(a, b);
    cr_assert_eq(vg_blob_get(c, other, t.id, t.size, false, &d), 0);
    cr_assert_eq(a, d);
    vg_blob_put(b);
    cr_assert_eq(put_leaf_of(a, &t, 0), 0);
    cr_assert_eq(put_leaf_of(a, &t, 0), 0); /* again: nothing happens */
    cr_assert_eq(put_leaf_of(d, &t, 2), 1);
    cr_assert_eq(put_leaf_of(d, &t, 2), 0);
    cr_assert_eq(vg_blob_get(c, third, t.id, t.size, false, &b), 0);
    cr_assert_eq(a, b);
    vg_blob_put(a);
    vg_blob_put(b);
    vg_blob_put(d);
    cr_assert(vg_cache_has(c, other, NULL) && vg_cache_has(c, third, NULL));
    cr_assert_eq(vg_map_len(&c->by_id) + vg_map_len(&c->by_stamp), 0);
    free(t.data);
    vg_cache_close(c);
    place_done(&p);
}

/* Both came in under names of their own before anybody knew that they are the same. */
Test(cache, the_same_bytes_twice_are_kept_once_and_stay_held_while_one_is) {
    struct place p = place_new();
    struct vg_cache *c = place_open(&p);
    struct content t = content_new(1, 2 * VG_LEAF);
    uint8_t other[VG_HASH] = {9};
    struct vg_blob *a, *b;
    cr_assert_eq(vg_blob_get(c, t.stamp, NULL, t.size, false, &a), 0);
    cr_assert_eq(vg_blob_get(c, other, NULL, t.size, false, &b), 0);
    cr_assert_neq(a, b);
    int fd = vg_blob_pin(b);
    for (uint64_t i = 0; i < 2; i++) {
        cr_assert_geq(put_leaf_of(a, &t, i), 0);
        cr_assert_geq(put_leaf_of(b, &t, i), 0);
    }
    cr_assert(vg_blob_complete(a) && vg_blob_complete(b));
    cr_assert_eq(stat_of(c).objects, 1);
    uint8_t byte;
    cr_assert_eq(pread(fd, &byte, 1, VG_LEAF), 1);
    cr_assert_eq(byte, t.data[VG_LEAF]);
    vg_blob_unpin(b);
    vg_blob_put(a);
    c->max_bytes = 1;
    vg_cache_trim(c); /* b still holds it */
    cr_assert_eq(check_bytes(b, &t), 2);
    vg_blob_put(b);
    vg_cache_trim(c);
    cr_assert_eq(stat_of(c).objects, 0);
    free(t.data);
    vg_cache_close(c);
    place_done(&p);
}

Test(cache, what_is_no_whole_leaf_is_refused) {
    struct place p = place_new();
    struct vg_cache *c = place_open(&p);
    struct content t = content_new(1, 2 * VG_LEAF + 5);
    struct vg_blob *b;
    cr_assert_eq(vg_blob_get(c, t.stamp, t.id, t.size, false, &b), 0);
    cr_assert_eq(vg_blob_write(b, 1, t.data, VG_LEAF, true), -EINVAL);
    cr_assert_eq(vg_blob_write(b, 0, t.data, VG_LEAF - 1, true), -EINVAL);
    cr_assert_eq(vg_blob_write(b, 0, t.data, 0, true), -EINVAL);
    cr_assert_eq(vg_blob_write(b, 2 * VG_LEAF, t.data, 6, true), -EINVAL);
    cr_assert_eq(vg_blob_write(b, 3 * (uint64_t)VG_LEAF, t.data, 0, true), -EINVAL);
    cr_assert_eq(vg_blob_write(b, UINT64_MAX - VG_LEAF + 1, t.data, VG_LEAF, true), -EINVAL);
    cr_assert_eq(vg_blob_write(b, 0, t.data, (size_t)t.size, true),
                 1); /* several at once are fine */
    struct vg_blob *d;
    cr_assert_eq(vg_blob_get(c, t.stamp, t.id, t.size + 1, false, &d), -EBADMSG);
    vg_blob_put(b);
    cr_assert_eq(vg_blob_get(c, t.stamp, NULL, VG_CACHE_FILE_MAX + 1, false, &b), -EFBIG);
    cr_assert_eq(vg_blob_get(c, t.stamp, NULL, VG_CACHE_SECRET_MAX + 1, true, &b), -EFBIG);
    free(t.data);
    vg_cache_close(c);
    place_done(&p);
}

Test(cache, what_is_not_what_was_promised_is_dropped_and_can_come_again) {
    struct place p = place_new();
    struct vg_cache *c = place_open(&p);
    for (int leaves = 1; leaves <= 3; leaves++) {
        struct content t = content_new((uint32_t)leaves, (uint64_t)leaves * VG_LEAF);
        struct vg_blob *b;
        cr_assert_eq(vg_blob_get(c, t.stamp, t.id, t.size, false, &b), 0);
        t.data[7] ^= 1;
        for (int i = 0; i < leaves; i++)
            cr_assert_eq(put_leaf_of(b, &t, (uint64_t)i), i == leaves - 1 ? -EBADMSG : 0);
        cr_assert_not(vg_blob_has(b, 0, 1));
        cr_assert_not(vg_cache_has(c, t.stamp, t.id));
        t.data[7] ^= 1;
        for (int i = 0; i < leaves; i++)
            cr_assert_eq(put_leaf_of(b, &t, (uint64_t)i), i == leaves - 1);
        cr_assert_eq(check_bytes(b, &t), (uint64_t)leaves);
        vg_blob_put(b);
        free(t.data);
    }
    cr_assert_eq(stat_of(c).bad, 3);
    cr_assert_eq(stat_of(c).partial, 0);
    vg_cache_close(c);
    place_done(&p);
}

/* Nothing of the folder holds the bytes, nor a name for them. */
static int no_file(const char *path, const struct stat *st, int type, struct FTW *w) {
    (void)w;
    cr_assert(type != FTW_F || st->st_size <= 64, "%s", path);
    cr_assert(type != FTW_SL, "%s", path);
    return 0;
}

Test(cache, a_secret_is_in_memory_only_and_goes_with_its_last_holder) {
    struct place p = place_new();
    struct vg_cache *c = place_open(&p);
    struct content t = content_new(1, VG_LEAF + 100);
    struct vg_blob *b, *d;
    char path[80];
    cr_assert_eq(vg_blob_get(c, t.stamp, t.id, t.size, true, &b), 0);
    cr_assert_eq(vg_blob_get(c, t.stamp, NULL, t.size, true, &d), 0);
    cr_assert_eq(b, d);
    cr_assert_eq(put_leaf_of(b, &t, 1), 0);
    cr_assert_eq(put_leaf_of(b, &t, 0), 1);
    cr_assert_eq(check_bytes(d, &t), 2);
    cr_assert_eq(vg_blob_path(b, path), -EXDEV);
    cr_assert_eq(nftw(p.dir, no_file, 16, FTW_PHYS), 0);
    vg_blob_put(b);
    vg_blob_put(d);
    cr_assert_not(vg_cache_has(c, t.stamp, t.id));
    cr_assert_eq(vg_blob_get(c, t.stamp, t.id, t.size, true, &b), 0);
    cr_assert_not(vg_blob_has(b, 0, 1));
    vg_blob_put(b);
    free(t.data);
    vg_cache_close(c);
    place_done(&p);
}

static int collect(const char *path, const struct stat *st, int type, struct FTW *w);
static char names[64][VG_NAME];
static size_t n_names;
static int collect(const char *path, const struct stat *st, int type, struct FTW *w) {
    (void)st;
    if ((type == FTW_F || type == FTW_SL) && strlen(path + w->base) == VG_NAME - 1)
        memcpy(names[n_names++ % 64], path + w->base, VG_NAME);
    return 0;
}

Test(cache, two_tenants_with_the_same_content_share_no_name_and_find_only_their_own) {
    struct place p = place_new(), q = place_new();
    struct vg_cache *a = place_open(&p), *b = place_open(&q);
    struct content t = content_new(5, VG_LEAF + 1), whole = content_new(6, 100);
    struct vg_blob *part;
    vg_blob_put(fill(a, &whole, true));
    cr_assert_not(
        vg_cache_has(b, whole.stamp, whole.id)); /* the other one has it: no trace of it */
    vg_blob_put(fill(b, &whole, true));
    cr_assert_eq(stat_of(b).hits, 0);
    cr_assert_eq(vg_blob_get(a, t.stamp, t.id, t.size, false, &part), 0);
    cr_assert_eq(put_leaf_of(part, &t, 0), 0);
    vg_blob_put(part);
    cr_assert_eq(vg_blob_get(b, t.stamp, t.id, t.size, false, &part), 0);
    cr_assert_not(vg_blob_has_leaf(part, 0));
    cr_assert_eq(put_leaf_of(part, &t, 0), 0);
    vg_blob_put(part);
    nftw(p.dir, collect, 16, FTW_PHYS);
    size_t first = n_names;
    nftw(q.dir, collect, 16, FTW_PHYS);
    cr_assert_eq(first, 3); /* an object, its stamp, a part */
    cr_assert_eq(n_names, 6);
    for (size_t i = 0; i < first; i++)
        for (size_t k = first; k < n_names; k++)
            cr_assert_neq(strcmp(names[i], names[k]), 0);
    free(t.data);
    free(whole.data);
    vg_cache_close(a);
    vg_cache_close(b);
    place_done(&p);
    place_done(&q);
}

Test(cache, two_processes_do_not_share_a_folder) {
    struct place p = place_new();
    struct vg_cache *c = place_open(&p), *d = NULL;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_cache_open(&p.conf, &d, &err), -EBUSY);
    cr_assert(strstr(err.msg, "in use by another process"), "%s", err.msg);
    vg_cache_close(c);
    c = place_open(&p);
    vg_cache_close(c);
    place_done(&p);
}

Test(cache, a_process_that_is_about_to_end_is_waited_for) {
    struct place p = place_new();
    int ready[2];
    p.conf.dir = p.dir;
    cr_assert_eq(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct vg_cache *c = place_open(&p);
        (void)!write(ready[1], "x", 1);
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        vg_cache_close(c);
        _exit(0);
    }
    char x;
    cr_assert_eq(read(ready[0], &x, 1), 1);
    p.conf.wait_usec = 60 * VG_USEC;
    struct vg_cache *c = place_open(&p);
    vg_cache_close(c);
    waitpid(pid, NULL, 0);
    place_done(&p);
}

Test(cache, descriptors_are_open_only_while_pinned) {
    struct place p = place_new();
    struct vg_cache *c = place_open(&p);
    struct vg_blob *b[64];
    int before = dup(0);
    close(before);
    for (uint32_t i = 0; i < VG_COUNT(b); i++) {
        struct content t = content_new(i, 100 + i);
        b[i] = fill(c, &t, true);
        free(t.data);
    }
    int after = dup(0);
    close(after);
    cr_assert_eq(before, after);
    int fd = vg_blob_pin(b[0]);
    cr_assert_eq(vg_blob_pin(b[0]), fd);
    cr_assert_lt(write(fd, "x", 1), 0); /* read-only */
    vg_blob_unpin(b[0]);
    cr_assert_geq(fcntl(fd, F_GETFD), 0);
    vg_blob_unpin(b[0]);
    cr_assert_lt(fcntl(fd, F_GETFD), 0);
    for (size_t i = 0; i < VG_COUNT(b); i++)
        vg_blob_put(b[i]);
    vg_cache_close(c);
    place_done(&p);
}

Test(cache, the_limit_of_descriptors_is_raised) {
    struct rlimit l, low;
    getrlimit(RLIMIT_NOFILE, &l);
    low = (struct rlimit){.rlim_cur = 64, .rlim_max = l.rlim_max};
    setrlimit(RLIMIT_NOFILE, &low);
    struct place p = place_new();
    struct vg_cache *c = place_open(&p);
    getrlimit(RLIMIT_NOFILE, &low);
    cr_assert_eq(low.rlim_cur, low.rlim_max);
    vg_cache_close(c);
    place_done(&p);
}
