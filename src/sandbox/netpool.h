#pragma once
/* Network namespaces with a way out: each has a veth pair, an address of its own, and NAT on the
   host; the cloud metadata addresses are blocked. All by netlink and system calls. A namespace is
   made ahead of need and reused for the same user only. Owned by the agent; one thread. */
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct vg_netpool;

struct vg_net_slot {
    uint32_t index;   /* its number: address = base + index */
    int netns_fd;     /* owned by the pool; join it before entering a user namespace */
    char address[32]; /* "10.89.3.4" */
};

/* `tag`: 4 to 8 hex digits that tell this cloud's links and tables from others'. `subnet` NULL
   picks a /16 out of 100.64.0.0/10 by tag that no route of the host uses. Creates the nftables
   table, turns forwarding on for its own links. */
int vg_netpool_open(const char *tag, const char *subnet, struct vg_netpool **ret,
                    struct vg_err *err);
/* Removes every link, table and rule of this tag. */
void vg_netpool_close(struct vg_netpool *p);
/* Forgets the pool and leaves the rules and the links in use as they are, for the next open of this
   tag (the agent restarts, keepers live on). NULL is fine. */
void vg_netpool_leave(struct vg_netpool *p);

/* A namespace for `user` (id slot): a free one of the same user, else a new one. */
int vg_netpool_get(struct vg_netpool *p, uint32_t user, struct vg_net_slot *ret,
                   struct vg_err *err);
/* Gives it back when the sandbox is gone. The 64 used last are kept, each for the same user; others
   end when nobody holds their descriptor, so that a process forked without exec must close those it
   inherited. */
void vg_netpool_put(struct vg_netpool *p, uint32_t index);
/* After an agent restart: this slot is in use by a living keeper (its namespace lives there). Such
   a slot has no netns_fd and is destroyed, not reused, when put. */
int vg_netpool_claim(struct vg_netpool *p, uint32_t index);
/* After all claims: removes links of slots nobody claimed. */
void vg_netpool_sweep(struct vg_netpool *p);
/* resolv.conf text that works inside (loopback resolvers of the host are replaced). Follows changes
   of the host's. Borrowed until the next call. */
const char *vg_netpool_resolv_conf(struct vg_netpool *p);
