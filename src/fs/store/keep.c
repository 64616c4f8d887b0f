/* Receiving what a task changed; see the header. */
#include "fs/store/keep.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/fbuild.h"
#include "fs/store/ftree-int.h"
#include "mirror/mwire.h"

#include <errno.h>
#include <string.h>

#define PATH_MAX_KEPT 4095
#define EXPIRE_MAX 4096 /* at once; the next time sees the others */

struct vg_keepin {
    struct vg_keep_conf conf;
    struct vg_estore *store;     /* of conf */
    struct vg_ftree *base;       /* borrowed */
    struct vg_esession *session; /* of the present telling, like all below; NULL: none */
    struct vg_ftree *tree;       /* owned */
    uint64_t task, round, things, changes;
    struct vg_einto *into; /* a file whose bytes are coming */
    uint64_t number, at;
    char path[PATH_MAX_KEPT + 1];
    struct vg_mstat st;
    Vg__Mr__Keep *file; /* owned: its THING */
};

struct vg_keepin *vg_keepin_new(const struct vg_keep_conf *conf, struct vg_ftree *base) {
    struct vg_keepin *k = vg_alloc(sizeof(*k));
    if (k) {
        k->conf = *conf;
        k->store = conf->store;
        k->base = base;
    }
    return k;
}

static void file_over(struct vg_keepin *k) {
    vg_einto_free(k->into);
    k->into = NULL;
    if (k->file)
        vg__mr__keep__free_unpacked(k->file, NULL);
    k->file = NULL;
}

static void telling_over(struct vg_keepin *k) {
    file_over(k);
    vg_ftree_unref(k->tree);
    vg_esession_end(k->session);
    k->tree = NULL;
    k->session = NULL;
}

void vg_keepin_free(struct vg_keepin *k) {
    if (!k)
        return;
    telling_over(k);
    free(k);
}

/* ------------------------------------------------------------------ what was there */

/* With the base's lock held; NULL: nothing, or it is not known. */
static struct vg_fnode *base_at(struct vg_ftree *t, const char *path) {
    struct vg_fnode *n = t->root;
    while (n && *(path += strspn(path, "/"))) {
        size_t len = strcspn(path, "/");
        if (!S_ISDIR(n->st.mode) || vg_fnode_load(t, n) < 0)
            return NULL;
        n = vg_fnode_child(n, path, len);
        path += len;
    }
    return n;
}

static size_t was(const struct vg_fnode *n, char *out, size_t size) {
    out[0] = !n ? '-' : S_ISDIR(n->st.mode) ? 'd' : S_ISREG(n->st.mode) ? 'f' : 'o';
    if (out[0] == 'f' && n->has_hash && size > VG_HASH) {
        memcpy(out + 1, n->hash, VG_HASH);
        return 1 + VG_HASH;
    }
    if (n && S_ISLNK(n->st.mode) && n->target_len < size) {
        out[0] = 'l';
        memcpy(out + 1, n->name + n->name_len + 1, n->target_len);
        return 1u + n->target_len;
    }
    return 1;
}

static int say_was(struct vg_keepin *k, const char *path) {
    char text[VG_TARGET_MAX + 2];
    pthread_mutex_lock(&k->base->lock);
    size_t n = was(base_at(k->base, path), text, sizeof(text));
    pthread_mutex_unlock(&k->base->lock);
    return vg_fbuild_xattr(k->tree, path, VG_KEEP_WAS, text, n);
}

/* ------------------------------------------------------------------ things */

static int put(struct vg_keepin *k, const char *path, const struct vg_mstat *st,
               const Vg__Mr__Keep *m, const char *target, const uint8_t *id) {
    if (++k->things > VG_KEEP_THINGS_MAX)
        return -E2BIG;
    int r = vg_fbuild_put(k->tree, path, st, target, id);
    for (size_t i = 0; r == 0 && i < m->n_xattr; i++) {
        const Vg__Mr__Xattr *x = m->xattr[i];
        char name[VG_XATTR_NAME_MAX + 1];
        if (x->name.len > VG_XATTR_NAME_MAX || x->name.len < 6 ||
            memcmp(x->name.data, "user.", 5) != 0 || memchr(x->name.data, 0, x->name.len))
            return -EPROTO;
        memcpy(name, x->name.data, x->name.len);
        name[x->name.len] = '\0';
        r = vg_fbuild_xattr(k->tree, path, name, x->value.data, x->value.len);
    }
    return r == 0 ? say_was(k, path) : r;
}

