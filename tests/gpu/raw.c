/* A program that takes memory of a card without any of the driver's libraries: it speaks to the
   kernel itself, and is linked statically, so that nothing can be put before it. For a real card.

       raw WANT_MIB        one JSON object: how much it got, and the driver's last word

   The memory is there, and only what a program that means to go around its limit needs. */
#include "gpu/rm.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#define STEP (UINT64_C(256) << 20)
#define REGISTER_FD 201

struct device { /* of class 0x80 */
    uint32_t id, share, target_client, target_device, flags, unused;
    uint64_t size, start, limit;
    uint32_t mode, unused2;
};

struct subdevice { /* of class 0x2080 */
    uint32_t id;
};

struct memory {
    struct vg_rm_memory head;
    uint64_t offset, limit, address;
    uint32_t comptag, space, internal, tag;
    int32_t numa, unused;
};
_Static_assert(sizeof(struct memory) == 128 && sizeof(struct device) == 56, "as the driver's");

static int control;

static uint32_t make(uint32_t client, uint32_t parent, uint32_t *object, uint32_t class_id,
                     void *params, uint32_t bytes) {
    struct vg_rm_alloc a = {.client = client,
                            .parent = parent,
                            .object = *object,
                            .class_id = class_id,
                            .params = (uintptr_t)params,
                            .params_bytes = bytes};
    if (ioctl(control, _IOWR(VG_RM_TYPE, VG_RM_ALLOC, struct vg_rm_alloc), &a) < 0)
        return UINT32_MAX;
    *object = a.object;
    return a.status;
}

int main(int argc, char **argv) {
    uint64_t want = argc > 1 ? strtoull(argv[1], NULL, 10) << 20 : 0, got = 0;
    uint32_t client = 0, device = 0xd0, sub = 0xd1, status;
    struct device d = {0};
    struct subdevice s = {0};
    control = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
    int card = open(argc > 2 ? argv[2] : "/dev/nvidia0", O_RDWR | O_CLOEXEC);
    if (control < 0 || card < 0) {
        perror("raw: the card");
        return 2;
    }
    (void)ioctl(card, _IOWR(VG_RM_TYPE, REGISTER_FD, int), &control);
    if ((status = make(0, 0, &client, VG_RM_CLASS_ROOT_CLIENT, NULL, 0)) ||
        (status = make(client, client, &device, 0x80, &d, sizeof(d))) ||
        (status = make(client, device, &sub, 0x2080, &s, sizeof(s)))) {
        printf("{\"mib\": 0, \"begin\": %u}\n", status);
        return 1;
    }
    for (uint32_t i = 0; !status && got < want; i++) {
        struct memory m = {.head = {.owner = client,
                                    .flags = 0x8001 /* no mapping, any bank */,
                                    .attr = 3u << 27 /* need not lie together */,
                                    .size = STEP}};
        uint32_t object = 0x1000 + i;
        status = make(client, device, &object, VG_RM_CLASS_MEMORY_LOCAL, &m, sizeof(m));
        got += status ? 0 : STEP;
    }
    printf("{\"mib\": %llu, \"status\": %u}\n", (unsigned long long)(got >> 20), status);
    return 0;
}
