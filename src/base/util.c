/* Time, ids, numbers with units, files, descriptors over sockets. */
#include "base/util.h"

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static uint64_t clock_usec(clockid_t id) {
    struct timespec ts;
    clock_gettime(id, &ts);
    return (uint64_t)ts.tv_sec * VG_USEC + (uint64_t)ts.tv_nsec / 1000;
}

uint64_t vg_resident_bytes(void) {
    vg_auto_free char *text = NULL;
    size_t n = 0;
    unsigned long long size = 0, rss = 0;
    if (vg_read_file("/proc/self/statm", 256, &text, &n) < 0 ||
        sscanf(text, "%llu %llu", &size, &rss) != 2)
        return 0;
    return rss * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t vg_now_usec(void) {
    return clock_usec(CLOCK_BOOTTIME);
}

uint64_t vg_wall_usec(void) {
    return clock_usec(CLOCK_REALTIME);
}

void vg_random(void *p, size_t n) {
    for (size_t got = 0; got < n;) {
        ssize_t r = getrandom((char *)p + got, n - got, 0);
        if (r < 0 && errno != EINTR)
            abort();
        if (r > 0)
            got += (size_t)r;
    }
}

uint64_t vg_id_new(void) {
    uint64_t id = 0;
    while (!id)
        vg_random(&id, sizeof(id));
    return id;
}

void vg_id_format(uint64_t id, char out[static VG_ID_LEN + 1]) {
    static const char digits[] = "0123456789abcdef";
    for (int i = VG_ID_LEN - 1; i >= 0; i--, id >>= 4)
        out[i] = digits[id & 15];
    out[VG_ID_LEN] = 0;
}

int vg_id_parse(const char *s, uint64_t *ret_id) {
    uint64_t id = 0;
    if (strlen(s) != VG_ID_LEN)
        return -EINVAL;
    for (; *s; s++) {
        unsigned c = (unsigned char)*s, d;
        if (c >= '0' && c <= '9')
            d = c - '0';
        else if (c >= 'a' && c <= 'f')
            d = c - 'a' + 10;
        else
            return -EINVAL;
        id = id << 4 | d;
    }
    if (!id)
        return -EINVAL;
    *ret_id = id;
    return 0;
}

int vg_parse_u64(const char *s, uint64_t *ret) {
    uint64_t v = 0;
    if (!*s)
        return -EINVAL;
    for (; *s; s++) {
        if (*s < '0' || *s > '9')
            return -EINVAL;
        if (__builtin_mul_overflow(v, 10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(*s - '0'), &v))
            return -ERANGE;
    }
    *ret = v;
    return 0;
}

/* A decimal number with up to `places` digits after the point, scaled by 10^places. */
static int parse_fixed(const char *s, int places, uint64_t *ret, const char **ret_end) {
    uint64_t v = 0;
    int digits = 0, after = -1;
    for (; (*s >= '0' && *s <= '9') || (*s == '.' && after < 0); s++) {
        if (*s == '.') {
            after = 0;
            continue;
        }
        digits++;
        if (after >= 0 && ++after > places)
            continue;
        if (__builtin_mul_overflow(v, 10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(*s - '0'), &v))
            return -ERANGE;
    }
    if (!digits)
        return -EINVAL;
    for (int i = after < 0 ? 0 : VG_MIN(after, places); i < places; i++)
        if (__builtin_mul_overflow(v, 10, &v))
            return -ERANGE;
    *ret = v;
    *ret_end = s;
    return 0;
}

int vg_parse_size(const char *s, uint64_t *ret_bytes) {
    uint64_t milli, bytes;
    const char *end;
    int r = parse_fixed(s, 3, &milli, &end);
    if (r < 0)
        return r;
    int shift = 0;
    if (*end) {
        const char *units = "kmgtp", *u = strchr(units, *end | 32);
        if (!u && (*end | 32) != 'b')
            return -EINVAL;
        if (u) {
            shift = 10 * (int)(u - units + 1);
            end++;
        }
        if (*end == 'i' && shift)
            end++;
        if (*end == 'B' || *end == 'b')
            end++;
        if (*end)
            return -EINVAL;
    }
    if (milli > (UINT64_MAX >> shift))
        return -ERANGE;
    bytes = (milli << shift) / 1000;
    *ret_bytes = bytes;
    return 0;
}

int vg_parse_duration(const char *s, uint64_t *ret_usec) {
    static const struct {
        const char *name;
        uint64_t usec;
    } units[] = {{"ms", 1000},          {"us", 1},
                 {"s", VG_USEC},        {"m", 60 * VG_USEC},
                 {"h", 3600 * VG_USEC}, {"d", 86400 * VG_USEC}};
    uint64_t sum = 0;
    if (!*s)
        return -EINVAL;
    while (*s) {
        uint64_t milli, usec;
        int r = parse_fixed(s, 3, &milli, &s);
        if (r < 0)
            return r;
        uint64_t unit = VG_USEC;
        if (*s) {
            unsigned i;
            for (i = 0; i < VG_COUNT(units); i++)
                if (strncmp(s, units[i].name, strlen(units[i].name)) == 0)
                    break;
            if (i == VG_COUNT(units))
                return -EINVAL;
            unit = units[i].usec;
            s += strlen(units[i].name);
        }
        if (__builtin_mul_overflow(milli, unit, &usec) ||
            __builtin_add_overflow(sum, usec / 1000, &sum))
            return -ERANGE;
    }
    *ret_usec = sum;
    return 0;
}

int vg_parse_milli(const char *s, uint64_t *ret_milli) {
    const char *end;
    uint64_t v;
    int r = parse_fixed(s, 3, &v, &end);
    if (r < 0)
        return r;
    if (*end)
        return -EINVAL;
    *ret_milli = v;
    return 0;
}

char *vg_format_size(uint64_t bytes, char *out, size_t n) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    unsigned u = 0;
    uint64_t tenths = bytes * 10;
    if (bytes > UINT64_MAX / 10)
        tenths = UINT64_MAX;
    for (; tenths >= 10240 && u < 5; u++)
        tenths = (tenths + 512) / 1024;
    if (u == 0 || tenths % 10 == 0)
        snprintf(out, n, "%" PRIu64 " %s", tenths / 10, units[u]);
    else
        snprintf(out, n, "%" PRIu64 ".%" PRIu64 " %s", tenths / 10, tenths % 10, units[u]);
    return out;
}

