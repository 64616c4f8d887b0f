#pragma once
/* What events.c and events-look.c share. */
#include "control/events.h"
#include "control/timer.h"

enum topic {
    TOPIC_TASKS,
    TOPIC_NODES,
    TOPIC_GPUS,
    TOPIC_QUEUE,
    TOPIC_BUDGETS,
    TOPIC_STATUS,
    TOPICS
};
#define BIT(topic) (1u << (topic))

struct look;
struct vg_events {
    struct vg_control *ctl;
    struct vg_follow sentry; /* stands for all readers in vg_control.watches */
    struct vg_list readers;  /* struct reader.link */
    struct vg_list looks;    /* struct look.link */
    struct vg_map dirty;     /* ids of tasks that changed; values mean nothing */
    struct vg_timer *soon, *tick;
    uint64_t number;
    uint64_t round;
};

struct reader {
    struct vg_events *events;
    struct vg_follow *follow; /* owns us */
    struct vg_list link;
    struct look *look; /* shared by those who came with the same token */
    unsigned topics;
    unsigned stale;       /* topics of which it must be told everything */
    Vg__Pb__TaskQuery *q; /* owned */
    uint64_t of;
    struct vg_map missed; /* ids of tasks it was not told of */
    bool lost;            /* there were too many of them */
};

/* Another event is about to be told. */
void events_next(struct vg_events *ev);
/* The bytes that wait for it are few enough. */
bool reader_has_room(const struct reader *r);
/* Tells one event; the caller has taken its number. */
void reader_tell(struct reader *r, Vg__Pb__Event *e);

/* events-look.c */
int look_join(struct reader *r); /* 0 or -errno */
void look_leave(struct reader *r);
void looks_tick(struct vg_events *ev);
/* Who they are; NULL: nobody any more. */
const struct vg_user *look_user(struct look *k);
