#pragma once
/* The control plane's root: everything it knows, in memory, on one loop. The store is written
   behind it (persist.h). Loop thread only. */
#include "base/list.h"
#include "base/map.h"
#include "conf/conf.h"
#include "control/authority.h"
#include "control/counts.h"
#include "control/home.h"
#include "control/policy.h"
#include "meter/price.h"
#include "model/alike.h"
#include "model/tenant.h"
#include "net/conn.h"
#include "store/store.h"

#include <uv.h>

#define VG_PEERS_MAX 20000                    /* connections at once */
#define VG_PEER_FOLLOWS_MAX 20000             /* unanswered requests of one connection */
#define VG_PEER_QUEUE_MAX (16u << 20)         /* unread bytes after which a watcher is dropped */
#define VG_PEER_SILENT_USEC (30 * 1000000ULL) /* before it must have said who it is */
#define VG_HOUSEKEEPING_USEC 1000000ULL

struct vg_control {
    uv_loop_t *loop; /* borrowed from main */
    struct vg_home home;
    struct vg_conf conf;
    struct vg_authority ca;
    struct vg_store *store;
    struct vg_policy policy;
    struct vg_book book; /* prices: control/price.h */
    struct {
        uint64_t last;   /* number of the newest row of the ledger ... */
        uint64_t stored; /* ... and of the newest that is stored */
        uint64_t day;    /* until its beginning everything is written */
    } ledger;
    struct vg_list asked;    /* cost.c's: questions about the ledger */
    struct vg_list searches; /* task-search.c's */
    uint32_t list_steps; /* thousands of the store's that a list may take here: some milliseconds */
    struct vg_budgets *budgets; /* owned; NULL: there are none */
    struct vg_map group_costs;  /* group -> struct vg_group_cost of job-info.c, owned */
    struct vg_kept *kept;       /* owned; NULL: nothing that is kept costs anything */
    struct vg_timer *wake;      /* when the scheduler wants to be asked again ... */
    uint64_t wake_usec;         /* ... wall time */
    bool conf_named;            /* the configuration's file was given: it must be there */
    struct vg_tenants tenants;
    struct vg_alike alike;              /* what the tasks in memory have in common */
    char cloud[VG_TENANT_NAME_MAX + 1]; /* the cloud's id */
    char machine_id[64];                /* of this machine; "" when unknown */
    char address[300];                  /* what clients are told of the TLS port */

    struct vg_map peers; /* serial -> struct vg_peer, owned */
    struct vg_map
        jobs; /* task id -> struct vg_job, owned: tasks that are not both ended and stored */
    struct vg_map nodes;    /* node id -> struct vg_nodelink, owned */
    struct vg_map sessions; /* "user/name" -> struct vg_session, owned */
    struct vg_map keys;     /* token id -> struct vg_apikey, owned */
    struct vg_map accounts; /* uid + 1 -> struct vg_account, owned: who.c's cache */
    struct vg_map idem;     /* "user/key" -> struct vg_job: idempotency keys of jobs in memory */
    struct vg_envs *envs;   /* owned; NULL: not needed yet */
    struct vg_secrets *secrets; /* owned */
    struct vg_map schedules;    /* id -> struct vg_schedule, owned */
    struct vg_map offers;       /* task id -> struct offer of mirror.c, owned */
    struct vg_list links;       /* mirror.c's */
    struct vg_map places;       /* user -> struct places of mirror-peer.c, owned */
    struct vg_list peers_of;    /* mirror-peer.c's links between nodes */
    struct vg_list news;    /* struct vg_job.news: heads whose watchers hear of their counts soon */
    struct vg_list ripe;    /* struct vg_edge.on_target: what they wait for has ended */
    bool ripening;          /* they are being dealt with */
    struct vg_list dirty;   /* struct vg_job.dirty: to be written behind */
    struct vg_list replays; /* replay.c's */
    struct vg_list watches; /* struct vg_follow.on_job of watchers */

    size_t series_room; /* bytes that series may still take (series.h) */
    struct {
        uint64_t probed_usec; /* boot clock; 0: never */
        bool probing;
        int result;         /* of the last probe */
    } ready;                /* ready.c's */
    struct vg_hooks *hooks; /* owned; NULL: there are none */
    struct vg_counts counts;
    struct vg_rest *rest;             /* owned; NULL: nobody has asked over HTTP */
    struct vg_metrics *metrics;       /* owned; NULL: nobody is to look from outside */
    struct vg_events *events;         /* owned; NULL: nobody listens */
    struct vg_webport *webport;       /* owned; NULL: no dashboard and no REST */
    struct vg_listener *listeners[3]; /* home socket, system socket, TLS */
    uv_async_t store_wake;
    uv_timer_t housekeeping;
    uv_timer_t write_behind;
    uv_timer_t last_words;
    uv_signal_t signals[3];
    uint64_t next_serial;
    uint64_t started_usec; /* boot clock */
    uint64_t pruned_usec;
    uint64_t told_usec;  /* boot clock: those who wait were told anew */
    uint64_t saved_usec; /* boot clock: the scheduler's memory went to the store */
    uint64_t wire_msgs;
    size_t most_jobs; /* since memory was last given back */
    uint32_t running; /* jobs starting or running */
    bool settled; /* every node that may hold tasks of an earlier life has reported or is over */
    uint32_t log_round;   /* of this life: names what it asks keepers to send again; above 1 */
    uint64_t silent_node; /* one that was lost before it could report, or 0 */
    bool placing;         /* vg_place_all is on the stack */
    bool place_again;
    bool stopping;
    bool write_armed;
    struct vg_logins *logins;   /* owned; NULL: nobody has logged in by the provider yet */
    bool verifying;             /* the audit log is being walked */
    struct vg_refused *refused; /* owned; logins that failed lately (audit-refused.c); NULL: none */
};

struct vg_control_opts {
    const char *home, *listen, *config; /* NULL: default */
    const char *web;                    /* unless the configuration says; NULL: nowhere */
};

/* Everything up to the first turn of the loop. On failure nothing is left behind. */
int vg_control_start(struct vg_control *c, uv_loop_t *loop, const struct vg_control_opts *opts,
                     struct vg_err *err);
/* Begins an orderly stop: no new connections, the store is flushed, the loop ends. */
void vg_control_stop(struct vg_control *c, const char *why);
/* After the loop has ended: gives everything back. */
void vg_control_done(struct vg_control *c);
