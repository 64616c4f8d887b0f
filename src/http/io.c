/* Bytes of a connection, through TLS or not. OpenSSL reads and writes through a BIO of our own,
   because its socket BIO lets a write to a client that is gone kill the process. */
#include "base/fault.h"
#include "base/mem.h"
#include "http/web-int.h"

#include <openssl/err.h>
#include <sys/socket.h>
#include <threads.h>

#define RECORD (16u << 10)

static ssize_t receive(int fd, void *p, size_t n) {
    ssize_t r = vg_fault("http.recv");
    if (r < 0)
        return r;
    do
        r = recv(fd, p, n, MSG_DONTWAIT);
    while (r < 0 && errno == EINTR);
    return r < 0 ? -errno : r;
}

static ssize_t transmit(int fd, const void *p, size_t n) {
    ssize_t r = vg_fault("http.send");
    if (r < 0)
        return r;
    do
        r = send(fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (r < 0 && errno == EINTR);
    return r < 0 ? (errno == ENOBUFS ? -EAGAIN : -errno) : r;
}

/* ------------------------------------------------------------------ the BIO */

static int bio_write(BIO *bio, const char *data, int n) {
    struct vg_web_conn *c = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    ssize_t r = transmit(c->fd, data, (size_t)n);
    if (r == -EAGAIN)
        BIO_set_retry_write(bio);
    return r < 0 ? -1 : (int)r;
}

static int bio_read(BIO *bio, char *data, int n) {
    struct vg_web_conn *c = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    ssize_t r = receive(c->fd, data, (size_t)n);
    if (r == -EAGAIN)
        BIO_set_retry_read(bio);
    if (r == 0)
        c->eof = true;
    return r < 0 ? -1 : (int)r;
}

static long bio_ctrl(BIO *bio, int cmd, long num, void *ptr) {
    struct vg_web_conn *c = BIO_get_data(bio);
    (void)num;
    (void)ptr;
    return cmd == BIO_CTRL_EOF ? c->eof : cmd == BIO_CTRL_FLUSH;
}

static BIO_METHOD *method; /* for the life of the process */

static void make_method(void) {
    BIO_METHOD *m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "virga web");
    if (!m)
        return;
    BIO_meth_set_write(m, bio_write);
    BIO_meth_set_read(m, bio_read);
    BIO_meth_set_ctrl(m, bio_ctrl);
    method = m;
}

int io_start(struct vg_web_conn *c, struct vg_err *err) {
    static once_flag once = ONCE_FLAG_INIT;
    if (!c->web->tls)
        return 0;
    call_once(&once, make_method);
    c->ssl = SSL_new(vg_tls_ctx(c->web->tls));
    BIO *bio = c->ssl && method ? BIO_new(method) : NULL;
    if (!bio)
        return vg_err_sys(err, -ENOMEM, "cannot start TLS");
    BIO_set_data(bio, c);
    BIO_set_init(bio, 1);
    SSL_set_bio(c->ssl, bio, bio);
    SSL_set_read_ahead(c->ssl, 1); /* a record and its head in one system call */
    SSL_set_accept_state(c->ssl);
    return 0;
}

/* What OpenSSL says of a call that did not succeed. */
static int verdict(struct vg_web_conn *c, int r) {
    int e = SSL_get_error(c->ssl, r);
    ERR_clear_error();
    c->wants_out = e == SSL_ERROR_WANT_WRITE;
    if (e == SSL_ERROR_WANT_READ || e == SSL_ERROR_WANT_WRITE)
        return -EAGAIN;
    return e == SSL_ERROR_ZERO_RETURN ? 0 : -ECONNRESET;
}

int io_shake(struct vg_web_conn *c) {
    if (!c->ssl)
        return 1;
    ERR_clear_error();
    int r = SSL_do_handshake(c->ssl);
    if (r == 1)
        return 1;
    r = verdict(c, r);
    return r == -EAGAIN ? 0 : -ECONNRESET;
}

ssize_t io_read(struct vg_web_conn *c, void *p, size_t n) {
    size_t got = 0;
    if (!c->ssl)
        return receive(c->fd, p, n);
    ERR_clear_error();
    int r = SSL_read_ex(c->ssl, p, n, &got);
    c->wants_out = false;
    return r == 1 ? (ssize_t)got : verdict(c, r);
}

bool io_pending(const struct vg_web_conn *c) {
    return c->ssl && SSL_has_pending(c->ssl);
}

static ssize_t write_some(struct vg_web_conn *c) {
    size_t n = vg_buf_len(&c->out), done = 0;
    if (!c->ssl)
        return transmit(c->fd, vg_buf_data(&c->out), n);
    n = c->tls_again ? c->tls_again : VG_MIN(n, (size_t)RECORD);
    ERR_clear_error();
    int r = SSL_write_ex(c->ssl, vg_buf_data(&c->out), n, &done);
    if (r == 1) {
        c->tls_again = 0;
        return (ssize_t)done;
    }
    r = verdict(c, r);
    c->wants_out = false; /* whoever has bytes to write waits for that anyway */
    c->tls_again = r == -EAGAIN ? n : 0;
    return r < 0 ? r : -ECONNRESET;
}

int io_flush(struct vg_web_conn *c) {
    while (vg_buf_len(&c->out)) {
        ssize_t r = write_some(c);
        if (r == -EAGAIN)
            return 0;
        if (r < 0)
            return (int)r;
        vg_buf_consume(&c->out, (size_t)r);
        c->stall_msec = 0;
    }
    return 0;
}

void io_goodbye(struct vg_web_conn *c) {
    if (c->ssl && SSL_is_init_finished(c->ssl)) {
        ERR_clear_error();
        (void)SSL_shutdown(c->ssl);
        ERR_clear_error();
    }
    (void)shutdown(c->fd, SHUT_WR);
}
