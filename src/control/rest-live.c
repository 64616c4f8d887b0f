/* Streams of events and output over HTTP: answers of the wire's own requests, put into the shape
   that browsers and scripts read.

       ask ──▶ told: ERROR ──▶ a problem
           └─▶ told: data … ──▶ (the task's end is asked for) ──▶ vg_web_end

   What always holds: the peer is dropped from the loop, never from inside its sink's functions; a
   client that reads slowly makes `queued` grow, and whoever produces waits. */
#include "control/rest-live.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/events.h"
#include "control/rest-int.h"
#include "control/timer.h"
#include "net/tio.h"
#include "view/views.h"

#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define PING_USEC (15 * VG_USEC)
#define JOINED (64u << 10) /* bytes of records that go into one event */
/* Producers let a connection be 2 MiB ahead; a stream's share is smaller. */
#define QUEUED_WEIGHT 8

struct live {
    struct vg_peer *peer;   /* owned */
    struct vg_web_req *req; /* lent to us; NULL: answered */
    struct vg_timer *ping, *later;
    uint64_t task; /* of a log whose end is to be told */
    char *ref;     /* owned; likewise, as it was named */
    uint8_t carry[4][4];
    size_t carried[4]; /* a character's first bytes, by stream */
    bool begun;
    bool asked_end; /* the task's end was asked for */
};

/* ------------------------------------------------------------------ life */

static void live_free(struct live *l) {
    vg_timer_stop(&l->ping);
    vg_timer_stop(&l->later);
    if (l->req)
        vg_web_end(l->req, false);
    vg_peer_drop(l->peer);
    free(l->ref);
    free(l);
}

static void on_later_free(void *user) {
    struct live *l = user;
    l->later = NULL;
    live_free(l);
}

/* From inside the sink: the rest is done from the loop. */
static void over(struct live *l) {
    vg_timer_stop(&l->ping);
    vg_timer_stop(&l->later);
    l->later = vg_timer_start(l->peer->ctl->loop, 0, on_later_free, l);
}

static void on_gone(struct vg_web_req *req, void *user) {
    (void)req;
    live_free(user);
}

static const struct vg_web_stream_ops stream_ops = {.on_gone = on_gone};

static void on_ping(void *user) {
    struct live *l = user;
    l->ping = vg_timer_start(l->peer->ctl->loop, PING_USEC, on_ping, l);
    (void)vg_web_write(l->req, ":\n\n", 3);
}

static void begin(struct live *l) {
    if (l->begun || !l->req)
        return;
    l->begun = true;
    (void)vg_web_set(l->req, "Cache-Control", "no-store");
    (void)vg_web_set(l->req, "X-Accel-Buffering", "no");
    (void)vg_web_begin(l->req, 200, "text/event-stream", &stream_ops, l);
    l->ping = vg_timer_start(l->peer->ctl->loop, PING_USEC, on_ping, l);
}

/* An error before anything was sent is the answer; one behind that breaks the stream off. */
static void fail(struct live *l, enum vg_reason reason, const char *text) {
    struct vg_web_req *req = vg_take_ptr(l->req);
    if (req && !l->begun)
        vg_rest_problem(req, reason, vg_reason_http(reason), text);
    else if (req)
        vg_web_end(req, true);
    over(l);
}

static size_t queued(const struct vg_peer *p) {
    const struct live *l = p->sink_user;
    return l->req ? QUEUED_WEIGHT * vg_web_queued(l->req) : 0;
}

static void cut(struct vg_peer *p, enum vg_reason reason, const char *why) {
    fail(p->sink_user, reason, why);
}

static struct live *live_new(struct vg_peer *p, struct vg_web_req *req,
                             const struct vg_peer_sink *sink) {
    struct live *l = vg_alloc(sizeof(*l));
    if (!l) {
        vg_rest_problem(req, VG_INTERNAL, 500, "the control plane is out of memory");
        vg_peer_drop(p);
        return NULL;
    }
    *l = (struct live){.peer = p, .req = req};
    p->sink = sink;
    p->sink_user = l;
    return l;
}

/* ------------------------------------------------------------------ queries */

