#pragma once
/* The agent's own state, shared by its files and nobody else. One thread: the libuv loop.

   Always holds:
   1. `tasks` holds every (task, attempt) of this node that the control plane has not yet
      acknowledged as ended; nothing is sent to the control plane before every keeper that lives on
      the node has told what it holds. So the first AgentHello is complete.
   2. A task has a keeper from the moment it is handed over until its keeper is gone.
   3. A keeper of a session has `session` set and is in `sessions` under that key. */
#include "agent/agent-backoff.h"
#include "agent/agent-slices.h"
#include "agent/agent-ticket.h"
#include "agent/agent-warm.h"
#include "agent/keeper.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/list.h"
#include "base/map.h"
#include "gpu/driver.h"
#include "gpu/gpu-use.h"
#include "gpu/gpus.h"
#include "gpu/health.h"
#include "gpu/numa.h"
#include "gpu/watch.h"
#include "net/conn.h"
#include "net/wire.h"
#include "proto/virga.pb-c.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#define VG_AGENT_KEEPERS_MAX 8192
#define VG_AGENT_NESTED_MAX 256
#define VG_AGENT_DIRECT_MAX 1024
#define VG_AGENT_FORWARDS_MAX 1024     /* waiting for their keeper */
#define VG_AGENT_ENDED 1024            /* attempts remembered after they were acknowledged */
#define VG_AGENT_LINKS_MAX 1024        /* of file services */
#define VG_AGENT_LINK_WIDTH (8u << 20) /* bytes on their way on one of them */
#define VG_AGENT_PREPARING 8 /* keepers being prepared at the same time for waiting starts */
#define VG_AGENT_REFILLING 2 /* and ahead of need */
#define VG_AGENT_REFILL_MS 3 /* pause after a start before its place in the pool is refilled */
#define VG_AGENT_LENT_USEC 250000ULL /* a task that lasts longer keeps its keeper */
#define VG_AGENT_KEEP_FDS 384        /* of the sandbox node that keepers inherit */
#define VG_AGENT_FRESH_FDS 16        /* that one call of it opens */
/* Folder below node/ that tasks see as a whole: a socket made anew by the next agent is found there
   by tasks that started under this one. */
#define VG_AGENT_INSIDE "inside"

struct vg_agent_conf {
    const char *home;    /* $VIRGA_HOME, absolute */
    const char *control; /* unix:PATH or HOST:PORT; NULL: what the node remembers, else home/sock */
    const char *join;    /* HOST:PORT or NULL */
    const char *token;
    const char *name;
    const char *gpu_model;
    const char *listen; /* HOST:PORT, "none", or NULL: the default for the way it is connected */
    char **labels;
    size_t n_labels;
    char **shared;
    size_t n_shared;
    int64_t gpus;              /* -1: count */
    bool fake_gpus;            /* so many are simulated */
    uint64_t gpu_silence_usec; /* after which their driver is given up */
    uint64_t cpus;
    uint64_t mem_bytes;
    uint32_t warm;
    bool no_passthrough, no_erofs; /* mirrored files as on kernels that lack these */
};

/* agent-options.c. Points into argv; its lists are to be freed. 1: help was asked for. */
int vg_agent_options(int argc, char **argv, struct vg_agent_conf *c, struct vg_err *err);
extern const char vg_agent_usage[];

/* ------------------------------------------------------------------ keepers */

struct vg_agent;
struct vg_agent_task;

enum vg_keeper_state {
    VG_KEEPER_ADOPTED,   /* found at the start; has not reported yet */
    VG_KEEPER_PREPARING, /* born, its sandbox is being made */
    VG_KEEPER_READY,     /* waits for a task */
    VG_KEEPER_BUSY,      /* was given a task */
    VG_KEEPER_LEAVING,   /* told to go */
};

