/* The simulated card. See card.h. */
#include "card.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static struct card *map(const char *path, int flags) {
    int fd = open(path, O_RDWR | O_CLOEXEC | flags, 0600);
    if (fd < 0 || (flags && ftruncate(fd, sizeof(struct card)) < 0)) {
        perror(path);
        abort();
    }
    void *p = mmap(NULL, sizeof(struct card), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED)
        abort();
    return p;
}

struct card *card_open(const char *path) {
    return map(path, 0);
}

struct card *card_new(const char *path, uint64_t capacity) {
    struct card *card = map(path, O_CREAT | O_TRUNC);
    card->capacity = capacity;
    card->devices = 1;
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 16; i++)
            card->uuid[d][i] = (unsigned char)(d * 16 + i + 1);
    return card;
}

bool card_take(struct card *card, uint64_t bytes) {
    uint64_t now = atomic_load(&card->used);
    do {
        if (bytes > card->capacity - now)
            return false;
    } while (!atomic_compare_exchange_weak(&card->used, &now, now + bytes));
    return true;
}

void card_give(struct card *card, uint64_t bytes) {
    atomic_fetch_sub(&card->used, bytes);
}
