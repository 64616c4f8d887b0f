/* Plans of images.

   Items lie in the order of a walk in breadth: a folder's entries one after another, sorted, and
   every folder before what lies in it. So backwards is bottom-up.

   A folder of which the image shows every name is opaque: the kernel then asks FUSE neither for
   names that are there nor for names that are not. For that, what cannot be shown by itself is
   shown as a way to the same path of the FUSE view: files whose content is not here, and folders
   that are not known or change. Only folders of the system are treated like that, whose files do
   not change under a running task; in others what is not complete is left out, and what is left out
   falls through. */
#include "fs/node/compile-plan.h"
#include "base/mem.h"
#include "mirror/erofs.h"

#include <errno.h>
#include <string.h>

#define NONE UINT32_MAX
#define PATH_BYTES 4096u

struct vg_plan_item {
    uint64_t node; /* the view's number */
    uint32_t parent;
    uint32_t folder; /* in plan->folder; NONE: not a folder */
    uint32_t same;   /* file: another name of that item; NONE */
    uint32_t number; /* in the image, when written */
    size_t name, target;
    uint16_t name_len, target_len;
    struct vg_mstat st;
    uint32_t uid, gid; /* as the kernel shall see them */
    uint8_t id[VG_HASH];
    bool has_id, wanted; /* wanted: somebody opened it */
    bool left_out, worth, complete;
    bool steady, full; /* of the system; and does not change: its files are shown in any case */
    bool through;      /* a way to the same path of the view */
    char redirect[80]; /* "/x/name" in the cache */
};

void vg_plan_done(struct vg_plan *p) {
    for (size_t i = 0; i < p->n_blob; i++)
        vg_blob_put(p->blob[i]);
    free(p->blob);
    free(p->item);
    free(p->folder);
    free(p->missing);
    vg_map_done(&p->by_inode);
    vg_buf_done(&p->text);
    *p = (struct vg_plan){0};
}

static int keep_text(struct vg_plan *p, const char *s, size_t n, size_t *ret) {
    *ret = vg_buf_len(&p->text);
    return vg_buf_append(&p->text, s, n);
}

static const char *text(const struct vg_plan *p, size_t at) {
    return (const char *)p->text.base + p->text.head + at;
}

/* ---- gathering ------------------------------------------------------------------------------- */

static bool proven(const struct vg_env *e, const struct env_node *n) {
    return n->dir && n->dir->proven && n->dir->epoch == e->epoch;
}

static bool restless(const struct env_node *n, uint64_t now) {
    return n->dir->changed_usec && now - n->dir->changed_usec < VG_RESTLESS_USEC;
}

/* Nobody but the machine's owner changes it, and he seldom does. A person's own folder is not of
   the system even where that person is root. */
static bool is_system(const struct vg_plan *p, const struct vg_plan_item *i) {
    if (i->st.uid != 0 || (i->st.mode & 022))
        return false;
    if (p->n == 0)
        return true;
    const struct vg_plan_item *up = &p->item[i->parent];
    bool top = i->parent == 0 && i->name_len == 4;
    const char *name = text(p, i->name);
    return up->steady && !(top && (!memcmp(name, "root", 4) || !memcmp(name, "home", 4)));
}

static bool was_used(const struct env_node *n) {
    return n->file || n->used_before;
}

#define NO_CONTENT (VG_DE_DENIED | VG_DE_SECRET)
#define ALWAYS_EMPTY (VG_DE_OTHER | VG_DE_EMPTY)

/* May it be in an image at all? Devices are whiteouts to overlayfs; extended attributes are told by
   FUSE. `steady`: the folder it lies in is the system's. */
static bool suits(const struct vg_env *e, const struct env_node *n, bool steady) {
    if (n->flags & VG_DE_XATTR)
        return false;
    switch (n->st.mode & S_IFMT) {
    case S_IFDIR:
        return steady || (proven(e, n) && !(n->flags & (NO_CONTENT | ALWAYS_EMPTY)));
    case S_IFLNK:
        return n->target_len > 0;
    case S_IFREG: /* one that was never wanted has no content here */
        return n->st.nlink > 0 &&
               (steady || (!(n->flags & NO_CONTENT) && (n->st.size == 0 || was_used(n))));
    case S_IFIFO:
    case S_IFSOCK:
        return steady;
    default:
        return false;
    }
}

