/* Contents that come in leaf by leaf: across restarts, kills and power failures. */
#include "cache-helpers.h"

#include <signal.h>
#include <sys/mman.h>

#define LEAVES 24

static struct vg_blob *get(struct vg_cache *c, const struct content *t, bool with_id) {
    struct vg_blob *b;
    cr_assert_eq(vg_blob_get(c, t->stamp, with_id ? t->id : NULL, t->size, false, &b), 0);
    return b;
}

Test(cache_part, leaves_survive_a_restart_and_the_rest_completes_it) {
    struct place p = place_new();
    struct content t = content_new(1, 5 * VG_LEAF + 9);
    struct vg_cache *c = place_open(&p);
    struct vg_blob *b = get(c, &t, false);
    cr_assert_eq(put_leaf_of(b, &t, 5), 0);
    cr_assert_eq(put_leaf_of(b, &t, 2), 0);
    vg_blob_put(b);
    vg_cache_close(c);
    c = place_open(&p);
    b = get(c, &t, true);
    cr_assert(vg_blob_has_leaf(b, 2) && vg_blob_has_leaf(b, 5) && !vg_blob_has_leaf(b, 0));
    cr_assert(vg_blob_has(b, 2 * VG_LEAF + 3, VG_LEAF - 3));
    cr_assert_not(vg_blob_has(b, 2 * VG_LEAF + 3, VG_LEAF));
    cr_assert(vg_blob_has(b, 5 * VG_LEAF, UINT64_MAX)); /* up to the end */
    cr_assert_eq(check_bytes(b, &t), 2);
    for (uint64_t i = 0; i < 6; i++)
        cr_assert_eq(put_leaf_of(b, &t, i), i == 4);
    cr_assert_eq(check_bytes(b, &t), 6);
    vg_blob_put(b);
    vg_cache_close(c);
    free(t.data);
    place_done(&p);
}

Test(cache_part, nothing_partial_is_believed_after_another_boot) {
    struct place p = place_new();
    struct content t = content_new(1, 3 * VG_LEAF);
    p.conf.boot = "first";
    struct vg_cache *c = place_open(&p);
    struct vg_blob *b = get(c, &t, true);
    cr_assert_eq(put_leaf_of(b, &t, 0), 0);
    vg_blob_put(b);
    vg_cache_close(c);
    p.conf.boot = "second";
    c = place_open(&p);
    b = get(c, &t, true);
    cr_assert_not(vg_blob_has_leaf(b, 0));
    vg_blob_put(b);
    vg_cache_close(c);
    free(t.data);
    place_done(&p);
}

Test(cache_part, a_torn_map_loses_leaves_and_claims_none) {
    struct place p = place_new();
    struct content t = content_new(1, 4 * VG_LEAF);
    struct vg_cache *c = place_open(&p);
    char path[VG_CACHE_PATH];
    for (off_t cut = VG_MAP_HEAD + 4 * VG_HASH; cut >= 0; cut -= 7) {
        struct vg_blob *b = get(c, &t, true);
        for (uint64_t i = 0; i < 3; i++)
            cr_assert_eq(put_leaf_of(b, &t, i), 0);
        vg_part_path(b, true, path);
        vg_blob_put(b);
        int fd = openat(c->dir, path, O_RDWR | O_CLOEXEC);
        cr_assert(fd >= 0 && ftruncate(fd, cut) == 0 && close(fd) == 0);
        b = get(c, &t, true);
        uint64_t whole = cut < VG_MAP_HEAD ? 0 : (uint64_t)(cut - VG_MAP_HEAD) / VG_HASH;
        for (uint64_t i = 0; i < 4; i++)
            cr_assert_eq(vg_blob_has_leaf(b, i), i < VG_MIN(whole, 3u), "cut %d leaf %d", (int)cut,
                         (int)i);
        check_bytes(b, &t);
        vg_blob_put(b);
    }
    vg_cache_close(c);
    free(t.data);
    place_done(&p);
}

Test(cache_part, a_pin_sees_leaves_that_come_later) {
    struct place p = place_new();
    struct vg_cache *c = place_open(&p);
    for (uint64_t leaves = 1; leaves < 3; leaves++) {
        struct content t = content_new((uint32_t)leaves, leaves * VG_LEAF - 1);
        struct vg_blob *b = get(c, &t, true);
        uint8_t byte = 0;
        int fd = vg_blob_pin(b);
        cr_assert_geq(fd, 0);
        for (uint64_t i = leaves; i-- > 0;)
            cr_assert_eq(put_leaf_of(b, &t, i), i == 0);
        cr_assert_eq(pread(fd, &byte, 1, 1000), 1);
        cr_assert_eq(byte, t.data[1000]);
        vg_blob_unpin(b);
        cr_assert_eq(check_bytes(b, &t), leaves);
        vg_blob_put(b);
        free(t.data);
    }
    struct content t = content_new(9, 2 * VG_LEAF); /* pinned, and nothing ever came */
    struct vg_blob *b = get(c, &t, true);
    cr_assert_geq(vg_blob_pin(b), 0);
    vg_blob_unpin(b);
    vg_blob_put(b);
    cr_assert_eq(stat_of(c).partial, 0);
    free(t.data);
    vg_cache_close(c);
    place_done(&p);
}

