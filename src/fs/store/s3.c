/* Requests to a bucket: signing, trying again, keeping connections; small objects and lists. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/s3-int.h"
#include "fs/store/s3-xml.h"
#include "mirror/stamp.h"

#include <openssl/evp.h>
#include <pthread.h>
#include <string.h>

#define IDLE_MAX 16
#define TRIES 6
#define FIRST_MSEC 250
#define LONGEST_MSEC 8000
#define PART (64u << 20)
#define LIST_MAX 20000000 /* keys */
#define EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

struct vg_s3 {
    struct vg_s3_conf conf;
    char name[300];
    pthread_mutex_t lock;
    pthread_cond_t stopped;
    bool stop;
    struct vg_http *idle[IDLE_MAX]; /* owned */
    size_t n_idle;
};

int vg_s3_open(const struct vg_s3_conf *conf, struct vg_s3 **ret, struct vg_err *err) {
    struct vg_s3 *s = vg_alloc(sizeof(*s));
    if (!s)
        return vg_err_sys(err, -ENOMEM, "cannot use a bucket");
    s->conf = *conf;
    s->conf.tries = conf->tries ? conf->tries : TRIES;
    s->conf.first_msec = conf->first_msec ? conf->first_msec : FIRST_MSEC;
    s->conf.part_bytes = conf->part_bytes ? conf->part_bytes : PART;
    if (!s->conf.auth.region[0])
        snprintf(s->conf.auth.region, sizeof(s->conf.auth.region), "us-east-1");
    if (!s->conf.endpoint[0])
        snprintf(s->conf.endpoint, sizeof(s->conf.endpoint), "https://s3.%s.amazonaws.com",
                 s->conf.auth.region);
    snprintf(s->name, sizeof(s->name), "s3://%s/%s", conf->bucket, conf->prefix);
    s->name[strlen(s->name) - 1] = '\0';
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->stopped, &attr);
    pthread_condattr_destroy(&attr);
    struct vg_http *h;
    int r = vg_http_open(s->conf.endpoint, NULL, &h, err); /* is it one? */
    if (r < 0) {
        vg_s3_close(s);
        return vg_err_wrap(err, "the bucket's endpoint");
    }
    vg_http_close(h);
    *ret = s;
    return 0;
}

void vg_s3_close(struct vg_s3 *s) {
    if (!s)
        return;
    while (s->n_idle)
        vg_http_close(s->idle[--s->n_idle]);
    pthread_cond_destroy(&s->stopped);
    pthread_mutex_destroy(&s->lock);
    OPENSSL_cleanse(&s->conf.auth, sizeof(s->conf.auth));
    free(s);
}

const char *vg_s3_name(const struct vg_s3 *s) {
    return s->name;
}

const struct vg_s3_conf *vg_s3_conf_of(const struct vg_s3 *s) {
    return &s->conf;
}

void vg_s3_stop(struct vg_s3 *s) {
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->stopped);
    pthread_mutex_unlock(&s->lock);
}

static struct vg_http *take_conn(struct vg_s3 *s, struct vg_err *err) {
    const struct vg_http_conf conf = {.ca = s->conf.ca[0] ? s->conf.ca : NULL,
                                      .patience_sec = s->conf.patience_sec};
    pthread_mutex_lock(&s->lock);
    struct vg_http *h = s->n_idle ? s->idle[--s->n_idle] : NULL;
    pthread_mutex_unlock(&s->lock);
    return h || vg_http_open(s->conf.endpoint, &conf, &h, err) == 0 ? h : NULL;
}

static void give_conn(struct vg_s3 *s, struct vg_http *h) {
    pthread_mutex_lock(&s->lock);
    bool room = s->n_idle < IDLE_MAX;
    if (room)
        s->idle[s->n_idle++] = h;
    pthread_mutex_unlock(&s->lock);
    if (!room)
        vg_http_close(h);
}

/* False: there will be no other try. */
static bool wait_a_while(struct vg_s3 *s, unsigned tries) {
    uint64_t msec = (uint64_t)s->conf.first_msec << VG_MIN(tries, 16u);
    uint32_t dice;
    vg_random(&dice, sizeof(dice));
    msec = VG_MIN(msec, (uint64_t)LONGEST_MSEC);
    msec = msec / 2 + dice % (msec / 2 + 1); /* so that many do not come back at once */
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)(msec / 1000);
    t.tv_nsec += (long)(msec % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&s->lock);
    while (!s->stop && pthread_cond_timedwait(&s->stopped, &s->lock, &t) == 0)
        ;
    bool on = !s->stop;
    pthread_mutex_unlock(&s->lock);
    return on;
}

/* ------------------------------------------------------------------ answers */

struct said { /* an error's own words */
    char code[128], message[300];
    bool error;
};

