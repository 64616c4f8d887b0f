/* Master keys and sealing; see the header. No state but the caller's; any thread. */
#include "control/secrets-ring.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEY crypto_aead_xchacha20poly1305_ietf_KEYBYTES
#define NONCE crypto_aead_xchacha20poly1305_ietf_NPUBBYTES
#define TAG crypto_aead_xchacha20poly1305_ietf_ABYTES
#define TEXT_MAX 16384 /* of a file or a command's output */

_Static_assert(NONCE + TAG == VG_SEAL_EXTRA && KEY + VG_SEAL_EXTRA == VG_SEAL_WRAPPED, "sizes");

struct vg_ring {
    size_t n;
    char id[VG_RING_KEYS][VG_RING_ID + 1];
    uint8_t key[VG_RING_KEYS][KEY];
};

void *vg_hidden_alloc(size_t n) {
    return sodium_init() < 0 ? NULL : sodium_malloc(n);
}

/* ------------------------------------------------------------------ the ring */

static struct vg_ring *ring_new(void) {
    struct vg_ring *r = vg_hidden_alloc(sizeof *r);
    if (r)
        memset(r, 0, sizeof *r);
    return r;
}

void vg_ring_free(struct vg_ring *r) {
    sodium_free(r);
}

size_t vg_ring_len(const struct vg_ring *r) {
    return r ? r->n : 0;
}

const char *vg_ring_newest(const struct vg_ring *r) {
    return r->id[r->n - 1];
}

static const uint8_t *find(const struct vg_ring *r, const char *id) {
    for (size_t i = 0; r && i < r->n; i++)
        if (strcmp(r->id[i], id) == 0)
            return r->key[i];
    return NULL;
}

static int add(struct vg_ring *r, const uint8_t key[static KEY]) {
    static const char what[] = "virga master key";
    uint8_t id[crypto_generichash_BYTES_MIN];
    if (r->n == VG_RING_KEYS)
        return -E2BIG;
    crypto_generichash(id, sizeof id, (const uint8_t *)what, sizeof what - 1, key, KEY);
    sodium_bin2hex(r->id[r->n], VG_RING_ID + 1, id, VG_RING_ID / 2);
    if (find(r, r->id[r->n]))
        return 0; /* a line that stands twice */
    memcpy(r->key[r->n++], key, KEY);
    return 0;
}

int vg_ring_parse(const char *text, size_t len, const char *from, struct vg_ring **ret,
                  struct vg_err *err) {
    struct vg_ring *r = ring_new();
    uint8_t key[KEY];
    size_t at = 0, line = 0;
    int e = 0;
    if (!r)
        return vg_err_sys(err, ENOMEM, "cannot hold the master key");
    while (at < len && e >= 0) {
        const char *s = text + at, *nl = memchr(s, '\n', len - at);
        size_t n = nl ? (size_t)(nl - s) : len - at, got = 0;
        at += n + 1;
        line++;
        while (n && (s[n - 1] == '\r' || s[n - 1] == ' '))
            n--;
        if (n == 0 || s[0] == '#')
            continue;
        const char *end = NULL;
        if (n != 2 * KEY || sodium_hex2bin(key, KEY, s, n, NULL, &got, &end) != 0 || got != KEY)
            e = vg_err_set(err, VG_INVALID,
                           "line %zu of the master keys from %s is not a key: write 64 hex digits",
                           line, from);
        else if (add(r, key) < 0)
            e = vg_err_set(err, VG_TOO_BIG, "%s has more than %d master keys: remove old ones",
                           from, VG_RING_KEYS);
    }
    sodium_memzero(key, sizeof key);
    if (e >= 0 && r->n == 0)
        e = vg_err_set(err, VG_INVALID, "%s gives no master key: write a line of 64 hex digits",
                       from);
    if (e < 0) {
        vg_ring_free(r);
        return e;
    }
    *ret = r;
    return 0;
}

/* ------------------------------------------------------------------ the file */

