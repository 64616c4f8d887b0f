#pragma once
/* A stand-in for the NVIDIA kernel driver, as strict as it: clients, objects with parents, memory
   of a card in pages of 64 KiB, channel groups with time slices, each of which takes 2 MiB that
   nobody asks for. It keeps its own count, with which
   the warden's is compared. A call it does not know is a failed test (abort). Thread-safe. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fake_rm;

struct fake_rm *fake_rm_new(uint64_t card_bytes);
void fake_rm_free(struct fake_rm *rm);
/* A call as the kernel would see it; `arg` and what it points to are in this process. 0 or -errno.
 */
int64_t fake_rm_ioctl(struct fake_rm *rm, uint64_t process, uint32_t cmd, void *arg);
/* For the other device (fake-uvm.h): memory that a shared object stands for is held beyond it.
   -EPERM when it is not shared. *ret is 0 when it stands for none of the card. */
int fake_rm_hold(struct fake_rm *rm, uint32_t client, uint32_t object, uint32_t *ret);
void fake_rm_hold_more(struct fake_rm *rm, uint32_t memory);
void fake_rm_let_go(struct fake_rm *rm, uint32_t memory);
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

/* ---- several cards, processes, time ---------------------------------------------------------- */

#define FAKE_RM_CARDS 8u
#define FAKE_RM_CLASS_DEVICE 0x80u         /* its parameters begin with the number of a card */
#define FAKE_RM_GROUP_SCHEDULE 0xa06c0101u /* … with whether the group gets turns */
#define FAKE_RM_MEMORY_INFO 0x20801303u    /* struct fake_rm_info, simpler than the real one's */
#define FAKE_RM_LOST 0x0fu                 /* status: the card is not there any more */

struct fake_rm_info {
    uint64_t total, used;
    uint32_t card, unused;
};

struct fake_rm_client_stat {
    uint32_t client;
    uint64_t process, bytes;
};

struct fake_rm_group {
    uint32_t client, handle, card;
    uint64_t process, slice_usec;
    bool held;
};

struct fake_rm_card {
    uint64_t used, peak;
    bool lost;
};

/* What hangs below a device object is of its card, everything else of card 0. Whether a process may
   make a device object is `may`'s to say; NULL: it may. */
void fake_rm_set_may(struct fake_rm *rm, bool (*may)(void *ud, uint64_t process, uint32_t card),
                     void *ud);
/* The descriptor that the client was made on is closed. */
void fake_rm_close(struct fake_rm *rm, uint32_t client);
size_t fake_rm_clients(struct fake_rm *rm, struct fake_rm_client_stat *ret, size_t max);
size_t fake_rm_groups(struct fake_rm *rm, struct fake_rm_group *ret, size_t max);
struct fake_rm_card fake_rm_card(struct fake_rm *rm, uint32_t card);
void fake_rm_new_peak(struct fake_rm *rm); /* the peaks are what is used now */
/* Every call about memory of that card fails. */
void fake_rm_lose(struct fake_rm *rm, uint32_t card, bool lost);
/* The next `n` allocations of memory fail. */
void fake_rm_fail(struct fake_rm *rm, uint32_t n);

/* How a card divides `usec` among groups that always have work: turns of a slice each, one after
   the other; who is held gets none. Virtual: no time passes. */
void fake_rm_divide(const struct fake_rm_group *group, size_t n, uint64_t usec, uint64_t *ret_usec);
