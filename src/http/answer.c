/* Requests as the program sees them, and its answers. */
#include "base/mem.h"
#include "base/util.h"
#include "http/web-int.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* ------------------------------------------------------------------ requests */

struct request *request_new(struct vg_web_conn *c, size_t head_len) {
    struct request *q = vg_alloc(sizeof(*q) + VG_WEB_HEAD_MEM(head_len));
    if (!q)
        return NULL;
    q->pub.conn = c;
    q->pub.path = q->pub.target = "/";
    q->pub.secure = c->ssl != NULL;
    q->pub.peer = c->peer->address;
    q->head.minor = 1;
    return q;
}

void request_free(struct request *q) {
    vg_buf_done(&q->body);
    vg_buf_done(&q->set);
    free(q);
}

static const char *find(const struct vg_web_pair *pair, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(pair[i].name, name) == 0)
            return pair[i].value;
    return NULL;
}

const char *vg_web_header(const struct vg_web_req *req, const char *name) {
    return find(req->header, req->n_headers, name);
}

const char *vg_web_query(const struct vg_web_req *req, const char *name) {
    return find(req->query, req->n_query, name);
}

int vg_web_cookie(const struct vg_web_req *req, const char *name, char *out, size_t n) {
    const char *p = vg_web_header(req, "cookie");
    size_t len = strlen(name);
    while (p && *p) {
        p += strspn(p, "; ");
        size_t whole = strcspn(p, ";");
        if (strncmp(p, name, len) == 0 && p[len] == '=') {
            size_t value = whole - len - 1;
            if (value >= n)
                return -ENOBUFS;
            memcpy(out, p + len + 1, value);
            out[value] = '\0';
            return 0;
        }
        p += whole;
    }
    return -ENOENT;
}

bool vg_web_accepts(const struct vg_web_req *req, const char *type) {
    const char *p = vg_web_header(req, "accept");
    size_t n = strlen(type);
    while (p && *p) {
        p += strspn(p, ", \t");
        if (strncasecmp(p, type, n) == 0 && (!p[n] || strchr(",; \t", p[n])))
            return true;
        p += strcspn(p, ",");
    }
    return false;
}

bool vg_web_same_origin(const struct vg_web_req *req) {
    const char *origin = vg_web_header(req, "origin"), *host = vg_web_header(req, "host");
    if (!origin)
        return true;
    const char *rest = strstr(origin, "://");
    return rest && host && strcasecmp(rest + 3, host) == 0;
}

void vg_web_on_gone(struct vg_web_req *req, void (*gone)(struct vg_web_req *req, void *user),
                    void *user) {
    struct request *q = request_of(req);
    q->gone = gone;
    q->gone_user = user;
}

/* ------------------------------------------------------------------ heads */

