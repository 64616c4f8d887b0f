/* The order of a node's operations: which number is next, what is remembered, what is acknowledged.
   See apply-int.h. */
#include "fs/client/apply-int.h"

#include "base/mem.h"
#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define ACK_CHANGES 4000 /* of one Ack: well below a frame's limit */
#define STATE_MAGIC UINT64_C(0x31706c7061677663)

struct state {
    uint64_t magic, doing, ino; /* of what an exchange moves: it must not be done twice */
};

void apply_remember(struct vg_apply *a, uint64_t doing, uint64_t ino) {
    struct state s = {STATE_MAGIC, doing, ino};
    /* Without it a restart of the service may take its own work for somebody else's: both are
       kept then. Not worth stopping for. */
    if (pwrite(a->state_fd, &s, sizeof(s), 0) != (ssize_t)sizeof(s))
        errno = 0;
}

static int open_state(struct vg_apply *a) {
    char hex[2 * VG_MID + 1];
    for (size_t i = 0; i < VG_MID; i++)
        snprintf(hex + 2 * i, 3, "%02x", a->conf.daemon[i]);
    int rc = vg_mkdir_p(a->conf.state, 0700);
    vg_auto_free char *path = vg_fmt("%s/applied-%s", a->conf.state, hex);
    if (rc < 0 || !path)
        return rc < 0 ? rc : -ENOMEM;
    a->state_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (a->state_fd < 0)
        return -errno;
    struct state s;
    if (pread(a->state_fd, &s, sizeof(s), 0) == (ssize_t)sizeof(s) && s.magic == STATE_MAGIC &&
        s.doing) {
        a->redo = s.doing;
        a->redo_ino = s.ino;
        a->done = a->closed = s.doing - 1;
        a->resumed = true;
    }
    vg_auto_free char *left = vg_fmt("%s/left-%s", a->conf.state, hex);
    if (!left)
        return -ENOMEM;
    a->left_fd = open(left, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (a->left_fd < 0)
        return -errno;
    apply_load_left(a);
    return 0;
}

int vg_apply_new(const struct vg_apply_conf *conf, struct vg_apply **ret) {
    struct vg_apply *a = vg_alloc(sizeof(*a));
    if (!a)
        return -ENOMEM;
    a->conf = *conf;
    a->state_fd = a->left_fd = a->fd = a->dir_fd = a->made_fd = -1;
    a->node = vg_strdup(conf->node ? conf->node : "the node");
    a->kept = vg_alloc(APPLY_KEPT * sizeof(struct achange));
    int rc = a->node && a->kept ? open_state(a) : -ENOMEM;
    if (rc < 0) {
        vg_apply_free(a);
        return rc;
    }
    *ret = a;
    return 0;
}

/* What was said is kept for a while: the Ack may have been lost with its link. */
static void keep_changes(struct vg_apply *a) {
    for (size_t i = 0; i < a->n_change; i++) {
        struct achange *k = &a->kept[a->n_kept++ % APPLY_KEPT];
        free(k->text);
        *k = a->change[i];
    }
    a->n_change = 0;
    vg_map_done(&a->change_at);
    a->change_at = (struct vg_map){0};
}

/* Of the operations from `resay` on, which were sent twice. */
static void say_kept_again(struct vg_apply *a) {
    uint64_t n = VG_MIN(a->n_kept, (uint64_t)APPLY_KEPT);
    for (uint64_t i = a->n_kept - n; i < a->n_kept; i++) {
        struct achange *k = &a->kept[i % APPLY_KEPT];
        struct achange *c = k->last >= a->resay ? apply_change(a, k->object) : NULL;
        if (!c)
            continue;
        /* News of what changed in a folder do not say its number: without it the node would not
           know whom a later Inval means. */
        uint64_t number = c->number ? c->number : k->number;
        if (c->op > k->last && (c->has_st || c->err)) { /* there is later news of it */
            c->number = number;
            if (k->err && !c->err) {
                c->err = k->err;
                c->text = vg_take_ptr(k->text);
            }
            continue;
        }
        free(c->text);
        *c = *k;
        c->number = k->number ? k->number : number;
        k->text = NULL;
        k->op = 0;
    }
    a->resay = 0;
}

void vg_apply_free(struct vg_apply *a) {
    if (!a)
        return;
    apply_group_close(a);
    apply_drop_dir(a);
    vg_close(&a->made_fd);
    for (size_t i = 0; i < a->n_change; i++)
        free(a->change[i].text);
    for (size_t i = 0; a->kept && i < APPLY_KEPT; i++)
        free(a->kept[i].text);
    free(a->change);
    free(a->kept);
    vg_map_done(&a->change_at);
    vg_map_for_each (s, &a->mine)
        free(s->value);
    vg_map_done(&a->mine);
    vg_map_done(&a->refused);
    for (size_t i = 0; i < a->n_views; i++) {
        vg_close(&a->views[i].fd);
        free(a->views[i].path);
    }
    free(a->views);
    vg_close(&a->state_fd);
    vg_close(&a->left_fd);
    free(a->node);
    free(a);
}

void vg_apply_from(struct vg_apply *a, uint64_t next_op) {
    a->strays = 0;
    if (next_op > a->done + 1) {
        a->done = a->closed = a->said = next_op - 1;
        apply_remember(a, next_op, 0);
    }
}

int vg_apply_allow(struct vg_apply *a, uint32_t view, struct vg_cobj *root) {
    for (size_t i = 0; i < a->n_views; i++)
        if (a->views[i].id == view)
            return a->views[i].root == root ? 0 : -EEXIST;
    char path[PATH_MAX];
    int rc = vg_cobj_path(root, path, sizeof(path));
    if (rc < 0)
        return rc;
    struct aview *v = vg_realloc(a->views, (a->n_views + 1) * sizeof(*v));
    if (!v)
        return -ENOMEM;
    a->views = v;
    v += a->n_views;
    *v = (struct aview){.id = view, .root = root, .path = vg_strdup(path)};
    if (!v->path)
        return -ENOMEM;
    v->fd = vg_cobj_open(a->conf.tree, root, O_PATH | O_DIRECTORY);
    if (v->fd < 0) {
        free(v->path);
        return v->fd;
    }
    a->n_views++;
    return 0;
}

static int perform(struct vg_apply *a, struct aop *o) {
    switch (o->op->kind) {
    case VG__MR__OP__KIND__CREATE:
    case VG__MR__OP__KIND__MKDIR:
    case VG__MR__OP__KIND__SYMLINK:
    case VG__MR__OP__KIND__MKNOD:
        return apply_make(a, o);
    case VG__MR__OP__KIND__LINK:
        return apply_link(a, o);
    case VG__MR__OP__KIND__UNLINK:
    case VG__MR__OP__KIND__RMDIR:
        return apply_unlink(a, o);
    case VG__MR__OP__KIND__RENAME:
        return apply_rename(a, o);
    case VG__MR__OP__KIND__SETATTR:
        return apply_setattr(a, o);
    case VG__MR__OP__KIND__BEGIN:
        return apply_begin(a, o);
    case VG__MR__OP__KIND__END:
        return apply_end(a, o);
    case VG__MR__OP__KIND__TRUNCATE:
        return apply_truncate(a, o);
    case VG__MR__OP__KIND__XATTR:
        return apply_xattr(a, o);
    case VG__MR__OP__KIND__FALLOCATE:
        return apply_fallocate(a, o);
    case VG__MR__OP__KIND__SYNC:
        return apply_sync(a, o);
    default:
        return -EOPNOTSUPP;
    }
}

static struct aview *view_of(struct vg_apply *a, uint32_t id) {
    for (size_t i = 0; i < a->n_views; i++)
        if (a->views[i].id == id)
            return &a->views[i];
    return NULL;
}

static bool is_making(const Vg__Mr__Op *op) {
    return op->kind == VG__MR__OP__KIND__CREATE || op->kind == VG__MR__OP__KIND__SYMLINK;
}

static void one_op(struct vg_apply *a, const Vg__Mr__Op *op, bool redo) {
    struct aop o = {.op = op, .view = view_of(a, op->view), .dir = -1, .dir2 = -1, .redo = redo};
    if (vg_map_get_u64(&a->refused, op->object)) {
        if (!is_making(op))
            return;
        vg_map_del_u64(&a->refused, op->object);
    }
    vg_ctree_actor(a->conf.tree, a->conf.daemon);
    int rc = o.view ? apply_split(a, &o) : -EACCES;
    if (rc == 0)
        rc = perform(a, &o);
    vg_ctree_actor(a->conf.tree, NULL);
    if (rc == -ESTALE)
        apply_refuse(a, &o);
    else if (rc < 0)
        apply_failed(a, &o, op->object, -rc, NULL);
    apply_unsplit(&o);
}

/* 1: it is its turn, 0: it is passed over, -EPROTO. */
static int turn(struct vg_apply *a, uint64_t op) {
    if (op == a->done + 1)
        return 1;
    if (op <= a->done) {
        a->say_again = true;
        a->resay = a->resay ? VG_MIN(a->resay, op) : op;
        return 0;
    }
    return ++a->strays > APPLY_STRAYS ? -EPROTO : 0;
}

int vg_apply_op(struct vg_apply *a, const Vg__Mr__Op *op) {
    int rc = turn(a, op->op);
    if (rc <= 0)
        return rc;
    bool in_group = a->object != 0 && op->kind == VG__MR__OP__KIND__END;
    if (!in_group && op->kind != VG__MR__OP__KIND__END) {
        apply_group_close(a);
        apply_remember(a, op->op, 0);
    }
    one_op(a, op, op->op == a->redo);
    a->done = op->op;
    if (op->kind != VG__MR__OP__KIND__BEGIN)
        a->closed = op->op;
    return 0;
}

int vg_apply_write(struct vg_apply *a, uint64_t op, uint64_t object, uint64_t offset,
                   const void *data, size_t n) {
    int rc = turn(a, op);
    if (rc <= 0)
        return rc;
    a->done = op;
    if (!a->object || a->object != object) {
        a->closed = op; /* of a file that was refused, or that nobody wants any more */
        return 0;
    }
    const uint8_t *p = data;
    while (n && a->fd >= 0 && !a->group_err) {
        ssize_t w = offset > INT64_MAX ? -1 : pwrite(a->fd, p, n, (off_t)offset);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0) {
            a->group_err = w < 0 ? errno : ENOSPC;
            break;
        }
        p += w;
        n -= (size_t)w;
        offset += (uint64_t)w;
    }
    return 0;
}

