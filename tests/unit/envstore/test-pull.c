/* Serving and pulling: a snapshot that went over a link is the same snapshot; what is missing is
   asked for while somebody can be asked, and named afterwards. */
#include "fs/store/ftree.h"
#include "fs/store/pull.h"
#include "help.h"
#include "mirror/mwire.h"

#include <pthread.h>
#include <semaphore.h>
#include <sys/socket.h>
#include <unistd.h>

#define BIG (5u * VG_LEAF + 99)

/* /big /empty /link /dir/{file,sub/file} /dir2/many… with attributes. */
static void make(struct vg_estore *s, uint8_t root[VG_HASH]) {
    uint8_t big[VG_HASH], nothing[VG_HASH], dir[VG_HASH], many[VG_HASH], f[VG_HASH];
    struct vg_snapbuild b;
    struct vg_buf out = {0};
    struct vg_mstat st = {.mode = S_IFDIR | 0755, .mtime = 7, .uid = 3};
    cr_assert_eq(put_file(s, BIG, 1, big), 0);
    cr_assert_eq(put_file(s, 0, 0, nothing), 0);
    cr_assert_eq(put_tree(s, 5, dir), 0);
    cr_assert_eq(vg_snapbuild_begin(&b, &st), 0);
    for (unsigned i = 0; i < 700; i++) {
        char name[16];
        snprintf(name, sizeof(name), "n%04u", i);
        cr_assert_eq(put_file(s, i % 50, i, f), 0);
        struct vg_dirent e = {.name = name,
                              .name_len = 5,
                              .id = f,
                              .st = {.mode = S_IFREG | 0600, .size = i % 50, .mtime = i}};
        cr_assert_eq(vg_snapbuild_add(&b, &e, NULL), 0);
    }
    cr_assert_eq(vg_snapbuild_end(&b, &out), 0);
    cr_assert_eq(vg_estore_put_rec(s, vg_buf_data(&out), vg_buf_len(&out), many), 0);
    vg_snapbuild_done(&b);
    vg_buf_clear(&out);
    cr_assert_eq(vg_snapbuild_begin(&b, &st), 0);
    struct vg_dirent e[] = {
        {.name = "big",
         .name_len = 3,
         .id = big,
         .flags = VG_DE_XATTR,
         .st = {.mode = S_IFREG | 0644, .size = BIG, .mtime = -5}},
        {.name = "denied",
         .name_len = 6,
         .flags = VG_DE_DENIED,
         .st = {.mode = S_IFREG | 0600, .size = 10}},
        {.name = "dir", .name_len = 3, .st = {.mode = S_IFDIR | 0755, .mtime = 5}},
        {.name = "dir2", .name_len = 4, .st = st},
        {.name = "empty", .name_len = 5, .id = nothing, .st = {.mode = S_IFREG | 0644}},
        {.name = "link",
         .name_len = 4,
         .target = "dir/file",
         .target_len = 8,
         .st = {.mode = S_IFLNK | 0777, .size = 8}},
    };
    for (size_t i = 0; i < VG_COUNT(e); i++) {
        cr_assert_eq(vg_snapbuild_add(&b, &e[i], i == 2 ? dir : i == 3 ? many : NULL), 0);
        if (i == 0) {
            cr_assert_eq(vg_snapbuild_xattr(&b, "security.capability", 19, "\1\0\2", 3), 0);
            cr_assert_eq(vg_snapbuild_xattr(&b, "user.note", 9, "hello", 5), 0);
        }
    }
    cr_assert_eq(vg_snapbuild_end(&b, &out), 0);
    cr_assert_eq(vg_estore_put_rec(s, vg_buf_data(&out), vg_buf_len(&out), root), 0);
    vg_snapbuild_done(&b);
    vg_buf_done(&out);
}

struct server {
    struct vg_ftree *t;
    int fd, result;
    pthread_t thread;
};

static void *serve(void *arg) {
    struct server *s = arg;
    s->result = vg_fserve(s->t, s->fd, 7, NULL);
    return NULL;
}

