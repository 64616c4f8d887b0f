/* Asks other servers; see the header.

   libcurl says which sockets it waits for (on_want) and when it wants to be called anyway
   (on_delay); each socket gets a uv_poll_t, the delay is one uv_timer_t. When libcurl has finished
   calls, `reap` takes them out one by one and tells their owners: libcurl is not on the stack then,
   so an owner may begin or cancel calls. */
#include "net/fetch.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/list.h"
#include "base/mem.h"
#include "base/util.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <netdb.h>
#include <string.h>

#define AT_ONCE 16
#define CONNECT_MS 10000L

struct vg_fetcher {
    CURLM *multi;
    uv_timer_t timer;
    struct vg_list active, waiting; /* struct vg_fetch.link */
    size_t n_active, n_waiting, at_once;
    char *proxy; /* owned; "": none */
    uv_loop_t *loop;
    int open_handles; /* the timer and every poll */
    bool over;        /* it is freed when the last handle is closed */
};

struct vg_fetch {
    struct vg_fetcher *fetcher;
    struct vg_list link;
    CURL *easy;
    struct curl_slist *headers, *to; /* owned by us */
    bool active;
    vg_fetch_fn fn;
    void *user;
    vg_fetch_guard guard;
    void *guard_user;
    struct vg_buf body; /* of the answer */
    size_t max_bytes;
    bool too_big, connected;         /* connected: or it was tried */
    struct sockaddr_storage refused; /* by the guard; family 0: none */
    char *mail;                      /* owned: what is sent by SMTP ... */
    size_t mail_bytes, mail_sent;
    char said[CURL_ERROR_SIZE]; /* by libcurl */
};

struct sock {
    uv_poll_t poll;
    struct vg_fetcher *fetcher;
    curl_socket_t fd;
    int events;
};

static void reap(struct vg_fetcher *f);

/* ------------------------------------------------------------------ the loop's side */

static void handle_gone(struct vg_fetcher *f) {
    if (--f->open_handles || !f->over)
        return;
    free(f->proxy);
    free(f);
}

static void on_timer_closed(uv_handle_t *h) {
    handle_gone(h->data);
}

static void on_poll_closed(uv_handle_t *h) {
    struct sock *s = h->data;
    handle_gone(s->fetcher);
    free(s);
}

static void on_ready(uv_poll_t *poll, int status, int events) {
    struct sock *s = poll->data;
    struct vg_fetcher *f = s->fetcher;
    int what = status < 0 ? CURL_CSELECT_IN | CURL_CSELECT_OUT : 0, running;
    if (events & UV_READABLE)
        what |= CURL_CSELECT_IN;
    if (events & UV_WRITABLE)
        what |= CURL_CSELECT_OUT;
    curl_multi_socket_action(f->multi, s->fd, what, &running);
    /* The other end has reset it: what came before may still be read, and a connection that was
       used before is made anew. libcurl finds out by itself; the loop has stopped looking. */
    if (status < 0 && !uv_is_closing((uv_handle_t *)&s->poll))
        uv_poll_start(&s->poll, s->events, on_ready);
    reap(f);
}

static int on_want(CURL *easy, curl_socket_t fd, int what, void *user, void *of_socket) {
    struct vg_fetcher *f = user;
    struct sock *s = of_socket;
    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        if (s) {
            curl_multi_assign(f->multi, fd, NULL);
            uv_close((uv_handle_t *)&s->poll, on_poll_closed);
        }
        return 0;
    }
    if (!s) {
        s = vg_alloc(sizeof *s);
        if (!s || uv_poll_init_socket(f->loop, &s->poll, fd) < 0) {
            free(s);
            return -1; /* libcurl ends the call */
        }
        s->poll.data = s;
        s->fetcher = f;
        s->fd = fd;
        f->open_handles++;
        curl_multi_assign(f->multi, fd, s);
    }
    s->events = (what & CURL_POLL_IN ? UV_READABLE : 0) | (what & CURL_POLL_OUT ? UV_WRITABLE : 0);
    return uv_poll_start(&s->poll, s->events, on_ready) < 0 ? -1 : 0;
}