struct vg_agent_keeper {
    struct vg_list link;          /* in vg_agent.keepers */
    struct vg_list ready_link;    /* in vg_warm_profile.ready or .lent */
    struct vg_warm_profile *lent; /* whose list of lent keepers it is in, or NULL */
    uint64_t lent_usec;
    struct vg_agent *agent;
    enum vg_keeper_state state;
    struct vg_warm_profile *profile; /* while preparing or ready for the pool; else NULL */
    struct vg_warm_key key;          /* what its sandbox was made for; home is owned */
    bool has_key;                    /* false when adopted */
    uint64_t bound;                  /* binds of its last task (vg_agent_task.binds); 0: none yet */
    uint32_t serial;
    pid_t pid;
    int fd;
    uv_poll_t poll;
    int events; /* what poll waits for */
    uint32_t net_slot;
    char name[64];           /* of its sandbox */
    uint64_t spent_cpu_usec; /* by tasks that it had before */
    char *session;           /* owned; key in vg_agent.sessions */
    struct vg_list tasks;
    struct vg_list waiting; /* starts of its session that came before it was ready */
    struct vg_list out;     /* packets the socket had no room for */
    bool idle_leaves;       /* dismissed, but the ends of its tasks are not acknowledged yet
                             */
    bool child;             /* born from this agent, not adopted */
    bool ended;             /* its socket has ended */
    bool dead;              /* gone; freed when its poll handle is closed */
};

/* Scans for living keepers; `done` is called when all have reported. */
int vg_keepers_open(struct vg_agent *a, void (*done)(struct vg_agent *a), struct vg_err *err);
/* Gives a waiting task to a keeper now or as soon as one is ready. */
void vg_keepers_submit(struct vg_agent *a, struct vg_agent_task *t, const struct vg_warm_key *key);
/* Takes a task that waits out of its queue. */
void vg_keepers_withdraw(struct vg_agent *a, struct vg_agent_task *t);
/* Begins a gated task that has its keeper. */
void vg_keepers_go(struct vg_agent *a, struct vg_agent_task *t);
/* Sends a packet, or queues it (descriptors are borrowed in both cases). */
int vg_keeper_send(struct vg_agent_keeper *k, enum vg_kpkt_kind kind, uint64_t id, uint64_t x,
                   uint64_t y, const void *payload, size_t len, const int *fds, size_t n_fds);
/* The end of one of its tasks was acknowledged. */
void vg_keepers_task_forgotten(struct vg_agent_keeper *k);
struct vg_agent_keeper *vg_keepers_session(struct vg_agent *a, const char *key);
void vg_keepers_end_session(struct vg_agent *a, const char *key);
/* Begins to warm the profiles that earlier runs used. */
void vg_keepers_warm_up(struct vg_agent *a);
/* Stop and start reading from keepers: the way to the control plane is full. */
void vg_keepers_pause(struct vg_agent *a, bool pause);
/* Ends every keeper; vg_agent_stopped() is called when the last is gone. */
void vg_keepers_stop(struct vg_agent *a);
/* Kills keepers that hold no task any more, or all of them. */
void vg_keepers_kill_rest(struct vg_agent *a, bool all);
/* SIGCHLD. */
void vg_keepers_reap(struct vg_agent *a);

/* agent-spawn.c: the fork and what the child may keep. */
int vg_keeper_birth(struct vg_agent *a, const struct vg_warm_key *key, struct vg_agent_keeper *k,
                    struct vg_err *err);
/* Starts a program that is no keeper, with clean signals and these as 0, 1 and 2; as the leader of
   a session of its own where it has to outlive the agent. */
int vg_agent_run(const char *program, const char *const *argv, char *const *env, const int fds[3],
                 bool session, pid_t *ret);
/* Around a call that makes the sandbox node open descriptors: keepers inherit the new ones. */
struct vg_agent_fresh {
    int fd[VG_AGENT_FRESH_FDS];
    size_t n;
};
void vg_agent_note_fds_begin(struct vg_agent_fresh *f);
void vg_agent_note_fds_end(struct vg_agent *a, const struct vg_agent_fresh *f);

/* ------------------------------------------------------------------ tasks */

enum vg_agent_task_state {
    VG_AT_WAITING,  /* has no keeper yet */
    VG_AT_STARTING, /* handed to its keeper */
    VG_AT_RUNNING,
    VG_AT_EXITED, /* waits for the control plane's acknowledgement */
};

struct vg_agent_attach {
    int fd;
    uint64_t flags;
};
#define VG_AGENT_ATTACHES 4 /* that may wait for a task to get its keeper */

struct vg_agent_share { /* agent-share.c */
    uint32_t milli;     /* of the card; 0: it has no share */
    bool mps;           /* class `mps`: it computes at the same time as others, not in turns */
    uint32_t card;
    uint64_t turn_usec;    /* no turn on this card is longer; 0: no wish */
    uint32_t slice_usec;   /* as its keeper was told; 0: not yet */
    struct vg_kshared use; /* limit 0: not told yet */
    char *words;           /* owned: enum vg_kshare_word, for its keeper */
    size_t words_len;
};

