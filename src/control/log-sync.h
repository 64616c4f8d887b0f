#pragma once
/* Brings an attempt's stored output to the disk before its keeper is let go. */
#include <stdint.h>
#include <uv.h>

/* Syncs up to two descriptors (-1: none) off the loop, then done(user, id) from the loop. The
   descriptors are duplicated. 1: under way, 0: nothing to do (done is not called), -errno. */
int vg_log_sync(uv_loop_t *loop, int head, int tail, void (*done)(void *user, uint64_t id),
                void *user, uint64_t id);
