#pragma once
/* The world that virgad and its agents live in when `virga-sim faults` runs them: one thread,
   virtual time, a network, a disk, machines with clocks of their own. Their own code is linked as
   it is; what it stands on (libuv, vg_conn_*, files, clocks, randomness) is replaced at link time
   by the
   `--wrap` list in meson.build. Everything that happens is an event in one queue, and every chance
   is drawn from generators that the seed made, so a seed gives the same story each time.

   One world exists at a time: the replaced functions have no other way to find it. */
#include "base/list.h"
#include "base/map.h"
#include "net/conn.h"
#include "sim/faults/plan.h"
#include "sim/rng.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <uv.h>

struct vg_agent;
struct vg_control;
struct vg_store;
struct vg_w_link;

/* A machine: its clocks differ from the true time, and it may be cut off. */
struct vg_w_machine {
    char name[16];
    int64_t boot_usec, wall_usec; /* what its clocks show at true time 0 */
    int64_t drift_ppm;
    uint64_t cut_until;  /* true time: nothing passes before */
    uint64_t slow_until; /* true time: everything takes longer until then */
    struct vg_rng net;
};

/* A process: virgad, an agent, a client. Its events die with it. */
struct vg_w_proc {
    struct vg_w_machine *machine;
    char name[16];
    bool alive;
    uint32_t life;        /* which one: events of an earlier life are dropped */
    uint64_t stall_until; /* true time: it does not run before */
    uv_loop_t loop;       /* virgad's and clients'; an agent has its own */
    struct vg_list conns; /* struct vg_conn.of_proc */
};

struct vg_w_event {
    uint64_t at, seq;
    struct vg_w_proc *proc; /* NULL: of the world itself */
    uint32_t life;
    void (*fn)(void *a, uint64_t b);
    void *a;
    uint64_t b;
};

struct vg_w_closing {
    uv_loop_t *loop;
    uv_handle_t *handle;
    uv_close_cb cb;
};

/* What has truly happened to a task, whatever anybody was told. */
#define VG_W_ATTEMPTS 24
struct vg_w_attempt {
    uint32_t number;
    int node;
    bool running, completed; /* completed: the command ended by itself */
    bool killed;             /* somebody ended it: an order, a lease, a crash */
    bool keeper_lost;        /* its keeper died before anybody had to remember its end */
    int32_t status;
    uint64_t started_usec;                       /* true time */
    uint64_t started_wall_usec, ended_wall_usec; /* as its machine's clock had it */
    uint64_t node_losses;                        /* of its node when it ended */
    uint8_t *out;                                /* owned: every record */
    uint64_t end;                                /* of it */
    uint64_t head_end, tail_start; /* with a tail: what the log need not have lies between */
};

struct vg_w_task {
    const struct vg_plan_task *plan;
    int index;
    uint64_t id;
    struct vg_w_proc client;
    struct vg_conn *conn;
    uint32_t tries;
    bool sent, accepted, refused, told, cancel_sent, cancel_ok, gone; /* gone: its client is */
    bool power_lost_since; /* virgad's machine lost power after it was sent */
    int32_t told_status;
    uint32_t told_reason;
    int running; /* attempts that run now, in truth */
    struct vg_w_attempt attempt[VG_W_ATTEMPTS];
    int n_attempts;
    struct vg_w_task *member; /* of a gang: plan->gang of them; only attempts count there */
    struct vg_w_task *group;  /* of a member */
    bool prepared;            /* of a member: a node has said that it could begin */
};

#define VG_W_GPUS 4
#define VG_W_GPU_BYTES (80ULL << 30)

/* What an attempt takes of its node. */
struct vg_w_room {
    uint64_t gpus;      /* set of indices */
    uint32_t gpu_milli; /* not 0: of the one GPU that it shares */
    uint64_t gpu_mem_bytes;
    uint32_t cpu_milli;
};

struct vg_w_node {
    int index;
    uint64_t id;
    bool up, local;
    struct vg_w_machine machine;
    struct vg_w_proc agent_proc;
    struct vg_agent *agent;
    uint64_t lease_until; /* its boot clock; what agent and keepers share */
    uint64_t losses;      /* how often its lease ran out or it went down */
    struct vg_list keepers;
    struct vg_rng rng;
    uint32_t next_serial, boots;
    uint64_t gpus_used;             /* in truth: whole, */
    uint32_t milli_used[VG_W_GPUS]; /* and in parts */
    uint64_t mem_used[VG_W_GPUS];
    uint32_t cpu_used;
};

