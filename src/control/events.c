/* Readers of events, and tasks for them; see the header. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/events-int.h"
#include "control/persist.h"

#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define SOON_USEC 100000 /* changes of so long are told together */
#define TICK_USEC VG_USEC
#define AGAIN_USEC 50000   /* then those who are behind are looked at */
#define AHEAD (256u << 10) /* bytes that may wait for a reader */
#define MISSED_MAX 10000
#define TASKS_A_TURN 2000
#define CAUGHT_UP_A_TURN 500

static const char *const topic_names[TOPICS] = {"tasks", "nodes",   "gpus",
                                                "queue", "budgets", "status"};

uint64_t vg_events_number(const struct vg_control *c) {
    return c->events ? c->events->number : 0;
}

void events_next(struct vg_events *ev) {
    static uint64_t numbers; /* of the process: texts are kept by them, whoever listens */
    ev->number = ++numbers;
}

/* ------------------------------------------------------------------ telling */

bool reader_has_room(const struct reader *r) {
    return vg_peer_queued(r->follow->peer) < AHEAD;
}

void reader_tell(struct reader *r, Vg__Pb__Event *e) {
    VG_ENVELOPE(env);
    env.body_case = B(EVENT);
    env.event = e;
    vg_peer_send(r->follow->peer, r->follow->req, true, &env);
}

static bool wants(struct reader *r, const struct vg_task *t) {
    const struct vg_user *u = r->topics & BIT(TOPIC_TASKS) ? look_user(r->look) : NULL;
    struct vg_query q = {.q = r->q, .user = u, .of = r->of};
    return u && vg_query_wants(&q, t);
}

static void miss(struct reader *r, uint64_t id) {
    if (r->lost)
        return;
    if (vg_map_len(&r->missed) < MISSED_MAX && vg_map_put_u64(&r->missed, id, r) == 0)
        return;
    r->lost = true;
    vg_map_done(&r->missed);
    r->missed = (struct vg_map){0};
}

struct task_event {
    Vg__Pb__Event pb;
    struct vg_task_info info;
    char why[512];
};

static void fill(struct vg_control *c, const struct vg_task *t, struct task_event *e) {
    vg__pb__event__init(&e->pb);
    vg_task_info(c, t, &e->info);
    vg_task_info_wait(c, t, &e->info, e->why, sizeof e->why);
    e->pb.topic = (char *)"task";
    e->pb.task = &e->info.pb;
    events_next(c->events);
}

/* To everybody who wants it; `missed`: to those alone who were not told of it before. Its text is
   made once (rest-live.c), so tasks are the outer loop. */
static void tell_task(struct vg_events *ev, uint64_t id, bool missed) {
    struct task_event e = {0};
    struct vg_task *stored = NULL;
    struct vg_job *j = vg_job_get(ev->ctl, id);
    bool filled = false;
    const struct vg_task *t = j                                          ? j->task
                              : vg_persist_get(ev->ctl, id, &stored) < 0 ? NULL
                                                                         : stored;
    vg_list_for_each (it, &ev->readers) {
        struct reader *r = vg_list_entry(it, struct reader, link);
        bool room = reader_has_room(r);
        if (missed && (!room || !vg_map_del_u64(&r->missed, id)))
            continue;
        if (!t || !wants(r, t))
            continue;
        if (!room) {
            miss(r, id);
            continue;
        }
        if (!filled)
            fill(ev->ctl, t, &e);
        filled = true;
        reader_tell(r, &e.pb);
    }
    vg_task_free(stored);
}

static void tell_lost(struct vg_events *ev, struct reader *r) {
    Vg__Pb__Event e = VG__PB__EVENT__INIT;
    e.topic = (char *)"resync";
    events_next(ev);
    r->lost = false;
    reader_tell(r, &e);
}

/* The newest state of what was missed, to those who have room again. True: there is more. */
static bool catch_up(struct vg_events *ev) {
    bool more = false;
    vg_list_for_each (it, &ev->readers) {
        struct reader *r = vg_list_entry(it, struct reader, link);
        if (r->lost && reader_has_room(r))
            tell_lost(ev, r);
        for (size_t n = 0; n < CAUGHT_UP_A_TURN && reader_has_room(r); n++) {
            const struct vg_map_slot *s = vg_map_next(&r->missed, NULL);
            if (!s)
                break;
            tell_task(ev, s->hash, true);
        }
        more |= r->lost || vg_map_len(&r->missed);
    }
    return more;
}

static void arm(struct vg_events *ev, uint64_t usec);

static void on_soon(void *user) {
    struct vg_events *ev = user;
    uint64_t ids[TASKS_A_TURN];
    size_t n = 0;
    ev->soon = NULL;
    vg_map_for_each (s, &ev->dirty) {
        if (n < TASKS_A_TURN)
            ids[n++] = s->hash;
    }
    for (size_t i = 0; i < n; i++) {
        vg_map_del_u64(&ev->dirty, ids[i]);
        tell_task(ev, ids[i], false);
    }
    bool behind = catch_up(ev);
    if (vg_map_len(&ev->dirty) || behind)
        arm(ev, AGAIN_USEC);
}

