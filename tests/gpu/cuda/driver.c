/* See the header. */
#include "driver.h"

#include "../fake-rm.h"
#include "gpu/fake-call.h"
#include "gpu/rm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int open_device(const char *name) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const char *folder = getenv("SIM_DEV"); /* of a test without a sandbox */
    snprintf(at.sun_path, sizeof(at.sun_path), "%s/%s", folder ? folder : "/dev", name);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0)
        return fd;
    int r = -errno;
    if (fd >= 0)
        close(fd);
    return r;
}

int64_t sim_call(const struct sim *s, uint32_t number, void *arg, size_t bytes) {
    uint32_t cmd = 3u << 30 | (uint32_t)bytes << 16 | VG_RM_TYPE << 8 | number;
    int r = ioctl(s->fd, (unsigned long)cmd, arg);
    if (r < 0 && errno == ENOTTY)
        return vg_fake_call(s->fd, cmd, arg, false);
    return r < 0 ? -errno : r;
}

int sim_open(struct sim *s) {
    *s = (struct sim){.handles = 0x5c000000};
    s->fd = open_device("nvidiactl");
    if (s->fd < 0)
        return s->fd;
    for (int i = 0; i < SIM_CARDS; i++) {
        char name[16];
        snprintf(name, sizeof(name), "nvidia%d", i);
        int fd = open_device(name);
        if (fd >= 0)
            s->card[s->n++] = (struct sim_card){.number = i, .fd = fd};
    }
    struct vg_rm_alloc a = {.class_id = VG_RM_CLASS_ROOT_CLIENT};
    int64_t r = sim_call(s, VG_RM_ALLOC, &a, sizeof(a));
    s->client = a.object;
    return r < 0 ? (int)r : a.status != VG_RM_OK ? -EIO : 0;
}

int sim_object(struct sim *s, uint32_t parent, uint32_t class_id, void *params, uint32_t bytes,
               uint32_t *ret) {
    struct vg_rm_alloc a = {.client = s->client,
                            .parent = parent,
                            .object = ++s->handles,
                            .class_id = class_id,
                            .params = (uint64_t)(uintptr_t)params,
                            .params_bytes = bytes};
    int64_t r = sim_call(s, VG_RM_ALLOC, &a, sizeof(a));
    if (r < 0 || a.status != VG_RM_OK)
        return r < 0 ? (int)r : (int)a.status;
    *ret = a.object;
    return VG_RM_OK;
}

int sim_device(struct sim *s, int card) {
    uint32_t params[14] = {(uint32_t)s->card[card].number};
    if (s->card[card].device)
        return VG_RM_OK;
    return sim_object(s, s->client, FAKE_RM_CLASS_DEVICE, params, sizeof(params),
                      &s->card[card].device);
}

int sim_memory(struct sim *s, int card, uint64_t bytes, uint32_t *ret) {
    struct vg_rm_memory m = {.owner = s->client, .size = bytes, .align = 2 << 20};
    return sim_object(s, s->card[card].device, VG_RM_CLASS_MEMORY_LOCAL, &m, sizeof(m), ret);
}

int sim_dup(struct sim *s, int card, uint32_t from_client, uint32_t from, uint32_t *ret) {
    struct vg_rm_dup d = {.client = s->client,
                          .parent = s->card[card].device,
                          .object = ++s->handles,
                          .from_client = from_client,
                          .from_object = from};
    int64_t r = sim_call(s, VG_RM_DUP_OBJECT, &d, sizeof(d));
    if (r < 0 || d.status != VG_RM_OK)
        return r < 0 ? (int)r : (int)d.status;
    *ret = d.object;
    return VG_RM_OK;
}

int sim_free(struct sim *s, uint32_t object) {
    struct vg_rm_free f = {.client = s->client, .parent = s->client, .object = object};
    int64_t r = sim_call(s, VG_RM_FREE, &f, sizeof(f));
    return r < 0 ? (int)r : (int)f.status;
}

int sim_control(struct sim *s, uint32_t object, uint32_t command, void *params, uint32_t bytes) {
    struct vg_rm_control c = {.client = s->client,
                              .object = object,
                              .command = command,
                              .params = (uint64_t)(uintptr_t)params,
                              .params_bytes = bytes};
    int64_t r = sim_call(s, VG_RM_CONTROL, &c, sizeof(c));
    return r < 0 ? (int)r : (int)c.status;
}

int sim_info(struct sim *s, int card, uint64_t *ret_total, uint64_t *ret_used) {
    struct fake_rm_info info = {.card = (uint32_t)s->card[card].number};
    int r = sim_control(s, s->client, FAKE_RM_MEMORY_INFO, &info, sizeof(info));
    *ret_total = info.total;
    *ret_used = info.used;
    return r;
}

void sim_uuid(const struct sim_card *c, unsigned char ret[16]) {
    memcpy(ret, "simulated\0\0\0\0\0\0", 16);
    ret[15] = (unsigned char)c->number;
}
