/* Stamps, ids and names in a cache: SHA-256 over little-endian fields. OpenSSL has no way to fail
   here but for memory, and nothing could go on without a hash: that aborts. */
#include "mirror/stamp.h"

#include "mirror/le.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>

#define NSEC INT64_C(1000000000)

static int64_t nsec(const struct timespec *t) {
    return (int64_t)t->tv_sec * NSEC + t->tv_nsec;
}

void vg_mstat_from(struct vg_mstat *out, const struct stat *st) {
    *out = (struct vg_mstat){
        .dev = st->st_dev,
        .ino = st->st_ino,
        .rdev = st->st_rdev,
        .size = (uint64_t)st->st_size,
        .blocks = (uint64_t)st->st_blocks,
        .mtime = nsec(&st->st_mtim),
        .ctime = nsec(&st->st_ctim),
        .atime = nsec(&st->st_atim),
        .mode = st->st_mode,
        .nlink = (uint32_t)st->st_nlink,
        .uid = st->st_uid,
        .gid = st->st_gid,
    };
}

void vg_leaf_hash(const void *data, size_t n, uint8_t out[VG_HASH]) {
    if (EVP_Digest(n ? data : "", n, out, NULL, EVP_sha256(), NULL) != 1)
        abort();
}

uint32_t vg_state_tag(const struct vg_mstat *st) {
    const uint64_t part[] = {st->dev, st->ino, st->size, (uint64_t)st->mtime, (uint64_t)st->ctime};
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++) {
        h = (h ^ part[i]) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 29;
    }
    uint32_t tag = (uint32_t)(h >> 32) ^ (uint32_t)h;
    return tag ? tag : 1;
}

void vg_stamp(const uint8_t machine[VG_MID], const struct vg_mstat *st, uint8_t out[VG_HASH]) {
    uint8_t b[VG_MID + 40];
    memcpy(b, machine, VG_MID);
    vg_le_put64(b + VG_MID, st->dev);
    vg_le_put64(b + VG_MID + 8, st->ino);
    vg_le_put64(b + VG_MID + 16, st->size);
    vg_le_put64(b + VG_MID + 24, (uint64_t)st->mtime);
    vg_le_put64(b + VG_MID + 32, (uint64_t)st->ctime);
    vg_leaf_hash(b, sizeof(b), out);
}

void vg_file_id(uint64_t size, const uint8_t *leaf_hashes, uint64_t n, uint8_t out[VG_HASH]) {
    uint8_t head[8];
    vg_le_put64(head, size);
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    if (!c || EVP_DigestInit_ex(c, EVP_sha256(), NULL) != 1 ||
        EVP_DigestUpdate(c, head, sizeof(head)) != 1 ||
        EVP_DigestUpdate(c, leaf_hashes, (size_t)n * VG_HASH) != 1 ||
        EVP_DigestFinal_ex(c, out, NULL) != 1)
        abort();
    EVP_MD_CTX_free(c);
}

void vg_hex(const uint8_t *p, size_t n, char *out) {
    static const char digit[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digit[p[i] >> 4];
        out[2 * i + 1] = digit[p[i] & 15];
    }
    out[2 * n] = '\0';
}

void vg_cache_name(const uint8_t key[VG_HASH], const uint8_t what[VG_HASH], char out[65]) {
    uint8_t mac[VG_HASH];
    unsigned n = sizeof(mac);
    if (!HMAC(EVP_sha256(), key, VG_HASH, what, VG_HASH, mac, &n) || n != VG_HASH)
        abort();
    vg_hex(mac, sizeof(mac), out);
}
