/* Small differences between what REST takes and what the wire's requests want, and between answers.
 */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/rest-int.h"

#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define KEPT "task/" /* names of what tasks changed begin so (fs/store/keep.h) */

static int no_memory(ProtobufCMessage *taken, struct vg_err *err) {
    protobuf_c_message_free_unpacked(taken, NULL);
    return vg_err_sys(err, ENOMEM, "cannot take the request");
}

/* A task with what it was submitted as, so that it can be submitted again. */
int vg_rest_fill_get(struct vg_rest_call *call, ProtobufCMessage *taken, ProtobufCMessage **ret,
                     struct vg_err *err) {
    Vg__Pb__TaskRef *m = (Vg__Pb__TaskRef *)taken;
    (void)call, (void)err;
    m->has_spec = m->spec = true;
    *ret = taken;
    return 0;
}

int vg_rest_fill_price(struct vg_rest_call *call, ProtobufCMessage *taken, ProtobufCMessage **ret,
                       struct vg_err *err) {
    Vg__Pb__PriceSet *m = (Vg__Pb__PriceSet *)vg_view_new(&vg__pb__price_set__descriptor);
    (void)call;
    if (!m)
        return no_memory(taken, err);
    m->price = (Vg__Pb__Price *)taken;
    *ret = &m->base;
    return 0;
}

/* What is to be done stands in the route. */
int vg_rest_fill_op(struct vg_rest_call *call, ProtobufCMessage *taken, ProtobufCMessage **ret,
                    struct vg_err *err) {
    (void)err;
    if (taken->descriptor == &vg__pb__env_req__descriptor) {
        Vg__Pb__EnvReq *m = (Vg__Pb__EnvReq *)taken;
        m->has_op = true;
        m->op = (Vg__Pb__EnvReq__Op)call->route->op;
    } else {
        Vg__Pb__LoginReq *m = (Vg__Pb__LoginReq *)taken;
        m->has_op = true;
        m->op = (Vg__Pb__LoginReq__Op)call->route->op;
    }
    *ret = taken;
    return 0;
}

int vg_rest_fill_node_remove(struct vg_rest_call *call, ProtobufCMessage *taken,
                             ProtobufCMessage **ret, struct vg_err *err) {
    Vg__Pb__NodeSet *m = (Vg__Pb__NodeSet *)taken;
    (void)call, (void)err;
    m->has_remove = m->remove = true;
    *ret = taken;
    return 0;
}

int vg_rest_fill_verify(struct vg_rest_call *call, ProtobufCMessage *taken, ProtobufCMessage **ret,
                        struct vg_err *err) {
    Vg__Pb__AuditQuery *m = (Vg__Pb__AuditQuery *)taken;
    (void)call, (void)err;
    m->has_verify = m->verify = true;
    *ret = taken;
    return 0;
}

/* ------------------------------------------------------------------ answers */

/* How many there were stands in the text. */
void vg_rest_told_cancelled(struct vg_rest_call *call, const Vg__Pb__Envelope *env, bool more) {
    Vg__Pb__TaskList list = VG__PB__TASK_LIST__INIT;
    (void)more;
    if (vg_rest_failed(call, env))
        return;
    if (env->body_case == B(OK) && env->ok->text)
        list.has_total = vg_parse_u64(env->ok->text, &list.total) == 0;
    vg_rest_json(call, 200, vg_view_json(call->route->answer, &list));
}

/* A new node needs the address, too. */
void vg_rest_told_invite(struct vg_rest_call *call, const Vg__Pb__Envelope *env, bool more) {
    (void)more;
    if (vg_rest_failed(call, env))
        return;
    Vg__Pb__TokenNew m = VG__PB__TOKEN_NEW__INIT;
    m.token = env->body_case == B(TOKEN_NEW) ? env->token_new->token : NULL;
    m.id = call->ctl->address;
    vg_rest_json(call, 201, vg_view_json(call->route->answer, &m));
}

/* That a stranger's server does not answer is no fault of this one. */
void vg_rest_told_hook_test(struct vg_rest_call *call, const Vg__Pb__Envelope *env, bool more) {
    struct vg_err err = VG_ERR_INIT;
    if (env->body_case != B(ERROR) ||
        vg_reason_http(vg_reason_from_wire(env->error->reason)) < 500) {
        vg_rest_told(call, env, more);
        return;
    }
    vg_err_set(&err, VG_CONFLICT, "%s", env->error->text ? env->error->text : "");
    vg_rest_fail(call, &err);
}

/* One, or all but what tasks changed, which is kept like environments and is none. */
void vg_rest_told_envs(struct vg_rest_call *call, const Vg__Pb__Envelope *env, bool more) {
    if (env->body_case != B(ENVS)) {
        vg_rest_told(call, env, more);
        return;
    }
    Vg__Pb__EnvList list = *env->envs;
    if (call->part[0] && list.n_env == 1) {
        vg_rest_json(call, 200, vg_view_json(call->route->answer, list.env[0]));
        return;
    }
    vg_auto_free Vg__Pb__EnvInfo **some = vg_alloc((list.n_env + 1) * sizeof *some);
    list.n_env = 0;
    for (size_t i = 0; some && i < env->envs->n_env; i++) {
        const char *name = env->envs->env[i]->name;
        if (name && strncmp(name, KEPT, strlen(KEPT)) != 0)
            some[list.n_env++] = env->envs->env[i];
    }
    list.env = some;
    vg_rest_json(call, 200, vg_view_json(call->route->answer, &list));
}
