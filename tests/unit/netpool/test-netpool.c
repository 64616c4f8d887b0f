#include "base/fault.h"
#include "base/util.h"
#include "fixture.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define TAG "7e57"
#define TABLE "virga_7e57"

static struct vg_netpool *open_pool(const char *tag) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_netpool *p = NULL;
    int r = vg_netpool_open(tag, NULL, &p, &err);
    cr_assert(r == 0, "%s", err.msg);
    return p;
}

static struct vg_net_slot get(struct vg_netpool *p, uint32_t user) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_net_slot s;
    int r = vg_netpool_get(p, user, &s, &err);
    cr_assert(r == 0, "%s", err.msg);
    return s;
}

static ino_t here(void) {
    struct stat st;
    cr_assert(stat("/proc/thread-self/ns/net", &st) == 0);
    return st.st_ino;
}

/* Nothing of the pool is left on the host. */
static void expect_as_before(struct world *w, struct vg_buf *before) {
    struct vg_buf after = {0};
    snapshot(w, &after);
    cr_assert_str_eq((char *)vg_buf_data(&after), (char *)vg_buf_data(before));
    vg_buf_done(&after);
}

static bool has_link(struct world *w, const char *tag, uint32_t index) {
    struct vg_buf b = {0};
    char line[32];
    snprintf(line, sizeof line, "link vg%s-%x ", tag, index);
    snapshot(w, &b);
    bool yes = strstr((char *)vg_buf_data(&b), line) != NULL;
    vg_buf_done(&b);
    return yes;
}

Test(netpool, a_slot_reaches_the_world_through_nat) {
    struct world w;
    char peer[32];
    world_open(&w);
    int server = listen_in(&w, w.outside, "0.0.0.0", PORT);
    struct vg_netpool *p = open_pool(TAG);
    struct vg_net_slot s = get(p, 1);
    cr_assert(reaches(&w, s.netns_fd, OUTSIDE_ADDR, server, MUST_WORK, peer));
    cr_assert_str_eq(peer, HOST_ADDR);
    vg_netpool_close(p);
}

Test(netpool, a_slot_and_its_host_reach_each_other) {
    struct world w;
    char peer[32];
    world_open(&w);
    struct vg_netpool *p = open_pool(TAG);
    struct vg_net_slot s = get(p, 1);
    int on_host = listen_in(&w, w.host, HOST_ADDR, PORT);
    int on_slot = listen_in(&w, s.netns_fd, s.address, PORT);
    cr_assert(reaches(&w, s.netns_fd, HOST_ADDR, on_host, MUST_WORK, peer));
    cr_assert_str_eq(peer, s.address);
    cr_assert(reaches(&w, w.host, s.address, on_slot, MUST_WORK, peer));
    vg_netpool_close(p);
}

/* In a child without privileges: low ports, ping, and ::1 work; the address cannot be changed. */
static int unprivileged(int netns) {
    enter(netns);
    if (setgid(65534) < 0 || setuid(65534) < 0)
        return 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(80)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) < 0)
        return 2;
    if (socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP) < 0)
        return 3;
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    fd = socket(AF_INET6, SOCK_STREAM, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&six, sizeof six) < 0)
        return 4;
    inet_pton(AF_INET6, "2001:db8::1", &six.sin6_addr);
    six.sin6_port = htons(80);
    fd = socket(AF_INET6, SOCK_DGRAM, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&six, sizeof six) == 0)
        return 5;
    return 0;
}

Test(netpool, inside_any_port_and_ping_work_and_ipv6_is_loopback_only) {
    struct world w;
    world_open(&w);
    struct vg_netpool *p = open_pool(TAG);
    struct vg_net_slot s = get(p, 1);
    pid_t pid = fork();
    if (pid == 0)
        _exit(unprivileged(s.netns_fd));
    int status = 0;
    cr_assert(waitpid(pid, &status, 0) == pid);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "step %d", WEXITSTATUS(status));
    vg_netpool_close(p);
}

Test(netpool, metadata_addresses_are_blocked) {
    struct world w;
    char peer[32];
    world_open(&w);
    int server = listen_in(&w, w.outside, METADATA_ADDR, 80);
    struct vg_netpool *p = open_pool(TAG);
    struct vg_net_slot s = get(p, 1);
    cr_assert(!reaches(&w, s.netns_fd, METADATA_ADDR, server, MUST_FAIL, peer));
    only_translate(&w, TABLE); /* control */
    cr_assert(reaches(&w, s.netns_fd, METADATA_ADDR, server, MUST_WORK, peer));
    vg_netpool_close(p);
}

