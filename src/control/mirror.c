/* Offers and links of file services; see the header.

   What always holds:
   1. One offer waits for a task at most; a newer one takes its place.
   2. An offer counts only for a task of the same owner, and for the machine that the task names.
   3. A task that waits here is STARTING on its node and was not sent; `mirror_wait` is its clock.
 */
#include "control/mirror.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/env.h"
#include "control/job.h"
#include "control/mirror-peer.h"
#include "control/nodes.h"
#include "control/peer.h"
#include "control/place.h"
#include "control/spec-check.h"
#include "control/start.h"
#include "net/wire.h"

#include <stdio.h>
#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name

struct offer { /* in vg_control.offers, by task */
    uint64_t task;
    uint64_t since_usec;
    char user[VG_TENANT_NAME_MAX + 1];
    struct vg_stream *stream; /* owned; without ops */
    Vg__Pb__MirrorSpec *spec; /* owned; NULL: none came along */
    uint8_t machine[VG_MACHINE_BYTES];
};

struct link {              /* two streams, or a socket and a stream, that are being pumped */
    struct vg_list in_all; /* vg_control.links */
    uint64_t task, until_usec;
    bool wide;
    char user[VG_TENANT_NAME_MAX + 1];
    struct vg_stream *up; /* the pump's; to the agent */
};

/* ------------------------------------------------------------------ offers */

static void offer_free(struct offer *o, enum vg_reason reason) {
    if (!o)
        return;
    vg_stream_free(o->stream, reason);
    if (o->spec)
        vg__pb__mirror_spec__free_unpacked(o->spec, NULL);
    free(o);
}

static void offer_drop(struct vg_control *c, uint64_t task, enum vg_reason reason) {
    struct offer *o = vg_map_get_u64(&c->offers, task);
    if (o)
        vg_map_del_u64(&c->offers, task);
    offer_free(o, reason);
}

static size_t offers_of(struct vg_control *c, const char *user) {
    size_t n = 0;
    vg_map_for_each (s, &c->offers)
        n += strcmp(((struct offer *)s->value)->user, user) == 0;
    return n;
}

static Vg__Pb__MirrorSpec *spec_dup(const Vg__Pb__MirrorSpec *from) {
    size_t n = vg__pb__mirror_spec__get_packed_size(from);
    vg_auto_free uint8_t *bytes = vg_alloc(n + 1);
    if (!bytes)
        return NULL;
    vg__pb__mirror_spec__pack(from, bytes);
    return vg__pb__mirror_spec__unpack(NULL, n, bytes);
}

static bool same_machine(const ProtobufCBinaryData *a, const uint8_t *b) {
    return a->len == VG_MACHINE_BYTES && memcmp(a->data, b, VG_MACHINE_BYTES) == 0;
}

/* Whose files a client offers: all of them, or beside an environment the project's. */
static const ProtobufCBinaryData *offers_machine(const Vg__Pb__MirrorSpec *want) {
    return want->project.len ? &want->project : &want->machine;
}

static int check_offer(struct vg_call *call, struct vg_err *err) {
    const Vg__Pb__MirrorOffer *m = call->env->mirror_offer;
    struct vg_control *c = call->ctl;
    if (!m->task_id || !m->stream || m->machine.len != VG_MACHINE_BYTES)
        return vg_err_set(err, VG_INVALID,
                          "an offer of files names a task, a stream and a machine");
    if (m->spec && vg_spec_check_mirror(m->spec, err) < 0)
        return err->code;
    const struct vg_job *j = vg_job_get(c, m->task_id);
    bool other = j && strcmp(j->task->user, call->user->name) != 0;
    if (other || (!j && m->again)) /* kept for a minute it would only stand in others' way */
        return vg_err_set(err, VG_UNAVAILABLE, "the task is not known, or not yet again");
    if (j && vg_task_is_ended(j->task))
        return vg_err_set(err, VG_NOT_FOUND, "the task has ended");
    const Vg__Pb__MirrorSpec *want = j ? j->task->spec->mirror : NULL;
    if (want && !same_machine(offers_machine(want), m->machine.data))
        return vg_err_set(err, VG_CONFLICT, "the task wants the files of another machine");
    if (vg_map_get_u64(&c->offers, m->task_id))
        return 0; /* takes the older one's place */
    if (vg_map_len(&c->offers) >= VG_OFFERS_MAX ||
        offers_of(c, call->user->name) >= VG_OFFERS_USER_MAX)
        return vg_err_set(err, VG_NO_CAPACITY,
                          "too many offers of files wait for their tasks: try again in a moment");
    return 0;
}

