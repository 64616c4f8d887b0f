/* The birth of a keeper: its network, its profile, and what of the agent's descriptors the child
   may keep. Loop thread.

   The child must hold nothing of the agent: a keeper that kept the lock, a listening socket or the
   end of another keeper's pair would outlive the agent with it. It keeps what the sandbox node
   opened (noted at the start), the network namespace, stderr, and its own end of the pair. */
#include "agent/agent-int.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/util.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct keep {
    int fd[VG_AGENT_KEEP_FDS + 2];
    size_t n;
};

/* Called before and after the sandbox node is opened: the difference is the node's. */
void vg_agent_note_fds(struct vg_agent *a, bool before) {
    static bool seen[1024]; /* the first call happens at the start of the program */
    DIR *dir = opendir("/proc/self/fd");
    if (!dir)
        return;
    for (struct dirent *e; (e = readdir(dir));) {
        uint64_t fd;
        if (vg_parse_u64(e->d_name, &fd) < 0 || fd >= VG_COUNT(seen) || fd == (uint64_t)dirfd(dir))
            continue;
        if (before)
            seen[fd] = true;
        else if (!seen[fd] && a->n_keep_fds < VG_AGENT_KEEP_FDS)
            a->keep_fds[a->n_keep_fds++] = (int)fd;
    }
    closedir(dir);
}

static int by_number(const void *a, const void *b) {
    return *(const int *)a - *(const int *)b;
}

/* In the child, first thing. */
static void close_others(int keep_fd, void *user) {
    struct keep *keep = user;
    keep->fd[keep->n++] = keep_fd;
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

int vg_keeper_birth(struct vg_agent *a, const struct vg_warm_key *key, struct vg_agent_keeper *k,
                    struct vg_err *err) {
    struct vg_keeper_birth birth = {
        .node = a->node,
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
    };
    int r = take_network(a, key, &birth.profile, &k->net_slot, err);
    if (r < 0)
        return r;
    birth.net_slot = k->net_slot;
    struct keep keep = {.n = 0};
    memcpy(keep.fd, a->keep_fds, a->n_keep_fds * sizeof(int));
    keep.n = a->n_keep_fds;
    if (birth.profile.netns_fd >= 0)
        keep.fd[keep.n++] = birth.profile.netns_fd;
    r = vg_keeper_spawn(&birth, close_others, &keep, &k->pid, &k->fd, err);
    if (r < 0 && k->net_slot != UINT32_MAX)
        vg_netpool_put(a->net, k->net_slot);
    return r;
}
