/* Words, signatures and sealing of hooks; see hooks-int.h. Pure but for randomness. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/hooks-int.h"

#include <ctype.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* ------------------------------------------------------------------ events */

static const struct {
    const char *name;
    bool all;
} events[] = {
#define HOOK_EVENT(id, text, everybodys) [VG_HOOK_##id] = {text, everybodys},
#include "control/hook-events.tbl"
#undef HOOK_EVENT
};

const char *vg_hook_event_name(enum vg_hook_event_id id) {
    return events[id].name;
}

int vg_hook_event_find(const char *name) {
    for (int i = 0; i < VG_HOOK_EVENTS; i++)
        if (strcmp(events[i].name, name) == 0)
            return i;
    return -1;
}

bool vg_hook_event_for_all(enum vg_hook_event_id id) {
    return events[id].all;
}

/* ------------------------------------------------------------------ URLs */

bool vg_hook_url_is_mail(const char *url) {
    return strncmp(url, "mailto:", 7) == 0;
}

/* One address, as SMTP takes it. */
static bool is_address(const char *s) {
    const char *at = strchr(s, '@');
    return at && at != s && at[1] && !strchr(at + 1, '@') && strlen(s) < 255 &&
           !strpbrk(s, "<>,;:?%&\"\\()[]");
}

int vg_hook_url_check(const char *url, struct vg_err *err) {
    bool web = strncmp(url, "https://", 8) == 0 || strncmp(url, "http://", 7) == 0;
    if (strlen(url) > VG_FETCH_URL_MAX)
        return vg_err_set(err, VG_INVALID, "a hook's URL has at most %d bytes", VG_FETCH_URL_MAX);
    for (const char *p = url; *p; p++)
        if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 127)
            return vg_err_set(err, VG_INVALID,
                              "a hook's URL has neither spaces nor letters beyond ASCII");
    if (vg_hook_url_is_mail(url))
        return is_address(url + 7)
                   ? 0
                   : vg_err_set(err, VG_INVALID, "'%.64s' is not mailto: and one address", url);
    const char *host = web ? strstr(url, "://") + 3 : NULL;
    if (!host || (!isalnum((unsigned char)*host) && *host != '['))
        return vg_err_set(err, VG_INVALID,
                          "'%.64s' is no URL that a hook can have: write https://HOST/PATH, or "
                          "mailto:ADDRESS",
                          url);
    if (strchr(url, '@') && strchr(url, '@') < host + strcspn(host, "/?#"))
        return vg_err_set(err, VG_INVALID,
                          "a hook's URL has no user and password: its signature says who sent it");
    return 0;
}

char *vg_hook_url_host(const char *url, char *out, size_t n) {
    const char *host = strstr(url, "://");
    size_t len = host ? (size_t)(host + 3 - url) + strcspn(host + 3, "/?#") : strlen(url);
    snprintf(out, n, "%.*s", (int)VG_MIN(len, n), url);
    return out;
}

/* ------------------------------------------------------------------ signatures, sealing */

static void hex(const uint8_t *p, size_t n, char *out) {
    for (size_t i = 0; i < n; i++)
        snprintf(out + 2 * i, 3, "%02x", p[i]);
}

void vg_hook_sign(const char *secret, uint64_t unix_sec, const void *body, size_t n,
                  char out[static 96]) {
    uint8_t mac[EVP_MAX_MD_SIZE];
    char text[65] = "";
    unsigned len = 0;
    struct vg_buf b = {0};
    if (vg_buf_printf(&b, "%llu.", (unsigned long long)unix_sec) >= 0 &&
        vg_buf_append(&b, body, n) >= 0 &&
        HMAC(EVP_sha256(), secret, (int)strlen(secret), vg_buf_data(&b), vg_buf_len(&b), mac, &len))
        hex(mac, 32, text);
    vg_buf_done(&b);
    snprintf(out, 96, "t=%llu,v1=%s", (unsigned long long)unix_sec, text);
}

void vg_hook_id(const char *hook, const char *event, const char *key, char out[static 33]) {
    uint8_t sum[EVP_MAX_MD_SIZE] = {0};
    struct vg_buf b = {0};
    if (vg_buf_printf(&b, "%s\n%s\n%s", hook, event, key) < 0 ||
        EVP_Digest(vg_buf_data(&b), vg_buf_len(&b), sum, NULL, EVP_sha256(), NULL) != 1)
        vg_random(sum, 16); /* then it is not known again */
    vg_buf_done(&b);
    hex(sum, 16, out);
}

#define NONCE 12
#define TAG 16

/* One key for this and nothing else. */
static bool hook_key(const uint8_t cloud_key[static 32], uint8_t out[static 32]) {
    static const char use[] = "virga: secrets of hooks";
    unsigned n = 0;
    return HMAC(EVP_sha256(), cloud_key, 32, (const uint8_t *)use, sizeof use - 1, out, &n) &&
           n == 32;
}

