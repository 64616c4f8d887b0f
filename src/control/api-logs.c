/* Stored output, and following it. A reader gets pieces while its connection takes them; when it is
   slow, a timer looks again. Nothing of the stored output is held in memory.

   Whoever follows a running task sees the stored head, then what the keeper shows (log-live.h),
   then what is left of the stored tail; offsets join the three without repeating anything. */
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

struct reader {
    struct vg_follow *follow;
    struct vg_control *ctl;
    uint64_t task;
    uint32_t attempt;
    struct vg_logread at;
    struct vg_loglive *live; /* owned; NULL: not looking at the keeper */
    struct vg_timer *slow;
    struct vg_timer *last_words; /* the task has ended, its keeper still shows */
    uint64_t end;                /* with `ended`: offset after the last record */
    bool pinned;                 /* this attempt was asked for, not the newest */
    bool follow_on;              /* wait for more at the end */
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

static void send_records(struct vg_follow *f, struct vg_buf *b, bool more) {
    VG_ENVELOPE(env);
    Vg__Pb__LogData d = VG__PB__LOG_DATA__INIT;
    d.has_records = 1;
    d.records =
        (ProtobufCBinaryData){.data = b->base ? vg_buf_data(b) : NULL, .len = vg_buf_len(b)};
    env.body_case = B(LOG_DATA);
    env.log_data = &d;
    vg_peer_send(f->peer, f->req, more, &env);
}

static void pump(struct reader *r);

static void look_again(void *user) {
    struct reader *r = user;
    r->slow = NULL;
    pump(r);
}

/* The task is in a later attempt by now: its output is read from there. */
static bool next_attempt(struct reader *r) {
    const struct vg_job *j = r->follow->job;
    if (r->pinned || !r->follow_on || r->live || !j || j->task->attempt.number <= r->attempt)
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
    if (!f->peer->conn)
        return;
    while ((more > 0 || (more == 0 && next_attempt(r))) && vg_conn_queued(f->peer->conn) < AHEAD) {
        vg_buf_clear(&b);
        more = next_piece(r, &b);
        if (vg_buf_len(&b))
            send_records(f, &b, true);
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
    if (more < 0) {
        vg_peer_error(f->peer, f->req, VG_INTERNAL, "the stored output cannot be read");
    } else {
        struct vg_buf none = {0};
        send_records(f, &none, false);
    }
    vg_follow_free(f);
}

void vg_logs_more(struct vg_job *j, bool ended) {
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
        if (f->kind != VG_FOLLOW_LOG)
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
    struct vg_task *t = vg_found_task(&found);
    struct reader *r = vg_alloc(sizeof *r);
    struct vg_follow *f = r ? vg_follow_new(call->peer, found.job, VG_FOLLOW_LOG, call->req) : NULL;
    if (!f) {
        free(r);
        vg_found_done(&found);
        vg_peer_error(call->peer, call->req, VG_TOO_BIG,
                      "too many requests wait on this connection: open another");
        return;
    }
    *r = (struct reader){.follow = f,
                         .ctl = call->ctl,
                         .task = t->id,
                         .attempt = m->attempt ? m->attempt : VG_MAX(t->attempt.number, 1u),
                         .pinned = m->attempt != 0,
                         .follow_on = m->follow,
                         .ended = !found.job || vg_task_is_ended(t)};
    f->data = r;
    f->free_data = reader_free;
    if (!found.job)
        vg_list_remove(&f->on_job); /* not a watcher */
    vg_found_done(&found);
    if (m->tail_bytes)
        skip_to_tail(r, m->tail_bytes);
    pump(r);
}
