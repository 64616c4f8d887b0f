/* The client's records of folders, merged into what tasks did meanwhile; and the words to the
   kernel that follow from them. Everything here runs with the view's lock. */
#include "fs/node/proj-int.h"

#include "base/mem.h"

#include <string.h>

static struct pnotice *notice(struct vg_proj *p, struct pnode *parent, const char *name, size_t len,
                              struct pnode *n) {
    struct pnode *about = parent ? parent : n;
    if (!about->nlookup && !about->is_root)
        return NULL; /* the kernel has never heard of it */
    struct pnotice *t = vg_alloc(sizeof(*t) + len + 1);
    if (!t)
        return NULL; /* it shows the old for as long as it remembers */
    t->parent = parent ? proj_nodeid(parent) : 0;
    t->node = n ? proj_nodeid(n) : 0;
    t->len = (uint16_t)len;
    if (len)
        memcpy(t->name, name, len);
    *p->notices_end = t;
    p->notices_end = &t->next;
    p->notices_put++;
    pthread_cond_signal(&p->told);
    return t;
}

void proj_notice(struct vg_proj *p, struct pnode *parent, const char *name, size_t len,
                 struct pnode *n) {
    (void)notice(p, parent, name, len, n);
}

/* What the kernel has of its content stays: nobody else may have it any more. */
static void notice_attr(struct vg_proj *p, struct pnode *n) {
    struct pnotice *t = notice(p, NULL, NULL, 0, n);
    if (t)
        t->attr = true;
}

void proj_wake(struct vg_proj *p, struct vg_list *waiting) {
    while (!vg_list_empty(waiting)) {
        struct vg_list *it = waiting->next;
        vg_list_remove(it);
        vg_list_push_back(&p->ready, it);
        pthread_cond_signal(&p->work);
    }
}

bool proj_fail_waiting(struct vg_proj *p, struct vg_list *waiting, int err) {
    bool any = !vg_list_empty(waiting);
    (void)p;
    while (!vg_list_empty(waiting)) {
        struct pwait *w = vg_list_entry(waiting->next, struct pwait, link);
        vg_list_remove(&w->link);
        vg_fuse_err(w->r, err);
        free(w);
    }
    return any;
}

void proj_unprove(struct vg_proj *p, struct pnode *dir) {
    struct pdir *f = dir->dir;
    if (!f->record)
        return; /* nothing is known of it, or it was made here and the client says nothing new */
    f->unproven = true;
    if (f->fetching)
        f->again = true;
    if (vg_list_empty(&f->unproven_link))
        vg_list_push_back(&p->unproven, &f->unproven_link);
    pthread_cond_signal(&p->work);
}

static void fetch_dir(struct vg_proj *p, struct pnode *dir, unsigned urgency) {
    struct pdir *f = dir->dir;
    uint64_t object = proj_object(dir);
    if (f->fetching || !object)
        return;
    f->fetching = true;
    f->again = false;
    f->fetch_acked = p->acked;
    f->fetch_gen = p->begins;
    f->req = vg_links_get_dir_anew(p->conf.links, object, urgency);
}

void proj_fetch_dir(struct vg_proj *p, struct pnode *dir) {
    fetch_dir(p, dir, 0);
}

void proj_refresh_dir(struct vg_proj *p, struct pnode *dir) {
    fetch_dir(p, dir, 1);
}

bool proj_learn(struct vg_proj *p, struct pnode *n) {
    while (n->names) {
        struct pnode *up = n->names->parent;
        proj_unprove(p, up);
        if (proj_object(up)) {
            proj_fetch_dir(p, up);
            return true;
        }
        n = up;
    }
    return n->is_root; /* its number comes with the next link; else it lies nowhere any more */
}

