#pragma once
/* The inside of the cache: cache.c (structs, looking up), cache-disk.c (objects), cache-part.c
   (leaves coming in), cache-evict.c (room), cache-keep.c (scrubbing, surviving a power failure),
   cache-open.c (opening, closing, the thread).

   Locks, in this order: a blob's lock, evict, the cache's lock. Disk lookups happen under the
   cache's lock, so that what is found cannot be evicted before it is held; hashing and writing of
   content never do.

   Invariants
   1. A content in by_stamp or by_id is held: nobody removes its names but its own blob.
   2. A leaf's hash is in the map file only after its bytes are in the part file.
   3. A name below id/ is given to a file only when all its bytes were hashed into that name. */
#include "fs/node/cache.h"

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/map.h"

#include <pthread.h>
#include <stdatomic.h>

#define VG_NAME 65       /* 64 hex digits and NUL */
#define VG_CACHE_PATH 96 /* "stamp/x/<name>" and the like */
/* Of a kind. Few: a new node makes them all in its first run, and a file system that spreads
   folders over the disk spreads what is in them as well. */
#define VG_CACHE_FOLDERS 16
#define VG_BOOT 37     /* a boot's name and NUL */
#define VG_MAP_HEAD 64 /* of a .map file; then VG_HASH bytes for each leaf, zero: not there */
#define VG_USE_SEC 60  /* last use is noted this coarsely */
#define VG_KEEP_FREE_MAX (UINT64_C(1) << 30)
#define VG_OBJECT_COST 1024 /* inode and names */

struct vg_alias { /* another stamp of the same content */
    struct vg_alias *next;
    char name[VG_NAME];
};

struct vg_blob {
    struct vg_cache *cache;
    uint64_t size, leaves;
    bool secret;
    /* under the cache's lock */
    unsigned refs;
    char stamp[VG_NAME];    /* names, keys of the maps */
    char id_name[VG_NAME];  /* "": unknown */
    struct vg_alias *alias; /* owned */
    struct vg_blob *same;   /* others with this id; by_id has the first */
    bool wanted;
    uint8_t want[VG_HASH]; /* what it must turn out to be, when wanted */
    /* under its own lock */
    pthread_mutex_t lock;
    int fd; /* read-only while pinned; a secret's memory always */
    unsigned pins;
    bool part;     /* has a part file and a map */
    uint8_t *hash; /* a secret's leaf hashes, owned; others have theirs in the map */
    uint64_t n_have;
    /* read by anybody */
    _Atomic uint64_t *have; /* a bit a leaf, owned; NULL when it was found complete */
    atomic_bool complete;   /* id and where it lies do not change any more */
    uint8_t id[VG_HASH];
    bool foreign; /* in the public store and not linked here */
};

struct vg_cache {
    int dir, public_dir; /* -1: none */
    int lock_fd;
    uint8_t key[VG_HASH];
    char boot[VG_BOOT];
    uint64_t max_bytes, keep_free;
    pthread_mutex_t lock;
    struct vg_map by_stamp, by_id, by_secret; /* of what is held */
    struct vg_cache_stat st; /* hits, misses, evicted, bad, public_hits, scrubbed_bytes */
    _Atomic int64_t bytes, objects, partial;
    uint64_t shunned[16]; /* inodes of the public store that were bad; under the lock */
    unsigned n_shunned;
    atomic_uint trash; /* number of the next name in trash/ */
    /* not believed: objects with mtime in [suspect_from, suspect_to) */
    _Atomic int64_t suspect_from, suspect_to;
    bool counted; /* the counters are right: the thread's */
    bool opening; /* nobody else is here yet */
    bool fresh;   /* the folder was made just now */
    uint64_t marked_usec;
    /* eviction */
    pthread_mutex_t evict;
    atomic_uint released;      /* how often a content lost its last holder */
    bool in_vain;              /* the last listing gained nothing, */
    unsigned in_vain_released; /* when so many had been released */
    atomic_uint evicted_since; /* stamps of evicted objects may dangle */
    /* scrub: under evict */
    unsigned scrub_dir;
    char scrub_name[VG_NAME];
    /* the thread */
    bool threaded;
    pthread_t thread;
    pthread_cond_t wake;
    bool stop, kick;
    atomic_bool dirty; /* something came in since the last mark */
};

/* cache.c */
int vg_blob_register_id(struct vg_blob *b, const char *id_name); /* lock held */
void vg_blob_unregister_id(struct vg_blob *b);                   /* lock held */
void vg_cache_kick(struct vg_cache *c);                          /* wakes the thread */
static inline bool vg_blob_bit(const struct vg_blob *b, uint64_t leaf) {
    return atomic_load_explicit(&b->have[leaf / 64], memory_order_acquire) >> (leaf % 64) & 1;
}