static struct offer *offer_new(struct vg_call *call) {
    const Vg__Pb__MirrorOffer *m = call->env->mirror_offer;
    struct offer *o = vg_alloc(sizeof *o);
    if (!o)
        return NULL;
    o->task = m->task_id;
    o->since_usec = vg_now_usec();
    snprintf(o->user, sizeof o->user, "%s", call->user->name);
    memcpy(o->machine, m->machine.data, sizeof o->machine);
    o->spec = m->spec ? spec_dup(m->spec) : NULL;
    o->stream = vg_stream_new(call->peer->conn, m->stream, NULL, NULL);
    if (!o->stream || (m->spec && !o->spec)) {
        offer_free(o, VG_INTERNAL);
        return NULL;
    }
    return o;
}

void vg_api_mirror_offer(struct vg_call *call) {
    struct vg_control *c = call->ctl;
    struct vg_err err = VG_ERR_INIT;
    uint64_t task = call->env->mirror_offer->task_id;
    if (check_offer(call, &err) < 0) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    struct offer *o = offer_new(call);
    if (o)
        offer_drop(c, task, VG_CONFLICT);
    if (!o || vg_map_put_u64(&c->offers, task, o) < 0) {
        offer_free(o, VG_INTERNAL);
        vg_peer_error(call->peer, call->req, VG_LOST, "the offer's stream cannot be had");
        return;
    }
    vg_peer_ok(call->peer, call->req, NULL);
    struct vg_job *j = vg_job_get(c, task);
    vg_debug("task=%016llx files offered known=%d", (unsigned long long)task, j != NULL);
    if (j)
        vg_mlink_join(j);
}

/* The offer that waits for this job, or NULL. One that is no good is dropped. */
static struct offer *offer_for(struct vg_job *j) {
    struct offer *o = vg_map_get_u64(&j->ctl->offers, j->task->id);
    if (!o)
        return NULL;
    const Vg__Pb__MirrorSpec *want = j->task->spec->mirror;
    if (vg_stream_conn(o->stream) && strcmp(o->user, j->task->user) == 0 &&
        (!want || same_machine(offers_machine(want), o->machine)))
        return o;
    offer_drop(j->ctl, j->task->id, VG_CONFLICT);
    return NULL;
}

/* ------------------------------------------------------------------ links */

static void link_done(void *user) {
    struct link *l = user;
    vg_debug("task=%016llx link over", (unsigned long long)l->task);
    vg_list_remove(&l->in_all);
    free(l);
}

static struct link *link_new(struct vg_job *j, struct vg_nodelink *a) {
    struct vg_control *c = j->ctl;
    struct link *l = vg_alloc(sizeof *l);
    if (!l)
        return NULL;
    l->task = j->task->id;
    snprintf(l->user, sizeof l->user, "%s", j->task->user);
    l->up = vg_stream_new(a->peer->conn, 0, NULL, NULL);
    if (!l->up) {
        free(l);
        return NULL;
    }
    size_t wide = 0;
    vg_list_for_each (it, &c->links) {
        const struct link *other = vg_list_entry(it, struct link, in_all);
        wide += other->wide && strcmp(other->user, l->user) == 0;
    }
    l->wide = wide < VG_LINKS_WIDE;
    if (l->wide)
        vg_stream_widen(l->up, VG_LINK_WIDTH);
    vg_list_push_back(&c->links, &l->in_all);
    return l;
}

static void tell_agent(const struct vg_job *j, struct vg_nodelink *a, const struct link *l,
                       const ProtobufCBinaryData *machine) {
    VG_ENVELOPE(env);
    Vg__Pb__MirrorLink m = VG__PB__MIRROR_LINK__INIT;
    m.has_task_id = m.has_attempt = m.has_stream = m.has_machine = 1;
    m.task_id = j->task->id;
    m.attempt = j->task->attempt.number;
    m.stream = vg_stream_id(l->up);
    m.machine = *machine;
    m.who = j->task->who;
    env.body_case = B(MIRROR_LINK);
    env.mirror_link = &m;
    vg_peer_send(a->peer, 0, false, &env);
}

