/* The environment view under a real kernel, with a fake service at the other end of a socket
   pair. */
#include "fake-service.h"

#include "base/cleanup.h"
#include "base/util.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

struct world {
    char dir[64], root[96], at[128], node[96];
    struct fake fake;
    struct vg_cache *cache;
    struct vg_machine *machine;
    struct fake_link *link;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int ready, notes;
    int mount; /* the last task's view */
    bool strict;
    char note[512];
};

static void on_ready(void *user, uint64_t task, int code, const char *text) {
    struct world *w = user;
    (void)task;
    cr_assert_eq(code, 0, "%s", text);
    pthread_mutex_lock(&w->lock);
    w->ready++;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

static void on_note(void *user, uint64_t task, const char *text) {
    struct world *w = user;
    (void)task;
    pthread_mutex_lock(&w->lock);
    w->notes++;
    snprintf(w->note, sizeof(w->note), "%s", text);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

#define AWAIT(w, cond)                                    \
    do {                                                  \
        pthread_mutex_lock(&(w)->lock);                   \
        while (!(cond))                                   \
            pthread_cond_wait(&(w)->changed, &(w)->lock); \
        pthread_mutex_unlock(&(w)->lock);                 \
    } while (0)

static void put_file(struct world *w, const char *name, const void *data, size_t n) {
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", w->root, name);
    FILE *f = fopen(path, "w");
    cr_assert(f && fwrite(data, 1, n, f) == n);
    fclose(f);
}

static char *big_bytes(size_t n) {
    char *p = malloc(n);
    uint32_t x = 12345;
    for (size_t i = 0; i < n; i++)
        p[i] = (char)((x = x * 1664525 + 1013904223) >> 24);
    return p;
}
#define BIG ((size_t)VG_LEAF * 9 + 1234)

static void make_tree(struct world *w) {
    char path[256];
    vg_auto_free char *big = big_bytes(BIG);
    snprintf(path, sizeof(path), "%s/usr/lib", w->root);
    cr_assert_eq(vg_mkdir_p(path, 0755), 0);
    put_file(w, "usr/hello", "hello, world\n", 13);
    put_file(w, "usr/empty", "", 0);
    put_file(w, "usr/lib/big", big, BIG);
    snprintf(path, sizeof(path), "%s/usr/link", w->root);
    cr_assert_eq(symlink("lib/big", path), 0);
    for (int i = 0; i < 300; i++) {
        char name[64];
        snprintf(name, sizeof(name), "usr/lib/file-%03d", i);
        put_file(w, name, name, strlen(name));
    }
}

static void new_machine(struct world *w, bool no_passthrough, uint64_t wait_usec) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_machine_conf conf = {.cache = w->cache,
                                   .ids = {.slot = VG_FS_SLOT_NONE},
                                   .node = "node-1",
                                   .dir = w->node,
                                   .no_passthrough = no_passthrough,
                                   .deep = !no_passthrough,
                                   .wait_limit_usec = wait_usec,
                                   .ready = on_ready,
                                   .note = on_note,
                                   .user = w};
    memcpy(conf.machine, w->fake.machine, VG_MID);
    memcpy(conf.daemon, "daemon 012345678", VG_MID);
    cr_assert_eq(vg_machine_new(&conf, &w->machine, &err), 0, "%s", err.msg);
}

static void begin_task(struct world *w, uint64_t task) {
    int before = w->ready;
    cr_assert_eq(vg_machine_task(w->machine, task, false), 0);
    fake_run(w->link, task, w->strict);
    AWAIT(w, w->ready == before + 1);
    struct vg_machine_mounts m;
    cr_assert_eq(vg_machine_mounts(w->machine, task, &m), 0);
    vg_close(&w->mount);
    w->mount = vg_take_fd(m.env);
    vg_machine_mounts_done(&m);
    snprintf(w->at, sizeof(w->at), "/proc/self/fd/%d", w->mount);
}

static void setup(struct world *w, bool no_passthrough, uint64_t wait_usec) {
    if (geteuid() || access("/dev/fuse", R_OK | W_OK))
        cr_skip_test("needs root and /dev/fuse");
    *w = (struct world){.dir = "/tmp/vg-env-XXXXXX", .mount = -1};
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    cr_assert_eq(unshare(CLONE_NEWNS), 0);
    cr_assert_eq(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
    cr_assert(mkdtemp(w->dir));
    snprintf(w->root, sizeof(w->root), "%s/root", w->dir);
    snprintf(w->node, sizeof(w->node), "%s/node", w->dir);
    char cache[128];
    snprintf(cache, sizeof(cache), "%s/cache", w->dir);
    cr_assert_eq(vg_mkdir_p(cache, 0700), 0);
    struct vg_cache_conf cc = {.dir = cache, .max_bytes = 1 << 30};
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_cache_open(&cc, &w->cache, &err), 0, "%s", err.msg);
    make_tree(w);
    fake_init(&w->fake, w->root, "one");
    new_machine(w, no_passthrough, wait_usec);
    w->link = fake_connect(&w->fake, w->machine, 7);
    begin_task(w, 7);
}

static void teardown(struct world *w) {
    char cmd[256];
    vg_close(&w->mount);
    vg_machine_free(w->machine);
    if (w->link)
        fake_cut(w->link);
    fake_done(&w->fake);
    vg_cache_close(w->cache);
    snprintf(cmd, sizeof(cmd), "%s", w->dir);
    pid_t pid = fork();
    if (!pid)
        execlp("rm", "rm", "-rf", cmd, NULL);
    waitpid(pid, NULL, 0);
}

/* The whole file below the mirror; -errno. */
static ssize_t slurp(struct world *w, const char *name, char **ret) {
    char path[256];
    struct stat st;
    snprintf(path, sizeof(path), "%s/%s", w->at, name);
    vg_auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    *ret = calloc(1, (size_t)st.st_size + 1);
    ssize_t got = vg_read_full(fd, *ret, (size_t)st.st_size + 1);
    if (got < 0)
        free(vg_take_ptr(*ret));
    return got;
}

static void assert_file(struct world *w, const char *name, const void *data, size_t n) {
    vg_auto_free char *got = NULL;
    ssize_t r = slurp(w, name, &got);
    cr_assert_eq(r, (ssize_t)n, "%s: %zd bytes", name, r);
    cr_assert(!memcmp(got, data, n), "%s: '%.40s', not '%.40s'", name, got, (const char *)data);
}

static json_int_t counter(struct world *w, const char *name) {
    json_t *j = vg_machine_json(w->machine);
    json_int_t n = json_integer_value(json_object_get(j, name));
    json_decref(j);
    return n;
}

static void same_tree(struct world *w, bool no_passthrough) {
    vg_auto_free char *big = big_bytes(BIG);
    char path[256], target[64] = "";
    struct stat a, b;
    setup(w, no_passthrough, 0);
    assert_file(w, "usr/hello", "hello, world\n", 13);
    assert_file(w, "usr/empty", "", 0);
    assert_file(w, "usr/lib/big", big, BIG);
    assert_file(w, "usr/lib/big", big, BIG);
    assert_file(w, "usr/link", big, BIG);
    snprintf(path, sizeof(path), "%s/usr/link", w->at);
    cr_assert_eq(readlink(path, target, 63), 7);
    cr_assert_str_eq(target, "lib/big");
    snprintf(path, sizeof(path), "%s/usr/lib/big", w->at);
    cr_assert_eq(stat(path, &a), 0);
    snprintf(path, sizeof(path), "%s/usr/lib/big", w->root);
    cr_assert_eq(stat(path, &b), 0);
    cr_assert_eq(a.st_ino, b.st_ino);
    cr_assert_eq(a.st_mode, b.st_mode);
    cr_assert_eq(a.st_mtim.tv_nsec, b.st_mtim.tv_nsec);
    cr_assert_eq(a.st_ctim.tv_nsec, b.st_ctim.tv_nsec);
    cr_assert_eq(a.st_size, b.st_size);
    vg_auto_free char *none = NULL;
    cr_assert_eq(slurp(w, "usr/lib/nothing", &none), -ENOENT);
    snprintf(path, sizeof(path), "%s/usr/new", w->at);
    cr_assert_eq(open(path, O_WRONLY | O_CREAT, 0600), -1);
    cr_assert_eq(errno, EROFS);
}

Test(env, shows_the_same_files_as_the_machine, .timeout = 60) {
    struct world w;
    same_tree(&w, false);
    if (counter(&w, "passthrough") == 0)
        cr_log_warn("this kernel has no passthrough");
    teardown(&w);
}

/* What was not whole when it was opened first is read without us once it is, and was closed. */
Test(env, a_file_that_has_come_whole_becomes_passthrough, .timeout = 60) {
    struct world w;
    vg_auto_free char *big = big_bytes(BIG);
    setup(&w, false, 0);
    assert_file(&w, "usr/hello", "hello, world\n", 13);
    json_int_t before = counter(&w, "passthrough");
    if (before == 0)
        cr_log_warn("this kernel has no passthrough");
    assert_file(&w, "usr/lib/big", big, BIG);
    for (int i = 0; before && counter(&w, "passthrough") == before; i++) {
        cr_assert_lt(i, 10000); /* the kernel tells of a close when it likes */
        assert_file(&w, "usr/lib/big", big, BIG);
    }
    teardown(&w);
}

Test(env, without_passthrough_the_same, .timeout = 60) {
    struct world w;
    same_tree(&w, true);
    cr_assert_eq(counter(&w, "passthrough"), 0);
    teardown(&w);
}

Test(env, one_question_a_folder_however_many_names, .timeout = 60) {
    struct world w;
    char path[256];
    setup(&w, false, 0);
    snprintf(path, sizeof(path), "%s/usr/lib", w.at);
    DIR *d = opendir(path);
    cr_assert(d);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));)
        n++;
    closedir(d);
    cr_assert_eq(n, 303, "%d", n);
    for (int i = 0; i < 300; i++) {
        struct stat st;
        snprintf(path, sizeof(path), "%s/usr/lib/file-%03d", w.at, i);
        cr_assert_eq(stat(path, &st), 0);
        snprintf(path, sizeof(path), "%s/usr/lib/missing-%03d", w.at, i);
        cr_assert_eq(stat(path, &st), -1);
    }
    cr_assert_eq(w.fake.dirs, 3, "/, usr, lib: %u", w.fake.dirs);
    cr_assert_eq(w.fake.datas, 0);
    teardown(&w);
}

