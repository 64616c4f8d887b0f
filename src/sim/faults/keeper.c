/* Keepers, modelled: what the agent hands over runs here, in truth. They follow
   docs/protocol.md and src/agent/keeper-*.c: they keep the node's lease by themselves, outlive
   their agent, send their output by offset until it is acknowledged, tell their end only then, and
   hold it until that is acknowledged.

       WAITING ──▶ RUNNING ──▶ ENDED ──output acknowledged──▶ told ──exit acknowledged──▶ gone */
#include "sim/faults/world.h"

#include "agent/agent-int.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "conf/res.h"
#include "net/tio.h"
#include "sim/faults/plant.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>

#define LOG_PACKET 1024u
#define LOG_WINDOW 4096u

enum state { WAITING, RUNNING, ENDED };

struct packet { /* between agent and keeper */
    struct vg_list link;
    struct vg_kpkt head;
    uint8_t bytes[];
};

struct vg_w_keeper {
    struct vg_list link; /* in vg_w_node.keepers */
    struct vg_w_node *node;
    struct vg_agent_keeper *face; /* what its agent knows it by; NULL: no agent */
    uint32_t serial;
    struct vg_w_task *task;
    uint32_t number; /* of the attempt */
    int start_fd;
    struct vg_w_room room;
    enum state state;
    struct vg_w_attempt *attempt;
    uint64_t started_wall, ended_wall, kill_at;
    int32_t status;
    char text[160];
    bool lost; /* killed for want of a lease */
    uint32_t next_record;
    uint64_t log_sent, log_acked, head_limit, tail_limit;
    uint32_t log_round;
    bool log_tail, log_tail_begun, told_exit, told_run;
    struct vg_list to_agent, from_agent; /* packets under way */
    uint64_t to_at, from_at;
};

static struct vg_w_keeper *find(struct vg_w_node *n, uint64_t serial) {
    vg_list_for_each (it, &n->keepers) {
        struct vg_w_keeper *k = vg_list_entry(it, struct vg_w_keeper, link);
        if (k->serial == serial)
            return k;
    }
    return NULL;
}

static void later(struct vg_w_keeper *k, uint64_t wait, void (*fn)(void *node, uint64_t serial)) {
    vg_w_at(vg_w->now + wait, NULL, fn, k->node, k->serial);
}

static void drop(struct vg_list *packets) {
    vg_list_for_each_safe (it, packets) {
        struct packet *p = vg_list_entry(it, struct packet, link);
        vg_list_remove(&p->link);
        free(p);
    }
}

static struct packet *packet_new(const struct vg_kpkt *head, const void *bytes) {
    struct packet *p = vg_alloc(sizeof *p + head->len + 1);
    if (!p)
        abort();
    p->head = *head;
    if (head->len)
        memcpy(p->bytes, bytes, head->len);
    return p;
}

/* ------------------------------------------------------------------ to the agent */

static void to_agent(void *node, uint64_t serial) {
    struct vg_w_node *n = node;
    struct vg_w_keeper *k = find(n, serial);
    struct vg_list *first = k && k->face ? vg_list_first(&k->to_agent) : NULL;
    if (!first)
        return;
    struct packet *p = vg_list_entry(first, struct packet, link);
    vg_list_remove(&p->link);
    if (p->head.kind == VG_K_STATE)
        vg_tasks_on_state(k->face, p->bytes, p->head.len, NULL, 0);
    else
        vg_tasks_on_log(k->face, &p->head, p->bytes);
    free(p);
}

static void tell(struct vg_w_keeper *k, const struct vg_kpkt *head, const void *bytes) {
    if (!k->face)
        return;
    struct packet *p = packet_new(head, bytes);
    vg_list_push_back(&k->to_agent, &p->link);
    k->to_at = VG_MAX(k->to_at, vg_w->now + vg_w_between(&k->node->rng, 10, 400)) + 1;
    vg_w_at(k->to_at, &k->node->agent_proc, to_agent, k->node, k->serial);
}

