/* Links against a service made of a socket pair: demands are asked once, asked again after a
   break, forgotten with the service that could answer them. */
#include "fs/node/link.h"

#include "base/cleanup.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct node {
    struct vg_links *links;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int hellos, fresh, runs, dirs, fails, ups, downs, resends, acks, ended;
    uint64_t dir_req, dir_object, dir_entries, data_bytes;
    char last[64];
};
struct peer { /* a service at the other end of one link */
    int fd;
    struct vg_mw_in in;
};

#define COUNT(n, what)                         \
    do {                                       \
        pthread_mutex_lock(&(n)->lock);        \
        what;                                  \
        pthread_cond_broadcast(&(n)->changed); \
        pthread_mutex_unlock(&(n)->lock);      \
    } while (0)

static void on_hello(void *user, const Vg__Mr__Hello *m, bool same) {
    struct node *n = user;
    (void)m;
    COUNT(n, (n->hellos++, n->fresh += !same));
}
static void on_run(void *user, const Vg__Mr__Run *m) {
    struct node *n = user;
    (void)m;
    COUNT(n, n->runs++);
}
static void on_dir(void *user, uint64_t req, const struct vg_dirrec *rec) {
    struct node *n = user;
    COUNT(n, (n->dirs++, n->dir_req = req, n->dir_object = rec->object, n->dir_entries = rec->n));
}
static bool on_data(void *user, uint64_t req, uint64_t object, uint64_t offset, uint64_t size,
                    uint32_t tag, const void *data, size_t len) {
    struct node *n = user;
    (void)req, (void)object, (void)offset, (void)size, (void)tag, (void)data;
    COUNT(n, n->data_bytes += len);
    return true;
}
static void on_ended(void *user, uint64_t object) {
    struct node *n = user;
    (void)object;
    COUNT(n, n->ended++);
}
static void on_fail(void *user, const Vg__Mr__Fail *m) {
    struct node *n = user;
    (void)m;
    COUNT(n, n->fails++);
}
static void on_state(void *user, bool up) {
    struct node *n = user;
    COUNT(n, (up ? n->ups++ : n->downs++));
}
static void on_resend(void *user) {
    struct node *n = user;
    COUNT(n, n->resends++);
}

static void setup(struct node *n) {
    static const struct vg_link_ops ops = {.hello = on_hello,
                                           .run = on_run,
                                           .dir = on_dir,
                                           .data = on_data,
                                           .ended = on_ended,
                                           .fail = on_fail,
                                           .state = on_state,
                                           .resend = on_resend};
    static const uint8_t daemon[VG_MID] = "the daemon";
    *n = (struct node){0};
    pthread_mutex_init(&n->lock, NULL);
    pthread_cond_init(&n->changed, NULL);
    cr_assert_eq(vg_links_new(&ops, n, daemon, "node-1", &n->links), 0);
}

#define AWAIT(n, cond)                                    \
    do {                                                  \
        pthread_mutex_lock(&(n)->lock);                   \
        while (!(cond))                                   \
            pthread_cond_wait(&(n)->changed, &(n)->lock); \
        pthread_mutex_unlock(&(n)->lock);                 \
    } while (0)

