/* Tar archives. */
#include "fs/store/tar.h"

#include "base/cleanup.h"
#include "base/mem.h"

#include <string.h>
#include <sys/sysmacros.h>

#define BLOCK 512u
#define PAX_MAX (8u << 20)
#define XATTR_KEY "SCHILY.xattr."

struct raw { /* ustar */
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type, link[100];
    char magic[6], version[2], user[32], group[32], major[8], minor[8], prefix[155], rest[12];
};

static int number(const char *p, size_t n, int64_t *ret) {
    const uint8_t *u = (const uint8_t *)p;
    if (u[0] & 0x80) { /* GNU: base 256 */
        uint64_t v = u[0] & 0x3f;
        if (u[0] & 0x40) /* negative */
            v |= ~UINT64_C(0x3f);
        for (size_t i = 1; i < n; i++)
            v = v << 8 | u[i];
        *ret = (int64_t)v;
        return 0;
    }
    uint64_t v = 0;
    size_t i = 0;
    while (i < n && p[i] == ' ')
        i++;
    for (; i < n && p[i] >= '0' && p[i] <= '7'; i++)
        v = v << 3 | (uint64_t)(p[i] - '0');
    if (i < n && p[i] != ' ' && p[i] != '\0')
        return -EBADMSG;
    *ret = (int64_t)v;
    return 0;
}

static bool sum_good(const struct raw *h) {
    const uint8_t *p = (const uint8_t *)h;
    int64_t want, is = 0;
    for (size_t i = 0; i < BLOCK; i++)
        is += i >= 148 && i < 156 ? ' ' : p[i];
    return number(h->sum, sizeof(h->sum), &want) == 0 && want == is;
}

static int read_all(struct vg_tar *t, void *data, size_t n) {
    ssize_t k = t->read(t->user, data, n);
    return k < 0 ? (int)k : (size_t)k == n ? 0 : -EBADMSG;
}

static int skip(struct vg_tar *t, uint64_t n) {
    uint8_t room[8192];
    while (n) {
        size_t k = (size_t)VG_MIN(n, (uint64_t)sizeof(room));
        int r = read_all(t, room, k);
        if (r < 0)
            return r;
        n -= k;
    }
    return 0;
}

static void forget_xattrs(struct vg_tar_entry *e) {
    for (size_t i = 0; i < e->n_xattr; i++) {
        free(e->xattr[i].name);
        free(e->xattr[i].value);
    }
    e->n_xattr = 0;
}

/* What a pax header or a GNU long name said of the next entry. */
struct said {
    bool path, link, size, mtime, uid, gid;
    int64_t size_is, mtime_is, uid_is, gid_is;
};

static int copy_text(char out[VG_TAR_PATH_MAX], const char *p, size_t n) {
    if (n >= VG_TAR_PATH_MAX || memchr(p, '\0', n))
        return -EBADMSG;
    memcpy(out, p, n);
    out[n] = '\0';
    return 0;
}

static int decimal(const char *p, size_t n, int64_t *ret, int64_t *ret_nsec) {
    bool minus = n && *p == '-';
    uint64_t v = 0, frac = 0, scale = 100000000;
    size_t i = minus;
    if (i == n)
        return -EBADMSG;
    for (; i < n && p[i] >= '0' && p[i] <= '9'; i++)
        if (__builtin_mul_overflow(v, 10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(p[i] - '0'), &v) || v > INT64_MAX)
            return -EBADMSG;
    if (i < n && p[i] == '.')
        for (i++; i < n && p[i] >= '0' && p[i] <= '9'; i++, scale /= 10)
            frac += (uint64_t)(p[i] - '0') * scale;
    if (i != n)
        return -EBADMSG;
    *ret = minus ? -(int64_t)v : (int64_t)v;
    if (ret_nsec)
        *ret_nsec = minus ? -(int64_t)frac : (int64_t)frac;
    return 0;
}

static int time_of(const char *p, size_t n, int64_t *ret) {
    int64_t sec, nsec = 0;
    if (decimal(p, n, &sec, &nsec) < 0 || __builtin_mul_overflow(sec, 1000000000, &sec) ||
        __builtin_add_overflow(sec, nsec, ret))
        return -EBADMSG;
    return 0;
}

