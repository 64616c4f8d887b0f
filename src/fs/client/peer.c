/* What each node's daemon was told and has: so that nothing is sent twice, and nothing that is not
   so any more stays believed. */
#include "fs/client/svc.h"

#include "base/mem.h"

#include <errno.h>
#include <string.h>

#define INVAL_MAX 20000u /* folders in one message */

static void *seq_to(uint64_t seq) {
    return (void *)(uintptr_t)(seq + 2); /* neither NULL nor VG_MAP_GONE */
}
static uint64_t seq_from(const void *p) {
    return (uint64_t)(uintptr_t)p - 2;
}

struct vg_mpeer *vg_mpeer_new(struct vg_mirror *m) {
    struct vg_mpeer *p = vg_alloc(sizeof(*p));
    if (!p)
        return NULL;
    p->m = m;
    vg_list_push_back(&m->peers, &p->link);
    return p;
}

static void forget_content(struct vg_mpeer *p) {
    vg_map_for_each (s, &p->have) {
        struct vg_mhave *h = s->value;
        free(h->bits);
        free(h);
    }
    vg_map_done(&p->have);
    p->have = (struct vg_map){0};
}

static void forget_folders(struct vg_mpeer *p) {
    vg_map_done(&p->told);
    vg_map_done(&p->stale);
    vg_map_done(&p->unsaid);
    p->told = p->stale = p->unsaid = (struct vg_map){0};
}

void vg_mpeer_free(struct vg_mpeer *p) {
    forget_content(p);
    forget_folders(p);
    vg_apply_free(p->apply);
    free(p->node);
    vg_list_remove(&p->link);
    free(p);
}

/* ---- folders ---- */

bool vg_mpeer_current(const struct vg_mpeer *p, const struct vg_cobj *folder) {
    uint64_t n = vg_cobj_number(folder);
    return vg_map_get_u64(&p->told, n) && !vg_map_get_u64(&p->stale, n);
}

static void set_stale(struct vg_mpeer *p, struct vg_cobj *folder) {
    uint64_t n = vg_cobj_number(folder);
    /* Without memory to remember it, the node must not believe it either. */
    if (vg_map_put_u64(&p->stale, n, folder) < 0 || vg_map_put_u64(&p->unsaid, n, folder) < 0)
        vg_map_del_u64(&p->told, n);
}

void vg_mpeer_told(struct vg_mpeer *p, struct vg_cobj *folder, uint64_t seq) {
    uint64_t n = vg_cobj_number(folder);
    vg_map_del_u64(&p->stale, n);
    vg_map_del_u64(&p->unsaid, n);
    if (vg_map_put_u64(&p->told, n, seq_to(seq)) == 0 && vg_cobj_changed_at(folder) > seq)
        set_stale(p, folder);
}

bool vg_mpeer_outdated(const struct vg_mpeer *p, const struct vg_cobj *folder) {
    const void *seq = vg_map_get_u64(&p->told, vg_cobj_number(folder));
    return seq && vg_cobj_changed_at(folder) > seq_from(seq);
}

void vg_mpeer_marked(struct vg_mlink *l, uint64_t number) {
    struct vg_mpeer *who[] = {l->peer, l->m->orphan};
    if (!l->all_at || number < l->all_at || !l->hello)
        return;
    l->all_at = 0;
    for (size_t i = 0; i < VG_COUNT(who); i++)
        if (who[i] && who[i]->lost <= l->all_of)
            who[i]->lost = 0;
}

void vg_mpeer_doubt(struct vg_mlink *l) {
    vg_map_for_each (s, &l->told) {
        struct vg_cobj *folder = s->value;
        if (l->peer->named && vg_map_get_u64(&l->peer->told, s->hash))
            set_stale(l->peer, folder);
    }
    vg_map_done(&l->told);
    l->told = (struct vg_map){0};
}

void vg_mpeer_forget(struct vg_mpeer *p, uint64_t folder) {
    vg_map_del_u64(&p->told, folder);
    vg_map_del_u64(&p->stale, folder);
    vg_map_del_u64(&p->unsaid, folder);
}

void vg_mpeer_on_change(void *mirror, struct vg_cobj *folder, const uint8_t *actor) {
    struct vg_mirror *m = mirror;
    uint64_t n = vg_cobj_number(folder);
    vg_list_for_each (it, &m->peers) {
        struct vg_mpeer *p = vg_list_entry(it, struct vg_mpeer, link);
        if (!vg_map_get_u64(&p->told, n))
            continue;
        bool own = actor && p->named && memcmp(actor, p->daemon, VG_MID) == 0;
        if (!own)
            set_stale(p, folder);
        else if (!vg_map_get_u64(&p->stale, n))
            (void)vg_map_put_u64(&p->told, n, seq_to(vg_cobj_changed_at(folder)));
    }
}

