#pragma once
/* What the store keeps, as plain rows. Strings are borrowed by the store for the call that takes
   them and lent to callbacks for the callback's duration; NULL reads and writes as "". Ids are
   vg_id numbers; times are wall microseconds, 0 for never. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vg_bytes {
    const void *data;
    size_t len;
};

struct vg_task_row {
    uint64_t id;
    const char *user, *team, *pool, *name, *session;
    const char *labels; /* "k=v" lines, each ended by '\n' */
    const char *state;  /* the model's name of it */
    bool ended;         /* the state is final: not loaded again at start */
    bool durable;       /* accepted with a promise to survive power loss */
    bool cancel;        /* somebody asked for it to end */
    bool interactive;
    uint32_t attempt;
    uint64_t node;
    uint32_t retries_left;
    int32_t status;
    uint32_t reason;         /* base/reasons.tbl, 0 when it ran */
    const char *reason_text; /* for the person */
    uint64_t created_usec, started_usec, ended_usec;
    uint64_t parent;
    uint64_t cpu_usec, mem_peak_bytes, out_bytes;
    const char *gpus;      /* indices held, "0,1" */
    uint64_t group;        /* it is a member of; 0: of none */
    uint64_t fold;         /* the row it is shown under: group or parent; 0: none */
    uint32_t index;        /* in its group */
    uint32_t members;      /* of a group; 0: it is none */
    uint32_t preempted;    /* how often it had to give way */
    bool preempting;       /* it was told to give way and has not ended yet */
    uint64_t due_usec;     /* not to start before */
    const char *after;     /* what it still waits for, as the model writes it */
    const char *key;       /* the owner's idempotency key; "" for none */
    const char *progress;  /* counts of members or children, as the model writes them */
    bool insert;           /* with an empty spec: add the row, too (a member's: its group has it) */
    struct vg_bytes spec;  /* packed TaskSpec. Writing an empty one keeps the stored one */
    struct vg_bytes who;   /* packed Identity; likewise */
    struct vg_bytes grant; /* packed Resources; likewise */
    struct vg_bytes command; /* its words, for searches; likewise. Not needed to be whole */
};

struct vg_node_row {
    uint64_t id;
    const char *name;
    const char *state;  /* as last known; draining and quarantined are wishes that must survive */
    const char *labels; /* "k=v" lines */
    struct vg_bytes total; /* packed Resources */
    const char *gpu_model, *version, *address, *machine_id;
    uint64_t joined_usec, seen_usec, cert_expires_usec;
};

struct vg_org_row {
    const char *name;
    uint64_t created_usec;
};
struct vg_team_row {
    const char *name, *org;
    uint64_t created_usec;
};
struct vg_user_row {
    const char *name, *team, *role;
    int64_t uid, gid; /* -1: no account on this machine */
    uint32_t slot;    /* number of the user's id range; unique */
    uint64_t created_usec;
    bool service, disabled;
    const char *email, *full_name;
    const char *subject; /* who it is to the identity provider; "": it has none there */
};

/* An API token (one row a token; the secret itself is never stored). */
struct vg_token_row {
    const char *id, *user, *name;
    struct vg_bytes hash; /* SHA-256 of the secret */
    uint64_t created_usec, expires_usec /* 0: never */, used_usec;
    uint32_t scope; /* bits of enum vg_scope */
};

/* A secret, sealed: what opens it is not in the store. */
struct vg_secret_row {
    const char *scope, *name; /* "user:NAME" or "team:NAME" */
    uint32_t version;
    const char *key; /* which master key wraps its data key */
    struct vg_bytes wrapped, sealed;
    const char *set_by;
    uint64_t created_usec, changed_usec;
};

/* A one-time token by which a node joins. */
struct vg_join_row {
    const char *id;
    struct vg_bytes hash;
    const char *labels; /* "k=v" lines that the node will carry */
    uint64_t created_usec, expires_usec;
    uint64_t node; /* who used it; 0: nobody yet */
};

struct vg_session_row {
    const char *user, *name, *pool;
    uint64_t node;
    uint64_t created_usec, keep_usec;
};

/* A template that makes tasks by the clock. */
struct vg_schedule_row {
    uint64_t id;
    const char *user, *team, *name;
    struct vg_bytes spec, who; /* packed; after the first write they stay */
    uint64_t created_usec, next_usec, last_usec;
    uint64_t last_task; /* the newest it made, or 0 */
    uint32_t made;
};

/* An attempt that is over: what it held, where and how long. The sum of these is what is paid for.
 */
