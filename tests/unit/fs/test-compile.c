/* The compiled form over a real view: records and content are handed to it as a link would, the
   image is mounted over it as a task's root would be. Skipped, saying so, where one cannot mount.
 */
#include "base/cleanup.h"
#include "fs/node/compile-plan.h"
#include "fs/node/compile.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ROOT = 1, USR = 2, BIN = 3, LIB = 4, HOME = 5, TOOL = 10, OTHER, EMPTY, LIB_A, LIB_B };

static char dir[64];
static struct vg_links *links;
static struct vg_cache *cache;
static struct vg_env *env;
static struct vg_compile *compile;
static uint32_t owner = 7; /* of everything */

static const char *in(const char *name) {
    static char path[8][256];
    static unsigned next;
    char *p = path[next++ % 8];
    snprintf(p, sizeof(path[0]), "%s/%s", dir, name);
    return p;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

/* ---- what a link would bring ----------------------------------------------------------------- */

struct file {
    const char *name;
    uint64_t object;
    uint32_t mode;
    uint64_t size; /* also its inode and time, so that another size is another file */
    const char *target;
    uint8_t flags;
};

static struct vg_mstat stat_of(uint64_t object, uint32_t mode, uint64_t size) {
    return (struct vg_mstat){.dev = 1,
                             .ino = object,
                             .size = size,
                             .mtime = (int64_t)(1000 + size) * 1000000000 + 42,
                             .ctime = (int64_t)size,
                             .mode = mode,
                             .nlink = 1,
                             .uid = owner,
                             .gid = 8};
}

static void tell(uint64_t object, const struct file *f) {
    struct vg_buf b = {0};
    struct vg_dirrec rec;
    struct vg_mstat st = stat_of(object, S_IFDIR | 0755, 4096);
    cr_assert_eq(vg_dirrec_begin(&b, object, 1, &st), 0);
    for (; f->name; f++) {
        struct vg_dirent e = {.object = f->object,
                              .st = stat_of(f->object, f->mode, f->size),
                              .name = f->name,
                              .name_len = (uint16_t)strlen(f->name),
                              .target = f->target,
                              .target_len = (uint16_t)(f->target ? strlen(f->target) : 0),
                              .flags = f->flags};
        cr_assert_eq(vg_dirrec_add(&b, &e), 0);
    }
    cr_assert_eq(vg_dirrec_end(&b), 0);
    cr_assert_eq(vg_dirrec_open(&rec, vg_buf_data(&b), vg_buf_len(&b)), 0);
    cr_assert(vg_env_dir(env, 1, &rec));
    vg_buf_done(&b);
}

#define TELL(object, ...) tell(object, (const struct file[]){__VA_ARGS__, {0}})

static void bring(uint64_t object, const char *text) {
    cr_assert_eq(1, vg_env_data(env, object, 0, strlen(text), 0, text, strlen(text)));
}

static void inval(uint64_t object) {
    Vg__Mr__Inval m = VG__MR__INVAL__INIT;
    m.n_folder = 1;
    m.folder = &object;
    vg_env_inval(env, &m);
}

static void tell_bin(uint64_t tool_size) {
    TELL(BIN, {"empty", EMPTY, S_IFREG | 0600, 0}, {"link", 90, S_IFLNK | 0777, 4, "tool"},
         {"other", OTHER, S_IFREG | 0644, 7}, {"tool", TOOL, S_IFREG | 04755, tool_size});
}

static void tell_all(void) {
    TELL(ROOT, {"home", HOME, S_IFDIR | 0755, 1}, {"usr", USR, S_IFDIR | 0755, 1});
    TELL(USR, {"bin", BIN, S_IFDIR | 0755, 1}, {"lib", LIB, S_IFDIR | 0755, 1});
    tell_bin(5);
    TELL(LIB, {"a", LIB_A, S_IFREG | 0644, 3}, {"b", LIB_B, S_IFREG | 0644, 3});
    bring(TOOL, "hello");
    bring(LIB_A, "aaa");
    bring(LIB_B, "bbb");
}

/* ---- around ---------------------------------------------------------------------------------- */

static void ignore_run(void *user, const Vg__Mr__Run *m) {
    (void)user, (void)m;
}

static void setup(void) {
    static const struct vg_link_ops ops = {.run = ignore_run};
    static const uint8_t daemon[VG_MID] = "daemon";
    struct vg_err err = VG_ERR_INIT;
    if (geteuid() != 0 || unshare(CLONE_NEWNS) < 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 || access("/dev/fuse", R_OK) < 0)
        cr_skip_test("mounting needs root and /dev/fuse");
    snprintf(dir, sizeof(dir), "/tmp/virga-compile-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    static const char *const sub[] = {"cache", "fuse", "img", "m0", "m1", "m2", "o", "u", "w"};
    for (size_t i = 0; i < VG_COUNT(sub); i++)
        cr_assert_eq(mkdir(in(sub[i]), 0755), 0);
    const struct vg_cache_conf cc = {
        .dir = in("cache"), .max_bytes = 1u << 30, .keep_free = 4096, .inline_work = true};
    cr_assert_eq(vg_cache_open(&cc, &cache, &err), 0, "%s", err.msg);
    cr_assert_eq(vg_links_new(&ops, NULL, daemon, "node", &links), 0);
    struct vg_view_conf vc = {.links = links,
                              .cache = cache,
                              .ids.slot = 3,
                              .machine = "machine",
                              .dir = in("img"),
                              .at = in("fuse")};
    struct vg_mstat root = stat_of(ROOT, S_IFDIR | 0755, 4096);
    cr_assert_eq(vg_env_new(&vc, &root, &env, &err), 0, "%s", err.msg);
    const struct vg_compile_conf pc = {
        .env = env, .cache = cache, .dir = in("img"), .cache_dir = in("cache"), .min_files = 1};
    cr_assert_eq(vg_compile_new(&pc, &compile, &err), 0, "%s", err.msg);
}

/* Folders that are root's are the system's: all their names are in the image. */
static void setup_system(void) {
    owner = 0;
    setup();
}

static void teardown(void) {
    if (!compile)
        return;
    vg_compile_free(compile);
    vg_links_stop(links);
    vg_env_free(env);
    vg_links_free(links);
    vg_cache_close(cache);
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

static struct vg_image *compiled(void) {
    struct vg_compile_stat st;
    vg_compile_kick(compile);
    vg_compile_settle(compile);
    vg_compile_stats(compile, &st);
    if (st.unable)
        cr_skip_test("this kernel does not mount EROFS from files");
    return vg_compile_take(compile);
}

/* The task's root, as the sandbox makes it. */
static void mount_root(const struct vg_image *i) {
    char opts[1024];
    int fd[3];
    cr_assert_eq(vg_image_mounts(i, &fd[0], &fd[2]), 0);
    fd[1] = vg_env_mount(env);
    cr_assert_geq(fd[1], 0);
    for (int k = 0; k < 3; k++) {
        char at[8];
        snprintf(at, sizeof(at), "m%d", k);
        cr_assert_eq(syscall(SYS_move_mount, fd[k], "", AT_FDCWD, in(at), 4 /* F_EMPTY_PATH */), 0,
                     "%s", strerror(errno));
        close(fd[k]);
    }
    snprintf(opts, sizeof(opts),
             "lowerdir=%s/m0:%s/m1::%s/m2,upperdir=%s/u,workdir=%s/w,index=off,xino=off,"
             "redirect_dir=on,metacopy=on",
             dir, dir, dir, dir, dir);
    cr_assert_eq(mount("o", in("o"), "overlay", 0, opts), 0, "%s", strerror(errno));
}

static void unmount_root(void) {
    static const char *const at[] = {"o", "m0", "m1", "m2"};
    for (size_t i = 0; i < VG_COUNT(at); i++)
        cr_assert_eq(umount2(in(at[i]), MNT_DETACH), 0);
}

static void expect_text(const char *path, const char *want) {
    char got[64] = "";
    int fd = open(in(path), O_RDONLY);
    cr_assert_geq(fd, 0, "%s: %s", path, strerror(errno));
    ssize_t n = read(fd, got, sizeof(got));
    close(fd);
    cr_assert(n == (ssize_t)strlen(want) && !memcmp(got, want, (size_t)n), "%s: %.*s", path, (int)n,
              got);
}

static uint64_t opens(void) {
    struct vg_env_stat st;
    vg_env_stats(env, &st);
    return st.opens;
}

static size_t entries(const char *path) {
    size_t n = 0;
    DIR *d = opendir(in(path));
    cr_assert_not_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

/* ---- properties ------------------------------------------------------------------------------ */

static void check_falling_through(void) {
    struct stat st;
    tell_all();
    struct vg_image *i = compiled();
    cr_assert_not_null(i);
    mount_root(i);
    expect_text("o/usr/bin/tool", "hello");
    expect_text("o/usr/bin/link", "hello");
    expect_text("o/usr/bin/empty", "");
    expect_text("o/usr/lib/b", "bbb");
    cr_assert_eq(opens(), 0, "an open came to FUSE");
    cr_assert_eq(stat(in("o/usr/bin/tool"), &st), 0);
    cr_assert(st.st_mode == (S_IFREG | 04755) && st.st_size == 5 && st.st_mtim.tv_sec == 1005 &&
              st.st_mtim.tv_nsec == 42);
    cr_assert_eq(st.st_uid, vg_fs_id_out(&(struct vg_fs_ids){3}, owner));
    cr_assert_eq(stat(in("o/usr/bin/other"), &st), 0, "what is not complete is FUSE's");
    cr_assert_eq(st.st_size, 7);
    cr_assert_eq(entries("o/usr/bin"), 4);
    cr_assert_eq(entries("o/usr/lib"), 2);
    cr_assert_eq(entries("o"), 2);
    /* Writing copies up and changes nobody else's file. */
    int fd = open(in("o/usr/bin/tool"), O_WRONLY | O_APPEND);
    cr_assert(fd >= 0 && write(fd, "!", 1) == 1);
    close(fd);
    expect_text("o/usr/bin/tool", "hello!");
    expect_text("fuse/usr/bin/tool", "hello");
    unmount_root();
    vg_image_unref(i);
}

Test(compile, complete_files_are_opened_without_fuse_and_the_rest_falls_through, .init = setup,
     .fini = teardown) {
    check_falling_through();
}

Test(compile, the_same_holds_for_folders_of_the_system, .init = setup_system, .fini = teardown) {
    check_falling_through();
}

static void check_changes(void) {
    tell_all();
    struct vg_image *i = compiled();
    cr_assert_not_null(i);
    vg_image_unref(i);
    inval(BIN);
    cr_assert_null(vg_compile_take(compile), "unproven");
    tell_bin(5);
    i = vg_compile_take(compile);
    cr_assert_not_null(i, "proven again, and as it was");
    vg_image_unref(i);
    inval(BIN);
    tell_bin(6);
    cr_assert_null(vg_compile_take(compile), "another tool");
    bring(TOOL, "newer!");
    i = compiled();
    cr_assert_not_null(i);
    mount_root(i);
    expect_text("o/usr/bin/tool", "newer!");
    cr_assert_eq(opens(), 1, "the folder is restless: its files are FUSE's");
    expect_text("o/usr/lib/a", "aaa");
    cr_assert_eq(opens(), 1, "the one beside it is not");
    unmount_root();
    vg_image_unref(i);
    inval(BIN);
    tell_bin(5);
    i = vg_compile_take(compile);
    cr_assert_not_null(i, "what is left out may change");
    vg_image_unref(i);
    struct vg_compile_stat st;
    vg_compile_stats(compile, &st);
    cr_assert(st.images == 2 && st.refused == 2 && st.taken == 4);
}

Test(compile, a_folder_that_changed_makes_the_image_untrue_and_is_then_left_out, .init = setup,
     .fini = teardown) {
    check_changes();
}

Test(compile, a_folder_of_the_system_may_change_too, .init = setup_system, .fini = teardown) {
    check_changes();
}

Test(compile, ways_lead_through_to_fuse, .init = setup_system, .fini = teardown) {
    struct stat st;
    tell_all();
    TELL(LIB, {"a", LIB_A, S_IFREG | 0644, 3},
         {"denied", 93, S_IFREG | 0644, 9, NULL, VG_DE_DENIED},
         {"dev", 94, S_IFDIR | 0755, 1, NULL, VG_DE_EMPTY}, {"unknown", 95, S_IFDIR | 0711, 1});
    struct vg_image *i = compiled();
    cr_assert_not_null(i);
    mount_root(i);
    bring(OTHER, "content");
    expect_text("o/usr/bin/other", "content");
    cr_assert_eq(opens(), 1, "it was not complete when the image was made");
    expect_text("o/usr/lib/a", "aaa");
    cr_assert_eq(opens(), 1);
    cr_assert_eq(entries("o/usr/lib/dev"), 0);
    cr_assert_eq(stat(in("o/usr/lib/unknown"), &st), 0);
    cr_assert_eq(st.st_mode, S_IFDIR | 0711);
    TELL(95, {"x", 96, S_IFREG | 0644, 1}, {"y", 97, S_IFDIR | 0755, 1});
    TELL(97, {"z", 98, S_IFLNK | 0777, 1, "."});
    cr_assert_eq(entries("o/usr/lib/unknown"), 2);
    cr_assert_eq(entries("o/usr/lib/unknown/y"), 1);
    cr_assert(stat(in("o/usr/lib/nothing"), &st) < 0 && errno == ENOENT);
    Vg__Mr__Fail no = VG__MR__FAIL__INIT;
    no.object = 93;
    no.errno_ = EACCES;
    no.text = "refused";
    vg_env_fail(env, &no);
    cr_assert(open(in("o/usr/lib/denied"), O_RDONLY) < 0 && errno == EACCES);
    cr_assert_eq(stat(in("o/usr/lib/denied"), &st), 0);
    cr_assert_eq(st.st_size, 9);
    /* What a task makes of such files and folders is its own. */
    cr_assert_eq(rename(in("o/usr/bin/other"), in("o/usr/lib/unknown/other")), 0);
    expect_text("o/usr/lib/unknown/other", "content");
    cr_assert_eq(mkdir(in("o/usr/lib/unknown/made"), 0755), 0);
    cr_assert_eq(rename(in("o/usr/lib/unknown"), in("o/usr/moved")), 0);
    cr_assert_eq(entries("o/usr/moved"), 4);
    cr_assert_eq(entries("fuse/usr/lib/unknown"), 2);
    unmount_root();
    vg_image_unref(i);
}

Test(compile, another_life_of_the_service_proves_the_image_again, .init = setup, .fini = teardown) {
    tell_all();
    struct vg_image *i = compiled();
    cr_assert_not_null(i);
    vg_image_unref(i);
    vg_env_new_epoch(env, ROOT);
    cr_assert_null(vg_compile_take(compile));
    TELL(ROOT, {"home", HOME, S_IFDIR | 0755, 1}, {"usr", USR, S_IFDIR | 0755, 1});
    TELL(USR, {"bin", BIN, S_IFDIR | 0755, 1}, {"lib", LIB, S_IFDIR | 0755, 1});
    tell_bin(5);
    cr_assert_null(vg_compile_take(compile), "not all of it");
    TELL(LIB, {"a", LIB_A, S_IFREG | 0644, 3}, {"b", LIB_B, S_IFREG | 0644, 3});
    i = vg_compile_take(compile);
    cr_assert_not_null(i);
    vg_image_unref(i);
}

Test(compile, nothing_that_is_fuses_business_is_in_an_image, .init = setup, .fini = teardown) {
    struct vg_plan p = {0};
    struct vg_buf b = {0};
    TELL(ROOT, {"denied", TOOL, S_IFREG | 0644, 5, .flags = VG_DE_DENIED},
         {"dev", HOME, S_IFDIR | 0755, 1, .flags = VG_DE_EMPTY}, {"node", 91, S_IFCHR | 0644, 0},
         {"plain", LIB_A, S_IFREG | 0644, 3},
         {"proj", BIN, S_IFDIR | 0755, 1, .flags = VG_DE_OTHER},
         {"secret", OTHER, S_IFREG | 0644, 7, .flags = VG_DE_SECRET},
         {"unknown", USR, S_IFDIR | 0755, 1},
         {"xattr", LIB_B, S_IFREG | 0644, 3, .flags = VG_DE_XATTR});
    bring(LIB_A, "aaa");
    bring(LIB_B, "bbb");
    cr_assert_eq(vg_plan_gather(&p, env, 1, 1000, false), 0);
    cr_assert_eq(vg_plan_complete(&p, (const uint8_t *)"machine\0\0\0\0\0\0\0\0", cache, 1u << 30),
                 0);
    cr_assert_eq(p.files, 1);
    cr_assert_eq(p.held_bytes, 3);
    cr_assert_eq(p.n, 2, "the root and the plain file");
    cr_assert_eq(vg_plan_write(&p, &b), 0);
    cr_assert(vg_plan_holds(&p, env));
    vg_plan_done(&p);
    vg_buf_done(&b);
}

/* A program of which a part was ever read would otherwise be FUSE's at every start. */
Test(compile, the_rest_of_a_file_that_is_used_again_is_fetched, .init = setup, .fini = teardown) {
    static char leaf[VG_LEAF];
    struct vg_links_stat st;
    struct vg_compile_stat before, after;
    tell_all();
    TELL(USR, {"big", 92, S_IFREG | 0755, 2 * VG_LEAF}, {"bin", BIN, S_IFDIR | 0755, 1},
         {"lib", LIB, S_IFDIR | 0755, 1});
    cr_assert_eq(1, vg_env_data(env, 92, 0, 2 * VG_LEAF, 0, leaf, VG_LEAF));
    struct vg_image *i = compiled();
    cr_assert_not_null(i);
    vg_image_unref(i);
    vg_links_stats(links, &st);
    cr_assert_eq(st.ahead, 0, "used once: it may never be used again");
    expect_text("fuse/usr/bin/tool", "hello"); /* something happened */
    i = compiled();
    vg_image_unref(i);
    vg_links_stats(links, &st);
    cr_assert_eq(st.ahead, 1);
    vg_compile_stats(compile, &before);
    cr_assert_eq(1, vg_env_data(env, 92, VG_LEAF, 2 * VG_LEAF, 0, leaf, VG_LEAF));
    expect_text("fuse/usr/bin/tool", "hello");
    i = compiled();
    cr_assert_not_null(i);
    vg_image_unref(i);
    vg_compile_stats(compile, &after);
    cr_assert(after.files == before.files + 1 && after.held_bytes > 2 * VG_LEAF);
}

Test(compile, a_machine_that_was_listed_as_a_whole_is_compiled_as_far_as_it_was_used,
     .init = setup_system, .fini = teardown) {
    static const uint8_t machine[VG_MID] = "machine";
    struct vg_plan p = {0};
    struct vg_buf b = {0};
    tell_all();
    cr_assert_eq(vg_plan_gather(&p, env, 1, 10, false), -E2BIG);
    vg_plan_done(&p);
    cr_assert_eq(vg_plan_gather(&p, env, 1, 10, true), 0);
    cr_assert_eq(vg_plan_complete(&p, machine, cache, 1u << 30), 0);
    cr_assert_eq(p.files, 4, "tool, empty, a, b");
    cr_assert_eq(vg_plan_write(&p, &b), 0);
    vg_plan_done(&p);
    vg_buf_done(&b);
}

Test(compile, what_an_image_holds_is_bounded, .init = setup, .fini = teardown) {
    struct vg_plan p = {0};
    tell_all();
    cr_assert_eq(vg_plan_gather(&p, env, 1, 1000, false), 0);
    cr_assert_eq(vg_plan_complete(&p, (const uint8_t *)"machine\0\0\0\0\0\0\0\0", cache, 6), 0);
    cr_assert_leq(p.held_bytes, 6);
    cr_assert_gt(p.held_bytes, 0);
    vg_plan_done(&p);
}
