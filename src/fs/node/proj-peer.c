/* What the client says about a project: folders, data, failures, acknowledgements; and what becomes
   of a file that both sides changed. On the links' receiving thread. */
#include "fs/node/proj-int.h"

#include "base/mem.h"
#include "base/util.h"

#include <errno.h>
#include <string.h>

#define NOTES_MAX 16

/* The thing the client knows by this number. */
static struct pnode *by_object(struct vg_proj *p, uint64_t object) {
    if (object == p->root_object)
        return p->root;
    struct pdent *d = object ? vg_map_get_u64(&p->objects, object) : NULL;
    return d ? d->node : NULL;
}

bool vg_proj_dir(struct vg_proj *p, uint64_t req, const struct vg_dirrec *rec) {
    pthread_mutex_lock(&p->lock);
    struct pnode *n = by_object(p, rec->object);
    if (n && n->dir) {
        struct pdir *f = n->dir;
        bool pushed = !f->fetching || req != f->req;
        if (req == 0)
            f->fetching = false; /* the links take it for the answer */
        /* A push may be older than operations that were acknowledged over another link. */
        bool later = f->last_op <= p->acked && rec->seq > p->acked_seq;
        bool may = !f->last_op || later;
        /* One that is newer counts also where nothing was known to have changed: the service will
           not name again what it has told. */
        bool newer = rec->seq > f->seq;
        if (!pushed || !f->record || (may && (f->unproven || newer)))
            proj_merge(p, n, rec, pushed, later ? p->acked : 0);
        else if (newer)
            proj_unprove(p, n);
    }
    pthread_mutex_unlock(&p->lock);
    return n != NULL;
}

bool vg_proj_dir_void(struct vg_proj *p, uint64_t object) {
    pthread_mutex_lock(&p->lock);
    struct pnode *n = by_object(p, object);
    if (n && n->dir) {
        n->dir->fetching = false;
        proj_unprove(p, n);
        proj_fetch_dir(p, n);
    }
    pthread_mutex_unlock(&p->lock);
    return n != NULL;
}

static void data_came(struct vg_proj *p, struct pnode *n, int rc) {
    struct pfile *f = n->file;
    if (rc == -EBADMSG) { /* not what the record said: believe the record's stamp alone */
        n->has_id = false;
        if (!f->backing)
            proj_file_drop(n);
        proj_wake(p, &f->waiting);
    } else if (rc < 0) {
        proj_fail_waiting(p, &f->waiting, rc == -ENOSPC ? ENOSPC : EIO);
    } else {
        proj_wake(p, &f->waiting);
    }
}

/* Who waits for bytes waits for what the folder's record says now: that wakes him. */
bool vg_proj_missed(struct vg_proj *p, uint64_t object) {
    pthread_mutex_lock(&p->lock);
    struct pnode *n = by_object(p, object);
    if (n && n->file && n->names && !vg_list_empty(&n->file->waiting)) {
        proj_unprove(p, n->names->parent);
        proj_fetch_dir(p, n->names->parent);
    }
    pthread_mutex_unlock(&p->lock);
    return n != NULL;
}

bool vg_proj_ended(struct vg_proj *p, uint64_t object) {
    pthread_mutex_lock(&p->lock);
    struct pnode *n = by_object(p, object);
    if (n && n->file)
        proj_wake(p, &n->file->waiting);
    pthread_mutex_unlock(&p->lock);
    return n != NULL;
}

/* Bytes of an earlier state than the record that is believed come when their link was slow; of a
   later one, when the record's is. */
static bool other_state(const struct vg_proj *p, const struct pnode *n, uint32_t tag) {
    return tag && n->at_client && n->pend <= p->acked && tag != vg_state_tag(&n->cst);
}

int vg_proj_data(struct vg_proj *p, uint64_t object, uint64_t off, uint64_t size, uint32_t tag,
                 const void *data, size_t len) {
    pthread_mutex_lock(&p->lock);
    struct pnode *n = by_object(p, object);
    if (!n || !n->file) {
        pthread_mutex_unlock(&p->lock);
        return n != NULL;
    }
    struct pfile *f = n->file;
    if (other_state(p, n, tag)) {
        pthread_mutex_unlock(&p->lock);
        return -ESTALE;
    }
    if (f->backing) {
        data_came(p, n, proj_take_data(n, off, data, len));
        pthread_mutex_unlock(&p->lock);
        return 1;
    }
    if (proj_file_want(n) < 0 || !f->blob) {
        proj_fail_waiting(p, &f->waiting, EIO);
        pthread_mutex_unlock(&p->lock);
        return 1;
    }
    uint64_t whole = vg_blob_size(f->blob);
    if (size != whole) {
        pthread_mutex_unlock(&p->lock);
        return -ESTALE;
    }
    uint64_t want = off < whole ? VG_MIN(whole - off, len) : 0;
    if (off % VG_LEAF || !want || (want % VG_LEAF && off + want != whole)) {
        proj_wake(p, &f->waiting);
        pthread_mutex_unlock(&p->lock);
        return 1;
    }
    struct vg_blob *b = vg_blob_ref(f->blob);
    n->refs++;
    pthread_mutex_unlock(&p->lock);
    int rc = vg_blob_write(b, off, data, want, true);
    pthread_mutex_lock(&p->lock);
    data_came(p, n, rc);
    n->refs--;
    proj_node_maybe_free(p, n);
    pthread_mutex_unlock(&p->lock);
    vg_blob_put(b);
    return 1;
}

