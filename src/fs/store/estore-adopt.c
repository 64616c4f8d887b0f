/* What the bucket has is compared with what is known here, and what nothing holds is deleted there.

   Deleting is safe whatever else happens, because a key is never used twice: when an object is
   removed, its mark becomes an entry of del/ in one step, and from then on nobody can find that
   key. A content that is stored again gets another. What an upload left without a mark (a kill
   between the two) is found in the list; it is taken over when it is really there and nobody is
   working on it, and goes the way of everything that nothing holds. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/estore-bucket.h"
#include "fs/store/s3.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

/* ------------------------------------------------------------------ objects */

struct found {
    char path[80]; /* "dat/xx/<name>" */
    char suffix[VG_EB_SUFFIX + 1];
    uint64_t size;
};
struct listing {
    struct vg_estore *s;
    struct found *v; /* owned: keys that no mark names */
    size_t n, cap;
};

static bool is_hex(const char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!strchr("0123456789abcdef", p[i]) || !p[i])
            return false;
    return true;
}

/* "dat/xx/<64 digits>-<16 digits>"; anything else below the prefix is not ours and stays. */
static bool parse_key(const char *below, struct found *ret) {
    const char *name = below + 7, *dash = name + 64;
    if (strlen(below) != 7 + 64 + 1 + VG_EB_SUFFIX || below[6] != '/' ||
        (strncmp(below, "dat/", 4) != 0 && strncmp(below, "rec/", 4) != 0) || !is_hex(name, 64) ||
        *dash != '-' || !is_hex(dash + 1, VG_EB_SUFFIX) || strncmp(below + 4, name, 2) != 0)
        return false;
    snprintf(ret->path, sizeof(ret->path), "%.*s", 7 + 64, below);
    snprintf(ret->suffix, sizeof(ret->suffix), "%s", dash + 1);
    return true;
}

static void doomed_name(const struct found *f, char out[96]) {
    snprintf(out, 96, "del/%c%s-%s", f->path[0], f->path + 7, f->suffix);
}