static struct peer connect_peer(struct node *n) {
    int fds[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    cr_assert_eq(vg_links_add(n->links, fds[0], 7), 0);
    return (struct peer){.fd = fds[1]};
}

static void send_buf(struct peer *p, struct vg_buf *b) {
    cr_assert_eq(send(p->fd, vg_buf_data(b), vg_buf_len(b), MSG_NOSIGNAL), (ssize_t)vg_buf_len(b));
    vg_buf_done(b);
}

static void send_msg(struct peer *p, const Vg__Mr__Msg *m) {
    struct vg_buf b = {0};
    cr_assert_eq(vg_mw_msg(&b, m), 0);
    send_buf(p, &b);
}

static void say_hello(struct peer *p, const char *epoch) {
    uint8_t machine[VG_MID] = "machine", e[VG_MID] = {0};
    memcpy(e, epoch, strlen(epoch));
    Vg__Mr__Hello h = VG__MR__HELLO__INIT;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    h.has_version = h.has_machine = h.has_epoch = h.has_root = true;
    h.version = 1;
    h.machine = (ProtobufCBinaryData){VG_MID, machine};
    h.epoch = (ProtobufCBinaryData){VG_MID, e};
    h.root = VG_OBJ_ROOT;
    h.host = (char *)"laptop";
    m.body_case = VG__MR__MSG__BODY_HELLO;
    m.hello = &h;
    send_msg(p, &m);
}

static void send_record(struct peer *p, uint64_t req, uint64_t object, unsigned entries) {
    struct vg_buf rec = {0}, out = {0};
    struct vg_mstat st = {.mode = S_IFDIR | 0755};
    cr_assert_eq(vg_dirrec_begin(&rec, object, 1, &st), 0);
    for (unsigned i = 0; i < entries; i++) {
        char name[200];
        memset(name, 'n', sizeof(name));
        int len = snprintf(name, sizeof(name), "%08u", i);
        name[len] = 'n';
        struct vg_dirent e = {.object = 100 + i, .name = name, .name_len = sizeof(name)};
        e.st.mode = S_IFREG | 0644;
        cr_assert_eq(vg_dirrec_add(&rec, &e), 0);
    }
    cr_assert_eq(vg_dirrec_end(&rec), 0);
    cr_assert_eq(vg_mw_dir(&out, req, object, 1, vg_buf_data(&rec), vg_buf_len(&rec), 0), 0);
    vg_buf_done(&rec);
    send_buf(p, &out);
}

/* The next frame from the node; NULL when the link is closed. */
static Vg__Mr__Msg *next_msg(struct peer *p, struct vg_mw_frame *f) {
    for (;;) {
        int r = vg_mw_next(&p->in, f);
        cr_assert_geq(r, 0);
        if (r > 0)
            return f->msg;
        char buf[4096];
        ssize_t n = recv(p->fd, buf, sizeof(buf), 0);
        if (n <= 0)
            return NULL;
        cr_assert_eq(vg_mw_feed(&p->in, buf, (size_t)n), 0);
    }
}

static uint64_t expect_get(struct peer *p, uint64_t object) {
    struct vg_mw_frame f;
    Vg__Mr__Msg *m = next_msg(p, &f);
    cr_assert(m && m->body_case == VG__MR__MSG__BODY_GET);
    cr_assert_eq(m->get->object, object);
    uint64_t req = m->get->req;
    vg_mw_frame_done(&f);
    return req;
}

static void expect_hello(struct peer *p, bool fresh) {
    struct vg_mw_frame f;
    Vg__Mr__Msg *m = next_msg(p, &f);
    cr_assert(m && m->body_case == VG__MR__MSG__BODY_NODE_HELLO);
    cr_assert_eq(m->node_hello->fresh, fresh);
    cr_assert_str_eq(m->node_hello->node, "node-1");
    vg_mw_frame_done(&f);
}

static void expect_silence(struct peer *p) {
    struct pollfd pfd = {.fd = p->fd, .events = POLLIN};
    cr_assert_eq(vg_buf_len(&p->in.buf), 0);
    cr_assert_eq(poll(&pfd, 1, 0), 0);
}

static void peer_done(struct peer *p) {
    close(p->fd);
    vg_mw_in_done(&p->in);
}

Test(link, folder_is_asked_for_once_and_told_to_the_owner, .timeout = 60) {
    struct node n;
    setup(&n);
    struct peer p = connect_peer(&n);
    say_hello(&p, "one");
    expect_hello(&p, true);
    AWAIT(&n, n.ups == 1);
    uint64_t req = vg_links_get_dir(n.links, 5);
    cr_assert_eq(vg_links_get_dir(n.links, 5), req);
    cr_assert_eq(expect_get(&p, 5), req);
    expect_silence(&p);
    send_record(&p, req, 5, 3);
    AWAIT(&n, n.dirs == 1);
    cr_assert_eq(n.dir_req, req);
    cr_assert_eq(n.dir_entries, 3);
    cr_assert_neq(vg_links_get_dir(n.links, 5), req, "it was answered: this is another demand");
    struct vg_links_stat st;
    vg_links_stats(n.links, &st);
    cr_assert_eq(st.demands, 2);
    cr_assert_eq(st.pushed, 0);
    vg_links_free(n.links);
    peer_done(&p);
}

Test(link, record_in_pieces_is_put_together, .timeout = 60) {
    struct node n;
    setup(&n);
    struct peer p = connect_peer(&n);
    int big = 8 << 20;
    setsockopt(p.fd, SOL_SOCKET, SO_SNDBUFFORCE, &big, sizeof(big));
    say_hello(&p, "one");
    send_record(&p, 0, 9, 8000);
    AWAIT(&n, n.dirs == 1);
    cr_assert_eq(n.dir_entries, 8000);
    cr_assert_eq(n.dir_object, 9);
    vg_links_free(n.links);
    peer_done(&p);
}

Test(link, unanswered_demand_moves_to_another_link, .timeout = 60) {
    struct node n;
    setup(&n);
    struct peer a = connect_peer(&n);
    say_hello(&a, "one");
    expect_hello(&a, true);
    AWAIT(&n, n.ups == 1);
    uint64_t req = vg_links_get_data(n.links, 5, 0, 1 << 20, 0);
    cr_assert_eq(expect_get(&a, 5), req);
    struct peer b = connect_peer(&n);
    say_hello(&b, "one");
    expect_hello(&b, false);
    peer_done(&a);
    cr_assert_eq(expect_get(&b, 5), req);
    AWAIT(&n, n.resends == 2);
    cr_assert_eq(n.downs, 0, "one link was always up");
    vg_links_free(n.links);
    peer_done(&b);
}

Test(link, demand_without_a_link_waits_for_one, .timeout = 60) {
    struct node n;
    setup(&n);
    cr_assert_not(vg_links_up(n.links));
    uint64_t req = vg_links_get_dir(n.links, 5);
    struct peer a = connect_peer(&n);
    say_hello(&a, "one");
    expect_hello(&a, true);
    peer_done(&a);
    AWAIT(&n, n.downs == 1);
    /* That service was the first one, so the demand that was older than it is gone. */
    uint64_t again = vg_links_get_dir(n.links, 5);
    cr_assert_neq(again, req);
    struct peer b = connect_peer(&n);
    say_hello(&b, "one");
    expect_hello(&b, false);
    cr_assert_eq(expect_get(&b, 5), again);
    AWAIT(&n, n.ups == 2);
    cr_assert(vg_links_up(n.links));
    vg_links_free(n.links);
    peer_done(&b);
}

Test(link, another_service_forgets_demands_and_drops_old_links, .timeout = 60) {
    struct node n;
    setup(&n);
    struct peer a = connect_peer(&n);
    say_hello(&a, "one");
    expect_hello(&a, true);
    AWAIT(&n, n.ups == 1);
    expect_get((vg_links_get_dir(n.links, 5), &a), 5);
    struct peer b = connect_peer(&n);
    say_hello(&b, "two");
    expect_hello(&b, true);
    struct vg_mw_frame f;
    cr_assert_null(next_msg(&a, &f), "the old link is closed");
    expect_silence(&b);
    AWAIT(&n, n.fresh == 2);
    vg_links_free(n.links);
    peer_done(&a);
    peer_done(&b);
}

Test(link, content_ends_a_demand_when_all_of_it_came, .timeout = 60) {
    struct node n;
    setup(&n);
    struct peer p = connect_peer(&n);
    static uint8_t leaf[VG_LEAF];
    say_hello(&p, "one");
    expect_hello(&p, true);
    AWAIT(&n, n.ups == 1);
    uint64_t size = VG_LEAF + 10;
    uint64_t req = vg_links_get_data(n.links, 5, 0, 4 << 20, 0);
    expect_get(&p, 5);
    struct vg_buf b = {0};
    cr_assert_eq(vg_mw_data(&b, req, 5, 0, size, leaf, VG_LEAF, 1), 0);
    send_buf(&p, &b);
    AWAIT(&n, n.data_bytes == VG_LEAF);
    cr_assert_eq(vg_links_get_data(n.links, 5, VG_LEAF, 10, 0), req, "still under way");
    b = (struct vg_buf){0};
    cr_assert_eq(vg_mw_data(&b, req, 5, VG_LEAF, size, leaf, 10, 1), 0);
    send_buf(&p, &b);
    send_record(&p, 0, 6, 0); /* comes after: the demand is over when it is there */
    AWAIT(&n, n.dirs == 1);
    cr_assert_neq(vg_links_get_data(n.links, 5, VG_LEAF, 10, 0), req);
    vg_links_free(n.links);
    peer_done(&p);
}

/* The next message: a Get of object 5 with one range, or one that hurries. */
static void expect_range(struct peer *p, uint64_t req, uint64_t off, uint64_t len) {
    struct vg_mw_frame f;
    Vg__Mr__Msg *m = next_msg(p, &f);
    cr_assert(m && m->body_case == VG__MR__MSG__BODY_GET && m->get->object == 5);
    cr_assert_eq(m->get->req, req);
    cr_assert_eq(m->get->hurry, len == 0);
    cr_assert_eq(m->get->n_range, len ? 1 : 0);
    if (len) {
        cr_assert_eq(m->get->range[0]->offset, off);
        cr_assert_eq(m->get->range[0]->length, len);
    }
    vg_mw_frame_done(&f);
}

Test(link, what_is_on_its_way_is_hurried_but_not_asked_for_again, .timeout = 60) {
    struct node n;
    setup(&n);
    struct peer p = connect_peer(&n);
    say_hello(&p, "one");
    expect_hello(&p, true);
    AWAIT(&n, n.ups == 1);
    uint64_t ahead = vg_links_get_data(n.links, 5, 0, 4 * VG_LEAF, 1);
    expect_range(&p, ahead, 0, 4 * VG_LEAF);
    cr_assert_eq(vg_links_get_data(n.links, 5, VG_LEAF, VG_LEAF, 0), ahead);
    expect_range(&p, ahead, 0, 0);
    cr_assert_eq(vg_links_get_data(n.links, 5, 0, VG_LEAF, 0), ahead);
    expect_silence(&p);
    uint64_t rest = vg_links_get_data(n.links, 5, 3 * VG_LEAF, 5 * VG_LEAF, 0);
    cr_assert_neq(rest, ahead);
    expect_range(&p, rest, 4 * VG_LEAF, 4 * VG_LEAF);
    cr_assert_eq(vg_links_get_data(n.links, 5, 2 * VG_LEAF, 6 * VG_LEAF, 1), rest);
    expect_silence(&p);
    vg_links_free(n.links);
    peer_done(&p);
}

Test(link, garbage_drops_the_link_and_nothing_else, .timeout = 60) {
    struct node n;
    setup(&n);
    const char *const bad[] = {"\xff\xff\xff\xff rubbish that is no frame", "\0\0\0\0\x7f\0\0\0",
                               "\0\0\0\0\x01\0\0\0"};
    for (size_t i = 0; i < VG_COUNT(bad); i++) {
        struct peer p = connect_peer(&n);
        struct vg_mw_frame f;
        say_hello(&p, "one");
        expect_hello(&p, !i);
        AWAIT(&n, n.ups == (int)i + 1);
        uint8_t bytes[8];
        memcpy(bytes, bad[i], 8);
        cr_assert_eq(send(p.fd, bytes, 8, 0), 8);
        if (i == 2) /* an empty message is no error: close it ourselves */
            shutdown(p.fd, SHUT_WR);
        cr_assert_null(next_msg(&p, &f));
        AWAIT(&n, n.downs == (int)i + 1);
        peer_done(&p);
    }
    struct peer p = connect_peer(&n);
    struct vg_mw_frame f;
    send_record(&p, 0, 9, 1); /* before Hello */
    cr_assert_null(next_msg(&p, &f));
    cr_assert_eq(n.dirs, 0);
    peer_done(&p);
    vg_links_free(n.links);
}

static void send_leaf(struct peer *p, uint64_t req, uint64_t leaf, uint64_t leaves) {
    static uint8_t bytes[VG_LEAF];
    struct vg_buf b = {0};
    cr_assert_eq(vg_mw_data(&b, req, 5, leaf * VG_LEAF, leaves * VG_LEAF, bytes, sizeof(bytes), 1),
                 0);
    send_buf(p, &b);
}

static void send_sent(struct peer *p, uint64_t req, uint64_t leaf) {
    Vg__Mr__Sent s = VG__MR__SENT__INIT;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    s.has_req = s.has_object = s.has_offset = s.has_length = true;
    s.req = req;
    s.object = 5;
    s.offset = leaf * VG_LEAF;
    s.length = VG_LEAF;
    m.body_case = VG__MR__MSG__BODY_SENT;
    m.sent = &s;
    send_msg(p, &m);
}

static void send_coming(struct peer *p, uint64_t leaf, uint64_t leaves) {
    Vg__Mr__Coming c = VG__MR__COMING__INIT;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    c.has_object = c.has_offset = c.has_length = true;
    c.object = 5;
    c.offset = leaf * VG_LEAF;
    c.length = leaves * VG_LEAF;
    m.body_case = VG__MR__MSG__BODY_COMING;
    m.coming = &c;
    send_msg(p, &m);
}

Test(link, what_was_sent_and_did_not_fit_is_asked_for_again, .timeout = 60) {
    struct node n;
    setup(&n);
    struct peer p = connect_peer(&n);
    say_hello(&p, "one");
    expect_hello(&p, true);
    AWAIT(&n, n.ups == 1);
    uint64_t req = vg_links_get_data(n.links, 5, 0, 3 * VG_LEAF, 0);
    expect_range(&p, req, 0, 3 * VG_LEAF);
    send_leaf(&p, 0, 0, 3);
    send_leaf(&p, 0, 0, 3); /* twice the same is one */
    AWAIT(&n, n.data_bytes == 2 * VG_LEAF);
    send_sent(&p, req, 0);
    send_sent(&p, req, 1); /* this one never came */
    send_sent(&p, req + 1, 1);
    send_sent(&p, req, 1u << 20);
    struct vg_mw_frame f;
    Vg__Mr__Msg *m = next_msg(&p, &f);
    cr_assert(m && m->body_case == VG__MR__MSG__BODY_GET && m->get->again);
    cr_assert_eq(m->get->req, req);
    cr_assert_eq(m->get->range[0]->offset, VG_LEAF);
    cr_assert_eq(m->get->range[0]->length, VG_LEAF);
    vg_mw_frame_done(&f);
    send_leaf(&p, req, 1, 3);
    send_leaf(&p, req, 2, 3);
    AWAIT(&n, n.data_bytes == 4 * VG_LEAF);
    send_record(&p, 0, 6, 0);
    AWAIT(&n, n.dirs == 1);
    cr_assert_neq(vg_links_get_data(n.links, 5, 0, 1, 0), req, "it was over");
    vg_links_free(n.links);
    peer_done(&p);
}

Test(link, who_reads_along_with_a_push_does_not_ask, .timeout = 60) {
    struct node n;
    setup(&n);
    struct peer p = connect_peer(&n);
    say_hello(&p, "one");
    expect_hello(&p, true);
    send_coming(&p, 0, 1000);
    send_leaf(&p, 0, 0, 1000);
    send_leaf(&p, 0, 2, 1000); /* workers overtake each other */
    send_record(&p, 0, 6, 0);
    AWAIT(&n, n.dirs == 1);
    cr_assert_eq(vg_links_get_data(n.links, 5, VG_LEAF, 16 * VG_LEAF, 0), 0);
    cr_assert_eq(vg_links_get_data(n.links, 5, 17 * VG_LEAF, 16 * VG_LEAF, 1), 0);
    expect_silence(&p);
    uint64_t far = vg_links_get_data(n.links, 5, 500 * VG_LEAF, VG_LEAF, 0);
    expect_range(&p, far, 500 * VG_LEAF, VG_LEAF);
    uint64_t lost = vg_links_get_data(n.links, 5, 2 * VG_LEAF, 1, 0);
    expect_range(&p, lost, 2 * VG_LEAF, 1);
    send_coming(&p, 0, 0);
    AWAIT(&n, n.ended == 1);
    uint64_t rest = vg_links_get_data(n.links, 5, VG_LEAF, VG_LEAF, 0);
    expect_range(&p, rest, VG_LEAF, VG_LEAF);
    vg_links_free(n.links);
    peer_done(&p);
}

Test(link, a_push_ends_with_its_link, .timeout = 60) {
    struct node n;
    setup(&n);
    struct peer p = connect_peer(&n);
    say_hello(&p, "one");
    expect_hello(&p, true);
    for (uint64_t i = 0; i < 100; i++) /* more than are remembered */
        send_coming(&p, i * 10, 10);
    send_record(&p, 0, 6, 0);
    AWAIT(&n, n.dirs == 1);
    cr_assert_eq(vg_links_get_data(n.links, 5, 0, VG_LEAF, 0), 0);
    peer_done(&p);
    AWAIT(&n, n.ended == 1 && n.downs == 1);
    cr_assert_neq(vg_links_get_data(n.links, 5, 0, VG_LEAF, 0), 0);
    vg_links_free(n.links);
}
