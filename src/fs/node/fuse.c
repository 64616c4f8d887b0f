/* Mounting and the threads that read requests. Always true: an answer goes out on the descriptor
   its request was read from (each clone of /dev/fuse has its own queue in the kernel); a kept
   request is in `kept` until it is answered, so that a killed process is not waited for. */
#include "fs/node/fuse.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "fs/node/fuse-int.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define INIT_PASSTHROUGH (1ull << 37)
#define READAHEAD_KB "1024"
#define WORK_BYTES (VG_FUSE_IO + 8192)

/* As of 7.40: newer than some headers. */
struct init_out {
    uint32_t major, minor, max_readahead, flags;
    uint16_t max_background, congestion_threshold;
    uint32_t max_write, time_gran;
    uint16_t max_pages, map_alignment;
    uint32_t flags2, max_stack_depth;
    uint16_t request_timeout, unused[11];
};
_Static_assert(sizeof(struct init_out) == 64, "the kernel's own layout");

static uint64_t wanted_flags(const struct vg_fuse_conf *conf) {
    uint64_t want = FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_MAX_PAGES | FUSE_PARALLEL_DIROPS |
                    FUSE_CACHE_SYMLINKS | FUSE_DO_READDIRPLUS | FUSE_NO_OPENDIR_SUPPORT |
                    FUSE_INIT_EXT | conf->want_flags;
    if (conf->writable)
        want |= FUSE_ATOMIC_O_TRUNC;
    if (!conf->no_passthrough)
        want |= INIT_PASSTHROUGH;
    return want;
}

/* The kernel's first request: what both can do. */
static int answer_init(struct vg_fuse *f, const struct vg_fuse_conf *conf) {
    vg_auto_free char *buf = vg_alloc(WORK_BYTES);
    if (!buf)
        return -ENOMEM;
    ssize_t n;
    do
        n = read(f->fd, buf, WORK_BYTES);
    while (n < 0 && (errno == EINTR || errno == EAGAIN));
    if (n < 0)
        return -errno;
    struct fuse_in_header h;
    struct fuse_init_in in = {0};
    if ((size_t)n < sizeof(h) + FUSE_COMPAT_22_INIT_OUT_SIZE - 8)
        return -EPROTO;
    memcpy(&h, buf, sizeof(h));
    memcpy(&in, buf + sizeof(h), VG_MIN((size_t)n - sizeof(h), sizeof(in)));
    if (h.opcode != FUSE_INIT || in.major != FUSE_KERNEL_VERSION || in.minor < 31)
        return -EPROTONOSUPPORT;
    uint64_t can = in.flags | (in.flags & FUSE_INIT_EXT ? (uint64_t)in.flags2 << 32 : 0);
    f->flags = can & wanted_flags(conf);
    f->minor = in.minor;
    struct init_out out = {.major = FUSE_KERNEL_VERSION,
                           .minor = VG_MIN(in.minor, 45u),
                           .max_readahead = VG_FUSE_IO,
                           .flags = (uint32_t)f->flags,
                           .flags2 = (uint32_t)(f->flags >> 32),
                           .max_background = 128,
                           .congestion_threshold = 96,
                           .max_write = VG_FUSE_IO,
                           .time_gran = 1,
                           .max_pages = VG_FUSE_IO / 4096,
                           .max_stack_depth = f->flags & INIT_PASSTHROUGH ? 1 : 0};
    return vg_fuse_write(f->fd, h.unique, 0, &out, sizeof(out));
}

/* The kernel reads ahead only 128 KiB unless told so; not being able to say it is no failure. */
static void set_readahead(const char *at) {
    struct stat st;
    char path[64];
    if (stat(at, &st) < 0)
        return;
    snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb", major(st.st_dev),
             minor(st.st_dev));
    vg_auto_fd int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd >= 0 && write(fd, READAHEAD_KB, strlen(READAHEAD_KB)) < 0)
        vg_debug("cannot set read-ahead of %s: %s", at, strerror(errno));
}

static bool is_interrupt(struct vg_fuse *f, const char *buf, size_t n) {
    const struct fuse_in_header *h = (const void *)buf;
    if (h->opcode != FUSE_INTERRUPT)
        return false;
    struct fuse_interrupt_in in;
    if (n >= sizeof(*h) + sizeof(in)) {
        memcpy(&in, buf + sizeof(*h), sizeof(in));
        vg_fuse_interrupted(f, in.unique);
    }
    return true;
}

static void *work(void *arg) {
    struct fuse_worker *w = arg;
    struct vg_fuse *f = w->fuse;
    for (;;) {
        ssize_t n = read(w->fd, w->buf, WORK_BYTES);
        if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT))
            continue;
        if (n < (ssize_t)sizeof(struct fuse_in_header))
            break; /* ENODEV: unmounted or aborted */
        if (is_interrupt(f, w->buf, (size_t)n))
            continue;
        struct vg_fuse_req r = {.fuse = f, .fd = w->fd, .in = w->buf, .len = (size_t)n};
        f->ops.request(f->user, &r);
    }
    if (!atomic_exchange(&f->gone, true) && f->ops.gone)
        f->ops.gone(f->user);
    return NULL;
}

