/* The files of a view's folder that hold what was written here. Those that are not needed any more
   are emptied and used again: file systems take long to make files where many were removed a moment
   ago, as a task does that builds a tree anew. For who makes many files some are made ahead of
   need: that is most of what writing a small one costs. With the view's lock. */
#include "fs/node/proj-int.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#define SPARE_MAX 16384u
#define SPARE_FROM 8u /* so many were missing before any is made ahead */
#define SPARE_LEAST 64u
#define SPARE_AHEAD 512u
#define SPARE_AT_ONCE 16u

/* Those made ahead have a folder of their own, so that the kernel does not let who makes one at
   once wait for them. */
#define AHEAD UINT64_C(0x8000000000000000)
#define AHEAD_DIR "ahead"
#define NAME 32

static void name_of(uint64_t spot, char out[NAME]) {
    snprintf(out, NAME, "%s%016llx", spot & AHEAD ? AHEAD_DIR "/" : "", (unsigned long long)spot);
}

static uint64_t take_spot(struct vg_proj *p) {
    if (!p->n_spare && ++p->missed >= SPARE_FROM)
        p->ahead = VG_MIN(VG_MAX(2 * p->ahead, SPARE_LEAST), SPARE_AHEAD);
    if (p->n_spare < p->ahead / 2)
        pthread_cond_signal(&p->work);
    return p->n_spare ? p->spare[--p->n_spare] : ++p->spots;
}

/* A descriptor, or -1 and errno. */
int proj_backing_open(struct vg_proj *p, struct pfile *f) {
    char name[NAME];
    int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW;
    if (!f->backing) {
        f->spot = take_spot(p);
        flags |= O_CREAT | O_TRUNC;
    }
    name_of(f->spot, name);
    return openat(p->dirfd, name, flags, 0600);
}

/* Gives up the lock meanwhile. True when some were made. */
bool proj_backing_ahead(struct vg_proj *p) {
    uint64_t *spare;
    if (p->n_spare >= p->ahead / 2 ||
        !(spare = vg_grow(p->spare, &p->cap_spare, p->ahead + SPARE_AT_ONCE, sizeof(*spare))))
        return false;
    p->spare = spare;
    uint64_t first = (p->spots + 1) | AHEAD, n = 0;
    p->spots += SPARE_AT_ONCE;
    pthread_mutex_unlock(&p->lock);
    bool dir = mkdirat(p->dirfd, AHEAD_DIR, 0700) == 0 || errno == EEXIST;
    for (int fd; dir && n < SPARE_AT_ONCE; n++) {
        char name[NAME];
        name_of(first + n, name);
        fd = openat(p->dirfd, name, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
            break; /* who needs one makes it, and hears why not */
        close(fd);
    }
    pthread_mutex_lock(&p->lock);
    for (uint64_t i = 0; i < n && p->n_spare < p->cap_spare; i++)
        p->spare[p->n_spare++] = first + i;
    return n == SPARE_AT_ONCE;
}

static int empty(const struct vg_proj *p, const struct pfile *f, const char *name) {
    if (f->fd >= 0)
        return ftruncate(f->fd, 0);
    vg_auto_fd int fd = openat(p->dirfd, name, O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? -1 : 0;
}

void proj_backing_remove(struct vg_proj *p, struct pfile *f, bool unused) {
    char name[NAME];
    name_of(f->spot, name);
    if (unused && !p->stopping && p->n_spare < SPARE_MAX) {
        uint64_t *spare = vg_grow(p->spare, &p->cap_spare, p->n_spare + 1, sizeof(*spare));
        p->spare = spare ? spare : p->spare;
        if (spare && empty(p, f, name) == 0) {
            p->spare[p->n_spare++] = f->spot;
            return;
        }
    }
    unlinkat(p->dirfd, name, 0);
}
