/* The node's lease: until when tasks may run here without word from the control plane. The file is
   mapped by every keeper, so each keeps the deadline by itself. Loop thread.

   The number counts from boot. A file of an earlier boot says nothing and is reset; one of this
   boot is kept, because keepers of an earlier agent live by it. */
#include "agent/agent-int.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/util.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CONTACT_LOST "the node lost contact with the control plane"

static bool same_boot(struct vg_agent *a) {
    vg_auto_free char *path = vg_agent_path(a, "lease.boot");
    vg_auto_free char *text = NULL;
    size_t len;
    if (!path)
        return false;
    bool same = vg_read_file(path, 64, &text, &len) == 0 && strcmp(text, a->boot_id) == 0;
    if (!same)
        vg_write_file(path, a->boot_id, strlen(a->boot_id), 0600);
    return same;
}

static void on_timer(uv_timer_t *timer) {
    struct vg_agent *a = timer->data;
    uint64_t now = vg_now_usec(), until = *a->lease.until;
    if (now < until) { /* the loop's clock stands still while the machine sleeps, ours does not */
        uv_timer_start(timer, on_timer, (until - now) / 1000 + 1, 0);
        return;
    }
    if (vg_map_len(&a->tasks))
        vg_warn("%s: its tasks are killed", CONTACT_LOST);
    vg_tasks_kill_all(a, CONTACT_LOST);
}

int vg_lease_open(struct vg_agent *a, struct vg_err *err) {
    vg_auto_fd int fd = open(a->lease_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(uint64_t)) < 0)
        return vg_err_sys(err, errno, "cannot open %s", a->lease_path);
    void *p = mmap(NULL, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return vg_err_sys(err, errno, "cannot map %s", a->lease_path);
    a->lease.until = p;
    if (!same_boot(a))
        *a->lease.until = 0;
    uv_timer_init(&a->loop, &a->lease.timer);
    a->lease.timer.data = a;
    if (*a->lease.until)
        uv_timer_start(&a->lease.timer, on_timer, 1, 0);
    return 0;
}

void vg_lease_close(struct vg_agent *a) {
    if (a->lease.until)
        munmap(a->lease.until, sizeof(uint64_t));
    a->lease.until = NULL;
}

void vg_lease_renew(struct vg_agent *a, uint64_t until_usec) {
    uint64_t now = vg_now_usec();
    if (until_usec <= *a->lease.until || until_usec <= now)
        return;
    __atomic_store_n(a->lease.until, until_usec, __ATOMIC_RELAXED);
    uv_timer_start(&a->lease.timer, on_timer, (until_usec - now) / 1000 + 1, 0);
}

bool vg_lease_over(const struct vg_agent *a) {
    return *a->lease.until <= vg_now_usec();
}
