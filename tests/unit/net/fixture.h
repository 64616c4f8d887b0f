#pragma once
/* Two ends of a connection on one loop, and a record of what happened to each. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "net/conn.h"
#include "net/wire.h"

#include <criterion/criterion.h>
#include <string.h>
#include <sys/socket.h>

struct peer {
    struct vg_conn *conn; /* NULL after on_close */
    bool ready;
    unsigned closes, msgs;
    struct vg_err why;
    char last_text[256]; /* of the last Ok or Error message */
    void (*on_msg)(struct peer *p, const Vg__Pb__Envelope *env, int *fds, size_t n_fds);
    void *user;
};

extern const struct vg_conn_ops peer_ops;

struct pair {
    uv_loop_t loop;
    uv_timer_t watchdog;
    bool late;
    struct peer a, b; /* a dialled */
};

void pair_init_loop(struct pair *p);
void pair_init(struct pair *p); /* a and b joined by a socket pair */
/* a and a raw descriptor. */
int pair_init_raw(struct pair *p);
void pair_done(struct pair *p); /* aborts what is open and checks that nothing is left */
/* Turns the loop until the condition holds; fails the test after 30 s. */
void pair_turn(struct pair *p);
#define run_until(p, cond)                                       \
    do {                                                         \
        while (!(cond) && !(p)->late)                            \
            pair_turn(p);                                        \
        cr_assert(!(p)->late, "waited too long for: %s", #cond); \
    } while (0)

/* Sends Ok{text} with req = number. */
int send_text(struct vg_conn *c, uint32_t number, const char *text);
int send_text_fds(struct vg_conn *c, uint32_t number, const char *text, const int *fds, size_t n);
int make_tcp_pair(int fds[2]); /* connected over loopback */
size_t count_fds(void);
/* With the address sanitizer: fails the test when memory is unreachable now (test processes end
   without asking). Otherwise nothing. */
void check_leaks(void);

/* One end of a stream that sends `to_send` bytes of a known sequence and checks what it gets. */
struct flow {
    struct vg_stream *stream; /* NULL after on_reset */
    uint64_t to_send, sent, got, seed_out, seed_in;
    bool hold; /* do not consume */
    uint64_t held;
    bool ended, reset, sent_end, wrong;
    enum vg_reason reason;
};
extern const struct vg_stream_ops flow_ops;
void flow_push(struct flow *f); /* sends while there is room, then ends */
