/* The thread that answers for a warden. It owns the warden; others reach it by flags under a lock
   and a descriptor that wakes it. */
#include "gpu/warden-notify.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "gpu/driver.h"
#include "gpu/rm.h"
#include "gpu/warden-notify-int.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* ---- the caller's memory and descriptors ----------------------------------------------------- */

#define STOP_SECONDS 2
#define PIECES (VG_UVM_MAP_BYTES_MAX / VG_WPAGE + 2)

/* One piece a page: a transfer ends at the first that is not there. */
static size_t pages(uint64_t at, size_t n, struct iovec out[static PIECES]) {
    size_t k = 0;
    for (; n && k < PIECES; k++) {
        size_t piece = VG_WPAGE - (size_t)(at % VG_WPAGE);
        if (piece > n)
            piece = n;
        out[k] = (struct iovec){(void *)(uintptr_t)at, piece};
        at += piece;
        n -= piece;
    }
    return k;
}

static int64_t move_in(void *caller, uint64_t at, void *into, size_t n) {
    struct iovec far[PIECES], near = {into, n};
    ssize_t r =
        process_vm_readv(((struct vg_wcaller *)caller)->tid, &near, 1, far, pages(at, n, far), 0);
    return r < 0 ? -errno : r;
}

static int64_t move_out(void *caller, uint64_t at, const void *from, size_t n) {
    struct iovec far[PIECES], near = {(void *)(uintptr_t)from, n};
    ssize_t r =
        process_vm_writev(((struct vg_wcaller *)caller)->tid, &near, 1, far, pages(at, n, far), 0);
    return r < 0 ? -errno : r;
}

int vg_wcaller_borrow(void *caller, int fd) {
    int r = (int)syscall(SYS_pidfd_getfd, ((struct vg_wcaller *)caller)->p->pidfd, fd, 0);
    return r < 0 ? -errno : r;
}

/* Openings are one when the kernel says so; where it cannot, they are none, and what only one's own
   opening may do is refused. */
static bool is_same(void *ud, int a, int b) {
    (void)ud;
    return syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, a, b) == 0;
}

static void give_back(void *ud, int fd) {
    (void)ud;
    close(fd);
}

/* Of this thread alone, hence not by the library's call, which changes all. */
static int become(uid_t euid) {
    return syscall(SYS_setresuid, -1, euid, -1) < 0 ? -errno : 0;
}

