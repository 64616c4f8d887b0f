/* The files of a view's folder that hold what was written here. Those that are not needed any more
   are emptied and used again: file systems take long to make files where many were removed a moment
   ago, as a task does that builds a tree anew. With the view's lock. */
#include "fs/node/proj-int.h"

#include "base/mem.h"

#include <fcntl.h>

#define SPARE_MAX 16384u

static void name_of(uint64_t spot, char out[24]) {
    snprintf(out, 24, "%016llx", (unsigned long long)spot);
}

/* A descriptor, or -1 and errno. */
int proj_backing_open(struct vg_proj *p, struct pfile *f) {
    char name[24];
    int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW;
    if (!f->backing) {
        f->spot = p->n_spare ? p->spare[--p->n_spare] : ++p->spots;
        flags |= O_CREAT | O_TRUNC;
    }
    name_of(f->spot, name);
    return openat(p->dirfd, name, flags, 0600);
}

static int empty(const struct vg_proj *p, const struct pfile *f, const char *name) {
    if (f->fd >= 0)
        return ftruncate(f->fd, 0);
    vg_auto_fd int fd = openat(p->dirfd, name, O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? -1 : 0;
}

void proj_backing_remove(struct vg_proj *p, struct pfile *f, bool unused) {
    char name[24];
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
