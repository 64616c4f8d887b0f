/* Collecting what nothing holds.

   The number of a collection and the set of sessions are read in one step; objects that a session
   stored or found carry at least the number that was current when it began. So: `limit` is the
   smallest number of any session, or the next number when there is none; then the number grows.
   What is unreached and older than `limit` belongs to nobody:
   - a session that lives at the beginning stamps its objects with its number or more: >= limit;
   - one that begins later stamps them with the next number or more: >= limit;
   - one that ended before had written its version or hold, which was reached, or gave up. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/estore-bucket.h"
#include "fs/store/snaprec.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

/* A set of names, and of records still to be walked. */
struct mark {
    struct vg_estore *store;
    struct vg_map seen; /* "r<name>" or "d<name>" -> itself, owned */
    struct vg_buf todo; /* hashes of records */
    struct vg_err *err;
    uint64_t n;
};

static void mark_done(struct mark *m) {
    vg_map_for_each (s, &m->seen)
        free(s->value);
    vg_map_done(&m->seen);
    vg_buf_done(&m->todo);
}

/* 1: new. */
static int see(struct mark *m, enum vg_ekind kind, const uint8_t hash[VG_HASH]) {
    char key[66];
    key[0] = kind == VG_E_DATA ? 'd' : 'r';
    vg_cache_name(m->store->key, hash, key + 1);
    if (vg_map_get(&m->seen, key))
        return 0;
    char *own = vg_strdup(key);
    if (!own || vg_map_put(&m->seen, own, own) < 0) {
        free(own);
        return -ENOMEM;
    }
    m->n++;
    return 1;
}

static int want_rec(struct mark *m, const uint8_t hash[VG_HASH]) {
    int r = see(m, VG_E_REC, hash);
    return r > 0 ? vg_buf_append(&m->todo, hash, VG_HASH) : r;
}

static int walk_rec(struct mark *m, const uint8_t hash[VG_HASH]) {
    struct vg_buf b = {0};
    struct vg_snaprec rec;
    int r = vg_estore_get_rec(m->store, hash, &b);
    if (r == 0)
        r = vg_snaprec_open(&rec, vg_buf_data(&b), vg_buf_len(&b));
    if (r < 0) {
        char name[80];
        vg_e_path(m->store, VG_E_REC, hash, name);
        vg_err_sys(m->err, r, "folder %s of a snapshot", name);
    }
    struct vg_dirent e;
    for (size_t at = 0; r >= 0 && vg_dirrec_next(&rec.rec, &at, &e);)
        if (e.id)
            r = see(m, VG_E_DATA, e.id);
    struct vg_snapext x;
    for (size_t at = 0; r >= 0 && vg_snaprec_next_ext(&rec, &at, &x);)
        if (x.kind == VG_SNAP_CHILD)
            r = want_rec(m, x.value);
    vg_buf_done(&b);
    return r < 0 ? r : 0;
}

static int walk_all(struct mark *m) {
    int r = 0;
    while (r == 0 && vg_buf_len(&m->todo)) {
        uint8_t hash[VG_HASH];
        m->todo.tail -= VG_HASH; /* the newest first: the list stays short */
        memcpy(hash, m->todo.base + m->todo.tail, VG_HASH);
        r = walk_rec(m, hash);
    }
    return r;
}

static int root_version(void *user, const char *name, const struct vg_eversion *v) {
    (void)name;
    return want_rec(user, v->root);
}

/* Every root there is. Versions and holds come and go meanwhile; see the head. */
static int mark_roots(struct mark *m) {
    int r = vg_eref_each(m->store, root_version, m);
    if (r >= 0)
        r = vg_ehold_each(m->store, root_version, m);
    struct vg_estore *s = m->store;
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; r >= 0 && i < s->n_held; i++)
        r = want_rec(m, s->held[i]);
    pthread_mutex_unlock(&s->lock);
    return r < 0 ? r : 0;
}

/* Looks and removes in one step, so that nobody finds it in between. */
static void sweep_one(struct vg_estore *s, int dir, const char *name, uint64_t limit,
                      struct vg_egc_stat *st) {
    struct stat is;
    pthread_mutex_lock(&s->lock);
    if (fstatat(dir, name, &is, AT_SYMLINK_NOFOLLOW) == 0) {
        if ((uint64_t)is.st_mtime >= limit) {
            st->kept_young++;
        } else if (unlinkat(dir, name, 0) == 0) {
            uint64_t n = (uint64_t)is.st_size;
            s->bytes -= VG_MIN(n, s->bytes);
            s->objects -= s->objects ? 1 : 0;
            st->removed++;
            st->removed_bytes += n;
        }
    }
    pthread_mutex_unlock(&s->lock);
}

struct sweep {
    struct mark *m;
    uint64_t limit;
    struct vg_egc_stat *st;
    const char *top;
};

static int sweep_name(void *user, int dir, const char *name) {
    struct sweep *w = user;
    char key[66] = {strstr(w->top, "dat") ? 'd' : 'r'};
    memcpy(key + 1, name, 65);
    if (vg_map_get(&w->m->seen, key))
        return 0;
    if (w->m->store->bucket)
        return vg_eb_sweep(w->m->store, key[0] == 'd' ? "dat" : "rec", name, w->limit, w->st);
    sweep_one(w->m->store, dir, name, w->limit, w->st);
    return 0;
}

