/* Images: indexes, manifests, configurations; layouts and archives of them. */
#include "fs/store/oci.h"

#include "base/cleanup.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/fbuild.h"
#include "fs/store/oci-layer.h"
#include "fs/store/tar.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#define NESTING_MAX 3
#define LAYERS_MAX 500

bool vg_oci_digest_good(const char *d) {
    return d && strncmp(d, "sha256:", 7) == 0 && strlen(d) == 71 &&
           strspn(d + 7, "0123456789abcdef") == 64;
}

void vg_oci_digest(const void *data, size_t n, char out[72]) {
    uint8_t hash[VG_HASH];
    vg_leaf_hash(data, n, hash);
    memcpy(out, "sha256:", 7);
    vg_hex(hash, VG_HASH, out + 7);
}

int vg_oci_text(const struct vg_oci *o, const char *digest, char **ret, struct vg_err *err) {
    struct vg_oci_blob b = {.fd = -1};
    char is[72];
    if (!vg_oci_digest_good(digest))
        return vg_err_set(err, VG_INVALID, "the image names a part by '%.80s', which is no sha256",
                          digest ? digest : "");
    int r = o->blob(o->user, digest, &b, err);
    if (r < 0)
        return r;
    vg_auto_fd int fd = b.fd;
    if (b.size > VG_OCI_JSON_MAX)
        return vg_err_set(err, VG_TOO_BIG, "part %.19s of the image is too long", digest);
    vg_auto_free char *text = vg_alloc(b.size + 1);
    if (!text)
        return vg_err_sys(err, -ENOMEM, "cannot read the image");
    if (pread(fd, text, b.size, (off_t)b.off) != (ssize_t)b.size)
        return vg_err_set(err, VG_INVALID, "part %.19s of the image is cut short", digest);
    vg_oci_digest(text, b.size, is);
    if (strcmp(is, digest) != 0)
        return vg_err_set(err, VG_INVALID, "part %.19s of the image is damaged: its digest differs",
                          digest);
    *ret = vg_take_ptr(text);
    return 0;
}

static json_t *read_json(const struct vg_oci *o, const char *digest, char **ret_text,
                         struct vg_err *err) {
    char *text;
    json_error_t why;
    if (vg_oci_text(o, digest, &text, err) < 0)
        return NULL;
    json_t *j = json_loads(text, 0, &why);
    if (!j)
        vg_err_set(err, VG_INVALID, "part %.19s of the image is no JSON: %s", digest, why.text);
    if (ret_text && j)
        *ret_text = text;
    else
        free(text);
    return j;
}

static const char *text_of(const json_t *j, const char *key) {
    const char *s = json_string_value(json_object_get(j, key));
    return s ? s : "";
}

static void this_platform(char out[64]) {
    struct utsname u;
    uname(&u);
    const char *arch = strcmp(u.machine, "x86_64") == 0    ? "amd64"
                       : strcmp(u.machine, "aarch64") == 0 ? "arm64"
                                                           : u.machine;
    snprintf(out, 64, "linux/%.50s", arch);
}

/* The one for the platform; the only one there is will do. */
static const json_t *choose(const struct vg_oci *o, const json_t *index, struct vg_err *err) {
    const json_t *list = json_object_get(index, "manifests");
    char want[64], is[200];
    this_platform(want);
    if (o->platform)
        snprintf(want, sizeof(want), "%s", o->platform);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *m = json_array_get(list, i), *p = json_object_get(m, "platform");
        snprintf(is, sizeof(is), "%.90s/%.90s", text_of(p, "os"), text_of(p, "architecture"));
        if (strcmp(is, want) == 0 || (!p && json_array_size(list) == 1))
            return m;
    }
    vg_err_set(err, VG_NOT_FOUND, "the image has nothing for %s: --platform chooses another", want);
    return NULL;
}

static int packing(const char *type, enum vg_packing *ret) {
    size_t n = strlen(type);
    if (strstr(type, "foreign") || strstr(type, "nondistributable"))
        return -ENOTSUP;
    if (n > 5 && (strcmp(type + n - 5, "+gzip") == 0 || strcmp(type + n - 5, ".gzip") == 0))
        *ret = VG_PACK_GZIP;
    else if (n > 5 && strcmp(type + n - 5, "+zstd") == 0)
        *ret = VG_PACK_ZSTD;
    else if (n > 4 && strcmp(type + n - 4, ".tar") == 0)
        *ret = VG_PACK_NONE;
    else
        return -ENOTSUP;
    return 0;
}

