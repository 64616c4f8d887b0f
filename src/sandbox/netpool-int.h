#pragma once
/* Inside the network pool: what its files share. netpool.c holds the slots, netpool-host.c
   what the host needs once (forwarding, rules), netpool-subnet.c which addresses are ours,
   netpool-owner.c whose subnets are nobody's, netpool-dns.c the resolver text. */
#include "base/list.h"
#include "base/map.h"
#include "sandbox/netlink.h"
#include "sandbox/netpool.h"
#include "sandbox/nft.h"

#include <net/if.h>
#include <sys/types.h>

#define VG_NET_GATEWAY 0xa9fe0101u /* 169.254.1.1: the way out, as seen from inside */
#define VG_NET_PROTO 118           /* marks our routes (rtm_protocol) */
#define VG_NET_DNS_MAX 8
#define VG_NET_KEEP 64 /* idle slots */

/* An address range that tasks must not reach: where clouds keep their machines' credentials. */
struct vg_net_range {
    uint32_t net;
    unsigned bits;
};
extern const struct vg_net_range vg_net_blocked[];
extern const size_t vg_net_n_blocked;

/* Which file, and which version of it. */
struct vg_net_stamp {
    dev_t dev;
    ino_t ino;
    int64_t size, sec, nsec;
};

struct vg_net_dns {
    char *text;                        /* owned */
    uint32_t loopback;                 /* the host's own resolver to translate to, or 0 */
    uint32_t excepted[VG_NET_DNS_MAX]; /* resolvers inside blocked ranges: port 53 stays open */
    size_t n_excepted;
    struct vg_net_stamp stamps[2]; /* of the files that it may come from */
};

struct vg_netpool {
    char tag[9];
    char links[12]; /* how our links' names begin: "vg<tag>-" */
    char table[16]; /* "virga_<tag>" */
    uint32_t base;
    unsigned bits;
    uint32_t last;       /* the highest slot number */
    uint32_t mark;       /* metric of our reserving route: tells it from other clouds' */
    uint32_t doom_group; /* links put in it are deleted together */
    uint32_t mtu;        /* of the default route's link */
    bool ipv6;           /* the kernel has it */
    int alive;           /* owned: says that this cloud lives, or -1 */
    int home;            /* owned: the host's network namespace */
    int proc;            /* owned: a procfs for settings */
    unsigned proc_uses;
    struct vg_nl rt, nf;
    struct vg_nlb b; /* scratch */
    struct vg_net_dns dns;

    struct vg_map slots; /* struct slot by number */
    struct vg_list idle; /* most recently used first */
    unsigned n_idle;
    uint32_t cursor; /* the number tried last */
};

/* Reads the host's resolv.conf. 1: changed, 0: as before. */
int vg_net_dns_load(struct vg_net_dns *dns);
void vg_net_dns_done(struct vg_net_dns *dns);

/* Takes a subnet, lets packets pass between uplinks and our links, installs the rules. */
int vg_net_host_open(struct vg_netpool *p, const char *subnet, struct vg_err *err);
/* Undoes it; forwarding goes back to what it was when this was the host's last cloud. */
void vg_net_host_close(struct vg_netpool *p);
/* (Re)installs the rules at once. */
int vg_net_host_rules(struct vg_netpool *p);

/* Reserves `subnet`, or (NULL) one that is free; *ret_uplink is the link of the best default route,
   0: there is none. */
int vg_net_subnet_take(struct vg_netpool *p, const char *subnet, int *ret_uplink,
                       struct vg_err *err);
void vg_net_subnet_give_back(struct vg_netpool *p);

/* From now on others see that this cloud lives. */
void vg_net_owner_hold(struct vg_netpool *p);
/* Gives back the subnets of clouds that were killed. Returns how many, or -errno. */
int vg_net_owner_reap(struct vg_netpool *p);

/* A link of the host, by dump. */
struct vg_net_link {
    const char *name; /* borrowed */
    int ifindex;
    uint32_t flags, mtu;
    bool ipv4, ipv6, forwards;
};
typedef int vg_net_link_each(struct vg_netpool *p, const struct vg_net_link *l, void *arg);
int vg_net_links(struct vg_netpool *p, vg_net_link_each *each, void *arg);
/* Our links' slot number, or 0 when it is not our link. */
uint32_t vg_net_link_slot(const struct vg_netpool *p, const char *name);
/* Starts RTM_NEWLINK or RTM_SETLINK for a link; `up` also brings it up. */
void vg_net_link_begin(struct vg_nlb *b, uint16_t type, unsigned flags, int ifindex, bool up);
/* One IPv4 setting of a link (IPV4_DEVCONF_...), inside nests made by vg_net_conf_begin. */
struct vg_net_conf {
    size_t spec, family, conf;
};
struct vg_net_conf vg_net_conf_begin(struct vg_nlb *b);
void vg_net_conf_end(struct vg_nlb *b, struct vg_net_conf c, bool no_ipv6);
/* A route to net/bits in the main table: out of a link, or (ifindex 0) to nowhere. */
void vg_net_route(struct vg_nlb *b, uint16_t type, uint32_t net, unsigned bits, int ifindex,
                  uint32_t metric);
/* Moves the links into the doom group one by one, then deletes the group. */
void vg_net_doom(struct vg_netpool *p, const int *ifindexes, size_t n);
