#pragma once
/* What lives behind REST: streams of events and output, terminals, ports of tasks. Each function
   takes `p`, a peer without a connection that knows who it is (its sink is replaced here), and the
   request, and answers whatever comes of it. Loop thread. */
#include "control/peer.h"
#include "http/web.h"

/* text/event-stream of the wire's `events`; query: topics=tasks,nodes,…, and what a list of tasks
   takes. */
void vg_live_events(struct vg_peer *p, struct vg_web_req *req, const char *none);
/* A task's output as it comes; query: tail_bytes, attempt, all_attempts. Events: `log` {stream,
   text, when_usec, index of a group's member}, `gap` {bytes}, and `end` {state, status} when the
   task has ended and all was sent. */
void vg_live_logs(struct vg_peer *p, struct vg_web_req *req, const char *task);
/* WebSockets (rest-live-ws.c). attach; query: rows, cols, observe. Binary messages are the
   terminal's bytes; texts are {"resize":{"rows":n,"cols":n}} and {"signal":n}; the server's texts
   are {"event":"queued"|"placed"|"started"|"requeued"|"notice"|"exit", "status"?, "text"?}. */
void vg_live_attach(struct vg_peer *p, struct vg_web_req *req, const char *task);
/* A TCP port inside the task; query: port. Binary messages both ways. */
void vg_live_forward(struct vg_peer *p, struct vg_web_req *req, const char *task);

/* "1", "true", "yes" or an empty value. */
bool vg_live_flag(const struct vg_web_req *req, const char *name);
/* 0 when it is not there; INVALID with a sentence when it is no number up to `most`. */
int vg_live_number(const struct vg_web_req *req, const char *name, uint64_t most, uint64_t *ret,
                   struct vg_err *err);
