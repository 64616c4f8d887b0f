/* The table of REST's paths: each line fits the request that it is, and no request is forgotten. */
#include "base/cleanup.h"
#include "control/rest-int.h"

#include <criterion/criterion.h>
#include <string.h>

static const ProtobufCMessageDescriptor *message_of(unsigned body_case) {
    const ProtobufCFieldDescriptor *f =
        protobuf_c_message_descriptor_get_field(&vg__pb__envelope__descriptor, body_case);
    return f ? f->descriptor : NULL;
}

static size_t parameters(const char *path) {
    size_t n = 0;
    for (; *path; path++)
        n += *path == '{';
    return n;
}

Test(rest, every_line_fits_its_request) {
    for (size_t i = 0; i < vg_rest_n_routes; i++) {
        const struct vg_rest_route *r = &vg_rest_routes[i];
        const ProtobufCMessageDescriptor *m = r->request ? message_of(r->request) : NULL;
        bool own = r->special || r->live;
        cr_expect(m || own, "%s is no request", r->path);
        cr_expect(r->summary && *r->summary, "%s says nothing", r->path);
        cr_expect_leq(parameters(r->path), VG_REST_PARTS, "%s", r->path);
        if (own)
            continue;
        cr_expect(!r->body || r->fill || r->body->pb == m, "%s: the body is another message",
                  r->path);
        cr_expect(!r->query || r->query->pb == (r->body ? r->body->pb : m), "%s: the query is",
                  r->path);
        for (size_t k = 0; k < VG_REST_PARTS; k++)
            cr_expect(!r->field[k] ||
                          protobuf_c_message_descriptor_get_field_by_name(m, r->field[k]),
                      "%s: there is no field %s", r->path, r->field[k]);
        cr_expect(r->pick || !r->field[0] == !parameters(r->path), "%s: a parameter for nothing",
                  r->path);
        cr_expect(!r->pick == !r->list, "%s: what is picked comes from a list", r->path);
        cr_expect(!r->then || r->answer, "%s: what is asked for is the answer", r->path);
    }
}

Test(rest, no_path_has_a_method_twice) {
    for (size_t i = 0; i < vg_rest_n_routes; i++)
        for (size_t k = 0; k < i; k++)
            cr_expect(vg_rest_routes[i].method != vg_rest_routes[k].method ||
                          strcmp(vg_rest_routes[i].path, vg_rest_routes[k].path) != 0,
                      "%s", vg_rest_routes[i].path);
}

/* What only a program with descriptors or a terminal of its own can ask, or nobody should from
 * afar. */
static bool is_the_wires(unsigned id) {
    static const unsigned wires[] = {
        VG__PB__ENVELOPE__BODY_TASK_WATCH, VG__PB__ENVELOPE__BODY_SHUTDOWN,
        VG__PB__ENVELOPE__BODY_MIRROR_OFFER, VG__PB__ENVELOPE__BODY_SECRET_ROTATE};
    for (size_t i = 0; i < VG_COUNT(wires); i++)
        if (wires[i] == id)
            return true;
    return false;
}

Test(rest, every_request_of_a_client_has_a_path) {
    const ProtobufCMessageDescriptor *d = &vg__pb__envelope__descriptor;
    for (unsigned i = 0; i < d->n_fields; i++) {
        unsigned id = d->fields[i].id;
        bool client = (id >= 20 && id < 60) || (id >= 120 && id < 200), found = is_the_wires(id);
        for (size_t k = 0; client && k < vg_rest_n_routes; k++)
            found |= vg_rest_routes[k].request == id;
        cr_expect(!client || found, "%s has no path", d->fields[i].name);
    }
}

Test(rest, cells_of_a_table_are_quoted_where_they_must_be) {
    json_t *rows = json_pack("[{s:s, s:i, s:[s, s]}, {s:s, s:n, s:[]}]", "name", "a,\"b\"\n", "n",
                             7, "key", "x", "y", "name", "plain", "n", "key");
    char *text = vg_rest_csv(rows);
    cr_expect_str_eq(text, "name,n,key\r\n\"a,\"\"b\"\"\n\",7,x y\r\nplain,,\r\n");
    free(text);
    json_decref(rows);
}
