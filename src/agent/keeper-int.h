#pragma once
/* Inside the keeper. Three things, one file each, around one epoll loop:

     keeper.c       life of the process: birth, agent's packets, deadlines, end
     keeper-task.c  a task: pipes or terminal, start, input and output, exit
     keeper-chan.c  a client's channel: task I/O frames in and out
     keeper-data.c  what goes back by a two-way standard input
     keeper-log.c   shipping output to the control plane
     keeper-mirror.c  a task whose files come from another machine

   What always holds:
   K1  Output is dropped from the ring only when the owning client has acknowledged it (or there is
       none to wait for) and the log has it or will not want it.
   K2  EXIT goes to a channel after every record, and is reported to the agent after every record
       that will be stored is acknowledged.
   K3  Input bytes reach the task once, in order, whatever channel they came by.
   K4  The process leaves only when no task is left, or when it never had one and its agent is gone.
 */
#include "agent/keeper-ring.h"
#include "agent/keeper.h"
#include "base/buf.h"
#include "base/list.h"
#include "fs/fsd.h"
#include "proto/virga.pb-c.h"

#include <stdbool.h>
#include <termios.h>

struct keeper;

/* What an epoll event points at. fn NULL: the object is dead, ignore. */
struct source {
    void (*fn)(struct keeper *k, void *obj, uint32_t events);
    void *obj;
    int fd;
    uint32_t events; /* registered; 0: not in the set */
};

#define KEEPER_NEVER UINT64_MAX
#define OWNER_AHEAD (768u << 10) /* unacknowledged output bytes before the task is slowed */
#define HANGUP_GRACE (10 * 1000000ULL)

struct kchan {
    struct vg_list link; /* in task->chans, or keeper->graves */
    struct ktask *task;  /* borrowed */
    struct source src;
    bool observe, local, owner, welcomed, exit_sent, left;
    bool taken;           /* ousted: what is queued goes out, then it closes */
    bool shares;          /* the client has mapped the ring: output is named, not sent */
    struct vg_buf in;     /* unparsed bytes */
    struct vg_buf out;    /* control frames waiting */
    uint64_t sent, acked; /* output offsets */
    uint64_t data_sent;   /* of a two-way input */
    size_t frame_len;     /* records in the frame under way, from `sent` on; 0: none */
    size_t frame_done;    /* bytes of it written, its own header included */
    uint8_t frame_head[16];
};

enum kmirror_state { KM_ASKED, KM_MOUNTED, KM_RUNS, KM_BARRIER, KM_OVER };

struct kmirror { /* keeper-mirror.c */
    enum kmirror_state state;
    struct source src; /* to the file daemon: the hold on the views */
    uint8_t machine[VG_MID];
    uint8_t project[VG_MID]; /* whose folders are written back; all zero: the same machine's */
    uid_t host_uid; /* of the task's owner on this machine, by its administrator; 0: none */
    gid_t host_gid;
    int stdin_fd;        /* owned; the client's, until the command starts */
    bool told;           /* the person knows that it takes long */
    bool again;          /* the daemon was asked a second time */
    char note[200];      /* the last that was said of its files: why a task without client failed */
    uint64_t since_usec; /* of this state's wait */
    uint64_t until_usec; /* of a barrier */
    int fds[VG_FSD_FDS]; /* owned: mounts, until they are used */
    int upper_fd;        /* owned: where what it changes lies on disk; -1: in memory */
    size_t n_fds, n_lower, n_data, n_views;
    struct vg_sandbox_view views[VG_FSD_FDS]; /* borrow from fds and paths */
    char paths[65536];
};

enum ktask_state { KT_STARTING, KT_RUNNING, KT_EXITED };

