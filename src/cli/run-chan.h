#pragma once
/* What the files of vrun's task I/O share: run-io.c (frames in, the loop), run-chan.c (a channel),
   run-out.c (output), run-data.c (what comes back by standard input), run-input.c (input and
   signals). */
#include "cli/run-int.h"
#include "net/tio.h"

struct signalfd_siginfo;

/* run-chan.c. Frames wait in c->out; a channel that is closed takes none. */
void run_put(struct run_chan *c, enum vg_tio_kind kind, const void *p, size_t n);
void run_put_winsize(struct run_chan *c);
void run_put_signal(struct run *r, struct run_chan *c, int signo, bool group);
void run_put_close_output(struct run_chan *c, int fd);
/* What has come and was not handled yet. */
size_t run_chan_have(struct run_chan *c, const uint8_t **p);
void run_chan_consume(struct run_chan *c, size_t n);
/* Writes what can be written. Returns whether the socket is full. */
bool run_chan_flush(struct run *r, struct run_chan *c);

/* run-out.c: the frame at the front, when it is output. 1 done, 0 the reader is slow. */
int run_on_output(struct run *r, struct run_chan *c, unsigned kind, const uint8_t *p, size_t n);
void run_on_ring(struct run_chan *c, const uint8_t *p, size_t n);

/* run-data.c: a DATA frame's payload, 8 bytes at least. 1 done, 0 the reader is slow. */
int run_data(struct run *r, struct run_chan *c, const uint8_t *p, size_t n);

/* run-input.c */
void run_stdin_ready(struct run *r);
int run_open_signals(const struct run *r); /* a signalfd */
void run_on_signal(struct run *r, const struct signalfd_siginfo *si);
/* The task was stopped from its terminal: stop too, so that the shell gets its prompt. */
void run_stop_here(struct run *r, bool raw_again);
