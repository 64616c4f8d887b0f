/* Opening and closing the cache, and the thread that keeps it in order while nobody waits.

   Opening costs the same for ten objects and for a hundred thousand: the counters come from the
   last clean end in the same boot, else the thread counts. */
#include "fs/node/cache-int.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <time.h>

#define NSEC INT64_C(1000000000)
#define WORK_SEC 60
#define MARK_USEC (120 * VG_USEC)        /* never at the end: a sync may take long */
#define SCRUB_BYTES (UINT64_C(64) << 20) /* at a time: 1 MiB a second */
#define LOCK_AGAIN_NSEC 10000000

static const char *const folders[] = {"id", "stamp", "part", "trash"};

void vg_cache_work(struct vg_cache *c) {
    bool torn = atomic_load(&c->suspect_from) != INT64_MAX;
    vg_disk_drop_old(c);
    int r = vg_keep_sweep(c);
    if (r == 0 && !c->counted)
        c->counted = (r = vg_cache_recount(c)) == 0;
    vg_cache_ease(c);
    vg_disk_empty_trash(c);
    r = r < 0 ? r : vg_keep_stamps(c);
    uint64_t now = vg_now_usec();
    if (r == 0 && (torn || (atomic_load(&c->dirty) && now >= c->marked_usec + MARK_USEC))) {
        c->marked_usec = now;
        r = vg_keep_mark(c);
    }
    if (r < 0)
        vg_debug("cache: housekeeping failed: %s", strerror(-r));
}

static void *keeper(void *arg) {
    struct vg_cache *c = arg;
    bool stop = false;
    while (!stop) {
        uint64_t scrub_due = vg_now_usec() + WORK_SEC * VG_USEC;
        vg_cache_work(c);
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += WORK_SEC;
        pthread_mutex_lock(&c->lock);
        while (!c->stop && !c->kick && pthread_cond_timedwait(&c->wake, &c->lock, &until) == 0)
            ;
        c->kick = false;
        stop = c->stop;
        pthread_mutex_unlock(&c->lock);
        if (!stop && vg_now_usec() >= scrub_due)
            (void)vg_cache_scrub(c, SCRUB_BYTES);
    }
    return NULL;
}

void vg_cache_kick(struct vg_cache *c) {
    if (!c->threaded)
        return;
    pthread_mutex_lock(&c->lock);
    c->kick = true;
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
}

/* A small file of the cache's folder: bytes read, or -errno. */
static ssize_t read_small(struct vg_cache *c, const char *name, char *out, size_t max,
                          struct stat *st) {
    vg_auto_fd int fd = openat(c->dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || (st && fstat(fd, st) < 0))
        return -errno;
    return vg_read_full(fd, out, max);
}

/* Not synced: a new cache would wait for the whole disk's journal, and whoever finds one of these
   torn or missing after a power failure believes nothing that lies here. */
static int write_small(struct vg_cache *c, const char *name, const void *data, size_t n) {
    vg_auto_fd int fd =
        openat(c->dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    int r = vg_fault("cache/small");
    return r < 0 ? r : vg_write_full(fd, data, n);
}

/* The tenant's key. Made once: without it nothing that lies here has a name any more. */
static int open_key(struct vg_cache *c) {
    ssize_t n = read_small(c, "key", (char *)c->key, sizeof c->key, NULL);
    if (n == VG_HASH)
        return 0;
    if (n < 0 && n != -ENOENT)
        return (int)n;
    c->fresh = n == -ENOENT;
    vg_random(c->key, sizeof c->key);
    unlinkat(c->dir, "key.new", 0);
    if (n >= 0)
        unlinkat(c->dir, "key",
                 0); /* torn: the objects' names mean nothing, they will be evicted */
    int r = write_small(c, "key.new", c->key, sizeof c->key);
    if (r == 0 && renameat(c->dir, "key.new", c->dir, "key") < 0)
        r = -errno;
    return r;
}

/* A folder that was just made holds nothing to be suspicious of. */
static int open_mark(struct vg_cache *c, struct vg_err *err) {
    char boot[VG_BOOT] = "";
    struct stat st;
    struct timespec now;
    atomic_store(&c->suspect_from, INT64_MAX);
    if (c->fresh) {
        unlinkat(c->dir, "mark", 0);
        int r = write_small(c, "mark", c->boot, strlen(c->boot));
        return r < 0 ? vg_err_sys(err, r, "cannot write in the cache's folder") : 0;
    }
    ssize_t n = read_small(c, "mark", boot, sizeof boot - 1, &st);
    if (n > 0 && strcmp(boot, c->boot) == 0)
        return 0;
    clock_gettime(CLOCK_REALTIME_COARSE, &now); /* the clock that stamps files */
    atomic_store(&c->suspect_to, (int64_t)now.tv_sec * NSEC + now.tv_nsec);
    atomic_store(&c->suspect_from,
                 n > 0 ? (int64_t)st.st_mtim.tv_sec * NSEC + st.st_mtim.tv_nsec : INT64_MIN);
    return 0;
}

static void open_used(struct vg_cache *c) {
    char text[128] = "", boot[VG_BOOT];
    unsigned long long bytes, objects, partial;
    ssize_t n = read_small(c, "used", text, sizeof text - 1, NULL);
    unlinkat(c->dir, "used", 0);
    if (n <= 0 || sscanf(text, "%36s %llu %llu %llu", boot, &bytes, &objects, &partial) != 4 ||
        strcmp(boot, c->boot) != 0)
        return;
    atomic_store(&c->bytes, (int64_t)bytes);
    atomic_store(&c->objects, (int64_t)objects);
    atomic_store(&c->partial, (int64_t)partial);
    c->counted = true;
}

/* A process that was killed holds its lock until the kernel has torn it down. */
static int take_lock(struct vg_cache *c, uint64_t wait_usec) {
    uint64_t until = vg_now_usec() + wait_usec;
    while (flock(c->lock_fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK || vg_now_usec() >= until)
            return -errno;
        nanosleep(&(struct timespec){.tv_nsec = LOCK_AGAIN_NSEC}, NULL);
    }
    return 0;
}

static int open_folders(struct vg_cache *c, const char *dir, uint64_t wait_usec,
                        struct vg_err *err) {
    int r = vg_mkdir_p(dir, 0700);
    if (r < 0)
        return vg_err_sys(err, r, "cannot make the cache's folder %s", dir);
    c->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (c->dir < 0)
        return vg_err_sys(err, -errno, "cannot open the cache's folder %s", dir);
    c->lock_fd = openat(c->dir, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (c->lock_fd < 0)
        return vg_err_sys(err, -errno, "cannot lock the cache in %s", dir);
    if (take_lock(c, wait_usec) < 0)
        return vg_err_set(err, VG_CONFLICT,
                          "the cache in %s is in use by another process; wait until it has ended",
                          dir);
    for (size_t i = 0; i < VG_COUNT(folders); i++)
        if (mkdirat(c->dir, folders[i], 0700) < 0 && errno != EEXIST)
            return vg_err_sys(err, -errno, "cannot make %s/%s", dir, folders[i]);
    r = open_key(c);
    return r < 0 ? vg_err_sys(err, r, "cannot read or make the key in %s", dir) : 0;
}

static int open_limits(struct vg_cache *c, const struct vg_cache_conf *conf, struct vg_err *err) {
    struct statvfs v;
    struct rlimit files;
    if (fstatvfs(c->dir, &v) < 0)
        return vg_err_sys(err, -errno, "cannot ask for the free space at %s", conf->dir);
    uint64_t disk = (uint64_t)v.f_blocks * v.f_frsize;
    c->max_bytes = conf->max_bytes ? conf->max_bytes : disk / 10;
    c->keep_free = conf->keep_free ? conf->keep_free : VG_MIN(disk / 20, VG_KEEP_FREE_MAX);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files); /* fewer descriptors are no reason to stop */
    }
    return 0;
}

