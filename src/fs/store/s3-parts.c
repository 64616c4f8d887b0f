/* Large objects go up in parts, each tried again by itself; the object is there when all are, or
   not at all. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/s3-int.h"
#include "fs/store/s3-xml.h"

#include <string.h>

#define PARTS_MAX 10000
#define SIZE_MAX_BYTES (UINT64_C(5) << 40)
#define ID_MAX 1024

struct upload {
    struct vg_s3 *s;
    const char *key;
    char id[ID_MAX];    /* as the bucket said it */
    char *escaped;      /* owned; for queries */
    struct vg_buf list; /* of parts, for the end */
};

static int take_id(void *user, const char *path, const char *value) {
    struct upload *u = user;
    if (value && strcmp(path, "InitiateMultipartUploadResult/UploadId") == 0)
        snprintf(u->id, sizeof(u->id), "%s", strlen(value) < sizeof(u->id) ? value : "");
    return 0;
}

static int escape_id(struct upload *u) {
    struct vg_buf b = {0};
    int r = vg_http_escape(&b, u->id, "");
    if (r == 0)
        r = vg_buf_append(&b, "", 1);
    if (r == 0 && !(u->escaped = vg_strdup((char *)vg_buf_data(&b))))
        r = -ENOMEM;
    vg_buf_done(&b);
    return r;
}

static int begin(struct upload *u, struct vg_err *err) {
    struct vg_s3_call c = VG_S3_CALL_INIT;
    struct vg_http_answer a;
    struct vg_buf out = {0};
    c.method = "POST";
    c.key = u->key;
    c.query = "uploads=";
    c.out = &out;
    c.may_lie = true;
    int r = vg_s3_do(u->s, &c, &a, err);
    if (r == 0 &&
        (vg_xml_each((char *)vg_buf_data(&out), vg_buf_len(&out), take_id, u) < 0 || !u->id[0]))
        r = vg_err_set(err, VG_PROTOCOL, "%s began an upload and gave it no name",
                       vg_s3_name(u->s));
    if (r == 0 && escape_id(u) < 0)
        r = vg_err_sys(err, -ENOMEM, "cannot store in %s", vg_s3_name(u->s));
    vg_buf_done(&out);
    return r;
}

static int send_part(struct upload *u, unsigned number, int fd, uint64_t off, uint64_t len,
                     struct vg_err *err) {
    struct vg_s3_call c = VG_S3_CALL_INIT;
    struct vg_http_answer a;
    vg_auto_free char *query = vg_fmt("partNumber=%u&uploadId=%s", number, u->escaped);
    if (!query)
        return vg_err_sys(err, -ENOMEM, "cannot store in %s", vg_s3_name(u->s));
    c.method = "PUT";
    c.key = u->key;
    c.query = query;
    c.body_fd = fd;
    c.body_off = off;
    c.body_len = len;
    int r = vg_s3_do(u->s, &c, &a, err);
    if (r == 0 && (!a.etag[0] || strpbrk(a.etag, "<>&")))
        r = vg_err_set(err, VG_PROTOCOL, "%s took a part and gave it no name", vg_s3_name(u->s));
    if (r == 0 && vg_buf_printf(&u->list, "<Part><PartNumber>%u</PartNumber><ETag>%s</ETag></Part>",
                                number, a.etag) < 0)
        r = vg_err_sys(err, -ENOMEM, "cannot store in %s", vg_s3_name(u->s));
    return r;
}

static int end(struct upload *u, uint64_t size, struct vg_err *err) {
    struct vg_s3_call c = VG_S3_CALL_INIT;
    struct vg_http_answer a;
    uint64_t is;
    vg_auto_free char *query = vg_fmt("uploadId=%s", u->escaped);
    struct vg_buf out = {0};
    int r = vg_buf_printf(&u->list, "</CompleteMultipartUpload>");
    c.method = "POST";
    c.key = u->key;
    c.query = query;
    c.body = vg_buf_data(&u->list);
    c.body_len = vg_buf_len(&u->list);
    c.out = &out;
    c.may_lie = true;
    r = r < 0 || !query ? vg_err_sys(err, -ENOMEM, "cannot store in %s", vg_s3_name(u->s))
                        : vg_s3_do(u->s, &c, &a, err);
    vg_buf_done(&out);
    if (r == -ENOENT) { /* an earlier try was heard, and its answer lost */
        struct vg_err none = VG_ERR_INIT;
        if (vg_s3_size(u->s, u->key, &is, &none) == 0 && is == size)
            r = 0;
    }
    return r;
}

