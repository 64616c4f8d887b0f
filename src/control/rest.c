/* From a request to the handler and back. What always holds:
   1. Every request is answered exactly once, whoever goes away first.
   2. A call is never freed while a handler that knows its peer is on the stack: what ends inside
   one is swept from the loop.
   3. Who asks is found by the same checks as a connection's Hello; cookies alone never change
   anything for a page of another site. */
#include "control/rest.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/audit.h"
#include "control/rest-int.h"
#include "control/rest-live.h"
#include "control/webport.h"
#include "http/parse.h"

#include <stdio.h>
#include <string.h>

struct vg_rest *vg_rest_get(struct vg_control *c) {
    if (!c->rest) {
        c->rest = vg_alloc(sizeof *c->rest);
        if (c->rest)
            vg_list_init(&c->rest->calls);
    }
    return c->rest;
}

/* ------------------------------------------------------------------ the life of a call */

static void call_free(struct vg_rest_call *call) {
    vg_timer_stop(&call->timer);
    if (call->req && call->streaming)
        vg_web_end(call->req, true);
    else if (call->req)
        vg_rest_problem(call->req, VG_UNAVAILABLE, 503, "the control plane stops: try again");
    if (call->peer)
        vg_peer_drop(call->peer);
    if (call->free_data)
        call->free_data(call->data);
    for (size_t i = 0; i < VG_REST_PARTS; i++)
        free(call->part[i]);
    vg_list_remove(&call->on_all);
    free(call);
}

static void sweep(void *user) {
    struct vg_control *c = user;
    c->rest->sweep = NULL;
    vg_list_for_each_safe (it, &c->rest->calls) {
        struct vg_rest_call *call = vg_list_entry(it, struct vg_rest_call, on_all);
        if (call->over && !call->asking)
            call_free(call);
    }
}

static void sweep_soon(struct vg_control *c) {
    if (!c->rest->sweep)
        c->rest->sweep = vg_timer_start(c->loop, 0, sweep, c);
}

void vg_rest_over(struct vg_rest_call *call) {
    call->over = true;
    if (!call->asking)
        sweep_soon(call->ctl);
}

static void on_gone(struct vg_web_req *req, void *user) {
    (void)req;
    vg_rest_over(user);
}

void vg_rest_stop(struct vg_control *c) {
    struct vg_rest *r = c->rest;
    if (!r)
        return;
    vg_list_for_each_safe (it, &r->calls)
        call_free(vg_list_entry(it, struct vg_rest_call, on_all));
    vg_timer_stop(&r->sweep);
    vg_map_for_each (s, &r->codes)
        free(s->value);
    vg_map_done(&r->codes);
    json_decref(r->openapi);
    c->rest = NULL;
    free(r);
}

static void told(struct vg_peer *p, const Vg__Pb__Envelope *env, bool more) {
    struct vg_rest_call *call = p->sink_user;
    if (!call->over)
        call->told(call, env, more);
}

static size_t queued(const struct vg_peer *p) {
    const struct vg_rest_call *call = p->sink_user;
    bool full = call->over || (call->streaming && call->req && vg_web_room(call->req) == 0);
    return full ? SIZE_MAX : 0;
}

static void cut(struct vg_peer *p, enum vg_reason reason, const char *why) {
    struct vg_rest_call *call = p->sink_user;
    struct vg_err err = VG_ERR_INIT;
    vg_err_set(&err, reason, "%s", why);
    if (!call->over)
        vg_rest_fail(call, &err);
}

static const struct vg_peer_sink sink = {.told = told, .queued = queued, .cut = cut};

static struct vg_rest_call *call_new(struct vg_control *c, struct vg_web_req *req,
                                     const struct vg_rest_route *route) {
    struct vg_who who = {0};
    struct vg_rest_call *call = vg_rest_get(c) ? vg_alloc(sizeof *call) : NULL;
    if (!call)
        return NULL;
    *call = (struct vg_rest_call){
        .ctl = c, .route = route, .req = req, .told = route->told ? route->told : vg_rest_told};
    if (vg_peer_new_inner(c, &sink, call, &who, &call->peer) < 0) {
        free(call);
        return NULL;
    }
    snprintf(call->peer->who.from, sizeof call->peer->who.from, "%s", req->peer);
    vg_list_push_back(&c->rest->calls, &call->on_all);
    vg_web_on_gone(req, on_gone, call);
    return call;
}

/* ------------------------------------------------------------------ who asks */

int vg_rest_settle(struct vg_rest_call *call, const char *token, struct vg_err *err) {
    int r = vg_who_settle(call->ctl, call->peer, token, err);
    if (r >= 0)
        call->peer->kind = VG_PEER_CLIENT;
    else
        r = vg_rest_sign_in_failed(call, call->by_cookie ? "session" : "token", err);
    return r;
}

