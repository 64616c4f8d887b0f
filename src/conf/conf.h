#pragma once
/* The configuration of a cloud: one YAML file, every key of which stands in conf-keys.tbl and in
   docs/configuration.md. Without a file the defaults describe a one-machine cloud with one pool.

   What always holds of a loaded configuration: every pool has a valid, unique name; default_pool
   names one of them; every number is within its limits; no string is NULL unless stated.
   Unknown and repeated keys are errors. A message starts with "file:line: ". No globals. */
#include "base/err.h"
#include "conf/policy.h"
#include "conf/res.h"

#include <stddef.h>

#define VG_CONF_BYTES_MAX (1u << 20) /* of the file */
#define VG_CONF_POOLS_MAX 256
#define VG_CONF_LIST_MAX 256 /* entries of any other list or selector */
#define VG_CONF_NAME_MAX \
    63 /* pool names: letters, digits, '.', '_', '-'; starts with a letter or digit */

enum vg_network { VG_NETWORK_NAT, VG_NETWORK_HOST, VG_NETWORK_NONE };
/* How a GPU of the pool is given, and what its holders share when one of them fails: docs/gpu.md.
 */
enum vg_pool_class {
    VG_CLASS_DEDICATED,
    VG_CLASS_SHARED, /* by time slices, a context of its own for each task */
    VG_CLASS_MPS,    /* by NVIDIA's server, one context for all */
    VG_CLASS_MIG,    /* cut by the card itself */
    VG_CLASS_BARE,   /* the whole node */
    VG_CLASSES
};

const char *vg_network_name(enum vg_network n); /* "nat", as in Start.network */
const char *vg_pool_class_name(enum vg_pool_class c);
int vg_pool_class_parse(const char *name, enum vg_pool_class *ret); /* -EINVAL */
/* Whether it gives parts of one card (grant.gpu_milli) and no whole ones. */
bool vg_pool_class_shares(enum vg_pool_class c);
/* What its tasks share with others, and so lose together: a few words for people. */
const char *vg_pool_class_domain(enum vg_pool_class c);

struct vg_pool_conf {
    char *name;             /* owned */
    char *description;      /* owned; "" when not given */
    struct vg_labels nodes; /* a node belongs when it carries all of these; none: every node */
    struct vg_res shape;    /* what a task gets that does not ask */
    struct vg_res max;      /* the most one task may ask for; 0: no limit but the node's size */
    enum vg_network network;
    enum vg_pool_class class;
    struct vg_strings
        shared;             /* absolute paths that every node of the pool shares with the callers */
    uint64_t max_time_usec; /* the most a task may run; 0: no limit */
    struct vg_strings model; /* GPU models: only nodes with one of these belong; none: any */
    struct vg_price price;
    uint32_t max_priority; /* the highest that may be asked for here */
    uint64_t min_run_usec; /* no task of the pool is preempted before */
    /* GPUs held and not used for so long: said; the task is ended; 0: never. */
    uint64_t idle_warn_usec, idle_end_usec;
    uint64_t gpu_turn_usec;        /* the longest turn on a shared card; 0: as the node likes */
    struct vg_strings idle_exempt; /* users and teams that this is not for */
    bool mirror;   /* tasks find the files of the machine they come from; else the node's */
    bool rdma;     /* tasks with whole GPUs may use the nodes' RDMA adapters */
    unsigned line; /* where it stands in the file; 0 for the default pool */
};

struct vg_conf {
    char *listen;    /* owned; "host:port" of the TLS port; port 0: the kernel chooses (virgad keeps
                        the number for its next start) */
    char *advertise; /* owned; "host[:port]" that is told to clients and agents; "": as listen */
    char *metrics;   /* owned; "host:port" of numbers for Prometheus; "": nowhere */
    char *web; /* owned; "host:port" of the dashboard and REST; "": as virgad was told, "off" */
    char *web_cert, *web_key; /* owned; files; "": of the cloud's own authority */
    struct {
        struct vg_strings groups; /* unix groups and users of this machine who are let in */
        struct vg_strings users;
        uint64_t token_max_usec; /* the longest life of a token; 0: for ever */
    } access;
    struct {
        uint64_t log_head_bytes, log_tail_bytes; /* output kept of each attempt */
        uint64_t tasks;                          /* unfinished tasks in the cloud */
        uint64_t user_tasks;                     /* unfinished tasks of one user */
        uint64_t env_bytes;    /* of stored environments and pinned files, a user; 0: no limit */
        uint64_t changes_usec; /* how long what tasks changed is kept; 0: for ever */
        uint64_t web_rate;     /* requests a second of one user or address; 0: no limit */
        uint64_t web_burst;    /* and so many at once */
        uint64_t history_usec; /* how long ended tasks are kept; 0: for ever */
    } limits;
    struct {
        struct vg_strings libraries; /* patterns of files; none: what each node finds */
        uint64_t cache_bytes; /* of each user's mirrored files on a node; 0: a tenth of its disk */
    } node;
    struct {                     /* where environments are kept; owned, NULL: not said */
        char *store;             /* "s3://bucket/prefix"; none: virgad's own folder */
        char *endpoint, *region; /* of the bucket */
        char *credentials;       /* a file; none: AWS_ACCESS_KEY_ID and so on */
        char *ca;                /* a file of certificates to trust, too */
        uint64_t cache_bytes;    /* of a user's contents beside virgad; 0: no limit */
    } env;
    struct {
        struct vg_strings key_command; /* prints the master keys; none: they are in a file */
    } secrets;
    struct {                     /* people's hooks; texts are owned, NULL: not said */
        struct vg_strings allow; /* nets that plain users' hooks may reach though not public */
        char *proxy;             /* "http://host:port" */
        char *ca;                /* a file: who is trusted in place of whom the system trusts */
        uint64_t retry_usec;     /* until the second try; doubles with each */
        uint64_t give_up_usec;   /* what could not be sent for so long is dropped */
        uint64_t pause_usec;     /* a hook that failed for so long is paused */
    } hooks;
    struct {          /* owned, NULL: not said; no server: no mail */
        char *server; /* "host:port" */
        char *from;   /* an address */
        char *user;   /* who sends; none: the server is not told */
        char *password_file;
        char *ca;
        enum vg_mail_way { VG_MAIL_STARTTLS, VG_MAIL_TLS, VG_MAIL_PLAIN } tls;
    } mail;
    struct {          /* the identity provider by which people log in; docs/access.md */
        char *issuer; /* owned; "" or NULL: there is none */
        char *client_id, *secret_file, *name, *ca; /* owned */
        char *user_claim, *group_claim;            /* owned */
        struct vg_strings scopes;
        struct vg_labels teams, roles; /* of a group */
        bool auto_create;
        uint64_t token_usec; /* life of the tokens that logins get; 0: VG_OIDC_TOKEN_USEC */
    } oidc;
    uint64_t lease_usec;       /* how long a node may run tasks without hearing from us */
    uint64_t heartbeat_usec;   /* how often it reports; at most a third of the lease */
    uint64_t node_cert_usec;   /* how long a node's certificate lives; renewed at two thirds */
    char *default_pool;        /* owned */
    struct vg_pool_conf *pool; /* owned */
    size_t n_pools, pools_cap;
    char *currency; /* owned; of prices and costs */
    struct vg_energy_conf energy;
    struct vg_scheduler_conf scheduler;
    struct vg_queue_conf *queue; /* owned; a queue stands before what is in it */
    size_t n_queues, queues_cap;
    struct vg_window_conf *window; /* owned */
    size_t n_windows, windows_cap;
    struct vg_reservation_conf *reservation; /* owned */
    size_t n_reservations, reservations_cap;
};

