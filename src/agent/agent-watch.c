/* The process that looks at the node's cards, as the agent sees it: started, heard, given up when
   it is silent, started again. A driver that hangs takes that process with it and nothing else.
   Loop thread.

   What always holds: there is at most one such process that is listened to; a card's health only
   gets worse until the control plane clears it. */
#include "agent/agent-int.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/util.h"
#include "gpu/watch.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define BUSY_MS 1000   /* between looks while a GPU is held or somebody watches */
#define IDLE_MS 10000  /* else */
#define SLOW_MS 5000   /* between looks at what changes slowly, ... */
#define COUNT_MS 10000 /* ... at counters, which are dear, ... */
#define LIVE_MS 2000   /* ... and at both while somebody watches */
#define RETRY_USEC (60 * VG_USEC)
#define PACKETS_A_TURN 256

static enum vg_card_vendor vendor_of(const struct vg_agent *a) {
    return a->gpus.n ? a->gpus.gpu[0].vendor : VG_CARD_NVIDIA;
}

/* Whether there is anything to look at: numbers without a card are not. */
bool vg_agent_has_cards(const struct vg_agent *a) {
    for (size_t i = 0; i < a->gpus.n; i++)
        if (a->gpus.gpu[i].minor >= 0 || a->gpus.gpu[i].vendor == VG_CARD_FAKE)
            return true;
    return false;
}

const char *vg_agent_library(const struct vg_agent *a, const char *name) {
    for (size_t i = 0; i < a->driver.n; i++)
        if (!strcmp(strrchr(a->driver.path[i], '/') + 1, name))
            return a->driver.path[i];
    return name;
}

/* ------------------------------------------------------------------ what it says */

static bool is_card(const struct vg_gpu *g, const struct vg_card_facts *f) {
    if (g->vendor != f->vendor)
        return false;
    if (f->vendor == VG_CARD_FAKE)
        return g->index == f->index;
    if (g->part && g->part != f->part)
        return false;
    return (f->minor >= 0 && g->minor == f->minor) || (*f->uuid && !strcmp(g->uuid, f->uuid));
}

/* A card in MIG mode cannot be used as a whole: its parts were made after the agent began, or none
   were, or the driver's list of them is hidden from it. */
static void refuse_whole(struct vg_agent_card *c, const struct vg_gpu *g) {
    if (c->facts.mig && !g->part && !c->health.fault[0])
        snprintf(c->health.fault, sizeof(c->health.fault),
                 "is in MIG mode: make its parts, start the node's agent again, and give them by a "
                 "pool of class mig");
}

static struct vg_agent_card *card_at(struct vg_agent *a, uint32_t index) {
    int i = index < VG_GPUS_MAX ? a->watch.map[index] : -1;
    return i >= 0 ? &a->card[i] : NULL;
}

static void on_facts(struct vg_agent *a, const struct vg_card_facts *f) {
    size_t i = 0;
    while (i < a->gpus.n && !is_card(&a->gpus.gpu[i], f))
        i++;
    if (i == a->gpus.n) /* hidden from this node, or not offered */
        return;
    struct vg_agent_card *c = &a->card[i];
    struct vg_gpu *g = &a->gpus.gpu[i];
    a->watch.map[f->index] = (int8_t)i;
    c->facts = *f;
    if (g->part) /* only the library tells it */
        snprintf(g->uuid, sizeof(g->uuid), "%s", f->uuid);
    if (!c->known)
        vg_health_init(&c->health);
    refuse_whole(c, g);
    c->known = true;
    a->watch.news = true;
}

/* n_procs: it is not there. */
static uint32_t find_proc(const struct vg_card_sample *s, uint32_t pid) {
    uint32_t i = 0;
    while (i < s->n_procs && s->proc[i].pid != pid)
        i++;
    return i;
}

