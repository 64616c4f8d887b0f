/* Managed memory of a task: what its processes have mapped from the driver's other device. */
#include "base/util.h"
#include "gpu/warden-notify-int.h"

#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define FILE_OFFSET_MAX (UINT64_C(1) << 40) /* beyond it lie addresses, not files */

/* What the process has mapped from the device. */
static uint64_t managed_now(const struct vg_warden_watch *t, const struct vg_wcaller_process *p) {
    char path[32], line[512];
    snprintf(path, sizeof(path), "/proc/%d/maps", (int)p->pid);
    FILE *f = t->managed_ino ? fopen(path, "re") : NULL;
    uint64_t sum = 0;
    while (f && fgets(line, sizeof(line), f)) {
        unsigned long long from, to, ino;
        unsigned major_no, minor_no;
        if (sscanf(line, "%llx-%llx %*s %*x %x:%x %llu", &from, &to, &major_no, &minor_no, &ino) ==
                5 &&
            ino == t->managed_ino && makedev(major_no, minor_no) == t->managed_on)
            sum += to - from;
    }
    if (f)
        fclose(f);
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
    if (!vg_warden_managed(t->w, c->p->number, managed_now(t, c->p), bytes))
        return (struct vg_warden_answer){.error = -ENOMEM};
    c->p->let_usec = vg_now_usec();
    return (struct vg_warden_answer){.let = true};
}

void vg_wmanaged_look(struct vg_warden_watch *t) {
    uint64_t now = vg_now_usec();
    vg_map_for_each (s, &t->by_pid) {
        struct vg_wcaller_process *p = s->value;
        if (p->let_usec && now - p->let_usec > 1000000)
            vg_warden_managed_now(t->w, p->number, managed_now(t, p));
    }
}
