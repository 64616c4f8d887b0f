/* Lists of tasks in pages, newest first, and watching. Tasks that have not ended are in memory, the
   others in the store; whoever asks sees one list. What is folded under a group or parent is not
   shown by itself unless it is asked for. A page costs one pass over memory, whatever its size, and
   a bounded part of the store: what would take longer is searched by another thread
   (task-search.h), and the list is made when that has found its ids. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/events.h"
#include "control/persist.h"
#include "control/task-search.h"
#include "control/users.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define LIST_MAX 1000

/* ------------------------------------------------------------------ the question */

static bool state_wanted(const Vg__Pb__TaskQuery *q, const char *state) {
    for (size_t i = 0; i < q->n_state; i++)
        if (strcmp(q->state[i], state) == 0)
            return true;
    return q->n_state == 0;
}

static bool labels_wanted(const Vg__Pb__TaskQuery *q, const struct vg_task *t) {
    for (size_t i = 0; i < q->n_label; i++) {
        bool has = false;
        for (size_t k = 0; k < t->spec->n_label; k++)
            has |= strcmp(t->spec->label[k], q->label[i]) == 0;
        if (!has)
            return false;
    }
    return true;
}

static bool id_wanted(const Vg__Pb__TaskQuery *q, const struct vg_task *t) {
    char id[VG_ID_LEN + 1];
    vg_id_format(t->id, id);
    for (size_t i = 0; i < q->n_task; i++)
        if (strncmp(id, q->task[i], strlen(q->task[i])) == 0 ||
            strcmp(vg_task_name(t), q->task[i]) == 0)
            return true;
    return q->n_task == 0;
}

static bool has_word(const char *text, size_t n, const char *word) {
    size_t len = strlen(word);
    for (size_t i = 0; i + len <= n; i++)
        if (strncasecmp(text + i, word, len) == 0)
            return true;
    return false;
}

static bool search_wanted(const Vg__Pb__TaskQuery *q, const struct vg_task *t) {
    const Vg__Pb__TaskSpec *s = t->spec;
    const char *name = vg_task_name(t);
    if (!q->search || !*q->search || has_word(name, strlen(name), q->search))
        return true;
    for (size_t i = 0; i < s->n_argv; i++)
        if (has_word((const char *)s->argv[i].data, s->argv[i].len, q->search))
            return true;
    for (size_t i = 0; i < s->n_label; i++)
        if (has_word(s->label[i], strlen(s->label[i]), q->search))
            return true;
    return false;
}

int vg_query_init(struct vg_query *ret, struct vg_control *c, const struct vg_user *u,
                  const Vg__Pb__TaskQuery *q, struct vg_err *err) {
    struct vg_found f;
    *ret = (struct vg_query){.q = q, .user = u};
    if (q->n_state > VG_TASK_FILTER_MAX || q->n_label > VG_TASK_FILTER_MAX)
        return vg_err_set(err, VG_TOO_BIG, "at most %d states and labels can be asked for at once",
                          VG_TASK_FILTER_MAX);
    if (!q->of || !*q->of)
        return 0;
    int r = vg_find_task(c, u, q->of, &f, err);
    if (r < 0)
        return r;
    ret->of = vg_found_task(&f)->id;
    vg_found_done(&f);
    return 0;
}

bool vg_query_wants(const struct vg_query *query, const struct vg_task *t) {
    const Vg__Pb__TaskQuery *q = query->q;
    uint64_t fold = vg_task_fold(t);
    if (query->of ? fold != query->of : fold && !q->flat && !q->n_task)
        return false;
    if (!vg_users_may_see(query->user, t->user, t->team))
        return false;
    if (!q->all_users && strcmp(t->user, query->user->name) != 0)
        return false;
    if (q->pool && *q->pool && strcmp(q->pool, vg_task_pool(t)) != 0)
        return false;
    if (q->name && *q->name && strcmp(q->name, vg_task_name(t)) != 0)
        return false;
    return t->created_usec >= q->since_usec && state_wanted(q, vg_task_state_name(t->state)) &&
           labels_wanted(q, t) && id_wanted(q, t) && search_wanted(q, t);
}

/* ------------------------------------------------------------------ a page */

/* The newest `want` of what was offered: a heap with the oldest of them on top. */
struct page {
    const struct vg_task **task;
    size_t n, want;
    uint64_t offered;
};

