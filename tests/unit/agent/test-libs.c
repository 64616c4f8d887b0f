/* Which driver libraries a node gives to tasks that brought their own files. */
#include "agent/agent-libs.h"
#include "base/util.h"

#include <criterion/criterion.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

static char root[32], lib[128];

static void put(const char *folder, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s%s", root, folder);
    cr_assert_geq(vg_mkdir_p(path, 0755), 0);
    snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
    cr_assert_eq(vg_write_file(path, name, strlen(name), 0644), 0);
}

static int drop(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st, (void)type, (void)at;
    return remove(path);
}

static void setup(void) {
    struct utsname u;
    memcpy(root, "/tmp/libs-XXXXXX", 17);
    cr_assert(mkdtemp(root));
    cr_assert_eq(uname(&u), 0);
    snprintf(lib, sizeof lib, "/usr/lib/%s-linux-gnu", u.machine);
    put(lib, "libcuda.so.1");
    put(lib, "libcuda.so.535");
    put(lib, "libc.so.6");
    put("/usr/lib64", "libcuda.so.1");
    put("/usr/lib64", "libnvidia-ml.so.1");
    put("/usr/bin", "nvidia-smi");
    put("/opt/drivers", "libmine.so.2");
}

static void teardown(void) {
    nftw(root, drop, 8, FTW_DEPTH | FTW_PHYS);
}

TestSuite(libs, .init = setup, .fini = teardown);

static bool found(const struct vg_libs *l, const char *folder, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(l->path[i], path))
            return true;
    return false;
}

Test(libs, names_are_looked_for_where_a_loader_looks_and_the_first_counts) {
    char *patterns[] = {"libcuda.so*", "libnvidia-*.so*", "../libc.so.6"};
    struct vg_libs l;
    cr_assert_eq(vg_libs_find(root, patterns, 3, &l), 0);
    cr_assert_eq(l.n, 3u);
    cr_assert(found(&l, lib, "libcuda.so.1"));
    cr_assert(found(&l, lib, "libcuda.so.535"));
    cr_assert(found(&l, "/usr/lib64", "libnvidia-ml.so.1"));
    vg_libs_done(&l);
}

Test(libs, absolute_patterns_are_taken_as_they_are) {
    char *patterns[] = {"/opt/drivers/lib*.so*", "/opt", "/nothing/*"};
    struct vg_libs l;
    cr_assert_eq(vg_libs_find(root, patterns, 3, &l), 0);
    cr_assert_eq(l.n, 1u, "a folder is no library");
    cr_assert(found(&l, "/opt/drivers", "libmine.so.2"));
    vg_libs_done(&l);
}

Test(libs, without_patterns_a_card_decides) {
    struct vg_libs l;
    cr_assert_eq(vg_libs_find(root, NULL, 0, &l), 0);
    cr_assert_eq(l.n, 0u);
    put("/dev", "nvidiactl");
    cr_assert_eq(vg_libs_find(root, NULL, 0, &l), 0);
    cr_assert_eq(l.n, 4u);
    cr_assert(found(&l, "/usr/bin", "nvidia-smi"));
    vg_libs_done(&l);
}
