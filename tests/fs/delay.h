#pragma once
/* A byte stream with a delay and a rate, as a long line has: what goes in at one end comes out at
   the other after half a round trip, no faster than the rate. */
#include <stdint.h>

/* Two connected sockets with the line between them. Threads live until both ends are closed. */
int delay_pair(uint64_t rtt_usec, uint64_t bytes_per_sec, int ret_ends[2]);