/* `daemon`: NULL: for whoever hears it. */
static int send_all(struct vg_mlink *l, ProtobufCBinaryData *daemon, size_t n) {
    Vg__Mr__Inval inval = VG__MR__INVAL__INIT;
    Vg__Mr__Msg msg = VG__MR__MSG__INIT;
    inval.has_all = inval.all = true;
    inval.has_seq = true;
    inval.seq = vg_ctree_seq(l->m->tree);
    inval.daemon = daemon;
    inval.n_daemon = n;
    msg.body_case = VG__MR__MSG__BODY_INVAL;
    msg.inval = &inval;
    l->all_at = ++l->tellings;
    l->all_of = l->m->losses;
    return vg_mlink_msg(l, &msg);
}

/* Nobody may believe anything. Nodes that have no link now hear it from the next one. */
void vg_mpeer_lost(struct vg_mirror *m) {
    m->losses++;
    vg_ctree_drop_records(m->tree);
    vg_list_for_each (it, &m->peers) {
        struct vg_mpeer *p = vg_list_entry(it, struct vg_mpeer, link);
        forget_folders(p);
        p->lost = m->losses;
    }
    vg_list_for_each_safe (it, &m->links) {
        struct vg_mlink *l = vg_list_entry(it, struct vg_mlink, link);
        if (!l->closed && send_all(l, NULL, 0) < 0)
            vg_mlink_close(l, "out of memory");
    }
}

/* Everything is unproven for nodes that have not confirmed it. One that has no name (of a link that
   broke early) means all. */
static int send_losses(struct vg_mlink *l) {
    size_t n = 0, max = 0;
    bool nameless = false;
    if (l->m->losses == 0 || l->all_of == l->m->losses)
        return 0; /* none, or it was found just now and said */
    vg_list_for_each (it, &l->m->peers)
        max++;
    vg_auto_free ProtobufCBinaryData *daemon = vg_alloc((max + 1) * sizeof(*daemon));
    if (!daemon)
        return -ENOMEM;
    vg_list_for_each (it, &l->m->peers) {
        struct vg_mpeer *p = vg_list_entry(it, struct vg_mpeer, link);
        if (!p->lost || p == l->peer || (!p->named && p != l->m->orphan))
            continue;
        nameless = nameless || !p->named;
        daemon[n++] = (ProtobufCBinaryData){VG_MID, p->daemon};
    }
    if (n == 0)
        return 0;
    int r = send_all(l, nameless ? NULL : daemon, nameless ? 0 : n);
    return r == 0 && l->closed ? -EPIPE : r;
}

static int send_inval(struct vg_mlink *l, const uint64_t *folder, size_t n, uint64_t seq) {
    Vg__Mr__Inval inval = VG__MR__INVAL__INIT;
    Vg__Mr__Msg msg = VG__MR__MSG__INIT;
    inval.has_seq = true;
    inval.seq = seq;
    inval.folder = (uint64_t *)folder;
    inval.n_folder = n;
    msg.body_case = VG__MR__MSG__BODY_INVAL;
    msg.inval = &inval;
    return vg_mlink_msg(l, &msg);
}

/* Of the map's folders those that are still there: that one is gone is told by the record of the
   folder it was in, which changed with it. Sending may find the link broken and close it, which
   puts more into the map: so what is in it now is written down first. -EPIPE: the link is closed.
 */
static int send_map_at(struct vg_mlink *l, const struct vg_map *map, uint64_t seq) {
    size_t n = 0, max = vg_map_len(map);
    if (max == 0)
        return 0;
    vg_auto_free uint64_t *folder = vg_alloc(max * sizeof(*folder));
    if (!folder)
        return -ENOMEM;
    vg_map_for_each (s, map)
        if (!vg_cobj_gone(s->value))
            folder[n++] = s->hash;
    int r = 0;
    for (size_t at = 0; r == 0 && at < n; at += INVAL_MAX) {
        r = send_inval(l, folder + at, VG_MIN(n - at, INVAL_MAX), seq);
        if (l->closed)
            r = -EPIPE;
    }
    return r;
}

static int send_map(struct vg_mlink *l, const struct vg_map *map) {
    return send_map_at(l, map, vg_ctree_seq(l->m->tree));
}

/* Links do not wait for each other: what another one told last may arrive after this one's Run, so
   what the node had before does not count. The records on their way do: all that are later than the
   last change of their folder. */
