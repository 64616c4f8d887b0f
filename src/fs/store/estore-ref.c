/* Names: environments with their versions and readers, and what tasks hold. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/estore-bucket.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define TEAMS_MAX (64u << 10)
#define FOLDER_MAX VG_E_FOLDER_MAX

void vg_eversion_done(struct vg_eversion *v) {
    free(v->config);
    *v = (struct vg_eversion){0};
}

int vg_env_name_check(const char *name, struct vg_err *err) {
    size_t n = strlen(name);
    bool good = n > 0 && n <= VG_ENV_NAME_MAX && name[0] != '.' && name[0] != '/' &&
                name[n - 1] != '/' && !strstr(name, "..") && !strstr(name, "//");
    for (size_t i = 0; good && i < n; i++)
        good = isalnum((unsigned char)name[i]) || strchr("._-/:@+", name[i]);
    if (!good)
        return vg_err_set(err, VG_INVALID,
                          "'%.80s' cannot be an environment's name: use letters, digits and "
                          "._-/:@+, at most %d",
                          name, VG_ENV_NAME_MAX);
    return 0;
}

int vg_env_ref_parse(const char *ref, char owner[VG_ENV_NAME_MAX + 1],
                     char name[VG_ENV_NAME_MAX + 1], uint32_t *ret_version, struct vg_err *err) {
    const char *slashes = strstr(ref, "//"), *at = strrchr(ref, '@');
    owner[0] = '\0';
    if (slashes) {
        if (slashes == ref || slashes - ref > VG_ENV_NAME_MAX)
            return vg_err_set(err, VG_INVALID, "'%.80s': the owner before // is missing", ref);
        snprintf(owner, VG_ENV_NAME_MAX + 1, "%.*s", (int)(slashes - ref), ref);
        ref = slashes + 2;
    }
    uint64_t version = 0;
    size_t n = strlen(ref);
    if (at && at >= ref && vg_parse_u64(at + 1, &version) == 0) {
        if (version == 0 || version > VG_ENV_VERSIONS_MAX)
            return vg_err_set(err, VG_INVALID, "'%.80s': versions are numbers from 1", ref);
        n = (size_t)(at - ref);
    }
    if (n > VG_ENV_NAME_MAX)
        n = VG_ENV_NAME_MAX + 1; /* the check says so */
    char text[VG_ENV_NAME_MAX + 2];
    snprintf(text, sizeof(text), "%.*s", (int)n, ref);
    int r = vg_env_name_check(text, err);
    if (r < 0)
        return r;
    memcpy(name, text, strlen(text) + 1);
    *ret_version = (uint32_t)version;
    return 0;
}

/* "env/<name>" with what cannot be a file's name written as %xx. */
static void folder_of(const char *name, char out[FOLDER_MAX]) {
    size_t n = (size_t)snprintf(out, FOLDER_MAX, "env/");
    for (; *name; name++)
        if (*name == '/')
            n += (size_t)snprintf(out + n, FOLDER_MAX - n, "%%2f");
        else
            out[n++] = *name;
    out[n] = '\0';
}

static void name_of(const char *file, char out[VG_ENV_NAME_MAX + 1]) {
    size_t n = 0;
    for (; *file && n < VG_ENV_NAME_MAX; file++) {
        out[n++] = strncmp(file, "%2f", 3) == 0 ? '/' : *file;
        if (*file == '%')
            file += 2;
    }
    out[n] = '\0';
}

static int format(const struct vg_eversion *v, struct vg_buf *out) {
    char hex[2 * VG_HASH + 1];
    vg_hex(v->root, VG_HASH, hex);
    int r =
        vg_buf_printf(out, "root %s\ncreated %llu\nfiles %llu\nbytes %llu\nmissing %u\nsource %s\n",
                      hex, (unsigned long long)v->created_usec, (unsigned long long)v->files,
                      (unsigned long long)v->bytes, v->missing, v->source);
    if (r == 0 && v->config)
        r = vg_buf_printf(out, "config\n%s", v->config);
    return r;
}

static int parse_hex(const char *s, uint8_t out[VG_HASH]) {
    if (strlen(s) != 2 * VG_HASH)
        return -EBADMSG;
    for (size_t i = 0; i < VG_HASH; i++) {
        unsigned v;
        char two[3] = {s[2 * i], s[2 * i + 1]};
        if (!isxdigit((unsigned char)two[0]) || !isxdigit((unsigned char)two[1]) ||
            sscanf(two, "%x", &v) != 1)
            return -EBADMSG;
        out[i] = (uint8_t)v;
    }
    return 0;
}