Test(env, sequential_reads_ask_ahead_in_growing_steps, .timeout = 60) {
    struct world w;
    vg_auto_free char *big = big_bytes(BIG);
    setup(&w, false, 0);
    assert_file(&w, "usr/lib/big", big, BIG);
    cr_assert_leq(w.fake.datas, 7, "10 leaves took %u questions", w.fake.datas);
    assert_file(&w, "usr/lib/big", big, BIG);
    cr_assert_leq(w.fake.datas, 7);
    teardown(&w);
}

Test(env, what_was_pushed_is_not_asked_for, .timeout = 60) {
    struct world w;
    vg_auto_free char *big = big_bytes(BIG);
    setup(&w, false, 0);
    fake_push_dir(w.link, "/");
    fake_push_dir(w.link, "/usr");
    fake_push_dir(w.link, "/usr/lib");
    fake_push_file(w.link, "/usr/hello");
    fake_push_file(w.link, "/usr/lib/big");
    begin_task(&w, 8); /* comes after all of it on the link */
    while (counter(&w, "pushed") < 3 + 1 + 10)
        ;
    assert_file(&w, "usr/hello", "hello, world\n", 13);
    assert_file(&w, "usr/lib/big", big, BIG);
    cr_assert_eq(w.fake.dirs + w.fake.datas, 0);
    cr_assert_eq(counter(&w, "demands"), 0);
    teardown(&w);
}

