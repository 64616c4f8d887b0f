/* Any bytes as clients of a keeper, its real code on the unit tests' bench. The input is a list of
   steps: an operation, a length, that many bytes. Whatever they say, the keeper stays within its
   bounds and its books agree. */
#include "../unit/keeper/bench.h"

#include "base/cleanup.h"
#include "net/tio.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define CLIENTS 2
#define STEPS_MAX 400

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(struct bench *b, struct ktask *t) {
    bool found = t->owner == NULL;
    if (t->ring.end - t->ring.begin > t->ring.size || t->in_done > t->in_taken)
        abort();
    if (vg_buf_len(&t->in_buf) > 2 * VG_TIO_WINDOW || t->log_acked > t->log_sent)
        abort();
    vg_list_for_each (it, &t->chans) {
        struct kchan *c = vg_list_entry(it, struct kchan, link);
        found |= c == t->owner;
        if (c->sent > t->ring.end || c->acked > c->sent || vg_buf_len(&c->out) > 2u << 20)
            abort();
    }
    if (!found || !vg_list_empty(&b->k.graves))
        abort();
}

static int open_channel(struct bench *b, struct ktask *t, unsigned flags) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) < 0)
        abort();
    kchan_new(&b->k, t, pair[1], flags & 1, flags & 2);
    return pair[0];
}

static void drain(int fd) {
    uint8_t sink[4096];
    while (fd >= 0 && recv(fd, sink, sizeof(sink), 0) > 0)
        ;
}

static void task_says(const uint8_t *p, size_t n, unsigned which) {
    int *fd = &bench_command.fd[1 + (which & 1)];
    if (n == 0)
        vg_close(fd);
    else if (*fd >= 0 && write(*fd, p, n) < 0)
        return; /* nobody reads it any more, or it is full */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct bench b;
    int fd[CLIENTS] = {-1, -1};
    if (size < 1)
        return 0;
    bench_open(&b, 300, 300);
    struct bench_start s = {.id = 7,
                            .detached = data[0] & 1,
                            .stdin_open = true,
                            .remote = true,
                            .hold_usec = data[0] & 2 ? 3600000000u : 0,
                            .session = data[0] & 4 ? "u/s" : NULL};
    struct ktask *t = bench_start(&b, &s, -1);
    for (size_t at = 1, step = 0; at + 2 <= size && step < STEPS_MAX; step++) {
        unsigned op = data[at], who = op >> 4 & 1;
        size_t n = VG_MIN((size_t)data[at + 1], size - at - 2);
        const uint8_t *p = data + at + 2;
        at += 2 + n;
        if (op % 8 <= 3 && fd[who] < 0)
            fd[who] = open_channel(&b, t, op >> 5);
        if (op % 8 <= 3 && n && send(fd[who], p, n, MSG_NOSIGNAL) < 0)
            vg_close(&fd[who]);
        else if (op % 8 == 4)
            vg_close(&fd[who]);
        else if (op % 8 == 5)
            task_says(p, n, op >> 4);
        else if (op % 8 == 6)
            bench_event(&b, n & 1 ? VG_SB_EXITED : VG_SB_STARTED, 7, 0);
        else if (op % 8 == 7)
            drain(fd[who]);
        bench_settle(&b);
        if (!ktask_find(&b.k, 7))
            break;
        check(&b, t);
    }
    for (int i = 0; i < CLIENTS; i++)
        vg_close(&fd[i]);
    bench_close(&b);
    return 0;
}
