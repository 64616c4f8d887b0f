/* Folder records: what goes in comes out, and nothing broken is accepted. */
#include "mirror/dirrec.h"

#include "base/fault.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

static const uint8_t an_id[VG_HASH] = "this is an id of thirty-two byte";

static struct vg_mstat stat_of(uint32_t mode, uint64_t n) {
    return (struct vg_mstat){.dev = 9,
                             .ino = 100 + n,
                             .size = n,
                             .blocks = 8,
                             .mtime = -5,
                             .ctime = 77,
                             .atime = 78,
                             .mode = mode,
                             .nlink = 1,
                             .uid = 1000,
                             .gid = 1001};
}

static struct vg_dirent entry(const char *name, uint32_t mode, const char *target) {
    return (struct vg_dirent){.object = 40 + strlen(name),
                              .st = stat_of(mode, strlen(name)),
                              .name = name,
                              .name_len = (uint16_t)strlen(name),
                              .target = target,
                              .target_len = (uint16_t)(target ? strlen(target) : 0)};
}

static void build(struct vg_buf *b) {
    struct vg_mstat st = stat_of(S_IFDIR | 0755, 3);
    cr_assert_eq(vg_dirrec_begin(b, 12, 34, &st), 0);
    struct vg_dirent e = entry("a", S_IFREG | 0644, NULL);
    e.id = an_id;
    cr_assert_eq(vg_dirrec_add(b, &e), 0);
    e = entry("b-link", S_IFLNK | 0777, "../elsewhere");
    cr_assert_eq(vg_dirrec_add(b, &e), 0);
    e = entry("c", S_IFDIR | 0700, NULL);
    e.flags = VG_DE_EMPTY;
    cr_assert_eq(vg_dirrec_add(b, &e), 0);
    cr_assert_eq(vg_dirrec_end(b), 0);
}

Test(dirrec, what_goes_in_comes_out) {
    struct vg_buf b = {0};
    struct vg_dirrec r;
    struct vg_dirent e;
    size_t at = 0;
    build(&b);
    cr_assert_eq(vg_dirrec_open(&r, vg_buf_data(&b), vg_buf_len(&b)), 0);
    cr_assert(r.n == 3 && r.object == 12 && r.seq == 34 && r.st.mtime == -5 && r.st.ino == 103);
    cr_assert(vg_dirrec_next(&r, &at, &e));
    cr_assert(e.name_len == 1 && e.name[0] == 'a' && e.object == 41 && e.st.gid == 1001);
    cr_assert(e.flags == VG_DE_ID && memcmp(e.id, an_id, VG_HASH) == 0);
    cr_assert(vg_dirrec_next(&r, &at, &e));
    cr_assert(e.target_len == 12 && memcmp(e.target, "../elsewhere", 12) == 0 && !e.id);
    cr_assert(vg_dirrec_next(&r, &at, &e));
    cr_assert(e.flags == VG_DE_EMPTY && S_ISDIR(e.st.mode));
    cr_assert(!vg_dirrec_next(&r, &at, &e));
    cr_assert(vg_dirrec_find(&r, "b-link", 6, &e) && e.target_len == 12);
    cr_assert(!vg_dirrec_find(&r, "b", 1, &e) && !vg_dirrec_find(&r, "zz", 2, &e));
    vg_buf_done(&b);
}

Test(dirrec, a_record_told_again_differs_in_its_sequence_alone) {
    struct vg_buf b = {0}, again = {0};
    struct vg_dirrec r;
    uint8_t before[VG_HASH], after[VG_HASH];
    build(&b);
    build(&again);
    vg_dirrec_set_seq(&again, 35);
    cr_assert_eq(vg_dirrec_open(&r, vg_buf_data(&b), vg_buf_len(&b)), 0);
    vg_dirrec_state(&r, before);
    cr_assert_eq(vg_dirrec_open(&r, vg_buf_data(&again), vg_buf_len(&again)), 0);
    vg_dirrec_state(&r, after);
    cr_assert(r.seq == 35 && r.object == 12 && memcmp(before, after, VG_HASH) == 0);
    vg_buf_done(&b);
    vg_buf_done(&again);
}

Test(dirrec, every_truncation_fails_cleanly) {
    struct vg_buf b = {0};
    struct vg_dirrec r;
    build(&b);
    for (size_t n = 0; n < vg_buf_len(&b); n++) {
        uint8_t *copy = malloc(n ? n : 1); /* its own block: a sanitizer sees one byte too many */
        memcpy(copy, vg_buf_data(&b), n);
        cr_assert_eq(vg_dirrec_open(&r, copy, n), -EBADMSG, "%zu bytes", n);
        free(copy);
    }
    vg_buf_done(&b);
}