struct listing {
    struct vg_control *ctl;
    struct vg_query query;
    struct vg_row_tasks rows;
    struct vg_task **owned; /* from the store */
    size_t n_owned;
    struct page page;
    uint64_t before_usec, before_id;
    uint64_t twice;                 /* counted in memory, although the store has the end already */
    const struct vg_search *search; /* borrowed; NULL: the store has not been searched yet */
    uint64_t *memory;               /* owned: ids of the page's tasks that are in memory */
    size_t n_memory;
};

static bool newer(const struct vg_task *a, uint64_t usec, uint64_t id) {
    return a->created_usec > usec || (a->created_usec == usec && a->id >= id);
}

static int by_age(const void *a, const void *b) {
    const struct vg_task *x = *(const struct vg_task *const *)a;
    const struct vg_task *y = *(const struct vg_task *const *)b;
    if (x->created_usec != y->created_usec)
        return x->created_usec > y->created_usec ? -1 : 1;
    return x->id > y->id ? -1 : x->id < y->id;
}

static bool older(const struct page *p, size_t a, size_t b) {
    return by_age(&p->task[a], &p->task[b]) > 0;
}

static void swap(struct page *p, size_t a, size_t b) {
    const struct vg_task *t = p->task[a];
    p->task[a] = p->task[b];
    p->task[b] = t;
}

static void sink(struct page *p) {
    for (size_t at = 0, kid; (kid = 2 * at + 1) < p->n; at = kid) {
        if (kid + 1 < p->n && older(p, kid + 1, kid))
            kid++;
        if (!older(p, kid, at))
            return;
        swap(p, at, kid);
    }
}

static void offer(struct page *p, const struct vg_task *t) {
    p->offered++;
    if (p->n == p->want) {
        if (by_age(&t, &p->task[0]) > 0)
            return;
        p->task[0] = t;
        sink(p);
        return;
    }
    p->task[p->n] = t;
    for (size_t at = p->n++; at && older(p, at, (at - 1) / 2); at = (at - 1) / 2)
        swap(p, at, (at - 1) / 2);
}

static int add_row(void *arg, const struct vg_task_row *row) {
    struct listing *l = arg;
    struct vg_task *t = NULL;
    if (vg_job_get(l->ctl, row->id)) /* memory has the newer word */
        return 0;
    int r = vg_row_tasks_get(&l->rows, row, &t);
    if (r < 0)
        return r == -EBADMSG ? 0 : r;
    if (!vg_query_wants(&l->query, t) || l->n_owned >= 2 * l->page.want) {
        vg_task_free(t);
        return 0;
    }
    l->owned[l->n_owned++] = t;
    offer(&l->page, t);
    return 0;
}

static struct vg_task_filter filter_of(const struct listing *l) {
    const Vg__Pb__TaskQuery *q = l->query.q;
    const struct vg_user *u = l->query.user;
    bool all = q->all_users && vg_user_may(u, VG_ACT_SEE_ALL);
    bool team = q->all_users && vg_users_may_see(u, "", u->team->name);
    struct vg_task_filter f = {.user = all ? NULL : u->name,
                               .or_team = team ? u->team->name : NULL,
                               .pool = q->pool && *q->pool ? q->pool : NULL,
                               .name = q->name && *q->name ? q->name : NULL,
                               .state = (const char *const *)q->state,
                               .n_states = q->n_state,
                               .label = (const char *const *)q->label,
                               .n_labels = q->n_label,
                               .before_usec = l->before_usec,
                               .before_id = l->before_id,
                               .limit = (uint32_t)l->page.want,
                               .only_ended = true,
                               .top = !q->flat && !l->query.of && !q->n_task,
                               .fold = l->query.of,
                               .search = q->search && *q->search ? q->search : NULL,
                               .since_usec = q->since_usec,
                               .steps = l->ctl->list_steps};
    /* Of an ended group every member may be in the store, with the group's words: they match as it
       does, so they are looked through here. */
    if (l->query.of)
        f.search = NULL;
    return f;
}

/* What a search found, and what left memory for the store while it went on. */
static int add_found(struct listing *l, const struct vg_search *s) {
    int r = 0;
    for (size_t i = 0; i < s->n && r >= 0; i++) {
        r = vg_store_get_task(l->ctl->store, s->id[i], add_row, l);
        r = r == -ENOENT ? 0 : r; /* removed meanwhile */
    }
    return r;
}

/* -ECANCELED: it would take too long here. */
static int add_stored(struct listing *l) {
    struct vg_task_filter f = filter_of(l);
    uint64_t memory = l->page.offered - l->twice, stored = 0;
    bool counts = !f.search && !f.n_labels;
    int r =
        l->search ? add_found(l, l->search) : vg_store_query_tasks(l->ctl->store, &f, add_row, l);
    if (!f.n_states && !f.pool && !f.name)
        f.steps *= 4; /* rows that are only counted cost little */
    if (r >= 0 && counts && !l->search)
        r = vg_store_count_tasks(l->ctl->store, &f, &stored);
    if (r >= 0 && counts)
        l->page.offered = VG_MAX(l->page.offered, memory + (l->search ? l->search->count : stored));
    return r;
}

