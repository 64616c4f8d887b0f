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

#define REST_USEC (10 * VG_USEC)       /* between looks at cards that nobody holds ... */
#define REST_COUNT_USEC (60 * VG_USEC) /* ... and at their counters */
#define FIRST_INTERVAL_MS 10000
#define EVENTS_A_ROUND 64

struct watch {
    struct vg_card_source src;
    int fd;
    uint32_t seq, interval_ms, slow_ms, count_ms;
    uint64_t cards, shared; /* as the last order says */
    uint64_t now;           /* as all say that were not answered yet ... */
    bool ordered;           /* ... of which there are any */
    uint64_t next_usec, slow_usec, count_usec, rest_usec, rest_count_usec;
};

size_t vg_watch_msg_size(const struct vg_watch_msg *m) {
    const size_t head = offsetof(struct vg_watch_msg, facts);
    switch (m->kind) {
    case VG_WATCH_FACTS:
        return head + sizeof(struct vg_card_facts);
    case VG_WATCH_SAMPLE:
        return head + offsetof(struct vg_card_sample, proc) +
               VG_MIN(m->sample.n_procs, VG_CARD_PROCS_MAX) * sizeof(m->sample.proc[0]);
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
    const size_t least =
        offsetof(struct vg_watch_msg, sample) + offsetof(struct vg_card_sample, proc);
    if (n < sizeof(m->kind) || (m->kind == VG_WATCH_SAMPLE && n < least) ||
        n != vg_watch_msg_size(m))
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
    ssize_t n = send(w->fd, m, vg_watch_msg_size(m), MSG_NOSIGNAL);
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

static int look_at(struct watch *w, uint32_t i, unsigned ask) {
    struct vg_watch_msg m = {.kind = VG_WATCH_SAMPLE};
    if ((ask & VG_ASK_COUNTERS) && (w->shared >> i & 1))
        ask |= VG_ASK_USES;
    return w->src.sample(w->src.state, i, ask, &m.sample) < 0 ? 0 : say(w, &m);
}

static int say_round(struct watch *w) {
    struct vg_watch_msg round = {.kind = VG_WATCH_ROUND, .n_cards = w->src.n};
    return say(w, &round);
}

/* Whether it is time for what is done every so often; then its next time is set. */
static bool is_due(uint64_t *next_usec, uint64_t now, uint64_t every_usec) {
    if (now < *next_usec)
        return false;
    *next_usec = now + every_usec;
    return true;
}

/* The cards that somebody holds, and now and then all. */
static int look(struct watch *w) {
    uint64_t now = vg_now_usec();
    bool rest = is_due(&w->rest_usec, now, REST_USEC);
    bool rest_counters = is_due(&w->rest_count_usec, now, REST_COUNT_USEC);
    unsigned ask = (is_due(&w->slow_usec, now, w->slow_ms * 1000ULL) ? VG_ASK_SLOW : 0) |
                   (is_due(&w->count_usec, now, w->count_ms * 1000ULL) ? VG_ASK_COUNTERS : 0);
    int r = say_events(w);
    for (uint32_t i = 0; r >= 0 && i < w->src.n; i++) {
        if (w->cards >> i & 1)
            r = look_at(w, i, ask);
        else if (rest)
            r = look_at(w, i, VG_ASK_SLOW | (rest_counters ? VG_ASK_COUNTERS : 0));
    }
    w->next_usec = now + w->interval_ms * 1000ULL;
    return r < 0 ? r : say_round(w);
}

/* Somebody comes or goes: the counters of its cards are read just then. */
static int look_now(struct watch *w) {
    int r = say_events(w);
    for (uint32_t i = 0; r >= 0 && i < w->src.n; i++)
        if (w->now >> i & 1)
            r = look_at(w, i, VG_ASK_COUNTERS);
    w->now = 0;
    w->ordered = false;
    return r < 0 ? r : say_round(w);
}

static uint32_t sane_ms(uint32_t ms) {
    return VG_MIN(VG_MAX(ms, 100u), 60000u);
}

static void take_order(struct watch *w, const struct vg_watch_order *o) {
    uint32_t ms = sane_ms(o->interval_ms);
    if (o->count_ms < w->count_ms)
        w->count_usec = w->slow_usec = 0; /* somebody looks */
    w->slow_ms = sane_ms(o->slow_ms);
    w->count_ms = sane_ms(o->count_ms);
    if (ms != w->interval_ms || o->cards & ~w->cards)
        w->next_usec = 0;
    w->interval_ms = ms;
    w->seq = o->seq;
    w->now |= o->now;
    w->cards = o->cards;
    w->shared = o->shared;
    w->ordered = true;
}

/* Until there is something to do; -EPIPE: the agent is gone. */
static int wait_for_work(struct watch *w) {
    struct pollfd p = {.fd = w->fd, .events = POLLIN};
    struct vg_watch_order o;
    uint64_t now = vg_now_usec();
    int ms = w->next_usec <= now ? 0 : (int)((w->next_usec - now + 999) / 1000);
    if (poll(&p, 1, ms) < 0)
        return errno == EINTR ? 0 : -errno;
    while (p.revents) { /* one look answers all orders that wait */
        ssize_t n = recv(w->fd, &o, sizeof(o), MSG_DONTWAIT);
        if (n < 0)
            return errno == EAGAIN ? 0 : -errno;
        if (n != sizeof(o))
            return -EPIPE;
        take_order(w, &o);
    }
    return 0;
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
    struct watch w = {.fd = STDIN_FILENO,
                      .interval_ms = FIRST_INTERVAL_MS,
                      .slow_ms = FIRST_INTERVAL_MS,
                      .count_ms = FIRST_INTERVAL_MS};
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
        if (vg_now_usec() >= w.next_usec)
            r = look(&w);
        if (r >= 0 && w.ordered)
            r = look_now(&w);
        if (r >= 0)
            r = wait_for_work(&w);
    }
    w.src.close(w.src.state);
    return 0;
}
