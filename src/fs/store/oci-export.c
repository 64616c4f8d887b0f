/* A tree as an OCI archive with one layer. The layer is written to a temporary file first: its size
   and digest come before it in the archive. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/oci.h"
#include "fs/store/tar.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <string.h>

struct layer {
    struct vg_estore *store;
    int fd;
    EVP_MD_CTX *hash;
    struct vg_buf out;
    uint8_t *leaf;
    uint64_t size;
    struct vg_err *err;
};

static int write_out(struct layer *l, const void *data, size_t n) {
    EVP_DigestUpdate(l->hash, data, n);
    l->size += n;
    return vg_write_full(l->fd, data, n);
}

static int flush(struct layer *l) {
    int r = write_out(l, vg_buf_data(&l->out), vg_buf_len(&l->out));
    vg_buf_clear(&l->out);
    return r;
}

static int add_content(struct layer *l, const struct vg_fitem *i) {
    vg_auto_fd int fd = vg_estore_open_data(l->store, i->id);
    if (fd < 0)
        return fd;
    uint64_t left = i->st.size;
    int r = flush(l);
    while (r == 0 && left) {
        ssize_t n = vg_read_full(fd, l->leaf, (size_t)VG_MIN(left, (uint64_t)VG_LEAF));
        r = n < 0 ? (int)n : n == 0 ? -EIO : write_out(l, l->leaf, (size_t)n);
        left -= n > 0 ? (uint64_t)n : 0;
    }
    return r == 0 ? vg_tar_pad(&l->out, i->st.size) : r;
}

static int add_item(void *user, const struct vg_fitem *i) {
    struct layer *l = user;
    bool file = S_ISREG(i->st.mode);
    if ((file && !i->id) || S_ISSOCK(i->st.mode))
        return 0; /* it has no content here: a secret that stayed at home */
    vg_auto_free char *target = i->target_len ? vg_strndup(i->target, i->target_len) : NULL;
    char path[4100];
    snprintf(path, sizeof(path), "%s%s", i->path[1] ? i->path + 1 : ".",
             S_ISDIR(i->st.mode) ? "/" : "");
    int r = vg_tar_header(&l->out, path, &i->st, target);
    if (r == 0 && file)
        r = add_content(l, i);
    return r == 0 && vg_buf_len(&l->out) > VG_LEAF ? flush(l) : r;
}

