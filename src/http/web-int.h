#pragma once
/* What the files of the server share; for them alone. */
#include "base/list.h"
#include "base/map.h"
#include "http/parse.h"
#include "http/web.h"

#include <openssl/ssl.h>

#define SCRATCH (64u << 10)         /* bytes that are read at once */
#define OUT_BREAK (32u << 20)       /* unread bytes at which a client is dropped */
#define LINGER_MSEC 1000            /* for a last answer to arrive before the end does */
#define LINGER_BYTES_MAX (1u << 20) /* of what is read and thrown away meanwhile */
#define TICK_MSEC 250

struct vg_web {
    uv_loop_t *loop; /* borrowed */
    struct vg_listener *listener;
    struct vg_tls *tls; /* a reference; NULL: plain */
    struct vg_web_limits limits;
    struct vg_web_ops ops;
    void *user;
    char *common;         /* owned; headers of every answer */
    struct vg_list conns; /* struct vg_web_conn.link */
    struct vg_list ripe;  /* struct vg_web_conn.on_ripe: something is to be written */
    struct vg_map peers;  /* address -> struct peer, owned */
    uv_timer_t tick;
    uv_prepare_t prepare;
    int open_handles;
    bool stopping;
    char date[40]; /* of date_sec */
    uint64_t date_sec;
    struct vg_web_numbers numbers;
    uint8_t scratch[SCRATCH];
};

struct peer {
    char address[64];
    size_t conns;
};

/* What a connection is at. */
enum state {
    SHAKE,  /* TLS begins */
    HEAD,   /* a request's head comes, or none has begun */
    BODY,   /* its body comes */
    BUSY,   /* the program has it */
    SOCKET, /* it is a WebSocket */
    LINGER, /* the last answer was written: what still comes is thrown away */
    ENDED,
};

struct request { /* a request as the server sees it */
    struct vg_web_req pub;
    struct vg_web_head head;
    struct vg_web_chunks chunks;
    struct vg_buf body;
    size_t body_max;
    struct vg_buf set; /* headers of the answer */
    void (*gone)(struct vg_web_req *req, void *user);
    void *gone_user;
    const struct vg_web_stream_ops *stream; /* borrowed; NULL: it is no stream */
    void *stream_user;
    bool begun, chunked_out;
    char mem[]; /* the head's text */
};

struct vg_web_conn {
    struct vg_web *web; /* borrowed; NULL when ENDED */
    struct vg_list link, on_ripe;
    uv_poll_t poll;
    int fd; /* owned */
    int events;
    SSL *ssl; /* owned */
    enum state state;
    struct peer *peer; /* borrowed from web->peers */
    struct vg_buf in, out;
    size_t tls_again;                   /* bytes of a write that OpenSSL wants to see again */
    struct request *req;                /* owned while it comes, then lent to the program */
    struct vg_ws *ws;                   /* owned */
    uint64_t deadline_msec, stall_msec; /* of the loop's clock; 0: none */
    size_t lingered;
    bool turn;      /* its bytes are being looked at: nobody else needs to */
    bool broken;    /* it cannot be written any more */
    bool eof;       /* its client sends no more */
    bool paused;    /* nothing is read for now */
    bool wants_out; /* OpenSSL must write before it can read */
    bool closing;   /* LINGER follows when all is written */
    bool room_due;  /* somebody waits for room */
};

static inline struct request *request_of(const struct vg_web_req *r) {
    return vg_container_of(r, struct request, pub);
}

/* io.c: bytes. -EAGAIN; 0 at the end; else -errno. */
int io_start(struct vg_web_conn *c, struct vg_err *err);
int io_shake(struct vg_web_conn *c); /* 1: done; 0: not yet; -errno */
ssize_t io_read(struct vg_web_conn *c, void *p, size_t n);
int io_flush(struct vg_web_conn *c); /* writes of c->out what goes; -errno */
bool io_pending(const struct vg_web_conn *c);
void io_goodbye(struct vg_web_conn *c);

/* conn.c */
void conn_accept(struct vg_web *w, int fd);
void conn_drop(struct vg_web_conn *c); /* now; tells whom it concerns */
void conn_ripe(struct vg_web_conn *c); /* something was put into c->out, or its state changed */
void conn_run(struct vg_web_conn *c);  /* from the loop: writes, reads on, ends */
void conn_late(struct vg_web_conn *c, uint64_t now_msec);
void conn_refuse(struct vg_web_conn *c, int status);

/* answer.c */
struct request *request_new(struct vg_web_conn *c, size_t head_len);
void request_free(struct request *q);
int answer_head(struct vg_web_conn *c, struct request *q, int status, const char *type,
                const char *length);
void answered(struct vg_web_conn *c); /* its request has had its answer */

/* ws.c */
void ws_input(struct vg_web_conn *c);
void ws_room(struct vg_web_conn *c);
void ws_gone(struct vg_web_conn *c); /* tells its owner and frees it */
void ws_tick(struct vg_web_conn *c, uint64_t now_msec);
