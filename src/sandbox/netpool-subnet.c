/* The subnet of a cloud's tasks. The reservation is an unreachable route to the whole subnet, with
   our protocol number and a metric made from the tag: other clouds see it, a restarted agent finds
   its own by it, and packets to slots that do not exist end here. Nothing is kept on disk. */
#include "sandbox/netpool-int.h"

#include "base/util.h"

#include <arpa/inet.h>
#include <linux/rtnetlink.h>
#include <stdio.h>

#define POOL_NET 0x64400000u /* 100.64.0.0/10 */
#define POOL_BITS 10
#define AUTO_BITS 16
#define AUTO_COUNT (1u << (AUTO_BITS - POOL_BITS))

void vg_net_route(struct vg_nlb *b, uint16_t type, uint32_t net, unsigned bits, int ifindex,
                  uint32_t metric) {
    uint32_t dst = htonl(net);
    struct rtmsg r = {
        .rtm_family = AF_INET,
        .rtm_dst_len = (uint8_t)bits,
        .rtm_table = RT_TABLE_MAIN,
        .rtm_protocol = VG_NET_PROTO,
        .rtm_scope = ifindex ? RT_SCOPE_LINK : RT_SCOPE_UNIVERSE,
        .rtm_type = ifindex ? RTN_UNICAST : RTN_UNREACHABLE,
    };
    vg_nlb_begin(b, type, type == RTM_NEWROUTE ? NLM_F_CREATE | NLM_F_EXCL : 0, &r, sizeof r);
    vg_nlb_u32(b, RTA_DST, dst);
    if (ifindex)
        vg_nlb_u32(b, RTA_OIF, (uint32_t)ifindex);
    if (metric)
        vg_nlb_u32(b, RTA_PRIORITY, metric);
}

/* What the routes say about one candidate. */
struct probe {
    struct vg_netpool *p;
    uint32_t net;
    unsigned bits;
    bool after; /* our reservation stands: of two on one subnet the smaller metric keeps it */
    bool taken;
    bool own; /* our reservation was seen, at: */
    uint32_t own_net;
    unsigned own_bits;
    int uplink; /* link of the best default route, and its metric */
    uint32_t uplink_metric;
};

static bool overlap(uint32_t a, unsigned a_bits, uint32_t b, unsigned b_bits) {
    unsigned bits = VG_MIN(a_bits, b_bits);
    return bits == 0 || (a ^ b) >> (32 - bits) == 0;
}

static int read_route(const struct nlmsghdr *h, void *arg) {
    struct probe *q = arg;
    const struct rtmsg *r = NLMSG_DATA(h);
    if (h->nlmsg_type != RTM_NEWROUTE || h->nlmsg_len < NLMSG_LENGTH(sizeof *r))
        return 0;
    uint32_t net = ntohl(vg_nla_u32(vg_nla_find(h, sizeof *r, RTA_DST)));
    uint32_t metric = vg_nla_u32(vg_nla_find(h, sizeof *r, RTA_PRIORITY));
    int oif = (int)vg_nla_u32(vg_nla_find(h, sizeof *r, RTA_OIF));
    if (r->rtm_dst_len == 0 && oif && (!q->uplink || metric < q->uplink_metric)) {
        q->uplink = oif;
        q->uplink_metric = metric;
    }
    bool reserved = r->rtm_protocol == VG_NET_PROTO && r->rtm_type == RTN_UNREACHABLE;
    if (reserved && metric == q->p->mark) {
        q->own = true;
        q->own_net = net;
        q->own_bits = r->rtm_dst_len;
        return 0;
    }
    /* Routes to slots lie inside a reservation: those of others are seen by it. */
    if (r->rtm_protocol == VG_NET_PROTO && r->rtm_type == RTN_UNICAST)
        return 0;
    /* Wider routes than a whole private range are ways out, like the default route. */
    if (r->rtm_dst_len < 8 || !overlap(net, r->rtm_dst_len, q->net, q->bits))
        return 0;
    if (!(q->after && reserved && metric > q->p->mark))
        q->taken = true;
    return 0;
}

static int probe_routes(struct probe *q) {
    struct rtmsg r = {.rtm_family = AF_INET};
    q->taken = q->own = false;
    q->uplink = 0;
    vg_nlb_reset(&q->p->b);
    vg_nlb_begin(&q->p->b, RTM_GETROUTE, 0, &r, sizeof r);
    return vg_nl_dump(&q->p->rt, &q->p->b, read_route, q);
}

