#pragma once
/* What the files of this folder share; nobody outside includes it. */
#include "base/err.h"
#include "sandbox/sandbox.h"

#include <linux/filter.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

/* ---- ids ---------------------------------------------------------------------------------- */

#define VG_SB_ID_BASE 0x20000000u
#define VG_SB_ID_RANGE 65536u
#define VG_SB_SLOT_MAX 57000u

/* ---- cgroups (cgroup.c, cgroup-open.c) ---------------------------------------------------- */

enum vg_cg_what { /* what a hierarchy controls; one hierarchy may do several */
                  VG_CG_CPU = 1,
                  VG_CG_CPUACCT = 2,
                  VG_CG_MEMORY = 4,
                  VG_CG_PIDS = 8,
                  VG_CG_DEVICES = 16,
};
#define VG_CG_HIER_MAX 6
#define VG_CG_DEVS_MAX 64

struct vg_cg {
    bool v2;
    unsigned have; /* enum vg_cg_what */
    char *left;    /* owned: v2, the group that the agent stepped out of, into a leaf of it */
    size_t n;
    struct vg_cg_hier {
        unsigned what;
        int fd;     /* owned: the folder virga-<tag> in it */
        char *path; /* owned: its path, for removal */
    } h[VG_CG_HIER_MAX];
};

int vg_cg_open(struct vg_cg *cg, const char *tag, struct vg_err *err);
void vg_cg_close(struct vg_cg *cg);
int vg_cg_make(const struct vg_cg *cg, const char *name);
/* v2: an O_PATH-like folder descriptor for CLONE_INTO_CGROUP; v1: -1. */
int vg_cg_clone_fd(const struct vg_cg *cg, const char *name);
/* v1: moves the calling process in. */
int vg_cg_enter(const struct vg_cg *cg, const char *name);
void vg_cg_remove(const struct vg_cg *cg, const char *name);
int vg_cg_limit(const struct vg_cg *cg, const char *name, const struct vg_limits *l,
                struct vg_err *err);
int vg_cg_usage(const struct vg_cg *cg, const char *name, struct vg_usage *ret);
/* As vg_sandbox_sample. */
int vg_cg_sample(const struct vg_cg *cg, const char *name, struct vg_sandbox_sample *ret);
/* Starts counting anew: *base is what to take off later readings. -ENOTSUP where peaks stay. */
int vg_cg_reset(const struct vg_cg *cg, const char *name, struct vg_usage *base, int *peak_fd);
/* v2: the peak since the reset, through the descriptor that asked for it. */
uint64_t vg_cg_peak(int peak_fd);
/* Allows these character devices besides the standard ones; `pid` is init. */
int vg_cg_devices(const struct vg_cg *cg, const char *name, pid_t pid, const dev_t *devs, size_t n);
/* No device is refused any more (by us). */
int vg_cg_open_devices(const struct vg_cg *cg, const char *name, pid_t pid);
int vg_cg_bpf_all_devices(int cgroup_fd);
/* Processes in it; -errno. */
int vg_cg_count(const struct vg_cg *cg, const char *name);
void vg_cg_sweep(const struct vg_cg *cg, bool (*live)(const char *name, void *user), void *user);
/* A file of the folder `name` ("": dir itself) below dir: written, or read as text. */
int vg_cg_put(int dir, const char *name, const char *file, const char *text);
int vg_cg_get(int dir, const char *name, const char *file, char *out, size_t n);
/* The folder of the hierarchy that controls one of these; -1: none does. */
int vg_cg_hier(const struct vg_cg *cg, unsigned what);
/* cgroup-bpf.c: attaches an allow-list program to a v2 folder. */
int vg_cg_bpf_devices(int cgroup_fd, const dev_t *devs, size_t n);
/* Its instructions, for at most VG_CG_DEVS_MAX devices; returns how many. */
#define VG_CG_BPF_MAX (16 + 4 * (VG_CG_DEVS_MAX + 8))
struct bpf_insn;
size_t vg_cg_bpf_write(struct bpf_insn *p, const dev_t *devs, size_t n_devs);
/* The devices every task may use, as major:minor; minor UINT32_MAX means all. */
struct vg_cg_dev {
    uint32_t major, minor;
};
extern const struct vg_cg_dev vg_cg_std_devs[];
extern const size_t vg_cg_n_std_devs;

/* ---- seccomp (seccomp.c) ------------------------------------------------------------------ */

