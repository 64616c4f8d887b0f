/* A store joins its bucket, and a cloud claims it. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/estore-bucket.h"
#include "fs/store/s3.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define ID_LEN 32

static int make_folders(struct vg_estore *s) {
    static const char *const tops[] = {"up", "del", "up/dat", "up/rec"};
    for (size_t i = 0; i < VG_COUNT(tops); i++) {
        if (mkdirat(s->dir, tops[i], 0700) < 0 && errno != EEXIST)
            return -errno;
        for (unsigned k = 0; i >= 2 && k < 256; k++) {
            char path[16];
            snprintf(path, sizeof(path), "%s/%02x", tops[i], k);
            if (mkdirat(s->dir, path, 0700) < 0 && errno != EEXIST)
                return -errno;
        }
    }
    return 0;
}

struct scan {
    struct vg_estore *s;
    const char *top;
};

/* Usage again: what the bucket has counts whether it lies here or not. */
static int count_marked(void *user, int dir, const char *name) {
    struct scan *c = user;
    char path[80], suffix[VG_EB_SUFFIX + 1];
    uint64_t size;
    struct stat st;
    (void)dir;
    snprintf(path, sizeof(path), "%s/%.2s/%s", c->top, name, name);
    if (vg_eb_mark(c->s, path, suffix, &size) < 0)
        return 0;
    if (fstatat(c->s->dir, path, &st, AT_SYMLINK_NOFOLLOW) < 0) {
        c->s->bytes += size;
        c->s->objects++;
    } else if (strcmp(c->top, "dat") == 0) {
        c->s->bucket->cached += (uint64_t)st.st_size;
    }
    return 0;
}

static int count_all(struct vg_estore *s) {
    struct scan c = {s, "dat"};
    int r = vg_e_each_name(s, "up/dat", count_marked, &c);
    c.top = "rec";
    return r < 0 ? r : vg_e_each_name(s, "up/rec", count_marked, &c);
}