/* Who guesses is slowed down; who knows is not kept waiting for him. */
int vg_rest_sign_in_failed(struct vg_rest_call *call, const char *how, struct vg_err *err) {
    vg_audit_refused(call->ctl, call->req->peer, how, err->msg);
    call->ctl->counts.logins_refused++;
    call->wait_msec = vg_webport_limit_login(call->ctl, call->req->peer);
    if (!call->wait_msec)
        vg_webport_login_failed(call->ctl, call->req->peer);
    else
        vg_err_set(err, VG_UNAUTHENTICATED,
                   "too many sign-ins from this address failed: wait a little");
    return err->code;
}

static bool changes(enum vg_web_method m) {
    return m != VG_WEB_GET && m != VG_WEB_OPTIONS;
}

static int find_who(struct vg_rest_call *call, struct vg_err *err) {
    const char *auth = vg_web_header(call->req, "authorization");
    char cookie[128];
    if (auth && strncasecmp(auth, "Bearer ", 7) == 0)
        return vg_rest_settle(call, auth + 7 + strspn(auth + 7, " "), err);
    if (auth)
        return vg_err_set(err, VG_UNAUTHENTICATED,
                          "only 'Authorization: Bearer TOKEN' is understood");
    if (vg_web_cookie(call->req, VG_REST_COOKIE, cookie, sizeof cookie) < 0)
        return vg_err_set(err, VG_UNAUTHENTICATED,
                          "this cloud wants an API token: send 'Authorization: Bearer TOKEN' "
                          "('virga token create' makes one), or sign in");
    call->by_cookie = true;
    if (changes(call->req->method) && !vg_web_same_origin(call->req))
        return vg_err_set(err, VG_FORBIDDEN,
                          "another site's page may not do this with your sign-in");
    return vg_rest_settle(call, cookie, err);
}

/* ------------------------------------------------------------------ paths */

/* One segment of the path as it was sent; NULL: it cannot be one. */
static char *decode(const char *s, size_t n) {
    char *out = vg_strndup(s, n);
    if (out && vg_web_decode(out, false) < 0)
        free(vg_take_ptr(out));
    return out;
}

struct segments {
    const char *at[VG_REST_ROOM];
    size_t len[VG_REST_ROOM], n;
};

static bool split(const char *path, struct segments *s) {
    s->n = 0;
    while (*path == '/') {
        size_t n = strcspn(++path, "/?#");
        if (s->n == VG_REST_ROOM)
            return false;
        s->at[s->n] = path;
        s->len[s->n++] = n;
        path += n;
    }
    return true;
}

static bool fits(const struct segments *want, const struct segments *have) {
    if (want->n != have->n)
        return false;
    for (size_t i = 0; i < want->n; i++) {
        bool open = want->at[i][0] == '{';
        if (open ? have->len[i] == 0
                 : want->len[i] != have->len[i] ||
                       memcmp(want->at[i], have->at[i], want->len[i]) != 0)
            return false;
    }
    return true;
}

static size_t parameters(const char *path) {
    size_t n = 0;
    for (; *path; path++)
        n += *path == '{';
    return n;
}

/* The path's route for this method; *ret_allow collects the methods that there are. A path without
   parameters goes before one that has them. */
static const struct vg_rest_route *find_route(const struct segments *have, enum vg_web_method m,
                                              unsigned *ret_allow) {
    const struct vg_rest_route *found = NULL;
    size_t fewest = VG_REST_ROOM;
    for (size_t i = 0; i < vg_rest_n_routes; i++) {
        const struct vg_rest_route *r = &vg_rest_routes[i];
        struct segments want;
        split(r->path, &want);
        if (!fits(&want, have) || parameters(r->path) > fewest)
            continue;
        if (parameters(r->path) < fewest) {
            fewest = parameters(r->path);
            *ret_allow = 0;
            found = NULL;
        }
        *ret_allow |= 1u << r->method;
        if (r->method == m)
            found = r;
    }
    return found;
}

static int take_parts(struct vg_rest_call *call, const struct segments *have, struct vg_err *err) {
    struct segments want;
    size_t k = 0;
    split(call->route->path, &want);
    for (size_t i = 0; i < want.n && k < VG_REST_PARTS; i++) {
        if (want.at[i][0] != '{')
            continue;
        call->part[k] = decode(have->at[i], have->len[i]);
        if (!call->part[k])
            return vg_err_set(err, VG_INVALID, "the path has a name that cannot be one");
        if (strlen(call->part[k]) > VG_VIEW_TEXT_MAX)
            return vg_err_set(err, VG_INVALID, "a name in the path is longer than %d bytes",
                              VG_VIEW_TEXT_MAX);
        k++;
    }
    return 0;
}