struct ktask {
    struct vg_list link;
    uint64_t id;
    uint32_t attempt;
    Vg__Pb__Start *start; /* owned */
    int start_fd;         /* memfd as it came */
    enum ktask_state state;
    bool tty, detached, killed, hangup;
    bool in_channel;  /* input comes by channel, not from a descriptor of the client's */
    bool wait_known;  /* the command's wait status is there */
    bool finished;    /* output drained and status known */
    bool state_dirty; /* the agent has not heard of the newest state */
    bool exit_acked;
    bool lost; /* killed for want of a lease: the attempt has no result, the task may run again */
    uint64_t started_usec, ended_usec;
    uint64_t begun_usec; /* boot clock: as started_usec */
    int32_t status;
    uint32_t reason; /* never ran: base/reasons.tbl */
    char text[300];
    char kill_text[200];
    struct vg_usage usage;

    struct vg_ring ring;
    struct source out[2]; /* stdout, stderr */
    bool paused;
    struct source in; /* write end of stdin; fd -1: none or closed */
    struct vg_buf in_buf;
    uint64_t in_taken;  /* input offset accepted from channels */
    uint64_t in_done;   /* delivered to the task */
    uint64_t in_end;    /* offset of end of file, KEEPER_NEVER */
    uint64_t in_told;   /* last INPUT_ACK */
    bool in_ended;      /* a terminal was told of the end of input */
    struct source data; /* what it writes to a two-way standard input; fd -1: none, or its end */
    struct vg_buf data_buf; /* of that, what the client has not acknowledged */
    uint64_t data_acked;    /* offset of its first byte */

    struct vg_list chans;
    struct kchan *owner; /* the client whose reading paces the task, or NULL */
    bool held;           /* a client was lost and may come back */
    uint64_t held_acked; /* what it had acknowledged */
    uint64_t hold_until, kill_at;

    uint64_t log_sent, log_acked;
    bool log_tail; /* past the head: only the end is still to come */
    bool log_tail_begun;
    uint32_t log_round;            /* the last time that everything was asked for again; 0: never */
    size_t late[2];                /* bytes read from each output since the command ended */
    struct kmirror *mirror;        /* owned; NULL: the node's own files */
    struct vg_warden_watch *watch; /* owned; NULL: it has no share of a GPU */
    uint32_t slice_usec;
    struct vg_kshared shared;  /* as the agent was told last */
    uint64_t shared_next_usec; /* it is told again no sooner; 0: there is nothing to tell */
    char *share_words;         /* owned: enum vg_kshare_word */
    size_t share_len;
    struct vg_share_page *page; /* owned; written by the warden's thread */
    char wiped[4][160];         /* keeper-bare.c: what is told of its end */
    size_t n_wiped;
};

struct keeper {
    int epoll;
    struct vg_sandbox *sb;
    struct vg_keeper_birth birth;
    struct source agent, listen, sandbox;
    char sock_path[512];
    struct vg_list tasks;
    struct vg_list graves; /* channels to free after the batch */
    bool had_task, sb_dead;
    bool spent;              /* the sandbox cannot be used again */
    bool building;           /* sb was begun and is not ready */
    uint8_t machine[VG_MID]; /* whose files sb shows */
    char session_key[256];
    uint64_t keep_usec, session_until;
    volatile uint64_t *lease; /* mapped */
    uint64_t next_forward;
    bool leaving;
    uint8_t *pkt; /* VG_KPKT_MAX bytes */
};

/* keeper.c */
int keeper_init(struct keeper *k, const struct vg_keeper_birth *birth, int agent_fd);
void keeper_prepared(struct keeper *k, struct vg_sandbox *sb); /* says READY */
void keeper_use(struct keeper *k); /* its sandbox is ready: listens to it */
/* Handles what is due; with `wait`, something will be. Returns the events handled, -1 when the
   keeper may leave. */
int keeper_turn(struct keeper *k, bool wait);
void keeper_watch(struct keeper *k, struct source *s, uint32_t events);
void keeper_unwatch(struct keeper *k, struct source *s); /* leaves the descriptor open */
void keeper_close(struct keeper *k, struct source *s);
int keeper_tell(struct keeper *k, enum vg_kpkt_kind kind, uint64_t id, uint64_t a, uint64_t b,
                const void *payload, size_t len, const int *fds, size_t n_fds);
