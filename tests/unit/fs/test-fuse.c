/* Raw FUSE against the kernel: a file system of one file, mounted in a namespace of the test's
   own. */
#include "fs/node/fuse.h"

#include "base/cleanup.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define FILE_NODE 2
#define TEXT "twelve bytes"

struct world {
    char dir[64], at[80], path[96];
    struct vg_fuse *fuse;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t keep; /* keep requests of this kind instead of answering them */
    struct vg_fuse_req *held;
    int backing; /* >= 0: passthrough to this descriptor */
    int backing_id, reads, lookups, opens;
    bool gone;
};

static void attr_of(uint64_t node, struct fuse_attr *a) {
    bool file = node == FILE_NODE;
    *a = (struct fuse_attr){.ino = 1000 + node,
                            .mode = file ? S_IFREG | 0444 : S_IFDIR | 0755,
                            .nlink = 1,
                            .size = file ? strlen(TEXT) : 0,
                            .blksize = 4096};
}

static void on_lookup(struct world *w, struct vg_fuse_req *r) {
    size_t n;
    const char *name = vg_fuse_str(r, 0, &n);
    struct fuse_entry_out out = {.entry_valid = VG_FUSE_FOREVER, .attr_valid = VG_FUSE_FOREVER};
    w->lookups++;
    if (name && n == 4 && !strcmp(name, "file")) {
        out.nodeid = FILE_NODE;
        attr_of(FILE_NODE, &out.attr);
    }
    vg_fuse_ok(r, &out, sizeof(out));
}

static void on_open(struct world *w, struct vg_fuse_req *r) {
    struct vg_fuse_open_out out = {.open_flags = VG_FOPEN_NOFLUSH};
    w->opens++;
    if (w->backing >= 0) {
        w->backing_id = vg_fuse_backing_open(w->fuse, w->backing);
        out.open_flags |= VG_FOPEN_PASSTHROUGH;
        out.backing_id = w->backing_id;
    }
    vg_fuse_ok(r, &out, sizeof(out));
}

static void on_read(struct world *w, struct vg_fuse_req *r) {
    w->reads++;
    vg_fuse_ok(r, TEXT, strlen(TEXT));
}

static void on_request(void *user, struct vg_fuse_req *r) {
    struct world *w = user;
    struct fuse_attr_out attr = {.attr_valid = VG_FUSE_FOREVER};
    pthread_mutex_lock(&w->lock);
    if (vg_fuse_head(r)->opcode == w->keep) {
        w->held = vg_fuse_keep(r);
        pthread_cond_broadcast(&w->changed);
        pthread_mutex_unlock(&w->lock);
        return;
    }
    switch (vg_fuse_head(r)->opcode) {
    case FUSE_LOOKUP:
        on_lookup(w, r);
        break;
    case FUSE_GETATTR:
        attr_of(vg_fuse_head(r)->nodeid, &attr.attr);
        vg_fuse_ok(r, &attr, sizeof(attr));
        break;
    case FUSE_OPEN:
        on_open(w, r);
        break;
    case FUSE_READ:
        on_read(w, r);
        break;
    case FUSE_RELEASE:
        vg_fuse_ok(r, NULL, 0);
        break;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
        vg_fuse_none(r);
        break;
    default:
        vg_fuse_err(r, ENOSYS);
    }
    pthread_mutex_unlock(&w->lock);
}

static void on_gone(void *user) {
    ((struct world *)user)->gone = true;
}

static void setup(struct world *w, bool no_passthrough) {
    static const struct vg_fuse_ops ops = {.request = on_request, .gone = on_gone};
    if (geteuid() || access("/dev/fuse", R_OK | W_OK))
        cr_skip_test("needs root and /dev/fuse");
    *w = (struct world){.backing = -1, .dir = "/tmp/vg-fuse-XXXXXX"};
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    cr_assert_eq(unshare(CLONE_NEWNS), 0);
    cr_assert_eq(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
    cr_assert(mkdtemp(w->dir));
    snprintf(w->at, sizeof(w->at), "%s/m", w->dir);
    snprintf(w->path, sizeof(w->path), "%s/file", w->at);
    cr_assert_eq(mkdir(w->at, 0700), 0);
    struct vg_fuse_conf conf = {.name = "vg-test", .no_passthrough = no_passthrough};
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_fuse_new(&conf, &ops, w, w->at, &w->fuse, &err), 0, "%s", err.msg);
}

static void teardown(struct world *w) {
    vg_fuse_free(w->fuse);
    rmdir(w->at);
    cr_assert_eq(rmdir(w->dir), 0);
}

static ssize_t read_at(const char *path, char out[64]) {
    vg_auto_fd int fd = open(path, O_RDONLY);
    return fd < 0 ? -errno : read(fd, out, 63);
}

Test(fuse, reads_a_file_and_remembers_that_another_is_missing) {
    struct world w;
    char text[64] = "";
    setup(&w, true);
    cr_assert_eq(read_at(w.path, text), strlen(TEXT));
    cr_assert_str_eq(text, TEXT);
    char missing[128];
    snprintf(missing, sizeof(missing), "%s/other", w.at);
    cr_assert_eq(access(missing, F_OK), -1);
    int lookups = w.lookups;
    cr_assert_eq(access(missing, F_OK), -1);
    cr_assert_eq(access(w.path, R_OK), 0);
    cr_assert_eq(w.lookups, lookups, "the kernel must know both by heart");
    teardown(&w);
    cr_assert(w.gone);
}