static int change_reservation(struct vg_netpool *p, uint16_t type, uint32_t net, unsigned bits) {
    vg_nlb_reset(&p->b);
    vg_net_route(&p->b, type, net, bits, 0, p->mark);
    int r = vg_nl_send(&p->rt, &p->b, NULL);
    return r == -EEXIST || r == -ESRCH ? 0 : r;
}

/* Reserves the candidate. 1: ours, 0: somebody else's. */
static int try_subnet(struct probe *q) {
    for (size_t i = 0; i < vg_net_n_blocked; i++)
        if (overlap(q->net, q->bits, vg_net_blocked[i].net, vg_net_blocked[i].bits))
            return 0;
    int r = probe_routes(q);
    if (r < 0 || q->taken)
        return r < 0 ? r : 0;
    if (q->own && (q->own_net != q->net || q->own_bits != q->bits))
        change_reservation(q->p, RTM_DELROUTE, q->own_net, q->own_bits);
    r = change_reservation(q->p, RTM_NEWROUTE, q->net, q->bits);
    if (r < 0)
        return r;
    q->after = true;
    r = probe_routes(q);
    q->after = false;
    if (r >= 0 && !q->taken)
        return 1;
    change_reservation(q->p, RTM_DELROUTE, q->net, q->bits);
    return r < 0 ? r : 0;
}

static int parse_subnet(const char *text, struct probe *q, struct vg_err *err) {
    char addr[INET_ADDRSTRLEN] = "";
    unsigned bits = 0;
    struct in_addr a;
    char rest;
    if (sscanf(text, "%15[0-9.]/%u%c", addr, &bits, &rest) != 2 ||
        inet_pton(AF_INET, addr, &a) != 1 || bits < 8 || bits > 28 ||
        (ntohl(a.s_addr) << bits) != 0)
        return vg_err_set(err, VG_INVALID,
                          "'%.40s' is no subnet for tasks: give an IPv4 network from /8 to /28, "
                          "such as 10.89.0.0/16",
                          text);
    q->net = ntohl(a.s_addr);
    q->bits = bits;
    return 0;
}

static int try_all(struct probe *q, uint32_t first) {
    int r = 0;
    for (uint32_t i = 0; i < AUTO_COUNT && r == 0; i++) {
        q->net = POOL_NET + (((first + i) % AUTO_COUNT) << (32 - AUTO_BITS));
        r = try_subnet(q);
    }
    return r;
}

static int choose_subnet(struct probe *q, const char *subnet, struct vg_err *err) {
    int r = 0;
    if (subnet) {
        r = parse_subnet(subnet, q, err);
        if (r < 0)
            return r;
        r = try_subnet(q);
        if (r == 0)
            return vg_err_set(
                err, VG_CONFLICT,
                "subnet %s for tasks overlaps a route of this machine or a metadata address: "
                "choose another",
                subnet);
    } else {
        q->bits = AUTO_BITS;
        r = probe_routes(q); /* after a restart: where the living slots are */
        uint32_t first = q->p->mark;
        if (q->own && overlap(q->own_net, q->own_bits, POOL_NET, POOL_BITS))
            first = (q->own_net - POOL_NET) >> (32 - AUTO_BITS);
        r = r < 0 ? r : try_all(q, first);
        if (r == 0 && vg_net_owner_reap(q->p) > 0)
            r = try_all(q, first);
        if (r == 0)
            return vg_err_set(err, VG_CONFLICT,
                              "every part of 100.64.0.0/10 is routed already: set a free subnet "
                              "for tasks in the configuration");
    }
    return r < 0 ? vg_err_sys(err, r, "cannot reserve a subnet for tasks") : 0;
}

int vg_net_subnet_take(struct vg_netpool *p, const char *subnet, int *ret_uplink,
                       struct vg_err *err) {
    struct probe q = {.p = p};
    int r = choose_subnet(&q, subnet, err);
    if (r < 0)
        return r;
    p->base = q.net;
    p->bits = q.bits;
    p->last = VG_MIN((1u << (32 - q.bits)) - 2, 0xffffu);
    *ret_uplink = q.uplink;
    return 0;
}

void vg_net_subnet_give_back(struct vg_netpool *p) {
    if (p->bits)
        change_reservation(p, RTM_DELROUTE, p->base, p->bits);
}
