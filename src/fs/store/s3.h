#pragma once
/* An S3-compatible bucket: objects by key, whole. Requests are signed; addresses are of the form
   endpoint/bucket/key. Blocking, any thread; connections are kept for the next request. What the
   server may get over (500, 503, 429, silence, a broken connection) is tried again, later and
   later; then it is an error. Nothing here believes what a bucket sends: whoever reads compares
   hashes. */
#include "base/buf.h"
#include "base/err.h"
#include "fs/store/s3-sign.h"

#define VG_S3_PREFIX_MAX 200
#define VG_S3_KEY_MAX 1024 /* the protocol's own limit */

struct vg_s3_conf {
    char bucket[64];
    char prefix[VG_S3_PREFIX_MAX + 2]; /* "" or ends in '/' */
    char endpoint[512];                /* https://host[:port] */
    char ca[512];                      /* a file of certificates to trust, too; "": none */
    struct vg_s3_auth auth;
    unsigned patience_sec; /* of one answer; 0: a minute */
    unsigned tries;        /* of one request; 0: six */
    unsigned first_msec;   /* before the second try; doubles; 0: 250 */
    uint64_t part_bytes;   /* what is larger goes in parts of this size; 0: 64 MiB */
};
/* "s3://bucket/prefix" into bucket and prefix. */
int vg_s3_conf_url(struct vg_s3_conf *c, const char *url, struct vg_err *err);
/* From a file in the form of ~/.aws/credentials, which nobody else may read; with NULL from
   AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN. */
int vg_s3_conf_credentials(struct vg_s3_conf *c, const char *file, struct vg_err *err);

struct vg_s3;
int vg_s3_open(const struct vg_s3_conf *conf, struct vg_s3 **ret, struct vg_err *err);
void vg_s3_close(struct vg_s3 *s); /* nobody may be in a call */
/* "s3://bucket/prefix", for people. */
const char *vg_s3_name(const struct vg_s3 *s);
/* From now on nothing is tried again. */
void vg_s3_stop(struct vg_s3 *s);

/* Keys are below the prefix. 0 only when the bucket has said that it has it. */
int vg_s3_put(struct vg_s3 *s, const char *key, int fd, uint64_t size, struct vg_err *err);
int vg_s3_put_bytes(struct vg_s3 *s, const char *key, const void *data, size_t n,
                    struct vg_err *err);
/* Into fd (emptied first) or, with fd < 0, appended to `out`. -ENOENT: there is no such object.
   More than `max` bytes are an error. */
int vg_s3_get(struct vg_s3 *s, const char *key, int fd, struct vg_buf *out, uint64_t max,
              struct vg_err *err);
int vg_s3_size(struct vg_s3 *s, const char *key, uint64_t *ret, struct vg_err *err); /* -ENOENT */
int vg_s3_delete(struct vg_s3 *s, const char *key, struct vg_err *err); /* gone already: 0 */
/* Every key that begins with `below`, page by page. A negative return ends it. */
typedef int vg_s3_each_fn(void *user, const char *key, uint64_t size);
int vg_s3_list(struct vg_s3 *s, const char *below, vg_s3_each_fn *each, void *user,
               struct vg_err *err);
/* Uploads in parts that were begun and never ended: dropped where `drop` says so. */
int vg_s3_drop_uploads(struct vg_s3 *s, const char *below,
                       bool (*drop)(void *user, const char *key), void *user, struct vg_err *err);
