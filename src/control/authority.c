/* The certificate authority on disk. What always holds: ca.key and task.key are readable by the
   control plane's user only; the server's key never leaves the process and its file. */
#include "control/authority.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>

#define PEM_MAX (64u << 10)
#define MAC_HEX 32

static int load(const struct vg_home *home, const char *name, char **ret, struct vg_err *err) {
    vg_auto_free char *path = vg_home_file(home, name);
    size_t n = 0;
    int r = path ? vg_read_file(path, PEM_MAX, ret, &n) : -ENOMEM;
    return r < 0 && r != -ENOENT ? vg_err_sys(err, r, "cannot read %s/%s", home->control, name) : r;
}

static int save(const struct vg_home *home, const char *name, const void *data, size_t n,
                mode_t mode, struct vg_err *err) {
    vg_auto_free char *path = vg_home_file(home, name);
    int r = path ? vg_write_file(path, data, n, mode) : -ENOMEM;
    return r < 0 ? vg_err_sys(err, r, "cannot write %s/%s", home->control, name) : 0;
}

/* The key is written first: a certificate on disk always has its key. */
static int open_ca(struct vg_authority *a, const struct vg_home *home, const char *cloud,
                   struct vg_err *err) {
    int r = load(home, "ca.crt", &a->ca_pem, err);
    if (r == 0) {
        r = load(home, "ca.key", &a->ca_key_pem, err);
        return r == -ENOENT
                   ? vg_err_set(err, VG_INTERNAL,
                                "%s/ca.key is missing: restore it from a backup, or remove "
                                "ca.crt to make a new authority (every node joins again)",
                                home->control)
                   : r;
    }
    if (r != -ENOENT)
        return r;
    r = vg_ca_create(cloud, &a->ca_pem, &a->ca_key_pem, err);
    if (r >= 0)
        r = save(home, "ca.key", a->ca_key_pem, strlen(a->ca_key_pem), 0600, err);
    if (r >= 0)
        r = save(home, "ca.crt", a->ca_pem, strlen(a->ca_pem), 0644, err);
    return r;
}

static int open_task_key(struct vg_authority *a, const struct vg_home *home, struct vg_err *err) {
    vg_auto_free char *path = vg_home_file(home, "task.key");
    vg_auto_free char *data = NULL;
    size_t n = 0;
    if (path && vg_read_file(path, 64, &data, &n) == 0 && n == sizeof a->task_key) {
        memcpy(a->task_key, data, sizeof a->task_key);
        return 0;
    }
    vg_random(a->task_key, sizeof a->task_key);
    return save(home, "task.key", a->task_key, sizeof a->task_key, 0600, err);
}

static int use_server_cert(struct vg_authority *a, const char *cert, const char *key,
                           struct vg_err *err) {
    uint64_t expires = 0;
    struct vg_tls *tls = NULL;
    int r = vg_cert_expires(cert, &expires, err);
    if (r >= 0)
        r = vg_tls_server_new(cert, key, a->ca_pem, &tls, err);
    if (r < 0)
        return r;
    vg_tls_unref(a->tls);
    a->tls = tls;
    a->server_expires_usec = expires;
    return 0;
}

static int make_server_cert(struct vg_authority *a, const struct vg_home *home,
                            struct vg_err *err) {
    vg_auto_free char *key = NULL, *cert = NULL;
    vg_auto_free uint8_t *csr = NULL;
    size_t len = 0;
    int r = vg_key_create(&key, err);
    if (r >= 0)
        r = vg_csr_create(key, "virgad", &csr, &len, err);
    if (r >= 0)
        r = vg_ca_sign(a->ca_pem, a->ca_key_pem, csr, len, "virgad", VG_CERT_SERVER_USEC, &cert,
                       err);
    if (r >= 0)
        r = use_server_cert(a, cert, key, err);
    if (r >= 0)
        r = save(home, "server.key", key, strlen(key), 0600, err);
    if (r >= 0)
        r = save(home, "server.crt", cert, strlen(cert), 0644, err);
    return r;
}

int vg_authority_renew(struct vg_authority *a, const struct vg_home *home, uint64_t wall_usec,
                       struct vg_err *err) {
    if (a->tls && wall_usec + VG_CERT_SERVER_USEC / 3 < a->server_expires_usec)
        return 0;
    int r = make_server_cert(a, home, err);
    return r < 0 ? r : 1;
}

