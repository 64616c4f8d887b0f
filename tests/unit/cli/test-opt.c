/* Options from a table: every accepted form, every refusal's sentence. */
#include "base/cleanup.h"
#include "cli/opt.h"

#include <criterion/criterion.h>
#include <string.h>

static const struct vg_opt table[] = {
    {"pool", 'P', "NAME", "the pool", 'P'}, {"quiet", 'q', NULL, "say nothing", 'q'},
    {"detach", 'd', NULL, "leave", 'd'},    {"gpus", 0, "N", "GPUs", 'g'},
    {"time", 0, "LIMIT", "limit", 't'},     {"hidden", 0, NULL, NULL, 'x'},
    {NULL, 'I', NULL, "no input", 'I'},
};

#define ARGV(...)                 \
    (char *[]) {                  \
        "vrun", __VA_ARGS__, NULL \
    }
#define STATE(args, stop)                                                                 \
    (struct vg_opt_state) {                                                               \
        .program = "vrun", .opts = table, .n_opts = VG_COUNT(table), .argc = count(args), \
        .argv = (args), .index = 1, .stop_at_first = (stop)                               \
    }

static int count(char **argv) {
    int n = 0;
    while (argv[n])
        n++;
    return n;
}

static void expect(struct vg_opt_state *st, int id, const char *value) {
    const char *arg;
    cr_assert_eq(vg_opt_next(st, &arg), id, "%s", st->err.msg);
    if (value)
        cr_assert_str_eq(arg, value);
    else
        cr_assert_null(arg);
}

Test(opt, every_form_of_a_value_is_understood) {
    char **forms[] = {ARGV("--pool", "a"), ARGV("--pool=a"), ARGV("-P", "a"), ARGV("-Pa")};
    for (unsigned i = 0; i < VG_COUNT(forms); i++) {
        struct vg_opt_state st = STATE(forms[i], true);
        expect(&st, 'P', "a");
        expect(&st, VG_OPT_END, NULL);
        cr_assert_eq(st.index, st.argc);
    }
}

Test(opt, flags_cluster_and_the_last_may_take_a_value) {
    char **args = ARGV("-qdPx", "-qP", "y", "cmd");
    struct vg_opt_state st = STATE(args, true);
    expect(&st, 'q', NULL);
    expect(&st, 'd', NULL);
    expect(&st, 'P', "x");
    expect(&st, 'q', NULL);
    expect(&st, 'P', "y");
    expect(&st, VG_OPT_END, NULL);
    cr_assert_str_eq(st.argv[st.index], "cmd");
}

Test(opt, the_command_and_its_options_are_left_alone) {
    char **args = ARGV("-q", "ls", "-d", "--pool");
    struct vg_opt_state st = STATE(args, true);
    expect(&st, 'q', NULL);
    expect(&st, VG_OPT_END, NULL);
    cr_assert_eq(st.index, 2);
    char **dashes = ARGV("-q", "--", "-d", "--");
    st = STATE(dashes, true);
    expect(&st, 'q', NULL);
    expect(&st, VG_OPT_END, NULL);
    cr_assert_eq(st.index, 3);
    expect(&st, VG_OPT_END, NULL);
}

Test(opt, ordinary_arguments_may_stand_between_options) {
    char **args = ARGV("a", "-q", "-", "--", "-d");
    struct vg_opt_state st = STATE(args, false);
    expect(&st, VG_OPT_ARG, "a");
    expect(&st, 'q', NULL);
    expect(&st, VG_OPT_ARG, "-");
    expect(&st, VG_OPT_ARG, "-d");
    expect(&st, VG_OPT_END, NULL);
}

Test(opt, an_empty_value_is_a_value) {
    char **args = ARGV("--pool=", "-P", "");
    struct vg_opt_state st = STATE(args, true);
    expect(&st, 'P', "");
    expect(&st, 'P', "");
    expect(&st, VG_OPT_END, NULL);
}

Test(opt, help_is_always_there) {
    char **args = ARGV("--help", "-h", "-qh");
    struct vg_opt_state st = STATE(args, true);
    expect(&st, VG_OPT_HELP, NULL);
    expect(&st, VG_OPT_HELP, NULL);
    expect(&st, 'q', NULL);
    expect(&st, VG_OPT_HELP, NULL);
}

