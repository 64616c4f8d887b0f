/* A small HTTP client. */
#include "fs/store/http.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>

#define PATIENCE_SEC 60
#define HEAD_MAX (64u << 10)
#define ERROR_BODY_MAX (16u << 10)

struct conn {
    int fd;
    SSL_CTX *ctx;
    SSL *ssl;
    struct vg_buf in;
    bool end;
};

struct url {
    bool tls;
    char host[256], port[8];
    const char *path;
};

static int parse_url(const char *s, struct url *u, struct vg_err *err) {
    u->tls = strncasecmp(s, "https://", 8) == 0;
    if (!u->tls && strncasecmp(s, "http://", 7) != 0)
        return vg_err_set(err, VG_INVALID, "'%.200s' is neither http nor https", s);
    const char *h = s + (u->tls ? 8 : 7), *end = h + strcspn(h, "/?#");
    const char *host_end = end, *colon = NULL;
    if (*h == '[') { /* IPv6 */
        const char *close = memchr(h, ']', (size_t)(end - h));
        if (!close)
            return vg_err_set(err, VG_INVALID, "'%.200s' has a broken address", s);
        colon = close + 1 < end && close[1] == ':' ? close + 1 : NULL;
        h++;
        host_end = close;
    } else if ((colon = memchr(h, ':', (size_t)(end - h)))) {
        host_end = colon;
    }
    size_t n = (size_t)(host_end - h), m = colon ? (size_t)(end - colon - 1) : 0;
    if (n == 0 || n >= sizeof(u->host) || m >= sizeof(u->port) || memchr(h, '@', n))
        return vg_err_set(err, VG_INVALID, "'%.200s' names no host", s);
    snprintf(u->host, sizeof(u->host), "%.*s", (int)n, h);
    snprintf(u->port, sizeof(u->port), "%.*s", (int)m, colon ? colon + 1 : "");
    if (!m)
        snprintf(u->port, sizeof(u->port), "%s", u->tls ? "443" : "80");
    u->path = *end == '/' ? end : "/";
    for (const char *p = s; *p; p++)
        if ((unsigned char)*p <= ' ' || *p == 127)
            return vg_err_set(err, VG_INVALID, "'%.200s' has characters that a URL cannot have", s);
    return 0;
}

static int dial(struct conn *c, const struct url *u, struct vg_err *err) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list;
    int g = getaddrinfo(u->host, u->port, &hints, &list), last = EHOSTUNREACH;
    if (g != 0)
        return vg_err_set(err, VG_UNAVAILABLE, "cannot find %s: %s", u->host, gai_strerror(g));
    const struct timeval limit = {.tv_sec = PATIENCE_SEC};
    for (struct addrinfo *a = list; a && c->fd < 0; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
        if (connect(fd, a->ai_addr, a->ai_addrlen) == 0) {
            c->fd = fd;
            break;
        }
        last = errno;
        close(fd);
    }
    freeaddrinfo(list);
    return c->fd < 0 ? vg_err_sys(err, last, "cannot connect to %s:%s", u->host, u->port) : 0;
}

static int tls_failed(const struct url *u, SSL *ssl, struct vg_err *err) {
    long why = ssl ? SSL_get_verify_result(ssl) : X509_V_OK;
    const char *text = why != X509_V_OK ? X509_verify_cert_error_string(why)
                                        : ERR_reason_error_string(ERR_peek_last_error());
    ERR_clear_error();
    return vg_err_set(err, VG_UNAVAILABLE, "no TLS with %s: %s", u->host,
                      text ? text : "the connection broke");
}

static int secure(struct conn *c, const struct url *u, struct vg_err *err) {
    c->ctx = SSL_CTX_new(TLS_client_method());
    if (!c->ctx || SSL_CTX_set_default_verify_paths(c->ctx) != 1 ||
        SSL_CTX_set_min_proto_version(c->ctx, TLS1_2_VERSION) != 1 || !(c->ssl = SSL_new(c->ctx)))
        return tls_failed(u, NULL, err);
    SSL_set_verify(c->ssl, SSL_VERIFY_PEER, NULL);
    if (SSL_set1_host(c->ssl, u->host) != 1 || SSL_set_tlsext_host_name(c->ssl, u->host) != 1 ||
        SSL_set_fd(c->ssl, c->fd) != 1 || SSL_connect(c->ssl) != 1)
        return tls_failed(u, c->ssl, err);
    return 0;
}

