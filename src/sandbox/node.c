/* The node: what is learnt once about this machine, and kept for every sandbox. Owned by the agent
   and inherited by its keepers through fork. One thread. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "sandbox/sandbox-priv.h"

#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>

/* Where another file system of the machine is part of its environment: programs and libraries below
   /usr and /opt whatever it is (drivers are often mounted there), elsewhere real file systems at
   these places. Anything else that is mounted (data, homes, shares) is visible only when bound. */
static const char *const lower_trees[] = {"/usr/", "/opt/"};
static const char *const lower_places[] = {
    "/usr", "/opt",   "/var",  "/var/lib",         "/var/cache", "/etc",          "/srv",
    "/lib", "/lib64", "/boot", "/etc/resolv.conf", "/etc/hosts", "/etc/hostname", "/nix",
};
static const char *const lower_types[] = {"ext2",     "ext3", "ext4",    "xfs",     "btrfs",
                                          "zfs",      "f2fs", "nfs",     "overlay", "erofs",
                                          "squashfs", "nfs4", "bcachefs"};

/* Root inside a sandbox reads what root owns on the node's disk (packages could not be installed
   otherwise), so the node's secrets are hidden from everyone who is not its root anyway. */
static const char *const secrets[] = {
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/krb5.keytab",
    "/etc/ssl/private",
    "/etc/wireguard",
    "/etc/kubernetes",
    "/etc/rancher",
    "/etc/docker",
    "/etc/letsencrypt",
    "/etc/openvpn",
    "/etc/ipsec.secrets",
    "/etc/security/opasswd",
    "/etc/NetworkManager/system-connections",
    "/etc/munge",
    "/etc/netplan",
    "/var/spool/cron",
    "/var/lib/private",
    "/var/lib/kubelet",
    "/var/lib/docker",
    "/var/lib/containers",
    "/var/lib/containerd",
    "/var/lib/libvirt",
    "/var/lib/postgresql",
    "/var/lib/mysql",
    "/var/lib/sss",
    "/var/lib/samba/private",
    "/var/log/journal",
    "/var/mail",
    "/var/backups",
    "/var/log/auth.log",
    "/var/log/syslog",
    "/var/log/audit",
    "/var/log/messages",
};
static const char *const proc_ro[] = {"sys", "irq", "bus", "fs"};
static const char *const proc_hide[] = {"kcore",         "keys",  "key-users", "timer_list",
                                        "sysrq-trigger", "kmsg",  "kallsyms",  "latency_stats",
                                        "sched_debug",   "acpi/", "scsi/"};

static bool one_of(const char *s, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!strcmp(s, list[i]))
            return true;
    return false;
}

static int add_lower(struct vg_sandbox_node *n, const char *path) {
    struct stat st;
    for (size_t i = 0; i < n->n_lowers; i++)
        if (!strcmp(n->lowers[i], path))
            return 0;
    if (n->n_lowers == VG_SB_LOWERS_MAX || lstat(path, &st) < 0 || S_ISLNK(st.st_mode))
        return 0;
    n->lowers[n->n_lowers] = vg_strdup(path);
    if (!n->lowers[n->n_lowers])
        return -ENOMEM;
    n->lower_is_file[n->n_lowers++] = !S_ISDIR(st.st_mode);
    return 0;
}

/* "/" first, then parents before children, as mountinfo lists them. */
static int find_lowers(struct vg_sandbox_node *n) {
    FILE *f = fopen("/proc/self/mountinfo", "re");
    if (!f)
        return -errno;
    char line[8192], at[PATH_MAX], type[64];
    int r = add_lower(n, "/");
    while (r >= 0 && fgets(line, sizeof(line), f)) {
        const char *dash = strstr(line, " - ");
        if (!dash || sscanf(line, "%*s %*s %*s %*s %4095s", at) != 1 ||
            sscanf(dash + 3, "%63s", type) != 1)
            continue;
        bool tree = false;
        for (size_t i = 0; i < VG_COUNT(lower_trees); i++)
            tree |= !strncmp(at, lower_trees[i], strlen(lower_trees[i])) && strcmp(type, "autofs");
        if (tree || (one_of(at, lower_places, VG_COUNT(lower_places)) &&
                     one_of(type, lower_types, VG_COUNT(lower_types))))
            r = add_lower(n, at);
    }
    fclose(f);
    return r;
}

/* Only what exists is hidden; a link is followed, so that its target is. */
static int add_hide(struct vg_sandbox_node *n, const char *path, bool always) {
    struct stat st;
    char real[PATH_MAX];
    if (!realpath(path, real) || lstat(real, &st) < 0 || !strcmp(real, "/"))
        return 0;
    for (size_t i = 0; i < n->n_hide; i++)
        if (!strcmp(n->hide[i].path, real))
            return 0;
    if (n->n_hide == VG_SB_HIDE_MAX)
        return -E2BIG;
    char *copy = vg_strdup(real);
    if (!copy)
        return -ENOMEM;
    n->hide[n->n_hide++] =
        (struct vg_sb_hide){.path = copy,
                            .kind = S_ISDIR(st.st_mode) ? VG_SB_HIDE_DIR : VG_SB_HIDE_FILE,
                            .always = always,
                            .mode = (uint16_t)(st.st_mode & 07777)};
    return 0;
}

static int find_hidden(struct vg_sandbox_node *n) {
    int r = add_hide(n, "/home", true);
    if (r >= 0)
        r = add_hide(n, "/root", true);
    for (size_t i = 0; r >= 0 && i < VG_COUNT(secrets); i++)
        r = add_hide(n, secrets[i], false);
    glob_t g = {0};
    if (r >= 0 && glob("/etc/ssh/ssh_host_*_key", GLOB_NOSORT, NULL, &g) == 0)
        for (size_t i = 0; r >= 0 && i < g.gl_pathc; i++)
            r = add_hide(n, g.gl_pathv[i], false);
    globfree(&g);
    return r;
}