Test(env, content_outlives_the_machine_and_is_skipped_next_time, .timeout = 60) {
    struct world w;
    vg_auto_free char *big = big_bytes(BIG);
    setup(&w, false, 0);
    assert_file(&w, "usr/lib/big", big, BIG);
    unsigned datas = w.fake.datas;
    vg_close(&w.mount);
    vg_machine_free(w.machine);
    fake_cut(w.link);
    new_machine(&w, false, 0);
    w.link = fake_connect(&w.fake, w.machine, 9);
    fake_push_dir(w.link, "/");
    fake_push_dir(w.link, "/usr");
    fake_push_dir(w.link, "/usr/lib");
    begin_task(&w, 9);
    assert_file(&w, "usr/lib/big", big, BIG);
    cr_assert_eq(w.fake.datas, datas);
    pthread_mutex_lock(&w.fake.lock);
    while (!w.fake.skipped)
        pthread_cond_wait(&w.fake.changed, &w.fake.lock);
    cr_assert_eq(w.fake.skipped, 1);
    pthread_mutex_unlock(&w.fake.lock);
    teardown(&w);
}

static void edits_are_seen(bool no_passthrough) {
    struct world w;
    setup(&w, no_passthrough, 0);
    for (int i = 0; i < 100; i++) {
        char text[64];
        int n = snprintf(text, sizeof(text), "edition %d%.*s", i, i % 7, "abcdefg");
        put_file(&w, "usr/hello", text, (size_t)n);
        fake_inval(w.link, "/usr");
        if (i == 50) /* from here on one view is told, before one is made each time */
            vg_machine_gone(w.machine, 7);
        begin_task(&w, 100 + (uint64_t)i);
        assert_file(&w, "usr/hello", text, (size_t)n);
        vg_machine_gone(w.machine, 100 + (uint64_t)i);
    }
    teardown(&w);
}

