#pragma once
/* The keeper: one process a sandbox that holds the terminal, output and exit status of its task
   (or of the tasks of one session), so that no restart of agent or control plane touches them.

   Born by fork from the agent, which prepares a sandbox for a likely profile and then waits. It is
   bound to the agent by a SOCK_SEQPACKET pair and listens on node/keepers/<serial>.sock for agents
   to come. It leaves when its agent is gone before it has a task, or when everything it holds
   was acknowledged.

   Packets: struct vg_kpkt, then the payload; descriptors ride along. */
#include "base/err.h"
#include "fs/fsd.h"
#include "gpu/gpus.h"
#include "proto/virga.pb-c.h"
#include "sandbox/netpool.h"
#include "sandbox/sandbox.h"

#include <stdint.h>
#include <sys/types.h>

#define VG_KPKT_MAX (192u << 10)    /* largest packet; larger payloads travel as a memfd */
#define VG_KLOG_WINDOW (512u << 10) /* unacknowledged log bytes */

enum vg_kpkt_kind {
    /* agent to keeper */
    VG_K_START = 1,    /* fds: memfd with a packed Start, then as fd_mask in `a` says; b: its
                          bytes, behind which secrets stand. Payload, of a
                          share of a    GPU: enum vg_kshare_word. Answered by STATE */
    VG_K_ATTACH = 2,   /* id task; a: 1 observe, 2 local (socket end means death); fds: channel */
    VG_K_KILL = 3,     /* id task; a signal, b grace usec; payload: text */
    VG_K_LOG_ACK = 4,  /* id task; b offset; a 1: what was sent beyond it is lost (new connection to
                          the  control plane): send again from the last acknowledged offset; a above
                          1: a number of the control plane's, which has lost what it had: send again
                          from b, whatever was acknowledged, and tell the end again with it */
    VG_K_EXIT_ACK = 5, /* id task: forget it */
    VG_K_FORWARD = 6,  /* a port, b request number: answered by FORWARDED */
    VG_K_KEEP =
        7, /* b usec: session's keep time from the last task's end; 0: end the session now */
    VG_K_LIMITS = 8, /* a head bytes, b tail bytes of the log */
    VG_K_SLICE = 9,  /* id task; a: usec of a shared GPU's time that it gets in its turn */
    VG_K_SHARE =
        10, /* id task; fds: memfd with its Start, packed, whose share of a GPU is another */
    VG_K_AUDIT = 11, /* id task; b: bytes of its card that its processes hold, by the driver */
    /* keeper to agent */
    VG_K_READY = 32,  /* the sandbox is prepared; a 1: again, with the binds of its last task */
    VG_K_FAILED = 33, /* it could not be; payload: text. The keeper leaves */
    VG_K_HELLO = 34,  /* first packet on an adopted connection: struct vg_kinfo */
    VG_K_STATE = 35,  /* payload: packed TaskReport without `start`. Between HELLO and REPORTED one
                         descriptor rides along: the memfd with the packed Start as it came */
    VG_K_LOG = 36, /* id task; a bit 0: tail, from bit 32: log_round; b offset; payload: records */
    VG_K_FORWARDED = 37, /* a errno or 0, b request number; fds: socket */
    VG_K_IDLE = 38,      /* session: last task ended; gone: the keeper leaves after this */
    VG_K_REPORTED = 39,  /* after HELLO: all STATEs were sent */
    VG_K_SHARED = 41,    /* id task; payload: struct vg_kshared, when it is new */
    VG_K_GONE = 40,      /* sandbox destroyed; the network slot is free; the keeper exits now */
};

struct vg_kpkt {
    uint32_t kind;
    uint32_t len; /* payload bytes after this header */
    uint64_t id;
    uint64_t a, b;
};

/* What a task has of its share of a GPU. */
struct vg_kshared {
    uint64_t limit_bytes, used_bytes, peak_bytes, refused;
};

/* Who a keeper is; the answer to a connecting agent. */
struct vg_kinfo {
    uint32_t pid;
    uint32_t net_slot; /* UINT32_MAX: none */
    uint32_t tasks;
    uint32_t has_session;
    uint32_t slot; /* the user's id range */
    char session_key[256];
    char name[64]; /* sandbox (cgroup) name */
};

/* What a keeper is born with; borrowed for the call (the child keeps its copy by fork). */
struct vg_keeper_birth {
    struct vg_sandbox_node *node;
    const char *keepers_dir; /* $VIRGA_HOME/node/keepers */
    const char
        *lease_path; /* file holding one u64: CLOCK_BOOTTIME usec until which tasks may run */
    struct vg_sandbox_profile profile;
    uint32_t net_slot; /* UINT32_MAX: none */
    uint32_t serial;   /* unique on the node: names the socket and the sandbox */
    uint64_t log_head_bytes, log_tail_bytes;
    const struct vg_gpus *gpus; /* the node's, to find device nodes; may be NULL */
    const char *node_dir;       /* $VIRGA_HOME/node */
    struct vg_fsd_conf fs; /* dir not NULL: tasks bring their files, no sandbox is made before */
    const char *const *libraries; /* for them: the node's driver libraries */
    size_t n_libraries;
};

/* Forks. In the parent: *ret_pid and the agent's end of the pair (non-blocking). The child never
   returns. `close_in_child` is called first in the child: it must close every descriptor of the
   agent that the keeper should not hold, but never `keep_fd`. */
int vg_keeper_spawn(const struct vg_keeper_birth *birth,
                    void (*close_in_child)(int keep_fd, void *user), void *user, pid_t *ret_pid,
                    int *ret_fd, struct vg_err *err);

/* What a keeper must know of the node to show a task its share: words that each end in a NUL, ""
   for what the agent does not know. */
enum vg_kshare_word {
    VG_KSHARE_UUID,    /* of the card: GPU-… */
    VG_KSHARE_VERSION, /* of the driver */
    VG_KSHARE_OURS,    /* folder of the libraries that stand in front of the driver's */
    VG_KSHARE_CUDA,    /* the driver's own, on the node */
    VG_KSHARE_NVML,
    VG_KSHARE_PLACES, /* from here on: where programs would find them */
};
/* The n-th of them, or NULL: there are not so many. */
const char *vg_kshare_word(const char *words, size_t len, size_t n);

/* Whether a task has a part of one card (classes `shared` and `mps`), which its keeper watches
 * over. */
bool vg_start_is_share(const Vg__Pb__Start *start);
bool vg_start_is_mps(const Vg__Pb__Start *start);
/* Where its programs find the server, by default and by variable. */
#define VG_MPS_INSIDE "/tmp/nvidia-mps"

/* Packet helpers for both sides. */
int vg_kpkt_send(int sock, enum vg_kpkt_kind kind, uint64_t id, uint64_t a, uint64_t b,
                 const void *payload, size_t len, const int *fds, size_t n_fds);
/* buf: VG_KPKT_MAX bytes. Returns payload length, -EAGAIN, -ECONNRESET at the end. */
ssize_t vg_kpkt_recv(int sock, struct vg_kpkt *ret, uint8_t *buf, int *fds, size_t *n_fds);