/* Between the commit of its end and our hearing of it a task is in both places; one whose children
   still count stays in both. */
static bool is_stored_too(const struct listing *l, const struct vg_task *t) {
    return vg_task_is_ended(t) && vg_store_has_end(l->ctl->store, t->id) > 0;
}

/* Where a page begins: ID.WHEN in hex, as `next` says it, so that it holds when that task is gone;
   or a task. */
static int read_before(struct listing *l, struct vg_err *err) {
    const char *before = l->query.q->before;
    char id[VG_ID_LEN + 1] = "", *end;
    struct vg_found f;
    if (!before || !*before)
        return 0;
    if (strcspn(before, ".") == VG_ID_LEN && before[VG_ID_LEN]) {
        memcpy(id, before, VG_ID_LEN);
        l->before_usec = strtoull(before + VG_ID_LEN + 1, &end, 16);
        if (!*end && isxdigit((unsigned char)before[VG_ID_LEN + 1]) &&
            vg_id_parse(id, &l->before_id) >= 0 && l->before_usec <= INT64_MAX)
            return 0;
    }
    int r = vg_find_task(l->ctl, l->query.user, before, &f, err);
    if (r < 0)
        return r;
    l->before_usec = vg_found_task(&f)->created_usec;
    l->before_id = vg_found_task(&f)->id;
    vg_found_done(&f);
    return 0;
}

static void note_memory(struct listing *l) {
    for (size_t i = 0; i < l->page.n; i++)
        l->memory[l->n_memory++] = l->page.task[i]->id;
}

static int collect(struct listing *l, struct vg_err *err) {
    int r = read_before(l, err);
    if (r < 0)
        return r;
    vg_map_for_each (s, &l->ctl->jobs) {
        const struct vg_task *t = ((struct vg_job *)s->value)->task;
        if (!vg_query_wants(&l->query, t))
            continue;
        l->twice += is_stored_too(l, t);
        if (l->before_usec && newer(t, l->before_usec, l->before_id))
            l->page.offered++; /* counts, but was shown */
        else
            offer(&l->page, t);
    }
    note_memory(l);
    r = add_stored(l);
    if (r == -ECANCELED && !l->search)
        return r;
    if (r < 0)
        return vg_err_sys(err, r, "cannot read the list of tasks");
    if (l->page.n)
        qsort(l->page.task, l->page.n, sizeof *l->page.task, by_age);
    return 0;
}

static void send_list(struct vg_peer *p, uint32_t req, const struct listing *l) {
    size_t limit = l->page.want - 1, n = VG_MIN(l->page.n, limit);
    char id[VG_ID_LEN + 1], next[VG_ID_LEN + 20];
    vg_auto_free struct vg_task_info *info = vg_alloc((n + 1) * sizeof *info);
    vg_auto_free Vg__Pb__TaskInfo **list = vg_alloc((n + 1) * sizeof *list);
    vg_auto_free char(*why)[256] = vg_alloc((n + 1) * sizeof *why);
    if (!info || !list || !why) {
        vg_peer_error(p, req, VG_INTERNAL, "out of memory");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        vg_task_info(l->ctl, l->page.task[i], &info[i]);
        vg_task_info_wait(l->ctl, l->page.task[i], &info[i], why[i], sizeof why[i]);
        list[i] = &info[i].pb;
    }
    VG_ENVELOPE(env);
    Vg__Pb__TaskList m = VG__PB__TASK_LIST__INIT;
    m.task = list;
    m.n_task = n;
    m.has_total = 1;
    m.total = l->page.offered;
    if (l->page.n > limit && n) {
        vg_id_format(l->page.task[n - 1]->id, id);
        snprintf(next, sizeof next, "%s.%llx", id,
                 (unsigned long long)l->page.task[n - 1]->created_usec);
        m.next = next;
    }
    env.body_case = B(TASKS);
    env.tasks = &m;
    vg_peer_send(p, req, false, &env);
}

static void listing_done(struct listing *l) {
    for (size_t i = 0; i < l->n_owned; i++)
        vg_task_free(l->owned[i]);
    vg_row_tasks_done(&l->rows);
    free(l->owned);
    free(l->memory);
    free(l->page.task);
}

