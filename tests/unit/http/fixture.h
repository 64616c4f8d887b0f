#pragma once
/* A server in this process, and clients that speak raw bytes to it. The loop turns while a client
   waits. */
#include "base/buf.h"
#include "http/web.h"

extern uv_loop_t loop;
extern struct vg_web *web;

void begin(const struct vg_web_limits *limits, void (*on_request)(struct vg_web_req *, void *),
           void *user);
void begin_ops(const struct vg_web_limits *limits, const struct vg_web_ops *ops, void *user);
void end(void); /* and nothing is left behind */
void turn(void);
int dial(void);
void say(int fd, const void *bytes, size_t n); /* all of it, the loop turning */
void say_text(int fd, const char *text);
/* Until `n` bytes are there, or the end; NUL-ended. */
size_t hear(int fd, struct vg_buf *to, size_t n);
/* Until the end of what the server says; closes. */
void hear_all(int fd, struct vg_buf *to);
/* One answer with Content-Length, from head to its last byte. Returns its status. */
int hear_answer(int fd, struct vg_buf *to);
