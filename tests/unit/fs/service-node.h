#pragma once
/* A service over a folder of its own and, at the other end of a socket pair, a node that keeps what
   it is told. One thread: turn() lets the service's loop run until something is so. */
#include "fs/client/client.h"
#include "mirror/dirrec.h"
#include "mirror/mwire.h"

#include "base/cleanup.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/util.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct bytes {
    uint8_t *p;
    size_t n, got;
};
struct node {
    int fd;
    struct vg_mw_in in;
    struct vg_buf rec;  /* pieces of the record under way */
    struct vg_map dirs; /* object to struct bytes: the last record */
    struct vg_map data; /* object to struct bytes */
    int n_dirs, n_data, n_runs, n_invals, n_all, n_notes, n_hellos;
    int n_sent, n_coming;
    uint64_t coming_length;
    int dirs_before_run;
    uint64_t inval[64], run_task, view_root[4], req;
    size_t n_views, n_all_of;
    uint64_t mark; /* to be confirmed; 0: none */
    unsigned view_id[4];
    bool traced, early, closed;
    int last_errno;
    uint64_t fail_req;
    char fail_text[512];
    size_t n_xattr;
};
struct world {
    char dir[64]; /* dir/root is served, dir/state is the service's */
    uv_loop_t loop;
    uv_timer_t tick;
    struct vg_mirror *m;
};

static int rm_one(const char *path, const struct stat *st, int type, struct FTW *f) {
    (void)st, (void)type, (void)f;
    return remove(path);
}

static void put_file(struct world *w, const char *path, const void *data, size_t n) {
    char full[300];
    snprintf(full, sizeof(full), "%s/root%s", w->dir, path);
    int fd = open(full, O_WRONLY | O_CREAT | O_TRUNC, 0755);
    cr_assert(fd >= 0 && vg_write_full(fd, data, n) == 0, "%s", full);
    close(fd);
}
static void put(struct world *w, const char *path, const char *text) {
    put_file(w, path, text, strlen(text));
}
static void put_dir(struct world *w, const char *path) {
    char full[300];
    snprintf(full, sizeof(full), "%s/root%s", w->dir, path);
    cr_assert(vg_mkdir_p(full, 0755) == 0);
}

