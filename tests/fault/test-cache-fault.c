/* Every allocation and every step on the disk fails once: opening, taking in whole contents and
   leaves, naming, evicting, closing. Afterwards a cache that opens without faults serves no byte
   that is wrong, and takes in what was refused. */
#include "../unit/fs/cache-helpers.h"
#include "fault.h"

#define CONTENTS 4

struct run {
    struct place place;
    struct content t[CONTENTS];
    int error;
};

/* Whatever it claims to have by now is right. */
static void claims(struct run *run, struct vg_cache *c) {
    int64_t rest = vg_fault_countdown;
    vg_fault_countdown = 0;
    for (int i = 0; i < CONTENTS; i++) {
        struct vg_blob *b;
        cr_assert_eq(vg_blob_get(c, run->t[i].stamp, NULL, run->t[i].size, false, &b), 0);
        check_bytes(b, &run->t[i]);
        vg_blob_put(b);
    }
    vg_fault_countdown = rest;
}

static void use(struct run *run, struct vg_cache *c) {
    for (int i = 0; i < CONTENTS; i++) {
        const struct content *t = &run->t[i];
        struct vg_blob *b, *again;
        int r = vg_blob_get(c, t->stamp, i % 2 ? t->id : NULL, t->size, i == 3, &b);
        cr_assert(r == 0 || r == -run->error, "%d", r);
        if (r < 0)
            continue;
        for (uint64_t k = 0; k < vg_leaves(t->size); k++) {
            r = put_leaf_of(b, t, k);
            cr_assert(r >= 0 || r == -run->error, "%d", r);
            cr_assert(r < 0 || vg_blob_has_leaf(b, k), "what was taken must be there");
        }
        uint8_t other[VG_HASH] = {(uint8_t)i};
        if (vg_blob_get(c, other, t->id, t->size, i == 3, &again) == 0)
            vg_blob_put(again);
        if (vg_blob_pin(b) >= 0)
            vg_blob_unpin(b);
        vg_blob_put(b);
    }
    claims(run, c);
    c->max_bytes = vg_cache_cost(run->t[0].size) + 1;
    vg_cache_work(c);
    c->max_bytes = run->place.conf.max_bytes;
    cr_assert_eq(vg_map_len(&c->by_stamp) + vg_map_len(&c->by_id) + vg_map_len(&c->by_secret), 0,
                 "somebody still holds something");
}

static void check(struct run *run) {
    struct vg_cache *c = place_open(&run->place);
    vg_cache_work(c);
    cr_assert_eq(vg_cache_scrub(c, UINT64_MAX), 0);
    claims(run, c);
    for (int i = 0; i < CONTENTS; i++)
        vg_blob_put(fill(c, &run->t[i], true));
    struct vg_cache_stat before = stat_of(c);
    cr_assert_eq(vg_cache_recount(c), 0);
    cr_assert_eq(stat_of(c).objects, before.objects);
    cr_assert_eq(stat_of(c).partial, before.partial);
    vg_cache_close(c);
}

static int open_fds(void) {
    int n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void body(void *ctx, bool armed) {
    struct run *run = ctx;
    struct vg_cache *c = NULL;
    struct vg_err err = VG_ERR_INIT;
    (void)armed;
    int fds = open_fds();
    place_done(&run->place);
    run->place.conf.dir = run->place.dir;
    int r = vg_cache_open(&run->place.conf, &c, &err);
    if (r < 0) {
        cr_assert_null(c);
        cr_assert(err.msg[0] && err.code == r);
    } else {
        use(run, c);
        vg_cache_close(c);
    }
    int64_t rest = vg_fault_countdown;
    vg_fault_countdown = 0; /* the check itself is not to fail */
    check(run);
    vg_fault_countdown = rest;
    cr_assert_eq(open_fds(), fds);
}

static void each(const char *only, int error, unsigned at_least) {
    struct run run = {.place = place_new(), .error = error};
    for (uint32_t i = 0; i < CONTENTS; i++)
        run.t[i] = content_new(i, i == 0 ? 3000 : i * VG_LEAF + i);
    unsigned n = fault_each(error, only, body, &run);
    cr_assert_geq(n, at_least, "only %u passages of %s", n, only);
    for (int i = 0; i < CONTENTS; i++)
        free(run.t[i].data);
    place_done(&run.place);
}

Test(cache_fault, every_allocation) {
    each("alloc", ENOMEM, 20);
}
Test(cache_fault, every_step_on_a_full_disk) {
    each("cache/", ENOSPC, 40);
}
Test(cache_fault, every_step_on_a_broken_disk) {
    each("cache/", EIO, 40);
}
