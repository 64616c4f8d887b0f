/* /api/v1/openapi.json, from the table of routes and the tables of views. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "control/rest-int.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* "GET /tasks/{id}/why" is called getTasksIdWhy. */
static json_t *operation_id(const struct vg_rest_route *r) {
    char text[128];
    size_t n = 0;
    bool up = false;
    for (const char *m = vg_web_method_name(r->method); *m; m++)
        text[n++] = (char)tolower((unsigned char)*m);
    for (const char *p = r->path; *p && n + 1 < sizeof text; p++) {
        if (!isalnum((unsigned char)*p)) {
            up = true;
            continue;
        }
        text[n++] = up ? (char)toupper((unsigned char)*p) : *p;
        up = false;
    }
    text[n] = 0;
    return json_string(text);
}

static json_t *parameter(const char *in, const char *name, json_t *schema, bool list) {
    json_t *j = json_object();
    json_object_set_new(j, "name", json_string(name));
    json_object_set_new(j, "in", json_string(in));
    json_object_set_new(j, "required", json_boolean(strcmp(in, "path") == 0));
    json_object_set_new(j, "schema", schema);
    if (list) {
        json_object_set_new(j, "style", json_string("form"));
        json_object_set_new(j, "explode", json_true());
    }
    return j;
}

static json_t *text_schema(size_t most) {
    json_t *s = json_pack("{s:s, s:i}", "type", "string", "minLength", 1);
    json_object_set_new(s, "maxLength", json_integer((json_int_t)most));
    return s;
}

/* By the field of the request that the parameter becomes. */
static json_t *part_schema(const struct vg_rest_route *r, size_t i) {
    const ProtobufCFieldDescriptor *f =
        r->request
            ? protobuf_c_message_descriptor_get_field(&vg__pb__envelope__descriptor, r->request)
            : NULL;
    if (f && r->field[i])
        f = protobuf_c_message_descriptor_get_field_by_name(f->descriptor, r->field[i]);
    return f && f->type == PROTOBUF_C_TYPE_UINT32
               ? json_pack("{s:s, s:i, s:I}", "type", "integer", "minimum", 0, "maximum",
                           (json_int_t)UINT32_MAX)
               : text_schema(256);
}

static void add_path_parameters(json_t *all, const struct vg_rest_route *r) {
    size_t i = 0;
    for (const char *p = r->path; (p = strchr(p, '{')); p++, i++) {
        size_t n = strcspn(p + 1, "}");
        vg_auto_free char *name = vg_strndup(p + 1, n);
        json_array_append_new(all, parameter("path", name ? name : "", part_schema(r, i), false));
    }
}

/* A query has no null; a list's values may each be given. */
static json_t *query_schema(struct vg_view *v, const struct vg_view_field *f) {
    json_t *s = vg_view_field_schema(v, f);
    json_t *type = json_object_get(s, "type");
    if (json_is_array(type))
        json_object_set(s, "type", json_array_get(type, 0));
    if (f->kind == VG_VIEW_LABELS) {
        json_object_clear(s);
        json_object_set_new(s, "type", json_string("array"));
        json_object_set_new(s, "items",
                            json_pack("{s:s, s:s}", "type", "string", "pattern", "^[^=]+="));
    }
    return s;
}

static void add_query(json_t *all, struct vg_view *v) {
    for (size_t i = 0; v && i < v->n; i++) {
        json_t *s = query_schema(v, &v->fields[i]);
        bool list = strcmp(json_string_value(json_object_get(s, "type")) ?: "", "array") == 0;
        json_array_append_new(all, parameter("query", v->fields[i].name, s, list));
    }
}

static json_t *content(const char *type, json_t *schema) {
    json_t *c = json_object(), *of = json_object();
    json_object_set_new(of, "schema", schema);
    json_object_set_new(c, type, of);
    return c;
}

static json_t *reference(const char *name) {
    json_t *j = json_object();
    json_object_set_new(j, "$ref", json_sprintf("#/components/schemas/%s", name));
    return j;
}

static json_t *good_answer(const struct vg_rest_route *r) {
    json_t *j = json_object();
    json_object_set_new(j, "description",
                        json_string(r->answer || r->type ? "the answer" : "done"));
    json_t *c = r->answer ? content("application/json", reference(r->answer->name)) : NULL;
    for (const char *t = r->type; t && *t; t += strspn(t, " ")) {
        size_t n = strcspn(t, " ");
        vg_auto_free char *type = vg_strndup(t, n);
        json_t *one = content(
            type ? type : "",
            json_pack("{s:s}", "type", strstr(type ? type : "", "/json") ? "object" : "string"));
        if (c)
            json_object_update_new(c, one);
        else
            c = one;
        t += n;
    }
    if (r->flags & VG_REST_CSV)
        json_object_update_new(c, content("text/csv", json_pack("{s:s}", "type", "string")));
    if (c)
        json_object_set_new(j, "content", c);
    return j;
}

int vg_rest_status(const struct vg_rest_route *r) {
    return r->status ? r->status : r->answer || r->type ? 200 : 204;
}

