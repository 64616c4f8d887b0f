/* virgad's disk. A file is its bytes and the writes that no sync has covered yet, each with what it
   replaced; losing power takes those back and then lets some of them through again: all up to a
   point, or any of them, as disks do.

   A crash makes new files of what is left and sets them aside. The old ones stay where they are
   until the process has been given back, which may write, make and remove what it likes: that is
   forgotten with them. */
#include "sim/faults/world.h"

#include "base/cleanup.h"
#include "base/mem.h"

#include <errno.h>
#include <string.h>

struct change {
    uint64_t at;
    size_t n, old_n;   /* bytes written; of them, bytes that were there before */
    uint64_t old_size; /* of the file */
    bool cut;          /* a truncation: `at` is the new size, old bytes from there on are kept */
    uint8_t bytes[];   /* old_n old ones, then n new ones */
};

struct vg_w_file {
    char *path; /* owned; NULL: removed, or of a life that is over */
    unsigned refs;
    uint8_t *data;
    size_t size, cap;
    struct change **change;
    size_t n_changes, cap_changes;
    void **shm;
    size_t n_shm;
    struct vg_w_locks locks;
};

struct vg_w_disk {
    struct vg_map files; /* path -> file */
    struct vg_map left;  /* likewise: what a crash has left, until it takes the place of `files` */
};

static void forget_changes(struct vg_w_file *f) {
    for (size_t i = 0; i < f->n_changes; i++)
        free(f->change[i]);
    f->n_changes = 0;
}

static void file_unref(struct vg_w_file *f) {
    if (--f->refs)
        return;
    forget_changes(f);
    for (size_t i = 0; i < f->n_shm; i++)
        free(f->shm[i]);
    free(f->shm);
    free(f->change);
    free(f->data);
    free(f->path);
    free(f);
}

struct vg_w_disk *vg_w_disk_new(void) {
    struct vg_w_disk *d = vg_alloc(sizeof *d);
    if (!d)
        abort();
    return d;
}

void vg_w_disk_free(struct vg_w_disk *d) {
    if (!d)
        return;
    vg_map_for_each (s, &d->files) {
        file_unref(s->value);
    }
    vg_map_done(&d->files);
    free(d);
}

static struct vg_w_file *file_new(struct vg_map *in, const char *path) {
    struct vg_w_file *f = vg_alloc(sizeof *f);
    if (!f || !(f->path = vg_strdup(path)) || vg_map_put(in, f->path, f) < 0)
        abort();
    f->refs = 1;
    return f;
}

struct vg_w_file *vg_w_file_open(const char *path, bool create) {
    struct vg_w_file *f = vg_map_get(&vg_w->disk->files, path);
    if (!f && create)
        f = file_new(&vg_w->disk->files, path);
    if (f)
        f->refs++;
    return f;
}

void vg_w_file_ref(struct vg_w_file *f) {
    f->refs++;
}

void vg_w_file_close(struct vg_w_file *f) {
    file_unref(f);
}

bool vg_w_file_exists(const char *path) {
    return vg_map_get(&vg_w->disk->files, path) != NULL;
}

static void leave(struct vg_w_file *f) {
    vg_map_del(&vg_w->disk->files, f->path);
    free(vg_take_ptr(f->path));
    file_unref(f);
}

void vg_w_file_remove(const char *path) {
    struct vg_w_file *f = vg_map_get(&vg_w->disk->files, path);
    if (f)
        leave(f);
}

size_t vg_w_file_size(const struct vg_w_file *f) {
    return f->size;
}

size_t vg_w_file_read(const struct vg_w_file *f, void *p, size_t n, uint64_t at) {
    if (at >= f->size)
        return 0;
    n = VG_MIN(n, f->size - (size_t)at);
    memcpy(p, f->data + at, n);
    return n;
}

/* ------------------------------------------------------------------ writing */

static void resize(struct vg_w_file *f, size_t size) {
    if (size > f->cap) {
        size_t cap = VG_MAX(f->cap * 2, VG_MAX(size, (size_t)4096));
        uint8_t *p = vg_realloc(f->data, cap);
        if (!p)
            abort();
        f->data = p;
        f->cap = cap;
    }
    if (size > f->size)
        memset(f->data + f->size, 0, size - f->size);
    f->size = size;
}

