/* Answers: JSON, problems (RFC 9457), ETags, CSV. */
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "control/rest-int.h"
#include "view/csv.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define JSON_TYPE "application/json"
#define PROBLEM_TYPE "application/problem+json"

/* ------------------------------------------------------------------ problems */

static json_t *problem(enum vg_reason reason, int status, const char *text) {
    char type[64] = "urn:virga:problem:";
    const char *code = status == 429   ? "LIMIT"
                       : status == 405 ? "METHOD"
                       : status == 412 ? "CHANGED"
                                       : vg_reason_name(reason);
    size_t n = strlen(type);
    for (size_t i = 0; code[i] && n + 1 < sizeof type; i++, n++)
        type[n] = code[i] == '_' ? '-' : (char)tolower((unsigned char)code[i]);
    type[n] = 0;
    json_t *j = json_object();
    json_object_set_new(j, "type", json_string(type));
    json_object_set_new(j, "title", json_string(vg_web_phrase(status)));
    json_object_set_new(j, "status", json_integer(status));
    json_object_set_new(j, "detail", vg_json_text(text));
    json_object_set_new(j, "code", json_string(code));
    return j;
}

void vg_rest_problem(struct vg_web_req *req, enum vg_reason reason, int status, const char *text) {
    json_t *j = problem(reason, status, text);
    vg_auto_free char *body = json_dumps(j, JSON_COMPACT);
    json_decref(j);
    if (status == 401)
        vg_web_set(req, "WWW-Authenticate", "Bearer realm=\"virga\"");
    if (status == 503)
        vg_web_set(req, "Retry-After", "1");
    vg_web_set(req, "Cache-Control", "no-store");
    vg_web_answer(req, status, PROBLEM_TYPE, body ? body : "{}", body ? strlen(body) : 2);
}

void vg_rest_fail(struct vg_rest_call *call, const struct vg_err *err) {
    enum vg_reason reason = err->reason ? err->reason : VG_INTERNAL;
    struct vg_web_req *req = vg_take_ptr(call->req);
    char seconds[24];
    if (req && call->wait_msec) {
        snprintf(seconds, sizeof seconds, "%llu",
                 (unsigned long long)(call->wait_msec + 999) / 1000);
        vg_web_set(req, "Retry-After", seconds);
    }
    const char *accept = req ? vg_web_header(req, "accept") : NULL;
    if (req && call->streaming)
        vg_web_end(req, true);
    else if (call->route && call->route->flags & VG_REST_LEADS && accept &&
             strstr(accept, "text/html"))
        vg_rest_at_the_door(req, err->msg);
    else if (req)
        vg_rest_problem(req, reason, call->wait_msec ? 429 : vg_reason_http(reason), err->msg);
    vg_rest_over(call);
}

bool vg_rest_failed(struct vg_rest_call *call, const Vg__Pb__Envelope *env) {
    struct vg_err err = VG_ERR_INIT;
    if (env->body_case != VG__PB__ENVELOPE__BODY_ERROR)
        return false;
    vg_err_set(&err, vg_reason_from_wire(env->error->reason), "%s",
               env->error->text ? env->error->text : "");
    vg_rest_fail(call, &err);
    return true;
}

/* ------------------------------------------------------------------ JSON */

static void tag(const char *body, char out[static 32]) {
    uint64_t h = 0xcbf29ce484222325ULL; /* FNV-1a */
    for (const char *p = body; *p; p++)
        h = (h ^ (uint8_t)*p) * 0x100000001b3ULL;
    snprintf(out, 32, "\"%016llx\"", (unsigned long long)h);
}

void vg_rest_etag(const struct vg_rest_route *route, const json_t *j, const char *body,
                  char out[static 32]) {
    if (!route->edited) {
        tag(body, out);
        return;
    }
    json_t *part = json_object();
    for (size_t i = 0; i < route->edited->n; i++)
        json_object_set(part, route->edited->fields[i].name,
                        json_object_get(j, route->edited->fields[i].name));
    vg_auto_free char *text = json_dumps(part, JSON_COMPACT);
    json_decref(part);
    tag(text ? text : "", out);
}

bool vg_rest_tag_in(const char *tags, const char *etag, bool weak) {
    size_t n = strlen(etag);
    for (const char *p = tags; p && *p; p += strcspn(p, ",")) {
        p += strspn(p, ", \t");
        bool is_weak = strncmp(p, "W/", 2) == 0;
        const char *tag = p + 2 * is_weak;
        if (strcmp(p, "*") == 0 || ((weak || !is_weak) && strncmp(tag, etag, n) == 0))
            return true;
    }
    return false;
}

/* False: the client has it already. */
static bool answer_tagged(struct vg_rest_call *call, const json_t *j, const char *body) {
    char etag[32];
    vg_rest_etag(call->route, j, body, etag);
    vg_web_set(call->req, "ETag", etag);
    return call->route->edited ||
           !vg_rest_tag_in(vg_web_header(call->req, "if-none-match"), etag, true);
}

static void answer_text(struct vg_rest_call *call, int status, const char *type, const json_t *j,
                        const char *body) {
    bool get = call->req && call->req->method == VG_WEB_GET && status == 200;
    bool fresh = get && !answer_tagged(call, j, body);
    struct vg_web_req *req = vg_take_ptr(call->req);
    if (req)
        vg_web_set(req, "Cache-Control", "private, no-cache");
    if (req && call->route->flags & VG_REST_CSV)
        vg_web_set(req, "Vary", "Accept");
    if (req && fresh)
        vg_web_answer(req, 304, NULL, NULL, 0);
    else if (req)
        vg_web_answer(req, status, type, body, strlen(body));
    vg_rest_over(call);
}