int vg_seccomp_compile(struct sock_fprog *ret, struct vg_err *err);
int vg_seccomp_install(const struct sock_fprog *prog);
/* The descriptor that answers, or -errno. */
int vg_seccomp_watch(const struct sock_fprog *prog);

/* ---- node and profile (node.c, seed.c) ---------------------------------------------------- */

#define VG_SB_LOWERS_MAX 12
#define VG_SB_HIDE_MAX 48
#define VG_SB_PROFILES_MAX 128

struct vg_sb_seed { /* what sandboxes of the same (slot, uid, gid) share */
    uint32_t slot;
    uid_t uid;
    gid_t gid;
    bool stranger; /* root inside, but not this machine's root */
    uint64_t used; /* for eviction: the larger the younger */
    int userns_fd; /* owned; -1: free entry */
    int mntns_fd;  /* owned: a mount namespace with the layout in seed.c */
};

enum vg_sb_hide_kind { VG_SB_HIDE_FILE, VG_SB_HIDE_DIR };
struct vg_sb_hide {
    char *path; /* owned; starts with a slash */
    enum vg_sb_hide_kind kind;
    bool always; /* else only when the caller is not this machine's root */
    uint16_t mode;
};

struct vg_sandbox_node {
    char *dir, *home, *tag, *agent_sock, *self_exe; /* owned; home is canonical */
    bool bind_sock_dir;                             /* agent_sock has a folder of its own */
    char *lowers[VG_SB_LOWERS_MAX]; /* owned: "/" first, then what is mounted below */
    bool lower_is_file[VG_SB_LOWERS_MAX];
    size_t n_lowers;
    struct vg_sb_hide hide[VG_SB_HIDE_MAX];
    size_t n_hide;
    const char *proc_ro[8],
        *proc_hide[16]; /* those that exist; proc_hide ends in '/' for folders */
    size_t n_proc_ro, n_proc_hide;
    bool sys_firmware;
    struct sock_fprog prog;  /* owned filter */
    struct sock_fprog watch; /* borrowed filter; empty: none */
    struct vg_cg cg;
    struct vg_sb_seed seeds[VG_SB_PROFILES_MAX];
    uint64_t uses;
};

/* The standard nodes, links and folders of a /dev. */
int vg_sb_fill_dev(const char *at, uid_t uid, gid_t gid);
/* A user namespace that turns the person's ids on this machine into those the sandbox knows it by,
   and no others: for id-mapped mounts under a mirrored root. A descriptor or -errno. */
int vg_sb_shared_ids(uint32_t slot, const struct vg_sandbox_root *r, struct vg_err *err);
uid_t vg_sb_map_id(uint32_t slot, uid_t own, uid_t inside);
/* Finds or makes; borrowed from the node. */
int vg_sb_seed_get(struct vg_sandbox_node *node, const struct vg_sandbox_profile *p,
                   struct vg_sb_seed **ret, struct vg_err *err);
bool vg_sb_seed_fits(const struct vg_sb_seed *s, const struct vg_sandbox_profile *p);
void vg_sb_seed_done(struct vg_sb_seed *seed);

/* ---- messages between keeper and init (SOCK_SEQPACKET) ------------------------------------- */

#define VG_SB_INLINE_MAX 65536u
#define VG_SB_BLOB_MAX (16u << 20) /* argv, environment and the rest; the kernel takes 6 MiB */
#define VG_SB_ARGS_MAX (1u << 20)
#define VG_SB_GROUPS_MAX 65536u
#define VG_SB_RLIMITS_MAX 32u
#define VG_SB_BINDS_MAX 64u
#define VG_SB_LAYERS_MAX 20u
#define VG_SB_COMMANDS_MAX 4096u

enum {
    VG_SB_REQ_TTY = 1,
    VG_SB_REQ_CWD_GONE = 2,
    VG_SB_REQ_MEMFD = 4,
    VG_SB_REQ_RESET = 8,
    VG_SB_REQ_WATCH = 16,
    VG_SB_REQ_NEAR = 32
};

/* keeper to init: run a command. The blob follows, or is a memfd: vg_near_cpus if flags say so,
   rlimits, groups, then strings:
   cwd, other cwd, argv..., env.... Descriptors: stdin, stdout, stderr as fd_mask says, memfd. */
struct vg_sb_req {
    uint64_t tag;
    uint32_t flags, fd_mask;
    uint32_t argc, envc, n_groups, n_rlimits;
    uint32_t uid, gid, umask;
    int32_t nice;
    uint32_t blob_len;
    uint64_t sig_ignored;
};
struct vg_sb_rlimit {
    uint64_t which, soft, hard;
};

