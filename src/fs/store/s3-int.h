#pragma once
/* What the files of the bucket's client share. */
#include "fs/store/http.h"
#include "fs/store/s3.h"

struct vg_s3_call {
    const char *method;
    const char *key;   /* below the prefix; NULL: the bucket itself */
    const char *query; /* see vg_s3_signing; NULL: none */
    const void *body;
    int body_fd;
    uint64_t body_off, body_len;
    int fd; /* where a good answer goes; -1: into `out` */
    struct vg_buf *out;
    uint64_t max;
    bool may_lie; /* a status of 200 may come with an error in the body */
};
#define VG_S3_CALL_INIT ((struct vg_s3_call){.body_fd = -1, .fd = -1})
#define VG_S3_TEXT_MAX (16u << 20)

/* Until there is an answer that counts: 0 and a status of 200 or 204; else a sentence. */
int vg_s3_do(struct vg_s3 *s, const struct vg_s3_call *c, struct vg_http_answer *a,
             struct vg_err *err);
const struct vg_s3_conf *vg_s3_conf_of(const struct vg_s3 *s);
/* A file that is larger than a part (s3-parts.c). */
int vg_s3_put_parts(struct vg_s3 *s, const char *key, int fd, uint64_t size, uint64_t part,
                    struct vg_err *err);
