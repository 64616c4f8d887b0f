/* GPU discovery over a folder that stands for the machine. */
#include "folder.h"
#include "gpu/gpus.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>

static void two_cards(void) {
    put("/proc/driver/nvidia/gpus/0000:4b:00.0/information",
        "Model: \t\t NVIDIA H200\nIRQ:   \t\t 10\nGPU UUID: \t GPU-bbbb\nDevice Minor: \t 0\n");
    put("/proc/driver/nvidia/gpus/0000:1a:00.0/information",
        "Model: \t\t NVIDIA A100\nGPU UUID: \t GPU-aaaa\nDevice Minor: \t 1\n");
    put("/dev/nvidia0", "");
    put("/dev/nvidia1", "");
    put("/dev/nvidiactl", "");
    put("/dev/nvidia-uvm", "");
}

TestSuite(gpu, .init = folder_make, .fini = folder_remove);

Test(gpu, a_machine_without_a_driver_has_none) {
    struct vg_gpus g;
    vg_gpus_find(root, -1, NULL, &g);
    cr_assert_eq(g.n, 0);
}

Test(gpu, cards_are_counted_by_bus_and_named_by_minor) {
    struct vg_gpus g;
    two_cards();
    vg_gpus_find(root, -1, NULL, &g);
    cr_assert_eq(g.n, 2);
    cr_assert_str_eq(g.gpu[0].model, "NVIDIA A100");
    cr_assert_eq(g.gpu[0].minor, 1);
    cr_assert_str_eq(g.gpu[0].uuid, "GPU-aaaa");
    cr_assert_eq(g.gpu[1].minor, 0);
}

Test(gpu, a_card_without_a_device_node_is_not_offered) {
    struct vg_gpus g;
    two_cards();
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/dev/nvidia1", root);
    unlink(path);
    vg_gpus_find(root, -1, NULL, &g);
    cr_assert_eq(g.n, 1);
    cr_assert_eq(g.gpu[0].index, 0);
    cr_assert_str_eq(g.gpu[0].model, "NVIDIA H200");
}

Test(gpu, device_nodes_alone_are_enough) {
    struct vg_gpus g;
    put("/dev/nvidia0", "");
    put("/dev/nvidia3", "");
    vg_gpus_find(root, -1, "H200", &g);
    cr_assert_eq(g.n, 2);
    cr_assert_eq(g.gpu[1].minor, 3);
    cr_assert_str_eq(g.gpu[1].model, "H200");
}

Test(gpu, a_given_count_wins_over_what_is_found) {
    struct vg_gpus g;
    two_cards();
    vg_gpus_find(root, 1, NULL, &g);
    cr_assert_eq(g.n, 1);
    vg_gpus_find(root, 0, NULL, &g);
    cr_assert_eq(g.n, 0);
    vg_gpus_find(root, 4, NULL, &g);
    cr_assert_eq(g.n, 4);
    cr_assert_eq(g.gpu[3].minor, -1);
    vg_gpus_find(root, 100000, NULL, &g);
    cr_assert_eq(g.n, VG_GPUS_MAX);
}

Test(gpu, a_task_sees_its_own_cards_and_the_common_nodes) {
    struct vg_gpus g;
    char path[8][VG_GPU_PATH];
    uint32_t index[] = {0};
    two_cards();
    vg_gpus_find(root, -1, NULL, &g);
    size_t n = vg_gpu_devices(&g, root, index, 1, path, 8);
    cr_assert_eq(n, 3);
    cr_assert_str_eq(path[0], "/dev/nvidia1");
    cr_assert_str_eq(path[1], "/dev/nvidiactl");
    cr_assert_str_eq(path[2], "/dev/nvidia-uvm");
    index[0] = 99;
    cr_assert_eq(vg_gpu_devices(&g, root, index, 1, path, 8), 0, "no card, no common nodes either");
    cr_assert_eq(vg_gpu_devices(&g, root, index, 0, path, 8), 0);
}

Test(gpu, uuids_are_used_when_all_are_known_and_numbers_else) {
    struct vg_gpus g;
    char value[64];
    uint32_t index[] = {1, 0};
    two_cards();
    vg_gpus_find(root, -1, NULL, &g);
    cr_assert_eq(vg_gpu_visible(&g, index, 2, value, sizeof(value)), 0);
    cr_assert_str_eq(value, "GPU-bbbb,GPU-aaaa");
    vg_gpus_find(root, 3, NULL, &g);
    index[1] = 2;
    cr_assert_eq(vg_gpu_visible(&g, index, 2, value, sizeof(value)), 0);
    cr_assert_str_eq(value, "1,2");
    cr_assert_eq(vg_gpu_visible(&g, index, 2, value, 3), -E2BIG);
}