void keeper_flush_agent(struct keeper *k); /* dirty states, then logs */

/* keeper-stdio.c */
struct kstdio { /* the command's 0, 1 and 2; -1: closed */
    int child[3];
};
/* Takes stdin_fd (-1: none). What was made is closed by kstdio_close, also after a failure. */
int kstdio_make(struct keeper *k, struct ktask *t, int stdin_fd, struct kstdio *s);
void kstdio_close(struct kstdio *s);
void kstdio_begin(struct keeper *k, struct ktask *t); /* the command runs */
void ktask_read_output(struct keeper *k, struct ktask *t);
void ktask_pace(struct keeper *k, struct ktask *t); /* resume or pause reading */
void ktask_input(struct keeper *k, struct ktask *t, uint64_t offset, const uint8_t *p, size_t n);
void ktask_input_end(struct keeper *k, struct ktask *t, uint64_t offset);
void ktask_close_output(struct keeper *k, struct ktask *t, uint32_t stream);
void ktask_winsize(struct ktask *t, const uint8_t *p);

/* keeper-exec.c */
/* Its sandbox is there: begins the command. Takes the descriptors. */
void ktask_launch(struct keeper *k, struct ktask *t, int stdin_fd, int cwd_fd);

/* keeper-task.c */
/* `words`: of a share of a GPU (enum vg_kshare_word), else NULL. */
/* `bytes`: of the Start itself, behind which secrets stand; 0: all. */
void ktask_start(struct keeper *k, int start_fd, uint64_t bytes, int chan_fd, int cwd_fd,
                 int stdin_fd, const void *words, size_t words_len);
void ktask_event(struct keeper *k, const struct vg_sandbox_event *ev);
void ktask_kill(struct keeper *k, struct ktask *t, int signo, uint64_t grace_usec,
                const char *text);
