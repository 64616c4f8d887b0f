/* The store's folder, its sessions, and objects in it. */
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/estore-bucket.h"

#include <dirent.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/stat.h>

void vg_e_path(const struct vg_estore *s, enum vg_ekind kind, const uint8_t hash[VG_HASH],
               char out[80]) {
    char name[65];
    vg_cache_name(s->key, hash, name);
    snprintf(out, 80, "%s/%.2s/%s", kind == VG_E_DATA ? "dat" : "rec", name, name);
}

static int make_folders(struct vg_estore *s) {
    static const char *const tops[] = {"env", "hold", "tmp", "dat", "rec"};
    for (size_t i = 0; i < VG_COUNT(tops); i++) {
        char path[16];
        if (mkdirat(s->dir, tops[i], 0700) < 0 && errno != EEXIST)
            return -errno;
        for (unsigned k = 0; i >= 3 && k < 256; k++) {
            snprintf(path, sizeof(path), "%s/%02x", tops[i], k);
            if (mkdirat(s->dir, path, 0700) < 0 && errno != EEXIST)
                return -errno;
        }
    }
    return 0;
}

/* What an earlier life was writing is nobody's. */
static int empty_temp(struct vg_estore *s) {
    int fd = openat(s->dir, "tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d)
        return -errno;
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.')
            unlinkat(fd, e->d_name, 0);
    closedir(d);
    return 0;
}

static int load_key(struct vg_estore *s) {
    vg_auto_free char *path = vg_fmt("%s/key", s->path), *data = NULL;
    size_t n;
    if (!path)
        return -ENOMEM;
    int r = vg_read_file(path, 4096, &data, &n);
    if (r == -ENOENT) {
        vg_random(s->key, sizeof(s->key));
        return vg_write_file(path, s->key, sizeof(s->key), 0400);
    }
    if (r < 0)
        return r;
    if (n != VG_HASH)
        return -EBADMSG;
    memcpy(s->key, data, VG_HASH);
    return 0;
}

static int load_gen(struct vg_estore *s) {
    vg_auto_free char *path = vg_fmt("%s/gen", s->path), *data = NULL;
    size_t n;
    if (!path)
        return -ENOMEM;
    int r = vg_read_file(path, 64, &data, &n);
    s->gen = 1;
    if (r == -ENOENT)
        return 0;
    if (r < 0)
        return r;
    data[strcspn(data, "\n")] = '\0';
    return vg_parse_u64(data, &s->gen);
}

int vg_e_each_name(struct vg_estore *s, const char *top,
                   int (*each)(void *user, int dir, const char *name), void *user) {
    int r = 0;
    for (unsigned k = 0; r >= 0 && k < 256; k++) {
        char path[16];
        snprintf(path, sizeof(path), "%s/%02x", top, k);
        int fd = openat(s->dir, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *d = fd < 0 ? NULL : fdopendir(fd);
        if (!d)
            return -errno;
        for (struct dirent *e; r >= 0 && (e = readdir(d));)
            if (strlen(e->d_name) == 64)
                r = each(user, fd, e->d_name);
        closedir(d);
    }
    return r < 0 ? r : 0;
}

static int count(void *user, int dir, const char *name) {
    struct vg_estore *s = user;
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        s->bytes += (uint64_t)st.st_size;
        s->objects++;
    }
    return 0;
}

int vg_e_count(struct vg_estore *s) {
    int r = vg_e_each_name(s, "dat", count, s);
    return r < 0 ? r : vg_e_each_name(s, "rec", count, s);
}

static int open_all(struct vg_estore *s) {
    int r = vg_mkdir_p(s->path, 0700);
    if (r < 0)
        return r;
    s->dir = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->dir < 0)
        return -errno;
    r = make_folders(s);
    if (r == 0)
        r = empty_temp(s);
    if (r == 0)
        r = load_key(s);
    if (r == 0)
        r = load_gen(s);
    return r == 0 ? vg_e_count(s) : r;
}