static struct change *note(struct vg_w_file *f, uint64_t at, size_t n, size_t old_n) {
    struct change *c = vg_alloc(sizeof *c + n + old_n);
    struct change **list = vg_grow(f->change, &f->cap_changes, f->n_changes + 1, sizeof *list);
    if (!c || !list)
        abort();
    f->change = list;
    list[f->n_changes++] = c;
    *c = (struct change){.at = at, .n = n, .old_n = old_n, .old_size = f->size};
    if (old_n)
        memcpy(c->bytes, f->data + at, old_n);
    return c;
}

static void apply(struct vg_w_file *f, const struct change *c) {
    if (c->cut) {
        resize(f, (size_t)c->at);
        return;
    }
    if (c->at + c->n > f->size)
        resize(f, (size_t)c->at + c->n);
    memcpy(f->data + c->at, c->bytes + c->old_n, c->n);
}

static bool is_full(void) {
    return vg_w->disk_full_until > vg_w->now;
}

int vg_w_file_write(struct vg_w_file *f, const void *p, size_t n, uint64_t at) {
    if (is_full())
        return -ENOSPC;
    size_t old = at < f->size ? VG_MIN(n, f->size - (size_t)at) : 0;
    struct change *c = note(f, at, n, old);
    memcpy(c->bytes + old, p, n);
    apply(f, c);
    return 0;
}

int vg_w_file_truncate(struct vg_w_file *f, uint64_t size) {
    size_t old = size < f->size ? f->size - (size_t)size : 0;
    struct change *c = note(f, size, 0, old);
    c->cut = true;
    apply(f, c);
    return 0;
}

void vg_w_file_sync(struct vg_w_file *f) {
    forget_changes(f);
}

void **vg_w_file_shm(struct vg_w_file *f, size_t *ret_n, size_t grow_to, size_t piece) {
    if (grow_to > f->n_shm) {
        void **p = vg_realloc(f->shm, grow_to * sizeof *p);
        if (!p)
            abort();
        f->shm = p;
        for (; f->n_shm < grow_to; f->n_shm++)
            if (!(p[f->n_shm] = vg_alloc(piece)))
                abort();
    }
    *ret_n = f->n_shm;
    return f->shm;
}

struct vg_w_locks *vg_w_file_locks(struct vg_w_file *f) {
    return &f->locks;
}

/* ------------------------------------------------------------------ crashes */

static void take_back(struct vg_w_file *f, const struct change *c) {
    resize(f, (size_t)c->old_size);
    if (c->old_n)
        memcpy(f->data + c->at, c->bytes, c->old_n);
}

/* Each file has its own: in which order files are looked at depends on where the database lies. */
static struct vg_rng chances_of(const struct vg_w_file *f) {
    const char *name = strrchr(f->path, '/');
    uint64_t h = vg_w->plan->seed * 31 + vg_w->control_lives;
    for (const char *p = name ? name : f->path; *p; p++)
        h = (h ^ (uint8_t)*p) * 0x100000001b3ULL;
    return vg_rng_seeded(h);
}

/* What of the unsynced writes reached the disk all the same. */
static void lose_power(struct vg_w_file *f, struct vg_w_file *from) {
    struct vg_rng rng = chances_of(from), *r = &rng;
    size_t n = from->n_changes;
    for (size_t i = n; i--;)
        take_back(f, from->change[i]);
    bool in_order = vg_w_chance(r, 60);
    size_t upto = vg_w_chance(r, 40) ? 0 : (size_t)vg_w_between(r, 0, n);
    for (size_t i = 0; i < n; i++)
        if (in_order ? i < upto : vg_w_chance(r, 50))
            apply(f, from->change[i]);
}

void vg_w_disk_crash(bool power) {
    vg_map_for_each (s, &vg_w->disk->files) {
        struct vg_w_file *from = s->value, *f = file_new(&vg_w->disk->left, from->path);
        resize(f, from->size);
        if (from->size)
            memcpy(f->data, from->data, from->size);
        if (power) {
            lose_power(f, from);
        } else { /* the writes are the kernel's now: a later loss of power may still take them */
            f->change = vg_take_ptr(from->change);
            f->n_changes = from->n_changes;
            f->cap_changes = from->cap_changes;
            from->n_changes = from->cap_changes = 0;
        }
    }
}

void vg_w_disk_again(void) {
    vg_map_for_each (s, &vg_w->disk->files) {
        struct vg_w_file *f = s->value;
        free(vg_take_ptr(f->path));
        file_unref(f);
    }
    vg_map_done(&vg_w->disk->files);
    vg_w->disk->files = vg_w->disk->left;
    vg_w->disk->left = (struct vg_map){0};
}