int vg_ring_read_file(const char *path, struct vg_ring **ret, struct vg_err *err) {
    struct stat st;
    vg_auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &st) < 0)
        return errno == ENOENT
                   ? vg_err_set(
                         err, VG_NOT_FOUND,
                         "the master key %s is missing: bring it back from a copy, or remove "
                         "the secrets that it sealed",
                         path)
                   : vg_err_sys(err, errno, "cannot read the master key %s", path);
    if (!S_ISREG(st.st_mode) || st.st_mode & 077)
        return vg_err_set(err, VG_FORBIDDEN,
                          "others can read the master key %s: 'chmod 600' it, and rotate it with "
                          "'virga secret rotate'",
                          path);
    char *text = vg_hidden_alloc(TEXT_MAX);
    if (!text)
        return vg_err_sys(err, ENOMEM, "cannot hold the master key");
    ssize_t n = vg_read_full(fd, text, TEXT_MAX);
    int r = n < 0 ? vg_err_sys(err, (int)n, "cannot read the master key %s", path)
                  : vg_ring_parse(text, (size_t)n, path, ret, err);
    sodium_free(text);
    return r;
}

static int write_file(const char *path, const struct vg_ring *r, size_t first, struct vg_err *err) {
    size_t n = 0, cap = r->n * (2 * KEY + 1) + 1;
    char *text = vg_hidden_alloc(cap);
    if (!text)
        return vg_err_sys(err, ENOMEM, "cannot write the master key");
    for (size_t i = first; i < r->n; i++, n += 2 * KEY + 1) {
        sodium_bin2hex(text + n, cap - n, r->key[i], KEY);
        text[n + 2 * KEY] = '\n';
    }
    int e = vg_write_file(path, text, n, 0600);
    sodium_free(text);
    return e < 0 ? vg_err_sys(err, e, "cannot write the master key %s", path) : 0;
}

int vg_ring_grow_file(const char *path, const struct vg_ring *old, struct vg_ring **ret,
                      struct vg_err *err) {
    struct vg_ring *r = ring_new();
    uint8_t key[KEY];
    if (!r)
        return vg_err_sys(err, ENOMEM, "cannot make a master key");
    if (old)
        memcpy(r, old, sizeof *r);
    crypto_aead_xchacha20poly1305_ietf_keygen(key);
    int e = add(r, key) < 0
                ? vg_err_set(err, VG_TOO_BIG, "there are %d master keys already: remove old ones",
                             VG_RING_KEYS)
                : write_file(path, r, 0, err);
    sodium_memzero(key, sizeof key);
    if (e < 0)
        vg_ring_free(r);
    else
        *ret = r;
    return e;
}

int vg_ring_shrink_file(const char *path, const struct vg_ring *r, struct vg_err *err) {
    return write_file(path, r, r->n - 1, err);
}

/* ------------------------------------------------------------------ the command */

static int spawn(char *const *argv, int out, pid_t *ret) {
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t at;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&fa);
    posix_spawnattr_init(&at);
    posix_spawnattr_setflags(&at, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                      POSIX_SPAWN_SETPGROUP); /* 0: its own */
    posix_spawnattr_setsigmask(&at, &none);
    posix_spawnattr_setsigdefault(&at, &all);
    int e = posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDONLY, 0);
    if (!e)
        e = posix_spawn_file_actions_adddup2(&fa, out, 1);
    if (!e)
        e = posix_spawnp(ret, argv[0], &fa, &at, argv, environ);
    posix_spawn_file_actions_destroy(&fa);
    posix_spawnattr_destroy(&at);
    return -e;
}