Test(netpool, a_metadata_address_on_the_host_itself_is_blocked_too) {
    struct world w;
    char peer[32];
    world_open(&w);
    add_address(w.host, "lo", "169.254.170.2", 32);
    int server = listen_in(&w, w.host, "169.254.170.2", 80);
    struct vg_netpool *p = open_pool(TAG);
    struct vg_net_slot s = get(p, 1);
    cr_assert(!reaches(&w, s.netns_fd, "169.254.170.2", server, MUST_FAIL, peer));
    only_translate(&w, TABLE); /* control */
    cr_assert(reaches(&w, s.netns_fd, "169.254.170.2", server, MUST_WORK, peer));
    vg_netpool_close(p);
}

Test(netpool, slots_do_not_reach_each_other) {
    struct world w;
    char peer[32];
    world_open(&w);
    struct vg_netpool *p = open_pool(TAG);
    struct vg_net_slot a = get(p, 1), b = get(p, 1);
    int server = listen_in(&w, b.netns_fd, b.address, PORT);
    cr_assert(!reaches(&w, a.netns_fd, b.address, server, MUST_FAIL, peer));
    only_translate(&w, TABLE); /* control */
    cr_assert(reaches(&w, a.netns_fd, b.address, server, MUST_WORK, peer));
    vg_netpool_close(p);
}

Test(netpool, nobody_outside_connects_to_a_slot) {
    struct world w;
    char peer[32];
    world_open(&w);
    add_route(w.outside, "100.64.0.0", 10, HOST_ADDR);
    struct vg_netpool *p = open_pool(TAG);
    struct vg_net_slot s = get(p, 1);
    int server = listen_in(&w, s.netns_fd, s.address, PORT);
    cr_assert(!reaches(&w, w.outside, s.address, server, MUST_FAIL, peer));
    drop_table(&w, TABLE); /* control */
    cr_assert(reaches(&w, w.outside, s.address, server, MUST_WORK, peer));
    vg_netpool_close(p);
}

Test(netpool, the_host_does_not_become_a_router) {
    struct world w;
    char peer[32];
    world_open(&w);
    int other = world_neighbour(&w, 1);
    add_route(w.outside, "10.250.1.0", 24, HOST_ADDR);
    add_route(other, "10.250.0.0", 24, "10.250.1.1");
    int server = listen_in(&w, other, "10.250.1.2", PORT);
    struct vg_netpool *p = open_pool(TAG);
    cr_assert(!reaches(&w, w.outside, "10.250.1.2", server, MUST_FAIL, peer));
    drop_table(&w, "virga_guard"); /* control */
    cr_assert(reaches(&w, w.outside, "10.250.1.2", server, MUST_WORK, peer));
    vg_netpool_close(p);
}

Test(netpool, close_leaves_nothing) {
    struct world w;
    struct vg_buf before = {0}, during = {0};
    world_open(&w);
    snapshot(&w, &before);
    struct vg_netpool *p = open_pool(TAG);
    get(p, 1);
    vg_netpool_put(p, get(p, 2).index);
    snapshot(&w, &during);
    vg_netpool_close(p);
    expect_as_before(&w, &before);
    cr_assert_str_neq((char *)vg_buf_data(&during), (char *)vg_buf_data(&before));
    cr_assert_not_null(strstr((char *)vg_buf_data(&during), "table " TABLE));
    cr_assert_not_null(strstr((char *)vg_buf_data(&during), "link up0 forwards 1"));
    vg_buf_done(&before);
    vg_buf_done(&during);
}

Test(netpool, forwarding_that_was_on_stays_on) {
    struct world w;
    struct vg_buf before = {0};
    world_open(&w);
    write_text("/proc/sys/net/ipv4/ip_forward", "1");
    snapshot(&w, &before);
    vg_netpool_close(open_pool(TAG));
    cr_assert_not_null(strstr((char *)vg_buf_data(&before), "link up0 forwards 1"));
    expect_as_before(&w, &before);
    vg_buf_done(&before);
}

