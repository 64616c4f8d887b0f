/* The daemon as agents and keepers see it: its socket, its packets, its end. It runs in a child
   process; the service at the other end of its links is a fake. */
#include "fake-service.h"

#include "base/cleanup.h"
#include "base/util.h"
#include "fs/fsd.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct world {
    char dir[64], root[96];
    struct fake fake;
    struct fake_link *link;
    pid_t daemon;
    int conn;
};

static void start_daemon(struct world *w, const char *idle) {
    char sock[128], own[96];
    snprintf(own, sizeof(own), "%s/3", w->dir);
    snprintf(sock, sizeof(sock), "%s/sock", own);
    cr_assert_eq(vg_mkdir_p(own, 0700), 0);
    int fd = vg_unix_listen(sock, SOCK_SEQPACKET, 0600);
    cr_assert_geq(fd, 0);
    w->daemon = fork();
    if (!w->daemon) {
        if (fd != VG_FSD_LISTEN_FD)
            dup2(fd, VG_FSD_LISTEN_FD);
        char *argv[] = {(char *)"fsd", (char *)"--dir",  w->dir,           (char *)"--slot",
                        (char *)"3",   (char *)"--node", (char *)"node-1", (char *)"--cache",
                        (char *)"1G",  (char *)"--idle", (char *)idle,     NULL};
        _exit(vg_fsd_main(11, argv));
    }
    close(fd);
    cr_assert_eq(vg_fsd_connect_running(w->dir, 3, &w->conn), 0);
}

static void setup(struct world *w, const char *idle) {
    char path[128];
    if (geteuid() || access("/dev/fuse", R_OK | W_OK))
        cr_skip_test("needs root and /dev/fuse");
    *w = (struct world){.dir = "/tmp/vg-fsd-XXXXXX"};
    cr_assert(mkdtemp(w->dir));
    start_daemon(w, idle);
    snprintf(w->root, sizeof(w->root), "%s/root", w->dir);
    cr_assert_eq(vg_mkdir_p(w->root, 0755), 0);
    snprintf(path, sizeof(path), "%s/hello", w->root);
    cr_assert_eq(vg_write_file(path, "from afar", 9, 0644), 0);
    fake_init(&w->fake, w->root, "one");
}