/* Nobody here knows that key: locked. */
static bool is_unknown(struct vg_estore *s, const char *key, const struct found *f) {
    char suffix[VG_EB_SUFFIX + 1], doomed[96];
    uint64_t size;
    doomed_name(f, doomed);
    if (vg_map_get(&s->bucket->flying, key) ||
        faccessat(s->dir, doomed, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        return false;
    return vg_eb_mark(s, f->path, suffix, &size) < 0 || strcmp(suffix, f->suffix) != 0;
}

static int on_key(void *user, const char *key, uint64_t size) {
    struct listing *l = user;
    struct found f = {.size = size};
    size_t n = strlen(l->s->bucket->base);
    if (strncmp(key, l->s->bucket->base, n) != 0 || !parse_key(key + n, &f))
        return 0;
    pthread_mutex_lock(&l->s->lock);
    bool unknown = is_unknown(l->s, key, &f);
    pthread_mutex_unlock(&l->s->lock);
    void *grown = unknown ? vg_grow(l->v, &l->cap, l->n + 1, sizeof(f)) : l->v;
    if (unknown && !grown)
        return -ENOMEM;
    l->v = grown;
    if (unknown)
        l->v[l->n++] = f;
    return 0;
}

/* Locked: the mark names it from now on. */
static int point_to(struct vg_estore *s, const struct found *f, bool fresh) {
    struct stat st;
    bool here = fstatat(s->dir, f->path, &st, AT_SYMLINK_NOFOLLOW) == 0;
    int r = vg_eb_set_mark(s, f->path, f->suffix, f->size,
                           here ? VG_MIN((uint64_t)st.st_mtime, s->gen) : 0);
    if (r < 0 || !fresh)
        return r;
    if (!here) {
        s->bytes += f->size;
        s->objects++;
    } else if (f->path[0] == 'd') {
        s->bucket->cached += (uint64_t)st.st_size;
    }
    return 0;
}

/* Two keys for one content: the one that the mark names stays, if it is there. */
static int settle_twin(struct vg_estore *s, const struct found *f, const char *key,
                       struct vg_err *err) {
    char suffix[VG_EB_SUFFIX + 1];
    uint64_t size;
    if (vg_eb_mark(s, f->path, suffix, &size) < 0)
        return 0; /* gone meanwhile: the next collection looks again */
    vg_auto_free char *other = vg_eb_key(s, f->path, suffix);
    int r = other ? vg_s3_size(s->bucket->s3, other, &size, err) : -ENOMEM;
    if (r == 0)
        return vg_s3_delete(s->bucket->s3, key, err);
    if (r != -ENOENT)
        return r;
    *err = VG_ERR_INIT;
    pthread_mutex_lock(&s->lock);
    r = point_to(s, f, false);
    pthread_mutex_unlock(&s->lock);
    return r;
}

static int adopt_one(struct vg_estore *s, const struct found *f, bool verify, struct vg_err *err) {
    char suffix[VG_EB_SUFFIX + 1];
    uint64_t size = f->size;
    vg_auto_free char *key = vg_eb_key(s, f->path, f->suffix);
    if (!key)
        return -ENOMEM;
    pthread_mutex_lock(&s->lock);
    bool unknown = is_unknown(s, key, f), twin = vg_eb_mark(s, f->path, suffix, &size) == 0;
    pthread_mutex_unlock(&s->lock);
    if (!unknown)
        return 0;
    /* whoever uploaded it has left; it may have deleted it then, so the list proves nothing */
    size = f->size;
    int r = verify ? vg_s3_size(s->bucket->s3, key, &size, err) : 0;
    if (r == -ENOENT || (r == 0 && size != f->size)) {
        *err = VG_ERR_INIT;
        return 0;
    }
    if (r < 0)
        return r;
    if (twin)
        return settle_twin(s, f, key, err);
    pthread_mutex_lock(&s->lock);
    if (vg_eb_mark(s, f->path, suffix, &size) == -ENOENT)
        r = point_to(s, f, true);
    pthread_mutex_unlock(&s->lock);
    return r;
}

int vg_eb_adopt(struct vg_estore *s, bool verify, struct vg_err *err) {
    static const char *const tops[] = {"dat/", "rec/"};
    struct listing l = {.s = s};
    int r = 0;
    for (size_t i = 0; r == 0 && i < VG_COUNT(tops); i++) {
        vg_auto_free char *below = vg_fmt("%s%s", s->bucket->base, tops[i]);
        r = below ? vg_s3_list(s->bucket->s3, below, on_key, &l, err) : -ENOMEM;
    }
    for (size_t i = 0; r == 0 && i < l.n; i++)
        r = adopt_one(s, &l.v[i], verify, err);
    free(l.v);
    return r < 0 && !err->msg[0]
               ? vg_err_sys(err, r, "cannot compare with %s", vg_s3_name(s->bucket->s3))
               : r;
}

/* ------------------------------------------------------------------ versions */

struct refs {
    struct vg_estore *s;
    struct vg_map there; /* "env/<name>/<n>" -> itself, owned */
    struct vg_err *err;
};

static bool ref_good(const char *path) {
    const char *name = path + 4, *slash = strchr(name, '/');
    uint64_t n;
    if (strncmp(path, "env/", 4) != 0 || !slash || slash == name || *name == '.' ||
        strlen(path) >= VG_E_FOLDER_MAX + 10)
        return false;
    return strcmp(slash + 1, "teams") == 0 ||
           (vg_parse_u64(slash + 1, &n) == 0 && n > 0 && n <= VG_ENV_VERSIONS_MAX);
}

static int on_ref(void *user, const char *key, uint64_t size) {
    struct refs *f = user;
    size_t n = strlen(f->s->bucket->base);
    (void)size;
    if (strncmp(key, f->s->bucket->base, n) != 0 || !ref_good(key + n))
        return 0;
    char *own = vg_strdup(key + n);
    if (!own || vg_map_put(&f->there, own, own) < 0) {
        free(own);
        return -ENOMEM;
    }
    return 0;
}

static int take_ref(struct vg_estore *s, const char *path, struct vg_err *err) {
    vg_auto_free char *key = vg_fmt("%s%s", s->bucket->base, path);
    vg_auto_free char *full = vg_fmt("%s/%s", s->path, path);
    struct vg_buf b = {0};
    char folder[VG_E_FOLDER_MAX + 16];
    if (!key || !full)
        return -ENOMEM;
    int r = vg_s3_get(s->bucket->s3, key, -1, &b, VG_ENV_CONFIG_MAX + 4096, err);
    if (r == -ENOENT) {
        *err = VG_ERR_INIT;
        vg_buf_done(&b);
        return 0;
    }
    size_t n = vg_buf_len(&b);
    if (r == 0)
        r = vg_buf_append(&b, "", 1);
    bool teams = strcmp(strrchr(path, '/'), "/teams") == 0;
    if (r == 0 && !teams && vg_e_version_check((char *)vg_buf_data(&b)) < 0)
        r = vg_err_set(err, VG_PROTOCOL, "%s: %s is no version of an environment",
                       vg_s3_name(s->bucket->s3), key);
    snprintf(folder, sizeof(folder), "%.*s", (int)(strrchr(path, '/') - path), path);
    if (r == 0 && mkdirat(s->dir, folder, 0700) < 0 && errno != EEXIST)
        r = -errno;
    if (r == 0)
        r = vg_write_file(full, vg_buf_data(&b), n, 0600);
    vg_buf_done(&b);
    return r;
}

/* What is a version here and not there goes up when everything it names has. */
static int push_folder(struct refs *f, const char *name) {
    char path[VG_E_FOLDER_MAX + 300];
    snprintf(path, sizeof(path), "env/%.*s", VG_E_FOLDER_MAX, name);
    int fd = openat(f->s->dir, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d)
        return -errno;
    for (struct dirent *e; (e = readdir(d));) {
        snprintf(path, sizeof(path), "env/%.*s/%s", VG_E_FOLDER_MAX, name, e->d_name);
        if (!ref_good(path) || vg_map_get(&f->there, path))
            continue;
        pthread_mutex_lock(&f->s->lock);
        vg_eb_stored(f->s, path);
        pthread_mutex_unlock(&f->s->lock);
    }
    closedir(d);
    return 0;
}

static int push_refs(struct refs *f) {
    int fd = openat(f->s->dir, "env", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d)
        return -errno;
    for (struct dirent *e; r == 0 && (e = readdir(d));)
        if (e->d_name[0] != '.')
            r = push_folder(f, e->d_name);
    closedir(d);
    return r;
}

int vg_eb_adopt_refs(struct vg_estore *s, struct vg_err *err) {
    struct refs f = {.s = s, .err = err};
    vg_auto_free char *below = vg_fmt("%senv/", s->bucket->base);
    pthread_mutex_lock(&s->refs); /* nobody adds or removes one meanwhile */
    int r = below ? vg_s3_list(s->bucket->s3, below, on_ref, &f, err) : -ENOMEM;
    vg_map_for_each (slot, &f.there)
        if (r == 0 && faccessat(s->dir, slot->value, F_OK, 0) < 0)
            r = take_ref(s, slot->value, err);
    if (r == 0)
        r = push_refs(&f);
    pthread_mutex_unlock(&s->refs);
    vg_map_for_each (slot, &f.there)
        free(slot->value);
    vg_map_done(&f.there);
    return r < 0 && !err->msg[0]
               ? vg_err_sys(err, r, "cannot compare with %s", vg_s3_name(s->bucket->s3))
               : r;
}

/* ------------------------------------------------------------------ collecting */

int vg_eb_sweep(struct vg_estore *s, const char *top, const char *name, uint64_t limit,
                struct vg_egc_stat *st) {
    struct found f;
    char mark[VG_EB_MARK_MAX], doomed[96];
    struct stat is;
    int r = 0;
    snprintf(f.path, sizeof(f.path), "%s/%.2s/%s", top, name, name);
    snprintf(mark, sizeof(mark), "up/%s", f.path);
    pthread_mutex_lock(&s->lock);
    bool there = vg_eb_mark(s, f.path, f.suffix, &f.size) == 0;
    bool here = fstatat(s->dir, f.path, &is, AT_SYMLINK_NOFOLLOW) == 0;
    if (here && !there)
        f.size = (uint64_t)is.st_size;
    uint64_t copy = here ? (uint64_t)is.st_size : 0;
    if (there && fstatat(s->dir, mark, &is, AT_SYMLINK_NOFOLLOW) < 0)
        r = -errno;
    if (r == 0 && (here || there) && (uint64_t)is.st_mtime >= limit) {
        st->kept_young++;
    } else if (r == 0 && (here || there)) {
        doomed_name(&f, doomed);
        if (there && renameat(s->dir, mark, s->dir, doomed) < 0)
            r = -errno;
        if (r == 0 && here)
            unlinkat(s->dir, f.path, 0);
        if (r == 0) {
            if (here && there && top[0] == 'd')
                s->bucket->cached -= VG_MIN(copy, s->bucket->cached);
            s->bytes -= VG_MIN(f.size, s->bytes);
            s->objects -= s->objects ? 1 : 0;
            st->removed++;
            st->removed_bytes += f.size;
        }
    }
    pthread_mutex_unlock(&s->lock);
    return r;
}

/* What cannot be deleted now is tried again by the next collection. */
void vg_eb_delete_swept(struct vg_estore *s) {
    struct vg_err err = VG_ERR_INIT;
    int fd = s->bucket ? openat(s->dir, "del", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        vg_close(&fd);
        return;
    }
    for (struct dirent *e; (e = readdir(d));) {
        const char *n = e->d_name;
        if (strlen(n) != 1 + 64 + 1 + VG_EB_SUFFIX)
            continue;
        vg_auto_free char *key =
            vg_fmt("%s%s/%.2s/%s", s->bucket->base, n[0] == 'd' ? "dat" : "rec", n + 1, n + 1);
        if (!key || vg_s3_delete(s->bucket->s3, key, &err) < 0) {
            vg_warn("%s", err.msg[0] ? err.msg : "out of memory");
            break;
        }
        unlinkat(fd, n, 0);
    }
    closedir(d);
}

static bool nobody_uploads(void *user, const char *key) {
    struct vg_estore *s = user;
    pthread_mutex_lock(&s->lock);
    bool flies = vg_map_get(&s->bucket->flying, key);
    pthread_mutex_unlock(&s->lock);
    return !flies;
}

int vg_eb_compare(struct vg_estore *s, struct vg_err *err) {
    if (!s->bucket)
        return 0;
    vg_eb_delete_swept(s);
    int r = vg_eb_adopt_refs(s, err);
    if (r == 0)
        r = vg_eb_adopt(s, true, err);
    if (r == 0)
        r = vg_s3_drop_uploads(s->bucket->s3, s->bucket->base, nobody_uploads, s, err);
    if (r == 0 && (r = vg_eb_rescan(s)) < 0)
        vg_err_sys(err, r, "cannot compare with %s", vg_s3_name(s->bucket->s3));
    return r;
}
