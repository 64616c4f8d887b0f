/* Images that the kernel itself reads: mounted as they are, and under an overlay with a data-only
   layer. Where mounting is not possible (no root, no EROFS from files) those tests are skipped and
   say so; that the same nodes give the same bytes and that bad nodes are refused is tested
   anywhere. */
#include "base/fault.h"
#include "mirror/erofs.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define MTIME (INT64_C(1700000000) * 1000000000 + 123456789)

static uint32_t add(struct vg_erofs *e, uint32_t parent, const char *name, uint32_t mode,
                    const char *extra, uint64_t size) {
    struct vg_erofs_node n = {.parent = parent,
                              .name = name,
                              .name_len = (uint16_t)strlen(name),
                              .mode = mode,
                              .uid = 100000,
                              .gid = 70001,
                              .nlink = S_ISDIR(mode) ? 2 : 1,
                              .mtime = MTIME,
                              .size = size};
    uint32_t number = 0;
    if (S_ISLNK(mode)) {
        n.target = extra;
        n.target_len = (uint16_t)strlen(extra);
    } else
        n.redirect = extra;
    int r = vg_erofs_add(e, &n, &number);
    cr_assert_eq(r, 0, "%s: %d", name, r);
    return number;
}

static struct vg_erofs *sample(void) {
    struct vg_erofs *e;
    cr_assert_eq(vg_erofs_new(&e), 0);
    char target[4000];
    memset(target, 't', sizeof(target) - 1);
    target[sizeof(target) - 1] = '\0';
    add(e, 0, "", S_IFDIR | 0755, NULL, 0);
    add(e, 0, "!first", S_IFREG | 0640, "/aa/one", 5);
    add(e, 0, "-dash", S_IFREG | 04755, NULL, 0);
    add(e, 0, "...", S_IFLNK | 0777, "else/where", 0);
    add(e, 0, ".hidden", S_IFLNK | 0777, target, 0);
    uint32_t big = add(e, 0, "big", S_IFDIR | 0700, NULL, 0);
    uint32_t bytes = add(e, 0, "bytes", S_IFREG | 0444, "/aa/two", UINT64_C(5) << 30);
    uint32_t deep = add(e, 0, "deep", S_IFDIR | 01777, NULL, 0);
    cr_assert_eq(vg_erofs_link(e, 0, "zlink", 5, bytes), 0);
    for (int i = 0; i < 500; i++) {
        char name[128];
        snprintf(name, sizeof(name), "%04d-%0*d", i, 3 + i % 90, i);
        add(e, big, name, i % 7 ? S_IFREG | 0644 : S_IFIFO | 0600, i % 7 ? "/aa/one" : NULL,
            i % 7 ? 5 : 0);
    }
    for (int i = 0; i < 40; i++)
        deep = add(e, deep, "d", S_IFDIR | 0755, NULL, 0);
    add(e, deep, "bottom", S_IFLNK | 0777, "x", 0);
    return e;
}

Test(erofs, the_same_nodes_give_the_same_bytes) {
    struct vg_buf a = {0}, b = {0};
    struct vg_erofs *x = sample(), *y = sample();
    cr_assert_eq(vg_erofs_write(x, &a), 0);
    cr_assert_eq(vg_erofs_write(y, &b), 0);
    cr_assert(vg_buf_len(&a) == vg_buf_len(&b) && vg_buf_len(&a) % 4096 == 0);
    cr_assert_eq(memcmp(vg_buf_data(&a), vg_buf_data(&b), vg_buf_len(&a)), 0);
    vg_erofs_free(x);
    vg_erofs_free(y);
    vg_buf_done(&a);
    vg_buf_done(&b);
}

