/* Collection: removes what nothing holds, never what a version, a hold or an upload needs; with
   uploads at the same time and with kill -9 at any moment. */
#include "help.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t objects(struct vg_estore *s) {
    struct vg_estore_stat st;
    vg_estore_stats(s, &st);
    return st.objects;
}

static void gc(struct vg_estore *s, struct vg_egc_stat *st) {
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_estore_gc(s, st, &err), 0, "%s", err.msg);
}

Test(gc, what_nothing_holds_goes_and_the_rest_stays) {
    struct box b = box_new(0);
    struct vg_err err = VG_ERR_INIT;
    struct vg_egc_stat st;
    struct vg_eversion v = {0}, h = {0};
    uint8_t served[VG_HASH], loose[VG_HASH];
    cr_assert_eq(put_tree(b.s, 1, v.root), 0);
    cr_assert_eq(put_tree(b.s, 2, h.root), 0);
    cr_assert_eq(put_tree(b.s, 3, served), 0);
    cr_assert_eq(put_tree(b.s, 4, loose), 0);
    cr_assert_eq(vg_eref_add(b.s, "e", &v, &err), 0);
    cr_assert_eq(vg_ehold_set(b.s, "00ff-1", &h, &err), 0);
    cr_assert_eq(vg_estore_hold_root(b.s, served), 0);
    cr_assert_eq(objects(b.s), 16);
    gc(b.s, &st);
    cr_assert_eq(st.removed, 4);
    cr_assert_eq(st.marked, 12);
    cr_assert_eq(vg_estore_check(b.s, v.root, &err), 0);
    cr_assert_eq(vg_estore_check(b.s, h.root, &err), 0);
    cr_assert_eq(vg_estore_check(b.s, served, &err), 0);
    cr_assert_lt(vg_estore_check(b.s, loose, &err), 0);
    vg_estore_drop_root(b.s, served);
    cr_assert_eq(vg_ehold_drop(b.s, "00ff-1"), 0);
    cr_assert_eq(vg_eref_remove(b.s, "e", 0, &err), 0);
    gc(b.s, &st);
    cr_assert_eq(objects(b.s), 0);
    struct vg_estore_stat u;
    vg_estore_stats(b.s, &u);
    cr_assert_eq(u.bytes, 0);
    box_done(&b);
}

Test(gc, what_a_session_stored_or_found_stays_until_it_ends) {
    struct box b = box_new(0);
    struct vg_egc_stat st;
    uint8_t old[VG_HASH], fresh[VG_HASH], unused[VG_HASH];
    cr_assert_eq(put_file(b.s, 100, 1, old), 0);
    cr_assert_eq(put_file(b.s, 100, 3, unused), 0);
    /* a collection before the session makes the number grow: what follows is no accident of 0 */
    struct vg_esession *first = vg_esession_begin(b.s);
    cr_assert(vg_estore_has(b.s, VG_E_DATA, old));
    cr_assert(vg_estore_has(b.s, VG_E_DATA, unused));
    gc(b.s, &st);
    cr_assert_eq(st.removed, 0);
    struct vg_esession *e = vg_esession_begin(b.s);
    vg_esession_end(first);
    cr_assert(vg_estore_has(b.s, VG_E_DATA, old), "found, not stored");
    cr_assert_eq(put_file(b.s, 100, 2, fresh), 0);
    for (int i = 0; i < 3; i++)
        gc(b.s, &st);
    cr_assert(vg_estore_has(b.s, VG_E_DATA, old));
    cr_assert(vg_estore_has(b.s, VG_E_DATA, fresh));
    cr_assert_not(vg_estore_has(b.s, VG_E_DATA, unused), "the session did not ask for it");
    vg_esession_end(e);
    gc(b.s, &st);
    cr_assert_eq(objects(b.s), 0);
    box_done(&b);
}

Test(gc, a_version_that_cannot_be_read_stops_it_before_anything_is_removed) {
    struct box b = box_new(0);
    struct vg_err err = VG_ERR_INIT;
    struct vg_egc_stat st;
    struct vg_eversion v = {.root = {1, 2, 3}};
    uint8_t loose[VG_HASH];
    cr_assert_eq(put_file(b.s, 100, 1, loose), 0);
    cr_assert_eq(vg_eref_add(b.s, "e", &v, &err), 0);
    cr_assert_lt(vg_estore_gc(b.s, &st, &err), 0);
    cr_assert(strstr(err.msg, "nothing was collected"));
    cr_assert_eq(objects(b.s), 1);
    cr_assert_eq(vg_eref_remove(b.s, "e", 0, &err), 0);
    gc(b.s, &st);
    cr_assert_eq(objects(b.s), 0);
    box_done(&b);
}

