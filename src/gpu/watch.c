/* The process that looks at the cards; see the header. One thread, which may hang in the driver. */
#include "gpu/watch.h"

#include "base/cleanup.h"
#include "base/util.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define FULL_EVERY_USEC (5 * VG_USEC) /* what changes slowly */
#define FIRST_INTERVAL_MS 10000
#define EVENTS_A_ROUND 64

struct watch {
    struct vg_card_source src;
    int fd;
    uint32_t seq, interval_ms;
    uint64_t next_usec, full_usec;
};

size_t vg_watch_msg_size(uint32_t kind) {
    const size_t head = offsetof(struct vg_watch_msg, facts);
    switch (kind) {
    case VG_WATCH_FACTS:
        return head + sizeof(struct vg_card_facts);
    case VG_WATCH_SAMPLE:
        return head + sizeof(struct vg_card_sample);
    case VG_WATCH_EVENT:
        return head + sizeof(struct vg_card_event);
    case VG_WATCH_ROUND:
        return head + sizeof(uint32_t);
    case VG_WATCH_FAIL:
        return sizeof(struct vg_watch_msg) < head + 256 ? 0 : head + 256;
    default:
        return 0;
    }
}

static bool ends(const char *s, size_t n) {
    return memchr(s, 0, n) != NULL;
}

static bool facts_valid(const struct vg_card_facts *f) {
    bool ok = f->index < 64 && f->vendor <= VG_CARD_FAKE && f->n_migs <= VG_CARD_MIGS_MAX &&
              ends(f->name, sizeof(f->name)) && ends(f->uuid, sizeof(f->uuid)) &&
              ends(f->bus, sizeof(f->bus)) && ends(f->driver, sizeof(f->driver));
    for (uint32_t i = 0; ok && i < f->n_migs; i++)
        ok = ends(f->mig_uuid[i], sizeof(f->mig_uuid[i]));
    return ok;
}

bool vg_watch_msg_valid(const struct vg_watch_msg *m, size_t n) {
    if (n < sizeof(m->kind) || n != vg_watch_msg_size(m->kind))
        return false;
    switch (m->kind) {
    case VG_WATCH_FACTS:
        return facts_valid(&m->facts);
    case VG_WATCH_SAMPLE:
        return m->sample.index < 64 && m->sample.n_procs <= VG_CARD_PROCS_MAX;
    case VG_WATCH_EVENT:
        return m->event.index < 64;
    case VG_WATCH_FAIL:
        return ends(m->text, sizeof(m->text));
    default:
        return true;
    }
}

static int say(struct watch *w, struct vg_watch_msg *m) {
    m->seq = w->seq;
    ssize_t n = send(w->fd, m, vg_watch_msg_size(m->kind), MSG_NOSIGNAL);
    return n < 0 ? -errno : 0;
}

static int say_facts(struct watch *w) {
    int r = 0;
    for (uint32_t i = 0; r >= 0 && i < w->src.n; i++) {
        struct vg_watch_msg m = {.kind = VG_WATCH_FACTS};
        if (w->src.facts(w->src.state, i, &m.facts) >= 0)
            r = say(w, &m);
    }
    return r;
}

static int say_events(struct watch *w) {
    struct vg_watch_msg m = {.kind = VG_WATCH_EVENT};
    int r = 0;
    for (int k = 0; r >= 0 && k < EVENTS_A_ROUND; k++) {
        if (w->src.event(w->src.state, &m.event) != 1)
            break;
        r = say(w, &m);
    }
    return r;
}

static int look(struct watch *w) {
    uint64_t now = vg_now_usec();
    bool full = now >= w->full_usec;
    int r = say_events(w);
    for (uint32_t i = 0; r >= 0 && i < w->src.n; i++) {
        struct vg_watch_msg m = {.kind = VG_WATCH_SAMPLE};
        if (w->src.sample(w->src.state, i, full, &m.sample) >= 0)
            r = say(w, &m);
    }
    struct vg_watch_msg round = {.kind = VG_WATCH_ROUND, .n_cards = w->src.n};
    if (full)
        w->full_usec = now + FULL_EVERY_USEC;
    w->next_usec = now + w->interval_ms * 1000ULL;
    return r < 0 ? r : say(w, &round);
}

/* Until there is something to do; -EPIPE: the agent is gone. */
static int wait_for_work(struct watch *w) {
    struct pollfd p = {.fd = w->fd, .events = POLLIN};
    struct vg_watch_order o;
    uint64_t now = vg_now_usec();
    int ms = w->next_usec <= now ? 0 : (int)((w->next_usec - now + 999) / 1000);
    if (poll(&p, 1, ms) < 0)
        return errno == EINTR ? 0 : -errno;
    if (!p.revents)
        return 0;
    for (;;) { /* one look answers all orders that wait */
        ssize_t n = recv(w->fd, &o, sizeof(o), MSG_DONTWAIT);
        if (n < 0)
            return errno == EAGAIN ? 0 : -errno;
        if (n != sizeof(o))
            return -EPIPE;
        w->seq = o.seq;
        w->interval_ms = VG_MIN(VG_MAX(o.interval_ms, 100u), 60000u);
        w->next_usec = 0;
    }
}

static int open_source(int argc, char **argv, struct vg_card_source *ret, struct vg_err *err) {
    uint64_t n;
    if (argc == 3 && !strcmp(argv[1], "--nvml"))
        return vg_nvml_open(argv[2], ret, err);
    if (argc == 2 && !strcmp(argv[1], "--amd"))
        return vg_amd_open("", ret, err);
    if (argc == 4 && !strcmp(argv[1], "--fake") && vg_parse_u64(argv[2], &n) == 0 && n <= 64)
        return vg_fake_open((uint32_t)n, argv[3], ret, err);
    return vg_err_set(err, VG_INVALID, "virga gpu-watch is started by the agent, not by hand");
}

int vg_watch_main(int argc, char **argv) {
    struct watch w = {.fd = STDIN_FILENO, .interval_ms = FIRST_INTERVAL_MS};
    struct vg_err err = VG_ERR_INIT;
    struct vg_watch_msg fail = {.kind = VG_WATCH_FAIL};
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* an agent that died cannot close in time */
    int r = open_source(argc, argv, &w.src, &err);
    if (r < 0) {
        snprintf(fail.text, sizeof(fail.text), "%.255s", err.msg);
        if (say(&w, &fail) < 0)
            fprintf(stderr, "virga gpu-watch: %s\n", err.msg);
        return 1;
    }
    r = say_facts(&w);
    while (r >= 0) {
        r = look(&w);
        while (r >= 0 && vg_now_usec() < w.next_usec)
            r = wait_for_work(&w);
    }
    w.src.close(w.src.state);
    return 0;
}
