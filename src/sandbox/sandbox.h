#pragma once
/* A sandbox: namespaces, mounts, cgroup and an init process in which commands run. The keeper
   (root, outside) builds one ahead of need, then executes commands in it. No program is executed on
   the way but the command itself.

   Life: prepare (expensive, no user code yet) -> exec, exec, ... -> destroy. Events come from the
   init process through one descriptor. What init says is untrusted once user code runs: nothing it
   sends can do more than lie about its own task. Blocking calls; one thread; called in the keeper.
 */
#include "base/err.h"

#include <linux/filter.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct vg_sandbox;
struct vg_sandbox_profile;

/* What does not change between sandboxes of a node. Owned by the agent, inherited by fork. */
struct vg_sandbox_node; /* opaque: compiled seccomp program, cgroup layout, /dev template, lower
                           mounts */

struct vg_sandbox_node_conf {
    const char *dir;        /* $VIRGA_HOME/node: runtime mounts and folders live below it */
    const char *home;       /* $VIRGA_HOME itself: hidden from tasks */
    const char *tag;        /* short hex name of this cloud+node: cgroups and links carry it */
    const char *agent_sock; /* unix socket bound into tasks as /run/virga/sock; may be NULL. In a
                               folder of its own (not dir, not home) it may be made anew later */
    const char
        *self_exe; /* the virga binary: bound read-only at /run/virga/bin/{virga,vrun,vbatch} */
    /* For commands that are watched: a filter whose SECCOMP_RET_USER_NOTIF somebody will answer.
       Borrowed as long as the node lives; empty: none is. */
    struct sock_fprog watch;
};
/* Needs root; says so in one sentence. Keeps descriptors open that keepers need: a forked keeper
   must not close them (they are close-on-exec). Mounts nothing in the caller's mount namespace. */
int vg_sandbox_node_open(const struct vg_sandbox_node_conf *conf, struct vg_sandbox_node **ret,
                         struct vg_err *err);
/* The descriptors that a forked keeper must keep for the node to work there: writes at most `max`,
   returns how many there are. `profile` limits them to what its sandboxes need; NULL: all. */
size_t vg_sandbox_node_fds(const struct vg_sandbox_node *node,
                           const struct vg_sandbox_profile *profile, int *fds, size_t max);
/* Leaves no mount and no cgroup of ours behind (sandboxes must be gone). */
void vg_sandbox_node_close(struct vg_sandbox_node *node);

struct vg_limits {
    uint32_t cpu_milli; /* 0: no limit */
    uint64_t mem_bytes; /* 0: no limit */
    uint32_t pids;      /* 0: no limit */
    uint64_t
        disk_bytes; /* scratch: copy-on-write layer, /tmp, /dev/shm together; 0: half of memory */
};

/* A root that is not the node's: files of another machine (docs/mirror.md). Descriptors are
   detached mounts, whose ids are in the user's private range; each is used up by one sandbox. The
   profile must have uid and gid 0 and not be local_root: every id inside is then a private one
   outside. All is borrowed until the sandbox is ready. */
struct vg_sandbox_view {
    const char *path; /* absolute, clean */
    int fd;
};
struct vg_sandbox_root {
    const int *layers; /* n_lower, topmost first, then n_data data-only ones; at most 20 */
    size_t n_lower, n_data;
    const struct vg_sandbox_view *views; /* folders that are written back */
    size_t n_views;
    /* A detached mount of an empty folder on disk, where the root's upper layer comes to lie; else
       it is in memory, as everything that is private to the sandbox. */
    bool on_disk;
    int upper;
    const char *const *libraries; /* absolute paths of the node's driver libraries and programs */
    size_t n_libraries;
    uid_t uid; /* who the person is inside: gets /run/user/UID */
    gid_t gid;
    /* And on this machine, by its administrator's word: owns the person's files in folders that are
       bound (struct vg_bind). 0: nobody here; then only what everybody may do there is possible. */
    uid_t host_uid;
    gid_t host_gid;
};

/* What a sandbox can be prepared for before its task is known. */
struct vg_sandbox_profile {
    uint32_t slot; /* the user's id range: inside id x is outside 0x20000000 + slot * 65536 + x */
    uid_t uid;     /* the caller's own ids; a non-root uid keeps its number outside too */
    gid_t gid;
    bool local_root;  /* the caller is proven to be root of this machine */
    const char *home; /* bound read-write when it exists and belongs to uid; may be NULL */
    int netns_fd;     /* network namespace to live in; -1: the host's; -2: a fresh empty one */
    const char *resolv_conf;            /* text for /etc/resolv.conf, or NULL to leave the node's */
    const struct vg_sandbox_root *root; /* NULL: the node's own files */
};
/* Makes what sandboxes of this (slot, uid, gid) share, unless the node has it: about 2 ms, best
   done in the agent before it forks the first keeper of a user. prepare does it itself when nobody
   did. */