Test(netpool, two_hundred_slots_come_and_go) {
    enum { N = 200 };
    struct world w;
    char peer[32];
    struct vg_buf before = {0};
    struct vg_net_slot s[N];
    world_open(&w);
    snapshot(&w, &before);
    int server = listen_in(&w, w.outside, "0.0.0.0", PORT);
    struct vg_netpool *p = open_pool(TAG);
    for (unsigned i = 0; i < N; i++)
        s[i] = get(p, 1);
    for (unsigned i = 0; i < N; i++) {
        for (unsigned k = 0; k < i; k++)
            cr_assert_str_neq(s[i].address, s[k].address);
        cr_assert(reaches(&w, s[i].netns_fd, OUTSIDE_ADDR, server, MUST_WORK, peer), "%u", i);
    }
    for (unsigned i = 0; i < N; i++)
        vg_netpool_put(p, s[i].index);
    vg_netpool_close(p);
    expect_as_before(&w, &before);
    vg_buf_done(&before);
}

Test(netpool, a_namespace_is_reused_by_the_same_user_only) {
    struct world w;
    world_open(&w);
    struct vg_netpool *p = open_pool(TAG);
    uint32_t first = get(p, 1).index;
    vg_netpool_put(p, first);
    vg_netpool_put(p, first); /* giving back twice changes nothing */
    cr_assert_neq(get(p, 2).index, first);
    cr_assert_eq(get(p, 1).index, first);
    cr_assert_neq(get(p, 1).index, first);
    vg_netpool_close(p);
}

Test(netpool, at_most_64_free_ones_are_kept) {
    enum { N = 70 };
    struct world w;
    world_open(&w);
    struct vg_netpool *p = open_pool(TAG);
    uint32_t highest = 0;
    for (unsigned i = 0; i < N; i++)
        highest = get(p, 1).index;
    for (uint32_t i = 1; i <= highest; i++)
        vg_netpool_put(p, i);
    unsigned reused = 0;
    for (unsigned i = 0; i < N; i++)
        reused += get(p, 1).index <= highest;
    cr_assert_eq(reused, 64u);
    vg_netpool_close(p);
}

Test(netpool, after_a_restart_claimed_slots_live_and_others_go) {
    struct world w;
    char peer[32];
    struct vg_buf before = {0};
    world_open(&w);
    snapshot(&w, &before);
    int server = listen_in(&w, w.outside, "0.0.0.0", PORT);
    struct vg_netpool *p = open_pool(TAG);
    struct vg_net_slot living = get(p, 1), dead = get(p, 1);
    int keeper = fcntl(living.netns_fd, F_DUPFD_CLOEXEC, 3);
    int leftover = fcntl(dead.netns_fd, F_DUPFD_CLOEXEC, 3);
    vg_netpool_leave(p);

    p = open_pool(TAG);
    cr_assert(has_link(&w, TAG, living.index) && has_link(&w, TAG, dead.index));
    cr_assert_eq(vg_netpool_claim(p, living.index), 0);
    cr_assert_eq(vg_netpool_claim(p, living.index), -EBUSY);
    cr_assert_eq(vg_netpool_claim(p, 999), -ENOENT);
    struct vg_net_slot fresh = get(p, 1);
    cr_assert(fresh.index != living.index && fresh.index != dead.index);
    vg_netpool_sweep(p);
    cr_assert(has_link(&w, TAG, living.index));
    cr_assert(!has_link(&w, TAG, dead.index));
    cr_assert(reaches(&w, keeper, OUTSIDE_ADDR, server, MUST_WORK, peer));
    cr_assert(reaches(&w, fresh.netns_fd, OUTSIDE_ADDR, server, MUST_WORK, peer));
    vg_netpool_put(p, living.index);
    cr_assert(!has_link(&w, TAG, living.index));
    vg_netpool_close(p);
    expect_as_before(&w, &before);
    vg_buf_done(&before);
    close(keeper);
    close(leftover);
}

Test(netpool, two_clouds_do_not_disturb_each_other) {
    struct world w;
    char peer[32];
    struct vg_buf before = {0};
    world_open(&w);
    snapshot(&w, &before);
    int server = listen_in(&w, w.outside, "0.0.0.0", PORT);
    struct vg_netpool *p = open_pool(TAG), *q = open_pool(TAG "00");
    struct vg_net_slot a = get(p, 1), b = get(q, 1);
    cr_assert_str_neq(a.address, b.address);
    int in_a = listen_in(&w, a.netns_fd, a.address, PORT);
    int in_b = listen_in(&w, b.netns_fd, b.address, PORT);
    cr_assert(!reaches(&w, a.netns_fd, b.address, in_b, MUST_FAIL, peer));
    cr_assert(!reaches(&w, b.netns_fd, a.address, in_a, MUST_FAIL, peer));
    vg_netpool_close(p);
    cr_assert(has_link(&w, TAG "00", b.index));
    cr_assert(reaches(&w, b.netns_fd, OUTSIDE_ADDR, server, MUST_WORK, peer));
    vg_netpool_close(q);
    expect_as_before(&w, &before);
    vg_buf_done(&before);
}

