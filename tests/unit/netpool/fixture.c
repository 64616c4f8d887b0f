#include "fixture.h"

#include "base/cleanup.h"
#include "base/util.h"
#include "sandbox/nft.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <fcntl.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>

void write_text(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    cr_assert(fd >= 0, "%s: %m", path);
    cr_assert(write(fd, text, strlen(text)) == (ssize_t)strlen(text), "%s: %m", path);
    close(fd);
}

void enter(int netns) {
    cr_assert(setns(netns, CLONE_NEWNET) == 0, "setns: %m");
}

static int new_namespace(void) {
    cr_assert(unshare(CLONE_NEWNET) == 0, "unshare: %m");
    int fd = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    cr_assert(fd >= 0);
    return fd;
}

/* ---- netlink by hand ---- */

static void send_in(int netns, struct vg_nlb *b, const char *what) {
    int here = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    struct vg_nl nl;
    enter(netns);
    cr_assert(vg_nl_open(&nl, NETLINK_ROUTE) == 0);
    int r = vg_nl_send(&nl, b, NULL);
    cr_assert(r == 0, "%s: %s", what, strerror(-r));
    vg_nl_close(&nl);
    vg_nlb_done(b);
    enter(here);
    close(here);
}

static int index_in(int netns, const char *link) {
    int here = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    enter(netns);
    int index = (int)if_nametoindex(link);
    enter(here);
    close(here);
    cr_assert(index > 0, "no link %s", link);
    return index;
}

static void link_up(int netns, const char *link) {
    struct vg_nlb b = {0};
    struct ifinfomsg i = {
        .ifi_index = index_in(netns, link), .ifi_flags = IFF_UP, .ifi_change = IFF_UP};
    vg_nlb_begin(&b, RTM_SETLINK, 0, &i, sizeof i);
    send_in(netns, &b, "link up");
}

void add_address(int netns, const char *link, const char *address, unsigned bits) {
    struct vg_nlb b = {0};
    struct in_addr a;
    inet_pton(AF_INET, address, &a);
    struct ifaddrmsg m = {.ifa_family = AF_INET,
                          .ifa_prefixlen = (uint8_t)bits,
                          .ifa_index = (uint32_t)index_in(netns, link)};
    vg_nlb_begin(&b, RTM_NEWADDR, NLM_F_CREATE, &m, sizeof m);
    vg_nlb_u32(&b, IFA_LOCAL, a.s_addr);
    vg_nlb_u32(&b, IFA_ADDRESS, a.s_addr);
    send_in(netns, &b, "address");
}

void add_route(int netns, const char *net, unsigned bits, const char *via) {
    struct vg_nlb b = {0};
    struct in_addr n, v;
    inet_pton(AF_INET, net, &n);
    inet_pton(AF_INET, via, &v);
    struct rtmsg m = {.rtm_family = AF_INET,
                      .rtm_dst_len = (uint8_t)bits,
                      .rtm_table = RT_TABLE_MAIN,
                      .rtm_protocol = RTPROT_STATIC,
                      .rtm_type = RTN_UNICAST};
    vg_nlb_begin(&b, RTM_NEWROUTE, NLM_F_CREATE, &m, sizeof m);
    vg_nlb_u32(&b, RTA_DST, n.s_addr);
    vg_nlb_u32(&b, RTA_GATEWAY, v.s_addr);
    send_in(netns, &b, "route");
}

static void add_pair(int netns, const char *name, int peer_netns, const char *peer) {
    struct vg_nlb b = {0};
    struct ifinfomsg i = {0};
    vg_nlb_begin(&b, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &i, sizeof i);
    vg_nlb_str(&b, IFLA_IFNAME, name);
    size_t info = vg_nlb_nest(&b, IFLA_LINKINFO);
    vg_nlb_str(&b, IFLA_INFO_KIND, "veth");
    size_t data = vg_nlb_nest(&b, IFLA_INFO_DATA);
    size_t other = vg_nlb_nest(&b, VETH_INFO_PEER);
    vg_nlb_raw(&b, &i, sizeof i);
    vg_nlb_str(&b, IFLA_IFNAME, peer);
    vg_nlb_u32(&b, IFLA_NET_NS_FD, (uint32_t)peer_netns);
    vg_nlb_end(&b, other);
    vg_nlb_end(&b, data);
    vg_nlb_end(&b, info);
    send_in(netns, &b, "veth pair");
}

/* ---- the world ---- */

int world_neighbour(struct world *w, unsigned n) {
    char link[IFNAMSIZ], here[32], there[32];
    snprintf(link, sizeof link, "up%u", n & 255);
    snprintf(here, sizeof here, "10.250.%u.1", n & 255);
    snprintf(there, sizeof there, "10.250.%u.2", n & 255);
    int netns = new_namespace();
    enter(w->host);
    link_up(netns, "lo");
    add_pair(w->host, link, netns, "out");
    link_up(w->host, link);
    link_up(netns, "out");
    add_address(w->host, link, here, 24);
    add_address(netns, "out", there, 24);
    return netns;
}