struct vg_agent_task {
    struct vg_list link; /* in its keeper's tasks, or in the queue it waits in */
    uint64_t id;
    uint32_t attempt;
    enum vg_agent_task_state state;
    bool confirmed; /* the keeper has said that it has it */
    struct vg_agent_keeper *keeper;
    struct vg_warm_profile *profile; /* whose queue it waits in, or NULL */
    struct vg_warm_key key;          /* home is owned */
    uint64_t binds;                  /* which folders it binds, as a number that is never 0 */
    char *session;                   /* owned; NULL: none */
    int start_fd;                    /* memfd with the packed Start */
    size_t start_bytes;
    uint32_t fd_mask;
    int fds[3]; /* in the order of fd_mask; held until the keeper confirms */
    size_t n_fds;
    struct vg_agent_attach attach[VG_AGENT_ATTACHES];
    size_t n_attach;
    uint64_t started_usec, out_begin, out_end;
    uint32_t log_round;         /* the last time that the control plane wanted its output again */
    bool log_early;             /* it had no keeper then: its keeper sends all of it anyway */
    Vg__Pb__TaskExited *exited; /* owned; protobuf's */
    bool gated;                 /* is not begun before the control plane says so */
    struct vg_meeting *meeting; /* owned; where others of its gang find it, or NULL */
    struct vg_meter *meter;     /* owned; agent-meter.c; NULL: it has no GPU */
    struct vg_agent_share share;
    bool mps_over;         /* its card's server has ended */
    bool use_seen;         /* agent-use.c: it was looked at, */
    uint64_t use_cpu_usec; /* and its sandbox had used so much before it */
    uint64_t near_numa;    /* agent-near.c: it keeps to these NUMA nodes; 0: to none */
    uint32_t near_milli;   /* with so many thousandths of CPUs */
};

/* An attempt that ended and was acknowledged: a late Start of it is refused by this. */
struct vg_agent_ended {
    uint64_t id;
    uint32_t attempt;
    int32_t status;
};

void vg_tasks_init(struct vg_agent *a);
void vg_tasks_done(struct vg_agent *a);
struct vg_agent_task *vg_tasks_get(struct vg_agent *a, uint64_t id);
void vg_tasks_on_start(struct vg_agent *a, const Vg__Pb__Start *start, int *fds, size_t n_fds);
void vg_tasks_on_kill(struct vg_agent *a, const Vg__Pb__KillReq *kill);
void vg_tasks_on_log_ack(struct vg_agent *a, const Vg__Pb__LogAck *ack);
void vg_tasks_on_exit_ack(struct vg_agent *a, const Vg__Pb__ExitAck *ack);
void vg_tasks_on_end_session(struct vg_agent *a, const char *key);
void vg_tasks_on_session_extend(struct vg_agent *a, const Vg__Pb__SessionExtend *x);
/* From keepers. */
void vg_tasks_on_state(struct vg_agent_keeper *k, const uint8_t *data, size_t n, int *fds,
                       size_t n_fds);
void vg_tasks_on_log(struct vg_agent_keeper *k, const struct vg_kpkt *p, const uint8_t *data);
/* The task was handed to its keeper: what waited for that follows it. */
void vg_tasks_handed(struct vg_agent_task *t);
/* A gated task has its keeper: the control plane hears that it could begin. */
void vg_tasks_ready(struct vg_agent *a, const struct vg_agent_task *t);
void vg_tasks_on_go(struct vg_agent *a, const Vg__Pb__TaskGo *go);
/* Tells its end, which was held back. */
void vg_tasks_say_exit(struct vg_agent *a, const struct vg_agent_task *t);
/* It will not run: `never_ran` and this reason and text are its exit. */
void vg_tasks_fail(struct vg_agent *a, struct vg_agent_task *t, enum vg_reason reason,
                   const char *text);