/* The client does not know the number any more: its folder's record has the new one, or shows that
   the thing is gone. Who waits goes on waiting for that. */
static bool number_lost(struct vg_proj *p, struct pnode *n) {
    if (!n->names || n->lost_numbers >= 3)
        return false;
    n->lost_numbers++;
    for (struct pdent *d = n->names; d; d = d->next) {
        if (d->object && vg_map_get_u64(&p->objects, d->object) == d)
            vg_map_del_u64(&p->objects, d->object);
        d->object = 0;
    }
    if (n->dir)
        n->dir->fetching = false; /* as the number, so what was asked for under it */
    return proj_learn(p, n);
}

static bool dir_failed(struct vg_proj *p, struct pnode *n, int err) {
    struct pdir *f = n->dir;
    f->fetching = false;
    pthread_cond_broadcast(&p->proven);
    if (err == ENOENT && number_lost(p, n))
        return false; /* it stays unproven, if it was */
    f->unproven = false;
    f->proved_gen = f->fetch_gen;
    vg_list_remove(&f->unproven_link);
    return proj_fail_waiting(p, &f->waiting, err);
}

bool vg_proj_fail(struct vg_proj *p, const Vg__Mr__Fail *m) {
    pthread_mutex_lock(&p->lock);
    struct pnode *n = by_object(p, m->object);
    bool heard = false; /* a program did */
    int err = m->errno_ && m->errno_ < 4096 ? (int)m->errno_ : EIO;
    if (n && !m->errno_) {
        proj_xattrs_come(n, m);
    } else if (n && n->xattr_asked && !n->xattr_known && !vg_list_empty(&n->xattr_waiting)) {
        n->xattr_asked = false;
        heard =
            (err != ENOENT || !number_lost(p, n)) && proj_fail_waiting(p, &n->xattr_waiting, err);
    } else if (n && n->dir) {
        heard = dir_failed(p, n, err);
    } else if (n && n->file) {
        heard =
            (err != ENOENT || !number_lost(p, n)) && proj_fail_waiting(p, &n->file->waiting, err);
    }
    pthread_mutex_unlock(&p->lock);
    if (heard && m->text && p->conf.note)
        p->conf.note(p->conf.user, m->text);
    return n != NULL;
}

bool vg_proj_inval(struct vg_proj *p, uint64_t folder) {
    pthread_mutex_lock(&p->lock);
    struct pnode *n = folder ? by_object(p, folder) : p->root;
    if (!folder) {
        vg_list_for_each (it, &p->nodes) {
            struct pnode *d = vg_list_entry(it, struct pnode, all);
            if (d->dir)
                proj_unprove(p, d);
        }
    } else if (n && n->dir) {
        proj_unprove(p, n);
    }
    pthread_mutex_unlock(&p->lock);
    return n != NULL;
}

/* Numbers of another life of the service mean nothing; names and stamps do. */
void vg_proj_new_epoch(struct vg_proj *p, uint32_t view, uint64_t root_object) {
    pthread_mutex_lock(&p->lock);
    __atomic_store_n(&p->view, view, __ATOMIC_RELAXED);
    vg_map_done(&p->objects);
    p->objects = (struct vg_map){0};
    p->root_object = root_object;
    p->acked_seq = UINT64_MAX; /* it counted otherwise */
    proj_trace_lost(p);
    vg_list_for_each (it, &p->nodes) {
        struct pnode *n = vg_list_entry(it, struct pnode, all);
        for (struct pdent *d = n->names; d; d = d->next)
            d->object = 0;
        n->xattr_asked = false;
        proj_wake(p, &n->xattr_waiting);
        if (n->file)
            proj_wake(p, &n->file->waiting);
        if (!n->dir)
            continue;
        n->dir->fetching = false;
        n->dir->seq = 0;
        proj_unprove(p, n);
        proj_wake(p, &n->dir->waiting);
    }
    pthread_mutex_unlock(&p->lock);
    vg_oplog_kick(p->log);
}

