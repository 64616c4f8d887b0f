/* Requests and answers of the small HTTP client. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/http-int.h"

#include <string.h>
#include <strings.h>

#define ERROR_BODY_MAX (16u << 10)
#define HEADERS_MAX 200
#define INTERIM_MAX 16
#define SEND_PIECE (256u << 10)

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

static int copy(struct vg_http *c, uint64_t n, struct body *b) {
    while (n) {
        if (vg_buf_len(&c->in) == 0) {
            ssize_t k = vg_http_more(c);
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

static int copy_chunks(struct vg_http *c, struct body *b) {
    char text[256];
    for (;;) {
        int r = vg_http_line(c, text, sizeof(text));
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
            r = vg_http_line(c, text, sizeof(text));
        if (r < 0)
            return r;
        if (text[0])
            return -EBADMSG;
    }
}

static int copy_rest(struct vg_http *c, struct body *b) {
    for (;;) {
        int r = copy(c, vg_buf_len(&c->in), b);
        if (r < 0)
            return r;
        ssize_t k = vg_http_more(c);
        if (k <= 0)
            return (int)k;
    }
}

struct head {
    bool chunked, has_length, close;
    uint64_t length;
};

static int header(char *text, struct head *h, struct vg_http_answer *a) {
    char *colon = strchr(text, ':');
    if (!colon)
        return -EBADMSG;
    *colon = '\0';
    const char *value = colon + 1 + strspn(colon + 1, " \t");
    if (strcasecmp(text, "content-length") == 0) {
        uint64_t n;
        if (vg_parse_u64(value, &n) < 0 || (h->has_length && n != h->length))
            return -EBADMSG; /* two lengths: somebody is being deceived */
        h->has_length = true;
        h->length = n;
        return 0;
    }
    if (strcasecmp(text, "transfer-encoding") == 0) {
        h->chunked = strcasecmp(value, "chunked") == 0;
        return h->chunked ? 0 : -EBADMSG;
    }
    const struct {
        const char *name;
        char *out;
        size_t n;
    } kept[] = {{"location", a->location, sizeof(a->location)},
                {"www-authenticate", a->authenticate, sizeof(a->authenticate)},
                {"content-type", a->content_type, sizeof(a->content_type)},
                {"docker-content-digest", a->digest, sizeof(a->digest)},
                {"etag", a->etag, sizeof(a->etag)}};
    for (size_t i = 0; i < VG_COUNT(kept); i++)
        if (strcasecmp(text, kept[i].name) == 0)
            snprintf(kept[i].out, kept[i].n, "%s", value);
    if (strcasecmp(text, "connection") == 0 && strcasecmp(value, "close") == 0)
        h->close = true;
    return 0;
}

static int receive_head(struct vg_http *c, struct head *h, struct vg_http_answer *a) {
    vg_auto_free char *text = vg_alloc(VG_HTTP_HEAD_MAX);
    int major, minor, r = text ? vg_http_line(c, text, VG_HTTP_HEAD_MAX) : -ENOMEM;
    if (r < 0)
        return r;
    if (sscanf(text, "HTTP/%1d.%1d %3d", &major, &minor, &a->status) != 3 || a->status < 100)
        return -EBADMSG;
    h->close = major != 1 || minor == 0;
    for (unsigned n = 0; r == 0; n++) {
        r = vg_http_line(c, text, VG_HTTP_HEAD_MAX);
        if (r < 0 || !text[0])
            break;
        r = n < HEADERS_MAX ? header(text, h, a) : -EBADMSG;
    }
    return r;
}

static int receive(struct vg_http *c, const struct vg_http_req *q, struct vg_http_answer *a) {
    struct head h;
    int r = 0;
    /* 100 Continue and the like come before the answer */
    for (unsigned n = 0; r == 0 && (n == 0 || a->status < 200); n++) {
        h = (struct head){0};
        *a = (struct vg_http_answer){0};
        r = n < INTERIM_MAX ? receive_head(c, &h, a) : -EBADMSG;
    }
    if (r < 0)
        return r;
    bool good = a->status == 200, head = q->method && strcmp(q->method, "HEAD") == 0;
    struct body b = {
        .fd = good ? q->fd : -1, .out = q->out, .left = good ? q->max : ERROR_BODY_MAX};
    uint64_t room = b.left;
    if (head || a->status == 204 || a->status == 304)
        a->length = h.length;
    else if (h.chunked)
        r = copy_chunks(c, &b);
    else if (h.has_length)
        r = copy(c, h.length, &b);
    else {
        r = copy_rest(c, &b);
        h.close = true;
    }
    if (!head)
        a->length = room - b.left;
    if (h.close || r < 0 || vg_buf_len(&c->in))
        vg_http_hang_up(c);
    else
        c->used = true;
    return !good && r == -EFBIG ? 0 : r;
}