static void no_memory(struct vg_rest_call *call) {
    struct vg_err err = VG_ERR_INIT;
    vg_err_sys(&err, ENOMEM, "cannot answer");
    vg_rest_fail(call, &err);
}

void vg_rest_json(struct vg_rest_call *call, int status, json_t *j) {
    vg_auto_free char *body = j ? json_dumps(j, JSON_COMPACT) : NULL;
    if (body)
        answer_text(call, status, JSON_TYPE, j, body);
    else
        no_memory(call);
    json_decref(j);
}

void vg_rest_empty(struct vg_rest_call *call, int status) {
    struct vg_web_req *req = vg_take_ptr(call->req);
    if (req)
        vg_web_answer(req, status, NULL, NULL, 0);
    vg_rest_over(call);
}

/* ------------------------------------------------------------------ from the handler's answer */

/* The one element that the path names. */
static json_t *pick(struct vg_rest_call *call, const void *message) {
    const struct vg_rest_route *route = call->route;
    json_t *all = json_array(), *found = NULL;
    vg_view_elements(all, route->list, message);
    for (size_t i = 0; i < json_array_size(all) && !found; i++) {
        json_t *one = json_array_get(all, i);
        const char *name = json_string_value(json_object_get(one, route->pick));
        if (name && strcmp(name, call->part[0]) == 0)
            found = json_incref(one);
    }
    json_decref(all);
    return found;
}

json_t *vg_rest_answer(struct vg_rest_call *call, const Vg__Pb__Envelope *env) {
    const struct vg_rest_route *route = call->route;
    const ProtobufCMessage *m = (const ProtobufCMessage *)env->ok;
    struct vg_view *want = route->pick ? route->list : route->answer;
    struct vg_err err = VG_ERR_INIT;
    json_t *j = NULL;
    if (want && m->descriptor == want->pb)
        j = route->pick ? pick(call, m) : vg_view_json(route->answer, m);
    if (!j && want && m->descriptor == want->pb)
        vg_err_set(&err, VG_NOT_FOUND, "there is no '%.64s' here that you may see", call->part[0]);
    else if (!j)
        vg_err_set(&err, VG_INTERNAL, "the control plane answered something else than expected");
    if (!j)
        vg_rest_fail(call, &err);
    return j;
}

/* ------------------------------------------------------------------ CSV */

char *vg_rest_csv(const json_t *rows) {
    struct vg_buf b = {0};
    int r = vg_csv_rows(&b, rows, true);
    char *out = r >= 0 ? vg_alloc(vg_buf_len(&b) + 1) : NULL;
    if (out && vg_buf_len(&b))
        memcpy(out, vg_buf_data(&b), vg_buf_len(&b));
    vg_buf_done(&b);
    return out;
}

static void answer_csv(struct vg_rest_call *call, json_t *j) {
    json_t *rows = json_object_iter_value(json_object_iter(j)); /* the list is the first member */
    vg_auto_free char *text = vg_rest_csv(rows);
    if (text)
        answer_text(call, 200, "text/csv; charset=utf-8", j, text);
    else
        no_memory(call);
    json_decref(j);
}

/* ------------------------------------------------------------------ the usual way */

/* It is done: how it is now is the answer. */
static void ask_for_it(struct vg_rest_call *call) {
    const ProtobufCFieldDescriptor *f =
        protobuf_c_message_descriptor_get_field(&vg__pb__envelope__descriptor, call->route->then);
    ProtobufCMessage *m = vg_view_new(f->descriptor);
    if (m)
        vg_rest_ask(call, call->route->then, m);
    else
        no_memory(call);
}

void vg_rest_message(struct vg_rest_call *call, int status, struct vg_view *v, const void *m) {
    struct vg_buf b = {0};
    if (vg_view_text(&b, v, m) < 0 || vg_buf_append(&b, "", 1) < 0)
        no_memory(call);
    else
        answer_text(call, status, JSON_TYPE, NULL, (const char *)vg_buf_data(&b));
    vg_buf_done(&b);
}

/* The way of most answers: straight from the message to text. False: another way is needed. */
static bool answer_straight(struct vg_rest_call *call, const Vg__Pb__Envelope *env) {
    const struct vg_rest_route *route = call->route;
    const ProtobufCMessage *m = (const ProtobufCMessage *)env->ok;
    if (!route->answer || route->pick || route->edited || m->descriptor != route->answer->pb ||
        (route->flags & VG_REST_CSV && vg_web_accepts(call->req, "text/csv")))
        return false;
    vg_rest_message(call, route->status ? route->status : 200, route->answer, m);
    return true;
}

void vg_rest_told(struct vg_rest_call *call, const Vg__Pb__Envelope *env, bool more) {
    const struct vg_rest_route *route = call->route;
    (void)more;
    if (vg_rest_failed(call, env))
        return;
    if (env->body_case == VG__PB__ENVELOPE__BODY_OK && route->then) {
        ask_for_it(call);
        return;
    }
    if (env->body_case == VG__PB__ENVELOPE__BODY_OK && !route->answer) {
        vg_rest_empty(call, route->status ? route->status : 204);
        return;
    }
    if (answer_straight(call, env))
        return;
    json_t *j = vg_rest_answer(call, env);
    if (!j)
        return;
    if (route->flags & VG_REST_CSV && vg_web_accepts(call->req, "text/csv"))
        answer_csv(call, j);
    else
        vg_rest_json(call, route->status ? route->status : 200, j);
}