/* Its keeper is gone. */
void vg_tasks_orphan(struct vg_agent *a, struct vg_agent_task *t, bool orderly);
void vg_tasks_kill_all(struct vg_agent *a, const char *text);
/* Takes exits as acknowledged. */
void vg_tasks_forget_exited(struct vg_agent *a);
/* Fills the hello's reports; what it points to lives until vg_tasks_report_done. */
int vg_tasks_report(struct vg_agent *a, Vg__Pb__AgentHello *hello);
void vg_tasks_report_done(Vg__Pb__AgentHello *hello);
/* After a new greeting: says again what may have been lost on the way. */
void vg_tasks_resend(struct vg_agent *a);
/* The Start as its keeper has it or will have it: to be freed; NULL: there is none. And another in
   its place. */
Vg__Pb__Start *vg_tasks_read_start(const struct vg_agent_task *t);
int vg_tasks_keep_start(struct vg_agent_task *t, const Vg__Pb__Start *start);
/* Attaches a channel (taken) now, or when the task has its keeper. */
int vg_tasks_attach(struct vg_agent_task *t, int fd, uint64_t flags);

/* ------------------------------------------------------------------ virga ssh (agent-ssh.c) */

/* Whether it is a connection of `virga ssh` to files that are not the node's. */
bool vg_ssh_is_wanted(const Vg__Pb__Start *start);
/* The node's OpenSSH server is in the folder that tasks see after this, if it has one. */
void vg_ssh_offer(struct vg_agent *a);
void vg_ssh_forget(struct vg_agent *a);

/* ------------------------------------------------------------------ streams */

int vg_io_open(struct vg_agent *a, struct vg_err *err);
void vg_io_close(struct vg_agent *a);
/* The node's own port; may be called again with a new certificate. */
int vg_io_listen(struct vg_agent *a, struct vg_err *err);
/* One end of a socket pair whose other end is pumped to the stream; the stream is taken. */
int vg_io_channel(struct vg_agent *a, struct vg_stream *s);
void vg_io_on_attach(struct vg_agent *a, const Vg__Pb__TaskAttach *x, uint32_t req, int *fds,
                     size_t n_fds);
void vg_io_on_forward(struct vg_agent *a, const Vg__Pb__TaskForward *x, uint32_t req);
void vg_io_on_forwarded(struct vg_agent_keeper *k, const struct vg_kpkt *p, int *fds, size_t n_fds);
/* The keeper that forwards waited for is gone. */
void vg_io_keeper_gone(struct vg_agent_keeper *k);
/* The connection to the control plane and its streams are gone. */
void vg_io_link_lost(struct vg_agent *a);

/* agent-mirror.c: files of other machines. */
void vg_fslink_on_link(struct vg_agent *a, const Vg__Pb__MirrorLink *m);
/* How a user's file daemon is reached; borrows from the agent. */
void vg_fslink_fs_conf(const struct vg_agent *a, uint32_t slot, struct vg_fsd_conf *ret);
/* As the cloud's configuration has it. */
void vg_fslink_configure(struct vg_agent *a, char *const *patterns, size_t n, uint64_t cache_bytes);
void vg_fslink_stop(struct vg_agent *a);
void vg_fslink_tend(struct vg_agent *a); /* now and then: room on a full disk */

/* agent-gpu.c: finds the driver's files, and notes what a specification says of the GPUs. */
void vg_agent_find_driver(struct vg_agent *a, char *const *patterns, size_t n);
/* Variables that a task with GPUs gets beside those in `start`: added to *ret. */
int vg_agent_gpu_env(const struct vg_agent *a, const Vg__Pb__Start *start, struct vg_cdi_list *ret);
/* Adds NAME=VALUE unless the control plane or an earlier line sets it; `users`: or the task's own
   environment does. */
int vg_agent_env_add(const Vg__Pb__Start *start, struct vg_cdi_list *l, const char *var,
                     bool users);

/* agent-near.c: chooses CPUs and NUMA nodes for a task with GPUs, if there is a choice; `room` must
   live as long as start. */
void vg_near_choose(const struct vg_agent *a, Vg__Pb__Start *start, struct vg_cpus *room);
void vg_near_begin(struct vg_agent_task *t, const Vg__Pb__Start *start);
/* Variables by which a member of a gang finds the others. */
int vg_near_env(const struct vg_agent *a, const Vg__Pb__Start *start, struct vg_cdi_list *ret);