Test(dirrec, bad_entries_are_refused_when_building) {
    struct vg_mstat st = stat_of(S_IFDIR | 0755, 3);
    struct vg_buf b = {0};
    char longest[300];
    memset(longest, 'x', sizeof(longest) - 1);
    longest[299] = '\0';
    struct vg_dirent bad[] = {entry("", S_IFREG, NULL),     entry(".", S_IFREG, NULL),
                              entry("..", S_IFREG, NULL),   entry("a/b", S_IFREG, NULL),
                              entry("x", S_IFREG, "to"),    entry("x", S_IFLNK, ""),
                              entry(longest, S_IFREG, NULL)};
    struct vg_dirent nul = entry("abc", S_IFREG, NULL);
    nul.name = "a\0c";
    cr_assert_eq(vg_dirrec_begin(&b, 1, 1, &st), 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        cr_assert_eq(vg_dirrec_add(&b, &bad[i]), -EINVAL, "entry %zu", i);
    cr_assert_eq(vg_dirrec_add(&b, &nul), -EINVAL);
    cr_assert_eq(vg_dirrec_end(&b), 0);
    cr_assert_eq(vg_dirrec_begin(&b, 1, 1, &st), -EINVAL);
    vg_buf_done(&b);
}

Test(dirrec, entries_out_of_order_or_twice_are_found_at_the_end) {
    const char *const pairs[][2] = {{"b", "a"}, {"a", "a"}, {"ab", "a"}};
    for (size_t i = 0; i < 3; i++) {
        struct vg_mstat st = stat_of(S_IFDIR | 0755, 3);
        struct vg_buf b = {0};
        struct vg_dirent x = entry(pairs[i][0], S_IFREG, NULL);
        struct vg_dirent y = entry(pairs[i][1], S_IFREG, NULL);
        vg_dirrec_begin(&b, 1, 1, &st);
        vg_dirrec_add(&b, &x);
        cr_assert_eq(vg_dirrec_end(&b), 0);
        vg_dirrec_add(&b, &y);
        cr_assert_eq(vg_dirrec_end(&b), -EINVAL, "pair %zu", i);
        vg_buf_done(&b);
    }
}

/* The two hashes after one change of the record's bytes. */
static void hashes(const struct vg_mstat *st, const struct vg_dirent *e, uint64_t object,
                   uint8_t hash[VG_HASH], uint8_t state[VG_HASH]) {
    struct vg_buf b = {0};
    struct vg_dirrec r;
    vg_dirrec_begin(&b, object, object, st);
    cr_assert_eq(vg_dirrec_add(&b, e), 0);
    cr_assert_eq(vg_dirrec_open(&r, vg_buf_data(&b), vg_buf_len(&b)), 0);
    vg_dirrec_hash(&r, hash);
    vg_dirrec_state(&r, state);
    vg_buf_done(&b);
}

#define CHECK(what, change, hash_differs, state_differs)                             \
    do {                                                                             \
        struct vg_dirent e = entry("name", S_IFREG | 0644, NULL);                    \
        struct vg_mstat st = dir;                                                    \
        uint64_t object = 5;                                                         \
        e.id = an_id;                                                                \
        change;                                                                      \
        hashes(&st, &e, object, h, s);                                               \
        cr_assert_eq(memcmp(h, h0, VG_HASH) != 0, hash_differs, "hash: %s", what);   \
        cr_assert_eq(memcmp(s, s0, VG_HASH) != 0, state_differs, "state: %s", what); \
    } while (0)

Test(dirrec, each_hash_depends_on_what_it_says_and_on_nothing_else) {
    struct vg_mstat dir = stat_of(S_IFDIR | 0755, 3);
    struct vg_dirent first = entry("name", S_IFREG | 0644, NULL);
    uint8_t h0[VG_HASH], s0[VG_HASH], h[VG_HASH], s[VG_HASH];
    first.id = an_id;
    hashes(&dir, &first, 5, h0, s0);
    CHECK("nothing", (void)0, false, false);
    CHECK("object", object = 6, false, false);
    CHECK("entry's object", e.object++, false, false);
    CHECK("atime", e.st.atime++, false, false);
    CHECK("blocks", e.st.blocks++, false, false);
    CHECK("ctime", e.st.ctime++, false, true);
    CHECK("ino", e.st.ino++, false, true);
    CHECK("dev", e.st.dev++, false, true);
    CHECK("id", e.id = NULL, true, false);
    CHECK("size", e.st.size++, true, true);
    CHECK("mode", e.st.mode ^= 1, true, true);
    CHECK("mtime", e.st.mtime++, true, true);
    CHECK("name", e.name = "nane", true, true);
    CHECK("flags", e.flags |= VG_DE_DENIED, true, true);
    CHECK("folder's mode", st.mode ^= 1, true, true);
    CHECK("folder's ctime", st.ctime++, false, true);
}

Test(dirrec, no_memory_is_said) {
    struct vg_mstat st = stat_of(S_IFDIR | 0755, 3);
    struct vg_buf b = {0};
    vg_fault_arm(1, ENOMEM, NULL);
    cr_assert_eq(vg_dirrec_begin(&b, 1, 1, &st), -ENOMEM);
    cr_assert(vg_fault_disarm());
    vg_buf_done(&b);
}