Test(opt, every_refusal_is_one_sentence) {
    static const struct {
        const char *arg, *text;
    } cases[] = {
        {"--gups", "unknown option '--gups': did you mean '--gpus'?"},
        {"--poool=x", "unknown option '--poool': did you mean '--pool'?"},
        {"--zebra", "unknown option '--zebra': 'vrun --help' lists the options"},
        {"--hiden", "unknown option '--hiden': 'vrun --help' lists the options"},
        {"-z", "unknown option '-z': 'vrun --help' lists the options"},
        {"-\033", "unknown option '-?': 'vrun --help' lists the options"},
        {"--quiet=1", "option '--quiet' takes no value: write it alone"},
        {"--pool", "option '--pool' needs a value: --pool NAME"},
        {"-P", "option '-P' needs a value: -P NAME"},
    };
    for (unsigned i = 0; i < VG_COUNT(cases); i++) {
        char **args = ARGV((char *)cases[i].arg);
        struct vg_opt_state st = STATE(args, true);
        const char *value;
        cr_assert_eq(vg_opt_next(&st, &value), VG_OPT_ERROR, "%s", cases[i].arg);
        cr_expect_str_eq(st.err.msg, cases[i].text);
        cr_expect_eq(vg_reason_exit(st.err.reason), 125);
    }
}

Test(opt, wrong_values_name_the_option_and_show_a_good_one) {
    char **args = ARGV("--time", "soon", "--gpus=x");
    struct vg_opt_state st = STATE(args, true);
    const char *arg;
    uint64_t v = 7;
    int which = -1;
    cr_assert_eq(vg_opt_next(&st, &arg), 't');
    cr_assert_eq(vg_opt_duration(&st, arg, &v), VG_OPT_ERROR);
    cr_expect_str_eq(st.err.msg, "option '--time': 'soon' is not a duration such as 90s or 1h30m");
    cr_assert_eq(vg_opt_next(&st, &arg), 'g');
    cr_assert_eq(vg_opt_milli(&st, arg, &v), VG_OPT_ERROR);
    cr_expect_str_eq(st.err.msg, "option '--gpus': 'x' is not a number such as 2 or 0.25");
    cr_assert_eq(vg_opt_u64(&st, "9", 0, 8, &v), VG_OPT_ERROR);
    cr_expect_str_eq(st.err.msg, "option '--gpus': '9' is not a whole number from 0 to 8");
    cr_assert_eq(vg_opt_size(&st, "1x", &v), VG_OPT_ERROR);
    cr_assert_eq(
        vg_opt_choice(&st, "maybe", (const char *const[]){"auto", "yes", "no", NULL}, &which),
        VG_OPT_ERROR);
    cr_expect_str_eq(st.err.msg, "option '--gpus': 'maybe' is not one of auto, yes or no");
    cr_expect_eq(v, 7, "values are written on success only");
    cr_assert_eq(vg_opt_duration(&st, "90s", &v), 0);
    cr_expect_eq(v, 90 * 1000000);
    cr_assert_eq(vg_opt_choice(&st, "no", (const char *const[]){"auto", "no", NULL}, &which), 0);
    cr_expect_eq(which, 1);
}

Test(opt, help_lists_what_is_shown_and_hides_the_rest) {
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    vg_opt_help(f, table, VG_COUNT(table));
    fclose(f);
    cr_expect(strstr(text, "  -P, --pool NAME"));
    cr_expect(strstr(text, "      --gpus N"));
    cr_expect(strstr(text, "  -I "));
    cr_expect(strstr(text, "  -h, --help"));
    cr_expect_null(strstr(text, "hidden"));
    free(text);
}

Test(opt, suggestions_are_near_or_none) {
    static const char *const words[] = {"list", "logs", NULL, "watch"};
    cr_expect_str_eq(vg_nearest("lits", words, 4), "list");
    cr_expect_str_eq(vg_nearest("wach", words, 4), "watch");
    cr_expect_null(vg_nearest("zzzz", words, 4));
    cr_expect_null(vg_nearest("", words, 4));
}