Test(env, edits_are_seen_after_the_next_run_every_time, .timeout = 60) {
    edits_are_seen(false);
}

Test(env, edits_are_seen_without_passthrough, .timeout = 60) {
    edits_are_seen(true);
}

/* Links do not wait for each other: what a slow one brings must not undo what another one told. */
static void late_news(bool no_passthrough) {
    struct world w;
    struct stat st;
    char path[256];
    setup(&w, no_passthrough, 0);
    struct fake_link *slow = fake_connect(&w.fake, w.machine, 99);
    assert_file(&w, "usr/hello", "hello, world\n", 13);
    for (int i = 0; i < 20; i++) {
        char text[64];
        struct vg_buf held = {0};
        int n = snprintf(text, sizeof(text), "edition %04d a", i);
        put_file(&w, "usr/hello", text, (size_t)n);
        fake_hold(&w.fake, "/usr", "/usr/hello", &held);
        n = snprintf(text, sizeof(text), "edition %04d b", i);
        put_file(&w, "usr/hello", text, (size_t)n);
        fake_inval(w.link, "/usr");
        begin_task(&w, 100 + (uint64_t)i);
        snprintf(path, sizeof(path), "%s/usr/hello", w.at);
        if (i % 2)
            cr_assert_eq(stat(path, &st), 0); /* the new record is known, its content is not */
        json_int_t pushed = counter(&w, "pushed");
        fake_send(slow, &held);
        while (counter(&w, "pushed") < pushed + 2)
            sched_yield();
        assert_file(&w, "usr/hello", text, (size_t)n);
        begin_task(&w, 200 + (uint64_t)i);
        assert_file(&w, "usr/hello", text, (size_t)n);
        vg_machine_gone(w.machine, 100 + (uint64_t)i);
        vg_machine_gone(w.machine, 200 + (uint64_t)i);
    }
    fake_cut(slow);
    teardown(&w);
}

Test(env, what_a_slow_link_brings_does_not_undo_what_another_told, .timeout = 60) {
    late_news(false);
}

Test(env, nor_without_passthrough, .timeout = 60) {
    late_news(true);
}

