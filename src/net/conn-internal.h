#pragma once
/* What the files of a connection share: its state, its out queue, its TLS transport. Nothing here
   is for other folders. Loop thread only. */
#include "base/buf.h"
#include "base/list.h"
#include "base/map.h"
#include "net/conn.h"
#include "net/wire.h"

#include <openssl/ssl.h>

#define CONN_FDS 4                  /* descriptors a message may carry */
#define CONN_GROUPS 4               /* sets of descriptors waiting for their message */
#define CONN_IO (256u << 10)        /* one read */
#define CONN_READS 4                /* reads before other handles of the loop get their turn */
#define CONN_QUEUE_SOFT (1u << 20)  /* streams stop filling the out queue here */
#define CONN_QUEUE_HARD (64u << 20) /* beyond this the peer does not read: abort */
#define CONN_SEGMENT (16u << 10)    /* small frames are gathered in segments of this size */
#define CONN_DIRECT (8u << 10)      /* stream bytes from here on are written without a copy */
#define CONN_HANDSHAKE_MSEC 15000
#define CONN_LINGER_MSEC 3000
#define CONN_RECORD 16384 /* plain bytes of a TLS record */

/*  HANDSHAKE --hands shaken--> OPEN --vg_conn_close--> FLUSH --all sent--> LINGER --peer's end-->
    DEAD. Every state goes to DEAD on a failure, abort or timeout; the wake handler of a DEAD
    connection calls on_close, once, and goes to GONE, where only the handles are awaited. */
enum conn_state { CONN_HANDSHAKE, CONN_OPEN, CONN_FLUSH, CONN_LINGER, CONN_DEAD, CONN_GONE };

struct out_segment {
    struct out_segment *next;
    size_t off, len, cap;
    int fds[CONN_FDS]; /* owned; ride with the first byte */
    size_t n_fds;
    uint8_t data[];
};

/* Descriptors that came with the bytes [begin, end) of the connection. */
struct fd_group {
    uint64_t begin, end;
    int fds[CONN_FDS];
    size_t n;
};

/* A block of CONN_BLOCK bytes with data in [head, tail); base NULL when there is none. */
#define CONN_BLOCK (CONN_IO + 64 * 1024)
struct io_block {
    uint8_t *base; /* owned */
    size_t head, tail;
};

struct vg_conn {
    uv_loop_t *loop;
    uv_poll_t poll;
    uv_idle_t wake; /* runs once, in the next turn of the loop */
    uv_timer_t timer;
    unsigned handles; /* not yet closed */
    int events;       /* that poll watches now */
    int fd;           /* owned */
    enum conn_state state;
    bool local, unix_socket, dialled, paused, ready_told, blocked, write_broken, notify_due;
    bool close_due; /* vg_conn_close() came during the handshake */
    bool read_more; /* bytes wait inside the TLS layer, the socket will not tell */
    const struct vg_conn_ops *ops;
    void *user;
    struct vg_err why;
    char address[72];
    uint64_t last_heard_usec;

    struct vg_buf in;  /* the beginning of an incomplete frame */
    size_t need;       /* bytes that frame has in all, as far as known */
    uint64_t parsed;   /* bytes of the connection handled so far */
    uint64_t received; /* bytes of the connection that arrived */
    uint32_t data_stream,
        data_left; /* inside a DATA frame, whose bytes are passed on as they come */
    struct fd_group groups[CONN_GROUPS];
    size_t n_groups;

    struct out_segment *out_head, *out_tail; /* owned */
    size_t queued;

    struct vg_tls *tls; /* reference */
    SSL *ssl;           /* owned */
    struct io_block cipher_in, cipher_out;
    bool tcp_eof;
    char *peer_cn; /* owned */

    struct vg_map streams;  /* number -> struct vg_stream */
    struct vg_list all;     /* of streams */
    struct vg_list starved; /* streams whose room was 0 */
    struct vg_list late;    /* streams with kept bytes and fresh ops */
    uint32_t next_id;
};

struct vg_stream {
    struct vg_conn *conn; /* NULL: ended, and waits for its owner because it has no ops */
    uint32_t id;
    struct vg_list in_all, in_starved;
    const struct vg_stream_ops *ops; /* NULL: bytes are kept for a pump */
    void *user;
    size_t credit;  /* may be sent */
    size_t window;  /* may be received */
    size_t width;   /* credit the peer was given in all: VG_WIRE_CREDIT, or wider */
    size_t unacked; /* consumed, credit not yet returned */
    bool end_sent, end_seen, end_told, dying, late;
    struct vg_list in_late; /* has ops, but what was kept is not yet told */
    struct vg_buf kept;     /* came before there were ops */
};

/* conn.c */
void conn_wake(struct vg_conn *c);
void conn_die(struct vg_conn *c); /* ends it now; c->why says why, or that nothing was wrong */
void conn_fail(struct vg_conn *c, enum vg_reason reason, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The peer broke the protocol: it is told once, then the connection ends. */
void conn_protocol_error(struct vg_conn *c, const struct vg_err *err);
void conn_watch(struct vg_conn *c);
uint8_t *conn_scratch(void); /* CONN_IO bytes shared by the thread's connections; NULL: no memory */
int block_get(struct io_block *b);
void block_put(struct io_block *b);

/* conn-in.c */
void in_read(struct vg_conn *c);
/* After our own end: what the peer still sends is dropped, so that the kernel does not answer it
   with a reset that would overtake our last words. */
void in_read_linger(struct vg_conn *c);
void in_feed_kept(struct vg_conn *c); /* handles what had come before it was paused */
void in_drop(struct vg_conn *c);      /* what was not handled, descriptors too */

/* conn-out.c */
int out_frame(struct vg_conn *c, enum vg_frame_kind kind, uint32_t stream, const void *payload,
              size_t n);
/* A frame whose payload the caller fills; NULL: no memory. Descriptors are taken on success. */
uint8_t *out_frame_space(struct vg_conn *c, enum vg_frame_kind kind, uint32_t stream, size_t n,
                         const int *fds, size_t n_fds);
/* A DATA frame, written at once where that saves a copy. */
int out_data(struct vg_conn *c, uint32_t stream, const uint8_t *data, size_t n);
void out_flush(struct vg_conn *c);
void out_drop(struct vg_conn *c);
size_t out_total(const struct vg_conn *c);
void out_write_error(struct vg_conn *c, int code);

/* conn-tls.c */
int tls_start(struct vg_conn *c, struct vg_err *err);
void tls_done(struct vg_conn *c);
void tls_handshake(struct vg_conn *c);
/* Bytes, 0 at the peer's orderly end, -EAGAIN, or another -errno with c->why set. */
ssize_t tls_read(struct vg_conn *c, uint8_t *p, size_t n);
bool tls_pending(const struct vg_conn *c);
/* Writes plain bytes: how many were taken. */
size_t tls_write(struct vg_conn *c, const uint8_t *p, size_t n);
void tls_flush(struct vg_conn *c); /* ciphertext to the socket; sets blocked */
void tls_goodbye(struct vg_conn *c);

/* stream.c */
void stream_data(struct vg_conn *c, uint32_t id, const uint8_t *data, size_t n);
void stream_frame(struct vg_conn *c, const struct vg_frame *f);
void stream_reset_all(struct vg_conn *c, enum vg_reason reason);
void stream_notify(struct vg_conn *c);
void stream_tell_late(struct vg_conn *c);

/* tls.c */
SSL *tls_session_new(struct vg_tls *t, bool client); /* NULL: no memory */
const char *tls_why(const SSL *ssl);                 /* sentence of the verifier, or NULL */