static bool log_done(const struct vg_w_keeper *k) {
    if (k->state != ENDED || k->log_acked < k->log_sent)
        return false;
    uint64_t end = k->attempt ? k->attempt->end : 0;
    return k->log_sent == end && (!k->log_tail || k->log_tail_begun);
}

static size_t report(struct vg_w_keeper *k, uint8_t *out, size_t cap) {
    Vg__Pb__TaskReport r = VG__PB__TASK_REPORT__INIT;
    Vg__Pb__TaskExited e = VG__PB__TASK_EXITED__INIT;
    bool ended = k->state == ENDED && log_done(k);
    r.has_task_id = r.has_attempt = r.has_state = r.has_started_usec = true;
    r.task_id = k->task->id;
    r.attempt = k->number;
    r.state = ended                 ? VG__PB__TASK_REPORT__STATE__EXITED
              : k->state == WAITING ? VG__PB__TASK_REPORT__STATE__STARTING
                                    : VG__PB__TASK_REPORT__STATE__RUNNING;
    r.started_usec = k->started_wall;
    r.has_out_begin = r.has_out_end = true;
    r.out_end = k->attempt ? k->attempt->end : 0;
    if (ended) {
        e.has_status = e.has_started_usec = e.has_ended_usec = e.has_out_end = true;
        e.has_never_ran = true;
        e.status = k->status;
        e.started_usec = k->started_wall;
        e.ended_usec = k->ended_wall;
        e.out_end = r.out_end;
        e.never_ran = k->started_wall == 0;
        e.has_reason = k->lost && k->status == 128 + SIGKILL;
        e.reason = e.has_reason ? VG_LOST : 0;
        e.text = k->text;
        e.has_log_round = k->log_round != 0;
        e.log_round = k->log_round;
        r.exited = &e;
    }
    if (vg__pb__task_report__get_packed_size(&r) > cap)
        abort();
    return vg__pb__task_report__pack(&r, out);
}

static void tell_state(struct vg_w_keeper *k) {
    uint8_t buf[1024];
    struct vg_kpkt head = {.kind = VG_K_STATE, .id = k->task->id};
    head.len = (uint32_t)report(k, buf, sizeof buf);
    tell(k, &head, buf);
}

/* ------------------------------------------------------------------ output */

/* Bytes of whole records from `at` on, at most `max`. */
static size_t whole(const struct vg_w_attempt *a, uint64_t at, size_t max) {
    size_t n = 0;
    while (at + n < a->end) {
        size_t len = VG_REC_HEADER + vg_get32(a->out + at + n);
        if (n + len > max)
            break;
        n += len;
    }
    return n;
}

static uint64_t seek(const struct vg_w_attempt *a, uint64_t want) {
    uint64_t at = 0;
    while (at < want && at < a->end)
        at += VG_REC_HEADER + vg_get32(a->out + at);
    return at;
}

static size_t head_part(struct vg_w_keeper *k) {
    const struct vg_w_attempt *a = k->attempt;
    size_t left = k->head_limit > k->log_sent ? (size_t)(k->head_limit - k->log_sent) : 0;
    size_t n = whole(a, k->log_sent, VG_MIN(left, (size_t)LOG_PACKET));
    if (n == 0 && k->log_sent < a->end && VG_REC_HEADER + vg_get32(a->out + k->log_sent) > left)
        k->log_tail = true;
    return n;
}

static void begin_tail(struct vg_w_keeper *k) {
    struct vg_w_attempt *a = k->attempt;
    uint64_t from = a->end > k->tail_limit ? a->end - k->tail_limit : 0;
    a->head_end = k->log_sent;
    k->log_sent = seek(a, VG_MAX(from, k->log_sent));
    k->log_acked = a->tail_start = k->log_sent;
    k->log_tail_begun = true;
}

