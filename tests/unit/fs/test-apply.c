/* A node's operations on the client's folders: the order, what is told about them, what a service
   that died makes good, and what a node that means ill can reach. */
#include "fs/client/apply-int.h"

#include "base/buf.h"
#include "base/util.h"
#include "mirror/policy.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <ftw.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#define P(name) in(name)
#define NEW(n) (VG_OBJ_NEW | (n))

static char dir[64]; /* dir/root/p is the project, dir/root/out is not */
static struct vg_mpolicy *policy;
static struct vg_ctree *tree;
static struct vg_cobj *project;
static struct vg_apply *a;
static uint64_t last; /* operation */

static const char *in(const char *name) {
    static char path[4][400];
    static unsigned turn;
    char *out = path[turn++ % 4];
    snprintf(out, sizeof(path[0]), "%s/root/p/%s", dir, name);
    return out;
}

static void make_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    cr_assert(fd >= 0 && vg_write_full(fd, text, strlen(text)) == 0, "%s", path);
    close(fd);
}

static void begin_service(void) {
    char root[80], state[80];
    uint8_t machine[VG_MID] = {7};
    snprintf(root, sizeof(root), "%s/root", dir);
    snprintf(state, sizeof(state), "%s/state", dir);
    cr_assert(vg_mpolicy_new("/home/me", &policy) == 0);
    cr_assert(vg_ctree_new(root, policy, machine, &tree) == 0);
    project = vg_ctree_view(tree, "/p");
    cr_assert(project);
    struct vg_apply_conf conf = {.tree = tree, .daemon = {9}, .node = "n", .state = state};
    cr_assert(vg_apply_new(&conf, &a) == 0);
    cr_assert(vg_apply_allow(a, vg_cobj_view_id(project), project) == 0);
}

static void end_service(void) {
    vg_apply_free(a);
    vg_ctree_free(tree);
    vg_mpolicy_free(policy);
}

static void another_life(void) {
    end_service();
    begin_service();
}