int vg_authority_open(struct vg_authority *a, const struct vg_home *home, const char *cloud,
                      struct vg_err *err) {
    *a = (struct vg_authority){0};
    vg_auto_free char *cert = NULL, *key = NULL;
    int r = open_ca(a, home, cloud, err);
    if (r >= 0)
        r = vg_ca_fingerprint(a->ca_pem, a->fingerprint, err);
    if (r >= 0)
        r = open_task_key(a, home, err);
    if (r >= 0 && load(home, "server.crt", &cert, err) == 0 &&
        load(home, "server.key", &key, err) == 0) {
        struct vg_err ignored = VG_ERR_INIT; /* a bad pair is replaced below */
        use_server_cert(a, cert, key, &ignored);
    }
    if (r >= 0)
        r = vg_authority_renew(a, home, vg_wall_usec(), err);
    if (r < 0) {
        vg_authority_close(a);
        return vg_err_wrap(err, "cannot set up the cloud's certificates");
    }
    return 0;
}

void vg_authority_close(struct vg_authority *a) {
    if (a->tls)
        vg_tls_unref(a->tls);
    free(a->ca_pem);
    if (a->ca_key_pem)
        OPENSSL_cleanse(a->ca_key_pem, strlen(a->ca_key_pem));
    free(a->ca_key_pem);
    OPENSSL_cleanse(a->task_key, sizeof a->task_key);
    *a = (struct vg_authority){0};
}

int vg_authority_sign_node(const struct vg_authority *a, uint64_t node, const uint8_t *csr,
                           size_t len, uint64_t life_usec, char **ret_pem, struct vg_err *err) {
    char id[VG_ID_LEN + 1], cn[VG_ID_LEN + 8];
    vg_id_format(node, id);
    snprintf(cn, sizeof cn, "node:%s", id);
    return vg_ca_sign(a->ca_pem, a->ca_key_pem, csr, len, cn, life_usec, ret_pem, err);
}

static int mac_hex(const uint8_t key[static 32], uint64_t task, const Vg__Pb__Identity *who,
                   char out[static MAC_HEX + 1]) {
    uint8_t mac[32];
    unsigned n = 0;
    size_t len = who ? vg__pb__identity__get_packed_size(who) : 0;
    vg_auto_free uint8_t *msg = vg_alloc(12 + len);
    if (!msg)
        return -ENOMEM;
    memcpy(msg, "task", 4);
    memcpy(msg + 4, &task, 8);
    if (who)
        vg__pb__identity__pack(who, msg + 12);
    HMAC(EVP_sha256(), key, 32, msg, 12 + len, mac, &n);
    for (int i = 0; i < MAC_HEX / 2; i++)
        snprintf(out + 2 * i, 3, "%02x", mac[i]);
    return 0;
}

int vg_task_token_make(const uint8_t key[static 32], uint64_t task, const Vg__Pb__Identity *who,
                       char out[static VG_TASK_TOKEN_MAX]) {
    char id[VG_ID_LEN + 1], mac[MAC_HEX + 1];
    int r = mac_hex(key, task, who, mac);
    if (r < 0)
        return r;
    vg_id_format(task, id);
    snprintf(out, VG_TASK_TOKEN_MAX, "vgk_%s_%s", id, mac);
    return 0;
}

int vg_task_token_parse(const char *token, uint64_t *ret_task) {
    char id[VG_ID_LEN + 1];
    if (strlen(token) != 4 + VG_ID_LEN + 1 + MAC_HEX || strncmp(token, "vgk_", 4) != 0 ||
        token[4 + VG_ID_LEN] != '_')
        return -EINVAL;
    memcpy(id, token + 4, VG_ID_LEN);
    id[VG_ID_LEN] = '\0';
    return vg_id_parse(id, ret_task) < 0 ? -EINVAL : 0;
}

int vg_task_token_check(const uint8_t key[static 32], const char *token, uint64_t task,
                        const Vg__Pb__Identity *who) {
    char mac[MAC_HEX + 1];
    uint64_t named = 0;
    int r = vg_task_token_parse(token, &named);
    if (r < 0)
        return r;
    r = mac_hex(key, task, who, mac);
    if (r < 0)
        return r;
    bool good = CRYPTO_memcmp(mac, token + 4 + VG_ID_LEN + 1, MAC_HEX) == 0;
    return good && named == task ? 0 : -EACCES;
}