enum vg_sb_msg_kind {
    VG_SB_MSG_READY = 100,
    VG_SB_MSG_FAILED = 101, /* else vg_sandbox_event_kind */
    VG_SB_MSG_RESET = 102   /* code 0: nothing is left of earlier commands */
};
struct vg_sb_msg {
    uint32_t kind;
    int32_t code;
    uint64_t tag;
    char text[256];
};
#define VG_SB_READY_FDS 4 /* with READY: /dev/pts, /dev/shm, scratch; a mirrored root */
#define VG_SB_MSG_MIN offsetof(struct vg_sb_msg, text)

ssize_t vg_sb_send(int sock, const void *data, size_t n, const void *more, size_t more_n,
                   const int *fds, size_t n_fds);
#define VG_SB_FDS_MAX 8

/* ---- init (init.c, build.c, command.c): runs as pid 1 of the sandbox ---------------------- */

/* root.c: small files of the node that a mirrored root gets. */
struct vg_sb_files {
    char resolv_conf[4096], hosts[8192], hostname[80];
};
void vg_sb_read_files(struct vg_sb_files *f);

/* The node's folders that driver libraries of a mirrored root lie in. */
struct vg_sb_folders {
    size_t n;
    struct {
        char path[256];
        int fd; /* owned: a detached mount, read-only */
    } at[8];
};
/* On failure too, what was opened is closed by vg_sb_close_folders(). */
int vg_sb_open_folders(struct vg_sb_folders *f, const struct vg_sandbox_root *root,
                       struct vg_err *err);
void vg_sb_close_folders(struct vg_sb_folders *f);

struct vg_sb_birth {
    struct vg_sandbox_node *node;
    const struct vg_sandbox_profile *profile;
    const struct vg_sb_seed *seed;
    const char *name;
    int sock;                        /* to the keeper */
    int home_fd;                     /* detached mount, or -1 */
    const char *home;                /* where it goes */
    const struct vg_sb_files *files; /* with a mirrored root */
    const struct vg_sb_folders *folders;
};
_Noreturn void vg_sb_init_main(const struct vg_sb_birth *b);

/* build.c: makes the mount tree and pivots into it. Returns the scratch file system's root as an
   O_PATH descriptor. Errors as text. */
int vg_sb_build(const struct vg_sb_birth *b, struct vg_err *err);
/* root.c: mounts a mirrored root at /r; then, working folder /r, adds views and libraries. */
int vg_sb_mount_mirror(const struct vg_sb_birth *b, uid_t uid, gid_t gid, struct vg_err *err);
int vg_sb_dress_mirror(const struct vg_sb_birth *b, uid_t uid, gid_t gid, struct vg_err *err);
/* Creates what is missing of a path below the current root, without following links; returns an
   O_PATH descriptor of its end. Made folders belong to (uid, gid). */
int vg_sb_make_target(const char *path, bool is_dir, uid_t uid, gid_t gid);

/* command.c */
struct vg_sb_command {
    struct vg_sb_req req;
    const struct vg_near_cpus *near; /* NULL: none */
    const struct vg_sb_rlimit *rlimits;
    const uint32_t *groups;
    const char *cwd, *other_cwd;
    char **argv, **env; /* argv has one free place in front, for the shell */
    int fds[3];
    const uint64_t *hard_restore; /* per resource: hard limit to restore unless given; or NULL */
    const struct sock_fprog *watch;
    int sock; /* where a watched command's descriptor goes */
};
struct vg_sb_spawned {
    pid_t pid; /* inside */
    int pidfd; /* owned */
    int error; /* errno when it could not be executed; pid is then reaped */
    char text[256];
};
void vg_sb_spawn(const struct vg_sb_command *c, int tty_fd, struct vg_sb_spawned *ret);

/* ---- binds (bind.c) ------------------------------------------------------------------------ */

/* A detached mount of `src` (O_PATH), nosuid,nodev, id-mapped by userns_fd when >= 0. */
int vg_sb_detach(int src, int userns_fd, bool read_only);

/* ---- sandbox (sandbox.c, sandbox-birth.c, sandbox-exec.c) --------------------------------- */

struct vg_sb_cover {
    char *path; /* owned */
    bool read_only;
};
struct vg_sb_running {
    uint64_t tag;
    int pidfd;         /* owned; -1 until STARTED */
    pid_t pid;         /* outside */
    uint64_t early[2]; /* signals sent before it started: to the process, to its group */
};