static int pax_xattr(struct vg_tar_entry *e, const char *key, const char *value, size_t n) {
    if (e->n_xattr == VG_TAR_XATTRS_MAX)
        return -EBADMSG;
    struct vg_tar_xattr *x = &e->xattr[e->n_xattr];
    x->name = vg_strdup(key);
    x->value = vg_memdup(value, n ? n : 1);
    x->n = n;
    e->n_xattr++;
    return x->name && x->value ? 0 : -ENOMEM;
}

static int pax_record(struct vg_tar *t, const char *key, const char *value, size_t n,
                      struct said *s) {
    struct vg_tar_entry *e = &t->e;
    if (strcmp(key, "path") == 0) {
        s->path = true;
        return copy_text(e->path, value, n);
    }
    if (strcmp(key, "linkpath") == 0) {
        s->link = true;
        return copy_text(e->link, value, n);
    }
    if (strcmp(key, "size") == 0) {
        s->size = true;
        return decimal(value, n, &s->size_is, NULL);
    }
    if (strcmp(key, "mtime") == 0) {
        s->mtime = true;
        return time_of(value, n, &s->mtime_is);
    }
    if (strcmp(key, "uid") == 0) {
        s->uid = true;
        return decimal(value, n, &s->uid_is, NULL);
    }
    if (strcmp(key, "gid") == 0) {
        s->gid = true;
        return decimal(value, n, &s->gid_is, NULL);
    }
    if (strncmp(key, XATTR_KEY, strlen(XATTR_KEY)) == 0)
        return pax_xattr(e, key + strlen(XATTR_KEY), value, n);
    return strncmp(key, "GNU.sparse.", 11) == 0 ? -ENOTSUP : 0;
}

/* "LEN KEY=VALUE\n", LEN counts all of it. */
static int pax(struct vg_tar *t, char *p, size_t left, struct said *s) {
    int r = 0;
    while (r == 0 && left) {
        size_t len = 0, i = 0;
        for (; i < left && i < 9 && p[i] >= '0' && p[i] <= '9'; i++)
            len = 10 * len + (size_t)(p[i] - '0');
        if (i == 0 || i >= left || p[i] != ' ' || len <= i + 1 || len > left || p[len - 1] != '\n')
            return -EBADMSG;
        char *key = p + i + 1, *eq = memchr(key, '=', len - i - 2);
        if (!eq)
            return -EBADMSG;
        *eq = '\0';
        r = pax_record(t, key, eq + 1, (size_t)(p + len - 1 - (eq + 1)), s);
        p += len;
        left -= len;
    }
    return r;
}

static int extension(struct vg_tar *t, char type, uint64_t size, struct said *s) {
    if (size > PAX_MAX)
        return -EBADMSG;
    vg_buf_clear(&t->pax);
    size_t n = (size_t)size, all = (n + BLOCK - 1) / BLOCK * BLOCK;
    uint8_t *p = vg_buf_reserve(&t->pax, all + 1);
    if (!p)
        return -ENOMEM;
    int r = read_all(t, p, all);
    if (r < 0 || type == 'g')
        return r;
    p[n] = '\0';
    if (type == 'x')
        return pax(t, (char *)p, n, s);
    *(type == 'L' ? &s->path : &s->link) = true;
    return copy_text(type == 'L' ? t->e.path : t->e.link, (char *)p, strlen((char *)p));
}

static int mode_of(char type, uint32_t *ret_type, bool *ret_hard) {
    *ret_hard = type == '1';
    switch (type) {
    case '\0':
    case '0':
    case '1':
    case '7':
        *ret_type = S_IFREG;
        return 0;
    case '2':
        *ret_type = S_IFLNK;
        return 0;
    case '3':
        *ret_type = S_IFCHR;
        return 0;
    case '4':
        *ret_type = S_IFBLK;
        return 0;
    case '5':
        *ret_type = S_IFDIR;
        return 0;
    case '6':
        *ret_type = S_IFIFO;
        return 0;
    default:
        return -ENOTSUP;
    }
}

