/* Stored output, and following it. A reader gets pieces while its connection takes them; when it is
   slow, a timer looks again. Nothing of the stored output is held in memory.

   Whoever follows a running task sees the stored head, then what the keeper shows (log-live.h),
   then what is left of the stored tail; offsets join the three without repeating anything.

   A group's log is its members' logs, each answer saying whose it is. Every member is read once, by
   a reader of its own: whoever follows sees members as they start; what was over before, or had to
   wait for others, is read when there is room. At most MEMBERS_OPEN are read at a time. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/log-live.h"
#include "net/tio.h"

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define PIECE (256u << 10)
#define AHEAD (2u << 20) /* bytes that may wait in the connection */
#define SLOW_USEC 20000
#define LAST_WORDS_USEC                                                      \
    (5 * VG_USEC) /* that a keeper has to show the rest after the task's end \
                   */

#define MEMBERS_OPEN 256
#define MEMBERS_A_TURN 500 /* looked at before others have their turn */

struct circle {
    struct vg_follow *follow; /* the request's, on the group while that is in memory */
    struct vg_control *ctl;
    uint64_t group;
    uint32_t members;
    uint32_t cursor;   /* every member before was read, or is being read */
    uint32_t open;     /* readers at work */
    uint32_t *started; /* owned; members to read that have begun, in that order */
    size_t n_started, first_started, cap_started;
    uint8_t *taken; /* owned; a bit a member: it has or had its reader */
    struct vg_timer *soon;
    bool follow_on, all_attempts;
    bool over;     /* no member will begin any more */
    bool stepping; /* a reader that ends at once does not step again */
};

struct reader {
    struct vg_follow *follow;
    struct vg_control *ctl;
    uint64_t task;
    uint32_t attempt;
    uint32_t newest;       /* attempt */
    struct circle *circle; /* a member's: the group's */
    uint32_t index;        /* likewise */
    struct vg_logread at;
    struct vg_loglive *live; /* owned; NULL: not looking at the keeper */
    struct vg_timer *slow;
    struct vg_timer *last_words; /* the task has ended, its keeper still shows */
    uint64_t end;                /* with `ended`: offset after the last record */
    bool pinned;                 /* this attempt was asked for, not the newest */
    bool follow_on;              /* wait for more at the end */
    bool all_attempts;           /* go on with the next attempt even when nobody waits */
    bool ended;                  /* nothing more will come */
    bool live_over;              /* the keeper has shown all that it had */
};

static void reader_free(void *data) {
    struct reader *r = data;
    vg_timer_stop(&r->slow);
    vg_timer_stop(&r->last_words);
    vg_loglive_free(r->live);
    vg_logread_done(&r->at);
    free(r);
}

static void send_records(struct vg_follow *f, const struct reader *of, struct vg_buf *b,
                         bool more) {
    VG_ENVELOPE(env);
    Vg__Pb__LogData d = VG__PB__LOG_DATA__INIT;
    if (of && of->circle) {
        d.has_task_id = d.has_index = 1;
        d.task_id = of->task;
        d.index = of->index;
    }
    d.has_records = 1;
    d.records =
        (ProtobufCBinaryData){.data = b->base ? vg_buf_data(b) : NULL, .len = vg_buf_len(b)};
    env.body_case = B(LOG_DATA);
    env.log_data = &d;
    vg_peer_send(f->peer, f->req, more, &env);
}

static void pump(struct reader *r);
static void circle_step(struct circle *c);
static void reader_end(struct reader *r, int result);

static void look_again(void *user) {
    struct reader *r = user;
    r->slow = NULL;
    pump(r);
}

/* The task is in a later attempt by now: its output is read from there. */
static bool next_attempt(struct reader *r) {
    const struct vg_job *j = r->follow->job;
    if (j)
        r->newest = j->task->attempt.number;
    if (r->pinned || !(r->follow_on || r->all_attempts) || r->live || r->newest <= r->attempt)
        return false;
    vg_logread_done(&r->at);
    r->attempt++;
    r->live_over = false;
    return true;
}

static void live_readable(void *user) {
    struct reader *r = user;
    if (!r->slow)
        pump(r);
}

static void live_stop(struct reader *r) {
    vg_loglive_free(vg_take_ptr(r->live));
    vg_timer_stop(&r->last_words);
    r->live_over = true;
}

