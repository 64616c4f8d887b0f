/* Making, mounting and lending images. One thread makes them; everything else is called by the
   daemon. Always true: `now` is the newest image or NULL; an image is unmounted and its content let
   go when its last holder is gone; content is never waited for under the lock. */
#include "fs/node/compile.h"
#include "fs/node/fuse.h"

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/node/compile-plan.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#define LOOK_AROUND_SEC 20               /* how often the thread looks whether the cache is full */
#define ITEMS_MAX (200u << 10)           /* of an image: some 40 MB */
#define REST_FILE (UINT64_C(64) << 20)   /* larger files are not completed unasked */
#define REST_TOTAL (UINT64_C(256) << 20) /* at once */

struct vg_image {
    struct vg_compile *of;
    unsigned refs; /* under of->lock */
    struct vg_plan plan;
    char *at; /* owned; where it is mounted */
    uint8_t hash[VG_HASH];
    uint64_t bytes;
    uint64_t bad; /* contents that the cache had found broken and dropped when it was made */
};

struct vg_compile {
    struct vg_compile_conf conf;
    char *dir, *data; /* owned */
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* never held together with the view's */
    pthread_cond_t wake, idle;
    bool stop, want, busy;
    struct vg_image *now; /* owned reference */
    uint64_t *missing;    /* owned; the thread's: what the last plan found incomplete, sorted */
    size_t n_missing;
    uint64_t number; /* of the next image */
    struct vg_compile_stat stat;
};

/* ---- images ---------------------------------------------------------------------------------- */

static void image_free(struct vg_image *i) {
    if (i->at) {
        umount2(i->at, MNT_DETACH);
        rmdir(i->at);
    }
    free(i->at);
    vg_plan_done(&i->plan);
    free(i);
}

void vg_image_unref(struct vg_image *i) {
    if (!i)
        return;
    struct vg_compile *c = i->of;
    pthread_mutex_lock(&c->lock);
    bool last = --i->refs == 0;
    pthread_mutex_unlock(&c->lock);
    if (last)
        image_free(i);
}

int vg_image_mounts(const struct vg_image *i, int *ret_image, int *ret_data) {
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV};
    vg_auto_fd int image = vg_mount_clone(i->at);
    if (image < 0)
        return image;
    vg_auto_fd int data = vg_mount_clone(i->of->data);
    if (data < 0)
        return data;
    if (syscall(SYS_mount_setattr, data, "", AT_EMPTY_PATH, &attr, sizeof(attr)) < 0)
        return -errno;
    *ret_image = vg_take_fd(image);
    *ret_data = vg_take_fd(data);
    return 0;
}

static int write_image(const char *path, struct vg_buf *b) {
    vg_auto_fd int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0400);
    if (fd < 0)
        return -errno;
    int r = vg_fault("compile.write");
    return r < 0 ? r : vg_write_full(fd, vg_buf_data(b), vg_buf_len(b));
}

/* Mounts the bytes. The file has no name afterwards: the mount keeps it. */
static int mount_image(struct vg_compile *c, struct vg_buf *b, char **ret_at) {
    vg_auto_free char *file = vg_fmt("%s/image", c->dir);
    vg_auto_free char *at = vg_fmt("%s/%llu", c->dir, (unsigned long long)c->number++);
    if (!file || !at)
        return -ENOMEM;
    int r = write_image(file, b);
    if (r == 0 && mkdir(at, 0700) < 0 && errno != EEXIST)
        r = -errno;
    if (r == 0 && mount(file, at, "erofs", MS_RDONLY | MS_NOSUID | MS_NODEV, NULL) < 0) {
        r = -errno;
        rmdir(at);
    }
    unlink(file);
    if (r == 0)
        *ret_at = vg_take_ptr(at);
    return r;
}

/* ---- making ---------------------------------------------------------------------------------- */

static uint64_t bad_contents(struct vg_compile *c) {
    struct vg_cache_stat st;
    vg_cache_stats(c->conf.cache, &st);
    return st.bad;
}

/* Every folder is as it was, and no content went away although it was held. */
static bool still_true(struct vg_compile *c, const struct vg_image *i) {
    struct vg_env *e = c->conf.env;
    if (bad_contents(c) != i->bad)
        return false;
    pthread_mutex_lock(&e->lock);
    bool yes = vg_plan_holds(&i->plan, e);
    pthread_mutex_unlock(&e->lock);
    return yes;
}

