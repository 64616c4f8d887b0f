/* A small HTTP server for texts; see the header.

   A connection is read until its request is whole, then written until its answer is, then closed.
   What always holds: it is in exactly one of these two states, and its timer runs in both. */
#include "net/http.h"

#include "base/cleanup.h"
#include "base/list.h"
#include "base/mem.h"
#include "base/util.h"
#include "net/conn.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct vg_http {
    uv_loop_t *loop; /* borrowed */
    struct vg_listener *listener;
    const struct vg_http_page *pages; /* borrowed */
    void *user;
    struct vg_list conns; /* struct conn.link */
    size_t n_conns;
};

struct conn {
    struct vg_http *http; /* NULL: it ends */
    struct vg_list link;
    uv_poll_t poll;
    uv_timer_t timer;
    int fd; /* owned */
    int open_handles;
    char request[VG_HTTP_REQUEST_MAX];
    size_t n;
    const struct vg_http_page *page; /* whose parts are being sent; NULL: none */
    size_t next_part;
    bool answering;
    struct vg_buf out;
};

/* ------------------------------------------------------------------ requests */

int vg_http_parse(const char *text, size_t n, size_t *ret_path) {
    const char *end = memmem(text, n, "\r\n\r\n", 4), *line_end = memmem(text, n, "\r\n", 2);
    if (memchr(text, 0, n))
        return 400;
    if (!end)
        return n >= VG_HTTP_REQUEST_MAX ? 431 : 0;
    if (strncmp(text, "GET /", 5) != 0)
        return memchr(text, ' ', (size_t)(line_end - text)) ? 405 : 400;
    const char *path = text + 4, *space = memchr(path, ' ', (size_t)(line_end - path));
    if (!space || line_end - space != 9)
        return 400;
    if (strncmp(space, " HTTP/1.0", 9) != 0 && strncmp(space, " HTTP/1.1", 9) != 0)
        return 505;
    *ret_path = (size_t)(space - path);
    return 200;
}

static const struct vg_http_page *find(const struct vg_http *h, const char *path, size_t n) {
    const char *query = memchr(path, '?', n);
    n = query ? (size_t)(query - path) : n;
    for (const struct vg_http_page *p = h->pages; p->path; p++)
        if (strlen(p->path) == n && strncmp(p->path, path, n) == 0)
            return p;
    return NULL;
}

static const char *phrase(int status) {
    switch (status) {
    case 200:
        return "OK";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 431:
        return "Request Header Fields Too Large";
    case 503:
        return "Service Unavailable";
    case 505:
        return "HTTP Version Not Supported";
    default:
        return "Bad Request";
    }
}

/* ------------------------------------------------------------------ a connection's life */

static void on_closed(uv_handle_t *handle) {
    struct conn *c = handle->data;
    if (--c->open_handles)
        return;
    vg_buf_done(&c->out);
    free(c);
}

static void conn_end(struct conn *c) {
    if (!c->http)
        return;
    c->http->n_conns--;
    c->http = NULL;
    vg_list_remove(&c->link);
    uv_close((uv_handle_t *)&c->poll, on_closed);
    uv_close((uv_handle_t *)&c->timer, on_closed);
    vg_close(&c->fd);
}

static void on_late(uv_timer_t *timer) {
    conn_end(timer->data);
}

/* A part's length is written before it, and 0 after the last: a reader can tell an answer that was
   broken off. */
static int add_part(struct conn *c) {
    struct vg_buf part = {0};
    int r = c->page->part(c->http->user, c->next_part++, &part);
    if (r > 0 && vg_buf_len(&part)) {
        r = vg_buf_printf(&c->out, "%zx\r\n", vg_buf_len(&part));
        if (r >= 0)
            r = vg_buf_append(&c->out, vg_buf_data(&part), vg_buf_len(&part));
        if (r >= 0)
            r = vg_buf_append(&c->out, "\r\n", 2);
    } else if (r == 0) {
        c->page = NULL;
        r = vg_buf_append(&c->out, "0\r\n\r\n", 5);
    }
    vg_buf_done(&part);
    return r < 0 ? r : 0;
}