static int parse_line(const char *key, const char *value, struct vg_eversion *v) {
    uint64_t n = 0;
    if (strcmp(key, "root") == 0)
        return parse_hex(value, v->root);
    if (strcmp(key, "source") == 0) {
        snprintf(v->source, sizeof(v->source), "%s", value);
        return 0;
    }
    if (vg_parse_u64(value, &n) < 0)
        return -EBADMSG;
    if (strcmp(key, "created") == 0)
        v->created_usec = n;
    else if (strcmp(key, "files") == 0)
        v->files = n;
    else if (strcmp(key, "bytes") == 0)
        v->bytes = n;
    else if (strcmp(key, "missing") == 0)
        v->missing = (uint32_t)n;
    return 0; /* keys of later programs are no error */
}

static int parse(char *text, struct vg_eversion *ret) {
    struct vg_eversion v = {0};
    bool root = false;
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        if (strcmp(line, "config") == 0) {
            v.config = vg_strdup(end + 1);
            if (!v.config)
                return -ENOMEM;
            break;
        }
        char *space = strchr(line, ' ');
        if (!space)
            return -EBADMSG;
        *space = '\0';
        if (parse_line(line, space + 1, &v) < 0)
            return -EBADMSG;
        root = root || strcmp(line, "root") == 0;
    }
    if (!root) {
        vg_eversion_done(&v);
        return -EBADMSG;
    }
    *ret = v;
    return 0;
}

static char *full(struct vg_estore *s, const char *below) {
    return vg_fmt("%s/%s", s->path, below);
}

static int load(struct vg_estore *s, const char *below, struct vg_eversion *ret) {
    vg_auto_free char *path = full(s, below), *text = NULL;
    size_t n;
    int r = path ? vg_read_file(path, VG_ENV_CONFIG_MAX + 4096, &text, &n) : -ENOMEM;
    return r < 0 ? r : parse(text, ret);
}

static int save(struct vg_estore *s, const char *below, const struct vg_eversion *v) {
    struct vg_buf b = {0};
    vg_auto_free char *path = full(s, below);
    int r = path ? format(v, &b) : -ENOMEM;
    if (r == 0)
        r = vg_write_file(path, vg_buf_data(&b), vg_buf_len(&b), 0600);
    vg_buf_done(&b);
    return r;
}