static int64_t issue(void *ud, uint64_t process, int fd, uint32_t cmd, void *arg) {
    struct vg_warden_watch *t = ud;
    if (t->setup.issue)
        return t->setup.issue(t->setup.ud, process, fd, cmd, arg);
    const struct vg_wcaller_process *p = vg_wprocess_by_number(t, process);
    uid_t was = geteuid();
    if (!p)
        return -ESRCH;
    int r = p->euid == was ? 0 : become(p->euid);
    if (r < 0)
        return r;
    long done = syscall(SYS_ioctl, fd, (unsigned long)cmd, arg);
    int64_t result = done < 0 ? -errno : done;
    if (p->euid != was && become(was) < 0)
        abort(); /* never go on as somebody else */
    return result;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static struct vg_warden_answer decide(struct vg_warden_watch *t) {
    const struct seccomp_data *d = &t->in->data;
    struct vg_wcaller c = {.t = t, .tid = (pid_t)t->in->pid};
    int r = vg_wprocess_know(t, c.tid, &c.p);
    /* Whoever made the call is still in it: so the process is the one that was meant. */
    if (r >= 0 && ioctl(t->listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &t->in->id) < 0)
        r = -errno;
    if (r < 0)
        return (struct vg_warden_answer){.error = r};
    vg_wmanaged_called(&c);
    if (d->nr == SYS_mmap)
        return vg_wmanaged_mmap(t, &c, d);
    struct vg_warden_call k = {.caller = &c,
                               .process = c.p->number,
                               .fd = (int)d->args[0],
                               .cmd = (uint32_t)d->args[1],
                               .arg = d->args[2]};
    return vg_warden_ioctl(t->w, &k);
}

static void publish(struct vg_warden_watch *t) {
    struct vg_warden_stat now;
    vg_warden_stat(t->w, &now);
    pthread_mutex_lock(&t->lock);
    bool same = memcmp(&now, &t->stat, sizeof(now)) == 0;
    t->stat = now;
    vg_warden_audit_note(&t->audit, &now);
    pthread_mutex_unlock(&t->lock);
    if (!same && t->setup.changed)
        t->setup.changed(t->setup.ud, &now);
    if (!same)
        vg_wprocess_changed(t);
}

static void answer_one(struct vg_warden_watch *t) {
    memset(t->in, 0, t->in_bytes);
    if (ioctl(t->listener, SECCOMP_IOCTL_NOTIF_RECV, t->in) < 0)
        return; /* it was killed meanwhile */
    struct vg_warden_answer a = decide(t);
    publish(t); /* before the task can look */
    memset(t->out, 0, t->out_bytes);
    t->out->id = t->in->id;
    t->out->flags = a.let ? SECCOMP_USER_NOTIF_FLAG_CONTINUE : 0;
    t->out->error = a.error;
    t->out->val = a.error ? 0 : a.value;
    (void)ioctl(t->listener, SECCOMP_IOCTL_NOTIF_SEND, t->out);
}

static void each_second(struct vg_warden_watch *t) {
    uint64_t n;
    (void)!read(t->timer, &n, sizeof(n));
    vg_warden_assert_slices(t->w);
    vg_wprocess_look(t);
    vg_wmanaged_look(t);
    publish(t);
}

static bool take_orders(struct vg_warden_watch *t) {
    uint64_t n;
    (void)!read(t->wake, &n, sizeof(n));
    pthread_mutex_lock(&t->lock);
    bool stop = t->stop, changed = t->changed;
    uint64_t limit = t->limit_bytes;
    uint32_t slice = t->slice_usec;
    t->changed = false;
    pthread_mutex_unlock(&t->lock);
    if (changed) {
        vg_warden_limit(t->w, limit);
        vg_warden_slice(t->w, slice);
        publish(t);
    }
    return !stop;
}

static void free_all(struct vg_warden_watch *t) {
    vg_map_for_each (s, &t->by_pid)
        vg_wprocess_end(t, s->value);
    vg_map_done(&t->by_pid);
    vg_map_done(&t->by_number);
    vg_warden_free(t->w);
    for (size_t i = 0; i < t->n_devices; i++)
        close(t->device[i]);
    vg_close(&t->listener);
    vg_close(&t->epoll);
    vg_close(&t->wake);
    vg_close(&t->timer);
    vg_close(&t->tell);
    pthread_mutex_destroy(&t->lock);
    free(t->in);
    free(t->out);
    free(t);
}

static void *run(void *arg) {
    struct vg_warden_watch *t = arg;
    for (bool on = true; on;) {
        struct epoll_event e; /* one at a time: an event can end what a later one means */
        if (epoll_wait(t->epoll, &e, 1, -1) < 1)
            continue;
        if (e.data.ptr == &t->wake)
            on = take_orders(t);
        else if (e.data.ptr == &t->timer)
            each_second(t);
        else if (e.data.ptr == &t->tell)
            vg_wprocess_tell(t);
        else if (e.data.ptr != &t->listener) {
            vg_wprocess_end(t, e.data.ptr);
            publish(t);
        } else if (e.events & EPOLLIN)
            answer_one(t);
        else /* nobody is left that it could hear of; processes' ends are still to come */
            (void)epoll_ctl(t->epoll, EPOLL_CTL_DEL, t->listener, NULL);
    }
    pthread_mutex_lock(&t->lock);
    t->ended = true;
    bool orphan = t->orphan;
    pthread_mutex_unlock(&t->lock);
    if (orphan)
        free_all(t);
    return NULL;
}

/* ---- start and stop -------------------------------------------------------------------------- */

static int hear(struct vg_warden_watch *t, int *fd) {
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = fd};
    return *fd < 0 || epoll_ctl(t->epoll, EPOLL_CTL_ADD, *fd, &e) < 0 ? -errno : 0;
}

static int open_devices(struct vg_warden_watch *t, struct vg_err *err) {
    for (size_t i = 0; i < t->setup.n_devices; i++) {
        if (i == VG_WDEVICES_MAX)
            return vg_err_set(err, VG_TOO_BIG, "more than %u GPUs in one task", VG_WDEVICES_MAX);
        int fd = open(t->setup.devices[i], O_RDWR | O_CLOEXEC);
        if (fd < 0)
            return vg_err_sys(err, -errno, "cannot open %s", t->setup.devices[i]);
        t->device[t->n_devices++] = fd;
    }
    return 0;
}

/* The kernel's own idea of how large its messages are. */
static int make_messages(struct vg_warden_watch *t) {
    struct seccomp_notif_sizes sizes;
    if (syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &sizes) < 0)
        return -errno;
    t->in_bytes = sizes.seccomp_notif > sizeof(*t->in) ? sizes.seccomp_notif : sizeof(*t->in);
    t->out_bytes =
        sizes.seccomp_notif_resp > sizeof(*t->out) ? sizes.seccomp_notif_resp : sizeof(*t->out);
    t->in = vg_alloc(t->in_bytes);
    t->out = vg_alloc(t->out_bytes);
    return t->in && t->out ? 0 : -ENOMEM;
}

