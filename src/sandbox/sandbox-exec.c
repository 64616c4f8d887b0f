/* A command into a sandbox: limits, folders and devices first, then one request to init. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "sandbox/sandbox-priv.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

struct blob {
    char *p;
    size_t len;
    int memfd; /* owned */
    uint32_t argc, envc;
};

static size_t count_strings(char *const *v, uint32_t *ret_n) {
    size_t bytes = 0;
    uint32_t n = 0;
    for (; v && v[n] && n < VG_SB_ARGS_MAX; n++)
        bytes += strlen(v[n]) + 1;
    *ret_n = n;
    return bytes;
}

static char *add_string(char *p, const char *s) {
    size_t n = strlen(s) + 1;
    memcpy(p, s, n);
    return p + n;
}

static void fill_blob(char *p, const struct vg_exec *x, const char *other_cwd,
                      const struct blob *b) {
    if (x->near)
        p = (char *)memcpy(p, x->near, sizeof(*x->near)) + sizeof(*x->near);
    for (size_t i = 0; i < x->n_rlimits; i++, p += sizeof(struct vg_sb_rlimit))
        memcpy(p,
               &(struct vg_sb_rlimit){(uint64_t)x->rlimits[i].which, x->rlimits[i].soft,
                                      x->rlimits[i].hard},
               sizeof(struct vg_sb_rlimit));
    memcpy(p, x->groups ? (const void *)x->groups : "", x->n_groups * sizeof(uint32_t));
    p += x->n_groups * sizeof(uint32_t);
    p = add_string(p, x->cwd);
    p = add_string(p, other_cwd ? other_cwd : "");
    for (uint32_t i = 0; i < b->argc; i++)
        p = add_string(p, x->argv[i]);
    for (uint32_t i = 0; i < b->envc; i++)
        p = add_string(p, x->env[i]);
}

/* In the caller's buffer when it fits, else in a memfd. */
static int make_blob(const struct vg_exec *x, const char *other_cwd, char *small, struct blob *b) {
    size_t n = x->n_rlimits * sizeof(struct vg_sb_rlimit) + x->n_groups * sizeof(uint32_t);
    n += x->near ? sizeof(*x->near) : 0;
    n += strlen(x->cwd) + 1 + (other_cwd ? strlen(other_cwd) : 0) + 1;
    n += count_strings(x->argv, &b->argc);
    n += count_strings(x->env, &b->envc);
    b->len = n;
    if (!b->argc)
        return -EINVAL;
    if (n > VG_SB_BLOB_MAX || b->argc == VG_SB_ARGS_MAX || b->envc == VG_SB_ARGS_MAX)
        return -E2BIG;
    if (n <= VG_SB_INLINE_MAX) {
        fill_blob(b->p = small, x, other_cwd, b);
        return 0;
    }
    b->memfd = memfd_create("virga-args", MFD_CLOEXEC);
    if (b->memfd < 0 || ftruncate(b->memfd, (off_t)n) < 0)
        return -errno;
    char *map = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, b->memfd, 0);
    if (map == MAP_FAILED)
        return -errno;
    fill_blob(map, x, other_cwd, b);
    munmap(map, n);
    return 0;
}

static int send_request(struct vg_sandbox *sb, uint64_t tag, const struct vg_exec *x, bool gone,
                        const char *other_cwd) {
    static char small[VG_SB_INLINE_MAX];
    struct blob b = {.memfd = -1};
    int fds[4], r = make_blob(x, other_cwd, small, &b);
    size_t n_fds = 0;
    if (r < 0) {
        vg_close(&b.memfd);
        return r;
    }
    struct vg_sb_req q = {.tag = tag,
                          .flags =
                              (x->tty ? VG_SB_REQ_TTY : 0u) | (x->watched ? VG_SB_REQ_WATCH : 0u) |
                              (x->near ? VG_SB_REQ_NEAR : 0u) | (gone ? VG_SB_REQ_CWD_GONE : 0u) |
                              (b.memfd >= 0 ? VG_SB_REQ_MEMFD : 0u),
                          .argc = b.argc,
                          .envc = b.envc,
                          .n_groups = (uint32_t)x->n_groups,
                          .n_rlimits = (uint32_t)x->n_rlimits,
                          .uid = x->uid,
                          .gid = x->gid,
                          .umask = x->umask,
                          .nice = x->nice,
                          .sig_ignored = x->sig_ignored,
                          .blob_len = (uint32_t)b.len};
    for (unsigned i = 0; i < 3; i++)
        if (x->fds[i] >= 0) {
            q.fd_mask |= 1u << i;
            fds[n_fds++] = x->fds[i];
        }
    if (b.memfd >= 0)
        fds[n_fds++] = b.memfd;
    ssize_t sent = vg_sb_send(sb->sock, &q, sizeof(q), b.p, b.p ? b.len : 0, fds, n_fds);
    if (b.p)
        explicit_bzero(small, b.len); /* secrets may be among the variables */
    vg_close(&b.memfd);
    return sent < 0 ? (int)sent : 0;
}

