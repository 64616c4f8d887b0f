/* The operator's store: what gets in, and that caches find it by id alone. */
#include "cache-helpers.h"
#include "fs/node/public.h"

struct site {
    struct place place; /* of a tenant's cache */
    char top[64], from[80], store[80];
};

static struct site site_new(void) {
    struct site s = {.place = place_new()};
    struct place p = place_new();
    memcpy(s.top, p.dir, sizeof s.top);
    cr_assert_eq(chmod(s.top, 0755), 0);
    snprintf(s.from, sizeof s.from, "%s/usr", s.top);
    snprintf(s.store, sizeof s.store, "%s/public", s.top);
    cr_assert_eq(mkdir(s.from, 0755), 0);
    return s;
}

static void site_done(struct site *s) {
    nftw(s->top, place_remove, 16, FTW_DEPTH | FTW_PHYS);
    place_done(&s->place);
}

static void file(struct site *s, const char *name, const struct content *t, mode_t mode) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", s->from, name);
    cr_assert_eq(vg_write_file(path, t->data, t->size, mode), 0);
    cr_assert_eq(chmod(path, mode), 0);
}

static struct vg_public_stat seed(struct site *s) {
    struct vg_public_stat st;
    struct vg_err err = VG_ERR_INIT;
    char *paths[] = {s->from, NULL};
    cr_assert_eq(vg_public_seed(s->store, paths, &st, &err), 0, "%s", err.msg);
    return st;
}

static void need_root(void) {
    if (geteuid() != 0)
        cr_skip("only root's files are public");
}

Test(public, seeded_content_is_found_by_id_by_every_tenant_and_by_stamp_never) {
    need_root();
    struct site s = site_new();
    struct place other = place_new();
    other.conf.public_dir = s.store;
    struct content a = content_new(1, 3 * VG_LEAF + 1), b = content_new(2, 10);
    file(&s, "a", &a, 0644);
    file(&s, "again", &a, 0755);
    file(&s, "b", &b, 0644);
    s.place.conf.public_dir = s.store;
    struct vg_cache *early = place_open(&s.place); /* before anything was seeded */
    struct vg_public_stat st = seed(&s);
    cr_assert(vg_cache_has(early, a.stamp, a.id));
    vg_cache_close(early);
    cr_assert(st.files == 3 && st.added == 2 && st.added_bytes == a.size + b.size);
    st = seed(&s);
    cr_assert(st.files == 3 && st.added == 0);
    struct vg_cache *c[2] = {place_open(&s.place), place_open(&other)};
    for (int i = 0; i < 2; i++) {
        struct vg_blob *blob;
        char path[80];
        cr_assert_not(vg_cache_has(c[i], a.stamp, NULL));
        cr_assert(vg_cache_has(c[i], a.stamp, a.id));
        cr_assert_eq(vg_blob_get(c[i], b.stamp, NULL, b.size, false, &blob), 0);
        cr_assert_not(vg_blob_complete(blob)); /* the record knew no id */
        vg_blob_put(blob);
        cr_assert_eq(vg_blob_get(c[i], a.stamp, a.id, a.size, false, &blob), 0);
        cr_assert(vg_blob_complete(blob));
        cr_assert_eq(check_bytes(blob, &a), 4);
        cr_assert_eq(vg_blob_path(blob, path), 0); /* a name of its own here, the bytes only once */
        vg_blob_put(blob);
        cr_assert_eq(stat_of(c[i]).public_hits, 1);
        cr_assert_lt(stat_of(c[i]).bytes, VG_LEAF);
        cr_assert_eq(vg_cache_recount(c[i]), 0);
        cr_assert_lt(stat_of(c[i]).bytes, VG_LEAF);
        cr_assert(vg_cache_has(c[i], a.stamp, NULL));
    }
    vg_blob_put(fill(c[0], &b, false)); /* what a tenant brings stays with him */
    st = seed(&s);
    cr_assert_eq(st.added, 0);
    vg_cache_close(c[0]);
    vg_cache_close(c[1]);
    free(a.data);
    free(b.data);
    place_done(&other);
    site_done(&s);
}