bool vg_live_flag(const struct vg_web_req *req, const char *name) {
    const char *v = vg_web_query(req, name);
    return v && (!*v || strcmp(v, "1") == 0 || strcmp(v, "true") == 0 || strcmp(v, "yes") == 0);
}

int vg_live_number(const struct vg_web_req *req, const char *name, uint64_t most, uint64_t *ret,
                   struct vg_err *err) {
    const char *v = vg_web_query(req, name);
    *ret = 0;
    if (!v || (vg_parse_u64(v, ret) == 0 && *ret <= most))
        return 0;
    return vg_err_set(err, VG_INVALID, "'%s' is '%.40s', but must be a number up to %llu", name, v,
                      (unsigned long long)most);
}

/* ------------------------------------------------------------------ writing */

static void write_event(struct live *l, const char *name, json_t *data) {
    vg_auto_free char *text = data ? json_dumps(data, JSON_COMPACT) : NULL;
    struct vg_buf b = {0};
    json_decref(data);
    if (text && vg_buf_printf(&b, "event: %s\ndata: %s\n\n", name, text) >= 0)
        (void)vg_web_write(l->req, vg_buf_data(&b), vg_buf_len(&b));
    vg_buf_done(&b);
}

/* ------------------------------------------------------------------ output */

struct piece { /* records of one stream that lie behind each other */
    uint32_t stream;
    uint64_t when_usec;
    const Vg__Pb__LogData *of;
    struct vg_buf text;
};

static const char *stream_name(uint32_t stream) {
    return stream == VG_REC_STDERR ? "stderr" : stream == VG_REC_NOTE ? "note" : "stdout";
}

/* How many of the last bytes begin a character that has not all come. */
static size_t unfinished(const uint8_t *p, size_t n) {
    for (size_t back = 1; back <= VG_MIN(n, (size_t)3); back++) {
        uint8_t ch = p[n - back];
        if ((ch & 0xc0) == 0x80)
            continue;
        size_t len = ch > 0xf4 ? 1 : ch >= 0xf0 ? 4 : ch >= 0xe0 ? 3 : ch >= 0xc0 ? 2 : 1;
        return len > back ? back : 0;
    }
    return 0;
}

/* JSON has whole characters only: what a record cut in two is put together again. */
static void hold_back(struct live *l, struct piece *k) {
    size_t i = k->stream < 4 ? k->stream : 0, n = vg_buf_len(&k->text);
    size_t keep = k->of->has_index ? 0 : unfinished(vg_buf_data(&k->text), n);
    memcpy(l->carry[i], vg_buf_data(&k->text) + n - keep, keep);
    l->carried[i] = keep;
    k->text.tail -= keep;
}

static void put_text(struct live *l, struct piece *k) {
    if (vg_buf_len(&k->text)) {
        json_t *j = json_pack("{s:s, s:o, s:o}", "stream", stream_name(k->stream), "text",
                              vg_json_bytes(vg_buf_data(&k->text), vg_buf_len(&k->text)),
                              "when_usec", vg_json_u64(k->when_usec));
        if (j && k->of->has_index)
            json_object_set_new(j, "index", vg_json_u64(k->of->index));
        write_event(l, "log", j);
    }
    vg_buf_clear(&k->text);
}

static void put_piece(struct live *l, struct piece *k) {
    if (!vg_buf_len(&k->text))
        return;
    hold_back(l, k);
    put_text(l, k);
}

/* The rest of the character does not come any more. */
static void put_carried(struct live *l) {
    const Vg__Pb__LogData none = VG__PB__LOG_DATA__INIT;
    for (uint32_t i = 0; i < VG_COUNT(l->carried); i++) {
        struct piece k = {.stream = i, .of = &none, .when_usec = vg_wall_usec()};
        if (l->carried[i] && vg_buf_append(&k.text, l->carry[i], l->carried[i]) == 0)
            put_text(l, &k);
        l->carried[i] = 0;
        vg_buf_done(&k.text);
    }
}

static void put_gap(struct live *l, uint64_t bytes) {
    write_event(l, "gap", json_pack("{s:o}", "bytes", vg_json_u64(bytes)));
}