static void no_last_words(void *user) {
    struct reader *r = user;
    r->last_words = NULL;
    live_stop(r);
    if (!r->slow)
        pump(r);
}

/* The next records, from the files or from the keeper. 1: there may be more, 0: not now, -errno. */
static int next_piece(struct reader *r, struct vg_buf *b) {
    struct vg_job *j = r->follow->job;
    bool current = j && !r->ended && j->task->attempt.number == r->attempt;
    bool look = r->follow_on && !r->live_over && !r->at.in_tail && (r->live || current);
    r->at.head_only = look; /* the keeper shows what is between head and tail */
    int more = vg_logread_next(r->ctl->home.logs, r->task, r->attempt, &r->at, b, PIECE);
    if (more != 0 || !look)
        return more;
    if (!r->live)
        r->live = vg_loglive_new(j, r->at.at, live_readable, r);
    if (!r->live)
        return 0;
    more = vg_loglive_next(r->live, &r->at.at, b);
    if (more > 0 || (more == 0 && !(r->ended && r->at.at >= r->end)))
        return more;
    live_stop(r);
    return 1;
}

/* Sends what there is; frees the follow when that was all. */
static void pump(struct reader *r) {
    struct vg_follow *f = r->follow;
    struct vg_buf b = {0};
    int more = 1;
    if (!vg_peer_open(f->peer))
        return;
    while (vg_peer_queued(f->peer) < AHEAD && (more > 0 || (more == 0 && next_attempt(r)))) {
        vg_buf_clear(&b);
        more = next_piece(r, &b);
        if (vg_buf_len(&b))
            send_records(f, r, &b, true);
    }
    vg_buf_done(&b);
    if (more > 0) {
        if (!r->slow)
            r->slow = vg_timer_start(r->ctl->loop, SLOW_USEC, look_again, r);
        return;
    }
    if (more == 0 && r->follow_on && (!r->ended || r->live)) {
        if (r->ended && !r->last_words)
            r->last_words = vg_timer_start(r->ctl->loop, LAST_WORDS_USEC, no_last_words, r);
        return;
    }
    reader_end(r, more);
}

/* ------------------------------------------------------------------ groups */

static void circle_free(void *data) {
    struct circle *c = data;
    vg_timer_stop(&c->soon);
    free(c->started);
    free(c->taken);
    free(c);
}

static bool is_taken(const struct circle *c, uint32_t i) {
    return c->taken[i / 8] >> (i % 8) & 1;
}

/* A member has begun, or was over before: it is to be read. */
static void circle_add(struct circle *c, uint32_t index) {
    if (index >= c->members || is_taken(c, index))
        return;
    uint32_t *grown = vg_grow(c->started, &c->cap_started, c->n_started + 1, sizeof *c->started);
    if (!grown)
        return; /* read when everybody has ended */
    c->started = grown;
    c->started[c->n_started++] = index;
}

/* The next member to read. False: none now. */
static bool circle_next(struct circle *c, uint32_t *ret) {
    while (c->first_started < c->n_started) {
        *ret = c->started[c->first_started++];
        if (!is_taken(c, *ret))
            return true;
    }
    c->first_started = c->n_started = 0;
    if (c->follow_on && !c->over)
        return false;
    while (c->cursor < c->members && is_taken(c, c->cursor))
        c->cursor++;
    *ret = c->cursor;
    return c->cursor < c->members;
}

static struct reader *reader_new(struct vg_peer *peer, uint32_t req, const struct vg_found *found,
                                 const Vg__Pb__LogReq *m) {
    const struct vg_task *t = vg_found_task(found);
    struct reader *r = vg_alloc(sizeof *r);
    struct vg_follow *f = r ? vg_follow_new(peer, found->job, VG_FOLLOW_LOG, req) : NULL;
    uint32_t newest = VG_MAX(t->attempt.number, 1u);
    if (!f) {
        free(r);
        return NULL;
    }
    *r = (struct reader){.follow = f,
                         .ctl = peer->ctl,
                         .task = t->id,
                         .attempt = m->attempt        ? m->attempt
                                    : m->all_attempts ? 1
                                                      : newest,
                         .newest = newest,
                         .pinned = m->attempt != 0,
                         .follow_on = m->follow,
                         .all_attempts = m->all_attempts,
                         .ended = !found->job || vg_task_is_ended(t)};
    f->data = r;
    f->free_data = reader_free;
    if (!found->job)
        vg_list_remove(&f->on_job); /* not a watcher */
    return r;
}