static bool is_empty(struct vg_estore *s) {
    int fd = openat(s->dir, "env", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    bool empty = d && s->objects == 0;
    for (struct dirent *e; empty && (e = readdir(d));)
        empty = e->d_name[0] == '.';
    if (d)
        closedir(d);
    return empty;
}

/* Names are HMACs under the key: it must be the bucket's. */
static int share_key(struct vg_estore *s, struct vg_err *err) {
    struct vg_ebucket *b = s->bucket;
    struct vg_buf there = {0};
    vg_auto_free char *key = vg_fmt("%skey", b->base), *path = vg_fmt("%s/key", s->path);
    if (!key || !path)
        return vg_err_sys(err, -ENOMEM, "cannot use %s", vg_s3_name(b->s3));
    int r = vg_s3_get(b->s3, key, -1, &there, VG_HASH, err);
    if (r == -ENOENT) {
        *err = VG_ERR_INIT;
        r = vg_s3_put_bytes(b->s3, key, s->key, VG_HASH, err);
    } else if (r == 0 && (vg_buf_len(&there) != VG_HASH ||
                          memcmp(vg_buf_data(&there), s->key, VG_HASH) != 0)) {
        if (vg_buf_len(&there) != VG_HASH || !is_empty(s)) {
            r = vg_err_set(err, VG_CONFLICT,
                           "%s holds another store below %s than the one in %s: give env.store a "
                           "prefix of its own",
                           vg_s3_name(b->s3), b->base, s->path);
        } else {
            memcpy(s->key, vg_buf_data(&there), VG_HASH);
            if ((unlink(path) < 0 && errno != ENOENT) ||
                vg_write_file(path, s->key, VG_HASH, 0400) < 0)
                r = vg_err_sys(err, errno, "cannot take over %s", vg_s3_name(b->s3));
        }
    }
    vg_buf_done(&there);
    return r;
}

/* The first time with this bucket. Later it need not be there for the store to be opened. */
static int meet(struct vg_estore *s, struct vg_err *err) {
    const char *name = vg_s3_name(s->bucket->s3);
    vg_auto_free char *path = vg_fmt("%s/bucket", s->path), *text = NULL;
    size_t n;
    int r = path ? vg_read_file(path, 4096, &text, &n) : -ENOMEM;
    if (r < 0 && r != -ENOENT)
        return vg_err_sys(err, r, "cannot use %s", name);
    if (text && strcmp(text, name) == 0)
        return 0;
    if (text)
        return vg_err_set(
            err, VG_CONFLICT,
            "the environments in %s are kept in %.200s: env.store must name that, not "
            "%s",
            s->path, text, name);
    r = share_key(s, err);
    if (r == 0)
        r = vg_eb_adopt_refs(s, err);
    if (r == 0)
        r = vg_eb_adopt(s, false, err);
    if (r == 0 && (r = vg_write_file(path, name, strlen(name), 0600)) < 0)
        vg_err_sys(err, r, "cannot use %s", name);
    return r;
}

static char *base_of(const char *user) {
    char out[3 * VG_ENV_NAME_MAX + 8] = "u/";
    size_t n = 2;
    for (; *user && n < sizeof(out) - 5; user++)
        if (isalnum((unsigned char)*user) || strchr("._-", *user))
            out[n++] = *user;
        else
            n += (size_t)snprintf(out + n, sizeof(out) - n, "=%02x", (unsigned char)*user);
    snprintf(out + n, sizeof(out) - n, "/");
    return vg_strdup(out);
}

/* The user of "u/<user>/key"; false: it is another key. */
static bool user_of(const char *key, char out[VG_ENV_NAME_MAX + 1]) {
    const char *p = key + 2, *slash = strchr(p, '/');
    size_t n = 0;
    if (strncmp(key, "u/", 2) != 0 || !slash || strcmp(slash, "/key") != 0)
        return false;
    for (; p < slash && n < VG_ENV_NAME_MAX; p++) {
        unsigned c = (unsigned char)*p;
        if (c == '=' && (sscanf(p + 1, "%2x", &c) != 1 || (p += 2) >= slash))
            return false;
        out[n++] = (char)c;
    }
    out[n] = '\0';
    return p == slash && n && *out != '.' && !strchr(out, '/') && strlen(out) == n;
}

static int make_place(void *user, const char *key, uint64_t size) {
    char name[VG_ENV_NAME_MAX + 1];
    (void)size;
    if (!user_of(key, name))
        return 0;
    vg_auto_free char *path = vg_fmt("%s/u/%s", (const char *)user, name);
    return path ? vg_mkdir_p(path, 0700) : -ENOMEM;
}

int vg_estore_join(struct vg_estore *s, struct vg_s3 *bucket, const char *user,
                   uint64_t cache_bytes, struct vg_err *err) {
    struct vg_ebucket *b = vg_alloc(sizeof(*b));
    char *base = base_of(user);
    if (!b || !base) {
        free(b);
        free(base);
        return vg_err_sys(err, -ENOMEM, "cannot use %s", vg_s3_name(bucket));
    }
    *b = (struct vg_ebucket){.s3 = bucket, .base = base, .cache_bytes = cache_bytes};
    pthread_cond_init(&b->changed, NULL);
    vg_list_init(&b->queue);
    vg_list_init(&b->failed);
    s->bucket = b;
    int r = make_folders(s);
    if (r == 0)
        r = count_all(s);
    if (r < 0)
        return vg_err_sys(err, r, "cannot use %s", vg_s3_name(bucket));
    r = meet(s, err);
    if (r == 0 && (r = vg_eb_rescan(s)) < 0)
        vg_err_sys(err, r, "cannot use %s", vg_s3_name(bucket));
    return r;
}

static int have_id(const char *path, char **ret) {
    uint8_t id[ID_LEN / 2];
    size_t n;
    int r = vg_read_file(path, 4096, ret, &n);
    if (r == -ENOENT) {
        vg_random(id, sizeof(id));
        char *text = vg_alloc(ID_LEN + 1);
        if (!text)
            return -ENOMEM;
        vg_hex(id, sizeof(id), text);
        *ret = text;
        return vg_write_file(path, text, ID_LEN, 0600);
    }
    if (r == 0)
        (*ret)[strcspn(*ret, "\n")] = '\0';
    return r;
}

static int own(struct vg_s3 *bucket, const char *id, const char *path, struct vg_err *err) {
    struct vg_buf there = {0};
    int r = vg_s3_get(bucket, "owner", -1, &there, 256, err);
    if (r == -ENOENT) {
        *err = VG_ERR_INIT;
        r = vg_s3_put_bytes(bucket, "owner", id, strlen(id), err);
        if (r == 0) /* of two who come at once one stays */
            r = vg_s3_get(bucket, "owner", -1, &there, 256, err);
    }
    if (r == 0 &&
        (vg_buf_len(&there) != strlen(id) || memcmp(vg_buf_data(&there), id, strlen(id)) != 0))
        r = vg_err_set(
            err, VG_CONFLICT,
            "%s belongs to another cloud: give env.store a prefix of its own, or, if that "
            "cloud is gone for good, put what the object 'owner' says into %s",
            vg_s3_name(bucket), path);
    vg_buf_done(&there);
    return r;
}

int vg_estore_claim(struct vg_s3 *bucket, const char *dir, struct vg_err *err) {
    const char *name = vg_s3_name(bucket);
    vg_auto_free char *path = vg_fmt("%s/cloud", dir), *note = vg_fmt("%s/bucket", dir);
    vg_auto_free char *id = NULL, *before = NULL;
    size_t n;
    int r = path && note ? have_id(path, &id) : -ENOMEM;
    if (r == 0 && vg_read_file(note, 4096, &before, &n) == 0 && strcmp(before, name) == 0)
        return 0; /* it was ours: it need not be there for what is here to be used */
    if (r == 0)
        r = own(bucket, id, path, err);
    if (r == 0)
        r = vg_s3_list(bucket, "u/", make_place, (void *)dir, err);
    if (r == 0)
        r = vg_write_file(note, name, strlen(name), 0600);
    return r < 0 && !err->msg[0] ? vg_err_sys(err, r, "cannot use %s", name) : r;
}