static void arm(struct vg_events *ev, uint64_t usec) {
    if (!ev->soon)
        ev->soon = vg_timer_start(ev->ctl->loop, usec, on_soon, ev);
}

void vg_events_changed(struct vg_control *c, uint64_t task) {
    struct vg_events *ev = c->events;
    if (vg_map_put_u64(&ev->dirty, task, ev) == 0)
        arm(ev, SOON_USEC);
}

static void on_tick(void *user) {
    struct vg_events *ev = user;
    ev->tick = vg_timer_start(ev->ctl->loop, TICK_USEC, on_tick, ev);
    looks_tick(ev);
}

/* ------------------------------------------------------------------ readers */

static void events_free(struct vg_events *ev) {
    ev->ctl->events = NULL;
    vg_list_remove(&ev->sentry.on_job);
    vg_timer_stop(&ev->soon);
    vg_timer_stop(&ev->tick);
    vg_map_done(&ev->dirty);
    free(ev);
}

/* Nothing is looked at while nobody listens. */
static struct vg_events *events_get(struct vg_control *c) {
    if (c->events)
        return c->events;
    struct vg_events *ev = vg_alloc(sizeof *ev);
    if (!ev)
        return NULL;
    ev->ctl = c;
    ev->sentry.kind = VG_FOLLOW_EVENTS;
    vg_list_init(&ev->readers);
    vg_list_init(&ev->looks);
    vg_list_init(&ev->sentry.on_peer);
    vg_list_push_back(&c->watches, &ev->sentry.on_job);
    c->events = ev;
    return ev;
}

static void reader_free(void *data) {
    struct reader *r = data;
    struct vg_events *ev = r->events;
    vg_list_remove(&r->link);
    look_leave(r);
    vg_map_done(&r->missed);
    if (r->q)
        vg__pb__task_query__free_unpacked(r->q, NULL);
    free(r);
    if (vg_list_empty(&ev->readers))
        events_free(ev);
}

static int read_topics(const Vg__Pb__EventQuery *m, unsigned *ret, struct vg_err *err) {
    *ret = m->n_topic ? 0 : ~0u;
    for (size_t i = 0; i < m->n_topic; i++) {
        size_t k = 0;
        while (k < TOPICS && strcmp(m->topic[i], topic_names[k]) != 0)
            k++;
        if (k == TOPICS)
            return vg_err_set(err, VG_INVALID,
                              "there is no topic '%.40s': choose from tasks, nodes, gpus, queue, "
                              "budgets and status",
                              m->topic[i]);
        *ret |= BIT(k);
    }
    return 0;
}

static struct reader *reader_new(struct vg_call *call, struct vg_events *ev, unsigned topics) {
    struct reader *r = ev ? vg_alloc(sizeof *r) : NULL;
    struct vg_follow *f = r ? vg_follow_new(call->peer, NULL, VG_FOLLOW_EVENTS, call->req) : NULL;
    if (!f) {
        free(r);
        if (ev && vg_list_empty(&ev->readers))
            events_free(ev);
        return NULL;
    }
    vg_list_remove(&f->on_job); /* the sentry stands there for it */
    *r = (struct reader){.events = ev, .follow = f, .topics = topics, .stale = topics};
    vg_list_push_back(&ev->readers, &r->link);
    f->data = r;
    f->free_data = reader_free;
    if (look_join(r) < 0) {
        vg_follow_free(f);
        return NULL;
    }
    return r;
}

void vg_api_events(struct vg_call *call) {
    Vg__Pb__EventQuery *m = call->env->events;
    const Vg__Pb__TaskQuery all = VG__PB__TASK_QUERY__INIT;
    struct vg_err err = VG_ERR_INIT;
    struct vg_query query;
    unsigned topics;
    if (read_topics(m, &topics, &err) < 0 ||
        vg_query_init(&query, call->ctl, call->user, m->tasks ? m->tasks : &all, &err) < 0) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    Vg__Pb__TaskQuery *q = m->tasks ? vg_take_ptr(m->tasks) : vg_memdup(&all, sizeof all);
    struct reader *r = q ? reader_new(call, events_get(call->ctl), topics) : NULL;
    if (!r) {
        if (q)
            vg__pb__task_query__free_unpacked(q, NULL);
        vg_peer_error(call->peer, call->req, VG_TOO_BIG,
                      "too many requests wait on this connection: open another");
        return;
    }
    r->q = q;
    r->of = query.of;
    vg_timer_stop(&r->events->tick); /* it hears how things are at once */
    r->events->tick = vg_timer_start(call->ctl->loop, 0, on_tick, r->events);
}

void vg_events_stop(struct vg_control *c) {
    while (c->events) {
        struct reader *r = vg_list_entry(vg_list_first(&c->events->readers), struct reader, link);
        vg_follow_free(r->follow);
    }
}
