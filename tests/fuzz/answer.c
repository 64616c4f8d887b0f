/* What a registry or a bucket may answer to two requests on one connection: refused, or a status
   and a body within its bound. */
#include "fs/store/http.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define INPUT_MAX (64u << 10) /* a socket holds that much */
#define BODY_MAX 1000

static void ask(struct vg_http *h, const char *method) {
    struct vg_buf out = {0};
    struct vg_http_answer *a = calloc(1, sizeof(*a));
    struct vg_http_req q = VG_HTTP_REQ_INIT;
    struct vg_err err = VG_ERR_INIT;
    if (!a)
        abort();
    q.method = method;
    q.out = &out;
    q.max = BODY_MAX;
    int r = vg_http_do(h, &q, a, &err);
    if (r == 0 && (a->status < 200 || a->status > 999))
        abort();
    if (r == 0 && a->status == 200 && vg_buf_len(&out) > BODY_MAX)
        abort();
    if (r < 0 && !err.msg[0])
        abort();
    if (strlen(a->location) >= sizeof(a->location) || strlen(a->etag) >= sizeof(a->etag))
        abort();
    vg_buf_done(&out);
    free(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int pair[2];
    struct vg_http *h = NULL;
    size = size < INPUT_MAX ? size : INPUT_MAX;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0 ||
        write(pair[1], data, size) != (ssize_t)size || shutdown(pair[1], SHUT_WR) < 0 ||
        vg_http_open_fd(pair[0], &h) < 0)
        abort();
    ask(h, NULL);
    ask(h, "HEAD");
    vg_http_close(h);
    close(pair[1]);
    return 0;
}