static void put_record(struct live *l, struct piece *k, uint32_t stream, uint64_t when,
                       const uint8_t *p, size_t n) {
    if (stream != k->stream || vg_buf_len(&k->text) + n > JOINED)
        put_piece(l, k);
    if (stream == VG_REC_GAP) {
        if (n == 8)
            put_gap(l, vg_get64(p));
        return;
    }
    size_t i = stream < 4 ? stream : 0;
    if (!vg_buf_len(&k->text)) {
        k->stream = stream;
        k->when_usec = when;
        (void)vg_buf_append(&k->text, l->carry[i], l->carried[i]);
        l->carried[i] = 0;
    }
    (void)vg_buf_append(&k->text, p, n);
}

static void put_records(struct live *l, const Vg__Pb__LogData *d) {
    struct piece k = {.of = d};
    const uint8_t *p = d->records.data;
    size_t left = d->records.len;
    while (left >= VG_REC_HEADER && left - VG_REC_HEADER >= vg_get32(p)) {
        size_t n = vg_get32(p);
        put_record(l, &k, vg_get32(p + 4) & 0xff, vg_get64(p + 8), p + VG_REC_HEADER, n);
        p += VG_REC_HEADER + n;
        left -= VG_REC_HEADER + n;
    }
    put_piece(l, &k);
    vg_buf_done(&k.text);
}

/* All output was sent: a follower is told how the task ended, and closes. */
static void on_ask_end(void *user) {
    struct live *l = user;
    l->later = NULL;
    l->asked_end = true;
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__TaskRef ref = VG__PB__TASK_REF__INIT;
    ref.task = l->ref;
    env.body_case = B(TASK_GET);
    env.task_get = &ref;
    vg_peer_ask(l->peer, &env);
}

static void log_told(struct vg_peer *p, const Vg__Pb__Envelope *env, bool more) {
    struct live *l = p->sink_user;
    if (!l->req)
        return;
    if (env->body_case == B(ERROR) && !l->asked_end) {
        fail(l, vg_reason_from_wire(env->error->reason), env->error->text);
        return;
    }
    begin(l);
    if (env->body_case == B(LOG_DATA) && env->log_data->records.len)
        put_records(l, env->log_data);
    if (!more)
        put_carried(l);
    if (env->body_case == B(TASK))
        write_event(l, "end",
                    json_pack("{s:o, s:i}", "state", vg_json_text(env->task->state), "status",
                              env->task->status));
    if (more)
        return;
    if (!l->asked_end)
        l->later = vg_timer_start(p->ctl->loop, 0, on_ask_end, l);
    else
        over(l);
}

static const struct vg_peer_sink log_sink = {log_told, queued, cut};

void vg_live_logs(struct vg_peer *p, struct vg_web_req *req, const char *task) {
    struct vg_err err = VG_ERR_INIT;
    uint64_t attempt = 0, tail = 0;
    struct live *l = live_new(p, req, &log_sink);
    if (!l)
        return;
    l->ref = vg_strdup(task);
    if (!l->ref || vg_live_number(req, "attempt", UINT32_MAX, &attempt, &err) < 0 ||
        vg_live_number(req, "tail_bytes", 1ULL << 40, &tail, &err) < 0) {
        fail(l, l->ref ? VG_INVALID : VG_INTERNAL, err.msg);
        return;
    }
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__LogReq m = VG__PB__LOG_REQ__INIT;
    m.task = l->ref;
    m.has_follow = m.has_attempt = m.has_tail_bytes = m.has_all_attempts = 1;
    m.follow = 1;
    m.attempt = (uint32_t)attempt;
    m.tail_bytes = tail;
    m.all_attempts = vg_live_flag(req, "all_attempts");
    env.body_case = B(TASK_LOGS);
    env.task_logs = &m;
    vg_peer_ask(p, &env);
    begin(l); /* there may be no output for a long time */
}

/* ------------------------------------------------------------------ events */