static void on_time(uv_timer_t *t) {
    struct vg_fetcher *f = t->data;
    int running;
    curl_multi_socket_action(f->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    reap(f);
}

static int on_delay(CURLM *multi, long ms, void *user) {
    struct vg_fetcher *f = user;
    (void)multi;
    if (ms < 0)
        uv_timer_stop(&f->timer);
    else
        uv_timer_start(&f->timer, on_time, (uint64_t)ms, 0);
    return 0;
}

/* ------------------------------------------------------------------ one call */

static void call_free(struct vg_fetch *c) {
    if (!c)
        return;
    if (c->easy)
        curl_easy_cleanup(c->easy);
    curl_slist_free_all(c->headers);
    curl_slist_free_all(c->to);
    vg_buf_done(&c->body);
    free(c->mail);
    free(c);
}

static void advance(struct vg_fetcher *f) {
    while (f->n_active < f->at_once && f->n_waiting) {
        struct vg_fetch *c = vg_list_entry(vg_list_first(&f->waiting), struct vg_fetch, link);
        vg_list_remove(&c->link);
        f->n_waiting--;
        vg_list_push_back(&f->active, &c->link);
        f->n_active++;
        c->active = true;
        curl_multi_add_handle(f->multi, c->easy); /* asks for its timer: begins from the loop */
    }
}

static void unlink_call(struct vg_fetch *c) {
    struct vg_fetcher *f = c->fetcher;
    vg_list_remove(&c->link);
    if (c->active) {
        curl_multi_remove_handle(f->multi, c->easy);
        f->n_active--;
    } else {
        f->n_waiting--;
    }
}

static void explain(const struct vg_fetch *c, CURLcode code, struct vg_err *err) {
    char where[NI_MAXHOST] = "?";
    const char *said = c->said[0] ? c->said : curl_easy_strerror(code);
    if (c->too_big) {
        vg_err_set(err, VG_TOO_BIG, "the answer is longer than %zu bytes", c->max_bytes);
    } else if (c->refused.ss_family) {
        getnameinfo((const struct sockaddr *)&c->refused, sizeof c->refused, where, sizeof where,
                    NULL, 0, NI_NUMERICHOST);
        vg_err_set(err, VG_FORBIDDEN,
                   "its address %s is not a public one, and the configuration does not allow it",
                   where);
    } else if (code == CURLE_OPERATION_TIMEDOUT) {
        vg_err_set(err, VG_TIMEOUT, "%s", said);
    } else if (code == CURLE_OUT_OF_MEMORY) {
        vg_err_sys(err, -ENOMEM, "cannot ask another server");
    } else if (!c->connected &&
               (code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_URL_MALFORMAT)) {
        vg_err_set(err, VG_INVALID, "%s", said);
    } else {
        vg_err_set(err, VG_UNAVAILABLE, "%s", said);
    }
}

static void finish(struct vg_fetch *c, CURLcode code) {
    struct vg_err err = VG_ERR_INIT;
    long status = 0;
    unlink_call(c);
    curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
    if (code == CURLE_OK && vg_buf_append(&c->body, "", 1) < 0)
        code = CURLE_OUT_OF_MEMORY;
    struct vg_fetch_answer a = {.status = (int)status, .body = "", .call = c};
    if (code == CURLE_OK) {
        a.body = (const char *)vg_buf_data(&c->body);
        a.body_bytes = vg_buf_len(&c->body) - 1;
    } else {
        explain(c, code, &err);
        a.err = &err;
    }
    c->fn(c->user, &a);
    call_free(c);
}

static void reap(struct vg_fetcher *f) {
    CURLMsg *m;
    int left;
    while ((m = curl_multi_info_read(f->multi, &left))) {
        char *of = NULL;
        CURLcode code = m->data.result;
        if (m->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &of);
        finish((struct vg_fetch *)of, code);
    }
    advance(f);
}

/* ------------------------------------------------------------------ libcurl asks us */

static size_t on_body(char *data, size_t one, size_t n, void *user) {
    struct vg_fetch *c = user;
    (void)one;
    c->too_big = vg_buf_len(&c->body) + n > c->max_bytes;
    if (c->too_big || vg_buf_append(&c->body, data, n) < 0)
        return 0;
    return n;
}

static size_t on_mail(char *to, size_t one, size_t n, void *user) {
    struct vg_fetch *c = user;
    size_t part = VG_MIN(one * n, c->mail_bytes - c->mail_sent);
    memcpy(to, c->mail + c->mail_sent, part);
    c->mail_sent += part;
    return part;
}

static curl_socket_t on_open(void *user, curlsocktype purpose, struct curl_sockaddr *a) {
    struct vg_fetch *c = user;
    (void)purpose;
    if (c->guard && !c->guard(c->guard_user, &a->addr)) {
        memset(&c->refused, 0, sizeof c->refused);
        memcpy(&c->refused, &a->addr, VG_MIN((size_t)a->addrlen, sizeof c->refused));
        return CURL_SOCKET_BAD;
    }
    c->connected = true;
    c->refused.ss_family = 0; /* another of its addresses was, but this one is tried */
    return socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
}

/* ------------------------------------------------------------------ beginning */

static int call_new(struct vg_fetcher *f, const char *url, uint64_t usec, vg_fetch_fn fn,
                    void *user, struct vg_fetch **ret, struct vg_err *err) {
    if (f->over || f->n_waiting >= VG_FETCH_WAITING_MAX)
        return vg_err_set(err, VG_UNAVAILABLE,
                          "too many requests to other servers wait already: try again later");
    if (strlen(url) > VG_FETCH_URL_MAX)
        return vg_err_set(err, VG_INVALID, "an address has at most %d bytes", VG_FETCH_URL_MAX);
    struct vg_fetch *c = vg_alloc(sizeof *c);
    if (c)
        c->easy = curl_easy_init();
    if (!c || !c->easy) {
        call_free(c);
        return vg_err_sys(err, -ENOMEM, "cannot ask another server");
    }
    c->fetcher = f;
    c->fn = fn;
    c->user = user;
    c->max_bytes = VG_FETCH_BODY_MAX;
    usec = usec ? usec : VG_FETCH_USEC;
    curl_easy_setopt(c->easy, CURLOPT_URL, url);
    curl_easy_setopt(c->easy, CURLOPT_PRIVATE, c);
    curl_easy_setopt(c->easy, CURLOPT_ERRORBUFFER, c->said);
    curl_easy_setopt(c->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c->easy, CURLOPT_TIMEOUT_MS, (long)VG_MAX(usec / 1000, 1u));
    curl_easy_setopt(c->easy, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS);
    curl_easy_setopt(c->easy, CURLOPT_PROXY, f->proxy); /* "" forbids the environment's */
    curl_easy_setopt(c->easy, CURLOPT_NOPROXY, "");
    curl_easy_setopt(c->easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c->easy, CURLOPT_WRITEDATA, c);
    *ret = c;
    return 0;
}

static int refuse(struct vg_fetch *c, struct vg_err *err, CURLcode code) {
    call_free(c);
    return code == CURLE_OUT_OF_MEMORY
               ? vg_err_sys(err, -ENOMEM, "cannot ask another server")
               : vg_err_set(err, VG_INVALID, "%s", curl_easy_strerror(code));
}

static bool add_line(struct curl_slist **list, const char *line) {
    struct curl_slist *longer = curl_slist_append(*list, line);
    if (longer)
        *list = longer;
    return longer != NULL;
}

static CURLcode add_lines(struct curl_slist **list, const char *const *lines) {
    for (size_t i = 0; lines && lines[i]; i++)
        if (strpbrk(lines[i], "\r\n"))
            return CURLE_BAD_FUNCTION_ARGUMENT;
        else if (!add_line(list, lines[i]))
            return CURLE_OUT_OF_MEMORY;
    return CURLE_OK;
}

static CURLcode set_who(CURL *e, const char *user, const char *password, const char *ca_file) {
    CURLcode r = CURLE_OK;
    if (ca_file)
        r = curl_easy_setopt(e, CURLOPT_CAINFO, ca_file);
    if (r == CURLE_OK && user)
        r = curl_easy_setopt(e, CURLOPT_USERNAME, user);
    if (r == CURLE_OK && password)
        r = curl_easy_setopt(e, CURLOPT_PASSWORD, password);
    return r;
}

static CURLcode set_request(struct vg_fetch *c, const struct vg_fetch_req *req) {
    CURL *e = c->easy;
    CURLcode r = curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
    if (r == CURLE_OK)
        r = curl_easy_setopt(e, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, req->redirects ? 1L : 0L);
    curl_easy_setopt(e, CURLOPT_MAXREDIRS, (long)req->redirects);
    if (req->body) {
        curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)req->body_bytes);
        if (r == CURLE_OK)
            r = curl_easy_setopt(e, CURLOPT_COPYPOSTFIELDS, req->body);
    }
    if (req->method && strcmp(req->method, "HEAD") == 0)
        curl_easy_setopt(e, CURLOPT_NOBODY, 1L);
    else if (req->method && r == CURLE_OK)
        r = curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, req->method);
    if (r == CURLE_OK)
        r = add_lines(&c->headers, req->headers);
    /* No round trip before the body, and no type that the caller did not say. */
    if (r == CURLE_OK &&
        (!add_line(&c->headers, "Expect:") || !add_line(&c->headers, "Content-Type:")))
        r = CURLE_OUT_OF_MEMORY;
    curl_easy_setopt(e, CURLOPT_USERAGENT, "virga/" VG_VERSION);
    curl_easy_setopt(e, CURLOPT_HTTPHEADER, c->headers);
    if (r == CURLE_OK && req->user)
        r = curl_easy_setopt(e, CURLOPT_HTTPAUTH, (long)CURLAUTH_BASIC);
    return r == CURLE_OK ? set_who(e, req->user, req->password, req->ca_file) : r;
}

