#pragma once
/* Inside vrun. The local path is: options, one connect, one message with descriptors, then task I/O
   with the keeper over a socket pair of our own. No loop library, no TLS, no thread.

     spec-opts.h    options into a request
     run.c          what the command would find here into the request, then the session
     run-link.c     the connection to the control plane: requests, events, again when it breaks
     run-io.c       task I/O: what the keeper says, and the loop
     run-chan.c     a channel to the keeper: frames out, input within the window
     run-out.c      output, from frames or from the keeper's ring
     run-data.c     --duplex: what comes back by standard input
     run-input.c    input and signals
     run-tty.c      the local terminal
     run-bridge.c   the same two descriptors for a cloud that is far away (TLS, its own thread)
     run-forward.c  -p: local ports
     run-mirror.c   the files of this machine for a task on another
     follow.h       vbatch -f of a group or of what may be tried again

   What always holds:
   R1  Output records are written once, in order: every one below `out_offset` was written.
   R2  Input that the keeper has not acknowledged is kept, and sent again on a new channel.
   R3  The terminal is put back before the process ends or stops. */
#include "base/buf.h"
#include "base/err.h"
#include "cli/endpoint.h"
#include "proto/virga.pb-c.h"

#include <stdbool.h>
#include <stdint.h>
#include <termios.h>

struct vg_duct;
struct vg_spec_opts;

struct run_chan {
    int fd; /* -1: none */
    struct vg_duct
        *duct;   /* to the bridge: bytes go through memory, fd only wakes; NULL: a socket */
    int ring_fd; /* came with the last bytes; -1: none */
    bool welcomed;
    bool shut;   /* nothing more can be sent */
    bool eof;    /* nothing more will come; what is buffered still counts */
    bool broken; /* over */
    size_t seen; /* of a duct: bytes that the last look left there */
    struct vg_buf in, out;
    const uint8_t *ring; /* the keeper's, mapped; NULL: output comes in frames */
    size_t ring_size;
    size_t frame_pos;  /* of the OUTPUT frame at the front of `in`: bytes handled, its header
                          included */
    uint64_t in_sent;  /* input offset sent on this channel */
    size_t frame_left; /* of the INPUT frame under way: data bytes not yet written */
    uint8_t head[16];
    size_t head_left;
};

struct run {
    const char *program; /* "vrun", "vbatch", "virga attach" */
    struct vg_endpoint ep;
    bool quiet, batch, follow, detach, attach, dry_run;
    bool patient; /* an attempt's end is not the task's: the control plane says when it is over */
    Vg__Pb__RunReq req; /* points into memory that lives as long as the process */
    Vg__Pb__TaskSpec spec;
    const char *attach_ref;
    uint64_t task_id;

    int ctl; /* -1: broken */
    struct vg_buf ctl_in;
    int cwd_fd, stdin_fd; /* handed on with the request; -1: none */
    int mirror_fd;        /* to the file service; -1: none */
    int way;              /* to the cloud, made ready by it; -1: none */
    bool by_way;          /* ctl and channels go through it */
    char *note;           /* about its files; said when the task is accepted */
    const struct vg_spec_opts *set;
    bool bridged;

    struct run_chan chan[2]; /* current, and the one that will replace it */
    uint64_t out_offset;
    size_t rec_done;      /* of the record at out_offset: data bytes written, by whatever channel */
    uint64_t data_offset; /* of what came back by standard input */
    bool out_closed[3];   /* [0]: of what comes back by standard input */
    bool out_failed;      /* output was lost to an error that is not the reader's leaving */
    bool out_full[3];     /* the local reader is slow */

    bool tty; /* the task has a terminal and so have we */
    bool raw;
    struct termios saved;
    bool read_stdin; /* input goes over the channel */
    bool stdin_eof, eof_sent, wide_stdin;
    struct vg_buf in; /* input not acknowledged */
    uint64_t in_acked;

