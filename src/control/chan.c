/* Joining a client's channel to an agent: descriptors pass when both are on this machine,
   everything else is pumped. */
#include "control/chan.h"

#include "base/cleanup.h"
#include "control/nodes.h"
#include "control/peer.h"

#include <sys/socket.h>

int vg_chan_take(struct vg_chan *ret, struct vg_peer *p, uint32_t stream, uint32_t fd_mask,
                 int *fds, size_t n_fds) {
    *ret = VG_CHAN_INIT;
    size_t at = 0;
    if (fd_mask & ~(uint32_t)(VG_FD_CHANNEL | VG_FD_CWD | VG_FD_STDIN) || (fd_mask && stream))
        return -EPROTO;
    for (int i = 0; i < 3; i++)
        if (fd_mask & 1u << i) {
            if (at >= n_fds || fds[at] < 0) {
                vg_chan_close(ret);
                return -EPROTO;
            }
            ret->fd[i] = vg_take_fd(fds[at]);
            at++;
        }
    ret->peer = p;
    ret->stream = stream;
    /* Behind a peer without a connection is a client elsewhere, too, which we relay. */
    ret->remote = stream != 0 || p->sink;
    return 0;
}

void vg_chan_close(struct vg_chan *ch) {
    for (int i = 0; i < 3; i++)
        vg_close(&ch->fd[i]);
    *ch = VG_CHAN_INIT;
}

bool vg_chan_is_open(const struct vg_chan *ch) {
    return ch->stream || ch->fd[0] >= 0;
}

static struct vg_stream *open_stream(struct vg_chan *ch) {
    if (!ch->peer || !ch->peer->conn)
        return NULL;
    struct vg_stream *s = vg_stream_new(ch->peer->conn, ch->stream, NULL, NULL);
    ch->stream = 0;
    return s;
}

int vg_chan_park(struct vg_chan *ch, uv_loop_t *loop) {
    if (!ch->stream)
        return 0;
    struct vg_stream *s = open_stream(ch);
    if (!s)
        return -EPIPE;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0) {
        int r = -errno;
        vg_stream_free(s, VG_INTERNAL);
        return r;
    }
    ch->fd[0] = pair[0];
    ch->peer = NULL;
    return vg_pump_fd(loop, pair[1], s, NULL, NULL);
}

/* One end is a stream of the agent, the other what the client gave. */
static int relay(struct vg_chan *ch, struct vg_nodelink *a, uv_loop_t *loop,
                 struct vg_chan_out *ret) {
    struct vg_stream *up = vg_stream_new(a->peer->conn, 0, NULL, NULL);
    if (!up)
        return -EPIPE;
    uint32_t id = vg_stream_id(up);
    int r;
    if (ch->stream) {
        struct vg_stream *down = open_stream(ch);
        if (!down) {
            vg_stream_free(up, VG_LOST);
            return -EPIPE;
        }
        r = vg_pump_streams(down, up, NULL, NULL);
    } else {
        r = vg_pump_fd(loop, vg_take_fd(ch->fd[0]), up, NULL, NULL);
    }
    ret->stream = id;
    return r;
}

int vg_chan_join(struct vg_chan *ch, struct vg_nodelink *a, uv_loop_t *loop,
                 struct vg_chan_out *ret) {
    *ret = (struct vg_chan_out){.fds = {-1, -1, -1}};
    int r = 0;
    bool pass = a->local, relayed = ch->remote;
    /* To an agent beside us a relayed client is a descriptor, too: the keeper gets it itself. */
    if (pass && ch->stream && (r = vg_chan_park(ch, loop)) < 0) {
        vg_chan_close(ch);
        return r;
    }
    if (pass && relayed && ch->fd[0] >= 0)
        ret->fd_mask |= VG_FD_RELAYED;
    if (vg_chan_is_open(ch) && !pass)
        r = relay(ch, a, loop, ret);
    for (int i = 0; pass && i < 3; i++)
        if (ch->fd[i] >= 0) {
            ret->fds[ret->n_fds++] = vg_take_fd(ch->fd[i]);
            ret->fd_mask |= 1u << i;
        }
    vg_chan_close(ch);
    return r;
}

int vg_chan_join_stream(struct vg_chan *ch, struct vg_nodelink *a, uv_loop_t *loop,
                        struct vg_chan_out *ret) {
    *ret = (struct vg_chan_out){.fds = {-1, -1, -1}};
    int r = vg_chan_is_open(ch) ? relay(ch, a, loop, ret) : -EPIPE;
    vg_chan_close(ch);
    return r;
}
