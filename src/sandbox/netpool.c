/* Network namespaces for tasks. See netpool.h.

   A slot, seen from inside:              from the host:
     eth0  100.x.y.z/32                     vg<tag>-<number in hex>, no address
     default via 169.254.1.1 onlink         100.x.y.z/32 dev vg<tag>-<number>
     lo    127.0.0.1, ::1

   There is no bridge (it has 1,024 ports at most): a slot is a veth pair, and the host routes to
   it. Both ends know each other's hardware address for good, so that there is no ARP and no limit
   of a neighbour table. Tasks have no IPv6 but ::1. A task may bind any port and ping.

   The namespace belongs to the host's user namespace: root inside a task's user namespace has no
   power over it, so that a task cannot change its address, rules or routes.

   What a task reaches: the world through NAT, and the host at the host's own addresses (a service
   that listens on all of them is reachable; the host's firewall decides, as for any neighbour).
   Not: other tasks of this or any other cloud, clouds' metadata addresses, the host's loopback.
   Nobody outside opens a connection to a task; the host itself can. A host firewall whose forward
   chain drops by default must let "vg*" links pass: a drop elsewhere is final in netfilter,
   whatever we accept.

   Invariants
     1. The calling thread leaves its network namespace only inside enter_new(), and is back when
   that returns.
     2. A slot is in `slots` from its making to its end; in `idle` too exactly when it is free.
     3. A namespace serves one user for its whole life.
     4. Numbers are taken round-robin, so that an address rests before it is used again: the kernel
        removes a dropped namespace, and with it both ends of its link, some time after the close.

   One thread (the agent's); getting a free slot and giving one back make no system call. */
#include "sandbox/netpool-int.h"

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/if_link.h>
#include <linux/ip.h>
#include <linux/mount.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <linux/veth.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#define ETH_INDEX 64 /* above the tunnel links that a new namespace may come with */
#define LO_INDEX 1
#define PROC_USES 32
#define TRIES 32 /* numbers whose dying link is still there */

enum slot_state {
    SLOT_ORPHAN,  /* its link was there when we opened */
    SLOT_CLAIMED, /* a living keeper of a former agent has it */
    SLOT_BUSY,
    SLOT_IDLE,
};

struct slot {
    uint32_t index, user;
    enum slot_state state;
    int netns_fd; /* owned; -1 unless busy or idle */
    int ifindex;  /* of the host's end */
    struct vg_list in_idle;
};

static void link_name(const struct vg_netpool *p, uint32_t index, char out[static IFNAMSIZ]) {
    snprintf(out, IFNAMSIZ, "%s%x", p->links, index & 0xffff); /* 15 characters at most */
}

/* Locally administered; the two ends of one pair differ. */
static void hardware_address(uint32_t index, bool inside, uint8_t out[static 6]) {
    uint8_t a[6] = {0x02, 0x76, 0x67, inside, (uint8_t)(index >> 8), (uint8_t)index};
    memcpy(out, a, sizeof a);
}

/* ---- making a slot ---- */

/* The kernel keeps the names below /proc/sys/net once for each namespace, all in one hash chain, so
   that opening one takes longer with every namespace. A procfs of our own that is thrown away now
   and then keeps the chain short. Without one (the kernel is too old) the machine's own serves. */
static void renew_proc(struct vg_netpool *p) {
    if (p->proc >= 0 && p->proc_uses++ < PROC_USES)
        return;
    p->proc_uses = 0;
    vg_close(&p->proc);
    vg_auto_fd int fs = (int)syscall(SYS_fsopen, "proc", FSOPEN_CLOEXEC);
    if (fs >= 0 && syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) >= 0)
        p->proc = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, 0);
    if (p->proc < 0)
        p->proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
}