static void send_log(struct vg_w_keeper *k) {
    while (k->face && k->attempt) {
        size_t n = 0;
        if (k->log_sent - k->log_acked >= LOG_WINDOW)
            return;
        if (!k->log_tail)
            n = head_part(k);
        if (k->log_tail && k->state == ENDED) {
            if (!k->log_tail_begun) {
                if (k->log_acked < k->log_sent)
                    return;
                begin_tail(k);
            }
            n = whole(k->attempt, k->log_sent, LOG_PACKET);
        }
        if (!n)
            return;
        struct vg_kpkt head = {.kind = VG_K_LOG,
                               .id = k->task->id,
                               .a = (uint64_t)k->log_tail | (uint64_t)k->log_round << 32,
                               .b = k->log_sent,
                               .len = (uint32_t)n};
        tell(k, &head, k->attempt->out + k->log_sent);
        k->log_sent += n;
    }
}

/* virgad has lost what it had beyond `offset`. */
static void again(struct vg_w_keeper *k, uint64_t offset, uint32_t round) {
    k->log_round = round;
    k->log_sent = k->log_acked = k->attempt ? seek(k->attempt, offset) : 0;
    k->log_tail = k->log_tail_begun = k->told_exit = false;
}

/* Output first, the end when all of it is acknowledged. */
static void flush(struct vg_w_keeper *k) {
    send_log(k);
    if (k->face && k->state == RUNNING && !k->told_run) {
        k->told_run = true;
        tell_state(k);
    }
    if (k->face && !k->told_exit && log_done(k)) {
        k->told_exit = true;
        tell_state(k);
    }
}

static void emit(void *node, uint64_t serial) {
    struct vg_w_keeper *k = find(node, serial);
    if (!k || k->state != RUNNING)
        return;
    struct vg_w_attempt *a = k->attempt;
    uint32_t n = vg_w_truth_record(k->task, k->number, k->next_record);
    uint8_t *out = vg_realloc(a->out, a->end + VG_REC_HEADER + n);
    if (!out)
        abort();
    a->out = out;
    vg_rec_header(out + a->end, VG_REC_STDOUT, n, vg_w_wall(&k->node->machine));
    for (uint32_t i = 0; i < n; i++)
        out[a->end + VG_REC_HEADER + i] = vg_w_truth_byte(k->task, k->number, k->next_record, i);
    a->end += VG_REC_HEADER + n;
    k->next_record++;
    flush(k);
    if (k->next_record < k->task->plan->records)
        later(k, k->task->plan->run_usec / (k->task->plan->records + 1), emit);
}

/* ------------------------------------------------------------------ life and death */

static void ended(struct vg_w_keeper *k, int32_t status, bool by_itself) {
    if (k->state == ENDED)
        return;
    if (k->attempt) {
        k->attempt->status = status;
        k->attempt->completed = by_itself;
        k->attempt->killed = !by_itself;
        k->attempt->ended_wall_usec = vg_w_wall(&k->node->machine);
        vg_w_truth_end(k->node, k->task, k->attempt, k->room);
    }
    k->state = ENDED;
    k->status = status;
    k->ended_wall = vg_w_wall(&k->node->machine);
    vg_w_story("n%d: task %d attempt %u ends with %d%s", k->node->index, k->task->index, k->number,
               status, by_itself ? "" : " (killed)");
    flush(k);
}

static void complete(void *node, uint64_t serial) {
    struct vg_w_keeper *k = find(node, serial);
    if (k && k->state == RUNNING)
        ended(k, k->task->plan->status, true);
}

static void die(void *node, uint64_t serial) {
    struct vg_w_keeper *k = find(node, serial);
    if (k)
        ended(k, 128 + SIGKILL, false);
}

static void terminate(void *node, uint64_t serial) {
    struct vg_w_keeper *k = find(node, serial);
    if (k && k->state == RUNNING)
        ended(k, 128 + SIGTERM, false);
}

