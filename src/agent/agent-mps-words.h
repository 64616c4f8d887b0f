#pragma once
/* What is said to NVIDIA's MPS control daemon and what it answers. Pure. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define VG_MPS_SERVERS_MAX 16u
#define VG_MPS_WORDS_MAX 2048u

/* No client gets more than `milli` thousandths of the card's multiprocessors; and which servers
   are there? */
void vg_mps_words_cap(uint32_t milli, char *ret, size_t n);
/* The same for servers that run already, whose own number it is; `milli` 0: how are they? */
void vg_mps_words_servers(uint32_t milli, const pid_t *server, size_t n_servers, char *ret,
                          size_t n);
/* The answer to the first: the number once more (`milli` 0: it was not told), then a server a line.
   How many there are, or -EPROTO for anything else. */
int vg_mps_read_servers(const char *said, uint32_t milli, pid_t ret[static VG_MPS_SERVERS_MAX]);
/* The answer to the second: the number once for each server that is still there; no other number.
   0 or -EPROTO. */
int vg_mps_read_caps(const char *said, uint32_t milli);
/* The answer to the third: is one at its end? */
bool vg_mps_read_fault(const char *said);
/* The variable's value for a task: what the CUDA library divides by. */
void vg_mps_percentage(uint32_t milli, char *ret, size_t n);
