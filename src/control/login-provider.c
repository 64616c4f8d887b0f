/* The identity provider itself: its description, its keys, and talking to it. Descriptions are read
   again after an hour; keys then, and when one is missing, but not more often than every few
   seconds. */
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/login-int.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

#define FRESH_USEC (3600 * VG_USEC)
#define KEYS_STEP_USEC (5 * VG_USEC)
#define ANSWER_MAX (512u << 10)
#define PATIENCE_USEC (15 * VG_USEC)
#define SECRET_MAX 4096

static const char well_known[] = "/.well-known/openid-configuration";

void vg_idp_done(struct vg_idp *p) {
    free(p->issuer);
    free(p->auth_url);
    free(p->token_url);
    free(p->device_url);
    free(p->jwks_url);
    json_decref(p->jwks);
    *p = (struct vg_idp){0};
    vg_list_init(&p->waiting);
}

/* ------------------------------------------------------------------ answers */

json_t *vg_idp_answer(const struct vg_fetch_answer *a, struct vg_err *err) {
    if (a->err) {
        vg_err_set(err, VG_UNAVAILABLE,
                   "the identity provider does not answer (%.300s): try again in a moment, or log "
                   "in with a token",
                   a->err->msg);
        return NULL;
    }
    json_t *j = json_loadb(a->body, a->body_bytes, JSON_REJECT_DUPLICATES, NULL);
    bool refusal = j && json_is_string(json_object_get(j, "error"));
    if (json_is_object(j) && (a->status == 200 || refusal))
        return j;
    json_decref(j);
    vg_err_set(err, VG_UNAVAILABLE,
               "the identity provider answered with status %d and not as one does: look at "
               "oidc.issuer in the configuration",
               a->status);
    return NULL;
}

/* Everybody who waited goes on. */
static void wake(struct vg_idp *p, const struct vg_err *err) {
    p->loading = false;
    while (!vg_list_empty(&p->waiting)) {
        struct vg_login *l = vg_list_entry(vg_list_first(&p->waiting), struct vg_login, on_wait);
        vg_list_remove(&l->on_wait);
        vg_list_init(&l->on_wait);
        l->next(l, err);
    }
}

/* ------------------------------------------------------------------ description and keys */

static int get(struct vg_logins *all, const char *url, vg_fetch_fn fn, struct vg_err *err) {
    const char *ca = all->ctl->conf.oidc.ca;
    struct vg_fetch_req req = {.url = url,
                               .ca_file = ca && *ca ? ca : NULL,
                               .usec = PATIENCE_USEC,
                               .max_bytes = ANSWER_MAX};
    return vg_fetch_start(all->fetcher, &req, fn, all, NULL, err);
}

static void on_keys(void *user, const struct vg_fetch_answer *a) {
    struct vg_logins *all = user;
    struct vg_err err = VG_ERR_INIT;
    json_t *j = vg_idp_answer(a, &err);
    if (j && !json_is_array(json_object_get(j, "keys"))) {
        json_decref(j);
        j = NULL;
        vg_err_set(&err, VG_UNAVAILABLE, "the identity provider shows no keys");
    }
    if (j) {
        json_decref(all->idp.jwks);
        all->idp.jwks = j;
        all->idp.keys_usec = vg_now_usec();
    }
    wake(&all->idp, j ? NULL : &err);
}

static void fetch_keys(struct vg_logins *all) {
    struct vg_err err = VG_ERR_INIT;
    if (get(all, all->idp.jwks_url, on_keys, &err) < 0)
        wake(&all->idp, &err);
}

/* An address of the description: as safe as the issuer's own. */
static int take_url(const json_t *j, const char *name, bool must, bool tls, char **ret,
                    struct vg_err *err) {
    const char *s = json_string_value(json_object_get(j, name));
    if (!s && !must)
        return 0;
    if (!s || strlen(s) > VG_FETCH_URL_MAX ||
        strncmp(s, tls ? "https://" : "http", tls ? 8 : 4) != 0)
        return vg_err_set(err, VG_UNAVAILABLE,
                          "the identity provider's description has no usable '%s'", name);
    *ret = vg_strdup(s);
    return *ret ? 0 : vg_err_sys(err, -ENOMEM, "cannot log in");
}

