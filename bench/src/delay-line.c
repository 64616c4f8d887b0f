/* A line between two network namespaces with a round-trip time and a rate, for measuring on one
   machine what lies between two. It joins them by a pair of TUN devices and carries whole packets,
   so that both ends run their kernels' own TCP. Nothing is ever lost: when the line is busy it
   does not read on, and the sender's kernel waits as it does for a slow card.

       delay-line NETNS-A NETNS-B RTT-USEC MBIT

   A gets 10.79.0.1, B 10.79.0.2. Says "ready" when the line is up, then takes lines from its
   standard input and answers each by one line, until that input ends:

       set RTT-USEC MBIT      counts        cut        heal

   `counts` answers with the payload's bytes and packets from A to B, then from B to A. While it is
   cut, what is sent vanishes, as on a cable that was pulled.

   Two threads carry, one a direction; the main thread obeys. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define NSEC 1000000000ull
#define RING 65536u              /* packets on their way in one direction */
#define PACKET (70u << 10)       /* the kernel's largest bundle, with its header */
#define AHEAD_NSEC (NSEC / 1000) /* the line takes no more than this beyond what it sends now */

struct packet {
    uint64_t due;
    uint32_t size;
    uint8_t *data; /* owned */
};
struct way {
    int in, out;
    uint64_t busy_until; /* when the last bit of what was taken leaves this end */
    struct packet ring[RING];
    uint32_t head, tail;
    _Atomic uint64_t bytes, packets;
};

static struct way ways[2];
static _Atomic uint64_t delay_nsec, psec_per_byte;
static _Atomic bool is_cut;

static void fatal(const char *what) {
    fprintf(stderr, "delay-line: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_nsec(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NSEC + (uint64_t)t.tv_nsec;
}

/* ------------------------------------------------------------------ devices */

static void address(struct ifreq *r, const char *text) {
    struct sockaddr_in in = {.sin_family = AF_INET};
    if (inet_pton(AF_INET, text, &in.sin_addr) != 1)
        fatal(text);
    memcpy(&r->ifr_addr, &in, sizeof(in));
}

static void set_up(const char *name, const char *mine, const char *other) {
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (s < 0)
        fatal("socket");
    struct ifreq r = {0};
    memcpy(r.ifr_name, name, strlen(name) + 1);
    address(&r, mine);
    if (ioctl(s, SIOCSIFADDR, &r) < 0)
        fatal("address");
    address(&r, other);
    if (ioctl(s, SIOCSIFDSTADDR, &r) < 0)
        fatal("the other end's address");
    address(&r, "255.255.255.255");
    if (ioctl(s, SIOCSIFNETMASK, &r) < 0)
        fatal("netmask");
    r.ifr_qlen = 10000;
    if (ioctl(s, SIOCSIFTXQLEN, &r) < 0)
        fatal("queue");
    r.ifr_flags = IFF_UP | IFF_RUNNING | IFF_POINTOPOINT;
    if (ioctl(s, SIOCSIFFLAGS, &r) < 0)
        fatal("up");
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    if (ioctl(s, SIOCSIFFLAGS, &lo) < 0)
        fatal("lo");
    close(s);
}

static int open_end(const char *netns, const char *mine, const char *other) {
    char path[256];
    snprintf(path, sizeof(path), "/run/netns/%s", netns);
    int ns = open(path, O_RDONLY | O_CLOEXEC);
    if (ns < 0 || setns(ns, CLONE_NEWNET) < 0)
        fatal(path);
    close(ns);
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    struct ifreq r = {.ifr_name = "line0", .ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR};
    if (fd < 0 || ioctl(fd, TUNSETIFF, &r) < 0)
        fatal("/dev/net/tun");
    /* Bundles of segments, as cards take them: an eighth of the work a byte. */
    if (ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6) < 0)
        fatal("TUNSETOFFLOAD");
    set_up("line0", mine, other);
    return fd;
}

/* ------------------------------------------------------------------ carrying */

static void deliver(struct way *w, uint64_t now) {
    while (w->head != w->tail) {
        struct packet *p = &w->ring[w->tail % RING];
        if (p->due > now)
            return;
        /* A full queue at the receiver would be a loss: wait for room. */
        while (!atomic_load(&is_cut) && write(w->out, p->data, p->size) < 0 &&
               (errno == EAGAIN || errno == ENOBUFS))
            poll(&(struct pollfd){.fd = w->out, .events = POLLOUT}, 1, 1);
        free(p->data);
        w->tail++;
    }
}