/* agent-share.c: tasks that have a part of a card. */
int vg_share_begin(struct vg_agent *a, struct vg_agent_task *t, const Vg__Pb__Start *start);
void vg_share_adopt(struct vg_agent_task *t, const Vg__Pb__Start *start);
/* A share of this task's card came, went or changed. Nothing for a task without one. */
void vg_share_divide(struct vg_agent *a, const struct vg_agent_task *t);
/* From a keeper. */
void vg_share_on_use(struct vg_agent_keeper *k, const struct vg_kpkt *p, const uint8_t *data);
void vg_share_on_change(struct vg_agent *a, const Vg__Pb__TaskShare *m);

/* agent-mps.c: cards that tasks of class `mps` share. */
/* vg_keepers_submit() as soon as the card's server is as it must be, or the task's end. */
void vg_mps_submit(struct vg_agent *a, struct vg_agent_task *t);
/* A task of that card came, went or has another share. */
void vg_mps_changed(struct vg_agent *a, uint32_t card);
/* All tasks that live on the node are known: finds the daemons that an earlier agent started. */
void vg_mps_adopt(struct vg_agent *a);
/* Ends those that no task needs. */
void vg_mps_close(struct vg_agent *a);
bool vg_mps_runs(const struct vg_agent *a); /* some card has its daemon, perhaps not for long */

/* agent-watch.c: the process that looks at the cards. */
struct vg_agent_card {
    bool known; /* somebody has seen it */
    struct vg_card_facts facts;
    struct vg_card_sample last;
    uint64_t owner[VG_CARD_PROCS_MAX]; /* tasks of last.proc; 0: nobody's; VG_NONE64: not asked */
    uint32_t idle_mw;                  /* what it draws when nothing runs; VG_NONE: not seen yet */
    struct vg_health health;
};
struct vg_watcher {
    int fd; /* -1: there is none now */
    pid_t pid;
    pid_t given_up; /* was killed and may hang in the driver still; 0: none */
    uv_poll_t poll;
    uv_timer_t timer;
    bool closing;
    bool news; /* the control plane should hear at once */
    uint32_t seq, answered;
    struct vg_watch_order told; /* the last order */
    uint64_t heard_usec, retry_usec, live_until_usec;
    uint64_t told_usec;      /* when the control plane was last told */
    int8_t map[VG_GPUS_MAX]; /* its index -> ours; -1: not offered */
};
void vg_watch_start(struct vg_agent *a);
void vg_watch_stop(struct vg_agent *a);
/* Has these cards and their counters looked at now; the number of the answer, or 0: nobody can. */
uint32_t vg_watch_ask(struct vg_agent *a, uint64_t cards);
/* Somebody looks: reports every second for so long. */
void vg_watch_live(struct vg_agent *a, uint64_t usec);
/* An administrator says that the card is well. */
void vg_watch_clear(struct vg_agent *a, uint32_t index);

/* Whether the node has cards at all: numbers without one are not. */
bool vg_agent_has_cards(const struct vg_agent *a);
/* One of the driver's libraries, by the node's own path where it is known. */
const char *vg_agent_library(const struct vg_agent *a, const char *name);

/* agent-bare.c: a task that has the whole node, and the wipe after it. */
enum vg_bare_state {
    VG_BARE_NONE,
    VG_BARE_EMPTYING, /* waits until the others are gone */
    VG_BARE_LOOKING,  /* how the node is before is being noted */
    VG_BARE_RUNNING,  /* the task has, or had, its turn: a wipe is due */
    VG_BARE_WIPING,
    VG_BARE_UNFIT, /* the wipe was not done whole: it is tried again */
};
struct vg_bare {
    enum vg_bare_state state;
    uint64_t task;
    uint32_t attempt;
    int fd; /* to the program that looks or wipes; -1: there is none */
    pid_t pid;
    uv_poll_t poll;
    bool closing;
    uv_timer_t timer;
    uv_timer_cb on_timer;
    uint64_t again_ms;
    struct vg_buf said;
    char unfit[300]; /* why the node takes nothing; "": it does */
};
bool vg_start_is_bare(const Vg__Pb__Start *start);
void vg_bare_open(struct vg_agent *a);  /* what an earlier agent left to do */
void vg_bare_ready(struct vg_agent *a); /* every task is known now */
void vg_bare_stop(struct vg_agent *a);
/* The task that is to have the node: begins when nothing else is there. */
void vg_bare_submit(struct vg_agent *a, struct vg_agent_task *t);
/* Something left the node. */
void vg_bare_step(struct vg_agent *a);
/* No task is taken now. */
int vg_bare_refuses(const struct vg_agent *a, const Vg__Pb__Start *start, struct vg_err *err);
/* It has ended. True: that is told when the node is wiped, by vg_tasks_say_exit. */
bool vg_bare_hold(struct vg_agent *a, const struct vg_agent_task *t);
bool vg_bare_holds(const struct vg_agent *a, uint64_t task); /* its end may not be told yet */
const char *vg_bare_unfit(const struct vg_agent *a);         /* NULL: the node is fit */

