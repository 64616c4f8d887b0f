/* The memory: a page of counters, then the bytes of one direction, then of the other. Each
   direction has one writer and one reader; counters only grow. Both sides keep their own counter
   for themselves and merely show it to the other.

   Waking: whoever is about to wait says so in the page and looks once more; whoever changed
   something looks there and rings. Full barriers on both sides, so that one of them sees the other.
 */
#include "net/duct.h"

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096u
#define SIZE ((uint64_t)VG_DUCT_SIZE)
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW)
#define ROOM_WORTH (SIZE / 4)

struct lane {
    alignas(64) _Atomic uint64_t tail; /* written so far; by the writer */
    _Atomic uint32_t shut;
    _Atomic uint32_t wants_room;       /* the writer waits */
    alignas(64) _Atomic uint64_t head; /* read so far; by the reader */
    _Atomic uint32_t closed;           /* nobody reads */
    _Atomic uint32_t wants_bytes;      /* the reader waits */
};

struct shared {
    struct lane lane[2]; /* 0: from the maker, 1: to it */
};

struct vg_duct {
    struct shared *page;
    struct lane *in, *out;
    uint8_t *in_base, *out_base; /* each mapped twice in a row: what wraps around is in one piece */
    uint64_t in_head, out_tail;
    int own, peer; /* to be woken by, to wake */
    bool end_seen;
};

