#include "fs/client/tree-int.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>

struct vg_cobj *vg_cobj_new(struct vg_ctree *t, struct vg_cobj *parent, const char *name) {
    struct vg_cobj *o = vg_alloc(sizeof(*o));
    if (!o)
        return NULL;
    o->wd = -1;
    o->number = t->last + 1;
    o->name = vg_strdup(name);
    if (!o->name || vg_map_put_u64(&t->by_number, o->number, o) < 0)
        goto fail;
    if (parent && vg_map_put(&parent->kids, o->name, o) < 0) {
        vg_map_del_u64(&t->by_number, o->number);
        goto fail;
    }
    o->parent = parent;
    t->last++;
    return o;
fail:
    free(o->name);
    free(o);
    errno = ENOMEM;
    return NULL;
}

int vg_ctree_new(const char *root, struct vg_mpolicy *policy, const uint8_t machine[VG_MID],
                 struct vg_ctree **ret) {
    struct vg_ctree *t = vg_alloc(sizeof(*t));
    if (!t)
        return -ENOMEM;
    t->policy = policy;
    memcpy(t->machine, machine, VG_MID);
    t->root_fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int r = t->root_fd < 0 ? -errno : 0;
    struct vg_cobj *top = r < 0 ? NULL : vg_cobj_new(t, NULL, "/");
    if (!top) {
        vg_ctree_free(t);
        return r < 0 ? r : -ENOMEM;
    }
    top->root = true;
    *ret = t;
    return 0;
}

void vg_ctree_free(struct vg_ctree *t) {
    if (!t)
        return;
    vg_map_for_each (s, &t->by_number) {
        struct vg_cobj *o = s->value;
        vg_map_done(&o->kids);
        free(o->record);
        free(o->name);
        free(o);
    }
    vg_map_done(&t->by_number);
    vg_map_done(&t->views);
    vg_map_done(&t->by_file);
    vg_map_done(&t->linked);
    vg_close(&t->root_fd);
    free(t);
}

const uint8_t *vg_ctree_machine(const struct vg_ctree *t) {
    return t->machine;
}
struct vg_mpolicy *vg_ctree_policy(const struct vg_ctree *t) {
    return t->policy;
}
int vg_ctree_root_fd(const struct vg_ctree *t) {
    return t->root_fd;
}
struct vg_cobj *vg_ctree_get(struct vg_ctree *t, uint64_t object) {
    return vg_map_get_u64(&t->by_number, object);
}
uint64_t vg_cobj_number(const struct vg_cobj *o) {
    return o->number;
}
struct vg_cobj *vg_cobj_parent(const struct vg_cobj *o) {
    return o->parent;
}
struct vg_cobj *vg_cobj_kid(const struct vg_cobj *folder, const char *name) {
    return vg_map_get(&folder->kids, name);
}
uint32_t vg_cobj_view_id(const struct vg_cobj *root) {
    return root->view;
}
bool vg_cobj_gone(const struct vg_cobj *o) {
    for (; o; o = o->parent)
        if (o->gone)
            return true;
    return false;
}
const struct vg_cobj *vg_cobj_top(const struct vg_cobj *o) {
    while (o->parent)
        o = o->parent;
    return o;
}
bool vg_cobj_in_view(const struct vg_cobj *o) {
    return vg_cobj_top(o)->view != 0;
}
const struct vg_mstat *vg_cobj_told(const struct vg_cobj *o) {
    return o->known ? &o->st : NULL;
}
void vg_cobj_set_busy(struct vg_cobj *o, bool busy) {
    o->busy = busy;
}
bool vg_cobj_busy(const struct vg_cobj *o) {
    return o->busy;
}
int vg_cobj_wd(const struct vg_cobj *folder) {
    return folder->wd;
}
void vg_cobj_set_wd(struct vg_cobj *folder, int wd) {
    folder->wd = wd;
}
bool vg_cobj_served(const struct vg_cobj *folder) {
    return folder->served;
}
void vg_cobj_set_served(struct vg_cobj *folder) {
    folder->served = true;
}
uint64_t vg_ctree_seq(const struct vg_ctree *t) {
    return t->seq;
}
uint64_t vg_ctree_scan_begins(struct vg_ctree *t) {
    return ++t->seq;
}
uint64_t vg_cobj_changed_at(const struct vg_cobj *folder) {
    return folder->changed;
}

void vg_ctree_each(struct vg_ctree *t, void (*each)(void *user, struct vg_cobj *o), void *user) {
    vg_map_for_each (s, &t->by_number)
        each(user, s->value);
}

/* ---- paths ---- */

