#pragma once
/* How the driver of simulated cards is called, which is a process of a test's (tests/gpu): its
 * device nodes are sockets, and a call is a packet on a connection to one, with a descriptor of its
 * own on which the answer comes. So a connection stands for an open device: whoever holds a
 * duplicate can call, and what was made on it goes when the last is closed.
 *
 *     struct vg_fake_call, the call's structure, the parameters that it points to
 *
 * both ways. Nothing of this is ever used with a card that is there. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VG_FAKE_CALL_MAX 8192u
#define VG_FAKE_CALL_MSEC 10000 /* a driver that takes longer is given up */

struct vg_fake_call {
    uint32_t cmd;          /* of the ioctl; its size is in it */
    uint32_t params_bytes; /* behind the structure */
    int64_t value;         /* the answer's: what the ioctl returns, or -errno */
    uint8_t in_stead;      /* made by a warden for somebody else */
    uint8_t unused[7];
};

/* How many bytes the structure points to, as far as they are passed on; *ret_at is where the
   pointer lies. 0: it points to nothing. */
size_t vg_fake_call_params(uint32_t cmd, const void *arg, size_t *ret_at);
/* Makes a call on a connection and waits for the answer: the ioctl's value, or -errno. */
int64_t vg_fake_call(int fd, uint32_t cmd, void *arg, bool in_stead);
