#pragma once
/* The process that looks at the cards. A driver may hang in the kernel, for ever, and take whoever
   asked with it; so the agent does not ask itself. `virga gpu-watch` does: its standard input is a
   SOCK_SEQPACKET socket, on which it takes orders and sends what it sees. When the agent's end is
   closed it leaves; when it is silent the agent gives it up and says so.

   One packet is one struct vg_watch_msg, cut after the part that its kind has. */
#include "gpu/card.h"

#include <stddef.h>

enum vg_watch_kind {
    VG_WATCH_FACTS = 1, /* once for each card, first */
    VG_WATCH_SAMPLE,
    VG_WATCH_EVENT,
    VG_WATCH_ROUND, /* all cards were sampled; `seq` is the newest order that this answers */
    VG_WATCH_FAIL,  /* it cannot see anything, and why; it leaves */
};

struct vg_watch_msg {
    uint32_t kind, seq;
    union {
        struct vg_card_facts facts;
        struct vg_card_sample sample;
        struct vg_card_event event;
        uint32_t n_cards;
        char text[256];
    };
};
/* Bytes of this packet; 0: no such kind. */
size_t vg_watch_msg_size(const struct vg_watch_msg *m);
/* Whether a packet of `n` bytes is whole and its numbers are within bounds. */
bool vg_watch_msg_valid(const struct vg_watch_msg *m, size_t n);

/* To it: look now (and say `seq` when done), and from now on so often. */
struct vg_watch_order {
    uint32_t seq, interval_ms;
    uint32_t slow_ms, count_ms; /* between looks at what changes slowly, and at counters */
    uint64_t now;               /* set of cards to look at now, with their counters */
    uint64_t cards;  /* set of those that are looked at so often; the others now and then */
    uint64_t shared; /* set of those of which is told with the counters what each process did */
};

/* gpu-watch [--nvml LIBRARY | --amd | --fake N DIR] */
int vg_watch_main(int argc, char **argv);
