/* What is looked at every second for readers of events. Those who came with one token look through
   one peer: what it is shown is what each of them may see. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/events-int.h"

#include <stdio.h>
#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define KEY_MAX 127

struct item { /* one thing that was told: a node, a budget, the queue */
    uint64_t hash, round;
    enum topic topic;
    char key[KEY_MAX + 1];
};

struct look {
    struct vg_events *events;
    struct vg_list link;
    struct vg_peer *peer; /* owned; asks */
    size_t readers;
    unsigned topics;     /* that any of them wants */
    struct vg_map items; /* key -> struct item, owned */
    uint64_t round;      /* of the answer that is being read */
    bool cut;            /* its principal has lost its rights */
};

/* ------------------------------------------------------------------ what changed */

static uint64_t hash_message(const ProtobufCMessage *m) {
    size_t n = protobuf_c_message_get_packed_size(m);
    vg_auto_free uint8_t *p = vg_alloc(n + 1);
    uint64_t h = 14695981039346656037ULL;
    if (!p)
        return 0;
    protobuf_c_message_pack(m, p);
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 1099511628211ULL;
    return h;
}

/* Whether it differs from what was told of it last. */
static bool changed(struct look *k, enum topic topic, const char *name, uint64_t hash) {
    char key[KEY_MAX + 1];
    snprintf(key, sizeof key, "%u/%s", topic, name ? name : "");
    struct item *i = vg_map_get(&k->items, key);
    bool differs = !i || i->hash != hash;
    if (!i) {
        i = vg_alloc(sizeof *i);
        if (!i)
            return true;
        memcpy(i->key, key, sizeof key);
        i->topic = topic;
        if (vg_map_put(&k->items, i->key, i) < 0) {
            free(i);
            return true;
        }
    }
    i->hash = hash;
    i->round = k->round;
    return differs;
}

/* To those of this look who want it: all that was new, and everything to those who are behind. */
static void tell(struct look *k, enum topic topic, bool differs, Vg__Pb__Event *e) {
    bool numbered = false;
    vg_list_for_each (it, &k->events->readers) {
        struct reader *r = vg_list_entry(it, struct reader, link);
        if (r->look != k || !(r->topics & BIT(topic)) || !(differs || r->stale & BIT(topic)))
            continue;
        if (!reader_has_room(r)) {
            r->stale |= BIT(topic);
            continue;
        }
        if (!numbered)
            events_next(k->events);
        numbered = true;
        reader_tell(r, e);
    }
}

/* All of a topic was told: nobody with room is behind any more. */
static void told_all(struct look *k, enum topic topic) {
    vg_list_for_each (it, &k->events->readers) {
        struct reader *r = vg_list_entry(it, struct reader, link);
        if (r->look == k && reader_has_room(r))
            r->stale &= ~BIT(topic);
    }
}

static void on_nodes(struct look *k, const Vg__Pb__NodeList *l) {
    for (size_t i = 0; i < l->n_node; i++) {
        Vg__Pb__NodeInfo *n = l->node[i];
        Vg__Pb__Event e = VG__PB__EVENT__INIT;
        protobuf_c_boolean seen = n->has_last_seen_usec;
        n->has_last_seen_usec = 0; /* every heartbeat changes it */
        uint64_t hash = hash_message(&n->base);
        n->has_last_seen_usec = seen;
        e.topic = (char *)"node";
        e.node = n;
        tell(k, TOPIC_NODES, changed(k, TOPIC_NODES, n->name, hash), &e);
    }
    told_all(k, TOPIC_NODES);
}