static int put_gone(struct vg_keepin *k, const char *path, bool folder) {
    struct vg_mstat st = {.mode = folder ? S_IFDIR | 0700 : S_IFCHR, .nlink = 1};
    Vg__Mr__Keep none = VG__MR__KEEP__INIT;
    int r = put(k, path, &st, &none, NULL, NULL);
    return r == 0 && folder ? vg_fbuild_xattr(k->tree, path, VG_KEEP_GONE, "y", 1) : r;
}

struct names { /* what a folder of the base has, so that its lock need not be held */
    size_t n;
    struct {
        char *name; /* owned */
        bool folder;
    } * list;
};

static void names_done(struct names *s) {
    for (size_t i = 0; i < s->n; i++)
        free(s->list[i].name);
    free(s->list);
}

static int names_of(struct vg_keepin *k, const char *path, struct names *ret) {
    int r = 0;
    *ret = (struct names){0};
    pthread_mutex_lock(&k->base->lock);
    struct vg_fnode *n = base_at(k->base, path);
    if (n && S_ISDIR(n->st.mode) && vg_fnode_load(k->base, n) == 0 && n->n_child) {
        ret->list = vg_alloc(n->n_child * sizeof(*ret->list));
        r = ret->list ? 0 : -ENOMEM;
        for (; r == 0 && ret->n < n->n_child; ret->n++) {
            const struct vg_fnode *c = n->child[ret->n];
            ret->list[ret->n].folder = S_ISDIR(c->st.mode);
            if (!(ret->list[ret->n].name = vg_strndup(c->name, c->name_len)))
                r = -ENOMEM;
        }
    }
    pthread_mutex_unlock(&k->base->lock);
    return r;
}

/* All that the base has in a folder. */
static int gone_below(struct vg_keepin *k, const char *path, unsigned depth) {
    struct names s;
    int r = depth > VG_SNAP_DEPTH_MAX ? -E2BIG : names_of(k, path, &s);
    if (r < 0)
        return r;
    for (size_t i = 0; r == 0 && i < s.n; i++) {
        vg_auto_free char *p = vg_fmt("%s/%s", path, s.list[i].name);
        r = p ? put_gone(k, p, s.list[i].folder) : -ENOMEM;
        if (r == 0 && s.list[i].folder)
            r = gone_below(k, p, depth + 1);
    }
    names_done(&s);
    return r;
}

static int on_gone(struct vg_keepin *k, const char *path) {
    pthread_mutex_lock(&k->base->lock);
    struct vg_fnode *n = base_at(k->base, path);
    bool folder = n && S_ISDIR(n->st.mode);
    pthread_mutex_unlock(&k->base->lock);
    if (!n)
        return 0; /* nor was it there */
    int r = put_gone(k, path, folder);
    return r == 0 && folder ? gone_below(k, path, 0) : r;
}

static int file_bytes(struct vg_keepin *k, uint64_t off, const void *data, size_t n) {
    uint8_t id[VG_HASH];
    int r = vg_einto_write(k->into, off, data, n);
    if (r == -EINVAL)
        return -EPROTO;
    k->at = off + n;
    if (r != 1)
        return r;
    r = vg_einto_keep(k->into, id);
    if (r == 0)
        r = put(k, k->path, &k->st, k->file, NULL, id);
    file_over(k);
    return r;
}

static Vg__Mr__Keep *keep_dup(const Vg__Mr__Keep *m) {
    size_t n = vg__mr__keep__get_packed_size(m);
    vg_auto_free uint8_t *bytes = vg_alloc(n + 1);
    if (!bytes)
        return NULL;
    vg__mr__keep__pack(m, bytes);
    return vg__mr__keep__unpack(NULL, n, bytes);
}

static int on_file(struct vg_keepin *k, const Vg__Mr__Keep *m) {
    int r = (k->file = keep_dup(m)) ? vg_einto_new(k->store, k->st.size, &k->into) : -ENOMEM;
    k->number = m->number;
    k->at = 0;
    return r == 0 && k->st.size == 0 ? file_bytes(k, 0, "", 0) : r;
}

