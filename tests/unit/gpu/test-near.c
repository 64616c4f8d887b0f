/* How near two cards are: by the kernel's files, over a folder that stands for the machine. */
#include "folder.h"
#include "gpu/card.h"
#include "gpu/near.h"

TestSuite(gpu_near, .init = folder_make, .fini = folder_remove);

/* A device at the end of this path below /sys/devices, listed as the kernel does. */
static void put_device(const char *path, const char *numa) {
    char name[PATH_MAX], dir[PATH_MAX], link[PATH_MAX];
    snprintf(name, sizeof(name), "/sys/devices/%s/numa_node", path);
    put(name, numa);
    put("/sys/bus/pci/devices/.keep", "");
    snprintf(dir, sizeof(dir), "%s/sys/devices/%s", root, path);
    snprintf(link, sizeof(link), "%s/sys/bus/pci/devices/%s", root, strrchr(path, '/') + 1);
    cr_assert_eq(symlink(dir, link), 0);
}

#define SWITCH "pci0000:00/0000:00:01.0/0000:10:00.0/"

Test(gpu_near, paths_tell_switch_bridge_and_socket) {
    put_device(SWITCH "0000:11:00.0/0000:12:00.0", "0\n");
    put_device(SWITCH "0000:11:01.0/0000:13:00.0", "0\n");
    put_device(SWITCH "0000:11:02.0/0000:14:00.0/0000:15:00.0/0000:16:00.0", "0\n");
    put_device("pci0000:00/0000:00:02.0/0000:20:00.0", "0\n");
    put_device("pci0000:40/0000:40:01.0/0000:41:00.0", "0\n");
    put_device("pci0000:80/0000:80:01.0/0000:81:00.0", "1\n");
    put_device("pci0000:c0/0000:c0:01.0/0000:c1:00.0", "-1\n");
    const char *one = "00000000:12:00.0"; /* as drivers write it */
    cr_assert_eq(vg_near_by_path(root, one, "00000000:13:00.0"), VG_NEAR_SWITCH);
    cr_assert_eq(vg_near_by_path(root, one, "00000000:16:00.0"), VG_NEAR_SWITCHES);
    cr_assert_eq(vg_near_by_path(root, one, "00000000:20:00.0"), VG_NEAR_HOST);
    cr_assert_eq(vg_near_by_path(root, one, "00000000:41:00.0"), VG_NEAR_NODE);
    cr_assert_eq(vg_near_by_path(root, one, "00000000:81:00.0"), VG_NEAR_SYSTEM);
    cr_assert_eq(vg_near_by_path(root, "00000000:C1:00.0", one), VG_NEAR_UNKNOWN,
                 "one socket is not known");
    cr_assert_eq(vg_near_by_path(root, "00000000:99:00.0", one), VG_NEAR_UNKNOWN);
    cr_assert_eq(vg_near_by_path(root, one, ""), VG_NEAR_UNKNOWN);
    cr_assert_eq(vg_near_by_path(root, one, "../../../etc/passwd"), VG_NEAR_UNKNOWN);
}

Test(gpu_near, any_link_is_nearer_than_none_and_more_are_nearer) {
    uint8_t last = 0;
    for (uint32_t links = 18; links > 0; links--)
        for (enum vg_near_level l = VG_NEAR_BOARD; l <= VG_NEAR_SYSTEM; l++) {
            uint8_t d = vg_near_distance(vg_near_make(links, l));
            cr_assert_gt(d, last);
            last = d;
        }
    for (enum vg_near_level l = VG_NEAR_BOARD; l <= VG_NEAR_SYSTEM; l++) {
        uint8_t d = vg_near_distance(vg_near_make(0, l));
        cr_assert_gt(d, last);
        last = d;
    }
    cr_assert_eq(vg_near_distance(0), last, "unknown is far");
    for (uint32_t any = 0; any < 300; any++) /* whatever a node says */
        cr_assert_gt(vg_near_distance(any * 14316557u), 0);
}

Test(gpu_near, names_are_those_that_people_know) {
    char name[8];
    cr_assert_str_eq(vg_near_name(vg_near_make(40, VG_NEAR_NODE), name), "NV18");
    cr_assert_str_eq(vg_near_name(vg_near_make(0, VG_NEAR_SWITCH), name), "PIX");
    cr_assert_str_eq(vg_near_name(0, name), "?");
    cr_assert_str_eq(vg_near_name(7, name), "?");
    cr_assert_str_eq(vg_near_name(UINT32_MAX, name), "NV18");
}