int proj_need_dir(struct vg_proj *p, struct pnode *dir, struct pctx *c) {
    if (!dir->dir)
        return -ENOTDIR;
    proj_use(p, dir);
    if (dir->dir->record)
        return 0;
    if (proj_object(dir))
        proj_fetch_dir(p, dir);
    else if (!proj_learn(p, dir))
        return -ENOENT;
    c->park = &dir->dir->waiting;
    return PROJ_WAIT;
}

static bool same_target(const struct pnode *n, const struct vg_dirent *e) {
    return !n->target ||
           (strlen(n->target) == e->target_len && !memcmp(n->target, e->target, e->target_len));
}

/* A link never changes: with another target it is another one that got the inode. */
static bool same_thing(const struct pnode *n, const struct vg_dirent *e) {
    return n->at_client && n->cst.ino == e->st.ino && n->cst.dev == e->st.dev &&
           (n->cst.mode & S_IFMT) == (e->st.mode & S_IFMT) && same_target(n, e);
}

/* What was made here is known as the client's once an Ack has told its number there. A service that
   died takes its words with it: then the record tells. All operations on the name are done by now,
   so what lies there is what they made; were it taken for something else, what is under way in a
   folder would be lost with it. */
static bool made_here(const struct pnode *n, const struct vg_dirent *e) {
    return !n->at_client && (n->st.mode & S_IFMT) == (e->st.mode & S_IFMT) && same_target(n, e);
}

static bool same_state(const struct vg_mstat *a, const struct vg_mstat *b) {
    return a->size == b->size && a->mtime == b->mtime && a->ctime == b->ctime &&
           a->mode == b->mode && a->nlink == b->nlink && a->uid == b->uid && a->gid == b->gid;
}

static bool unsent(const struct pnode *n) {
    return n->file && (n->file->n_dirty || n->file->touched);
}

static void set_object(struct vg_proj *p, struct pdent *d, uint64_t object) {
    if (d->object == object)
        return;
    if (d->object && vg_map_get_u64(&p->objects, d->object) == d)
        vg_map_del_u64(&p->objects, d->object);
    if (d->node && d->node->dir)
        d->node->dir->fetching = false; /* nobody will know an answer under the old number */
    d->object = vg_map_put_u64(&p->objects, object, d) < 0 ? 0 : object;
}

static void take_flags(struct vg_proj *p, struct pnode *n, const struct vg_dirent *e) {
    bool denied = e->flags & VG_DE_DENIED, secret = e->flags & VG_DE_SECRET;
    if (n->file && (n->denied != denied || n->secret != secret))
        proj_notice(p, NULL, NULL, 0, n); /* the kernel has pages of it */
    n->denied = denied;
    proj_file_secret(n, secret);
    n->has_id = e->id != NULL;
    if (e->id)
        memcpy(n->id, e->id, VG_HASH);
    if (!(e->flags & VG_DE_XATTR) && !n->xattr)
        n->xattr_known = true;
}

/* What the client has is another state now, and nothing of ours is under way. */
static void take_state(struct vg_proj *p, struct pnode *n, const struct vg_dirent *e) {
    bool content = n->cst.size != e->st.size || n->cst.mtime != e->st.mtime;
    uint64_t ino = n->st.ino;
    if (n->file && (content || !n->file->backing))
        proj_file_drop(n);
    n->cst = n->st = e->st;
    if (n->local)
        n->st.ino = ino;
    n->at_client = true;
    if (n->file && e->st.nlink > 1)
        vg_map_put_u64(&p->links, e->st.ino, n);
    proj_xattrs_drop(n, !(e->flags & VG_DE_XATTR));
    proj_notice(p, NULL, NULL, 0, n);
}