static void setup(void) {
    char path[120];
    snprintf(dir, sizeof(dir), "/tmp/vg-apply-XXXXXX");
    cr_assert(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/root/p", dir);
    cr_assert(vg_mkdir_p(path, 0755) == 0);
    snprintf(path, sizeof(path), "%s/root/out", dir);
    cr_assert(vg_mkdir_p(path, 0755) == 0);
    snprintf(path, sizeof(path), "%s/root/out/file", dir);
    make_file(path, "not the node's");
    last = 0;
    begin_service();
}

static int rm_one(const char *path, const struct stat *st, int type, struct FTW *f) {
    (void)st, (void)type, (void)f;
    return remove(path);
}

static void teardown(void) {
    end_service();
    nftw(dir, rm_one, 16, FTW_DEPTH | FTW_PHYS);
}
TestSuite(apply, .init = setup, .fini = teardown, .timeout = 60);

/* ---- operations ---- */

struct what {
    Vg__Mr__Op__Kind kind;
    uint64_t object, parent;
    const char *name, *name2, *target;
    size_t name_len; /* 0: strlen */
    uint32_t mode, valid, flags;
    uint64_t size, offset, length;
    const uint8_t *before;
    const char *xattr;
    uint32_t view; /* 0: the project's */
};

static ProtobufCBinaryData bytes(const char *s, size_t n) {
    return (ProtobufCBinaryData){n ? n : strlen(s), (uint8_t *)s};
}

static int send_as(uint64_t number, struct what w) {
    Vg__Mr__Op op = VG__MR__OP__INIT;
    Vg__Mr__Stat st = VG__MR__STAT__INIT;
    Vg__Mr__Xattr x = VG__MR__XATTR__INIT;
    op.has_op = op.has_kind = op.has_object = op.has_view = true;
    op.op = number;
    op.kind = w.kind;
    op.object = w.object;
    op.has_parent = w.parent != 0;
    op.parent = w.parent;
    op.view = w.view ? w.view : vg_cobj_view_id(project);
    op.has_name = w.name != NULL;
    if (w.name)
        op.name = bytes(w.name, w.name_len);
    op.has_name2 = w.name2 != NULL;
    if (w.name2)
        op.name2 = bytes(w.name2, 0);
    op.has_target = w.target != NULL;
    if (w.target)
        op.target = bytes(w.target, 0);
    st.has_mode = st.has_size = true;
    st.mode = w.mode;
    st.size = w.size;
    op.stat = &st;
    op.has_valid = op.has_flags = op.has_offset = op.has_length = true;
    op.valid = w.valid;
    op.flags = w.flags;
    op.offset = w.offset;
    op.length = w.length;
    op.has_before = w.before != NULL;
    op.before = (ProtobufCBinaryData){VG_HASH, (uint8_t *)w.before};
    if (w.xattr) {
        x.has_name = x.has_value = true;
        x.name = bytes(w.xattr, 0);
        x.value = bytes("v", 0);
        op.xattr = &x;
    }
    return vg_apply_op(a, &op);
}

static void op(struct what w) {
    cr_assert_eq(send_as(++last, w), 0);
}
#define OP(...) op((struct what){__VA_ARGS__})

/* The Ack that is sent now; NULL: none. */
static Vg__Mr__Msg *ack(void) {
    static struct vg_mw_in buf;
    struct vg_buf out = {0};
    struct vg_mw_frame f;
    if (!vg_apply_ack(a, &out))
        return NULL;
    vg_mw_in_done(&buf);
    buf = (struct vg_mw_in){0};
    cr_assert(vg_mw_feed(&buf, vg_buf_data(&out), vg_buf_len(&out)) == 0);
    vg_buf_done(&out);
    cr_assert(vg_mw_next(&buf, &f) == 1 && f.msg->body_case == VG__MR__MSG__BODY_ACK);
    return f.msg;
}

static const Vg__Mr__Changed *told(const Vg__Mr__Msg *m, uint64_t object) {
    for (size_t i = 0; m && i < m->ack->n_changed; i++)
        if (m->ack->changed[i]->object == object)
            return m->ack->changed[i];
    return NULL;
}

static void done(Vg__Mr__Msg *m) {
    vg__mr__msg__free_unpacked(m, NULL);
}

/* The Ack has no failure. */
static void all_well(void) {
    Vg__Mr__Msg *m = ack();
    for (size_t i = 0; m && i < m->ack->n_changed; i++)
        cr_assert_eq(m->ack->changed[i]->errno_, 0, "%s", m->ack->changed[i]->text);
    if (m)
        done(m);
}

static uint32_t mode_of(const char *name) {
    struct stat st;
    cr_assert(lstat(P(name), &st) == 0, "%s", name);
    return st.st_mode & 07777;
}

/* ---- what records claim ---- */

struct scan {
    struct vg_cobj *folder;
    uint64_t seq;
    struct vg_scan scan;
};

static struct scan look(const char *name) {
    struct scan s = {.folder = vg_ctree_walk_in(tree, project, name)};
    cr_assert(s.folder);
    s.seq = vg_ctree_scan_begins(tree);
    cr_assert(vg_scan_folder(open(P(name), O_RDONLY | O_DIRECTORY), false, &s.scan) == 0);
    return s;
}

static uint64_t claimed(struct scan *s) {
    struct vg_buf rec = {0};
    struct vg_dirrec r;
    cr_assert(vg_ctree_take(tree, s->folder, &s->scan, s->seq, NULL, &rec) == 0);
    cr_assert(vg_dirrec_open(&r, vg_buf_data(&rec), vg_buf_len(&rec)) == 0);
    uint64_t seq = r.seq;
    vg_buf_done(&rec);
    vg_scan_done(&s->scan);
    return seq;
}

/* A node takes a pushed record for newer than an acknowledgement when its sequence is. A worker
   looked at these folders before the operation was done, and nothing in them changed by name. */
Test(apply, a_record_claims_no_operation_that_its_scan_may_have_missed) {
    struct what ops[] = {
        {.kind = VG__MR__OP__KIND__SETATTR, .name = "a/x", .mode = 0600, .valid = VG_MSET_MODE},
        {.kind = VG__MR__OP__KIND__SETATTR, .name = "c", .mode = 0700, .valid = VG_MSET_MODE},
        {.kind = VG__MR__OP__KIND__MKDIR, .name = "c/d/new", .mode = 0755},
        {.kind = VG__MR__OP__KIND__UNLINK, .name = "a/x"},
    };
    for (const char *const *d = (const char *const[]){"a", "b", "c", "c/d", NULL}; *d; d++)
        cr_assert(mkdir(P(*d), 0755) == 0);
    OP(.kind = VG__MR__OP__KIND__CREATE, .object = NEW(1), .name = "a/x", .mode = 0644);
    OP(.kind = VG__MR__OP__KIND__LINK, .object = NEW(1), .name = "a/x", .name2 = "c/x");
    OP(.kind = VG__MR__OP__KIND__LINK, .object = NEW(1), .name = "a/x", .name2 = "b/x");
    all_well();
    for (size_t i = 0; i < VG_COUNT(ops); i++) {
        struct scan before = look("c");
        ops[i].object = i == 0 || i == 3 ? NEW(1) : NEW(2 + i);
        op(ops[i]);
        Vg__Mr__Msg *m = ack();
        cr_assert(m && m->ack->op == last);
        struct scan after = look("c");
        cr_assert_leq(claimed(&before), m->ack->seq, "operation %zu", i);
        cr_assert_gt(claimed(&after), m->ack->seq, "operation %zu", i);
        done(m);
    }
}

/* ---- acknowledgements that were lost ---- */

Test(apply, what_a_lost_acknowledgement_said_is_said_again) {
    OP(.kind = VG__MR__OP__KIND__CREATE, .object = NEW(1), .name = "f", .mode = 0644);
    OP(.kind = VG__MR__OP__KIND__CREATE, .object = NEW(2), .name = "g", .mode = 0644);
    OP(.kind = VG__MR__OP__KIND__SETATTR, .object = NEW(1), .name = "f", .mode = 0600,
       .valid = VG_MSET_MODE);
    Vg__Mr__Msg *m = ack();
    cr_assert_eq(m->ack->op, 3);
    done(m);
    /* The node heard of the first two by an earlier word, and sends the third again. */
    cr_assert_eq(send_as(3, (struct what){.kind = VG__MR__OP__KIND__SETATTR,
                                          .object = NEW(1),
                                          .name = "f",
                                          .mode = 0600,
                                          .valid = VG_MSET_MODE}),
                 0);
    m = ack();
    const Vg__Mr__Changed *c = told(m, NEW(1));
    cr_assert(c && c->stat && (c->stat->mode & 07777) == 0600);
    cr_assert_not(told(m, NEW(2)));
    done(m);
}

Test(apply, a_failure_that_was_said_in_vain_is_said_again_with_later_news) {
    OP(.kind = VG__MR__OP__KIND__CREATE, .object = NEW(1), .name = "f", .mode = 0644);
    OP(.kind = VG__MR__OP__KIND__XATTR, .object = NEW(1), .name = "f", .xattr = "trusted.no");
    Vg__Mr__Msg *m = ack();
    cr_assert(told(m, NEW(1))->errno_);
    done(m);
    cr_assert_eq(send_as(2, (struct what){.kind = VG__MR__OP__KIND__XATTR,
                                          .object = NEW(1),
                                          .name = "f",
                                          .xattr = "trusted.no"}),
                 0);
    OP(.kind = VG__MR__OP__KIND__SETATTR, .object = NEW(1), .name = "f", .mode = 0600,
       .valid = VG_MSET_MODE);
    m = ack();
    const Vg__Mr__Changed *c = told(m, NEW(1));
    cr_assert(c && c->errno_ && c->stat && (c->stat->mode & 07777) == 0600);
    done(m);
}

/* Without it the node would not know what is meant when the folder changes. */
Test(apply, a_folders_number_that_was_said_in_vain_is_said_again_with_later_news) {
    const struct what d = {
        .kind = VG__MR__OP__KIND__MKDIR, .object = NEW(1), .name = "d", .mode = 0755};
    const struct what f = {.kind = VG__MR__OP__KIND__CREATE,
                           .object = NEW(2),
                           .parent = NEW(1),
                           .name = "d/f",
                           .mode = 0644};
    op(d);
    Vg__Mr__Msg *m = ack();
    uint64_t number = told(m, NEW(1))->renamed_to;
    cr_assert(number);
    done(m);
    cr_assert_eq(send_as(1, d), 0);
    op(f);
    m = ack();
    cr_assert(told(m, NEW(1)) && told(m, NEW(1))->stat);
    cr_assert_eq(told(m, NEW(1))->renamed_to, number);
    done(m);
    /* The same when the later news were said in vain, too. */
    OP(.kind = VG__MR__OP__KIND__CREATE, .object = NEW(3), .parent = NEW(1), .name = "d/g",
       .mode = 0644);
    m = ack();
    cr_assert(told(m, NEW(1)) && !told(m, NEW(1))->renamed_to);
    done(m);
    cr_assert_eq(send_as(1, d), 0);
    m = ack();
    cr_assert_eq(told(m, NEW(1))->renamed_to, number);
    done(m);
}

/* ---- a service that died in the middle of an operation ---- */

Test(apply, a_folder_that_was_made_before_a_death_gets_its_mode) {
    struct what w = {.kind = VG__MR__OP__KIND__MKDIR, .object = NEW(1), .name = "d", .mode = 0777};
    apply_remember(a, 1, 0);
    cr_assert(mkdir(P("d"), 0700) == 0);
    another_life();
    op(w);
    all_well();
    cr_assert_eq(mode_of("d"), 0777);
}

Test(apply, a_name_that_was_moved_before_a_death_is_told_and_goes_on) {
    OP(.kind = VG__MR__OP__KIND__CREATE, .object = NEW(1), .name = "f", .mode = 0644);
    apply_remember(a, 2, 0);
    cr_assert(rename(P("f"), P("g")) == 0);
    another_life();
    OP(.kind = VG__MR__OP__KIND__RENAME, .object = NEW(1), .name = "f", .name2 = "g",
       .mode = S_IFREG);
    uint8_t old[VG_HASH] = {1}; /* of before the move */
    OP(.kind = VG__MR__OP__KIND__TRUNCATE, .object = NEW(1), .name = "g", .size = 5, .before = old);
    all_well();
    struct stat st;
    cr_assert(stat(P("g"), &st) == 0 && st.st_size == 5);
}

Test(apply, a_file_that_lost_a_name_before_a_death_is_still_ours) {
    struct stat st;
    OP(.kind = VG__MR__OP__KIND__CREATE, .object = NEW(1), .name = "f", .mode = 0644);
    OP(.kind = VG__MR__OP__KIND__LINK, .object = NEW(1), .name = "f", .name2 = "g");
    cr_assert(stat(P("f"), &st) == 0);
    apply_remember(a, 3, st.st_ino);
    cr_assert(unlink(P("g")) == 0);
    another_life();
    OP(.kind = VG__MR__OP__KIND__UNLINK, .object = NEW(1), .name = "g");
    uint8_t old[VG_HASH] = {1};
    OP(.kind = VG__MR__OP__KIND__TRUNCATE, .object = NEW(1), .name = "f", .size = 5, .before = old);
    all_well();
    cr_assert(stat(P("f"), &st) == 0 && st.st_size == 5);
}

/* ---- nodes that mean ill ---- */

static uint64_t sum;
static int add_one(const char *path, const struct stat *st, int type, struct FTW *f) {
    (void)f;
    uint64_t v[] = {st->st_ino,
                    st->st_mode,
                    st->st_size,
                    (uint64_t)type,
                    st->st_nlink,
                    (uint64_t)st->st_mtim.tv_nsec,
                    (uint64_t)st->st_ctim.tv_nsec};
    for (size_t i = 0; i < VG_COUNT(v); i++)
        sum = (sum ^ v[i]) * UINT64_C(0x100000001b3);
    for (; *path; path++)
        sum = (sum ^ (uint8_t)*path) * UINT64_C(0x100000001b3);
    return 0;
}

/* Everything beside the project, with times. */
static uint64_t outside(void) {
    char path[100];
    struct stat st;
    snprintf(path, sizeof(path), "%s/root/out", dir);
    sum = UINT64_C(0xcbf29ce484222325);
    nftw(path, add_one, 16, FTW_PHYS);
    snprintf(path, sizeof(path), "%s/root", dir);
    cr_assert(stat(path, &st) == 0);
    return sum ^ (uint64_t)st.st_nlink ^ (uint64_t)st.st_mtim.tv_nsec;
}

static const char *const bad_names[] = {
    "..",
    "../x",
    "../out/file",
    "a/../../out/file",
    "/out/file",
    "/etc/x",
    ".",
    "./x",
    "a/./b",
    "a//b",
    "a/",
    "link/x",
    "link/file",
    "to",
    "link",
    "a/link/file",
    "a/..",
    "link/../x",
    "",
};

static void traps(void) {
    char to[120];
    snprintf(to, sizeof(to), "%s/root/out", dir);
    cr_assert(mkdir(P("a"), 0755) == 0 && symlink(to, P("link")) == 0);
    cr_assert(symlink("../../out", P("a/link")) == 0 && symlink("../out/file", P("to")) == 0);
    make_file(P("a/b"), "b");
}

Test(apply, nothing_beside_the_project_is_reached_by_any_name) {
    traps();
    uint64_t before = outside();
    for (size_t i = 0; i < VG_COUNT(bad_names); i++)
        for (int kind = 0; kind < 18; kind++)
            for (int other = 0; other < 2; other++) {
                struct what w = {.kind = (Vg__Mr__Op__Kind)kind,
                                 .object = NEW(100 * i + (uint64_t)kind + 1),
                                 .name = other ? "a/b" : bad_names[i],
                                 .name2 = other ? bad_names[i] : "a/made",
                                 .target = "/etc/passwd",
                                 .mode = 0777,
                                 .valid = VG_MSET_MODE | VG_MSET_MTIME,
                                 .size = 3,
                                 .length = 4096,
                                 .xattr = "user.x"};
                if (other && kind != VG__MR__OP__KIND__LINK && kind != VG__MR__OP__KIND__RENAME)
                    continue;
                op(w);
                if (kind == VG__MR__OP__KIND__BEGIN)
                    cr_assert_eq(vg_apply_write(a, ++last, w.object, 0, "ill", 3), 0);
            }
    Vg__Mr__Msg *m = ack();
    cr_assert_eq(m->ack->op, last);
    done(m);
    cr_assert_eq(outside(), before);
}

Test(apply, a_link_that_takes_a_folders_place_is_not_followed) {
    char to[120];
    OP(.kind = VG__MR__OP__KIND__MKDIR, .object = NEW(1), .name = "d", .mode = 0755);
    OP(.kind = VG__MR__OP__KIND__CREATE, .object = NEW(2), .name = "d/file", .mode = 0644);
    uint64_t before = outside();
    all_well(); /* what was open is let go of */
    snprintf(to, sizeof(to), "%s/root/out", dir);
    cr_assert(unlink(P("d/file")) == 0 && rmdir(P("d")) == 0 && symlink(to, P("d")) == 0);
    OP(.kind = VG__MR__OP__KIND__TRUNCATE, .object = NEW(2), .name = "d/file", .size = 1);
    OP(.kind = VG__MR__OP__KIND__CREATE, .object = NEW(3), .name = "d/new", .mode = 0644);
    OP(.kind = VG__MR__OP__KIND__UNLINK, .object = NEW(2), .name = "d/file");
    Vg__Mr__Msg *m = ack();
    cr_assert(told(m, NEW(3)) && told(m, NEW(3))->errno_);
    done(m);
    cr_assert_eq(outside(), before);
}

Test(apply, absurd_sizes_are_refused_and_the_file_stays) {
    OP(.kind = VG__MR__OP__KIND__CREATE, .object = NEW(1), .name = "f", .mode = 0644);
    all_well();
    const struct what ops[] = {
        {.kind = VG__MR__OP__KIND__TRUNCATE, .size = UINT64_MAX},
        {.kind = VG__MR__OP__KIND__TRUNCATE, .size = UINT64_C(1) << 63},
        {.kind = VG__MR__OP__KIND__FALLOCATE, .offset = UINT64_MAX, .length = 2},
        {.kind = VG__MR__OP__KIND__FALLOCATE, .offset = 1, .length = INT64_MAX},
        {.kind = VG__MR__OP__KIND__FALLOCATE, .length = 0},
        {.kind = VG__MR__OP__KIND__FALLOCATE, .length = 1, .flags = 0x8000},
        {.kind = VG__MR__OP__KIND__MKNOD, .mode = S_IFCHR | 0666},
    };
    for (size_t i = 0; i < VG_COUNT(ops); i++) {
        struct what w = ops[i];
        w.object = NEW(i + 10);
        w.name = w.kind == VG__MR__OP__KIND__MKNOD ? "dev" : "f";
        op(w);
        Vg__Mr__Msg *m = ack();
        cr_assert(told(m, w.object) && told(m, w.object)->errno_, "operation %zu", i);
        done(m);
    }
    OP(.kind = VG__MR__OP__KIND__BEGIN, .object = NEW(1), .name = "f");
    cr_assert_eq(vg_apply_write(a, ++last, NEW(1), UINT64_MAX - 1, "ill", 3), 0);
    OP(.kind = VG__MR__OP__KIND__END, .object = NEW(1), .name = "f");
    Vg__Mr__Msg *m = ack();
    cr_assert(told(m, NEW(1)) && told(m, NEW(1))->errno_);
    done(m);
    struct stat st;
    cr_assert(stat(P("f"), &st) == 0 && st.st_size == 0);
    cr_assert(access(P("dev"), F_OK) < 0);
}

Test(apply, numbers_out_of_order_do_nothing_and_too_many_of_them_end_the_link) {
    struct what f = {.kind = VG__MR__OP__KIND__CREATE, .object = NEW(1), .name = "f", .mode = 0644};
    cr_assert_eq(send_as(2, f), 0);
    cr_assert_eq(send_as(UINT64_MAX, f), 0);
    cr_assert(access(P("f"), F_OK) < 0);
    op(f);
    cr_assert(unlink(P("f")) == 0);
    cr_assert_eq(send_as(1, f), 0); /* once is enough */
    cr_assert_eq(send_as(0, f), 0);
    cr_assert(access(P("f"), F_OK) < 0);
    int r = 0;
    for (unsigned i = 0; r == 0 && i < 2 * APPLY_STRAYS; i++)
        r = vg_apply_write(a, 1000 + i, NEW(1), 0, "x", 1);
    cr_assert_eq(r, -EPROTO);
}

Test(apply, writes_and_ends_without_a_beginning_touch_nothing) {
    make_file(P("f"), "mine");
    cr_assert_eq(vg_apply_write(a, ++last, NEW(1), 0, "ill", 3), 0);
    OP(.kind = VG__MR__OP__KIND__END, .object = NEW(1), .name = "f");
    OP(.kind = VG__MR__OP__KIND__BEGIN, .object = NEW(1), .name = "f"); /* refused: not ours */
    cr_assert_eq(vg_apply_write(a, ++last, NEW(1), 0, "ill", 3), 0);
    OP(.kind = VG__MR__OP__KIND__END, .object = NEW(1), .name = "f");
    OP(.kind = VG__MR__OP__KIND__TRUNCATE, .object = NEW(2), .name = "f", .view = 77);
    char got[8] = "";
    int fd = open(P("f"), O_RDONLY);
    cr_assert(fd >= 0 && read(fd, got, sizeof(got)) == 4);
    close(fd);
    cr_assert_arr_eq(got, "mine", 4);
}

static uint32_t next(uint64_t *x, uint32_t n) {
    *x = *x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*x >> 33) % n;
}