Test(netpool, a_subnet_in_use_is_not_taken) {
    struct world w;
    struct vg_err err = VG_ERR_INIT;
    struct vg_netpool *p = NULL;
    world_open(&w);
    for (unsigned i = 64; i < 128; i++) { /* all parts but one are routed elsewhere */
        char net[32];
        snprintf(net, sizeof net, "100.%u.128.0", i);
        if (i != 99)
            add_route(w.host, net, 20, OUTSIDE_ADDR);
    }
    p = open_pool(TAG);
    cr_assert_eq(strncmp(get(p, 1).address, "100.99.", 7), 0);
    vg_netpool_close(p);
    add_route(w.host, "100.99.0.0", 24, OUTSIDE_ADDR);
    cr_assert_lt(vg_netpool_open(TAG, NULL, &p, &err), 0);
    cr_assert_eq(err.reason, VG_CONFLICT);
    cr_assert_lt(vg_netpool_open(TAG, "10.250.0.0/16", &p, &err), 0);
    cr_assert_eq(err.reason, VG_CONFLICT);
    static const char *const bad[] = {"", "10.0.0.0", "10.0.0.1/16", "10.0.0.0/33", "x", "::/64"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_assert_lt(vg_netpool_open(TAG, bad[i], &p, &err), 0, "%s", bad[i]);
        cr_assert_eq(err.reason, VG_INVALID);
    }
    cr_assert_eq(vg_netpool_open(TAG, "10.89.0.0/28", &p, &err), 0, "%s", err.msg);
    struct vg_net_slot s;
    for (unsigned i = 0; i < 14; i++)
        cr_assert_eq(strncmp(get(p, 1).address, "10.89.0.", 8), 0);
    cr_assert_lt(vg_netpool_get(p, 1, &s, &err), 0);
    cr_assert_eq(err.reason, VG_NO_CAPACITY);
    vg_netpool_close(p);
}

Test(netpool, subnets_of_killed_clouds_are_taken_over) {
    struct world w;
    struct vg_netpool *alive = NULL;
    struct vg_net_slot kept = {0}, got;
    int keeper = -1;
    world_open(&w);
    for (unsigned i = 0; i < 63; i++) { /* one of the 64 holds a metadata address */
        char tag[9];
        snprintf(tag, sizeof tag, "%06x", 0xabc000 + i);
        struct vg_netpool *p = open_pool(tag);
        if (i == 7) /* its agent is gone, a task is not */
            kept = get(p, 1), keeper = dup(kept.netns_fd);
        if (i == 9)
            alive = p;
        else
            vg_netpool_leave(p);
    }
    cr_assert_geq(keeper, 0);
    for (unsigned i = 0; i < 61; i++) { /* all that are nobody's, and not one more */
        char tag[9];
        snprintf(tag, sizeof tag, "%06x", 0xdef000 + i);
        struct vg_netpool *p = open_pool(tag);
        got = get(p, 1);
        cr_assert_neq(strncmp(got.address, kept.address, strlen("100.64.")), 0);
        cr_assert_neq(strncmp(got.address, get(alive, 1).address, strlen("100.64.")), 0);
    }
    struct vg_netpool *none = NULL;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_lt(vg_netpool_open("00ff00ff", NULL, &none, &err), 0);
    cr_assert_eq(err.reason, VG_CONFLICT);
    close(keeper);
}

