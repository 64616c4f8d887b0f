/* Walking an upper layer: folders before what lies in them, whiteouts as what is gone, content from
   the merged root, nothing of what was not asked for. Plain folders play the layers. */
#include "fs/node/keep.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static char dir[40];
static char *said; /* a line for each thing */
static int fail_after;

static int rm_one(const char *p, const struct stat *st, int flag, struct FTW *f) {
    (void)st, (void)flag, (void)f;
    return remove(p);
}

static void setup(void) {
    memcpy(dir, "/tmp/virga-keep-XXXXXX", 23);
    cr_assert(mkdtemp(dir));
    cr_assert_eq(chdir(dir), 0);
    said = vg_strdup("");
    fail_after = -1;
}

static void teardown(void) {
    cr_assert_eq(chdir("/"), 0);
    nftw(dir, rm_one, 16, FTW_DEPTH | FTW_PHYS);
    free(said);
}

TestSuite(keep_walk, .init = setup, .fini = teardown);

/* The same file in both layers; NULL: not in that one. */
static void put(const char *path, const char *upper, const char *merged) {
    const char *const text[] = {upper, merged};
    for (int i = 0; i < 2; i++) {
        if (!text[i])
            continue;
        vg_auto_free char *file = vg_fmt("%c%s", "um"[i], path);
        vg_auto_free char *folder = vg_strdup(file);
        *strrchr(folder, '/') = 0;
        cr_assert_eq(vg_mkdir_p(folder, 0755), 0);
        cr_assert_eq(vg_write_file(file, text[i], strlen(text[i]), 0644), 0);
    }
}

static void add(char *piece) {
    char *more = vg_fmt("%s%s", said, piece);
    free(said);
    free(piece);
    said = more;
}

static uint32_t same_id(void *user, uint32_t id) {
    (void)user;
    return id;
}

static int tell(void *user, Vg__Mr__Keep *k) {
    (void)user;
    int n = (int)k->path.len;
    const char *path = (const char *)k->path.data;
    if (fail_after >= 0 && fail_after-- == 0)
        return -ENOTCONN;
    if (k->kind == VG__MR__KEEP__KIND__GONE)
        add(vg_fmt("gone %.*s\n", n, path));
    else if (S_ISDIR(k->stat->mode))
        add(vg_fmt("dir %.*s\n", n, path));
    else
        add(vg_fmt("thing %.*s %llu\n", n, path, (unsigned long long)k->stat->size));
    return 0;
}

static int bytes(void *user, uint64_t number, uint64_t off, const void *data, size_t n) {
    (void)user, (void)number;
    add(vg_fmt("  %.*s at %llu\n", (int)n, (const char *)data, (unsigned long long)off));
    return 0;
}

static int walk(const char *const *path, size_t n) {
    vg_auto_fd int upper = open("u", O_PATH | O_DIRECTORY);
    vg_auto_fd int merged = open("m", O_PATH | O_DIRECTORY);
    struct vg_keep_walk w = {.upper = upper,
                             .merged = merged,
                             .path = path,
                             .n_path = n,
                             .id_in = same_id,
                             .tell = tell,
                             .write = bytes};
    return vg_keep_walk(&w);
}

static const char *const project[] = {"/home/p"};

Test(keep_walk, tells_what_lies_above_with_the_merged_content) {
    put("/home/p/d/f", "", "merged");
    put("/home/p/d/below", NULL, "not changed");
    put("/home/else", "no", "no");
    cr_assert_eq(walk(project, 1), 0);
    cr_assert_str_eq(said, "dir /home/p\ndir /home/p/d\nthing /home/p/d/f 6\n  merged at 0\n");
}

Test(keep_walk, a_whiteout_is_gone) {
    put("/home/p/x", NULL, "x");
    cr_assert_eq(vg_mkdir_p("u/home/p", 0755), 0);
    if (mknod("u/home/p/y", S_IFCHR, makedev(0, 0)) < 0)
        cr_skip_test("this user may not make whiteouts");
    cr_assert_eq(walk(project, 1), 0);
    cr_assert_str_eq(said, "dir /home/p\ngone /home/p/y\n");
}

Test(keep_walk, without_paths_everything_but_the_nodes_own) {
    static const char *const own[] = {"/tmp/x", "/etc/hosts", "/run/x", "/var/tmp/x"};
    for (size_t i = 0; i < VG_COUNT(own); i++)
        put(own[i], "x", "x");
    put("/usr/x", "x", "x");
    cr_assert_eq(walk(NULL, 0), 0);
    cr_assert(strstr(said, "thing /usr/x 1\n"));
    cr_assert_not(strstr(said, "/tmp"));
    cr_assert_not(strstr(said, "hosts"));
    cr_assert_not(strstr(said, "/run"));
}

Test(keep_walk, ends_when_nobody_listens) {
    put("/home/p/f", "f", "f");
    fail_after = 1;
    cr_assert_eq(walk(project, 1), -ENOTCONN);
    cr_assert_str_eq(said, "dir /home/p\n");
}

Test(keep_walk, a_thing_that_the_merged_root_has_not_is_an_error) {
    put("/home/p/f", "f", NULL);
    cr_assert_eq(vg_mkdir_p("m/home/p", 0755), 0);
    cr_assert_eq(walk(project, 1), -ENOENT);
}