static void grace_over(void *node, uint64_t serial) {
    struct vg_w_keeper *k = find(node, serial);
    if (k && k->kill_at && k->kill_at <= vg_w->now)
        ended(k, 128 + SIGKILL, false);
}

static void kill_it(struct vg_w_keeper *k, uint64_t sig, uint64_t grace, const char *text) {
    if (k->state == ENDED)
        return;
    if (text && *text && !k->text[0])
        snprintf(k->text, sizeof k->text, "%s", text);
    if (sig == SIGKILL)
        later(k, vg_w_between(&k->node->rng, 100, 5000), die);
    else if (!k->task->plan->ignores_term)
        later(k, vg_w_between(&k->node->rng, 1000, 800000), terminate);
    if (grace) {
        uint64_t at = vg_w->now + vg_w_span(&k->node->machine, grace);
        k->kill_at = k->kill_at ? VG_MIN(k->kill_at, at) : at;
        vg_w_at(k->kill_at, NULL, grace_over, k->node, k->serial);
    }
}

/* The lease, by the keeper's own watch. 0 is a node that never had one. */
static void watch_lease(void *node, uint64_t serial) {
    struct vg_w_node *n = node;
    struct vg_w_keeper *k = find(n, serial);
    if (!k || k->state == ENDED || !n->lease_until)
        return;
    if (vg_w_boot(&n->machine) >= n->lease_until) {
        vg_w_story("n%d: its lease is over", n->index);
        k->lost = true;
        kill_it(k, SIGKILL, 0, "the node lost contact with the control plane");
    } else {
        vg_w_at(vg_w_when(&n->machine, n->lease_until), NULL, watch_lease, n, serial);
    }
}

static void begin(void *node, uint64_t serial) {
    struct vg_w_keeper *k = find(node, serial);
    if (!k || k->state != WAITING)
        return;
    const struct vg_plan_task *p = k->task->plan;
    k->started_wall = vg_w_wall(&k->node->machine);
    k->attempt = vg_w_truth_start(k->node, k->task, k->number, k->room);
    if (!k->attempt)
        return;
    k->state = RUNNING;
    later(k, p->run_usec, complete);
    if (p->records)
        later(k, p->run_usec / (p->records + 1), emit);
    flush(k);
}

static struct vg_w_keeper *keeper_new(struct vg_w_node *n, const Vg__Pb__Start *s, int start_fd,
                                      uint32_t serial) {
    struct vg_w_keeper *k = vg_alloc(sizeof *k);
    struct vg_w_task *t = vg_w_task_of(s);
    if (!k || !t)
        abort();
    *k = (struct vg_w_keeper){.node = n,
                              .serial = serial ? serial : ++n->next_serial,
                              .task = t,
                              .number = s->attempt,
                              .start_fd = start_fd,
                              .head_limit = VG_W_HEAD,
                              .tail_limit = VG_W_TAIL};
    for (size_t i = 0; i < s->n_gpu; i++)
        k->room.gpus |= 1ULL << s->gpu[i];
    struct vg_res grant = vg_res_from_pb(s->grant);
    k->room.cpu_milli = grant.cpu_milli;
    k->room.gpu_milli = grant.gpu_milli;
    k->room.gpu_mem_bytes = grant.gpu_mem_bytes;
    vg_list_init(&k->to_agent);
    vg_list_init(&k->from_agent);
    vg_list_push_back(&n->keepers, &k->link);
    later(k, vg_w_between(&n->rng, 200, 20000), begin);
    watch_lease(n, k->serial);
    return k;
}

static void keeper_free(struct vg_w_keeper *k) {
    vg_list_remove(&k->link);
    drop(&k->to_agent);
    drop(&k->from_agent);
    if (k->start_fd >= 0)
        close(k->start_fd);
    free(k);
}

static void face_free(struct vg_agent_keeper *f) {
    vg_list_remove(&f->link);
    free(f);
}

