/* Descriptors of files on the world's disk, for code that knows files only as the kernel has them.
 */
#include "sim/faults/files.h"

#include "base/mem.h"
#include "sim/faults/world.h"

#include <string.h>

#define FIRST (1 << 20) /* no real descriptor is that large */

static struct vg_w_file **open_files;
static size_t n_open, cap_open;

static int fd_new(struct vg_w_file *f) {
    for (size_t i = 0; i < n_open; i++)
        if (!open_files[i]) {
            open_files[i] = f;
            return FIRST + (int)i;
        }
    struct vg_w_file **list = vg_grow(open_files, &cap_open, n_open + 1, sizeof *list);
    if (!list)
        abort();
    open_files = list;
    open_files[n_open] = f;
    return FIRST + (int)n_open++;
}

static struct vg_w_file *file_of(int fd) {
    return fd >= FIRST && (size_t)(fd - FIRST) < n_open ? open_files[fd - FIRST] : NULL;
}

int vg_w_fd_open(const char *path, int flags, ...) {
    struct vg_w_file *f = vg_w_file_open(path, flags & O_CREAT);
    if (!f) {
        errno = ENOENT;
        return -1;
    }
    return fd_new(f);
}

int vg_w_fd_close(int fd) {
    struct vg_w_file *f = file_of(fd);
    if (!f) {
        errno = EBADF;
        return -1;
    }
    open_files[fd - FIRST] = NULL;
    vg_w_file_close(f);
    return 0;
}

/* Another descriptor of the same open file; a removed one can still be had. */
int vg_w_fd_dup(int fd) {
    struct vg_w_file *f = file_of(fd);
    if (!f) {
        errno = EBADF;
        return -1;
    }
    vg_w_file_ref(f);
    return fd_new(f);
}

ssize_t vg_w_fd_pread(int fd, void *p, size_t n, off_t at) {
    return (ssize_t)vg_w_file_read(file_of(fd), p, n, (uint64_t)at);
}

ssize_t vg_w_fd_pwrite(int fd, const void *p, size_t n, off_t at) {
    int r = vg_w_file_write(file_of(fd), p, n, (uint64_t)at);
    if (r < 0) {
        errno = -r;
        return -1;
    }
    return (ssize_t)n;
}

int vg_w_fd_stat(int fd, struct stat *st) {
    memset(st, 0, sizeof *st);
    st->st_size = (off_t)vg_w_file_size(file_of(fd));
    return 0;
}

int vg_w_fd_unlink(const char *path) {
    vg_w_file_remove(path);
    return 0;
}

void vg_w_fd_sync(int fd) {
    struct vg_w_file *f = file_of(fd);
    if (f)
        vg_w_file_sync(f);
}