static void ring(int fd) {
    uint64_t one = 1;
    while (write(fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

/* ------------------------------------------------------------------ made and opened */

static uint8_t *map_twice(int mem, unsigned which) {
    uint8_t *p = mmap(NULL, 2 * SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    for (int i = 0; i < 2; i++)
        if (mmap(p + (size_t)i * SIZE, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, mem,
                 (off_t)(PAGE + which * SIZE)) == MAP_FAILED) {
            munmap(p, 2 * SIZE);
            return NULL;
        }
    return p;
}

static void unmap(struct vg_duct *d) {
    if (d->page)
        munmap(d->page, PAGE);
    if (d->in_base)
        munmap(d->in_base, 2 * SIZE);
    if (d->out_base)
        munmap(d->out_base, 2 * SIZE);
}

static int map(struct vg_duct *d, int mem, bool maker) {
    void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, mem, 0);
    if (page == MAP_FAILED)
        return -errno;
    d->page = page;
    d->out = &d->page->lane[maker ? 0 : 1];
    d->in = &d->page->lane[maker ? 1 : 0];
    d->out_base = map_twice(mem, maker ? 0 : 1);
    d->in_base = d->out_base ? map_twice(mem, maker ? 1 : 0) : NULL;
    return d->in_base ? 0 : -ENOMEM;
}

static int end_new(int mem, int own, int peer, bool maker, struct vg_duct **ret) {
    struct vg_duct *d = vg_alloc(sizeof *d);
    if (!d)
        return -ENOMEM;
    *d = (struct vg_duct){.own = own, .peer = peer};
    int r = map(d, mem, maker);
    if (r < 0) {
        unmap(d);
        free(d);
        return r;
    }
    *ret = d;
    return 0;
}

int vg_duct_new(struct vg_duct **ret, int far[static VG_DUCT_FDS]) {
    _Static_assert(sizeof(struct shared) <= PAGE, "the counters fit a page");
    int r = vg_fault("net.duct");
    if (r < 0)
        return r;
    vg_auto_fd int mem = memfd_create("virga-duct", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    vg_auto_fd int own = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    vg_auto_fd int peer = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (mem < 0 || own < 0 || peer < 0 || ftruncate(mem, (off_t)(PAGE + 2 * SIZE)) < 0 ||
        fcntl(mem, F_ADD_SEALS, SEALS) < 0)
        return -errno;
    vg_auto_fd int own2 = fcntl(own, F_DUPFD_CLOEXEC, 0);
    vg_auto_fd int peer2 = fcntl(peer, F_DUPFD_CLOEXEC, 0);
    if (own2 < 0 || peer2 < 0)
        return -errno;
    r = end_new(mem, own, peer, true, ret);
    if (r < 0)
        return r;
    (void)vg_take_fd(own);
    (void)vg_take_fd(peer);
    far[0] = vg_take_fd(mem);
    far[1] = vg_take_fd(peer2);
    far[2] = vg_take_fd(own2);
    return 0;
}

/* Ringing and hearing must never wait. */
static bool is_patient(int fd) {
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && flags & O_NONBLOCK;
}

int vg_duct_open(int fds[static VG_DUCT_FDS], struct vg_duct **ret) {
    vg_auto_fd int mem = fds[0];
    vg_auto_fd int own = fds[1];
    vg_auto_fd int peer = fds[2];
    struct stat st;
    int seals = fcntl(mem, F_GET_SEALS);
    fds[0] = fds[1] = fds[2] = -1;
    if (seals < 0 || (seals & SEALS) != SEALS || fstat(mem, &st) < 0 ||
        (uint64_t)st.st_size != PAGE + 2 * SIZE || !is_patient(own) || !is_patient(peer))
        return -EPROTO;
    int r = end_new(mem, own, peer, false, ret);
    if (r < 0)
        return r;
    (void)vg_take_fd(own);
    (void)vg_take_fd(peer);
    return 0;
}

void vg_duct_close(struct vg_duct *d) {
    if (!d)
        return;
    atomic_store(&d->out->shut, 1);
    atomic_store(&d->in->closed, 1);
    ring(d->peer);
    unmap(d);
    vg_close(&d->own);
    vg_close(&d->peer);
    free(d);
}

int vg_duct_fd(const struct vg_duct *d) {
    return d->own;
}

/* ------------------------------------------------------------------ bytes */

ssize_t vg_duct_peek(struct vg_duct *d, const uint8_t **p) {
    uint64_t have = atomic_load_explicit(&d->in->tail, memory_order_acquire) - d->in_head;
    if (have > SIZE)
        return -EPROTO;
    *p = d->in_base + (d->in_head & (SIZE - 1));
    return (ssize_t)have;
}

void vg_duct_consume(struct vg_duct *d, size_t n) {
    d->in_head += n;
    atomic_store(&d->in->head, d->in_head);
    if (!atomic_load(&d->in->wants_room))
        return;
    uint64_t waiting = atomic_load(&d->in->tail) - d->in_head;
    if (waiting <= SIZE - ROOM_WORTH && atomic_exchange(&d->in->wants_room, 0))
        ring(d->peer);
}

bool vg_duct_ended(struct vg_duct *d, size_t left) {
    d->end_seen = atomic_load(&d->in->shut) && atomic_load(&d->in->tail) - d->in_head == left;
    return d->end_seen;
}

size_t vg_duct_room(const struct vg_duct *d) {
    uint64_t used = d->out_tail - atomic_load_explicit(&d->out->head, memory_order_acquire);
    return used > SIZE ? 0 : (size_t)(SIZE - used);
}

ssize_t vg_duct_write(struct vg_duct *d, const struct iovec *v, int n) {
    size_t room = vg_duct_room(d), done = 0;
    if (atomic_load(&d->out->closed))
        return -EPIPE;
    for (int i = 0; i < n && done < room; i++) {
        size_t k = VG_MIN(v[i].iov_len, room - done);
        memcpy(d->out_base + ((d->out_tail + done) & (SIZE - 1)), v[i].iov_base, k);
        done += k;
    }
    if (done == 0)
        return 0;
    d->out_tail += done;
    atomic_store(&d->out->tail, d->out_tail);
    if (atomic_load(&d->out->wants_bytes) && atomic_exchange(&d->out->wants_bytes, 0))
        ring(d->peer);
    return (ssize_t)done;
}

void vg_duct_shut(struct vg_duct *d) {
    atomic_store(&d->out->shut, 1);
    ring(d->peer);
}

/* ------------------------------------------------------------------ waiting */

bool vg_duct_arm(struct vg_duct *d, size_t seen, bool room) {
    uint64_t rung;
    ssize_t n = read(d->own, &rung, sizeof rung); /* nothing there is as good */
    (void)n;
    atomic_store(&d->in->wants_bytes, 1);
    atomic_store(&d->out->wants_room, room ? 1 : 0);
    uint64_t have = atomic_load(&d->in->tail) - d->in_head;
    if (!d->end_seen && (have != seen || atomic_load(&d->in->shut)))
        return true;
    return room && (vg_duct_room(d) >= ROOM_WORTH || atomic_load(&d->out->closed));
}

void vg_duct_nudge(struct vg_duct *d) {
    ring(d->own);
}