Test(fuse, passthrough_reads_the_backing_file_and_asks_nobody) {
    struct world w;
    char text[64] = "";
    setup(&w, false);
    if (!vg_fuse_has_passthrough(w.fuse)) {
        teardown(&w);
        cr_skip_test("this kernel has no FUSE passthrough");
    }
    FILE *backing = tmpfile();
    fputs("BACKING BYTE", backing);
    fflush(backing);
    w.backing = fileno(backing);
    cr_assert_eq(read_at(w.path, text), 12);
    cr_assert_gt(w.backing_id, 0);
    cr_assert_str_eq(text, "BACKING BYTE");
    cr_assert_eq(w.reads, 0);
    vg_fuse_backing_close(w.fuse, w.backing_id);
    fclose(backing);
    teardown(&w);
}

static pid_t reader(const char *path) {
    pid_t pid = fork();
    if (!pid) {
        char text[64];
        _exit(read_at(path, text) == 12 ? 0 : 1);
    }
    return pid;
}

static struct vg_fuse_req *await_held(struct world *w) {
    pthread_mutex_lock(&w->lock);
    while (!w->held)
        pthread_cond_wait(&w->changed, &w->lock);
    struct vg_fuse_req *r = w->held;
    w->held = NULL;
    pthread_mutex_unlock(&w->lock);
    return r;
}

Test(fuse, kept_request_is_answered_later_from_another_thread, .timeout = 60) {
    struct world w;
    setup(&w, true);
    w.keep = FUSE_READ;
    pid_t pid = reader(w.path);
    struct vg_fuse_req *r = await_held(&w);
    cr_assert_eq(vg_fuse_head(r)->opcode, FUSE_READ);
    cr_assert(vg_fuse_is_kept(r));
    cr_assert_eq(vg_fuse_keep(r), r);
    cr_assert_eq(vg_fuse_ok(r, TEXT, strlen(TEXT)), 0);
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
    teardown(&w);
}

Test(fuse, killed_process_ends_while_its_request_is_kept, .timeout = 60) {
    struct world w;
    setup(&w, true);
    w.keep = FUSE_OPEN;
    pid_t pid = reader(w.path);
    struct vg_fuse_req *r = await_held(&w);
    kill(pid, SIGKILL);
    int status;
    while (waitpid(pid, &status, WNOHANG) == 0)
        vg_fuse_tick(w.fuse);
    cr_assert(WIFSIGNALED(status));
    cr_assert_eq(vg_fuse_err(r, EIO), -ENOENT, "nobody waits for it");
    teardown(&w);
}

static void ignore_signal(int sig) {
    (void)sig;
}

Test(fuse, handled_signal_does_not_fail_a_read, .timeout = 60) {
    struct world w;
    setup(&w, true);
    w.keep = FUSE_READ;
    pid_t pid = fork();
    if (!pid) {
        struct sigaction sa = {.sa_handler = ignore_signal};
        sigaction(SIGUSR1, &sa, NULL);
        char text[64];
        _exit(read_at(w.path, text) == 12 ? 0 : 1);
    }
    struct vg_fuse_req *r = await_held(&w);
    for (int i = 0; i < 3; i++) {
        kill(pid, SIGUSR1);
        vg_fuse_tick(w.fuse);
    }
    cr_assert_eq(vg_fuse_ok(r, TEXT, strlen(TEXT)), 0);
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
    teardown(&w);
}

Test(fuse, abort_frees_those_who_wait, .timeout = 60) {
    struct world w;
    setup(&w, true);
    w.keep = FUSE_READ;
    pid_t pid = reader(w.path);
    struct vg_fuse_req *r = await_held(&w);
    vg_fuse_abort(w.fuse);
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(WEXITSTATUS(status), 1);
    vg_fuse_none(r);
    teardown(&w);
}

Test(fuse, invalidated_names_are_asked_for_again) {
    struct world w;
    setup(&w, true);
    cr_assert_eq(access(w.path, R_OK), 0);
    int lookups = w.lookups;
    cr_assert_eq(vg_fuse_inval_entry(w.fuse, FUSE_ROOT_ID, "file", 4), 0);
    cr_assert_eq(access(w.path, R_OK), 0);
    cr_assert_eq(w.lookups, lookups + 1);
    cr_assert_eq(vg_fuse_inval_entry(w.fuse, FUSE_ROOT_ID, "nothing", 7), -ENOENT);
    cr_assert_eq(vg_fuse_expire_entry(w.fuse, FUSE_ROOT_ID, "file", 4), 0);
    cr_assert_eq(access(w.path, R_OK), 0);
    cr_assert_eq(w.lookups, lookups + 2);
    int r = vg_fuse_inval_names(w.fuse);
    if (r != -ENOSYS) {
        cr_assert_eq(r, 0);
        cr_assert_eq(access(w.path, R_OK), 0);
        cr_assert_eq(w.lookups, lookups + 3);
    }
    teardown(&w);
}

Test(fuse, clones_serve_the_same_tree) {
    struct world w;
    char text[64] = "", sub[96];
    setup(&w, true);
    vg_auto_fd int fd = vg_fuse_clone_mount(w.fuse);
    cr_assert_geq(fd, 0);
    snprintf(sub, sizeof(sub), "/proc/self/fd/%d/file", fd);
    cr_assert_eq(read_at(sub, text), 12);
    cr_assert_str_eq(text, TEXT);
    teardown(&w);
    cr_assert_lt(read_at(sub, text), 0, "aborted everywhere");
}