static void queue(struct vg_fetch *c, struct vg_fetch **ret) {
    struct vg_fetcher *f = c->fetcher;
    vg_list_push_back(&f->waiting, &c->link);
    f->n_waiting++;
    if (ret)
        *ret = c;
    advance(f);
}

int vg_fetch_start(struct vg_fetcher *f, const struct vg_fetch_req *req, vg_fetch_fn fn, void *user,
                   struct vg_fetch **ret, struct vg_err *err) {
    struct vg_fetch *c = NULL;
    int r = call_new(f, req->url, req->usec, fn, user, &c, err);
    if (r < 0)
        return r;
    if (req->max_bytes)
        c->max_bytes = req->max_bytes;
    const char *proxy = req->proxy ? req->proxy : f->proxy;
    curl_easy_setopt(c->easy, CURLOPT_PROXY, proxy);
    c->guard = proxy[0] ? NULL : req->guard;
    c->guard_user = req->guard_user;
    curl_easy_setopt(c->easy, CURLOPT_OPENSOCKETFUNCTION, on_open);
    curl_easy_setopt(c->easy, CURLOPT_OPENSOCKETDATA, c);
    /* A connection that was made without being asked about must not serve a call that asks. */
    if (c->guard)
        curl_easy_setopt(c->easy, CURLOPT_FRESH_CONNECT, 1L);
    CURLcode code = set_request(c, req);
    if (code != CURLE_OK)
        return refuse(c, err, code);
    queue(c, ret);
    return 0;
}

