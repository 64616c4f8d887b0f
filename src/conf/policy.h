#pragma once
/* Policy as configuration: who may have how much (queues), how the scheduler decides, what pools
   cost, when machines are not to be had (maintenance, reservations). Part of conf.h.

   A queue takes the place of a team in the tenant tree: tasks of its teams' users compete inside
   it, and it competes with the queues beside it. A team that no queue names has a queue of its own
   with everything at its default, so that without a file every team is equal to every other and
   every user to every other in the team. */
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

#define VG_CONF_QUEUES_MAX 4096 /* queues and named users in all */
#define VG_CONF_QUEUE_DEPTH 5   /* queues within queues */
#define VG_CONF_WINDOWS_MAX 256
#define VG_CONF_RESERVATIONS_MAX 256

#define VG_PRIORITY_MAX 100
#define VG_PRIORITY_DEFAULT 50
#define VG_WEIGHT_DEFAULT 100

#define VG_NO_LIMIT UINT64_MAX
#define VG_INHERIT (-1)

struct vg_strings {
    char **item; /* owned, as each string is */
    size_t n, cap;
};

struct vg_label {
    char *key, *value; /* owned */
};

struct vg_labels {
    struct vg_label *item; /* owned */
    size_t n, cap;
};

/* What tenants are given: of the whole cloud, not of one node. */
struct vg_amount {
    uint64_t gpu_milli, cpu_milli, mem_bytes;
};

struct vg_tenant_conf {
    struct vg_amount quota; /* guaranteed: taken back from others when needed; 0: nothing */
    struct vg_amount limit; /* never more; VG_NO_LIMIT: none */
    uint32_t weight;        /* of what is left beyond quotas, against those beside it */
    /* As read from the file these four may be VG_INHERIT: what the queue above says. The policies
       that vg_conf_*_policy() answer never are. */
    uint32_t max_priority;     /* the highest that may be asked for */
    uint32_t default_priority; /* of a task that asks for none */
    uint64_t min_run_usec;     /* a task runs so long before it can be preempted */
    int8_t preemptible;        /* 0 or 1: of a task that does not say */
};

struct vg_queue_conf {
    char *name;             /* owned */
    int32_t parent;         /* index of the queue above; -1: none */
    bool is_user;           /* a user of the queue above, by name; has no teams */
    bool has_queues;        /* there are queues below: of itself it holds no team of its name */
    struct vg_strings team; /* teams whose users compete here */
    struct vg_tenant_conf self;
    struct vg_tenant_conf each_user; /* of users who are not named */
    unsigned line;
};

enum vg_placement { VG_PLACE_LEAST_STRANDED, VG_PLACE_BEST_FIT, VG_PLACE_SPREAD };
const char *vg_placement_name(enum vg_placement p);

/* Whose tasks may be stopped for others. Not said: YES when some queue has a quota (a guarantee is
   kept by taking back), else AGREED. A person at a terminal is never interrupted. */
enum vg_preemption { VG_PREEMPT_NO, VG_PREEMPT_AGREED, VG_PREEMPT_YES, VG_PREEMPT_UNSAID };
const char *vg_preemption_name(enum vg_preemption p);

struct vg_scheduler_conf {
    uint64_t half_life_usec; /* after which past usage counts half; 0: only the present counts */
    uint64_t ageing_usec;    /* waiting that is worth one step of priority; 0: none */
    uint32_t backfill;       /* shapes of waiting tasks of a pool that keep their expected start */
    enum vg_preemption preemption; /* never UNSAID in a loaded configuration */
    uint64_t min_run_usec;         /* no attempt is preempted before */
    uint64_t grace_usec;           /* between a preempted task's signal and its end */
    uint64_t gang_timeout_usec;    /* how long the members of a placed gang may take to start */
    enum vg_placement placement;
};

/* In millionths of the currency, by the hour. */
struct vg_price {
    uint64_t gpu_hour_micro, cpu_hour_micro, gib_hour_micro;
    /* Taken off, in thousandths of a percent: for GPUs that are held and do nothing; for tasks
       that may be preempted. */
    uint64_t idle_milli, preemptible_milli;
};

/* What a kilowatt-hour at the GPUs means. */
struct vg_energy_conf {
    uint64_t co2_milli; /* thousandths of a gram for each */
    uint64_t pue_milli; /* what the whole site draws for each that they draw, in thousandths */
};

enum vg_repeat { VG_REPEAT_ONCE, VG_REPEAT_DAILY, VG_REPEAT_WEEKLY };

/* A time as it was written. With a zone it is a moment; without one it is the local calendar's, so
   that "Sundays at two" stays at two when the clocks change. */
struct vg_when {
    uint64_t usec;  /* wall time of the first occurrence */
    bool local;     /* no zone was given */
    int32_t day[3]; /* year, month 1-12, day 1-31 as written */
    int32_t second; /* of the day */
};

struct vg_window_conf {
    char *name;             /* owned */
    struct vg_strings node; /* by name, or */
    struct vg_labels label; /* all of these; neither: every node */
    struct vg_when start;
    uint64_t duration_usec;
    enum vg_repeat repeat;
    unsigned line;
};

struct vg_reservation_conf {
    char *name;                 /* owned */
    char *pool;                 /* owned; names a pool; NULL: any node */
    char *queue, *team, *user;  /* owned; for whom: exactly one is given, the others are NULL */
    uint32_t gpus;              /* kept free for them */
    struct vg_when from, until; /* until > from */
    unsigned line;
};