Test(env, names_that_come_and_go_are_seen_after_the_next_run, .timeout = 60) {
    struct world w;
    char path[256];
    vg_auto_free char *got = NULL;
    setup(&w, false, 0);
    cr_assert_eq(slurp(&w, "usr/later", &got), -ENOENT);
    put_file(&w, "usr/later", "here", 4);
    fake_inval(w.link, "/usr");
    begin_task(&w, 8);
    assert_file(&w, "usr/later", "here", 4);
    snprintf(path, sizeof(path), "%s/usr/later", w.root);
    unlink(path);
    mkdir(path, 0755);
    put_file(&w, "usr/later/inside", "in", 2);
    fake_inval(w.link, "/usr");
    begin_task(&w, 9);
    assert_file(&w, "usr/later/inside", "in", 2);
    snprintf(path, sizeof(path), "%s/usr/hello", w.root);
    unlink(path);
    fake_inval(w.link, "/usr");
    begin_task(&w, 10);
    cr_assert_eq(slurp(&w, "usr/hello", &got), -ENOENT);
    teardown(&w);
}

Test(env, another_life_of_the_service_keeps_content_and_proves_names_again, .timeout = 60) {
    struct world w;
    vg_auto_free char *big = big_bytes(BIG);
    setup(&w, false, 0);
    assert_file(&w, "usr/lib/big", big, BIG);
    assert_file(&w, "usr/hello", "hello, world\n", 13);
    unsigned datas = w.fake.datas;
    fake_cut(w.link);
    put_file(&w, "usr/hello", "other", 5);
    fake_epoch(&w.fake, w.root, "two");
    w.link = fake_connect(&w.fake, w.machine, 8);
    begin_task(&w, 8);
    assert_file(&w, "usr/hello", "other", 5);
    assert_file(&w, "usr/lib/big", big, BIG);
    cr_assert_eq(w.fake.datas, datas + 1, "only what changed is fetched");
    teardown(&w);
}

static pid_t reader(struct world *w, const char *name, const void *data, size_t n) {
    pid_t pid = fork();
    if (!pid) {
        char *got = NULL;
        ssize_t r = slurp(w, name, &got);
        _exit(r == -EIO ? 3 : r == (ssize_t)n && !memcmp(got, data, n) ? 0 : 1);
    }
    return pid;
}

