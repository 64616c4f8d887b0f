#pragma once
/* A connection as http.c uses it. */
#include "fs/store/http.h"

#include <openssl/ssl.h>

#define VG_HTTP_HEAD_MAX (64u << 10)

struct vg_http {
    int fd;
    SSL_CTX *ctx; /* stays over connections */
    SSL *ssl;
    struct vg_buf in;
    bool tls, fixed; /* fixed: there is only this one socket */
    bool used;       /* an answer came over this connection */
    char host[256], port[8], authority[272];
    char *path; /* owned */
    char *ca;   /* owned */
    unsigned patience_sec;
};

int vg_http_connect(struct vg_http *h, struct vg_err *err); /* 0 when it is already */
void vg_http_hang_up(struct vg_http *h);
int vg_http_write(struct vg_http *h, const void *data, size_t n);
ssize_t vg_http_more(struct vg_http *h);                    /* into h->in; 0: the end */
int vg_http_line(struct vg_http *h, char *out, size_t max); /* without its end; -EBADMSG */