static bool crypt_steps(EVP_CIPHER_CTX *x, const uint8_t *key, const char *hook,
                        const uint8_t *nonce, const uint8_t *in, size_t n, uint8_t *out,
                        uint8_t *tag, int seal) {
    int len = 0;
    if (EVP_CipherInit_ex(x, EVP_aes_256_gcm(), NULL, key, nonce, seal) != 1 ||
        EVP_CipherUpdate(x, NULL, &len, (const uint8_t *)hook, (int)strlen(hook)) != 1 ||
        EVP_CipherUpdate(x, out, &len, in, (int)n) != 1 || (size_t)len != n)
        return false;
    if (!seal && EVP_CIPHER_CTX_ctrl(x, EVP_CTRL_GCM_SET_TAG, TAG, tag) != 1)
        return false;
    if (EVP_CipherFinal_ex(x, out + len, &len) != 1)
        return false;
    return !seal || EVP_CIPHER_CTX_ctrl(x, EVP_CTRL_GCM_GET_TAG, TAG, tag) == 1;
}

static int transform(const uint8_t cloud_key[static 32], const char *hook, const uint8_t *nonce,
                     const uint8_t *in, size_t n, uint8_t *out, uint8_t *tag, int seal) {
    uint8_t key[EVP_MAX_MD_SIZE];
    EVP_CIPHER_CTX *x = EVP_CIPHER_CTX_new();
    bool good =
        x && hook_key(cloud_key, key) && crypt_steps(x, key, hook, nonce, in, n, out, tag, seal);
    EVP_CIPHER_CTX_free(x);
    OPENSSL_cleanse(key, sizeof key);
    return good ? 0 : -EIO;
}

int vg_hook_seal(const uint8_t cloud_key[static 32], const char *hook, const char *secret,
                 uint8_t out[static VG_HOOK_SEALED_MAX], size_t *ret_bytes) {
    size_t n = strlen(secret);
    if (n > VG_HOOK_SECRET_MAX)
        return -E2BIG;
    vg_random(out, NONCE);
    int r = transform(cloud_key, hook, out, (const uint8_t *)secret, n, out + NONCE + TAG,
                      out + NONCE, 1);
    *ret_bytes = r < 0 ? 0 : n + NONCE + TAG;
    return r;
}

int vg_hook_open(const uint8_t cloud_key[static 32], const char *hook, const uint8_t *sealed,
                 size_t n, char out[static VG_HOOK_SECRET_MAX + 1]) {
    uint8_t tag[TAG];
    if (n < NONCE + TAG || n > VG_HOOK_SEALED_MAX)
        return -EINVAL;
    memcpy(tag, sealed + NONCE, TAG);
    n -= NONCE + TAG;
    int r = transform(cloud_key, hook, sealed, sealed + NONCE + TAG, n, (uint8_t *)out, tag, 0);
    out[r < 0 ? 0 : n] = '\0';
    return r;
}

/* ------------------------------------------------------------------ mail */

static const char *text_at(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* What a person sees first: "task.ended: train (failed)". */
static void subject_of(const json_t *j, char *out, size_t n) {
    const json_t *data = json_object_get(j, "data");
    const char *names[] = {"name", "node", "text", "id"}, *what = "";
    for (size_t i = 0; i < VG_COUNT(names) && !*what; i++)
        what = text_at(data, names[i]);
    const char *state = text_at(data, "state");
    snprintf(out, n, "[virga] %s%s%.80s%s%s%s", text_at(j, "event"), *what ? ": " : "", what,
             *state ? " (" : "", state, *state ? ")" : "");
    for (char *p = out; *p; p++)
        if ((unsigned char)*p < ' ' || (unsigned char)*p >= 127)
            *p = '?';
}

static int put_base64(struct vg_buf *to, const char *text, size_t n) {
    int r = 0;
    for (size_t i = 0; r >= 0 && i < n; i += 57) {
        uint8_t line[80];
        int len = EVP_EncodeBlock(line, (const uint8_t *)text + i, (int)VG_MIN(n - i, (size_t)57));
        r = vg_buf_append(to, line, (size_t)len);
        if (r >= 0)
            r = vg_buf_append(to, "\r\n", 2);
    }
    return r;
}

static int put_heads(struct vg_buf *to, const char *from, const char *rcpt, const char *id,
                     const char *subject, uint64_t when_usec) {
    char date[64];
    struct tm tm;
    time_t t = (time_t)(when_usec / VG_USEC);
    gmtime_r(&t, &tm);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S +0000", &tm);
    return vg_buf_printf(to,
                         "Date: %s\r\nFrom: <%s>\r\nTo: <%s>\r\nSubject: %s\r\n"
                         "Message-ID: <%s@virga>\r\nAuto-Submitted: auto-generated\r\n"
                         "MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\n"
                         "Content-Transfer-Encoding: base64\r\n\r\n",
                         date, from, rcpt, subject, id);
}

int vg_hook_mail(const char *from, const char *to, const char *id, const char *body,
                 uint64_t when_usec, struct vg_buf *ret) {
    char subject[200];
    json_t *j = json_loads(body, 0, NULL);
    vg_auto_free char *pretty =
        j ? json_dumps(json_object_get(j, "data"), JSON_INDENT(2) | JSON_ENCODE_ANY) : NULL;
    vg_auto_free char *text = NULL;
    if (j) {
        subject_of(j, subject, sizeof subject);
        text = vg_fmt("%s\n\n%s\n\n-- \nhook '%s' of %s: 'virga hook remove %s' ends these mails\n",
                      subject, pretty ? pretty : "", text_at(j, "hook"), text_at(j, "user"),
                      text_at(j, "hook"));
    }
    json_decref(j);
    if (!text)
        return -ENOMEM;
    int r = put_heads(ret, from, to, id, subject, when_usec);
    return r < 0 ? r : put_base64(ret, text, strlen(text));
}
