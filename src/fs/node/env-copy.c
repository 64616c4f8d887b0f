/* A view of its own for those who come after a change: a copy of what is still true. */
#include "base/mem.h"
#include "base/util.h"
#include "fs/node/env-int.h"

#include <errno.h>

static int copy_kid(struct vg_env *to, struct env_node *folder, const struct env_node *k) {
    struct vg_dirent d = {.object = k->object,
                          .st = k->st,
                          .name = k->name,
                          .target = k->target,
                          .name_len = k->name_len,
                          .target_len = k->target_len,
                          .flags = k->flags,
                          .id = k->flags & VG_DE_ID ? k->id : NULL};
    struct env_node *n = vg_env_node_new(to, folder);
    int r = n ? vg_env_node_update(to, n, &d) : -ENOMEM;
    if (n && r < 0)
        vg_env_node_detach(to, n);
    else if (n) {
        n->used_before = k->file || k->used_before;
        folder->dir->kid[folder->dir->n++] = n;
    }
    return r;
}

static int copy_folder(struct vg_env *to, struct env_node *folder, const struct env_node *src) {
    int r = vg_env_have_folder(to, folder);
    if (r < 0)
        return r;
    folder->dir->kid = vg_alloc((src->dir->n + 1) * sizeof(struct env_node *));
    if (!folder->dir->kid)
        return -ENOMEM;
    for (uint32_t i = 0; r >= 0 && i < src->dir->n; i++)
        r = src->dir->kid[i]->stale ? -ESTALE : copy_kid(to, folder, src->dir->kid[i]);
    folder->dir->epoch = to->epoch;
    folder->dir->proven = r >= 0;
    folder->dir->st = src->dir->st;
    folder->dir->changed_usec = src->dir->changed_usec;
    return r == -ESTALE ? 0 : r;
}

/* Both locks are held: nobody else knows `to`. Breadth first, as deep as a path may be long. */
static int copy_tree(struct vg_env *to, const struct vg_env *from) {
    size_t n = 0, cap = 0;
    struct pair {
        struct env_node *to, *from;
    } *todo = NULL, first = {to->root, from->root};
    int r = 0;
    to->root->st = from->root->st;
    for (struct pair p = first; r >= 0;) {
        const struct env_folder *f = p.from->dir;
        if (f && f->proven && f->epoch == from->epoch && !p.to->dir)
            r = copy_folder(to, p.to, p.from);
        for (uint32_t i = 0; r >= 0 && p.to->dir && i < p.to->dir->n; i++) {
            struct pair next = {p.to->dir->kid[i], p.from->dir->kid[i]};
            struct pair *grown = next.from->dir ? vg_grow(todo, &cap, n + 1, sizeof(*todo)) : todo;
            if (next.from->dir && !grown)
                r = -ENOMEM;
            todo = grown ? grown : todo;
            if (next.from->dir && grown)
                todo[n++] = next;
        }
        if (!n)
            break;
        p = todo[--n];
    }
    free(todo);
    return r;
}

int vg_env_copy(struct vg_env *to, struct vg_env *from) {
    pthread_mutex_lock(&from->lock);
    pthread_mutex_lock(&to->lock);
    int r = copy_tree(to, from);
    to->traced_before = true; /* what is here already is not seen when it is used */
    pthread_mutex_unlock(&to->lock);
    pthread_mutex_unlock(&from->lock);
    return r;
}
