/* The thread that answers for a warden. It owns the warden; others reach it by flags under a lock
   and a descriptor that wakes it. */
#include "gpu/warden-notify.h"

#include "base/cleanup.h"
#include "base/list.h"
#include "base/mem.h"
#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096u
#define DEVICES_MAX 16u
#define FILE_OFFSET_MAX (UINT64_C(1) << 40) /* beyond it lie addresses, not files */

struct process {
    struct vg_list all;
    pid_t pid;
    int pidfd;
    uint64_t number;
    uid_t euid;
    uint64_t let_usec; /* when it was last allowed to map managed memory */
};

struct caller {
    struct vg_warden_watch *t;
    pid_t tid;
    struct process *p;
};

struct vg_warden_watch {
    struct vg_warden *w;
    struct vg_warden_setup setup;
    int listener, epoll, wake, timer;
    int device[DEVICES_MAX];
    size_t n_devices;
    struct vg_list processes;
    uint64_t numbers;
    dev_t managed_on; /* where the device's node lies, as maps tells it; known from its first use */
    ino_t managed_ino;
    struct seccomp_notif *in;
    struct seccomp_notif_resp *out;
    size_t in_bytes, out_bytes;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    bool stop, changed;
    uint64_t limit_bytes;
    uint32_t slice_usec;
    struct vg_warden_stat stat;
};

/* ---- the caller's memory and descriptors ----------------------------------------------------- */

/* One piece a page: a transfer ends at the first that is not there. */
static size_t pages(uint64_t at, size_t n, struct iovec out[static 3]) {
    size_t k = 0;
    for (; n && k < 3; k++) {
        size_t piece = PAGE - (size_t)(at % PAGE);
        if (piece > n)
            piece = n;
        out[k] = (struct iovec){(void *)(uintptr_t)at, piece};
        at += piece;
        n -= piece;
    }
    return k;
}

static int64_t move_in(void *caller, uint64_t at, void *into, size_t n) {
    struct iovec far[3], near = {into, n};
    ssize_t r =
        process_vm_readv(((struct caller *)caller)->tid, &near, 1, far, pages(at, n, far), 0);
    return r < 0 ? -errno : r;
}

static int64_t move_out(void *caller, uint64_t at, const void *from, size_t n) {
    struct iovec far[3], near = {(void *)(uintptr_t)from, n};
    ssize_t r =
        process_vm_writev(((struct caller *)caller)->tid, &near, 1, far, pages(at, n, far), 0);
    return r < 0 ? -errno : r;
}

static int borrow(void *caller, int fd) {
    int r = (int)syscall(SYS_pidfd_getfd, ((struct caller *)caller)->p->pidfd, fd, 0);
    return r < 0 ? -errno : r;
}

static void give_back(void *ud, int fd) {
    (void)ud;
    close(fd);
}

static struct process *by_number(struct vg_warden_watch *t, uint64_t number) {
    vg_list_for_each (item, &t->processes) {
        struct process *p = vg_list_entry(item, struct process, all);
        if (p->number == number)
            return p;
    }
    return NULL;
}

/* Of this thread alone, hence not by the library's call, which changes all. */
static int become(uid_t euid) {
    return syscall(SYS_setresuid, -1, euid, -1) < 0 ? -errno : 0;
}

static int64_t issue(void *ud, uint64_t process, int fd, uint32_t cmd, void *arg) {
    struct vg_warden_watch *t = ud;
    if (t->setup.issue)
        return t->setup.issue(t->setup.ud, process, fd, cmd, arg);
    const struct process *p = by_number(t, process);
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

/* ---- processes ------------------------------------------------------------------------------- */

/* Of /proc/N/status. */
static int status_of(pid_t tid, pid_t *ret_pid, uid_t *ret_euid) {
    char path[32];
    vg_auto_free char *text = NULL;
    size_t n;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)tid);
    int r = vg_read_file(path, 16384, &text, &n);
    if (r < 0)
        return r;
    const char *pid = strstr(text, "\nTgid:"), *uid = strstr(text, "\nUid:");
    int tgid;
    unsigned euid;
    if (!pid || !uid || sscanf(pid, "\nTgid: %d", &tgid) != 1 ||
        sscanf(uid, "\nUid: %*u %u", &euid) != 1)
        return -EIO;
    *ret_pid = tgid;
    *ret_euid = euid;
    return 0;
}