static int names(struct vg_tar_entry *e, const struct raw *h, const struct said *s) {
    bool ustar = memcmp(h->magic, "ustar", 5) == 0 && h->magic[5] == '\0';
    if (!s->path)
        snprintf(e->path, sizeof(e->path), "%.*s%s%.*s",
                 ustar ? (int)strnlen(h->prefix, sizeof(h->prefix)) : 0, h->prefix,
                 ustar && h->prefix[0] ? "/" : "", (int)strnlen(h->name, sizeof(h->name)), h->name);
    if (!s->link)
        snprintf(e->link, sizeof(e->link), "%.*s", (int)strnlen(h->link, sizeof(h->link)), h->link);
    return e->path[0] ? 0 : -EBADMSG;
}

static int entry(struct vg_tar *t, const struct raw *h, const struct said *s) {
    struct vg_tar_entry *e = &t->e;
    int64_t mode, uid, gid, size, mtime, major, minor;
    uint32_t type;
    if (number(h->mode, 8, &mode) < 0 || number(h->uid, 8, &uid) < 0 ||
        number(h->gid, 8, &gid) < 0 || number(h->size, 12, &size) < 0 ||
        number(h->mtime, 12, &mtime) < 0 || names(e, h, s) < 0)
        return -EBADMSG;
    int r = mode_of(h->type, &type, &e->hard);
    if (r < 0)
        return r;
    size = s->size ? s->size_is : size;
    uid = s->uid ? s->uid_is : uid;
    gid = s->gid ? s->gid_is : gid;
    bool file = type == S_IFREG && !e->hard;
    if (size < 0 || uid < 0 || gid < 0 || uid > UINT32_MAX || gid > UINT32_MAX ||
        mtime > INT64_MAX / 1000000000 || mtime < INT64_MIN / 1000000000)
        return -EBADMSG;
    e->st = (struct vg_mstat){.mode = type | ((uint32_t)mode & 07777),
                              .uid = (uint32_t)uid,
                              .gid = (uint32_t)gid,
                              .size = file ? (uint64_t)size : 0,
                              .mtime = s->mtime ? s->mtime_is : mtime * 1000000000,
                              .nlink = 1};
    if (type == S_IFLNK)
        e->st.size = strlen(e->link);
    if ((type == S_IFCHR || type == S_IFBLK) && number(h->major, 8, &major) == 0 &&
        number(h->minor, 8, &minor) == 0)
        e->st.rdev = makedev((unsigned)major, (unsigned)minor);
    t->left = e->hard || file ? (uint64_t)size : 0;
    t->pad = (BLOCK - t->left % BLOCK) % BLOCK;
    return 1;
}

int vg_tar_next(struct vg_tar *t) {
    struct said s = {0};
    struct raw h;
    int r = skip(t, t->left + t->pad);
    t->left = t->pad = 0;
    forget_xattrs(&t->e);
    static const struct raw zero;
    for (; r == 0;) {
        ssize_t n = t->read(t->user, &h, sizeof(h));
        if (n <= 0)
            return (int)n; /* archives without their last blocks are common */
        if (n != sizeof(h))
            return -EBADMSG;
        if (memcmp(&h, &zero, sizeof(h)) == 0)
            return 0;
        int64_t size;
        if (!sum_good(&h) || number(h.size, 12, &size) < 0 || size < 0)
            return -EBADMSG;
        if (h.type != 'x' && h.type != 'g' && h.type != 'L' && h.type != 'K')
            return entry(t, &h, &s);
        r = extension(t, h.type, (uint64_t)size, &s);
    }
    return r;
}

ssize_t vg_tar_read(struct vg_tar *t, void *data, size_t n) {
    n = (size_t)VG_MIN((uint64_t)n, t->left);
    if (n == 0)
        return 0;
    int r = read_all(t, data, n);
    if (r < 0)
        return r;
    t->left -= n;
    return (ssize_t)n;
}

void vg_tar_done(struct vg_tar *t) {
    forget_xattrs(&t->e);
    vg_buf_done(&t->pax);
}

/* ------------------------------------------------------------------ writing */

/* False: the number does not fit. */
static bool octal(char *p, size_t n, uint64_t v) {
    for (size_t i = n - 1; i-- > 0; v >>= 3)
        p[i] = (char)('0' + (v & 7));
    p[n - 1] = '\0';
    return v == 0;
}

static char type_of(uint32_t mode) {
    return S_ISDIR(mode)    ? '5'
           : S_ISLNK(mode)  ? '2'
           : S_ISCHR(mode)  ? '3'
           : S_ISBLK(mode)  ? '4'
           : S_ISFIFO(mode) ? '6'
                            : '0';
}