struct vg_w_disk; /* disk.c */

struct vg_world {
    const struct vg_plan *plan;
    uint64_t now, seq, steps;
    struct vg_w_event *heap;
    size_t n_heap, cap_heap;
    struct vg_w_proc *cur;
    struct vg_map timers; /* token -> uv_timer_t that is armed */
    uint64_t next_token;
    struct vg_w_closing *closing;
    size_t n_closing, cap_closing;
    struct vg_rng rng, ids, disk_rng;

    struct vg_list links;       /* net.c */
    struct vg_map conns_ending; /* token -> struct vg_conn whose on_close is due */
    struct vg_w_link **by_fd;
    size_t n_fd, cap_fd;

    struct vg_w_disk *disk;
    uint64_t disk_slow_until, disk_full_until;
    bool pass_armed;
    uint64_t pass_at;

    struct vg_w_machine control_machine, client_machine;
    struct vg_w_proc virgad;
    struct vg_control *control; /* NULL: down */
    struct vg_store *store;
    struct vg_list fsyncs; /* uv.c: waiting for the disk */
    uint64_t control_lives;

    struct vg_w_node node[VG_PLAN_NODES_MAX];
    struct vg_w_task *task;
    int calm_checks;

    bool over;
    char broken[32]; /* which promise; "" while all hold */
    char why[512];
    FILE *tell; /* the story; NULL: silent */
};

extern struct vg_world *vg_w; /* NULL: the real world */

/* --- world.c: time, chance, events --- */
void vg_w_at(uint64_t at, struct vg_w_proc *p, void (*fn)(void *a, uint64_t b), void *a,
             uint64_t b);
bool vg_w_step(void); /* false: nothing is left to happen */
uint64_t vg_w_boot(const struct vg_w_machine *m);
uint64_t vg_w_wall(const struct vg_w_machine *m);
/* True time at which that machine's boot clock shows `boot`; and how long `usec` of its clock are.
 */
