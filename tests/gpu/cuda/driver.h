#pragma once
/* How the simulated libraries (libcuda, NVML) and test programs reach the driver of simulated
   cards: as NVIDIA's do, by ioctls on device nodes. Where the kernel goes on with such a call
   (nobody stops it, or the warden lets it pass) it finds a socket and says ENOTTY; then the call is
   made on the socket. Not thread-safe. */
#include <stddef.h>
#include <stdint.h>

#define SIM_CARDS 8
#define SIM_UVM "/dev/nvidia-uvm"

struct sim_card {
    int number; /* of /dev/nvidiaN */
    int fd;
    uint32_t device; /* its object; 0: not made yet */
};

struct sim {
    int fd; /* of /dev/nvidiactl */
    uint32_t client, handles;
    struct sim_card card[SIM_CARDS];
    int n;
};

/* Opens what there is of devices in /dev and makes a client: 0, or -errno. */
int sim_open(struct sim *s);
/* A call on /dev/nvidiactl: what the ioctl returns, or -errno. */
int64_t sim_call(const struct sim *s, uint32_t number, void *arg, size_t bytes);
/* All of the following: the driver's status, or -errno. */
int sim_device(struct sim *s, int card);
int sim_object(struct sim *s, uint32_t parent, uint32_t class_id, void *params, uint32_t bytes,
               uint32_t *ret);
int sim_memory(struct sim *s, int card, uint64_t bytes, uint32_t *ret);
int sim_dup(struct sim *s, int card, uint32_t from_client, uint32_t from, uint32_t *ret);
int sim_free(struct sim *s, uint32_t object);
int sim_control(struct sim *s, uint32_t object, uint32_t command, void *params, uint32_t bytes);
int sim_info(struct sim *s, int card, uint64_t *ret_total, uint64_t *ret_used);
/* As the driver's library would name it; its 16 bytes. */
void sim_uuid(const struct sim_card *c, unsigned char ret[16]);