int vg_sandbox_node_warm(struct vg_sandbox_node *node, const struct vg_sandbox_profile *profile,
                         struct vg_err *err);
int vg_sandbox_prepare(struct vg_sandbox_node *node, const struct vg_sandbox_profile *profile,
                       const char *name, /* cgroup name, unique on the node */
                       struct vg_sandbox **ret, struct vg_err *err);

/* The same in two steps, for whoever must not wait: a mirrored root may need bytes from far away.
   vg_sandbox_fd() is readable when await will not block; kill_all ends the wait with a failure,
   after which the sandbox must be destroyed like any other. */
int vg_sandbox_begin(struct vg_sandbox_node *node, const struct vg_sandbox_profile *profile,
                     const char *name, struct vg_sandbox **ret, struct vg_err *err);
int vg_sandbox_await(struct vg_sandbox *sb, struct vg_err *err);

struct vg_bind {
    const char *path; /* absolute; same inside and outside */
    int fd;           /* O_PATH descriptor that proves access, or -1: opened as the user */
    bool read_only;
    bool detached; /* fd is a mount of its own, moved as it is; a path bound before stays */
    bool nodes; /* fd is a folder of the node's own, shown at `path` with its owners as they are */
};

struct vg_device {
    const char *path; /* /dev/nvidia0 */
    /* Not NULL nor "": a device that is simulated, by what lies at `path` below this folder of the
       node's: a socket or a file is bound in its place, a character device given as any other. */
    const char *root;
};

/* Files of the node that lie over others for one command, and a folder of their own. The sandbox
   serves no other command before or after it. */
#define VG_LAY_MAX 64u
struct vg_lay_file {
    const char *from; /* of the node; shown read-only */
    const char *at;   /* a path of the node's, wherever the sandbox shows it: links are followed. In
                         a mirrored root only what the node's libraries are shown as. Or below the
                         folder */
};
struct vg_lay {
    const char *folder; /* empty in every sandbox; commands can read what is put there */
    const struct vg_lay_file *files;
    size_t n_files;
    /* Puts it there, before the command begins; the descriptor is the only way to write. */
    int (*fill)(void *ud, int folder, struct vg_err *err);
    void *ud;
};
#define VG_SANDBOX_SHARE "/run/virga/vgpu" /* such a folder */

/* A file that lies in memory and that its user alone can read, in VG_SANDBOX_SECRETS. One that is
   there by that name is replaced. */
struct vg_given_file {
    const char *name; /* of a file, no path */
    const void *data;
    size_t len;
};
#define VG_SANDBOX_SECRETS "/run/secrets"

/* CPUs that a command begins on, and the NUMA nodes that its memory comes from while they have
   some: a hint about what is near, no wall. */
#define VG_SB_CPUS 1024
struct vg_near_cpus {
    uint64_t cpus[VG_SB_CPUS / 64]; /* a set; empty: any */
    uint64_t numa;                  /* likewise */
};

struct vg_exec {
    char *const *argv;
    char *const *env;
    const char *cwd; /* absolute; gone or unreachable: the event is EXEC_FAILED */
    uid_t uid;       /* inside numbers */
    gid_t gid;
    const gid_t *groups;
    size_t n_groups;
    mode_t umask;
    const struct vg_rlimit {
        int which;
        uint64_t soft, hard;
    } * rlimits;
    size_t n_rlimits;
    int nice;
    uint64_t sig_ignored; /* bit n - 1: the command starts with signal n ignored */
    int fds[3];           /* become 0, 1, 2; duplicated, still owned by the caller */
    bool tty; /* fds are (mostly) the slave of vg_sandbox_open_pty: new session with that
                 controlling terminal, own foreground process group, stops are reported */
    const struct vg_limits *limits; /* applied before exec; NULL: leave */
    const struct vg_bind *binds;    /* added before exec */
    size_t n_binds;
    const struct vg_device *devices; /* allowed and made visible before exec */
    size_t n_devices;
    const struct vg_lay *lay; /* NULL: nothing */
    const struct vg_given_file *given;
    size_t n_given;
    const struct vg_near_cpus *near; /* NULL: none are nearer than others */
    bool open_devices; /* every device of the node, by the node's own /dev, instead of `devices` */
    bool watched;      /* under the node's `watch`: VG_SB_WATCHED comes before VG_SB_STARTED */
};

/* Asks init to run a command. `tag` comes back in its events. Returns at once. */
int vg_sandbox_exec(struct vg_sandbox *sb, uint64_t tag, const struct vg_exec *x,
                    struct vg_err *err);