static int add_header(struct vg_buf *out, struct raw *h) {
    unsigned sum = 0;
    memcpy(h->magic, "ustar", 6);
    memcpy(h->version, "00", 2);
    memset(h->sum, ' ', sizeof(h->sum));
    for (size_t i = 0; i < BLOCK; i++)
        sum += ((uint8_t *)h)[i];
    octal(h->sum, 7, sum);
    return vg_buf_append(out, h, sizeof(*h));
}

static int add_pax(struct vg_buf *b, const char *key, const char *value) {
    size_t n = strlen(key) + strlen(value) + 3, digits = 1;
    for (size_t k = n; k >= 10; k /= 10)
        digits++;
    size_t len = n + digits, again = 1;
    for (size_t k = len; k >= 10; k /= 10)
        again++;
    return vg_buf_printf(b, "%zu %s=%s\n", n + again, key, value);
}

int vg_tar_header(struct vg_buf *out, const char *path, const struct vg_mstat *st,
                  const char *link) {
    struct raw h = {.type = type_of(st->mode)};
    struct vg_buf more = {0};
    char text[64];
    int r = 0;
    size_t n = strlen(path), m = link ? strlen(link) : 0;
    memcpy(h.name, path, VG_MIN(n, sizeof(h.name)));
    if (m)
        memcpy(h.link, link, VG_MIN(m, sizeof(h.link)));
    if (n > sizeof(h.name))
        r = add_pax(&more, "path", path);
    if (r == 0 && m > sizeof(h.link))
        r = add_pax(&more, "linkpath", link);
    octal(h.mode, sizeof(h.mode), st->mode & 07777);
    uint64_t size = S_ISREG(st->mode) ? st->size : 0;
    const struct {
        char *p;
        size_t n;
        uint64_t v;
        const char *key;
    } num[] = {{h.uid, sizeof(h.uid), st->uid, "uid"},
               {h.gid, sizeof(h.gid), st->gid, "gid"},
               {h.size, sizeof(h.size), size, "size"}};
    for (size_t i = 0; r == 0 && i < VG_COUNT(num); i++)
        if (!octal(num[i].p, num[i].n, num[i].v)) {
            snprintf(text, sizeof(text), "%llu", (unsigned long long)num[i].v);
            r = add_pax(&more, num[i].key, text);
        }
    int64_t sec = st->mtime / 1000000000, nsec = st->mtime % 1000000000;
    if (!octal(h.mtime, sizeof(h.mtime), sec > 0 ? (uint64_t)sec : 0) || nsec || sec < 0) {
        snprintf(text, sizeof(text), "%s%lld.%09lld", st->mtime < 0 ? "-" : "",
                 (long long)llabs(sec), (long long)llabs(nsec));
        if (r == 0)
            r = add_pax(&more, "mtime", text);
    }
    if (S_ISCHR(st->mode) || S_ISBLK(st->mode)) {
        octal(h.major, sizeof(h.major), major(st->rdev));
        octal(h.minor, sizeof(h.minor), minor(st->rdev));
    }
    if (r == 0 && vg_buf_len(&more)) {
        struct raw x = {.type = 'x', .name = "pax"};
        octal(x.mode, sizeof(x.mode), 0644);
        octal(x.uid, sizeof(x.uid), 0);
        octal(x.gid, sizeof(x.gid), 0);
        octal(x.mtime, sizeof(x.mtime), 0);
        octal(x.size, sizeof(x.size), vg_buf_len(&more));
        r = add_header(out, &x);
        if (r == 0)
            r = vg_buf_append(out, vg_buf_data(&more), vg_buf_len(&more));
        if (r == 0)
            r = vg_tar_pad(out, vg_buf_len(&more));
    }
    vg_buf_done(&more);
    return r == 0 ? add_header(out, &h) : r;
}

int vg_tar_pad(struct vg_buf *out, uint64_t size) {
    static const char zero[BLOCK];
    return vg_buf_append(out, zero, (BLOCK - size % BLOCK) % BLOCK);
}

int vg_tar_end(struct vg_buf *out) {
    static const char zero[2 * BLOCK];
    return vg_buf_append(out, zero, sizeof(zero));
}