static int conflict_name(struct vg_proj *p, const struct pdent *d, char *out, size_t max) {
    for (unsigned i = 0; i < 1000; i++) {
        char tail[48];
        int t = snprintf(tail, sizeof(tail), i ? ".conflict-%08llx-%u" : ".conflict-%08llx",
                         (unsigned long long)(p->task >> 32), i);
        int keep = VG_MIN((int)d->len, 255 - t);
        snprintf(out, max, "%.*s%s", keep, d->name, tail);
        struct pdent *there = proj_find(p, d->parent, out, strlen(out));
        if (!there || !there->node)
            return 0;
    }
    return -EEXIST;
}

/* What is here of the client's old content comes into the backing: it is nowhere else now. */
static void bring_all(struct pnode *n) {
    struct pctx c = {0};
    for (uint64_t off = 0; off < n->file->base; off += VG_LEAF)
        if (n->file->blob && vg_blob_has_leaf(n->file->blob, off / VG_LEAF))
            proj_prepare(n, off, off + 1, &c);
    n->file->base = 0;
    n->file->based = true;
}

/* Both versions are kept: the client's under the name, ours beside it; open files follow ours. */
static void keep_both(struct vg_proj *p, struct pnode *n, char *note, size_t max) {
    struct pdent *d = n->names;
    if (!d || (!n->file && !n->target))
        return;
    struct pnode *dir = d->parent;
    char name[300];
    vg_auto_free char *path = NULL;
    proj_unprove(p, dir);
    if (conflict_name(p, d, name, sizeof(name)) < 0 ||
        proj_path(dir->names, name, strlen(name), &path) < 0)
        return;
    struct vg_oprec r = {.kind = n->file ? VG__MR__OP__KIND__CREATE : VG__MR__OP__KIND__SYMLINK,
                         .n = n,
                         .parent = dir,
                         .name = path,
                         .st = n->st,
                         .data = n->target,
                         .data_len = n->target ? strlen(n->target) : 0};
    struct pdent *d2 = proj_find(p, dir, name, strlen(name));
    if (!d2)
        d2 = proj_dent_new(p, dir, name, strlen(name));
    bool room = d2 && (!n->file || proj_dirty_room(n) == 0);
    struct vg_logent *e = room ? vg_logent_new(p, &r) : NULL;
    if (!e) {
        vg_oplog_failed(p->log, -ENOMEM,
                        "the node has no memory to keep both versions of a changed file");
        return;
    }
    snprintf(note, max,
             "%.*s was changed on your machine and by the task: yours is kept, the task's is in %s",
             (int)d->len, d->name, name);
    if (n->file)
        bring_all(n);
    n->refs++;
    proj_notice(p, dir, d->name, d->len, NULL);
    proj_notice(p, dir, name, strlen(name), NULL);
    proj_dent_free(p, d);
    proj_dent_set(p, d2, n);
    n->refs--;
    n->at_client = false;
    n->local = true;
    n->st.ino = proj_new_ino(p); /* the old one is the client's file's */
    n->st.nlink = 1;
    d2->pend = n->pend = dir->dir->last_op = vg_oplog_add(p->log, e);
    if (n->file) {
        proj_dirty_all(n);
        proj_flush_node(n);
        proj_log_xattrs(n);
    }
    vg_oplog_extend_barriers(p->log);
}

static void took(struct vg_proj *p, struct pnode *n, const Vg__Mr__Changed *c, uint64_t op) {
    if (c->stat) {
        struct vg_mstat st;
        vg_mw_stat_from(&st, c->stat);
        if ((st.mode & S_IFMT) != (n->st.mode & S_IFMT))
            return; /* not the thing we mean */
        n->cst = st;
        n->at_client = true;
        if (n->file && st.nlink > 1)
            vg_map_put_u64(&p->links, st.ino, n);
        if (!n->local && n->pend <= op)
            n->st = st;
    }
    if (c->has_renamed_to && c->renamed_to && n->names && !n->names->next && !n->names->object &&
        vg_map_put_u64(&p->objects, c->renamed_to, n->names) == 0)
        n->names->object = c->renamed_to;
}

