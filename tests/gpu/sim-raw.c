/* A program that talks to the driver of simulated cards without any library of its: linked
   statically, so that nothing can be put before it.

       sim-raw fill MIB [NAME]    allocates until refused, or has that much, a group of channels
   included; says how much sim-raw hold MIB [NAME]    likewise, and stays, until its input ends
       sim-raw slice USEC         gives its own channel group a slice; says which it then has
       sim-raw card N             asks for a device that it has not opened
       sim-raw steal CLIENT OBJECT  takes another process's memory
       sim-raw control COMMAND    any control on its channel group; its status

   One JSON object. */
#include "cuda/driver.h"
#include "gpu/rm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE (UINT64_C(16) << 20)
#define GROUP (UINT64_C(2) << 20) /* what a group of channels takes */

static struct sim sim;

static int fill(uint64_t mib, int stay) {
    uint64_t got = 0, want = mib << 20;
    uint32_t object = 0, group = 0;
    int status = sim_device(&sim, 0);
    if (!status)
        status = sim_object(&sim, sim.card[0].device, VG_RM_CLASS_CHANNEL_GROUP, NULL, 0, &group);
    got += status ? 0 : GROUP;
    for (uint64_t piece = PIECE; !status && got < want; got += status ? 0 : piece) {
        piece = want - got < piece ? want - got : piece;
        status = sim_memory(&sim, 0, piece, &object);
        if (status && piece > GROUP) { /* to the brim */
            piece = GROUP;
            status = sim_memory(&sim, 0, piece, &object);
        }
    }
    printf("{\"got_mib\": %llu, \"status\": %d, \"client\": %u, \"object\": %u}\n",
           (unsigned long long)got >> 20, status, sim.client, object);
    fflush(stdout);
    char c;
    while (stay && read(0, &c, 1) > 0) {
    }
    return 0;
}

static int on_group(uint32_t command, uint64_t value) {
    uint32_t group = 0;
    uint64_t now = 0;
    int status = sim_device(&sim, 0);
    if (!status)
        status = sim_object(&sim, sim.card[0].device, VG_RM_CLASS_CHANNEL_GROUP, NULL, 0, &group);
    if (!status)
        status = sim_control(&sim, group, command, &value, sizeof(value));
    int read = sim_control(&sim, group, VG_RM_GET_TIMESLICE, &now, sizeof(now));
    printf("{\"status\": %d, \"read\": %d, \"slice_usec\": %llu}\n", status, read,
           (unsigned long long)now);
    return 0;
}

static int other_card(int number) {
    uint32_t device, params[14] = {(uint32_t)number};
    int status = sim_object(&sim, sim.client, 0x80, params, sizeof(params), &device);
    printf("{\"opened\": %d, \"status\": %d}\n", sim.n, status);
    return 0;
}

static int steal(uint32_t client, uint32_t object) {
    uint32_t got;
    int status = sim_device(&sim, 0);
    if (!status)
        status = sim_dup(&sim, 0, client, object, &got);
    printf("{\"status\": %d}\n", status);
    return 0;
}

int main(int argc, char **argv) {
    const char *what = argc > 2 ? argv[1] : "";
    unsigned long long n = argc > 2 ? strtoull(argv[2], NULL, 0) : 0;
    int r = sim_open(&sim);
    if (r < 0) {
        fprintf(stderr, "sim-raw: no driver: %s\n", strerror(-r));
        return 1;
    }
    if (!strcmp(what, "fill") || !strcmp(what, "hold"))
        return fill(n, *what == 'h');
    if (!strcmp(what, "slice"))
        return on_group(VG_RM_SET_TIMESLICE, n);
    if (!strcmp(what, "control"))
        return on_group((uint32_t)n, 1);
    if (!strcmp(what, "card"))
        return other_card((int)n);
    if (!strcmp(what, "steal") && argc > 3)
        return steal((uint32_t)n, (uint32_t)strtoul(argv[3], NULL, 0));
    fprintf(stderr, "usage: sim-raw fill|hold|slice|card|steal|control NUMBER ...\n");
    return 2;
}
