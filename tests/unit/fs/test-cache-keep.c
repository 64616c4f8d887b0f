/* What the disk did meanwhile: rot, power failures, an end without a close. */
#include "cache-helpers.h"

/* Writes over the object, by the back door. */
static void spoil(struct vg_cache *c, const struct content *t, off_t at) {
    char path[VG_CACHE_PATH];
    struct stat st;
    path_of(c, t, path);
    cr_assert_eq(fstatat(c->dir, path, &st, 0), 0);
    cr_assert_eq(fchmodat(c->dir, path, 0600, 0), 0);
    int fd = openat(c->dir, path, O_RDWR | O_CLOEXEC);
    cr_assert_geq(fd, 0);
    uint8_t byte = (uint8_t)(t->data[at] ^ 0x40);
    cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
    struct timespec times[2] = {st.st_atim, st.st_mtim}; /* rot leaves no trace */
    cr_assert_eq(futimens(fd, times), 0);
    close(fd);
}

Test(cache_keep, scrubbing_drops_what_has_rotted_and_nothing_else) {
    struct place p = place_new();
    struct vg_cache *c = place_open(&p);
    struct content t = content_new(3, 2 * VG_LEAF);
    for (uint32_t i = 0; i < 8; i++)
        store(c, i, 2 * VG_LEAF);
    cr_assert_eq(vg_cache_scrub(c, UINT64_MAX), 0);
    spoil(c, &t, VG_LEAF + 5);
    cr_assert_eq(vg_cache_scrub(c, UINT64_MAX), 1);
    cr_assert_not(kept(c, 3, 2 * VG_LEAF));
    cr_assert_eq(stat_of(c).objects, 7);
    cr_assert_eq(stat_of(c).bad, 1);
    vg_blob_put(fill(c, &t, true));
    cr_assert_eq(vg_cache_scrub(c, UINT64_MAX), 0);
    free(t.data);
    vg_cache_close(c);
    place_done(&p);
}

Test(cache_keep, a_scrub_goes_on_where_its_budget_ended) {
    struct place p = place_new();
    struct vg_cache *c = place_open(&p);
    for (uint32_t i = 0; i < 12; i++)
        store(c, i, VG_LEAF);
    for (int i = 0; i < 12; i++) {
        cr_assert_eq(vg_cache_scrub(c, 1), 0);
        cr_assert_eq(stat_of(c).scrubbed_bytes, (uint64_t)(i + 1) * VG_LEAF);
    }
    struct content t = content_new(7, VG_LEAF);
    spoil(c, &t, 5);
    int bad = 0;
    for (int i = 0; i < 13; i++) /* a full turn from here finds it once */
        bad += vg_cache_scrub(c, 1);
    cr_assert_eq(bad, 1);
    free(t.data);
    vg_cache_close(c);
    place_done(&p);
}

Test(cache_keep, after_a_power_failure_what_is_not_certain_is_not_served) {
    struct place p = place_new();
    struct content old = content_new(1, VG_LEAF), torn = content_new(2, 2 * VG_LEAF),
                   good = content_new(3, 2 * VG_LEAF);
    p.conf.boot = "first";
    struct vg_cache *c = place_open(&p);
    vg_blob_put(fill(c, &old, true));
    cr_assert_eq(vg_keep_mark(c), 0);
    struct stat st;
    cr_assert_eq(fstatat(c->dir, "mark", &st, 0), 0);
    /* Later than the mark, by the file system's own clock. */
    struct timespec later[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = st.st_mtim.tv_sec + 1}};
    struct timespec before[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = st.st_mtim.tv_sec - 1}};
    char path[VG_CACHE_PATH];
    vg_blob_put(fill(c, &torn, true));
    vg_blob_put(fill(c, &good, true));
    path_of(c, &old, path);
    cr_assert_eq(utimensat(c->dir, path, before, 0), 0);
    spoil(c, &torn, 7);
    path_of(c, &torn, path);
    cr_assert_eq(utimensat(c->dir, path, later, 0), 0);
    path_of(c, &good, path);
    cr_assert_eq(utimensat(c->dir, path, later, 0), 0);
    atomic_store(&c->dirty, false); /* the end that does not come: no mark */
    vg_cache_close(c);

    p.conf.boot = "second";
    c = place_open(&p);
    atomic_store(&c->suspect_to, INT64_MAX); /* the clock has moved on meanwhile */
    cr_assert(vg_cache_has(c, old.stamp, NULL));
    cr_assert_not(vg_cache_has(c, torn.stamp, torn.id));
    cr_assert_not(vg_cache_has(c, good.stamp, good.id));
    cr_assert_eq(vg_keep_mark(c), -EAGAIN, "not before they were read");
    vg_cache_work(c);
    cr_assert_not(vg_cache_has(c, torn.stamp, torn.id));
    cr_assert(vg_cache_has(c, good.stamp, NULL));
    cr_assert_eq(stat_of(c).objects, 2);
    vg_cache_close(c);
    c = place_open(&p); /* the same boot: nothing to suspect any more */
    cr_assert(vg_cache_has(c, good.stamp, NULL));
    vg_cache_close(c);
    free(old.data);
    free(torn.data);
    free(good.data);
    place_done(&p);
}