static int write_all(struct conn *c, const char *p, size_t n) {
    while (n) {
        ssize_t k = c->ssl ? SSL_write(c->ssl, p, (int)n) : send(c->fd, p, n, MSG_NOSIGNAL);
        if (k <= 0)
            return -EIO;
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

/* More bytes into c->in. 0: the end. */
static ssize_t more(struct conn *c) {
    uint8_t *p = vg_buf_reserve(&c->in, 64u << 10);
    if (!p)
        return -ENOMEM;
    ssize_t n = c->ssl ? SSL_read(c->ssl, p, 64 << 10) : recv(c->fd, p, 64u << 10, 0);
    if (n < 0)
        return c->ssl ? 0 : -errno;
    vg_buf_commit(&c->in, (size_t)n);
    c->end = n == 0;
    return n;
}

/* A line without its end into `out`; too long or cut: -EBADMSG. */
static int line(struct conn *c, char *out, size_t max) {
    for (;;) {
        size_t n = vg_buf_len(&c->in);
        uint8_t *p = n ? vg_buf_data(&c->in) : NULL, *nl = n ? memchr(p, '\n', n) : NULL;
        if (nl) {
            size_t len = (size_t)(nl - p);
            size_t text = len && nl[-1] == '\r' ? len - 1 : len;
            if (text >= max || memchr(p, '\0', text))
                return -EBADMSG;
            memcpy(out, p, text);
            out[text] = '\0';
            vg_buf_consume(&c->in, len + 1);
            return 0;
        }
        if (n > HEAD_MAX)
            return -EBADMSG;
        ssize_t k = more(c);
        if (k <= 0)
            return k < 0 ? (int)k : -EBADMSG;
    }
}

struct body {
    int fd;
    struct vg_buf *out;
    uint64_t left; /* that may come */
};

static int put(struct body *b, const void *data, size_t n) {
    if (n > b->left)
        return -EFBIG;
    b->left -= n;
    if (b->fd >= 0)
        return vg_write_full(b->fd, data, n);
    return b->out ? vg_buf_append(b->out, data, n) : 0;
}

static int copy(struct conn *c, uint64_t n, struct body *b) {
    while (n) {
        if (vg_buf_len(&c->in) == 0) {
            ssize_t k = more(c);
            if (k <= 0)
                return k < 0 ? (int)k : -EBADMSG; /* cut short */
        }
        size_t k = (size_t)VG_MIN((uint64_t)vg_buf_len(&c->in), n);
        int r = put(b, vg_buf_data(&c->in), k);
        if (r < 0)
            return r;
        vg_buf_consume(&c->in, k);
        n -= k;
    }
    return 0;
}

static int copy_chunks(struct conn *c, struct body *b) {
    char text[256];
    for (;;) {
        int r = line(c, text, sizeof(text));
        if (r < 0)
            return r;
        char *end;
        errno = 0;
        unsigned long long n = strtoull(text, &end, 16);
        if (end == text || errno || (*end && *end != ';' && *end != ' '))
            return -EBADMSG;
        if (n == 0)
            return 0;
        r = copy(c, n, b);
        if (r == 0)
            r = line(c, text, sizeof(text));
        if (r < 0)
            return r;
        if (text[0])
            return -EBADMSG;
    }
}

static int copy_rest(struct conn *c, struct body *b) {
    for (;;) {
        int r = copy(c, vg_buf_len(&c->in), b);
        if (r < 0)
            return r;
        ssize_t k = more(c);
        if (k <= 0)
            return (int)k;
    }
}

struct head {
    bool chunked, has_length;
    uint64_t length;
};

static void keep(const char *value, char *out, size_t n) {
    snprintf(out, n, "%s", value);
}

static int header(char *text, struct head *h, struct vg_http_answer *a) {
    char *colon = strchr(text, ':');
    if (!colon)
        return -EBADMSG;
    *colon = '\0';
    const char *value = colon + 1 + strspn(colon + 1, " \t");
    if (strcasecmp(text, "content-length") == 0) {
        h->has_length = true;
        return vg_parse_u64(value, &h->length) < 0 ? -EBADMSG : 0;
    }
    if (strcasecmp(text, "transfer-encoding") == 0) {
        h->chunked = strcasecmp(value, "chunked") == 0;
        return h->chunked ? 0 : -EBADMSG;
    }
    if (strcasecmp(text, "location") == 0)
        keep(value, a->location, sizeof(a->location));
    else if (strcasecmp(text, "www-authenticate") == 0)
        keep(value, a->authenticate, sizeof(a->authenticate));
    else if (strcasecmp(text, "content-type") == 0)
        keep(value, a->content_type, sizeof(a->content_type));
    else if (strcasecmp(text, "docker-content-digest") == 0)
        keep(value, a->digest, sizeof(a->digest));
    return 0;
}

static int receive(struct conn *c, int fd, struct vg_buf *out, uint64_t max,
                   struct vg_http_answer *a) {
    vg_auto_free char *text = vg_alloc(HEAD_MAX);
    struct head h = {0};
    int major, minor;
    if (!text)
        return -ENOMEM;
    int r = line(c, text, HEAD_MAX);
    if (r < 0)
        return r;
    if (sscanf(text, "HTTP/%d.%d %3d", &major, &minor, &a->status) != 3)
        return -EBADMSG;
    for (unsigned n = 0; r == 0; n++) {
        r = line(c, text, HEAD_MAX);
        if (r < 0 || !text[0])
            break;
        r = n < 200 ? header(text, &h, a) : -EBADMSG;
    }
    if (r < 0)
        return r;
    bool good = a->status == 200;
    struct body b = {.fd = good ? fd : -1, .out = out, .left = good ? max : ERROR_BODY_MAX};
    r = h.chunked ? copy_chunks(c, &b) : h.has_length ? copy(c, h.length, &b) : copy_rest(c, &b);
    return !good && r == -EFBIG ? 0 : r;
}

static int exchange(struct conn *c, const struct url *u, const char *auth, const char *accept) {
    struct vg_buf q = {0};
    int r = vg_buf_printf(
        &q, "GET %s HTTP/1.1\r\nHost: %s%s%s\r\nUser-Agent: virga\r\nConnection: close\r\n",
        u->path, u->host, strcmp(u->port, u->tls ? "443" : "80") ? ":" : "",
        strcmp(u->port, u->tls ? "443" : "80") ? u->port : "");
    if (r == 0 && accept)
        r = vg_buf_printf(&q, "Accept: %s\r\n", accept);
    if (r == 0 && auth)
        r = vg_buf_printf(&q, "Authorization: %s\r\n", auth);
    if (r == 0)
        r = vg_buf_append(&q, "\r\n", 2);
    if (r == 0)
        r = write_all(c, (char *)vg_buf_data(&q), vg_buf_len(&q));
    vg_buf_done(&q);
    return r;
}

int vg_http_get(const char *url, const char *auth, const char *accept, int fd, struct vg_buf *out,
                uint64_t max, struct vg_http_answer *ret, struct vg_err *err) {
    struct conn c = {.fd = -1};
    struct url u;
    *ret = (struct vg_http_answer){0};
    int r = parse_url(url, &u, err);
    if (r == 0)
        r = dial(&c, &u, err);
    if (r == 0 && u.tls)
        r = secure(&c, &u, err);
    if (r == 0 &&
        ((r = exchange(&c, &u, auth, accept)) < 0 || (r = receive(&c, fd, out, max, ret)) < 0)) {
        if (r == -EBADMSG)
            vg_err_set(err, VG_UNAVAILABLE, "%s gave an answer that is cut short or no HTTP",
                       u.host);
        else if (r == -EFBIG)
            vg_err_set(err, VG_TOO_BIG, "%s sends more than it said", u.host);
        else
            vg_err_sys(err, r == -EAGAIN ? -ETIMEDOUT : r, "%s does not answer", u.host);
        r = err->code;
    }
    SSL_free(c.ssl);
    SSL_CTX_free(c.ctx);
    vg_buf_done(&c.in);
    vg_close(&c.fd);
    return r;
}