/* Until its end, the limit, or the time is over; how much, or -errno. */
static ssize_t drain(int fd, uint64_t until, char *text) {
    size_t n = 0;
    for (;;) {
        uint64_t now = vg_now_usec();
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int k = now >= until ? 0 : poll(&p, 1, (int)((until - now) / 1000) + 1);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return k < 0 ? -errno : -ETIMEDOUT;
        ssize_t got = read(fd, text + n, TEXT_MAX - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? -errno : (ssize_t)n;
        n += (size_t)got;
        if (n == TEXT_MAX)
            return -E2BIG;
    }
}

/* Its end is part of its answer: one that closes its output and lives on gave none. */
static int reap(pid_t pid, uint64_t until, int *status) {
    vg_auto_fd int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    int r = fd < 0 ? -errno : 0, k = 0;
    while (fd >= 0 && k <= 0 && r == 0) {
        uint64_t now = vg_now_usec();
        struct pollfd p = {.fd = fd, .events = POLLIN};
        k = now >= until ? 0 : poll(&p, 1, (int)((until - now) / 1000) + 1);
        if (k == 0)
            r = -ETIMEDOUT;
        else if (k < 0 && errno != EINTR)
            r = -errno;
    }
    if (r < 0)
        kill(-pid, SIGKILL);
    while (waitpid(pid, status, 0) < 0 && errno == EINTR)
        continue;
    return r;
}

int vg_ring_read_command(char *const *argv, uint64_t most_usec, struct vg_ring **ret,
                         struct vg_err *err) {
    uint64_t until = vg_now_usec() + most_usec;
    int p[2], status = 0;
    pid_t pid = 0;
    char *text = vg_hidden_alloc(TEXT_MAX);
    if (!text)
        return vg_err_sys(err, ENOMEM, "cannot hold the master key");
    if (pipe2(p, O_CLOEXEC) < 0) {
        int e = errno;
        sodium_free(text);
        return vg_err_sys(err, e, "cannot run secrets.key_command");
    }
    int r = spawn(argv, p[1], &pid);
    close(p[1]);
    if (r < 0) {
        vg_err_sys(err, r, "cannot run '%.200s' (secrets.key_command)", argv[0]);
    } else {
        ssize_t n = drain(p[0], until, text);
        int end = reap(pid, n < 0 ? 0 : until, &status);
        if (n >= 0 && end < 0)
            n = end;
        if (n < 0)
            r = vg_err_sys(err, (int)n, "'%.200s' (secrets.key_command) gave no master key",
                           argv[0]);
        else if (!WIFEXITED(status) || WEXITSTATUS(status))
            r = vg_err_set(err, VG_UNAVAILABLE,
                           "'%.200s' (secrets.key_command) failed with status %d: see virgad's log",
                           argv[0],
                           WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
        else
            r = vg_ring_parse(text, (size_t)n, "secrets.key_command", ret, err);
    }
    close(p[0]);
    sodium_free(text);
    return r;
}

/* ------------------------------------------------------------------ sealing */

#define BOUND_MAX 512

/* What is authenticated beside the bytes: no part can run into the next, for names have no NUL. */
static size_t bound_to(const struct vg_seal_name *n, const char *kind,
                       uint8_t out[static BOUND_MAX]) {
    int len = snprintf((char *)out, BOUND_MAX, "virga %s%c%s%c%s%c%u", kind, 0, n->scope, 0,
                       n->name, 0, n->version);
    return VG_MIN((size_t)len, (size_t)BOUND_MAX - 1);
}

static void lock(const uint8_t *key, const struct vg_seal_name *n, const char *kind, const void *in,
                 size_t len, uint8_t *out) {
    uint8_t bound[BOUND_MAX];
    randombytes_buf(out, NONCE);
    crypto_aead_xchacha20poly1305_ietf_encrypt(out + NONCE, NULL, in, len, bound,
                                               bound_to(n, kind, bound), NULL, out, key);
}

static int unlock(const uint8_t *key, const struct vg_seal_name *n, const char *kind,
                  const uint8_t *in, size_t len, uint8_t *out) {
    uint8_t bound[BOUND_MAX];
    return crypto_aead_xchacha20poly1305_ietf_decrypt(out, NULL, NULL, in + NONCE, len - NONCE,
                                                      bound, bound_to(n, kind, bound), in, key);
}

void vg_seal(const struct vg_ring *r, const struct vg_seal_name *n, const void *value, size_t len,
             uint8_t wrapped[static VG_SEAL_WRAPPED], uint8_t *sealed) {
    uint8_t data_key[KEY];
    crypto_aead_xchacha20poly1305_ietf_keygen(data_key);
    lock(data_key, n, "value", value, len, sealed);
    lock(r->key[r->n - 1], n, "key", data_key, KEY, wrapped);
    sodium_memzero(data_key, sizeof data_key);
}

int vg_unseal(const struct vg_ring *r, const char *id, const struct vg_seal_name *n,
              const uint8_t *wrapped, size_t wrapped_len, const uint8_t *sealed, size_t sealed_len,
              uint8_t *value, struct vg_err *err) {
    uint8_t data_key[KEY];
    const uint8_t *key = find(r, id);
    if (!key)
        return vg_err_set(err, VG_UNAVAILABLE,
                          "secret '%.64s' is sealed with the master key %.16s, which the control "
                          "plane does not have: bring it back, or set the secret again",
                          n->name, id);
    bool good = wrapped_len == VG_SEAL_WRAPPED && sealed_len >= VG_SEAL_EXTRA &&
                unlock(key, n, "key", wrapped, wrapped_len, data_key) == 0 &&
                unlock(data_key, n, "value", sealed, sealed_len, value) == 0;
    sodium_memzero(data_key, sizeof data_key);
    if (!good)
        return vg_err_set(err, VG_INTERNAL,
                          "what is stored of secret '%.64s' was changed or belongs to another, and "
                          "does not open: set it again",
                          n->name);
    return 0;
}
