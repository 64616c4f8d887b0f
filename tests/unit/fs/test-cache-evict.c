/* Limits: who goes, who stays, and what happens when nobody can go. */
#include "cache-helpers.h"

#include <sched.h>
#include <sys/mount.h>

/* As if it had been used that many seconds ago. */
static void used_ago(struct vg_cache *c, uint32_t seed, uint64_t size, long sec) {
    struct content t = content_new(seed, size);
    char path[VG_CACHE_PATH];
    struct timespec now, at[2] = {{0}, {.tv_nsec = UTIME_OMIT}};
    clock_gettime(CLOCK_REALTIME, &now);
    at[0].tv_sec = now.tv_sec - sec;
    path_of(c, &t, path);
    cr_assert_eq(utimensat(c->dir, path, at, 0), 0);
    free(t.data);
}

#define SIZE 60000u

Test(cache_evict, the_longest_unused_go_first_and_what_is_held_stays) {
    struct place p = place_new();
    p.conf.max_bytes = 10 * vg_cache_cost(SIZE);
    struct vg_cache *c = place_open(&p);
    for (uint32_t i = 0; i < 10; i++) {
        store(c, i, SIZE);
        used_ago(c, i, SIZE, 1000 + (i < 5 ? i * 100 : 0)); /* 4 is the oldest, then 3, ... */
    }
    cr_assert_eq(stat_of(c).evicted, 0);
    struct content t = content_new(4, SIZE);
    struct vg_blob *held;
    cr_assert_eq(vg_blob_get(c, t.stamp, NULL, SIZE, false, &held), 0);
    used_ago(c, 4, SIZE, 100000);
    store(c, 10, SIZE);
    cr_assert_eq(stat_of(c).evicted, 2); /* down to nine tenths */
    cr_assert(kept(c, 4, SIZE));
    cr_assert_not(kept(c, 3, SIZE));
    cr_assert_not(kept(c, 2, SIZE));
    cr_assert(kept(c, 1, SIZE) && kept(c, 9, SIZE) && kept(c, 10, SIZE));
    cr_assert_leq(stat_of(c).bytes, p.conf.max_bytes);
    vg_blob_put(held);
    free(t.data);
    vg_cache_close(c);
    place_done(&p);
}

Test(cache_evict, a_use_is_noted_on_the_disk) {
    struct place p = place_new();
    struct vg_cache *c = place_open(&p);
    store(c, 1, SIZE);
    used_ago(c, 1, SIZE, 5000);
    struct content t = content_new(1, SIZE);
    struct vg_blob *b;
    struct stat st;
    char path[VG_CACHE_PATH];
    cr_assert_eq(vg_blob_get(c, t.stamp, NULL, SIZE, false, &b), 0);
    vg_blob_put(b);
    path_of(c, &t, path);
    cr_assert_eq(fstatat(c->dir, path, &st, 0), 0);
    cr_assert_gt(st.st_atim.tv_sec + 1000, time(NULL));
    free(t.data);
    vg_cache_close(c);
    place_done(&p);
}

Test(cache_evict, parts_go_too_but_not_those_that_are_held) {
    struct place p = place_new();
    struct vg_cache *c = place_open(&p);
    struct content t[2] = {content_new(1, 3 * VG_LEAF), content_new(2, 3 * VG_LEAF)};
    struct vg_blob *b[2];
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(vg_blob_get(c, t[i].stamp, NULL, t[i].size, false, &b[i]), 0);
        cr_assert_eq(put_leaf_of(b[i], &t[i], 1), 0);
    }
    vg_blob_put(b[0]);
    c->max_bytes = 1;
    vg_cache_trim(c);
    cr_assert_eq(stat_of(c).partial, 1);
    cr_assert_eq(check_bytes(b[1], &t[1]), 1);
    c->max_bytes = 64 << 20;
    cr_assert_eq(put_leaf_of(b[1], &t[1], 0), 0);
    cr_assert_eq(put_leaf_of(b[1], &t[1], 2), 1);
    vg_blob_put(b[1]);
    cr_assert_eq(vg_blob_get(c, t[0].stamp, NULL, t[0].size, false, &b[0]), 0);
    cr_assert_not(vg_blob_has_leaf(b[0], 1));
    vg_blob_put(b[0]);
    free(t[0].data);
    free(t[1].data);
    vg_cache_close(c);
    place_done(&p);
}

