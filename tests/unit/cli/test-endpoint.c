/* Where the cloud is looked for, in which order, and what is said when it is not there. */
#include "cli/endpoint.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CA "00112233445566778899aabbccddeeff"
#define TOKEN "vgt_0123456789abcdef_00000000000000000000000000000000_" CA

static char home[64];

static void setup(void) {
    snprintf(home, sizeof(home), "/tmp/virga-endpoint-XXXXXX");
    cr_assert_not_null(mkdtemp(home));
    setenv("HOME", home, 1);
    unsetenv("VIRGA_HOME");
    unsetenv("VIRGA_SOCKET");
    unsetenv("VIRGA_TOKEN");
    unsetenv("VIRGA_TASK_ID");
}

static void put(const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", home, name);
    FILE *f = fopen(path, "we");
    cr_assert_not_null(f);
    fputs(text, f);
    fclose(f);
}

static void teardown(void) {
    static const char *const names[] = {".virga/sock", ".virga/client", ".virga", "sock", "client"};
    char path[256];
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", home, names[i]);
        remove(path);
    }
    rmdir(home);
}

TestSuite(endpoint, .init = setup, .fini = teardown);

Test(endpoint, a_named_socket_wins) {
    struct vg_endpoint e;
    struct vg_err err = VG_ERR_INIT;
    setenv("VIRGA_SOCKET", "/x/sock", 1);
    setenv("VIRGA_HOME", home, 1);
    cr_assert_eq(vg_endpoint_find(&e, &err), 0);
    cr_expect_eq(e.kind, VG_ENDPOINT_UNIX);
    cr_expect_str_eq(e.path, "/x/sock");
    cr_expect_str_empty(e.token);
}

Test(endpoint, the_home_socket_comes_before_the_login) {
    struct vg_endpoint e;
    struct vg_err err = VG_ERR_INIT;
    char want[128];
    setenv("VIRGA_HOME", home, 1);
    put("client", "address=h:1\ntoken=" TOKEN "\nca=" CA "\n");
    cr_assert_eq(vg_endpoint_find(&e, &err), 0, "%s", err.msg);
    cr_expect_eq(e.kind, VG_ENDPOINT_TLS);
    cr_expect_str_eq(e.address, "h:1");
    cr_expect_str_eq(e.token, TOKEN);
    cr_expect_str_eq(e.ca, CA);
    put("sock", "");
    cr_assert_eq(vg_endpoint_find(&e, &err), 0);
    snprintf(want, sizeof(want), "%s/sock", home);
    cr_expect_eq(e.kind, VG_ENDPOINT_UNIX);
    cr_expect_str_eq(e.path, want);
}

Test(endpoint, a_home_that_was_named_is_never_left) {
    struct vg_endpoint e;
    struct vg_err err = VG_ERR_INIT;
    char want[128];
    setenv("VIRGA_HOME", home, 1);
    cr_assert_eq(vg_endpoint_find(&e, &err), 0);
    snprintf(want, sizeof(want), "%s/sock", home);
    cr_expect_str_eq(e.path, want);
}

Test(endpoint, damaged_logins_are_refused_in_one_sentence) {
    static const char *const bad[] = {"", "address=h:1\n", "nonsense\n",
                                      "address=h:1\ntoken=t\nca=short\n"};
    struct vg_endpoint e;
    setenv("VIRGA_HOME", home, 1);
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct vg_err err = VG_ERR_INIT;
        put("client", bad[i]);
        cr_assert_lt(vg_endpoint_find(&e, &err), 0, "%u", i);
        cr_expect(strstr(err.msg, "log in again with 'virga login'"), "%s", err.msg);
    }
}

Test(endpoint, a_login_survives_the_file_and_is_private) {
    struct vg_endpoint e = {.kind = VG_ENDPOINT_TLS, .address = "h:1", .token = TOKEN, .ca = CA};
    struct vg_endpoint back;
    struct vg_err err = VG_ERR_INIT;
    struct stat st;
    char path[128];
    snprintf(path, sizeof(path), "%s/client", home);
    cr_assert_eq(vg_login_write(path, &e, &err), 0, "%s", err.msg);
    cr_assert_eq(vg_login_read(path, &back, &err), 0, "%s", err.msg);
    cr_expect_str_eq(back.token, e.token);
    cr_assert_eq(stat(path, &st), 0);
    cr_expect_eq(st.st_mode & 0777, 0600);
}

Test(endpoint, nobody_there_says_what_to_do) {
    struct vg_endpoint e = {.kind = VG_ENDPOINT_UNIX};
    struct vg_err err = VG_ERR_INIT;
    snprintf(e.path, sizeof(e.path), "%s/.virga/sock", home);
    cr_expect_eq(vg_endpoint_refused(&e, -ENOENT, &err), -ECONNREFUSED);
    cr_expect_str_eq(err.msg, "no Virga cloud answers at ~/.virga/sock: start one with 'virga up' "
                              "or log in to one with 'virga login HOST:PORT --token TOKEN'");
    vg_endpoint_refused(&e, -EACCES, &err);
    cr_expect_eq(err.reason, VG_FORBIDDEN);
}

Test(endpoint, tokens_carry_the_fingerprint) {
    char ca[33];
    cr_expect_eq(vg_token_ca(TOKEN, ca), 0);
    cr_expect_str_eq(ca, CA);
    cr_expect_eq(vg_token_ca("vgt_short", ca), -EINVAL);
    cr_expect_eq(vg_token_ca("xxx_1_2_" CA, ca), -EINVAL);
    cr_expect_eq(vg_token_ca("", ca), -EINVAL);
}

Test(endpoint, a_relative_home_becomes_absolute_and_loses_slashes) {
    char dir[512];
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(chdir(home), 0);
    setenv("VIRGA_HOME", "a//", 1);
    cr_assert_eq(vg_home_dir(dir, sizeof(dir), &err), 0);
    cr_expect_eq(dir[0], '/');
    cr_expect_str_eq(dir + strlen(dir) - 2, "/a");
}
