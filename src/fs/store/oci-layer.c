/* Layers: unpacking, and laying them upon a tree. */
#include "fs/store/oci-layer.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/fbuild.h"
#include "fs/store/tar.h"

#include <openssl/evp.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#define ROOM (256u << 10)
#define WHITEOUT ".wh."
#define OPAQUE ".wh..wh..opq"

struct vg_unpack {
    struct vg_oci_blob b;
    uint64_t at;
    enum vg_packing how;
    EVP_MD_CTX *hash;
    z_stream gz;
    bool gz_on, gz_end;
    ZSTD_DStream *zs;
    ZSTD_inBuffer zin;
    uint8_t *room;
    size_t have; /* of room, gzip */
};

int vg_unpack_new(const struct vg_oci_blob *b, enum vg_packing how, struct vg_unpack **ret) {
    struct vg_unpack *u = vg_alloc(sizeof(*u));
    if (!u)
        return -ENOMEM;
    u->b = *b;
    u->how = how;
    u->room = vg_alloc(ROOM);
    u->hash = EVP_MD_CTX_new();
    bool good = u->room && u->hash && EVP_DigestInit_ex(u->hash, EVP_sha256(), NULL) == 1;
    if (good && how == VG_PACK_GZIP)
        good = u->gz_on = inflateInit2(&u->gz, 15 + 16) == Z_OK;
    if (good && how == VG_PACK_ZSTD)
        good = (u->zs = ZSTD_createDStream()) != NULL;
    if (!good) {
        vg_unpack_free(u);
        return -ENOMEM;
    }
    *ret = u;
    return 0;
}

void vg_unpack_free(struct vg_unpack *u) {
    if (!u)
        return;
    if (u->gz_on)
        inflateEnd(&u->gz);
    ZSTD_freeDStream(u->zs);
    EVP_MD_CTX_free(u->hash);
    free(u->room);
    free(u);
}

static ssize_t raw(struct vg_unpack *u, void *data, size_t n) {
    n = (size_t)VG_MIN((uint64_t)n, u->b.size - u->at);
    size_t got = 0;
    while (got < n) {
        ssize_t k = pread(u->b.fd, (char *)data + got, n - got, (off_t)(u->b.off + u->at + got));
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return -errno;
        if (k == 0)
            return -EBADMSG; /* shorter than it says */
        got += (size_t)k;
    }
    u->at += got;
    EVP_DigestUpdate(u->hash, data, got);
    return (ssize_t)got;
}

static ssize_t read_gzip(struct vg_unpack *u, void *data, size_t n) {
    u->gz.next_out = data;
    u->gz.avail_out = (uInt)n;
    while (u->gz.avail_out && !u->gz_end) {
        if (u->gz.avail_in == 0) {
            ssize_t k = raw(u, u->room, ROOM);
            if (k < 0)
                return k;
            if (k == 0)
                return -EBADMSG; /* it stops in the midst */
            u->gz.next_in = u->room;
            u->gz.avail_in = (uInt)k;
        }
        int z = inflate(&u->gz, Z_NO_FLUSH);
        if (z != Z_OK && z != Z_STREAM_END && z != Z_BUF_ERROR)
            return -EBADMSG;
        if (z == Z_STREAM_END) { /* there may be another member */
            if (u->gz.avail_in == 0) {
                ssize_t k = raw(u, u->room, ROOM);
                if (k < 0)
                    return k;
                u->gz.next_in = u->room;
                u->gz.avail_in = (uInt)k;
            }
            u->gz_end = u->gz.avail_in == 0;
            if (!u->gz_end && inflateReset(&u->gz) != Z_OK)
                return -EBADMSG;
        }
    }
    return (ssize_t)(n - u->gz.avail_out);
}

static ssize_t read_zstd(struct vg_unpack *u, void *data, size_t n) {
    ZSTD_outBuffer out = {.dst = data, .size = n};
    while (out.pos < out.size) {
        if (u->zin.pos == u->zin.size) {
            ssize_t k = raw(u, u->room, ROOM);
            if (k < 0)
                return k;
            if (k == 0)
                break;
            u->zin = (ZSTD_inBuffer){.src = u->room, .size = (size_t)k};
        }
        if (ZSTD_isError(ZSTD_decompressStream(u->zs, &out, &u->zin)))
            return -EBADMSG;
    }
    return (ssize_t)out.pos;
}

ssize_t vg_unpack_read(void *unpack, void *data, size_t n) {
    struct vg_unpack *u = unpack;
    return u->how == VG_PACK_GZIP   ? read_gzip(u, data, n)
           : u->how == VG_PACK_ZSTD ? read_zstd(u, data, n)
                                    : raw(u, data, n);
}

int vg_unpack_finish(struct vg_unpack *u, const char *digest) {
    uint8_t hash[VG_HASH];
    char text[72] = "sha256:";
    for (ssize_t k = 1; k > 0;) {
        k = raw(u, u->room, ROOM);
        if (k < 0)
            return (int)k;
    }
    if (EVP_DigestFinal_ex(u->hash, hash, NULL) != 1)
        return -EIO;
    vg_hex(hash, VG_HASH, text + 7);
    return strcmp(text, digest) == 0 ? 0 : -EBADMSG;
}