Test(cache_evict, stamps_of_what_is_gone_are_taken_away) {
    struct place p = place_new();
    struct vg_cache *c = place_open(&p);
    struct content t = content_new(1, SIZE);
    struct stat st;
    char name[VG_NAME], path[VG_CACHE_PATH];
    vg_blob_put(fill(c, &t, true));
    vg_cache_name(c->key, t.stamp, name);
    vg_cache_path(path, "stamp", name);
    cr_assert_eq(fstatat(c->dir, path, &st, AT_SYMLINK_NOFOLLOW), 0);
    vg_cache_work(c);
    cr_assert_eq(fstatat(c->dir, path, &st, AT_SYMLINK_NOFOLLOW), 0, "its object is there");
    c->max_bytes = 1;
    vg_cache_work(c);
    cr_assert_lt(fstatat(c->dir, path, &st, AT_SYMLINK_NOFOLLOW), 0);
    cr_assert_eq(stat_of(c).objects, 0);
    free(t.data);
    vg_cache_close(c);
    place_done(&p);
}

/* What is held stays. At the limit new tasks are told and guesses are not taken; those that run go
   on. */
Test(cache_evict, all_held_is_full_for_new_tasks_and_for_guesses) {
    struct place p = place_new();
    p.conf.max_bytes = 20 * vg_cache_cost(SIZE);
    struct vg_cache *c = place_open(&p);
    struct vg_blob *held[64];
    uint32_t n, full_at = 0, refused = 0;
    for (n = 0; n < VG_COUNT(held); n++) {
        struct content t = content_new(n, SIZE);
        cr_assert_eq(vg_blob_get(c, t.stamp, t.id, SIZE, false, &held[n]), 0);
        int r = vg_blob_write(held[n], 0, t.data, leaf_len(&t, 0), false);
        if (r < 0) {
            cr_assert_eq(r, -ENOSPC);
            refused++;
            r = put_leaf_of(held[n], &t, 0);
        }
        cr_assert_geq(r, 0);
        if (!full_at && vg_cache_full(c))
            full_at = n;
        free(t.data);
    }
    cr_assert(full_at == 20 || full_at == 21, "%u", full_at);
    cr_assert(refused >= 43 && refused <= 45, "%u", refused);
    cr_assert(stat_of(c).full);
    for (uint32_t i = 0; i < n; i++)
        cr_assert(vg_blob_complete(held[i]));
    cr_assert_eq(stat_of(c).evicted, 0);
    for (uint32_t i = 0; i < n; i++)
        vg_blob_put(held[i]);
    cr_assert_not(vg_cache_full(c)); /* evicted what nobody holds any more */
    cr_assert_gt(stat_of(c).evicted, 0);
    vg_cache_close(c);
    place_done(&p);
}

