/* Tables of JSON members: each line means something, and what is shown is what programs rely on. */
#include "view/csv.h"
#include "view/image.h"
#include "view/views.h"

#include <criterion/criterion.h>
#include <string.h>

Test(view, every_line_of_every_table_names_a_field_that_fits) {
    for (size_t i = 0; vg_views[i]; i++) {
        const char *fault = vg_view_fault(vg_views[i]);
        cr_expect_null(fault, "%s.%s", vg_views[i]->name, fault);
    }
}

Test(view, a_line_that_names_nothing_is_found) {
    static struct vg_view_field lines[] = {{.name = "id", .kind = VG_VIEW_ID}, {.name = "nothing"}};
    static struct vg_view v = {
        .name = "X", .pb = &vg__pb__task_info__descriptor, .fields = lines, .n = 2};
    cr_expect_str_eq(vg_view_fault(&v), "nothing");
}

Test(view, bytes_are_taken_as_hex_digits_and_only_once) {
    static const char *const wrong[] = {"0", "0g", "AB", "0x00"};
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__AuditQuery *q = (Vg__Pb__AuditQuery *)vg_view_new(&vg__pb__audit_query__descriptor);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        cr_expect_lt(vg_view_take_text(&vg_view_verify_query, &q->base, "head", wrong[i], &err), 0,
                     "%s", wrong[i]);
    cr_expect(!q->has_head);
    cr_assert_eq(vg_view_take_text(&vg_view_verify_query, &q->base, "head", "00ff1a", &err), 0);
    cr_expect(q->has_head && q->head.len == 3 && memcmp(q->head.data, "\0\xff\x1a", 3) == 0);
    cr_expect_lt(vg_view_take_text(&vg_view_verify_query, &q->base, "head", "00", &err), 0);
    protobuf_c_message_free_unpacked(&q->base, NULL);
}

Test(view, no_two_schemas_share_a_name) {
    for (size_t i = 0; vg_views[i]; i++)
        for (size_t k = 0; k < i; k++)
            cr_expect_str_neq(vg_views[i]->name, vg_views[k]->name);
}

Test(view, what_is_absent_is_null_or_zero_as_the_table_says) {
    Vg__Pb__GpuState g = VG__PB__GPU_STATE__INIT;
    json_t *j = vg_view_json(&vg_view_gpu, &g);
    cr_expect(json_is_null(json_object_get(j, "sm_percent")));
    cr_expect(json_is_null(json_object_get(j, "model")));
    cr_expect_eq(json_integer_value(json_object_get(j, "index")), 0);
    cr_expect(json_is_array(json_object_get(j, "holders")));
    g.has_sm_percent = true;
    g.sm_percent = 7;
    json_decref(j);
    j = vg_view_json(&vg_view_gpu, &g);
    cr_expect_eq(json_integer_value(json_object_get(j, "sm_percent")), 7);
    json_decref(j);
    j = vg_view_json(&vg_view_gpu, NULL);
    cr_expect(json_is_null(j));
    json_decref(j);
}

Test(view, a_list_is_an_object_and_its_elements_an_array) {
    Vg__Pb__BudgetSet set = VG__PB__BUDGET_SET__INIT;
    Vg__Pb__BudgetInfo b = VG__PB__BUDGET_INFO__INIT, *one = &b;
    Vg__Pb__BudgetList list = VG__PB__BUDGET_LIST__INIT;
    set.name = (char *)"vision";
    b.budget = &set;
    list.budget = &one;
    list.n_budget = 1;
    json_t *whole = vg_view_json(&vg_view_budgets, &list), *array = json_array();
    vg_view_elements(array, &vg_view_budgets, &list);
    cr_expect(json_equal(json_object_get(whole, "budgets"), array));
    const json_t *first = json_array_get(array, 0);
    cr_expect_str_eq(json_string_value(json_object_get(first, "name")), "vision");
    cr_expect(json_object_get(first, "spent_micro"));
    json_decref(whole);
    json_decref(array);
}

Test(view, labels_become_an_object_and_bytes_hex_digits) {
    Vg__Pb__NodeInfo n = VG__PB__NODE_INFO__INIT;
    char *labels[] = {(char *)"rack=3", (char *)"bare"};
    n.label = labels;
    n.n_label = 2;
    json_t *j = vg_view_json(&vg_view_node, &n);
    const json_t *l = json_object_get(j, "labels");
    cr_expect_str_eq(json_string_value(json_object_get(l, "rack")), "3");
    cr_expect_str_eq(json_string_value(json_object_get(l, "bare")), "");
    json_decref(j);
    Vg__Pb__AuditEntry e = VG__PB__AUDIT_ENTRY__INIT;
    uint8_t hash[] = {0, 0xab};
    e.hash = (ProtobufCBinaryData){.data = hash, .len = 2};
    e.has_hash = true;
    j = vg_view_json(&vg_view_audit_entry, &e);
    cr_expect_str_eq(json_string_value(json_object_get(j, "hash")), "00ab");
    json_decref(j);
}