static int lay(const struct vg_oci *o, const json_t *layer, struct vg_estore *store,
               struct vg_ftree *t, struct vg_err *err) {
    const char *digest = text_of(layer, "digest"), *type = text_of(layer, "mediaType");
    enum vg_packing how;
    struct vg_oci_blob b = {.fd = -1};
    if (!vg_oci_digest_good(digest))
        return vg_err_set(err, VG_INVALID, "a layer is named by '%.80s', which is no sha256",
                          digest);
    if (packing(type, &how) < 0)
        return vg_err_set(err, VG_UNSUPPORTED,
                          "layer %.19s is of kind '%.100s', which is not known", digest, type);
    int r = o->blob(o->user, digest, &b, err);
    if (r < 0)
        return r;
    r = vg_oci_layer(t, store, &b, how, digest, err);
    close(b.fd);
    return r;
}

static int unpack_manifest(const struct vg_oci *o, const json_t *m, struct vg_estore *store,
                           struct vg_ftree **ret, char **ret_config, struct vg_err *err) {
    const json_t *layers = json_object_get(m, "layers");
    const struct vg_mstat top = {.mode = S_IFDIR | 0755};
    if (!json_is_array(layers) || json_array_size(layers) > LAYERS_MAX)
        return vg_err_set(err, VG_INVALID, "the image's manifest has no list of layers");
    char *config = NULL;
    int r = vg_oci_text(o, text_of(json_object_get(m, "config"), "digest"), &config, err);
    struct vg_ftree *t = NULL;
    if (r == 0)
        r = vg_ftree_new(store, NULL, &t, err);
    if (r == 0 && (r = vg_fbuild_put(t, "/", &top, NULL, NULL)) < 0)
        vg_err_sys(err, r, "cannot build the image's tree");
    for (size_t i = 0; r == 0 && i < json_array_size(layers); i++)
        r = lay(o, json_array_get(layers, i), store, t, err);
    if (r < 0) {
        vg_ftree_unref(t);
        free(config);
        return r;
    }
    *ret = t;
    *ret_config = config;
    return 0;
}

int vg_oci_unpack(const struct vg_oci *o, const json_t *descriptor, struct vg_estore *store,
                  struct vg_ftree **ret, char **ret_config, struct vg_err *err) {
    json_t *j = read_json(o, text_of(descriptor, "digest"), NULL, err);
    for (int depth = 0; j && json_object_get(j, "manifests"); depth++) {
        const json_t *next = depth < NESTING_MAX ? choose(o, j, err) : NULL;
        if (depth == NESTING_MAX)
            vg_err_set(err, VG_INVALID, "the image's indexes lie too deep in each other");
        json_t *below = next ? read_json(o, text_of(next, "digest"), NULL, err) : NULL;
        json_decref(j);
        j = below;
    }
    if (!j)
        return err->code;
    int r = unpack_manifest(o, j, store, ret, ret_config, err);
    json_decref(j);
    return r;
}

/* ------------------------------------------------------------------ layouts and archives */

struct member { /* of an archive */
    char *name;
    uint64_t off, size;
};
struct layout {
    const char *path;
    int fd; /* the folder or the archive */
    bool folder;
    struct vg_map members; /* name -> struct member, owned */
    uint64_t at;           /* of the archive, while it is indexed */
};

static ssize_t read_archive(void *user, void *data, size_t n) {
    struct layout *l = user;
    size_t got = 0;
    while (got < n) {
        ssize_t k = pread(l->fd, (char *)data + got, n - got, (off_t)(l->at + got));
        if (k < 0)
            return -errno;
        if (k == 0)
            break;
        got += (size_t)k;
    }
    l->at += got;
    return (ssize_t)got;
}

static int remember(struct layout *l, const struct vg_tar *tar) {
    const char *name = tar->e.path;
    while (strncmp(name, "./", 2) == 0)
        name += 2;
    if (!S_ISREG(tar->e.st.mode) || tar->e.hard || vg_map_get(&l->members, name))
        return 0;
    struct member *m = vg_alloc(sizeof(*m));
    if (!m || !(m->name = vg_strdup(name)) || vg_map_put(&l->members, m->name, m) < 0) {
        if (m)
            free(m->name);
        free(m);
        return -ENOMEM;
    }
    m->off = l->at;
    m->size = tar->e.st.size;
    return 0;
}