static int apply_limits(struct vg_sandbox *sb, const struct vg_limits *l, struct vg_err *err) {
    struct vg_limits now = *l;
    if (!now.disk_bytes)
        now.disk_bytes = now.mem_bytes / 2;
    if (!memcmp(&now, &sb->limits, sizeof(now)))
        return 0;
    int r = vg_cg_limit(&sb->node->cg, sb->name, &now, err);
    if (r >= 0 && now.disk_bytes && now.disk_bytes != sb->limits.disk_bytes)
        r = vg_sb_set_disk(sb, now.disk_bytes, err);
    if (r >= 0)
        sb->limits = now;
    return r;
}

static int check_exec(const struct vg_sandbox *sb, uint64_t tag, const struct vg_exec *x,
                      struct vg_err *err) {
    if (sb->dead)
        return vg_err_set(err, VG_LOST, "the sandbox has ended");
    if (!x->cwd || x->cwd[0] != '/' || x->n_groups > VG_SB_GROUPS_MAX ||
        x->n_rlimits > VG_SB_RLIMITS_MAX)
        return vg_err_set(err, VG_INVALID, "the command's directory or limits make no sense");
    for (size_t i = 0; i < x->n_rlimits; i++)
        if (x->rlimits[i].which < 0 || x->rlimits[i].which >= RLIM_NLIMITS)
            return vg_err_set(err, VG_INVALID, "there is no resource limit %d",
                              x->rlimits[i].which);
    /* A user's files are mapped to the user; as root inside it would be root on them outside. */
    if (!sb->local_root && sb->uid && x->uid != sb->uid)
        return vg_err_set(err, VG_FORBIDDEN, "this sandbox runs commands of user %u only", sb->uid);
    if (sb->n_running >= VG_SB_COMMANDS_MAX)
        return vg_err_set(err, VG_NO_CAPACITY, "the sandbox runs %zu commands already",
                          sb->n_running);
    if (vg_sb_find_running((struct vg_sandbox *)sb, tag))
        return vg_err_set(err, VG_EXISTS, "the sandbox runs that command already");
    return 0;
}

int vg_sandbox_exec(struct vg_sandbox *sb, uint64_t tag, const struct vg_exec *x,
                    struct vg_err *err) {
    bool gone = false;
    vg_auto_free char *other_cwd = NULL;
    int r = check_exec(sb, tag, x, err);
    if (r < 0)
        return r;
    void *p = vg_grow(sb->running, &sb->cap_running, sb->n_running + 1, sizeof(*sb->running));
    if (!p)
        return vg_err_sys(err, ENOMEM, "cannot start the command");
    sb->running = p;
    if (x->limits && (r = apply_limits(sb, x->limits, err)) < 0)
        return r;
    if ((r = vg_sb_add_binds(sb, x, &gone, &other_cwd, err)) < 0)
        return r;
    if ((r = vg_sb_add_devices(sb, x, err)) < 0)
        return r;
    if (x->lay && (r = vg_sb_lay(sb, x->lay, err)) < 0)
        return r;
    if (x->n_given && (r = vg_sb_give(sb, x, err)) < 0)
        return r;
    vg_sb_refresh(sb);
    vg_sb_trace_exec(sb);
    r = send_request(sb, tag, x, gone, other_cwd);
    if (r < 0)
        return vg_err_sys(err, r, "cannot start the command");
    sb->running[sb->n_running++] = (struct vg_sb_running){.tag = tag, .pidfd = -1};
    return 0;
}