/* The present image with a reference, or NULL. */
static struct vg_image *present(struct vg_compile *c) {
    pthread_mutex_lock(&c->lock);
    struct vg_image *i = c->now;
    if (i)
        i->refs++;
    pthread_mutex_unlock(&c->lock);
    return i;
}

static void replace(struct vg_compile *c, struct vg_image *i) {
    pthread_mutex_lock(&c->lock);
    struct vg_image *old = c->now;
    c->now = i;
    if (i) {
        c->stat.images++;
        c->stat.files = i->plan.files;
        c->stat.folders = i->plan.n_folder;
        c->stat.bytes = i->bytes;
        c->stat.held_bytes = i->plan.held_bytes;
    } else
        c->stat.files = c->stat.folders = c->stat.bytes = c->stat.held_bytes = 0;
    pthread_mutex_unlock(&c->lock);
    vg_image_unref(old);
}

/* Nothing new could be in it: no file was opened through FUSE since, and it is true. */
static bool good_enough(struct vg_compile *c, const struct vg_image *i) {
    struct vg_env_stat st;
    vg_env_stats(c->conf.env, &st);
    return i && st.opens == i->plan.opens && still_true(c, i);
}

static int by_number(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* A file that was found incomplete twice is used again and again and would stay with FUSE for ever:
   the rest of it is fetched, behind everything that somebody waits for. */
static void fetch_rest(struct vg_compile *c, struct vg_plan *p) {
    struct vg_env *e = c->conf.env;
    uint64_t total = 0;
    pthread_mutex_lock(&e->lock);
    for (size_t i = 0; i < p->n_missing && total < REST_TOTAL; i++) {
        struct env_node *n = vg_env_node(e, p->missing[i]);
        if (n && n->st.size <= REST_FILE && c->n_missing &&
            bsearch(&p->missing[i], c->missing, c->n_missing, sizeof(*c->missing), by_number))
            total += vg_env_fetch_rest(e, n);
    }
    pthread_mutex_unlock(&e->lock);
    free(c->missing);
    c->missing = vg_take_ptr(p->missing);
    c->n_missing = p->n_missing;
    p->n_missing = p->cap_missing = 0;
    if (c->n_missing)
        qsort(c->missing, c->n_missing, sizeof(*c->missing), by_number);
}

static int build(struct vg_compile *c, struct vg_image *i, struct vg_buf *bytes) {
    struct vg_cache_stat cache;
    vg_cache_stats(c->conf.cache, &cache);
    int r = vg_plan_gather(&i->plan, c->conf.env, vg_now_usec(), ITEMS_MAX, false);
    if (r == -E2BIG) { /* somebody listed the whole machine: only what was used is worth it */
        vg_plan_done(&i->plan);
        r = vg_plan_gather(&i->plan, c->conf.env, vg_now_usec(), ITEMS_MAX, true);
    }
    if (r == 0)
        r = vg_plan_complete(&i->plan, c->conf.env->conf.machine, c->conf.cache,
                             cache.max_bytes / 2);
    if (r == 0)
        fetch_rest(c, &i->plan);
    if (r == 0 && i->plan.files < c->conf.min_files)
        r = -EAGAIN;
    if (r == 0)
        r = vg_plan_write(&i->plan, bytes);
    if (r == 0) {
        vg_leaf_hash(vg_buf_data(bytes), vg_buf_len(bytes), i->hash);
        i->bytes = vg_buf_len(bytes);
    }
    return r;
}

/* 0: *ret is mounted. 1: it would be the same as `old`, which knows the present folders now. */
static int make(struct vg_compile *c, struct vg_image *old, struct vg_image **ret) {
    struct vg_buf bytes = {0};
    struct vg_image *i = vg_alloc(sizeof(*i));
    if (!i)
        return -ENOMEM;
    *i = (struct vg_image){.of = c, .refs = 1, .bad = bad_contents(c)};
    int r = build(c, i, &bytes);
    /* The same bytes may stand for folders that were unproven meanwhile, or for the same folders
       under other numbers: then the mount is good but what must hold is not. */
    if (r == 0 && old && memcmp(old->hash, i->hash, VG_HASH) == 0 && still_true(c, old))
        r = 1;
    if (r == 0)
        r = mount_image(c, &bytes, &i->at);
    vg_buf_done(&bytes);
    if (r == 0)
        *ret = i;
    else
        image_free(i);
    return r;
}

static void work(struct vg_compile *c) {
    struct vg_image *old = present(c), *new = NULL;
    int r = 1;
    if (vg_cache_full(c->conf.cache)) {
        if (old) /* what it holds could be evicted */
            replace(c, NULL);
    } else if (!good_enough(c, old))
        r = make(c, old, &new);
    if (r == 0) {
        vg_debug("compiled the environment: files=%llu folders=%zu bytes=%llu",
                 (unsigned long long)new->plan.files, new->plan.n_folder,
                 (unsigned long long)new->bytes);
        replace(c, new);
    } else if (r == -ENODEV || r == -ENOTBLK || r == -EOPNOTSUPP) {
        vg_info("this kernel does not mount EROFS from files: environments are not compiled");
        pthread_mutex_lock(&c->lock);
        c->stat.unable = true;
        pthread_mutex_unlock(&c->lock);
    } else if (r < 0 && r != -EAGAIN && r != -E2BIG)
        vg_warn("cannot compile the environment: %s", strerror(-r));
    vg_image_unref(old);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void wait_usec(struct vg_compile *c, uint64_t usec) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t end = (uint64_t)t.tv_nsec / 1000 + usec;
    t.tv_sec += (time_t)(end / VG_USEC);
    t.tv_nsec = (long)(end % VG_USEC) * 1000;
    pthread_cond_timedwait(&c->wake, &c->lock, &t);
}

static void *run(void *user) {
    struct vg_compile *c = user;
    pthread_mutex_lock(&c->lock);
    while (!c->stop) {
        if (!c->want) {
            pthread_cond_broadcast(&c->idle);
            wait_usec(c, LOOK_AROUND_SEC * VG_USEC);
            bool look = !c->want && !c->stop && c->now;
            pthread_mutex_unlock(&c->lock);
            if (look && vg_cache_full(c->conf.cache))
                replace(c, NULL);
            pthread_mutex_lock(&c->lock);
            continue;
        }
        if (c->conf.delay_usec)
            wait_usec(c, c->conf.delay_usec); /* tasks often come in bursts */
        c->want = false;
        if (c->stop || c->stat.unable)
            continue;
        c->busy = true;
        pthread_mutex_unlock(&c->lock);
        work(c);
        pthread_mutex_lock(&c->lock);
        c->busy = false;
    }
    pthread_cond_broadcast(&c->idle);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

int vg_compile_new(const struct vg_compile_conf *conf, struct vg_compile **ret,
                   struct vg_err *err) {
    struct vg_compile *c = vg_alloc(sizeof(*c));
    if (!c)
        return vg_err_sys(err, -ENOMEM, "cannot compile environments");
    c->conf = *conf;
    c->dir = vg_strdup(conf->dir);
    c->data = vg_fmt("%s/id", conf->cache_dir);
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->wake, &attr);
    pthread_cond_init(&c->idle, &attr);
    pthread_condattr_destroy(&attr);
    int r = c->dir && c->data ? vg_mkdir_p(c->dir, 0700) : -ENOMEM;
    if (r >= 0)
        r = -pthread_create(&c->thread, NULL, run, c);
    c->started = r >= 0;
    if (r < 0) {
        vg_compile_free(c);
        return vg_err_sys(err, r, "cannot compile environments in %s", conf->dir);
    }
    *ret = c;
    return 0;
}

void vg_compile_free(struct vg_compile *c) {
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_broadcast(&c->wake);
    pthread_mutex_unlock(&c->lock);
    if (c->started)
        pthread_join(c->thread, NULL);
    vg_image_unref(c->now);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->wake);
    pthread_cond_destroy(&c->idle);
    free(c->missing);
    free(c->dir);
    free(c->data);
    free(c);
}

void vg_compile_kick(struct vg_compile *c) {
    pthread_mutex_lock(&c->lock);
    c->want = true;
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
}

void vg_compile_settle(struct vg_compile *c) {
    pthread_mutex_lock(&c->lock);
    while ((c->want || c->busy) && !c->stop)
        pthread_cond_wait(&c->idle, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

struct vg_image *vg_compile_take(struct vg_compile *c) {
    struct vg_image *i = present(c);
    bool yes = i && still_true(c, i);
    pthread_mutex_lock(&c->lock);
    c->stat.taken += yes;
    c->stat.refused += i && !yes;
    pthread_mutex_unlock(&c->lock);
    if (i && !yes) {
        vg_image_unref(i);
        i = NULL;
    }
    return i;
}

void vg_compile_stats(struct vg_compile *c, struct vg_compile_stat *ret) {
    pthread_mutex_lock(&c->lock);
    *ret = c->stat;
    pthread_mutex_unlock(&c->lock);
}