static CURLcode set_mail(struct vg_fetch *c, const struct vg_mail_req *req) {
    CURL *e = c->easy;
    CURLcode r = curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "smtp,smtps");
    if (r == CURLE_OK)
        r = add_lines(&c->to, req->to);
    if (r == CURLE_OK && (strpbrk(req->from, "\r\n<> ") || !c->to))
        r = CURLE_BAD_FUNCTION_ARGUMENT;
    if (r == CURLE_OK)
        r = curl_easy_setopt(e, CURLOPT_MAIL_FROM, req->from);
    curl_easy_setopt(e, CURLOPT_MAIL_RCPT, c->to);
    if (r == CURLE_OK)
        r = curl_easy_setopt(
            e, CURLOPT_USE_SSL,
            (long)(req->tls == VG_MAIL_TLS_NONE ? CURLUSESSL_NONE : CURLUSESSL_ALL));
    curl_easy_setopt(e, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(e, CURLOPT_READFUNCTION, on_mail);
    curl_easy_setopt(e, CURLOPT_READDATA, c);
    c->mail = vg_memdup(req->text, req->text_bytes);
    c->mail_bytes = req->text_bytes;
    if (r == CURLE_OK && !c->mail)
        r = CURLE_OUT_OF_MEMORY;
    return r == CURLE_OK ? set_who(e, req->user, req->password, req->ca_file) : r;
}

