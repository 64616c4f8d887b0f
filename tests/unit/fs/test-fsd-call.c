/* Packets to and from a file daemon, and how one is started. */
#include "base/cleanup.h"
#include "base/util.h"
#include "fs/fsd.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static int pair[2];

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static void remove_all(const char *dir) {
    cr_assert_eq(nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

static void setup(void) {
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
}

static void teardown(void) {
    vg_close(&pair[0]);
    vg_close(&pair[1]);
}

TestSuite(fsd_call, .init = setup, .fini = teardown, .timeout = 60);

Test(fsd_call, a_packet_arrives_with_its_descriptors) {
    struct vg_fsd_task t = {.task = 7, .attempt = 2}, got;
    struct vg_fsd_head head;
    int pipe_fds[2], fds[4];
    size_t n = 4;
    char c = 0;
    cr_assert_eq(pipe(pipe_fds), 0);
    cr_assert_eq(vg_fsd_send(pair[0], VG_FSD_LINK, &t, sizeof t, &pipe_fds[1], 1), 0);
    cr_assert_eq(vg_fsd_recv(pair[1], &head, &got, sizeof got, fds, &n), 1);
    cr_assert_eq(head.kind, (uint32_t)VG_FSD_LINK);
    cr_assert_eq(head.len, sizeof t);
    cr_assert_eq(got.task, 7u);
    cr_assert_eq(n, 1u);
    cr_assert_eq(write(fds[0], "x", 1), 1);
    cr_assert_eq(read(pipe_fds[0], &c, 1), 1);
    cr_assert_eq(c, 'x');
    close(fds[0]);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
}

Test(fsd_call, the_end_and_what_is_no_packet_are_told_apart) {
    struct vg_fsd_head head;
    char room[16];
    int fds[2];
    size_t n = 2;
    cr_assert_eq(vg_fsd_send(pair[0], VG_FSD_NOTE, "a text that is too long", 23, NULL, 0), 0);
    cr_assert_eq(vg_fsd_recv(pair[1], &head, room, sizeof room, fds, &n), -EBADMSG);
    cr_assert_eq(send(pair[0], "abc", 3, 0), 3);
    n = 2;
    cr_assert_eq(vg_fsd_recv(pair[1], &head, room, sizeof room, fds, &n), -EBADMSG);
    struct vg_fsd_head liar = {.kind = VG_FSD_NOTE, .len = 9};
    cr_assert_eq(send(pair[0], &liar, sizeof liar, 0), (ssize_t)sizeof liar);
    n = 2;
    cr_assert_eq(vg_fsd_recv(pair[1], &head, room, sizeof room, fds, &n), -EBADMSG);
    vg_close(&pair[0]);
    n = 2;
    cr_assert_eq(vg_fsd_recv(pair[1], &head, room, sizeof room, fds, &n), 0);
}

Test(fsd_call, more_descriptors_than_fit_are_closed_with_the_packet) {
    struct vg_fsd_head head;
    int many[3], fds[1], p[2];
    size_t n = 1;
    char c;
    cr_assert_eq(pipe(p), 0);
    for (int i = 0; i < 3; i++)
        many[i] = dup(p[1]);
    cr_assert_eq(vg_fsd_send(pair[0], VG_FSD_NOTE, NULL, 0, many, 3), 0);
    cr_assert_eq(vg_fsd_recv(pair[1], &head, &c, 1, fds, &n), 1);
    cr_assert_eq(n, 1u);
    close(fds[0]);
    for (int i = 0; i < 3; i++)
        close(many[i]);
    close(p[1]);
    cr_assert_eq(read(p[0], &c, 1), 0, "nobody holds the other end any more");
    close(p[0]);
}

Test(fsd_call, a_daemon_is_started_once_and_hears_what_was_sent_before_it_was_up) {
    char dir[] = "/tmp/fsd-call-XXXXXX", program[64], path[80], text[512] = "";
    struct vg_err err = VG_ERR_INIT;
    struct vg_fsd_head head;
    char room[16];
    size_t n = 0;
    cr_assert(mkdtemp(dir));
    snprintf(program, sizeof program, "%s/daemon", dir);
    static const char script[] = "#!/bin/sh\n"
                                 "test -S /proc/self/fd/3 || exit 1\n"
                                 "echo \"$@\" >> \"$3/said\"\n"
                                 "read x < \"$3/go\"\n";
    cr_assert_eq(vg_write_file(program, script, sizeof script - 1, 0755), 0);
    snprintf(path, sizeof path, "%s/go", dir);
    cr_assert_eq(mkfifo(path, 0600), 0);
    struct vg_fsd_conf conf = {.dir = dir,
                               .program = program,
                               .slot = 5,
                               .node = "n",
                               .cache_bytes = 99,
                               .no_erofs = true};
    int a = -1, b = -1;
    cr_assert_eq(vg_fsd_connect_running(dir, 5, &a), -ENOENT);
    cr_assert_eq(vg_fsd_connect(&conf, &a, &err), 0, "%s", err.msg);
    cr_assert_eq(vg_fsd_send(a, VG_FSD_STATUS, NULL, 0, NULL, 0), 0);
    cr_assert_eq(vg_fsd_connect(&conf, &b, &err), 0, "%s", err.msg);
    int go = open(path, O_WRONLY); /* waits until it reads; then it ends */
    cr_assert_geq(go, 0);
    close(go);
    cr_assert_eq(vg_fsd_recv(a, &head, room, sizeof room, NULL, &n), 0, "gone");
    cr_assert_eq(vg_fsd_recv(b, &head, room, sizeof room, NULL, &n), 0, "gone");
    close(a);
    close(b);
    snprintf(path, sizeof path, "%s/said", dir);
    int fd = open(path, O_RDONLY);
    cr_assert_geq(read(fd, text, sizeof text - 1), 0);
    close(fd);
    char want[256];
    snprintf(want, sizeof want, "fsd --dir %s --slot 5 --node n --cache 99 --no-erofs\n", dir);
    cr_assert_str_eq(text, want, "once");
    remove_all(dir);
}

Test(fsd_call, a_program_that_is_not_there_is_found_out_by_the_silence) {
    char dir[] = "/tmp/fsd-call-XXXXXX", text[64];
    struct vg_err err = VG_ERR_INIT;
    struct vg_fsd_head head;
    size_t n = 0;
    cr_assert(mkdtemp(dir));
    struct vg_fsd_conf conf = {.dir = dir, .program = "/nonexistent", .slot = 1};
    int a = -1;
    if (vg_fsd_connect(&conf, &a, &err) == 0) {
        cr_assert_eq(vg_fsd_recv(a, &head, text, sizeof text, NULL, &n), 0);
        close(a);
    }
    cr_assert_lt(vg_fsd_connect_running(dir, 1, &a), 0);
    remove_all(dir);
}
