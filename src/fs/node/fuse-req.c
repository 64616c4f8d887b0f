/* One request: what it says, keeping it, answering it; notifications to the kernel. Any thread. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/node/fuse-int.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

/* Newer than some headers. */
#define NOTIFY_INC_EPOCH 8
struct backing_map {
    int32_t fd;
    uint32_t flags;
    uint64_t padding;
};
#define IOC_BACKING_OPEN _IOW(229, 1, struct backing_map)
#define IOC_BACKING_CLOSE _IOW(229, 2, uint32_t)

int vg_fuse_write(int fd, uint64_t unique, int err, const void *data, size_t n) {
    struct fuse_out_header h = {.len = (uint32_t)(sizeof(h) + n), .error = -err, .unique = unique};
    struct iovec iov[2] = {{&h, sizeof(h)}, {(void *)(uintptr_t)data, n}};
    for (;;) {
        if (writev(fd, iov, n ? 2 : 1) >= 0)
            return 0;
        if (errno != EINTR && errno != EAGAIN)
            return -errno;
    }
}

const struct fuse_in_header *vg_fuse_head(const struct vg_fuse_req *r) {
    return (const void *)r->in;
}

const void *vg_fuse_arg(const struct vg_fuse_req *r, size_t *ret_len) {
    *ret_len = r->len - sizeof(struct fuse_in_header);
    return r->in + sizeof(struct fuse_in_header);
}

const void *vg_fuse_in(const struct vg_fuse_req *r, size_t n) {
    return r->len - sizeof(struct fuse_in_header) < n ? NULL
                                                      : r->in + sizeof(struct fuse_in_header);
}

const char *vg_fuse_str(const struct vg_fuse_req *r, size_t skip, size_t *ret_len) {
    size_t at = sizeof(struct fuse_in_header) + skip;
    const char *end = at < r->len ? memchr(r->in + at, 0, r->len - at) : NULL;
    if (!end)
        return NULL;
    if (ret_len)
        *ret_len = (size_t)(end - (r->in + at));
    return r->in + at;
}

struct vg_fuse_req *vg_fuse_keep(struct vg_fuse_req *r) {
    if (r->kept)
        return r;
    struct vg_fuse_req *k = vg_alloc(sizeof(*k) + r->len);
    if (!k) {
        vg_fuse_err(r, ENOMEM);
        return NULL;
    }
    *k = (struct vg_fuse_req){
        .fuse = r->fuse, .fd = r->fd, .kept = true, .in = k->copy, .len = r->len};
    memcpy(k->copy, r->in, r->len);
    pthread_mutex_lock(&r->fuse->lock);
    vg_list_push_back(&r->fuse->kept, &k->link);
    pthread_mutex_unlock(&r->fuse->lock);
    return k;
}

bool vg_fuse_is_kept(const struct vg_fuse_req *r) {
    return r->kept;
}

/* Takes it from the kept ones; true when it was answered ahead. */
static bool settle(struct vg_fuse_req *r) {
    if (!r->kept)
        return false;
    pthread_mutex_lock(&r->fuse->lock);
    vg_list_remove(&r->link);
    bool answered = r->answered;
    pthread_mutex_unlock(&r->fuse->lock);
    return answered;
}

static int answer(struct vg_fuse_req *r, int err, const void *data, size_t n) {
    int code = settle(r) ? -ENOENT : vg_fuse_write(r->fd, vg_fuse_head(r)->unique, err, data, n);
    if (r->kept)
        free(r);
    return code;
}

int vg_fuse_ok(struct vg_fuse_req *r, const void *data, size_t n) {
    return answer(r, 0, data, n);
}

int vg_fuse_err(struct vg_fuse_req *r, int err) {
    return answer(r, err, NULL, 0);
}

static pthread_key_t read_key;
static void make_read_key(void) {
    pthread_key_create(&read_key, free);
}

/* One buffer a thread that answers reads; it goes with the thread. NULL: out of memory. */
static char *read_buffer(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_read_key);
    char *buf = pthread_getspecific(read_key);
    if (!buf && (buf = malloc(VG_FUSE_IO)) && pthread_setspecific(read_key, buf))
        free(vg_take_ptr(buf));
    return buf;
}

int vg_fuse_ok_fd(struct vg_fuse_req *r, int fd, uint64_t off, size_t n) {
    char *buf = read_buffer();
    if (!buf)
        return vg_fuse_err(r, ENOMEM);
    n = VG_MIN(n, (size_t)VG_FUSE_IO);
    ssize_t got = pread(fd, buf, n, (off_t)off);
    return got < 0 ? vg_fuse_err(r, errno) : vg_fuse_ok(r, buf, (size_t)got);
}