enum vg_sandbox_event_kind {
    VG_SB_STARTED,     /* exec succeeded; pid is the outside pid */
    VG_SB_EXEC_FAILED, /* code = errno; text says what failed ("cannot enter /x: ...") */
    VG_SB_STOPPED,     /* code = signal */
    VG_SB_EXITED,      /* code = wait status as from waitpid */
    VG_SB_WATCHED,     /* fd answers for the command's calls (seccomp_unotify(2)); they wait until
                          somebody does, and fail with ENOSYS when it is closed */
    VG_SB_DEAD,        /* init is gone: nothing runs in the sandbox any more */
};
struct vg_sandbox_event {
    enum vg_sandbox_event_kind kind;
    uint64_t tag;
    pid_t pid;
    int code;
    int fd; /* WATCHED: the caller's to close; else -1 */
    char text[256];
};
/* Readable when an event waits. */
int vg_sandbox_fd(const struct vg_sandbox *sb);
/* 1 and an event, 0 when none waits, -errno. */
int vg_sandbox_next_event(struct vg_sandbox *sb, struct vg_sandbox_event *ret);

/* Signals the command with this tag: its process, or its process group; one that has not started
   yet gets it then. -ESRCH when it has ended. */
int vg_sandbox_signal(struct vg_sandbox *sb, uint64_t tag, int signo, bool group);
/* Kills every process in the sandbox (cgroup), commands and all they left. */
int vg_sandbox_kill_all(struct vg_sandbox *sb);

/* What is in a sandbox whose command has ended. UINT32_MAX: could not be counted. */
struct vg_left {
    uint32_t processes; /* besides init */
    uint32_t sysv;      /* System V segments, semaphores and queues */
    uint32_t queues;    /* POSIX message queues */
    uint64_t scratch_bytes;
};
void vg_sandbox_left(struct vg_sandbox *sb, struct vg_left *ret);
/* Kills everything and waits until it is gone, at most so long: -ETIMEDOUT. */
int vg_sandbox_end(struct vg_sandbox *sb, int timeout_ms);
/* After that: lets go of its scratch files, so that the kernel frees them. */
void vg_sandbox_let_go(struct vg_sandbox *sb);

/* A new terminal of the sandbox's own devpts: owned by the task's uid. */
int vg_sandbox_open_pty(struct vg_sandbox *sb, uid_t uid, gid_t gid, int *ret_master,
                        int *ret_slave);
/* A TCP connection to 127.0.0.1:port (then [::1]) inside the sandbox's network; non-blocking. */
int vg_sandbox_connect(struct vg_sandbox *sb, uint16_t port);

struct vg_usage {
    uint64_t cpu_usec;
    uint64_t mem_bytes, mem_peak_bytes;
    uint64_t disk_bytes;
    uint32_t pids;
    bool oom; /* the memory limit killed something */
};
int vg_sandbox_usage(struct vg_sandbox *sb, struct vg_usage *ret);
/* What a sandbox of this node has used so far and holds now, for whoever did not make it: a few
   small reads. -ENOENT: it is gone. */
struct vg_sandbox_sample {
    uint64_t cpu_usec, mem_bytes;
    bool has_io; /* cgroup v2 with its io controller */
    uint64_t read_bytes, write_bytes;
};
int vg_sandbox_sample(const struct vg_sandbox_node *node, const char *name,
                      struct vg_sandbox_sample *ret);
/* The outside uid/gid that an inside id has in this sandbox. */
uid_t vg_sandbox_map_uid(const struct vg_sandbox *sb, uid_t inside);
gid_t vg_sandbox_map_gid(const struct vg_sandbox *sb, gid_t inside);

/* What commands wrote outside of folders that are written back: the root's upper layer, as an
   O_PATH descriptor of the caller's. Mirrored roots only, whose upper layer is in memory: -ENOTSUP,
   -ENOENT. (Of one on disk it is "u0" in the folder that was given.) */
int vg_sandbox_changes(const struct vg_sandbox *sb);
/* A mirrored root as commands see it, borrowed; good also when all of them are dead. An upper layer
   alone does not have the content of a file that was only renamed. -ENOTSUP. */
int vg_sandbox_merged(const struct vg_sandbox *sb);

/* After its commands have ended: makes it ready for another command of the same profile and binds.
   False when it is not exactly as it was before: destroy it then. */
bool vg_sandbox_recycle(struct vg_sandbox *sb);

/* Kills what is left, waits for it, removes the cgroup and mounts. */
void vg_sandbox_destroy(struct vg_sandbox *sb);
/* For an agent that starts: removes cgroups of sandboxes whose name `live` does not confirm. */
void vg_sandbox_sweep(struct vg_sandbox_node *node, bool (*live)(const char *name, void *user),
                      void *user);