static bool lists(const json_t *array, const char *word) {
    for (size_t i = 0; i < json_array_size(array); i++) {
        const char *s = json_string_value(json_array_get(array, i));
        if (s && strcmp(s, word) == 0)
            return true;
    }
    return false;
}

static int take_description(struct vg_idp *p, const json_t *j, const char *issuer,
                            struct vg_err *err) {
    const char *says = json_string_value(json_object_get(j, "issuer"));
    const json_t *how = json_object_get(j, "token_endpoint_auth_methods_supported");
    bool tls = strncmp(issuer, "https://", 8) == 0;
    if (!says || strcmp(says, issuer) != 0)
        return vg_err_set(err, VG_UNAVAILABLE,
                          "the identity provider calls itself '%.200s', the configuration "
                          "'%.200s' (oidc.issuer): make them the same",
                          says ? says : "", issuer);
    int r = take_url(j, "authorization_endpoint", true, tls, &p->auth_url, err);
    if (r >= 0)
        r = take_url(j, "token_endpoint", true, tls, &p->token_url, err);
    if (r >= 0)
        r = take_url(j, "jwks_uri", true, tls, &p->jwks_url, err);
    if (r >= 0)
        r = take_url(j, "device_authorization_endpoint", false, tls, &p->device_url, err);
    p->post_secret = how && !lists(how, "client_secret_basic");
    p->issuer = vg_strdup(issuer);
    return r < 0 ? r : p->issuer ? 0 : vg_err_sys(err, -ENOMEM, "cannot log in");
}

static void on_description(void *user, const struct vg_fetch_answer *a) {
    struct vg_logins *all = user;
    struct vg_idp *p = &all->idp, fresh = {0};
    const char *issuer = all->ctl->conf.oidc.issuer;
    struct vg_err err = VG_ERR_INIT;
    json_t *j = vg_idp_answer(a, &err);
    int r = j && issuer ? take_description(&fresh, j, issuer, &err) : -EIO;
    json_decref(j);
    if (r < 0) {
        vg_list_init(&fresh.waiting);
        vg_idp_done(&fresh);
        if (!err.reason)
            vg_err_set(&err, VG_UNAVAILABLE, "the configuration changed meanwhile: begin again");
        wake(p, &err);
        return;
    }
    free(p->issuer);
    free(p->auth_url);
    free(p->token_url);
    free(p->device_url);
    free(p->jwks_url);
    p->issuer = fresh.issuer;
    p->auth_url = fresh.auth_url;
    p->token_url = fresh.token_url;
    p->device_url = fresh.device_url;
    p->jwks_url = fresh.jwks_url;
    p->post_secret = fresh.post_secret;
    p->loaded_usec = vg_now_usec();
    fetch_keys(all);
}

static void enlist(struct vg_login *l, vg_login_step *next) {
    l->next = next;
    vg_list_push_back(&l->all->idp.waiting, &l->on_wait);
}

void vg_idp_then(struct vg_login *l, vg_login_step *next) {
    struct vg_logins *all = l->all;
    struct vg_idp *p = &all->idp;
    struct vg_err err = VG_ERR_INIT;
    const char *issuer = all->ctl->conf.oidc.issuer;
    if (p->issuer && p->jwks && !p->loading && strcmp(p->issuer, issuer) == 0 &&
        vg_now_usec() - p->loaded_usec < FRESH_USEC) {
        next(l, NULL);
        return;
    }
    enlist(l, next);
    if (p->loading)
        return;
    p->loading = true;
    size_t n = strlen(issuer);
    vg_auto_free char *url =
        vg_fmt("%.*s%s", (int)(issuer[n - 1] == '/' ? n - 1 : n), issuer, well_known);
    int r = url ? get(all, url, on_description, &err) : vg_err_sys(&err, -ENOMEM, "cannot log in");
    if (r < 0)
        wake(p, &err);
}

