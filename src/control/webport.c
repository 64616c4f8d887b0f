/* The port of people and programs; see the header. */
#include "control/webport.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/listen.h"
#include "control/ready.h"
#include "control/rest.h"
#include "http/files.h"
#include "http/rate.h"

#include <malloc.h>
#include <string.h>
#include <unistd.h>

#define ADDRESS_FACTOR 4 /* several people may come from one address */
#define TRIM_CONNS 200
#define LOGINS_BURST 20 /* failed sign-ins of an address at once, and one a second */
#define COMMON                            \
    "X-Content-Type-Options: nosniff\r\n" \
    "X-Frame-Options: DENY\r\n"           \
    "Referrer-Policy: no-referrer\r\n"    \
    "Cross-Origin-Opener-Policy: same-origin\r\n"
#define STRICT "Strict-Transport-Security: max-age=31536000\r\n"

struct vg_webport {
    struct vg_web *web;
    struct vg_rate users, addresses, logins;
    uint64_t expires_usec; /* of the certificate; 0: it is not ours to renew */
    uint64_t most_conns;   /* since memory was last given back */
    char host[256];
    char url[320];
};

/* ------------------------------------------------------------------ limits */

static uint64_t limit_address(const char *peer, void *user) {
    struct vg_control *c = user;
    return vg_rate_take(&c->webport->addresses, peer, 1, vg_now_usec());
}

uint64_t vg_webport_limit_user(struct vg_control *c, const char *user) {
    return c->webport ? vg_rate_take(&c->webport->users, user, 1, vg_now_usec()) : 0;
}

uint64_t vg_webport_limit_login(struct vg_control *c, const char *peer) {
    return c->webport ? vg_rate_wait(&c->webport->logins, peer, 1, vg_now_usec()) : 0;
}

void vg_webport_login_failed(struct vg_control *c, const char *peer) {
    if (c->webport)
        (void)vg_rate_take(&c->webport->logins, peer, 1, vg_now_usec());
}

/* ------------------------------------------------------------------ requests */

static void answer_ready(struct vg_control *c, struct vg_web_req *req) {
    vg_auto_free char *text = vg_ready_text(c);
    vg_web_set(req, "Cache-Control", "no-store");
    vg_web_answer(req, text && vg_ready(c) ? 200 : 503, "application/json", text ? text : "{}",
                  text ? strlen(text) : 2);
}

static void on_request(struct vg_web_req *req, void *user) {
    if (strncmp(req->path, "/api/", 5) == 0)
        vg_rest_request(user, req);
    else if (strcmp(req->path, "/healthz") == 0)
        vg_web_text(req, 200, "ok");
    else if (strcmp(req->path, "/readyz") == 0)
        answer_ready(user, req);
    else
        vg_web_files_answer(&vg_web_dashboard, req);
}

/* ------------------------------------------------------------------ where it listens */

/* Beside control/address: where browsers reached us in our last life. */
static char *kept_file(const struct vg_control *c) {
    return vg_home_file(&c->home, "web");
}

static uint16_t last_port(const struct vg_control *c) {
    vg_auto_free char *path = kept_file(c);
    return path ? vg_listen_last_port(path) : 0;
}

static int keep(const struct vg_control *c, struct vg_err *err) {
    vg_auto_free char *path = kept_file(c);
    vg_auto_free char *line = vg_fmt("%s\n", c->webport->url);
    int r = path && line ? vg_write_file(path, line, strlen(line), 0644) : -ENOMEM;
    return r < 0 ? vg_err_sys(err, r, "cannot write %s", path ? path : "control/web") : 0;
}

/* The name that people are told: the one that was configured, else this machine's. */
static void set_url(const struct vg_control *c, struct vg_webport *p, uint16_t port) {
    char name[256] = "";
    bool every = !*p->host || strcmp(p->host, "0.0.0.0") == 0 || strcmp(p->host, "::") == 0;
    snprintf(name, sizeof(name), "%s", p->host);
    if (every && *c->conf.advertise) {
        snprintf(name, sizeof(name), "%s", c->conf.advertise);
        if (*name != '[')
            name[strcspn(name, ":")] = '\0';
    } else if (every && gethostname(name, sizeof(name) - 1) < 0) {
        snprintf(name, sizeof(name), "localhost");
    }
    snprintf(p->url, sizeof(p->url),
             strchr(name, ':') && *name != '[' ? "https://[%s]:%u" : "https://%s:%u", name, port);
}