static int send_file(struct vg_http *c, const struct vg_http_req *q) {
    vg_auto_free uint8_t *piece = vg_alloc(SEND_PIECE);
    if (!piece)
        return -ENOMEM;
    int r = 0;
    for (uint64_t at = 0; r == 0 && at < q->body_len;) {
        size_t want = (size_t)VG_MIN(q->body_len - at, (uint64_t)SEND_PIECE);
        ssize_t n = pread(q->body_fd, piece, want, (off_t)(q->body_off + at));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EBADF; /* it is shorter than was said */
        r = vg_http_write(c, piece, (size_t)n);
        at += (uint64_t)n;
    }
    return r;
}

static int send_request(struct vg_http *c, const struct vg_http_req *q) {
    struct vg_buf b = {0};
    const char *method = q->method ? q->method : "GET";
    int r = vg_buf_printf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: virga\r\n", method,
                          q->target ? q->target
                          : c->path ? c->path
                                    : "/",
                          c->authority);
    if (r == 0 && q->headers)
        r = vg_buf_append(&b, q->headers, strlen(q->headers));
    if (r == 0 && (q->body_len || strcmp(method, "PUT") == 0 || strcmp(method, "POST") == 0))
        r = vg_buf_printf(&b, "Content-Length: %llu\r\n", (unsigned long long)q->body_len);
    if (r == 0)
        r = vg_buf_append(&b, "\r\n", 2);
    if (r == 0)
        r = vg_http_write(c, vg_buf_data(&b), vg_buf_len(&b));
    vg_buf_done(&b);
    if (r == 0 && q->body)
        return vg_http_write(c, q->body, (size_t)q->body_len);
    return r == 0 && q->body_len ? send_file(c, q) : r;
}

static int explain(const struct vg_http *h, int r, struct vg_err *err) {
    if (r == -EBADMSG)
        return vg_err_set(err, VG_UNAVAILABLE, "%s gave an answer that is cut short or no HTTP",
                          h->authority);
    if (r == -EFBIG)
        return vg_err_set(err, VG_TOO_BIG, "%s sends more than it said", h->authority);
    if (r == -EAGAIN || r == -ETIMEDOUT)
        return vg_err_set(err, VG_TIMEOUT, "%s does not answer", h->authority);
    if (r == -EPIPE || r == -ECONNRESET)
        return vg_err_set(err, VG_UNAVAILABLE, "%s broke the connection", h->authority);
    return vg_err_sys(err, r, "cannot talk to %s", h->authority);
}

int vg_http_do(struct vg_http *h, const struct vg_http_req *q, struct vg_http_answer *ret,
               struct vg_err *err) {
    for (;;) {
        *ret = (struct vg_http_answer){0};
        int r = vg_http_connect(h, err);
        if (r < 0)
            return r;
        bool kept = h->used;
        r = send_request(h, q);
        if (r == 0)
            r = receive(h, q, ret);
        if (r == 0)
            return 0;
        vg_http_hang_up(h);
        /* servers close what is idle: that says nothing about this request, as long as not a byte
           of an answer came */
        if (!kept || ret->status || (r != -EPIPE && r != -ECONNRESET && r != -EBADMSG))
            return explain(h, r, err);
    }
}

int vg_http_escape(struct vg_buf *b, const char *s, const char *keep) {
    int r = 0;
    for (; r == 0 && *s; s++)
        r = strchr("-._~", *s) || strchr(keep, *s) || (*s >= '0' && *s <= '9') ||
                    ((*s | 32) >= 'a' && (*s | 32) <= 'z')
                ? vg_buf_append(b, s, 1)
                : vg_buf_printf(b, "%%%02X", (unsigned char)*s);
    return r;
}

int vg_http_get(const char *url, const struct vg_http_conf *conf, const char *auth,
                const char *accept, int fd, struct vg_buf *out, uint64_t max,
                struct vg_http_answer *ret, struct vg_err *err) {
    struct vg_http *h;
    struct vg_buf lines = {0};
    *ret = (struct vg_http_answer){0};
    int r = vg_http_open(url, conf, &h, err);
    if (r < 0)
        return r;
    int e = vg_buf_printf(&lines, "Connection: close\r\n");
    if (e == 0 && accept)
        e = vg_buf_printf(&lines, "Accept: %s\r\n", accept);
    if (e == 0 && auth)
        e = vg_buf_printf(&lines, "Authorization: %s\r\n", auth);
    if (e == 0)
        e = vg_buf_append(&lines, "", 1);
    struct vg_http_req q = VG_HTTP_REQ_INIT;
    q.headers = (char *)vg_buf_data(&lines);
    q.fd = fd;
    q.out = out;
    q.max = max;
    r = e < 0 ? vg_err_sys(err, e, "cannot ask") : vg_http_do(h, &q, ret, err);
    vg_buf_done(&lines);
    vg_http_close(h);
    return r;
}