/* Writes leaves in an order of its own for ever, and is killed in the middle. */
static void writer(struct place *p, const struct content *t, unsigned seed,
                   _Atomic unsigned *written) {
    struct vg_cache *c = NULL;
    struct vg_err err = VG_ERR_INIT;
    if (vg_cache_open(&p->conf, &c, &err) < 0)
        _exit(1);
    for (;; seed = seed * 1103515245u + 12345u) {
        const struct content *one = &t[(seed >> 8) % 3];
        struct vg_blob *b;
        if (vg_blob_get(c, one->stamp, NULL, one->size, false, &b) < 0)
            _exit(2);
        for (unsigned i = 0; i < 4; i++) {
            seed = seed * 1103515245u + 12345u;
            if (put_leaf_of(b, one, (seed >> 8) % vg_leaves(one->size)) < 0)
                _exit(3);
            atomic_fetch_add(written, 1);
        }
        vg_blob_put(b);
    }
}

/* Kills it after so many leaves and a bit, so that all moments of a write are hit. */
static void kill_writer(struct place *p, const struct content *t, unsigned round,
                        _Atomic unsigned *written) {
    atomic_store(written, 0);
    pid_t pid = fork();
    if (pid == 0)
        writer(p, t, round * 7919 + 1, written);
    while (atomic_load(written) < 1 + round % 8)
        cr_assert_eq(waitpid(pid, NULL, WNOHANG), 0, "the writer has ended by itself");
    uint64_t until = vg_now_usec() + round * 37 % 700;
    while (vg_now_usec() < until)
        ;
    kill(pid, SIGKILL);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
}

Test(cache_part, what_is_claimed_after_a_kill_is_there) {
    struct content t[3];
    uint64_t compared = 0;
    _Atomic unsigned *written =
        mmap(NULL, sizeof *written, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(written, MAP_FAILED);
    for (uint32_t i = 0; i < 3; i++)
        t[i] = content_new(i, (LEAVES + i) * VG_LEAF - i);
    for (unsigned round = 0; round < 60; round++) {
        struct place p = place_new();
        p.conf.dir = p.dir;
        kill_writer(&p, t, round, written);
        struct vg_cache *c = place_open(&p);
        for (uint32_t i = 0; i < 3; i++) {
            struct vg_blob *b = get(c, &t[i], false);
            compared += check_bytes(b, &t[i]);
            vg_blob_put(b);
        }
        cr_assert_eq(vg_cache_scrub(c, UINT64_MAX), 0);
        vg_cache_close(c);
        place_done(&p);
    }
    cr_assert_gt(compared, 60, "nothing was ever kept");
    for (uint32_t i = 0; i < 3; i++)
        free(t[i].data);
}

static int take_in(struct vg_cache *c, const struct content *t) {
    struct vg_intake *in;
    int r = vg_intake_new(c, t->id, t->size, &in);
    for (uint64_t i = 0; r == 0 && i < vg_leaves(t->size); i++)
        r = vg_intake_write(in, i * VG_LEAF, t->data + i * VG_LEAF, leaf_len(t, i));
    if (r != -EEXIST)
        vg_intake_free(in);
    return r;
}

Test(cache_part, what_another_node_sends_is_seen_when_it_is_proven) {
    struct place p = place_new();
    struct vg_cache *c = place_open(&p);
    const uint64_t sizes[] = {0, 5, VG_LEAF, 3 * VG_LEAF + 1};
    for (uint32_t i = 0; i < VG_COUNT(sizes); i++) {
        struct content t = content_new(i, sizes[i]);
        cr_assert_lt(vg_cache_open_id(c, t.id, t.size), 0);
        cr_assert_eq(take_in(c, &t), 1);
        cr_assert_eq(take_in(c, &t), -EEXIST);
        cr_assert_not(vg_cache_has(c, t.stamp, NULL));
        struct vg_blob *b = get(c, &t, true);
        cr_assert_eq(check_bytes(b, &t), vg_leaves(t.size));
        vg_blob_put(b);
        int fd = vg_cache_open_id(c, t.id, t.size);
        cr_assert_geq(fd, 0);
        close(fd);
        cr_assert_eq(vg_cache_open_id(c, t.id, t.size + 1), -ENOENT);
        free(t.data);
    }
    struct content lie = content_new(9, 2 * VG_LEAF);
    lie.data[VG_LEAF] ^= 1;
    cr_assert_eq(take_in(c, &lie), -EBADMSG);
    cr_assert_not(vg_cache_has(c, lie.stamp, lie.id));
    cr_assert_eq(stat_of(c).bad, 1);
    struct vg_intake *in;
    cr_assert_eq(vg_intake_new(c, lie.id, lie.size, &in), 0);
    cr_assert_eq(vg_intake_write(in, VG_LEAF, lie.data, VG_LEAF), -EINVAL);
    cr_assert_eq(vg_intake_write(in, 0, lie.data, VG_LEAF - 1), -EINVAL);
    vg_intake_free(in);
    free(lie.data);
    vg_cache_close(c);
    place_done(&p);
}

Test(cache_part, what_another_node_sends_completes_what_somebody_holds_in_part) {
    struct place p = place_new();
    struct vg_cache *c = place_open(&p);
    struct content t = content_new(1, 4 * VG_LEAF + 3);
    struct vg_blob *b = get(c, &t, true);
    uint8_t byte = 0;
    cr_assert_eq(put_leaf_of(b, &t, 2), 0);
    int fd = vg_blob_pin(b);
    cr_assert_eq(take_in(c, &t), 1);
    cr_assert(vg_blob_complete(b));
    cr_assert_eq(pread(fd, &byte, 1, 100), 1); /* through the descriptor it had before */
    cr_assert_eq(byte, t.data[100]);
    vg_blob_unpin(b);
    cr_assert_eq(check_bytes(b, &t), 5);
    vg_blob_put(b);
    cr_assert_eq(stat_of(c).objects, 1);
    cr_assert_eq(stat_of(c).partial, 0);
    free(t.data);
    vg_cache_close(c);
    place_done(&p);
}