static int hear(void *user, const char *path, const char *value) {
    struct said *e = user;
    if (strncmp(path, "Error", 5) == 0 && (path[5] == '\0' || path[5] == '/'))
        e->error = true;
    if (value && strcmp(path, "Error/Code") == 0)
        snprintf(e->code, sizeof(e->code), "%s", value);
    if (value && strcmp(path, "Error/Message") == 0)
        snprintf(e->message, sizeof(e->message), "%s", value);
    return 0;
}

static bool may_pass(int status, const struct said *e) {
    return status == 429 || status == 500 || status == 502 || status == 503 || status == 504 ||
           strcmp(e->code, "RequestTimeout") == 0 || strcmp(e->code, "OperationAborted") == 0;
}

static int refused(const struct vg_s3 *s, const struct vg_s3_call *c, int status,
                   const struct said *e, struct vg_err *err) {
    if (status == 404 && strcmp(e->code, "NoSuchBucket") == 0)
        return vg_err_set(err, VG_UNAVAILABLE, "%s: there is no such bucket", s->name);
    if (status == 404)
        return vg_err_set(err, VG_NOT_FOUND, "%s has no %s", s->name, c->key ? c->key : "such key");
    if (status == 301 || status == 307 || strcmp(e->code, "AuthorizationHeaderMalformed") == 0)
        return vg_err_set(err, VG_FORBIDDEN, "%s is in another region: set env.region (%s)",
                          s->name, e->message[0] ? e->message : e->code);
    if (status == 401 || status == 403)
        return vg_err_set(err, VG_FORBIDDEN,
                          "%s does not let us in: %s (%s): look at env.credentials", s->name,
                          e->message[0] ? e->message : "no reason given", e->code);
    return vg_err_set(err, VG_UNAVAILABLE, "%s answers %s with status %d%s%s%s%s", s->name,
                      c->method, status, e->code[0] ? ": " : "", e->code, e->message[0] ? ": " : "",
                      e->message);
}

/* ------------------------------------------------------------------ requests */

static int payload_hash(const struct vg_s3_call *c, char hex[2 * VG_HASH + 1]) {
    uint8_t hash[VG_HASH];
    if (!c->body_len) {
        memcpy(hex, EMPTY, sizeof(EMPTY));
        return 0;
    }
    if (c->body) {
        vg_leaf_hash(c->body, (size_t)c->body_len, hash);
        vg_hex(hash, VG_HASH, hex);
        return 0;
    }
    vg_auto_free uint8_t *piece = vg_alloc(VG_LEAF);
    EVP_MD_CTX *m = EVP_MD_CTX_new();
    int r = piece && m && EVP_DigestInit_ex(m, EVP_sha256(), NULL) == 1 ? 0 : -ENOMEM;
    for (uint64_t at = 0; r == 0 && at < c->body_len;) {
        size_t want = (size_t)VG_MIN(c->body_len - at, (uint64_t)VG_LEAF);
        ssize_t n = pread(c->body_fd, piece, want, (off_t)(c->body_off + at));
        if (n <= 0)
            r = n < 0 ? -errno : -EIO;
        else if (EVP_DigestUpdate(m, piece, (size_t)n) != 1)
            r = -ENOMEM;
        at += n > 0 ? (uint64_t)n : 0;
    }
    if (r == 0 && EVP_DigestFinal_ex(m, hash, NULL) != 1)
        r = -ENOMEM;
    EVP_MD_CTX_free(m);
    if (r == 0)
        vg_hex(hash, VG_HASH, hex);
    return r;
}

/* "/bucket/prefix/key", as it is sent. */
static int target(const struct vg_s3 *s, const struct vg_s3_call *c, struct vg_buf *path) {
    int r = vg_buf_printf(path, "/%s/", s->conf.bucket);
    if (r == 0 && c->key)
        r = vg_http_escape(path, s->conf.prefix, "/");
    if (r == 0 && c->key)
        r = vg_http_escape(path, c->key, "/");
    return r == 0 ? vg_buf_append(path, "", 1) : r;
}