/* What each process did, into the list that is known. */
static void merge_uses(struct vg_agent_card *c, const struct vg_card_sample *s) {
    struct vg_card_sample *to = &c->last;
    for (uint32_t i = 0; i < to->n_procs; i++)
        to->proc[i].sm_percent = VG_NONE;
    for (uint32_t k = 0; k < s->n_procs; k++) {
        uint32_t i = find_proc(to, s->proc[k].pid);
        if (i == VG_CARD_PROCS_MAX)
            continue;
        if (i == to->n_procs) {
            to->proc[to->n_procs++] = s->proc[k];
            c->owner[i] = VG_NONE64;
        }
        to->proc[i].sm_percent = s->proc[k].sm_percent;
    }
}

/* A whole list. A number that is in two lists after each other stands for one process: whose it is
   stays, since one that has ended has no ancestors to ask. */
static void merge_list(struct vg_agent_card *c, const struct vg_card_sample *old,
                       const struct vg_card_sample *s) {
    uint64_t owner[VG_CARD_PROCS_MAX];
    memcpy(owner, c->owner, sizeof(owner));
    for (uint32_t i = 0; i < s->n_procs; i++) {
        uint32_t k = find_proc(old, s->proc[i].pid);
        bool known = k < old->n_procs;
        c->owner[i] = known && owner[k] ? owner[k] : VG_NONE64;
        if (known && !s->uses)
            c->last.proc[i].sm_percent = old->proc[k].sm_percent;
    }
}

/* What this sample left out stays as it was. */
static void merge(struct vg_agent_card *c, const struct vg_card_sample *s) {
    struct vg_card_sample *to = &c->last, old = *to;
    *to = *s;
    if (s->lost)
        return;
    if (!s->counted)
        to->energy_mj = old.energy_mj;
    if (s->full) {
        merge_list(c, &old, s);
        return;
    }
    to->temp_c = old.temp_c;
    to->sm_mhz = old.sm_mhz;
    to->mem_mhz = old.mem_mhz;
    to->ecc_corrected = old.ecc_corrected;
    to->ecc_uncorrected = old.ecc_uncorrected;
    to->n_procs = old.n_procs;
    memcpy(to->proc, old.proc, sizeof(to->proc));
    if (s->uses)
        merge_uses(c, s);
}

static void faulty(struct vg_agent *a, const struct vg_agent_card *c) {
    vg_warn("gpu=%u is taken out of use: %s", (unsigned)(c - a->card), c->health.fault);
    a->watch.news = true;
}

static void on_sample(struct vg_agent *a, const struct vg_card_sample *s) {
    struct vg_agent_card *c = card_at(a, s->index);
    if (!c || !c->known)
        return;
    c->idle_mw = vg_gpu_idle_power(c->idle_mw, &c->last, s);
    merge(c, s);
    c->last.index = (uint32_t)(c - a->card);
    if (vg_health_sample(&c->health, s))
        faulty(a, c);
    struct vg_card_sample ours = *s;
    ours.index = c->last.index;
    vg_meter_sample(a, &ours);
}

static void on_xid(struct vg_agent *a, const struct vg_card_event *e) {
    struct vg_agent_card *c = card_at(a, e->index);
    if (!c || !c->known)
        return;
    vg_info("gpu=%u xid=%u", (unsigned)(c - a->card), e->xid);
    if (vg_health_event(&c->health, e))
        faulty(a, c);
}

static void on_round(struct vg_agent *a, uint32_t seq) {
    struct vg_watcher *w = &a->watch;
    w->heard_usec = vg_now_usec();
    w->answered = seq;
    vg_meter_finish(a, false);
    if (w->news || w->heard_usec < w->live_until_usec)
        vg_meter_report(a);
}

static void on_packet(struct vg_agent *a, const struct vg_watch_msg *m) {
    switch (m->kind) {
    case VG_WATCH_FACTS:
        on_facts(a, &m->facts);
        break;
    case VG_WATCH_SAMPLE:
        on_sample(a, &m->sample);
        break;
    case VG_WATCH_EVENT:
        on_xid(a, &m->event);
        break;
    case VG_WATCH_ROUND:
        on_round(a, m->seq);
        break;
    default:
        vg_warn("the GPUs cannot be watched: %s", m->text);
    }
}