/* Its process is gone, and with it what it ran. */
static void keeper_gone(struct vg_w_keeper *k, bool orderly) {
    struct vg_agent_keeper *f = k->face;
    if (k->attempt && !orderly)
        k->attempt->keeper_lost = true;
    if (k->attempt && k->attempt->running) {
        k->attempt->killed = true;
        k->attempt->status = 128 + SIGKILL;
        vg_w_truth_end(k->node, k->task, k->attempt, k->room);
    }
    if (f) {
        vg_w->cur = &k->node->agent_proc;
        vg_list_for_each_safe (it, &f->tasks)
            vg_tasks_orphan(k->node->agent, vg_list_entry(it, struct vg_agent_task, link), orderly);
        vg_w->cur = NULL;
        face_free(f);
    }
    keeper_free(k);
}

/* ------------------------------------------------------------------ from the agent */

static void from_agent(void *node, uint64_t serial) {
    struct vg_w_keeper *k = find(node, serial);
    struct vg_list *first = k ? vg_list_first(&k->from_agent) : NULL;
    if (!first)
        return;
    struct packet *p = vg_list_entry(first, struct packet, link);
    vg_list_remove(&p->link);
    bool mine = p->head.id == k->task->id;
    switch ((enum vg_kpkt_kind)p->head.kind) {
    case VG_K_KILL:
        if (mine)
            kill_it(k, p->head.a, p->head.b, (const char *)p->bytes);
        break;
    case VG_K_LOG_ACK:
        if (!mine)
            break;
        if (p->head.a > 1) {
            again(k, p->head.b, (uint32_t)p->head.a);
        } else if (p->head.a) {
            k->log_sent = k->log_acked;
            if (vg_plant_is(VG_PLANT_LOG_OFFSET) && k->attempt)
                k->log_sent += whole(k->attempt, k->log_sent, 900);
            if (!k->log_tail_begun)
                k->log_tail = false;
        } else if (p->head.b > k->log_acked && p->head.b <= k->log_sent) {
            k->log_acked = p->head.b;
        }
        flush(k);
        break;
    case VG_K_EXIT_ACK:
        if (mine && k->state == ENDED) {
            free(p);
            keeper_gone(k, true);
            return;
        }
        break;
    case VG_K_LIMITS:
        k->head_limit = p->head.a;
        k->tail_limit = p->head.b;
        break;
    default:
        break;
    }
    free(p);
}

int __wrap_vg_keeper_send(struct vg_agent_keeper *f, enum vg_kpkt_kind kind, uint64_t id,
                          uint64_t x, uint64_t y, const void *payload, size_t len, const int *fds,
                          size_t n_fds);
int __wrap_vg_keeper_send(struct vg_agent_keeper *f, enum vg_kpkt_kind kind, uint64_t id,
                          uint64_t x, uint64_t y, const void *payload, size_t len, const int *fds,
                          size_t n_fds) {
    struct vg_w_node *n = vg_container_of(f->agent->loop.data, struct vg_w_node, agent_proc);
    struct vg_w_keeper *k = find(n, f->serial);
    struct vg_kpkt head = {.kind = kind, .id = id, .a = x, .b = y, .len = (uint32_t)len};
    (void)fds;
    (void)n_fds;
    if (!k)
        return -EPIPE;
    struct packet *p = packet_new(&head, payload);
    vg_list_push_back(&k->from_agent, &p->link);
    k->from_at = VG_MAX(k->from_at, vg_w->now + vg_w_between(&n->rng, 10, 400)) + 1;
    vg_w_at(k->from_at, NULL, from_agent, n, k->serial);
    return 0;
}

/* ------------------------------------------------------------------ given to a keeper */

void __wrap_vg_keepers_submit(struct vg_agent *a, struct vg_agent_task *t,
                              const struct vg_warm_key *key);