static void end_process(struct vg_warden_watch *t, struct process *p) {
    vg_warden_gone(t->w, p->number);
    vg_list_remove(&p->all);
    close(p->pidfd); /* leaves the epoll set with it */
    free(p);
}

static bool has_ended(const struct process *p) {
    struct pollfd poll_for = {p->pidfd, POLLIN, 0};
    return poll(&poll_for, 1, 0) != 0;
}

static int new_process(struct vg_warden_watch *t, pid_t pid, struct process **ret) {
    struct process *p = vg_alloc(sizeof(*p));
    if (!p)
        return -ENOMEM;
    *p = (struct process){.pid = pid, .number = ++t->numbers};
    p->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = p};
    if (p->pidfd < 0 || epoll_ctl(t->epoll, EPOLL_CTL_ADD, p->pidfd, &e) < 0) {
        int r = -errno;
        if (p->pidfd >= 0)
            close(p->pidfd);
        free(p);
        return r;
    }
    vg_list_push_back(&t->processes, &p->all);
    *ret = p;
    return 0;
}

static int know_process(struct vg_warden_watch *t, pid_t tid, struct process **ret) {
    pid_t pid = 0;
    uid_t euid = 0;
    int r = status_of(tid, &pid, &euid);
    if (r < 0)
        return r;
    struct process *p = NULL;
    vg_list_for_each (item, &t->processes) {
        struct process *one = vg_list_entry(item, struct process, all);
        if (one->pid == pid)
            p = one;
    }
    if (p && has_ended(p)) { /* the number is another's by now */
        end_process(t, p);
        p = NULL;
    }
    if (!p && (r = new_process(t, pid, &p)) < 0)
        return r;
    p->euid = euid;
    *ret = p;
    return 0;
}

/* ---- managed memory -------------------------------------------------------------------------- */

/* What the process has mapped from the device. */
static uint64_t managed_now(const struct vg_warden_watch *t, const struct process *p) {
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

static bool is_managed(struct vg_warden_watch *t, struct caller *c, int fd) {
    struct stat st;
    int own = borrow(c, fd);
    bool yes = own >= 0 && t->setup.managed_device && fstat(own, &st) == 0 && S_ISCHR(st.st_mode) &&
               st.st_rdev == t->setup.managed_device;
    if (yes) {
        t->managed_on = st.st_dev;
        t->managed_ino = st.st_ino;
    }
    if (own >= 0)
        close(own);
    return yes;
}

/* The descriptor can be another one by the time the kernel looks. So it is not enough that it is
   not the device now: what could be managed memory if it were is refused as well. */
static struct vg_warden_answer on_mmap(struct vg_warden_watch *t, struct caller *c,
                                       const struct seccomp_data *d) {
    uint64_t at = d->args[0], bytes = d->args[1], offset = d->args[5];
    bool fixed = (d->args[3] & (MAP_FIXED | MAP_FIXED_NOREPLACE)) != 0;
    bool could = (at + PAGE - 1) / PAGE == offset / PAGE || at / PAGE == offset / PAGE ||
                 (!fixed && offset >= FILE_OFFSET_MAX);
    if (!could)
        return (struct vg_warden_answer){.let = true};
    if (!is_managed(t, c, (int)d->args[4]))
        return (struct vg_warden_answer){.error = -EINVAL};
    if (!vg_warden_managed(t->w, c->p->number, managed_now(t, c->p), bytes))
        return (struct vg_warden_answer){.error = -ENOMEM};
    c->p->let_usec = vg_now_usec();
    return (struct vg_warden_answer){.let = true};
}

/* ---- the thread ------------------------------------------------------------------------------ */

static struct vg_warden_answer decide(struct vg_warden_watch *t) {
    const struct seccomp_data *d = &t->in->data;
    struct caller c = {.t = t, .tid = (pid_t)t->in->pid};
    int r = know_process(t, c.tid, &c.p);
    /* Whoever made the call is still in it: so the process is the one that was meant. */
    if (r >= 0 && ioctl(t->listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &t->in->id) < 0)
        r = -errno;
    if (r < 0)
        return (struct vg_warden_answer){.error = r};
    if (d->nr == SYS_mmap)
        return on_mmap(t, &c, d);
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
    pthread_mutex_unlock(&t->lock);
    if (!same && t->setup.changed)
        t->setup.changed(t->setup.ud, &now);
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
    uint64_t n, now = vg_now_usec();
    (void)!read(t->timer, &n, sizeof(n));
    vg_warden_assert_slices(t->w);
    vg_list_for_each (item, &t->processes) {
        struct process *p = vg_list_entry(item, struct process, all);
        if (p->let_usec && now - p->let_usec > 1000000)
            vg_warden_managed_now(t->w, p->number, managed_now(t, p));
    }
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
        else if (e.data.ptr != &t->listener) {
            end_process(t, e.data.ptr);
            publish(t);
        } else if (e.events & EPOLLIN)
            answer_one(t);
        else /* nobody is left that it could hear of; processes' ends are still to come */
            (void)epoll_ctl(t->epoll, EPOLL_CTL_DEL, t->listener, NULL);
    }
    return NULL;
}

