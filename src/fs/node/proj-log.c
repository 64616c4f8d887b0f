/* The log of operations of a machine's projects: numbered without a gap, sent in order by one
   thread, kept until acknowledged. Data stay in the files' backings and are read when they are
   sent: what was overwritten meanwhile goes out early, and once more with its own entry.

   A view whose id the present service has not told yet (0) holds the log up: that service would
   refuse what it does not know, and the numbers allow no gap.

   `head` is the oldest that is not acknowledged, `next` the one to be sent next. After a break
   everything from `head` is sent again. */
#include "fs/node/proj-int.h"

#include "base/mem.h"
#include "base/util.h"

#include <string.h>
#include <time.h>

#define BACKLOG_MAX (4u << 20)
/* What is added within this time travels together: programs do several things to a file at once,
   and nobody waits for the log but barriers and --sync. */
#define GATHER_USEC 500u

struct vg_logent {
    struct vg_logent *next;
    uint64_t op;
    struct vg_proj *p;
    struct pnode *n; /* held */
    uint64_t object, parent, parent2, off, len, task;
    struct vg_mstat st;
    uint32_t flags, valid;
    Vg__Mr__Op__Kind kind; /* 0: WRITE */
    bool has_before, has_data, busy, gone;
    bool sent; /* on some link: what it says must not change any more */
    uint16_t xattr_len;
    uint32_t name_len, name2_len, data_len;
    uint8_t before[VG_HASH];
    char text[]; /* name, name2, xattr's name, data */
};

struct barrier {
    struct barrier *next;
    uint64_t op;
    void (*done)(void *user, int code, const char *text);
    void *user;
};

struct vg_oplog {
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct vg_links *links;
    struct vg_logent *head, *tail, *next;
    uint64_t last, acked, generation, handles;
    uint64_t entries, data;
    struct barrier *barriers;
    int code; /* the first failure since the last barrier */
    char text[240];
    bool stop, down;
    pthread_t sender;
};

struct vg_logent *vg_logent_new(struct vg_proj *p, const struct vg_oprec *r) {
    size_t a = r->name ? strlen(r->name) : 0, b = r->name2 ? strlen(r->name2) : 0;
    size_t x = r->xattr ? strlen(r->xattr) : 0, total = a + b + x + r->data_len;
    struct vg_logent *e = vg_alloc(sizeof(*e) + total);
    if (!e)
        return NULL;
    e->p = p;
    e->n = r->n;
    if (r->n)
        r->n->refs++;
    e->object = r->n ? proj_handle(r->n) : 0;
    e->parent = r->parent ? proj_handle(r->parent) : 0;
    e->parent2 = r->parent2 ? proj_handle(r->parent2) : 0;
    e->kind = r->kind;
    e->flags = r->flags;
    e->valid = r->valid;
    e->st = r->st;
    e->off = r->off;
    e->len = r->len;
    e->task = p->task;
    e->has_before = r->has_before;
    memcpy(e->before, r->before, VG_HASH);
    e->name_len = (uint32_t)a;
    e->name2_len = (uint32_t)b;
    e->xattr_len = (uint16_t)x;
    e->data_len = (uint32_t)r->data_len;
    e->has_data = r->data != NULL;
    char *t = e->text;
    if (a)
        memcpy(t, r->name, a);
    if (b)
        memcpy(t + a, r->name2, b);
    if (x)
        memcpy(t + a + b, r->xattr, x);
    if (r->data_len)
        memcpy(t + a + b + x, r->data, r->data_len);
    return e;
}

void vg_logent_free(struct vg_logent *e) {
    if (!e)
        return;
    if (e->n) /* the caller has the view's lock */
        e->n->refs--;
    free(e);
}

/* Attributes of the same thing that were set a moment ago and have not left are set at once. */
static bool join(const struct vg_oplog *log, const struct vg_logent *e) {
    struct vg_logent *t = log->tail;
    if (!t || t->sent || t->kind != VG__MR__OP__KIND__SETATTR || e->kind != t->kind ||
        t->n != e->n || t->p != e->p || t->task != e->task || t->has_before || e->has_before ||
        t->name_len != e->name_len || memcmp(t->text, e->text, e->name_len) != 0)
        return false;
    if (e->valid & VG_MSET_MODE)
        t->st.mode = e->st.mode;
    if (e->valid & VG_MSET_UID)
        t->st.uid = e->st.uid;
    if (e->valid & VG_MSET_GID)
        t->st.gid = e->st.gid;
    if (e->valid & VG_MSET_ATIME)
        t->st.atime = e->st.atime;
    if (e->valid & VG_MSET_MTIME)
        t->st.mtime = e->st.mtime;
    t->valid |= e->valid;
    return true;
}