static int open_boot(struct vg_cache *c, const char *boot, struct vg_err *err) {
    vg_auto_free char *text = NULL;
    size_t n;
    int r = boot ? 0 : vg_read_file("/proc/sys/kernel/random/boot_id", 256, &text, &n);
    if (r < 0)
        return vg_err_sys(err, r, "cannot read the boot's name; is /proc mounted?");
    snprintf(c->boot, sizeof c->boot, "%.36s", boot ? boot : text);
    c->boot[strcspn(c->boot, " \n")] = '\0';
    return 0;
}

static int open_thread(struct vg_cache *c, struct vg_err *err) {
    c->threaded = true;
    int r = pthread_create(&c->thread, NULL, keeper, c);
    if (r) {
        c->threaded = false;
        return vg_err_sys(err, -r, "cannot start the cache's thread");
    }
    return 0;
}

static void cache_free(struct vg_cache *c) {
    vg_map_done(&c->by_stamp);
    vg_map_done(&c->by_id);
    vg_map_done(&c->by_secret);
    pthread_cond_destroy(&c->wake);
    pthread_mutex_destroy(&c->lock);
    pthread_mutex_destroy(&c->evict);
    vg_close(&c->dir);
    vg_close(&c->public_dir);
    vg_close(&c->lock_fd);
    free(c);
}

int vg_cache_open(const struct vg_cache_conf *conf, struct vg_cache **ret, struct vg_err *err) {
    struct vg_cache *c = vg_alloc(sizeof *c);
    pthread_condattr_t attr;
    if (!c)
        return vg_err_sys(err, -ENOMEM, "cannot open the cache in %s", conf->dir);
    c->dir = c->public_dir = c->lock_fd = -1;
    c->opening = true;
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->evict, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->wake, &attr);
    pthread_condattr_destroy(&attr);
    int r = open_boot(c, conf->boot, err);
    r = r < 0 ? r : open_folders(c, conf->dir, conf->wait_usec, err);
    r = r < 0 ? r : open_limits(c, conf, err);
    if (r == 0) {
        /* Made when it is not there, so that what is seeded later is found, too. */
        if (conf->public_dir && vg_mkdir_p(conf->public_dir, 0700) >= 0)
            c->public_dir = open(conf->public_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        r = open_mark(c, err);
        open_used(c);
        vg_disk_empty_trash(c);
        c->marked_usec = vg_now_usec();
    }
    c->opening = false;
    if (r == 0 && !conf->inline_work)
        r = open_thread(c, err);
    if (r < 0) {
        cache_free(c);
        return r;
    }
    *ret = c;
    return 0;
}

void vg_cache_close(struct vg_cache *c) {
    char text[128];
    if (!c)
        return;
    if (c->threaded) {
        pthread_mutex_lock(&c->lock);
        c->stop = true;
        pthread_cond_signal(&c->wake);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->thread, NULL);
    }
    if (c->counted) {
        int n = snprintf(text, sizeof text, "%s %lld %lld %lld\n", c->boot,
                         (long long)VG_MAX(atomic_load(&c->bytes), 0),
                         (long long)VG_MAX(atomic_load(&c->objects), 0),
                         (long long)VG_MAX(atomic_load(&c->partial), 0));
        (void)write_small(c, "used", text, (size_t)n); /* else the next one counts */
    }
    cache_free(c);
}