/* agent-meter.c: what tasks use of them. */
void vg_meter_init(struct vg_agent *a);
void vg_meter_begin(struct vg_agent *a, struct vg_agent_task *t, const Vg__Pb__Start *start);
void vg_meter_end(struct vg_agent *a, struct vg_agent_task *t); /* it is forgotten */
void vg_meter_sweep(struct vg_agent *a);                        /* every task is known now */
/* A new sample of one of our cards; what it says of processes is in a->card[].last by now. */
void vg_meter_sample(struct vg_agent *a, const struct vg_card_sample *s);
/* Cards that are measured for a task now, and those of them that several hold; by our indices. */
void vg_meter_cards(const struct vg_agent *a, uint64_t *ret_held, uint64_t *ret_shared);
/* True: its end is told when its last sample is there, by vg_tasks_say_exit. */
bool vg_meter_hold(struct vg_agent *a, struct vg_agent_task *t);
/* Ends that waited for a look that was answered, or all of them. */
void vg_meter_finish(struct vg_agent *a, bool all);
bool vg_meter_usage(const struct vg_agent_task *t, Vg__Pb__GpuUsage *ret); /* false: no GPU */
/* agent-report.c: tells the control plane, now or with a heartbeat when there is reason to. */
void vg_meter_report(struct vg_agent *a);
void vg_meter_beat(struct vg_agent *a);

/* agent-use.c: what tasks and the node use of CPU, memory and disks, for those who look. */
struct vg_use {
    uv_timer_t timer; /* runs only while tasks do, or while somebody looks */
    uint64_t live_until_usec;
    uint64_t cpu_busy, cpu_all; /* of /proc/stat, at the last look; 0: never */
};
void vg_use_init(struct vg_agent *a);
void vg_use_stop(struct vg_agent *a);
/* A task runs. Costs nothing but for the first. */
void vg_use_begin(struct vg_agent *a);
/* Somebody looks: reports every second for so long. */
void vg_use_live(struct vg_agent *a, uint64_t usec);

/* agent-meeting.c: a port of the node that leads to the same port inside a task. Connections wait
   until somebody listens there. */
struct vg_meeting;
/* `port` 0: any; taken: another one. With the host's network the task listens there itself. */
int vg_meeting_open(struct vg_agent *a, struct vg_agent_task *t, uint16_t port,
                    struct vg_meeting **ret);
void vg_meeting_close(struct vg_meeting *m); /* NULL is fine */
uint16_t vg_meeting_port(const struct vg_meeting *m);
/* The keeper's answer to the wish for a connection; false: it was not a meeting's. */
bool vg_meeting_on_forwarded(struct vg_agent_keeper *k, const struct vg_kpkt *p, int *fds,
                             size_t n_fds);
/* An address of this machine that tasks here and other machines may use; "" when there is none. */
void vg_meeting_address(const struct vg_agent *a, char *out, size_t n);

/* ------------------------------------------------------------------ link */

struct vg_link {
    char *address; /* owned: host:port, or a path */
    bool local;
    bool joining;
    bool up; /* greeted */
    struct vg_conn *conn;
    struct vg_dial *dial;
    struct vg_tls *tls;
    uv_timer_t timer; /* the next try, or the limit of this one */
    uv_timer_t beat;
    uv_timer_t drain; /* runs only while keepers are paused */
    bool draining;
    bool said; /* that the control plane is away */
    struct vg_backoff backoff;
    uint64_t hello_usec, heard_usec;
    uint64_t heartbeat_usec, lease_usec;
    uint64_t renew_wall_usec; /* certificate; 0: none */
    bool renewing;
};

int vg_link_open(struct vg_agent *a, struct vg_err *err); /* reads what the node remembers */
void vg_link_start(struct vg_agent *a);
void vg_link_close(struct vg_agent *a);
/* False when the control plane is away: the message is dropped. */
bool vg_link_send(struct vg_agent *a, const Vg__Pb__Envelope *env);
void vg_link_beat(struct vg_agent *a); /* a heartbeat out of turn: the node has changed */
void vg_link_reply(struct vg_agent *a, uint32_t req, enum vg_reason reason, const char *text);

