/* Operations: values copied behind the operation itself, in one piece of memory. Loop thread. */
#include "base/mem.h"
#include "store/internal.h"

static struct op *make(enum stmt stmt, enum vg_store_sync sync, const struct val *val, unsigned n) {
    size_t head = sizeof(struct op) + n * sizeof *val, bytes = head;
    for (unsigned i = 0; i < n; i++)
        bytes += val[i].len;
    struct op *op = vg_alloc(bytes);
    if (!op)
        return NULL;
    op->stmt = stmt;
    op->sync = sync;
    op->bytes = bytes;
    op->n = n;
    char *at = (char *)op + head;
    for (unsigned i = 0; i < n; i++) {
        op->val[i] = val[i];
        op->val[i].p = at;
        if (val[i].len)
            memcpy(at, val[i].p, val[i].len);
        at += val[i].len;
    }
    return op;
}

int store_queue(struct vg_store *s, enum stmt stmt, enum vg_store_sync sync, const struct val *val,
                unsigned n, vg_store_cb *cb, void *arg) {
    struct op *op = make(stmt, sync, val, n);
    if (!op)
        return -ENOMEM;
    op->cb = cb;
    op->arg = arg;
    pthread_mutex_lock(&s->lock);
    if (s->closing || s->queue.bytes + s->in_hand + op->bytes > VG_STORE_QUEUE_BYTES_MAX) {
        pthread_mutex_unlock(&s->lock);
        free(op);
        return -ENOBUFS;
    }
    bool was_empty = s->queue.n == 0, urgent = sync != VG_STORE_LAZY;
    ops_push(&s->queue, op);
    s->urgent += urgent;
    if (s->threaded && (was_empty || (urgent && s->urgent == 1)))
        pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    return 0;
}
