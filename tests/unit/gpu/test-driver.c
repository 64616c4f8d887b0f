/* Which driver files a node gives to tasks that brought their own files. */
#include "base/util.h"
#include "gpu/driver.h"

#include <criterion/criterion.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

static char root[32], lib[128];

static void put(const char *folder, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s%s", root, folder);
    cr_assert_geq(vg_mkdir_p(path, 0755), 0);
    snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
    cr_assert_eq(vg_write_file(path, text, strlen(text), 0644), 0);
}

static void put_link(const char *folder, const char *name, const char *to) {
    char path[512];
    snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
    cr_assert_eq(symlink(to, path), 0);
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
    put(lib, "libcuda.so.1", "");
    put(lib, "libcuda.so.535", "");
    put(lib, "libc.so.6", "");
    put("/usr/lib64", "libcuda.so.1", "");
    put("/usr/lib64", "libnvidia-ml.so.1", "");
    put("/usr/bin", "nvidia-smi", "");
    put("/opt/drivers", "libmine.so.2", "");
}

static void teardown(void) {
    nftw(root, drop, 8, FTW_DEPTH | FTW_PHYS);
}

TestSuite(driver, .init = setup, .fini = teardown);

static struct vg_driver find(char *const *patterns, size_t n) {
    struct vg_driver d;
    struct vg_driver_where w = {.root = root, .patterns = patterns, .n_patterns = n};
    cr_assert_eq(vg_driver_find(&w, &d), 0);
    return d;
}

static bool found(const struct vg_driver *d, const char *folder, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
    for (size_t i = 0; i < d->n; i++)
        if (!strcmp(d->path[i], path))
            return true;
    return false;
}

static void card(const char *version) {
    char text[256];
    put("/dev", "nvidiactl", "");
    snprintf(text, sizeof text,
             "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build  "
             "(someone)\nGCC version:  gcc version 15.3.0 (GCC)\n",
             version);
    put("/proc/driver/nvidia", "version", text);
}

/* A driver as vendors' images have it: in a folder of its own, outside the loader's. */
static void vendor_driver(const char *folder, const char *version) {
    char name[128];
    snprintf(name, sizeof name, "libcuda.so.%s", version);
    put(folder, name, "");
    put_link(folder, "libcuda.so.1", name);
    snprintf(name, sizeof name, "libnvidia-ml.so.%s", version);
    put(folder, name, "");
    put_link(folder, "libnvidia-ml.so.1", name);
}

Test(driver, names_are_looked_for_where_a_loader_looks_and_the_first_counts) {
    char *patterns[] = {"libcuda.so*", "libnvidia-*.so*", "../libc.so.6"};
    struct vg_driver d = find(patterns, 3);
    cr_assert_eq(d.n, 3u);
    cr_assert_eq(d.source, VG_DRIVER_CONFIGURED);
    cr_assert(found(&d, lib, "libcuda.so.1"));
    cr_assert(found(&d, lib, "libcuda.so.535"));
    cr_assert(found(&d, "/usr/lib64", "libnvidia-ml.so.1"));
    vg_driver_done(&d);
}

Test(driver, absolute_patterns_are_taken_as_they_are) {
    char *patterns[] = {"/opt/drivers/lib*.so*", "/opt", "/nothing/*"};
    struct vg_driver d = find(patterns, 3);
    cr_assert_eq(d.n, 1u, "a folder is no library");
    cr_assert(found(&d, "/opt/drivers", "libmine.so.2"));
    vg_driver_done(&d);
}

Test(driver, without_patterns_a_card_decides) {
    struct vg_driver d = find(NULL, 0);
    cr_assert_eq(d.n, 0u);
    cr_assert_eq(d.source, VG_DRIVER_NONE);
    vg_driver_done(&d);
    put("/dev", "nvidiactl", "");
    d = find(NULL, 0);
    cr_assert_eq(d.n, 4u);
    cr_assert_eq(d.source, VG_DRIVER_FOUND);
    cr_assert(found(&d, "/usr/bin", "nvidia-smi"));
    vg_driver_done(&d);
}