static int once(struct vg_s3 *s, const struct vg_s3_call *c, const char *hash, struct vg_buf *body,
                struct vg_http_answer *a, struct vg_err *err) {
    struct vg_buf path = {0}, lines = {0}, full = {0};
    struct vg_http *h = take_conn(s, err);
    if (!h)
        return err->code;
    int r = target(s, c, &path);
    struct vg_s3_signing q = {.method = c->method,
                              .host = vg_http_host(h),
                              .path = (char *)vg_buf_data(&path),
                              .query = c->query ? c->query : "",
                              .payload = hash,
                              .when = (time_t)(vg_wall_usec() / VG_USEC)};
    if (r == 0)
        r = vg_s3_sign(&s->conf.auth, &q, &lines);
    if (r == 0)
        r = vg_buf_printf(&full, "%s%s%s", q.path, c->query ? "?" : "", q.query);
    if (r == 0)
        r = vg_buf_append(&full, "", 1);
    struct vg_http_req req = VG_HTTP_REQ_INIT;
    req.method = c->method;
    req.target = (char *)vg_buf_data(&full);
    req.headers = (char *)vg_buf_data(&lines);
    req.body = c->body;
    req.body_fd = c->body_fd;
    req.body_off = c->body_off;
    req.body_len = c->body_len;
    req.fd = c->fd;
    req.out = body;
    req.max = c->max ? c->max : VG_S3_TEXT_MAX;
    r = r < 0 ? vg_err_sys(err, r, "cannot ask %s", s->name) : vg_http_do(h, &req, a, err);
    give_conn(s, h);
    vg_buf_done(&path);
    vg_buf_done(&lines);
    vg_buf_done(&full);
    return r;
}

static bool worth_another(const struct vg_err *err) {
    return err->reason != VG_FORBIDDEN && err->reason != VG_INVALID && err->reason != VG_TOO_BIG &&
           err->code != -ENOMEM;
}

/* What an earlier try left. */
static int start_over(const struct vg_s3_call *c, struct vg_buf *body) {
    vg_buf_clear(body);
    return c->fd >= 0 && (ftruncate(c->fd, 0) < 0 || lseek(c->fd, 0, SEEK_SET) < 0) ? -errno : 0;
}

int vg_s3_do(struct vg_s3 *s, const struct vg_s3_call *c, struct vg_http_answer *a,
             struct vg_err *err) {
    char hash[2 * VG_HASH + 1];
    struct vg_buf body = {0};
    int r = payload_hash(c, hash);
    if (r < 0)
        return vg_err_sys(err, r, "cannot read what goes to %s", s->name);
    for (unsigned tries = 0;; tries++) {
        struct said e = {0};
        *err = VG_ERR_INIT;
        r = start_over(c, &body);
        r = r < 0 ? vg_err_sys(err, r, "cannot keep what comes from %s", s->name)
                  : once(s, c, hash, &body, a, err);
        bool bad = a->status != 200 && a->status != 204;
        if (r == 0 && (bad || c->may_lie) && vg_buf_len(&body))
            (void)vg_xml_each((char *)vg_buf_data(&body), vg_buf_len(&body), hear, &e);
        if (r == 0 && !bad && !e.error)
            break;
        bool again = r < 0 ? worth_another(err) : e.error && !bad ? true : may_pass(a->status, &e);
        if (r < 0)
            vg_err_wrap(err, "%s", s->name);
        else
            r = refused(s, c, bad ? a->status : 500, &e, err);
        if (!again || tries + 1 >= s->conf.tries || !wait_a_while(s, tries))
            break;
        vg_debug("%s: again", err->msg);
    }
    if (r == 0 && c->out && vg_buf_len(&body))
        r = vg_buf_append(c->out, vg_buf_data(&body), vg_buf_len(&body)) < 0
                ? vg_err_sys(err, -ENOMEM, "cannot read %s", s->name)
                : 0;
    vg_buf_done(&body);
    return r;
}

/* ------------------------------------------------------------------ objects */

int vg_s3_put(struct vg_s3 *s, const char *key, int fd, uint64_t size, struct vg_err *err) {
    struct vg_http_answer a;
    struct vg_s3_call c = VG_S3_CALL_INIT;
    if (size > s->conf.part_bytes)
        return vg_s3_put_parts(s, key, fd, size, s->conf.part_bytes, err);
    c.method = "PUT";
    c.key = key;
    c.body_fd = fd;
    c.body_len = size;
    return vg_s3_do(s, &c, &a, err);
}

int vg_s3_put_bytes(struct vg_s3 *s, const char *key, const void *data, size_t n,
                    struct vg_err *err) {
    struct vg_http_answer a;
    struct vg_s3_call c = VG_S3_CALL_INIT;
    c.method = "PUT";
    c.key = key;
    c.body = n ? data : NULL;
    c.body_len = n;
    return vg_s3_do(s, &c, &a, err);
}

int vg_s3_get(struct vg_s3 *s, const char *key, int fd, struct vg_buf *out, uint64_t max,
              struct vg_err *err) {
    struct vg_http_answer a;
    struct vg_s3_call c = VG_S3_CALL_INIT;
    c.method = "GET";
    c.key = key;
    c.fd = fd;
    c.out = fd < 0 ? out : NULL;
    c.max = max ? max : 1;
    return vg_s3_do(s, &c, &a, err);
}

