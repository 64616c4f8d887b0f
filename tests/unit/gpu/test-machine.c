/* What lies near the cards: NUMA nodes and RDMA adapters, over a folder that stands for the
 * machine.
 */
#include "folder.h"
#include "gpu/numa.h"
#include "gpu/rdma.h"

#include <errno.h>

TestSuite(machine, .init = folder_make, .fini = folder_remove);

Test(machine, lists_of_cpus_as_the_kernel_writes_them) {
    struct vg_cpus c;
    cr_assert_eq(vg_cpus_parse("0-3,8,62-65\n", &c), 0);
    cr_assert_eq(c.w[0], 0xc00000000000010full);
    cr_assert_eq(c.w[1], 3u);
    cr_assert_eq(vg_cpus_count(&c), 9u);
    cr_assert_eq(vg_cpus_parse("\n", &c), 0);
    cr_assert_eq(vg_cpus_count(&c), 0u);
    cr_assert_eq(vg_cpus_parse("1023", &c), 0);
    const char *wrong[] = {"1024",  "3-1", "a", "1-", "-1", "1,,2", "1 2", "99999999999999999999",
                           "0-1024"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        cr_assert_eq(vg_cpus_parse(wrong[i], &c), -EINVAL, "%s", wrong[i]);
}

static void two_sockets(struct vg_numa *m) {
    put("/sys/devices/system/node/node0/cpulist", "0-15,32-47\n");
    put("/sys/devices/system/node/node1/cpulist", "16-31,48-63\n");
    put("/sys/devices/system/node/node2/cpulist", "\n"); /* memory without CPUs */
    vg_numa_find(root, NULL, m);
}

Test(machine, a_task_keeps_to_the_socket_of_its_cards) {
    struct vg_numa m;
    struct vg_cpus c;
    two_sockets(&m);
    cr_assert_eq(m.nodes, 3u);
    cr_assert(vg_numa_suits(&m, 2, 32000, &c));
    cr_assert_eq(c.w[0], 0xffff0000ffff0000ull);
    cr_assert_not(vg_numa_suits(&m, 2, 32001, &c), "more CPUs than are there");
    cr_assert_not(vg_numa_suits(&m, 3, 1000, &c), "cards on all: nothing is nearer");
    cr_assert_not(vg_numa_suits(&m, 0, 1000, &c), "nothing is known of its cards");
    cr_assert_not(vg_numa_suits(&m, 1 << 2, 0, &c), "no CPU is there");
    cr_assert_not(vg_numa_suits(&m, 1ULL << 63, 0, &c));
}

Test(machine, cpus_that_the_node_may_not_use_do_not_count) {
    struct vg_numa m;
    struct vg_cpus c, may;
    two_sockets(&m);
    cr_assert_eq(vg_cpus_parse("0-19", &may), 0);
    vg_numa_find(root, &may, &m);
    cr_assert_eq(m.nodes, 3u);
    cr_assert(vg_numa_suits(&m, 2, 4000, &c));
    cr_assert_eq(c.w[0], 0xf0000ull);
    cr_assert_not(vg_numa_suits(&m, 2, 4001, &c));
    cr_assert_eq(vg_cpus_parse("0-15", &may), 0);
    vg_numa_find(root, &may, &m);
    cr_assert_eq(m.nodes, 1u);
    cr_assert_not(vg_numa_suits(&m, 1, 1000, &c), "there is no other to keep away from");
}

Test(machine, one_node_or_none_leaves_tasks_alone) {
    struct vg_numa m;
    struct vg_cpus c;
    vg_numa_find(root, NULL, &m);
    cr_assert_eq(m.nodes, 0u);
    put("/sys/devices/system/node/node0/cpulist", "0-7\n");
    vg_numa_find(root, NULL, &m);
    cr_assert_not(vg_numa_suits(&m, 1, 1000, &c));
}

Test(machine, adapters_with_their_nodes_and_the_ports_that_are_up) {
    struct vg_rdma r;
    vg_rdma_find(root, &r);
    cr_assert_eq(r.n, 0u);
    put("/dev/gdrdrv", "");
    put("/dev/infiniband/rdma_cm", "");
    vg_rdma_find(root, &r);
    cr_assert_eq(r.n, 0u, "without an adapter these are no use");
    put("/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n");
    put("/sys/class/infiniband_verbs/uverbs10/ibdev", "mlx5_10\n");
    put("/sys/class/infiniband_verbs/uverbs2/ibdev", "mlx5_2\n");
    put("/sys/class/infiniband_verbs/uverbs3/ibdev", "../../etc\n");
    put("/sys/class/infiniband_verbs/abi_version", "6\n");
    for (const char *const *p =
             (const char *const[]){"/dev/infiniband/uverbs0", "/dev/infiniband/uverbs2",
                                   "/dev/infiniband/uverbs3", "/dev/infiniband/uverbs10",
                                   "/dev/infiniband/umad0", "/dev/infiniband/issm0", NULL};
         *p; p++)
        put(*p, "");
    put("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    put("/sys/class/infiniband/mlx5_2/ports/1/state", "1: DOWN\n");
    put("/sys/class/infiniband/mlx5_2/ports/2/state", "4: ACTIVE\n");
    put("/sys/class/infiniband/mlx5_10/ports/1/state", "4: ACTIVE\n");
    vg_rdma_find(root, &r);
    cr_assert_str_eq(r.ports, "mlx5_0:1,mlx5_2:2,mlx5_10:1");
    const char *want[] = {"/dev/infiniband/uverbs0", "/dev/infiniband/uverbs2",
                          "/dev/infiniband/uverbs3", "/dev/infiniband/uverbs10",
                          "/dev/infiniband/rdma_cm", "/dev/gdrdrv"};
    cr_assert_eq(r.n, 6u, "and none that administers the network");
    for (size_t i = 0; i < r.n; i++)
        cr_assert_str_eq(r.node[i], want[i]);
}

Test(machine, more_adapters_than_there_is_room_for) {
    struct vg_rdma r;
    char path[96];
    put("/dev/infiniband/rdma_cm", "");
    for (int i = 0; i < 100; i++) {
        snprintf(path, sizeof(path), "/sys/class/infiniband_verbs/uverbs%d/ibdev", i);
        put(path, "a_name_that_is_rather_long_for_an_adapter\n");
        snprintf(path, sizeof(path), "/dev/infiniband/uverbs%d", i);
        put(path, "");
    }
    put("/sys/class/infiniband/a_name_that_is_rather_long_for_an_adapter/ports/1/state",
        "4: ACTIVE\n");
    vg_rdma_find(root, &r);
    cr_assert_eq(r.n, 33u);
    cr_assert_str_eq(r.node[32], "/dev/infiniband/rdma_cm");
    cr_assert_lt(strlen(r.ports), sizeof(r.ports));
    cr_assert_eq(r.ports[strlen(r.ports) - 1], '1', "none is cut");
}
