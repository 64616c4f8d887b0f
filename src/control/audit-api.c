/* `virga audit`: reading the log, and walking its chain. Both are done by a thread on a connection
   of its own: they may take as long as the log is, and the loop waits for nothing. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/persist.h"
#include "store/audit.h"

#include <stdio.h>
#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define PAGE 100
#define PAGE_MAX 1000

struct page {
    Vg__Pb__AuditEntry *entry[PAGE_MAX + 1]; /* owned */
    size_t n;
};

/* A request that waits until what was noted before it is written. */
struct asked {
    struct vg_control *ctl;
    uint64_t peer;
    uint32_t req;
    struct vg_audit_filter filter;
    char *user, *search; /* owned */
    bool verify, has_head;
    uint8_t head[VG_AUDIT_HASH];
    uv_work_t work;
    struct page *page; /* owned */
    int result;        /* of reading it */
    struct vg_audit_check check;
    struct vg_err err;
};

static void page_free(struct page *p) {
    for (size_t i = 0; p && i < p->n; i++)
        vg__pb__audit_entry__free_unpacked(p->entry[i], NULL);
    free(p);
}

static void asked_free(struct asked *a) {
    if (!a)
        return;
    page_free(a->page);
    free(a->user);
    free(a->search);
    free(a);
}

/* ------------------------------------------------------------------ a page */

static int take_row(void *arg, const struct vg_audit_row *row) {
    struct page *p = arg;
    Vg__Pb__AuditEntry *e = vg_alloc(sizeof *e);
    if (!e)
        return -ENOMEM;
    vg__pb__audit_entry__init(e);
    p->entry[p->n++] = e;
    e->has_seq = e->has_when_usec = e->has_hash = 1;
    e->seq = row->seq;
    e->when_usec = row->when_usec;
    e->who = vg_strdup(row->who);
    e->what = vg_strdup(row->what);
    e->from = vg_strdup(row->from);
    e->hash.data = vg_memdup(row->hash.data, row->hash.len);
    e->hash.len = e->hash.data ? row->hash.len : 0;
    return e->who && e->what && e->from && p->n <= PAGE_MAX ? 0 : -ENOMEM;
}

static void send_list(struct vg_peer *p, uint32_t req, Vg__Pb__AuditList *m) {
    VG_ENVELOPE(env);
    env.body_case = B(AUDITS);
    env.audits = m;
    vg_peer_send(p, req, false, &env);
}

/* One entry more than was asked for tells that there is another page. */
static void read_page(uv_work_t *w) {
    struct asked *a = w->data;
    struct vg_audit_filter f = a->filter;
    f.limit++;
    a->result = vg_audit_scan(a->ctl->home.db, &f, take_row, a->page);
}

static void answer_page(struct asked *a, struct vg_peer *p) {
    const struct page *page = a->page;
    uint32_t want = a->filter.limit;
    Vg__Pb__AuditList m = VG__PB__AUDIT_LIST__INIT;
    if (a->result < 0) {
        vg_peer_error(p, a->req, VG_INTERNAL, "the audit log cannot be read: %s",
                      strerror(-a->result));
        return;
    }
    m.entry = (Vg__Pb__AuditEntry **)page->entry;
    m.n_entry = VG_MIN(page->n, (size_t)want);
    m.has_next = page->n > want;
    m.next = m.has_next ? page->entry[want - 1]->seq : 0;
    send_list(p, a->req, &m);
}

static void page_read(uv_work_t *w, int status) {
    struct asked *a = w->data;
    struct vg_peer *p = a->ctl->stopping || status < 0 ? NULL : vg_peer_find(a->ctl, a->peer);
    if (p)
        answer_page(a, p);
    asked_free(a);
}

/* ------------------------------------------------------------------ the walk */

static void walk(uv_work_t *w) {
    struct asked *a = w->data;
    vg_audit_check(a->ctl->home.db, a->has_head ? a->head : NULL, &a->check, &a->err);
}

static const char *verdict(const struct asked *a, char *out, size_t n) {
    const struct vg_audit_check *c = &a->check;
    unsigned long long at = c->broken;
    if (c->gap)
        snprintf(out, n,
                 "entry %llu stands where entry %llu should: what was between them was removed, or "
                 "it was put there",
                 at, (unsigned long long)c->entries);
    else if (c->broken)
        snprintf(out, n, "entry %llu does not fit its hash: it, or the one before, was changed",
                 at);
    else if (a->has_head && !c->head_found)
        snprintf(out, n,
                 "no entry has the hash that was noted: the end of the log was cut off, or the "
                 "whole was written anew");
    else
        return NULL;
    return out;
}