int vg_estore_open(const char *dir, uint64_t quota_bytes, struct vg_estore **ret,
                   struct vg_err *err) {
    struct vg_estore *s = vg_alloc(sizeof(*s));
    if (!s)
        return vg_err_sys(err, -ENOMEM, "cannot open the store %s", dir);
    s->dir = -1;
    s->quota_bytes = quota_bytes;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->refs, NULL);
    s->path = vg_strdup(dir);
    int r = s->path ? open_all(s) : -ENOMEM;
    if (r < 0) {
        vg_estore_close(s);
        return vg_err_sys(err, r, "cannot open the store of environments in %s", dir);
    }
    *ret = s;
    return 0;
}

void vg_estore_close(struct vg_estore *s) {
    if (!s)
        return;
    vg_eb_leave(s);
    pthread_mutex_destroy(&s->refs);
    pthread_mutex_destroy(&s->lock);
    vg_close(&s->dir);
    free(s->path);
    free(s);
}

void vg_estore_stats(struct vg_estore *s, struct vg_estore_stat *ret) {
    pthread_mutex_lock(&s->lock);
    *ret = (struct vg_estore_stat){
        .bytes = s->bytes, .objects = s->objects, .quota_bytes = s->quota_bytes};
    for (struct vg_esession *e = s->sessions; e; e = e->next)
        ret->sessions++;
    vg_eb_stats(s, ret);
    pthread_mutex_unlock(&s->lock);
}

int vg_estore_over_quota(struct vg_estore *s, struct vg_err *err) {
    char may[32], has[32];
    struct vg_estore_stat st;
    vg_estore_stats(s, &st);
    return vg_err_set(
        err, VG_NO_CAPACITY,
        "it does not fit into your quota: you may keep %s of environments and have %s: "
        "'virga env rm' makes room",
        vg_format_size(st.quota_bytes, may, sizeof(may)),
        vg_format_size(st.bytes, has, sizeof(has)));
}

struct vg_esession *vg_esession_begin(struct vg_estore *s) {
    struct vg_esession *e = vg_alloc(sizeof(*e));
    if (!e)
        return NULL;
    pthread_mutex_lock(&s->lock);
    *e = (struct vg_esession){.store = s, .next = s->sessions, .gen = s->gen};
    s->sessions = e;
    pthread_mutex_unlock(&s->lock);
    return e;
}

void vg_esession_end(struct vg_esession *e) {
    if (!e)
        return;
    struct vg_estore *s = e->store;
    pthread_mutex_lock(&s->lock);
    struct vg_esession **p = &s->sessions;
    while (*p != e)
        p = &(*p)->next;
    *p = e->next;
    pthread_mutex_unlock(&s->lock);
    free(e);
}