struct vg_attempt_row {
    uint64_t task;
    uint32_t attempt;
    const char *user, *team, *pool, *node; /* the node by name */
    uint64_t from_usec, until_usec;
    const char *how;                          /* "ended", "cancelled", "preempted", "lost" */
    uint64_t cpu_milli, mem_bytes, gpu_milli; /* GPUs: at its end */
    uint64_t gpu_held;                        /* thousandths times microseconds, whatever changed */
    uint64_t cpu_usec, mem_peak_bytes;        /* what it used of them */
    struct vg_gpu_row {                       /* -1: nobody told */
        int64_t sm_milli, sm_max;             /* mean in thousandths of a percent; percent */
        int64_t mem_milli, mem_max;
        int64_t mem_peak_bytes, energy_mj;
        int64_t sampled_usec; /* GPU time that the means are of */
        int64_t pcie_rx_bytes, pcie_tx_bytes;
    } gpu;
    const char *wiped; /* lines: what was cleared away after it; "" or NULL: nothing is known */
};

/* A task that has ended, as it was asked for: the recorded load. */
struct vg_history_row {
    uint64_t task;
    const char *queue, *user, *team;
    const char *pools;  /* acceptable, "a,b" in order of preference */
    const char *models; /* of GPUs that will do, "A100|H100" */
    const char *labels; /* that the node must carry, "k=v" lines */
    uint64_t cpu_milli, mem_bytes;
    uint32_t gpus, gpu_milli;
    uint64_t gpu_mem_bytes;
    uint32_t priority;
    bool preemptible, fixed;
    uint64_t limit_usec;
    uint64_t kin;     /* equal for tasks that are likely to run equally long */
    uint64_t gang;    /* 0: none */
    uint32_t members; /* of the gang */
    uint64_t submit_usec;
    uint64_t ready_usec; /* since when it could have started: dependencies, back-off */
    uint64_t end_usec;
    const char *outcome; /* final state */
};

/* One entry of the price book. */
struct vg_price_row {
    uint64_t id;
    const char *pool, *class_name, *currency, *who;
    uint64_t from_usec, set_usec;
    uint64_t gpu_hour_micro, cpu_hour_micro, gib_hour_micro, storage_gib_month_micro;
    uint32_t idle_milli, preemptible_milli;
};

/* One charge; see docs/money.md. Never changed, never removed. */
struct vg_ledger_row {
    uint64_t seq;  /* given by the caller, growing */
    uint64_t task; /* 0: none */
    uint32_t attempt, part;
    const char *kind; /* "held", "back" (held, taken back), "unused", "storage", "credit" */
    uint64_t from_usec, until_usec;
    const char *user, *team, *org, *project, *pool, *class_name, *node;
    const char *labels; /* "k=v" lines */
    uint64_t gpu_milli, cpu_milli, mem_bytes;
    bool preemptible;
    uint64_t price; /* 0: none */
    const char *currency;
    int64_t cost_micro;
    uint64_t gpu_micro;        /* of it: for GPUs */
    uint64_t rest_hi, rest_lo; /* what is left of a millionth after it */
    uint64_t energy_mj, gpu_busy_usec, gpu_unused_usec;
    const char *text, *who; /* of a credit */
};

struct vg_budget_row {
    const char *name, *scope, *period, *policy, *who, *currency;
    const char *warn; /* percents, "50,80,95" */
    uint64_t limit_micro, grace_usec, set_usec;
    bool paused;
    uint32_t warned_percent;    /* highest level that was told ... */
    uint64_t warned_from_usec;  /* ... in the period that began then */
    uint64_t stopped_from_usec; /* what ran was ended in the period that began then; 0: in none */
};

/* What the scheduler wants to know again after a restart. */
struct vg_memory_row {
    uint32_t kind;
    uint64_t key, value[4];
};

/* An entry of the audit log. Each carries a hash of itself and of the one before (store/audit.h).
 */
/* Whom somebody wants to be told. */
struct vg_hook_row {
    const char *user, *name, *url, *scope;
    const char *events; /* lines */
    struct vg_bytes sealed;
    bool paused;
    uint64_t created_usec, sent, failed, last_usec, failing_usec;
    const char *last_error;
};

/* An event on its way to a hook. */
struct vg_outbox_row {
    const char *id, *user, *hook, *event;
    struct vg_bytes body;
    uint64_t created_usec;
};

struct vg_audit_row {
    uint64_t when_usec;
    const char *who, *what;
    const char *from;     /* an address, or "local" */
    uint64_t seq;         /* from 1; given when it is written */
    struct vg_bytes hash; /* likewise */
};
