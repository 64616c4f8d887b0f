/* What two daemons say to each other: asks, what is had of them, contents. Everything from the
   other side is bounded; a content counts only as a whole and under the id that was asked for. */
#include "fs/node/peer-int.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------ asking */

int vg_peer_send_ask(struct peer *e, const struct peer_ask *a) {
    vg_auto_free Vg__Mr__PeerFile *file = vg_alloc(a->n * sizeof *file);
    vg_auto_free Vg__Mr__PeerFile **list = vg_alloc(a->n * sizeof *list);
    Vg__Mr__PeerAsk ask = VG__MR__PEER_ASK__INIT;
    Vg__Mr__Msg msg = VG__MR__MSG__INIT;
    if (!file || !list)
        return -ENOMEM;
    for (size_t i = 0; i < a->n; i++) {
        vg__mr__peer_file__init(&file[i]);
        file[i].has_id = file[i].has_size = 1;
        file[i].id = (ProtobufCBinaryData){.data = (uint8_t *)a->file[i].id, .len = VG_HASH};
        file[i].size = a->file[i].size;
        list[i] = &file[i];
    }
    ask.has_ask = 1;
    ask.ask = a->number;
    ask.file = list;
    ask.n_file = a->n;
    msg.body_case = VG__MR__MSG__BODY_PEER_ASK;
    msg.peer_ask = &ask;
    return vg_mw_msg(&e->out, &msg);
}

static struct peer_ask *ask_of(struct peer *e, uint64_t number) {
    vg_list_for_each (it, &e->asks) {
        struct peer_ask *a = vg_list_entry(it, struct peer_ask, link);
        if (a->number == number)
            return a;
    }
    return NULL;
}

/* Lock held. */
static void ask_over(struct peer *e, struct peer_ask *a) {
    if (e->taking == a)
        e->taking = NULL;
    vg_list_remove(&a->link);
    e->n_asks--;
    free(a);
}

static int on_have(struct peer *e, const Vg__Mr__PeerHave *m) {
    struct vg_peers *p = e->peers;
    vg_auto_free uint64_t *object = vg_alloc(VG_MAX(m->n_index, (size_t)1) * sizeof *object);
    int r = object ? 0 : -ENOMEM;
    pthread_mutex_lock(&p->lock);
    struct peer_ask *a = ask_of(e, m->ask);
    if (!a || a->answered || m->n_index > a->n)
        r = r < 0 ? r : -EBADMSG;
    for (size_t i = 0; r == 0 && i < m->n_index; i++) {
        if (m->index[i] >= a->n)
            r = -EBADMSG;
        else
            object[i] = a->file[m->index[i]].object;
    }
    if (r == 0) {
        a->answered = true;
        a->left = m->n_index;
        if (a->have && a->left)
            a->have(a->user, object, a->left);
        if (!a->left)
            ask_over(e, a);
    }
    pthread_mutex_unlock(&p->lock);
    return r;
}

/* Which content begins: 0, or -EBADMSG when it was not asked for. Lock held. */
static int begin(struct peer *e, const struct vg_mw_frame *f, struct vg_peer_file *ret) {
    struct peer_ask *a = ask_of(e, f->req);
    if (!a || !a->answered || !a->left || f->object >= a->n || f->offset ||
        f->size != a->file[f->object].size)
        return -EBADMSG;
    e->taking = a;
    e->taking_index = (uint32_t)f->object;
    *ret = a->file[f->object];
    return 0;
}

/* The content is through, as it came or not. */
static void taken(struct peer *e) {
    vg_intake_free(vg_take_ptr(e->intake));
    pthread_mutex_lock(&e->peers->lock);
    if (e->taking && --e->taking->left == 0)
        ask_over(e, e->taking);
    e->taking = NULL;
    pthread_mutex_unlock(&e->peers->lock);
}

static int on_data(struct peer *e, const struct vg_mw_frame *f) {
    struct vg_peers *p = e->peers;
    struct vg_peer_file file;
    int r = 0;
    pthread_mutex_lock(&p->lock);
    bool same = e->taking && e->taking->number == f->req && e->taking_index == f->object;
    bool first = !same;
    if (first)
        r = e->taking ? -EBADMSG : begin(e, f, &file); /* one after the other */
    pthread_mutex_unlock(&p->lock);
    if (r < 0)
        return r;
    if (first && vg_intake_new(p->cache, file.id, file.size, &e->intake) < 0)
        e->intake = NULL; /* it is here by now, or there is no room: let it pass */
    bool last = f->offset + f->len >= f->size;
    r = e->intake ? vg_intake_write(e->intake, f->offset, f->data, f->len) : 0;
    if (r == -EINVAL || r == -EBADMSG)
        return -EBADMSG;
    if (r < 0)
        vg_intake_free(vg_take_ptr(e->intake));
    if (r == 1) {
        atomic_fetch_add(&p->files, 1);
        atomic_fetch_add(&p->bytes, f->size);
    }
    if (last)
        taken(e);
    return 0;
}