/* cache-disk.c: paths below dir, no locks but where said. */
void vg_cache_path(char out[VG_CACHE_PATH], const char *kind, const char *name);
static inline uint64_t vg_cache_cost(uint64_t size) {
    return ((size + 4095) & ~UINT64_C(4095)) + VG_OBJECT_COST;
}
/* A complete object that is not held. Cache's lock held: one that cannot be believed is dropped. 1
   (and whether it lies in the public store only), or 0. */
int vg_disk_find(struct vg_cache *c, const uint8_t id[VG_HASH], const char *id_name, uint64_t size,
                 bool *ret_foreign);
bool vg_disk_has(struct vg_cache *c, const uint8_t id[VG_HASH], const char *id_name);
/* A file without a name (or with one in trash/, where there are no such files: `name` is then not
   empty and the caller's to remove), to be written, verified, and then named. fd or -errno. */
int vg_disk_nameless(struct vg_cache *c, char name[VG_CACHE_PATH]);
int vg_disk_name(struct vg_cache *c, int fd, const char *name, uint64_t size, const char *id_name);
/* Writes a content of one leaf and names it. 0, 1 when it was there already, -errno. */
int vg_disk_ingest(struct vg_cache *c, const void *data, size_t n, const char *id_name);
/* Gives the file at `from` its final name; it is gone from there. 0, 1 (was there), -errno. */
int vg_disk_adopt(struct vg_cache *c, const char *from, uint64_t size, const char *id_name);
int vg_disk_stamp(struct vg_cache *c, const char *stamp, const uint8_t id[VG_HASH]);
/* The id a stamp's name stands for: 0, -ENOENT, -EBADMSG. */
int vg_disk_unstamp(struct vg_cache *c, const char *stamp, uint8_t ret_id[VG_HASH]);
int vg_disk_open(struct vg_cache *c, const char *id_name, const uint8_t id[VG_HASH], bool foreign);
void vg_disk_used(struct vg_cache *c, const char *id_name);   /* now; cheap when it was just so */
void vg_disk_shun(struct vg_cache *c, const struct stat *st); /* lock held */
bool vg_disk_suspect(struct vg_cache *c, const struct stat *st);
/* Moves a file to trash/, where the caller unlinks it without a lock. */
int vg_disk_trash(struct vg_cache *c, const char *path, char ret_trash[VG_CACHE_PATH]);
/* Takes a file away: at once, or when large into trash/, which the thread empties. */
int vg_disk_drop(struct vg_cache *c, const char *path, uint64_t size);
void vg_disk_empty_trash(struct vg_cache *c);
/* Calls for each name in a folder ("id/3", "part"); a folder that is not there has none. Stops at
   a value that is not 0 and returns it; -errno. */
int vg_disk_list(struct vg_cache *c, const char *folder, int (*each)(void *user, const char *name),
                 void *user);
/* The same for all folders of a kind, 0 to f. */
int vg_disk_walk(struct vg_cache *c, const char *kind, int (*each)(void *user, const char *name),
                 void *user);
/* Removes what an earlier version kept in folders of another division: it is not found any more. */
void vg_disk_drop_old(struct vg_cache *c);

/* cache-part.c */
int vg_part_load(struct vg_blob *b);    /* cache's lock held: 1 partial, 0 nothing, -errno */
void vg_part_forget(struct vg_blob *b); /* cache's lock held, last holder, no leaf: removes it */
int vg_part_create(struct vg_blob *b);  /* blob's lock held */
void vg_part_path(const struct vg_blob *b, bool map, char out[VG_CACHE_PATH]);
/* All leaves are there: checks, names, completes. Blob's lock held. 1, -EBADMSG, or -errno when it
   stays as it is for now. */
int vg_part_finish(struct vg_blob *b);

/* cache-evict.c */
/* Makes room for n bytes more; `wanted`: a task waits for them. 0 or -ENOSPC. */
int vg_cache_room(struct vg_cache *c, uint64_t n, bool wanted);
/* The disk said that it is full: evicts at least n bytes. 0: try again; -ENOSPC. */
int vg_cache_press(struct vg_cache *c, uint64_t n);

uint64_t vg_cache_disk_free(struct vg_cache *c);
/* Counts what is there. */
int vg_cache_recount(struct vg_cache *c);

void vg_cache_ease(struct vg_cache *c); /* evicts ahead of need */

/* cache-keep.c */
/* Objects that a power failure may have torn are read and compared; then all are believed. */
int vg_keep_sweep(struct vg_cache *c);
/* Everything up to now goes to the disk, and that is written down. */
int vg_keep_mark(struct vg_cache *c);
/* Stamps whose objects are gone. */
int vg_keep_stamps(struct vg_cache *c);
