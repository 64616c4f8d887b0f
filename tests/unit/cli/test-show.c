/* What people and programs are shown: aligned, cut to the terminal, harmless. */
#include "base/cleanup.h"
#include "cli/json.h"
#include "cli/table.h"
#include "cli/task-show.h"

#include <criterion/criterion.h>
#include <string.h>

static char *render(const char *const *headings, const char *const (*rows)[3], size_t n,
                    unsigned width) {
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    struct vg_table *t = vg_table_new(headings);
    for (size_t i = 0; i < n; i++)
        vg_table_row(t, rows[i]);
    vg_table_print(t, f, width);
    fclose(f);
    return text;
}

static const char *const headings[] = {"ID", "NAME", "COMMAND", NULL};

Test(table, columns_are_aligned) {
    const char *const rows[][3] = {{"1", "long name", "a"}, {"22", NULL, "b c"}};
    char *text = render(headings, rows, 2, 200);
    cr_expect_str_eq(text, "ID  NAME       COMMAND\n"
                           "1   long name  a\n"
                           "22  -          b c\n");
    free(text);
}

Test(table, lines_are_cut_to_the_width_with_a_mark) {
    const char *const rows[][3] = {{"1", "n", "0123456789"}};
    char *text = render(headings, rows, 1, 15);
    cr_expect_str_eq(text, "ID  NAME  COMM…\n"
                           "1   n     0123…\n");
    free(text);
}

Test(table, empty_columns_are_left_out_where_room_is_short) {
    const char *const rows[][3] = {{"1", NULL, "a"}, {"22", NULL, "b c"}};
    char *text = render(headings, rows, 2, 40);
    cr_expect_str_eq(text, "ID  COMMAND\n"
                           "1   a\n"
                           "22  b c\n");
    free(text);
}

Test(table, wide_characters_count_once) {
    const char *const rows[][3] = {{"ü", "x", "y"}, {"ab", "x", "y"}};
    char *text = render(headings, rows, 2, 100);
    cr_expect(strstr(text, "ü   x"), "%s", text);
    free(text);
}

Test(table, every_width_ends_and_stays_within) {
    const char *const rows[][3] = {{"1", "name", "äöü command"}};
    for (unsigned width = 1; width < 40; width++) {
        char *text = render(headings, rows, 1, width), *save = NULL;
        for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
            size_t columns = 0;
            for (char *p = line; *p; p++)
                columns += (*p & 0xc0) != 0x80;
            cr_expect_leq(columns, width);
        }
        free(text);
    }
}

Test(table, control_characters_never_reach_the_terminal) {
    static const struct {
        const char *in, *out;
    } cases[] = {{"a\033[31mb", "a?[31mb"},
                 {"x\ny\tz", "x?y?z"},
                 {"\x7f", "?"},
                 {"\xc2\x9b", "??"},
                 {"caf\xc3\xa9", "caf\xc3\xa9"},
                 {"\xff\xfe", "??"},
                 {"\xc0\xaf", "??"},
                 {"\xed\xa0\x80", "???"},
                 {"\xe2\x82", "??"},
                 {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"}};
    char out[64];
    for (unsigned i = 0; i < VG_COUNT(cases); i++)
        cr_expect_str_eq(vg_clean(out, sizeof(out), cases[i].in, strlen(cases[i].in)),
                         cases[i].out);
}

Test(table, cleaning_never_cuts_a_character) {
    char out[4];
    cr_expect_str_eq(vg_clean(out, sizeof(out), "ab\xc3\xa9", 4), "ab");
    cr_expect_str_eq(vg_clean(out, sizeof(out), "abcdef", 6), "abc");
}

Test(json, bytes_that_are_not_text_still_become_json) {
    json_t *j = vg_json_bytes("a\xff\xc3\xa9", 4);
    cr_assert_not_null(j);
    cr_expect_str_eq(json_string_value(j), "a\xef\xbf\xbd\xc3\xa9");
    json_decref(j);
    j = vg_json_text(NULL);
    cr_expect(json_is_null(j));
    json_decref(j);
}

static Vg__Pb__TaskInfo task(ProtobufCBinaryData *argv, size_t n, const char *state) {
    Vg__Pb__TaskInfo t = VG__PB__TASK_INFO__INIT;
    t.argv = argv;
    t.n_argv = n;
    t.state = (char *)state;
    return t;
}

#define BYTES(s) \
    { .data = (uint8_t *)(s), .len = sizeof(s) - 1 }

Test(task, commands_are_shown_as_one_would_type_them) {
    ProtobufCBinaryData argv[] = {BYTES("sh"), BYTES("-c"), BYTES("echo hi"), BYTES(""),
                                  BYTES("it's")};
    Vg__Pb__TaskInfo t = task(argv, 5, "running");
    char out[128], tiny[8];
    cr_expect_str_eq(vg_task_command(&t, out, sizeof(out)), "sh -c 'echo hi' '' \"it's\"");
    vg_task_command(&t, tiny, sizeof(tiny));
    cr_expect_lt(strlen(tiny), sizeof(tiny));
}

Test(task, waiting_exits_as_the_task_did) {
    Vg__Pb__TaskInfo t = task(NULL, 0, "succeeded");
    cr_expect_eq(vg_task_exit(&t), 0);
    t = task(NULL, 0, "cancelled");
    cr_expect_eq(vg_task_exit(&t), 125);
    t = task(NULL, 0, "failed");
    t.has_status = true;
    t.status = 3;
    cr_expect_eq(vg_task_exit(&t), 3);
    t.status = 143;
    cr_expect_eq(vg_task_exit(&t), 143);
}

Test(task, json_names_every_part_even_of_an_empty_task) {
    Vg__Pb__TaskInfo t = VG__PB__TASK_INFO__INIT;
    json_t *j = vg_task_json(&t);
    cr_expect(json_is_null(json_object_get(j, "id")));
    cr_expect(json_is_null(json_object_get(j, "status")));
    cr_expect(json_is_array(json_object_get(j, "argv")));
    cr_expect(json_is_object(json_object_get(j, "labels")));
    json_decref(j);
}
