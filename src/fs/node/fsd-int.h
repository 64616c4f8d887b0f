#pragma once
/* Shared by fsd.c (loop, start, end) and fsd-serve.c (packets, machines). */
#include "base/list.h"
#include "fs/fsd.h"
#include "fs/node/machine.h"
#include "fs/node/peer.h"

#include <pthread.h>

#define FSD_MACHINES 256u

struct fsd;
struct fsd_machine {
    struct fsd *d;
    uint8_t id[VG_MID];
    struct vg_machine *m;
    uint64_t used_usec; /* when somebody was last there */
};
struct fsd_conn {
    struct vg_list link;
    int fd;
    struct fsd_machine *machine; /* of a keeper */
    struct fsd_machine *project; /* whose folders are written back; NULL: the same machine's */
    uint64_t task;
    unsigned barriers;           /* that its keeper waits for, under the lock */
    bool holds;                  /* the task's hold on its views */
    bool root_ready, proj_ready; /* with a project: which of the two machines is */
};
struct fsd {
    const char *dir, *node;
    char *own; /* owned: dir/slot */
    uint32_t slot;
    uint64_t cache_bytes, idle_usec, wait_usec;
    bool no_passthrough, no_erofs, deep;
    uint8_t daemon[VG_MID];
    struct vg_cache *cache;
    struct vg_peers *peers;
    int listen, signals;
    bool stopping;
    uint64_t idle_since, ticked;
    struct fsd_machine **machines; /* the loop's; owned */
    size_t n_machines, cap_machines;
    uint64_t next_place;
    pthread_mutex_t lock; /* conns, and writing to them */
    struct vg_list conns;
    size_t n_conns;
    char packet[64 << 10];
};

/* Takes descriptors out of fds (and lowers *n_fds) when it keeps them. < 0: drop the connection. */
int vg_fsd_packet(struct fsd *d, struct fsd_conn *c, const struct vg_fsd_head *head, int *fds,
                  size_t *n_fds);
void vg_fsd_machine_free(struct fsd_machine *m);
void vg_fsd_forget_machines(struct fsd *d, uint64_t now);
