/* What is stored goes up to the bucket: marks, a queue, a few workers, a barrier. */
#include "fs/store/estore-bucket.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/s3.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define WORKERS_MAX 8
#define WORKER_STACK (2u << 20)

/* ------------------------------------------------------------------ marks */

int vg_eb_mark(struct vg_estore *s, const char *path, char suffix[VG_EB_SUFFIX + 1],
               uint64_t *ret_size) {
    char mark[VG_EB_MARK_MAX], to[64];
    snprintf(mark, sizeof(mark), "up/%s", path);
    ssize_t n = readlinkat(s->dir, mark, to, sizeof(to) - 1);
    if (n < 0)
        return -errno;
    to[n] = '\0';
    if (n < VG_EB_SUFFIX + 2 || to[VG_EB_SUFFIX] != '.' ||
        vg_parse_u64(to + VG_EB_SUFFIX + 1, ret_size) < 0)
        return -EBADMSG;
    snprintf(suffix, VG_EB_SUFFIX + 1, "%.*s", VG_EB_SUFFIX, to);
    return 0;
}

int vg_eb_set_mark(struct vg_estore *s, const char *path, const char *suffix, uint64_t size,
                   uint64_t gen) {
    char mark[VG_EB_MARK_MAX], temp[VG_EB_MARK_MAX], to[64];
    const struct timespec t[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = (time_t)gen}};
    snprintf(mark, sizeof(mark), "up/%s", path);
    snprintf(temp, sizeof(temp), "tmp/%s", suffix);
    snprintf(to, sizeof(to), "%s.%llu", suffix, (unsigned long long)size);
    int r = symlinkat(to, s->dir, temp) < 0 ? -errno : 0;
    if (r == 0 && (utimensat(s->dir, temp, t, AT_SYMLINK_NOFOLLOW) < 0 ||
                   renameat(s->dir, temp, s->dir, mark) < 0)) {
        r = -errno;
        unlinkat(s->dir, temp, 0);
    }
    return r;
}

char *vg_eb_key(const struct vg_estore *s, const char *path, const char *suffix) {
    return vg_fmt("%s%s-%s", s->bucket->base, path, suffix);
}

int vg_eb_put_ref(struct vg_estore *s, const char *path, const void *data, size_t n,
                  struct vg_err *err) {
    if (!s->bucket)
        return 0;
    vg_auto_free char *key = vg_fmt("%s%s", s->bucket->base, path);
    return key ? vg_s3_put_bytes(s->bucket->s3, key, data, n, err) : -ENOMEM;
}

int vg_eb_drop_ref(struct vg_estore *s, const char *path, struct vg_err *err) {
    if (!s->bucket)
        return 0;
    vg_auto_free char *key = vg_fmt("%s%s", s->bucket->base, path);
    return key ? vg_s3_delete(s->bucket->s3, key, err) : -ENOMEM;
}

/* ------------------------------------------------------------------ going up */

static bool is_ref(const struct vg_eb_item *i) {
    return strncmp(i->path, "env/", 4) == 0;
}

