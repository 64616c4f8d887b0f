/* The certificate of the port for browsers. One of the cloud's own is kept until it nears its end
   or lacks a name, because people tell their browsers to trust that very one. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/webport.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <string.h>
#include <unistd.h>

#define PEM_MAX (256u << 10)
#define NAMES_MAX 8

struct names {
    char name[NAMES_MAX][256];
    size_t n;
};

static bool is_address(const char *s) {
    uint8_t raw[16];
    return inet_pton(AF_INET, s, raw) == 1 || inet_pton(AF_INET6, s, raw) == 1;
}

static void add_name(struct names *l, const char *name) {
    if (!*name || strlen(name) >= sizeof(l->name[0]) || l->n == NAMES_MAX)
        return;
    if (strcmp(name, "0.0.0.0") == 0 || strcmp(name, "::") == 0)
        return;
    for (const char *p = name; !is_address(name) && *p; p++)
        if (!isalnum((unsigned char)*p) && *p != '.' && *p != '-')
            return;
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->name[i], name) == 0)
            return;
    snprintf(l->name[l->n++], sizeof(l->name[0]), "%s", name);
}

/* What a person may write into a browser to come here. */
static void gather(const struct vg_control *c, const char *host, struct names *l) {
    char text[sizeof(c->address)] = "";
    add_name(l, "localhost");
    add_name(l, "127.0.0.1");
    add_name(l, "::1");
    add_name(l, host);
    if (gethostname(text, sizeof(text) - 1) == 0)
        add_name(l, text);
    snprintf(text, sizeof(text), "%s", c->address);
    char *colon = strrchr(text, ':');
    if (colon)
        *colon = '\0';
    char *end = strchr(text, ']');
    if (*text == '[' && end)
        *end = '\0';
    add_name(l, *text == '[' ? text + 1 : text);
}

static bool fits(const char *pem, const struct names *l, uint64_t *ret_expires) {
    struct vg_err ignored = VG_ERR_INIT;
    for (size_t i = 0; i < l->n; i++)
        if (!vg_cert_has_name(pem, l->name[i]))
            return false;
    return vg_cert_expires(pem, ret_expires, &ignored) == 0 &&
           vg_wall_usec() + VG_CERT_SERVER_USEC / 3 < *ret_expires;
}

/* The certificate and, behind it, the authority's: whoever knows that one's fingerprint can check
   without having it. */
static int use(struct vg_control *c, const char *cert, const char *key, struct vg_tls **ret,
               struct vg_err *err) {
    vg_auto_free char *chain = vg_fmt("%s%s", cert, c->ca.ca_pem);
    return chain ? vg_tls_web_new(chain, key, ret, err)
                 : vg_err_sys(err, -ENOMEM, "cannot use the certificate");
}

static int make(struct vg_control *c, const struct names *l, const char *crt, const char *key_path,
                struct vg_tls **ret, uint64_t *ret_expires, struct vg_err *err) {
    vg_auto_free char *key = NULL, *cert = NULL;
    vg_auto_free uint8_t *csr = NULL;
    struct vg_buf names = {0};
    size_t len = 0;
    int r = 0;
    for (size_t i = 0; i < l->n && r >= 0; i++)
        r = vg_buf_printf(&names, "%s%s:%s", i ? "," : "", is_address(l->name[i]) ? "IP" : "DNS",
                          l->name[i]);
    if (r >= 0)
        r = vg_buf_append(&names, "", 1);
    if (r < 0)
        vg_err_sys(err, r, "cannot make a certificate");
    if (r >= 0)
        r = vg_key_create(&key, err);
    if (r >= 0)
        r = vg_csr_create(key, "virgad", &csr, &len, err);
    if (r >= 0)
        r = vg_ca_sign_names(c->ca.ca_pem, c->ca.ca_key_pem, csr, len, "virgad",
                             (char *)vg_buf_data(&names), VG_CERT_SERVER_USEC, &cert, err);
    vg_buf_done(&names);
    if (r >= 0)
        r = use(c, cert, key, ret, err);
    if (r < 0)
        return r;
    (void)vg_cert_expires(cert, ret_expires, err);
    if ((r = vg_write_file(key_path, key, strlen(key), 0600)) < 0 ||
        (r = vg_write_file(crt, cert, strlen(cert), 0644)) < 0) {
        vg_tls_unref(vg_take_ptr(*ret));
        return vg_err_sys(err, r, "cannot write %s", crt);
    }
    return 0;
}

static int load_given(const struct vg_conf *conf, struct vg_tls **ret, struct vg_err *err) {
    vg_auto_free char *cert = NULL, *key = NULL;
    size_t n;
    if (!*conf->web_cert || !*conf->web_key)
        return vg_err_set(err, VG_INVALID, "web_cert and web_key belong together: name both files");
    int r = vg_read_file(conf->web_cert, PEM_MAX, &cert, &n);
    if (r < 0)
        return vg_err_sys(err, r, "cannot read web_cert, %s", conf->web_cert);
    r = vg_read_file(conf->web_key, PEM_MAX, &key, &n);
    if (r < 0)
        return vg_err_sys(err, r, "cannot read web_key, %s", conf->web_key);
    r = vg_tls_web_new(cert, key, ret, err);
    return r < 0 ? vg_err_wrap(err, "%s and %s", conf->web_cert, conf->web_key) : 0;
}

int vg_web_cert_load(struct vg_control *c, const char *host, struct vg_tls **ret,
                     uint64_t *ret_expires, struct vg_err *err) {
    struct names l = {0};
    if (*c->conf.web_cert || *c->conf.web_key) {
        *ret_expires = 0;
        return load_given(&c->conf, ret, err);
    }
    vg_auto_free char *crt = vg_home_file(&c->home, "web.crt");
    vg_auto_free char *key_path = vg_home_file(&c->home, "web.key");
    vg_auto_free char *cert = NULL, *key = NULL;
    size_t n;
    if (!crt || !key_path)
        return vg_err_sys(err, -ENOMEM, "cannot make a certificate");
    gather(c, host, &l);
    struct vg_err ignored = VG_ERR_INIT; /* a bad pair is replaced */
    if (vg_read_file(crt, PEM_MAX, &cert, &n) == 0 &&
        vg_read_file(key_path, PEM_MAX, &key, &n) == 0 && fits(cert, &l, ret_expires) &&
        use(c, cert, key, ret, &ignored) == 0)
        return 0;
    return make(c, &l, crt, key_path, ret, ret_expires, err);
}