int vg_fetch_mail(struct vg_fetcher *f, const struct vg_mail_req *req, vg_fetch_fn fn, void *user,
                  struct vg_fetch **ret, struct vg_err *err) {
    struct vg_fetch *c = NULL;
    vg_auto_free char *url =
        vg_fmt("%s://%s", req->tls == VG_MAIL_TLS_WHOLE ? "smtps" : "smtp", req->server);
    if (!url)
        return vg_err_sys(err, -ENOMEM, "cannot send mail");
    int r = call_new(f, url, req->usec, fn, user, &c, err);
    if (r < 0)
        return r;
    CURLcode code = set_mail(c, req);
    if (code != CURLE_OK)
        return refuse(c, err, code);
    queue(c, ret);
    return 0;
}

void vg_fetch_cancel(struct vg_fetch *c) {
    if (!c)
        return;
    unlink_call(c);
    struct vg_fetcher *f = c->fetcher;
    call_free(c);
    advance(f);
}

const char *vg_fetch_header(const struct vg_fetch_answer *answer, const char *name) {
    struct curl_header *h = NULL;
    if (curl_easy_header(answer->call->easy, name, 0, CURLH_HEADER, -1, &h) != CURLHE_OK)
        return NULL;
    return h->value;
}

size_t vg_fetcher_load(const struct vg_fetcher *f) {
    return f->n_active + f->n_waiting;
}

/* ------------------------------------------------------------------ life */

int vg_fetcher_new(uv_loop_t *loop, const struct vg_fetcher_opts *opts, struct vg_fetcher **ret,
                   struct vg_err *err) {
    static bool ready; /* libcurl's own state is the process's; programs have one loop thread */
    if (!ready && curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return vg_err_set(err, VG_INTERNAL, "libcurl cannot be used");
    ready = true;
    struct vg_fetcher *f = vg_alloc(sizeof *f);
    if (f) {
        f->proxy = vg_strdup(opts->proxy ? opts->proxy : "");
        f->multi = curl_multi_init();
    }
    if (!f || !f->proxy || !f->multi) {
        if (f) {
            curl_multi_cleanup(f->multi);
            free(f->proxy);
        }
        free(f);
        return vg_err_sys(err, -ENOMEM, "cannot prepare requests to other servers");
    }
    f->loop = loop;
    f->at_once = opts->at_once ? opts->at_once : AT_ONCE;
    vg_list_init(&f->active);
    vg_list_init(&f->waiting);
    uv_timer_init(loop, &f->timer);
    f->timer.data = f;
    f->open_handles = 1;
    curl_multi_setopt(f->multi, CURLMOPT_SOCKETFUNCTION, on_want);
    curl_multi_setopt(f->multi, CURLMOPT_SOCKETDATA, f);
    curl_multi_setopt(f->multi, CURLMOPT_TIMERFUNCTION, on_delay);
    curl_multi_setopt(f->multi, CURLMOPT_TIMERDATA, f);
    curl_multi_setopt(f->multi, CURLMOPT_MAXCONNECTS, (long)f->at_once);
    *ret = f;
    return 0;
}

static void drop_all(struct vg_list *calls) {
    vg_list_for_each_safe (it, calls) {
        struct vg_fetch *c = vg_list_entry(it, struct vg_fetch, link);
        unlink_call(c);
        call_free(c);
    }
}

void vg_fetcher_free(struct vg_fetcher *f) {
    if (!f)
        return;
    f->over = true;
    drop_all(&f->waiting);
    drop_all(&f->active);
    curl_multi_cleanup(f->multi); /* closes what it kept open, by on_want */
    uv_close((uv_handle_t *)&f->timer, on_timer_closed);
}