/* ------------------------------------------------------------------ what comes in */

static int take(struct vg_view *v, const char *text, ProtobufCMessage **ret, struct vg_err *err) {
    json_t *j = json_loads(text, 0, NULL);
    cr_assert(j, "%s", text);
    *err = VG_ERR_INIT;
    int r = vg_view_take(v, j, ret, err);
    json_decref(j);
    return r;
}

Test(view, a_task_reads_back_as_it_was_given) {
    static const char text[] =
        "{\"argv\": [\"python\", \"t.py\"], \"env\": {\"LR\": \"0.1\", \"EMPTY\": \"\"},"
        " \"labels\": {\"k\": \"v=w\"}, \"want\": {\"gpus\": 2}, \"priority\": 0, \"gang\": true,"
        " \"sweep\": [{\"name\": \"A\", \"value\": [\"1\", \"2\"]}], \"image\": \"debian:12\","
        " \"after\": [{\"when\": \"success\", \"task\": \"3f2a\"}], \"retry_on\": [1, 255],"
        " \"secrets\": [\"K\", {\"name\": \"t/S\", \"as_file\": \"s\"}], \"name\": null}";
    struct vg_err err;
    ProtobufCMessage *m = NULL, *again = NULL;
    cr_assert_eq(take(&vg_view_task_spec, text, &m, &err), 0, "%s", err.msg);
    Vg__Pb__TaskSpec *s = (Vg__Pb__TaskSpec *)m;
    cr_expect_eq(s->n_argv, 2);
    cr_expect_eq(s->want->gpus, 2);
    cr_expect(s->has_priority && s->gang && !s->has_retries);
    cr_expect_str_eq(s->label[0], "k=v=w");
    cr_expect_eq(s->after[0]->when, VG__PB__DEPENDENCY__WHEN__SUCCESS);
    cr_expect_str_eq(s->secret[1]->as_file, "s");
    cr_expect_str_eq(s->mirror->image, "debian:12");
    json_t *out = vg_view_json(&vg_view_task_spec, m);
    cr_expect_eq(vg_view_take(&vg_view_task_spec, out, &again, &err), 0, "%s", err.msg);
    json_t *twice = vg_view_json(&vg_view_task_spec, again);
    cr_expect(json_equal(out, twice));
    json_decref(out);
    json_decref(twice);
    protobuf_c_message_free_unpacked(m, NULL);
    protobuf_c_message_free_unpacked(again, NULL);
}

Test(view, what_does_not_fit_is_refused_with_a_sentence) {
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"{}", "'argv' is missing"},
        {"{\"argv\": null}", "'argv' is missing"},
        {"{\"argv\": [\"a\"], \"colour\": 1}", "'colour' is not known here"},
        {"{\"argv\": \"a\"}", "'argv' must be a list"},
        {"{\"argv\": [1]}", "'argv' must be text"},
        {"{\"argv\": [\"a\"], \"shards\": -1}", "whole number from 0"},
        {"{\"argv\": [\"a\"], \"shards\": 4294967296}", "whole number from 0 to 4294967295"},
        {"{\"argv\": [\"a\"], \"shards\": 1.5}", "must be a whole number"},
        {"{\"argv\": [\"a\"], \"gang\": 1}", "true or false"},
        {"{\"argv\": [\"a\"], \"want\": {\"cpus\": 1}}", "in 'want': 'cpus' is not known"},
        {"{\"argv\": [\"a\"], \"env\": {\"A=B\": \"\"}}", "'A=B' cannot be a name"},
        {"{\"argv\": [\"a\"], \"env\": {\"A\": 1}}", "must have texts"},
        {"{\"argv\": [\"a\"], \"after\": [{\"when\": \"never\", \"task\": \"x\"}]}", "one of any"},
        {"{\"argv\": [\"a\"], \"image\": \"x\", \"environment\": \"y\"}", "not both"},
        {"[]", "must be a JSON object"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct vg_err err;
        ProtobufCMessage *m = NULL;
        cr_expect_lt(take(&vg_view_task_spec, bad[i].text, &m, &err), 0, "%s", bad[i].text);
        cr_expect(strstr(err.msg, bad[i].says), "%s: %s", bad[i].text, err.msg);
    }
}

