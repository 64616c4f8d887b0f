/* Shipping a task's output to the control plane: from the beginning until the head is full, then
   nothing, and at the end the last records. Acknowledged by offset; a window bounds what is under
   way, so that a slow control plane holds nothing but the ring. */
#include "agent/keeper-int.h"
#include "net/tio.h"

#include <errno.h>
#include <string.h>

#define LOG_PACKET (128u << 10)

void klog_restart(struct ktask *t) {
    t->log_sent = t->log_acked;
    if (!t->log_tail_begun)
        t->log_tail = false; /* the rest of the head may have to go again */
}

void klog_again(struct ktask *t, uint64_t offset, uint32_t round) {
    uint64_t from = vg_ring_seek(&t->ring, offset);
    t->log_round = round;
    t->log_sent = t->log_acked = from;
    t->log_tail_begun = false;
    t->log_tail = from > offset; /* the ring has dropped a part: the head ends before it */
    if (t->finished)
        t->state_dirty = true;
}

/* How much of the head may still be sent from log_sent on, in whole records. */
static size_t head_part(const struct keeper *k, struct ktask *t, size_t max) {
    uint64_t head = k->birth.log_head_bytes;
    size_t left = head > t->log_sent ? (size_t)(head - t->log_sent) : 0;
    size_t n = vg_ring_whole(&t->ring, t->log_sent, VG_MIN(left, max));
    if (n == 0 && t->log_sent < t->ring.end && vg_ring_record_len(&t->ring, t->log_sent) > left)
        t->log_tail = true;
    return n;
}

static void begin_tail(const struct keeper *k, struct ktask *t) {
    uint64_t tail = k->birth.log_tail_bytes;
    uint64_t from = t->ring.end > tail ? t->ring.end - tail : 0;
    t->log_sent = vg_ring_seek(&t->ring, VG_MAX(from, t->log_sent));
    t->log_acked = t->log_sent;
    t->log_tail_begun = true;
}

int klog_send(struct keeper *k, struct ktask *t) {
    while (k->agent.fd >= 0) {
        if (t->log_sent - t->log_acked >= VG_KLOG_WINDOW)
            return 0;
        size_t n = 0;
        if (!t->log_tail) {
            n = head_part(k, t, LOG_PACKET);
            if (t->log_tail) /* no acknowledgement may follow that would let the task go on */
                ktask_pace(k, t);
        }
        if (t->log_tail && t->finished) {
            if (!t->log_tail_begun) {
                if (t->log_acked < t->log_sent)
                    return 0; /* the head first, whole */
                begin_tail(k, t);
            }
            n = vg_ring_whole(&t->ring, t->log_sent, LOG_PACKET);
        }
        if (n == 0)
            return 0;
        vg_ring_copy(&t->ring, t->log_sent, k->pkt, n);
        uint64_t how = (uint64_t)t->log_tail | (uint64_t)t->log_round << 32;
        int r = keeper_tell(k, VG_K_LOG, t->id, how, t->log_sent, k->pkt, n, NULL, 0);
        if (r < 0)
            return r;
        t->log_sent += n;
    }
    return 0;
}

void klog_acked(struct keeper *k, struct ktask *t, uint64_t offset) {
    if (offset > t->log_acked && offset <= t->log_sent)
        t->log_acked = offset;
    ktask_pace(k, t);
}

bool klog_done(const struct keeper *k, const struct ktask *t) {
    (void)k;
    if (!t->finished || t->log_acked < t->log_sent)
        return false;
    if (t->log_tail)
        return t->log_tail_begun && t->log_sent == t->ring.end;
    return t->log_sent == t->ring.end;
}