static bool is_old_driver(void) {
    char version[32];
    vg_driver_version("", version, sizeof(version));
    return *version && strtoul(version, NULL, 10) < 550;
}

static int prepare(struct vg_warden_watch *t, struct vg_err *err) {
    const struct vg_warden_ops ops = {.read = move_in,
                                      .write = move_out,
                                      .borrow = vg_wcaller_borrow,
                                      .borrow_uvm = vg_wmanaged_borrow,
                                      .same = is_same,
                                      .issue = issue,
                                      .close = give_back,
                                      .recount = vg_wmanaged_look,
                                      .ud = t};
    const struct itimerspec second = {{1, 0}, {1, 0}};
    int r = vg_warden_new(&ops, t->setup.limit_bytes, &t->w);
    if (r >= 0)
        r = make_messages(t);
    t->epoll = epoll_create1(EPOLL_CLOEXEC);
    t->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    t->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    t->tell = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (r >= 0 && (hear(t, &t->listener) < 0 || hear(t, &t->wake) < 0 || hear(t, &t->timer) < 0 ||
                   hear(t, &t->tell) < 0 || timerfd_settime(t->timer, 0, &second, NULL) < 0))
        r = -errno;
    if (r >= 0 && !is_same(t, t->epoll, t->epoll))
        r = -errno; /* a kernel without kcmp() */
    if (r < 0)
        return vg_err_sys(err, r, "cannot watch over a shared GPU");
    if (!t->setup.issue && is_old_driver())
        vg_warden_old_uvm(t->w);
    vg_warden_slice(t->w, t->setup.slice_usec);
    if (t->setup.mps)
        vg_warden_mps(t->w);
    vg_warden_stat(t->w, &t->stat);
    return open_devices(t, err);
}

int vg_warden_start(const struct vg_warden_setup *setup, struct vg_warden_watch **ret,
                    struct vg_err *err) {
    struct vg_warden_watch *t = vg_alloc(sizeof(*t));
    if (!t) {
        close(setup->listener);
        return vg_err_sys(err, -ENOMEM, "cannot watch over a shared GPU");
    }
    *t = (struct vg_warden_watch){.setup = *setup,
                                  .listener = setup->listener,
                                  .epoll = -1,
                                  .wake = -1,
                                  .timer = -1,
                                  .tell = -1};
    pthread_mutex_init(&t->lock, NULL);
    int r = prepare(t, err);
    if (r >= 0) {
        r = -pthread_create(&t->thread, NULL, run, t);
        if (r < 0)
            (void)vg_err_sys(err, r, "cannot start a thread");
    }
    if (r < 0) {
        free_all(t);
        return r;
    }
    *ret = t;
    return 0;
}

static void order(struct vg_warden_watch *t) {
    uint64_t one = 1;
    (void)!write(t->wake, &one, sizeof(one));
}

/* The thread reads the task's memory, and a page of it can be one that another machine has to
   bring: it may take long to come back from there. It is the task's own thread, so nobody else
   waits for it; whoever ends the task does not either. */
void vg_warden_stop(struct vg_warden_watch *t) {
    if (!t)
        return;
    struct timespec until;
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_mutex_unlock(&t->lock);
    order(t);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += STOP_SECONDS;
    if (pthread_timedjoin_np(t->thread, NULL, &until) != 0) {
        pthread_mutex_lock(&t->lock);
        t->orphan = !t->ended;
        bool orphan = t->orphan;
        pthread_t thread = t->thread;
        pthread_mutex_unlock(&t->lock);
        if (orphan) { /* it frees itself */
            pthread_detach(thread);
            return;
        }
        pthread_join(thread, NULL);
    }
    free_all(t);
}

void vg_warden_set(struct vg_warden_watch *t, uint64_t limit_bytes, uint32_t slice_usec) {
    pthread_mutex_lock(&t->lock);
    t->limit_bytes = limit_bytes;
    t->slice_usec = slice_usec;
    t->changed = true;
    pthread_mutex_unlock(&t->lock);
    order(t);
}

void vg_warden_look(struct vg_warden_watch *t, struct vg_warden_stat *ret) {
    pthread_mutex_lock(&t->lock);
    *ret = t->stat;
    pthread_mutex_unlock(&t->lock);
}

uint32_t vg_warden_compare(struct vg_warden_watch *t, uint64_t card_bytes, uint64_t *ret_known) {
    pthread_mutex_lock(&t->lock);
    uint32_t n = vg_warden_audit(&t->audit, &t->stat, card_bytes, ret_known);
    pthread_mutex_unlock(&t->lock);
    return n;
}
