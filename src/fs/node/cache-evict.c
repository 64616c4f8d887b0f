/* Room on the disk: who goes first, and when there is nobody left to go.

   No index is kept of what is not held. Evicting is rare and takes many at once (down to nine
   tenths of the limit), so it lists the disk, sorts by last use and removes the oldest that nobody
   holds. The same listing sets the counters right. */
#include "fs/node/cache-int.h"

#include "base/mem.h"
#include "base/util.h"

#include <fcntl.h>
#include <string.h>
#include <sys/statvfs.h>

struct victim {
    int64_t used_nsec;
    uint64_t cost, size;
    bool part;
    char name[VG_NAME];
};

struct listing {
    struct vg_cache *c;
    struct victim *v; /* owned */
    size_t n, cap;
    uint64_t objects, partial, bytes;
};

uint64_t vg_cache_disk_free(struct vg_cache *c) {
    struct statvfs v;
    if (fstatvfs(c->dir, &v) < 0)
        return 0;
    return (uint64_t)v.f_bavail * v.f_frsize;
}

static int add(struct listing *l, const char *name, const char *path, bool part) {
    struct stat st;
    if (strlen(name) != VG_NAME - 1 || fstatat(l->c->dir, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return 0; /* not ours, or gone meanwhile */
    struct victim *v = vg_grow(l->v, &l->cap, l->n + 1, sizeof *v);
    if (!v)
        return -ENOMEM;
    l->v = v;
    v += l->n++;
    const struct timespec *used = part ? &st.st_mtim : &st.st_atim;
    uint64_t cost = part              ? (uint64_t)st.st_blocks * 512 + VG_OBJECT_COST
                    : st.st_nlink > 1 ? VG_OBJECT_COST /* the operator's bytes, or a part's */
                                      : vg_cache_cost((uint64_t)st.st_size);
    *v = (struct victim){.used_nsec = (int64_t)used->tv_sec * 1000000000 + used->tv_nsec,
                         .cost = cost,
                         .size = (uint64_t)st.st_size,
                         .part = part};
    memcpy(v->name, name, VG_NAME);
    l->bytes += cost;
    l->objects += !part;
    l->partial += part;
    return 0;
}

static int add_object(void *user, const char *name) {
    char path[VG_CACHE_PATH];
    if (strlen(name) != VG_NAME - 1)
        return 0;
    vg_cache_path(path, "id", name);
    return add(user, name, path, false);
}

static int add_part(void *user, const char *name) {
    char path[VG_CACHE_PATH];
    if (strlen(name) != VG_NAME - 1)
        return 0; /* a map goes with its part */
    snprintf(path, sizeof path, "part/%s", name);
    return add(user, name, path, true);
}

static int by_use(const void *pa, const void *pb) {
    const struct victim *a = pa, *b = pb;
    return a->used_nsec < b->used_nsec ? -1 : a->used_nsec > b->used_nsec;
}

/* Lists the disk and corrects the counters. What comes in meanwhile may count twice until the next
   time, never less than it is. */
static int list(struct vg_cache *c, struct listing *l) {
    *l = (struct listing){.c = c};
    int64_t bytes = atomic_load(&c->bytes);
    int64_t objects = atomic_load(&c->objects);
    int64_t partial = atomic_load(&c->partial);
    int r = vg_fault("cache/list");
    r = r < 0 ? r : vg_disk_walk(c, "id", add_object, l);
    r = r < 0 ? r : vg_disk_list(c, "part", add_part, l);
    if (r < 0)
        return r;
    atomic_fetch_add(&c->bytes, (int64_t)l->bytes - bytes);
    atomic_fetch_add(&c->objects, (int64_t)l->objects - objects);
    atomic_fetch_add(&c->partial, (int64_t)l->partial - partial);
    return 0;
}

int vg_cache_recount(struct vg_cache *c) {
    struct listing l;
    pthread_mutex_lock(&c->evict);
    int r = list(c, &l);
    pthread_mutex_unlock(&c->evict);
    free(l.v);
    return r;
}

/* Nobody who looks for it at this moment finds it half gone: lookups hold the same lock. */
static bool evict_one(struct vg_cache *c, const struct victim *v) {
    char path[VG_CACHE_PATH], trash[VG_CACHE_PATH];
    bool gone = false;
    pthread_mutex_lock(&c->lock);
    if (v->part && !vg_map_get(&c->by_stamp, v->name)) {
        snprintf(path, sizeof path, "part/%s.map", v->name);
        unlinkat(c->dir, path, 0); /* the claim first */
        path[strlen(path) - 4] = '\0';
        gone = vg_disk_trash(c, path, trash) == 0;
    } else if (!v->part && !vg_map_get(&c->by_id, v->name)) {
        vg_cache_path(path, "id", v->name);
        gone = vg_disk_trash(c, path, trash) == 0;
    }
    c->st.evicted += gone;
    pthread_mutex_unlock(&c->lock);
    if (!gone)
        return false;
    unlinkat(c->dir, trash, 0); /* this is what takes time: not under the lock */
    atomic_fetch_sub(&c->bytes, (int64_t)v->cost);
    atomic_fetch_sub(v->part ? &c->partial : &c->objects, 1);
    atomic_fetch_add(&c->evicted_since, 1);
    return true;
}

/* How much has to go so that n more bytes fit below `high`, and how much more for some peace
   afterwards: a writer waits for little, the thread goes on to nine tenths. */
static uint64_t goal_of(struct vg_cache *c, uint64_t high, uint64_t n, uint64_t at_least) {
    uint64_t bytes = (uint64_t)VG_MAX(atomic_load(&c->bytes), 0), free_now = vg_cache_disk_free(c);
    uint64_t low = c->max_bytes - c->max_bytes / (n && c->threaded ? 50 : 10), goal = at_least;
    if (bytes + n > high)
        goal = VG_MAX(goal, bytes + n - VG_MIN(low, bytes + n));
    if (free_now < c->keep_free + n)
        goal = VG_MAX(goal, c->keep_free + n - free_now);
    return goal;
}

/* Evicts for n more bytes, at least `at_least` bytes. Returns how much went. */
static uint64_t evict(struct vg_cache *c, uint64_t high, uint64_t n, uint64_t at_least) {
    struct listing l = {0};
    uint64_t gone = 0;
    pthread_mutex_lock(&c->evict);
    /* When the last listing gained nothing and nobody has let go of anything since, the next one
       would gain nothing either. */
    unsigned released = atomic_load(&c->released);
    bool in_vain = c->in_vain && c->in_vain_released == released;
    if (!goal_of(c, high, n, at_least) || (n && in_vain)) {
        pthread_mutex_unlock(&c->evict);
        return 0;
    }
    if (list(c, &l) == 0) {
        uint64_t goal = goal_of(c, high, n, at_least);
        if (l.n)
            qsort(l.v, l.n, sizeof *l.v, by_use);
        for (size_t i = 0; i < l.n && gone < goal; i++)
            gone += evict_one(c, &l.v[i]) ? l.v[i].cost : 0;
    }
    c->in_vain = !gone;
    c->in_vain_released = released;
    pthread_mutex_unlock(&c->evict);
    free(l.v);
    return gone;
}

static bool fits(struct vg_cache *c, uint64_t n, uint64_t max, uint64_t keep) {
    return (uint64_t)VG_MAX(atomic_load(&c->bytes), 0) + n <= max &&
           vg_cache_disk_free(c) >= keep + n;
}

static uint64_t ease_above(const struct vg_cache *c) {
    return c->max_bytes - c->max_bytes / 20;
}

void vg_cache_ease(struct vg_cache *c) {
    evict(c, ease_above(c), 0, 0);
}

int vg_cache_room(struct vg_cache *c, uint64_t n, bool wanted) {
    if (fits(c, n, c->max_bytes, c->keep_free)) {
        if ((uint64_t)VG_MAX(atomic_load(&c->bytes), 0) + n > ease_above(c))
            vg_cache_kick(c); /* so that the next one need not wait */
        return 0;
    }
    evict(c, c->max_bytes, n, 0);
    vg_cache_kick(c);
    /* What is left is held by tasks that run. What one of them waits for may go beyond the limit,
       and into half of what is kept free: it would fail otherwise, and the cache shrinks again when
       they let go. A guess never takes that room from it. */
    return fits(c, n, wanted ? UINT64_MAX : c->max_bytes, wanted ? c->keep_free / 2 : c->keep_free)
               ? 0
               : -ENOSPC;
}

int vg_cache_press(struct vg_cache *c, uint64_t n) {
    return evict(c, c->max_bytes, n, n) ? 0 : -ENOSPC;
}

uint64_t vg_cache_trim(struct vg_cache *c) {
    evict(c, c->max_bytes, 0, 0);
    return (uint64_t)VG_MAX(atomic_load(&c->bytes), 0);
}

bool vg_cache_disk_full(struct vg_cache *c) {
    return vg_cache_disk_free(c) < c->keep_free;
}

bool vg_cache_full(struct vg_cache *c) {
    if (fits(c, 0, c->max_bytes, c->keep_free))
        return false;
    evict(c, c->max_bytes, 0, 0);
    return !fits(c, 0, c->max_bytes, c->keep_free);
}