static bool put_ack(struct vg_apply *a, size_t from, size_t to, uint64_t op, struct vg_buf *out) {
    Vg__Mr__Ack ack = VG__MR__ACK__INIT;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    size_t n = to - from;
    vg_auto_free Vg__Mr__Changed *c = vg_alloc((n + 1) * sizeof(*c));
    vg_auto_free Vg__Mr__Stat *st = vg_alloc((n + 1) * sizeof(*st));
    vg_auto_free Vg__Mr__Changed **at = vg_alloc((n + 1) * sizeof(Vg__Mr__Changed *));
    if (!c || !st || !at)
        return false;
    for (size_t i = 0; i < n; i++) {
        const struct achange *ch = &a->change[from + i];
        vg__mr__changed__init(&c[i]);
        at[i] = &c[i];
        c[i].has_object = 1;
        c[i].object = ch->object;
        c[i].has_renamed_to = ch->number != 0;
        c[i].renamed_to = ch->number;
        c[i].has_errno_ = ch->err != 0;
        c[i].errno_ = ch->err;
        c[i].text = ch->text;
        if (ch->has_st) {
            vg_mw_stat_to(&st[i], &ch->st);
            c[i].stat = &st[i];
        }
    }
    ack.has_op = ack.has_seq = 1;
    ack.op = op;
    ack.seq = vg_ctree_seq(a->conf.tree);
    ack.n_changed = n;
    ack.changed = at;
    m.body_case = VG__MR__MSG__BODY_ACK;
    m.ack = &ack;
    return vg_mw_msg(out, &m) == 0;
}