/* Made here and, sooner, elsewhere, by a program that waits to know: it has not made it. */
static bool lost_race(struct vg_proj *p, struct pnode *n) {
    bool waits = false;
    vg_list_for_each (it, &p->acks) {
        const struct packwait *w = vg_list_entry(it, struct packwait, link);
        waits = waits || (w->n == n && w->excl);
    }
    struct pdent *d = waits ? n->names : NULL;
    if (!d)
        return false;
    proj_unprove(p, d->parent);
    proj_notice(p, d->parent, d->name, d->len, NULL);
    proj_dent_free(p, d); /* who waits holds the node */
    n->st.nlink = 0;
    return true;
}

static void answer_acks(struct vg_proj *p, uint64_t op, const Vg__Mr__Ack *m) {
    vg_list_for_each_safe (it, &p->acks) {
        struct packwait *w = vg_list_entry(it, struct packwait, link);
        if (w->op > op)
            continue;
        int err = 0;
        for (size_t i = 0; i < m->n_changed; i++)
            if (m->changed[i]->object == w->n->handle && m->changed[i]->errno_)
                err = (int)VG_MIN(m->changed[i]->errno_, 4095u);
        if (err == ESTALE && w->excl)
            err = EEXIST;
        vg_list_remove(&w->link);
        int rc = err ? vg_fuse_err(w->r, err) : vg_fuse_ok(w->r, w->out, w->len);
        w->n->refs--;
        if (err || rc == -ENOENT)
            proj_take_back(p, w->n, w->lookup, w->open);
        else
            proj_node_maybe_free(p, w->n);
        free(w);
    }
}

/* Removed names that the client knows of: forgotten, unless a record is on its way that may have
   them. Then the others wait, too: looking through all of them at each Ack would be worse. */
static void forget_tombs(struct vg_proj *p) {
    vg_list_for_each_safe (it, &p->tombs) {
        struct pdent *d = vg_list_entry(it, struct pdent, tomb);
        const struct pdir *f = d->parent->dir;
        if (d->pend > p->acked || (f->fetching && f->fetch_acked < d->pend))
            break;
        proj_dent_free(p, d);
    }
}

void vg_proj_acked(struct vg_proj *p, uint64_t op, const Vg__Mr__Ack *m) {
    char notes[NOTES_MAX][400];
    unsigned n_notes = 0;
    pthread_mutex_lock(&p->lock);
    if (op >= p->acked)
        p->acked_seq = m->has_seq ? m->seq : UINT64_MAX;
    p->acked = VG_MAX(p->acked, op);
    for (size_t i = 0; i < m->n_changed; i++) {
        const Vg__Mr__Changed *c = m->changed[i];
        struct pnode *n = vg_map_get_u64(&p->handles, c->object);
        if (!n)
            continue;
        char *note = n_notes < NOTES_MAX ? notes[n_notes] : notes[NOTES_MAX - 1];
        note[0] = 0;
        if (c->errno_ == ESTALE && lost_race(p, n)) {
            continue;
        } else if (c->errno_ == ESTALE) {
            keep_both(p, n, note, sizeof(notes[0]));
        } else if (c->errno_ == EEXIST &&
                   n->dir) { /* made on both sides, or something stays in it */
            took(p, n, c, op);
            proj_unprove(p, n);
        } else if (c->errno_) {
            snprintf(note, sizeof(notes[0]), "%s",
                     c->text ? c->text : "an operation could not be done on your machine");
            vg_oplog_failed(p->log, -(int)VG_MIN(c->errno_, 4095u), note);
            if (n->dir)
                proj_unprove(p, n);
            if (n->names)
                proj_unprove(p, n->names->parent);
        } else {
            took(p, n, c, op);
        }
        if (note[0] && n_notes < NOTES_MAX)
            n_notes++;
    }
    answer_acks(p, p->acked, m);
    forget_tombs(p);
    if (!vg_oplog_full(p->log))
        proj_wake(p, &p->room);
    pthread_mutex_unlock(&p->lock);
    for (unsigned i = 0; i < n_notes && p->conf.note; i++)
        p->conf.note(p->conf.user, notes[i]);
}

void vg_proj_settle(struct vg_proj *p) {
    pthread_mutex_lock(&p->lock);
    p->idle = true;
    vg_list_for_each (it, &p->nodes) {
        struct pnode *n = vg_list_entry(it, struct pnode, all);
        bool unsent = n->file && (n->file->n_dirty || n->file->touched);
        if (!n->local || !n->at_client || unsent || n->nopen || n->pend > p->acked ||
            (n->dir && n->dir->last_op > p->acked))
            continue;
        n->st = n->cst;
        n->local = false;
        proj_notice(p, NULL, NULL, 0, n);
        if (n->names)
            proj_notice(p, NULL, NULL, 0, n->names->parent);
    }
    pthread_mutex_unlock(&p->lock);
}