void __wrap_vg_keepers_withdraw(struct vg_agent *a, struct vg_agent_task *t);
void __wrap_vg_keepers_task_forgotten(struct vg_agent_keeper *k);
struct vg_agent_keeper *__wrap_vg_keepers_session(struct vg_agent *a, const char *key);
void __wrap_vg_keepers_go(struct vg_agent *a, struct vg_agent_task *t);
int __wrap_vg_meeting_open(struct vg_agent *a, struct vg_agent_task *t, uint16_t port,
                           struct vg_meeting **ret);
void __wrap_vg_use_begin(struct vg_agent *a);

static struct vg_agent_keeper *face_new(struct vg_w_node *n, uint32_t serial,
                                        enum vg_keeper_state state) {
    struct vg_agent_keeper *f = vg_alloc(sizeof *f);
    if (!f)
        abort();
    f->agent = n->agent;
    f->state = state;
    f->serial = serial;
    f->fd = -1;
    vg_list_init(&f->ready_link);
    vg_list_init(&f->tasks);
    vg_list_init(&f->waiting);
    vg_list_init(&f->out);
    vg_list_push_back(&f->agent->keepers, &f->link);
    return f;
}

static Vg__Pb__Start *read_start(int fd, size_t n) {
    vg_auto_free uint8_t *bytes = vg_alloc(n + 1);
    if (!bytes || pread(fd, bytes, n, 0) != (ssize_t)n)
        abort();
    return vg__pb__start__unpack(NULL, n, bytes);
}

/* The keeper gets its task. */
static void send_start(struct vg_w_node *n, struct vg_agent_task *t) {
    Vg__Pb__Start *s = read_start(t->start_fd, t->start_bytes);
    struct vg_w_keeper *k =
        keeper_new(n, s, fcntl(t->start_fd, F_DUPFD_CLOEXEC, 3), t->keeper->serial);
    vg__pb__start__free_unpacked(s, NULL);
    k->face = t->keeper;
    tell_state(k); /* it has it */
    vg_tasks_handed(t);
}

static void hand_over(void *node, uint64_t id) {
    struct vg_w_node *n = node;
    struct vg_agent_task *t = vg_tasks_get(n->agent, id);
    if (!t || t->state != VG_AT_WAITING)
        return;
    struct vg_agent_keeper *f = face_new(n, ++n->next_serial, VG_KEEPER_BUSY);
    vg_list_remove(&t->link);
    t->keeper = f;
    t->state = VG_AT_STARTING;
    vg_list_push_back(&f->tasks, &t->link);
    Vg__Pb__Start *s = read_start(t->start_fd, t->start_bytes);
    struct vg_w_task *truth = vg_w_task_of(s);
    vg__pb__start__free_unpacked(s, NULL);
    if (truth && truth->group)
        truth->prepared = true;
    if (t->gated)
        vg_tasks_ready(n->agent, t);
    else
        send_start(n, t);
}

void __wrap_vg_keepers_go(struct vg_agent *a, struct vg_agent_task *t) {
    if (t->keeper)
        send_start(vg_container_of(a->loop.data, struct vg_w_node, agent_proc), t);
}

/* There are no sandboxes to look at. */
void __wrap_vg_use_begin(struct vg_agent *a) {
    (void)a;
}

/* Others of a gang would connect there; nobody does here. */
int __wrap_vg_meeting_open(struct vg_agent *a, struct vg_agent_task *t, uint16_t port,
                           struct vg_meeting **ret) {
    (void)a;
    (void)t;
    (void)port;
    *ret = NULL;
    return 0;
}

void __wrap_vg_keepers_submit(struct vg_agent *a, struct vg_agent_task *t,
                              const struct vg_warm_key *key) {
    struct vg_w_node *n = vg_container_of(a->loop.data, struct vg_w_node, agent_proc);
    (void)key;
    t->state = VG_AT_WAITING;
    if (vg_plant_is(VG_PLANT_GANG_HALF))
        t->gated = false;
    uint64_t wait = vg_w_chance(&n->rng, 90) ? vg_w_between(&n->rng, 10, 300)
                                             : vg_w_between(&n->rng, 1000, 300000);
    vg_w_at(vg_w->now + wait, &n->agent_proc, hand_over, n, t->id);
}