/* ------------------------------------------------------------------ its life */

static void on_closed(uv_handle_t *handle) {
    struct vg_agent *a = handle->data;
    a->watch.closing = false;
}

static void drop(struct vg_agent *a) {
    struct vg_watcher *w = &a->watch;
    if (w->fd < 0)
        return;
    w->closing = true;
    uv_close((uv_handle_t *)&w->poll, on_closed);
    vg_close(&w->fd);
    kill(w->pid, SIGKILL);
    w->given_up = w->pid;
    w->pid = 0;
    w->retry_usec = vg_now_usec() + RETRY_USEC;
    vg_meter_finish(a, true);
}

static void on_readable(uv_poll_t *poll, int status, int events) {
    struct vg_agent *a = poll->data;
    struct vg_watch_msg m;
    (void)status, (void)events;
    for (int i = 0; i < PACKETS_A_TURN && a->watch.fd >= 0; i++) {
        ssize_t n = recv(a->watch.fd, &m, sizeof(m), MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            drop(a);
            return;
        }
        if (vg_watch_msg_valid(&m, (size_t)n))
            on_packet(a, &m);
    }
}

/* Our cards, as it counts them. */
static uint64_t as_it_counts(const struct vg_agent *a, uint64_t ours) {
    uint64_t its = 0;
    for (uint32_t i = 0; i < VG_GPUS_MAX; i++)
        if (a->watch.map[i] >= 0 && (ours >> a->watch.map[i] & 1))
            its |= 1ULL << i;
    return its;
}

/* What it should do now. */
static struct vg_watch_order order(const struct vg_agent *a) {
    uint64_t held, shared;
    bool live = vg_now_usec() < a->watch.live_until_usec;
    vg_meter_cards(a, &held, &shared);
    return (struct vg_watch_order){.seq = a->watch.seq,
                                   .interval_ms = held || live ? BUSY_MS : IDLE_MS,
                                   .slow_ms = live ? LIVE_MS : SLOW_MS,
                                   .count_ms = live ? LIVE_MS : COUNT_MS,
                                   .cards = live ? UINT64_MAX : as_it_counts(a, held),
                                   .shared = live ? UINT64_MAX : as_it_counts(a, shared)};
}