static int write_setting(const struct vg_netpool *p, const char *name, const char *value) {
    char path[96];
    snprintf(path, sizeof path, "sys/net/%s", name);
    vg_auto_fd int fd = openat(p->proc, path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    return write(fd, value, strlen(value)) < 0 ? -errno : 0;
}

/* Settings of the namespace the thread is in; must come before its links do. */
static int write_settings(const struct vg_netpool *p) {
    int r = write_setting(p, "ipv4/ip_unprivileged_port_start", "0");
    if (r >= 0)
        r = write_setting(p, "ipv4/ping_group_range", "0 2147483647");
    if (r >= 0 && p->ipv6)
        r = write_setting(p, "ipv6/conf/default/disable_ipv6", "1");
    return r;
}

/* A new namespace, its settings, and a socket that talks to it. */
static int enter_new(struct vg_netpool *p, int *ret_fd, struct vg_nl *ret_nl) {
    int r = vg_fault("netpool.unshare");
    if (r < 0)
        return r;
    renew_proc(p);
    if (unshare(CLONE_NEWNET) < 0)
        return -errno;
    struct vg_nl nl = {.fd = -1};
    int fd = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    r = fd < 0 ? -errno : write_settings(p);
    if (r >= 0)
        r = vg_nl_open(&nl, NETLINK_ROUTE);
    if (setns(p->home, CLONE_NEWNET) < 0)
        abort(); /* lost in a task's network: nothing after this could be right */
    if (r < 0) {
        vg_close(&fd);
        return r;
    }
    *ret_fd = fd;
    *ret_nl = nl;
    return 0;
}

/* What both ends have: a name, a hardware address, the uplink's MTU, and one queue (the default is
   one a processor, which is slow to make and big). */
static void put_end(const struct vg_netpool *p, uint32_t index, const char *name, bool inside) {
    struct vg_nlb *b = (struct vg_nlb *)&p->b;
    uint8_t mac[6];
    hardware_address(index, inside, mac);
    vg_nlb_str(b, IFLA_IFNAME, name);
    vg_nlb_attr(b, IFLA_ADDRESS, mac, sizeof mac);
    vg_nlb_u32(b, IFLA_MTU, p->mtu);
    vg_nlb_u32(b, IFLA_NUM_TX_QUEUES, 1);
    vg_nlb_u32(b, IFLA_NUM_RX_QUEUES, 1);
}

/* eth0 inside, up, and its peer straight in the host's namespace, still down. */
static void put_pair(struct vg_netpool *p, uint32_t index) {
    struct vg_nlb *b = &p->b;
    char name[IFNAMSIZ];
    link_name(p, index, name);
    vg_net_link_begin(b, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, ETH_INDEX, true);
    put_end(p, index, "eth0", true);
    size_t info = vg_nlb_nest(b, IFLA_LINKINFO);
    vg_nlb_str(b, IFLA_INFO_KIND, "veth");
    size_t data = vg_nlb_nest(b, IFLA_INFO_DATA);
    size_t peer = vg_nlb_nest(b, VETH_INFO_PEER);
    struct ifinfomsg i = {0};
    vg_nlb_raw(b, &i, sizeof i);
    put_end(p, index, name, false);
    vg_nlb_u32(b, IFLA_NET_NS_FD, (uint32_t)p->home);
    vg_nlb_end(b, peer);
    vg_nlb_end(b, data);
    vg_nlb_end(b, info);
}

static void put_neighbour(struct vg_nlb *b, int ifindex, uint32_t addr, const uint8_t mac[6]) {
    struct ndmsg n = {.ndm_family = AF_INET, .ndm_ifindex = ifindex, .ndm_state = NUD_PERMANENT};
    vg_nlb_begin(b, RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, &n, sizeof n);
    vg_nlb_u32(b, NDA_DST, htonl(addr));
    vg_nlb_attr(b, NDA_LLADDR, mac, 6);
}

/* Everything inside, in one message train. -EEXIST: the host's end of that name exists. */
static int furnish(struct vg_netpool *p, struct vg_nl *inside, uint32_t index) {
    struct vg_nlb *b = &p->b;
    uint32_t addr = htonl(p->base + index);
    uint8_t mac[6];
    hardware_address(index, false, mac);
    vg_nlb_reset(b);
    put_pair(p, index);
    vg_net_link_begin(b, RTM_SETLINK, 0, LO_INDEX, true);
    struct ifaddrmsg a = {.ifa_family = AF_INET, .ifa_prefixlen = 32, .ifa_index = ETH_INDEX};
    vg_nlb_begin(b, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &a, sizeof a);
    vg_nlb_u32(b, IFA_LOCAL, addr);
    vg_nlb_u32(b, IFA_ADDRESS, addr);
    put_neighbour(b, ETH_INDEX, VG_NET_GATEWAY, mac);
    struct rtmsg r = {
        .rtm_family = AF_INET,
        .rtm_table = RT_TABLE_MAIN,
        .rtm_protocol = RTPROT_STATIC,
        .rtm_type = RTN_UNICAST,
        .rtm_flags = RTNH_F_ONLINK,
    };
    vg_nlb_begin(b, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, &r, sizeof r);
    vg_nlb_u32(b, RTA_GATEWAY, htonl(VG_NET_GATEWAY));
    vg_nlb_u32(b, RTA_OIF, ETH_INDEX);
    return vg_nl_send(inside, b, NULL);
}

/* The host's end: forwards, takes packets from its own slot only, may reach the resolver that the
   rules translate to; then up, and routed. */
static int attach(struct vg_netpool *p, struct slot *s) {
    struct vg_nlb *b = &p->b;
    struct ifreq ifr = {0};
    uint8_t mac[6];
    link_name(p, s->index, ifr.ifr_name);
    if (ioctl(p->rt.fd, SIOCGIFINDEX, &ifr) < 0)
        return -errno;
    s->ifindex = ifr.ifr_ifindex;
    hardware_address(s->index, true, mac);
    vg_nlb_reset(b);
    vg_net_link_begin(b, RTM_SETLINK, 0, s->ifindex, false); /* settings first: up comes too soon */
    struct vg_net_conf c = vg_net_conf_begin(b);
    vg_nlb_u32(b, IPV4_DEVCONF_FORWARDING, 1);
    vg_nlb_u32(b, IPV4_DEVCONF_RP_FILTER, 1);
    vg_nlb_u32(b, IPV4_DEVCONF_ROUTE_LOCALNET, 1);
    vg_net_conf_end(b, c, p->ipv6);
    vg_net_link_begin(b, RTM_SETLINK, 0, s->ifindex, true);
    put_neighbour(b, s->ifindex, p->base + s->index, mac);
    vg_net_route(b, RTM_NEWROUTE, p->base + s->index, 32, s->ifindex, 0);
    return vg_nl_send(&p->rt, b, NULL);
}

/* eth0 came up before its peer: the kernel starts its queue in the background, and drops packets
   until then. Asking for the link's state makes it do so now (where the kernel is new enough). */
static void settle(struct vg_nl *inside) {
    struct ethtool_value v = {.cmd = ETHTOOL_GLINK};
    struct ifreq ifr = {.ifr_name = "eth0", .ifr_data = (void *)&v};
    if (ioctl(inside->fd, SIOCETHTOOL, &ifr) < 0)
        return; /* it settles by itself */
}

static uint32_t next_index(struct vg_netpool *p) {
    for (uint32_t i = 0; i < p->last; i++) {
        p->cursor = p->cursor % p->last + 1;
        if (!vg_map_get_u64(&p->slots, p->cursor))
            return p->cursor;
    }
    return 0;
}

static int explain(const struct vg_netpool *p, int r, struct vg_err *err) {
    if (r == -ENOSPC)
        return vg_err_set(err, VG_NO_CAPACITY, "all %u task networks of this machine are in use",
                          p->last);
    if (r == -EOPNOTSUPP)
        return vg_err_set(err, VG_UNSUPPORTED,
                          "the kernel cannot make veth links: load the module veth, or set "
                          "'network: host' or 'network: none'");
    return vg_err_sys(err, r, "cannot make a network for a task");
}

static int build(struct vg_netpool *p, struct slot *s) {
    struct vg_nl inside;
    int r = enter_new(p, &s->netns_fd, &inside);
    if (r < 0)
        return r;
    for (int i = 0; i < TRIES; i++) {
        s->index = next_index(p);
        r = s->index ? furnish(p, &inside, s->index) : -ENOSPC;
        if (r != -EEXIST)
            break;
    }
    if (r >= 0)
        r = attach(p, s);
    if (r >= 0)
        settle(&inside);
    vg_nl_close(&inside);
    return r;
}

/* A dropped namespace takes both ends of its link with it. */
static void slot_free(struct slot *s) {
    if (!s)
        return;
    vg_list_remove(&s->in_idle);
    vg_close(&s->netns_fd);
    free(s);
}

static struct slot *slot_new(enum slot_state state) {
    struct slot *s = vg_alloc(sizeof *s);
    if (!s)
        return NULL;
    s->state = state;
    s->netns_fd = -1;
    vg_list_init(&s->in_idle);
    return s;
}

static int slot_make(struct vg_netpool *p, uint32_t user, struct slot **ret, struct vg_err *err) {
    struct slot *s = slot_new(SLOT_BUSY);
    int r = s ? build(p, s) : -ENOMEM;
    if (r >= 0)
        r = vg_map_put_u64(&p->slots, s->index, s);
    if (r < 0) {
        slot_free(s);
        return explain(p, r, err);
    }
    s->user = user;
    *ret = s;
    return 0;
}

static void slot_drop(struct vg_netpool *p, struct slot *s) {
    if (s->state == SLOT_IDLE)
        p->n_idle--;
    vg_map_del_u64(&p->slots, s->index);
    slot_free(s);
}

/* ---- the pool ---- */

int vg_netpool_get(struct vg_netpool *p, uint32_t user, struct vg_net_slot *ret,
                   struct vg_err *err) {
    struct slot *s = NULL;
    vg_list_for_each (it, &p->idle) {
        struct slot *free_one = vg_list_entry(it, struct slot, in_idle);
        if (free_one->user == user) {
            s = free_one;
            break;
        }
    }
    if (s) {
        vg_list_remove(&s->in_idle);
        p->n_idle--;
        s->state = SLOT_BUSY;
    } else {
        int r = slot_make(p, user, &s, err);
        if (r < 0)
            return r;
    }
    uint32_t a = p->base + s->index;
    *ret = (struct vg_net_slot){.index = s->index, .netns_fd = s->netns_fd};
    snprintf(ret->address, sizeof ret->address, "%u.%u.%u.%u", a >> 24, a >> 16 & 255, a >> 8 & 255,
             a & 255);
    return 0;
}

void vg_netpool_put(struct vg_netpool *p, uint32_t index) {
    struct slot *s = vg_map_get_u64(&p->slots, index);
    if (!s)
        return;
    if (s->state == SLOT_CLAIMED) {
        vg_net_doom(p, &s->ifindex, 1);
        slot_drop(p, s);
    } else if (s->state == SLOT_BUSY) {
        s->state = SLOT_IDLE;
        vg_list_push_front(&p->idle, &s->in_idle);
        if (++p->n_idle > VG_NET_KEEP)
            slot_drop(p, vg_list_entry(p->idle.prev, struct slot, in_idle));
    }
}

int vg_netpool_claim(struct vg_netpool *p, uint32_t index) {
    struct slot *s = vg_map_get_u64(&p->slots, index);
    if (!s)
        return -ENOENT;
    if (s->state != SLOT_ORPHAN)
        return -EBUSY;
    s->state = SLOT_CLAIMED;
    return 0;
}

void vg_netpool_sweep(struct vg_netpool *p) {
    vg_auto_free int *doomed = vg_alloc((vg_map_len(&p->slots) + 1) * sizeof *doomed);
    if (!doomed)
        return;
    size_t n = 0;
    vg_map_for_each (m, &p->slots) {
        struct slot *s = m->value;
        if (s->state != SLOT_ORPHAN)
            continue;
        doomed[n++] = s->ifindex;
        slot_drop(p, s);
    }
    if (n)
        vg_net_doom(p, doomed, n);
}

const char *vg_netpool_resolv_conf(struct vg_netpool *p) {
    int r = vg_net_dns_load(&p->dns);
    if (r > 0)
        r = vg_net_host_rules(p);
    if (r < 0)
        vg_debug("resolver rules not renewed error=%s", strerror(-r));
    return p->dns.text ? p->dns.text : "";
}

/* ---- opening and closing ---- */

static int note_orphan(struct vg_netpool *p, const struct vg_net_link *l, void *arg) {
    (void)arg;
    uint32_t index = vg_net_link_slot(p, l->name);
    struct slot *s = index ? vg_map_get_u64(&p->slots, index) : NULL;
    if (!index)
        return 0;
    if (s) { /* the dump was started over */
        s->ifindex = l->ifindex;
        return 0;
    }
    s = slot_new(SLOT_ORPHAN);
    if (!s)
        return -ENOMEM;
    s->index = index;
    s->ifindex = l->ifindex;
    int r = vg_map_put_u64(&p->slots, index, s);
    if (r < 0)
        slot_free(s);
    return r;
}

static int set_names(struct vg_netpool *p, const char *tag) {
    size_t n = strlen(tag);
    if (n < 4 || n > 8)
        return -EINVAL;
    p->mark = 2166136261u;
    for (const char *c = tag; *c; c++) {
        if (!isxdigit((unsigned char)*c) || isupper((unsigned char)*c))
            return -EINVAL;
        p->mark = (p->mark ^ (uint8_t)*c) * 16777619u;
    }
    p->mark |= 1; /* 0 would be no metric at all */
    p->doom_group = p->mark >> 1 | 0x40000000u;
    snprintf(p->tag, sizeof p->tag, "%s", tag);
    snprintf(p->links, sizeof p->links, "vg%s-", tag);
    snprintf(p->table, sizeof p->table, "virga_%s", tag);
    return 0;
}

void vg_netpool_leave(struct vg_netpool *p) {
    if (!p)
        return;
    vg_map_for_each (m, &p->slots)
        slot_free(m->value);
    vg_map_done(&p->slots);
    vg_net_dns_done(&p->dns);
    vg_nlb_done(&p->b);
    vg_nl_close(&p->rt);
    vg_nl_close(&p->nf);
    vg_close(&p->alive);
    vg_close(&p->home);
    vg_close(&p->proc);
    free(p);
}

static int fill(struct vg_netpool *p, const char *subnet, struct vg_err *err) {
    p->home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    if (p->home < 0)
        return vg_err_sys(err, errno, "cannot open this machine's network namespace");
    int r = vg_nl_open(&p->rt, NETLINK_ROUTE);
    if (r >= 0)
        r = vg_net_dns_load(&p->dns);
    if (r < 0)
        return vg_err_sys(err, r, "cannot prepare networks for tasks");
    r = vg_net_host_open(p, subnet, err);
    if (r < 0)
        return r;
    r = vg_net_links(p, note_orphan, NULL);
    return r < 0 ? vg_err_sys(err, r, "cannot list this machine's links") : 0;
}

int vg_netpool_open(const char *tag, const char *subnet, struct vg_netpool **ret,
                    struct vg_err *err) {
    struct vg_netpool *p = vg_alloc(sizeof *p);
    if (!p)
        return vg_err_sys(err, ENOMEM, "cannot prepare networks for tasks");
    p->alive = p->home = p->proc = p->rt.fd = p->nf.fd = -1;
    vg_list_init(&p->idle);
    int r = set_names(p, tag);
    if (r < 0)
        r = vg_err_set(err, VG_INVALID, "'%.20s' is no tag: it takes 4 to 8 hex digits", tag);
    else
        r = fill(p, subnet, err);
    if (r < 0) {
        if (p->rt.fd >= 0 && vg_net_links(p, note_orphan, NULL) >= 0 && !vg_map_len(&p->slots))
            vg_net_host_close(p); /* what a former agent left for its living tasks stays */
        vg_netpool_leave(p);
        return r;
    }
    *ret = p;
    return 0;
}

void vg_netpool_close(struct vg_netpool *p) {
    if (!p)
        return;
    /* Every link of ours, also those of slots that are gone but not yet cleaned up. */
    vg_net_links(p, note_orphan, NULL);
    vg_map_for_each (m, &p->slots)
        ((struct slot *)m->value)->state = SLOT_ORPHAN;
    vg_netpool_sweep(p);
    vg_net_host_close(p);
    vg_netpool_leave(p);
}