/* The built-in configuration: pool `default`, every node, nothing reserved (so that CPU is
   oversubscribed and shared fairly), network nat, TLS on 127.0.0.1 on a port of the kernel's
   choice. 0 or -ENOMEM; on failure *ret is left empty and valid. */
int vg_conf_default(struct vg_conf *ret);

/* Reads and checks a file. A file that does not exist is an error (-ENOENT): whoever may go without
   one looks first. On failure *ret is untouched and `err` is one sentence with file, line and
   remedy. */
int vg_conf_load(const char *path, struct vg_conf *ret, struct vg_err *err);

/* The same from memory; `name` stands for the file in messages. The text may hold any bytes. */
int vg_conf_parse(const char *text, size_t len, const char *name, struct vg_conf *ret,
                  struct vg_err *err);

void vg_conf_done(struct vg_conf *c); /* accepts zeroed and half-built */

const struct vg_pool_conf *vg_conf_pool(const struct vg_conf *c, const char *name); /* NULL: none */

/* The queue where a team's tasks compete: the one that lists the team, else the one of its name,
   else (ret: its index, *ret_own: true) the team has a queue of its own below the returned one,
   which bears the organisation's name. -1: at the top. */
int vg_conf_queue_of(const struct vg_conf *c, const char *org, const char *team, bool *ret_own);
/* What holds for a queue (-1: the whole cloud) after what the queues above say. */
struct vg_tenant_conf vg_conf_queue_policy(const struct vg_conf *c, int queue);
/* The same for a queue that the file does not name (own of a team), below `queue`. */
struct vg_tenant_conf vg_conf_team_policy(const struct vg_conf *c, int queue);
/* And for a user in a queue; `own`: the user is in a team's own queue below it. */
struct vg_tenant_conf vg_conf_user_policy(const struct vg_conf *c, int queue, bool own,
                                          const char *user);
/* "research/vision" of a queue; cut to fit. Returns out. */
char *vg_conf_queue_path(const struct vg_conf *c, int queue, char *out, size_t n);

/* The occurrence of a window that is on at `now` or, if none is, the next: 1 and the wall times, or
   0 when it will not come again. Windows without a zone follow the process's time zone. */
int vg_conf_window_next(const struct vg_window_conf *w, uint64_t now_usec, uint64_t *ret_start,
                        uint64_t *ret_end);
/* "2026-12-01 02:00", with seconds, 'T' and a zone (Z, +01:00) if wanted. 0 or -EINVAL. */
int vg_parse_when(const char *s, struct vg_when *ret);
/* "2.5", "0.000125" -> millionths; at most six decimals. 0, -EINVAL or -ERANGE. */
int vg_parse_micro(const char *s, uint64_t *ret);
/* NULL, or the candidate that is near enough to be what was meant. Also good for CLI messages. */
const char *vg_conf_nearest(const char *word, const char *const *candidates, size_t n);
/* Letters, digits, '.', '_', '-', at most VG_CONF_NAME_MAX, starting with a letter or digit. */
bool vg_conf_name_valid(const char *s);
/* Whether a card's full name has what people call it (`n` bytes at `want`), as whole words and in
   any case: "NVIDIA A100-SXM4-80GB" is an a100 and an A100-SXM4-80GB, not an A10. */
bool vg_conf_model_is(const char *have, const char *want, size_t n);
/* Whether labels written "k=v" (as nodes send them) satisfy a selector. */
bool vg_conf_labels_match(const struct vg_labels *selector, char *const *labels, size_t n);
