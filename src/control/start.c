/* The order to begin an attempt: what a node must know of a task to run it. */
#include "control/start.h"

#include "base/util.h"
#include "control/env.h"
#include "control/gang.h"
#include "control/member.h"
#include "control/mirror.h"
#include "control/node-gpus.h"
#include "control/nodes.h"
#include "control/peer.h"
#include "control/place.h"
#include "control/secrets.h"
#include "control/sessions.h"

#include <string.h>

static size_t gpu_list(uint64_t set, uint32_t out[static VG_NODE_GPUS_MAX]) {
    size_t n = 0;
    for (uint32_t i = 0; i < VG_NODE_GPUS_MAX; i++)
        if (set & 1ULL << i)
            out[n++] = i;
    return n;
}

static size_t shared_paths(const struct vg_pool_conf *p, ProtobufCBinaryData *out, size_t max) {
    size_t n = 0;
    for (; p && n < p->shared.n && n < max; n++)
        out[n] = (ProtobufCBinaryData){.data = (uint8_t *)p->shared.item[n],
                                       .len = strlen(p->shared.item[n])};
    return n;
}

/* The client that waits for it lives on another machine: give it a way around us. */
static void make_ticket(struct vg_job *j, struct vg_nodelink *a, Vg__Pb__Start *m) {
    if (!a->direct_port || !j->chan.remote)
        return;
    vg_random(j->ticket, sizeof j->ticket);
    j->has_ticket = true;
    m->has_ticket = 1;
    m->ticket = (ProtobufCBinaryData){.data = j->ticket, .len = sizeof j->ticket};
}

void vg_start_send(struct vg_job *j, struct vg_nodelink *a) {
    struct vg_control *c = j->ctl;
    struct vg_task *t = j->task;
    const struct vg_pool_conf *pool = vg_conf_pool(&c->conf, vg_task_pool(t));
    uint32_t gpus[VG_NODE_GPUS_MAX];
    ProtobufCBinaryData paths[VG_CONF_LIST_MAX];
    char token[VG_TASK_TOKEN_MAX];
    struct vg_chan_out io;
    VG_ENVELOPE(env);
    Vg__Pb__Start m = VG__PB__START__INIT;
    Vg__Pb__Resources grant = vg_res_to_pb(vg_task_held(t));
    Vg__Pb__TaskSpec spec = *t->spec; /* what is a member's own is added */
    struct vg_member_env more;
    struct vg_given secrets;
    struct vg_err err = VG_ERR_INIT;

    if (vg_secrets_open(c, t, &secrets, &err) < 0) {
        vg_job_end(j, vg_reason_exit(err.reason), err.reason, err.msg);
        return;
    }
    vg_member_fill(t, &spec, &more);
    if (pool && !pool->mirror)
        spec.mirror = NULL;
    if (t->share.milli) {
        spec.has_gpu_hard = 1;
        spec.gpu_hard = t->share.hard;
        m.has_gpu_turn_usec = 1;
        m.gpu_turn_usec = pool ? pool->gpu_turn_usec : 0;
    }
    make_ticket(j, a, &m);
    vg_job_forget_gpu_use(j);
    free(vg_take_ptr(j->wiped));
    vg_chan_join(&j->chan, a, c->loop, &io); /* a channel that is gone: the client comes again */
    bool has_token = vg_task_token_make(c->ca.task_key, t->id, t->who, token) == 0;
    m.has_task_id = m.has_attempt = m.has_stream = m.has_fd_mask = m.has_created_usec = 1;
    m.task_id = t->id;
    m.attempt = t->attempt.number;
    m.spec = &spec;
    m.extra_env = more.env;
    m.n_extra_env = more.n;
    m.who = t->who;
    m.grant = &grant;
    m.network = (char *)vg_network_name(pool ? pool->network : VG_NETWORK_NAT);
    m.class_name = (char *)vg_pool_class_name(pool ? pool->class : VG_CLASS_DEDICATED);
    /* Adapters know nothing of shares: they are for whoever has whole cards. */
    m.rdma = t->grant.gpus && (!pool || (pool->rdma && pool->class != VG_CLASS_MIG));
    m.has_rdma = m.rdma;
    m.n_gpu = gpu_list(t->gpus, gpus);
    m.gpu = gpus;
    m.stream = io.stream;
    m.fd_mask = io.fd_mask;
    m.session_key = j->session ? j->session->key : NULL;
    m.task_token = has_token ? token : NULL;
    m.created_usec = t->created_usec;
    m.n_shared_path = shared_paths(pool, paths, VG_COUNT(paths));
    m.shared_path = paths;
    m.secret = secrets.list;
    m.n_secret = secrets.n;
    vg_gang_gate(j, &m);
    env.body_case = VG__PB__ENVELOPE__BODY_START;
    env.start = &m;
    j->sent = true;
    j->sent_usec = vg_now_usec();
    vg_conn_send(a->peer->conn, &env, io.fds, io.n_fds);
    vg_member_env_done(&more);
    vg_given_done(&secrets);
    vg_job_event(j, VG__PB__RUN_EVENT__KIND__PLACED, NULL);
    vg_mlink_join(j);
    if (vg_envs_is_stored(j))
        vg_envs_link(j);
}