/* Whatever is said, in whatever order, with lives in between: it stays in the project. */
Test(apply, random_operations_stay_in_the_project) {
    static const char *const names[] = {"a",  "b",      "a/b", "a/c", "a/b/c", "link", "link/x",
                                        "to", "a/link", "f",   "g",   "a/g",   "../x", "link/file"};
    uint64_t x = 5;
    traps();
    uint64_t before = outside();
    for (int i = 0; i < 20000; i++) {
        struct what w = {.kind = (Vg__Mr__Op__Kind)next(&x, 17),
                         .object = NEW(next(&x, 12)),
                         .name = names[next(&x, VG_COUNT(names))],
                         .name2 = next(&x, 2) ? names[next(&x, VG_COUNT(names))] : NULL,
                         .target = next(&x, 2) ? "../out" : NULL,
                         .mode = next(&x, 2) ? next(&x, 1u << 16) : 0755,
                         .valid = next(&x, 256),
                         .flags = next(&x, 4) ? 0 : next(&x, 32),
                         .size = next(&x, 5) ? next(&x, 100000) : UINT64_C(1) << next(&x, 64),
                         .offset = next(&x, 100000),
                         .length = next(&x, 100000),
                         .xattr = next(&x, 2) ? "user.one" : NULL};
        w.size = VG_MIN(w.size, UINT64_C(1) << 32 | (w.size & UINT64_C(1) << 63));
        uint64_t number = next(&x, 20) ? ++last : next(&x, 3) ? last : last + 5;
        cr_assert_eq(send_as(number, w), 0);
        if (next(&x, 3) == 0)
            cr_assert_eq(vg_apply_write(a, ++last, w.object, w.offset, "some bytes", 10), 0);
        if (next(&x, 50) == 0 || i % 5000 == 4999) {
            Vg__Mr__Msg *m = ack();
            if (m)
                done(m);
        }
        if (i % 5000 == 4999) {
            another_life();
            vg_apply_from(a, last + 1);
        }
    }
    cr_assert_eq(outside(), before);
}
