/* What a task writes to a two-way standard input (--duplex) comes out of ours, which is a socket.
   Only where the node is elsewhere: else the task has our socket itself, and nothing passes here.
   What always holds: every byte below `data_offset` was written, once and in order. */
#include "cli/run-chan.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

int run_data(struct run *r, struct run_chan *c, const uint8_t *p, size_t n) {
    uint64_t at = vg_get64(p), end = at + (n - 8);
    if (at > r->data_offset) { /* a hole */
        c->broken = true;
        return 1;
    }
    while (r->data_offset < end && !r->out_closed[STDIN_FILENO]) {
        const uint8_t *from = p + 8 + (r->data_offset - at);
        ssize_t w =
            send(STDIN_FILENO, from, (size_t)(end - r->data_offset), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            r->out_full[STDIN_FILENO] = true;
            return 0;
        }
        if (w < 0) /* nobody reads: the end of input follows, and the task sees that */
            r->out_closed[STDIN_FILENO] = true;
        else
            r->data_offset += (uint64_t)w;
    }
    if (r->data_offset < end)
        r->data_offset = end;
    uint8_t ack[8];
    vg_put64(ack, r->data_offset);
    run_put(c, VG_TIO_DATA_ACK, ack, sizeof(ack));
    return 1;
}