/* Takes what is there while the line is free for it. */
static void accept_packets(struct way *w, uint64_t now) {
    static _Thread_local uint8_t buffer[PACKET];
    while (w->head - w->tail < RING && w->busy_until < now + AHEAD_NSEC) {
        ssize_t n = read(w->in, buffer, sizeof(buffer));
        if (n <= 0)
            return;
        uint64_t payload = (uint64_t)n - sizeof(struct virtio_net_hdr);
        if (atomic_load(&is_cut))
            continue;
        if (w->busy_until < now)
            w->busy_until = now;
        w->busy_until += payload * atomic_load(&psec_per_byte) / 1000;
        struct packet *p = &w->ring[w->head % RING];
        *p = (struct packet){.due = w->busy_until + atomic_load(&delay_nsec), .size = (uint32_t)n};
        p->data = malloc((size_t)n);
        if (!p->data)
            fatal("memory");
        memcpy(p->data, buffer, (size_t)n);
        w->head++;
        atomic_fetch_add(&w->bytes, payload);
        atomic_fetch_add(&w->packets, 1);
    }
}

static void *carry(void *arg) {
    struct way *w = arg;
    prctl(PR_SET_TIMERSLACK, 1);
    for (;;) {
        uint64_t now = now_nsec();
        deliver(w, now);
        accept_packets(w, now);
        uint64_t wake = UINT64_MAX;
        bool busy = w->busy_until >= now + AHEAD_NSEC;
        if (busy)
            wake = w->busy_until - AHEAD_NSEC + 1;
        if (w->head != w->tail && w->ring[w->tail % RING].due < wake)
            wake = w->ring[w->tail % RING].due;
        now = now_nsec();
        uint64_t left = wake > now ? wake - now : 0;
        struct timespec t = {(time_t)(left / NSEC), (long)(left % NSEC)};
        struct pollfd p = {.fd = w->in, .events = POLLIN};
        ppoll(&p, busy ? 0 : 1, wake == UINT64_MAX ? NULL : &t, NULL);
    }
    return NULL;
}

/* ------------------------------------------------------------------ orders */

static bool set_line(const char *rtt, const char *mbit) {
    char *end = NULL;
    unsigned long usec = strtoul(rtt, &end, 10);
    if (*end || usec > 10000000)
        return false;
    unsigned long rate = strtoul(mbit, &end, 10);
    if (*end || rate == 0 || rate > 100000)
        return false;
    atomic_store(&delay_nsec, usec * 1000 / 2);
    atomic_store(&psec_per_byte, 8000000 / rate);
    return true;
}

static void obey(char *line) {
    char *save = NULL;
    const char *verb = strtok_r(line, " \n", &save);
    const char *a = strtok_r(NULL, " \n", &save), *b = strtok_r(NULL, " \n", &save);
    if (verb && strcmp(verb, "set") == 0 && a && b && set_line(a, b)) {
        puts("ok");
    } else if (verb && strcmp(verb, "counts") == 0) {
        printf("%llu %llu %llu %llu\n", (unsigned long long)ways[0].bytes,
               (unsigned long long)ways[0].packets, (unsigned long long)ways[1].bytes,
               (unsigned long long)ways[1].packets);
    } else if (verb && (strcmp(verb, "cut") == 0 || strcmp(verb, "heal") == 0)) {
        atomic_store(&is_cut, verb[0] == 'c');
        puts("ok");
    } else {
        puts("what?");
    }
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc != 5 || !set_line(argv[3], argv[4])) {
        fprintf(stderr, "usage: delay-line NETNS-A NETNS-B RTT-USEC MBIT\n");
        return 2;
    }
    int a = open_end(argv[1], "10.79.0.1", "10.79.0.2");
    int b = open_end(argv[2], "10.79.0.2", "10.79.0.1");
    ways[0].in = ways[1].out = a;
    ways[0].out = ways[1].in = b;
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, carry, &ways[i]) != 0)
            fatal("thread");
    }
    puts("ready");
    fflush(stdout);
    char line[256];
    while (fgets(line, sizeof(line), stdin))
        obey(line);
    return 0;
}
