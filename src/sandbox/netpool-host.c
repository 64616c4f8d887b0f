/* What the pool needs of the host, once: a subnet, forwarding, and the rules.

   Subnet. See netpool-subnet.c.

   Forwarding. A reply comes in by an uplink, so that the uplink must forward too, but the kernel
   asks the incoming link only, never net.ipv4.ip_forward. So that global switch is left as it is:
   when it is off, forwarding is turned on for each link by itself, and the table `virga_guard` (one
   a host, shared by all its clouds) keeps dropping what would be forwarded between those links, as
   before. A link's chain "on-<link>" there remembers that its forwarding was turned on by us. The
   last cloud to close turns it off and removes the guard, unless somebody turned on the global
   switch meanwhile. A link that appears later takes part from the next open on. */
#include "sandbox/netpool-int.h"

#include "base/mem.h"
#include "base/util.h"

#include <arpa/inet.h>
#include <linux/if_link.h>
#include <linux/ip.h>
#include <linux/rtnetlink.h>
#include <stdio.h>
#include <string.h>

#define GUARD "virga_guard"
#define GUARD_MARK "on-"
#define GUARD_LINKS_MAX 256
#define MTU_DEFAULT 1500

const struct vg_net_range vg_net_blocked[] = {
    {0xa9fe0000u, 16}, /* 169.254.0.0/16: metadata of nearly every cloud, task roles */
    {0x646464c8u, 32}, /* 100.100.100.200: Alibaba */
    {0xa83f8110u, 32}, /* 168.63.129.16: Azure's wire server */
    {0xc00000c0u, 32}, /* 192.0.0.192: Oracle */
};
const size_t vg_net_n_blocked = VG_COUNT(vg_net_blocked);

/* ---- links ---- */

uint32_t vg_net_link_slot(const struct vg_netpool *p, const char *name) {
    size_t n = strlen(p->links);
    if (strncmp(name, p->links, n) != 0)
        return 0;
    char *end;
    unsigned long v = strtoul(name + n, &end, 16);
    return *end || end == name + n || v > 0xffff ? 0 : (uint32_t)v;
}

/* Reads the per-family part: does it speak IPv4, IPv6, and does it forward IPv4. */
static void read_families(const struct nlattr *spec, struct vg_net_link *l) {
    if (!spec)
        return;
    for (const struct nlattr *f = NULL;
         (f = vg_nla_next(f, vg_nla_data(spec), vg_nla_len(spec)));) {
        unsigned family = f->nla_type & NLA_TYPE_MASK;
        l->ipv6 |= family == AF_INET6;
        if (family != AF_INET)
            continue;
        l->ipv4 = true;
        for (const struct nlattr *c = NULL; (c = vg_nla_next(c, vg_nla_data(f), vg_nla_len(f)));) {
            int32_t on = 0;
            size_t at = (IPV4_DEVCONF_FORWARDING - 1) * sizeof on;
            if ((c->nla_type & NLA_TYPE_MASK) != IFLA_INET_CONF || vg_nla_len(c) < at + sizeof on)
                continue;
            memcpy(&on, (const char *)vg_nla_data(c) + at, sizeof on);
            l->forwards = on != 0;
        }
    }
}

struct link_dump {
    struct vg_netpool *p;
    vg_net_link_each *each;
    void *arg;
};

static int read_link(const struct nlmsghdr *h, void *arg) {
    struct link_dump *d = arg;
    const struct ifinfomsg *i = NLMSG_DATA(h);
    if (h->nlmsg_type != RTM_NEWLINK || h->nlmsg_len < NLMSG_LENGTH(sizeof *i))
        return 0;
    struct vg_net_link l = {
        .name = vg_nla_str(vg_nla_find(h, sizeof *i, IFLA_IFNAME)),
        .ifindex = i->ifi_index,
        .flags = i->ifi_flags,
        .mtu = vg_nla_u32(vg_nla_find(h, sizeof *i, IFLA_MTU)),
    };
    read_families(vg_nla_find(h, sizeof *i, IFLA_AF_SPEC), &l);
    return d->each(d->p, &l, d->arg);
}

