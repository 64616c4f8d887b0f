/* Bytes a second through the relay of a task's I/O, three processes as in life: a source with a
   stream, a relay that pumps it to another connection, a sink that consumes. One JSON object.

       net-bench unix|tls [MiB]                                                                  */
#include "base/util.h"
#include "net/conn.h"
#include "net/wire.h"

#include "base/cleanup.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t total, moved;
static uint8_t block[256 << 10];
static struct vg_tls *server, *client;

static void fatal(const char *what, const struct vg_err *err) {
    fprintf(stderr, "net-bench: %s: %s\n", what, err ? err->msg : strerror(errno));
    exit(1);
}

static void on_msg(struct vg_conn *c, void *user, const Vg__Pb__Envelope *env, int *fds,
                   size_t n_fds) {
    (void)c, (void)user, (void)env, (void)fds, (void)n_fds;
}

static void on_close(struct vg_conn *c, void *user, const struct vg_err *why) {
    (void)c, (void)user;
    if (why->reason != VG_OK && why->reason != VG_LOST)
        fatal("connection", why);
}

static const struct vg_conn_ops conn_ops = {.on_msg = on_msg, .on_close = on_close};

static void push(struct vg_stream *s) {
    while (moved < total) {
        size_t n = VG_MIN(vg_stream_room(s), sizeof(block));
        if (n == 0 || vg_stream_send(s, block, n) < 0)
            return;
        moved += n;
    }
    vg_stream_end(s);
}

static void on_writable(struct vg_stream *s, void *user) {
    (void)user;
    push(s);
}

static void on_data(struct vg_stream *s, void *user, const uint8_t *data, size_t n) {
    (void)user, (void)data;
    moved += n;
    vg_stream_consumed(s, n);
}

static void on_end(struct vg_stream *s, void *user) {
    (void)user;
    vg_stream_end(s);
    vg_conn_close(vg_stream_conn(s));
}

static void on_reset(struct vg_stream *s, void *user, enum vg_reason reason) {
    (void)s, (void)user, (void)reason;
}

static const struct vg_stream_ops stream_ops = {
    .on_data = on_data, .on_end = on_end, .on_reset = on_reset, .on_writable = on_writable};

static struct vg_conn *join(uv_loop_t *loop, int fd, bool dialled, bool tls) {
    struct vg_conn *c = NULL;
    struct vg_err err = VG_ERR_INIT;
    if (vg_conn_new(loop, fd, tls ? (dialled ? client : server) : NULL, dialled, &conn_ops, NULL,
                    &c, &err) < 0)
        fatal("join", &err);
    return c;
}

static void run_source(int fd, bool tls) {
    uv_loop_t *loop = uv_default_loop();
    struct vg_stream *s = vg_stream_new(join(loop, fd, true, tls), 0, &stream_ops, NULL);
    push(s);
    uv_run(loop, UV_RUN_DEFAULT);
}

static void run_relay(int in, int out, bool tls) {
    uv_loop_t *loop = uv_default_loop();
    struct vg_stream *a = vg_stream_new(join(loop, in, false, tls), 1, NULL, NULL);
    struct vg_stream *b = vg_stream_new(join(loop, out, false, tls), 0, NULL, NULL);
    if (vg_pump_streams(a, b, NULL, NULL) < 0)
        fatal("pump", NULL);
    uv_run(loop, UV_RUN_DEFAULT);
}

static void run_sink(int fd, bool tls) {
    uv_loop_t *loop = uv_default_loop();
    vg_stream_new(join(loop, fd, true, tls), 2, &stream_ops, NULL);
    uv_run(loop, UV_RUN_DEFAULT);
    if (moved != total)
        fatal("bytes are missing", NULL);
}

static void make_pair(int fds[2], bool tcp) {
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(in);
    if (!tcp) {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) < 0)
            fatal("socketpair", NULL);
        return;
    }
    int l = socket(AF_INET, SOCK_STREAM, 0);
    fds[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(l, (struct sockaddr *)&in, len) < 0 || listen(l, 1) < 0 ||
        getsockname(l, (struct sockaddr *)&in, &len) < 0 ||
        connect(fds[0], (struct sockaddr *)&in, len) < 0 || (fds[1] = accept(l, NULL, NULL)) < 0)
        fatal("tcp", NULL);
    close(l);
}

static void make_tls(void) {
    char *ca = NULL, *ca_key = NULL, *key = NULL, *cert = NULL;
    uint8_t *csr = NULL, fingerprint[VG_FINGERPRINT];
    size_t n = 0;
    struct vg_err err = VG_ERR_INIT;
    if (vg_ca_create("bench", &ca, &ca_key, &err) < 0 || vg_key_create(&key, &err) < 0 ||
        vg_csr_create(key, "s", &csr, &n, &err) < 0 ||
        vg_ca_sign(ca, ca_key, csr, n, "s", 3600 * VG_USEC, &cert, &err) < 0 ||
        vg_ca_fingerprint(ca, fingerprint, &err) < 0 ||
        vg_tls_server_new(cert, key, ca, &server, &err) < 0 ||
        vg_tls_client_new(fingerprint, NULL, NULL, NULL, &client, &err) < 0)
        fatal("tls", &err);
    free(ca), free(ca_key), free(key), free(cert), free(csr);
}

int main(int argc, char **argv) {
    uint64_t mib = 2048;
    bool tls = argc > 1 && strcmp(argv[1], "tls") == 0;
    if (argc < 2 || (argc > 2 && vg_parse_u64(argv[2], &mib) < 0)) {
        fprintf(stderr, "usage: net-bench unix|tls [MiB]\n");
        return 2;
    }
    total = mib << 20;
    if (tls)
        make_tls();
    int left[2], right[2];
    make_pair(left, tls);
    make_pair(right, tls);
    uint64_t begin = vg_now_usec();
    for (int i = 0; i < 3; i++) {
        if (fork() != 0)
            continue;
        for (int k = 0; k < 2; k++) { /* each keeps its own ends only */
            if (!(i == 0 && k == 0) && !(i == 1 && k == 1))
                close(left[k]);
            if (!(i == 2 && k == 0) && !(i == 1 && k == 1))
                close(right[k]);
        }
        i == 0   ? run_source(left[0], tls)
        : i == 1 ? run_relay(left[1], right[1], tls)
                 : run_sink(right[0], tls);
        exit(0);
    }
    close(left[0]), close(left[1]), close(right[0]), close(right[1]);
    int status, failed = 0;
    while (wait(&status) > 0)
        failed |= status != 0;
    double seconds = (double)(vg_now_usec() - begin) / 1e6;
    struct rusage u;
    getrusage(RUSAGE_CHILDREN, &u);
    printf("{\"bench\":\"net-relay\",\"transport\":\"%s\",\"bytes\":%llu,\"seconds\":%.3f,"
           "\"mb_per_s\":%.0f,\"cpu_s\":%.2f,\"max_rss_kib\":%ld}\n",
           argv[1], (unsigned long long)total, seconds, (double)total / 1e6 / seconds,
           (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
               (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6,
           u.ru_maxrss);
    return failed;
}
