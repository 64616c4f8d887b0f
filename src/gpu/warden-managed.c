/* Managed memory of a task: what its processes have mapped from the driver's other device.
 *
 * A mapping is made by the process itself, a moment after it was allowed. Until then it counts by
 * the word that was given (vg_wlet); it is over when it is seen in the process's list of mappings,
 * when the thread makes another call, or when the thread is seen not to be in this one. So memory
 * that is unmapped is there for the next who asks, and memory that is not mapped yet is not. */
#include "base/util.h"
#include "gpu/warden-notify-int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define FILE_OFFSET_MAX (UINT64_C(1) << 40) /* beyond it lie addresses, not files */

static void end_let(struct vg_wcaller_process *p, size_t i) {
    p->let[i] = p->let[--p->n_lets];
}

void vg_wmanaged_called(struct vg_wcaller *c) {
    for (size_t i = c->p->n_lets; i-- > 0;)
        if (c->p->let[i].tid == c->tid)
            end_let(c->p, i);
}

/* The whole of it: a part can have been there before. */
static void see_mapping(struct vg_wcaller_process *p, uint64_t from, uint64_t to) {
    for (size_t i = p->n_lets; i-- > 0;)
        if (from <= p->let[i].at && p->let[i].at < to && p->let[i].bytes <= to - p->let[i].at)
            end_let(p, i);
}

/* Where a thread is. One that runs may be in the call or not. */
enum where { ELSEWHERE, MAPPING, RUNNING };

static enum where where_is(pid_t pid, pid_t tid) {
    char path[64], text[32];
    snprintf(path, sizeof(path), "/proc/%d/task/%d/syscall", (int)pid, (int)tid);
    FILE *f = fopen(path, "re");
    if (!f)
        return errno == ENOENT ? ELSEWHERE : RUNNING;
    enum where w = !fgets(text, sizeof(text), f) || text[0] == 'r' ? RUNNING
                   : strtol(text, NULL, 10) == SYS_mmap            ? MAPPING
                                                                   : ELSEWHERE;
    fclose(f);
    return w;
}

/* Those of threads that are seen to be through; one that runs is so within a second. Before the
   mappings are looked at, that those are seen. */
static void end_lets(struct vg_wcaller_process *p, uint64_t now) {
    for (size_t i = p->n_lets; i-- > 0;) {
        enum where w = where_is(p->pid, p->let[i].tid);
        if (w == ELSEWHERE || (w == RUNNING && now - p->let[i].usec > VG_USEC))
            end_let(p, i);
    }
}

/* What the process has mapped from the device, or may be mapping. */
static uint64_t managed_now(const struct vg_warden_watch *t, struct vg_wcaller_process *p) {
    char path[32], line[512];
    snprintf(path, sizeof(path), "/proc/%d/maps", (int)p->pid);
    FILE *f = t->managed_ino ? fopen(path, "re") : NULL;
    uint64_t sum = 0;
    while (f && fgets(line, sizeof(line), f)) {
        unsigned long long from, to, ino;
        unsigned major_no, minor_no;
        if (sscanf(line, "%llx-%llx %*s %*x %x:%x %llu", &from, &to, &major_no, &minor_no, &ino) ==
                5 &&
            ino == t->managed_ino && makedev(major_no, minor_no) == t->managed_on) {
            sum += to - from;
            see_mapping(p, from, to);
        }
    }
    if (f)
        fclose(f);
    for (size_t i = 0; i < p->n_lets; i++)
        sum += p->let[i].bytes;
    return sum;
}

static bool is_device(struct vg_warden_watch *t, int own) {
    struct stat st;
    bool yes = fstat(own, &st) == 0;
    if (yes && t->setup.issue && t->setup.managed_ino)
        yes = st.st_dev == t->setup.managed_on && st.st_ino == t->setup.managed_ino;
    else if (yes)
        yes =
            t->setup.managed_device && S_ISCHR(st.st_mode) && st.st_rdev == t->setup.managed_device;
    if (yes) {
        t->managed_on = st.st_dev;
        t->managed_ino = st.st_ino;
    }
    return yes;
}

int vg_wmanaged_borrow(void *caller, int fd) {
    int own = vg_wcaller_borrow(caller, fd);
    if (own < 0 || is_device(((struct vg_wcaller *)caller)->t, own))
        return own;
    close(own);
    return -ENOTTY;
}

static bool is_managed(struct vg_wcaller *c, int fd) {
    int own = vg_wmanaged_borrow(c, fd);
    if (own >= 0)
        close(own);
    return own >= 0;
}

/* The descriptor can be another one by the time the kernel looks. So it is not enough that it is
   not the device now: what could be managed memory if it were is refused as well. */
struct vg_warden_answer vg_wmanaged_mmap(struct vg_warden_watch *t, struct vg_wcaller *c,
                                         const struct seccomp_data *d) {
    uint64_t at = d->args[0], bytes = d->args[1], offset = d->args[5];
    bool fixed = (d->args[3] & (MAP_FIXED | MAP_FIXED_NOREPLACE)) != 0;
    bool could = (at + VG_WPAGE - 1) / VG_WPAGE == offset / VG_WPAGE ||
                 at / VG_WPAGE == offset / VG_WPAGE || (!fixed && offset >= FILE_OFFSET_MAX);
    if (!could)
        return (struct vg_warden_answer){.let = true};
    if (!is_managed(c, (int)d->args[4]))
        return (struct vg_warden_answer){.error = -EINVAL};
    end_lets(c->p, vg_now_usec());
    uint64_t now = managed_now(t, c->p);
    vg_warden_managed_now(t->w, c->p->number, now);
    if (c->p->n_lets == VG_WLETS_MAX || !vg_warden_managed(t->w, c->p->number, now, bytes))
        return (struct vg_warden_answer){.error = -ENOMEM};
    c->p->let[c->p->n_lets++] = (struct vg_wlet){c->tid, offset, bytes, vg_now_usec()};
    c->p->has_managed = true;
    return (struct vg_warden_answer){.let = true};
}

void vg_wmanaged_look(void *watch) {
    struct vg_warden_watch *t = watch;
    vg_map_for_each (s, &t->by_pid) {
        struct vg_wcaller_process *p = s->value;
        end_lets(p, vg_now_usec());
        if (p->has_managed)
            vg_warden_managed_now(t->w, p->number, managed_now(t, p));
    }
}