uint64_t vg_oplog_add(struct vg_oplog *log, struct vg_logent *e) {
    pthread_mutex_lock(&log->lock);
    if (join(log, e)) {
        uint64_t joined = log->tail->op;
        pthread_mutex_unlock(&log->lock);
        vg_logent_free(e);
        return joined;
    }
    e->op = ++log->last;
    if (log->tail)
        log->tail->next = e;
    else
        log->head = e;
    log->tail = e;
    if (!log->next) {
        log->next = e;
        pthread_cond_broadcast(&log->work);
    }
    log->entries++;
    if (!e->kind)
        log->data += e->len;
    uint64_t op = e->op;
    pthread_mutex_unlock(&log->lock);
    return op;
}

uint64_t vg_oplog_handle(struct vg_oplog *log) {
    return __atomic_add_fetch(&log->handles, 1, __ATOMIC_RELAXED) | VG_OBJ_NEW;
}

bool vg_oplog_full(struct vg_oplog *log) {
    pthread_mutex_lock(&log->lock);
    bool full = log->entries >= PROJ_LOG_ENTRIES;
    pthread_mutex_unlock(&log->lock);
    return full;
}

bool vg_oplog_data_full(struct vg_oplog *log) {
    pthread_mutex_lock(&log->lock);
    bool full = log->data >= PROJ_LOG_DATA || log->entries >= PROJ_LOG_ENTRIES;
    pthread_mutex_unlock(&log->lock);
    return full;
}

static void set_bytes(protobuf_c_boolean *has, ProtobufCBinaryData *out, const void *p, size_t n) {
    *has = 1;
    out->data = (uint8_t *)p; /* only read */
    out->len = n;
}

static int send_op(struct vg_oplog *log, struct vg_logent *e) {
    Vg__Mr__Op op = VG__MR__OP__INIT;
    Vg__Mr__Stat st = VG__MR__STAT__INIT;
    Vg__Mr__Xattr xa = VG__MR__XATTR__INIT;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    const char *t = e->text;
    op.has_op = op.has_kind = op.has_object = op.has_view = op.has_task = 1;
    op.op = e->op;
    op.kind = e->kind;
    op.object = e->object;
    op.view = e->p->view;
    op.task = e->task;
    op.has_parent = e->parent != 0;
    op.parent = e->parent;
    op.has_parent2 = e->parent2 != 0;
    op.parent2 = e->parent2;
    set_bytes(&op.has_name, &op.name, t, e->name_len);
    if (e->name2_len)
        set_bytes(&op.has_name2, &op.name2, t + e->name_len, e->name2_len);
    t += e->name_len + e->name2_len;
    op.has_flags = e->flags != 0;
    op.flags = e->flags;
    vg_mw_stat_to(&st, &e->st);
    op.stat = &st;
    op.has_valid = e->valid != 0;
    op.valid = e->valid;
    if (e->has_before)
        set_bytes(&op.has_before, &op.before, e->before, VG_HASH);
    if (e->kind == VG__MR__OP__KIND__XATTR) {
        set_bytes(&xa.has_name, &xa.name, t, e->xattr_len);
        if (e->has_data)
            set_bytes(&xa.has_value, &xa.value, t + e->xattr_len, e->data_len);
        op.xattr = &xa;
    } else if (e->data_len) {
        set_bytes(&op.has_target, &op.target, t, e->data_len);
    }
    op.has_offset = e->off != 0;
    op.has_length = e->len != 0;
    op.offset = e->off;
    op.length = e->len;
    m.body_case = VG__MR__MSG__BODY_OP;
    m.op = &op;
    return vg_links_send(log->links, &m);
}

/* What has been cut off since, or belongs to a file that has no name any more, is not sent. */
static int send_data(struct vg_oplog *log, struct vg_logent *e, uint8_t *buf) {
    size_t got = 0;
    pthread_mutex_lock(&e->p->lock);
    int fd = e->n->names ? proj_pin(e->n, false) : -ENOENT;
    pthread_mutex_unlock(&e->p->lock);
    if (fd >= 0) {
        while (got < e->len) {
            ssize_t r = pread(fd, buf + got, e->len - got, (off_t)(e->off + got));
            if (r <= 0)
                break;
            got += (size_t)r;
        }
        pthread_mutex_lock(&e->p->lock);
        proj_unpin(e->n);
        pthread_mutex_unlock(&e->p->lock);
    }
    return vg_links_write(log->links, e->op, e->object, e->off, buf, got);
}