static int wait_daemon(struct world *w) {
    int status = -1;
    cr_assert_eq(waitpid(w->daemon, &status, 0), w->daemon);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void teardown(struct world *w) {
    if (w->link)
        fake_cut(w->link);
    fake_done(&w->fake);
    close(w->conn);
    pid_t pid = fork();
    if (!pid)
        execlp("rm", "rm", "-rf", w->dir, NULL);
    waitpid(pid, NULL, 0);
}

static int machines_left(const struct world *w) {
    char own[96];
    int n = 0;
    snprintf(own, sizeof(own), "%s/3", w->dir);
    DIR *d = opendir(own);
    for (const struct dirent *e; d && (e = readdir(d));)
        n += !strncmp(e->d_name, "m-", 2);
    closedir(d);
    return n;
}

static struct vg_fsd_task task_of(const struct world *w, uint64_t id) {
    struct vg_fsd_task t = {.task = id, .attempt = 1};
    memcpy(t.machine, w->fake.machine, VG_MID);
    return t;
}

static void bring_link(struct world *w, uint64_t id) {
    struct vg_fsd_task t = task_of(w, id);
    int fd, conn;
    w->link = fake_open(&w->fake, &fd);
    cr_assert_eq(vg_fsd_connect_running(w->dir, 3, &conn), 0);
    cr_assert_eq(vg_fsd_send(conn, VG_FSD_LINK, &t, sizeof(t), &fd, 1), 0);
    close(fd);
    close(conn);
}

static enum vg_fsd_kind hear(int conn, void *payload, size_t max, int *fds, size_t *n_fds) {
    struct vg_fsd_head head;
    memset(payload, 0, max);
    int r = vg_fsd_recv(conn, &head, payload, max - 1, fds, n_fds);
    cr_assert_eq(r, 1, "%d", r);
    return head.kind;
}

static int take_mounts(int conn) {
    char buf[4096];
    int fds[VG_FSD_FDS];
    size_t n = VG_FSD_FDS;
    enum vg_fsd_kind kind = hear(conn, buf, sizeof(buf), fds, &n);
    cr_assert_eq(kind, VG_FSD_MOUNTS, "%d: %s", (int)kind, ((struct vg_fsd_failed *)buf)->text);
    const struct vg_fsd_mounts *m = (void *)buf;
    cr_assert_eq(n, m->n_lower + m->n_data + m->n_views);
    for (size_t i = 1; i < n; i++)
        close(fds[i]);
    return fds[0];
}

Test(fsd, task_gets_the_machines_files_and_its_barrier, .timeout = 60) {
    struct world w;
    char buf[65536], text[32] = "";
    setup(&w, "60s");
    struct vg_fsd_task t = task_of(&w, 7);
    cr_assert_eq(vg_fsd_send(w.conn, VG_FSD_TASK, &t, sizeof(t), NULL, 0), 0);
    bring_link(&w, 7);
    fake_run(w.link, 7, false);
    vg_auto_fd int mnt = take_mounts(w.conn);
    vg_auto_fd int fd = openat(mnt, "hello", O_RDONLY);
    cr_assert_geq(fd, 0);
    cr_assert_eq(read(fd, text, sizeof(text)), 9);
    cr_assert_str_eq(text, "from afar");
    struct stat st;
    cr_assert_eq(fstat(fd, &st), 0);
    cr_assert_eq(st.st_uid, 0x20000000u + 3 * 65536u, "root of the client is shifted: %u",
                 st.st_uid);
    cr_assert_eq(vg_fsd_send(w.conn, VG_FSD_ENDED, NULL, 0, NULL, 0), 0);
    cr_assert_eq(vg_fsd_send(w.conn, VG_FSD_BARRIER, NULL, 0, NULL, 0), 0);
    size_t n = 0;
    cr_assert_eq(hear(w.conn, buf, sizeof(buf), NULL, &n), VG_FSD_SAFE);
    cr_assert_eq(((struct vg_fsd_failed *)buf)->code, 0);
    cr_assert_eq(vg_fsd_send(w.conn, VG_FSD_STATUS, NULL, 0, NULL, 0), 0);
    cr_assert_eq(hear(w.conn, buf, sizeof(buf), NULL, &n), VG_FSD_STATUS_TEXT);
    json_t *j = json_loads(buf, 0, NULL);
    cr_assert(j, "%s", buf);
    cr_assert_eq(json_integer_value(json_object_get(j, "tasks")), 1);
    cr_assert_eq(json_array_size(json_object_get(j, "machines")), 1);
    json_decref(j);
    cr_assert_eq(vg_fsd_send(w.conn, VG_FSD_STOP, NULL, 0, NULL, 0), 0);
    cr_assert_eq(waitpid(w.daemon, NULL, WNOHANG), 0, "a task holds a view");
    cr_assert_eq(pread(fd, text, sizeof(text), 0), 9);
    shutdown(w.conn, SHUT_RDWR);
    cr_assert_eq(wait_daemon(&w), 0);
    cr_assert_eq(machines_left(&w), 0, "it leaves its cache and nothing else");
    teardown(&w);
}

Test(fsd, what_comes_first_does_not_matter, .timeout = 60) {
    struct world w;
    setup(&w, "60s");
    struct vg_fsd_task t = task_of(&w, 7);
    bring_link(&w, 7);
    fake_run(w.link, 7, false);
    cr_assert_eq(vg_fsd_send(w.conn, VG_FSD_TASK, &t, sizeof(t), NULL, 0), 0);
    close(take_mounts(w.conn));
    char buf[512];
    size_t n = 0;
    int second;
    cr_assert_eq(vg_fsd_connect_running(w.dir, 3, &second), 0);
    cr_assert_eq(vg_fsd_send(second, VG_FSD_TASK, &t, sizeof(t), NULL, 0), 0);
    cr_assert_eq(hear(second, buf, sizeof(buf), NULL, &n), VG_FSD_FAILED, "one keeper a task");
    close(second);
    kill(w.daemon, SIGTERM);
    cr_assert_eq(wait_daemon(&w), 0);
    teardown(&w);
}

Test(fsd, refused_content_is_told_to_the_keeper, .timeout = 60) {
    struct world w;
    char buf[1024];
    size_t n = 0;
    setup(&w, "60s");
    w.fake.deny = EACCES;
    struct vg_fsd_task t = task_of(&w, 7);
    cr_assert_eq(vg_fsd_send(w.conn, VG_FSD_TASK, &t, sizeof(t), NULL, 0), 0);
    bring_link(&w, 7);
    fake_run(w.link, 7, false);
    vg_auto_fd int mnt = take_mounts(w.conn);
    cr_assert_lt(openat(mnt, "hello", O_RDONLY), 0);
    cr_assert_eq(errno, EACCES);
    cr_assert_eq(hear(w.conn, buf, sizeof(buf), NULL, &n), VG_FSD_NOTE);
    cr_assert(strstr(buf, "--allow"), "%s", buf);
    kill(w.daemon, SIGTERM);
    cr_assert_eq(wait_daemon(&w), 0);
    teardown(&w);
}

Test(fsd, garbage_costs_the_connection_only, .timeout = 60) {
    struct world w;
    char buf[4096] = {0};
    setup(&w, "60s");
    static const struct {
        enum vg_fsd_kind kind;
        size_t n;
    } bad[] = {{99, 0},
               {VG_FSD_TASK, 3},
               {VG_FSD_LINK, sizeof(struct vg_fsd_task)},
               {VG_FSD_BARRIER, 0},
               {VG_FSD_ENDED, 0},
               {VG_FSD_MOUNTS, 40}};
    for (size_t i = 0; i < VG_COUNT(bad); i++) {
        int conn;
        struct vg_fsd_head head;
        size_t n = 0;
        cr_assert_eq(vg_fsd_connect_running(w.dir, 3, &conn), 0);
        cr_assert_eq(vg_fsd_send(conn, bad[i].kind, buf, bad[i].n, NULL, 0), 0);
        cr_assert_eq(vg_fsd_recv(conn, &head, buf, sizeof(buf), NULL, &n), 0, "case %zu", i);
        close(conn);
    }
    size_t n = 0;
    cr_assert_eq(vg_fsd_send(w.conn, VG_FSD_STATUS, NULL, 0, NULL, 0), 0);
    cr_assert_eq(hear(w.conn, buf, sizeof(buf), NULL, &n), VG_FSD_STATUS_TEXT);
    kill(w.daemon, SIGTERM);
    cr_assert_eq(wait_daemon(&w), 0);
    teardown(&w);
}

Test(fsd, leaves_when_nobody_needs_it, .timeout = 60) {
    struct world w;
    setup(&w, "1ms");
    close(w.conn);
    w.conn = -1;
    cr_assert_eq(wait_daemon(&w), 0);
    teardown(&w);
}

Test(fsd, killed_one_is_cleared_up_by_the_next, .timeout = 60) {
    struct world w;
    char buf[65536];
    size_t n = 0;
    setup(&w, "60s");
    struct vg_fsd_task t = task_of(&w, 7);
    cr_assert_eq(vg_fsd_send(w.conn, VG_FSD_TASK, &t, sizeof(t), NULL, 0), 0);
    bring_link(&w, 7);
    fake_run(w.link, 7, false);
    vg_auto_fd int mnt = take_mounts(w.conn);
    cr_assert_eq(faccessat(mnt, "hello", R_OK, 0), 0);
    kill(w.daemon, SIGKILL);
    cr_assert_eq(wait_daemon(&w), 128 + SIGKILL);
    cr_assert_lt(openat(mnt, "hello", O_RDONLY), 0, "cut off, not hung");
    cr_assert_eq(machines_left(&w), 1);
    close(w.conn);
    start_daemon(&w, "60s");
    cr_assert_eq(vg_fsd_send(w.conn, VG_FSD_STATUS, NULL, 0, NULL, 0), 0);
    cr_assert_eq(hear(w.conn, buf, sizeof(buf), NULL, &n), VG_FSD_STATUS_TEXT);
    cr_assert_eq(machines_left(&w), 0);
    kill(w.daemon, SIGTERM);
    cr_assert_eq(wait_daemon(&w), 0);
    teardown(&w);
}