/* -ECANCELED: it is to be searched for. */
static int make_list(struct listing *l, const struct vg_user *u, const Vg__Pb__TaskQuery *q,
                     struct vg_err *err) {
    size_t limit = q->limit && q->limit < LIST_MAX ? q->limit : q->limit ? LIST_MAX : VG_TASK_PAGE;
    l->page.want = limit + 1; /* one more says whether there is a next page */
    l->owned = vg_alloc(2 * l->page.want * sizeof *l->owned);
    l->memory = vg_alloc(l->page.want * sizeof *l->memory);
    l->page.task = vg_alloc(l->page.want * sizeof *l->page.task);
    if (!l->owned || !l->memory || !l->page.task)
        return vg_err_sys(err, ENOMEM, "cannot list tasks");
    int r = vg_query_init(&l->query, l->ctl, u, q, err);
    if (r < 0)
        return r;
    vg_store_hold_still(l->ctl->store);
    r = collect(l, err);
    vg_store_move_on(l->ctl->store);
    return r;
}

static void searched(struct vg_peer *p, uint32_t req, const struct vg_search *s) {
    struct vg_err err = VG_ERR_INIT;
    struct listing l = {.ctl = p->ctl, .rows.ctl = p->ctl, .search = s};
    const struct vg_user *u = vg_peer_user(p, &err);
    if (!u || make_list(&l, u, s->q, &err) < 0)
        vg_peer_fail(p, req, &err);
    else
        send_list(p, req, &l);
    listing_done(&l);
}

void vg_api_task_list(struct vg_call *call) {
    struct vg_err err = VG_ERR_INIT;
    struct listing l = {.ctl = call->ctl, .rows.ctl = call->ctl};
    int r = make_list(&l, call->user, call->env->task_list, &err);
    if (r == -ECANCELED && !err.reason) {
        struct vg_task_filter f = filter_of(&l);
        r = vg_search_start(call, &f, l.memory, l.n_memory, searched, &err);
    } else if (r >= 0) {
        send_list(call->peer, call->req, &l);
    }
    if (r < 0)
        vg_peer_fail(call->peer, call->req, &err);
    listing_done(&l);
}

/* ------------------------------------------------------------------ watching */

struct watch {
    Vg__Pb__TaskQuery *q; /* owned */
    uint64_t of;
};

static void watch_free(void *data) {
    struct watch *w = data;
    vg__pb__task_query__free_unpacked(w->q, NULL);
    free(w);
}

static bool watched(const struct watch *w, const struct vg_user *u, const struct vg_task *t) {
    struct vg_query q = {.q = w->q, .user = u, .of = w->of};
    return vg_query_wants(&q, t);
}

void vg_api_task_watch(struct vg_call *call) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_query query;
    struct watch *w = NULL;
    if (vg_query_init(&query, call->ctl, call->user, call->env->task_watch, &err) < 0) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    struct vg_follow *f = vg_follow_new(call->peer, NULL, VG_FOLLOW_WATCH, call->req);
    if (f && !(w = vg_alloc(sizeof *w)))
        vg_follow_free(f);
    if (!f || !w) {
        vg_peer_error(call->peer, call->req, VG_TOO_BIG,
                      "too many requests wait on this connection: open another");
        return;
    }
    *w = (struct watch){vg_take_ptr(((Vg__Pb__Envelope *)call->env)->task_watch), query.of};
    f->data = w;
    f->free_data = watch_free;
    vg_map_for_each (s, &call->ctl->jobs) {
        const struct vg_task *t = ((struct vg_job *)s->value)->task;
        if (!vg_task_is_ended(t) && watched(w, call->user, t))
            vg_task_send(call->peer, call->req, true, t);
    }
}

void vg_watch_tell(struct vg_control *c, struct vg_task *t) {
    vg_list_for_each_safe (it, &c->watches) {
        struct vg_follow *f = vg_list_entry(it, struct vg_follow, on_job);
        struct vg_err err = VG_ERR_INIT;
        if (f->kind == VG_FOLLOW_EVENTS) { /* for all of its readers */
            vg_events_changed(c, t->id);
            continue;
        }
        const struct vg_user *u = vg_peer_user(f->peer, &err);
        if (!vg_peer_open(f->peer) || !u || !watched(f->data, u, t))
            continue;
        if (vg_peer_queued(f->peer) > VG_PEER_QUEUE_MAX) {
            vg_peer_cut(f->peer, VG_TOO_BIG, "the watcher does not read fast enough");
            continue;
        }
        vg_task_send(f->peer, f->req, true, t);
    }
}