Test(gpu, a_specification_adds_nodes_to_the_card_it_names) {
    struct vg_gpus g;
    struct vg_cdi c = {0};
    struct vg_err err = VG_ERR_INIT;
    char path[16][VG_GPU_PATH];
    uint32_t one = 0, other = 1;
    static const char spec[] =
        "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\n"
        "containerEdits: {deviceNodes: [{path: /dev/nvidiactl}, {path: "
        "/dev/nvidia-caps/nvidia-cap2}]}\n"
        "devices:\n"
        "- {name: '0', containerEdits: {deviceNodes: [{path: /dev/nvidia1}, {path: "
        "/dev/dri/card1}]}}\n"
        "- {name: all, containerEdits: {deviceNodes: [{path: /dev/nvidia0}, {path: /dev/nvidia1}, "
        "{path: /dev/dri/card2}]}}\n";
    two_cards();
    put("/dev/dri/card1", "");
    put("/dev/dri/card2", "");
    put("/dev/nvidia-caps/nvidia-cap2", "");
    vg_gpus_find(root, -1, NULL, &g);
    cr_assert_eq(vg_cdi_parse(&c, spec, sizeof spec - 1, &err), 0);
    vg_gpus_take_cdi(&g, &c);
    vg_gpus_take_cdi(&g, &c); /* again: nothing twice */
    cr_assert_eq(vg_gpu_devices(&g, root, &one, 1, path, 16), 5);
    cr_assert_str_eq(path[3], "/dev/nvidia-caps/nvidia-cap2");
    cr_assert_str_eq(path[4], "/dev/dri/card1");
    cr_assert_eq(vg_gpu_devices(&g, root, &other, 1, path, 16), 4,
                 "what only 'all' has is nobody's");
    vg_cdi_done(&c);
}

Test(gpu, cards_of_amd_by_their_render_nodes) {
    struct vg_gpus g;
    char path[8][VG_GPU_PATH];
    uint32_t index = 1;
    put("/sys/class/drm/renderD128/device/vendor", "0x1002\n");
    put("/sys/class/drm/renderD129/device/vendor", "0x8086\n"); /* another's */
    put("/sys/class/drm/renderD130/device/vendor", "0x1002\n");
    put("/sys/class/drm/renderD131/device/vendor", "0x1002\n"); /* hidden from us */
    put("/dev/dri/renderD128", "");
    put("/dev/dri/renderD129", "");
    put("/dev/dri/renderD130", "");
    vg_gpus_find(root, -1, NULL, &g);
    cr_assert_eq(g.n, 0, "without /dev/kfd nothing can be computed there");
    put("/dev/kfd", "");
    vg_gpus_find(root, -1, NULL, &g);
    cr_assert_eq(g.n, 2);
    cr_assert_eq(vg_gpu_devices(&g, root, &index, 1, path, 8), 2);
    cr_assert_str_eq(path[0], "/dev/dri/renderD130");
    cr_assert_str_eq(path[1], "/dev/kfd");
}

/* A part of the card with this minor, and the nodes by which it is used. */
static void put_part(int minor, int gi, int ci, int gi_cap, int ci_cap) {
    char path[128], text[64];
    const struct {
        const char *form;
        int cap;
    } files[] = {{"/proc/driver/nvidia/capabilities/gpu%d/mig/gi%d/access", gi_cap},
                 {"/proc/driver/nvidia/capabilities/gpu%d/mig/gi%d/ci%d/access", ci_cap}};
    for (int i = 0; i < 2; i++) {
        if (i)
            snprintf(path, sizeof(path), files[1].form, minor, gi, ci);
        else
            snprintf(path, sizeof(path), files[0].form, minor, gi);
        snprintf(text, sizeof(text), "DeviceFileMinor: %d\nDeviceFileMode: 292\n", files[i].cap);
        put(path, text);
        snprintf(path, sizeof(path), "/dev/nvidia-caps/nvidia-cap%d", files[i].cap);
        put(path, "");
    }
}