/* Calls each with the number of every version in the folder; the newest number, 0 for none. */
static int newest(struct vg_estore *s, const char *folder, uint32_t *ret) {
    *ret = 0;
    int fd = openat(s->dir, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    DIR *d = fdopendir(fd);
    if (!d) {
        close(fd);
        return -ENOMEM;
    }
    for (struct dirent *e; (e = readdir(d));) {
        uint64_t n;
        if (vg_parse_u64(e->d_name, &n) == 0 && n <= VG_ENV_VERSIONS_MAX)
            *ret = VG_MAX(*ret, (uint32_t)n);
    }
    closedir(d);
    return 0;
}

int vg_e_version_check(const char *text) {
    struct vg_eversion v;
    vg_auto_free char *own = vg_strdup(text);
    int r = own ? parse(own, &v) : -ENOMEM;
    if (r == 0)
        vg_eversion_done(&v);
    return r;
}

/* In the bucket first: what is only there is found by the next collection; what is only here could
   be lost. */
static int keep(struct vg_estore *s, const char *below, struct vg_buf *b, struct vg_err *err) {
    const char *data = b->base ? (const char *)vg_buf_data(b) : "";
    vg_auto_free char *path = full(s, below);
    int r = path ? vg_eb_put_ref(s, below, data, vg_buf_len(b), err) : -ENOMEM;
    return r == 0 ? vg_write_file(path, data, vg_buf_len(b), 0600) : r;
}

static int add_next(struct vg_estore *s, const char *name, struct vg_eversion *v,
                    struct vg_err *err) {
    char folder[FOLDER_MAX], path[FOLDER_MAX + 16];
    struct vg_buf b = {0};
    uint32_t last;
    folder_of(name, folder);
    if (mkdirat(s->dir, folder, 0700) < 0 && errno != EEXIST)
        return -errno;
    int r = newest(s, folder, &last);
    if (r == 0 && last >= VG_ENV_VERSIONS_MAX)
        r = -ENOSPC;
    if (r == 0)
        r = format(v, &b);
    snprintf(path, sizeof(path), "%s/%u", folder, last + 1);
    if (r == 0)
        r = keep(s, path, &b, err);
    vg_buf_done(&b);
    if (r == 0)
        v->version = last + 1;
    else if (last == 0)
        unlinkat(s->dir, folder, AT_REMOVEDIR); /* else it looks like one */
    return r;
}

int vg_eref_add(struct vg_estore *s, const char *name, struct vg_eversion *v, struct vg_err *err) {
    int r = vg_env_name_check(name, err);
    if (r < 0)
        return r;
    if (v->config && strlen(v->config) > VG_ENV_CONFIG_MAX)
        return vg_err_set(err, VG_TOO_BIG, "the configuration of '%s' is too long", name);
    *err = VG_ERR_INIT;
    r = vg_estore_settle(s, err); /* a version never names what is not safe */
    if (r == 0)
        r = vg_e_sync(s);
    if (r == 0) {
        pthread_mutex_lock(&s->refs);
        r = add_next(s, name, v, err);
        pthread_mutex_unlock(&s->refs);
    }
    if (r < 0 && err->msg[0])
        return vg_err_wrap(err, "cannot save environment '%s'", name);
    return r < 0 ? vg_err_sys(err, r, "cannot save environment '%s'", name) : 0;
}

int vg_eref_get(struct vg_estore *s, const char *name, uint32_t version, struct vg_eversion *ret,
                struct vg_err *err) {
    char folder[FOLDER_MAX], path[FOLDER_MAX + 16];
    int r = vg_env_name_check(name, err);
    if (r < 0)
        return r;
    folder_of(name, folder);
    if (version == 0 && (r = newest(s, folder, &version)) < 0)
        return vg_err_sys(err, r, "cannot read environment '%s'", name);
    if (version == 0)
        return vg_err_set(err, VG_NOT_FOUND,
                          "there is no environment '%s': 'virga env list' shows those you may use",
                          name);
    snprintf(path, sizeof(path), "%s/%u", folder, version);
    r = load(s, path, ret);
    if (r == -ENOENT)
        return vg_err_set(err, VG_NOT_FOUND, "environment '%s' has no version %u", name, version);
    if (r < 0)
        return vg_err_sys(err, r, "cannot read environment '%s@%u'", name, version);
    ret->version = version;
    return 0;
}

typedef int each_version_fn(void *user, const char *name, const struct vg_eversion *v);

static int each_in(struct vg_estore *s, const char *file, each_version_fn *each, void *user) {
    char folder[FOLDER_MAX], path[FOLDER_MAX + 16], name[VG_ENV_NAME_MAX + 1];
    uint32_t last;
    snprintf(folder, sizeof(folder), "env/%s", file);
    name_of(file, name);
    int r = newest(s, folder, &last);
    for (uint32_t i = 1; r >= 0 && i <= last; i++) {
        struct vg_eversion v;
        snprintf(path, sizeof(path), "%s/%u", folder, i);
        r = load(s, path, &v);
        if (r == -ENOENT) {
            r = 0;
            continue;
        }
        if (r < 0)
            break;
        v.version = i;
        r = each(user, name, &v);
        vg_eversion_done(&v);
    }
    return r;
}

int vg_eref_each(struct vg_estore *s, each_version_fn *each, void *user) {
    int fd = openat(s->dir, "env", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d)
        return -errno;
    int r = 0;
    for (struct dirent *e; r >= 0 && (e = readdir(d));)
        if (e->d_name[0] != '.' && strlen(e->d_name) < FOLDER_MAX - 8)
            r = each_in(s, e->d_name, each, user);
    closedir(d);
    return r < 0 ? r : 0;
}

static int remove_all(struct vg_estore *s, const char *folder, uint32_t version,
                      struct vg_err *err) {
    char path[FOLDER_MAX + 16];
    uint32_t last, gone = 0;
    int r = newest(s, folder, &last);
    for (uint32_t i = 1; r == 0 && i <= last; i++) {
        if (version && version != i)
            continue;
        snprintf(path, sizeof(path), "%s/%u", folder, i);
        if (faccessat(s->dir, path, F_OK, 0) == 0 && (r = vg_eb_drop_ref(s, path, err)) < 0)
            break;
        if (unlinkat(s->dir, path, 0) == 0)
            gone++;
        else if (errno != ENOENT)
            r = -errno;
    }
    if (r == 0 && !gone)
        return -ENOENT;
    if (r == 0 && newest(s, folder, &last) == 0 && last == 0) {
        snprintf(path, sizeof(path), "%s/teams", folder);
        if (faccessat(s->dir, path, F_OK, 0) == 0)
            r = vg_eb_drop_ref(s, path, err);
        unlinkat(s->dir, path, 0);
        unlinkat(s->dir, folder, AT_REMOVEDIR);
    }
    return r;
}

int vg_eref_remove(struct vg_estore *s, const char *name, uint32_t version, struct vg_err *err) {
    char folder[FOLDER_MAX];
    int r = vg_env_name_check(name, err);
    if (r < 0)
        return r;
    folder_of(name, folder);
    *err = VG_ERR_INIT;
    pthread_mutex_lock(&s->refs);
    r = remove_all(s, folder, version, err);
    pthread_mutex_unlock(&s->refs);
    if (r < 0 && err->msg[0])
        return vg_err_wrap(err, "cannot remove environment '%s'", name);
    if (r == -ENOENT && version)
        return vg_err_set(err, VG_NOT_FOUND, "environment '%s' has no version %u", name, version);
    if (r == -ENOENT)
        return vg_err_set(err, VG_NOT_FOUND, "there is no environment '%s'", name);
    return r < 0 ? vg_err_sys(err, r, "cannot remove environment '%s'", name) : 0;
}

static bool has_line(const char *text, const char *line) {
    size_t n = strlen(line);
    for (const char *p = text; p && *p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL)
        if (strncmp(p, line, n) == 0 && p[n] == '\n')
            return true;
    return false;
}

/* The text without that line, and with it at the end when `on`. */
static int edit_teams(const char *old, const char *team, bool on, struct vg_buf *out) {
    int r = 0;
    size_t n = strlen(team);
    for (const char *p = old, *end; r == 0 && p && *p; p = end ? end + 1 : NULL) {
        end = strchr(p, '\n');
        size_t len = end ? (size_t)(end - p) : strlen(p);
        if (len != n || strncmp(p, team, n) != 0)
            r = vg_buf_printf(out, "%.*s\n", (int)len, p);
    }
    return r == 0 && on ? vg_buf_printf(out, "%s\n", team) : r;
}

int vg_eref_share(struct vg_estore *s, const char *name, const char *team, bool on,
                  struct vg_err *err) {
    struct vg_eversion v;
    int r = vg_eref_get(s, name, 0, &v, err);
    if (r < 0)
        return r;
    vg_eversion_done(&v);
    if (!*team || strlen(team) > VG_ENV_NAME_MAX || strchr(team, '\n'))
        return vg_err_set(err, VG_INVALID, "'%.60s' is no team", team);
    char folder[FOLDER_MAX];
    folder_of(name, folder);
    char below[FOLDER_MAX + 16];
    snprintf(below, sizeof(below), "%s/teams", folder);
    vg_auto_free char *path = full(s, below), *old = NULL;
    struct vg_buf b = {0};
    size_t n;
    *err = VG_ERR_INIT;
    pthread_mutex_lock(&s->refs);
    r = path ? vg_read_file(path, TEAMS_MAX, &old, &n) : -ENOMEM;
    if (r == -ENOENT)
        r = 0;
    if (r == 0)
        r = edit_teams(old, team, on, &b);
    if (r == 0)
        r = keep(s, below, &b, err);
    pthread_mutex_unlock(&s->refs);
    vg_buf_done(&b);
    if (r < 0 && err->msg[0])
        return vg_err_wrap(err, "cannot share environment '%s'", name);
    return r < 0 ? vg_err_sys(err, r, "cannot share environment '%s'", name) : 0;
}

bool vg_eref_shared(struct vg_estore *s, const char *name, const char *team) {
    struct vg_err err;
    char folder[FOLDER_MAX];
    if (!*team || vg_env_name_check(name, &err) < 0)
        return false;
    folder_of(name, folder);
    vg_auto_free char *path = vg_fmt("%s/%s/teams", s->path, folder), *text = NULL;
    size_t n;
    return path && vg_read_file(path, TEAMS_MAX, &text, &n) == 0 && has_line(text, team);
}

static int hold_path(const char *id, char out[64]) {
    size_t n = strlen(id);
    if (n == 0 || n > 40 || strspn(id, "0123456789abcdef-") != n)
        return -EINVAL;
    snprintf(out, 64, "hold/%s", id);
    return 0;
}

int vg_ehold_set(struct vg_estore *s, const char *id, const struct vg_eversion *v,
                 struct vg_err *err) {
    char path[64];
    int r = hold_path(id, path);
    if (r == 0)
        r = vg_e_sync(s);
    if (r == 0)
        r = save(s, path, v);
    return r < 0 ? vg_err_sys(err, r, "cannot hold the environment of task %.40s", id) : 0;
}

int vg_ehold_get(struct vg_estore *s, const char *id, struct vg_eversion *ret) {
    char path[64];
    int r = hold_path(id, path);
    return r < 0 ? r : load(s, path, ret);
}

int vg_ehold_drop(struct vg_estore *s, const char *id) {
    char path[64];
    int r = hold_path(id, path);
    if (r == 0 && unlinkat(s->dir, path, 0) < 0)
        r = -errno;
    return r;
}

int vg_ehold_each(struct vg_estore *s, each_version_fn *each, void *user) {
    int fd = openat(s->dir, "hold", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d)
        return -errno;
    int r = 0;
    for (struct dirent *e; r >= 0 && (e = readdir(d));) {
        struct vg_eversion v;
        char path[64];
        if (hold_path(e->d_name, path) < 0 || (r = load(s, path, &v)) == -ENOENT) {
            r = 0;
            continue;
        }
        if (r == 0) {
            r = each(user, e->d_name, &v);
            vg_eversion_done(&v);
        }
    }
    closedir(d);
    return r < 0 ? r : 0;
}