static void ent_drop(struct vg_logent *e) {
    if (e->n)
        vg_pnode_unref(e->n);
    free(e);
}

static void nap(struct vg_oplog *log, unsigned usec) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    ts.tv_nsec += (long)usec * 1000;
    if (ts.tv_nsec >= 1000000000) {
        ts.tv_nsec -= 1000000000;
        ts.tv_sec++;
    }
    pthread_cond_timedwait(&log->work, &log->lock, &ts);
}

/* Nothing to do now: what was held back goes out. */
static void idle(struct vg_oplog *log) {
    vg_links_hold(log->links, false);
    pthread_cond_wait(&log->work, &log->lock);
    const struct vg_logent *e = log->next;
    if (e && !log->stop && !log->barriers && e->p &&
        !__atomic_load_n(&e->p->sync, __ATOMIC_RELAXED))
        nap(log, GATHER_USEC);
    vg_links_hold(log->links, true);
}

static void *sender_main(void *arg) {
    struct vg_oplog *log = arg;
    uint8_t *buf = malloc(VG_LEAF);
    pthread_mutex_lock(&log->lock);
    while (!log->stop) {
        struct vg_logent *e = log->next;
        bool adrift = e && e->p && !__atomic_load_n(&e->p->view, __ATOMIC_RELAXED);
        if (!e || adrift || log->down || !buf) {
            idle(log);
            continue;
        }
        if (vg_links_backlog(log->links) > BACKLOG_MAX) {
            nap(log, 1000);
            continue;
        }
        uint64_t generation = log->generation;
        e->busy = e->sent = true;
        pthread_mutex_unlock(&log->lock);
        int rc = !e->p     ? vg_links_write(log->links, e->op, 0, 0, NULL, 0)
                 : e->kind ? send_op(log, e)
                           : send_data(log, e, buf);
        pthread_mutex_lock(&log->lock);
        e->busy = false;
        pthread_cond_broadcast(&log->work); /* an acknowledgement may wait for it */
        if (e->gone || generation != log->generation)
            continue; /* acknowledged meanwhile, or all over again */
        if (rc < 0)
            log->down = true; /* no link: resend will begin anew */
        else
            log->next = e->next;
    }
    vg_links_hold(log->links, false);
    pthread_mutex_unlock(&log->lock);
    free(buf);
    return NULL;
}

int vg_oplog_new(struct vg_links *links, const char *dir, struct vg_oplog **ret) {
    (void)dir;
    struct vg_oplog *log = vg_alloc(sizeof(*log));
    if (!log)
        return -ENOMEM;
    log->links = links;
    pthread_mutex_init(&log->lock, NULL);
    pthread_condattr_t ca;
    pthread_condattr_init(&ca);
    pthread_condattr_setclock(&ca, CLOCK_MONOTONIC);
    pthread_cond_init(&log->work, &ca);
    pthread_condattr_destroy(&ca);
    int rc = pthread_create(&log->sender, NULL, sender_main, log);
    if (rc) {
        free(log);
        return -rc;
    }
    *ret = log;
    return 0;
}

/* The views are gone by now, and with them the nodes that entries hold. */
void vg_oplog_free(struct vg_oplog *log) {
    if (!log)
        return;
    pthread_mutex_lock(&log->lock);
    log->stop = true;
    pthread_cond_broadcast(&log->work);
    pthread_mutex_unlock(&log->lock);
    pthread_join(log->sender, NULL);
    while (log->head) {
        struct vg_logent *e = log->head;
        log->head = e->next;
        free(e);
    }
    while (log->barriers) {
        struct barrier *b = log->barriers;
        log->barriers = b->next;
        b->done(b->user, -ECANCELED, "the file daemon ends before everything was written back");
        free(b);
    }
    pthread_cond_destroy(&log->work);
    pthread_mutex_destroy(&log->lock);
    free(log);
}

/* Of a view that goes away: what it has not got acknowledged is sent no more. Numbers must not have
   a gap, so entries stay as empty writes. */
void vg_oplog_forget(struct vg_oplog *log, struct vg_proj *p) {
    pthread_mutex_lock(&log->lock);
    for (;;) {
        bool busy = false;
        for (struct vg_logent *e = log->head; e; e = e->next)
            busy |= e->p == p && e->busy;
        if (!busy)
            break;
        nap(log, 1000);
    }
    for (struct vg_logent *e = log->head; e; e = e->next)
        if (e->p == p)
            e->n = NULL, e->p = NULL;
    pthread_mutex_unlock(&log->lock);
}