/* 1: all is sent. */
static int write_some(struct conn *c) {
    if (!vg_buf_len(&c->out) && c->page) {
        int r = add_part(c);
        if (r < 0)
            return r;
    }
    if (vg_buf_len(&c->out)) {
        ssize_t n = send(c->fd, vg_buf_data(&c->out), vg_buf_len(&c->out), MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        vg_buf_consume(&c->out, (size_t)n);
    }
    return !c->page && !vg_buf_len(&c->out);
}

static int begin_answer(struct conn *c, int status, size_t path) {
    if (status == 200 && !(c->page = find(c->http, c->request + 4, path)))
        status = 404;
    c->answering = true;
    if (c->page && c->page->status)
        status = c->page->status(c->http->user);
    if (c->page)
        return vg_buf_printf(&c->out,
                             "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n"
                             "Cache-Control: no-store\r\nConnection: close\r\n\r\n",
                             status, phrase(status), c->page->type);
    return vg_buf_printf(&c->out,
                         "HTTP/1.1 %d %s\r\nContent-Type: text/plain\r\nContent-Length: %zu\r\n"
                         "%sConnection: close\r\n\r\n%s\n",
                         status, phrase(status), strlen(phrase(status)) + 1,
                         status == 405 ? "Allow: GET\r\n" : "", phrase(status));
}

static int read_some(struct conn *c) {
    size_t path = 0;
    ssize_t n = recv(c->fd, c->request + c->n, sizeof(c->request) - c->n, 0);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    if (n == 0)
        return -EPIPE;
    c->n += (size_t)n;
    int status = vg_http_parse(c->request, c->n, &path);
    return status ? begin_answer(c, status, path) : 0;
}

/* What was sent arrives before the end does: unread bytes would turn it into a reset. */
static void finish(struct conn *c) {
    char rest[512];
    (void)shutdown(c->fd, SHUT_WR);
    while (recv(c->fd, rest, sizeof(rest), MSG_DONTWAIT) > 0)
        continue;
    conn_end(c);
}

static void on_ready(uv_poll_t *poll, int status, int events) {
    struct conn *c = poll->data;
    int r = status < 0 ? status : 0;
    (void)events;
    if (r >= 0 && !c->answering) {
        r = read_some(c);
        if (r >= 0 && c->answering)
            r = uv_poll_start(&c->poll, UV_WRITABLE, on_ready);
    } else if (r >= 0) {
        r = write_some(c);
    }
    if (r < 0)
        conn_end(c);
    else if (r > 0)
        finish(c);
}

static struct conn *conn_new(struct vg_http *h, int fd) {
    struct conn *c = h->n_conns < VG_HTTP_CONNS_MAX ? vg_alloc(sizeof(*c)) : NULL;
    if (c && uv_poll_init(h->loop, &c->poll, fd) < 0)
        free(vg_take_ptr(c));
    if (!c)
        return NULL;
    uv_timer_init(h->loop, &c->timer);
    c->poll.data = c->timer.data = c;
    c->open_handles = 2;
    c->fd = fd;
    c->http = h;
    vg_list_push_back(&h->conns, &c->link);
    h->n_conns++;
    return c;
}

static void on_accepted(int fd, void *user) {
    struct conn *c = conn_new(user, fd);
    if (!c) {
        vg_close(&fd);
        return;
    }
    if (uv_timer_start(&c->timer, on_late, VG_HTTP_USEC / 1000, 0) < 0 ||
        uv_poll_start(&c->poll, UV_READABLE, on_ready) < 0)
        conn_end(c);
}

int vg_http_start(uv_loop_t *loop, const char *host, uint16_t port,
                  const struct vg_http_page *pages, void *user, struct vg_http **ret,
                  uint16_t *ret_port, struct vg_err *err) {
    vg_auto_free struct vg_http *h = vg_alloc(sizeof(*h));
    if (!h)
        return vg_err_sys(err, -ENOMEM, "cannot listen on %s:%u", host, port);
    *h = (struct vg_http){.loop = loop, .pages = pages, .user = user};
    vg_list_init(&h->conns);
    int r = vg_listen_tcp(loop, host, port, on_accepted, h, &h->listener, ret_port, err);
    if (r < 0)
        return r;
    *ret = vg_take_ptr(h);
    return 0;
}

void vg_http_stop(struct vg_http *h) {
    if (!h)
        return;
    vg_listener_free(h->listener);
    vg_list_for_each_safe (it, &h->conns)
        conn_end(vg_list_entry(it, struct conn, link));
    free(h);
}
