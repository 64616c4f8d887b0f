#pragma once
/* A node's file daemon, `virga fsd`: one a user and node, started by the agent, alive while tasks
   use it and a while longer. It has a mount namespace of its own and listens on a SOCK_SEQPACKET
   socket (root only): $VIRGA_HOME/node/fs/<slot>/sock. Agents bring links, keepers ask for mounts.
   A packet is struct vg_fsd_head and its payload, at most 64 KiB, with descriptors. */
#include "base/err.h"
#include "mirror/stamp.h"

enum vg_fsd_kind {
    /* to fsd */
    VG_FSD_LINK = 1, /* vg_fsd_task + one stream socket: a link for that task */
    VG_FSD_TASK,     /* vg_fsd_task: the task is about to begin here; answered by MOUNTS or FAILED
                        when its Run has arrived. The connection is the task's hold on its views:
                        when it closes the task is over. */
    VG_FSD_BARRIER,  /* everything the task wrote must be at the client; answered by SAFE */
    VG_FSD_ENDED,    /* the command has ended: send its trace; no answer */
    VG_FSD_STATUS,   /* answered by STATUS_TEXT: JSON */
    VG_FSD_STOP,     /* the node goes down: leave now, or as soon as no task holds a view */
    VG_FSD_PEER,     /* one stream socket: to this user's daemon on another node; no answer */
    VG_FSD_KEEP,     /* paths, each with its NUL, + upper layer and merged root of the task, before
                        BARRIER: what it changed below them (none: anywhere) goes to the store */
    /* from fsd */
    VG_FSD_MOUNTS = 32, /* vg_fsd_mounts + descriptors */
    VG_FSD_FAILED,      /* vg_fsd_failed */
    VG_FSD_SAFE,        /* vg_fsd_failed: code 0 when all is well */
    VG_FSD_NOTE,        /* text for the person, to the keeper of the task(s) concerned */
    VG_FSD_STATUS_TEXT,
};
struct vg_fsd_head {
    uint32_t kind, len;
};
struct vg_fsd_task {
    uint64_t task;
    uint32_t attempt;
    uint32_t flags;
    uint8_t machine[VG_MID];
    uint8_t project[VG_MID]; /* of VG_FSD_TASK: folders that are written back are this machine's;
                                all zero: of the same */
};
#define VG_FSD_ON_DISK 1u /* vg_fsd_task.flags: the task's changes shall not lie in memory */
#define VG_FSD_FDS 24
/* Descriptors in this order: n_lower lower layers of the root, topmost first; n_data data-only
   layers below them; n_views project views; with VG_FSD_ON_DISK in flags an empty folder on disk
   for the root's upper layer. All are detached mounts for one move_mount(2) each.
   `paths`: n_views NUL-terminated absolute paths, where they go. */
struct vg_fsd_mounts {
    uint32_t n_lower, n_data, n_views;
    uint32_t flags;
    char paths[];
};
struct vg_fsd_failed {
    int32_t code;    /* errno */
    uint32_t reason; /* base/reasons.tbl */
    char text[240];
};

/* For agents and keepers: src/fs/fsd-call.c. Any thread. */
struct vg_fsd_conf {
    const char *dir;               /* $VIRGA_HOME/node/fs */
    const char *program;           /* path of virga */
    uint32_t slot;                 /* whose: the user's id range, as in the sandbox's profile */
    const char *node;              /* for messages */
    uint64_t cache_bytes;          /* 0: a tenth of the disk */
    bool no_passthrough, no_erofs; /* as on kernels that lack them */
};
/* Connects; when nobody listens, makes the socket and starts the daemon with it:

       PROGRAM fsd --dir DIR --slot N --node NAME --cache BYTES [--no-passthrough] [--no-erofs]

   in a session of its own, with the listening socket as descriptor 3, standard output and error as
   here. So nothing waits for the daemon to come up: what is sent first is read when it does. Two
   who come at once start one daemon. The descriptor is blocking and close-on-exec. */
#define VG_FSD_LISTEN_FD 3
int vg_fsd_connect(const struct vg_fsd_conf *conf, int *ret_fd, struct vg_err *err);
/* To a daemon that runs; -ECONNREFUSED or -ENOENT: there is none. */
int vg_fsd_connect_running(const char *dir, uint32_t slot, int *ret_fd);
/* One packet; descriptors stay the caller's. -EAGAIN on a full non-blocking socket. */
int vg_fsd_send(int fd, enum vg_fsd_kind kind, const void *payload, size_t n, const int *fds,
                size_t n_fds);
/* 1 and a packet (descriptors are the caller's; *n_fds: in how many fit, out how many came), 0 when
   the other end is gone, -EAGAIN, -EBADMSG for what is no packet (its descriptors are closed). */
int vg_fsd_recv(int fd, struct vg_fsd_head *head, void *payload, size_t max, int *fds,
                size_t *n_fds);
/* The daemon itself: `virga fsd …`, never returns before its end. */
int vg_fsd_main(int argc, char **argv);