Test(public, what_is_not_everybodys_stays_out) {
    need_root();
    struct site s = site_new();
    struct content t = content_new(1, 100);
    char path[160];
    struct vg_public_stat st;
    struct vg_err err = VG_ERR_INIT;
    file(&s, "private", &t, 0600);
    file(&s, "other", &t, 0644);
    snprintf(path, sizeof path, "%s/other", s.from);
    cr_assert_eq(chown(path, 1000, 1000), 0);
    snprintf(path, sizeof path, "%s/link", s.from);
    cr_assert_eq(symlink("/etc/hostname", path), 0);
    snprintf(path, sizeof path, "%s/closed", s.from);
    cr_assert_eq(mkdir(path, 0700), 0);
    file(&s, "closed/in", &t, 0644);
    snprintf(path, sizeof path, "%s/loose", s.from);
    cr_assert_eq(mkdir(path, 0755), 0);
    cr_assert_eq(chmod(path, 0777), 0);
    file(&s, "loose/in", &t, 0644);
    st = seed(&s);
    cr_assert(st.files == 0 && st.added == 0 && st.skipped == 4, "%d files, %d skipped",
              (int)st.files, (int)st.skipped);
    cr_assert_eq(chmod(s.from, 0700), 0);
    snprintf(path, sizeof path, "%s/other", s.from);
    char *paths[] = {path, NULL};
    cr_assert_eq(vg_public_seed(s.store, paths, &st, &err), -EINVAL);
    cr_assert(strstr(err.msg, "may not be entered by everybody"), "%s", err.msg);
    paths[0] = s.from;
    cr_assert_eq(vg_public_seed(s.store, paths, &st, &err), -EINVAL);
    cr_assert(strstr(err.msg, "is not public"), "%s", err.msg);
    paths[0] = "/nowhere/at/all";
    cr_assert_eq(vg_public_seed(s.store, paths, &st, &err), -ENOENT);
    free(t.data);
    site_done(&s);
}

/* The bytes of everybody's object rot: the tenant's scrub and the operator's check both see it. */
Test(public, a_bad_object_is_shunned_until_it_is_seeded_again) {
    need_root();
    struct site s = site_new();
    struct content t = content_new(1, 2 * VG_LEAF);
    struct vg_blob *b;
    struct vg_public_stat st;
    struct vg_err err = VG_ERR_INIT;
    char hex[VG_NAME], path[256];
    file(&s, "a", &t, 0644);
    seed(&s);
    s.place.conf.public_dir = s.store;
    struct vg_cache *c = place_open(&s.place);
    cr_assert_eq(vg_blob_get(c, t.stamp, t.id, t.size, false, &b), 0);
    vg_blob_put(b);
    vg_hex(t.id, VG_HASH, hex);
    snprintf(path, sizeof path, "%s/id/%.2s/%s", s.store, hex, hex);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    cr_assert(fd >= 0 && pwrite(fd, "rot", 3, 70) == 3);
    close(fd);
    cr_assert_eq(vg_cache_scrub(c, UINT64_MAX), 1);
    cr_assert_not(vg_cache_has(c, t.stamp, t.id));
    cr_assert_eq(vg_blob_get(c, t.stamp, t.id, t.size, false, &b), 0);
    cr_assert_not(vg_blob_complete(b));
    vg_blob_put(b);
    cr_assert_eq(vg_public_check(s.store, &st, &err), 0);
    cr_assert(st.files == 1 && st.bad == 1);
    cr_assert_eq(seed(&s).added, 1);
    cr_assert_eq(vg_public_check(s.store, &st, &err), 0);
    cr_assert(st.files == 1 && st.bad == 0);
    vg_cache_close(c);
    free(t.data);
    site_done(&s);
}

Test(public, a_failed_write_leaves_nothing_torn) {
    need_root();
    static const char *const points[] = {"public/write", "public/sync", "public/name"};
    struct site s = site_new();
    struct content t = content_new(1, 2 * VG_LEAF);
    struct vg_public_stat st;
    struct vg_err err = VG_ERR_INIT;
    char *paths[] = {s.from, NULL};
    file(&s, "a", &t, 0644);
    for (size_t i = 0; i < VG_COUNT(points); i++) {
        vg_fault_arm(1, ENOSPC, points[i]);
        cr_assert_eq(vg_public_seed(s.store, paths, &st, &err), -ENOSPC);
        cr_assert(vg_fault_disarm());
        cr_assert_eq(vg_public_check(s.store, &st, &err), 0);
        cr_assert(st.files == 0 && st.bad == 0);
    }
    cr_assert_eq(seed(&s).added, 1);
    free(t.data);
    site_done(&s);
}