void vg_fuse_none(struct vg_fuse_req *r) {
    settle(r);
    if (r->kept)
        free(r);
}

/* A process that is being killed cannot end before its request does. A signal that has a handler is
   no reason to fail a read that no disk would fail, so only SIGKILL counts: the kernel sets it for
   every signal whose default action ends the process. */
static bool is_dying(uint32_t pid) {
    char path[32];
    vg_auto_free char *text = NULL;
    size_t n;
    snprintf(path, sizeof(path), "/proc/%u/status", pid);
    if (!pid || vg_read_file(path, 1 << 16, &text, &n) < 0)
        return false;
    const char *const keys[] = {"\nSigPnd:", "\nShdPnd:"};
    for (size_t i = 0; i < VG_COUNT(keys); i++) {
        const char *at = strstr(text, keys[i]);
        if (at && strtoull(at + strlen(keys[i]), NULL, 16) >> (SIGKILL - 1) & 1)
            return true;
    }
    return false;
}

static void check_killed(struct vg_fuse_req *r) {
    if (r->answered || !r->signalled || !is_dying(vg_fuse_head(r)->pid))
        return;
    vg_fuse_write(r->fd, vg_fuse_head(r)->unique, EINTR, NULL, 0);
    r->answered = true;
}

void vg_fuse_interrupted(struct vg_fuse *f, uint64_t unique) {
    pthread_mutex_lock(&f->lock);
    vg_list_for_each (it, &f->kept) {
        struct vg_fuse_req *r = vg_list_entry(it, struct vg_fuse_req, link);
        if (vg_fuse_head(r)->unique == unique) {
            r->signalled = true;
            check_killed(r);
            break;
        }
    }
    pthread_mutex_unlock(&f->lock);
}

void vg_fuse_tick(struct vg_fuse *f) {
    pthread_mutex_lock(&f->lock);
    vg_list_for_each (it, &f->kept)
        check_killed(vg_list_entry(it, struct vg_fuse_req, link));
    pthread_mutex_unlock(&f->lock);
}

int vg_fuse_backing_open(struct vg_fuse *f, int fd) {
    struct backing_map m = {.fd = fd};
    int id = ioctl(f->fd, IOC_BACKING_OPEN, &m);
    return id < 0 ? -errno : id;
}

void vg_fuse_backing_close(struct vg_fuse *f, int id) {
    uint32_t n = (uint32_t)id;
    ioctl(f->fd, IOC_BACKING_CLOSE, &n);
}

static int notify(struct vg_fuse *f, int code, const struct iovec *parts, int n) {
    struct fuse_out_header h = {.len = sizeof(h), .error = code};
    struct iovec iov[4] = {{&h, sizeof(h)}};
    for (int i = 0; i < n; i++) {
        iov[i + 1] = parts[i];
        h.len += (uint32_t)parts[i].iov_len;
    }
    return writev(f->fd, iov, n + 1) < 0 ? -errno : 0;
}

static int notify_entry(struct vg_fuse *f, uint64_t parent, const char *name, size_t n,
                        uint32_t flags) {
    struct fuse_notify_inval_entry_out out = {
        .parent = parent, .namelen = (uint32_t)n, .flags = flags};
    char end = 0;
    struct iovec parts[] = {{&out, sizeof(out)}, {(void *)(uintptr_t)name, n}, {&end, 1}};
    return notify(f, FUSE_NOTIFY_INVAL_ENTRY, parts, 3);
}

int vg_fuse_inval_entry(struct vg_fuse *f, uint64_t parent, const char *name, size_t n) {
    return notify_entry(f, parent, name, n, 0);
}

int vg_fuse_expire_entry(struct vg_fuse *f, uint64_t parent, const char *name, size_t n) {
    return notify_entry(f, parent, name, n, f->minor >= 38 ? FUSE_EXPIRE_ONLY : 0);
}

int vg_fuse_inval_inode(struct vg_fuse *f, uint64_t node, int64_t off, int64_t len) {
    struct fuse_notify_inval_inode_out out = {.ino = node, .off = off, .len = len};
    struct iovec part = {&out, sizeof(out)};
    return notify(f, FUSE_NOTIFY_INVAL_INODE, &part, 1);
}

int vg_fuse_inval_names(struct vg_fuse *f) {
    if (f->minor < 44)
        return -ENOSYS;
    int r = notify(f, NOTIFY_INC_EPOCH, NULL, 0);
    return r == -EINVAL ? -ENOSYS : r;
}