Test(view, texts_of_a_query_find_their_fields) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_view *v = &vg_view_task_query;
    ProtobufCMessage *m = vg_view_new(v->pb);
    Vg__Pb__TaskQuery *q = (Vg__Pb__TaskQuery *)m;
    cr_expect_eq(vg_view_take_text(v, m, "state", "running,queued", &err), 0);
    cr_expect_eq(vg_view_take_text(v, m, "state", "failed", &err), 0);
    cr_expect_eq(vg_view_take_text(v, m, "label", "a=1,2", &err), 0);
    cr_expect_eq(vg_view_take_text(v, m, "limit", "7", &err), 0);
    cr_expect_eq(vg_view_take_text(v, m, "flat", "true", &err), 0);
    cr_expect_eq(q->n_state, 3);
    cr_expect_str_eq(q->label[0], "a=1,2");
    cr_expect(q->has_limit && q->limit == 7 && q->flat);
    cr_expect_lt(vg_view_take_text(v, m, "limit", "many", &err), 0);
    cr_expect_lt(vg_view_take_text(v, m, "limit", "99999999999", &err), 0);
    cr_expect_lt(vg_view_take_text(v, m, "flat", "maybe", &err), 0);
    cr_expect_lt(vg_view_take_text(v, m, "colour", "1", &err), 0);
    cr_expect_eq(vg_view_take_text(v, m, "pool", "a", &err), 0);
    cr_expect_lt(vg_view_take_text(v, m, "pool", "b", &err), 0);
    protobuf_c_message_free_unpacked(m, NULL);
}

Test(view, every_view_has_a_schema) {
    for (size_t i = 0; vg_views[i]; i++) {
        json_t *s = vg_view_schema(vg_views[i]), *p = json_object_get(s, "properties"), *one;
        const char *name;
        cr_expect_gt(json_object_size(p), 0, "%s", vg_views[i]->name);
        json_object_foreach(p, name, one)
            cr_expect(json_is_object(one), "%s.%s", vg_views[i]->name, name);
        json_decref(s);
    }
}

/* Fields that are not shown on purpose: raw numbers of what is shown otherwise, secrets, other
 * views' part. */
static bool is_left_out(const char *view, const char *field) {
    static const char *const out[] = {"Tasks.task",
                                      "Cancelled.task",
                                      "Cancelled.next",
                                      "Environment.machine",
                                      "Environment.missed",
                                      "HookSet.secret",
                                      "Audit.checked",
                                      "Audit.broken",
                                      "Audit.head",
                                      "AuditVerified.next",
                                      NULL};
    char name[128];
    snprintf(name, sizeof name, "%s.%s", view, field);
    for (size_t i = 0; out[i]; i++)
        if (strcmp(out[i], name) == 0)
            return true;
    return false;
}

static bool is_shown(const struct vg_view *v, const char *field) {
    for (size_t i = 0; i < v->n; i++) {
        const struct vg_view_field *f = &v->fields[i];
        if (strcmp(f->from ? f->from : f->name, field) == 0)
            return true;
    }
    return false;
}

Test(view, whatever_the_wire_tells_is_shown) {
    for (size_t i = 0; vg_views[i]; i++) {
        const struct vg_view *v = vg_views[i];
        for (unsigned k = 0; !v->taken && k < v->pb->n_fields; k++)
            cr_expect(is_shown(v, v->pb->fields[k].name) ||
                          is_left_out(v->name, v->pb->fields[k].name),
                      "%s.%s is not shown", v->name, v->pb->fields[k].name);
    }
}

Test(view, an_image_s_user_is_a_number_or_root) {
    struct vg_err err = VG_ERR_INIT;
    uint32_t uid = 7, gid = 7;
    cr_expect_eq(vg_image_user("1000:100", &uid, &gid, &err), 0);
    cr_expect(uid == 1000 && gid == 100);
    cr_expect_eq(vg_image_user("root", &uid, &gid, &err), 0);
    cr_expect(uid == 0 && gid == 0);
    cr_expect_eq(vg_image_user(NULL, &uid, &gid, &err), 0);
    cr_expect_lt(vg_image_user("www-data", &uid, &gid, &err), 0);
    cr_expect_lt(vg_image_user("1:4294967296", &uid, &gid, &err), 0);
    cr_expect(strstr(err.msg, "only numbers and root"));
}

/* ------------------------------------------------------------------ CSV */

static void expect_csv(json_t *row, const char *want) {
    struct vg_buf b = {0};
    json_t *rows = json_pack("[o]", row);
    cr_assert_geq(vg_csv_rows(&b, rows, false), 0);
    cr_assert_geq(vg_buf_append(&b, "", 1), 0);
    cr_expect_str_eq((const char *)vg_buf_data(&b), want);
    vg_buf_done(&b);
    json_decref(rows);
}

Test(view, csv_gives_spreadsheets_nothing_to_calculate) {
    static const char *const words[] = {"=cmd|' /C calc'!A0", "+1", "-1", "@SUM(1)", "\tx"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        char want[64];
        snprintf(want, sizeof want, "'%s,%lld\r\n", words[i], -5LL);
        expect_csv(json_pack("{s:s, s:i}", "a", words[i], "b", -5), want);
    }
    expect_csv(json_pack("{s:s}", "a", "=1,2"), "\"'=1,2\"\r\n");
    expect_csv(json_pack("{s:s}", "a", "a=1-2"), "a=1-2\r\n");
}

Test(view, csv_has_labels) {
    expect_csv(json_pack("{s:{s:s, s:s}, s:[s]}", "labels", "k", "v", "q", "=w", "key", "-x"),
               "k=v q==w,'-x\r\n");
}