static int make_layer(struct layer *l, struct vg_ftree *t, char digest[72], struct vg_err *err) {
    uint8_t hash[VG_HASH];
    l->fd =
        open(getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    l->hash = EVP_MD_CTX_new();
    l->leaf = vg_alloc(VG_LEAF);
    if (l->fd < 0)
        return vg_err_sys(err, errno, "cannot make a temporary file");
    if (!l->hash || !l->leaf || EVP_DigestInit_ex(l->hash, EVP_sha256(), NULL) != 1)
        return vg_err_sys(err, -ENOMEM, "cannot write an image");
    int r = vg_ftree_each(t, add_item, l, err);
    if (r == 0 && ((r = vg_tar_end(&l->out)) < 0 || (r = flush(l)) < 0))
        vg_err_sys(err, r, "cannot write the image's layer");
    if (r == 0) {
        EVP_DigestFinal_ex(l->hash, hash, NULL);
        memcpy(digest, "sha256:", 7);
        vg_hex(hash, VG_HASH, digest + 7);
    }
    return r;
}

/* The image's configuration with this one layer. */
static char *configuration(const char *from, const char *layer) {
    json_t *j = from ? json_loads(from, 0, NULL) : NULL;
    if (!json_is_object(j)) {
        json_decref(j);
        j = json_object();
    }
    if (!json_object_get(j, "architecture"))
        json_object_set_new(j, "architecture", json_string("amd64"));
    if (!json_object_get(j, "os"))
        json_object_set_new(j, "os", json_string("linux"));
    json_object_set_new(j, "rootfs",
                        json_pack("{s:s, s:[s]}", "type", "layers", "diff_ids", layer));
    json_object_del(j, "history");
    char *text = json_dumps(j, JSON_COMPACT);
    json_decref(j);
    return text;
}

static int put_file(int fd, const char *name, const void *data, size_t n) {
    struct vg_buf b = {0};
    struct vg_mstat st = {.mode = S_IFREG | 0644, .size = n};
    int r = vg_tar_header(&b, name, &st, NULL);
    if (r == 0)
        r = vg_buf_append(&b, data, n);
    if (r == 0)
        r = vg_tar_pad(&b, n);
    if (r == 0)
        r = vg_write_full(fd, vg_buf_data(&b), vg_buf_len(&b));
    vg_buf_done(&b);
    return r;
}

static int put_blob(int fd, const char *digest, const void *data, size_t n) {
    char name[100];
    snprintf(name, sizeof(name), "blobs/sha256/%s", digest + 7);
    return put_file(fd, name, data, n);
}

static int put_layer(struct layer *l, int fd, const char *digest) {
    char name[100];
    struct vg_buf b = {0};
    struct vg_mstat st = {.mode = S_IFREG | 0644, .size = l->size};
    snprintf(name, sizeof(name), "blobs/sha256/%s", digest + 7);
    int r = vg_tar_header(&b, name, &st, NULL);
    if (r == 0)
        r = vg_write_full(fd, vg_buf_data(&b), vg_buf_len(&b));
    for (uint64_t off = 0; r == 0 && off < l->size;) {
        ssize_t n = pread(l->fd, l->leaf, VG_LEAF, (off_t)off);
        r = n <= 0 ? -EIO : vg_write_full(fd, l->leaf, (size_t)n);
        off += n > 0 ? (uint64_t)n : 0;
    }
    vg_buf_clear(&b);
    if (r == 0)
        r = vg_tar_pad(&b, l->size);
    if (r == 0 && vg_buf_len(&b))
        r = vg_write_full(fd, vg_buf_data(&b), vg_buf_len(&b));
    vg_buf_done(&b);
    return r;
}

#define TYPE "application/vnd.oci.image."

static int write_all(struct layer *l, const char *layer, const char *config, const char *name,
                     int fd) {
    char config_digest[72], manifest_digest[72];
    struct vg_buf end = {0};
    vg_auto_free char *conf = configuration(config, layer);
    if (!conf)
        return -ENOMEM;
    vg_oci_digest(conf, strlen(conf), config_digest);
    json_t *m = json_pack("{s:i, s:s, s:{s:s, s:s, s:I}, s:[{s:s, s:s, s:I}]}", "schemaVersion", 2,
                          "mediaType", TYPE "manifest.v1+json", "config", "mediaType",
                          TYPE "config.v1+json", "digest", config_digest, "size",
                          (json_int_t)strlen(conf), "layers", "mediaType", TYPE "layer.v1.tar",
                          "digest", layer, "size", (json_int_t)l->size);
    vg_auto_free char *manifest = m ? json_dumps(m, JSON_COMPACT) : NULL;
    json_decref(m);
    if (!manifest)
        return -ENOMEM;
    vg_oci_digest(manifest, strlen(manifest), manifest_digest);
    json_t *x =
        json_pack("{s:i, s:s, s:[{s:s, s:s, s:I, s:{s:s}}]}", "schemaVersion", 2, "mediaType",
                  TYPE "index.v1+json", "manifests", "mediaType", TYPE "manifest.v1+json", "digest",
                  manifest_digest, "size", (json_int_t)strlen(manifest), "annotations",
                  "org.opencontainers.image.ref.name", name);
    vg_auto_free char *index = x ? json_dumps(x, JSON_COMPACT) : NULL;
    json_decref(x);
    static const char mark[] = "{\"imageLayoutVersion\":\"1.0.0\"}";
    int r = index ? put_file(fd, "oci-layout", mark, strlen(mark)) : -ENOMEM;
    if (r == 0)
        r = put_file(fd, "index.json", index, strlen(index));
    if (r == 0)
        r = put_blob(fd, manifest_digest, manifest, strlen(manifest));
    if (r == 0)
        r = put_blob(fd, config_digest, conf, strlen(conf));
    if (r == 0)
        r = put_layer(l, fd, layer);
    if (r == 0)
        r = vg_tar_end(&end);
    if (r == 0)
        r = vg_write_full(fd, vg_buf_data(&end), vg_buf_len(&end));
    vg_buf_done(&end);
    return r;
}

int vg_oci_export(struct vg_ftree *t, struct vg_estore *store, const char *config, const char *name,
                  int fd, struct vg_err *err) {
    struct layer l = {.store = store, .fd = -1, .err = err};
    char digest[72] = "";
    int r = make_layer(&l, t, digest, err);
    if (r == 0 && (r = write_all(&l, digest, config, name, fd)) < 0)
        vg_err_sys(err, r, "cannot write the image");
    EVP_MD_CTX_free(l.hash);
    vg_buf_done(&l.out);
    free(l.leaf);
    vg_close(&l.fd);
    return r;
}
