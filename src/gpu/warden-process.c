/* The processes of a task that have talked to the driver, and telling what each holds. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "gpu/warden-notify-int.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define TELL_USEC (1000000u / VG_WARDEN_TELLS_PER_SECOND)

struct status {
    pid_t pid, task_pid;
    uid_t euid;
};

/* Of /proc/N/status. A sandbox has a namespace of processes below this one's, hence the second
   number, where there is one, is the task's own for it. */
static int status_of(pid_t tid, struct status *ret) {
    char path[32];
    vg_auto_free char *text = NULL;
    size_t n;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)tid);
    int r = vg_read_file(path, 16384, &text, &n);
    if (r < 0)
        return r;
    const char *pid = strstr(text, "\nTgid:"), *uid = strstr(text, "\nUid:"),
               *inner = strstr(text, "\nNStgid:");
    int tgid, below;
    unsigned euid;
    if (!pid || !uid || sscanf(pid, "\nTgid: %d", &tgid) != 1 ||
        sscanf(uid, "\nUid: %*u %u", &euid) != 1)
        return -EIO;
    /* "%*[ \t]": a plain blank would step over the end of the line */
    if (!inner || sscanf(inner, "\nNStgid:%*[ \t]%*d%*[ \t]%d", &below) != 1)
        below = tgid;
    *ret = (struct status){tgid, below, euid};
    return 0;
}

/* Which program runs in the process: where its stack and its arguments begin are other places in
   another one. 0: not to be known. */
static uint64_t program_of(pid_t pid) {
    char path[32];
    vg_auto_free char *text = NULL;
    size_t n;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    if (vg_read_file(path, 4096, &text, &n) < 0)
        return 0;
    const char *at = strrchr(text, ')'); /* a name may hold anything; two words are before it */
    uint64_t stack = 0, arguments = 0;
    for (int word = 2; at && word <= 48; word++) {
        if (word == 28)
            stack = strtoull(at, NULL, 10);
        if (word == 48)
            arguments = strtoull(at, NULL, 10);
        at = strchr(at + 1, ' ');
    }
    return stack * 31 + arguments;
}

void vg_wprocess_look(struct vg_warden_watch *t) {
    vg_map_for_each (s, &t->by_pid) {
        struct vg_wcaller_process *p = s->value;
        uint64_t program = program_of(p->pid);
        if (program && p->program && program != p->program)
            vg_warden_gone(t->w, p->number); /* its descriptors were closed with the old one */
        p->program = program ? program : p->program;
    }
}

struct vg_wcaller_process *vg_wprocess_by_number(const struct vg_warden_watch *t, uint64_t number) {
    return vg_map_get_u64(&t->by_number, number);
}

void vg_wprocess_end(struct vg_warden_watch *t, struct vg_wcaller_process *p) {
    vg_warden_gone(t->w, p->number);
    vg_map_del_u64(&t->by_number, p->number);
    vg_map_del_u64(&t->by_pid, (uint64_t)p->pid);
    close(p->pidfd); /* leaves the epoll set with it */
    free(p);
}

static bool has_ended(const struct vg_wcaller_process *p) {
    struct pollfd poll_for = {p->pidfd, POLLIN, 0};
    return poll(&poll_for, 1, 0) != 0;
}

static int enter(struct vg_warden_watch *t, struct vg_wcaller_process *p) {
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = p};
    int r = vg_map_put_u64(&t->by_pid, (uint64_t)p->pid, p);
    if (r >= 0 && (r = vg_map_put_u64(&t->by_number, p->number, p)) < 0)
        vg_map_del_u64(&t->by_pid, (uint64_t)p->pid);
    if (r >= 0 && epoll_ctl(t->epoll, EPOLL_CTL_ADD, p->pidfd, &e) < 0) {
        r = -errno;
        vg_map_del_u64(&t->by_number, p->number);
        vg_map_del_u64(&t->by_pid, (uint64_t)p->pid);
    }
    return r;
}

static int new_process(struct vg_warden_watch *t, const struct status *s,
                       struct vg_wcaller_process **ret) {
    if (vg_map_len(&t->by_pid) >= VG_WARDEN_PROCESSES_MAX)
        return -EMFILE;
    struct vg_wcaller_process *p = vg_alloc(sizeof(*p));
    if (!p)
        return -ENOMEM;
    *p = (struct vg_wcaller_process){.pid = s->pid,
                                     .task_pid = s->task_pid,
                                     .number = ++t->numbers,
                                     .program = program_of(s->pid)};
    p->pidfd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    int r = p->pidfd < 0 ? -errno : enter(t, p);
    if (r < 0) {
        if (p->pidfd >= 0)
            close(p->pidfd);
        free(p);
        return r;
    }
    *ret = p;
    return 0;
}

int vg_wprocess_know(struct vg_warden_watch *t, pid_t tid, struct vg_wcaller_process **ret) {
    struct status s;
    int r = status_of(tid, &s);
    if (r < 0)
        return r;
    struct vg_wcaller_process *p = vg_map_get_u64(&t->by_pid, (uint64_t)s.pid);
    if (p && has_ended(p)) { /* the number is another's by now */
        vg_wprocess_end(t, p);
        p = NULL;
    }
    if (!p && (r = new_process(t, &s, &p)) < 0)
        return r;
    p->euid = s.euid;
    *ret = p;
    return 0;
}

/* ---- telling --------------------------------------------------------------------------------- */

static void tell(struct vg_warden_watch *t) {
    struct vg_warden_process shown[VG_WARDEN_SHOWN_MAX];
    size_t n = vg_warden_processes(t->w, shown, VG_WARDEN_SHOWN_MAX);
    for (size_t i = 0; i < n; i++) {
        const struct vg_wcaller_process *p = vg_wprocess_by_number(t, shown[i].process);
        shown[i].pid = p ? p->pid : 0;
        shown[i].task_pid = p ? p->task_pid : 0;
    }
    pthread_mutex_lock(&t->lock);
    memcpy(t->shown, shown, n * sizeof(shown[0]));
    t->n_shown = n;
    pthread_mutex_unlock(&t->lock);
    t->telling = false;
    t->told_usec = vg_now_usec();
    if (t->setup.processes)
        t->setup.processes(t->setup.ud, shown, n);
}

void vg_wprocess_changed(struct vg_warden_watch *t) {
    uint64_t since = vg_now_usec() - t->told_usec;
    if (t->telling)
        return;
    const struct itimerspec rest = {.it_value.tv_nsec =
                                        (long)(TELL_USEC - since % TELL_USEC) * 1000};
    if (since < TELL_USEC && timerfd_settime(t->tell, 0, &rest, NULL) == 0)
        t->telling = true;
    else
        tell(t);
}

void vg_wprocess_tell(struct vg_warden_watch *t) {
    uint64_t n;
    (void)!read(t->tell, &n, sizeof(n));
    if (t->telling)
        tell(t);
}

size_t vg_warden_look_processes(struct vg_warden_watch *t, struct vg_warden_process *ret,
                                size_t max) {
    pthread_mutex_lock(&t->lock);
    size_t n = t->n_shown < max ? t->n_shown : max;
    memcpy(ret, t->shown, n * sizeof(ret[0]));
    pthread_mutex_unlock(&t->lock);
    return n;
}
