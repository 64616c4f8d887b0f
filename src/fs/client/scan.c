#include "fs/client/scan.h"

#include "base/cleanup.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/vfs.h>
#include <sys/xattr.h>

#define IGNORE_MAX (64u << 10)
#define ENTRIES_MAX (4u << 20)

bool vg_fs_is_kernels(long type) {
    static const unsigned long own[] = {
        0x9fa0,     /* proc */
        0x62656572, /* sysfs */
        0x27e0eb,   /* cgroup */
        0x63677270, /* cgroup2 */
        0x1cd1,     /* devpts */
        0x64626720, /* debugfs */
        0x74726163, /* tracefs */
        0x73636673, /* securityfs */
        0xf97cff8c, /* selinuxfs */
        0xcafe4a11, /* bpf */
        0x6165676c, /* pstore */
        0x19800202, /* mqueue */
        0x958458f6, /* hugetlbfs */
        0xde5e81e4, /* efivarfs */
        0x62656570, /* configfs */
        0x65735543, /* fusectl */
        0x42494e4d, /* binfmt_misc */
        0x67596969, /* rpc_pipefs */
        0x0187,     /* autofs */
        0x6e736673, /* nsfs */
    };
    for (size_t i = 0; i < VG_COUNT(own); i++)
        if ((unsigned long)(uint32_t)type == own[i])
            return true;
    return false;
}

bool vg_fs_is_far(long type) {
    static const unsigned long far[] = {0x6969,     0xff534d42, 0xfe534d42, 0x517b,
                                        0x65735546, 0x01021997, 0x00c36400, 0x5346414f};
    for (size_t i = 0; i < VG_COUNT(far); i++)
        if ((unsigned long)(uint32_t)type == far[i])
            return true;
    return false;
}

static bool has_xattr(int dir, const char *name) {
    char path[64 + NAME_MAX + 1], list[256];
    if (snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", dir, name) >= (int)sizeof(path))
        return false;
    ssize_t n = llistxattr(path, list, sizeof(list));
    return n > 0 || (n < 0 && errno == ERANGE);
}

static bool kernels_mount(int dir, const char *name) {
    vg_auto_fd int fd = openat(dir, name, O_PATH | O_NOFOLLOW | O_DIRECTORY | O_CLOEXEC);
    struct statfs fs;
    return fd >= 0 && fstatfs(fd, &fs) == 0 && vg_fs_is_kernels((long)fs.f_type);
}

static int add_text(struct vg_scan *s, const char *str, size_t n, size_t *ret) {
    *ret = s->text.tail; /* head never moves: offsets from base */
    int r = vg_buf_append(&s->text, str, n);
    return r < 0 ? r : vg_buf_append(&s->text, "", 1);
}

static int add_entry(struct vg_scan *s, int dir, const char *name, bool xattrs) {
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) < 0)
        return 0; /* went away meanwhile */
    if (s->n >= ENTRIES_MAX)
        return -EFBIG;
    struct vg_scan_ent *grown = vg_grow(s->ent, &s->cap, s->n + 1, sizeof(*s->ent));
    if (!grown)
        return -ENOMEM;
    s->ent = grown;
    struct vg_scan_ent *e = &s->ent[s->n];
    *e = (struct vg_scan_ent){0};
    vg_mstat_from(&e->st, &st);
    int r = add_text(s, name, strlen(name), &e->name);
    if (r < 0)
        return r;
    if (S_ISLNK(st.st_mode)) {
        char target[PATH_MAX];
        ssize_t n = readlinkat(dir, name, target, sizeof(target));
        if (n <= 0 || (size_t)n == sizeof(target))
            return 0; /* changed meanwhile: the watch will say so */
        r = add_text(s, target, (size_t)n, &e->target);
        if (r < 0)
            return r;
    } else if (S_ISDIR(st.st_mode) && e->st.dev != s->st.dev) {
        e->kernels = kernels_mount(dir, name);
    }
    if ((S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) &&
        (xattrs || (S_ISREG(st.st_mode) && (st.st_mode & 0111))))
        e->xattr = has_xattr(dir, name);
    s->n++;
    return 0;
}

static int read_ignore(struct vg_scan *s, int dir) {
    vg_auto_fd int fd = openat(dir, ".virgaignore", O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return 0;
    s->ignore = true;
    uint8_t *at = vg_buf_reserve(&s->ignore_text, IGNORE_MAX);
    if (!at)
        return -ENOMEM;
    ssize_t n = pread(fd, at, IGNORE_MAX, 0);
    vg_buf_commit(&s->ignore_text, n > 0 ? (size_t)n : 0);
    return 0;
}

static int by_name(const void *a, const void *b, void *text) {
    const struct vg_scan_ent *x = a, *y = b;
    return strcmp((const char *)text + x->name, (const char *)text + y->name);
}

static int scan_entries(struct vg_scan *s, DIR *d, bool xattrs) {
    for (;;) {
        errno = 0;
        const struct dirent *e = readdir(d);
        if (!e)
            return -errno;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        int r = add_entry(s, dirfd(d), e->d_name, xattrs);
        if (r < 0)
            return r;
        if (strcmp(e->d_name, ".virgaignore") == 0 && (r = read_ignore(s, dirfd(d))) < 0)
            return r;
    }
}

int vg_scan_folder(int fd, bool xattrs, struct vg_scan *ret) {
    *ret = (struct vg_scan){0};
    struct stat st;
    struct statfs fs;
    DIR *d = fdopendir(fd);
    if (!d) {
        int r = -errno;
        close(fd);
        return r;
    }
    int r = fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0 ? -errno : 0;
    if (r == 0) {
        vg_mstat_from(&ret->st, &st);
        ret->kernels = vg_fs_is_kernels((long)fs.f_type);
        ret->far = vg_fs_is_far((long)fs.f_type);
        r = vg_buf_append(&ret->text, "", 1); /* offset 0 means none */
    }
    if (r == 0 && !ret->kernels)
        r = scan_entries(ret, d, xattrs);
    closedir(d);
    if (r < 0) {
        vg_scan_done(ret);
        return r;
    }
    if (ret->n)
        qsort_r(ret->ent, ret->n, sizeof(*ret->ent), by_name, ret->text.base);
    return 0;
}

void vg_scan_done(struct vg_scan *s) {
    free(s->ent);
    vg_buf_done(&s->text);
    vg_buf_done(&s->ignore_text);
    *s = (struct vg_scan){0};
}