static int send_under_way(struct vg_mlink *l) {
    int r = 0;
    vg_list_for_each (it, &l->m->links) {
        const struct vg_mlink *other = vg_list_entry(it, struct vg_mlink, link);
        uint64_t seq = 0;
        if (other == l || other->closed || !other->hello)
            continue;
        vg_map_for_each (s, &other->told) {
            const struct vg_cobj *folder = s->value;
            seq = VG_MAX(seq, vg_cobj_changed_at(folder));
        }
        r = send_map_at(l, &other->told, seq);
        if (r < 0)
            break;
    }
    return r;
}

void vg_mpeers_inval(struct vg_mirror *m) {
    vg_list_for_each_safe (it, &m->links) {
        struct vg_mlink *l = vg_list_entry(it, struct vg_mlink, link);
        if (l->closed || l->broken || vg_map_len(&l->peer->unsaid) == 0)
            continue;
        if (send_map(l, &l->peer->unsaid) < 0) {
            vg_mlink_close(l, "out of memory"); /* or closed already: others are told */
            continue;
        }
        vg_map_done(&l->peer->unsaid);
        l->peer->unsaid = (struct vg_map){0};
    }
}

int vg_mpeer_inval_all(struct vg_mlink *l) {
    /* Whose the new link is will be known later: what is stale for anybody is named. */
    int r = send_losses(l);
    if (r == 0)
        r = send_map(l, &l->peer->stale);
    if (r == 0)
        r = send_under_way(l);
    if (r < 0 || l->peer->named)
        return r;
    vg_list_for_each (it, &l->m->peers) {
        struct vg_mpeer *p = vg_list_entry(it, struct vg_mpeer, link);
        if (p != l->peer)
            r = send_map(l, &p->stale);
        if (r < 0)
            break; /* its peer may be gone with it */
    }
    return r;
}

bool vg_mpeers_known(const struct vg_mirror *m) {
    vg_list_for_each (it, &m->peers) {
        const struct vg_mpeer *p = vg_list_entry(it, struct vg_mpeer, link);
        if (p->named && vg_map_len(&p->told) > vg_map_len(&p->stale))
            return true;
    }
    return false;
}

/* ---- content ---- */

static bool same_state(const struct vg_mstat *a, const struct vg_mstat *b) {
    return a->dev == b->dev && a->ino == b->ino && a->size == b->size && a->mtime == b->mtime &&
           a->ctime == b->ctime;
}

bool vg_mpeer_has(const struct vg_mpeer *p, const struct vg_cobj *o, uint64_t leaf) {
    const struct vg_mhave *h = vg_map_get_u64(&p->have, vg_cobj_number(o));
    const struct vg_mstat *st = vg_cobj_told(o);
    if (!h || !st || !same_state(&h->st, st) || leaf >= vg_leaves(st->size))
        return false;
    return h->all || (h->bits && (h->bits[leaf / 8] & (1u << (leaf % 8))));
}

static struct vg_mhave *have_of(struct vg_mpeer *p, const struct vg_cobj *o) {
    const struct vg_mstat *st = vg_cobj_told(o);
    struct vg_mhave *h = vg_map_get_u64(&p->have, vg_cobj_number(o));
    if (!st)
        return NULL;
    if (!h) {
        h = vg_alloc(sizeof(*h));
        if (!h || vg_map_put_u64(&p->have, vg_cobj_number(o), h) < 0) {
            free(h);
            return NULL;
        }
        h->st = *st;
    }
    if (!same_state(&h->st, st)) {
        free(h->bits);
        *h = (struct vg_mhave){.st = *st};
    }
    return h;
}

/* Both only save work: without memory it is done again. */
void vg_mpeer_sent(struct vg_mpeer *p, const struct vg_cobj *o, uint64_t leaf) {
    struct vg_mhave *h = have_of(p, o);
    if (!h || h->all || leaf >= vg_leaves(h->st.size))
        return;
    if (vg_leaves(h->st.size) == 1) {
        h->all = true;
        return;
    }
    if (!h->bits)
        h->bits = vg_alloc(vg_leaves(h->st.size) / 8 + 1);
    if (h->bits)
        h->bits[leaf / 8] |= (uint8_t)(1u << (leaf % 8));
}

void vg_mpeer_has_all(struct vg_mpeer *p, const struct vg_cobj *o) {
    struct vg_mhave *h = have_of(p, o);
    if (h)
        h->all = true;
}

/* ---- names ---- */

static struct vg_mpeer *peer_of(struct vg_mirror *m, const uint8_t *daemon) {
    vg_list_for_each (it, &m->peers) {
        struct vg_mpeer *p = vg_list_entry(it, struct vg_mpeer, link);
        if (p->named && memcmp(p->daemon, daemon, VG_MID) == 0)
            return p;
    }
    return NULL;
}