static unsigned open_fds(void) {
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

Test(netpool, every_failure_leaves_the_thread_at_home_and_nothing_open) {
    struct world w;
    struct vg_err err = VG_ERR_INIT;
    struct vg_buf before = {0};
    world_open(&w);
    snapshot(&w, &before);
    ino_t home = here();
    unsigned fds = open_fds(), fired = 0;
    for (uint64_t nth = 1;; nth++) {
        struct vg_netpool *p = NULL;
        struct vg_net_slot s;
        vg_fault_arm(nth, ENOMEM, NULL);
        int r = vg_netpool_open(TAG, NULL, &p, &err);
        if (r == 0)
            r = vg_netpool_get(p, 1, &s, &err);
        bool hit = vg_fault_disarm();
        cr_assert_eq(hit, r < 0, "fault %u: %d", (unsigned)nth, r);
        cr_assert_eq(here(), home);
        if (p)
            vg_netpool_close(p);
        cr_assert_eq(open_fds(), fds);
        expect_as_before(&w, &before);
        if (!hit)
            break;
        cr_assert(err.msg[0] != '\0');
        fired++;
    }
    cr_assert_gt(fired, 5u);
    vg_buf_done(&before);
}

/* ---- names ---- */

/* Every text is a file of its own that stays open, so that no two share an inode number. */
static void host_resolver(const char *text) {
    char path[] = "/tmp/test-netpool-XXXXXX";
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    umount2("/etc/resolv.conf", MNT_DETACH);
    cr_assert(mount(path, "/etc/resolv.conf", NULL, MS_BIND, NULL) == 0, "%m");
    unlink(path);
}

/* Asks from inside, answers at the server. */
static bool answers(struct world *w, int from, const char *addr, int server) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(53)}, who;
    socklen_t n = sizeof who;
    char text[8] = "";
    inet_pton(AF_INET, addr, &to.sin_addr);
    int fd = bind_udp_in(w, from, "0.0.0.0", 0);
    cr_assert(sendto(fd, "ask", 4, 0, (struct sockaddr *)&to, sizeof to) == 4, "%m");
    struct pollfd p = {.fd = server, .events = POLLIN};
    cr_assert(poll(&p, 1, 20000) == 1);
    cr_assert(recvfrom(server, text, sizeof text, 0, (struct sockaddr *)&who, &n) == 4);
    cr_assert(sendto(server, "yes", 4, 0, (struct sockaddr *)&who, n) == 4, "%m");
    p.fd = fd;
    cr_assert(poll(&p, 1, 20000) == 1);
    cr_assert(recvfrom(fd, text, sizeof text, 0, (struct sockaddr *)&who, &n) == 4);
    close(fd);
    return strcmp(text, "yes") == 0 && who.sin_addr.s_addr == to.sin_addr.s_addr;
}

Test(netpool, a_loopback_resolver_of_the_host_answers_inside) {
    struct world w;
    world_open(&w);
    host_resolver("search example.org\nnameserver 127.0.0.1\nnameserver ::1\n");
    int server = bind_udp_in(&w, w.host, "127.0.0.1", 53);
    struct vg_netpool *p = open_pool(TAG);
    cr_assert_str_eq(vg_netpool_resolv_conf(p), "search example.org\nnameserver 169.254.1.1\n");
    struct vg_net_slot s = get(p, 1);
    cr_assert(answers(&w, s.netns_fd, "169.254.1.1", server));
    vg_netpool_close(p);
}

Test(netpool, the_resolvers_behind_the_stub_are_used) {
    struct world w;
    world_open(&w);
    cr_assert(mount("tmpfs", "/run", "tmpfs", 0, NULL) == 0);
    cr_assert(vg_mkdir_p("/run/systemd/resolve", 0755) == 0);
    write_text("/run/systemd/resolve/resolv.conf", "nameserver 10.250.0.2\n");
    host_resolver("nameserver 127.0.0.53\n");
    struct vg_netpool *p = open_pool(TAG);
    cr_assert_str_eq(vg_netpool_resolv_conf(p), "nameserver 10.250.0.2\n");
    vg_netpool_close(p);
}

Test(netpool, a_resolver_in_a_blocked_range_keeps_its_port_only) {
    struct world w;
    char peer[32];
    world_open(&w);
    host_resolver("nameserver 10.250.0.2");
    struct vg_netpool *p = open_pool(TAG);
    cr_assert_str_eq(vg_netpool_resolv_conf(p), "nameserver 10.250.0.2\n");
    host_resolver("nameserver 169.254.169.254\n"); /* the host's file changes under the pool */
    cr_assert_str_eq(vg_netpool_resolv_conf(p), "nameserver 169.254.169.254\n");
    struct vg_net_slot s = get(p, 1);
    int server = bind_udp_in(&w, w.outside, METADATA_ADDR, 53);
    cr_assert(answers(&w, s.netns_fd, METADATA_ADDR, server));
    int web = listen_in(&w, w.outside, METADATA_ADDR, 80);
    cr_assert(!reaches(&w, s.netns_fd, METADATA_ADDR, web, MUST_FAIL, peer));
    vg_netpool_close(p);
}