char *vg_format_duration(uint64_t usec, char *out, size_t n) {
    uint64_t s = usec / VG_USEC;
    if (usec < VG_USEC)
        snprintf(out, n, "%" PRIu64 " ms", usec / 1000);
    else if (s < 60)
        snprintf(out, n, "%" PRIu64 ".%" PRIu64 " s", s, usec / 100000 % 10);
    else if (s < 3600)
        snprintf(out, n, "%" PRIu64 "m %02" PRIu64 "s", s / 60, s % 60);
    else if (s < 86400)
        snprintf(out, n, "%" PRIu64 "h %02" PRIu64 "m", s / 3600, s / 60 % 60);
    else
        snprintf(out, n, "%" PRIu64 "d %02" PRIu64 "h", s / 86400, s / 3600 % 24);
    return out;
}

ssize_t vg_read_full(int fd, void *p, size_t n) {
    size_t got = 0;
    while (got < n) {
        int f = vg_fault("read");
        ssize_t r = f < 0 ? (errno = -f, -1) : read(fd, (char *)p + got, n - got);
        if (r == 0)
            break;
        if (r < 0) {
            if (errno == EINTR)
                continue;
            return -errno;
        }
        got += (size_t)r;
    }
    return (ssize_t)got;
}

int vg_write_full(int fd, const void *p, size_t n) {
    for (size_t put = 0; put < n;) {
        int f = vg_fault("write");
        ssize_t r = f < 0 ? (errno = -f, -1) : write(fd, (const char *)p + put, n - put);
        if (r < 0) {
            if (errno == EINTR)
                continue;
            return -errno;
        }
        put += (size_t)r;
    }
    return 0;
}

int vg_read_file(const char *path, size_t limit, char **ret_data, size_t *ret_len) {
    vg_auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    vg_auto_free char *data = NULL;
    size_t len = 0, cap = 0;
    for (;;) {
        char *p = vg_grow(data, &cap, len + 4096, 1);
        if (!p)
            return -ENOMEM;
        data = p;
        ssize_t r = vg_read_full(fd, data + len, cap - len - 1);
        if (r < 0)
            return (int)r;
        len += (size_t)r;
        if (len > limit)
            return -EFBIG;
        if (len < cap - 1)
            break;
    }
    data[len] = 0;
    *ret_data = vg_take_ptr(data);
    if (ret_len)
        *ret_len = len;
    return 0;
}