/* Its JSON, appended. */
static int event_text(struct vg_buf *b, const Vg__Pb__Event *e) {
    if (e->task)
        return vg_view_text(b, &vg_view_task, e->task);
    if (e->node)
        return vg_view_text(b, &vg_view_node, e->node);
    if (e->queue)
        return vg_view_text(b, &vg_view_queue, e->queue);
    if (e->budget)
        return vg_view_text(b, &vg_view_budget, e->budget);
    if (e->status)
        return vg_view_text(b, &vg_view_status, e->status);
    int r = vg_buf_printf(b, "{\"gpus\":[");
    for (size_t i = 0; i < e->n_gpu && r >= 0; i++) {
        r = i ? vg_buf_append(b, ",", 1) : 0;
        if (r >= 0)
            r = vg_view_text(b, &vg_view_gpu, e->gpu[i]);
    }
    return r < 0 ? r : vg_buf_append(b, "]}", 2);
}

/* One event goes to many readers: its text is made once. */
static void event_told(struct vg_peer *p, const Vg__Pb__Envelope *env, bool more) {
    static struct {
        uint64_t number;
        struct vg_buf text;
    } made;
    struct live *l = p->sink_user;
    (void)more;
    if (!l->req)
        return;
    if (env->body_case != B(EVENT)) {
        bool error = env->body_case == B(ERROR);
        fail(l, error ? vg_reason_from_wire(env->error->reason) : VG_INTERNAL,
             error ? env->error->text : "the stream of events ended");
        return;
    }
    begin(l);
    uint64_t number = vg_events_number(p->ctl);
    if (number != made.number) {
        vg_buf_clear(&made.text);
        made.number = number;
        if (vg_buf_printf(&made.text,
                          "event: %s\ndata: ", env->event->topic ? env->event->topic : "") < 0 ||
            event_text(&made.text, env->event) < 0 || vg_buf_append(&made.text, "\n\n", 2) < 0)
            made.number = 0;
    }
    if (!made.number)
        return;
    (void)vg_web_write(l->req, vg_buf_data(&made.text), vg_buf_len(&made.text));
}

static const struct vg_peer_sink event_sink = {event_told, queued, cut};

/* The handler keeps parts of the message: all of it is the heap's. */
static int event_query(const struct vg_web_req *req, Vg__Pb__EventQuery *q, struct vg_err *err) {
    int r = 0;
    ProtobufCMessage *tasks = vg_view_new(&vg__pb__task_query__descriptor);
    if (!tasks)
        return vg_err_sys(err, -ENOMEM, "cannot follow events");
    q->tasks = (Vg__Pb__TaskQuery *)tasks;
    for (size_t i = 0; i < req->n_query && r >= 0; i++) {
        const struct vg_web_pair *k = &req->query[i];
        bool topics = strcmp(k->name, "topics") == 0;
        r = topics ? vg_view_take_text(&vg_view_event_query, &q->base, k->name, k->value, err)
                   : vg_view_take_text(&vg_view_task_filter, tasks, k->name, k->value, err);
    }
    if (r >= 0 && q->n_topic > VG_EVENT_TOPICS_MAX)
        r = vg_err_set(err, VG_INVALID, "'topics' has more than %d values", VG_EVENT_TOPICS_MAX);
    return r;
}

void vg_live_events(struct vg_peer *p, struct vg_web_req *req, const char *none) {
    (void)none;
    struct vg_err err = VG_ERR_INIT;
    struct live *l = live_new(p, req, &event_sink);
    if (!l)
        return;
    Vg__Pb__Envelope *env = (Vg__Pb__Envelope *)vg_view_new(&vg__pb__envelope__descriptor);
    Vg__Pb__EventQuery *q = (Vg__Pb__EventQuery *)vg_view_new(&vg__pb__event_query__descriptor);
    if (env && q) {
        env->body_case = B(EVENTS);
        env->events = q;
    }
    if (!env || !q)
        vg_err_sys(&err, -ENOMEM, "cannot follow events");
    if (!env || !q || event_query(req, q, &err) < 0) {
        fail(l, err.reason, err.msg);
        if (!env && q)
            protobuf_c_message_free_unpacked(&q->base, NULL);
    } else {
        vg_peer_ask(p, env);
        begin(l);
    }
    if (env)
        vg__pb__envelope__free_unpacked(env, NULL);
}
