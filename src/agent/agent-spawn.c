/* The birth of a keeper: its network, its profile, and what of the agent's descriptors the child
   may keep. Loop thread.

   The child must hold nothing of the agent: a keeper that kept the lock, a listening socket or the
   end of another keeper's pair would outlive the agent with it. It keeps stderr, its own end of the
   pair, its network namespace, and what the sandbox node has open. The node does not tell its
   descriptors; they are noted when it opens them. Descriptors are given out from the lowest free
   number, so those that are open after a call and were among the lowest free ones before are new.
 */
#include "agent/agent-int.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/util.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/magic.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/vfs.h>
#include <unistd.h>

#define OWN_FDS_MAX 32 /* that the sandbox node needs for one profile */

struct keep {
    const struct vg_agent *agent;
    const struct vg_sandbox_profile *profile;
    int fd[VG_AGENT_KEEP_FDS + OWN_FDS_MAX + 2];
    size_t n;
};

void vg_agent_note_fds_begin(struct vg_agent_fresh *f) {
    f->n = 0;
    while (f->n < VG_AGENT_FRESH_FDS &&
           (f->fd[f->n] = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)) >= 0)
        f->n++;
    for (size_t i = 0; i < f->n; i++)
        close(f->fd[i]);
}

static bool is_kept(const struct vg_agent *a, int fd) {
    for (size_t i = 0; i < a->n_keep_fds; i++)
        if (a->keep_fds[i] == fd)
            return true;
    return false;
}

void vg_agent_note_fds_end(struct vg_agent *a, const struct vg_agent_fresh *f) {
    for (size_t i = 0; i < f->n; i++)
        if (fcntl(f->fd[i], F_GETFD) >= 0 && !is_kept(a, f->fd[i]) &&
            a->n_keep_fds < VG_AGENT_KEEP_FDS)
            a->keep_fds[a->n_keep_fds++] = f->fd[i];
}

/* The node closes namespaces of users who have not come for long; their numbers are given to other
   things. A user or mount namespace is the node's; nothing else of the agent's is one. */
static bool still_the_nodes(int fd) {
    struct statfs fs;
    if (fstatfs(fd, &fs) < 0 || fs.f_type != NSFS_MAGIC)
        return false;
    int type = ioctl(fd, NS_GET_NSTYPE);
    return type == CLONE_NEWUSER || type == CLONE_NEWNS;
}

static int by_number(const void *a, const void *b) {
    return *(const int *)a - *(const int *)b;
}

/* In the child, first thing. */
static void close_others(int keep_fd, void *user) {
    struct keep *keep = user;
    const struct vg_agent *a = keep->agent;
    keep->fd[keep->n++] = keep_fd;
    for (size_t i = 0; i < a->n_keep_fds; i++)
        if (i < a->n_fixed_fds || still_the_nodes(a->keep_fds[i]))
            keep->fd[keep->n++] = a->keep_fds[i];
    /* What was noted may lack one: a thread of the loop's can close a descriptor in between, whose
       number is then none of those that were free before. */
    size_t own = vg_sandbox_node_fds(a->node, keep->profile, keep->fd + keep->n, OWN_FDS_MAX);
    keep->n += VG_MIN(own, (size_t)OWN_FDS_MAX);
    qsort(keep->fd, keep->n, sizeof(int), by_number);
    unsigned from = 3;
    for (size_t i = 0; i < keep->n; i++) {
        unsigned fd = (unsigned)keep->fd[i];
        if (fd < from)
            continue;
        if (fd > from)
            close_range(from, fd - 1, 0);
        from = fd + 1;
    }
    close_range(from, ~0U, 0);
}

static int take_network(struct vg_agent *a, const struct vg_warm_key *key,
                        struct vg_sandbox_profile *profile, uint32_t *ret_slot,
                        struct vg_err *err) {
    struct vg_net_slot slot;
    *ret_slot = UINT32_MAX;
    profile->netns_fd = key->net == VG_NET_HOST ? -1 : -2;
    if (key->net != VG_NET_NAT)
        return 0;
    if (!a->net)
        return vg_err_set(err, VG_UNAVAILABLE, "%s", a->net_error);
    int r = vg_netpool_get(a->net, key->slot, &slot, err);
    if (r < 0)
        return r;
    profile->netns_fd = slot.netns_fd;
    profile->resolv_conf = vg_netpool_resolv_conf(a->net);
    *ret_slot = slot.index;
    return 0;
}

/* Made here once, every keeper of this user inherits it; else each would make its own. */
static void warm_node(struct vg_agent *a, const struct vg_sandbox_profile *profile) {
    struct vg_agent_fresh fresh;
    struct vg_err err = VG_ERR_INIT;
    vg_agent_note_fds_begin(&fresh);
    if (vg_sandbox_node_warm(a->node, profile, &err) < 0)
        vg_debug("cannot warm the node: %s", err.msg);
    vg_agent_note_fds_end(a, &fresh);
}

int vg_keeper_birth(struct vg_agent *a, const struct vg_warm_key *key, struct vg_agent_keeper *k,
                    struct vg_err *err) {
    struct vg_keeper_birth birth = {
        .node = a->node,
        .node_dir = a->node_dir,
        .keepers_dir = a->keepers_dir,
        .lease_path = a->lease_path,
        .profile = {.slot = key->slot,
                    .uid = key->uid,
                    .gid = key->gid,
                    .local_root = key->local_root,
                    .home = key->home},
        .serial = k->serial,
        .log_head_bytes = a->log_head_bytes,
        .log_tail_bytes = a->log_tail_bytes,
        .gpus = &a->gpus,
    };
    if (key->mirrored) {
        vg_fslink_fs_conf(a, key->slot, &birth.fs);
        birth.libraries = (const char *const *)a->driver.path;
        birth.n_libraries = a->driver.n;
    }
    int r = take_network(a, key, &birth.profile, &k->net_slot, err);
    if (r < 0)
        return r;
    birth.net_slot = k->net_slot;
    warm_node(a, &birth.profile);
    struct keep keep = {.agent = a, .profile = &birth.profile};
    if (birth.profile.netns_fd >= 0)
        keep.fd[keep.n++] = birth.profile.netns_fd;
    r = vg_keeper_spawn(&birth, close_others, &keep, &k->pid, &k->fd, err);
    if (r < 0 && k->net_slot != UINT32_MAX)
        vg_netpool_put(a->net, k->net_slot);
    return r;
}

int vg_agent_run(const char *program, const char *const *argv, char *const *env, const int fds[3],
                 bool session, pid_t *ret) {
    posix_spawn_file_actions_t act;
    posix_spawnattr_t attr;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    if (posix_spawn_file_actions_init(&act) != 0 || posix_spawnattr_init(&attr) != 0)
        return -ENOMEM;
    short flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF;
    posix_spawnattr_setflags(&attr, (short)(session ? flags | POSIX_SPAWN_SETSID : flags));
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    for (int i = 0; i < 3; i++)
        posix_spawn_file_actions_adddup2(&act, fds[i], i);
    int r = posix_spawn(ret, program, &act, &attr, (char *const *)argv, env);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&act);
    return -r;
}