/* A link to the tree: the other end. */
static int served(struct server *s, struct vg_ftree *t) {
    int sv[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
    *s = (struct server){.t = t, .fd = sv[0]};
    cr_assert_eq(pthread_create(&s->thread, NULL, serve, s), 0);
    return sv[1];
}

static void pull_all(struct vg_estore *s, struct vg_ftree *from, const char *const *path,
                     size_t n_path, bool prune, struct vg_eversion *v) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_ftree *t;
    struct server server;
    cr_assert_eq(vg_ftree_new(s, NULL, &t, &err), 0);
    struct vg_pull_conf conf = {
        .tree = t, .fd = served(&server, from), .path = path, .n_path = n_path, .prune = prune};
    cr_assert_eq(vg_pull(&conf, &err), 0, "%s", err.msg);
    pthread_join(server.thread, NULL);
    cr_assert_eq(server.result, 0);
    cr_assert_eq(vg_ftree_seal(t, v, &err), 0, "%s", err.msg);
    vg_ftree_unref(t);
}

static struct vg_ftree *tree_of(struct vg_estore *s, const uint8_t *root) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_ftree *t;
    cr_assert_eq(vg_ftree_new(s, root, &t, &err), 0, "%s", err.msg);
    return t;
}

Test(pull, a_snapshot_over_a_link_is_the_same_snapshot) {
    struct box a = box_new(0), b = box_new(0);
    struct vg_err err = VG_ERR_INIT;
    uint8_t root[VG_HASH];
    make(a.s, root);
    struct vg_ftree *t = tree_of(a.s, root);
    struct vg_eversion v = {0};
    pull_all(b.s, t, NULL, 0, false, &v);
    cr_assert_arr_eq(v.root, root, VG_HASH);
    cr_assert_eq(v.files, 706);
    cr_assert_eq(v.missing, 1);
    cr_assert_eq(vg_estore_check(b.s, v.root, &err), 0, "%s", err.msg);
    /* a second time nothing is stored twice, and the same root comes out */
    struct vg_estore_stat s1, s2;
    vg_estore_stats(b.s, &s1);
    pull_all(b.s, t, NULL, 0, false, &v);
    vg_estore_stats(b.s, &s2);
    cr_assert_eq(s1.bytes, s2.bytes);
    cr_assert_arr_eq(v.root, root, VG_HASH);
    vg_ftree_unref(t);
    box_done(&a);
    box_done(&b);
}

static int names(void *user, const struct vg_fitem *i) {
    return vg_buf_printf(user, "%s%s ", i->path, S_ISREG(i->st.mode) && !i->id ? "!" : "");
}

Test(pull, only_what_is_wanted_comes) {
    struct box a = box_new(0), b = box_new(0);
    struct vg_err err = VG_ERR_INIT;
    uint8_t root[VG_HASH];
    make(a.s, root);
    struct vg_ftree *t = tree_of(a.s, root), *got;
    struct vg_eversion v = {0};
    const char *const paths[] = {"/dir/sub", "/link", "/not/there"};
    pull_all(b.s, t, paths, 3, true, &v);
    struct vg_buf out = {0};
    got = tree_of(b.s, v.root);
    cr_assert_eq(vg_ftree_each(got, names, &out, &err), 0, "%s", err.msg);
    vg_buf_append(&out, "", 1);
    cr_assert_str_eq((char *)vg_buf_data(&out), "/ /dir /dir/sub /dir/sub/file /link ");
    vg_buf_done(&out);
    vg_ftree_unref(got);
    vg_ftree_unref(t);
    box_done(&a);
    box_done(&b);
}

struct stay {
    struct vg_pull_conf conf;
    sem_t ready;
    int result;
    pthread_t thread;
};

static void ready(void *user) {
    sem_post(&((struct stay *)user)->ready);
}

static void *stay(void *arg) {
    struct stay *s = arg;
    struct vg_err err = VG_ERR_INIT;
    s->result = vg_pull(&s->conf, &err);
    return NULL;
}

