/* Objects of the cache as files: naming, finding, taking in, dropping. Everything is relative to
   the cache's own folder, which only root can enter; links there are never followed. */
#include "fs/node/cache-int.h"

#include "base/util.h"

#include <dirent.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <string.h>

#define ID_TEXT 44                        /* base64 of an id: short enough to lie in the inode */
#define DROP_AT_ONCE (UINT64_C(16) << 20) /* removing larger files takes a while */
#define NSEC INT64_C(1000000000)

void vg_cache_path(char out[VG_CACHE_PATH], const char *kind, const char *name) {
    snprintf(out, VG_CACHE_PATH, "%s/%.1s/%s", kind, name, name);
}

/* The folder "kind/x" of a path "kind/x/name". */
static int make_folder(struct vg_cache *c, const char *path) {
    char folder[VG_CACHE_PATH];
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = '\0';
    return mkdirat(c->dir, folder, 0700) < 0 && errno != EEXIST ? -errno : 0;
}

static int do_link(struct vg_cache *c, int from_dir, const char *from, const char *to, int flags) {
    int r = vg_fault("cache/link");
    if (r < 0)
        return r;
    if (linkat(from_dir, from, c->dir, to, flags) == 0)
        return 0;
    if (errno != ENOENT || (r = make_folder(c, to)) < 0)
        return r < 0 ? r : -errno;
    return linkat(from_dir, from, c->dir, to, flags) < 0 ? -errno : 0;
}

bool vg_disk_suspect(struct vg_cache *c, const struct stat *st) {
    int64_t at = (int64_t)st->st_mtim.tv_sec * NSEC + st->st_mtim.tv_nsec;
    return at >= atomic_load(&c->suspect_from) && at < atomic_load(&c->suspect_to);
}

/* There as a file of that size that can be believed? 1, 0 (nothing), -ESTALE (not as it must be).
 */