static uint32_t say(struct vg_agent *a, struct vg_watch_order o) {
    struct vg_watcher *w = &a->watch;
    o.seq++;
    if (send(w->fd, &o, sizeof(o), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(o))
        return 0; /* it is busy, or hangs: the timer will tell */
    w->told = o;
    w->seq = o.seq;
    return w->seq;
}

uint32_t vg_watch_ask(struct vg_agent *a, uint64_t cards) {
    if (a->watch.fd < 0)
        return 0;
    struct vg_watch_order o = order(a);
    o.now = as_it_counts(a, cards);
    return say(a, o);
}

/* An order that would be the same is not worth a look. */
static void tell_changes(struct vg_agent *a) {
    const struct vg_watch_order *old = &a->watch.told;
    struct vg_watch_order o = order(a);
    if (a->watch.fd >= 0 && (o.interval_ms != old->interval_ms || o.cards != old->cards ||
                             o.count_ms != old->count_ms || o.shared != old->shared))
        say(a, o);
}

static int spawn(struct vg_agent *a, int fd, pid_t *ret) {
    char count[16];
    vg_auto_free char *dir = vg_agent_path(a, "fake-gpus");
    const char *argv[8] = {"virga", "gpu-watch"};
    size_t n = 2;
    if (!dir)
        return -ENOMEM;
    snprintf(count, sizeof(count), "%zu", a->gpus.n);
    if (vendor_of(a) == VG_CARD_FAKE)
        argv[n++] = "--fake", argv[n++] = count, argv[n++] = dir;
    else if (vendor_of(a) == VG_CARD_AMD)
        argv[n++] = "--amd";
    else
        argv[n++] = "--nvml", argv[n++] = vg_agent_library(a, "libnvidia-ml.so.1");
    vg_auto_fd int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    const int fds[3] = {fd, null, STDERR_FILENO};
    return null < 0 ? -errno : vg_agent_run(a->self_exe, argv, environ, fds, false, ret);
}

static void begin(struct vg_agent *a) {
    struct vg_watcher *w = &a->watch;
    int pair[2];
    w->retry_usec = vg_now_usec() + RETRY_USEC;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return;
    int r = spawn(a, pair[1], &w->pid);
    close(pair[1]);
    if (r < 0 || uv_poll_init(&a->loop, &w->poll, pair[0]) < 0) {
        close(pair[0]);
        vg_warn("the GPUs cannot be watched: %s", r < 0 ? strerror(-r) : "no poll");
        return;
    }
    w->fd = pair[0];
    w->heard_usec = vg_now_usec();
    w->told = (struct vg_watch_order){.interval_ms = IDLE_MS, .count_ms = COUNT_MS};
    memset(w->map, -1, sizeof(w->map));
    w->poll.data = a;
    uv_poll_start(&w->poll, UV_READABLE | UV_DISCONNECT, on_readable);
}

/* Only what was told once can fall silent; a node whose cards nobody ever saw runs as it is. */
static void give_up(struct vg_agent *a, uint64_t silence) {
    vg_warn("the GPUs' driver has not answered for %llu s",
            (unsigned long long)(silence / VG_USEC));
    for (size_t i = 0; i < a->gpus.n; i++)
        if (a->card[i].known && vg_health_silent(&a->card[i].health, silence))
            faulty(a, &a->card[i]);
    drop(a);
    vg_meter_report(a);
}

/* One that hangs in the kernel stays there, whatever it is sent: no second one joins it. */
static bool may_begin(struct vg_agent *a, uint64_t now) {
    struct vg_watcher *w = &a->watch;
    if (w->given_up && kill(w->given_up, 0) < 0) /* SIGCHLD's handler has reaped it */
        w->given_up = 0;
    return now >= w->retry_usec && !w->given_up && !w->closing && !a->stopping;
}

static void on_tick(uv_timer_t *timer) {
    struct vg_agent *a = timer->data;
    struct vg_watcher *w = &a->watch;
    uint64_t now = vg_now_usec(), silence = now - w->heard_usec;
    if (w->fd < 0) {
        if (may_begin(a, now))
            begin(a);
        return;
    }
    if (silence > a->conf.gpu_silence_usec + w->told.interval_ms * 1000ULL)
        give_up(a, silence);
    else
        tell_changes(a);
}

void vg_watch_live(struct vg_agent *a, uint64_t usec) {
    a->watch.live_until_usec = vg_now_usec() + VG_MIN(usec, 60 * VG_USEC);
    tell_changes(a);
}

void vg_watch_clear(struct vg_agent *a, uint32_t index) {
    if (index >= a->gpus.n)
        return;
    struct vg_agent_card *c = &a->card[index];
    vg_health_init(&c->health);
    c->health.ecc_first = c->last.ecc_uncorrected; /* errors that are known do not count again */
    a->watch.retry_usec = 0;
    a->watch.news = true;
}

void vg_watch_start(struct vg_agent *a) {
    struct vg_watcher *w = &a->watch;
    w->fd = -1;
    for (size_t i = 0; i < a->gpus.n; i++) {
        vg_card_sample_init(&a->card[i].last, (uint32_t)i);
        a->card[i].idle_mw = VG_NONE;
    }
    uv_timer_init(&a->loop, &w->timer);
    w->timer.data = a;
    if (vg_agent_has_cards(a))
        uv_timer_start(&w->timer, on_tick, 0, 1000);
}

void vg_watch_stop(struct vg_agent *a) {
    uv_timer_stop(&a->watch.timer);
    drop(a);
}
