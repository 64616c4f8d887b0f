#pragma once
/* A stand-in for the NVIDIA kernel driver, as strict as it: clients, objects with parents, memory
   of a card in pages of 64 KiB, channel groups with time slices. It keeps its own count, with which
   the warden's is compared. A call it does not know is a failed test (abort). Thread-safe. */
#include <stdbool.h>
#include <stdint.h>

struct fake_rm;

struct fake_rm *fake_rm_new(uint64_t card_bytes);
void fake_rm_free(struct fake_rm *rm);
/* A call as the kernel would see it; `arg` and what it points to are in this process. 0 or -errno.
 */
int64_t fake_rm_ioctl(struct fake_rm *rm, uint64_t process, uint32_t cmd, void *arg);
/* A new client of a process, without a call; its handle. */
uint32_t fake_rm_client(struct fake_rm *rm, uint64_t process);
uint64_t fake_rm_used(struct fake_rm *rm);
uint64_t fake_rm_peak(struct fake_rm *rm);
/* The slice of a group; 0: there is none. */
uint64_t fake_rm_slice(struct fake_rm *rm, uint32_t client, uint32_t group);
void fake_rm_set_slice(struct fake_rm *rm, uint32_t client, uint32_t group, uint64_t usec);
/* The next `n` allocations take this much more than was asked for. */
void fake_rm_round_up(struct fake_rm *rm, uint32_t n, uint64_t more);
/* How many calls it has seen of a number. */
uint32_t fake_rm_calls(struct fake_rm *rm, uint8_t number);