static void find_proc(struct vg_sandbox_node *n) {
    char path[64];
    for (size_t i = 0; i < VG_COUNT(proc_ro); i++) {
        snprintf(path, sizeof(path), "/proc/%s", proc_ro[i]);
        if (access(path, F_OK) == 0)
            n->proc_ro[n->n_proc_ro++] = proc_ro[i];
    }
    for (size_t i = 0; i < VG_COUNT(proc_hide); i++) {
        snprintf(path, sizeof(path), "/proc/%s", proc_hide[i]);
        if (access(path, F_OK) == 0)
            n->proc_hide[n->n_proc_hide++] = proc_hide[i];
    }
    n->sys_firmware = access("/sys/firmware", F_OK) == 0;
}

static int copy_conf(struct vg_sandbox_node *n, const struct vg_sandbox_node_conf *c) {
    char dir[PATH_MAX], home[PATH_MAX], exe[PATH_MAX];
    int r = vg_mkdir_p(c->dir, 0700);
    if (r < 0)
        return r;
    if (!realpath(c->dir, dir) || !realpath(c->home, home) ||
        (c->self_exe && !realpath(c->self_exe, exe)))
        return -errno;
    n->dir = vg_strdup(dir);
    n->home = vg_strdup(home);
    n->tag = vg_strdup(c->tag);
    n->agent_sock = vg_strdup(c->agent_sock);
    n->self_exe = vg_strdup(c->self_exe ? exe : NULL);
    n->watch = c->watch;
    if (!n->dir || !n->home || !n->tag || !n->agent_sock != !c->agent_sock ||
        !n->self_exe != !c->self_exe)
        return -ENOMEM;
    if (n->agent_sock) {
        char parent[PATH_MAX], real[PATH_MAX];
        const char *base = strrchr(n->agent_sock, '/');
        if (!base || base == n->agent_sock)
            return -EINVAL;
        snprintf(parent, sizeof(parent), "%.*s", (int)(base - n->agent_sock), n->agent_sock);
        n->bind_sock_dir = realpath(parent, real) && strcmp(real, dir) && strcmp(real, home);
    }
    return 0;
}

int vg_sandbox_node_open(const struct vg_sandbox_node_conf *conf, struct vg_sandbox_node **ret,
                         struct vg_err *err) {
    if (geteuid() != 0 || prctl(PR_CAPBSET_READ, 21 /* CAP_SYS_ADMIN */, 0, 0, 0) != 1)
        return vg_err_set(err, VG_NEEDS_ROOT,
                          "sandboxes need root on this machine: start the agent as root");
    struct vg_sandbox_node *n = vg_alloc(sizeof(*n));
    if (!n)
        return vg_err_sys(err, ENOMEM, "cannot open the sandbox node");
    for (size_t i = 0; i < VG_SB_PROFILES_MAX; i++)
        n->seeds[i].userns_fd = n->seeds[i].mntns_fd = -1;
    int r = copy_conf(n, conf);
    if (r >= 0)
        r = find_lowers(n);
    if (r >= 0)
        r = find_hidden(n);
    if (r < 0)
        vg_err_sys(err, r, "cannot look at this machine's file systems");
    find_proc(n);
    if (r >= 0)
        r = vg_seccomp_compile(&n->prog, err);
    if (r >= 0)
        r = vg_cg_open(&n->cg, n->tag, err);
    if (r < 0) {
        vg_sandbox_node_close(n);
        return r;
    }
    *ret = n;
    return 0;
}

void vg_sandbox_node_close(struct vg_sandbox_node *n) {
    if (!n)
        return;
    for (size_t i = 0; i < VG_SB_PROFILES_MAX; i++)
        vg_sb_seed_done(&n->seeds[i]);
    vg_cg_close(&n->cg);
    for (size_t i = 0; i < n->n_lowers; i++)
        free(n->lowers[i]);
    for (size_t i = 0; i < n->n_hide; i++)
        free(n->hide[i].path);
    free(n->prog.filter);
    free(n->dir);
    free(n->home);
    free(n->tag);
    free(n->agent_sock);
    free(n->self_exe);
    free(n);
}

int vg_sandbox_node_warm(struct vg_sandbox_node *node, const struct vg_sandbox_profile *p,
                         struct vg_err *err) {
    struct vg_sb_seed *seed;
    return vg_sb_seed_get(node, p, &seed, err);
}

static void list_fd(int fd, int *fds, size_t max, size_t *n) {
    if (*n < max)
        fds[*n] = fd;
    ++*n;
}

size_t vg_sandbox_node_fds(const struct vg_sandbox_node *node, const struct vg_sandbox_profile *p,
                           int *fds, size_t max) {
    size_t n = 0;
    for (size_t i = 0; i < node->cg.n; i++)
        list_fd(node->cg.h[i].fd, fds, max, &n);
    for (size_t i = 0; i < VG_SB_PROFILES_MAX; i++) {
        const struct vg_sb_seed *s = &node->seeds[i];
        if (s->userns_fd < 0 || (p && !vg_sb_seed_fits(s, p)))
            continue;
        list_fd(s->userns_fd, fds, max, &n);
        list_fd(s->mntns_fd, fds, max, &n);
    }
    return n;
}

int vg_sandbox_sample(const struct vg_sandbox_node *node, const char *name,
                      struct vg_sandbox_sample *ret) {
    return vg_cg_sample(&node->cg, name, ret);
}

void vg_sandbox_sweep(struct vg_sandbox_node *node, bool (*live)(const char *name, void *user),
                      void *user) {
    vg_cg_sweep(&node->cg, live, user);
}