/* agent-cert.c: who this node is, in files under node/. */
int vg_cert_load(struct vg_agent *a, struct vg_err *err);
int vg_cert_request(struct vg_agent *a, uint8_t **ret_der, size_t *ret_len, struct vg_err *err);
int vg_cert_joined(struct vg_agent *a, const Vg__Pb__JoinOk *ok, struct vg_err *err);
int vg_cert_renewed(struct vg_agent *a, const Vg__Pb__CertOk *ok, struct vg_err *err);
int vg_cert_set_id(struct vg_agent *a, const char *id);

/* agent-lease.c */
struct vg_lease {
    uint64_t *until; /* shared with keepers; owned mapping */
    uv_timer_t timer;
};
int vg_lease_open(struct vg_agent *a, struct vg_err *err);
void vg_lease_close(struct vg_agent *a);
void vg_lease_renew(struct vg_agent *a, uint64_t until_usec);
bool vg_lease_over(const struct vg_agent *a);

/* ------------------------------------------------------------------ the whole */

struct vg_agent {
    uv_loop_t loop;
    struct vg_agent_conf conf;
    char *node_dir, *keepers_dir, *lease_path; /* owned */
    char *fs_dir, *self_exe;                   /* owned */
    struct vg_driver driver;
    struct vg_cdi_list places; /* of its libcuda and its management library (vg_driver_places) */
    uint64_t fs_cache_bytes;
    bool fs_tending; /* caches are being trimmed */
    uint64_t fs_tended_usec;
    size_t n_mirror_links;
    char tag[9], boot_id[40], machine_id[40];
    int lock_fd;
    struct vg_sandbox_node *node;
    struct vg_netpool *net;
    char net_error[VG_ERR_MAX]; /* why there is no pool of networks */
    int keep_fds[VG_AGENT_KEEP_FDS];
    size_t n_keep_fds, n_fixed_fds; /* the first ones stay as long as the node */

    char node_id[64], name[64];        /* name: as the control plane calls it */
    char *key_pem, *cert_pem, *ca_pem; /* owned; NULL on a local node */
    struct vg_gpus gpus;
    struct vg_agent_card card[VG_GPUS_MAX]; /* in the order of gpus */
    bool inexact[VG_GPUS_MAX]; /* the card's shares cannot be kept to the letter, which was said */
    struct vg_mps *mps[VG_GPUS_MAX]; /* by card; NULL: never had one */
    struct vg_watcher watch;
    struct vg_bare bare;
    uv_timer_t meter_timer;
    size_t n_metered; /* tasks with a meter */
    struct vg_use use;
    struct vg_link link;
    struct vg_lease lease;
    uint64_t log_head_bytes, log_tail_bytes;

    struct vg_list keepers;
    size_t n_keepers, n_adopting, n_preparing;
    void (*adopted)(struct vg_agent *a);
    uv_timer_t adopt_timer;
    uint32_t next_serial;
    struct vg_warm warm;
    uv_timer_t refill, decay;
    char *profiles_saved;   /* owned: what node/profiles holds */
    struct vg_map sessions; /* key -> keeper */
    uint8_t *packet;        /* VG_KPKT_MAX bytes */
    bool paused;

    struct vg_map tasks; /* id -> task */
    struct vg_agent_ended ended[VG_AGENT_ENDED];
    size_t next_ended;

    struct vg_tickets tickets;
    struct vg_listener *nested, *direct;
    struct vg_tls *direct_tls;
    uint16_t direct_port;
    size_t n_nested, n_direct;
    struct vg_list forwards;
    struct vg_list guests; /* struct guest of agent-meeting.c: connections on their way in */
    size_t n_forwards;
    uint64_t next_forward;

    uv_signal_t sig_term, sig_int, sig_stop, sig_child;
    uv_timer_t stop_timer;
    bool stopping;
    unsigned stop_ticks;
    int status;
};

/* Ends the loop. */
void vg_agent_quit(struct vg_agent *a, int status);
/* Every keeper is gone after vg_keepers_stop. */
void vg_agent_stopped(struct vg_agent *a);
/* node_dir/name, to be freed. */
char *vg_agent_path(const struct vg_agent *a, const char *name);