static int wait_exit(pid_t pid) {
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

Test(env, reader_waits_out_a_break_and_cached_files_go_on, .timeout = 60) {
    struct world w;
    vg_auto_free char *big = big_bytes(BIG);
    setup(&w, false, 0);
    assert_file(&w, "usr/hello", "hello, world\n", 13);
    w.fake.mute = true;
    pid_t pid = reader(&w, "usr/lib/big", big, BIG);
    while (!counter(&w, "waits"))
        ;
    fake_cut(w.link);
    assert_file(&w, "usr/hello", "hello, world\n", 13);
    cr_assert_eq(waitpid(pid, NULL, WNOHANG), 0);
    w.fake.mute = false;
    w.link = fake_connect(&w.fake, w.machine, 8);
    cr_assert_eq(wait_exit(pid), 0);
    teardown(&w);
}

Test(env, reader_fails_when_the_limit_is_over_and_people_are_told, .timeout = 60) {
    struct world w;
    setup(&w, false, 3600 * VG_USEC);
    w.fake.mute = true;
    pid_t pid = reader(&w, "usr/hello", "", 0);
    while (!counter(&w, "waits"))
        ;
    fake_cut(w.link);
    w.link = NULL;
    uint64_t now = vg_now_usec();
    while (!w.notes) /* the break is seen by another thread */
        vg_machine_tick(w.machine, now + 11 * VG_USEC);
    cr_assert(strstr(w.note, "waiting for laptop"), "%s", w.note);
    cr_assert_eq(waitpid(pid, NULL, WNOHANG), 0);
    vg_machine_tick(w.machine, now + 3700 * VG_USEC);
    cr_assert_eq(wait_exit(pid), 3);
    cr_assert_eq(w.notes, 1, "said once");
    teardown(&w);
}

Test(env, killed_reader_ends_although_nobody_answers, .timeout = 60) {
    struct world w;
    setup(&w, false, 0);
    w.fake.mute = true;
    pid_t pid = reader(&w, "usr/lib/file-001", "", 0);
    while (!counter(&w, "waits"))
        ;
    kill(pid, SIGKILL);
    int status;
    while (waitpid(pid, &status, WNOHANG) == 0)
        vg_machine_tick(w.machine, vg_now_usec());
    cr_assert(WIFSIGNALED(status));
    w.fake.mute = false;
    teardown(&w);
}

Test(env, refused_content_is_eacces_and_the_sentence_is_told, .timeout = 60) {
    struct world w;
    vg_auto_free char *got = NULL;
    setup(&w, false, 0);
    w.fake.deny = EACCES;
    cr_assert_eq(slurp(&w, "usr/hello", &got), -EACCES);
    AWAIT(&w, w.notes == 1);
    cr_assert(strstr(w.note, "--allow"));
    unsigned datas = w.fake.datas;
    cr_assert_eq(slurp(&w, "usr/hello", &got), -EACCES);
    cr_assert_eq(w.fake.datas, datas, "the answer is remembered");
    cr_assert_eq(w.notes, 1);
    teardown(&w);
}

Test(env, open_file_keeps_its_content_when_it_changes, .timeout = 60) {
    struct world w;
    char path[256], text[64] = "";
    setup(&w, false, 0);
    snprintf(path, sizeof(path), "%s/usr/hello", w.at);
    vg_auto_fd int fd = open(path, O_RDONLY);
    cr_assert_geq(fd, 0);
    char *map = mmap(NULL, 13, PROT_READ, MAP_PRIVATE, fd, 0);
    cr_assert_neq(map, MAP_FAILED);
    cr_assert(!memcmp(map, "hello, world\n", 13));
    snprintf(path, sizeof(path), "%s/usr/hello", w.root);
    unlink(path);
    put_file(&w, "usr/hello", "second version", 14);
    fake_inval(w.link, "/usr");
    begin_task(&w, 8);
    assert_file(&w, "usr/hello", "second version", 14);
    cr_assert_eq(pread(fd, text, sizeof(text), 0), 13);
    cr_assert(!memcmp(text, "hello, world\n", 13), "%s", text);
    munmap(map, 13);
    teardown(&w);
}

Test(env, extended_attributes_are_fetched_once, .timeout = 60) {
    struct world w;
    char path[256], value[64] = "";
    setup(&w, false, 0);
    snprintf(path, sizeof(path), "%s/usr/lib/file-007", w.root);
    chmod(path, 0755); /* a service looks at programs only */
    if (setxattr(path, "user.colour", "green", 5, 0) < 0) {
        teardown(&w);
        cr_skip_test("no extended attributes in /tmp");
    }
    snprintf(path, sizeof(path), "%s/usr/lib/file-007", w.at);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(getxattr(path, "user.colour", value, sizeof(value)), 5);
        cr_assert(!memcmp(value, "green", 5));
        cr_assert_eq(listxattr(path, value, sizeof(value)), 12);
    }
    cr_assert_eq(w.fake.xattrs, 1);
    snprintf(path, sizeof(path), "%s/usr/lib/file-008", w.at);
    cr_assert_eq(getxattr(path, "user.colour", value, sizeof(value)), -1);
    cr_assert_eq(errno, ENODATA);
    cr_assert_eq(w.fake.xattrs, 1);
    teardown(&w);
}

Test(env, trace_names_what_was_used, .timeout = 60) {
    struct world w;
    setup(&w, false, 0);
    vg_auto_free char *got = NULL;
    cr_assert_gt(slurp(&w, "usr/hello", &got), 0);
    vg_machine_ended(w.machine, 7);
    pthread_mutex_lock(&w.fake.lock);
    while (!w.fake.traces)
        pthread_cond_wait(&w.fake.changed, &w.fake.lock);
    cr_assert_eq(w.fake.trace_items, 3, "/, usr, hello: %d", (int)w.fake.trace_items);
    cr_assert(w.fake.trace_whole);
    pthread_mutex_unlock(&w.fake.lock);
    teardown(&w);
}

