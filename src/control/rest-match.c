/* If-Match: two people who change the same thing at once. What GET of the same path would answer
   now is asked first; when its tag is not among those that were given, nothing is changed (412). */
#include "base/cleanup.h"
#include "base/mem.h"
#include "control/rest-int.h"

#include <string.h>

static const struct vg_rest_route *get_of(const struct vg_rest_route *route) {
    for (size_t i = 0; i < vg_rest_n_routes; i++)
        if (vg_rest_routes[i].method == VG_WEB_GET &&
            strcmp(vg_rest_routes[i].path, route->path) == 0)
            return &vg_rest_routes[i];
    return NULL;
}

static void changed(struct vg_rest_call *call) {
    struct vg_web_req *req = vg_take_ptr(call->req);
    vg_rest_problem(req, VG_CONFLICT, 412,
                    "somebody has changed it since you looked: read it again, then change it");
    vg_rest_over(call);
}

static void told(struct vg_rest_call *call, const Vg__Pb__Envelope *env, bool more) {
    const struct vg_rest_route *route = call->data;
    char etag[32];
    (void)more;
    if (vg_rest_failed(call, env))
        return;
    json_t *j = vg_rest_answer(call, env);
    vg_auto_free char *body = j ? json_dumps(j, JSON_COMPACT) : NULL;
    if (!j)
        return;
    vg_rest_etag(call->route, j, body ? body : "", etag);
    json_decref(j);
    const char *want = vg_web_header(call->req, "if-match");
    call->route = route;
    call->data = NULL;
    call->told = route->told ? route->told : vg_rest_told;
    if (vg_rest_tag_in(want, etag, false))
        vg_rest_go(call);
    else
        changed(call);
}

bool vg_rest_match(struct vg_rest_call *call) {
    const struct vg_rest_route *get = get_of(call->route);
    if (!get || !vg_web_header(call->req, "if-match"))
        return true;
    const ProtobufCFieldDescriptor *f =
        protobuf_c_message_descriptor_get_field(&vg__pb__envelope__descriptor, get->request);
    ProtobufCMessage *m = vg_view_new(f->descriptor);
    if (!m) {
        struct vg_err err = VG_ERR_INIT;
        vg_err_sys(&err, ENOMEM, "cannot take the request");
        vg_rest_fail(call, &err);
        return false;
    }
    call->data = (void *)call->route;
    call->route = get;
    call->told = told;
    vg_rest_ask(call, get->request, m);
    return false;
}
