/* Operations: values copied behind the operation itself, in one piece of memory; and groups of
   them, which the writer takes whole. Loop thread. */
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
    bool room =
        !s->closing && s->queue.bytes + s->in_hand + s->held.bytes + s->notes.bytes + op->bytes <=
                           VG_STORE_QUEUE_BYTES_MAX;
    pthread_mutex_unlock(&s->lock);
    if (!room) {
        free(op);
        return -ENOBUFS;
    }
    ops_push(stmt == STMT_AUDIT_ADD ? &s->notes : &s->held, op);
    if (!s->groups)
        store_release(s);
    return 0;
}

/* ------------------------------------------------------------------ groups */

/* Entries come after the changes that they tell of, and go the way of those that somebody is told
   about. */
void store_release(struct vg_store *s) {
    struct ops all;
    enum vg_store_sync most = VG_STORE_LAZY;
    size_t urgent = 0;
    for (const struct op *op = s->held.first; op; op = op->next)
        most = op->sync > most ? op->sync : most;
    for (struct op *op = s->notes.first; op; op = op->next)
        op->sync = most;
    ops_init(&all);
    ops_move(&all, &s->held);
    ops_move(&all, &s->notes);
    if (!all.n)
        return;
    all.first->begins = true;
    for (const struct op *op = all.first; op; op = op->next)
        urgent += op->sync != VG_STORE_LAZY;
    pthread_mutex_lock(&s->lock);
    bool was_empty = s->queue.n == 0, none_urgent = s->urgent == 0;
    ops_move(&s->queue, &all);
    s->urgent += urgent;
    if (s->threaded && (was_empty || (urgent && none_urgent)))
        pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

void vg_store_group_begin(struct vg_store *s) {
    s->groups++;
}

void vg_store_group_end(struct vg_store *s) {
    if (--s->groups == 0)
        store_release(s);
}
