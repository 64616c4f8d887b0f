/* What cgroup.c writes and reads, against a folder that stands in for a v2 group: the suites run on
   machines where the real controllers belong to v1. The files' formats are the kernel's ABI. */
#include "base/util.h"
#include "sandbox/sandbox-priv.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/vg-cgroup-XXXXXX";
static struct vg_cg cg;

static void put(const char *file, const char *text) {
    char path[256];
    snprintf(path, sizeof(path), "%s/a/%s", root, file);
    cr_assert_eq(vg_write_file(path, text, strlen(text), 0644), 0);
}

static const char *get(const char *file) {
    static char text[256];
    char path[256], *data;
    snprintf(path, sizeof(path), "%s/a/%s", root, file);
    size_t n;
    cr_assert_eq(vg_read_file(path, 4096, &data, &n), 0, "%s", path);
    snprintf(text, sizeof(text), "%s", data);
    free(data);
    return text;
}

static void set_up(void) {
    char a[64];
    cr_assert(mkdtemp(root));
    snprintf(a, sizeof(a), "%s/a", root);
    mkdir(a, 0755);
    cg = (struct vg_cg){.v2 = true, .n = 1};
    cg.h[0].what = VG_CG_CPU | VG_CG_CPUACCT | VG_CG_MEMORY | VG_CG_PIDS;
    cg.h[0].fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void tear_down(void) {
    const char *const files[] = {"cpu.max",       "memory.max",     "memory.swap.max",
                                 "pids.max",      "memory.current", "memory.peak",
                                 "memory.events", "cpu.stat",       "pids.current"};
    char path[256];
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        snprintf(path, sizeof(path), "%s/a/%s", root, files[i]);
        unlink(path);
    }
    snprintf(path, sizeof(path), "%s/a", root);
    rmdir(path);
    rmdir(root);
    close(cg.h[0].fd);
}

TestSuite(cgroup_v2, .init = set_up, .fini = tear_down);

Test(cgroup_v2, limits_are_written_in_the_kernels_units) {
    struct vg_err err = VG_ERR_INIT;
    const char *const files[] = {"cpu.max", "memory.max", "memory.swap.max", "pids.max"};
    for (size_t i = 0; i < 4; i++)
        put(files[i], "");
    struct vg_limits l = {.cpu_milli = 1500, .mem_bytes = 64u << 20, .pids = 10};
    cr_assert_eq(vg_cg_limit(&cg, "a", &l, &err), 0, "%s", err.msg);
    cr_assert_str_eq(get("cpu.max"), "150000 100000");
    cr_assert_str_eq(get("memory.max"), "67108864");
    cr_assert_str_eq(get("memory.swap.max"), "0");
    cr_assert_str_eq(get("pids.max"), "11"); /* and init */
}

Test(cgroup_v2, a_limit_that_cannot_be_kept_is_an_error) {
    struct vg_err err = VG_ERR_INIT;
    cg.h[0].what = VG_CG_CPUACCT;
    cr_assert_lt(vg_cg_limit(&cg, "a", &(struct vg_limits){.mem_bytes = 1u << 20}, &err), 0);
    cr_assert(strstr(err.msg, "cannot limit the memory"));
    cr_assert_lt(vg_cg_limit(&cg, "a", &(struct vg_limits){.pids = 3}, &err), 0);
    cr_assert_lt(vg_cg_limit(&cg, "a", &(struct vg_limits){.cpu_milli = 3}, &err), 0);
    cr_assert_eq(vg_cg_limit(&cg, "a", &(struct vg_limits){0}, &err), 0);
}

Test(cgroup_v2, usage_is_read) {
    put("cpu.stat", "usage_usec 1234\nuser_usec 1000\nsystem_usec 234\n");
    put("memory.current", "4096\n");
    put("memory.peak", "8192\n");
    put("memory.events", "low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\n");
    put("pids.current", "4\n");
    struct vg_usage u = {0};
    cr_assert_eq(vg_cg_usage(&cg, "a", &u), 0);
    cr_assert_eq(u.cpu_usec, 1234);
    cr_assert_eq(u.mem_bytes, 4096);
    cr_assert_eq(u.mem_peak_bytes, 8192);
    cr_assert_eq(u.pids, 3);
    cr_assert(u.oom);
    put("memory.events", "low 0\nhigh 0\nmax 7\noom 2\noom_kill 0\n");
    u = (struct vg_usage){0};
    vg_cg_usage(&cg, "a", &u);
    cr_assert_not(u.oom);
}

Test(ids, a_users_own_number_is_kept_and_others_are_shifted) {
    unsigned base = VG_SB_ID_BASE + 7 * VG_SB_ID_RANGE;
    cr_assert_eq(vg_sb_map_id(7, 0, 0), base);
    cr_assert_eq(vg_sb_map_id(7, 1000, 1000), 1000);
    cr_assert_eq(vg_sb_map_id(7, 1000, 0), base);
    cr_assert_eq(vg_sb_map_id(7, 1000, 1001), base + 1001);
    cr_assert_eq(vg_sb_map_id(7, 70000, 70000), 70000);
    cr_assert_eq(vg_sb_map_id(7, 1000, 70000), 65534);
    cr_assert_lt(vg_sb_map_id(VG_SB_SLOT_MAX, 0, 65535), UINT32_MAX);
}
