/* Searches; see the header. What always holds:
   1. A search is in vg_control.searches from its start until its callback has run or it was
      dropped.
   2. The thread reads what the search owns and nothing else; `stop` alone is written meanwhile. */
#include "control/task-search.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/timer.h"

#include <stdlib.h>
#include <string.h>

struct search {
    struct vg_list link;
    struct vg_search pub;
    struct vg_control *ctl;
    uv_work_t work;
    bool running;
    atomic_bool stop;
    struct vg_timer *late;
    bool was_late;
    uint64_t peer; /* serial */
    uint32_t req;
    vg_search_fn *fn;
    Vg__Pb__TaskQuery *q;                                            /* owned */
    char *path;                                                      /* owned */
    char user[VG_TENANT_NAME_MAX + 1], team[VG_TENANT_NAME_MAX + 1]; /* the filter's */
    char by[VG_TENANT_NAME_MAX + 1];                                 /* who asked */
    struct vg_task_filter f;                                         /* borrows from the above */
    size_t n_memory, n_found;
    int result;
};

static void go_on(struct vg_control *c);

static void search_free(struct search *s) {
    vg_timer_stop(&s->late);
    vg_list_remove(&s->link);
    if (s->q)
        vg__pb__task_query__free_unpacked(s->q, NULL);
    free(s->pub.id);
    free(s->path);
    free(s);
}

/* ------------------------------------------------------------------ the other thread */

static void look(uv_work_t *w) {
    struct search *s = w->data;
    bool counts = !s->f.search && !s->f.n_labels;
    s->result = vg_store_scan_tasks(s->path, &s->f, &s->stop, s->pub.id + s->n_memory, &s->n_found,
                                    counts ? &s->pub.count : NULL);
}

/* ------------------------------------------------------------------ the loop */

static int by_id(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Each id once. */
static void settle(struct search *s) {
    size_t n = s->n_memory + s->n_found, kept = 0;
    if (n)
        qsort(s->pub.id, n, sizeof *s->pub.id, by_id);
    for (size_t i = 0; i < n; i++)
        if (!kept || s->pub.id[kept - 1] != s->pub.id[i])
            s->pub.id[kept++] = s->pub.id[i];
    s->pub.n = kept;
}

static void looked(uv_work_t *w, int status) {
    struct search *s = w->data;
    struct vg_control *c = s->ctl;
    struct vg_peer *p = c->stopping ? NULL : vg_peer_find(c, s->peer);
    int r = status < 0 ? status : s->result;
    if (p && s->was_late) {
        vg_peer_error(p, s->req, VG_TOO_BIG,
                      "there are too many tasks to look through: ask for a shorter time (since), a "
                      "name or a state");
    } else if (p && r < 0) {
        vg_peer_error(p, s->req, VG_INTERNAL, "cannot read the list of tasks: %s", strerror(-r));
    } else if (p) {
        settle(s);
        s->fn(p, s->req, &s->pub);
    }
    search_free(s);
    if (!c->stopping)
        go_on(c);
}

static void late(void *user) {
    struct search *s = user;
    s->late = NULL;
    s->was_late = true;
    atomic_store(&s->stop, true);
}

static void begin(struct search *s) {
    s->running = uv_queue_work(s->ctl->loop, &s->work, look, looked) == 0;
    if (s->running)
        s->late = vg_timer_start(s->ctl->loop, VG_SEARCH_USEC, late, s);
}

static void go_on(struct vg_control *c) {
    size_t running = 0;
    vg_list_for_each_safe (it, &c->searches) {
        struct search *s = vg_list_entry(it, struct search, link);
        bool gone = !vg_peer_find(c, s->peer);
        if (!s->running && gone) {
            search_free(s);
            continue;
        }
        if (gone)
            atomic_store(&s->stop, true);
        else if (!s->running && running < VG_SEARCH_AT_ONCE)
            begin(s);
        running += s->running;
    }
}

static int check_room(struct vg_call *call, struct vg_err *err) {
    size_t n = 0, own = 0;
    vg_list_for_each (it, &call->ctl->searches) {
        const struct search *s = vg_list_entry(it, struct search, link);
        n++;
        own += strcmp(s->by, call->user->name) == 0;
    }
    if (n < VG_SEARCH_WAITING && own < VG_SEARCH_USER)
        return 0;
    return vg_err_set(err, VG_UNAVAILABLE,
                      own < VG_SEARCH_USER
                          ? "many long searches for tasks go on: try again soon"
                          : "%d long searches of yours go on: wait for them, then try again",
                      VG_SEARCH_USER);
}

static int fill(struct search *s, struct vg_call *call, const struct vg_task_filter *f,
                const uint64_t *memory, size_t n_memory) {
    s->path = vg_strdup(vg_store_path(call->ctl->store));
    s->pub.id = vg_alloc((n_memory + f->limit) * sizeof *s->pub.id);
    if (!s->path || !s->pub.id)
        return -ENOMEM;
    if (n_memory)
        memcpy(s->pub.id, memory, n_memory * sizeof *memory);
    s->n_memory = n_memory;
    s->q = vg_take_ptr(((Vg__Pb__Envelope *)call->env)->task_list);
    s->pub.q = s->q;
    s->f = *f;
    snprintf(s->user, sizeof s->user, "%s", f->user ? f->user : "");
    snprintf(s->team, sizeof s->team, "%s", f->or_team ? f->or_team : "");
    snprintf(s->by, sizeof s->by, "%s", call->user->name);
    s->f.user = f->user ? s->user : NULL;
    s->f.or_team = f->or_team ? s->team : NULL;
    return 0;
}

int vg_search_start(struct vg_call *call, const struct vg_task_filter *f, const uint64_t *memory,
                    size_t n_memory, vg_search_fn *fn, struct vg_err *err) {
    if (check_room(call, err) < 0)
        return err->code;
    struct search *s = vg_alloc(sizeof *s);
    if (!s)
        return vg_err_sys(err, ENOMEM, "cannot list tasks");
    vg_list_init(&s->link);
    s->ctl = call->ctl;
    s->work.data = s;
    s->fn = fn;
    s->peer = call->peer->serial;
    s->req = call->req;
    if (fill(s, call, f, memory, n_memory) < 0) {
        search_free(s);
        return vg_err_sys(err, ENOMEM, "cannot list tasks");
    }
    vg_list_push_back(&call->ctl->searches, &s->link);
    go_on(call->ctl);
    return 0;
}

void vg_search_stop(struct vg_control *c) {
    vg_list_for_each_safe (it, &c->searches) {
        struct search *s = vg_list_entry(it, struct search, link);
        atomic_store(&s->stop, true);
        if (s->running)
            vg_timer_stop(&s->late);
        else
            search_free(s);
    }
}