static void on_gpus(struct look *k, const Vg__Pb__GpuList *l) {
    Vg__Pb__Event e = VG__PB__EVENT__INIT;
    uint64_t hash = l->n_gpu;
    for (size_t i = 0; i < l->n_gpu; i++) {
        Vg__Pb__GpuState *g = l->gpu[i];
        protobuf_c_boolean age = g->has_age_usec;
        g->has_age_usec = 0;
        hash = hash * 1099511628211ULL ^ hash_message(&g->base);
        g->has_age_usec = age;
    }
    e.topic = (char *)"gpus";
    e.gpu = l->gpu;
    e.n_gpu = l->n_gpu;
    tell(k, TOPIC_GPUS, changed(k, TOPIC_GPUS, "", hash), &e);
    told_all(k, TOPIC_GPUS);
}

static void on_queue(struct look *k, Vg__Pb__QueueInfo *q) {
    Vg__Pb__Event e = VG__PB__EVENT__INIT;
    e.topic = (char *)"queue";
    e.queue = q;
    tell(k, TOPIC_QUEUE, changed(k, TOPIC_QUEUE, "", hash_message(&q->base)), &e);
    told_all(k, TOPIC_QUEUE);
}

static void on_budgets(struct look *k, const Vg__Pb__BudgetList *l) {
    for (size_t i = 0; i < l->n_budget; i++) {
        Vg__Pb__BudgetInfo *b = l->budget[i];
        Vg__Pb__Event e = VG__PB__EVENT__INIT;
        e.topic = (char *)"budget";
        e.budget = b;
        tell(k, TOPIC_BUDGETS,
             changed(k, TOPIC_BUDGETS, b->budget ? b->budget->name : "", hash_message(&b->base)),
             &e);
    }
    told_all(k, TOPIC_BUDGETS);
}

static void on_status(struct look *k, const Vg__Pb__StatusInfo *s) {
    Vg__Pb__StatusInfo few = VG__PB__STATUS_INFO__INIT; /* what does not change by itself */
    Vg__Pb__Event e = VG__PB__EVENT__INIT;
    few.has_nodes = few.has_nodes_ready = few.has_running = few.has_queued = 1;
    few.nodes = s->nodes;
    few.nodes_ready = s->nodes_ready;
    few.running = s->running;
    few.queued = s->queued;
    e.topic = (char *)"status";
    e.status = (Vg__Pb__StatusInfo *)s;
    tell(k, TOPIC_STATUS, changed(k, TOPIC_STATUS, "", hash_message(&few.base)), &e);
    told_all(k, TOPIC_STATUS);
}

static void on_told(struct vg_peer *p, const Vg__Pb__Envelope *env, bool more) {
    struct look *k = p->sink_user;
    (void)more;
    switch (env->body_case) {
    case B(NODES):
        on_nodes(k, env->nodes);
        break;
    case B(GPUS):
        on_gpus(k, env->gpus);
        break;
    case B(QUEUE_INFO):
        on_queue(k, env->queue_info);
        break;
    case B(BUDGETS):
        on_budgets(k, env->budgets);
        break;
    case B(STATUS_INFO):
        on_status(k, env->status_info);
        break;
    default: /* it may not look at this, or there is none */
        break;
    }
}

static void on_cut(struct vg_peer *p, enum vg_reason reason, const char *why) {
    struct look *k = p->sink_user;
    (void)reason;
    (void)why;
    k->cut = true;
}

static const struct vg_peer_sink look_sink = {.told = on_told, .cut = on_cut};

/* ------------------------------------------------------------------ looking */

static void ask(struct look *k, enum topic topic) {
    Vg__Pb__Empty none = VG__PB__EMPTY__INIT;
    Vg__Pb__GpuQuery gpus = VG__PB__GPU_QUERY__INIT;
    Vg__Pb__QueueQuery queue = VG__PB__QUEUE_QUERY__INIT;
    VG_ENVELOPE(env);
    gpus.has_live = gpus.live = 1;
    switch (topic) {
    case TOPIC_NODES:
        env.body_case = B(NODE_LIST);
        env.node_list = &none;
        break;
    case TOPIC_GPUS:
        env.body_case = B(GPU_LIST);
        env.gpu_list = &gpus;
        break;
    case TOPIC_QUEUE:
        env.body_case = B(QUEUE);
        env.queue = &queue;
        break;
    case TOPIC_BUDGETS:
        env.body_case = B(BUDGET_LIST);
        env.budget_list = &none;
        break;
    case TOPIC_STATUS:
        env.body_case = B(STATUS);
        env.status = &none;
        break;
    default:
        return;
    }
    vg_peer_ask(k->peer, &env);
}

