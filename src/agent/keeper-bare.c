/* A task that has the whole node (pools of class bare-metal), as its keeper sees it: no limits, all
   devices, and an end after which nothing of it runs. Its processes, files in memory and
   System V objects live in namespaces of their own; so they go with it, and what went is told. */
#include "agent/keeper-int.h"
#include "base/util.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define STRAGGLE_ROUNDS 20 /* of 5 ms: those that are ending anyway are not called left behind */
#define END_MS 20000       /* a process that hangs in the kernel cannot be killed */

bool kbare_is(const struct ktask *t) {
    return t->start->class_name && !strcmp(t->start->class_name, "bare-metal");
}

__attribute__((format(printf, 2, 3))) static void say(struct ktask *t, const char *fmt, ...) {
    va_list ap;
    if (t->n_wiped == VG_COUNT(t->wiped))
        return;
    va_start(ap, fmt);
    vsnprintf(t->wiped[t->n_wiped++], sizeof(t->wiped[0]), fmt, ap);
    va_end(ap);
}

static void look(struct vg_sandbox *sb, struct vg_left *ret) {
    for (int i = 0;; i++) {
        vg_sandbox_left(sb, ret);
        if (!ret->processes || ret->processes == UINT32_MAX || i == STRAGGLE_ROUNDS)
            return;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
}

static void say_processes(struct ktask *t, const struct vg_left *left) {
    if (left->processes == UINT32_MAX)
        say(t, "processes: whatever was left was killed");
    else if (left->processes)
        say(t, "processes: %u left behind, killed", left->processes);
    else
        say(t, "processes: none left behind");
}

static void say_files(struct ktask *t, const struct vg_left *left) {
    char size[32];
    say(t, "files: %s in /tmp, /var/tmp, /run, /dev/shm and the copy of the root thrown away",
        vg_format_size(left->scratch_bytes, size, sizeof(size)));
    if (left->sysv == UINT32_MAX)
        say(t, "shared memory, semaphores and queues: those of its own namespace removed");
    else if (left->queues == UINT32_MAX)
        say(t, "shared memory, semaphores and queues: %u System V removed, and POSIX queues",
            left->sysv);
    else
        say(t, "shared memory, semaphores and queues: %u System V, %u POSIX removed", left->sysv,
            left->queues);
}

void kbare_end(struct keeper *k, struct ktask *t) {
    struct vg_left left = {.processes = UINT32_MAX, .sysv = UINT32_MAX, .queues = UINT32_MAX};
    if (!kbare_is(t) || !k->sb || t->n_wiped)
        return;
    if (!k->sb_dead)
        look(k->sb, &left);
    int r = vg_sandbox_end(k->sb, END_MS);
    if (r < 0)
        say(t, "!processes: some cannot be killed (%s); the node must be restarted", strerror(-r));
    else
        say_processes(t, &left);
    say_files(t, &left);
}

/* Everything that its files were needed for is done. */
void kbare_let_go(struct keeper *k, struct ktask *t) {
    if (kbare_is(t) && k->sb)
        vg_sandbox_let_go(k->sb);
}
