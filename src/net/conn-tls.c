/* TLS as the transport of a connection. OpenSSL reads and writes through a BIO of our own that
   moves ciphertext in large blocks: one system call for up to 256 KiB instead of one for each
   record of 16 KiB. Blocks are borrowed from the thread while bytes are in them.

   Always: tls_write() hands a record to OpenSSL only when the block has room for it whole, so a
   write never stops half way inside OpenSSL. Loop thread only. */
#include "base/fault.h"
#include "base/mem.h"
#include "net/conn-internal.h"

#include <openssl/err.h>
#include <openssl/x509.h>
#include <string.h>
#include <sys/socket.h>
#include <threads.h>

#define RECORD_ROOM (CONN_RECORD + 512)
#define BLOCK_SOFT \
    CONN_IO /* records start while less is waiting; alerts and tickets use the rest */

/* ------------------------------------------------------------------ the BIO */

static int bio_write(BIO *bio, const char *data, int n) {
    struct vg_conn *c = BIO_get_data(bio);
    struct io_block *b = &c->cipher_out;
    BIO_clear_retry_flags(bio);
    if (c->write_broken || block_get(b) < 0)
        return -1;
    if (b->tail + (size_t)n > CONN_BLOCK)
        return -1;
    memcpy(b->base + b->tail, data, (size_t)n);
    b->tail += (size_t)n;
    return n;
}

static ssize_t receive(struct vg_conn *c, void *p, size_t n) {
    ssize_t r = vg_fault("net.recv");
    if (r < 0)
        return r;
    do
        r = recv(c->fd, p, n, MSG_DONTWAIT);
    while (r < 0 && errno == EINTR);
    return r < 0 ? -errno : r;
}

static int bio_read(BIO *bio, char *data, int n) {
    struct vg_conn *c = BIO_get_data(bio);
    struct io_block *b = &c->cipher_in;
    BIO_clear_retry_flags(bio);
    if (b->head == b->tail) {
        if (block_get(b) < 0)
            return -1;
        b->head = b->tail = 0;
        ssize_t r = receive(c, b->base, CONN_IO);
        if (r == -EAGAIN)
            BIO_set_retry_read(bio);
        if (r <= 0) {
            c->tcp_eof = r == 0;
            block_put(b);
            errno = r < 0 ? (int)-r : 0;
            return r == 0 ? 0 : -1;
        }
        b->tail = (size_t)r;
    }
    size_t k = VG_MIN((size_t)n, b->tail - b->head);
    memcpy(data, b->base + b->head, k);
    b->head += k;
    if (b->head == b->tail)
        block_put(b);
    return (int)k;
}

static long bio_ctrl(BIO *bio, int cmd, long num, void *ptr) {
    struct vg_conn *c = BIO_get_data(bio);
    (void)num;
    (void)ptr;
    if (cmd == BIO_CTRL_EOF)
        return c->tcp_eof;
    return cmd == BIO_CTRL_FLUSH;
}

static BIO_METHOD *method; /* for the life of the process */

static void make_method(void) {
    BIO_METHOD *m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "virga");
    if (!m)
        return;
    BIO_meth_set_write(m, bio_write);
    BIO_meth_set_read(m, bio_read);
    BIO_meth_set_ctrl(m, bio_ctrl);
    method = m;
}

/* Loops of several threads may have connections. */
static BIO_METHOD *bio_method(void) {
    static once_flag once = ONCE_FLAG_INIT;
    call_once(&once, make_method);
    return method;
}

/* ------------------------------------------------------------------ life */

int tls_start(struct vg_conn *c, struct vg_err *err) {
    c->local = false;
    c->unix_socket = false; /* no descriptors through TLS */
    c->ssl = tls_session_new(c->tls, c->dialled);
    BIO_METHOD *m = c->ssl ? bio_method() : NULL;
    BIO *bio = m ? BIO_new(m) : NULL;
    if (!bio)
        return vg_err_sys(err, -ENOMEM, "cannot start TLS");
    BIO_set_data(bio, c);
    BIO_set_init(bio, 1);
    SSL_set_bio(c->ssl, bio, bio);
    if (c->dialled)
        SSL_set_connect_state(c->ssl);
    else
        SSL_set_accept_state(c->ssl);
    return 0;
}

void tls_done(struct vg_conn *c) {
    SSL_free(c->ssl);
    c->ssl = NULL;
    vg_tls_unref(c->tls);
    c->tls = NULL;
}

/* ------------------------------------------------------------------ errors */

/* What the peer's refusal means to the person. */
static const char *alert_text(unsigned long code) {
    switch (ERR_GET_REASON(code)) {
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
        return "it says our certificate has expired; check this machine's clock and join again";
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
        return "it does not accept our certificate, which is not of its cloud";
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
        return "it does not speak TLS; is this the port of a Virga control plane?";
    case SSL_R_TLSV1_ALERT_PROTOCOL_VERSION:
    case SSL_R_UNSUPPORTED_PROTOCOL:
        return "it does not speak TLS 1.3";
    default:
        return ERR_reason_error_string(code);
    }
}