static void circle_read(struct circle *c, uint32_t index) {
    struct vg_err err = VG_ERR_INIT;
    char id[VG_ID_LEN + 1];
    struct vg_found found;
    Vg__Pb__LogReq how = VG__PB__LOG_REQ__INIT;
    const struct vg_user *u = vg_peer_user(c->follow->peer, &err);
    c->taken[index / 8] |= (uint8_t)(1u << (index % 8));
    vg_id_format(vg_task_member_id(c->group, index), id);
    if (!u || vg_find_task(c->ctl, u, id, &found, &err) < 0)
        return; /* it was never heard of again: nothing was written */
    how.follow = c->follow_on;
    how.all_attempts = c->all_attempts;
    struct reader *r = vg_found_task(&found)->attempt.number
                           ? reader_new(c->follow->peer, c->follow->req, &found, &how)
                           : NULL; /* it has never begun */
    vg_found_done(&found);
    if (!r)
        return;
    r->circle = c;
    r->index = index;
    c->open++;
    pump(r);
}

static void circle_later(void *user) {
    struct circle *c = user;
    c->soon = NULL;
    circle_step(c);
}

/* Opens what there is room for; answers for the last time when everybody was read. */
static void circle_step(struct circle *c) {
    uint32_t index, turns = 0;
    bool more = false;
    if (c->stepping || c->soon)
        return;
    c->stepping = true;
    while (c->open < MEMBERS_OPEN && turns++ < MEMBERS_A_TURN && (more = circle_next(c, &index)))
        circle_read(c, index);
    c->stepping = false;
    if (more && c->open < MEMBERS_OPEN) {
        c->soon = vg_timer_start(c->ctl->loop, 0, circle_later, c);
        return;
    }
    if (more || c->open || (c->follow_on && !c->over))
        return;
    struct vg_buf none = {0};
    send_records(c->follow, NULL, &none, false);
    vg_follow_free(c->follow);
}

/* Frees the reader that has shown everything; its group, if it has one, goes on. */
static void reader_end(struct reader *r, int result) {
    struct vg_follow *f = r->follow;
    struct circle *c = r->circle;
    struct vg_buf none = {0};
    if (c) {
        vg_follow_free(f);
        c->open--;
        circle_step(c);
        return;
    }
    if (result < 0)
        vg_peer_error(f->peer, f->req, VG_INTERNAL, "the stored output cannot be read");
    else
        send_records(f, r, &none, false);
    vg_follow_free(f);
}

static struct circle *circle_new(struct vg_call *call, const struct vg_found *found,
                                 const Vg__Pb__LogReq *m) {
    const struct vg_task *t = vg_found_task(found);
    struct circle *c = vg_alloc(sizeof *c);
    if (!c)
        return NULL;
    *c = (struct circle){.ctl = call->ctl,
                         .group = t->id,
                         .members = t->members,
                         .taken = vg_alloc(t->members / 8 + 1),
                         .follow_on = m->follow,
                         .all_attempts = m->all_attempts,
                         .over = !found->job || vg_task_is_ended(t)};
    c->follow =
        c->taken ? vg_follow_new(call->peer, found->job, VG_FOLLOW_GROUP_LOG, call->req) : NULL;
    if (!c->follow) {
        circle_free(c);
        return NULL;
    }
    c->follow->data = c;
    c->follow->free_data = circle_free;
    if (!found->job)
        vg_list_remove(&c->follow->on_job);
    return c;
}

static void group_logs(struct vg_call *call, struct vg_found *found, const Vg__Pb__LogReq *m) {
    struct circle *c = NULL;
    if (m->attempt || m->tail_bytes)
        vg_peer_error(call->peer, call->req, VG_INVALID,
                      "a group has many outputs: name the member whose end or attempt you want");
    else if (!(c = circle_new(call, found, m)))
        vg_peer_error(call->peer, call->req, VG_TOO_BIG,
                      "too many requests wait on this connection: open another");
    vg_found_done(found);
    for (uint32_t i = 0; c && c->follow_on && !c->over && i < c->members; i++) {
        const struct vg_job *j = vg_job_get(c->ctl, vg_task_member_id(c->group, i));
        if (!j || j->task->attempt.number)
            circle_add(c, i);
    }
    if (c)
        circle_step(c);
}