/* ---- start and stop -------------------------------------------------------------------------- */

static int hear(struct vg_warden_watch *t, int *fd) {
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = fd};
    return *fd < 0 || epoll_ctl(t->epoll, EPOLL_CTL_ADD, *fd, &e) < 0 ? -errno : 0;
}

static int open_devices(struct vg_warden_watch *t, struct vg_err *err) {
    for (size_t i = 0; i < t->setup.n_devices; i++) {
        if (i == DEVICES_MAX)
            return vg_err_set(err, VG_TOO_BIG, "more than %u GPUs in one task", DEVICES_MAX);
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

static void free_all(struct vg_warden_watch *t) {
    for (struct vg_list *item; (item = vg_list_first(&t->processes));)
        end_process(t, vg_list_entry(item, struct process, all));
    vg_warden_free(t->w);
    for (size_t i = 0; i < t->n_devices; i++)
        close(t->device[i]);
    vg_close(&t->listener);
    vg_close(&t->epoll);
    vg_close(&t->wake);
    vg_close(&t->timer);
    pthread_mutex_destroy(&t->lock);
    free(t->in);
    free(t->out);
    free(t);
}

static int prepare(struct vg_warden_watch *t, struct vg_err *err) {
    const struct vg_warden_ops ops = {.read = move_in,
                                      .write = move_out,
                                      .borrow = borrow,
                                      .issue = issue,
                                      .close = give_back,
                                      .ud = t};
    const struct itimerspec second = {{1, 0}, {1, 0}};
    int r = vg_warden_new(&ops, t->setup.limit_bytes, &t->w);
    if (r >= 0)
        r = make_messages(t);
    t->epoll = epoll_create1(EPOLL_CLOEXEC);
    t->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    t->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (r >= 0 && (hear(t, &t->listener) < 0 || hear(t, &t->wake) < 0 || hear(t, &t->timer) < 0 ||
                   timerfd_settime(t->timer, 0, &second, NULL) < 0))
        r = -errno;
    if (r < 0)
        return vg_err_sys(err, r, "cannot watch over a shared GPU");
    vg_warden_slice(t->w, t->setup.slice_usec);
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
    *t = (struct vg_warden_watch){
        .setup = *setup, .listener = setup->listener, .epoll = -1, .wake = -1, .timer = -1};
    vg_list_init(&t->processes);
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

void vg_warden_stop(struct vg_warden_watch *t) {
    if (!t)
        return;
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_mutex_unlock(&t->lock);
    order(t);
    pthread_join(t->thread, NULL);
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