static void answer_walk(struct asked *a, struct vg_peer *p) {
    char text[256];
    struct page *page = vg_alloc(sizeof *page);
    Vg__Pb__AuditList m = VG__PB__AUDIT_LIST__INIT;
    struct vg_audit_filter one = {.after = a->check.broken - 1, .limit = 1};
    if (page && a->check.broken > 1 &&
        vg_store_load_audit(a->ctl->store, &one, take_row, page) == 0) {
        m.entry = page->entry;
        m.n_entry = page->n;
    }
    m.has_checked = 1;
    m.checked = a->check.entries;
    m.broken = (char *)verdict(a, text, sizeof text);
    m.has_head = a->check.entries > 0;
    m.head = (ProtobufCBinaryData){.data = a->check.head, .len = VG_AUDIT_HASH};
    send_list(p, a->req, &m);
    page_free(page);
}

static void walked(uv_work_t *w, int status) {
    struct asked *a = w->data;
    struct vg_control *c = a->ctl;
    c->verifying = false;
    struct vg_peer *p = c->stopping || status < 0 ? NULL : vg_peer_find(c, a->peer);
    if (p && a->err.reason)
        vg_peer_fail(p, a->req, &a->err);
    else if (p)
        answer_walk(a, p);
    asked_free(a);
}

/* ------------------------------------------------------------------ requests */

static void on_written(void *arg, int result) {
    struct asked *a = arg;
    struct vg_peer *p = a->ctl->stopping ? NULL : vg_peer_find(a->ctl, a->peer);
    (void)result; /* what could not be written is retried; the log is read as it is */
    if (!p) {
        asked_free(a);
        return;
    }
    a->work.data = a;
    if (!a->verify) {
        a->page = vg_alloc(sizeof *a->page);
        if (!a->page || uv_queue_work(a->ctl->loop, &a->work, read_page, page_read) < 0) {
            vg_peer_error(p, a->req, VG_INTERNAL, "the audit log cannot be read now: try again");
            asked_free(a);
        }
        return;
    }
    if (a->ctl->verifying || uv_queue_work(a->ctl->loop, &a->work, walk, walked) < 0) {
        vg_peer_error(p, a->req, VG_NO_CAPACITY,
                      "the log is being verified already: try again in a moment");
        asked_free(a);
        return;
    }
    a->ctl->verifying = true;
}

static int read_query(const Vg__Pb__AuditQuery *m, struct asked *a, struct vg_err *err) {
    a->user = vg_strdup(m->user);
    a->search = vg_strdup(m->search);
    if ((m->user && !a->user) || (m->search && !a->search))
        return vg_err_sys(err, -ENOMEM, "cannot read the audit log");
    if (m->has_head && m->head.len != VG_AUDIT_HASH)
        return vg_err_set(err, VG_INVALID,
                          "a hash of the audit log has 64 hex digits, as 'virga audit verify' "
                          "prints it");
    if (m->has_head)
        memcpy(a->head, m->head.data, VG_AUDIT_HASH);
    a->has_head = m->has_head;
    a->verify = m->verify;
    a->filter = (struct vg_audit_filter){.before = m->before,
                                         .after = m->after,
                                         .limit = VG_MIN(m->limit ? m->limit : PAGE, PAGE_MAX),
                                         .user = a->user,
                                         .search = a->search,
                                         .since_usec = m->since_usec};
    return 0;
}

void vg_api_audit_list(struct vg_call *call) {
    struct vg_err err = VG_ERR_INIT;
    struct asked *a = vg_alloc(sizeof *a);
    int r = a ? read_query(call->env->audit_list, a, &err)
              : vg_err_sys(&err, -ENOMEM, "cannot read the audit log");
    if (r >= 0) {
        a->ctl = call->ctl;
        a->peer = call->peer->serial;
        a->req = call->req;
        vg_persist_flush(call->ctl); /* tasks are noted with their rows, which are written behind */
        r = vg_store_then(call->ctl->store, on_written, a);
        if (r < 0)
            vg_err_sys(&err, r, "cannot read the audit log");
    }
    if (r < 0) {
        asked_free(a);
        vg_peer_fail(call->peer, call->req, &err);
    }
}
