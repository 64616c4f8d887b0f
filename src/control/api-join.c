/* How machines become nodes: an invitation, a join with it, and certificates that are renewed. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/audit.h"
#include "control/later.h"
#include "control/nodes.h"
#include "control/persist.h"

#include <openssl/crypto.h>
#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define INVITE_USEC (24 * 3600 * VG_USEC)
#define INVITE_MAX_USEC (30 * INVITE_USEC)
#define CSR_MAX 16384

/* ------------------------------------------------------------------ invitations */

static char *join_labels(char *const *label, size_t n) {
    struct vg_buf b = {0};
    for (size_t i = 0; i < n; i++)
        if (!strchr(label[i], '\n') && vg_buf_printf(&b, "%s\n", label[i]) < 0)
            break;
    char *out = vg_strndup(b.base ? (char *)vg_buf_data(&b) : "", vg_buf_len(&b));
    vg_buf_done(&b);
    return out;
}

void vg_api_node_invite(struct vg_call *call) {
    const Vg__Pb__InviteReq *m = call->env->node_invite;
    struct vg_control *c = call->ctl;
    uint64_t ttl = m->ttl_usec ? VG_MIN(m->ttl_usec, INVITE_MAX_USEC) : INVITE_USEC;
    uint64_t now = vg_wall_usec();
    struct vg_token t;
    uint8_t hash[32];
    vg_auto_free char *labels = join_labels(m->label, VG_MIN(m->n_label, VG_CONF_LIST_MAX));
    struct vg_later *l = vg_later_new(call);
    vg_token_new("vgj", c->ca.fingerprint, &t);
    vg_token_hash(&t, hash);
    struct vg_join_row row = {.id = t.id,
                              .hash = {hash, sizeof hash},
                              .labels = labels,
                              .created_usec = now,
                              .expires_usec = now + ttl};
    if (l) {
        vg_token_format(&t, l->token);
        memcpy(l->id, t.id, sizeof l->id);
    }
    if (!l || !labels || vg_store_add_join(c->store, &row, vg_later_stored, l) < 0) {
        free(l);
        vg_peer_error(call->peer, call->req, VG_INTERNAL, "the control plane is out of memory");
        return;
    }
    vg_audit(call, "invitation %s made", t.id);
    OPENSSL_cleanse(&t, sizeof t);
}

/* ------------------------------------------------------------------ joining */

struct joining {
    struct vg_control *ctl;
    uint64_t peer;
    uint32_t req;
    uint64_t node;
    char *name; /* owned, as below */
    char *labels;
    uint8_t *csr;
    size_t csr_len;
};

static void joining_free(struct joining *j) {
    free(j->name);
    free(j->labels);
    free(j->csr);
    free(j);
}

static int refuse(struct vg_err *err) {
    return vg_err_set(err, VG_UNAUTHENTICATED,
                      "the join token is not valid: it was used, has expired or belongs to another "
                      "cloud; make a new one with 'virga node invite'");
}

struct lookup {
    const struct vg_token *token;
    char *labels;
    bool good;
};

static int check_join(void *arg, const struct vg_join_row *row) {
    struct lookup *l = arg;
    if (strcmp(row->id, l->token->id) != 0)
        return 0;
    l->good = row->hash.len == 32 && vg_token_check(l->token, row->hash.data) == 0 && !row->node &&
              row->expires_usec > vg_wall_usec();
    l->labels = l->good ? vg_strdup(row->labels ? row->labels : "") : NULL;
    return 1;
}

static void send_joined(struct joining *j, struct vg_peer *p, const char *cert) {
    char id[VG_ID_LEN + 1];
    VG_ENVELOPE(env);
    Vg__Pb__JoinOk m = VG__PB__JOIN_OK__INIT;
    vg_id_format(j->node, id);
    m.node_id = id;
    m.has_cert_pem = m.has_ca_pem = 1;
    m.cert_pem = (ProtobufCBinaryData){.data = (uint8_t *)cert, .len = strlen(cert)};
    m.ca_pem = (ProtobufCBinaryData){.data = (uint8_t *)j->ctl->ca.ca_pem,
                                     .len = strlen(j->ctl->ca.ca_pem)};
    env.body_case = B(JOIN_OK);
    env.join_ok = &m;
    vg_peer_send(p, j->req, false, &env);
}

