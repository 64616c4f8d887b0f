/* Requests as whoever reaches the port may send them: a head, then its body. */
#include "http/parse.h"

#include <stdlib.h>
#include <string.h>

#define HEAD_MAX 4096
#define BODY_MAX 2048

static void read_chunks(const uint8_t *p, size_t n) {
    struct vg_web_chunks k = {0};
    struct vg_buf out = {0};
    size_t used = 0;
    int r = vg_web_chunks_feed(&k, p, n, &used, &out, BODY_MAX);
    if (used > n || vg_buf_len(&out) > BODY_MAX || (r == 0 && used != n))
        abort();
    vg_buf_done(&out);
}

/* All that a program may rely on. */
static void check(const struct vg_web_req *req, const struct vg_web_head *h) {
    if (req->path[0] != '/' || strstr(req->path, "/../") || req->n_headers > VG_WEB_HEADERS_MAX ||
        req->n_query > VG_WEB_QUERY_MAX || (h->chunked && h->length))
        abort();
    for (size_t i = 0; i < req->n_headers; i++)
        if (strpbrk(req->header[i].value, "\r\n"))
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    size_t len = 0;
    int status = vg_web_head_find((const char *)data, n, HEAD_MAX, &len);
    if (status == 0 && n >= HEAD_MAX)
        abort(); /* it would wait for ever */
    if (status != 200)
        return 0;
    struct vg_web_req *req = calloc(1, sizeof *req);
    struct vg_web_head h;
    char *text = malloc(len), *mem = malloc(VG_WEB_HEAD_MEM(len)); /* no byte more than needed */
    if (!req || !text || !mem)
        abort();
    memcpy(text, data, len);
    if (vg_web_head_parse(text, len, mem, req, &h) == 200) {
        check(req, &h);
        if (h.chunked)
            read_chunks(data + len, n - len);
    }
    free(req);
    free(text);
    free(mem);
    return 0;
}