static struct pnode *node_for(struct vg_proj *p, const struct vg_dirent *e) {
    if (S_ISREG(e->st.mode) && e->st.nlink > 1) {
        struct pnode *n = vg_map_get_u64(&p->links, e->st.ino);
        if (n && same_thing(n, e))
            return n;
    }
    struct pnode *n = proj_node_new(p, &e->st);
    if (!n)
        return NULL;
    n->cst = e->st;
    n->at_client = true;
    if (S_ISREG(e->st.mode) && e->st.nlink > 1)
        vg_map_put_u64(&p->links, e->st.ino, n);
    if (S_ISLNK(e->st.mode)) {
        n->target = vg_strndup(e->target, e->target_len);
        if (!n->target) {
            proj_node_maybe_free(p, n);
            return NULL;
        }
    }
    if (n->dir && (e->flags & (VG_DE_OTHER | VG_DE_EMPTY)))
        n->dir->record = 1; /* shown empty */
    return n;
}

/* Those who waited for its number. */
static void wake_node(struct vg_proj *p, struct pnode *n) {
    if (n->file)
        proj_wake(p, &n->file->waiting);
    if (n->dir)
        proj_wake(p, &n->dir->waiting);
    proj_wake(p, &n->xattr_waiting);
}

/* A folder of which something is known is taken away: what lies below it lies nowhere. */
static void note_lost(struct vg_proj *p, const struct pnode *n) {
    p->tree_lost |= n->dir && n->dir->n;
}

/* Who waits below it for a record that names what he waits for would wait for ever. */
static void wake_lost(struct vg_proj *p) {
    if (!p->tree_lost)
        return;
    p->tree_lost = false;
    vg_list_for_each (it, &p->nodes) {
        struct pnode *n = vg_list_entry(it, struct pnode, all);
        if (!proj_lies_somewhere(n))
            wake_node(p, n);
    }
}

/* What the record says of a thing; true when something of ours is newer. */
static bool take_entry(struct vg_proj *p, struct pnode *n, const struct vg_dirent *e,
                       uint64_t acked) {
    if (n->pend > acked || unsent(n) || (n->dir && n->dir->last_op > acked))
        return true;
    take_flags(p, n, e);
    if (!same_state(&n->cst, &e->st))
        take_state(p, n, e);
    return false;
}

/* A name was taken away at the client. Records of the other names' folders may have said so before:
   they are asked for again, since only they know how many are left. */
static void lost_at_client(struct vg_proj *p, const struct pdent *lost) {
    struct pnode *n = lost->node;
    uint32_t others = 0;
    for (struct pdent *d = n ? n->names : NULL; d; d = d->next)
        if (d != lost) {
            others++;
            proj_unprove(p, d->parent);
        }
    if (n && !n->dir && n->st.nlink > others) {
        n->cst.nlink = --n->st.nlink; /* a record that says something else counts */
        notice_attr(p, n);
    }
}

/* The file was known by this name alone, and by another one since: from now on it is one file.
   While it is in use here it stays what it is. */
static bool joins(struct vg_proj *p, struct pdent *d, const struct vg_dirent *e, uint64_t acked) {
    struct pnode *n = d->node, *other;
    if (!n->file || e->st.nlink < 2 || n->pend > acked || unsent(n) || n->nopen || n->names->next)
        return false;
    other = vg_map_get_u64(&p->links, e->st.ino);
    if (!other || other == n || !same_thing(other, e))
        return false;
    wake_node(p, n);
    proj_dent_set(p, d, other);
    return true;
}