int vg_e_touch(struct vg_estore *s, const char *path) {
    const struct timespec t[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = (time_t)s->gen}};
    char mark[VG_EB_MARK_MAX];
    if (s->bucket && strncmp(path, "tmp/", 4) != 0) {
        snprintf(mark, sizeof(mark), "up/%s", path);
        if (utimensat(s->dir, mark, t, AT_SYMLINK_NOFOLLOW) == 0)
            return 0;
    }
    return utimensat(s->dir, path, t, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

bool vg_estore_has(struct vg_estore *s, enum vg_ekind kind, const uint8_t hash[VG_HASH]) {
    char path[80];
    vg_e_path(s, kind, hash, path);
    pthread_mutex_lock(&s->lock);
    bool has = vg_e_touch(s, path) == 0;
    pthread_mutex_unlock(&s->lock);
    return has;
}

int vg_estore_open_data(struct vg_estore *s, const uint8_t id[VG_HASH]) {
    char path[80];
    vg_e_path(s, VG_E_DATA, id, path);
    if (s->bucket)
        return vg_eb_open(s, VG_E_DATA, id, path);
    int fd = openat(s->dir, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? -errno : fd;
}

int vg_e_temp(struct vg_estore *s, char name[40]) {
    int r = vg_fault("estore temp");
    if (r < 0)
        return r;
    uint64_t id = vg_id_new();
    snprintf(name, 40, "tmp/%016llx", (unsigned long long)id);
    int fd = openat(s->dir, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    return fd < 0 ? -errno : fd;
}

int vg_e_place(struct vg_estore *s, const char *temp, int fd, uint64_t n, enum vg_ekind kind,
               const uint8_t hash[VG_HASH]) {
    char path[80];
    vg_e_path(s, kind, hash, path);
    int r = vg_fault("estore place");
    pthread_mutex_lock(&s->lock);
    if (r == 0 && vg_e_touch(s, path) == 0) {
        unlinkat(s->dir, temp, 0);
        goto out;
    }
    if (r == 0 && s->quota_bytes && s->bytes + n > s->quota_bytes)
        r = -EDQUOT;
    if (r == 0 && fchmod(fd, 0400) < 0)
        r = -errno;
    if (r == 0)
        r = vg_e_touch(s, temp);
    if (r == 0 && renameat(s->dir, temp, s->dir, path) < 0)
        r = -errno;
    if (r == 0) {
        s->bytes += n;
        s->objects++;
        vg_eb_stored(s, path);
    }
out:
    pthread_mutex_unlock(&s->lock);
    return r;
}

static int put(struct vg_estore *s, const void *data, size_t n, const uint8_t hash[VG_HASH]) {
    char temp[40];
    vg_auto_fd int fd = vg_e_temp(s, temp);
    if (fd < 0)
        return fd;
    int r = vg_write_full(fd, data, n);
    if (r == 0)
        r = vg_e_place(s, temp, fd, n, VG_E_REC, hash);
    if (r < 0)
        unlinkat(s->dir, temp, 0);
    return r;
}

int vg_estore_put_rec(struct vg_estore *s, const void *data, size_t n, uint8_t ret_hash[VG_HASH]) {
    if (n > VG_SNAP_REC_MAX)
        return -EFBIG;
    uint8_t hash[VG_HASH];
    vg_leaf_hash(data, n, hash);
    int r = vg_estore_has(s, VG_E_REC, hash) ? 0 : put(s, data, n, hash);
    if (r == 0)
        memcpy(ret_hash, hash, VG_HASH);
    return r;
}

int vg_estore_get_rec(struct vg_estore *s, const uint8_t hash[VG_HASH], struct vg_buf *out) {
    char path[80];
    vg_e_path(s, VG_E_REC, hash, path);
    vg_auto_fd int fd = s->bucket ? vg_eb_open(s, VG_E_REC, hash, path)
                                  : openat(s->dir, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    if (fd < 0 && s->bucket)
        return fd;
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    if (st.st_size > VG_SNAP_REC_MAX)
        return -EBADMSG;
    size_t n = (size_t)st.st_size;
    uint8_t *p = vg_buf_reserve(out, n ? n : 1);
    if (!p)
        return -ENOMEM;
    ssize_t got = vg_read_full(fd, p, n);
    if (got < 0)
        return (int)got;
    uint8_t is[VG_HASH];
    vg_leaf_hash(p, (size_t)got, is);
    if (memcmp(is, hash, VG_HASH) != 0)
        return -EBADMSG;
    vg_buf_commit(out, (size_t)got);
    return 0;
}

int vg_e_sync(struct vg_estore *s) {
    int r = vg_fault("estore sync");
    if (r == 0 && syncfs(s->dir) < 0)
        r = -errno;
    return r;
}

int vg_estore_hold_root(struct vg_estore *s, const uint8_t root[VG_HASH]) {
    pthread_mutex_lock(&s->lock);
    int r = s->n_held < VG_E_HELD_MAX ? 0 : -ENOSPC;
    if (r == 0)
        memcpy(s->held[s->n_held++], root, VG_HASH);
    pthread_mutex_unlock(&s->lock);
    return r;
}

void vg_estore_drop_root(struct vg_estore *s, const uint8_t root[VG_HASH]) {
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->n_held; i++)
        if (memcmp(s->held[i], root, VG_HASH) == 0) {
            memcpy(s->held[i], s->held[--s->n_held], VG_HASH);
            break;
        }
    pthread_mutex_unlock(&s->lock);
}