/* Task 7 holds its view all the while. */
Test(env, running_task_keeps_what_it_saw_and_the_next_one_sees_what_is, .timeout = 60) {
    struct world w;
    char path[256], old[64];
    vg_auto_free char *got = NULL, *big = big_bytes(BIG);
    setup(&w, false, 0);
    assert_file(&w, "usr/hello", "hello, world\n", 13);
    assert_file(&w, "usr/lib/file-001", "usr/lib/file-001", 16);
    vg_auto_fd int first = dup(w.mount);
    snprintf(old, sizeof(old), "/proc/self/fd/%d", first);
    put_file(&w, "usr/hello", "second", 6);
    snprintf(path, sizeof(path), "%s/usr/lib/file-001", w.root);
    unlink(path);
    put_file(&w, "usr/lib/file-002", "another two", 11);
    fake_inval(w.link, "/usr");
    fake_inval(w.link, "/usr/lib");
    begin_task(&w, 8);
    assert_file(&w, "usr/hello", "second", 6);
    cr_assert_eq(slurp(&w, "usr/lib/file-001", &got), -ENOENT);
    assert_file(&w, "usr/lib/file-002", "another two", 11);
    cr_assert_eq(counter(&w, "views"), 2);
    snprintf(w.at, sizeof(w.at), "%s", old);
    assert_file(&w, "usr/hello", "hello, world\n", 13);
    assert_file(&w, "usr/lib/file-001", "usr/lib/file-001", 16);
    /* Never fetched as it was: it can only be had as it is. */
    assert_file(&w, "usr/lib/file-002", "another two", 11);
    assert_file(&w, "usr/lib/big", big, BIG);
    unsigned dirs = w.fake.dirs;
    begin_task(&w, 9);
    assert_file(&w, "usr/hello", "second", 6);
    cr_assert_eq(counter(&w, "views"), 2, "nothing changed since");
    cr_assert_eq(w.fake.dirs, dirs);
    teardown(&w);
}

Test(env, view_that_nobody_uses_is_told_and_goes_on, .timeout = 60) {
    struct world w;
    setup(&w, false, 0);
    assert_file(&w, "usr/hello", "hello, world\n", 13);
    put_file(&w, "usr/hello", "second", 6);
    fake_inval(w.link, "/usr");
    vg_machine_gone(w.machine, 7); /* before or after the news comes: both are well */
    begin_task(&w, 8);
    assert_file(&w, "usr/hello", "second", 6);
    cr_assert_eq(counter(&w, "views"), 1);
    for (int i = 0; i < 20; i++) { /* and with a view that is held meanwhile, every other time */
        char text[32];
        int n = snprintf(text, sizeof(text), "edition %d", i);
        put_file(&w, "usr/hello", text, (size_t)n);
        fake_inval(w.link, "/usr");
        begin_task(&w, 20 + (uint64_t)i);
        assert_file(&w, "usr/hello", text, (size_t)n);
        if (i % 3)
            vg_machine_gone(w.machine, 19 + (uint64_t)i);
        if (i == 0)
            vg_machine_gone(w.machine, 8);
    }
    teardown(&w);
}