static void say_allowed(struct vg_web_req *req, unsigned allow) {
    char text[80] = "OPTIONS";
    size_t n = strlen(text);
    for (unsigned m = 0; m < VG_WEB_METHODS; m++)
        if (allow & 1u << m)
            n += (size_t)snprintf(text + n, sizeof text - n, ", %s%s",
                                  vg_web_method_name((enum vg_web_method)m),
                                  m == VG_WEB_GET ? ", HEAD" : "");
    vg_web_set(req, "Allow", text);
}

/* ------------------------------------------------------------------ the request's message */

static int set_part(ProtobufCMessage *m, const char *field, const char *text, struct vg_err *err) {
    const ProtobufCFieldDescriptor *f =
        protobuf_c_message_descriptor_get_field_by_name(m->descriptor, field);
    struct vg_view_field line = {.name = field, .pb = f};
    struct vg_view v = {.pb = m->descriptor, .fields = &line, .n = 1, .ready = true};
    return vg_view_take_text(&v, m, field, text, err);
}

int vg_rest_body(struct vg_rest_call *call, ProtobufCMessage **ret, struct vg_err *err) {
    const struct vg_web_req *req = call->req;
    json_error_t why;
    if (!req->body_len) { /* all of it may be left out, or it says what is missing */
        json_t *none = json_object();
        int r = vg_view_take(call->route->body, none, ret, err);
        json_decref(none);
        return r;
    }
    json_t *j = json_loadb((const char *)req->body, req->body_len, JSON_REJECT_DUPLICATES, &why);
    if (!j)
        return vg_err_set(err, VG_INVALID, "the body is not JSON: line %d: %s", why.line, why.text);
    int r = vg_view_take(call->route->body, j, ret, err);
    json_decref(j);
    return r;
}

int vg_rest_query(struct vg_rest_call *call, ProtobufCMessage *m, struct vg_err *err) {
    const struct vg_web_req *req = call->req;
    int r = 0;
    for (size_t i = 0; i < req->n_query && r >= 0; i++) {
        if (!call->route->query)
            return vg_err_set(err, VG_INVALID, "'%.64s' is not known here: there are no parameters",
                              req->query[i].name);
        r = vg_view_take_text(call->route->query, m, req->query[i].name, req->query[i].value, err);
    }
    return r;
}

/* What the body calls it is what is answered afterwards. */
static int take_name(struct vg_rest_call *call, const ProtobufCMessage *m, struct vg_err *err) {
    const ProtobufCFieldDescriptor *f =
        protobuf_c_message_descriptor_get_field_by_name(m->descriptor, "name");
    call->part[0] = vg_strdup(*(char *const *)((const char *)m + f->offset));
    return call->part[0] ? 0 : vg_err_sys(err, ENOMEM, "cannot take the request");
}

static const ProtobufCFieldDescriptor *request_field(unsigned body_case) {
    return protobuf_c_message_descriptor_get_field(&vg__pb__envelope__descriptor, body_case);
}

static int make_message(struct vg_rest_call *call, ProtobufCMessage **ret, struct vg_err *err) {
    const struct vg_rest_route *route = call->route;
    const ProtobufCFieldDescriptor *f = request_field(route->request);
    ProtobufCMessage *m = NULL;
    int r = 0;
    if (route->body)
        r = vg_rest_body(call, &m, err);
    else if (!(m = vg_view_new(f->descriptor)))
        r = vg_err_sys(err, ENOMEM, "cannot take the request");
    if (r >= 0)
        r = vg_rest_query(call, m, err);
    if (r >= 0 && route->flags & VG_REST_NAMED)
        r = take_name(call, m, err);
    if (r >= 0 && route->fill) {
        ProtobufCMessage *taken = m;
        m = NULL;
        r = route->fill(call, taken, &m, err);
    }
    for (size_t i = 0; r >= 0 && m && i < VG_REST_PARTS; i++)
        if (route->field[i])
            r = set_part(m, route->field[i], call->part[i], err);
    if (r < 0) {
        if (m)
            protobuf_c_message_free_unpacked(m, NULL);
        return r;
    }
    *ret = m;
    return 0;
}

