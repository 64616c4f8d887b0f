/* Connections of the small HTTP client. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/http-int.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>

#define PATIENCE_SEC 60

static int parse_url(const char *s, struct vg_http *u, struct vg_err *err) {
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
    for (const char *p = s; *p; p++)
        if ((unsigned char)*p <= ' ' || *p == 127)
            return vg_err_set(err, VG_INVALID, "'%.200s' has characters that a URL cannot have", s);
    bool usual = strcmp(u->port, u->tls ? "443" : "80") == 0, six = strchr(u->host, ':');
    snprintf(u->authority, sizeof(u->authority), "%s%s%s%s%s", six ? "[" : "", u->host,
             six ? "]" : "", usual ? "" : ":", usual ? "" : u->port);
    u->path = vg_strdup(*end == '/' ? end : "/");
    return u->path ? 0 : vg_err_sys(err, -ENOMEM, "cannot reach %s", u->host);
}

static int dial(struct vg_http *u, struct vg_err *err) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list;
    int g = getaddrinfo(u->host, u->port, &hints, &list), last = EHOSTUNREACH;
    if (g != 0)
        return vg_err_set(err, VG_UNAVAILABLE, "cannot find %s: %s", u->host, gai_strerror(g));
    const struct timeval limit = {.tv_sec = u->patience_sec};
    for (struct addrinfo *a = list; a && u->fd < 0; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
        if (connect(fd, a->ai_addr, a->ai_addrlen) == 0) {
            u->fd = fd;
            break;
        }
        last = errno;
        close(fd);
    }
    freeaddrinfo(list);
    return u->fd < 0 ? vg_err_sys(err, last, "cannot connect to %s:%s", u->host, u->port) : 0;
}

static int tls_failed(const struct vg_http *u, struct vg_err *err) {
    long why = u->ssl ? SSL_get_verify_result(u->ssl) : X509_V_OK;
    const char *text = ERR_reason_error_string(ERR_peek_last_error());
    ERR_clear_error();
    if (why != X509_V_OK)
        return vg_err_set(err, VG_FORBIDDEN,
                          "%s is not trusted: %s (its authority can be named by SSL_CERT_FILE, or "
                          "for a registry by --ca)",
                          u->authority, X509_verify_cert_error_string(why));
    return vg_err_set(err, VG_UNAVAILABLE, "no TLS with %s: %s", u->authority,
                      text ? text : "the connection broke");
}

static int trust(struct vg_http *u, struct vg_err *err) {
    u->ctx = SSL_CTX_new(TLS_client_method());
    if (!u->ctx || SSL_CTX_set_default_verify_paths(u->ctx) != 1 ||
        SSL_CTX_set_min_proto_version(u->ctx, TLS1_2_VERSION) != 1)
        return tls_failed(u, err);
    if (u->ca && SSL_CTX_load_verify_locations(u->ctx, u->ca, NULL) != 1) {
        ERR_clear_error();
        return vg_err_set(err, VG_INVALID, "there are no certificates in %s", u->ca);
    }
    return 0;
}

static bool is_address(const char *host) {
    uint8_t out[16];
    return inet_pton(AF_INET, host, out) == 1 || inet_pton(AF_INET6, host, out) == 1;
}

static int secure(struct vg_http *u, struct vg_err *err) {
    int r = u->ctx ? 0 : trust(u, err);
    if (r < 0)
        return r;
    u->ssl = SSL_new(u->ctx);
    if (!u->ssl)
        return tls_failed(u, err);
    SSL_set_verify(u->ssl, SSL_VERIFY_PEER, NULL);
    if (SSL_set1_host(u->ssl, u->host) != 1 ||
        (!is_address(u->host) && SSL_set_tlsext_host_name(u->ssl, u->host) != 1) ||
        SSL_set_fd(u->ssl, u->fd) != 1 || SSL_connect(u->ssl) != 1)
        return tls_failed(u, err);
    return 0;
}

int vg_http_connect(struct vg_http *h, struct vg_err *err) {
    if (h->fd >= 0)
        return 0;
    if (h->fixed)
        return vg_err_set(err, VG_UNAVAILABLE, "the connection is over");
    int r = dial(h, err);
    int on = 1;
    if (r == 0)
        setsockopt(h->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (r == 0 && h->tls)
        r = secure(h, err);
    if (r < 0)
        vg_http_hang_up(h);
    return r;
}

void vg_http_hang_up(struct vg_http *h) {
    SSL_free(h->ssl);
    h->ssl = NULL;
    h->used = false;
    vg_close(&h->fd);
    vg_buf_clear(&h->in);
}

int vg_http_open(const char *url, const struct vg_http_conf *conf, struct vg_http **ret,
                 struct vg_err *err) {
    struct vg_http *h = vg_alloc(sizeof(*h));
    if (!h)
        return vg_err_sys(err, -ENOMEM, "cannot reach %.200s", url);
    h->fd = -1;
    h->patience_sec = conf && conf->patience_sec ? conf->patience_sec : PATIENCE_SEC;
    int r = parse_url(url, h, err);
    if (r == 0 && conf && conf->ca && !(h->ca = vg_strdup(conf->ca)))
        r = vg_err_sys(err, -ENOMEM, "cannot reach %.200s", url);
    if (r < 0) {
        vg_http_close(h);
        return r;
    }
    *ret = h;
    return 0;
}

int vg_http_open_fd(int fd, struct vg_http **ret) {
    struct vg_http *h = vg_alloc(sizeof(*h));
    if (!h) {
        close(fd);
        return -ENOMEM;
    }
    h->fd = fd;
    h->fixed = true;
    snprintf(h->authority, sizeof(h->authority), "the other end");
    *ret = h;
    return 0;
}

void vg_http_close(struct vg_http *h) {
    if (!h)
        return;
    vg_http_hang_up(h);
    SSL_CTX_free(h->ctx);
    vg_buf_done(&h->in);
    free(h->path);
    free(h->ca);
    free(h);
}

const char *vg_http_host(const struct vg_http *h) {
    return h->authority;
}

bool vg_http_is_tls(const struct vg_http *h) {
    return h->tls;
}

int vg_http_write(struct vg_http *h, const void *data, size_t n) {
    const char *p = data;
    while (n) {
        int part = (int)VG_MIN(n, (size_t)1 << 20);
        ssize_t k =
            h->ssl ? SSL_write(h->ssl, p, part) : send(h->fd, p, (size_t)part, MSG_NOSIGNAL);
        if (k <= 0 && !h->ssl && errno == EINTR)
            continue;
        if (k <= 0)
            return h->ssl ? -EPIPE : -errno;
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

/* What OpenSSL says about a read that brought nothing. */
static ssize_t tls_end(struct vg_http *h, int n) {
    int why = SSL_get_error(h->ssl, n), code = errno;
    ERR_clear_error();
    if (why == SSL_ERROR_ZERO_RETURN)
        return 0;
    return why == SSL_ERROR_SYSCALL && code ? -code : why == SSL_ERROR_WANT_READ ? -EAGAIN : -EPIPE;
}

ssize_t vg_http_more(struct vg_http *h) {
    uint8_t *p = vg_buf_reserve(&h->in, 64u << 10);
    if (!p)
        return -ENOMEM;
    errno = 0;
    ssize_t n = h->ssl ? SSL_read(h->ssl, p, 64 << 10) : recv(h->fd, p, 64u << 10, 0);
    if (n <= 0 && h->ssl)
        return tls_end(h, (int)n);
    if (n < 0)
        return -errno;
    vg_buf_commit(&h->in, (size_t)n);
    return n;
}

int vg_http_line(struct vg_http *c, char *out, size_t max) {
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
        if (n > VG_HTTP_HEAD_MAX)
            return -EBADMSG;
        ssize_t k = vg_http_more(c);
        if (k <= 0)
            return k < 0 ? (int)k : -EBADMSG;
    }
}