Test(gpu, parts_of_cards_are_offered_each_for_itself) {
    struct vg_gpus g;
    char path[16][VG_GPU_PATH], value[64];
    uint32_t first = 0, both[] = {0, 1};
    two_cards();
    put("/proc/driver/nvidia/capabilities/mig/config", "DeviceFileMinor: 1\n");
    put("/dev/nvidia-caps/nvidia-cap1", "");
    put("/proc/driver/nvidia/capabilities/gpu1/mig/other", "");
    put_part(0, 10, 0, 30, 31);
    put_part(0, 9, 0, 20, 21);
    vg_gpus_find(root, -1, NULL, &g);
    cr_assert_eq(g.n, 2u);
    cr_assert_eq(g.n_left_out, 1u, "the card that is whole");
    cr_assert_eq(g.gpu[0].part, VG_PART(9, 0));
    cr_assert_eq(g.gpu[1].part, VG_PART(10, 0));
    cr_assert_eq(g.gpu[1].index, 1u);
    cr_assert_str_eq(g.gpu[0].model, "NVIDIA H200 MIG");
    cr_assert_eq(vg_gpu_devices(&g, root, &first, 1, path, 16), 5u);
    cr_assert_str_eq(path[0], "/dev/nvidia0");
    cr_assert_str_eq(path[3], "/dev/nvidia-caps/nvidia-cap20");
    cr_assert_str_eq(path[4], "/dev/nvidia-caps/nvidia-cap21");
    cr_assert_eq(vg_gpu_devices(&g, root, both, 2, path, 16), 7u, "one card, its node once");
    cr_assert_eq(vg_gpu_visible(&g, both, 2, value, sizeof(value)), -ENODATA,
                 "a part has no number");
    for (int i = 0; i < 2; i++)
        snprintf(g.gpu[i].uuid, sizeof(g.gpu[i].uuid), "MIG-%d", i);
    cr_assert_eq(vg_gpu_visible(&g, both, 2, value, sizeof(value)), 0);
    cr_assert_str_eq(value, "MIG-0,MIG-1");
}

Test(gpu, a_part_that_cannot_be_opened_here_is_not_offered) {
    struct vg_gpus g;
    char cap[PATH_MAX];
    two_cards();
    put_part(0, 1, 0, 20, 21);
    put_part(0, 2, 0, 30, 31);
    snprintf(cap, sizeof(cap), "%s/dev/nvidia-caps/nvidia-cap31", root);
    unlink(cap);
    vg_gpus_find(root, -1, NULL, &g);
    cr_assert_eq(g.n, 1u);
    cr_assert_eq(g.gpu[0].part, VG_PART(1, 0));
    put("/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", "DeviceFileMinor: nonsense\n");
    vg_gpus_find(root, -1, NULL, &g);
    cr_assert_eq(g.n, 2u, "no part: the cards as they are");
    cr_assert_eq(g.gpu[0].part, 0u);
    cr_assert_eq(g.n_left_out, 0u);
}

Test(gpu, more_parts_than_can_be_counted) {
    struct vg_gpus g;
    two_cards();
    for (int i = 0; i < 70; i++) /* instances from 64 on are none that we know */
        put_part(0, i, 0, 100 + 2 * i, 101 + 2 * i);
    for (int i = 0; i < 10; i++)
        put_part(1, i, 0, 300 + 2 * i, 301 + 2 * i);
    vg_gpus_find(root, -1, NULL, &g);
    cr_assert_eq(g.n, VG_GPUS_MAX);
}

Test(gpu, simulated_cards_have_no_nodes) {
    struct vg_gpus g;
    char path[8][VG_GPU_PATH];
    uint32_t index = 0;
    two_cards(); /* what are files cannot be theirs, nor can a machine's */
    vg_gpus_fake(2, root, &g);
    cr_assert_eq(g.n, 2);
    cr_assert_eq(g.gpu[1].vendor, VG_CARD_FAKE);
    cr_assert_str_eq(g.root, "");
    cr_assert_eq(vg_gpu_devices(&g, g.root, &index, 1, path, 8), 0);
}

static void put_socket(const char *name) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof(at.sun_path), "%s/dev/%s", root, name);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0);
    close(fd);
}

Test(gpu, simulated_cards_have_the_nodes_that_a_driver_for_them_made) {
    struct vg_gpus g;
    char path[8][VG_GPU_PATH];
    uint32_t index = 1;
    put("/dev/nvidia-uvm", "");
    put_socket("nvidiactl");
    put_socket("nvidia1");
    vg_gpus_fake(2, root, &g);
    cr_assert_str_eq(g.root, root);
    cr_assert_eq(g.gpu[0].minor, -1);
    cr_assert_eq(g.gpu[1].minor, 1);
    cr_assert_str_eq(g.gpu[1].uuid, "GPU-73696d75-6c61-7465-6400-000000000001");
    cr_assert_eq(vg_gpu_devices(&g, g.root, &index, 1, path, 8), 3);
    cr_assert_str_eq(path[0], "/dev/nvidia1");
    cr_assert_str_eq(path[1], "/dev/nvidiactl");
    cr_assert_str_eq(path[2], "/dev/nvidia-uvm");
}