int vg_s3_size(struct vg_s3 *s, const char *key, uint64_t *ret, struct vg_err *err) {
    struct vg_http_answer a;
    struct vg_s3_call c = VG_S3_CALL_INIT;
    c.method = "HEAD";
    c.key = key;
    int r = vg_s3_do(s, &c, &a, err);
    if (r == 0)
        *ret = a.length;
    return r;
}

int vg_s3_delete(struct vg_s3 *s, const char *key, struct vg_err *err) {
    struct vg_http_answer a;
    struct vg_s3_call c = VG_S3_CALL_INIT;
    c.method = "DELETE";
    c.key = key;
    int r = vg_s3_do(s, &c, &a, err);
    return r == -ENOENT ? 0 : r;
}

/* ------------------------------------------------------------------ lists */

struct page {
    struct vg_s3 *s;
    vg_s3_each_fn *each;
    void *user;
    char key[VG_S3_KEY_MAX + 1];
    uint64_t size, n;
    bool has_key, has_size, more;
    char next[VG_XML_VALUE_MAX];
};

static int entry_over(struct page *p) {
    size_t n = strlen(p->s->conf.prefix);
    bool ours = p->has_key && p->has_size && strncmp(p->key, p->s->conf.prefix, n) == 0;
    if (!p->has_key || !p->has_size || ++p->n > LIST_MAX)
        return -EBADMSG;
    p->has_key = p->has_size = false;
    return ours ? p->each(p->user, p->key + n, p->size) : -EBADMSG; /* it was not asked for */
}

static int on_page(void *user, const char *path, const char *value) {
    struct page *p = user;
    if (!value)
        return strcmp(path, "ListBucketResult/Contents") == 0 ? entry_over(p) : 0;
    if (strcmp(path, "ListBucketResult/Contents/Key") == 0) {
        p->has_key = strlen(value) <= VG_S3_KEY_MAX;
        snprintf(p->key, sizeof(p->key), "%.*s", VG_S3_KEY_MAX, value);
    } else if (strcmp(path, "ListBucketResult/Contents/Size") == 0)
        p->has_size = vg_parse_u64(value, &p->size) == 0;
    else if (strcmp(path, "ListBucketResult/IsTruncated") == 0)
        p->more = strcmp(value, "true") == 0;
    else if (strcmp(path, "ListBucketResult/NextContinuationToken") == 0)
        snprintf(p->next, sizeof(p->next), "%s", value);
    return 0;
}

static int ask_page(struct vg_s3 *s, const char *below, const char *token, struct vg_buf *out,
                    struct vg_err *err) {
    struct vg_buf query = {0};
    struct vg_http_answer a;
    int r = 0;
    if (*token) {
        r = vg_buf_printf(&query, "continuation-token=");
        if (r == 0)
            r = vg_http_escape(&query, token, "");
        if (r == 0)
            r = vg_buf_append(&query, "&", 1);
    }
    if (r == 0)
        r = vg_buf_printf(&query, "list-type=2&prefix=");
    if (r == 0)
        r = vg_http_escape(&query, s->conf.prefix, "");
    if (r == 0)
        r = vg_http_escape(&query, below, "");
    if (r == 0)
        r = vg_buf_append(&query, "", 1);
    struct vg_s3_call c = VG_S3_CALL_INIT;
    c.method = "GET";
    c.query = (char *)vg_buf_data(&query);
    c.out = out;
    r = r < 0 ? vg_err_sys(err, r, "cannot list %s", s->name) : vg_s3_do(s, &c, &a, err);
    vg_buf_done(&query);
    return r;
}

int vg_s3_list(struct vg_s3 *s, const char *below, vg_s3_each_fn *each, void *user,
               struct vg_err *err) {
    vg_auto_free struct page *p = vg_alloc(sizeof(*p));
    vg_auto_free char *token = vg_alloc(VG_XML_VALUE_MAX);
    if (!p || !token)
        return vg_err_sys(err, -ENOMEM, "cannot list %s", s->name);
    *p = (struct page){.s = s, .each = each, .user = user};
    do {
        struct vg_buf out = {0};
        p->more = false;
        p->next[0] = '\0';
        int r = ask_page(s, below, token, &out, err);
        if (r == 0 &&
            (r = vg_xml_each((char *)vg_buf_data(&out), vg_buf_len(&out), on_page, p)) < 0)
            vg_err_sys(err, r, "the list of %s makes no sense", s->name);
        vg_buf_done(&out);
        if (r < 0)
            return r;
        if (p->more && (!p->next[0] || strcmp(p->next, token) == 0))
            return vg_err_set(err, VG_PROTOCOL, "the list of %s never ends", s->name);
        memcpy(token, p->next, VG_XML_VALUE_MAX);
    } while (p->more);
    return 0;
}