static int listen_at(struct vg_control *c, struct vg_tls *tls, uint64_t want, struct vg_err *err) {
    static const struct vg_web_ops ops = {.on_request = on_request, .limit = limit_address};
    struct vg_webport *p = c->webport;
    struct vg_err taken = VG_ERR_INIT;
    uint16_t port = 0, first = want ? (uint16_t)want : last_port(c);
    int r = first
                ? vg_web_start(c->loop, p->host, first, tls, NULL, &ops, c, &p->web, &port, &taken)
                : -ENOENT;
    if (r < 0 && want) {
        *err = taken;
        return vg_err_wrap(err, "choose another address under 'web' in %s", c->home.config);
    }
    if (r < 0)
        r = vg_web_start(c->loop, p->host, 0, tls, NULL, &ops, c, &p->web, &port, err);
    if (r < 0)
        return r;
    set_url(c, p, port);
    r = vg_web_set_common(p->web, *c->conf.web_cert ? COMMON STRICT : COMMON);
    return r < 0 ? vg_err_sys(err, r, "cannot serve the dashboard") : keep(c, err);
}

int vg_webport_start(struct vg_control *c, const char *fallback, struct vg_err *err) {
    const char *text = *c->conf.web ? c->conf.web : fallback;
    struct vg_tls *tls = NULL;
    uint64_t port = 0;
    if (!text || strcmp(text, "off") == 0)
        return 0;
    struct vg_webport *p = c->webport = vg_alloc(sizeof(*p));
    if (!p)
        return vg_err_sys(err, -ENOMEM, "cannot serve the dashboard");
    vg_rate_init(&p->users, c->conf.limits.web_rate, c->conf.limits.web_burst);
    vg_rate_init(&p->addresses, ADDRESS_FACTOR * c->conf.limits.web_rate,
                 ADDRESS_FACTOR * c->conf.limits.web_burst);
    vg_rate_init(&p->logins, 1, LOGINS_BURST);
    int r = vg_listen_split(text, p->host, sizeof p->host, &port, err);
    if (r >= 0)
        r = vg_web_cert_load(c, p->host, &tls, &p->expires_usec, err);
    if (r >= 0)
        r = listen_at(c, tls, port, err);
    vg_tls_unref(tls);
    if (r < 0)
        return vg_err_wrap(err, "cannot serve the dashboard");
    vg_info("web=%s", p->url);
    return 0;
}

void vg_webport_stop(struct vg_control *c) {
    struct vg_webport *p = vg_take_ptr(c->webport);
    if (!p)
        return;
    vg_web_stop(p->web);
    vg_rate_done(&p->users);
    vg_rate_done(&p->addresses);
    vg_rate_done(&p->logins);
    free(p);
}

void vg_webport_renew(struct vg_control *c) {
    struct vg_webport *p = c->webport;
    struct vg_err err = VG_ERR_INIT;
    struct vg_tls *tls = NULL;
    if (!p || !p->expires_usec || vg_wall_usec() + VG_CERT_SERVER_USEC / 3 < p->expires_usec)
        return;
    if (vg_web_cert_load(c, p->host, &tls, &p->expires_usec, &err) < 0) {
        vg_error("cannot renew the dashboard's certificate: %s", err.msg);
        return;
    }
    vg_web_set_tls(p->web, tls);
    vg_tls_unref(tls);
}

void vg_webport_tick(struct vg_control *c) {
    struct vg_webport *p = c->webport;
    if (!p)
        return;
    uint64_t now = vg_web_numbers(p->web).conns_now;
    p->most_conns = VG_MAX(p->most_conns, now);
    if (p->most_conns < TRIM_CONNS || now > p->most_conns / 2)
        return;
    malloc_trim(0);
    p->most_conns = now;
}

const char *vg_webport_url(const struct vg_control *c) {
    return c->webport ? c->webport->url : "";
}

struct vg_web_numbers vg_webport_numbers(const struct vg_control *c) {
    return c->webport && c->webport->web ? vg_web_numbers(c->webport->web)
                                         : (struct vg_web_numbers){0};
}