/* Uploaders that share most of their content, versions that come and go, and a collector that
   never rests: whatever has a name is whole at every moment. */
struct race {
    struct vg_estore *s;
    unsigned seed;
    atomic_bool *over;
    atomic_int bad;
};

static void *upload(void *arg) {
    struct race *r = arg;
    struct vg_err err;
    char name[32];
    for (unsigned i = 0; i < 60; i++) {
        struct vg_esession *e = vg_esession_begin(r->s);
        struct vg_eversion v = {0};
        unsigned seed = (r->seed + i) % 5;
        snprintf(name, sizeof(name), "e%u", r->seed);
        if (!e || put_tree(r->s, seed, v.root) < 0 || vg_eref_add(r->s, name, &v, &err) < 0 ||
            vg_estore_check(r->s, v.root, &err) < 0)
            r->bad++;
        vg_esession_end(e);
        if (vg_estore_check(r->s, v.root, &err) < 0) /* by its name alone */
            r->bad++;
        if (i % 3 == 2 && vg_eref_remove(r->s, name, 0, &err) < 0)
            r->bad++;
    }
    return NULL;
}

static void *collect(void *arg) {
    struct race *r = arg;
    struct vg_egc_stat st;
    struct vg_err err;
    while (!*r->over)
        if (vg_estore_gc(r->s, &st, &err) < 0)
            r->bad++;
    return NULL;
}

Test(gc, uploads_at_the_same_time_lose_nothing) {
    struct box b = box_new(0);
    atomic_bool over = false;
    struct race r[4];
    pthread_t t[4];
    for (unsigned i = 0; i < 4; i++) {
        r[i] = (struct race){.s = b.s, .seed = i, .over = &over};
        cr_assert_eq(pthread_create(&t[i], NULL, i == 3 ? collect : upload, &r[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        over = i == 3;
        pthread_join(t[i], NULL);
    }
    for (unsigned i = 0; i < 4; i++)
        cr_assert_eq(r[i].bad, 0, "thread %u: %d", i, r[i].bad);
    box_done(&b);
}

static void victim(const char *dir, int tell) {
    struct vg_estore *s;
    struct vg_err err;
    struct vg_egc_stat st;
    if (vg_estore_open(dir, 0, &s, &err) < 0)
        _exit(1);
    for (unsigned i = 0;; i++) {
        struct vg_esession *e = vg_esession_begin(s);
        struct vg_eversion v = {.files = 2};
        if (!e || put_tree(s, i % 7, v.root) < 0 || vg_eref_add(s, "e", &v, &err) < 0)
            _exit(2);
        vg_esession_end(e);
        if (write(tell, "x", 1) != 1)
            _exit(3);
        if (i % 2 && vg_eref_remove(s, "e", v.version, &err) < 0)
            _exit(4);
        if (vg_estore_gc(s, &st, &err) < 0)
            _exit(5);
    }
}

static int check_version(void *user, const char *name, const struct vg_eversion *v) {
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_estore_check(user, v->root, &err), 0, "%s@%u: %s", name, v->version, err.msg);
    return 0;
}

Test(gc, kill_9_at_any_moment_leaves_every_version_whole, .timeout = 60) {
    struct box b = box_new(0);
    vg_estore_close(b.s);
    b.s = NULL;
    unsigned seed = 12345;
    for (int round = 0; round < 15; round++) {
        int p[2];
        char c;
        cr_assert_eq(pipe(p), 0);
        pid_t pid = fork();
        if (pid == 0) {
            close(p[0]);
            victim(b.dir, p[1]);
        }
        close(p[1]);
        seed = seed * 1103515245 + 12345;
        for (unsigned i = 0; i <= (seed >> 16) % 5; i++) /* so many versions, then in the midst */
            cr_assert_eq(read(p[0], &c, 1), 1);
        usleep((seed >> 8) % 3000);
        kill(pid, SIGKILL);
        int status;
        waitpid(pid, &status, 0);
        cr_assert(WIFSIGNALED(status), "round %d: exit %d", round, WEXITSTATUS(status));
        close(p[0]);
        struct vg_err err = VG_ERR_INIT;
        struct vg_egc_stat st;
        cr_assert_eq(vg_estore_open(b.dir, 0, &b.s, &err), 0, "%s", err.msg);
        cr_assert_eq(vg_eref_each(b.s, check_version, b.s), 0);
        cr_assert_eq(vg_estore_gc(b.s, &st, &err), 0, "%s", err.msg);
        cr_assert_eq(vg_eref_each(b.s, check_version, b.s), 0);
        cr_assert_eq(objects(b.s), st.marked, "nothing is left that nothing holds");
        vg_estore_close(b.s);
        b.s = NULL;
    }
    box_done(&b);
}