static struct vg_logent *take_acked(struct vg_oplog *log, uint64_t op) {
    struct vg_logent *first = log->head, *last = NULL;
    while (log->head && log->head->op <= op) {
        struct vg_logent *e = last = log->head;
        log->head = e->next;
        log->entries--;
        if (!e->kind)
            log->data -= e->len;
        if (log->next == e)
            log->next = e->next;
        e->gone = true;
    }
    if (!last)
        return NULL;
    last->next = NULL;
    if (!log->head)
        log->tail = NULL;
    return first;
}

static void finish_barriers(struct vg_oplog *log) {
    for (;;) {
        pthread_mutex_lock(&log->lock);
        struct barrier **at = &log->barriers;
        while (*at && (*at)->op > log->acked)
            at = &(*at)->next;
        struct barrier *b = *at;
        int code = log->code;
        char text[sizeof(log->text)];
        memcpy(text, log->text, sizeof(text));
        if (b) {
            *at = b->next;
            log->code = 0;
            log->text[0] = 0;
        }
        pthread_mutex_unlock(&log->lock);
        if (!b)
            return;
        b->done(b->user, code, text);
        free(b);
    }
}

void vg_oplog_ack(struct vg_oplog *log, const Vg__Mr__Ack *m) {
    pthread_mutex_lock(&log->lock);
    uint64_t op = VG_MIN(m->op, log->last); /* never more than was said */
    struct vg_logent *list = op > log->acked ? take_acked(log, op) : NULL;
    pthread_mutex_unlock(&log->lock);
    /* The views first: a conflict adds operations that barriers must wait for. */
    struct vg_proj *done[64];
    size_t n = 0;
    for (struct vg_logent *e = list; e; e = e->next) {
        size_t i = 0;
        while (i < n && done[i] != e->p)
            i++;
        if (e->p && i == n && n < VG_COUNT(done)) {
            done[n++] = e->p;
            vg_proj_acked(e->p, op, m);
        }
    }
    pthread_mutex_lock(&log->lock);
    if (op > log->acked)
        log->acked = op;
    pthread_mutex_unlock(&log->lock);
    while (list) {
        struct vg_logent *e = list;
        list = e->next;
        pthread_mutex_lock(&log->lock);
        while (e->busy)
            nap(log, 100);
        pthread_mutex_unlock(&log->lock);
        ent_drop(e);
    }
    finish_barriers(log);
}

void vg_oplog_kick(struct vg_oplog *log) {
    pthread_mutex_lock(&log->lock);
    pthread_cond_broadcast(&log->work);
    pthread_mutex_unlock(&log->lock);
}

void vg_oplog_resend(struct vg_oplog *log) {
    pthread_mutex_lock(&log->lock);
    log->generation++;
    log->next = log->head;
    log->down = false;
    pthread_cond_broadcast(&log->work);
    pthread_mutex_unlock(&log->lock);
}

uint64_t vg_oplog_next(struct vg_oplog *log) {
    pthread_mutex_lock(&log->lock);
    uint64_t op = log->acked + 1;
    pthread_mutex_unlock(&log->lock);
    return op;
}

void vg_oplog_failed(struct vg_oplog *log, int code, const char *text) {
    pthread_mutex_lock(&log->lock);
    if (!log->code) {
        log->code = code;
        snprintf(log->text, sizeof(log->text), "%s", text);
    }
    pthread_mutex_unlock(&log->lock);
}

void vg_oplog_extend_barriers(struct vg_oplog *log) {
    pthread_mutex_lock(&log->lock);
    for (struct barrier *b = log->barriers; b; b = b->next)
        b->op = log->last;
    pthread_mutex_unlock(&log->lock);
}

void vg_oplog_barrier(struct vg_oplog *log, void (*done)(void *user, int code, const char *text),
                      void *user) {
    struct barrier *b = vg_alloc(sizeof(*b));
    if (!b) {
        done(user, -ENOMEM, "out of memory on the node");
        return;
    }
    b->done = done;
    b->user = user;
    pthread_mutex_lock(&log->lock);
    b->op = log->last;
    b->next = log->barriers;
    log->barriers = b;
    pthread_cond_broadcast(&log->work); /* what is being gathered goes now */
    pthread_mutex_unlock(&log->lock);
    finish_barriers(log);
}