/* ------------------------------------------------------------------ answering */

static int say_have(struct peer *e, uint64_t ask, uint32_t *index, size_t n) {
    Vg__Mr__PeerHave have = VG__MR__PEER_HAVE__INIT;
    Vg__Mr__Msg msg = VG__MR__MSG__INIT;
    have.has_ask = 1;
    have.ask = ask;
    have.index = index;
    have.n_index = n;
    msg.body_case = VG__MR__MSG__BODY_PEER_HAVE;
    msg.peer_have = &have;
    return vg_mw_msg(&e->out, &msg);
}

static int on_ask(struct peer *e, const Vg__Mr__PeerAsk *m) {
    if (m->n_file > VG_PEER_FILES || e->n_serves == PEER_SERVES)
        return -EBADMSG;
    struct peer_serve *s = vg_alloc(sizeof *s + m->n_file * sizeof s->file[0]);
    vg_auto_free uint32_t *index = vg_alloc(VG_MAX(m->n_file, (size_t)1) * sizeof *index);
    if (!s || !index) {
        free(s);
        return -ENOMEM;
    }
    s->ask = m->ask;
    for (uint32_t i = 0; i < m->n_file; i++) {
        const Vg__Mr__PeerFile *f = m->file[i];
        if (f->id.len != VG_HASH || !f->has_size) {
            free(s);
            return -EBADMSG;
        }
        int fd = f->size > VG_PEER_FILE_MAX
                     ? -1
                     : vg_cache_open_id(e->peers->cache, f->id.data, f->size);
        if (fd < 0)
            continue;
        close(fd);
        index[s->n] = s->file[s->n].index = i;
        s->file[s->n].size = f->size;
        memcpy(s->file[s->n++].id, f->id.data, VG_HASH);
    }
    vg_list_push_back(&e->serves, &s->link);
    e->n_serves++;
    return say_have(e, s->ask, index, s->n);
}

static void served(struct peer *e, struct peer_serve *s) {
    vg_list_remove(&s->link);
    e->n_serves--;
    free(s);
}

/* One leaf of the first file that waits. A file that vanished meanwhile ends the link: the other
   side counts on what was announced, and asks its client for the rest. */
static int serve_leaf(struct peer *e, struct peer_serve *s) {
    static _Thread_local uint8_t leaf[VG_LEAF];
    uint64_t size = s->file[s->at].size;
    if (e->serving < 0) {
        e->serving = vg_cache_open_id(e->peers->cache, s->file[s->at].id, size);
        e->serving_off = 0;
        if (e->serving < 0)
            return e->serving;
    }
    size_t n = (size_t)VG_MIN(size - e->serving_off, (uint64_t)VG_LEAF);
    ssize_t k = n ? pread(e->serving, leaf, n, (off_t)e->serving_off) : 0;
    if (k != (ssize_t)n)
        return k < 0 ? -errno : -EIO;
    int r = vg_mw_data(&e->out, s->ask, s->file[s->at].index, e->serving_off, size, leaf, n, 0);
    if (r < 0)
        return r;
    e->serving_off += n;
    atomic_fetch_add(&e->peers->served_bytes, n);
    if (e->serving_off == size) {
        vg_close(&e->serving);
        s->at++;
    }
    return 0;
}

int vg_peer_serve(struct peer *e) {
    while (!vg_list_empty(&e->serves) && vg_buf_len(&e->out) < PEER_OUT) {
        struct peer_serve *s = vg_list_entry(vg_list_first(&e->serves), struct peer_serve, link);
        if (s->at == s->n) {
            served(e, s);
            continue;
        }
        int r = serve_leaf(e, s);
        if (r < 0)
            return r;
    }
    return 0;
}

int vg_peer_frame(struct peer *e, const struct vg_mw_frame *f) {
    if (f->kind == VG_MW_DATA)
        return on_data(e, f);
    if (f->kind == VG_MW_MSG && f->msg->body_case == VG__MR__MSG__BODY_PEER_ASK)
        return on_ask(e, f->msg->peer_ask);
    if (f->kind == VG_MW_MSG && f->msg->body_case == VG__MR__MSG__BODY_PEER_HAVE)
        return on_have(e, f->msg->peer_have);
    return -EBADMSG;
}

void vg_peer_forget_all(struct peer *e) {
    vg_intake_free(vg_take_ptr(e->intake));
    vg_close(&e->serving);
    vg_list_for_each_safe (it, &e->serves)
        served(e, vg_list_entry(it, struct peer_serve, link));
    pthread_mutex_lock(&e->peers->lock);
    vg_list_for_each_safe (it, &e->asks)
        ask_over(e, vg_list_entry(it, struct peer_ask, link));
    vg_list_for_each_safe (it, &e->queue)
        ask_over(e, vg_list_entry(it, struct peer_ask, link));
    pthread_mutex_unlock(&e->peers->lock);
}