void ktask_finish(struct keeper *k, struct ktask *t);
void ktask_free(struct keeper *k, struct ktask *t);
struct ktask *ktask_find(struct keeper *k, uint64_t id);
/* Its share of a GPU is another: as this Start says. Takes the descriptor. */
void ktask_share(struct ktask *t, int start_fd);
int ktask_report(struct keeper *k, struct ktask *t, bool with_start);
void ktask_fail(struct keeper *k, struct ktask *t, enum vg_reason reason, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
uint64_t ktask_floor(const struct ktask *t); /* K1 */

/* Whether what its pipes hold now is the last that counts: its command has ended in a session. */
bool ktask_ends_here(const struct keeper *k, const struct ktask *t);

/* keeper-data.c */
bool kdata_is(const struct ktask *t); /* its standard input goes both ways */
/* A socket for the command, and our end of it for writing. */
int kdata_make(struct ktask *t, int *ret_ours, int *ret_theirs);
void kdata_read(struct keeper *k, struct ktask *t); /* what is there now */
void kdata_pace(struct keeper *k, struct ktask *t);
/* Queues the next of it for the client that owns the task. False: there is nothing. */
bool kdata_queue(struct kchan *c);
void kdata_hello(struct kchan *c, uint64_t want); /* a client that has everything before `want` */
void kdata_acked(struct keeper *k, struct kchan *c, uint64_t offset);

/* keeper-chan.c */
struct kchan *kchan_new(struct keeper *k, struct ktask *t, int fd, bool observe, bool local);
void kchan_flush(struct keeper *k, struct kchan *c);
void kchan_flush_all(struct keeper *k, struct ktask *t);
void kchan_drop(struct keeper *k,
                struct kchan *c); /* closes and buries; owner handling is the caller's */
void kchan_frame(struct kchan *c, int kind, const void *a, size_t an, const void *b, size_t bn);
void kchan_note(struct keeper *k, struct ktask *t, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* keeper-gpu.c */
struct kgpu_lay;
/* Whether it has a share that must be held: of a simulated card without a driver nothing is. */
bool kgpu_is_held(const struct keeper *k, const struct ktask *t);
/* What a task with a share finds in its sandbox, to be freed when it was laid. */
int kgpu_lay(const struct keeper *k, struct ktask *t, struct kgpu_lay **ret, struct vg_err *err);
const struct vg_lay *kgpu_laid(const struct kgpu_lay *l);           /* NULL: nothing */
void kgpu_watched(struct keeper *k, struct ktask *t, int listener); /* takes it */
void kgpu_slice(struct ktask *t, uint32_t usec);
void kgpu_changed(struct ktask *t); /* weight or memory of its share, in `start` */
/* What the driver says that its processes hold: ended when that did not pass by the warden. */
void kgpu_audit(struct keeper *k, struct ktask *t, uint64_t card_bytes);
void kgpu_end(struct keeper *k, struct ktask *t);
/* Tells what is due; returns when the next thing is. */
uint64_t kgpu_deadline(struct keeper *k, struct ktask *t, uint64_t now);

/* keeper-mps.c: 1 and a folder that its sandbox needs (fd: the caller's to close), 0 for a task of
   another class, or -errno: it must not run. */
int kmps_bind(const struct keeper *k, const struct ktask *t, struct vg_bind *ret,
              struct vg_err *err);

/* keeper-secret.c: values that came with a Start */
/* Cuts them off the memory that others read, and keeps this process from dumping its own. */
void ksecret_take(int start_fd, uint64_t bytes);
bool ksecret_replaces(const Vg__Pb__Start *st, const ProtobufCBinaryData *env);
/* Adds at most n_secret + 1 variables, owned; returns how many. One that there is no memory for
   is NULL. */
size_t ksecret_env(const Vg__Pb__Start *st, char **out);
int ksecret_files(const Vg__Pb__Start *st, struct vg_given_file **ret, size_t *ret_n,
                  struct vg_err *err);
/* The command has them: nothing here does any more. `env` (may be NULL) is cleared, too. */
void ksecret_wipe(Vg__Pb__Start *st, char **env);

/* keeper-bare.c: nothing of a task that had the whole node is left running. */
bool kbare_is(const struct ktask *t);
void kbare_end(struct keeper *k, struct ktask *t);
void kbare_let_go(struct keeper *k, struct ktask *t);

/* keeper-mirror.c */
int kmirror_begin(struct keeper *k, struct ktask *t, int stdin_fd, struct vg_err *err);
void kmirror_free(struct keeper *k, struct ktask *t);
bool kmirror_waits(const struct ktask *t); /* its command does not exist yet */
/* Views that a living sandbox lacks; borrowed. */
size_t kmirror_binds(const struct ktask *t, struct vg_bind *out, size_t max);
/* The task could end: true when it must not yet. */
bool kmirror_settle(struct keeper *k, struct ktask *t);
/* True when the signal is dealt with: there is no command that could get it. */
bool kmirror_signal(struct keeper *k, struct ktask *t, int signo, uint64_t grace_usec,
                    const char *text);
/* Acts on what is due; returns when the next thing is. */
uint64_t kmirror_deadline(struct keeper *k, struct ktask *t, uint64_t now);

/* keeper-log.c */
int klog_send(struct keeper *k, struct ktask *t); /* -EAGAIN when the agent's socket is full */
void klog_acked(struct keeper *k, struct ktask *t, uint64_t offset);
bool klog_done(const struct keeper *k, const struct ktask *t); /* all that will be stored is */
void klog_restart(struct ktask *t); /* a new agent: send again what was not acknowledged */
/* The control plane has lost what it had beyond `offset`. */
void klog_again(struct ktask *t, uint64_t offset, uint32_t round);
