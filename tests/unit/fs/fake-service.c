#include "fake-service.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "fs/client/memo.h"
#include "fs/client/tree.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/xattr.h>
#include <unistd.h>

struct fake_link {
    struct fake *f;
    int fd;
    pthread_t thread;
    struct vg_mw_in in;
    pthread_mutex_t sending; /* frames must not mix */
};

void fake_init(struct fake *f, const char *root, const char *epoch) {
    *f = (struct fake){0};
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    memcpy(f->machine, "fake machine 123", VG_MID);
    fake_epoch(f, root, epoch);
}

void fake_done(struct fake *f) {
    vg_ctree_free(f->tree);
    vg_mpolicy_free(f->policy);
}

void fake_epoch(struct fake *f, const char *root, const char *epoch) {
    pthread_mutex_lock(&f->lock);
    if (f->tree)
        fake_done(f);
    cr_assert_eq(vg_mpolicy_new("/root", &f->policy), 0);
    cr_assert_eq(vg_ctree_new(root, f->policy, f->machine, &f->tree), 0);
    memset(f->epoch, 0, VG_MID);
    memcpy(f->epoch, epoch, strlen(epoch));
    pthread_mutex_unlock(&f->lock);
}

static void put(struct fake_link *l, struct vg_buf *b) {
    pthread_mutex_lock(&l->sending);
    while (vg_buf_len(b)) {
        ssize_t n = send(l->fd, vg_buf_data(b), vg_buf_len(b), MSG_NOSIGNAL);
        if (n <= 0)
            break; /* cut: nobody is there to hear it */
        vg_buf_consume(b, (size_t)n);
    }
    pthread_mutex_unlock(&l->sending);
    vg_buf_done(b);
}

static void put_msg(struct fake_link *l, const Vg__Mr__Msg *m) {
    struct vg_buf b = {0};
    cr_assert_eq(vg_mw_msg(&b, m), 0);
    put(l, &b);
}

static void put_fail(struct fake_link *l, uint64_t req, uint64_t object, int err,
                     const char *text) {
    Vg__Mr__Fail fail = VG__MR__FAIL__INIT;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    fail.has_req = fail.has_object = fail.has_errno_ = true;
    fail.req = req;
    fail.object = object;
    fail.errno_ = (uint32_t)err;
    fail.text = (char *)text;
    m.body_case = VG__MR__MSG__BODY_FAIL;
    m.fail = &fail;
    put_msg(l, &m);
}

static void put_dir(struct fake_link *l, uint64_t req, struct vg_cobj *o) {
    struct vg_buf rec = {0}, out = {0};
    uint64_t object = vg_cobj_number(o);
    int r = vg_ctree_record(l->f->tree, o, NULL, &rec);
    if (r < 0) {
        put_fail(l, req, object, -r, "cannot be listed");
    } else {
        cr_assert_eq(vg_mw_dir(&out, req, object, 1, vg_buf_data(&rec), vg_buf_len(&rec), 1), 0);
        put(l, &out);
    }
    vg_buf_done(&rec);
}

/* As the service does: two writes within one tick of the kernel's clock leave the same times, and
   what is read after the tick of the last one cannot be overtaken by another that looks the same.
 */