Test(driver, a_vendors_folder_is_found_with_its_programs) {
    card("580.159.04");
    vendor_driver("/usr/local/nvidia/lib64", "580.159.04");
    put("/usr/local/nvidia/bin", "nvidia-smi", "");
    struct vg_driver d = find(NULL, 0);
    cr_assert_str_eq(d.version, "580.159.04");
    cr_assert(found(&d, "/usr/local/nvidia/lib64", "libcuda.so.1"));
    cr_assert(found(&d, "/usr/local/nvidia/lib64", "libnvidia-ml.so.580.159.04"));
    cr_assert(found(&d, "/usr/local/nvidia/bin", "nvidia-smi"), "the one beside the libraries");
    cr_assert_not(found(&d, "/usr/bin", "nvidia-smi"));
    cr_assert_eq(d.remark[0], 0);
    vg_driver_done(&d);
}

Test(driver, a_stale_package_gives_way_to_the_running_driver) {
    card("580.159.04");
    vendor_driver("/usr/local/nvidia/lib64", "535.54.03"); /* comes first, but is another's */
    vendor_driver("/usr/lib/nvidia", "580.159.04");
    struct vg_driver d = find(NULL, 0);
    cr_assert(found(&d, "/usr/lib/nvidia", "libcuda.so.1"), "a link counts by what it leads to");
    cr_assert(found(&d, "/usr/lib/nvidia", "libcuda.so.580.159.04"));
    cr_assert_not(found(&d, "/usr/local/nvidia/lib64", "libcuda.so.535.54.03"));
    cr_assert_not(found(&d, lib, "libcuda.so.535"));
    vg_driver_done(&d);
}

Test(driver, no_library_of_the_running_driver_is_said) {
    card("580.159.04");
    char path[512];
    snprintf(path, sizeof path, "%s%s/libcuda.so.1", root, lib);
    unlink(path);
    put_link(lib, "libcuda.so.1", "libcuda.so.535");
    snprintf(path, sizeof path, "%s/usr/lib64/libcuda.so.1", root);
    unlink(path);
    struct vg_driver d = find(NULL, 0);
    cr_assert(strstr(d.remark, "580.159.04"), "%s", d.remark);
    vg_driver_done(&d);
}

Test(driver, the_loaders_own_path_is_looked_at) {
    card("580.159.04");
    vendor_driver("/srv/elsewhere", "580.159.04");
    struct vg_driver d;
    struct vg_driver_where w = {.root = root, .library_path = "relative:/srv/elsewhere:"};
    cr_assert_eq(vg_driver_find(&w, &d), 0);
    cr_assert(found(&d, "/srv/elsewhere", "libcuda.so.1"));
    vg_driver_done(&d);
}

Test(driver, stubs_are_no_driver) {
    card("580.159.04");
    vendor_driver("/usr/local/nvidia/lib64", "580.159.04");
    put("/usr/local/cuda/lib64/stubs", "libcuda.so", "");
    put("/usr/local/cuda/lib64/stubs", "libnvidia-ml.so", "");
    struct vg_driver d;
    struct vg_driver_where w = {.root = root, .library_path = "/usr/local/cuda/lib64/stubs"};
    cr_assert_eq(vg_driver_find(&w, &d), 0);
    cr_assert_not(found(&d, "/usr/local/cuda/lib64/stubs", "libcuda.so"));
    cr_assert(found(&d, "/usr/local/nvidia/lib64", "libcuda.so.1"), "control");
    vg_driver_done(&d);
}

Test(driver, thirty_two_bit_libraries_are_left_out) {
    card("580.159.04");
    vendor_driver("/usr/local/nvidia/lib64", "580.159.04");
    put("/usr/local/nvidia/lib", "libnvidia-only32.so.1", "\177ELF\001\001\001aaaaaaaaaaaaaaaaaaa");
    put("/usr/local/nvidia/lib", "libnvidia-only64.so.1", "\177ELF\002\001\001aaaaaaaaaaaaaaaaaaa");
    struct vg_driver d = find(NULL, 0);
    cr_assert_not(found(&d, "/usr/local/nvidia/lib", "libnvidia-only32.so.1"));
    cr_assert(found(&d, "/usr/local/nvidia/lib", "libnvidia-only64.so.1"));
    vg_driver_done(&d);
}