Test(cache_keep, a_suspect_that_is_asked_for_is_dropped_and_can_come_again) {
    struct place p = place_new();
    struct content t = content_new(2, VG_LEAF);
    struct vg_blob *b;
    struct vg_cache *c = place_open(&p);
    vg_blob_put(fill(c, &t, true));
    atomic_store(&c->suspect_to, INT64_MAX);
    atomic_store(&c->suspect_from, 0);
    cr_assert_eq(vg_blob_get(c, t.stamp, t.id, t.size, false, &b), 0);
    cr_assert_not(vg_blob_complete(b));
    cr_assert_eq(stat_of(c).objects, 0);
    atomic_store(&c->suspect_from, INT64_MAX);
    cr_assert_eq(put_leaf_of(b, &t, 0), 1);
    vg_blob_put(b);
    cr_assert(vg_cache_has(c, t.stamp, NULL));
    vg_cache_close(c);
    free(t.data);
    place_done(&p);
}

Test(cache_keep, a_cut_object_is_not_served) {
    struct place p = place_new();
    struct content t = content_new(2, VG_LEAF);
    struct vg_blob *b;
    char path[VG_CACHE_PATH];
    struct vg_cache *c = place_open(&p);
    vg_blob_put(fill(c, &t, true));
    path_of(c, &t, path);
    cr_assert_eq(fchmodat(c->dir, path, 0600, 0), 0);
    int fd = openat(c->dir, path, O_RDWR | O_CLOEXEC);
    cr_assert(fd >= 0 && ftruncate(fd, 5) == 0);
    close(fd);
    cr_assert_eq(vg_blob_get(c, t.stamp, t.id, t.size, false, &b), 0);
    cr_assert_not(vg_blob_complete(b));
    cr_assert_eq(put_leaf_of(b, &t, 0), 1);
    cr_assert_eq(check_bytes(b, &t), 1);
    vg_blob_put(b);
    vg_cache_close(c);
    free(t.data);
    place_done(&p);
}

Test(cache_keep, counters_are_made_again_after_an_end_without_a_close) {
    struct place p = place_new();
    p.conf.dir = p.dir;
    pid_t pid = fork();
    if (pid == 0) {
        struct vg_cache *c = NULL;
        struct vg_err err = VG_ERR_INIT;
        if (vg_cache_open(&p.conf, &c, &err) < 0)
            _exit(1);
        for (uint32_t i = 0; i < 5; i++)
            store(c, i, 1000);
        _exit(0);
    }
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
    struct vg_cache *c = place_open(&p);
    cr_assert_not(c->counted);
    vg_cache_work(c);
    cr_assert_eq(stat_of(c).objects, 5);
    cr_assert_eq(stat_of(c).bytes, 5 * vg_cache_cost(1000));
    for (uint32_t i = 0; i < 5; i++)
        cr_assert(kept(c, i, 1000));
    vg_cache_close(c);
    place_done(&p);
}

Test(cache_keep, the_thread_counts_and_evicts_by_itself) {
    struct place p = place_new();
    p.conf.inline_work = false;
    p.conf.max_bytes = 40 * vg_cache_cost(VG_LEAF);
    struct vg_cache *c = place_open(&p);
    for (uint32_t i = 0; i < 200; i++)
        store(c, i, VG_LEAF);
    cr_assert(kept(c, 199, VG_LEAF));
    cr_assert_leq(stat_of(c).bytes, p.conf.max_bytes + p.conf.max_bytes / 4);
    vg_cache_close(c);
    c = place_open(&p);
    cr_assert(kept(c, 199, VG_LEAF));
    vg_cache_close(c);
    place_done(&p);
}

Test(cache_keep, folders_of_an_earlier_division_are_cleared_away_and_nothing_else) {
    struct place p = place_new();
    struct vg_cache *c = place_open(&p);
    struct stat st;
    store(c, 1, VG_LEAF);
    cr_assert_eq(mkdirat(c->dir, "id/3f", 0700), 0);
    cr_assert_eq(mkdirat(c->dir, "stamp/00", 0700), 0);
    int fd = openat(c->dir, "id/3f/3fold", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    cr_assert_geq(fd, 0);
    close(fd);
    cr_assert_eq(symlinkat("old", c->dir, "stamp/00/00old"), 0);
    vg_cache_work(c);
    cr_assert_eq(fstatat(c->dir, "id/3f", &st, 0), -1);
    cr_assert_eq(fstatat(c->dir, "stamp/00", &st, 0), -1);
    cr_assert(kept(c, 1, VG_LEAF));
    vg_cache_close(c);
    place_done(&p);
}