static void let_tick_pass(const struct stat *st) {
    struct timespec now;
    for (;;) {
        clock_gettime(CLOCK_REALTIME_COARSE, &now);
        if (now.tv_sec > st->st_ctim.tv_sec ||
            (now.tv_sec == st->st_ctim.tv_sec && now.tv_nsec > st->st_ctim.tv_nsec))
            return;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static void put_data(struct fake_link *l, uint64_t req, struct vg_cobj *o, uint64_t off,
                     uint64_t len) {
    uint64_t object = vg_cobj_number(o);
    vg_auto_fd int fd = vg_cobj_open(l->f->tree, o, O_RDONLY);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0) {
        put_fail(l, req, object, fd < 0 ? -fd : errno, "cannot be read");
        return;
    }
    let_tick_pass(&st);
    uint8_t *leaf = malloc(VG_LEAF);
    uint64_t size = (uint64_t)st.st_size;
    for (uint64_t at = off / VG_LEAF * VG_LEAF; at < off + len && at < size; at += VG_LEAF) {
        struct vg_buf out = {0};
        size_t n = VG_MIN(size - at, (uint64_t)VG_LEAF);
        cr_assert_eq(pread(fd, leaf, n, (off_t)at), (ssize_t)n);
        cr_assert_eq(vg_mw_data(&out, req, object, at, size, leaf, n, 1), 0);
        put(l, &out);
    }
    free(leaf);
}

static void put_xattrs(struct fake_link *l, uint64_t req, struct vg_cobj *o) {
    uint8_t value[64];
    char path[64];
    vg_auto_fd int fd = vg_cobj_open(l->f->tree, o, O_RDONLY);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    ssize_t n = getxattr(path, "user.colour", value, sizeof(value));
    Vg__Mr__Xattr x = VG__MR__XATTR__INIT, *list[] = {&x};
    Vg__Mr__Fail fail = VG__MR__FAIL__INIT;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    x.has_name = x.has_value = true;
    x.name = (ProtobufCBinaryData){11, (uint8_t *)"user.colour"};
    x.value = (ProtobufCBinaryData){n > 0 ? (size_t)n : 0, value};
    fail.has_req = fail.has_object = true;
    fail.req = req;
    fail.object = vg_cobj_number(o);
    fail.n_xattr = n > 0;
    fail.xattr = list;
    m.body_case = VG__MR__MSG__BODY_FAIL;
    m.fail = &fail;
    put_msg(l, &m);
}

static void on_get(struct fake_link *l, const Vg__Mr__Get *g) {
    struct fake *f = l->f;
    if (f->mute || g->hurry) /* it answers in order anyway */
        return;
    struct vg_cobj *o = vg_ctree_get(f->tree, g->object);
    f->dirs += !g->n_range && !g->xattrs;
    f->datas += g->n_range > 0;
    f->xattrs += g->xattrs;
    if (!o)
        put_fail(l, g->req, g->object, ENOENT, "unknown");
    else if (g->xattrs)
        put_xattrs(l, g->req, o);
    else if (!g->n_range)
        put_dir(l, g->req, o);
    else if (f->deny)
        put_fail(l, g->req, g->object, f->deny, "refused by the policy; --allow lets it through");
    else
        put_data(l, g->req, o, g->range[0]->offset, g->range[0]->length);
}

static void on_msg(struct fake_link *l, const Vg__Mr__Msg *m) {
    struct fake *f = l->f;
    pthread_mutex_lock(&f->lock);
    if (m->body_case == VG__MR__MSG__BODY_GET)
        on_get(l, m->get);
    if (m->body_case == VG__MR__MSG__BODY_SKIP)
        f->skipped += (unsigned)m->skip->n_object;
    if (m->body_case == VG__MR__MSG__BODY_TRACE) {
        f->traces++;
        f->trace_items = m->trace->n_used;
        f->trace_whole = m->trace->whole;
    }
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

static void *work(void *arg) {
    struct fake_link *l = arg;
    char buf[65536];
    for (ssize_t n; (n = recv(l->fd, buf, sizeof(buf), 0)) > 0;) {
        struct vg_mw_frame f;
        cr_assert_eq(vg_mw_feed(&l->in, buf, (size_t)n), 0);
        while (vg_mw_next(&l->in, &f) > 0) {
            if (f.kind == VG_MW_MSG)
                on_msg(l, f.msg);
            vg_mw_frame_done(&f);
        }
    }
    return NULL;
}

struct fake_link *fake_open(struct fake *f, int *ret_fd) {
    struct fake_link *l = calloc(1, sizeof(*l));
    int fds[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    l->f = f;
    pthread_mutex_init(&l->sending, NULL);
    l->fd = fds[1];
    *ret_fd = fds[0];
    Vg__Mr__Hello h = VG__MR__HELLO__INIT;
    Vg__Mr__Msg msg = VG__MR__MSG__INIT;
    h.has_version = h.has_machine = h.has_epoch = h.has_root = true;
    h.version = 1;
    h.machine = (ProtobufCBinaryData){VG_MID, f->machine};
    h.epoch = (ProtobufCBinaryData){VG_MID, f->epoch};
    h.root = VG_OBJ_ROOT;
    h.host = (char *)"laptop";
    msg.body_case = VG__MR__MSG__BODY_HELLO;
    msg.hello = &h;
    put_msg(l, &msg);
    cr_assert_eq(pthread_create(&l->thread, NULL, work, l), 0);
    return l;
}

struct fake_link *fake_connect(struct fake *f, struct vg_machine *m, uint64_t task) {
    int fd;
    struct fake_link *l = fake_open(f, &fd);
    cr_assert_eq(vg_machine_link(m, fd, task), 0);
    return l;
}

void fake_cut(struct fake_link *l) {
    shutdown(l->fd, SHUT_RDWR);
    pthread_join(l->thread, NULL);
    close(l->fd);
    vg_mw_in_done(&l->in);
    free(l);
}

void fake_run(struct fake_link *l, uint64_t task, bool strict) {
    Vg__Mr__Run run = VG__MR__RUN__INIT;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    run.has_task = run.has_strict = true;
    run.task = task;
    run.strict = strict;
    m.body_case = VG__MR__MSG__BODY_RUN;
    m.run = &run;
    put_msg(l, &m);
}

void fake_push_dir(struct fake_link *l, const char *path) {
    pthread_mutex_lock(&l->f->lock);
    put_dir(l, 0, vg_ctree_walk(l->f->tree, path));
    pthread_mutex_unlock(&l->f->lock);
}

void fake_push_file(struct fake_link *l, const char *path) {
    pthread_mutex_lock(&l->f->lock);
    put_data(l, 0, vg_ctree_walk(l->f->tree, path), 0, UINT64_MAX / 2);
    pthread_mutex_unlock(&l->f->lock);
}

void fake_push_nested(struct fake_link *l, uint64_t object, uint64_t inner) {
    struct vg_buf rec = {0}, out = {0};
    struct vg_mstat st = {.mode = S_IFDIR | 0755, .nlink = 2, .ino = object};
    struct vg_dirent d = {.object = inner, .st = st, .name = "d", .name_len = 1};
    cr_assert_eq(vg_dirrec_begin(&rec, object, 1, &st), 0);
    cr_assert_eq(vg_dirrec_add(&rec, &d), 0);
    cr_assert_eq(vg_dirrec_end(&rec), 0);
    cr_assert_eq(vg_mw_dir(&out, 0, object, 1, vg_buf_data(&rec), vg_buf_len(&rec), 0), 0);
    vg_buf_done(&rec);
    put(l, &out);
}

void fake_inval(struct fake_link *l, const char *path) {
    pthread_mutex_lock(&l->f->lock);
    uint64_t object = vg_cobj_number(vg_ctree_walk(l->f->tree, path));
    uint64_t seq = vg_ctree_seq(l->f->tree) + 1; /* the next record is not older */
    pthread_mutex_unlock(&l->f->lock);
    Vg__Mr__Inval inval = VG__MR__INVAL__INIT;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    inval.has_seq = true;
    inval.seq = seq;
    inval.n_folder = 1;
    inval.folder = &object;
    m.body_case = VG__MR__MSG__BODY_INVAL;
    m.inval = &inval;
    put_msg(l, &m);
}

void fake_hold(struct fake *f, const char *folder, const char *file, struct vg_buf *out) {
    struct vg_buf rec = {0};
    struct stat st;
    struct vg_mstat now;
    uint8_t text[4096];
    pthread_mutex_lock(&f->lock);
    struct vg_cobj *dir = vg_ctree_walk(f->tree, folder), *o = vg_ctree_walk(f->tree, file);
    uint64_t seq = vg_ctree_seq(f->tree) + 1;
    cr_assert_eq(vg_ctree_record(f->tree, dir, NULL, &rec), 0);
    cr_assert_eq(
        vg_mw_dir(out, 0, vg_cobj_number(dir), seq, vg_buf_data(&rec), vg_buf_len(&rec), 0), 0);
    vg_auto_fd int fd = vg_cobj_open(f->tree, o, O_RDONLY);
    cr_assert(fd >= 0 && fstat(fd, &st) == 0 && (size_t)st.st_size <= sizeof(text));
    let_tick_pass(&st);
    cr_assert_eq(read(fd, text, sizeof(text)), st.st_size);
    vg_mstat_from(&now, &st);
    cr_assert_eq(vg_mw_data_of(out, 0, vg_cobj_number(o), 0, &now, text, (size_t)st.st_size, 0), 0);
    pthread_mutex_unlock(&f->lock);
    vg_buf_done(&rec);
}

void fake_send(struct fake_link *l, struct vg_buf *frames) {
    put(l, frames);
}
