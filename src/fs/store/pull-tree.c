/* What comes over a puller's link, put into the tree. With the tree's lock held. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "fs/store/pull-int.h"

#include <stdlib.h>
#include <string.h>

#define ORPHAN_BYTES_MAX (128u << 20)
#define CHANGES_MAX 8            /* of one file while it is being read */
#define AROUND_FOLDER (8u << 20) /* bytes of the files in it: a Python's own modules are 5 MB */
#define AROUND_BYTES (64u << 20)
#define AROUND_FOLDERS 4000u
#define WIDER_FOLDER (128u << 10) /* of folders one step further away: small packages, settings */
#define WIDER_BYTES (32u << 20)

void vg_pull_settle(struct vg_pull *p, struct vg_fnode *n, enum vg_fnode_state state, int error) {
    n->state = state;
    n->error = error;
    if (n->wanted) {
        n->wanted = false;
        p->open--;
    }
    vg_list_remove(&n->todo);
    pthread_cond_broadcast(&p->t->changed);
}

void vg_pull_want(struct vg_pull *p, struct vg_fnode *n) {
    if (n->wanted || n->state == VG_F_HERE || n->state == VG_F_NEVER ||
        (p->conf->names && S_ISREG(n->st.mode)))
        return;
    n->wanted = true;
    p->open++;
    if (n->state == VG_F_UNKNOWN)
        vg_list_push_back(S_ISDIR(n->st.mode) ? &p->dirs : &p->files, &n->todo);
}

static void take_all(struct vg_pull *p, struct vg_fnode *n) {
    n->take = true;
    if (!S_ISDIR(n->st.mode) || n->state != VG_F_HERE) {
        vg_pull_want(p, n);
        return;
    }
    for (uint32_t i = 0; i < n->n_child; i++)
        if (!n->child[i]->take)
            take_all(p, n->child[i]);
}

static void mark_path(struct vg_pull *p, const char *path) {
    struct vg_fnode *n = p->t->root;
    while (*path == '/')
        path++;
    while (*path) {
        if (n->state != VG_F_HERE) {
            vg_pull_want(p, n);
            return;
        }
        size_t len = strcspn(path, "/");
        n = S_ISDIR(n->st.mode) ? vg_fnode_child(n, path, len) : NULL;
        if (!n || n->take)
            return;
        for (path += len; *path == '/';)
            path++;
    }
    take_all(p, n);
}

void vg_pull_mark(struct vg_pull *p) {
    vg_pull_want(p, p->t->root);
    for (size_t i = 0; i < p->n_path; i++)
        mark_path(p, p->path[i]);
}

/* Is it on the way to, or below, something wanted? */
static bool on_a_path(struct vg_pull *p, struct vg_fnode *folder, const struct vg_dirent *e) {
    char path[4096];
    if (folder->take)
        return true;
    if (vg_fnode_path(folder, path, sizeof(path)) < 0)
        return false;
    size_t n = strcmp(path, "/") == 0 ? 0 : strlen(path);
    if (n + 1 + e->name_len >= sizeof(path))
        return false;
    path[n++] = '/';
    memcpy(path + n, e->name, e->name_len);
    n += e->name_len;
    for (size_t i = 0; i < p->n_path; i++) {
        const char *w = p->path[i];
        if (strcmp(w, "/") == 0 || (strncmp(w, path, n) == 0 && (w[n] == '/' || w[n] == '\0')))
            return true;
    }
    return false;
}

/* The root of a project has its number from the view, whatever the entry says. */
static void find_view(struct vg_pull *p, struct vg_fnode *c) {
    char path[4096];
    if (vg_fnode_path(c, path, sizeof(path)) < 0)
        return;
    for (size_t i = 0; i < p->n_view; i++)
        if (strcmp(p->view[i].path, path) == 0)
            c->up = p->view[i].up;
}

static void describe(struct vg_pull *p, struct vg_fnode *c, const struct vg_dirent *e) {
    struct vg_estore *store = p->t->store;
    c->up = e->object;
    if (e->flags & VG_DE_OTHER)
        find_view(p, c);
    c->flags &= (uint8_t)~VG_DE_OTHER;
    bool folder = S_ISDIR(c->st.mode), file = S_ISREG(c->st.mode);
    if (folder && e->flags & VG_DE_EMPTY)
        c->state = VG_F_HERE;
    if (!folder && !file)
        c->state = VG_F_HERE;
    if (file && e->flags & (VG_DE_DENIED | VG_DE_SECRET)) {
        c->state = VG_F_NEVER;
        c->error = EACCES;
        c->flags = (uint8_t)((c->flags | VG_DE_DENIED) & ~VG_DE_SECRET);
    } else if (file && e->id && (p->conf->names || vg_estore_has(store, VG_E_DATA, e->id))) {
        memcpy(c->hash, e->id, VG_HASH);
        c->has_hash = true;
        c->state = VG_F_HERE;
    }
}