static json_t *answers(const struct vg_rest_route *r) {
    char status[8];
    json_t *j = json_object(), *bad = json_object();
    snprintf(status, sizeof status, "%d", vg_rest_status(r));
    json_object_set_new(j, status, good_answer(r));
    if (vg_rest_takes_key(r))
        json_object_set_new(j, "200", good_answer(r)); /* by a key that was used before */
    json_object_set_new(bad, "description", json_string("one sentence says why"));
    json_object_set_new(bad, "content", content("application/problem+json", reference("Problem")));
    json_object_set_new(j, "default", bad);
    return j;
}

static json_t *operation(const struct vg_rest_route *r) {
    json_t *j = json_object(), *all = json_array();
    const ProtobufCFieldDescriptor *f =
        r->request
            ? protobuf_c_message_descriptor_get_field(&vg__pb__envelope__descriptor, r->request)
            : NULL;
    size_t n = strcspn(r->path + 1, "/");
    json_object_set_new(j, "operationId", operation_id(r));
    json_object_set_new(j, "summary", json_string(r->summary));
    json_object_set_new(j, "tags", json_pack("[s%]", r->path + 1, n));
    if (f)
        json_object_set_new(j, "x-virga-request", json_string(f->name));
    if (r->flags & VG_REST_OPEN)
        json_object_set_new(j, "security", json_array());
    add_path_parameters(all, r);
    add_query(all, r->query);
    add_query(all, r->also);
    if (vg_rest_takes_key(r))
        json_array_append_new(all, parameter("header", "Idempotency-Key", text_schema(128), false));
    if (r->flags & VG_REST_MATCH)
        json_array_append_new(all, parameter("header", "If-Match", text_schema(256), false));
    if (json_array_size(all))
        json_object_set(j, "parameters", all);
    json_decref(all);
    if (r->body) {
        json_t *b = json_object();
        bool need = false;
        for (size_t i = 0; i < r->body->n; i++)
            need |= r->body->fields[i].flags & VG_VIEW_NEED;
        json_object_set_new(b, "required", json_boolean(need));
        json_object_set_new(b, "content", content("application/json", reference(r->body->name)));
        json_object_set_new(j, "requestBody", b);
    }
    json_object_set_new(j, "responses", answers(r));
    return j;
}

static json_t *paths(void) {
    json_t *all = json_object();
    for (size_t i = 0; i < vg_rest_n_routes; i++) {
        const struct vg_rest_route *r = &vg_rest_routes[i];
        json_t *one = json_object_get(all, r->path);
        char method[16];
        size_t n = 0;
        if (!one)
            json_object_set_new(all, r->path, one = json_object());
        for (const char *m = vg_web_method_name(r->method); *m && n + 1 < sizeof method; m++)
            method[n++] = (char)tolower((unsigned char)*m);
        method[n] = 0;
        json_object_set_new(one, method, operation(r));
    }
    return all;
}

static json_t *problem_schema(void) {
    return json_pack("{s:s, s:{s:{s:s}, s:{s:s}, s:{s:s}, s:{s:s}, s:{s:s}}, s:[s, s, s, s, s]}",
                     "type", "object", "properties", "type", "type", "string", "title", "type",
                     "string", "status", "type", "integer", "detail", "type", "string", "code",
                     "type", "string", "required", "type", "title", "status", "detail", "code");
}

static json_t *components(void) {
    json_t *all = json_object(), *schemas = json_object();
    for (size_t i = 0; vg_views[i]; i++)
        json_object_set_new(schemas, vg_views[i]->name, vg_view_schema(vg_views[i]));
    json_object_set_new(schemas, "Problem", problem_schema());
    json_object_set_new(all, "schemas", schemas);
    json_object_set_new(all, "securitySchemes",
                        json_pack("{s:{s:s, s:s}, s:{s:s, s:s, s:s}}", "token", "type", "http",
                                  "scheme", "bearer", "cookie", "type", "apiKey", "in", "cookie",
                                  "name", VG_REST_COOKIE));
    return all;
}

static json_t *document(void) {
    json_t *j = json_object();
    json_object_set_new(j, "openapi", json_string("3.1.0"));
    json_object_set_new(
        j, "info",
        json_pack("{s:s, s:s, s:s}", "title", "Virga", "version", VG_VERSION, "description",
                  "Everything the command line can do. Times are microseconds since "
                  "1970 (_usec), money is in millionths (_micro), ids are 16 hex "
                  "digits."));
    json_object_set_new(j, "servers", json_pack("[{s:s}]", "url", VG_REST_PREFIX));
    json_object_set_new(j, "security", json_pack("[{s:[]}, {s:[]}]", "token", "cookie"));
    json_object_set_new(j, "paths", paths());
    json_object_set_new(j, "components", components());
    return j;
}

void vg_rest_openapi(struct vg_rest_call *call) {
    struct vg_rest *r = call->ctl->rest;
    if (!r->openapi)
        r->openapi = document();
    vg_rest_json(call, 200, json_incref(r->openapi));
}
