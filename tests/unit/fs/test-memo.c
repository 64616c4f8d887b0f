#include "fs/client/guess.h"
#include "fs/client/memo.h"
#include "fs/node/voided.h"

#include "base/cleanup.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NOW INT64_C(1000000000000)
static char dir[] = "/tmp/vg-memo-XXXXXX";
static char path[64];

static void setup(void) {
    cr_assert(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/memo", dir);
}
static void teardown(void) {
    unlink(path);
    rmdir(dir);
}
TestSuite(memo, .init = setup, .fini = teardown);

static struct vg_mstat file(uint64_t ino, uint64_t size) {
    return (struct vg_mstat){.dev = 1, .ino = ino, .size = size, .mtime = 5, .ctime = 6};
}

Test(memo, remembers_across_lives) {
    struct vg_memo *m;
    uint8_t hash[VG_HASH] = {1}, id[VG_HASH], want[VG_HASH];
    cr_assert(vg_memo_open(path, &m) == 0);
    for (uint64_t i = 1; i <= 3000; i++) {
        struct vg_mstat st = file(i, 100);
        cr_assert(vg_memo_leaf(m, &st, 0, hash, NOW) == 1);
        cr_assert(vg_memo_leaf(m, &st, 0, hash, NOW) == 0);
    }
    vg_memo_free(m);
    cr_assert(vg_memo_open(path, &m) == 0);
    cr_assert_eq(vg_memo_count(m), 3000);
    struct vg_mstat st = file(77, 100);
    vg_file_id(100, hash, 1, want);
    cr_assert(vg_memo_id(m, &st, id) && memcmp(id, want, VG_HASH) == 0);
    st.mtime++;
    cr_assert_not(vg_memo_id(m, &st, id));
    vg_memo_free(m);
}

Test(memo, needs_all_leaves_of_one_state) {
    struct vg_memo *m;
    uint8_t hash[3 * VG_HASH] = {1}, id[VG_HASH], want[VG_HASH];
    hash[VG_HASH] = 2;
    hash[2 * VG_HASH] = 3;
    struct vg_mstat st = file(1, 2 * VG_LEAF + 1), other = st;
    other.ctime++;
    cr_assert(vg_memo_open(NULL, &m) == 0);
    cr_assert(vg_memo_leaf(m, &st, 2, hash + 2 * VG_HASH, NOW) == 0);
    cr_assert(vg_memo_leaf(m, &st, 0, hash, NOW) == 0);
    cr_assert(vg_memo_leaf(m, &st, 0, hash, NOW) == 0);
    cr_assert(vg_memo_leaf(m, &st, 9, hash, NOW) == 0);
    cr_assert_not(vg_memo_id(m, &st, id));
    cr_assert(vg_memo_leaf(m, &st, 1, hash + VG_HASH, NOW) == 1);
    vg_file_id(st.size, hash, 3, want);
    cr_assert(vg_memo_id(m, &st, id) && memcmp(id, want, VG_HASH) == 0);
    cr_assert(vg_memo_leaf(m, &other, 0, hash, NOW) == 0);
    cr_assert_not(vg_memo_id(m, &other, id));
    vg_memo_free(m);
}

Test(memo, does_not_trust_what_is_too_young) {
    struct vg_memo *m;
    uint8_t hash[VG_HASH] = {1}, id[VG_HASH];
    struct vg_mstat st = file(1, 1);
    st.ctime = NOW - VG_MEMO_SETTLED + 1;
    cr_assert(vg_memo_open(NULL, &m) == 0);
    cr_assert(vg_memo_leaf(m, &st, 0, hash, NOW) == 0);
    cr_assert_not(vg_memo_id(m, &st, id));
    st.ctime--;
    cr_assert(vg_memo_leaf(m, &st, 0, hash, NOW) == 1);
    vg_memo_free(m);
}

Test(memo, loses_only_what_stands_behind_a_damage) {
    struct vg_memo *m;
    uint8_t hash[VG_HASH] = {1}, id[VG_HASH];
    cr_assert(vg_memo_open(path, &m) == 0);
    for (uint64_t i = 1; i <= 10; i++) {
        struct vg_mstat st = file(i, 1);
        cr_assert(vg_memo_leaf(m, &st, 0, hash, NOW) == 1);
    }
    vg_memo_free(m);
    vg_auto_fd int fd = open(path, O_RDWR);
    cr_assert(pwrite(fd, "\xff", 1, 8 + 80 * 5 + 3) == 1);
    cr_assert(vg_memo_open(path, &m) == 0);
    cr_assert_eq(vg_memo_count(m), 5);
    struct vg_mstat st = file(3, 1);
    cr_assert(vg_memo_id(m, &st, id));
    vg_memo_free(m);
    cr_assert(truncate(path, 30) == 0);
    cr_assert(vg_memo_open(path, &m) == 0);
    cr_assert_eq(vg_memo_count(m), 0);
    vg_memo_free(m);
}

static bool names(const struct vg_trace *t, const char *part, bool folder) {
    for (size_t i = 0; i < t->n; i++)
        if (strstr(t->item[i].path, part) && t->item[i].folder == folder)
            return true;
    return false;
}

Test(guess, follows_a_program_to_its_libraries) {
    vg_auto_fd int root = open("/", O_PATH | O_CLOEXEC);
    char *argv[] = {"ls", NULL};
    char *program = vg_guess_program(root, "ls", "/", "/nowhere:/usr/bin:/bin");
    cr_assert(program && strstr(program, "/ls"));
    struct vg_guess g = {
        .root_fd = root, .program = program, .argv = argv, .n_argv = 1, .cwd = "/", .path_env = ""};
    struct vg_trace t = {0};
    cr_assert(vg_guess(&g, &t) == 0);
    cr_assert(names(&t, "libc.so", false) && names(&t, "ld-linux", false));
    cr_assert(names(&t, "/bin", true) && names(&t, "/bin/ls", false));
    for (size_t i = 0; i < t.n; i++)
        cr_assert(strstr(t.item[i].path, "/../") == NULL && t.item[i].path[0] == '/');
    vg_trace_done(&t);
    free(program);
    cr_assert_null(vg_guess_program(root, "no-such-program", "/", NULL));
}

Test(voided, records_of_before_an_inval_are_not_believed) {
    struct vg_voided v = {0};
    cr_assert_not(vg_voided_is(&v, 5, 0));
    vg_voided_add(&v, 5, 100);
    cr_assert(vg_voided_is(&v, 5, 99));
    cr_assert_not(vg_voided_is(&v, 5, 100));
    cr_assert_not(vg_voided_is(&v, 6, 1));
    vg_voided_add(&v, 5, 200);
    cr_assert(vg_voided_is(&v, 5, 199));
    vg_voided_add(&v, 5, 150); /* was sent earlier, on a slower link */
    cr_assert(vg_voided_is(&v, 5, 199));
    vg_voided_add(&v, 0, 250);
    cr_assert(vg_voided_is(&v, 6, 249) && !vg_voided_is(&v, 6, 250));
    for (uint64_t i = 1; i <= VG_VOIDED_MAX + 1; i++)
        vg_voided_add(&v, i, 1000);
    cr_assert(vg_voided_is(&v, 1, 999) && vg_voided_is(&v, VG_VOIDED_MAX + 9, 999));
    cr_assert_not(vg_voided_is(&v, 1, 1000));
    vg_voided_clear(&v);
    cr_assert_not(vg_voided_is(&v, 1, 1));
    vg_voided_add(&v, 5, 2000);
    for (uint64_t i = 10; i <= VG_VOIDED_MAX + 10; i++)
        vg_voided_add(&v, i, 1000);
    cr_assert(vg_voided_is(&v, 5, 1999), "what had no room counts for all");
    vg_voided_clear(&v);
}
