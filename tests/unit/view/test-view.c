/* Tables of JSON members: each line means something, and what is shown is what programs rely on. */
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