    bool accepted, started, ended, exited;
    bool beside;       /* only this machine's project goes along, the root is an environment's */
    bool pinning;      /* this machine's files are on their way into the cloud's store */
    bool pinned;       /* the task works on that copy */
    bool attempt_over; /* patient: its keeper has said how it ended */
    bool requeued;     /* another attempt follows; its output begins at 0 */
    bool owed;         /* and nothing of it was seen yet */
    uint32_t attempt;  /* the newest heard of */
    char said[2][160]; /* why it waits, and why again: each is said once */
    int status;
    int got_signal;          /* the last deadly signal we were sent ourselves */
    uint64_t unsent_signals; /* came while there was no channel; bit n - 1: to the process, bit
                                n + 31: to the group */
    char end_text[VG_ERR_MAX];
    bool end_refused; /* it did not end by itself: end_text is said even to those who want quiet */
    uint64_t give_up_at, retry_at, retry_usec;
    bool said_lost;
};

/* run-link.c */
int run_connect(struct run *r, bool again, struct vg_err *err); /* ctl, channel, request */
/* Handles what came on ctl. 0, or -errno with err when the cloud refused. A broken connection only
   sets r->ctl to -1. */
int run_ctl_ready(struct run *r, struct vg_err *err);
int run_send_msg(int fd, const Vg__Pb__Envelope *env, const int *fds, size_t n_fds);

/* run-io.c */
int run_session(struct run *r);   /* until the end; returns the exit status */
void run_linked(struct run *r);   /* the cloud answered: patience begins anew */
void run_requeued(struct run *r); /* the task will have another attempt */
void run_say(const struct run *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* run-chan.c: a socket, or (fd ignored) a duct; takes them. */
void run_chan_open(struct run *r, struct run_chan *c, int fd, struct vg_duct *duct);
void run_chan_close(struct run_chan *c);

/* run-tty.c */
void run_tty_raw(struct run *r);
void run_tty_restore(struct run *r);
bool run_tty_foreground(void);
bool run_tty_size(uint16_t ret[4]);

/* run-mirror.c: has this machine's files served to the task; sets spec.mirror. */
int run_mirror(struct run *r, const struct vg_spec_opts *set, struct vg_err *err);
/* The same for a task whose root is an environment's: fills in whose project and which folders;
   none when there is no project here that can go along. */
int run_mirror_beside(struct run *r, const struct vg_spec_opts *set, Vg__Pb__MirrorSpec *to,
                      struct vg_err *err);
/* Says it once the cloud has taken the task: what is refused has one sentence, not two. */
void run_note(struct run *r, const char *text);
/* The service spoke, or died: then another is started and goes on where it was. */
void run_mirror_ready(struct run *r);
/* The task has ended: its links are of no use any more. */
void run_mirror_end(struct run *r);

/* run-env.c: a saved environment instead; sets spec.mirror, and with an image what it says. */
int run_environment(struct run *r, const struct vg_spec_opts *set, struct vg_err *err);

/* run-bridge.c */
int run_thread(void *(*fn)(void *), void *arg); /* that takes no signals; 0 or -errno */
int run_bridge(const struct vg_endpoint *ep, struct vg_err *err); /* a ctl descriptor */
/* run-ports.c */
struct run_port {
    char host[256];
    uint16_t local, remote;
};
int run_port_parse(const char *spec, struct run_port *ret, struct vg_err *err);

/* run-full.c or vrun-main.c: prints what a dry run answered and ends the session, or -errno with
   err when it could never run. */
int run_forecast(struct run *r, const Vg__Pb__RunEvent *ev, struct vg_err *err);

/* run-full.c or vrun-main.c: where this program cannot go far (no TLS, no ports in it), it becomes
   the whole `virga`; returns only where it is that already, or with err. */
int run_become_full(char **argv, struct vg_err *err);

/* run-forward.c: starts listening; spec is [HOST:]LOCAL:REMOTE. Serves in a thread of its own. */
int run_forward(const struct vg_endpoint *ep, uint64_t task_id, const char *const *specs, size_t n,
                struct vg_err *err);

/* run-full.c or vrun-main.c: shows the stored output of a task or group from its beginning, also
   over several attempts, until its end. Returns its exit status. */
int run_follow_stored(const struct run *r);
void run_say_kept(const struct run *r); /* how many changes of the ended task are kept */