int vg_open_beneath(int root_fd, const char *path, int flags) {
    while (*path == '/')
        path++;
    struct open_how how = {
        .flags = (uint64_t)(unsigned)(flags | O_CLOEXEC | O_NOFOLLOW),
        .mode = 0,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
    };
    for (int tries = 0;; tries++) {
        long fd = syscall(SYS_openat2, root_fd, *path ? path : ".", &how, sizeof(how));
        if (fd >= 0)
            return (int)fd;
        /* A rename somewhere made the kernel unsure: it says so, and is asked again. */
        if ((errno != EAGAIN && errno != EINTR) || tries == 64)
            return -errno;
    }
}

int vg_cobj_path(const struct vg_cobj *o, char *out, size_t n) {
    /* Written from the end, then moved to the front. */
    size_t at = n;
    if (n < 2)
        return -ENAMETOOLONG;
    out[--at] = 0;
    for (; o; o = o->parent) {
        bool top = o->root && !o->view;
        size_t len = top ? 0 : strlen(o->name);
        size_t slash = top || o->view ? 0 : 1;
        if (len + slash > at)
            return -ENAMETOOLONG;
        at -= len;
        memcpy(out + at, o->name, len);
        if (slash)
            out[--at] = '/';
    }
    if (at == n - 1)
        out[--at] = '/';
    memmove(out, out + at, n - at);
    return 0;
}

int vg_cobj_open(struct vg_ctree *t, const struct vg_cobj *o, int flags) {
    char path[PATH_MAX];
    if (vg_cobj_gone(o))
        return -ENOENT;
    int r = vg_cobj_path(o, path, sizeof(path));
    return r < 0 ? r : vg_open_beneath(t->root_fd, path, flags);
}

int vg_cobj_open_parent(struct vg_ctree *t, const struct vg_cobj *o, const char **ret_name) {
    if (o->root)
        return -EXDEV;
    if (!o->parent || vg_cobj_gone(o))
        return -ENOENT;
    *ret_name = o->name;
    return vg_cobj_open(t, o->parent, O_PATH | O_DIRECTORY);
}

struct vg_cobj *vg_ctree_view(struct vg_ctree *t, const char *path) {
    char clean[PATH_MAX];
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    if (n >= sizeof(clean) || path[0] != '/') {
        errno = EINVAL;
        return NULL;
    }
    memcpy(clean, path, n);
    clean[n] = 0;
    int fd = vg_open_beneath(t->root_fd, clean, O_PATH | O_DIRECTORY);
    if (fd < 0) {
        errno = -fd;
        return NULL;
    }
    close(fd);
    struct vg_cobj *o = vg_map_get(&t->views, clean);
    if (o)
        return o;
    o = vg_cobj_new(t, NULL, clean);
    if (!o)
        return NULL;
    o->root = true;
    o->view = ++t->last_view;
    if (vg_map_put(&t->views, o->name, o) < 0) {
        o->gone = true;
        errno = ENOMEM;
        return NULL;
    }
    return o;
}

struct vg_cobj *vg_ctree_walk_in(struct vg_ctree *t, struct vg_cobj *root, const char *rel) {
    char path[PATH_MAX];
    int r = vg_cobj_path(root, path, sizeof(path));
    size_t at = r < 0 ? 0 : strlen(path);
    if (r < 0 || strlen(rel) + at + 2 > sizeof(path)) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    path[at] = '/';
    memcpy(path + at + 1, rel, strlen(rel) + 1);
    int fd = vg_open_beneath(t->root_fd, path, O_PATH);
    if (fd < 0) {
        errno = -fd;
        return NULL;
    }
    close(fd);
    return vg_ctree_named(t, root, rel);
}

struct vg_cobj *vg_ctree_named(struct vg_ctree *t, struct vg_cobj *root, const char *rel) {
    struct vg_cobj *o = root;
    for (const char *p = rel; o && *p;) {
        size_t n = strcspn(p, "/");
        char name[NAME_MAX + 1];
        if (n > NAME_MAX || (n == 2 && p[0] == '.' && p[1] == '.')) {
            errno = EINVAL;
            return NULL;
        }
        if (n && !(n == 1 && p[0] == '.')) {
            memcpy(name, p, n);
            name[n] = 0;
            struct vg_cobj *kid = vg_map_get(&o->kids, name);
            o = kid ? kid : vg_cobj_new(t, o, name);
        }
        p += n;
        while (*p == '/')
            p++;
    }
    return o;
}

struct vg_cobj *vg_ctree_walk(struct vg_ctree *t, const char *path) {
    while (*path == '/')
        path++;
    return vg_ctree_walk_in(t, vg_ctree_get(t, VG_OBJ_ROOT), path);
}

/* ---- changes ---- */

void vg_ctree_actor(struct vg_ctree *t, const uint8_t *daemon) {
    t->actor = daemon;
}

void vg_ctree_on_change(struct vg_ctree *t,
                        void (*hook)(void *user, struct vg_cobj *folder, const uint8_t *actor),
                        void *user) {
    t->hook = hook;
    t->hook_user = user;
}

