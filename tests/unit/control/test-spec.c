/* What a client may ask for. */
#include "base/cleanup.h"
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

Test(spec, a_group_that_makes_no_sense_is_refused) {
    Vg__Pb__TaskSpec s = good();
    Vg__Pb__Sweep a = VG__PB__SWEEP__INIT, b = VG__PB__SWEEP__INIT, *both[] = {&a, &b};
    char *values[] = {"1", "2"};
    s.shards = 4;
    cr_assert_eq(check(&s), VG_OK);
    s.stdin_open = 1;
    cr_assert_eq(check(&s), VG_INVALID, "several tasks cannot share one input");
    s.stdin_open = 0;
    s.has_gang_policy = 1;
    cr_assert_eq(check(&s), VG_INVALID, "there is no gang");
    s.gang = 1;
    cr_assert_eq(check(&s), VG_OK);
    s.session = "notes";
    cr_assert_eq(check(&s), VG_INVALID);
    s.session = NULL;
    s.sweep = both;
    s.n_sweep = 1;
    a.name = "LR";
    a.value = values;
    a.n_value = 2;
    cr_assert_eq(check(&s), VG_INVALID, "a gang is not swept");
    s.gang = s.has_gang_policy = 0;
    cr_assert_eq(check(&s), VG_OK);
    static char *const bad[] = {"", "1LR", "L R", "VIRGA_SHARD", "A=B"};
    for (size_t i = 0; i < VG_COUNT(bad); i++) {
        a.name = bad[i];
        cr_assert_eq(check(&s), VG_INVALID, "%s", bad[i]);
    }
    a.name = b.name = "LR";
    b.value = values;
    b.n_value = 2;
    s.n_sweep = 2;
    cr_assert_eq(check(&s), VG_INVALID, "twice the same");
    b.name = "SEED";
    cr_assert_eq(check(&s), VG_OK);
    b.n_value = 0;
    cr_assert_eq(check(&s), VG_INVALID, "no values");
    s.n_sweep = 0;
    s.shards = VG_SPEC_MEMBERS_MAX + 1;
    cr_assert_eq(check(&s), VG_TOO_BIG);
}

Test(spec, retries_keys_and_waits_are_bounded) {
    Vg__Pb__TaskSpec s = good();
    int32_t statuses[] = {75, 256};
    Vg__Pb__Dependency d = VG__PB__DEPENDENCY__INIT, *deps[] = {&d};
    s.retry_on = statuses;
    s.n_retry_on = 1;
    cr_assert_eq(check(&s), VG_OK);
    s.n_retry_on = 2;
    cr_assert_eq(check(&s), VG_INVALID);
    s.n_retry_on = 0;
    s.backoff_usec = 2000;
    s.has_backoff_max_usec = 1;
    s.backoff_max_usec = 1000;
    cr_assert_eq(check(&s), VG_INVALID, "the longest is shorter than the first");
    s.backoff_max_usec = VG_SPEC_BACKOFF_MAX_USEC + 1;
    cr_assert_eq(check(&s), VG_INVALID);
    s.backoff_max_usec = 2000;
    cr_assert_eq(check(&s), VG_OK);
    s.grace_signal = 65;
    cr_assert_eq(check(&s), VG_INVALID);
    s.grace_signal = 10;
    s.key = "with blank";
    cr_assert_eq(check(&s), VG_INVALID);
    s.key = "run/2026-11-15#3";
    cr_assert_eq(check(&s), VG_OK);
    s.after = deps;
    s.n_after = 1;
    cr_assert_eq(check(&s), VG_INVALID, "names nothing");
    d.task = "3f2a";
    cr_assert_eq(check(&s), VG_OK);
    s.n_after = VG_SPEC_AFTER_MAX + 1;
    cr_assert_eq(check(&s), VG_TOO_BIG);
    s.n_after = 1;
    s.schedule = "0 3 * * *";
    cr_assert_eq(check(&s), VG_INVALID, "a schedule neither waits nor has a key");
    s.n_after = 0;
    s.key = NULL;
    cr_assert_eq(check(&s), VG_OK);
    s.schedule = "0 25 * * *";
    cr_assert_eq(check(&s), VG_INVALID);
}

static enum vg_reason check_view(const char *path) {
    Vg__Pb__TaskSpec s = good();
    Vg__Pb__MirrorSpec m = VG__PB__MIRROR_SPEC__INIT;
    Vg__Pb__MirrorView v = VG__PB__MIRROR_VIEW__INIT, *list[1] = {&v};
    m.machine = (ProtobufCBinaryData){.data = (uint8_t *)"0123456789abcdef", .len = 16};
    v.path = bytes(path);
    m.view = list;
    m.n_view = 1;
    s.mirror = &m;
    return check(&s);
}

Test(spec, folders_that_are_written_back_are_clean_absolute_paths) {
    static const char *const bad[] = {
        "",     "/",    "home/a", "/home/../etc", "/home/./a", "/home//a",
        "/a/",  "//",   "/proc",  "/proc/1",      "/sys/fs",   "/dev/shm",
        "/etc", "/run", "/tmp",   "/run/virga/x", "/..",       "/home/.."};
    static const char *const fine[] = {
        "/home/a", "/home/a/.config", "/home/a/..b", "/tmp/x", "/processes", "/srv", "/etc/x"};
    for (size_t i = 0; i < VG_COUNT(bad); i++)
        cr_assert_eq(check_view(bad[i]), VG_INVALID, "%s", bad[i]);
    for (size_t i = 0; i < VG_COUNT(fine); i++)
        cr_assert_eq(check_view(fine[i]), VG_OK, "%s", fine[i]);
}

Test(spec, a_mirror_names_its_machine_or_something_stored) {
    Vg__Pb__TaskSpec s = good();
    Vg__Pb__MirrorSpec m = VG__PB__MIRROR_SPEC__INIT;
    s.mirror = &m;
    cr_assert_eq(check(&s), VG_INVALID);
    m.machine = bytes("0123456789abcdef");
    cr_assert_eq(check(&s), VG_OK);
    m.machine = bytes("0123456789abcde");
    cr_assert_eq(check(&s), VG_INVALID);
    m.machine = (ProtobufCBinaryData){0};
    m.env = (char *)"torch@3";
    cr_assert_eq(check(&s), VG_OK);
    m.snapshot = bytes("too short");
    cr_assert_eq(check(&s), VG_INVALID);
    m.snapshot = (ProtobufCBinaryData){0};
    m.home = bytes("home");
    cr_assert_eq(check(&s), VG_INVALID);
}
