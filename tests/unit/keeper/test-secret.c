/* Secrets in the keeper: cut off what others can read, given on, wiped. */
#include "bench.h"

#include <criterion/criterion.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

static Vg__Pb__SecretValue value(char *var, char *file, char *text) {
    Vg__Pb__SecretValue v = VG__PB__SECRET_VALUE__INIT;
    v.as_var = var;
    v.as_file = file;
    v.has_value = true;
    v.value = (ProtobufCBinaryData){strlen(text), (uint8_t *)text};
    return v;
}

Test(keeper_secret, what_stands_behind_a_start_is_zeroed_and_cut_off) {
    char text[10000], seen[10000];
    struct stat st;
    int fd = memfd_create("start", 0);
    memset(text, 'o', 100);
    memset(text + 100, 's', sizeof(text) - 100);
    cr_assert_eq(write(fd, text, sizeof(text)), (ssize_t)sizeof(text));
    void *view = mmap(NULL, sizeof(text), PROT_READ, MAP_SHARED, fd, 0); /* the agent's look */
    ksecret_take(fd, 100);
    cr_assert(fstat(fd, &st) == 0 && st.st_size == 100);
    memcpy(seen, view, 4096); /* the page that both parts share */
    cr_assert_eq(memcmp(seen, text, 100), 0);
    cr_assert_null(memchr(seen, 's', 4096));
    cr_assert_eq(prctl(PR_GET_DUMPABLE), 0);
}

Test(keeper_secret, variables_and_files_are_made_and_wiped) {
    char one[] = "first value", two[] = "second";
    Vg__Pb__Start st = VG__PB__START__INIT;
    Vg__Pb__SecretValue a = value("TOKEN", NULL, one), b = value(NULL, "key", two);
    Vg__Pb__SecretValue *list[] = {&a, &b};
    char *env[4] = {0}, same[] = "TOKEN=mine", other[] = "TOKENS=mine";
    struct vg_given_file *files = NULL;
    struct vg_err err = VG_ERR_INIT;
    size_t n = 0;
    st.secret = list;
    st.n_secret = 2;
    ProtobufCBinaryData mine = {strlen(same), (uint8_t *)same};
    cr_assert(ksecret_replaces(&st, &mine));
    mine = (ProtobufCBinaryData){strlen(other), (uint8_t *)other};
    cr_assert_not(ksecret_replaces(&st, &mine));
    cr_assert_eq(ksecret_env(&st, env), 2);
    cr_assert_str_eq(env[0], "TOKEN=first value");
    cr_assert_str_eq(env[1], "VIRGA_SECRETS=/run/secrets");
    cr_assert_eq(ksecret_files(&st, &files, &n, &err), 0);
    cr_assert(n == 1 && files[0].len == 6 && memcmp(files[0].data, "second", 6) == 0);
    ksecret_wipe(&st, env);
    cr_assert(!one[0] && !one[5] && !two[0] && !env[0][0]);
    free(files);
    free(env[0]);
    free(env[1]);
}

Test(keeper_secret, a_file_that_would_lie_elsewhere_is_refused) {
    static char *const bad[] = {"../x", "a/b", ".hidden"};
    for (size_t i = 0; i < 3; i++) {
        Vg__Pb__Start st = VG__PB__START__INIT;
        Vg__Pb__SecretValue a = value(NULL, bad[i], "x"), *list[] = {&a};
        struct vg_given_file *files = NULL;
        struct vg_err err = VG_ERR_INIT;
        size_t n = 0;
        st.secret = list;
        st.n_secret = 1;
        cr_assert_lt(ksecret_files(&st, &files, &n, &err), 0);
    }
}