/* Those who follow a group hear that a member began, or that all have ended. */
static void tell_circles(struct vg_job *group, const struct vg_job *member) {
    vg_list_for_each_safe (it, &group->follows) {
        struct vg_follow *f = vg_list_entry(it, struct vg_follow, on_job);
        if (f->kind != VG_FOLLOW_GROUP_LOG)
            continue;
        struct circle *c = f->data;
        if (member)
            circle_add(c, member->task->index);
        else
            c->over = true;
        circle_step(c);
    }
}

/* ------------------------------------------------------------------ what happens to a job */

void vg_logs_more(struct vg_job *j, bool ended) {
    if (ended && vg_task_is_group(j->task))
        tell_circles(j, NULL);
    vg_list_for_each_safe (it, &j->follows) {
        struct vg_follow *f = vg_list_entry(it, struct vg_follow, on_job);
        if (f->kind != VG_FOLLOW_LOG)
            continue;
        struct reader *r = f->data;
        if (ended && !r->ended) {
            r->ended = true;
            r->end = j->task->out_bytes;
        }
        if (!r->slow)
            pump(r);
    }
}

void vg_logs_look_again(struct vg_job *j) {
    struct vg_job *group = j->task->group ? vg_job_get(j->ctl, j->task->group) : NULL;
    if (group)
        tell_circles(group, j);
    vg_list_for_each_safe (it, &j->follows) {
        struct vg_follow *f = vg_list_entry(it, struct vg_follow, on_job);
        if (f->kind != VG_FOLLOW_LOG)
            continue;
        struct reader *r = f->data;
        if (r->live || r->ended)
            continue;
        r->live_over = false;
        if (!r->slow)
            pump(r);
    }
}

void vg_logs_detach(struct vg_job *j) {
    vg_list_for_each_safe (it, &j->follows) {
        struct vg_follow *f = vg_list_entry(it, struct vg_follow, on_job);
        if (f->kind != VG_FOLLOW_LOG && f->kind != VG_FOLLOW_GROUP_LOG)
            continue;
        vg_list_remove(&f->on_job);
        f->job = NULL;
    }
}

/* Moves the start so that about `tail` bytes of records remain. Reads through the log once. */
static void skip_to_tail(struct reader *r, uint64_t tail) {
    struct vg_logread probe = {0};
    struct vg_buf b = {0};
    uint64_t total = 0, skipped = 0;
    while (vg_logread_next(r->ctl->home.logs, r->task, r->attempt, &probe, &b, PIECE) > 0) {
        total += vg_buf_len(&b);
        vg_buf_clear(&b);
    }
    vg_logread_done(&probe);
    vg_buf_clear(&b);
    while (total - skipped > tail) {
        struct vg_logread before = r->at;
        int n = vg_logread_next(r->ctl->home.logs, r->task, r->attempt, &r->at, &b, 1);
        uint64_t got = vg_buf_len(&b);
        vg_buf_clear(&b);
        if (n <= 0)
            break;
        if (total - skipped - got < tail) { /* this piece is wanted: stay in front of it */
            r->at.at = before.at;
            r->at.in_tail = before.in_tail;
            break;
        }
        skipped += got;
    }
    vg_buf_done(&b);
}

void vg_api_task_logs(struct vg_call *call) {
    const Vg__Pb__LogReq *m = call->env->task_logs;
    struct vg_err err = VG_ERR_INIT;
    struct vg_found found;
    if (vg_find_task(call->ctl, call->user, m->task ? m->task : "", &found, &err) < 0) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    if (vg_task_is_group(vg_found_task(&found))) {
        group_logs(call, &found, m);
        return;
    }
    struct reader *r = reader_new(call->peer, call->req, &found, m);
    vg_found_done(&found);
    if (!r) {
        vg_peer_error(call->peer, call->req, VG_TOO_BIG,
                      "too many requests wait on this connection: open another");
        return;
    }
    if (m->tail_bytes)
        skip_to_tail(r, m->tail_bytes);
    pump(r);
}