static int add(struct vg_pull *p, struct vg_fnode *n, const struct vg_dirent *e) {
    struct vg_fnode *c = vg_fnode_new(p->t, n, e);
    if (!c)
        return -ENOMEM;
    n->child[n->n_child++] = c;
    describe(p, c, e);
    if (e->flags & VG_DE_XATTR)
        vg_list_push_back(&p->attrs, &c->attr);
    if (vg_map_put_u64(&p->by_up, c->up, c) < 0)
        return -ENOMEM;
    if (S_ISREG(c->st.mode) && c->st.size == 0 && c->state == VG_F_UNKNOWN && !p->conf->names)
        return vg_pull_content(p, c, 0, 0, "", 0); /* nobody needs to be asked */
    if (c->state == VG_F_UNKNOWN && vg_map_del_u64(&p->loose, c->up)) {
        c->pushed = true;
        vg_pull_want(p, c);
    }
    return 0;
}

static int adopt_orphans(struct vg_pull *p, struct vg_fnode *n);

static int load(struct vg_pull *p, struct vg_fnode *n, const struct vg_dirrec *rec) {
    n->child = vg_alloc((rec->n ? rec->n : 1) * sizeof(struct vg_fnode *));
    if (!n->child)
        return -ENOMEM;
    struct vg_dirent e;
    int r = 0;
    for (size_t at = 0; r == 0 && vg_dirrec_next(rec, &at, &e);)
        if (!p->conf->prune || on_a_path(p, n, &e))
            r = add(p, n, &e);
    if (r < 0)
        return r;
    if (!n->parent) {
        uint64_t ino = n->st.ino;
        n->st = rec->st;
        n->st.dev = 1;
        n->st.ino = ino;
        n->st.ctime = n->st.atime = n->st.mtime;
    }
    vg_pull_settle(p, n, VG_F_HERE, 0);
    for (uint32_t i = 0; n->take && i < n->n_child; i++)
        take_all(p, n->child[i]);
    if (!n->take)
        vg_pull_mark(p);
    return adopt_orphans(p, n);
}

/* The service tells anew what lies in a folder: a file that is still being read is another one by
   now. What is here already stays as it was: a snapshot. */
static void reread(struct vg_pull *p, struct vg_fnode *n, const struct vg_dirrec *rec) {
    struct vg_dirent e;
    for (size_t at = 0; vg_dirrec_next(rec, &at, &e);) {
        struct vg_fnode *c = vg_fnode_child(n, e.name, e.name_len);
        if (!c || !S_ISREG(c->st.mode) || !S_ISREG(e.st.mode) || c->state == VG_F_HERE ||
            c->state == VG_F_NEVER ||
            (c->st.size == e.st.size && c->st.mtime == e.st.mtime && c->up == e.object))
            continue;
        vg_einto_free(c->into);
        c->into = NULL;
        c->asked = 0;
        if (c->up != e.object && vg_map_put_u64(&p->by_up, e.object, c) == 0)
            c->up = e.object;
        c->st.size = e.st.size;
        c->st.mtime = c->st.ctime = e.st.mtime;
        c->st.mode = e.st.mode;
        c->st.blocks = (e.st.size + 511) / 512;
        c->state = VG_F_UNKNOWN;
        vg_list_remove(&c->todo);
        if (++c->error > CHANGES_MAX)
            vg_pull_settle(p, c, VG_F_NEVER, EIO);
        else if (c->wanted)
            vg_list_push_back(&p->files, &c->todo);
    }
}

int vg_pull_record(struct vg_pull *p, const struct vg_dirrec *rec) {
    struct vg_fnode *n = vg_map_get_u64(&p->by_up, rec->object);
    if (!n)
        return vg_pull_keep_orphan(p, rec->object, rec->base, rec->len, false);
    if (!S_ISDIR(n->st.mode))
        return -EPROTO;
    if (n->state == VG_F_HERE)
        reread(p, n, rec);
    else if (n->state != VG_F_NEVER)
        return load(p, n, rec);
    return 0;
}

int vg_pull_keep_orphan(struct vg_pull *p, uint64_t up, const void *piece, size_t n, bool more) {
    struct vg_orphan *o = vg_map_get_u64(&p->orphans, up);
    if (p->orphan_bytes + n > ORPHAN_BYTES_MAX)
        return -EPROTO;
    if (!o) {
        o = vg_alloc(sizeof(*o));
        if (!o || vg_map_put_u64(&p->orphans, up, o) < 0) {
            free(o);
            return -ENOMEM;
        }
    } else if (!o->more) {
        p->orphan_bytes -= vg_buf_len(&o->rec);
        vg_buf_clear(&o->rec); /* told anew */
    }
    p->orphan_bytes += n;
    o->more = more;
    return vg_buf_append(&o->rec, piece, n);
}