Test(erofs, bad_nodes_are_refused) {
    struct vg_erofs *e;
    struct vg_buf b = {0};
    uint32_t at;
    cr_assert_eq(vg_erofs_new(&e), 0);
    cr_assert_eq(vg_erofs_write(e, &b), -EINVAL);
    struct vg_erofs_node n = {.name = "b", .name_len = 1, .mode = S_IFREG, .nlink = 1};
    cr_assert_eq(vg_erofs_add(e, &n, &at), -EINVAL, "the root is a folder");
    add(e, 0, "", S_IFDIR | 0755, NULL, 0);
    cr_assert_eq(vg_erofs_add(e, &n, &at), 0);
    cr_assert_eq(vg_erofs_add(e, &n, &at), -EINVAL, "twice");
    n.name = "a";
    cr_assert_eq(vg_erofs_add(e, &n, &at), -EINVAL, "out of order");
    n.name = "c";
    n.size = 1;
    cr_assert_eq(vg_erofs_add(e, &n, &at), -EINVAL, "bytes from nowhere");
    n.size = 0;
    n.parent = 1;
    cr_assert_eq(vg_erofs_add(e, &n, &at), -EINVAL, "in a file");
    n.parent = 9;
    cr_assert_eq(vg_erofs_add(e, &n, &at), -EINVAL, "in nothing");
    n.parent = 0;
    n.mode = S_IFCHR;
    cr_assert_eq(vg_erofs_add(e, &n, &at), -EINVAL, "a device is a whiteout to overlayfs");
    n.mode = S_IFLNK;
    cr_assert_eq(vg_erofs_add(e, &n, &at), -EINVAL, "a link to nothing");
    n.mode = S_IFDIR;
    n.redirect = "/elsewhere";
    n.opaque = true;
    cr_assert_eq(vg_erofs_add(e, &n, &at), -EINVAL, "hidden and shown at once");
    n.redirect = NULL;
    n.opaque = false;
    cr_assert_eq(vg_erofs_link(e, 0, "z", 1, 0), -EINVAL, "a folder has one name");
    uint32_t folder = add(e, 0, "d", S_IFDIR | 0755, NULL, 0);
    add(e, folder, "x", S_IFDIR | 0755, NULL, 0);
    n.mode = S_IFREG;
    n.name = "e";
    cr_assert_eq(vg_erofs_add(e, &n, &at), -EINVAL, "a folder's entries lie together");
    vg_erofs_free(e);
}

Test(erofs, no_memory_is_said) {
    bool fired = true;
    for (uint64_t nth = 1; fired; nth++) {
        struct vg_erofs *e = NULL;
        struct vg_buf b = {0};
        struct vg_erofs_node n = {.mode = S_IFDIR, .nlink = 2};
        uint32_t at;
        vg_fault_arm(nth, ENOMEM, NULL);
        int r = vg_erofs_new(&e);
        if (r == 0)
            r = vg_erofs_add(e, &n, &at);
        n = (struct vg_erofs_node){.name = "a", .name_len = 1, .mode = S_IFREG, .nlink = 1};
        if (r == 0)
            r = vg_erofs_add(e, &n, &at);
        if (r == 0)
            r = vg_erofs_write(e, &b);
        fired = vg_fault_disarm();
        cr_assert_eq(r, fired ? -ENOMEM : 0);
        vg_erofs_free(e);
        vg_buf_done(&b);
    }
}

/* ---- with the kernel ------------------------------------------------------------------------- */

static char dir[64];

static const char *in(const char *name) {
    static char path[4][4200];
    static unsigned next;
    char *p = path[next++ % 4];
    snprintf(p, sizeof(path[0]), "%s/%s", dir, name);
    return p;
}

static void put(const char *path, const void *data, size_t n) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0444);
    cr_assert(fd >= 0 && write(fd, data, n) == (ssize_t)n, "%s: %s", path, strerror(errno));
    close(fd);
}