static bool pool_mirrors(const struct vg_job *j) {
    const struct vg_pool_conf *pool = vg_conf_pool(&j->ctl->conf, vg_task_pool(j->task));
    return pool && pool->mirror;
}

/* The node that has the task's current attempt and can be told so. */
static struct vg_nodelink *node_of(const struct vg_job *j) {
    struct vg_nodelink *a = vg_nodelink_get(j->ctl, j->task->attempt.node);
    bool there = vg_nodelink_hears(a) && a->reported;
    return there && j->sent && j->task->spec->mirror && pool_mirrors(j) ? a : NULL;
}

int vg_mlink_join_fd(struct vg_job *j, int fd) {
    struct vg_nodelink *a = node_of(j);
    struct link *l = a ? link_new(j, a) : NULL;
    if (!l) {
        close(fd);
        return a ? -ENOMEM : -ENOTCONN;
    }
    tell_agent(j, a, l, &j->task->spec->mirror->machine);
    int r = vg_pump_fd(j->ctl->loop, fd, l->up, link_done, l);
    if (r < 0)
        link_done(l);
    return r;
}

static void begin_held(struct vg_job *j);

/* Whatever is offered for a pinned task goes into the store, placed or not. */
static void pin_offered(struct vg_job *j) {
    const Vg__Pb__MirrorSpec *m = j->task->spec->mirror;
    struct offer *o = m && m->pin ? offer_for(j) : NULL;
    if (!o)
        return;
    struct vg_stream *s = vg_take_ptr(o->stream);
    offer_drop(j->ctl, j->task->id, VG_OK);
    vg_envs_pin(j, s);
}

void vg_mlink_join(struct vg_job *j) {
    pin_offered(j);
    struct offer *o = offer_for(j);
    if (!o)
        return;
    if (j->mirror_wait) { /* comes back here when it is sent */
        begin_held(j);
        return;
    }
    struct vg_nodelink *a = node_of(j);
    struct link *l = a ? link_new(j, a) : NULL;
    if (!l)
        return; /* it waits on */
    struct vg_stream *down = vg_take_ptr(o->stream);
    offer_drop(j->ctl, j->task->id, VG_OK);
    vg_debug("task=%016llx linked to node=%s", (unsigned long long)l->task, a->node->name);
    tell_agent(j, a, l, offers_machine(j->task->spec->mirror));
    vg_mpeer_used(j, a);
    if (l->wide)
        vg_stream_widen(down, VG_LINK_WIDTH);
    if (vg_pump_streams(down, l->up, link_done, l) < 0)
        link_done(l);
}

/* ------------------------------------------------------------------ tasks that wait for files */

static bool other_machine(const struct vg_job *j, const struct vg_nodelink *a) {
    const char *here = j->ctl->machine_id, *there = a->node->machine_id;
    return !a->local && here[0] && there && *there && strcmp(here, there) != 0;
}

/* Its client sits at the control plane's own machine, and its files are there, not at the node. */
static bool lacks_files(const struct vg_job *j, const struct vg_nodelink *a) {
    const struct vg_task *t = j->task;
    return !t->spec->mirror && !t->spec->node_files && t->who && t->who->local &&
           !t->spec->parent && t->spec->interactive && !t->spec->detached && pool_mirrors(j) &&
           other_machine(j, a);
}

static bool client_mirrors(const struct vg_job *j) {
    vg_list_for_each (it, &j->follows) {
        const struct vg_follow *f = vg_list_entry(it, struct vg_follow, on_job);
        if (f->kind == VG_FOLLOW_RUN && f->owner && f->mirrors)
            return true;
    }
    return false;
}

static void waited_long(void *user) {
    struct vg_job *j = user;
    char text[256];
    bool first = j->mirror_waited == 0;
    uint64_t left = VG_MIRROR_WAIT_USEC - VG_MIRROR_TELL_USEC;
    j->mirror_wait = NULL;
    j->mirror_waited = VG_MIRROR_TELL_USEC;
    if (first && (j->mirror_wait = vg_timer_start(j->ctl->loop, left, waited_long, j))) {
        snprintf(text, sizeof text,
                 "node %s is another machine: waiting until this one's files are offered to it",
                 vg_nodelink_name(j->ctl, j->task->attempt.node));
        vg_job_event(j, VG__PB__RUN_EVENT__KIND__QUEUED, text);
        return;
    }
    snprintf(text, sizeof text,
             "node %s is another machine, and this one's files were not offered to it: look at "
             "'virga mirror status', or use a pool of this machine",
             vg_nodelink_name(j->ctl, j->task->attempt.node));
    vg_job_end(j, vg_reason_exit(VG_UNAVAILABLE), VG_UNAVAILABLE, text);
}