static int add_folder(struct vg_plan *p, struct env_node *n, const struct vg_plan_item *i,
                      uint64_t now, uint32_t *ret) {
    struct vg_plan_folder *grown =
        vg_grow(p->folder, &p->cap_folder, p->n_folder + 1, sizeof(*grown));
    if (!grown)
        return -ENOMEM;
    p->folder = grown;
    bool rest = restless(n, now);
    if (!rest)
        n->dir->compiled = true;
    p->folder[p->n_folder] = (struct vg_plan_folder){
        .number = n->number,
        .changes = n->dir->changes,
        .parent = p->n ? p->item[i->parent].folder : 0,
        .mode = n->dir->st.mode,
        .uid = n->dir->st.uid,
        .gid = n->dir->st.gid,
        .restless = rest,
        .name = i->name,
        .name_len = i->name_len,
    };
    *ret = (uint32_t)p->n_folder++;
    return 0;
}

static int add_item(struct vg_plan *p, struct vg_env *e, struct env_node *n, uint32_t parent,
                    uint64_t now) {
    if (p->n >= p->max_items)
        return -E2BIG;
    struct vg_plan_item *grown = vg_grow(p->item, &p->cap, p->n + 1, sizeof(*grown));
    if (!grown)
        return -ENOMEM;
    p->item = grown;
    bool known = S_ISDIR(n->st.mode) && proven(e, n) && !(n->flags & (NO_CONTENT | ALWAYS_EMPTY));
    const struct vg_mstat *st = known ? &n->dir->st : &n->st;
    struct vg_plan_item i = {.node = n->number,
                             .parent = parent,
                             .folder = NONE,
                             .same = NONE,
                             .name_len = n->name_len,
                             .target_len = S_ISLNK(n->st.mode) ? n->target_len : 0,
                             .st = *st,
                             .uid = vg_fs_id_out(&e->conf.ids, st->uid),
                             .gid = vg_fs_id_out(&e->conf.ids, st->gid),
                             .wanted = was_used(n) && !(n->flags & NO_CONTENT),
                             .complete = n->flags & ALWAYS_EMPTY,
                             .has_id = n->flags & VG_DE_ID};
    memcpy(i.id, n->id, VG_HASH);
    int r = keep_text(p, n->name, i.name_len, &i.name);
    if (r == 0)
        r = keep_text(p, n->target, i.target_len, &i.target);
    if (r == 0 && known)
        r = add_folder(p, n, &i, now, &i.folder);
    if (r < 0)
        return r;
    i.steady = known && !p->narrow && is_system(p, &i);
    p->item[p->n++] = i;
    return 0;
}

/* The entries of the folder that item `at` is. */
static int add_kids(struct vg_plan *p, struct vg_env *e, uint32_t at, uint64_t now) {
    const struct vg_plan_folder *f = &p->folder[p->item[at].folder];
    struct env_node *n = vg_env_node(e, f->number);
    bool only_folders = f->restless, all = !only_folders;
    bool steady = p->item[at].steady && all;
    p->item[at].full = steady;
    for (uint32_t k = 0; k < n->dir->n; k++) {
        struct env_node *kid = n->dir->kid[k];
        if (!suits(e, kid, steady) || (only_folders && !S_ISDIR(kid->st.mode))) {
            all = false;
            continue;
        }
        int r = add_item(p, e, kid, at, now);
        if (r < 0)
            return r;
    }
    p->item[at].complete = all;
    return 0;
}

int vg_plan_gather(struct vg_plan *p, struct vg_env *e, uint64_t now_usec, size_t max_items,
                   bool narrow) {
    p->max_items = max_items;
    p->narrow = narrow;
    pthread_mutex_lock(&e->lock);
    p->opens = e->stat.opens;
    int r = e->root && proven(e, e->root) ? add_item(p, e, e->root, 0, now_usec) : -EAGAIN;
    for (uint32_t i = 0; r == 0 && i < p->n; i++)
        if (p->item[i].folder != NONE)
            r = add_kids(p, e, i, now_usec);
    pthread_mutex_unlock(&e->lock);
    return r;
}

/* ---- content --------------------------------------------------------------------------------- */

