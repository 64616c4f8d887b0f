#pragma once
/* A keeper on the bench: its real code in this process, a sandbox that only hands out the task's
   ends of its pipes, the agent's end of its connection, and clients that do what they are told.
   Nothing waits: bench_settle() turns the loop until nothing is left to do. */
#include "agent/keeper-int.h"

#include <stdbool.h>

#define BENCH_SIGNALS 64

/* What the fake sandbox was asked to run last: the task's own ends, non-blocking. */
struct bench_command {
    uint64_t tag;
    int fd[3];
    size_t n_binds, n_groups;
    uid_t uid;
};

struct bench {
    struct keeper k;
    int agent;              /* our end */
    bool acks_log;          /* log packets are acknowledged as they come */
    uint64_t log_from;      /* expected offset of the next log packet */
    struct vg_buf log_head; /* records */
    struct vg_buf log_tail;
    uint64_t tail_at; /* offset of log_tail's first byte */
    int exits;        /* EXITED reports */
    int32_t status;
    int left; /* the keeper may leave */
    uint32_t reason;
    char text[300];
};

struct bench_start {
    uint64_t id;
    bool detached, stdin_open, remote, duplex;
    uint64_t hold_usec;
    const char *session;
    const char *machine; /* 16 bytes: its files come from there */
    uint32_t uid;
};

void bench_open(struct bench *b, uint64_t log_head, uint64_t log_tail);
void bench_close(struct bench *b);
/* chan: the keeper's end, taken; -1: none. */
struct ktask *bench_start(struct bench *b, const struct bench_start *s, int chan);
void bench_settle(struct bench *b);
void bench_agent(struct bench *b); /* reads the keeper's packets */

/* The fake sandbox. */
struct bench_root { /* what it was begun with */
    size_t n_lower, n_data, n_views;
    uid_t uid, outside_uid;
};
extern struct bench_root bench_root;
extern int bench_begun;          /* how often */
extern const char *bench_fs_dir; /* set before bench_open(): tasks bring their files */
extern struct bench_command bench_command;
extern int bench_signals[BENCH_SIGNALS];
extern int bench_n_signals;
extern bool bench_killed;
void bench_event(struct bench *b, enum vg_sandbox_event_kind kind, uint64_t tag, int code);
void bench_close_command(void);

/* A client: what came is taken apart, whole frames only. */
struct client {
    int fd; /* -1: none */
    struct vg_buf in;
    struct vg_buf text;  /* data of stdout records, in order */
    struct vg_buf data;  /* of a two-way input, in order */
    bool duplex;         /* it asks for that, and no output is expected */
    uint64_t out_offset; /* next record expected */
    uint64_t in_offset;  /* from WELCOME */
    uint64_t in_acked;   /* from INPUT_ACK */
    uint64_t came;       /* bytes received on all channels */
    bool acks;           /* acknowledges output */
    bool welcomed, exited, taken, ended /* end of file */;
    int gaps;
    int32_t status;
};

void client_open(struct client *c, struct bench *b, struct ktask *t, bool observe, bool local);
/* Reads to the end; where its channel broke before that, by another one. */
void client_finish(struct client *c, struct bench *b, uint64_t task, bool broken);
/* The other end, with HELLO sent; for bench_start(). */
int client_pair(struct client *c, bool observe);
void client_close(struct client *c);
void client_done(struct client *c);
/* Receives at most `most` bytes and handles them. Returns how many came. */
size_t client_read(struct client *c, size_t most);
void client_send(struct client *c, int kind, const void *a, size_t an, const void *b, size_t bn);
void client_input(struct client *c, uint64_t offset, const void *p, size_t n);