#define VG_SB_TRACE_MAX 256
struct vg_sb_traced { /* no padding: compared as bytes */
    uint64_t ino;
    int64_t size;
    uint64_t content;
    struct timespec ctime;
    uint32_t mode, uid, gid, nlink;
};
struct vg_sb_trace { /* what the scratch file system holds */
    uint64_t files, blocks;
    struct timespec newest; /* change time of its newest regular file */
    size_t n;
    struct vg_sb_traced file[VG_SB_TRACE_MAX];
};

struct vg_sandbox {
    struct vg_sandbox_node *node; /* borrowed */
    char *name;                   /* owned */
    uint32_t slot;
    uid_t uid;
    gid_t gid;
    bool local_root;
    int netns_fd; /* as in the profile; borrowed */
    bool in_cgroup;
    pid_t pid;      /* init, outside */
    int pidfd;      /* owned */
    int sock;       /* owned */
    int userns_fd;  /* owned */
    int shared_ids; /* owned; for what is bound under a mirrored root; -1: none */
    uid_t host_uid; /* 0: none */
    gid_t host_gid;
    int pts_fd;     /* owned: /dev/pts of the sandbox */
    int scratch_fd; /* owned: /dev/shm of the sandbox: a folder of the scratch file system */
    int own_mnt_fd, own_net_fd; /* owned: the caller's namespaces, to come back to */
    bool dead, private_dev, mirrored;
    bool looked;                /* a command was started, which looked names up */
    bool laid;                  /* something, for one command (lay.c) */
    int given_fd;               /* owned: the folder of secrets, writable; -1: none */
    struct vg_sb_folders shown; /* as /run/virga-node/0, 1, ...: their paths */
    int root_fd;                /* owned: root of the scratch file system */
    int merged_fd;             /* owned: the root as commands see it; mirrored ones only, else -1 */
    bool traced;               /* `trace` is what the scratch held before the first command */
    struct vg_sb_trace *trace; /* owned */
    int64_t clock_offset;      /* wall minus boot time at the last exec */
    int peak_fd;               /* owned; v2: peaks since the last recycling; -1: none */
    struct vg_usage base;      /* of the commands before a recycling */
    struct vg_limits limits;   /* as last applied */
    dev_t devs[VG_CG_DEVS_MAX];
    size_t n_devs;
    struct vg_sb_cover covers[VG_SB_BINDS_MAX * 2];
    size_t n_covers;
    struct vg_sb_running *running; /* owned */
    size_t n_running, cap_running;
};

/* One message of init; descriptors that did not come are -1. 0 bytes: init is gone. */
ssize_t vg_sb_receive(int sock, struct vg_sb_msg *m, int fds[VG_SB_READY_FDS], int flags);
struct vg_sb_running *vg_sb_find_running(struct vg_sandbox *sb, uint64_t tag); /* or NULL */

/* recycle.c: notes what the scratch holds, after birth and before each command. */
void vg_sb_trace_first(struct vg_sandbox *sb);
void vg_sb_trace_exec(struct vg_sandbox *sb);
/* The next command finds the node's files as they are now, not as an earlier one found them. */
void vg_sb_refresh(struct vg_sandbox *sb);

/* bind.c: adds binds (and device nodes) to the living sandbox. Sets *ret_gone when the folder that
   `x->cwd` names was deleted, and *ret_cwd to its canonical path (owned) when that differs. */
int vg_sb_add_binds(struct vg_sandbox *sb, const struct vg_exec *x, bool *ret_gone, char **ret_cwd,
                    struct vg_err *err);
int vg_sb_add_devices(struct vg_sandbox *sb, const struct vg_exec *x, struct vg_err *err);
/* Into the sandbox's mount namespace, and back; between them nothing else may be done. */
int vg_sb_step_in(struct vg_sandbox *sb, int *ret_cwd);
void vg_sb_step_out(struct vg_sandbox *sb, int cwd);
/* lay.c */
int vg_sb_lay(struct vg_sandbox *sb, const struct vg_lay *l, struct vg_err *err);
/* In the sandbox's mount namespace: a file system of its own at `path`, shown read-only; the
   descriptor is the only way to write. */
int vg_sb_own_folder(const char *path, const char *options, int *ret_folder);
/* secrets.c */
int vg_sb_give(struct vg_sandbox *sb, const struct vg_exec *x, struct vg_err *err);
int vg_sb_set_disk(struct vg_sandbox *sb, uint64_t bytes, struct vg_err *err);