Test(driver, versions_are_told_apart) {
    cr_assert(vg_driver_is_other("libcuda.so.535.54", "580.1"));
    cr_assert_not(vg_driver_is_other("libcuda.so.580.1", "580.1"));
    cr_assert_not(vg_driver_is_other("libcuda.so.1", "580.1"));
    cr_assert_not(vg_driver_is_other("libnvidia-egl-gbm.so.1.1.2", "580.1"));
    cr_assert_not(vg_driver_is_other("libcuda.so.535.54", ""), "unknown: any will do");
    cr_assert_not(vg_driver_is_other("nvidia-smi", "580.1"));
}

/* ------------------------------------------------------------------ specifications */

static const char spec[] =
    "{\"cdiVersion\":\"0.5.0\",\"kind\":\"nvidia.com/gpu\",\n"
    "\"containerEdits\":{\"env\":[\"NVIDIA_VISIBLE_DEVICES=void\",\"X=1\"],\n"
    " \"deviceNodes\":[{\"path\":\"/dev/nvidiactl\"},{\"path\":\"/dev/nvidia-modeset\"},"
    "{\"path\":\"/etc/passwd\"}],\n"
    " \"hooks\":[{\"hookName\":\"createContainer\",\"path\":\"/usr/bin/nvidia-cdi-hook\"}],\n"
    " \"mounts\":[{\"hostPath\":\"/opt/nv/libcuda.so.580.159.04\","
    "\"containerPath\":\"/usr/lib/libcuda.so.580.159.04\"},\n"
    "  {\"hostPath\":\"/opt/nv/bin/nvidia-smi\",\"containerPath\":\"/usr/bin/nvidia-smi\"},"
    "  {\"hostPath\":\"/opt/nv/nvidia_icd.json\"}]},\n"
    "\"devices\":[{\"name\":\"0\",\"containerEdits\":{\"deviceNodes\":[{\"path\":\"/dev/nvidia0\"},"
    "{\"path\":\"/dev/dri/renderD128\"}]}},\n"
    "{\"name\":\"all\",\"containerEdits\":{\"deviceNodes\":[{\"path\":\"/dev/nvidia0\"},"
    "{\"path\":\"/dev/nvidia1\"},{\"path\":\"/dev/dri/card7\"}]}}]}\n";

Test(driver, a_specification_is_followed) {
    card("580.159.04");
    vendor_driver("/opt/nv", "580.159.04");
    vendor_driver("/usr/local/nvidia/lib64", "580.159.04");
    put("/opt/nv/bin", "nvidia-smi", "");
    put("/opt/nv", "nvidia_icd.json", "");
    put("/etc/cdi", "nvidia.json", spec);
    struct vg_driver d = find(NULL, 0);
    cr_assert_eq(d.source, VG_DRIVER_CDI);
    cr_assert_eq(d.n, 3u);
    cr_assert(found(&d, "/opt/nv", "libcuda.so.580.159.04"));
    cr_assert(found(&d, "/opt/nv", "libcuda.so.1"), "what a hook would have linked");
    cr_assert(found(&d, "/opt/nv/bin", "nvidia-smi"));
    cr_assert(strstr(d.remark, "1 hooks"), "%s", d.remark);
    cr_assert_eq(d.cdi.n_devices, 2u);
    cr_assert_eq(d.cdi.common.nodes.n, 2u, "a device node lies below /dev");
    cr_assert_eq(d.cdi.common.env.n, 2u);
    vg_driver_done(&d);
}