void __wrap_vg_keepers_withdraw(struct vg_agent *a, struct vg_agent_task *t) {
    (void)a;
    vg_list_remove(&t->link);
    if (t->gated && t->keeper) /* it knows nothing of the task yet and leaves */
        face_free(vg_take_ptr(t->keeper));
}

void __wrap_vg_keepers_task_forgotten(struct vg_agent_keeper *k) {
    (void)k; /* the acknowledgement is on its way to the keeper, which leaves by itself */
}

struct vg_agent_keeper *__wrap_vg_keepers_session(struct vg_agent *a, const char *key) {
    (void)a;
    (void)key;
    return NULL;
}

/* ------------------------------------------------------------------ agents come and go */

void vg_w_keepers_adopt(struct vg_w_node *n) {
    uint32_t upto = n->next_serial;
    vg_list_for_each_safe (it, &n->keepers) {
        struct vg_w_keeper *k = vg_list_entry(it, struct vg_w_keeper, link);
        uint8_t buf[1024];
        if (k->serial > upto)
            continue;
        struct vg_agent_keeper *f = k->face = face_new(n, k->serial, VG_KEEPER_ADOPTED);
        size_t len = report(k, buf, sizeof buf);
        int fd = fcntl(k->start_fd, F_DUPFD_CLOEXEC, 3);
        k->told_run = k->state == RUNNING;
        k->told_exit = k->state == ENDED && log_done(k);
        vg_tasks_on_state(f, buf, len, &fd, 1);
        vg_close(&fd);
        f->state = VG_KEEPER_BUSY;
        if (vg_plant_is(VG_PLANT_DOUBLE_ADOPT) && k->state == RUNNING) {
            struct stat st;
            fstat(k->start_fd, &st);
            Vg__Pb__Start *s = read_start(k->start_fd, (size_t)st.st_size);
            keeper_new(n, s, fcntl(k->start_fd, F_DUPFD_CLOEXEC, 3), 0);
            vg__pb__start__free_unpacked(s, NULL);
        }
    }
}

void vg_w_keepers_left(struct vg_w_node *n, struct vg_agent *a) {
    vg_list_for_each_safe (it, &a->keepers)
        face_free(vg_list_entry(it, struct vg_agent_keeper, link));
    vg_list_for_each_safe (it, &n->keepers) {
        struct vg_w_keeper *k = vg_list_entry(it, struct vg_w_keeper, link);
        k->face = NULL;
        drop(&k->to_agent);
    }
}

void vg_w_keepers_die(struct vg_w_node *n) {
    while (!vg_list_empty(&n->keepers))
        keeper_gone(vg_list_entry(vg_list_first(&n->keepers), struct vg_w_keeper, link), false);
}

bool vg_w_keeper_die_one(struct vg_w_node *n, uint64_t which) {
    uint64_t count = 0;
    vg_list_for_each (it, &n->keepers)
        count++;
    if (!count)
        return false;
    which %= count;
    vg_list_for_each (it, &n->keepers)
        if (which-- == 0) {
            keeper_gone(vg_list_entry(it, struct vg_w_keeper, link), false);
            break;
        }
    return true;
}

void vg_w_keeper_hangup(struct vg_w_task *t) {
    for (int i = 0; i < vg_w->plan->n_nodes; i++)
        vg_list_for_each (it, &vg_w->node[i].keepers) {
            struct vg_w_keeper *k = vg_list_entry(it, struct vg_w_keeper, link);
            if (k->task == t)
                kill_it(k, SIGTERM, 5 * VG_USEC, "its client left");
        }
}