int vg_write_file(const char *path, const void *data, size_t n, mode_t mode) {
    uint64_t rnd = vg_id_new();
    vg_auto_free char *tmp = vg_fmt("%s.%08" PRIx64 ".tmp", path, rnd & 0xffffffff);
    if (!tmp)
        return -ENOMEM;
    vg_auto_fd int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0)
        return -errno;
    int r = vg_write_full(fd, data, n);
    if (r >= 0 && fchmod(fd, mode) < 0)
        r = -errno;
    if (r >= 0 && (r = vg_fault("fsync")) >= 0 && fsync(fd) < 0)
        r = -errno;
    if (r >= 0 && rename(tmp, path) < 0)
        r = -errno;
    if (r < 0)
        unlink(tmp);
    return r < 0 ? r : 0;
}

int vg_mkdir_p(const char *path, mode_t mode) {
    vg_auto_free char *p = vg_strdup(path);
    if (!p)
        return -ENOMEM;
    for (char *s = p + 1;; s++) {
        if (*s != '/' && *s)
            continue;
        char c = *s;
        *s = 0;
        if (mkdir(p, mode) < 0 && errno != EEXIST)
            return -errno;
        *s = c;
        if (!c)
            return 0;
    }
}

ssize_t vg_send_fds(int sock, const void *data, size_t n, const int *fds, size_t n_fds, int flags) {
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int) * VG_FDS_MAX)];
    } u = {0};
    struct iovec iov = {.iov_base = (void *)data, .iov_len = n};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n_fds > VG_FDS_MAX)
        return -EINVAL;
    if (n_fds) {
        msg.msg_control = u.buf;
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
    }
    for (;;) {
        ssize_t r = sendmsg(sock, &msg, flags | MSG_NOSIGNAL);
        if (r >= 0)
            return r;
        if (errno != EINTR)
            return -errno;
    }
}

ssize_t vg_recv_fds(int sock, void *data, size_t n, int *fds, size_t *n_fds, int flags) {
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int) * VG_FDS_MAX)];
    } u;
    struct iovec iov = {.iov_base = data, .iov_len = n};
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = u.buf, .msg_controllen = sizeof(u.buf)};
    size_t room = n_fds ? *n_fds : 0, got = 0;
    ssize_t r;
    do
        r = recvmsg(sock, &msg, flags | MSG_CMSG_CLOEXEC);
    while (r < 0 && errno == EINTR);
    if (r < 0)
        return -errno;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            if (got < room)
                fds[got++] = fd;
            else
                close(fd);
        }
    }
    if (n_fds)
        *n_fds = got;
    return r;
}

int vg_set_nonblock(int fd, bool on) {
    int f = fcntl(fd, F_GETFL);
    if (f < 0 || fcntl(fd, F_SETFL, on ? f | O_NONBLOCK : f & ~O_NONBLOCK) < 0)
        return -errno;
    return 0;
}

int vg_set_cloexec(int fd, bool on) {
    return fcntl(fd, F_SETFD, on ? FD_CLOEXEC : 0) < 0 ? -errno : 0;
}

/* Fills addr for path; for a long one opens its folder into *dir_fd and goes through /proc. */
static int unix_addr(const char *path, struct sockaddr_un *addr, int *dir_fd) {
    *addr = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) < sizeof(addr->sun_path)) {
        memcpy(addr->sun_path, path, strlen(path) + 1);
        return 0;
    }
    vg_auto_free char *a = vg_strdup(path), *b = vg_strdup(path);
    if (!a || !b)
        return -ENOMEM;
    *dir_fd = open(dirname(a), O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (*dir_fd < 0)
        return -errno;
    int n = snprintf(addr->sun_path, sizeof(addr->sun_path), "/proc/self/fd/%d/%s", *dir_fd,
                     basename(b));
    return n < (int)sizeof(addr->sun_path) ? 0 : -ENAMETOOLONG;
}

int vg_unix_connect(const char *path, int type) {
    struct sockaddr_un addr;
    vg_auto_fd int dir = -1;
    int r = unix_addr(path, &addr, &dir);
    if (r < 0)
        return r;
    vg_auto_fd int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0)
        return -errno;
    return vg_take_fd(fd);
}

int vg_unix_listen(const char *path, int type, mode_t mode) {
    struct sockaddr_un addr;
    vg_auto_fd int dir = -1;
    int r = unix_addr(path, &addr, &dir);
    if (r < 0)
        return r;
    vg_auto_fd int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    unlink(path);
    if (bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 || chmod(path, mode) < 0 ||
        listen(fd, 4096) < 0)
        return -errno;
    return vg_take_fd(fd);
}