const char *vg_web_phrase(int status) {
    static const struct {
        int status;
        const char *phrase;
    } table[] = {
        {101, "Switching Protocols"},
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {206, "Partial Content"},
        {301, "Moved Permanently"},
        {302, "Found"},
        {303, "See Other"},
        {304, "Not Modified"},
        {307, "Temporary Redirect"},
        {308, "Permanent Redirect"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {402, "Payment Required"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {406, "Not Acceptable"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {410, "Gone"},
        {412, "Precondition Failed"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {422, "Unprocessable Content"},
        {423, "Locked"},
        {426, "Upgrade Required"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
        {507, "Insufficient Storage"},
    };
    for (size_t i = 0; i < VG_COUNT(table); i++)
        if (table[i].status == status)
            return table[i].phrase;
    return status < 400 ? "OK" : status < 500 ? "Bad Request" : "Internal Server Error";
}

int vg_web_set(struct vg_web_req *req, const char *name, const char *value) {
    if (strpbrk(value, "\r\n") || strpbrk(name, "\r\n: "))
        return -EINVAL;
    return vg_buf_printf(&request_of(req)->set, "%s: %s\r\n", name, value);
}

static const char *date(struct vg_web *w) {
    uint64_t now = vg_wall_usec() / VG_USEC;
    if (now != w->date_sec) {
        time_t t = (time_t)now;
        struct tm tm;
        (void)gmtime_r(&t, &tm);
        (void)strftime(w->date, sizeof(w->date), "%a, %d %b %Y %H:%M:%S GMT", &tm);
        w->date_sec = now;
    }
    return w->date;
}

static int put(struct vg_buf *b, const char *text) {
    return vg_buf_append(b, text, strlen(text));
}

int answer_head(struct vg_web_conn *c, struct request *q, int status, const char *type,
                const char *length) {
    struct vg_buf *out = &c->out;
    char line[64];
    snprintf(line, sizeof(line), "HTTP/1.1 %d ", status);
    int r = put(out, line) | put(out, vg_web_phrase(status)) | put(out, "\r\nDate: ") |
            put(out, date(c->web)) | put(out, "\r\n");
    if (type)
        r |= put(out, "Content-Type: ") | put(out, type) | put(out, "\r\n");
    r |= put(out, length);
    if (c->web->common)
        r |= put(out, c->web->common);
    if (vg_buf_len(&q->set))
        r |= vg_buf_append(out, vg_buf_data(&q->set), vg_buf_len(&q->set));
    if (!q->head.keep_alive && status != 101)
        r |= put(out, "Connection: close\r\n");
    else if (!q->head.minor)
        r |= put(out, "Connection: keep-alive\r\n");
    r |= put(out, "\r\n");
    if (status >= 100 && status < 600)
        c->web->numbers.status[status / 100]++;
    return r < 0 ? -ENOMEM : 0;
}

/* ------------------------------------------------------------------ whole answers */

void vg_web_answer(struct vg_web_req *req, int status, const char *type, const void *body,
                   size_t n) {
    struct request *q = request_of(req);
    struct vg_web_conn *c = req->conn;
    char length[48] = "";
    if (!c) {
        request_free(q);
        return;
    }
    if (status != 204 && status != 304)
        snprintf(length, sizeof(length), "Content-Length: %zu\r\n", n);
    if (q->head.length > q->pub.body_len && !q->head.chunked)
        q->head.keep_alive = false; /* its body was not read */
    if (answer_head(c, q, status, type, length) < 0 ||
        (!req->head && *length && n && vg_buf_append(&c->out, body, n) < 0))
        c->broken = true;
    answered(c);
}

void vg_web_text(struct vg_web_req *req, int status, const char *text) {
    struct vg_buf b = {0};
    if (vg_buf_printf(&b, "%s\n", text) < 0)
        vg_web_answer(req, status, NULL, NULL, 0);
    else
        vg_web_answer(req, status, "text/plain; charset=utf-8", vg_buf_data(&b), vg_buf_len(&b));
    vg_buf_done(&b);
}

static const char *sentence(int status) {
    switch (status) {
    case 405:
        return "this method is not served here";
    case 408:
        return "the request did not come in time: send it again";
    case 413:
        return "the body is larger than this path takes";
    case 414:
    case 431:
        return "the request's line and headers are too long";
    case 417:
        return "only 'Expect: 100-continue' is understood";
    case 429:
        return "too many requests from this address: wait and try again";
    case 501:
        return "this method or transfer coding is not understood";
    case 503:
        return "the server is busy: try again";
    case 505:
        return "only HTTP/1.0 and 1.1 are understood";
    default:
        return "this is not a proper HTTP request";
    }
}

void vg_web_refuse(struct vg_web_req *req, int status) {
    struct vg_buf b = {0};
    const char *code = status == 429 ? "LIMIT" : "HTTP";
    if (status == 405)
        vg_web_set(req, "Allow", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
    int r = vg_buf_printf(&b,
                          "{\"type\":\"urn:virga:problem:%s\",\"title\":\"%s\",\"status\":%d,"
                          "\"detail\":\"%s\",\"code\":\"%s\"}",
                          status == 429 ? "limit" : "http", vg_web_phrase(status), status,
                          sentence(status), code);
    if (r < 0)
        vg_web_answer(req, status, NULL, NULL, 0);
    else
        vg_web_answer(req, status, "application/problem+json", vg_buf_data(&b), vg_buf_len(&b));
    vg_buf_done(&b);
}

/* ------------------------------------------------------------------ answers in parts */

int vg_web_begin(struct vg_web_req *req, int status, const char *type,
                 const struct vg_web_stream_ops *ops, void *user) {
    struct request *q = request_of(req);
    struct vg_web_conn *c = req->conn;
    q->begun = true;
    q->stream = ops;
    q->stream_user = user;
    if (!c)
        return -EPIPE;
    c->web->numbers.streams_now++;
    q->chunked_out = q->head.minor > 0;
    if (!q->chunked_out)
        q->head.keep_alive = false; /* its end is the connection's */
    if (answer_head(c, q, status, type, q->chunked_out ? "Transfer-Encoding: chunked\r\n" : "") < 0)
        c->broken = true;
    conn_ripe(c);
    return c->broken ? -ENOMEM : 0;
}

size_t vg_web_room(const struct vg_web_req *req) {
    struct vg_web_conn *c = req->conn;
    if (!c)
        return 0;
    size_t queued = vg_buf_len(&c->out), max = c->web->limits.queue_max;
    if (queued < max)
        return max - queued;
    c->room_due = true;
    return 0;
}

size_t vg_web_queued(const struct vg_web_req *req) {
    return req->conn ? vg_buf_len(&req->conn->out) : 0;
}

int vg_web_write(struct vg_web_req *req, const void *data, size_t n) {
    struct request *q = request_of(req);
    struct vg_web_conn *c = req->conn;
    char line[24];
    if (!c || c->broken)
        return -EPIPE;
    if (req->head || !n)
        return 0;
    int len = q->chunked_out ? snprintf(line, sizeof(line), "%zx\r\n", n) : 0;
    int r = vg_buf_append(&c->out, line, (size_t)len);
    if (r == 0)
        r = vg_buf_append(&c->out, data, n);
    if (r == 0 && q->chunked_out)
        r = vg_buf_append(&c->out, "\r\n", 2);
    if (r < 0)
        c->broken = true;
    conn_ripe(c);
    return r;
}

void vg_web_end(struct vg_web_req *req, bool broken) {
    struct request *q = request_of(req);
    struct vg_web_conn *c = req->conn;
    if (!c) {
        request_free(q);
        return;
    }
    if (broken)
        q->head.keep_alive = false;
    else if (q->chunked_out && !req->head && vg_buf_append(&c->out, "0\r\n\r\n", 5) < 0)
        c->broken = true;
    answered(c);
}
