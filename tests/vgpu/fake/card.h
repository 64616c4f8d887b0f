#pragma once
/* A simulated card, shared by all processes that use the fake driver. It lies in the file that
 * FAKE_CARD names. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct card {
    uint64_t capacity;
    _Atomic uint64_t used;
    unsigned char uuid[2][16];
    int devices;
    _Atomic unsigned managed_calls; /* that reached the driver */
    char fault_name[64];            /* the call of this name fails with this code, once */
    _Atomic int fault_code;
};

/* Opened by the driver from the environment, made by a test. */
struct card *card_open(const char *path);
struct card *card_new(const char *path, uint64_t capacity);

/* False: the card is full. */
bool card_take(struct card *card, uint64_t bytes);
void card_give(struct card *card, uint64_t bytes);