/* The token is spent: the node exists from now on, even if its answer is lost on the way. */
static int admit(struct joining *j, char **ret_cert, struct vg_err *err) {
    int r = vg_authority_sign_node(&j->ctl->ca, j->node, j->csr, j->csr_len,
                                   j->ctl->conf.node_cert_usec, ret_cert, err);
    struct vg_nodelink *a = r < 0 ? NULL : vg_nodelink_new(j->ctl, j->node, j->name);
    if (r >= 0 && !a)
        r = vg_err_sys(err, ENOMEM, "cannot take the node in");
    if (r < 0)
        return r;
    a->node->joined_usec = vg_wall_usec();
    a->node->cert_expires_usec = a->node->joined_usec + j->ctl->conf.node_cert_usec;
    vg_persist_set_labels(a, j->labels);
    vg_nodelink_update(a);
    vg_persist_node(a, VG_STORE_DURABLE);
    return 0;
}

static void token_spent(void *arg, int result) {
    struct joining *j = arg;
    struct vg_peer *p = vg_peer_find(j->ctl, j->peer);
    struct vg_err err = VG_ERR_INIT;
    vg_auto_free char *cert = NULL;
    int r = result < 0 ? refuse(&err) : admit(j, &cert, &err);
    if (r >= 0)
        vg_audit_note(j->ctl, "", p ? p->who.from : "", "node %s joined as %016llx", j->name,
                      (unsigned long long)j->node);
    if (p && r < 0)
        vg_peer_fail(p, j->req, &err);
    else if (p)
        send_joined(j, p, cert);
    joining_free(j);
}

void vg_api_join(struct vg_call *call) {
    const Vg__Pb__JoinReq *m = call->env->join;
    struct vg_control *c = call->ctl;
    struct vg_err err = VG_ERR_INIT;
    struct vg_token t;
    struct lookup l = {.token = &t};
    int r = 0;
    if (!m->token || vg_token_parse(m->token, &t) < 0 || strcmp(t.prefix, "vgj") != 0)
        r = vg_err_set(&err, VG_UNAUTHENTICATED,
                       "this is not a join token: it begins with 'vgj_' and is made by 'virga node "
                       "invite'");
    else if (vg_store_load_joins(c->store, check_join, &l) < 0 || !l.good)
        r = refuse(&err);
    else if (!m->has_csr_der || m->csr_der.len > CSR_MAX)
        r = vg_err_set(&err, VG_INVALID, "the node sent no certificate request");
    struct joining *j = r < 0 ? NULL : vg_alloc(sizeof *j);
    if (j) {
        const char *name = m->name && vg_conf_name_valid(m->name) ? m->name : "node";
        *j = (struct joining){.ctl = c,
                              .peer = call->peer->serial,
                              .req = call->req,
                              .node = vg_id_new(),
                              .name = vg_strdup(name),
                              .labels = vg_take_ptr(l.labels),
                              .csr = vg_memdup(m->csr_der.data, m->csr_der.len),
                              .csr_len = m->csr_der.len};
    }
    free(l.labels);
    if (r >= 0 && (!j || !j->name || !j->csr ||
                   vg_store_use_join(c->store, t.id, j->node, vg_wall_usec(), token_spent, j) < 0))
        r = vg_err_sys(&err, ENOMEM, "cannot take the node in");
    if (r < 0) {
        if (j)
            joining_free(j);
        vg_peer_fail(call->peer, call->req, &err);
    }
    OPENSSL_cleanse(&t, sizeof t);
}

void vg_api_cert_renew(struct vg_call *call) {
    const Vg__Pb__CertReq *m = call->env->cert_renew;
    struct vg_control *c = call->ctl;
    struct vg_nodelink *a = call->peer->agent;
    struct vg_err err = VG_ERR_INIT;
    vg_auto_free char *cert = NULL;
    int r = m->has_csr_der && m->csr_der.len <= CSR_MAX
                ? vg_authority_sign_node(&c->ca, a->node->id, m->csr_der.data, m->csr_der.len,
                                         c->conf.node_cert_usec, &cert, &err)
                : vg_err_set(&err, VG_INVALID, "the node sent no certificate request");
    if (r < 0) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    a->node->cert_expires_usec = vg_wall_usec() + c->conf.node_cert_usec;
    vg_persist_node(a, VG_STORE_LAZY);
    vg_audit_note(c, "", call->peer->who.from, "node %s: certificate renewed", a->node->name);
    VG_ENVELOPE(env);
    Vg__Pb__CertOk ok = VG__PB__CERT_OK__INIT;
    ok.has_cert_pem = ok.has_ca_pem = 1;
    ok.cert_pem = (ProtobufCBinaryData){.data = (uint8_t *)cert, .len = strlen(cert)};
    ok.ca_pem = (ProtobufCBinaryData){.data = (uint8_t *)c->ca.ca_pem, .len = strlen(c->ca.ca_pem)};
    env.body_case = B(CERT_OK);
    env.cert_ok = &ok;
    vg_peer_send(call->peer, call->req, false, &env);
}