/* An offer that says what the task's own request left out. */
static bool take_spec(struct vg_job *j) {
    struct offer *o = offer_for(j);
    if (!o || !o->spec || !same_machine(&o->spec->machine, o->machine))
        return false;
    j->task->spec->mirror = vg_take_ptr(o->spec);
    vg_job_changed(j);
    return true;
}

bool vg_mlink_holds(struct vg_job *j, struct vg_nodelink *a) {
    if (j->mirror_wait)
        return true;
    if (!lacks_files(j, a) || take_spec(j))
        return false;
    if (!client_mirrors(j)) {
        char text[256];
        snprintf(text, sizeof text,
                 "the task would run on node %s, which is another machine, and this client cannot "
                 "offer its files there: install the same version of virga here",
                 a->node->name);
        vg_job_end(j, vg_reason_exit(VG_UNSUPPORTED), VG_UNSUPPORTED, text);
        return true;
    }
    j->mirror_waited = 0;
    j->mirror_wait = vg_timer_start(j->ctl->loop, VG_MIRROR_TELL_USEC, waited_long, j);
    if (!j->mirror_wait) {
        vg_job_lost(j, false, "there was not enough memory to wait for its files");
        return true;
    }
    vg_chan_park(&j->chan, j->ctl->loop);
    vg_job_event(j, VG__PB__RUN_EVENT__KIND__NEED_MIRROR, NULL);
    return true;
}

static void begin_held(struct vg_job *j) {
    struct vg_nodelink *a = vg_nodelink_get(j->ctl, j->task->attempt.node);
    if (!take_spec(j))
        return;
    vg_timer_stop(&j->mirror_wait);
    if (a && a->peer && a->peer->conn)
        vg_start_send(j, a);
    else
        vg_job_lost(j, false, "its node left");
}

void vg_mlink_over(struct vg_job *j) {
    vg_timer_stop(&j->mirror_wait);
    if (vg_task_is_ended(j->task))
        offer_drop(j->ctl, j->task->id, VG_OK);
}

/* ------------------------------------------------------------------ housekeeping */

/* Every offer that waits: linked if it can be, dropped if it never will. Collected first, because
   either takes it out of the map. */
static void look_at_offers(struct vg_control *c, uint64_t now) {
    uint64_t all[256];
    size_t n = 0;
    vg_map_for_each (s, &c->offers)
        if (n < VG_COUNT(all))
            all[n++] = ((struct offer *)s->value)->task;
    for (size_t i = 0; i < n; i++) {
        struct offer *o = vg_map_get_u64(&c->offers, all[i]);
        struct vg_job *j = vg_job_get(c, all[i]);
        if (o && (!vg_stream_conn(o->stream) || (!j && now - o->since_usec > VG_OFFER_USEC)))
            offer_drop(c, all[i], VG_TIMEOUT);
        else if (o && j)
            vg_mlink_join(j);
    }
}

void vg_mlink_resume(struct vg_control *c) {
    look_at_offers(c, vg_now_usec());
}

void vg_mlink_tick(struct vg_control *c) {
    uint64_t now = vg_now_usec();
    look_at_offers(c, now);
    vg_mpeer_tick(c);
    vg_list_for_each_safe (it, &c->links) {
        struct link *l = vg_list_entry(it, struct link, in_all);
        const struct vg_job *j = vg_job_get(c, l->task);
        if (j && !vg_task_is_ended(j->task))
            continue;
        if (!l->until_usec)
            l->until_usec = now + VG_LINK_LINGER_USEC;
        else if (now > l->until_usec)
            vg_pump_stop(l->up, VG_OK);
    }
}

void vg_mlink_done(struct vg_control *c) {
    vg_map_for_each (s, &c->offers)
        offer_free(s->value, VG_LOST);
    vg_map_done(&c->offers);
    vg_mpeer_done(c);
    vg_list_for_each_safe (it, &c->links)
        link_done(vg_list_entry(it, struct link, in_all));
}
