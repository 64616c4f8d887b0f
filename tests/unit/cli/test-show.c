/* What people and programs are shown: aligned, cut to the terminal, harmless. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/series-show.h"
#include "cli/table.h"
#include "cli/task-show.h"
#include "cli/why-show.h"
#include "view/views.h"

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
    json_t *j = vg_view_json(&vg_view_task, &t);
    cr_expect(json_is_null(json_object_get(j, "id")));
    cr_expect(json_is_null(json_object_get(j, "status")));
    cr_expect(json_is_array(json_object_get(j, "argv")));
    cr_expect(json_is_object(json_object_get(j, "labels")));
    json_decref(j);
}

Test(task, a_group_is_one_row_with_its_progress) {
    Vg__Pb__TaskInfo t = VG__PB__TASK_INFO__INIT;
    Vg__Pb__Progress p = VG__PB__PROGRESS__INIT;
    char text[64];
    t.state = (char *)"running";
    t.members = p.total = 256;
    p.succeeded = 37;
    t.progress = &p;
    cr_expect_str_eq(vg_task_state(&t, text, sizeof(text)), "running 37/256");
    p.failed = 2;
    cr_expect_str_eq(vg_task_state(&t, text, sizeof(text)), "running 39/256, 2 failed");
    t.members = 0; /* a task with children */
    p.failed = 0, p.total = 40;
    cr_expect_str_eq(vg_task_state(&t, text, sizeof(text)), "running +37/40");
    t.progress = NULL;
    cr_expect_str_eq(vg_task_state(&t, text, sizeof(text)), "running");
}

Test(task, programs_are_told_everything_about_a_member) {
    Vg__Pb__TaskInfo t = VG__PB__TASK_INFO__INIT;
    t.id = 0x11, t.group = 0x22, t.index = 3, t.of = 8;
    t.gang = true;
    t.preempted = 2;
    json_t *j = vg_view_json(&vg_view_task, &t);
    cr_expect_str_eq(json_string_value(json_object_get(j, "group")), "0000000000000022");
    cr_expect_eq(json_integer_value(json_object_get(j, "index")), 3);
    cr_expect_eq(json_integer_value(json_object_get(j, "of")), 8);
    cr_expect_eq(json_integer_value(json_object_get(j, "preempted")), 2);
    cr_expect(json_is_true(json_object_get(j, "gang")));
    cr_expect(json_is_null(json_object_get(j, "progress")));
    json_decref(j);
}

Test(task, resources_read_as_one_would_say_them) {
    Vg__Pb__Resources r = VG__PB__RESOURCES__INIT;
    char text[128];
    cr_expect_str_eq(vg_resources_text(&r, text, sizeof(text)), "");
    cr_expect_str_eq(vg_resources_text(NULL, text, sizeof(text)), "");
    r.gpus = 2, r.cpu_milli = 4000, r.mem_bytes = 16ull << 30;
    cr_expect_str_eq(vg_resources_text(&r, text, sizeof(text)), "2 GPUs, 4 CPUs, 16 GiB memory");
    r = (Vg__Pb__Resources)VG__PB__RESOURCES__INIT;
    r.gpu_milli = 250, r.gpu_mem_bytes = 20ull << 30, r.cpu_milli = 500;
    cr_expect_str_eq(vg_resources_text(&r, text, sizeof(text)),
                     "0.25 GPU, 20 GiB GPU memory, 0.5 CPU");
    char small[10];
    cr_expect_str_eq(vg_resources_text(&r, small, sizeof(small)), "0.25 GPU,");
}

Test(why, numbers_are_exact) {
    static const struct {
        uint64_t in;
        const char *milli, *cost;
    } cases[] = {{0, "0", "0.00 EUR"},
                 {250, "0.25", "less than 0.01 EUR"},
                 {1001, "1.001", "less than 0.01 EUR"},
                 {2500, "2.5", "less than 0.01 EUR"},
                 {12345000, "12345", "12.35 EUR"},
                 {999999, "999.999", "1.00 EUR"}};
    char text[64];
    for (unsigned i = 0; i < VG_COUNT(cases); i++) {
        cr_expect_str_eq(vg_milli_text(cases[i].in, text, sizeof(text)), cases[i].milli);
        cr_expect_str_eq(vg_cost_text(cases[i].in, "EUR", text, sizeof(text)), cases[i].cost);
    }
}

Test(why, one_sentence_then_what_is_known) {
    Vg__Pb__WhyInfo w = VG__PB__WHY_INFO__INIT;
    Vg__Pb__Holder h = VG__PB__HOLDER__INIT, *holders[] = {&h};
    char *text = NULL;
    size_t len;
    w.text = (char *)"waits for 4 GPUs of pool a100\033[2J";
    w.basis = (char *)"run times of 12 earlier tasks";
    h.tenant = (char *)"vision";
    h.tasks = 3, h.gpu_milli = 6000;
    w.holder = holders;
    w.n_holder = 1;
    FILE *f = open_memstream(&text, &len);
    vg_why_print(f, &w);
    fclose(f);
    cr_expect_str_eq(text, "waits for 4 GPUs of pool a100?[2J\n"
                           "because         run times of 12 earlier tasks\n"
                           "held by         vision: 3 tasks, 6 GPUs\n");
    free(text);
    cr_expect_not(vg_why_hopeless(&w));
    w.code = (char *)"too-big";
    cr_expect(vg_why_hopeless(&w));
}

/* ------------------------------------------------------------------ over time */

Test(series_show, bars_are_as_high_as_their_part_of_the_highest) {
    const int64_t v[] = {0, 1, 4, 8, -1, 7};
    char out[sizeof v / sizeof *v * 3 + 1];
    cr_expect_str_eq(vg_series_bars(v, 6, 0, false, out), "_.=# #");
    cr_expect_str_eq(vg_series_bars(v, 6, 0, true, out), "▁▂▅█ █");
    cr_expect_str_eq(vg_series_bars(v, 6, 80, false, out), "____ _");
    cr_expect_str_eq(vg_series_bars(v, 1, 0, true, out), "▁");
    cr_expect_str_eq(vg_series_bars(v, 0, 0, true, out), "");
    cr_expect_eq(vg_series_last(v, 5), 8);
    cr_expect_eq(vg_series_last(v, 0), -1);
}