static int index_archive(struct layout *l) {
    struct vg_tar *tar = vg_alloc(sizeof(*tar));
    if (!tar)
        return -ENOMEM;
    *tar = (struct vg_tar){.read = read_archive, .user = l};
    int r;
    while ((r = vg_tar_next(tar)) > 0 && (r = remember(l, tar)) == 0) {
        l->at += tar->left; /* content need not be read */
        tar->left = 0;
    }
    vg_tar_done(tar);
    free(tar);
    return r;
}

static int open_part(struct layout *l, const char *name, struct vg_oci_blob *ret,
                     struct vg_err *err) {
    if (!l->folder) {
        const struct member *m = vg_map_get(&l->members, name);
        int fd = m ? fcntl(l->fd, F_DUPFD_CLOEXEC, 3) : -1;
        if (!m)
            return vg_err_set(err, VG_INVALID, "%s has no %s: is it an OCI archive?", l->path,
                              name);
        *ret = (struct vg_oci_blob){.fd = fd, .off = m->off, .size = m->size};
        return fd < 0 ? vg_err_sys(err, errno, "cannot read %s", l->path) : 0;
    }
    struct stat st;
    int fd = openat(l->fd, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return vg_err_sys(err, errno, "cannot read %s/%s", l->path, name);
    *ret = (struct vg_oci_blob){.fd = fd, .size = (uint64_t)st.st_size};
    return 0;
}

static int layout_blob(void *user, const char *digest, struct vg_oci_blob *ret,
                       struct vg_err *err) {
    char name[100];
    snprintf(name, sizeof(name), "blobs/sha256/%.64s", digest + 7);
    return open_part(user, name, ret, err);
}

static int open_layout(struct layout *l, struct vg_err *err) {
    struct stat st;
    l->fd = open(l->path, O_RDONLY | O_CLOEXEC);
    if (l->fd < 0 || fstat(l->fd, &st) < 0)
        return vg_err_sys(err, errno, "cannot read %s", l->path);
    l->folder = S_ISDIR(st.st_mode);
    int r = l->folder ? 0 : index_archive(l);
    if (r == -EBADMSG || r == -ENOTSUP)
        return vg_err_set(err, VG_INVALID,
                          "%s is no tar archive: an OCI archive is expected (unpack it first if it "
                          "is compressed), an OCI layout, or an image's name",
                          l->path);
    return r < 0 ? vg_err_sys(err, r, "cannot read %s", l->path) : 0;
}

static void close_layout(struct layout *l) {
    vg_map_for_each (s, &l->members) {
        struct member *m = s->value;
        free(m->name);
        free(m);
    }
    vg_map_done(&l->members);
    vg_close(&l->fd);
}

static json_t *read_index(struct layout *l, struct vg_err *err) {
    struct vg_oci_blob b = {.fd = -1};
    if (open_part(l, "index.json", &b, err) < 0)
        return NULL;
    vg_auto_fd int fd = b.fd;
    vg_auto_free char *text = b.size <= VG_OCI_JSON_MAX ? vg_alloc(b.size + 1) : NULL;
    json_t *j = NULL;
    if (text && pread(fd, text, b.size, (off_t)b.off) == (ssize_t)b.size)
        j = json_loads(text, 0, NULL);
    if (!j || json_array_size(json_object_get(j, "manifests")) == 0) {
        json_decref(j);
        vg_err_set(err, VG_INVALID, "the index of %s names no image", l->path);
        return NULL;
    }
    return j;
}

int vg_oci_import(const char *path, const char *platform, struct vg_estore *store,
                  struct vg_ftree **ret, char **ret_config, char name[256], struct vg_err *err) {
    struct layout l = {.path = path, .fd = -1};
    struct vg_oci o = {.blob = layout_blob, .user = &l, .platform = platform};
    int r = open_layout(&l, err);
    json_t *index = r == 0 ? read_index(&l, err) : NULL;
    if (r == 0 && !index)
        r = err->code;
    const json_t *list = json_object_get(index, "manifests");
    const json_t *m =
        r == 0 && json_array_size(list) > 1 ? choose(&o, index, err) : json_array_get(list, 0);
    if (r == 0 && !m)
        r = err->code;
    if (r == 0) {
        const json_t *notes = json_object_get(m, "annotations");
        snprintf(name, 256, "%.255s", text_of(notes, "org.opencontainers.image.ref.name"));
        r = vg_oci_unpack(&o, m, store, ret, ret_config, err);
    }
    json_decref(index);
    close_layout(&l);
    return r;
}
