/* Which reservations nobody holds any more. A cloud that was killed leaves its reserving route, and
   there are only so many subnets. So a pool holds a name in the host's network namespace, an
   abstract socket, which goes with the agent's process; a reservation without such a name, and
   without links of slots in its subnet (keepers live on without their agent), is nobody's. */
#include "sandbox/netpool-int.h"

#include "base/cleanup.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/rtnetlink.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

#define RESERVED_MAX 256

static int bind_name(uint32_t mark) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "virga-net-%08x", mark);
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    vg_auto_fd int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, len) < 0)
        return -errno;
    return vg_take_fd(fd);
}

void vg_net_owner_hold(struct vg_netpool *p) {
    int fd = bind_name(p->mark); /* a process of the former agent may hold it still: as good */
    if (fd >= 0)
        p->alive = fd;
}

static bool lives(uint32_t mark) {
    vg_auto_fd int fd = bind_name(mark);
    return fd < 0; /* whatever the reason: nothing is taken from somebody who may live */
}

struct reserved {
    uint32_t net, mark;
    unsigned bits;
    bool used; /* by links of slots */
};

struct survey {
    struct reserved list[RESERVED_MAX];
    size_t n;
    bool slots; /* second round */
};

static int note(const struct nlmsghdr *h, void *arg) {
    struct survey *s = arg;
    const struct rtmsg *r = NLMSG_DATA(h);
    if (h->nlmsg_type != RTM_NEWROUTE || h->nlmsg_len < NLMSG_LENGTH(sizeof *r) ||
        r->rtm_protocol != VG_NET_PROTO)
        return 0;
    uint32_t net = ntohl(vg_nla_u32(vg_nla_find(h, sizeof *r, RTA_DST)));
    uint32_t mark = vg_nla_u32(vg_nla_find(h, sizeof *r, RTA_PRIORITY));
    if (!s->slots && r->rtm_type == RTN_UNREACHABLE && s->n < RESERVED_MAX)
        s->list[s->n++] = (struct reserved){net, mark, r->rtm_dst_len, false};
    if (!s->slots || r->rtm_type != RTN_UNICAST)
        return 0;
    for (size_t i = 0; i < s->n; i++) {
        struct reserved *e = &s->list[i];
        if (e->bits && e->bits <= r->rtm_dst_len && (e->net ^ net) >> (32 - e->bits) == 0)
            e->used = true;
    }
    return 0;
}

static int dump(struct vg_netpool *p, struct survey *s) {
    struct rtmsg r = {.rtm_family = AF_INET};
    vg_nlb_reset(&p->b);
    vg_nlb_begin(&p->b, RTM_GETROUTE, 0, &r, sizeof r);
    return vg_nl_dump(&p->rt, &p->b, note, s);
}

int vg_net_owner_reap(struct vg_netpool *p) {
    struct survey s = {.n = 0};
    int freed = 0, r = dump(p, &s);
    s.slots = true;
    if (r >= 0)
        r = dump(p, &s);
    for (size_t i = 0; i < s.n && r >= 0; i++) {
        const struct reserved *e = &s.list[i];
        if (e->used || e->mark == p->mark || lives(e->mark))
            continue;
        vg_nlb_reset(&p->b);
        vg_net_route(&p->b, RTM_DELROUTE, e->net, e->bits, 0, e->mark);
        freed += vg_nl_send(&p->rt, &p->b, NULL) >= 0;
    }
    return r < 0 ? r : freed;
}
