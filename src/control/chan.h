#pragma once
/* What a client hands over for a task's input and output: descriptors (same machine) or a stream.
   Joins it to the agent that has the task. */
#include "net/conn.h"

struct vg_peer;
struct vg_nodelink;

/* fd_mask bits and their order. */
enum { VG_FD_CHANNEL = 1, VG_FD_CWD = 2, VG_FD_STDIN = 4 };
/* To an agent, besides: the channel leads to this process, which relays a client elsewhere. Its end
   is not the client's. */
enum { VG_FD_RELAYED = 8 };

struct vg_chan {
    int fd[3];   /* channel, cwd, stdin; -1: none. Owned */
    bool remote; /* the channel's far end is a relayed client: its loss is not the client's death */
    struct vg_peer *peer; /* with stream != 0: whose */
    uint32_t stream;      /* the client's number, not opened yet */
};

#define VG_CHAN_INIT ((struct vg_chan){.fd = {-1, -1, -1}})

/* Takes the promised descriptors out of fds. -EPROTO: fewer came than fd_mask says. */
int vg_chan_take(struct vg_chan *ret, struct vg_peer *p, uint32_t stream, uint32_t fd_mask,
                 int *fds, size_t n_fds);
void vg_chan_close(struct vg_chan *ch);
bool vg_chan_is_open(const struct vg_chan *ch);
/* The task waits: a stream is turned into a descriptor, so that it survives whatever its
   connection does. -errno: the stream cannot be had. */
int vg_chan_park(struct vg_chan *ch, uv_loop_t *loop);

/* Ways into a message to an agent: either descriptors to send along or a stream on its connection.
 */
struct vg_chan_out {
    uint32_t stream, fd_mask;
    int fds[3];
    size_t n_fds;
};
/* Consumes *ch. After the message was sent nothing remains to be done. -errno: the channel is gone.
 */
int vg_chan_join(struct vg_chan *ch, struct vg_nodelink *a, uv_loop_t *loop,
                 struct vg_chan_out *ret);
/* The same where the message has room for a stream only. */
int vg_chan_join_stream(struct vg_chan *ch, struct vg_nodelink *a, uv_loop_t *loop,
                        struct vg_chan_out *ret);