void world_open(struct world *w) {
    if (geteuid() != 0 || unshare(CLONE_NEWNS) < 0)
        cr_skip_test("needs root, to make network namespaces");
    cr_assert(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    w->host = new_namespace();
    write_text("/proc/sys/net/ipv4/ip_forward", "0"); /* whatever the machine's is */
    link_up(w->host, "lo");
    w->outside = world_neighbour(w, 0);
    add_address(w->outside, "lo", METADATA_ADDR, 32);
    add_route(w->host, "0.0.0.0", 0, OUTSIDE_ADDR);
}

/* ---- sockets ---- */

static int socket_in(struct world *w, int netns, int type) {
    enter(netns);
    int fd = socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    enter(w->host);
    cr_assert(fd >= 0, "socket: %m");
    return fd;
}

static struct sockaddr_in address_of(const char *addr, uint16_t port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    cr_assert(inet_pton(AF_INET, addr, &a.sin_addr) == 1);
    return a;
}

int listen_in(struct world *w, int netns, const char *addr, uint16_t port) {
    int fd = socket_in(w, netns, SOCK_STREAM), on = 1;
    struct sockaddr_in a = address_of(addr, port);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    cr_assert(bind(fd, (struct sockaddr *)&a, sizeof a) == 0, "bind %s: %m", addr);
    cr_assert(listen(fd, 16) == 0);
    return fd;
}

int bind_udp_in(struct world *w, int netns, const char *addr, uint16_t port) {
    int fd = socket_in(w, netns, SOCK_DGRAM);
    struct sockaddr_in a = address_of(addr, port);
    cr_assert(bind(fd, (struct sockaddr *)&a, sizeof a) == 0, "bind %s: %m", addr);
    return fd;
}

bool reaches(struct world *w, int from, const char *addr, int listener, enum patience patience,
             char peer[32]) {
    struct sockaddr_in at;
    socklen_t n = sizeof at;
    cr_assert(getsockname(listener, (struct sockaddr *)&at, &n) == 0);
    struct sockaddr_in to = address_of(addr, ntohs(at.sin_port));
    int fd = socket_in(w, from, SOCK_STREAM);
    connect(fd, (struct sockaddr *)&to, sizeof to);
    struct pollfd p = {.fd = listener, .events = POLLIN};
    bool came = poll(&p, 1, patience == MUST_FAIL ? 300 : 20000) == 1;
    if (came) {
        int conn = accept(listener, (struct sockaddr *)&at, &n);
        cr_assert(conn >= 0, "accept: %m");
        inet_ntop(AF_INET, &at.sin_addr, peer, 32);
        close(conn);
    }
    close(fd);
    return came;
}

/* ---- rules and state ---- */

static void commit_in(struct world *w, struct vg_nlb *b) {
    struct vg_nl nl;
    enter(w->host);
    cr_assert(vg_nl_open(&nl, NETLINK_NETFILTER) == 0);
    int r = vg_nft_commit(&nl, b);
    cr_assert(r == 0, "rules: %s", strerror(-r));
    vg_nl_close(&nl);
    vg_nlb_done(b);
}

void drop_table(struct world *w, const char *table) {
    struct vg_nlb b = {0};
    vg_nft_begin(&b);
    vg_nft_table_del(&b, table);
    commit_in(w, &b);
}

void only_translate(struct world *w, const char *table) {
    struct vg_nlb b = {0};
    vg_nft_begin(&b);
    vg_nft_table_del(&b, table);
    vg_nft_table(&b, table);
    vg_nft_chain(&b, table, "source", "nat", NF_INET_POST_ROUTING, 100);
    vg_nft_rule(&b, table, "source");
    vg_nft_match_oif(&b, "up", true, VG_NFT_EQ);
    vg_nft_masquerade(&b);
    vg_nft_rule_end(&b);
    commit_in(w, &b);
}

static int note_link(const struct nlmsghdr *h, void *arg) {
    const struct ifinfomsg *i = NLMSG_DATA(h);
    char path[64], on[4] = "";
    const char *name = vg_nla_str(vg_nla_find(h, sizeof *i, IFLA_IFNAME));
    snprintf(path, sizeof path, "/proc/sys/net/ipv4/conf/%.16s/forwarding", name);
    vg_auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, on, 1) != 1)
        return 0; /* it went away meanwhile */
    return vg_buf_printf(arg, "link %s forwards %s\n", name, on);
}

static int note_route(const struct nlmsghdr *h, void *arg) {
    const struct rtmsg *r = NLMSG_DATA(h);
    uint32_t dst = ntohl(vg_nla_u32(vg_nla_find(h, sizeof *r, RTA_DST)));
    return vg_buf_printf(arg, "route %08x/%u type %u oif %u\n", dst, r->rtm_dst_len, r->rtm_type,
                         vg_nla_u32(vg_nla_find(h, sizeof *r, RTA_OIF)));
}

static int note_table(const char *name, void *arg) {
    return vg_buf_printf(arg, "table %s\n", name);
}

void snapshot(struct world *w, struct vg_buf *out) {
    struct vg_nlb b = {0};
    struct vg_nl rt, nf;
    struct ifinfomsg i = {0};
    struct rtmsg r = {.rtm_family = AF_INET};
    enter(w->host);
    cr_assert(vg_nl_open(&rt, NETLINK_ROUTE) == 0 && vg_nl_open(&nf, NETLINK_NETFILTER) == 0);
    vg_buf_clear(out);
    vg_nlb_begin(&b, RTM_GETLINK, 0, &i, sizeof i);
    cr_assert(vg_nl_dump(&rt, &b, note_link, out) == 0);
    vg_nlb_reset(&b);
    vg_nlb_begin(&b, RTM_GETROUTE, 0, &r, sizeof r);
    cr_assert(vg_nl_dump(&rt, &b, note_route, out) == 0);
    cr_assert(vg_nft_tables(&nf, &b, note_table, out) == 0);
    vg_buf_append(out, "", 1);
    vg_nlb_done(&b);
    vg_nl_close(&rt);
    vg_nl_close(&nf);
}
