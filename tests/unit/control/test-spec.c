/* What a client may ask for. */
#include "control/spec-check.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static ProtobufCBinaryData bytes(const char *s) {
    return (ProtobufCBinaryData){.data = (uint8_t *)s, .len = strlen(s)};
}

static ProtobufCBinaryData argv_true[1];

static Vg__Pb__TaskSpec good(void) {
    Vg__Pb__TaskSpec s = VG__PB__TASK_SPEC__INIT;
    argv_true[0] = bytes("true");
    s.argv = argv_true;
    s.n_argv = 1;
    return s;
}

static enum vg_reason check(const Vg__Pb__TaskSpec *s) {
    struct vg_err err = VG_ERR_INIT;
    int r = vg_spec_check(s, &err);
    cr_assert_eq(r < 0, err.msg[0] != '\0');
    return err.reason;
}

Test(spec, an_ordinary_command_passes) {
    Vg__Pb__TaskSpec s = good();
    cr_assert_eq(check(&s), VG_OK);
}

Test(spec, no_command_is_refused) {
    Vg__Pb__TaskSpec s = VG__PB__TASK_SPEC__INIT;
    cr_assert_eq(check(&s), VG_INVALID);
    ProtobufCBinaryData empty[1] = {bytes("")};
    s.argv = empty;
    s.n_argv = 1;
    cr_assert_eq(check(&s), VG_INVALID);
}

Test(spec, a_nul_inside_a_string_is_refused) {
    Vg__Pb__TaskSpec s = good();
    ProtobufCBinaryData env[1] = {{.data = (uint8_t *)"A=\0B", .len = 4}};
    s.env = env;
    s.n_env = 1;
    cr_assert_eq(check(&s), VG_INVALID);
}

Test(spec, too_much_environment_is_too_big) {
    Vg__Pb__TaskSpec s = good();
    char *big = calloc(1, VG_SPEC_ARGS_MAX + 1);
    memset(big, 'x', VG_SPEC_ARGS_MAX);
    ProtobufCBinaryData env[1] = {bytes(big)};
    s.env = env;
    s.n_env = 1;
    cr_assert_eq(check(&s), VG_TOO_BIG);
    env[0].len = VG_SPEC_ARGS_MAX / 2;
    cr_assert_eq(check(&s), VG_OK);
    free(big);
}

Test(spec, a_relative_directory_is_refused) {
    Vg__Pb__TaskSpec s = good();
    s.has_cwd = 1;
    s.cwd = bytes("tmp");
    cr_assert_eq(check(&s), VG_INVALID);
    s.cwd = bytes("/tmp");
    cr_assert_eq(check(&s), VG_OK);
}

Test(spec, names_and_labels_are_plain) {
    Vg__Pb__TaskSpec s = good();
    s.name = "../etc";
    cr_assert_eq(check(&s), VG_INVALID);
    s.name = "train-1";
    s.session = "a/b";
    cr_assert_eq(check(&s), VG_INVALID);
    s.session = "notes";
    char *labels[] = {"a=b", "nolabel"};
    s.label = labels;
    s.n_label = 1;
    cr_assert_eq(check(&s), VG_OK);
    s.n_label = 2;
    cr_assert_eq(check(&s), VG_INVALID);
}