/* What containers in a task do. */
Test(env, overlay_can_lie_on_an_overlay_on_it, .timeout = 60) {
    struct world w;
    char opts[600], path[300];
    setup(&w, true, 0);
    static const char *const dirs[] = {"s", "s/u", "s/w", "s/r", "s/u2", "s/w2", "s/r2"};
    for (size_t i = 0; i < VG_COUNT(dirs); i++) {
        snprintf(path, sizeof(path), "%s/%s", w.dir, dirs[i]);
        cr_assert_eq(mkdir(path, 0755), 0);
        if (i == 0)
            cr_assert_eq(mount("s", path, "tmpfs", 0, NULL), 0);
    }
    for (int i = 0; i < 2; i++) {
        const char *n = i ? "2" : "";
        snprintf(path, sizeof(path), "%s/s/r", w.dir);
        snprintf(opts, sizeof(opts), "lowerdir=%s,upperdir=%s/s/u%s,workdir=%s/s/w%s",
                 i ? path : w.at, w.dir, n, w.dir, n);
        snprintf(path, sizeof(path), "%s/s/r%s", w.dir, n);
        cr_assert_eq(mount("o", path, "overlay", 0, opts), 0, "%d: %s", i, strerror(errno));
    }
    snprintf(w.at, sizeof(w.at), "%s/s/r2", w.dir);
    assert_file(&w, "usr/hello", "hello, world\n", 13);
    snprintf(path, sizeof(path), "%s/usr/new", w.at);
    cr_assert_eq(vg_write_file(path, "n", 1, 0644), 0);
    umount2(w.at, MNT_DETACH);
    snprintf(path, sizeof(path), "%s/s/r", w.dir);
    umount2(path, MNT_DETACH);
    snprintf(path, sizeof(path), "%s/s", w.dir);
    umount2(path, MNT_DETACH);
    teardown(&w);
}

/* A file of which only the beginning was read becomes another one of the same size. */
static ssize_t read_on_after_a_change(bool strict, char *ret_byte, char *ret_want) {
    struct world w;
    char path[256];
    vg_auto_free char *big = big_bytes(BIG);
    setup(&w, true, 0);
    vg_machine_gone(w.machine, 7);
    w.strict = strict;
    begin_task(&w, 8);
    snprintf(path, sizeof(path), "%s/usr/lib/big", w.at);
    int fd = open(path, O_RDONLY);
    cr_assert_geq(fd, 0);
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    cr_assert_eq(pread(fd, ret_byte, 1, 0), 1);
    cr_assert_eq(*ret_byte, big[0]);
    for (size_t i = 0; i < BIG; i++)
        big[i] = (char)(big[i] ^ 1);
    put_file(&w, "usr/lib/big", big, BIG);
    fake_inval(w.link, "/usr/lib");
    fake_push_dir(w.link, "/usr/lib"); /* as a service does before it sends other content */
    begin_task(&w, 9);
    assert_file(&w, "usr/lib/big", big, BIG);
    errno = 0;
    ssize_t n = pread(fd, ret_byte, 1, (off_t)BIG - 1);
    n = n < 0 ? -errno : n;
    *ret_want = big[BIG - 1];
    close(fd);
    teardown(&w);
    return n;
}

Test(env, what_changed_under_a_reader_is_read_as_it_is_now, .timeout = 60) {
    char byte, want;
    ssize_t n = read_on_after_a_change(false, &byte, &want);
    cr_assert_eq(n, 1, "%zd", n);
    cr_assert_eq(byte, want);
}

Test(env, strict_task_fails_instead, .timeout = 60) {
    char byte, want;
    ssize_t n = read_on_after_a_change(true, &byte, &want);
    cr_assert_eq(n, -EIO, "%zd, %d for %d", n, byte, want);
}

Test(env, folders_in_folders_without_end_are_refused, .timeout = 60) {
    struct world w;
    struct stat st;
    setup(&w, true, 0);
    for (uint64_t i = 0; i < 3000; i++)
        fake_push_nested(w.link, i ? 1000000 + i : VG_OBJ_ROOT, 1000001 + i);
    begin_task(&w, 8); /* they came before it */
    char path[8192];
    size_t at = (size_t)snprintf(path, sizeof(path), "%s", w.at);
    for (int i = 0; i < 1900; i++)
        at += (size_t)snprintf(path + at, sizeof(path) - at, "/d");
    path[4090] = 0;
    cr_assert_eq(stat(path, &st), 0, "%s", strerror(errno));
    cr_assert_leq(counter(&w, "folders"), 2049);
    teardown(&w);
}