int vg_net_links(struct vg_netpool *p, vg_net_link_each *each, void *arg) {
    struct link_dump d = {p, each, arg};
    struct ifinfomsg i = {0};
    vg_nlb_reset(&p->b);
    vg_nlb_begin(&p->b, RTM_GETLINK, 0, &i, sizeof i);
    vg_nlb_u32(&p->b, IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
    return vg_nl_dump(&p->rt, &p->b, read_link, &d);
}

void vg_net_link_begin(struct vg_nlb *b, uint16_t type, unsigned flags, int ifindex, bool up) {
    struct ifinfomsg i = {.ifi_index = ifindex};
    if (up)
        i.ifi_flags = i.ifi_change = IFF_UP;
    vg_nlb_begin(b, type, flags, &i, sizeof i);
}

struct vg_net_conf vg_net_conf_begin(struct vg_nlb *b) {
    struct vg_net_conf c = {.spec = vg_nlb_nest(b, IFLA_AF_SPEC)};
    c.family = vg_nlb_nest(b, AF_INET);
    c.conf = vg_nlb_nest(b, IFLA_INET_CONF);
    return c;
}

void vg_net_conf_end(struct vg_nlb *b, struct vg_net_conf c, bool no_ipv6) {
    vg_nlb_end(b, c.conf);
    vg_nlb_end(b, c.family);
    if (no_ipv6) {
        size_t family = vg_nlb_nest(b, AF_INET6);
        vg_nlb_u8(b, IFLA_INET6_ADDR_GEN_MODE, IN6_ADDR_GEN_MODE_NONE);
        vg_nlb_end(b, family);
    }
    vg_nlb_end(b, c.spec);
}

void vg_net_doom(struct vg_netpool *p, const int *ifindexes, size_t n) {
    /* Each on its own: one that vanished meanwhile must not keep the others. */
    vg_nlb_reset(&p->b);
    for (size_t i = 0; i < n; i++) {
        vg_net_link_begin(&p->b, RTM_SETLINK, 0, ifindexes[i], false);
        vg_nlb_u32(&p->b, IFLA_GROUP, p->doom_group);
    }
    vg_net_link_begin(&p->b, RTM_DELLINK, 0, 0, false);
    vg_nlb_u32(&p->b, IFLA_GROUP, p->doom_group);
    vg_nl_send(&p->rt, &p->b, NULL);
}

/* ---- forwarding ---- */

struct uplinks {
    int uplink; /* in: whose MTU we want */
    char names[GUARD_LINKS_MAX][IFNAMSIZ];
    int ifindexes[GUARD_LINKS_MAX];
    size_t n;
};

/* Links of the host that do not forward yet. */
static int note_link(struct vg_netpool *p, const struct vg_net_link *l, void *arg) {
    struct uplinks *u = arg;
    p->ipv6 |= l->ipv6;
    if (l->ifindex == u->uplink && l->mtu >= 576)
        p->mtu = l->mtu;
    if (l->flags & IFF_LOOPBACK || strncmp(l->name, "vg", 2) == 0 || !l->ipv4 || l->forwards)
        return 0;
    for (size_t i = 0; i < u->n; i++)
        if (u->ifindexes[i] == l->ifindex)
            return 0;
    if (u->n == GUARD_LINKS_MAX)
        return -E2BIG;
    u->ifindexes[u->n] = l->ifindex;
    snprintf(u->names[u->n++], IFNAMSIZ, "%s", l->name);
    return 0;
}

/* The global switch: 1 on, 0 off. */
static int global_forwarding(void) {
    vg_auto_free char *text = NULL;
    size_t n;
    int r = vg_read_file("/proc/sys/net/ipv4/ip_forward", 16, &text, &n);
    return r < 0 ? r : text[0] != '0';
}

static void set_forwarding(struct vg_nlb *b, int ifindex, const char *name, uint32_t on) {
    vg_net_link_begin(b, RTM_SETLINK, 0, ifindex, false);
    if (!ifindex)
        vg_nlb_str(b, IFLA_IFNAME, name);
    struct vg_net_conf c = vg_net_conf_begin(b);
    vg_nlb_u32(b, IPV4_DEVCONF_FORWARDING, on);
    vg_net_conf_end(b, c, false);
}

/* The guard stands before forwarding starts. */
static int install_guard(struct vg_netpool *p, const struct uplinks *u) {
    struct vg_nlb *b = &p->b;
    vg_nft_begin(b);
    vg_nft_table(b, GUARD);
    vg_nft_chain(b, GUARD, "forward", "filter", NF_INET_FORWARD, -10);
    vg_nft_chain(b, GUARD, "known", NULL, 0, 0);
    for (size_t i = 0; i < u->n; i++) {
        char chain[sizeof GUARD_MARK + IFNAMSIZ];
        snprintf(chain, sizeof chain, GUARD_MARK "%s", u->names[i]);
        vg_nft_chain(b, GUARD, chain, NULL, 0, 0);
        vg_nft_rule(b, GUARD, chain);
        vg_nft_verdict(b, NFT_JUMP, "known");
        vg_nft_rule_end(b);
        vg_nft_rule(b, GUARD, "forward");
        vg_nft_match_iif(b, u->names[i], false, VG_NFT_EQ);
        vg_nft_verdict(b, NFT_JUMP, chain);
        vg_nft_rule_end(b);
        vg_nft_rule(b, GUARD, "known");
        vg_nft_match_oif(b, u->names[i], false, VG_NFT_EQ);
        vg_nft_verdict(b, NF_DROP, NULL);
        vg_nft_rule_end(b);
    }
    return vg_nft_commit(&p->nf, b);
}

static int start_forwarding(struct vg_netpool *p, int uplink) {
    vg_auto_free struct uplinks *u = vg_alloc(sizeof *u);
    if (!u)
        return -ENOMEM;
    u->uplink = uplink;
    p->mtu = MTU_DEFAULT;
    int global = global_forwarding();
    int r = global < 0 ? global : vg_net_links(p, note_link, u);
    if (r < 0 || u->n == 0 || global)
        return r;
    r = install_guard(p, u);
    if (r < 0)
        return r;
    vg_nlb_reset(&p->b);
    for (size_t i = 0; i < u->n; i++)
        set_forwarding(&p->b, u->ifindexes[i], NULL, 1);
    return vg_nl_send(&p->rt, &p->b, NULL);
}

struct clouds {
    const struct vg_netpool *p;
    bool others, guard;
};

static int note_table(const char *name, void *arg) {
    struct clouds *c = arg;
    if (strcmp(name, GUARD) == 0)
        c->guard = true;
    else if (strncmp(name, "virga_", 6) == 0 && strcmp(name, c->p->table) != 0)
        c->others = true;
    return 0;
}

static int note_guarded(const char *name, void *arg) {
    struct uplinks *u = arg;
    size_t n = strlen(GUARD_MARK);
    if (strncmp(name, GUARD_MARK, n) == 0 && u->n < GUARD_LINKS_MAX)
        snprintf(u->names[u->n++], IFNAMSIZ, "%s", name + n);
    return 0;
}

static void stop_forwarding(struct vg_netpool *p) {
    struct clouds c = {.p = p};
    if (vg_nft_tables(&p->nf, &p->b, note_table, &c) < 0 || c.others || !c.guard)
        return;
    vg_auto_free struct uplinks *u = vg_alloc(sizeof *u);
    if (u && global_forwarding() == 0 &&
        vg_nft_chains(&p->nf, &p->b, GUARD, note_guarded, u) >= 0) {
        vg_nlb_reset(&p->b);
        for (size_t i = 0; i < u->n; i++)
            set_forwarding(&p->b, 0, u->names[i], 0);
        vg_nl_send(&p->rt, &p->b, NULL);
    }
    vg_nft_begin(&p->b);
    vg_nft_table_del(&p->b, GUARD);
    vg_nft_commit(&p->nf, &p->b);
}

/* ---- the rules ---- */

static void drop(struct vg_nlb *b) {
    vg_nft_verdict(b, NF_DROP, NULL);
    vg_nft_rule_end(b);
}

/* Before anything else sees the packet: no forged source, no metadata, nothing of the host's
   loopback. A resolver inside a blocked range (some clouds have it there) keeps its port 53. */
static void rules_first(struct vg_netpool *p, struct vg_nlb *b) {
    static const uint8_t protos[] = {IPPROTO_UDP, IPPROTO_TCP};
    vg_nft_chain(b, p->table, "first", "filter", NF_INET_PRE_ROUTING, -300);
    vg_nft_rule(b, p->table, "first");
    vg_nft_match_iif(b, p->links, true, VG_NFT_NOT);
    vg_nft_verdict(b, NF_ACCEPT, NULL);
    vg_nft_rule_end(b);
    vg_nft_rule(b, p->table, "first");
    vg_nft_match_addr(b, VG_NFT_SADDR, p->base, p->bits, VG_NFT_NOT);
    drop(b);
    for (size_t i = 0; i <= p->dns.n_excepted; i++) {
        uint32_t open = i < p->dns.n_excepted ? p->dns.excepted[i] : VG_NET_GATEWAY;
        for (size_t k = 0; k < VG_COUNT(protos); k++) {
            vg_nft_rule(b, p->table, "first");
            vg_nft_match_addr(b, VG_NFT_DADDR, open, 32, VG_NFT_EQ);
            vg_nft_match_dport(b, protos[k], 53);
            vg_nft_verdict(b, NF_ACCEPT, NULL);
            vg_nft_rule_end(b);
        }
    }
    for (size_t i = 0; i < vg_net_n_blocked; i++) {
        vg_nft_rule(b, p->table, "first");
        vg_nft_match_addr(b, VG_NFT_DADDR, vg_net_blocked[i].net, vg_net_blocked[i].bits,
                          VG_NFT_EQ);
        drop(b);
    }
    vg_nft_rule(b, p->table, "first");
    vg_nft_match_addr(b, VG_NFT_DADDR, 127u << 24, 8, VG_NFT_EQ);
    drop(b);
}

/* Tasks reach the world and the host, never each other nor another cloud's tasks; towards tasks
   only answers pass. */
static void rules_forward(struct vg_netpool *p, struct vg_nlb *b) {
    vg_nft_chain(b, p->table, "forward", "filter", NF_INET_FORWARD, 0);
    vg_nft_rule(b, p->table, "forward");
    vg_nft_match_iif(b, "vg", true, VG_NFT_EQ);
    vg_nft_match_oif(b, p->links, true, VG_NFT_EQ);
    drop(b);
    vg_nft_rule(b, p->table, "forward");
    vg_nft_match_oif(b, p->links, true, VG_NFT_EQ);
    vg_nft_match_known(b);
    vg_nft_verdict(b, NF_ACCEPT, NULL);
    vg_nft_rule_end(b);
    vg_nft_rule(b, p->table, "forward");
    vg_nft_match_oif(b, p->links, true, VG_NFT_EQ);
    drop(b);
}

static void rules_nat(struct vg_netpool *p, struct vg_nlb *b) {
    static const uint8_t protos[] = {IPPROTO_UDP, IPPROTO_TCP};
    vg_nft_chain(b, p->table, "source", "nat", NF_INET_POST_ROUTING, 100);
    vg_nft_rule(b, p->table, "source");
    vg_nft_match_addr(b, VG_NFT_SADDR, p->base, p->bits, VG_NFT_EQ);
    vg_nft_match_oif(b, p->links, true, VG_NFT_NOT);
    vg_nft_masquerade(b);
    vg_nft_rule_end(b);
    if (!p->dns.loopback)
        return;
    vg_nft_chain(b, p->table, "resolver", "nat", NF_INET_PRE_ROUTING, -100);
    for (size_t k = 0; k < VG_COUNT(protos); k++) {
        vg_nft_rule(b, p->table, "resolver");
        vg_nft_match_iif(b, p->links, true, VG_NFT_EQ);
        vg_nft_match_addr(b, VG_NFT_DADDR, VG_NET_GATEWAY, 32, VG_NFT_EQ);
        vg_nft_match_dport(b, protos[k], 53);
        vg_nft_dnat(b, p->dns.loopback, 53);
        vg_nft_rule_end(b);
    }
}

int vg_net_host_rules(struct vg_netpool *p) {
    struct vg_nlb *b = &p->b;
    vg_nft_begin(b);
    vg_nft_table(b, p->table); /* so that there is one to delete */
    vg_nft_table_del(b, p->table);
    vg_nft_table(b, p->table);
    rules_first(p, b);
    rules_forward(p, b);
    rules_nat(p, b);
    return vg_nft_commit(&p->nf, b);
}

/* ---- all of it ---- */

static int open_nf(struct vg_netpool *p) {
    int r = vg_nl_open(&p->nf, NETLINK_NETFILTER);
    struct clouds c = {.p = p};
    return r < 0 ? r : vg_nft_tables(&p->nf, &p->b, note_table, &c);
}

static int no_tables(struct vg_err *err, int r) {
    if (r == -EPERM)
        return vg_err_set(
            err, VG_NEEDS_ROOT,
            "tasks get no network of their own without root: start the agent as root, "
            "or set 'network: host' or 'network: none'");
    if (r == -ENOMEM)
        return vg_err_sys(err, r, "cannot install the network rules of tasks");
    return vg_err_set(
        err, VG_UNSUPPORTED,
        "the kernel refuses nf_tables rules (%s): load nf_tables, nft_masq, nft_nat and "
        "nft_ct, or set 'network: host' or 'network: none'",
        strerror(-r));
}

int vg_net_host_open(struct vg_netpool *p, const char *subnet, struct vg_err *err) {
    int r = open_nf(p);
    if (r < 0)
        return no_tables(err, r);
    int uplink = 0;
    vg_net_owner_hold(p);
    r = vg_net_subnet_take(p, subnet, &uplink, err);
    if (r < 0)
        return r == -EPERM ? no_tables(err, r) : r;
    r = vg_net_host_rules(p);
    if (r < 0)
        return no_tables(err, r);
    r = start_forwarding(p, uplink);
    return r < 0 ? vg_err_sys(err, r, "cannot turn on forwarding for tasks") : 0;
}

void vg_net_host_close(struct vg_netpool *p) {
    vg_net_subnet_give_back(p);
    if (p->nf.fd < 0)
        return;
    vg_nft_begin(&p->b);
    vg_nft_table(&p->b, p->table);
    vg_nft_table_del(&p->b, p->table);
    vg_nft_commit(&p->nf, &p->b);
    stop_forwarding(p);
}