/* Nodes that were told and are not there any more. */
static void tell_removed(struct look *k) {
    vg_map_for_each (s, &k->items) {
        struct item *i = s->value;
        if (i->topic != TOPIC_NODES || i->round == k->round)
            continue;
        Vg__Pb__NodeInfo n = VG__PB__NODE_INFO__INIT;
        Vg__Pb__Event e = VG__PB__EVENT__INIT;
        n.name = strchr(i->key, '/') + 1;
        n.state = (char *)"gone";
        e.topic = (char *)"node";
        e.node = &n;
        tell(k, TOPIC_NODES, true, &e);
        vg_map_del(&k->items, i->key);
        free(i);
    }
}

void looks_tick(struct vg_events *ev) {
    static const uint64_t every[TOPICS] = {[TOPIC_NODES] = 1,
                                           [TOPIC_GPUS] = 1,
                                           [TOPIC_QUEUE] = 2,
                                           [TOPIC_BUDGETS] = 3,
                                           [TOPIC_STATUS] = 1};
    ev->round++;
    vg_list_for_each (it, &ev->looks) {
        struct look *k = vg_list_entry(it, struct look, link);
        unsigned wanted = 0, behind = 0;
        vg_list_for_each (at, &ev->readers) {
            const struct reader *r = vg_list_entry(at, struct reader, link);
            wanted |= r->look == k ? r->topics : 0;
            behind |= r->look == k ? r->stale : 0;
        }
        k->round = ev->round;
        for (enum topic t = TOPIC_NODES; t < TOPICS && !k->cut; t++)
            if (wanted & BIT(t) && (behind & BIT(t) || ev->round % every[t] == 0))
                ask(k, t);
        if (wanted & BIT(TOPIC_NODES) && !k->cut)
            tell_removed(k);
    }
}

/* ------------------------------------------------------------------ life */

const struct vg_user *look_user(struct look *k) {
    struct vg_err err = VG_ERR_INIT;
    return k->cut ? NULL : vg_peer_user(k->peer, &err);
}

static struct look *look_find(struct vg_events *ev, const struct vg_who *who) {
    vg_list_for_each (it, &ev->looks) {
        struct look *k = vg_list_entry(it, struct look, link);
        const struct vg_who *w = &k->peer->who;
        if (!k->cut && strcmp(w->user, who->user) == 0 && strcmp(w->key, who->key) == 0 &&
            w->parent == who->parent && w->scope == who->scope)
            return k;
    }
    return NULL;
}

int look_join(struct reader *r) {
    struct vg_events *ev = r->events;
    struct vg_who who = r->follow->peer->who;
    struct look *k = look_find(ev, &who);
    if (!k) {
        k = vg_alloc(sizeof *k);
        if (!k)
            return -ENOMEM;
        who.groups = NULL; /* they start tasks, which it does not */
        who.n_groups = 0;
        int e = vg_peer_new_inner(ev->ctl, &look_sink, k, &who, &k->peer);
        if (e < 0) {
            free(k);
            return e;
        }
        k->peer->kind = VG_PEER_CLIENT;
        k->events = ev;
        vg_list_push_back(&ev->looks, &k->link);
    }
    k->readers++;
    r->look = k;
    return 0;
}

void look_leave(struct reader *r) {
    struct look *k = vg_take_ptr(r->look);
    if (!k || --k->readers)
        return;
    vg_list_remove(&k->link);
    vg_peer_drop(k->peer);
    vg_map_for_each (s, &k->items)
        free(s->value);
    vg_map_done(&k->items);
    free(k);
}