Test(driver, a_specification_of_an_older_driver_is_passed_over) {
    card("590.1.2");
    vendor_driver("/opt/nv", "580.159.04");
    vendor_driver("/usr/local/nvidia/lib64", "590.1.2");
    put("/etc/cdi", "nvidia.json", spec);
    struct vg_driver d = find(NULL, 0);
    cr_assert_eq(d.source, VG_DRIVER_FOUND);
    cr_assert(found(&d, "/usr/local/nvidia/lib64", "libcuda.so.1"));
    cr_assert(strstr(d.remark, "nvidia-ctk"), "%s", d.remark);
    vg_driver_done(&d);
}

Test(driver, a_broken_specification_is_named_and_left_out) {
    card("580.159.04");
    vendor_driver("/usr/local/nvidia/lib64", "580.159.04");
    put("/var/run/cdi", "bad.yaml", "cdiVersion: [\n");
    struct vg_driver d = find(NULL, 0);
    cr_assert_eq(d.source, VG_DRIVER_FOUND);
    cr_assert(strstr(d.remark, "bad.yaml"), "%s", d.remark);
    vg_driver_done(&d);
}

Test(driver, yaml_and_other_kinds) {
    struct vg_cdi c = {0};
    struct vg_err err = VG_ERR_INIT;
    static const char yaml[] = "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices:\n- name: '0'\n"
                               "  containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia0\n"
                               "      major: 195\n";
    static const char other[] = "cdiVersion: 0.6.0\nkind: amd.com/gpu\ndevices:\n- name: a\n";
    cr_assert_eq(vg_cdi_parse(&c, yaml, sizeof yaml - 1, &err), 0);
    cr_assert_eq(vg_cdi_parse(&c, other, sizeof other - 1, &err), 0);
    cr_assert_eq(c.n_devices, 1u, "another vendor's are not these");
    cr_assert_str_eq(c.device[0].edits.nodes.item[0], "/dev/nvidia0");
    cr_assert_lt(vg_cdi_parse(&c, "a: b\n", 5, &err), 0);
    cr_assert_lt(vg_cdi_parse(&c, "", 0, &err), 0);
    vg_cdi_done(&c);
}

static bool is_place(const struct vg_cdi_list *l, const char *path) {
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(l->item[i], path))
            return true;
    return false;
}

Test(driver, every_place_of_the_driver_is_known_and_no_other) {
    struct vg_cdi_list l = {0};
    struct vg_driver_where w = {.root = root};
    card("580.159.04");
    vendor_driver("/usr/local/nvidia/lib64", "580.159.04");
    vendor_driver("/usr/lib/nvidia", "580.159.04"); /* once more, where others look */
    put("/usr/lib/nvidia", "libcuda.so.470.1", "");
    put("/usr/lib/nvidia", "libnvidia-ptxjitcompiler.so.580.159.04", "");
    struct vg_driver d = find(NULL, 0);
    cr_assert_eq(vg_driver_places(&w, &d, &l), 0);
    cr_assert(is_place(&l, "/usr/local/nvidia/lib64/libcuda.so.1"));
    cr_assert(is_place(&l, "/usr/local/nvidia/lib64/libcuda.so.580.159.04"));
    cr_assert(is_place(&l, "/usr/lib/nvidia/libcuda.so.1"));
    cr_assert(is_place(&l, "/usr/lib/nvidia/libnvidia-ml.so.580.159.04"));
    cr_assert_not(is_place(&l, "/usr/lib/nvidia/libcuda.so.470.1"));
    cr_assert_not(is_place(&l, "/usr/lib/nvidia/libnvidia-ptxjitcompiler.so.580.159.04"));
    for (size_t i = 0; i < l.n; i++)
        for (size_t k = 0; k < i; k++)
            cr_assert_str_neq(l.item[i], l.item[k]);
    cr_assert_not_null(strstr(vg_driver_library(&d, VG_DRIVER_CUDA), "/libcuda.so"));
    cr_assert_null(vg_driver_library(&d, "libnothing.so"));
    vg_cdi_list_done(&l);
    vg_driver_done(&d);
}
