#pragma once
/* What the files of the store share. */
#include "base/map.h"
#include "fs/store/estore.h"

#include <pthread.h>

#define VG_E_HELD_MAX 4096

struct vg_esession {
    struct vg_estore *store;
    struct vg_esession *next;
    uint64_t gen;
};

struct vg_ebucket;

struct vg_estore {
    pthread_mutex_t lock;
    pthread_mutex_t refs; /* taken before `lock`: versions and readers come and go one by one */
    int dir;              /* O_PATH-like: for *at() calls */
    char *path;
    uint8_t key[VG_HASH];
    uint64_t quota_bytes, bytes, objects;
    uint64_t reserved; /* of files that are coming in */
    uint64_t gen;      /* number of collections begun */
    struct vg_esession *sessions;
    uint8_t held[VG_E_HELD_MAX][VG_HASH]; /* roots held in memory */
    uint32_t n_held;
    bool collecting, collect_again;
    struct vg_ebucket *bucket; /* owned; NULL: all that is stored is here */
};

/* "dat/xx/<name>". */
void vg_e_path(const struct vg_estore *s, enum vg_ekind kind, const uint8_t hash[VG_HASH],
               char out[80]);
int vg_e_temp(struct vg_estore *s, char name[40]); /* a descriptor of tmp/<name> */
/* Moves tmp/<temp> of n bytes to where it belongs; when that is there already, it stays. */
int vg_e_place(struct vg_estore *s, const char *temp, int fd, uint64_t n, enum vg_ekind kind,
               const uint8_t hash[VG_HASH]);
/* With the lock held: its mtime becomes the present collection's number. */
int vg_e_touch(struct vg_estore *s, const char *path);
int vg_e_count(struct vg_estore *s); /* usage, at open */
int vg_e_sync(struct vg_estore *s);  /* what is here survives a power failure */
/* Calls each with the folder and the name of everything in top/00 ... top/ff. */
int vg_e_each_name(struct vg_estore *s, const char *top,
                   int (*each)(void *user, int dir, const char *name), void *user);
int vg_e_version_check(const char *text); /* -EBADMSG: it is no version */
#define VG_E_FOLDER_MAX (3 * VG_ENV_NAME_MAX + 8)