static int hold(struct vg_plan *p, struct vg_blob *b) {
    struct vg_blob **grown = vg_grow(p->blob, &p->cap_blob, p->n_blob + 1, sizeof(*grown));
    if (!grown)
        return -ENOMEM;
    p->blob = grown;
    p->blob[p->n_blob++] = b;
    return 0;
}

static int add_missing(struct vg_plan *p, uint64_t node) {
    uint64_t *grown = vg_grow(p->missing, &p->cap_missing, p->n_missing + 1, sizeof(*grown));
    if (!grown)
        return -ENOMEM;
    p->missing = grown;
    p->missing[p->n_missing++] = node;
    return 0;
}

/* 0: its content is complete, held, and named in redirect. -ENOENT: it is not. */
static int find_content(struct vg_plan *p, struct vg_plan_item *i, const uint8_t *machine,
                        struct vg_cache *cache, uint64_t max_bytes) {
    uint8_t stamp[VG_HASH];
    struct vg_blob *b;
    char path[80];
    if (i->st.size > max_bytes - p->held_bytes)
        return -ENOENT;
    vg_stamp(machine, &i->st, stamp);
    const uint8_t *id = i->has_id ? i->id : NULL;
    if (!vg_cache_has(cache, stamp, id)) {
        int e = add_missing(p, i->node);
        return e < 0 ? e : -ENOENT;
    }
    int r = vg_blob_get(cache, stamp, id, i->st.size, false, &b);
    if (r < 0)
        return r == -ENOMEM ? r : -ENOENT;
    r = vg_blob_path(b, path) < 0 || strncmp(path, "id/", 3) != 0 ? -ENOENT : hold(p, b);
    if (r < 0) {
        vg_blob_put(b);
        return r;
    }
    memcpy(i->redirect, path + 2, strlen(path + 2) + 1);
    p->held_bytes += i->st.size;
    return 0;
}

/* Several names of one file in the image are one file there, too. */
static int find_same(struct vg_plan *p, uint32_t at) {
    struct vg_plan_item *i = &p->item[at];
    if (i->st.nlink < 2)
        return 0;
    uint64_t key = i->st.ino * UINT64_C(0x9e3779b97f4a7c15) ^ i->st.dev;
    void *other = vg_map_get_u64(&p->by_inode, key);
    if (!other) /* numbers from 2: the map knows 0 and 1 as "nothing" */
        return vg_map_put_u64(&p->by_inode, key, (void *)(uintptr_t)(at + 2));
    uint32_t same = (uint32_t)((uintptr_t)other - 2);
    const struct vg_mstat *a = &p->item[same].st, *b = &i->st;
    if (a->dev == b->dev && a->ino == b->ino && a->ctime == b->ctime && a->size == b->size &&
        p->item[same].through == i->through)
        i->same = same;
    return 0;
}

