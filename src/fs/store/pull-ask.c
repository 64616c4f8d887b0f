/* What a puller asks for next: demands first, then folders, then content, within a window. */
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/pull-int.h"

#include <stdlib.h>
#include <sys/stat.h>

#define DIRS_MAX 512          /* questions for records and attributes under way */
#define BYTES_MAX (32u << 20) /* content under way */
#define PIECE (16u << 20)     /* of one question */
#define OUT_MAX (4u << 20)    /* questions not sent yet */

static struct vg_ask *ask_new(struct vg_pull *p, struct vg_fnode *n, int kind, uint64_t bytes,
                              Vg__Mr__Get *get) {
    struct vg_ask *a = vg_alloc(sizeof(*a));
    if (!a)
        return NULL;
    a->object = n->object;
    a->left = bytes;
    a->kind = kind;
    *get = (Vg__Mr__Get)VG__MR__GET__INIT;
    get->has_req = get->has_object = get->has_urgency = true;
    get->req = ++p->last_req;
    get->object = n->up;
    get->urgency = 1;
    if (vg_map_put_u64(&p->asks, get->req, a) < 0) {
        free(a);
        return NULL;
    }
    p->asked_bytes += bytes;
    p->asked_other += kind != VG_ASK_DATA;
    return a;
}

static int send_get(struct vg_pull *p, Vg__Mr__Get *get) {
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    m.body_case = VG__MR__MSG__BODY_GET;
    m.get = get;
    return vg_mw_msg(&p->out, &m);
}

static int ask_folder(struct vg_pull *p, struct vg_fnode *n, bool urgent) {
    Vg__Mr__Get get;
    if (!ask_new(p, n, VG_ASK_DIR, 0, &get))
        return -ENOMEM;
    get.urgency = !urgent;
    n->state = VG_F_ASKED;
    return send_get(p, &get);
}

static int ask_attrs(struct vg_pull *p, struct vg_fnode *n) {
    Vg__Mr__Get get;
    if (!ask_new(p, n, VG_ASK_XATTR, 0, &get))
        return -ENOMEM;
    get.has_xattrs = get.xattrs = true;
    return send_get(p, &get);
}

static int send_range(struct vg_pull *p, Vg__Mr__Get *get, uint64_t off, uint64_t len) {
    Vg__Mr__Range range = VG__MR__RANGE__INIT, *ranges[] = {&range};
    range.has_offset = range.has_length = true;
    range.offset = off;
    range.length = len;
    get->n_range = 1;
    get->range = ranges;
    return send_get(p, get);
}

static int ask_range(struct vg_pull *p, struct vg_fnode *n, uint64_t off, uint64_t len,
                     bool urgent) {
    Vg__Mr__Get get;
    if (!ask_new(p, n, VG_ASK_DATA, len, &get))
        return -ENOMEM;
    get.urgency = !urgent;
    return send_range(p, &get, off, len);
}

static int ask_sent(struct vg_pull *p, const struct vg_fnode *n, uint64_t req, uint64_t off,
                    uint64_t len) {
    Vg__Mr__Get get = VG__MR__GET__INIT;
    get.has_req = get.has_object = get.has_again = get.again = true;
    get.req = req;
    get.object = n->up;
    return send_range(p, &get, off, len);
}

int vg_pull_ask_again(struct vg_pull *p, struct vg_fnode *n) {
    Vg__Mr__Get get;
    if (!ask_new(p, n->parent, VG_ASK_DIR, 0, &get))
        return -ENOMEM;
    return send_get(p, &get);
}

void vg_pull_ask_over(struct vg_pull *p, uint64_t req, struct vg_ask *a) {
    vg_map_del_u64(&p->asks, req);
    p->asked_bytes -= a->left;
    p->asked_other -= a->kind != VG_ASK_DATA;
    free(a);
}

int vg_pull_sent(struct vg_pull *p, const Vg__Mr__Sent *m) {
    struct vg_ask *a = m->req ? vg_map_get_u64(&p->asks, m->req) : NULL;
    struct vg_fnode *n = a ? vg_map_get_u64(&p->t->by_object, a->object) : NULL;
    if (!n || a->kind != VG_ASK_DATA || m->length > VG_LEAF || m->offset >= n->st.size)
        return 0;
    uint64_t len = VG_MIN(n->st.size - m->offset, (uint64_t)VG_LEAF);
    bool here = n->state == VG_F_HERE || (n->into && vg_einto_has(n->into, m->offset / VG_LEAF));
    if (!here && n->state != VG_F_NEVER)
        return ask_sent(p, n, m->req, m->offset, len);
    len = VG_MIN(len, a->left);
    a->left -= len;
    p->asked_bytes -= len;
    if (a->left == 0)
        vg_pull_ask_over(p, m->req, a);
    return 0;
}

/* The next piece of a wanted file. 1: nothing more to ask for it. */
static int ask_file(struct vg_pull *p, struct vg_fnode *n) {
    if (n->st.size == 0) /* it shrank meanwhile */
        return vg_pull_content(p, n, 0, 0, "", 0);
    while (n->into && n->asked < n->st.size && vg_einto_has(n->into, n->asked / VG_LEAF))
        n->asked += VG_LEAF;
    if (n->asked >= n->st.size) {
        vg_list_remove(&n->todo); /* all of it is here or under way */
        n->state = VG_F_ASKED;
        return 0;
    }
    uint64_t len = VG_MIN(n->st.size - n->asked, (uint64_t)PIECE);
    int r = ask_range(p, n, n->asked, len, false);
    n->asked += len;
    return r;
}

/* What programs wait for goes before everything else. */
static int ask_demands(struct vg_pull *p) {
    int r = 0;
    for (struct vg_demand *d = p->demands; r == 0 && d; d = d->next) {
        struct vg_fnode *n = d->sent ? NULL : vg_map_get_u64(&p->t->by_object, d->object);
        d->sent = true;
        if (!n || n->state == VG_F_HERE || n->state == VG_F_NEVER)
            continue;
        bool asked = n->state == VG_F_ASKED;
        vg_pull_want(p, n);
        if (S_ISDIR(n->st.mode)) {
            vg_list_remove(&n->todo);
            r = asked ? 0 : ask_folder(p, n, true);
        } else {
            r = ask_range(p, n, d->off, d->len, true);
        }
    }
    return r;
}

int vg_pull_ask(struct vg_pull *p) {
    int r = ask_demands(p);
    struct vg_list *it;
    while (r == 0 && p->asked_other < DIRS_MAX && (it = vg_list_first(&p->dirs))) {
        vg_list_remove(it);
        r = ask_folder(p, vg_list_entry(it, struct vg_fnode, todo), false);
    }
    while (r == 0 && p->asked_other < DIRS_MAX && (it = vg_list_first(&p->attrs))) {
        vg_list_remove(it);
        r = ask_attrs(p, vg_list_entry(it, struct vg_fnode, attr));
    }
    while (r == 0 && p->asked_bytes < BYTES_MAX && vg_buf_len(&p->out) < OUT_MAX &&
           (it = vg_list_first(&p->files)))
        r = ask_file(p, vg_list_entry(it, struct vg_fnode, todo));
    return r;
}
