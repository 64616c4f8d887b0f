#pragma once
/* A connection on a libuv loop: frames over a unix or TLS socket, control messages with
   descriptors, streams with credit. Loop thread only. Nothing here blocks. */
#include "base/err.h"
#include "net/tls.h"
#include "proto/virga.pb-c.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

struct vg_conn;
struct vg_stream;

struct vg_conn_ops {
    /* The transport is up (after the TLS handshake; from the loop, never from inside new). */
    void (*on_ready)(struct vg_conn *c, void *user);
    /* A control message. `env` is freed after the call. Descriptors the callee keeps are set to
       -1; the rest are closed after the call. */
    void (*on_msg)(struct vg_conn *c, void *user, const Vg__Pb__Envelope *env, int *fds,
                   size_t n_fds);
    /* Exactly once; streams have had their on_reset before. `why` is VG_OK after an orderly end of
       the peer. The connection is freed when this returns. */
    void (*on_close)(struct vg_conn *c, void *user, const struct vg_err *why);
};

/* Takes fd (closed on failure too). tls NULL: plain (unix socket). `dialled`: this side connected,
   so its own streams have odd numbers. For TLS clients `server_name` is checked against the pinned
   CA only (names are not in the certificates of a small cloud). */
int vg_conn_new(uv_loop_t *loop, int fd, struct vg_tls *tls, bool dialled,
                const struct vg_conn_ops *ops, void *user, struct vg_conn **ret,
                struct vg_err *err);
/* Queues a message. Descriptors are taken in every case (plain unix sockets only). -EPIPE after
   close. The out queue of messages is bounded (64 MiB): beyond it the connection is aborted. */
int vg_conn_send(struct vg_conn *c, const Vg__Pb__Envelope *env, const int *fds, size_t n_fds);
/* Sends what is queued, then closes; on_close follows from the loop. */
void vg_conn_close(struct vg_conn *c);
/* Drops everything now; on_close follows from the loop. */
void vg_conn_abort(struct vg_conn *c, enum vg_reason reason, const char *text);
/* Stop and resume reading messages (back-pressure against a client that floods). */
void vg_conn_pause(struct vg_conn *c, bool pause);

/* False from the moment that its end has begun, which on_close may follow much later. */
bool vg_conn_can_send(const struct vg_conn *c);
bool vg_conn_is_local(const struct vg_conn *c);
int vg_conn_peer_cred(const struct vg_conn *c, pid_t *pid, uid_t *uid, gid_t *gid); /* unix only */
const char *vg_conn_peer_cn(const struct vg_conn *c);      /* certificate CN or NULL */
const char *vg_conn_peer_address(const struct vg_conn *c); /* "10.0.0.1:443", "unix" */
bool vg_conn_resumed(const struct vg_conn *c);  /* TLS: an earlier session was continued */
size_t vg_conn_queued(const struct vg_conn *c); /* bytes waiting to be written */
uint64_t vg_conn_last_heard_usec(const struct vg_conn *c); /* CLOCK_BOOTTIME of the last bytes */

struct vg_stream_ops {
    /* Bytes came; call vg_stream_consumed() when they are passed on (now or later). */
    void (*on_data)(struct vg_stream *s, void *user, const uint8_t *data, size_t n);
    void (*on_end)(struct vg_stream *s, void *user);
    /* The stream or its connection is gone. The stream is freed after this call. */
    void (*on_reset)(struct vg_stream *s, void *user, enum vg_reason reason);
    /* vg_stream_room() was 0 and is not any more. */
    void (*on_writable)(struct vg_stream *s, void *user);
};

/* id 0: picks the next own number. An id the peer named must be of the peer's parity and new.
   NULL: out of memory, too many streams, or a bad id. */
struct vg_stream *vg_stream_new(struct vg_conn *c, uint32_t id, const struct vg_stream_ops *ops,
                                void *user);
/* A stream may be made with ops NULL: what comes is kept (at most one credit) until it gets ops or
   a pump. Such a stream is never freed behind its owner's back: when it or its connection ends it
   stays, dead, until vg_stream_free(). -EPIPE on a dead one, which stays the caller's. What was
   kept is told from the loop, never from inside this call. */
int vg_stream_set_ops(struct vg_stream *s, const struct vg_stream_ops *ops, void *user);
uint32_t vg_stream_id(const struct vg_stream *s);
struct vg_conn *vg_stream_conn(struct vg_stream *s); /* NULL when dead */
/* Bytes that may be sent now: the peer's credit, and no more than the connection's own queue
   should hold. */
size_t vg_stream_room(const struct vg_stream *s);
/* n <= room. After a failure (-EPIPE, -ENOMEM) the caller gives the stream up. */
int vg_stream_send(struct vg_stream *s, const void *data, size_t n);
void vg_stream_consumed(struct vg_stream *s, size_t n);
/* Lets the peer be so many bytes ahead (VG_WIRE_CREDIT unless widened): for bulk over long ways.
   What is kept for this stream may then be as much. Never narrower than it was. */
void vg_stream_widen(struct vg_stream *s, size_t bytes);
void vg_stream_end(struct vg_stream *s); /* half-close */
/* Ends it in both directions (RESET unless both sides have ended) and frees it, without on_reset.
 */
void vg_stream_free(struct vg_stream *s, enum vg_reason reason);

/* Pumps: join two carriers until both directions have ended or either breaks; then everything is
   closed and done(user) is called once (may be NULL), from the loop. They take what they are
   given, on failure too (then done is not called). Each direction holds at most one credit of
   bytes. vg_pump_fd takes sockets only (-ENOTSOCK). */
struct vg_duct;
int vg_pump_streams(struct vg_stream *a, struct vg_stream *b, void (*done)(void *), void *user);
int vg_pump_fd(uv_loop_t *loop, int fd, struct vg_stream *s, void (*done)(void *), void *user);
int vg_pump_duct(uv_loop_t *loop, struct vg_duct *d, struct vg_stream *s, void (*done)(void *),
                 void *user);
/* Ends the pump that this stream is in, at once: done is called. Not for a stream without one. */
void vg_pump_stop(struct vg_stream *s, enum vg_reason reason);
/* A stream must be created with ops NULL to be pumped; the pump sets its own. Bytes that came in
   between are kept. */

/* Listening sockets. `accepted` gets a fresh non-blocking CLOEXEC descriptor. */
struct vg_listener;
int vg_listen_fd(uv_loop_t *loop, int fd, void (*accepted)(int fd, void *user), void *user,
                 struct vg_listener **ret);
/* host:port; port 0 picks one. *ret_port is the real one. */
int vg_listen_tcp(uv_loop_t *loop, const char *host, uint16_t port,
                  void (*accepted)(int fd, void *user), void *user, struct vg_listener **ret,
                  uint16_t *ret_port, struct vg_err *err);
void vg_listener_free(struct vg_listener *l);
/* Starts a TCP connect to "host:port" (numbers or names; resolved off the loop). The callback gets
   the connected descriptor or -errno with err filled. Returns a handle for cancelling. */
struct vg_dial;
struct vg_dial *vg_dial_tcp(uv_loop_t *loop, const char *address, uint64_t timeout_usec,
                            void (*done)(int fd, const struct vg_err *err, void *user), void *user);
void vg_dial_cancel(struct vg_dial *d);
