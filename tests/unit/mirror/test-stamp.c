/* Stamps, leaves and ids against values worked out by hand with sha256sum and openssl. */
#include "mirror/stamp.h"

#include <criterion/criterion.h>
#include <string.h>

static const uint8_t machine[VG_MID] = "0123456789abcdef";

static struct vg_mstat sample(void) {
    return (struct vg_mstat){
        .dev = 1, .ino = 2, .size = 3, .mtime = 4, .ctime = 5, .atime = 6, .mode = S_IFREG | 0644};
}

Test(stamp, a_leaf_is_hashed_with_plain_sha256) {
    uint8_t h[VG_HASH];
    char hex[65];
    vg_leaf_hash("abc", 3, h);
    vg_hex(h, sizeof(h), hex);
    cr_assert_str_eq(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    vg_leaf_hash(NULL, 0, h);
    vg_hex(h, sizeof(h), hex);
    cr_assert_str_eq(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

Test(stamp, it_changes_with_each_of_its_fields_and_with_no_other) {
    uint8_t first[VG_HASH], h[VG_HASH];
    struct vg_mstat st = sample();
    vg_stamp(machine, &st, first);
    uint64_t *const in[] = {&st.dev, &st.ino, &st.size, (uint64_t *)&st.mtime,
                            (uint64_t *)&st.ctime};
    for (size_t i = 0; i < sizeof(in) / sizeof(in[0]); i++) {
        (*in[i])++;
        vg_stamp(machine, &st, h);
        cr_assert(memcmp(first, h, sizeof(h)) != 0, "field %zu", i);
        (*in[i])--;
    }
    st.atime++;
    st.mode = S_IFREG;
    st.nlink++;
    st.blocks++;
    vg_stamp(machine, &st, h);
    cr_assert_eq(memcmp(first, h, sizeof(h)), 0);
    uint8_t other[VG_MID];
    memcpy(other, machine, sizeof(other));
    other[15] ^= 1;
    vg_stamp(other, &st, h);
    cr_assert(memcmp(first, h, sizeof(h)) != 0);
}

Test(stamp, leaves_cover_a_file_and_an_empty_one_has_one) {
    cr_assert_eq(vg_leaves(0), 1);
    cr_assert_eq(vg_leaves(1), 1);
    cr_assert_eq(vg_leaves(VG_LEAF), 1);
    cr_assert_eq(vg_leaves(VG_LEAF + 1), 2);
    cr_assert_eq(vg_leaves(UINT64_C(50) << 30), 204800);
}

/* printf '\3\0\0\0\0\0\0\0' plus sha256("abc"), hashed with sha256sum. */
Test(stamp, a_file_id_is_the_hash_of_size_and_leaves) {
    uint8_t leaf[VG_HASH], id[VG_HASH], other[VG_HASH];
    char hex[65];
    vg_leaf_hash("abc", 3, leaf);
    vg_file_id(3, leaf, 1, id);
    vg_hex(id, sizeof(id), hex);
    cr_assert_str_eq(hex, "80a67215aff0c585b6c055e38aa04b76d4b208e2d0c3eb31bfd02822ae62e1c0");
    vg_file_id(4, leaf, 1, other);
    cr_assert(memcmp(id, other, sizeof(id)) != 0);
}

Test(stamp, names_in_a_cache_depend_on_the_tenants_key) {
    uint8_t key[VG_HASH] = {0}, what[VG_HASH] = {0};
    char a[65], b[65];
    vg_cache_name(key, what, a);
    cr_assert_str_eq(a, "33ad0a1c607ec03b09e6cd9893680ce210adf300aa1f2660e1b22e10f170f92a");
    key[0] = 1;
    vg_cache_name(key, what, b);
    cr_assert(strcmp(a, b) != 0);
}

Test(stamp, a_stat_keeps_nanoseconds_and_times_before_1970) {
    struct stat st = {.st_size = 7, .st_mode = S_IFREG | 0600};
    st.st_mtim = (struct timespec){.tv_sec = -1, .tv_nsec = 999999999};
    st.st_ctim = (struct timespec){.tv_sec = 2, .tv_nsec = 3};
    struct vg_mstat m;
    vg_mstat_from(&m, &st);
    cr_assert_eq(m.mtime, -1);
    cr_assert_eq(m.ctime, INT64_C(2000000003));
    cr_assert_eq(m.size, 7);
    cr_assert_eq(m.mode, S_IFREG | 0600);
}