Test(pull, what_was_not_taken_is_asked_for_while_the_client_is_there_and_named_when_it_is_gone) {
    struct box a = box_new(0), b = box_new(0), c = box_new(0), d = box_new(0);
    struct vg_err err = VG_ERR_INIT;
    uint8_t root[VG_HASH];
    make(a.s, root);
    struct vg_ftree *client = tree_of(a.s, root), *pin;
    struct server server;
    cr_assert_eq(vg_ftree_new(b.s, NULL, &pin, &err), 0);
    int link = served(&server, client);
    struct stay s = {.conf = {.tree = pin,
                              .fd = dup(link),
                              .path = (const char *const[]){"/dir"},
                              .n_path = 1,
                              .stay = true,
                              .ready = ready}};
    s.conf.user = &s;
    sem_init(&s.ready, 0, 0);
    cr_assert_eq(pthread_create(&s.thread, NULL, stay, &s), 0);
    sem_wait(&s.ready);
    struct vg_eversion v = {0};
    cr_assert_eq(vg_ftree_seal(pin, &v, &err), 0);
    cr_assert_eq(v.missing, 2, "big and denied did not come: %u", v.missing);
    uint8_t early[VG_HASH];
    memcpy(early, v.root, VG_HASH);

    /* a node asks for all of it: the client is asked for the rest */
    struct vg_eversion w = {0};
    pull_all(c.s, pin, NULL, 0, false, &w);
    cr_assert_arr_eq(w.root, root, VG_HASH);
    cr_assert_eq(vg_ftree_seal(pin, &v, &err), 0);
    cr_assert_arr_eq(v.root, root, VG_HASH, "now the pinned one is whole, too");

    /* the client goes; what was pinned first is all there is of the early snapshot */
    shutdown(link, SHUT_RDWR);
    close(link);
    pthread_join(s.thread, NULL);
    pthread_join(server.thread, NULL);
    cr_assert_eq(s.result, 0);
    vg_ftree_unref(pin);
    struct vg_ftree *old = tree_of(b.s, early);
    pull_all(d.s, old, NULL, 0, false, &w);
    cr_assert_eq(w.missing, 2);
    struct vg_buf out = {0};
    cr_assert_eq(vg_ftree_missed(old, &out), 0);
    cr_assert_str_eq((char *)vg_buf_data(&out), "/dir2\n/big\n");
    vg_buf_done(&out);
    vg_ftree_unref(old);
    vg_ftree_unref(client);
    sem_destroy(&s.ready);
    box_done(&a);
    box_done(&b);
    box_done(&c);
    box_done(&d);
}

Test(pull, a_client_that_goes_away_early_is_an_error) {
    struct box b = box_new(0);
    struct vg_err err = VG_ERR_INIT;
    struct vg_ftree *t;
    int sv[2];
    cr_assert_eq(vg_ftree_new(b.s, NULL, &t, &err), 0);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
    close(sv[0]);
    struct vg_pull_conf conf = {.tree = t, .fd = sv[1]};
    cr_assert_eq(vg_pull(&conf, &err), -ECONNRESET);
    vg_ftree_unref(t);
    box_done(&b);
}

Test(pull, what_does_not_fit_the_quota_says_so) {
    struct box a = box_new(0), b = box_new(20000);
    struct vg_err err = VG_ERR_INIT;
    uint8_t root[VG_HASH];
    make(a.s, root);
    struct vg_ftree *from = tree_of(a.s, root), *t;
    struct server server;
    cr_assert_eq(vg_ftree_new(b.s, NULL, &t, &err), 0);
    struct vg_pull_conf conf = {.tree = t, .fd = served(&server, from)};
    cr_assert_lt(vg_pull(&conf, &err), 0);
    cr_assert(strstr(err.msg, "quota"), "%s", err.msg);
    pthread_join(server.thread, NULL);
    vg_ftree_unref(t);
    vg_ftree_unref(from);
    box_done(&a);
    box_done(&b);
}

/* Whatever the other side says, the puller ends with an error and nothing is out of bounds. */
Test(pull, nonsense_is_refused) {
    struct box a = box_new(0), b = box_new(0);
    struct vg_err err = VG_ERR_INIT;
    uint8_t root[VG_HASH];
    make(a.s, root);
    struct vg_ftree *from = tree_of(a.s, root), *t;
    unsigned seed = 99;
    for (int round = 0; round < 60; round++) {
        struct server server;
        int link = served(&server, from), sv[2];
        uint8_t bytes[4096];
        ssize_t n = recv(link, bytes, sizeof(bytes), 0); /* an honest beginning, then damaged */
        cr_assert_gt(n, 0);
        shutdown(link, SHUT_RDWR);
        close(link);
        pthread_join(server.thread, NULL);
        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
        for (int k = 0; k < 3; k++) {
            seed = seed * 1103515245 + 12345;
            bytes[(seed >> 8) % (size_t)n] ^= (uint8_t)(1u << (seed >> 28) % 8);
        }
        cr_assert_eq(write(sv[0], bytes, (size_t)n), n);
        shutdown(sv[0], SHUT_WR);
        cr_assert_eq(vg_ftree_new(b.s, NULL, &t, &err), 0);
        struct vg_pull_conf conf = {.tree = t, .fd = sv[1]};
        cr_assert_lt(vg_pull(&conf, &err), 0);
        close(sv[0]);
        vg_ftree_unref(t);
    }
    vg_ftree_unref(from);
    box_done(&a);
    box_done(&b);
}