void vg_rest_ask(struct vg_rest_call *call, unsigned body_case, ProtobufCMessage *message) {
    Vg__Pb__Envelope *env = vg_alloc(sizeof *env);
    bool outer = !call->asking;
    if (!env) {
        struct vg_err err = VG_ERR_INIT;
        protobuf_c_message_free_unpacked(message, NULL);
        vg_err_sys(&err, ENOMEM, "cannot take the request");
        vg_rest_fail(call, &err);
        return;
    }
    vg__pb__envelope__init(env);
    env->body_case = (Vg__Pb__Envelope__BodyCase)body_case;
    env->ok = (Vg__Pb__Ok *)message; /* every body is a pointer in the same place */
    call->asking = true;
    vg_peer_ask(call->peer, env);
    if (outer)
        call->asking = false;
    if (outer && call->over)
        sweep_soon(call->ctl);
    vg__pb__envelope__free_unpacked(env, NULL);
}

/* ------------------------------------------------------------------ requests */

void vg_rest_go(struct vg_rest_call *call) {
    const struct vg_rest_route *route = call->route;
    struct vg_err err = VG_ERR_INIT;
    ProtobufCMessage *m = NULL;
    if (route->live && (!(route->flags & VG_REST_FOLLOW) || vg_live_flag(call->req, "follow"))) {
        vg_web_on_gone(call->req, NULL, NULL);
        route->live(vg_take_ptr(call->peer), vg_take_ptr(call->req), call->part[0]);
        vg_rest_over(call);
    } else if (route->special && !route->query && vg_rest_query(call, NULL, &err) < 0) {
        vg_rest_fail(call, &err);
    } else if (route->special) {
        vg_store_group_begin(call->ctl->store);
        route->special(call);
        vg_store_group_end(call->ctl->store);
    } else if (make_message(call, &m, &err) < 0) {
        vg_rest_fail(call, &err);
    } else {
        vg_rest_ask(call, route->request, m);
    }
}

static void limited(struct vg_rest_call *call, uint64_t wait_msec) {
    struct vg_err err = VG_ERR_INIT;
    call->wait_msec = wait_msec;
    vg_err_set(&err, VG_UNAVAILABLE,
               "too many requests: wait, or ask the administrator for a higher limit "
               "(limits.web_rate)");
    vg_rest_fail(call, &err);
}

/* Who asks for a guard that this path does not have is not left to believe in it. */
static int check_guards(const struct vg_rest_call *call, struct vg_err *err) {
    const struct vg_rest_route *route = call->route;
    if (!changes(route->method))
        return 0;
    if (vg_web_header(call->req, "if-match") && !(route->flags & VG_REST_MATCH))
        return vg_err_set(err, VG_INVALID,
                          "If-Match is not looked at here: leave it out; nothing was changed");
    if (vg_web_header(call->req, "idempotency-key") && route->method == VG_WEB_POST &&
        !vg_rest_takes_key(route))
        return vg_err_set(err, VG_INVALID,
                          "Idempotency-Key is not looked at here: leave it out; nothing was done");
    return 0;
}

static void begin(struct vg_rest_call *call, const struct segments *have) {
    struct vg_err err = VG_ERR_INIT;
    if ((!(call->route->flags & VG_REST_OPEN) && find_who(call, &err) < 0) ||
        check_guards(call, &err) < 0 || take_parts(call, have, &err) < 0) {
        vg_rest_fail(call, &err);
        return;
    }
    uint64_t wait =
        call->peer->who.user[0] ? vg_webport_limit_user(call->ctl, call->peer->who.user) : 0;
    if (wait)
        limited(call, wait);
    else if (!(call->route->flags & VG_REST_MATCH) || vg_rest_match(call))
        vg_rest_go(call);
}

void vg_rest_request(struct vg_control *c, struct vg_web_req *req) {
    struct segments have = {0};
    unsigned allow = 0;
    const char *path = req->target;
    bool ours = strncmp(path, VG_REST_PREFIX, strlen(VG_REST_PREFIX)) == 0 &&
                split(path + strlen(VG_REST_PREFIX), &have);
    const struct vg_rest_route *route = ours ? find_route(&have, req->method, &allow) : NULL;
    if (allow && !route)
        say_allowed(req, allow);
    if (allow && req->method == VG_WEB_OPTIONS) {
        vg_web_answer(req, 204, NULL, NULL, 0);
        return;
    }
    if (!route) {
        vg_rest_problem(req, allow ? VG_INVALID : VG_NOT_FOUND, allow ? 405 : 404,
                        allow ? "this path is not for that method: the Allow header has those it "
                                "is for"
                              : "there is nothing at this path: /api/v1/openapi.json lists all");
        return;
    }
    struct vg_rest_call *call = c->stopping ? NULL : call_new(c, req, route);
    if (!call) {
        vg_rest_problem(req, VG_UNAVAILABLE, 503, "the control plane is busy: try again");
        return;
    }
    call->asking = true; /* nothing frees it before we are done */
    begin(call, &have);
    call->asking = false;
    if (call->over)
        call_free(call);
}