static void merge(struct vg_mpeer *into, struct vg_mpeer *from) {
    vg_map_for_each (s, &from->told) {
        struct vg_cobj *o = vg_ctree_get(into->m->tree, s->hash);
        const void *old = vg_map_get_u64(&into->told, s->hash);
        if (o && (!old || seq_from(old) < seq_from(s->value)))
            vg_mpeer_told(into, o, seq_from(s->value));
    }
    vg_map_for_each (s, &from->have) {
        struct vg_mhave *h = s->value, *old = vg_map_get_u64(&into->have, s->hash);
        if (old) {
            bool keep = same_state(&old->st, &h->st) && old->all;
            if (keep)
                continue;
            free(old->bits);
            *old = *h;
            h->bits = NULL;
        } else if (vg_map_put_u64(&into->have, s->hash, h) == 0) {
            vg_map_del_u64(&from->have, s->hash);
        }
    }
}

/* A node may believe what a link told that broke before it said whose it was. It may be any node:
   so that is kept, and what of it changes is named to all. */
static void orphaned(struct vg_mpeer *own) {
    struct vg_mirror *m = own->m;
    if (vg_map_len(&own->told) == 0) {
        vg_mpeer_free(own);
    } else if (!m->orphan) {
        m->orphan = own;
    } else {
        merge(m->orphan, own);
        vg_mpeer_free(own);
    }
}

void vg_mpeer_left(struct vg_mlink *l) {
    struct vg_mpeer *p = l->peer;
    vg_mpeer_doubt(l);
    l->peer = NULL;
    if (--p->links)
        return;
    if (!p->named)
        orphaned(p);
    else if (p->once) {
        forget_folders(p);
        forget_content(p);
        p->lost = 0;
    }
}

static void note_to(void *peer, uint64_t task, const char *text) {
    struct vg_mpeer *p = peer;
    Vg__Mr__Note note = VG__MR__NOTE__INIT;
    Vg__Mr__Msg msg = VG__MR__MSG__INIT;
    note.has_task = true;
    note.task = task;
    note.text = (char *)text;
    msg.body_case = VG__MR__MSG__BODY_NOTE;
    msg.note = &note;
    vg_list_for_each (it, &p->m->links) {
        struct vg_mlink *l = vg_list_entry(it, struct vg_mlink, link);
        if (!l->closed && !l->broken && l->peer == p) {
            (void)vg_mlink_msg(l, &msg); /* words only */
            return;
        }
    }
}

static int make_apply(struct vg_mpeer *p) {
    struct vg_apply_conf conf = {
        .tree = p->m->tree, .node = p->node, .state = p->m->state, .note = note_to, .user = p};
    memcpy(conf.daemon, p->daemon, VG_MID);
    return vg_apply_new(&conf, &p->apply);
}

/* A node has one daemon a user: an earlier one of that node is dead, and what it was told nobody
   believes any more. Else every later run would say again that all of that is outdated. */
static void replaced(const struct vg_mpeer *by) {
    vg_list_for_each_safe (it, &by->m->peers) {
        struct vg_mpeer *p = vg_list_entry(it, struct vg_mpeer, link);
        if (p == by || !p->named || (!p->once && strcmp(p->node, by->node) != 0))
            continue;
        if (!p->links) {
            vg_mpeer_free(p); /* nobody is in the middle of using it, as when its last link left */
            continue;
        }
        if (p->once)
            continue;
        forget_folders(p); /* its end has not been heard of yet */
        forget_content(p);
        p->lost = 0;
    }
}

int vg_mpeer_name(struct vg_mlink *l, const Vg__Mr__NodeHello *h, bool *ret_known) {
    struct vg_mpeer *own = l->peer;
    if (!h->has_daemon || h->daemon.len != VG_MID || own->named)
        return -EPROTO;
    struct vg_mpeer *p = peer_of(l->m, h->daemon.data);
    *ret_known = p && !(h->has_fresh && h->fresh);
    if (p) {
        if (!*ret_known) {
            forget_folders(p);
            forget_content(p);
        }
        merge(p, own);
        p->lost = VG_MAX(p->lost, own->lost);
        p->links++;
        l->peer = p;
        vg_mpeer_free(own);
        return 0;
    }
    own->once = h->has_once && h->once;
    memcpy(own->daemon, h->daemon.data, VG_MID);
    const char *node = h->node ? h->node : "a node";
    own->node = vg_strndup(node, strnlen(node, 200));
    own->named = true;
    if (!own->node)
        return -ENOMEM;
    replaced(own);
    return make_apply(own);
}