static int start_worker(struct vg_fuse *f, struct fuse_worker *w, int fd) {
    w->fuse = f;
    w->fd = fd;
    w->buf = aligned_alloc(4096, (WORK_BYTES + 4095) / 4096 * 4096);
    if (!w->buf)
        return -ENOMEM;
    int r = pthread_create(&w->thread, NULL, work, w);
    w->running = !r;
    return -r;
}

static int start_workers(struct vg_fuse *f, unsigned n) {
    for (f->n_workers = 0; f->n_workers < n;) {
        struct fuse_worker *w = &f->workers[f->n_workers++];
        int fd = f->fd;
        uint32_t first = (uint32_t)f->fd;
        w->fd = -1;
        if (f->n_workers > 1) {
            fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
            if (fd < 0)
                return -errno;
            if (ioctl(fd, FUSE_DEV_IOC_CLONE, &first) < 0) {
                int code = -errno;
                close(fd);
                return code;
            }
        }
        int r = start_worker(f, w, fd);
        if (r < 0)
            return r;
    }
    return 0;
}

static int do_mount(struct vg_fuse *f, const struct vg_fuse_conf *conf, struct vg_err *err) {
    f->fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (f->fd < 0)
        return vg_err_sys(err, errno, "cannot open /dev/fuse (is the kernel's fuse module there?)");
    char opts[160];
    snprintf(opts, sizeof(opts),
             "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions,"
             "max_read=%u",
             f->fd, VG_FUSE_IO);
    unsigned long flags = MS_NODEV | MS_NOSUID | MS_NOATIME | (conf->writable ? 0 : MS_RDONLY);
    if (mount(conf->name, f->at, "fuse.virga", flags, opts) < 0)
        return vg_err_sys(err, errno, "cannot mount the mirror at %s", f->at);
    f->mounted = true;
    int r = answer_init(f, conf);
    if (r < 0)
        return vg_err_sys(err, r, "the kernel's FUSE does not suit (7.31 or newer is needed)");
    return 0;
}

int vg_fuse_new(const struct vg_fuse_conf *conf, const struct vg_fuse_ops *ops, void *user,
                const char *at, struct vg_fuse **ret, struct vg_err *err) {
    struct vg_fuse *f = vg_alloc(sizeof(*f));
    if (!f)
        return vg_err_sys(err, ENOMEM, "cannot mount the mirror");
    *f = (struct vg_fuse){.ops = *ops, .user = user, .fd = -1, .at = vg_strdup(at)};
    pthread_mutex_init(&f->lock, NULL);
    vg_list_init(&f->kept);
    if (!f->at) {
        vg_fuse_free(f);
        return vg_err_sys(err, ENOMEM, "cannot mount the mirror");
    }
    int r = do_mount(f, conf, err);
    if (r >= 0) {
        r = start_workers(f, VG_MIN(conf->threads ? conf->threads : 2u, FUSE_WORKERS));
        if (r < 0)
            vg_err_sys(err, r, "cannot start the mirror's threads");
    }
    if (r < 0) {
        vg_fuse_free(f);
        return r;
    }
    set_readahead(at);
    *ret = f;
    return 0;
}

/* A forced unmount aborts the connection whoever else has it mounted; workers then get ENODEV. */
void vg_fuse_abort(struct vg_fuse *f) {
    if (f->mounted && umount2(f->at, MNT_FORCE) < 0)
        umount2(f->at, MNT_DETACH);
    f->mounted = false;
    for (unsigned i = 0; i < f->n_workers; i++)
        if (f->workers[i].running) {
            pthread_join(f->workers[i].thread, NULL);
            f->workers[i].running = false;
        }
}

void vg_fuse_free(struct vg_fuse *f) {
    if (!f)
        return;
    vg_fuse_abort(f);
    for (unsigned i = 0; i < f->n_workers; i++) {
        free(f->workers[i].buf);
        if (f->workers[i].fd != f->fd)
            vg_close(&f->workers[i].fd);
    }
    vg_close(&f->fd);
    pthread_mutex_destroy(&f->lock);
    free(f->at);
    free(f);
}

int vg_mount_clone(const char *path) {
    int fd = (int)syscall(SYS_open_tree, AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int vg_fuse_clone_mount(struct vg_fuse *f) {
    return vg_mount_clone(f->at);
}

bool vg_fuse_has_passthrough(const struct vg_fuse *f) {
    return f->flags & INIT_PASSTHROUGH;
}

uint64_t vg_fuse_flags(const struct vg_fuse *f) {
    return f->flags;
}