uint64_t vg_w_when(const struct vg_w_machine *m, uint64_t boot);
uint64_t vg_w_span(const struct vg_w_machine *m, uint64_t usec);
uint64_t vg_w_between(struct vg_rng *r, uint64_t lo, uint64_t hi); /* both included */
bool vg_w_chance(struct vg_rng *r, unsigned percent);
void vg_w_story(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* A promise is broken: the run ends. Only the first counts. */
void vg_w_violate(const char *promise, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void vg_w_machine_init(struct vg_w_machine *m, const char *name, uint64_t salt, bool skewed);
void vg_w_proc_init(struct vg_w_proc *p, struct vg_w_machine *m, const char *name);

/* --- uv.c --- */
void vg_w_uv_reset(void);
/* Runs the close callbacks that wait on a loop. */
void vg_w_uv_drain(uv_loop_t *loop);
/* A process is gone: its timers never fire. */
void vg_w_uv_forget(uv_loop_t *loop);

/* --- net.c --- */
/* A client connects; ops as any connection's. NULL: refused now. */
struct vg_conn *vg_w_connect(struct vg_w_proc *p, bool local, const struct vg_conn_ops *ops,
                             void *user);
/* All connections of a machine break: each side notices in its own time. */
void vg_w_net_cut(struct vg_w_machine *m);
/* The process is gone. `silent`: its machine with it, so that nobody is told. */
void vg_w_net_gone(struct vg_w_proc *p, bool silent);
/* Its connections are told their end at once (an orderly way to give everything back). */
void vg_w_net_finish(struct vg_w_proc *p);
void vg_w_net_reset(void);

/* --- disk.c --- */
struct vg_w_file;
struct vg_w_disk *vg_w_disk_new(void);
void vg_w_disk_free(struct vg_w_disk *d);
struct vg_w_file *vg_w_file_open(const char *path, bool create); /* counted; NULL: not there */
void vg_w_file_ref(struct vg_w_file *f);
void vg_w_file_close(struct vg_w_file *f);
bool vg_w_file_exists(const char *path);
void vg_w_file_remove(const char *path);
size_t vg_w_file_size(const struct vg_w_file *f);
size_t vg_w_file_read(const struct vg_w_file *f, void *p, size_t n, uint64_t at);
int vg_w_file_write(struct vg_w_file *f, const void *p, size_t n, uint64_t at); /* -ENOSPC */
int vg_w_file_truncate(struct vg_w_file *f, uint64_t size);
void vg_w_file_sync(struct vg_w_file *f);
void **vg_w_file_shm(struct vg_w_file *f, size_t *ret_n, size_t grow_to, size_t piece);
struct vg_w_locks *vg_w_file_locks(struct vg_w_file *f);
/* Sets aside what is left: everything, or, when `power` was lost, what was synced and some of the
   rest. */
void vg_w_disk_crash(bool power);
void vg_w_disk_again(void); /* the process is gone: from here on the disk has what was left */
struct vg_w_locks {
    int shared, reserved, pending, exclusive; /* handles */
    int shm_shared[8], shm_exclusive[8];
};

/* --- vfs.c --- */
int vg_w_vfs_install(struct vg_err *err); /* once a process: SQLite uses the world's disk */

/* --- virgad.c --- */
int vg_w_virgad_setup(struct vg_err *err); /* once a process */
void vg_w_virgad_cleanup(void);
void vg_w_virgad_start(void *unused, uint64_t unused2);
void vg_w_virgad_crash(bool power);
int vg_w_disk_format(struct vg_err *err); /* a fresh database with the nodes of the plan */
const char *vg_w_logs(void);              /* its folder of logs on the world's disk */
#define VG_W_LEASE_USEC (10 * 1000000ULL)
#define VG_W_HEAD 4096
#define VG_W_TAIL 4096
#define VG_W_CPUS 8 /* of a node */

/* --- node.c: a machine with the agent's own code --- */
void vg_w_node_init(int i);
void vg_w_node_boot(void *node, uint64_t unused);
void vg_w_agent_start(void *node, uint64_t unused);
void vg_w_agent_crash(struct vg_w_node *n, bool silent);
void vg_w_node_crash(struct vg_w_node *n);

/* --- keeper.c: a strict model of keepers (docs/protocol.md, src/agent/keeper-*.c) --- */
struct vg_w_keeper;
struct vg_agent_keeper;
struct vg_agent_task;
void vg_w_keepers_adopt(struct vg_w_node *n);                    /* a new agent finds them */
void vg_w_keepers_left(struct vg_w_node *n, struct vg_agent *a); /* their agent is gone */
void vg_w_keepers_die(struct vg_w_node *n);                      /* with their machine */
bool vg_w_keeper_die_one(struct vg_w_node *n, uint64_t which);
void vg_w_keeper_hangup(struct vg_w_task *t); /* its client is dead */
void vg_w_node_give_back(struct vg_w_node *n);

/* --- client.c --- */
void vg_w_client_init(int i);
void vg_w_client_crash(int i);
void vg_w_client_done(int i);

/* --- truth.c --- */
struct vg_w_attempt *vg_w_truth_start(struct vg_w_node *n, struct vg_w_task *t, uint32_t attempt,
                                      struct vg_w_room room);
void vg_w_truth_end(struct vg_w_node *n, struct vg_w_task *t, struct vg_w_attempt *a,
                    struct vg_w_room room);
void vg_w_truth_told(struct vg_w_task *t, int32_t status, uint32_t reason, uint32_t attempt,
                     const char *text);
bool vg_w_truth_settled(void); /* everything that was accepted has ended and nothing is held */
void vg_w_truth_final(void);   /* says what is not */
/* Byte `at` of record `i` of the attempt's output. */
uint8_t vg_w_truth_byte(const struct vg_w_task *t, uint32_t attempt, uint32_t i, uint32_t at);
uint32_t vg_w_truth_record(const struct vg_w_task *t, uint32_t attempt,
                           uint32_t i);                 /* data bytes */
struct vg_w_task *vg_w_task_of(const Vg__Pb__Start *s); /* the one that its command names */

/* --- run.c --- */
struct vg_w_result {
    char broken[32];
    char why[512];
    uint64_t steps, virtual_usec, lives;
};
/* Lives through a plan. `tell` NULL: silently. */
void vg_w_run(const struct vg_plan *plan, FILE *tell, struct vg_w_result *ret);