/* Records that came before the folder they lie in. */
static int adopt_orphans(struct vg_pull *p, struct vg_fnode *n) {
    int r = 0;
    for (uint32_t i = 0; r == 0 && vg_map_len(&p->orphans) && i < n->n_child; i++) {
        struct vg_fnode *c = n->child[i];
        struct vg_orphan *o = vg_map_get_u64(&p->orphans, c->up);
        if (!o || o->more || !S_ISDIR(c->st.mode))
            continue;
        vg_map_del_u64(&p->orphans, c->up);
        p->orphan_bytes -= vg_buf_len(&o->rec);
        struct vg_dirrec rec;
        r = vg_dirrec_open(&rec, vg_buf_data(&o->rec), vg_buf_len(&o->rec)) < 0
                ? -EPROTO
                : vg_pull_record(p, &rec);
        vg_buf_done(&o->rec);
        free(o);
    }
    return r;
}

int vg_pull_root(struct vg_pull *p, uint64_t up) {
    struct vg_fnode *n = p->t->root;
    n->up = up;
    int r = vg_map_put_u64(&p->by_up, up, n);
    if (r < 0)
        return r;
    if (!p->conf->path && !p->conf->views && !p->conf->pushes)
        n->take = true;
    vg_pull_mark(p);
    return 0;
}

struct around {
    uint64_t bytes, folder_bytes;
    unsigned folders;
};

/* Files of a small folder; records of the folders in any, so that a name that is not there is known
 * not to be. */
static void around_folder(struct vg_pull *p, struct vg_fnode *n, struct around *left) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n->n_child; i++)
        if (S_ISREG(n->child[i]->st.mode) && n->child[i]->state == VG_F_UNKNOWN)
            sum += n->child[i]->st.size;
    for (uint32_t i = 0; i < n->n_child; i++) {
        struct vg_fnode *c = n->child[i];
        if (c->state != VG_F_UNKNOWN)
            continue;
        if (S_ISDIR(c->st.mode) && left->folders) {
            left->folders--;
            if (c->name_len == 11 && memcmp(c->name, "__pycache__", 11) == 0)
                take_all(p, c);
            vg_pull_want(p, c);
        } else if (S_ISREG(c->st.mode) && sum <= left->folder_bytes && c->st.size <= left->bytes) {
            left->bytes -= c->st.size;
            vg_pull_want(p, c);
        }
    }
}

static void around(struct vg_pull *p, struct vg_fnode *n, struct around *left) {
    if (!S_ISDIR(n->st.mode) || n->state != VG_F_HERE || n->take)
        return;
    for (uint32_t i = 0; i < n->n_child; i++)
        around(p, n->child[i], left);
    around_folder(p, n, left);
}

void vg_pull_around(struct vg_pull *p, bool wider) {
    struct around left = {.bytes = wider ? WIDER_BYTES : AROUND_BYTES,
                          .folder_bytes = wider ? WIDER_FOLDER : AROUND_FOLDER,
                          .folders = wider ? 0 : AROUND_FOLDERS};
    around(p, p->t->root, &left);
}

static struct vg_fnode *known(struct vg_pull *p, const char *path) {
    struct vg_fnode *n = p->t->root;
    for (path += strspn(path, "/"); n && *path; path += strspn(path, "/")) {
        size_t len = strcspn(path, "/");
        n = S_ISDIR(n->st.mode) ? vg_fnode_child(n, path, len) : NULL;
        path += len;
    }
    return n;
}

int vg_pull_view(struct vg_pull *p, const char *path, uint64_t up) {
    if (p->n_view == VG_PULL_VIEWS_MAX)
        return -EPROTO;
    struct vg_pull_view *v = &p->view[p->n_view];
    v->path = vg_strdup(path);
    v->up = up;
    if (!v->path)
        return -ENOMEM;
    p->n_view++;
    struct vg_fnode *n = known(p, path);
    if (!n || !n->parent || !S_ISDIR(n->st.mode) || n->state == VG_F_HERE || n->up == up)
        return 0; /* found when its folder comes, or already */
    n->up = up;
    int r = vg_map_put_u64(&p->by_up, up, n);
    return r < 0 ? r : adopt_orphans(p, n->parent);
}

int vg_pull_content(struct vg_pull *p, struct vg_fnode *n, uint64_t off, uint64_t size,
                    const void *data, size_t len) {
    if (!S_ISREG(n->st.mode) || n->state == VG_F_HERE || n->state == VG_F_NEVER ||
        size != n->st.size)
        return 0; /* not wanted any more; or of another state: its folder's record follows */
    int r = n->into ? 0 : vg_einto_new(p->t->store, size, &n->into);
    if (r == 0)
        r = vg_einto_write(n->into, off, data, len);
    if (r == -EINVAL)
        return -EPROTO;
    if (r == 1) {
        r = vg_einto_keep(n->into, n->hash);
        if (r == 0) {
            n->has_hash = true;
            vg_einto_free(n->into);
            n->into = NULL;
            vg_pull_settle(p, n, VG_F_HERE, 0);
        }
        return r;
    }
    if (r == 0)
        pthread_cond_broadcast(&p->t->changed);
    return r;
}