static void service_start(struct world *w) {
    char root[80], state[80];
    struct vg_err err = VG_ERR_INIT;
    snprintf(root, sizeof(root), "%s/root", w->dir);
    snprintf(state, sizeof(state), "%s/state", w->dir);
    struct vg_mirror_conf conf = {.root = root, .home = "/home/me", .state = state, .level = -1};
    cr_assert(vg_mirror_new(&w->loop, &conf, &w->m, &err) == 0, "%s", err.msg);
}
static void on_tick(uv_timer_t *t) {
    (void)t;
}
static void world_new(struct world *w) {
    *w = (struct world){0};
    snprintf(w->dir, sizeof(w->dir), "/tmp/vg-mirror-XXXXXX");
    cr_assert(mkdtemp(w->dir));
    put_dir(w, "/home/me/project/src");
    cr_assert(uv_loop_init(&w->loop) == 0);
    uv_timer_init(&w->loop, &w->tick);
    uv_timer_start(&w->tick, on_tick, 2, 2);
}
static void world_done(struct world *w) {
    vg_mirror_free(w->m);
    uv_close((uv_handle_t *)&w->tick, NULL);
    for (int i = 0; i < 100 && uv_loop_close(&w->loop) == UV_EBUSY; i++)
        uv_run(&w->loop, UV_RUN_NOWAIT);
    nftw(w->dir, rm_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void keep(struct vg_map *map, uint64_t object, uint64_t off, const void *p, size_t n,
                 uint64_t size) {
    struct bytes *b = vg_map_get_u64(map, object);
    if (!b || (off == 0 && size != b->n)) {
        if (!b)
            b = vg_alloc(sizeof(*b));
        else
            free(b->p);
        b->p = vg_alloc(size + 1);
        b->n = size;
        b->got = 0;
        vg_map_put_u64(map, object, b);
    }
    cr_assert(off + n <= b->n);
    memcpy(b->p + off, p, n);
    b->got += n;
}

static void node_msg(struct node *n, const Vg__Mr__Msg *m) {
    if (m->body_case == VG__MR__MSG__BODY_HELLO)
        n->n_hellos++;
    if (m->body_case == VG__MR__MSG__BODY_RUN) {
        n->n_runs++;
        n->dirs_before_run = n->n_dirs;
        n->run_task = m->run->task;
        n->traced = m->run->traced;
        n->early = m->run->early;
        n->n_views = m->run->n_view;
        for (size_t i = 0; i < m->run->n_view && i < 4; i++) {
            n->view_root[i] = m->run->view[i]->root;
            n->view_id[i] = m->run->view[i]->id;
        }
    }
    if (m->body_case == VG__MR__MSG__BODY_INVAL) {
        n->n_all += m->inval->has_all && m->inval->all;
        n->n_all_of = m->inval->n_daemon;
        for (size_t i = 0; i < m->inval->n_folder; i++)
            n->inval[n->n_invals++ % 64] = m->inval->folder[i];
    }
    if (m->body_case == VG__MR__MSG__BODY_FAIL) {
        n->last_errno = (int)m->fail->errno_;
        n->fail_req = m->fail->req;
        n->n_xattr = m->fail->n_xattr;
        snprintf(n->fail_text, sizeof(n->fail_text), "%s", m->fail->text ? m->fail->text : "");
    }
    n->n_sent += m->body_case == VG__MR__MSG__BODY_SENT;
    if (m->body_case == VG__MR__MSG__BODY_COMING) {
        n->n_coming++;
        n->coming_length = m->coming->length;
    }
    n->n_notes += m->body_case == VG__MR__MSG__BODY_NOTE;
    if (m->body_case == VG__MR__MSG__BODY_MARK)
        n->mark = m->mark->number;
}

static void node_take(struct node *n) {
    uint8_t buf[65536];
    struct vg_mw_frame f;
    for (ssize_t k; (k = recv(n->fd, buf, sizeof(buf), MSG_DONTWAIT)) >= 0;) {
        if (k == 0) {
            n->closed = true;
            return;
        }
        cr_assert(vg_mw_feed(&n->in, buf, (size_t)k) == 0);
        int r;
        while ((r = vg_mw_next(&n->in, &f)) == 1) {
            if (f.kind == VG_MW_MSG)
                node_msg(n, f.msg);
            if (f.kind == VG_MW_DIR) {
                vg_buf_append(&n->rec, f.data, f.len);
                if (!(f.flags & VG_MW_MORE)) {
                    struct vg_dirrec d;
                    cr_assert(vg_dirrec_open(&d, vg_buf_data(&n->rec), vg_buf_len(&n->rec)) == 0);
                    cr_assert(d.object == f.object && d.seq == f.seq);
                    keep(&n->dirs, f.object, 0, vg_buf_data(&n->rec), vg_buf_len(&n->rec),
                         vg_buf_len(&n->rec));
                    n->n_dirs++;
                    vg_buf_clear(&n->rec);
                }
            }
            if (f.kind == VG_MW_DATA) {
                keep(&n->data, f.object, f.offset, f.data, f.len, f.size);
                n->n_data++;
            }
            vg_mw_frame_done(&f);
        }
        cr_assert(r == 0);
    }
}

/* Until `what`, for at most 40 s. */
#define turn(w, n, what)                                \
    do {                                                \
        uint64_t until_ = vg_now_usec() + 40 * VG_USEC; \
        while (!(what) && vg_now_usec() < until_) {     \
            uv_run(&(w)->loop, UV_RUN_ONCE);            \
            node_take(n);                               \
        }                                               \
        cr_assert(what, "did not happen: " #what);      \
    } while (0)

static void node_send(struct node *n, const Vg__Mr__Msg *m) {
    struct vg_buf b = {0};
    cr_assert(vg_mw_msg(&b, m) == 0);
    cr_assert(send(n->fd, vg_buf_data(&b), vg_buf_len(&b), 0) == (ssize_t)vg_buf_len(&b));
    vg_buf_done(&b);
}
static void node_hello(struct node *n, uint8_t who, bool fresh) {
    Vg__Mr__NodeHello h = VG__MR__NODE_HELLO__INIT;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    uint8_t daemon[VG_MID] = {who};
    h.has_version = h.has_daemon = h.has_fresh = h.has_next_op = true;
    h.version = 1;
    h.daemon = (ProtobufCBinaryData){VG_MID, daemon};
    h.node = (char *)"n1";
    h.fresh = fresh;
    h.next_op = 1;
    m.body_case = VG__MR__MSG__BODY_NODE_HELLO;
    m.node_hello = &h;
    node_send(n, &m);
}
static void node_marked(struct node *n) {
    Vg__Mr__Mark mark = VG__MR__MARK__INIT;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    mark.has_number = true;
    mark.number = n->mark;
    n->mark = 0;
    m.body_case = VG__MR__MSG__BODY_MARKED;
    m.marked = &mark;
    node_send(n, &m);
}
/* Asks; length 0: a folder's record. Returns the request's number. */
static uint64_t node_ask(struct node *n, uint64_t object, uint64_t off, uint64_t len, bool again) {
    Vg__Mr__Get g = VG__MR__GET__INIT;
    Vg__Mr__Range r = VG__MR__RANGE__INIT, *each = &r;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    g.has_req = g.has_object = true;
    g.req = ++n->req;
    g.has_again = g.again = again;
    g.object = object;
    r.has_offset = r.has_length = true;
    r.offset = off;
    r.length = len;
    g.n_range = len ? 1 : 0;
    g.range = &each;
    m.body_case = VG__MR__MSG__BODY_GET;
    m.get = &g;
    node_send(n, &m);
    return g.req;
}
static uint64_t node_get(struct node *n, uint64_t object, uint64_t off, uint64_t len) {
    return node_ask(n, object, off, len, false);
}
static bool node_entry(struct node *n, uint64_t folder, const char *name, struct vg_dirent *ret) {
    struct bytes *b = vg_map_get_u64(&n->dirs, folder);
    struct vg_dirrec d;
    size_t at = 0;
    if (!b)
        return false;
    cr_assert(vg_dirrec_open(&d, b->p, b->n) == 0);
    while (vg_dirrec_next(&d, &at, ret))
        if (ret->name_len == strlen(name) && memcmp(ret->name, name, ret->name_len) == 0)
            return true;
    return false;
}
static struct vg_mirror_task *begin(struct world *w, struct node *n, uint64_t task,
                                    char *const *argv, const char *cwd, const char *allow) {
    int fds[2];
    struct vg_err err = VG_ERR_INIT;
    struct vg_mirror_task *t;
    struct vg_mirror_run run = {.task = task,
                                .argv = argv,
                                .cwd = cwd,
                                .path_env = "/usr/bin",
                                .allow = &allow,
                                .n_allow = allow != NULL};
    cr_assert(vg_mirror_begin(w->m, &run, &t, &err) == 0, "%s", err.msg);
    cr_assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    *n = (struct node){.fd = fds[0]};
    cr_assert(vg_mirror_link(t, fds[1]) == 0);
    return t;
}
static void node_done(struct node *n) {
    vg_close(&n->fd);
    vg_mw_in_done(&n->in);
    vg_buf_done(&n->rec);
    struct vg_map *maps[] = {&n->dirs, &n->data};
    for (int i = 0; i < 2; i++) {
        vg_map_for_each (s, maps[i]) {
            free(((struct bytes *)s->value)->p);
            free(s->value);
        }
        vg_map_done(maps[i]);
    }
}
