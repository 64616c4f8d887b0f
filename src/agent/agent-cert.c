/* Who this node is: node/{id,node.key,node.crt,ca.crt,control}. A local node has only an id. The
   private key never leaves the machine. Loop thread. */
#include "agent/agent-int.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "net/tls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_MAX (64u << 10)

static char *load(struct vg_agent *a, const char *name) {
    vg_auto_free char *path = vg_agent_path(a, name);
    char *text = NULL;
    size_t len;
    if (!path || vg_read_file(path, FILE_MAX, &text, &len) < 0)
        return NULL;
    return text;
}

static int save(struct vg_agent *a, const char *name, const char *text, struct vg_err *err) {
    vg_auto_free char *path = vg_agent_path(a, name);
    int r = path ? vg_write_file(path, text, strlen(text), 0600) : -ENOMEM;
    return r < 0 ? vg_err_sys(err, r, "cannot write %s", name) : 0;
}

int vg_cert_set_id(struct vg_agent *a, const char *id) {
    struct vg_err err = VG_ERR_INIT;
    if (strcmp(a->node_id, id) == 0)
        return 0;
    snprintf(a->node_id, sizeof(a->node_id), "%s", id);
    return save(a, "id", a->node_id, &err);
}

static int load_id(struct vg_agent *a, struct vg_err *err) {
    vg_auto_free char *text = load(a, "id");
    if (text && *text) {
        text[strcspn(text, "\n")] = 0;
        snprintf(a->node_id, sizeof(a->node_id), "%s", text);
        return 0;
    }
    vg_id_format(vg_id_new(), a->node_id);
    return save(a, "id", a->node_id, err);
}

/* When two thirds of what is left of the certificate have passed. */
static void plan_renewal(struct vg_agent *a) {
    struct vg_err err = VG_ERR_INIT;
    uint64_t expires, now = vg_wall_usec();
    a->link.renew_wall_usec = 0;
    if (vg_cert_expires(a->cert_pem, &expires, &err) == 0)
        a->link.renew_wall_usec = expires > now ? now + (expires - now) / 3 * 2 : now;
}

/* A context that accepts exactly this node's CA and shows its certificate. */
static int make_tls(struct vg_agent *a, struct vg_err *err) {
    uint8_t fingerprint[VG_FINGERPRINT];
    struct vg_tls *tls;
    int r = vg_ca_fingerprint(a->ca_pem, fingerprint, err);
    if (r == 0)
        r = vg_tls_client_new(fingerprint, a->cert_pem, a->key_pem, NULL, &tls, err);
    if (r < 0)
        return r;
    vg_tls_unref(a->link.tls);
    a->link.tls = tls;
    plan_renewal(a);
    return 0;
}

static int prepare_join(struct vg_agent *a, struct vg_err *err) {
    struct vg_token token;
    if (!a->conf.token)
        return vg_err_set(err, VG_INVALID,
                          "this machine has not joined a cloud yet: give --join TOKEN@HOST:PORT, "
                          "as `virga node invite` prints it");
    if (vg_token_parse(a->conf.token, &token) < 0 || strcmp(token.prefix, "vgj") != 0)
        return vg_err_set(err, VG_INVALID,
                          "the join token is not complete: it starts with vgj_ and is made by "
                          "`virga node invite`");
    if (!a->key_pem) {
        int r = vg_key_create(&a->key_pem, err);
        if (r == 0)
            r = save(a, "node.key", a->key_pem, err);
        if (r < 0)
            return r;
    }
    a->link.joining = true;
    return vg_tls_client_new_prefix(token.ca, NULL, NULL, NULL, &a->link.tls, err);
}

static bool certificate_holds(struct vg_agent *a) {
    struct vg_err err = VG_ERR_INIT;
    uint64_t expires;
    return a->cert_pem && a->key_pem && a->ca_pem &&
           vg_cert_expires(a->cert_pem, &expires, &err) == 0 && expires > vg_wall_usec();
}

/* A token for another cloud than the one this node belongs to means: join that one. */
static bool other_cloud(struct vg_agent *a) {
    struct vg_token token;
    struct vg_err err = VG_ERR_INIT;
    uint8_t fingerprint[VG_FINGERPRINT];
    char hex[33];
    if (!a->conf.token || vg_token_parse(a->conf.token, &token) < 0 ||
        vg_ca_fingerprint(a->ca_pem, fingerprint, &err) < 0)
        return false;
    for (size_t i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", fingerprint[i]);
    return strcmp(hex, token.ca) != 0;
}

int vg_cert_load(struct vg_agent *a, struct vg_err *err) {
    int r = load_id(a, err);
    if (r < 0 || a->link.local)
        return r;
    a->key_pem = load(a, "node.key");
    a->cert_pem = load(a, "node.crt");
    a->ca_pem = load(a, "ca.crt");
    if (certificate_holds(a) && !other_cloud(a))
        return make_tls(a, err);
    if (a->cert_pem && !a->conf.token)
        return vg_err_set(err, VG_UNAUTHENTICATED,
                          "this node's certificate has expired: invite it again with `virga node "
                          "invite` and start the agent with --join");
    return prepare_join(a, err);
}

int vg_cert_request(struct vg_agent *a, uint8_t **ret_der, size_t *ret_len, struct vg_err *err) {
    char cn[80];
    snprintf(cn, sizeof(cn), "node:%s", a->node_id);
    return vg_csr_create(a->key_pem, cn, ret_der, ret_len, err);
}

static int keep(struct vg_agent *a, const ProtobufCBinaryData *cert, const ProtobufCBinaryData *ca,
                struct vg_err *err) {
    vg_auto_free char *cert_pem = vg_strndup((const char *)cert->data, cert->len);
    vg_auto_free char *ca_pem =
        ca->len ? vg_strndup((const char *)ca->data, ca->len) : vg_strdup(a->ca_pem);
    if (!cert_pem || !ca_pem)
        return vg_err_set(err, VG_PROTOCOL, "the control plane sent no certificate");
    free(a->cert_pem);
    free(a->ca_pem);
    a->cert_pem = vg_take_ptr(cert_pem);
    a->ca_pem = vg_take_ptr(ca_pem);
    int r = make_tls(a, err);
    if (r == 0)
        r = save(a, "ca.crt", a->ca_pem, err);
    return r == 0 ? save(a, "node.crt", a->cert_pem, err) : r;
}

int vg_cert_joined(struct vg_agent *a, const Vg__Pb__JoinOk *ok, struct vg_err *err) {
    int r = keep(a, &ok->cert_pem, &ok->ca_pem, err);
    if (r == 0)
        r = save(a, "control", a->link.address, err);
    if (r == 0 && ok->node_id && *ok->node_id)
        r = vg_cert_set_id(a, ok->node_id);
    return r;
}

int vg_cert_renewed(struct vg_agent *a, const Vg__Pb__CertOk *ok, struct vg_err *err) {
    return keep(a, &ok->cert_pem, &ok->ca_pem, err);
}