/* In a mount namespace of its own, which goes with this process. */
static void mount_image(struct vg_erofs *e) {
    struct vg_buf b = {0};
    cr_assert_eq(vg_erofs_write(e, &b), 0);
    snprintf(dir, sizeof(dir), "/tmp/virga-erofs-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    put(in("image"), vg_buf_data(&b), vg_buf_len(&b));
    cr_assert_eq(mkdir(in("m"), 0755), 0);
    vg_buf_done(&b);
    if (geteuid() != 0 || unshare(CLONE_NEWNS) < 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        cr_skip_test("mounting needs root");
    int r = mount(in("image"), in("m"), "erofs", MS_RDONLY, NULL);
    int why = errno;
    unlink(in("image")); /* the mount keeps it */
    if (r < 0 && (why == ENODEV || why == ENOTBLK))
        cr_skip_test("this kernel does not mount EROFS from files");
    cr_assert_eq(r, 0, "mount: %s", strerror(why));
}

static void clean(void) {
    umount2(in("o"), MNT_DETACH);
    umount2(in("m"), MNT_DETACH);
    static const char *const left[] = {"d/aa/one", "d/aa", "d", "m", "o", "w/work", "w", "u"};
    for (size_t i = 0; i < sizeof(left) / sizeof(left[0]); i++)
        remove(in(left[i]));
    remove(dir);
}

Test(erofs, the_kernel_reads_what_was_written) {
    struct vg_erofs *e = sample();
    struct stat st, other;
    char buf[4100];
    mount_image(e);
    vg_erofs_free(e);
    cr_assert_eq(lstat(in("m/!first"), &st), 0);
    cr_assert(st.st_mode == (S_IFREG | 0640) && st.st_size == 5 && st.st_uid == 100000 &&
              st.st_gid == 70001);
    cr_assert(st.st_mtim.tv_sec == 1700000000 && st.st_mtim.tv_nsec == 123456789);
    cr_assert_eq(lgetxattr(in("m/!first"), "trusted.overlay.redirect", buf, sizeof(buf)), 7);
    cr_assert_eq(memcmp(buf, "/aa/one", 7), 0);
    cr_assert_eq(lgetxattr(in("m/!first"), "trusted.overlay.metacopy", buf, sizeof(buf)), 0);
    cr_assert_eq(lstat(in("m/-dash"), &st), 0);
    cr_assert(st.st_mode == (S_IFREG | 04755) && st.st_size == 0);
    cr_assert_eq(readlink(in("m/..."), buf, sizeof(buf)), 10);
    cr_assert_eq(readlink(in("m/.hidden"), buf, sizeof(buf)), 3999);
    cr_assert(buf[0] == 't' && buf[3998] == 't');
    cr_assert_eq(lstat(in("m/bytes"), &st), 0);
    cr_assert_eq(st.st_size, INT64_C(5) << 30);
    cr_assert_eq(lstat(in("m/zlink"), &other), 0);
    cr_assert_eq(st.st_ino, other.st_ino);
    cr_assert_eq(lstat(in("m/deep"), &st), 0);
    cr_assert_eq(st.st_mode, S_IFDIR | 01777);
    char path[512] = "m/deep";
    for (int i = 0; i < 40; i++)
        snprintf(path + strlen(path), sizeof(path) - strlen(path), "/d");
    snprintf(path + strlen(path), sizeof(path) - strlen(path), "/bottom");
    cr_assert_eq(readlink(in(path), buf, sizeof(buf)), 1);
    DIR *d = opendir(in("m/big"));
    int n = 0;
    while (readdir(d))
        n++;
    closedir(d);
    cr_assert_eq(n, 502);
    for (int i = 0; i < 500; i++) { /* each is found by its name, too */
        snprintf(path, sizeof(path), "m/big/%04d-%0*d", i, 3 + i % 90, i);
        cr_assert_eq(lstat(in(path), &st), 0, "%s", path);
        cr_assert_eq(st.st_mode, i % 7 ? S_IFREG | 0644u : S_IFIFO | 0600u);
    }
    cr_assert(lstat(in("m/big/0500"), &st) < 0 && errno == ENOENT);
    clean();
}

Test(erofs, overlayfs_takes_content_from_the_data_layer_and_hides_what_is_opaque) {
    struct vg_erofs *e;
    char opts[512], buf[16];
    struct stat st;
    cr_assert_eq(vg_erofs_new(&e), 0);
    add(e, 0, "", S_IFDIR | 0755, NULL, 0);
    struct vg_erofs_node n = {
        .name = "all", .name_len = 3, .mode = S_IFDIR | 0755, .nlink = 2, .opaque = true};
    uint32_t all, some;
    cr_assert_eq(vg_erofs_add(e, &n, &all), 0);
    n.name = "some";
    n.name_len = 4;
    n.opaque = false;
    cr_assert_eq(vg_erofs_add(e, &n, &some), 0);
    add(e, all, "f", S_IFREG | 0644, "/aa/one", 5);
    add(e, some, "f", S_IFREG | 0644, "/aa/one", 5);
    mount_image(e);
    vg_erofs_free(e);
    static const char *const dirs[] = {"d", "d/aa", "o", "u", "w", "u/all", "u/some"};
    for (size_t i = 0; i < 5; i++)
        cr_assert_eq(mkdir(in(dirs[i]), 0755), 0);
    put(in("d/aa/one"), "hello", 5);
    /* The layer below: /tmp itself would do; a tmpfs has just what the test puts there. */
    cr_assert_eq(mount("t", in("u"), "tmpfs", 0, NULL), 0);
    for (size_t i = 5; i < 7; i++)
        cr_assert_eq(mkdir(in(dirs[i]), 0755), 0);
    put(in("u/all/below"), "x", 1);
    put(in("u/some/below"), "x", 1);
    snprintf(opts, sizeof(opts), "lowerdir=%s/m:%s/u::%s/d,redirect_dir=on,metacopy=on", dir, dir,
             dir);
    cr_assert_eq(mount("o", in("o"), "overlay", MS_RDONLY, opts), 0, "%s", strerror(errno));
    for (int i = 0; i < 2; i++) {
        int fd = open(in(i ? "o/some/f" : "o/all/f"), O_RDONLY);
        cr_assert(fd >= 0, "%s", strerror(errno));
        cr_assert_eq(read(fd, buf, sizeof(buf)), 5);
        cr_assert_eq(memcmp(buf, "hello", 5), 0);
        close(fd);
    }
    cr_assert_eq(stat(in("o/some/below"), &st), 0);
    cr_assert(stat(in("o/all/below"), &st) < 0 && errno == ENOENT);
    umount2(in("o"), MNT_DETACH);
    umount2(in("u"), MNT_DETACH);
    clean();
}