/* Locked: it is there now. The number that the object carried goes over to its mark. */
static int mark_uploaded(struct vg_estore *s, const char *path, const char *suffix) {
    static const struct timespec now[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_NOW}};
    struct stat st;
    if (fstatat(s->dir, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    uint64_t gen = VG_MIN((uint64_t)st.st_mtime, s->gen);
    int r = vg_eb_set_mark(s, path, suffix, (uint64_t)st.st_size, gen);
    if (r == 0 && strncmp(path, "dat/", 4) == 0) {
        s->bucket->cached += (uint64_t)st.st_size;
        utimensat(s->dir, path, now, AT_SYMLINK_NOFOLLOW); /* from now on: when it was used */
    }
    return r;
}

static int upload_object(struct vg_estore *s, const char *path, struct vg_err *err) {
    struct vg_ebucket *b = s->bucket;
    char suffix[VG_EB_SUFFIX + 1], had[VG_EB_SUFFIX + 1];
    uint64_t size;
    struct stat st;
    vg_id_format(vg_id_new(), suffix);
    vg_auto_free char *key = vg_eb_key(s, path, suffix);
    if (!key)
        return vg_err_sys(err, -ENOMEM, "cannot store in %s", vg_s3_name(b->s3));
    pthread_mutex_lock(&s->lock);
    bool there = vg_eb_mark(s, path, had, &size) == 0;
    vg_auto_fd int fd = there ? -1 : openat(s->dir, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    int r = fd >= 0 && vg_map_put(&b->flying, key, key) < 0 ? -ENOMEM : 0;
    pthread_mutex_unlock(&s->lock);
    if (fd < 0) /* it has gone up already, or was collected */
        return 0;
    if (r == 0)
        r = fstat(fd, &st) < 0 ? -errno : 0;
    r = r < 0 ? vg_err_sys(err, r, "cannot store in %s", vg_s3_name(b->s3))
              : vg_s3_put(b->s3, key, fd, (uint64_t)st.st_size, err);
    pthread_mutex_lock(&s->lock);
    int marked = r == 0 ? mark_uploaded(s, path, suffix) : 0;
    pthread_mutex_unlock(&s->lock);
    if (marked == -ENOENT) { /* collected meanwhile: nobody will ever name this key */
        struct vg_err none = VG_ERR_INIT;
        vg_s3_delete(b->s3, key, &none);
    } else if (marked < 0) {
        r = vg_err_sys(err, marked, "cannot note what %s has", vg_s3_name(b->s3));
    }
    pthread_mutex_lock(&s->lock);
    vg_map_del(&b->flying, key);
    pthread_mutex_unlock(&s->lock);
    return r;
}

static int upload_ref(struct vg_estore *s, const char *path, struct vg_err *err) {
    vg_auto_free char *full = vg_fmt("%s/%s", s->path, path), *text = NULL;
    size_t n;
    pthread_mutex_lock(&s->refs); /* nobody removes it in between */
    int r = full ? vg_read_file(full, VG_ENV_CONFIG_MAX + 4096, &text, &n) : -ENOMEM;
    if (r == 0)
        r = vg_eb_put_ref(s, path, text, n, err);
    pthread_mutex_unlock(&s->refs);
    if (r < 0 && r != -ENOENT && !err->msg[0])
        vg_err_sys(err, r, "cannot store in %s", vg_s3_name(s->bucket->s3));
    return r == -ENOENT ? 0 : r;
}

/* Locked. A version goes up when everything before it has. NULL: nothing to do, now or at all. */
static struct vg_eb_item *next_item(struct vg_estore *s) {
    struct vg_ebucket *b = s->bucket;
    for (;;) {
        struct vg_list *it = b->stop ? NULL : vg_list_first(&b->queue);
        struct vg_eb_item *i = it ? vg_list_entry(it, struct vg_eb_item, link) : NULL;
        if (!i || !is_ref(i) || (b->active == 0 && !vg_list_first(&b->failed))) {
            if (i)
                vg_list_remove(&i->link);
            return i;
        }
        if (b->active == 0) {
            vg_list_remove(&i->link); /* something before it failed: so does this, for now */
            vg_list_push_back(&b->failed, &i->link);
            pthread_cond_broadcast(&b->changed);
            continue;
        }
        pthread_cond_wait(&b->changed, &s->lock);
    }
}

/* Locked. It may have been collected and stored again while it was on its way. */
static bool needs_upload(struct vg_estore *s, const struct vg_eb_item *i) {
    char suffix[VG_EB_SUFFIX + 1];
    uint64_t size;
    return !is_ref(i) && vg_eb_mark(s, i->path, suffix, &size) < 0 &&
           faccessat(s->dir, i->path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static void *work(void *arg) {
    struct vg_estore *s = arg;
    struct vg_ebucket *b = s->bucket;
    pthread_mutex_lock(&s->lock);
    for (struct vg_eb_item *i; (i = next_item(s));) {
        struct vg_err err = VG_ERR_INIT;
        uint64_t round = b->rounds;
        b->active++;
        pthread_mutex_unlock(&s->lock);
        int r = is_ref(i) ? upload_ref(s, i->path, &err) : upload_object(s, i->path, &err);
        vg_eb_evict(s);
        pthread_mutex_lock(&s->lock);
        b->active--;
        if (r < 0 && round != b->rounds && !b->stop) {
            vg_list_push_back(&b->queue, &i->link); /* who waits now wants it tried now */
        } else if (r < 0) {
            vg_warn("%s", err.msg);
            b->failures++;
            b->last = err;
            vg_list_push_back(&b->failed, &i->link);
        } else if (needs_upload(s, i)) {
            vg_list_push_back(&b->queue, &i->link);
        } else {
            vg_map_del(&b->queued, i->path);
            free(i);
        }
        pthread_cond_broadcast(&b->changed);
    }
    b->workers--;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Locked. Without a thread it stays in the queue until the next one can be had. */
static void have_worker(struct vg_estore *s) {
    struct vg_ebucket *b = s->bucket;
    pthread_t t;
    pthread_attr_t attr;
    if (b->stop || b->workers >= WORKERS_MAX || !vg_list_first(&b->queue))
        return;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, WORKER_STACK);
    if (pthread_create(&t, &attr, work, s) == 0)
        b->workers++;
    pthread_attr_destroy(&attr);
}

void vg_eb_stored(struct vg_estore *s, const char *path) {
    struct vg_ebucket *b = s->bucket;
    if (!b || vg_map_get(&b->queued, path))
        return;
    size_t n = strlen(path) + 1;
    struct vg_eb_item *i = vg_alloc(sizeof(*i) + n);
    if (i) {
        vg_list_init(&i->link);
        memcpy(i->path, path, n);
    }
    if (!i || vg_map_put(&b->queued, i->path, i) < 0) {
        free(i);
        b->forgot = true;
        return;
    }
    vg_list_push_back(&b->queue, &i->link);
    have_worker(s);
}

/* Locked. What failed is tried again. */
static void retry_failed(struct vg_estore *s) {
    struct vg_ebucket *b = s->bucket;
    for (struct vg_list *it; (it = vg_list_first(&b->failed));) {
        vg_list_remove(it);
        vg_list_push_back(&b->queue, it);
    }
    have_worker(s);
}

struct scan {
    struct vg_estore *s;
    const char *top;
};

static int without_mark(void *user, int dir, const char *name) {
    struct scan *c = user;
    char path[80], mark[VG_EB_MARK_MAX];
    (void)dir;
    snprintf(path, sizeof(path), "%s/%.2s/%s", c->top, name, name);
    snprintf(mark, sizeof(mark), "up/%s", path);
    pthread_mutex_lock(&c->s->lock);
    if (faccessat(c->s->dir, mark, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
        vg_eb_stored(c->s, path);
    pthread_mutex_unlock(&c->s->lock);
    return 0;
}

int vg_eb_rescan(struct vg_estore *s) {
    struct scan c = {s, "dat"};
    pthread_mutex_lock(&s->lock);
    s->bucket->forgot = false;
    retry_failed(s);
    pthread_mutex_unlock(&s->lock);
    int r = vg_e_each_name(s, c.top, without_mark, &c);
    c.top = "rec";
    return r < 0 ? r : vg_e_each_name(s, c.top, without_mark, &c);
}

int vg_estore_settle(struct vg_estore *s, struct vg_err *err) {
    struct vg_ebucket *b = s->bucket;
    if (!b)
        return 0;
    pthread_mutex_lock(&s->lock);
    bool forgot = b->forgot;
    pthread_mutex_unlock(&s->lock);
    int r = forgot ? vg_eb_rescan(s) : 0;
    if (r < 0)
        return vg_err_sys(err, r, "cannot see what is still to be stored in %s", vg_s3_name(b->s3));
    pthread_mutex_lock(&s->lock);
    b->rounds++;
    retry_failed(s);
    uint64_t failures = b->failures;
    while (vg_map_len(&b->queued) && b->failures == failures && !b->stop) {
        have_worker(s);
        if (b->workers == 0) {
            vg_err_sys(&b->last, -EAGAIN, "there is no thread to store in %s", vg_s3_name(b->s3));
            break;
        }
        pthread_cond_wait(&b->changed, &s->lock);
    }
    bool all = vg_map_len(&b->queued) == 0;
    if (!all)
        *err = b->last;
    pthread_mutex_unlock(&s->lock);
    if (all)
        return 0;
    return err->msg[0] ? err->code : vg_err_set(err, VG_UNAVAILABLE, "the store is being closed");
}

void vg_eb_stats(struct vg_estore *s, struct vg_estore_stat *ret) {
    ret->waiting = s->bucket ? vg_map_len(&s->bucket->queued) : 0;
    ret->cached_bytes = s->bucket ? s->bucket->cached : 0;
}

void vg_eb_leave(struct vg_estore *s) {
    struct vg_ebucket *b = s->bucket;
    if (!b)
        return;
    pthread_mutex_lock(&s->lock);
    b->stop = true;
    while (b->workers)
        pthread_cond_wait(&b->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    vg_map_for_each (slot, &b->queued)
        free(slot->value);
    vg_map_done(&b->queued);
    vg_map_done(&b->flying);
    pthread_cond_destroy(&b->changed);
    free(b->base);
    free(b);
    s->bucket = NULL;
}