static int by_op(const void *a, const void *b) {
    const struct achange *x = a, *y = b;
    return x->op < y->op ? -1 : x->op > y->op;
}

/* In several Acks, each has all that belongs to the operations it is for: what was said again is
   about the oldest. */
static void sort_changes(struct vg_apply *a) {
    qsort(a->change, a->n_change, sizeof(*a->change), by_op);
    vg_map_done(&a->change_at);
    a->change_at = (struct vg_map){0};
}

bool vg_apply_ack(struct vg_apply *a, struct vg_buf *out) {
    apply_drop_dir(a);
    if (a->closed <= a->said && !a->say_again)
        return false;
    if (a->resay)
        say_kept_again(a);
    if (a->n_change > ACK_CHANGES)
        sort_changes(a);
    size_t from = 0;
    while (a->n_change - from > ACK_CHANGES) {
        size_t to = from + ACK_CHANGES;
        while (to < a->n_change && a->change[to].op == a->change[to - 1].op)
            to++;
        if (to == a->n_change)
            break;
        if (!put_ack(a, from, to, a->change[to - 1].op, out))
            return false;
        from = to;
    }
    if (!put_ack(a, from, a->n_change, a->closed, out))
        return false;
    keep_changes(a);
    a->said = a->closed;
    a->say_again = false;
    return true;
}