/* In a child with a mount of its own: the disk itself is full, whoever filled it. */
static void on_a_small_disk(void) {
    char dir[] = "/tmp/vg-small-XXXXXX", cache[64], filler[64];
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        !mkdtemp(dir) || mount("tmpfs", dir, "tmpfs", 0, "size=8m") < 0)
        _exit(77);
    snprintf(cache, sizeof cache, "%s/cache", dir);
    snprintf(filler, sizeof filler, "%s/filler", dir);
    struct vg_cache *c = NULL;
    struct vg_err err = VG_ERR_INIT;
    struct vg_cache_conf conf = {
        .dir = cache, .max_bytes = 64 << 20, .keep_free = 512 << 10, .inline_work = true};
    if (vg_cache_open(&conf, &c, &err) < 0)
        _exit(2);
    for (uint32_t i = 0; i < 60; i++) /* 15 MiB through 8: the old ones go */
        store(c, i, VG_LEAF);
    if (stat_of(c).evicted < 20 || !kept(c, 59, VG_LEAF) || kept(c, 0, VG_LEAF))
        _exit(3);
    struct content big =
        content_new(100, 64 * VG_LEAF); /* more than there is: held while it grows */
    struct vg_blob *b;
    uint64_t n = 0;
    int r = vg_blob_get(c, big.stamp, big.id, big.size, false, &b);
    while (r == 0 && n < 64)
        r = put_leaf_of(b, &big, n++);
    if (r != -ENOSPC || n < 20 || !vg_cache_full(c))
        _exit(4);
    if (check_bytes(b, &big) != n - 1) /* what it had is still right */
        _exit(5);
    vg_blob_put(b);
    if (vg_cache_full(c))
        _exit(6);
    int fd = open(filler, O_RDWR | O_CREAT | O_CLOEXEC, 0600); /* others fill the disk */
    if (fd < 0)
        _exit(7);
    static char block[1 << 16];
    while (write(fd, block, sizeof block) > 0)
        ;
    if (!vg_cache_full(c) || ftruncate(fd, 0) < 0 || vg_cache_full(c))
        _exit(8);
    store(c, 200, 5 * VG_LEAF);
    if (!kept(c, 200, 5 * VG_LEAF) || vg_cache_scrub(c, UINT64_MAX) != 0)
        _exit(9);
    vg_cache_close(c);
    close(fd);
    _exit(umount(dir) < 0 || rmdir(dir) < 0 ? 10 : 0);
}

/* One user is away, one has his daemon running, and somebody fills the disk. */
static void trim_the_absent(void) {
    char dir[] = "/tmp/vg-small-XXXXXX", absent[64], present[64], filler[64];
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        !mkdtemp(dir) || mount("tmpfs", dir, "tmpfs", 0, "size=8m") < 0)
        _exit(77);
    snprintf(absent, sizeof absent, "%s/1/cache", dir);
    snprintf(present, sizeof present, "%s/2/cache", dir);
    snprintf(filler, sizeof filler, "%s/filler", dir);
    struct vg_cache *c[2];
    struct vg_err err = VG_ERR_INIT;
    for (uint32_t i = 0; i < 2; i++) {
        struct vg_cache_conf conf = {.dir = i ? present : absent,
                                     .max_bytes = 64 << 20,
                                     .keep_free = 1,
                                     .inline_work = true};
        if (vg_cache_open(&conf, &c[i], &err) < 0)
            _exit(2);
        for (uint32_t k = 0; k < 8; k++)
            store(c[i], 100 * i + k, VG_LEAF);
    }
    vg_cache_close(c[0]);
    if (vg_cache_disk_low(dir))
        _exit(3);
    vg_cache_trim_idle(dir); /* there is room: nothing happens */
    int fd = open(filler, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    static char block[1 << 16];
    while (fd >= 0 && !vg_cache_disk_low(dir) && write(fd, block, sizeof block) > 0)
        ;
    vg_cache_trim_idle(dir);
    if (fd < 0 || vg_cache_disk_low(dir))
        _exit(4);
    for (uint32_t k = 0; k < 8; k++)
        if (!kept(c[1], 100 + k, VG_LEAF))
            _exit(5);
    vg_cache_close(c[1]);
    struct vg_cache_conf conf = {.dir = absent, .max_bytes = 64 << 20, .inline_work = true};
    if (vg_cache_open(&conf, &c[0], &err) < 0 || stat_of(c[0]).objects >= 8)
        _exit(6);
    vg_cache_close(c[0]);
    close(fd);
    _exit(umount(dir) < 0 || rmdir(dir) < 0 ? 7 : 0);
}

static void in_a_child(void (*body)(void)) {
    pid_t pid = fork();
    if (pid == 0)
        body();
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        cr_skip("needs the right to mount");
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", status);
}

Test(cache_evict, a_real_disk_that_fills_up_and_is_cleared) {
    in_a_child(on_a_small_disk);
}
Test(cache_evict, caches_of_absent_users_go_when_the_disk_gets_full) {
    in_a_child(trim_the_absent);
}