void vg_cobj_changed(struct vg_ctree *t, struct vg_cobj *folder) {
    folder->changed = ++t->seq;
    vg_cobj_drop_record(t, folder);
    if (t->hook && folder->served)
        t->hook(t->hook_user, folder, t->actor);
}

static void judged_below(struct vg_ctree *t, struct vg_cobj *o) {
    if (o->served)
        vg_cobj_changed(t, o);
    vg_map_for_each (s, &o->kids)
        judged_below(t, s->value);
}

static void judged(struct vg_ctree *t, struct vg_cobj *o) {
    for (struct vg_cobj *up = o ? o->parent : NULL; up; up = up->parent)
        if (up->served)
            vg_cobj_changed(t, up);
    if (o)
        judged_below(t, o);
}

void vg_ctree_judged_anew(struct vg_ctree *t, const char *path) {
    judged(t, vg_ctree_walk(t, path));
    vg_map_for_each (s, &t->views) {
        struct vg_cobj *root = s->value;
        size_t n = strlen(root->name);
        n -= root->name[n - 1] == '/'; /* the root of all */
        if (strncmp(path, root->name, n) == 0 && path[n] == '/')
            judged(t, vg_ctree_walk_in(t, root, path + n + 1));
    }
}

/* The same folder may be known to the environment and to projects: the others hear of it by the
   watch, which sees that their objects are not as told. */
static void parent_changed(struct vg_ctree *t, struct vg_cobj *o) {
    vg_cobj_changed(t, o->parent ? o->parent : o);
}

bool vg_cobj_as_told(const struct vg_cobj *o, const struct vg_mstat *st) {
    return o->known && o->st.dev == st->dev && o->st.ino == st->ino && o->st.mode == st->mode &&
           o->st.size == st->size && o->st.mtime == st->mtime && o->st.ctime == st->ctime;
}

static uint64_t file_key(const struct vg_mstat *st) {
    return st->ino ^ (st->dev << 48) ^ (st->dev >> 16);
}

void vg_ctree_other_names(struct vg_ctree *t, const struct vg_mstat *st) {
    struct vg_cobj *o = vg_map_get_u64(&t->by_file, file_key(st));
    if (!o || o->st.ino != st->ino || o->st.dev != st->dev || vg_cobj_gone(o) || !o->parent)
        return;
    (void)vg_map_put_u64(&t->linked, o->number, o);
    if (!o->busy && !vg_cobj_as_told(o, st))
        vg_cobj_changed(t, o->parent);
}

void vg_cobj_know(struct vg_ctree *t, struct vg_cobj *o, const struct vg_mstat *st) {
    o->st = *st;
    o->known = true;
    if (S_ISDIR(st->mode))
        return;
    if (st->nlink > 1) {
        vg_ctree_other_names(t, st);
        (void)vg_map_put_u64(&t->linked, o->number, o);
    }
    (void)vg_map_put_u64(&t->by_file, file_key(st), o);
}

void vg_cobj_set_told(struct vg_ctree *t, struct vg_cobj *o, const struct vg_mstat *st) {
    vg_cobj_know(t, o, st);
    parent_changed(t, o);
}

void vg_cobj_detach(struct vg_ctree *t, struct vg_cobj *o) {
    (void)t;
    if (o->parent && vg_map_get(&o->parent->kids, o->name) == o)
        vg_map_del(&o->parent->kids, o->name);
    o->parent = NULL;
}

int vg_cobj_moved(struct vg_ctree *t, struct vg_cobj *o, struct vg_cobj *parent, const char *name) {
    char *own = vg_strdup(name);
    if (!own)
        return -ENOMEM;
    struct vg_cobj *old = vg_map_get(&parent->kids, name);
    if (old == o && o->parent == parent) {
        free(own);
        return 0;
    }
    if (old) {
        vg_cobj_detach(t, old);
        old->gone = true;
    }
    struct vg_cobj *from = o->parent;
    vg_cobj_detach(t, o);
    free(o->name);
    o->name = own;
    o->gone = false;
    if (vg_map_put(&parent->kids, o->name, o) < 0) {
        o->gone = true;
        return -ENOMEM;
    }
    o->parent = parent;
    if (o->known && S_ISDIR(o->st.mode))
        vg_ctree_drop_records(t); /* the policy judges by paths, and all below have another now */
    if (from)
        vg_cobj_changed(t, from);
    if (parent != from)
        vg_cobj_changed(t, parent);
    return 0;
}

void vg_cobj_removed(struct vg_ctree *t, struct vg_cobj *o) {
    struct vg_cobj *from = o->parent;
    if (o->root)
        return;
    vg_cobj_detach(t, o);
    o->gone = true;
    if (from)
        vg_cobj_changed(t, from);
}