void vg_idp_keys_then(struct vg_login *l, vg_login_step *next) {
    struct vg_idp *p = &l->all->idp;
    struct vg_err err = VG_ERR_INIT;
    if (!p->loading && vg_now_usec() - p->keys_usec < KEYS_STEP_USEC) {
        vg_err_set(&err, VG_UNAUTHENTICATED,
                   "the identity provider has signed with a key that it does not show: try again "
                   "in a moment");
        next(l, &err);
        return;
    }
    enlist(l, next);
    if (p->loading)
        return;
    p->loading = true;
    fetch_keys(l->all);
}

/* ------------------------------------------------------------------ asking it */

static int put_escaped(struct vg_buf *b, const char *s) {
    int r = 0;
    for (; r >= 0 && *s; s++) {
        bool plain = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') ||
                     (*s >= '0' && *s <= '9') || strchr("-._~", *s);
        r = plain ? vg_buf_append(b, s, 1) : vg_buf_printf(b, "%%%02X", (unsigned char)*s);
    }
    return r;
}

int vg_form_add(struct vg_buf *b, const char *key, const char *value) {
    int r = vg_buf_printf(b, "%s%s=", vg_buf_len(b) ? "&" : "", key);
    return r < 0 ? r : put_escaped(b, value);
}

/* The secret in the file, without the newline at its end. */
static int read_secret(const char *path, char **ret, struct vg_err *err) {
    int r = vg_read_file(path, SECRET_MAX, ret, NULL);
    if (r < 0)
        return vg_err_sys(err, r, "cannot read oidc.client_secret_file %s", path);
    (*ret)[strcspn(*ret, "\r\n")] = 0;
    return 0;
}

int vg_idp_post(struct vg_login *l, const char *url, struct vg_buf *form, vg_fetch_fn fn,
                struct vg_err *err) {
    static const char *const headers[] = {"Content-Type: application/x-www-form-urlencoded",
                                          "Accept: application/json", NULL};
    struct vg_logins *all = l->all;
    const struct vg_conf *conf = &all->ctl->conf;
    const char *file = conf->oidc.secret_file;
    vg_auto_free char *secret = NULL;
    int r = file && *file ? read_secret(file, &secret, err) : 0;
    if (r < 0)
        return r;
    bool basic = secret && !all->idp.post_secret;
    struct vg_buf id = {0}, word = {0};
    if (basic && (put_escaped(&id, conf->oidc.client_id) < 0 || vg_buf_append(&id, "", 1) < 0 ||
                  put_escaped(&word, secret) < 0 || vg_buf_append(&word, "", 1) < 0))
        r = -ENOMEM; /* RFC 6749 wants them escaped before they are joined */
    if (r >= 0 && !basic && vg_form_add(form, "client_id", conf->oidc.client_id) < 0)
        r = -ENOMEM;
    if (r >= 0 && secret && !basic && vg_form_add(form, "client_secret", secret) < 0)
        r = -ENOMEM;
    struct vg_fetch_req req = {.url = url,
                               .headers = headers,
                               .body = vg_buf_data(form),
                               .body_bytes = vg_buf_len(form),
                               .ca_file = conf->oidc.ca && *conf->oidc.ca ? conf->oidc.ca : NULL,
                               .user = basic ? (char *)vg_buf_data(&id) : NULL,
                               .password = basic ? (char *)vg_buf_data(&word) : NULL,
                               .usec = PATIENCE_USEC,
                               .max_bytes = ANSWER_MAX};
    r = r < 0 ? vg_err_sys(err, r, "cannot log in")
              : vg_fetch_start(all->fetcher, &req, fn, l, NULL, err);
    if (secret)
        OPENSSL_cleanse(secret, strlen(secret));
    if (vg_buf_len(&word))
        OPENSSL_cleanse(vg_buf_data(&word), vg_buf_len(&word));
    vg_buf_done(&word);
    vg_buf_done(&id);
    return r;
}