static int on_thing(struct vg_keepin *k, const Vg__Mr__Keep *m) {
    if (!m->stat)
        return -EPROTO;
    vg_mw_stat_from(&k->st, m->stat);
    if (S_ISREG(k->st.mode))
        return on_file(k, m);
    if (S_ISLNK(k->st.mode)) {
        vg_auto_free char *target = vg_strndup((char *)m->target.data, m->target.len);
        return !target                           ? -ENOMEM
               : strlen(target) != m->target.len ? -EPROTO
                                                 : put(k, k->path, &k->st, m, target, NULL);
    }
    if (!S_ISDIR(k->st.mode) && !S_ISFIFO(k->st.mode))
        return -EPROTO;
    int r = put(k, k->path, &k->st, m, NULL, NULL);
    return r == 0 && S_ISDIR(k->st.mode) && m->fresh ? gone_below(k, k->path, 0) : r;
}

/* ------------------------------------------------------------------ the telling */

static int begin(struct vg_keepin *k, const Vg__Mr__Keep *m) {
    struct vg_err err = VG_ERR_INIT;
    telling_over(k);
    k->task = m->task;
    k->round = m->round;
    k->things = k->changes = 0;
    k->session = vg_esession_begin(k->store);
    return k->session ? vg_ftree_new(k->store, NULL, &k->tree, &err) : -ENOMEM;
}

static int count(void *user, const struct vg_fitem *i) {
    struct vg_keepin *k = user;
    struct vg_change c;
    vg_change_of(i, &c);
    k->changes += vg_change_counts(i, &c);
    return 0;
}

/* An earlier attempt's changes are of no use once this one's are there. */
static int end(struct vg_keepin *k, struct vg_err *err) {
    char id[VG_ID_LEN + 1], name[sizeof(VG_KEEP_PREFIX) + VG_ID_LEN];
    struct vg_eversion v = {.created_usec = vg_wall_usec()};
    struct vg_err none = VG_ERR_INIT;
    vg_id_format(k->task, id);
    snprintf(name, sizeof(name), VG_KEEP_PREFIX "%s", id);
    snprintf(v.source, sizeof(v.source), "changes of task %s", id);
    int r = k->things ? vg_ftree_each(k->tree, count, k, err) : 0;
    if (r == 0 && k->changes)
        r = vg_ftree_seal(k->tree, &v, err);
    if (r < 0)
        return r;
    (void)vg_eref_remove(k->store, name, 0, &none);
    v.files = k->changes;
    return k->changes ? vg_eref_add(k->store, name, &v, err) : 0;
}

static int say(struct vg_keepin *k, int error, const char *text, struct vg_keepin_answer *ret) {
    *ret = (struct vg_keepin_answer){
        .task = k->task, .round = k->round, .changes = k->changes, .error = error};
    snprintf(ret->text, sizeof(ret->text), "%.199s", text);
    telling_over(k);
    return 1;
}

static int answer(struct vg_keepin *k, int r, struct vg_keepin_answer *ret) {
    if (r == 0 || r == -EPROTO)
        return r;
    return say(k, -r,
               r == -EDQUOT  ? "your quota of stored environments is used up: 'virga env rm' makes "
                               "room, and an administrator can raise it"
               : r == -E2BIG ? "it is more than a million files"
                             : strerror(-r),
               ret);
}

static bool may_change(const struct vg_keepin *k, const uint8_t *path, size_t len) {
    for (size_t i = 0; i < k->conf.n_path; i++) {
        const ProtobufCBinaryData *p = &k->conf.path[i];
        if (p->len && len >= p->len && memcmp(path, p->data, p->len) == 0 &&
            (len == p->len || path[p->len] == '/'))
            return true;
    }
    return k->conf.all;
}

/* Clean, and in a folder that the task may change. */
static int take_path(struct vg_keepin *k, const Vg__Mr__Keep *m) {
    size_t n = m->path.len;
    if (n < 2 || n > PATH_MAX_KEPT || m->path.data[0] != '/' || memchr(m->path.data, 0, n))
        return -EPROTO;
    if (!may_change(k, m->path.data, n))
        return -EPROTO;
    memcpy(k->path, m->path.data, n);
    k->path[n] = '\0';
    for (const char *p = k->path; *p;) {
        size_t len = strcspn(++p, "/");
        if (len == 0 || (p[0] == '.' && (len == 1 || (len == 2 && p[1] == '.'))))
            return -EPROTO;
        p += len;
    }
    return 0;
}