/* True when something of ours is newer than the record. */
static bool merge_entry(struct vg_proj *p, struct pnode *dir, const struct vg_dirent *e, bool first,
                        uint64_t acked) {
    uint64_t gen = dir->dir->record;
    struct pdent *d = proj_find(p, dir, e->name, e->name_len);
    if (d && d->pend > acked) {
        d->seen = gen;
        return true;
    }
    if (d && d->node && (same_thing(d->node, e) || made_here(d->node, e))) {
        d->seen = gen;
        if (joins(p, d, e, acked))
            proj_notice(p, dir, e->name, e->name_len, NULL);
        /* A folder that was made anew may have got the old one's inode. */
        if (d->node->dir && d->object && d->object != e->object)
            proj_unprove(p, d->node);
        set_object(p, d, e->object);
        bool ours = take_entry(p, d->node, e, acked);
        wake_node(p, d->node);
        if (d->node->dir && d->node->dir->unproven)
            proj_fetch_dir(p, d->node); /* now that its number is known */
        return ours;
    }
    if (d && d->node && (d->node->pend > acked || unsent(d->node))) {
        d->seen = gen;
        return true; /* another file lies there now: its flush finds out, and keeps both */
    }
    struct pnode *n = node_for(p, e);
    if (!d && n)
        d = proj_dent_new(p, dir, e->name, e->name_len);
    if (!n || !d)
        return true; /* out of memory: asked for again */
    if (d->node) {
        wake_node(p, d->node); /* nothing comes for it any more */
        note_lost(p, d->node);
    }
    lost_at_client(p, d);
    proj_dent_set(p, d, n);
    set_object(p, d, e->object);
    d->seen = gen;
    bool ours = take_entry(p, n, e, acked);
    if (!first)
        proj_notice(p, dir, e->name, e->name_len, NULL);
    return ours;
}

static bool sweep(struct vg_proj *p, struct pnode *dir, uint64_t acked) {
    struct pdir *f = dir->dir;
    uint64_t gen = f->record;
    bool ours = false;
    for (size_t i = f->n; i-- > 0;) {
        if (i >= f->n)
            continue; /* it was squeezed */
        struct pdent *d = f->slot[i];
        if (!d || d->seen == gen)
            continue;
        if (d->pend > acked || (d->node && (d->node->pend > acked || unsent(d->node)))) {
            ours = true;
            continue;
        }
        if (d->node) {
            proj_notice(p, dir, d->name, d->len, NULL);
            wake_node(p, d->node);
            note_lost(p, d->node);
        }
        lost_at_client(p, d);
        proj_dent_free(p, d);
    }
    return ours;
}

static bool merge_self(struct pnode *dir, const struct vg_mstat *st, uint64_t acked) {
    if (dir->pend > acked || dir->dir->last_op > acked)
        return true;
    if (same_state(&dir->cst, st))
        return false;
    uint64_t ino = dir->st.ino;
    dir->cst = dir->st = *st;
    if (dir->local)
        dir->st.ino = ino;
    dir->at_client = true;
    proj_xattrs_drop(dir, false);
    return false;
}

void proj_merge(struct vg_proj *p, struct pnode *dir, const struct vg_dirrec *rec, bool pushed,
                uint64_t acked) {
    struct pdir *f = dir->dir;
    if (!pushed)
        acked = f->fetch_acked;
    bool first = f->record == 0, ours = false;
    struct vg_dirent e;
    size_t at = 0;
    dir->refs++;
    dir->lost_numbers = 0;
    f->seq = VG_MAX(f->seq, rec->seq);
    f->record++;
    while (vg_dirrec_next(rec, &at, &e))
        ours |= merge_entry(p, dir, &e, first, acked);
    ours |= sweep(p, dir, acked);
    ours |= merge_self(dir, &rec->st, acked);
    if (!first)
        proj_notice(p, NULL, NULL, 0, dir); /* attributes, and its listing in the kernel */
    if (!pushed) {
        f->fetching = false;
        f->proved_gen = f->fetch_gen;
        ours |= f->again;
    } else if (!ours) {
        f->proved_gen = p->begins;
    }
    f->unproven = ours;
    if (!f->unproven)
        vg_list_remove(&f->unproven_link);
    else if (vg_list_empty(&f->unproven_link))
        vg_list_push_back(&p->unproven, &f->unproven_link);
    proj_wake(p, &f->waiting);
    wake_lost(p);
    pthread_cond_broadcast(&p->proven);
    pthread_cond_signal(&p->work);
    dir->refs--;
    proj_node_maybe_free(p, dir);
}