/* ------------------------------------------------------------------ laying */

static int content(struct vg_tar *tar, struct vg_estore *s, uint8_t *leaf, uint8_t id[VG_HASH]) {
    struct vg_einto *w;
    uint64_t size = tar->e.st.size, off = 0;
    int r = vg_einto_new(s, size, &w);
    if (r < 0)
        return r;
    do {
        size_t want = (size_t)VG_MIN(size - off, (uint64_t)VG_LEAF);
        ssize_t n = want ? vg_tar_read(tar, leaf, want) : 0;
        r = n < 0 ? (int)n : (size_t)n != want ? -EBADMSG : vg_einto_write(w, off, leaf, want);
        off += want;
    } while (r == 0 && off < size);
    if (r == 1)
        r = vg_einto_keep(w, id);
    vg_einto_free(w);
    return r;
}

/* 1: it was a mark, not a file. */
static int whiteout(struct vg_ftree *t, const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    int dir = slash ? (int)(slash - path) : 0;
    char victim[VG_TAR_PATH_MAX];
    if (strncmp(name, WHITEOUT, strlen(WHITEOUT)) != 0)
        return 0;
    int r = 0;
    if (strcmp(name, OPAQUE) == 0)
        return 1; /* seen to before */
    if (strncmp(name, ".wh..wh.", 8) == 0)
        return 1; /* bookkeeping of a builder */
    snprintf(victim, sizeof(victim), "%.*s/%s", dir, path, name + strlen(WHITEOUT));
    if (name[strlen(WHITEOUT)])
        r = vg_fbuild_remove(t, victim);
    return r < 0 ? r : 1;
}

static int add_entry(struct vg_ftree *t, struct vg_estore *s, struct vg_tar *tar, uint8_t *leaf) {
    struct vg_tar_entry *e = &tar->e;
    uint8_t id[VG_HASH];
    int r = whiteout(t, e->path);
    if (r != 0)
        return r < 0 ? r : 0;
    if (e->hard)
        return vg_fbuild_link(t, e->path, e->link);
    bool file = S_ISREG(e->st.mode);
    if (file)
        r = content(tar, s, leaf, id);
    if (r == 0)
        r = vg_fbuild_put(t, e->path, &e->st, S_ISLNK(e->st.mode) ? e->link : NULL,
                          file ? id : NULL);
    for (size_t i = 0; r == 0 && i < e->n_xattr; i++) {
        r = vg_fbuild_xattr(t, e->path, e->xattr[i].name, e->xattr[i].value, e->xattr[i].n);
        if (r == -EEXIST)
            r = 0;
    }
    return r;
}

/* An opaque folder hides what lower layers have in it, wherever in its own layer the mark stands:
   so marks are looked for first. */
static int clear_opaque(struct vg_ftree *t, struct vg_tar *tar) {
    int r;
    while ((r = vg_tar_next(tar)) > 0) {
        char *slash = strrchr(tar->e.path, '/');
        const char *name = slash ? slash + 1 : tar->e.path;
        if (strcmp(name, OPAQUE) != 0)
            continue;
        if (slash)
            *slash = '\0';
        r = vg_fbuild_clear(t, slash ? tar->e.path : "/");
        if (r < 0)
            break;
    }
    return r;
}

static int pass(struct vg_ftree *t, struct vg_estore *s, const struct vg_oci_blob *b,
                enum vg_packing how, const char *digest, bool marks, struct vg_err *err) {
    struct vg_unpack *u;
    int r = vg_unpack_new(b, how, &u);
    if (r < 0)
        return vg_err_sys(err, r, "cannot read layer %.19s", digest);
    struct vg_tar *tar = vg_alloc(sizeof(*tar));
    vg_auto_free uint8_t *leaf = vg_alloc(VG_LEAF);
    if (!tar || !leaf)
        r = -ENOMEM;
    char at[200] = "";
    if (r == 0) {
        *tar = (struct vg_tar){.read = vg_unpack_read, .user = u};
        if (marks)
            r = clear_opaque(t, tar);
        while (!marks && r == 0 && (r = vg_tar_next(tar)) > 0) {
            snprintf(at, sizeof(at), ": %.190s", tar->e.path);
            r = add_entry(t, s, tar, leaf);
        }
        vg_tar_done(tar);
    }
    if (r == 0 && marks) /* before anything of it is believed */
        r = vg_unpack_finish(u, digest);
    free(tar);
    vg_unpack_free(u);
    if (r == -ENOTSUP)
        return vg_err_set(err, VG_UNSUPPORTED,
                          "layer %.19s%s is of a kind of archive entry that is not known", digest,
                          at);
    return r < 0 ? vg_err_sys(err, r, "layer %.19s%s", digest, at) : 0;
}

int vg_oci_layer(struct vg_ftree *t, struct vg_estore *store, const struct vg_oci_blob *b,
                 enum vg_packing how, const char *digest, struct vg_err *err) {
    int r = pass(t, store, b, how, digest, true, err);
    return r == 0 ? pass(t, store, b, how, digest, false, err) : r;
}