static int look(struct vg_cache *c, const char *path, uint64_t size, struct stat *ret) {
    if (fstatat(c->dir, path, ret, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : -errno;
    return S_ISREG(ret->st_mode) && (uint64_t)ret->st_size == size && !vg_disk_suspect(c, ret)
               ? 1
               : -ESTALE;
}

static void public_path(const uint8_t id[VG_HASH], char out[VG_CACHE_PATH]) {
    char hex[VG_NAME];
    vg_hex(id, VG_HASH, hex);
    snprintf(out, VG_CACHE_PATH, "id/%.2s/%s", hex, hex);
}

/* A file of the operator's store that was found to be bad: not again, until it is repaired. */
static bool shunned(const struct vg_cache *c, const struct stat *st) {
    for (unsigned i = 0; i < VG_MIN(c->n_shunned, (unsigned)VG_COUNT(c->shunned)); i++)
        if (c->shunned[i] == st->st_ino)
            return true;
    return false;
}

void vg_disk_shun(struct vg_cache *c, const struct stat *st) {
    c->shunned[c->n_shunned++ % VG_COUNT(c->shunned)] = st->st_ino;
}

/* An object of the operator's store gets a name here: its bytes are on the disk once. */
static int find_public(struct vg_cache *c, const uint8_t id[VG_HASH], const char *path,
                       uint64_t size, bool *ret_foreign) {
    char from[VG_CACHE_PATH];
    struct stat st;
    if (c->public_dir < 0)
        return 0;
    public_path(id, from);
    if (fstatat(c->public_dir, from, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode) ||
        (uint64_t)st.st_size != size || shunned(c, &st))
        return 0;
    int r = do_link(c, c->public_dir, from, path, 0);
    *ret_foreign = r < 0; /* on another file system, say */
    if (!*ret_foreign) {
        atomic_fetch_add(&c->objects, 1);
        atomic_fetch_add(&c->bytes, VG_OBJECT_COST);
    }
    c->st.public_hits++;
    return 1;
}

int vg_disk_find(struct vg_cache *c, const uint8_t id[VG_HASH], const char *id_name, uint64_t size,
                 bool *ret_foreign) {
    char path[VG_CACHE_PATH];
    struct stat st;
    *ret_foreign = false;
    vg_cache_path(path, "id", id_name);
    int r = look(c, path, size, &st);
    if (r == -ESTALE && vg_disk_drop(c, path, (uint64_t)st.st_size) == 0) {
        atomic_fetch_sub(&c->objects, 1);
        atomic_fetch_sub(&c->bytes, (int64_t)vg_cache_cost((uint64_t)st.st_size));
        c->st.bad++;
    }
    if (r == 1) {
        vg_disk_used(c, id_name);
        return 1;
    }
    return find_public(c, id, path, size, ret_foreign);
}

bool vg_disk_has(struct vg_cache *c, const uint8_t id[VG_HASH], const char *id_name) {
    char path[VG_CACHE_PATH];
    struct stat st;
    vg_cache_path(path, "id", id_name);
    if (fstatat(c->dir, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
        !vg_disk_suspect(c, &st))
        return true;
    if (c->public_dir < 0)
        return false;
    public_path(id, path);
    return fstatat(c->public_dir, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
           !shunned(c, &st);
}

void vg_disk_used(struct vg_cache *c, const char *id_name) {
    char path[VG_CACHE_PATH];
    struct stat st;
    vg_cache_path(path, "id", id_name);
    if (fstatat(c->dir, path, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
        st.st_atim.tv_sec + VG_USE_SEC > (time_t)(vg_wall_usec() / VG_USEC))
        return;
    /* Only the order in which things go depends on it. */
    (void)!utimensat(c->dir, path,
                     (struct timespec[2]){{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_OMIT}},
                     AT_SYMLINK_NOFOLLOW);
}

/* A file without a name, or with one in trash/ where the file system knows no such files. */
int vg_disk_nameless(struct vg_cache *c, char name[VG_CACHE_PATH]) {
    int r = vg_fault("cache/open");
    if (r < 0)
        return r;
    name[0] = '\0';
    int fd = openat(c->dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0444);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT))
        return fd < 0 ? -errno : fd;
    snprintf(name, VG_CACHE_PATH, "trash/new%u", atomic_fetch_add(&c->trash, 1));
    fd = openat(c->dir, name, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0444);
    return fd < 0 ? -errno : fd;
}

static int link_fd(struct vg_cache *c, int fd, const char *name, const char *to) {
    char self[32];
    if (name[0])
        return do_link(c, c->dir, name, to, 0);
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    int r = do_link(c, AT_FDCWD, self, to, AT_SYMLINK_FOLLOW);
    return r == -ENOENT || r == -EXDEV ? do_link(c, fd, "", to, AT_EMPTY_PATH) : r;
}

/* The name is taken: by the same content, or by a wreck that has to go. */
static int taken(struct vg_cache *c, const char *path, uint64_t size) {
    struct stat st;
    int r = look(c, path, size, &st);
    if (r == -ESTALE)
        return vg_disk_drop(c, path, (uint64_t)st.st_size);
    return r;
}

int vg_disk_name(struct vg_cache *c, int fd, const char *name, uint64_t size, const char *id_name) {
    char path[VG_CACHE_PATH];
    vg_cache_path(path, "id", id_name);
    if (fchmod(fd, 0444) < 0)
        return -errno;
    int r = link_fd(c, fd, name, path);
    if (r == -EEXIST && (r = taken(c, path, size)) == 0)
        r = link_fd(c, fd, name, path);
    atomic_store(&c->dirty, true);
    return r;
}

int vg_disk_ingest(struct vg_cache *c, const void *data, size_t n, const char *id_name) {
    char name[VG_CACHE_PATH];
    vg_auto_fd int fd = vg_disk_nameless(c, name);
    if (fd < 0)
        return fd;
    int r = vg_fault("cache/write");
    r = r < 0 ? r : vg_write_full(fd, data, n);
    r = r < 0 ? r : vg_disk_name(c, fd, name, n, id_name);
    if (name[0])
        unlinkat(c->dir, name, 0);
    return r;
}

int vg_disk_adopt(struct vg_cache *c, const char *from, uint64_t size, const char *id_name) {
    char path[VG_CACHE_PATH];
    vg_cache_path(path, "id", id_name);
    if (fchmodat(c->dir, from, 0444, 0) < 0)
        return -errno;
    int r = do_link(c, c->dir, from, path, 0);
    if (r == -EEXIST && (r = taken(c, path, size)) == 0)
        r = do_link(c, c->dir, from, path, 0);
    if (r >= 0)
        unlinkat(c->dir, from, 0);
    atomic_store(&c->dirty, true);
    return r;
}

int vg_disk_unstamp(struct vg_cache *c, const char *stamp, uint8_t ret_id[VG_HASH]) {
    char path[VG_CACHE_PATH], text[ID_TEXT + 2];
    uint8_t raw[ID_TEXT];
    vg_cache_path(path, "stamp", stamp);
    ssize_t n = readlinkat(c->dir, path, text, sizeof text);
    if (n < 0)
        return -errno;
    if (n != ID_TEXT || EVP_DecodeBlock(raw, (const uint8_t *)text, ID_TEXT) != VG_HASH + 1)
        return -EBADMSG;
    memcpy(ret_id, raw, VG_HASH);
    return 0;
}

int vg_disk_stamp(struct vg_cache *c, const char *stamp, const uint8_t id[VG_HASH]) {
    char path[VG_CACHE_PATH];
    uint8_t text[ID_TEXT + 1], old[VG_HASH];
    EVP_EncodeBlock(text, id, VG_HASH);
    vg_cache_path(path, "stamp", stamp);
    for (int try = 0;; try++) {
        int r = vg_fault("cache/stamp");
        if (r < 0)
            return r;
        if (symlinkat((const char *)text, c->dir, path) == 0)
            return 0;
        r = -errno;
        if (try == 2)
            return r;
        if (r == -ENOENT)
            r = make_folder(c, path);
        else if (r == -EEXIST && vg_disk_unstamp(c, stamp, old) == 0 &&
                 memcmp(old, id, VG_HASH) == 0)
            return 0;
        else if (r == -EEXIST)
            r = unlinkat(c->dir, path, 0) < 0 ? -errno : 0;
        if (r < 0)
            return r;
    }
}

int vg_disk_open(struct vg_cache *c, const char *id_name, const uint8_t id[VG_HASH], bool foreign) {
    char path[VG_CACHE_PATH];
    int r = vg_fault("cache/open");
    if (r < 0)
        return r;
    if (foreign)
        public_path(id, path);
    else
        vg_cache_path(path, "id", id_name);
    r = openat(foreign ? c->public_dir : c->dir, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    return r < 0 ? -errno : r;
}

int vg_disk_trash(struct vg_cache *c, const char *path, char ret_trash[VG_CACHE_PATH]) {
    int r = vg_fault("cache/drop");
    if (r < 0)
        return r;
    snprintf(ret_trash, VG_CACHE_PATH, "trash/%u", atomic_fetch_add(&c->trash, 1));
    return renameat(c->dir, path, c->dir, ret_trash) < 0 ? -errno : 0;
}

int vg_disk_drop(struct vg_cache *c, const char *path, uint64_t size) {
    char trash[VG_CACHE_PATH];
    if (size >= DROP_AT_ONCE)
        return vg_disk_trash(c, path, trash);
    int r = vg_fault("cache/drop");
    if (r < 0)
        return r;
    return unlinkat(c->dir, path, 0) < 0 ? -errno : 0;
}

static int empty_one(void *user, const char *name) {
    struct vg_cache *c = user;
    if (!c->opening && name[0] == 'n')
        return 0; /* somebody writes it now */
    char path[sizeof "trash/" + NAME_MAX];
    snprintf(path, sizeof path, "trash/%s", name);
    unlinkat(c->dir, path, 0);
    return 0;
}

void vg_disk_empty_trash(struct vg_cache *c) {
    (void)vg_disk_list(c, "trash", empty_one, c);
}

int vg_disk_list(struct vg_cache *c, const char *folder, int (*each)(void *user, const char *name),
                 void *user) {
    int fd = openat(c->dir, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    DIR *d = fdopendir(fd);
    if (!d) {
        close(fd);
        return -ENOMEM;
    }
    int r = 0;
    struct dirent *e;
    for (errno = 0; r == 0 && (e = readdir(d)); errno = 0)
        if (e->d_name[0] != '.')
            r = each(user, e->d_name);
    if (r == 0 && errno)
        r = -errno;
    closedir(d);
    return r;
}

int vg_disk_walk(struct vg_cache *c, const char *kind, int (*each)(void *user, const char *name),
                 void *user) {
    char folder[16];
    int r = 0;
    for (unsigned i = 0; i < VG_CACHE_FOLDERS && r == 0; i++) {
        snprintf(folder, sizeof folder, "%s/%x", kind, i);
        r = vg_disk_list(c, folder, each, user);
    }
    return r;
}

struct old {
    struct vg_cache *c;
    const char *kind;
    char folder[16];
};

static int drop_old_file(void *user, const char *name) {
    struct old *o = user;
    char path[sizeof o->folder + NAME_MAX + 2];
    snprintf(path, sizeof path, "%s/%s", o->folder, name);
    unlinkat(o->c->dir, path, 0);
    return 0;
}

static int drop_old_folder(void *user, const char *name) {
    struct old *o = user;
    if (strlen(name) != 2)
        return 0;
    snprintf(o->folder, sizeof o->folder, "%s/%.2s", o->kind, name);
    (void)vg_disk_list(o->c, o->folder, drop_old_file, o);
    unlinkat(o->c->dir, o->folder, AT_REMOVEDIR);
    return 0;
}

void vg_disk_drop_old(struct vg_cache *c) {
    static const char *const kinds[] = {"id", "stamp"};
    for (size_t i = 0; i < VG_COUNT(kinds); i++) {
        struct old o = {.c = c, .kind = kinds[i]};
        (void)vg_disk_list(c, kinds[i], drop_old_folder, &o);
    }
}
