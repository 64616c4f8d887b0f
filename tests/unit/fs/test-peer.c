/* Contents between daemons of one user: two caches and a socket pair. */
#include "cache-helpers.h"
#include "fs/node/peer.h"
#include "mirror/mwire.h"

#include <jansson.h>
#include <sys/socket.h>

struct side {
    struct place place;
    struct vg_cache *c;
    struct vg_peers *p;
    _Atomic unsigned announced;
};

static void side_open(struct side *s) {
    *s = (struct side){.place = place_new()};
    s->c = place_open(&s->place);
    cr_assert_eq(vg_peers_new(s->c, &s->p), 0);
}

static void side_close(struct side *s) {
    vg_peers_free(s->p);
    vg_cache_close(s->c);
    place_done(&s->place);
}

static void join(struct side *a, struct side *b) {
    int pair[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    cr_assert_eq(vg_peers_add(a->p, pair[0]), 0);
    cr_assert_eq(vg_peers_add(b->p, pair[1]), 0);
}

static void have(void *user, const uint64_t *object, size_t n) {
    struct side *s = user;
    for (size_t i = 0; i < n; i++)
        cr_assert_geq(object[i], 1000);
    atomic_fetch_add(&s->announced, (unsigned)n);
}

static long long count(struct vg_peers *p, const char *key) {
    struct vg_buf b = {0};
    cr_assert_eq(vg_peers_json(p, &b), 0);
    json_t *j = json_loadb((char *)vg_buf_data(&b), vg_buf_len(&b), 0, NULL);
    cr_assert(j);
    long long n = (long long)json_integer_value(json_object_get(j, key));
    json_decref(j);
    vg_buf_done(&b);
    return n;
}

static void until(struct vg_peers *p, const char *key, long long n) {
    for (int i = 0; count(p, key) != n; i++) {
        cr_assert_lt(i, 60000, "%s never became %lld", key, n);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static uint64_t size_of(uint32_t seed) {
    return seed % 7 == 0 ? 3 * VG_LEAF + seed : 5000 + seed;
}

static void ask(struct side *s, uint32_t from, uint32_t to) {
    struct vg_peer_file file[VG_PEER_FILES];
    size_t n = 0;
    for (uint32_t i = from; i < to; i++) {
        struct content t = content_new(i, size_of(i));
        file[n] = (struct vg_peer_file){.object = 1000 + i, .size = t.size};
        memcpy(file[n++].id, t.id, VG_HASH);
        free(t.data);
    }
    vg_peers_ask(s->p, file, n, have, s);
}

static bool has(struct side *s, uint32_t seed) {
    struct content t = content_new(seed, size_of(seed));
    int fd = vg_cache_open_id(s->c, t.id, t.size);
    free(t.data);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

Test(peer, what_the_other_has_comes_and_the_rest_does_not, .timeout = 120) {
    struct side a, b;
    side_open(&a);
    side_open(&b);
    for (uint32_t i = 0; i < 60; i++)
        if (i % 3)
            store(b.c, i, size_of(i));
    ask(&a, 0, 30); /* before there is anybody to ask */
    join(&a, &b);
    ask(&a, 30, 60);
    until(a.p, "files", 40);
    cr_assert_eq(atomic_load(&a.announced), 40);
    for (uint32_t i = 0; i < 60; i++)
        cr_assert_eq(has(&a, i), i % 3 != 0, "%u", i);
    cr_assert_eq(vg_cache_scrub(a.c, UINT64_MAX), 0);
    cr_assert_eq(count(a.p, "bytes"), count(b.p, "served_bytes"));
    ask(&a, 0, 3); /* there by now: passes without harm */
    ask(&a, 3, 4);
    vg_peers_forget(a.p, &a);
    side_close(&a);
    side_close(&b);
}

Test(peer, both_can_ask_each_other_for_much_at_once, .timeout = 120) {
    struct side a, b;
    side_open(&a);
    side_open(&b);
    for (uint32_t i = 0; i < 140; i++)
        store(i % 2 ? a.c : b.c, i, size_of(i));
    join(&a, &b);
    for (uint32_t i = 0; i < 140; i += 20) {
        ask(&a, i, i + 20);
        ask(&b, i, i + 20);
    }
    /* Each asks for its own too: the other then has it or not, as the race has it. */
    for (uint32_t i = 0; i < 140; i++)
        for (int k = 0; !has(i % 2 ? &b : &a, i); k++) {
            cr_assert_lt(k, 60000);
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
    side_close(&a);
    side_close(&b);
}

/* Plays the other side by hand. */
static void say(int fd, struct vg_buf *b) {
    while (vg_buf_len(b)) {
        ssize_t n = send(fd, vg_buf_data(b), vg_buf_len(b), MSG_NOSIGNAL);
        if (n <= 0)
            break;
        vg_buf_consume(b, (size_t)n);
    }
}

static void say_have(struct vg_buf *b, uint64_t number, uint32_t index) {
    Vg__Mr__PeerHave h = VG__MR__PEER_HAVE__INIT;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    h.has_ask = 1;
    h.ask = number;
    h.index = &index;
    h.n_index = 1;
    m.body_case = VG__MR__MSG__BODY_PEER_HAVE;
    m.peer_have = &h;
    cr_assert_eq(vg_mw_msg(b, &m), 0);
}

Test(peer, one_who_lies_is_dropped_and_nothing_of_it_is_seen, .timeout = 120) {
    struct content t = content_new(7, size_of(7));
    for (int lie = 0; lie < 6; lie++) {
        struct side a;
        struct vg_buf b = {0};
        int pair[2];
        side_open(&a);
        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        cr_assert_eq(vg_peers_add(a.p, pair[0]), 0);
        ask(&a, 7, 8);
        uint8_t some[16];
        cr_assert_gt(recv(pair[1], some, sizeof some, 0), 0); /* it has asked */
        uint8_t was = t.data[VG_LEAF + 1];
        if (lie == 0)
            say_have(&b, 99, 0); /* an ask that was none */
        if (lie == 1)
            say_have(&b, 1, 1); /* a file that was none */
        if (lie >= 2)
            say_have(&b, 1, 0);
        if (lie == 2)
            t.data[VG_LEAF + 1] ^= 1; /* other bytes */
        if (lie == 2 || lie == 3)     /* or another length */
            vg_mw_data(&b, 1, 0, 0, t.size - (lie == 3), t.data, t.size - (lie == 3), 0);
        if (lie == 4) /* not from the beginning */
            vg_mw_data(&b, 1, 0, VG_LEAF, t.size, t.data + VG_LEAF, VG_LEAF, 0);
        if (lie == 5) /* no frame at all */
            vg_buf_append(&b, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
        say(pair[1], &b);
        until(a.p, "links", 0);
        cr_assert_not(has(&a, 7));
        cr_assert_eq(count(a.p, "files"), 0);
        t.data[VG_LEAF + 1] = was;
        close(pair[1]);
        vg_buf_done(&b);
        side_close(&a);
    }
    free(t.data);
}

Test(peer, a_link_that_breaks_in_the_middle_leaves_nothing_and_another_can_take_its_place,
     .timeout = 120) {
    struct content t = content_new(7, size_of(7));
    struct side a, b;
    struct vg_buf buf = {0};
    int pair[2];
    side_open(&a);
    side_open(&b);
    store(b.c, 7, size_of(7));
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    cr_assert_eq(vg_peers_add(a.p, pair[0]), 0);
    ask(&a, 7, 8);
    say_have(&buf, 1, 0);
    vg_mw_data(&buf, 1, 0, 0, t.size, t.data, VG_LEAF, 0);
    say(pair[1], &buf);
    close(pair[1]);
    until(a.p, "links", 0);
    cr_assert_not(has(&a, 7));
    join(&a, &b);
    ask(&a, 7, 8);
    until(a.p, "files", 1);
    cr_assert(has(&a, 7));
    vg_buf_done(&buf);
    free(t.data);
    side_close(&a);
    side_close(&b);
}