static void give_up(struct vg_s3 *s, const char *key, const char *escaped) {
    struct vg_s3_call c = VG_S3_CALL_INIT;
    struct vg_http_answer a;
    struct vg_err none = VG_ERR_INIT;
    vg_auto_free char *query = vg_fmt("uploadId=%s", escaped);
    c.method = "DELETE";
    c.key = key;
    c.query = query;
    if (query) /* what stays is dropped by a later collection */
        (void)vg_s3_do(s, &c, &a, &none);
}

int vg_s3_put_parts(struct vg_s3 *s, const char *key, int fd, uint64_t size, uint64_t part,
                    struct vg_err *err) {
    struct upload u = {.s = s, .key = key};
    if (size > SIZE_MAX_BYTES)
        return vg_err_set(err, VG_TOO_BIG, "a file of more than 5 TiB does not fit into %s",
                          vg_s3_name(s));
    part = VG_MAX(part, (size + PARTS_MAX - 1) / PARTS_MAX);
    int r = begin(&u, err);
    if (r == 0 && vg_buf_printf(&u.list, "<CompleteMultipartUpload>") < 0)
        r = vg_err_sys(err, -ENOMEM, "cannot store in %s", vg_s3_name(s));
    unsigned number = 0;
    for (uint64_t off = 0; r == 0 && off < size; off += part)
        r = send_part(&u, ++number, fd, off, VG_MIN(part, size - off), err);
    if (r == 0)
        r = end(&u, size, err);
    if (r < 0 && u.escaped)
        give_up(s, key, u.escaped);
    free(u.escaped);
    vg_buf_done(&u.list);
    return r;
}

/* ------------------------------------------------------------------ what others left */

struct left {
    struct vg_s3 *s;
    bool (*drop)(void *user, const char *key);
    void *user;
    char key[VG_S3_KEY_MAX + 1];
    struct upload u;
};

static int on_left(void *user, const char *path, const char *value) {
    struct left *l = user;
    if (value && strcmp(path, "ListMultipartUploadsResult/Upload/Key") == 0)
        snprintf(l->key, sizeof(l->key), "%.*s", VG_S3_KEY_MAX, value);
    if (value && strcmp(path, "ListMultipartUploadsResult/Upload/UploadId") == 0)
        snprintf(l->u.id, sizeof(l->u.id), "%s", strlen(value) < sizeof(l->u.id) ? value : "");
    if (value || strcmp(path, "ListMultipartUploadsResult/Upload") != 0)
        return 0;
    const char *prefix = vg_s3_conf_of(l->s)->prefix;
    size_t n = strlen(prefix);
    if (strncmp(l->key, prefix, n) == 0 && l->u.id[0] && l->drop(l->user, l->key + n) &&
        escape_id(&l->u) == 0)
        give_up(l->s, l->key + n, l->u.escaped);
    free(vg_take_ptr(l->u.escaped));
    l->u.id[0] = '\0';
    return 0;
}

/* One page: what does not fit comes with the next collection. */
int vg_s3_drop_uploads(struct vg_s3 *s, const char *below,
                       bool (*drop)(void *user, const char *key), void *user, struct vg_err *err) {
    struct left l = {.s = s, .drop = drop, .user = user};
    struct vg_s3_call c = VG_S3_CALL_INIT;
    struct vg_http_answer a;
    struct vg_buf query = {0}, out = {0};
    int r = vg_buf_printf(&query, "prefix=");
    if (r == 0)
        r = vg_http_escape(&query, vg_s3_conf_of(s)->prefix, "");
    if (r == 0)
        r = vg_http_escape(&query, below, "");
    if (r == 0)
        r = vg_buf_printf(&query, "&uploads=");
    if (r == 0)
        r = vg_buf_append(&query, "", 1);
    c.method = "GET";
    c.query = (char *)vg_buf_data(&query);
    c.out = &out;
    r = r < 0 ? vg_err_sys(err, r, "cannot list %s", vg_s3_name(s)) : vg_s3_do(s, &c, &a, err);
    if (r == 0 && vg_xml_each((char *)vg_buf_data(&out), vg_buf_len(&out), on_left, &l) < 0)
        r = vg_err_set(err, VG_PROTOCOL, "the list of %s makes no sense", vg_s3_name(s));
    vg_buf_done(&query);
    vg_buf_done(&out);
    return r;
}