static void set_why(struct vg_conn *c, const char *what, int saved_errno) {
    unsigned long code = ERR_peek_error();
    const char *verifier = tls_why(c->ssl);
    if (c->why.reason != VG_OK)
        return;
    if (verifier)
        vg_err_set(&c->why, VG_UNAUTHENTICATED, "%s: %s", c->address, verifier);
    else if (c->tcp_eof)
        vg_err_set(&c->why, VG_LOST, "%s closed the connection %s", c->address, what);
    else if (code && ERR_GET_LIB(code) == ERR_LIB_SSL)
        vg_err_set(&c->why, VG_UNAUTHENTICATED, "%s refused TLS %s: %s", c->address, what,
                   alert_text(code));
    else if (code)
        vg_err_set(&c->why, VG_INTERNAL, "TLS with %s failed %s: %s", c->address, what,
                   ERR_reason_error_string(code));
    else
        vg_err_set(&c->why, VG_LOST, "the connection to %s broke %s: %s", c->address, what,
                   saved_errno ? strerror(saved_errno) : "out of memory");
}

/* ------------------------------------------------------------------ handshake */

static char *peer_cn(X509 *cert) {
    char cn[256];
    if (!cert ||
        X509_NAME_get_text_by_NID(X509_get_subject_name(cert), NID_commonName, cn, sizeof(cn)) < 0)
        return NULL;
    return vg_strdup(cn);
}

/* Also true for resumed sessions, where OpenSSL does not look at the certificate again. */
static bool in_date(const X509 *cert) {
    return X509_cmp_current_time(X509_get0_notBefore(cert)) < 0 &&
           X509_cmp_current_time(X509_get0_notAfter(cert)) > 0;
}

static void shaken(struct vg_conn *c) {
    X509 *cert = SSL_get0_peer_certificate(c->ssl);
    if (cert && !in_date(cert)) {
        conn_fail(c, VG_UNAUTHENTICATED, "%s: its certificate is out of date", c->address);
        return;
    }
    c->peer_cn = peer_cn(cert);
    if (cert && !c->peer_cn) {
        conn_fail(c, VG_INTERNAL, "out of memory");
        return;
    }
    c->state = CONN_OPEN;
    c->read_more = true; /* the first bytes may have come with the last of the handshake */
    conn_wake(c);
    if (c->close_due)
        vg_conn_close(c);
}

void tls_handshake(struct vg_conn *c) {
    ERR_clear_error();
    errno = 0;
    int r = SSL_do_handshake(c->ssl);
    int e = SSL_get_error(c->ssl, r), saved = errno;
    if (r != 1 && e != SSL_ERROR_WANT_READ && e != SSL_ERROR_WANT_WRITE)
        set_why(c, "during the handshake", saved);
    if (!c->write_broken)
        tls_flush(c);
    if (r == 1)
        shaken(c);
    else if (e != SSL_ERROR_WANT_READ && e != SSL_ERROR_WANT_WRITE)
        conn_fail(c, VG_LOST, "TLS failed"); /* why is set */
    ERR_clear_error();
}

/* ------------------------------------------------------------------ bytes */

ssize_t tls_read(struct vg_conn *c, uint8_t *p, size_t n) {
    size_t got = 0;
    ERR_clear_error();
    errno = 0;
    int r = SSL_read_ex(c->ssl, p, n, &got);
    if (r == 1)
        return (ssize_t)got;
    int saved = errno;
    switch (SSL_get_error(c->ssl, r)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        return -EAGAIN;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    default:
        set_why(c, "without a goodbye", saved);
        ERR_clear_error();
        return -ECONNRESET;
    }
}

bool tls_pending(const struct vg_conn *c) {
    return c->cipher_in.tail > c->cipher_in.head || SSL_has_pending(c->ssl);
}

void tls_flush(struct vg_conn *c) {
    struct io_block *b = &c->cipher_out;
    while (b->head < b->tail) {
        ssize_t r = vg_fault("net.send");
        int code = (int)-r;
        if (r == 0) {
            r = send(c->fd, b->base + b->head, b->tail - b->head, MSG_NOSIGNAL | MSG_DONTWAIT);
            code = errno;
        }
        if (r < 0 && code == EINTR)
            continue;
        if (r < 0 && (code == EAGAIN || code == ENOBUFS)) {
            c->blocked = true;
            return;
        }
        if (r < 0) {
            out_write_error(c, code);
            return;
        }
        b->head += (size_t)r;
    }
    block_put(b);
}

size_t tls_write(struct vg_conn *c, const uint8_t *p, size_t n) {
    size_t done = 0;
    while (done < n) {
        struct io_block *b = &c->cipher_out;
        if (b->tail + RECORD_ROOM > BLOCK_SOFT)
            tls_flush(c); /* all of it, or the socket is full */
        if (c->write_broken || b->tail + RECORD_ROOM > BLOCK_SOFT)
            break;
        size_t k = 0;
        ERR_clear_error();
        if (SSL_write_ex(c->ssl, p + done, VG_MIN(n - done, (size_t)CONN_RECORD), &k) != 1) {
            out_write_error(c, ENOMEM);
            break;
        }
        done += k;
    }
    return done;
}

void tls_goodbye(struct vg_conn *c) {
    ERR_clear_error();
    if (!c->write_broken && !(SSL_get_shutdown(c->ssl) & SSL_SENT_SHUTDOWN))
        (void)SSL_shutdown(c->ssl);
    if (!c->write_broken)
        tls_flush(c);
    ERR_clear_error();
}

bool vg_conn_resumed(const struct vg_conn *c) {
    return c->ssl && SSL_session_reused(c->ssl);
}