int vg_keepin_msg(struct vg_keepin *k, const Vg__Mr__Keep *m, struct vg_keepin_answer *ret) {
    struct vg_err err = VG_ERR_INIT;
    if (!m->task || !m->round)
        return -EPROTO;
    if (m->kind == VG__MR__KEEP__KIND__BEGIN)
        return answer(k, begin(k, m), ret);
    bool mine = k->tree && m->round == k->round && m->task == k->task;
    if (!mine && m->kind == VG__MR__KEEP__KIND__END) {
        *ret = (struct vg_keepin_answer){.task = m->task, .round = m->round, .error = ESTALE};
        return 1;
    }
    if (!mine)
        return 0; /* of a telling that was begun on another link, or was given up */
    if (k->into)
        return -EPROTO; /* bytes are missing */
    if (m->kind == VG__MR__KEEP__KIND__END) {
        int r = end(k, &err);
        return say(k, -r, err.msg, ret);
    }
    int r = take_path(k, m);
    if (r == 0)
        r = m->kind == VG__MR__KEEP__KIND__GONE    ? on_gone(k, k->path)
            : m->kind == VG__MR__KEEP__KIND__THING ? on_thing(k, m)
                                                   : -EPROTO;
    return answer(k, r == -EINVAL || r == -ENOTDIR || r == -ELOOP ? -EPROTO : r, ret);
}

int vg_keepin_bytes(struct vg_keepin *k, uint64_t number, uint64_t off, const void *data, size_t n,
                    struct vg_keepin_answer *ret) {
    if (!k->into || number != k->number)
        return 0; /* of a telling that was given up */
    if (off != k->at)
        return -EPROTO;
    return answer(k, file_bytes(k, off, data, n), ret);
}

/* ------------------------------------------------------------------ reading */

static const struct vg_fxattr *mark(const struct vg_fitem *i, const char *name) {
    size_t n = strlen(name);
    for (const struct vg_fxattr *x = i->xattrs; x; x = x->next)
        if (x->name_len == n && memcmp(x->bytes, name, n) == 0)
            return x;
    return NULL;
}

void vg_change_of(const struct vg_fitem *i, struct vg_change *ret) {
    const struct vg_fxattr *x = mark(i, VG_KEEP_WAS);
    *ret = (struct vg_change){.was = '?'};
    ret->gone = S_ISCHR(i->st.mode) || mark(i, VG_KEEP_GONE);
    if (!x || !x->value_len)
        return;
    const char *value = x->bytes + x->name_len;
    ret->was = strchr("-dofl", value[0]) && value[0] ? value[0] : '?';
    if (ret->was == 'f' && x->value_len == 1 + VG_HASH)
        ret->id = (const uint8_t *)value + 1;
    if (ret->was == 'l') {
        ret->target = value + 1;
        ret->target_len = x->value_len - 1;
    }
}

bool vg_change_counts(const struct vg_fitem *i, const struct vg_change *c) {
    return !S_ISDIR(i->st.mode) || c->gone || (c->was != 'd' && c->was != '?');
}

/* ------------------------------------------------------------------ time */

struct expiring {
    uint64_t before;
    size_t n;
    char *name[EXPIRE_MAX]; /* owned */
};

static int is_old(void *user, const char *name, const struct vg_eversion *v) {
    struct expiring *e = user;
    if (strncmp(name, VG_KEEP_PREFIX, strlen(VG_KEEP_PREFIX)) == 0 && v->created_usec < e->before &&
        e->n < EXPIRE_MAX && (e->name[e->n] = vg_strdup(name)))
        e->n++;
    return 0;
}

size_t vg_keep_expire(struct vg_estore *s, uint64_t older_than_usec) {
    vg_auto_free struct expiring *e = vg_alloc(sizeof(*e));
    size_t removed = 0;
    uint64_t now = vg_wall_usec();
    if (!e || now < older_than_usec)
        return 0;
    e->before = now - older_than_usec;
    vg_eref_each(s, is_old, e);
    for (size_t i = 0; i < e->n; i++) {
        struct vg_err err = VG_ERR_INIT;
        removed += vg_eref_remove(s, e->name[i], 0, &err) == 0;
        free(e->name[i]);
    }
    return removed;
}