static int sweep(struct mark *m, uint64_t limit, struct vg_egc_stat *st) {
    static const char *const tops[] = {"dat", "rec", "up/dat", "up/rec"};
    struct sweep w = {.m = m, .limit = limit, .st = st};
    int r = 0;
    for (size_t i = 0; r == 0 && i < (m->store->bucket ? 4 : 2); i++) {
        w.top = tops[i];
        r = vg_e_each_name(m->store, w.top, sweep_name, &w);
    }
    return r;
}

/* The number must be on disk before anything carries the next one. */
static int next_gen(struct vg_estore *s, uint64_t *ret_limit) {
    char text[32];
    vg_auto_free char *path = vg_fmt("%s/gen", s->path);
    if (!path)
        return -ENOMEM;
    pthread_mutex_lock(&s->lock);
    snprintf(text, sizeof(text), "%llu\n", (unsigned long long)s->gen + 1);
    s->collect_again = s->collecting;
    int r = s->collecting ? -EBUSY : vg_write_file(path, text, strlen(text), 0600);
    if (r == 0) {
        *ret_limit = ++s->gen;
        for (struct vg_esession *e = s->sessions; e; e = e->next)
            *ret_limit = VG_MIN(*ret_limit, e->gen);
        s->collecting = true;
    }
    pthread_mutex_unlock(&s->lock);
    return r;
}

int vg_estore_gc(struct vg_estore *s, struct vg_egc_stat *ret, struct vg_err *err) {
    struct vg_egc_stat st = {0};
    struct mark m = {.store = s, .err = err};
    uint64_t limit = 0;
    int r = next_gen(s, &limit);
    if (r < 0)
        return vg_err_sys(err, r, "cannot collect what no environment needs");
    *err = VG_ERR_INIT;
    r = vg_eb_compare(s, err); /* what is only in the bucket counts, too */
    if (r == 0)
        r = mark_roots(&m);
    if (r == 0)
        r = walk_all(&m);
    if (r == 0)
        r = sweep(&m, limit, &st);
    if (r == 0)
        vg_eb_delete_swept(s);
    st.marked = m.n;
    mark_done(&m);
    pthread_mutex_lock(&s->lock);
    s->collecting = false;
    ret->again = st.again = s->collect_again;
    s->collect_again = false;
    pthread_mutex_unlock(&s->lock);
    if (r < 0 && err->msg[0])
        return vg_err_wrap(err, "nothing was collected");
    if (r < 0)
        return vg_err_sys(err, r, "cannot collect what no environment needs");
    *ret = st;
    return 0;
}

static int check_data(struct vg_estore *s, const struct vg_dirent *e, struct vg_err *err) {
    vg_auto_fd int fd = vg_estore_open_data(s, e->id);
    uint64_t leaves = vg_leaves(e->st.size);
    vg_auto_free uint8_t *leaf = vg_alloc(VG_LEAF), *hash = vg_alloc((size_t)leaves * VG_HASH);
    if (fd < 0)
        return vg_err_sys(err, fd, "content of %.*s", e->name_len, e->name);
    if (!leaf || !hash)
        return vg_err_sys(err, -ENOMEM, "cannot check %.*s", e->name_len, e->name);
    uint64_t size = 0;
    for (uint64_t i = 0; i < leaves; i++) {
        ssize_t n = vg_read_full(fd, leaf, VG_LEAF);
        if (n < 0)
            return vg_err_sys(err, (int)n, "content of %.*s", e->name_len, e->name);
        vg_leaf_hash(leaf, (size_t)n, hash + i * VG_HASH);
        size += (uint64_t)n;
    }
    uint8_t id[VG_HASH];
    vg_file_id(size, hash, leaves, id);
    if (size != e->st.size || memcmp(id, e->id, VG_HASH) != 0)
        return vg_err_sys(err, -EBADMSG, "content of %.*s", e->name_len, e->name);
    return 0;
}

static int check_rec(struct vg_estore *s, const uint8_t hash[VG_HASH], unsigned depth,
                     struct vg_err *err) {
    struct vg_buf b = {0};
    struct vg_snaprec rec;
    int r = depth > VG_SNAP_DEPTH_MAX ? -ELOOP : vg_estore_get_rec(s, hash, &b);
    if (r == 0)
        r = vg_snaprec_open(&rec, vg_buf_data(&b), vg_buf_len(&b));
    if (r < 0) {
        vg_buf_done(&b);
        return vg_err_sys(err, r, "a folder's record");
    }
    struct vg_dirent e;
    uint32_t i = 0;
    for (size_t at = 0; r == 0 && vg_dirrec_next(&rec.rec, &at, &e); i++) {
        const uint8_t *child = S_ISDIR(e.st.mode) ? vg_snaprec_child(&rec, i) : NULL;
        if (child && (r = check_rec(s, child, depth + 1, err)) < 0)
            vg_err_wrap(err, "%.*s", e.name_len, e.name);
        if (r == 0 && e.id)
            r = check_data(s, &e, err);
    }
    vg_buf_done(&b);
    return r;
}

int vg_estore_check(struct vg_estore *s, const uint8_t root[VG_HASH], struct vg_err *err) {
    return check_rec(s, root, 0, err);
}