int vg_plan_complete(struct vg_plan *p, const uint8_t machine[VG_MID], struct vg_cache *cache,
                     uint64_t max_bytes) {
    for (uint32_t at = 0; at < p->n; at++) {
        struct vg_plan_item *i = &p->item[at];
        if (!S_ISREG(i->st.mode))
            continue;
        int r = !i->st.size ? 0
                : i->wanted ? find_content(p, i, machine, cache, max_bytes)
                            : -ENOENT;
        p->files += r == 0;
        i->through = r == -ENOENT && p->item[i->parent].full;
        if (r == 0 || i->through)
            r = find_same(p, at);
        if (r < 0 && r != -ENOENT)
            return r;
        i->left_out = r < 0;
    }
    return 0;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Bottom-up: which folders have anything in them, and of which every name. */
static void settle(struct vg_plan *p) {
    for (size_t at = p->n; at-- > 1;) {
        struct vg_plan_item *i = &p->item[at], *up = &p->item[i->parent];
        bool folder = S_ISDIR(i->st.mode);
        if (i->left_out && !folder)
            up->complete = false;
        if (folder ? i->worth || (i->complete && i->folder != NONE) : !i->left_out && !i->through)
            up->worth = true;
    }
    for (size_t at = 1; at < p->n; at++) { /* and down again: what leads to nothing, goes */
        struct vg_plan_item *i = &p->item[at], *up = &p->item[i->parent];
        if (!S_ISDIR(i->st.mode)) {
            i->left_out |= up->left_out || (i->through && !up->complete);
            continue;
        }
        i->left_out = up->left_out || (!i->worth && !up->complete);
        i->through = up->complete && !i->complete;
    }
}

/* The absolute path in the view; false: too long for a redirect. */
static bool path_of(const struct vg_plan *p, uint32_t at, char out[PATH_BYTES]) {
    size_t n = PATH_BYTES - 1;
    out[n] = '\0';
    for (; at; at = p->item[at].parent) {
        const struct vg_plan_item *i = &p->item[at];
        if (n < (size_t)i->name_len + 1)
            return false;
        n -= i->name_len;
        memcpy(out + n, text(p, i->name), i->name_len);
        out[--n] = '/';
    }
    memmove(out, out + n, PATH_BYTES - n);
    return true;
}

static int write_item(struct vg_plan *p, struct vg_erofs *e, uint32_t at) {
    struct vg_plan_item *i = &p->item[at];
    const struct vg_plan_item *up = &p->item[i->parent];
    const char *name = text(p, i->name);
    char path[PATH_BYTES];
    if (i->through && !path_of(p, at, path))
        return -ENAMETOOLONG;
    if (i->same != NONE && !p->item[i->same].left_out)
        return vg_erofs_link(e, up->number, name, i->name_len, p->item[i->same].number);
    const struct vg_erofs_node n = {
        .parent = at ? up->number : VG_EROFS_ROOT,
        .name = name,
        .name_len = i->name_len,
        .target = text(p, i->target),
        .target_len = i->target_len,
        .redirect = i->through       ? path
                    : i->redirect[0] ? i->redirect
                                     : NULL,
        .size = i->st.size,
        .mtime = i->st.mtime,
        .mode = i->st.mode,
        .uid = i->uid,
        .gid = i->gid,
        .nlink = i->st.nlink ? i->st.nlink : 1,
        .opaque = i->complete,
    };
    return vg_erofs_add(e, &n, &i->number);
}

/* Folders that are not in the image need not be as they were, nor those that are but a way. */
static void forget_folders(struct vg_plan *p) {
    size_t kept = 0;
    for (size_t at = 0; at < p->n; at++) {
        struct vg_plan_item *i = &p->item[at];
        if (i->folder == NONE || i->left_out || (at && !i->worth && !i->complete))
            continue;
        struct vg_plan_folder f = p->folder[i->folder];
        f.parent = at ? p->item[i->parent].folder : 0;
        p->folder[kept] = f;
        i->folder = (uint32_t)kept++;
    }
    p->n_folder = kept;
}

int vg_plan_write(struct vg_plan *p, struct vg_buf *out) {
    struct vg_erofs *e = NULL;
    settle(p);
    int r = vg_erofs_new(&e);
    for (uint32_t at = 0; at < p->n && r == 0; at++)
        if (!p->item[at].left_out)
            r = write_item(p, e, at);
    if (r == 0)
        r = vg_erofs_write(e, out);
    if (r == 0)
        forget_folders(p);
    vg_erofs_free(e);
    free(vg_take_ptr(p->item)); /* all that is still needed is what must hold */
    p->n = p->cap = 0;
    return r;
}

/* ---- is it true? ----------------------------------------------------------------------------- */

static bool folder_holds(const struct vg_plan *p, const struct vg_plan_folder *f,
                         struct vg_env *e) {
    const struct env_node *n = vg_env_node(e, f->number);
    if (!n || !S_ISDIR(n->st.mode) || !proven(e, n))
        return false;
    const struct vg_mstat *st = &n->dir->st;
    if (st->mode != f->mode || st->uid != f->uid || st->gid != f->gid)
        return false;
    if (f != p->folder) {
        const struct env_node *up = vg_env_node(e, p->folder[f->parent].number);
        if (n->parent != up || n->name_len != f->name_len ||
            memcmp(n->name, text(p, f->name), f->name_len) != 0)
            return false;
    } else if (n != e->root)
        return false;
    return f->restless || n->dir->changes == f->changes;
}

bool vg_plan_holds(const struct vg_plan *p, struct vg_env *e) {
    for (size_t i = 0; i < p->n_folder; i++)
        if (!folder_holds(p, &p->folder[i], e))
            return false;
    return p->n_folder > 0;
}
