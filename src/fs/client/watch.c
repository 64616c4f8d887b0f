#include "fs/client/watch.h"

#include "fs/client/tree-int.h"

#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>

/* CLOSE_WRITE also comes from those who wrote through a mapping, whom MODIFY does not show. */
#define MASK                                                                            \
    (IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_MODIFY | IN_CLOSE_WRITE | \
     IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR | IN_EXCL_UNLINK)

/* A log that somebody writes all the time is looked at so often, not at every line: the kernel puts
   alike events together while they wait. Who needs to know earlier drains. */
#define REST_MS 20u

struct spot { /* a watched folder: the environment and projects may each know it */
    int wd;
    struct vg_cobj **o;
    size_t n, cap;
};
struct move { /* the first half of a rename */
    uint32_t cookie;
    int wd;
    char name[NAME_MAX + 1];
};
struct vg_watch {
    struct vg_ctree *tree;
    struct vg_watch_ops ops;
    void *user;
    int fd;
    uv_poll_t poll;
    uv_timer_t rest;
    int handles;             /* not closed yet */
    uint64_t rounds;         /* times that events were taken */
    struct vg_map spots;     /* by wd */
    struct vg_map unwatched; /* folders by number */
    size_t limit;
    bool said_full;
    struct move from;
    /* The folder of the last event, open: events come in runs. */
    int dir_fd, dir_wd;
};

static void on_readable(uv_poll_t *poll, int status, int events);

static void on_rested(uv_timer_t *t) {
    struct vg_watch *w = t->data;
    uv_poll_start(&w->poll, UV_READABLE, on_readable);
}

static void on_readable(uv_poll_t *poll, int status, int events) {
    (void)status;
    (void)events;
    struct vg_watch *w = poll->data;
    vg_watch_drain(w);
    uv_poll_stop(&w->poll);
    uv_timer_start(&w->rest, on_rested, REST_MS, 0);
}

int vg_watch_new(uv_loop_t *loop, struct vg_ctree *tree, const struct vg_watch_ops *ops, void *user,
                 size_t limit, struct vg_watch **ret) {
    struct vg_watch *w = vg_alloc(sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->tree = tree;
    w->ops = *ops;
    w->user = user;
    w->limit = limit;
    w->dir_fd = w->dir_wd = -1;
    w->fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    int r = w->fd < 0 ? -errno : uv_poll_init(loop, &w->poll, w->fd);
    if (r < 0) {
        vg_close(&w->fd);
        free(w);
        return r;
    }
    uv_timer_init(loop, &w->rest);
    w->poll.data = w->rest.data = w;
    w->handles = 2;
    uv_poll_start(&w->poll, UV_READABLE, on_readable);
    uv_unref((uv_handle_t *)&w->poll);
    uv_unref((uv_handle_t *)&w->rest);
    *ret = w;
    return 0;
}

static void spot_free(struct spot *s) {
    for (size_t i = 0; i < s->n; i++)
        vg_cobj_set_wd(s->o[i], -1);
    free(s->o);
    free(s);
}

static void on_closed(uv_handle_t *h) {
    struct vg_watch *w = h->data;
    if (--w->handles)
        return;
    vg_map_for_each (s, &w->spots) {
        struct spot *spot = s->value;
        free(spot->o);
        free(spot);
    }
    vg_map_done(&w->spots);
    vg_map_done(&w->unwatched);
    vg_close(&w->fd);
    vg_close(&w->dir_fd);
    free(w);
}

void vg_watch_free(struct vg_watch *w) {
    if (!w)
        return;
    uv_poll_stop(&w->poll);
    uv_close((uv_handle_t *)&w->poll, on_closed);
    uv_close((uv_handle_t *)&w->rest, on_closed);
}

/* ---- which folders ---- */

static void leave_unwatched(struct vg_watch *w, struct vg_cobj *folder) {
    /* Out of memory: it is looked at neither here nor there, so it is told anew every time. */
    (void)vg_map_put_u64(&w->unwatched, folder->number, folder);
}

static int spot_add(struct vg_watch *w, int wd, struct vg_cobj *folder) {
    struct spot *s = vg_map_get_u64(&w->spots, (uint64_t)wd);
    if (!s) {
        s = vg_alloc(sizeof(*s));
        if (!s)
            return -ENOMEM;
        s->wd = wd;
        if (vg_map_put_u64(&w->spots, (uint64_t)wd, s) < 0) {
            free(s);
            return -ENOMEM;
        }
    }
    for (size_t i = 0; i < s->n; i++)
        if (s->o[i] == folder)
            return 0;
    struct vg_cobj **grown = vg_grow(s->o, &s->cap, s->n + 1, sizeof(*s->o));
    if (!grown)
        return -ENOMEM;
    s->o = grown;
    s->o[s->n++] = folder;
    vg_cobj_set_wd(folder, wd);
    return 0;
}

int vg_watch_add(struct vg_watch *w, struct vg_cobj *folder) {
    char link[40];
    if (vg_cobj_wd(folder) >= 0 || vg_map_get_u64(&w->unwatched, folder->number))
        return 0;
    if (w->limit && vg_map_len(&w->spots) >= w->limit) {
        leave_unwatched(w, folder);
        return 0;
    }
    vg_auto_fd int fd = vg_cobj_open(w->tree, folder, O_PATH | O_DIRECTORY);
    if (fd < 0)
        return fd;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    int wd = inotify_add_watch(w->fd, link, MASK);
    if (wd < 0 && errno == ENOSPC && !w->said_full) {
        w->said_full = true;
        vg_warn("the kernel watches no more folders (fs.inotify.max_user_watches): %zu are "
                "watched, further ones are looked at when a command starts",
                vg_map_len(&w->spots));
    }
    if (wd < 0 || spot_add(w, wd, folder) < 0)
        leave_unwatched(w, folder);
    return 0;
}

void vg_watch_far(struct vg_watch *w, struct vg_cobj *folder) {
    leave_unwatched(w, folder);
}

void vg_watch_forget(struct vg_watch *w, struct vg_cobj *folder) {
    vg_map_del_u64(&w->unwatched, folder->number);
    int wd = vg_cobj_wd(folder);
    struct spot *s = wd < 0 ? NULL : vg_map_get_u64(&w->spots, (uint64_t)wd);
    if (!s)
        return;
    vg_cobj_set_wd(folder, -1);
    for (size_t i = 0; i < s->n; i++)
        if (s->o[i] == folder)
            s->o[i--] = s->o[--s->n];
    if (s->n == 0) {
        vg_map_del_u64(&w->spots, (uint64_t)wd);
        spot_free(s);
        inotify_rm_watch(w->fd, wd);
    }
}

uint64_t vg_watch_rounds(const struct vg_watch *w) {
    return w->rounds;
}

void vg_watch_counts(const struct vg_watch *w, size_t *ret_watched, size_t *ret_unwatched) {
    *ret_watched = vg_map_len(&w->spots);
    *ret_unwatched = vg_map_len(&w->unwatched);
}

/* ---- what events mean ---- */

static bool hidden(struct vg_watch *w, const struct vg_cobj *folder, const char *name, mode_t m) {
    char path[PATH_MAX + NAME_MAX + 2];
    if (vg_cobj_path(folder, path, PATH_MAX) < 0)
        return false;
    size_t at = strlen(path);
    snprintf(path + at, sizeof(path) - at, "%s%s", at > 1 ? "/" : "", name);
    return vg_mpolicy_ask(w->tree->policy, path, m, NULL) == VG_IGNORE;
}

struct below {
    struct vg_watch *w;
    const struct vg_cobj *top;
};

static void changed_below(void *user, struct vg_cobj *o) {
    const struct below *b = user;
    if (!o->served)
        return;
    for (const struct vg_cobj *up = o; up; up = up->parent)
        if (up == b->top) {
            vg_cobj_changed(b->w->tree, o);
            return;
        }
}

/* `st` NULL: there is nothing of that name now. */
static void name_event(struct vg_watch *w, struct vg_cobj *folder, const char *name,
                       const struct vg_mstat *st) {
    struct vg_cobj *o = vg_map_get(&folder->kids, name);
    if (strcmp(name, ".virgaignore") == 0 && !(o && st && vg_cobj_as_told(o, st))) {
        vg_ctree_each(w->tree, changed_below, &(struct below){w, folder});
        return;
    }
    if (!st) {
        if (o)
            vg_cobj_removed(w->tree, o);
        else /* nobody was told of it, but a scan that is under way may have seen it */
            folder->changed = vg_ctree_scan_begins(w->tree);
        return;
    }
    if (o && (o->busy || vg_cobj_as_told(o, st)))
        return;
    if (!o && hidden(w, folder, name, (mode_t)st->mode))
        return;
    vg_cobj_changed(w->tree, folder);
    if (!S_ISDIR(st->mode) && st->nlink > 1)
        vg_ctree_other_names(w->tree, st);
}

/* Events are old when they are read: a folder's name may be another one's by now. */
static bool is_it(const struct vg_cobj *folder, const struct stat *st) {
    return !folder->known || (folder->st.ino == st->st_ino && folder->st.dev == st->st_dev);
}

static void self_event(struct vg_watch *w, struct vg_cobj *folder, uint32_t mask) {
    if (mask & (IN_DELETE_SELF | IN_MOVE_SELF)) {
        if (folder->root)
            vg_cobj_changed(w->tree, folder);
        return; /* its parent's events say the rest */
    }
    vg_auto_fd int fd = vg_cobj_open(w->tree, folder, O_PATH | O_DIRECTORY);
    struct stat st;
    struct vg_mstat now;
    if (fd < 0 || fstat(fd, &st) < 0)
        return;
    vg_mstat_from(&now, &st);
    if (!folder->root && !is_it(folder, &st))
        return; /* it was moved since: its parent's events say so */
    if (!vg_cobj_as_told(folder, &now)) {
        folder->st = now;
        folder->known = true;
        vg_cobj_changed(w->tree, folder);
        if (folder->parent)
            vg_cobj_changed(w->tree, folder->parent);
    }
}

/* Both halves of a rename came: the thing keeps its number in each tree that knows both folders.
   `now` is what is called so at present: the event may be about a rename of ours, long told, and
   the old name belong to something else since. */
static void rename_event(struct vg_watch *w, const struct move *from, const struct spot *to,
                         const char *name, const struct vg_mstat *now) {
    const struct spot *s = vg_map_get_u64(&w->spots, (uint64_t)from->wd);
    for (size_t i = 0; s && i < s->n; i++) {
        struct vg_cobj *o = vg_map_get(&s->o[i]->kids, from->name);
        if (o && o->known && (o->st.ino != now->ino || o->st.dev != now->dev))
            continue;
        for (size_t j = 0; o && j < to->n; j++) {
            if (vg_cobj_top(s->o[i]) == vg_cobj_top(to->o[j]) && !vg_cobj_gone(to->o[j]) &&
                vg_cobj_moved(w->tree, o, to->o[j], name) == 0)
                break;
        }
    }
}

enum seen { THERE, NOT_THERE, UNSEEN }; /* UNSEEN: the folder is not where it was */

static enum seen lstat_in(struct vg_watch *w, const struct spot *s, const char *name,
                          struct vg_mstat *ret) {
    struct stat st;
    if (w->dir_wd != s->wd) {
        vg_close(&w->dir_fd);
        w->dir_wd = -1;
        for (size_t i = 0; i < s->n && w->dir_fd < 0; i++) {
            vg_auto_fd int fd = vg_cobj_open(w->tree, s->o[i], O_PATH | O_DIRECTORY);
            if (fd >= 0 && fstat(fd, &st) == 0 && is_it(s->o[i], &st))
                w->dir_fd = vg_take_fd(fd);
        }
        if (w->dir_fd < 0)
            return UNSEEN;
        w->dir_wd = s->wd;
    }
    if (fstatat(w->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) < 0)
        return NOT_THERE;
    vg_mstat_from(ret, &st);
    return THERE;
}

static void names_event(struct vg_watch *w, const struct spot *s, const char *name, enum seen seen,
                        const struct vg_mstat *st) {
    for (size_t i = 0; i < s->n; i++) {
        if (vg_cobj_gone(s->o[i]))
            continue;
        if (seen == UNSEEN)
            vg_cobj_changed(w->tree, s->o[i]); /* whatever it was */
        else
            name_event(w, s->o[i], name, seen == THERE ? st : NULL);
    }
}

static void one_event(struct vg_watch *w, const struct inotify_event *e) {
    struct spot *s = vg_map_get_u64(&w->spots, (uint64_t)e->wd);
    if (!s)
        return;
    if (e->mask & IN_IGNORED) {
        /* Its name may mean another folder already that got the same number: nobody else would
           notice. */
        for (size_t i = 0; i < s->n; i++)
            if (!vg_cobj_gone(s->o[i]))
                vg_cobj_changed(w->tree, s->o[i]);
        vg_map_del_u64(&w->spots, (uint64_t)e->wd);
        spot_free(s);
        return;
    }
    if (e->len == 0) {
        for (size_t i = 0; i < s->n; i++)
            if (!vg_cobj_gone(s->o[i]))
                self_event(w, s->o[i], e->mask);
        return;
    }
    if (e->mask & IN_MOVED_FROM) {
        w->from.cookie = e->cookie;
        w->from.wd = e->wd;
        snprintf(w->from.name, sizeof(w->from.name), "%s", e->name);
        return; /* settled by the next event or the end of the batch */
    }
    struct vg_mstat st;
    enum seen seen = lstat_in(w, s, e->name, &st);
    if (seen == THERE && (e->mask & IN_MOVED_TO) && w->from.cookie && w->from.cookie == e->cookie)
        rename_event(w, &w->from, s, e->name, &st);
    names_event(w, s, e->name, seen, &st);
}

/* The old name of a rename, also when its other half was seen: what is called so now? */
static void settle_from(struct vg_watch *w) {
    const struct spot *s = vg_map_get_u64(&w->spots, (uint64_t)w->from.wd);
    struct vg_mstat st;
    if (w->from.cookie && s)
        names_event(w, s, w->from.name, lstat_in(w, s, w->from.name, &st), &st);
    w->from.cookie = 0;
}

void vg_watch_drain(struct vg_watch *w) {
    _Alignas(struct inotify_event) char buf[64 << 10];
    bool lost = false, any = false;
    for (;;) {
        ssize_t n = read(w->fd, buf, sizeof(buf));
        if (n <= 0)
            break;
        any = true;
        for (ssize_t at = 0; at < n;) {
            const struct inotify_event *e = (const void *)(buf + at);
            bool pair = w->from.cookie && (e->mask & IN_MOVED_TO) && e->cookie == w->from.cookie;
            if (w->from.cookie && !pair)
                settle_from(w);
            if (e->mask & IN_Q_OVERFLOW)
                lost = true;
            else
                one_event(w, e);
            if (pair)
                settle_from(w);
            at += (ssize_t)sizeof(*e) + e->len;
        }
    }
    settle_from(w);
    vg_close(&w->dir_fd);
    w->dir_wd = -1;
    if (lost)
        w->ops.lost(w->user);
    w->rounds += any;
    if (any)
        w->ops.taken(w->user);
}

/* ---- what is not watched ---- */

static bool differs(struct vg_watch *w, struct vg_cobj *folder) {
    struct vg_scan scan;
    int fd = vg_cobj_open(w->tree, folder, O_RDONLY | O_DIRECTORY | O_NONBLOCK);
    if (fd < 0 || vg_scan_folder(fd, vg_cobj_in_view(folder), &scan) < 0)
        return true;
    size_t seen = 0, told = 0;
    bool other = false;
    for (size_t i = 0; !other && i < scan.n; i++) {
        const char *name = vg_scan_str(&scan, scan.ent[i].name);
        struct vg_cobj *o = vg_map_get(&folder->kids, name);
        if (!o && hidden(w, folder, name, (mode_t)scan.ent[i].st.mode))
            continue;
        other = !o || (!o->busy && !vg_cobj_as_told(o, &scan.ent[i].st));
        seen++;
    }
    vg_map_for_each (s, &folder->kids)
        told++;
    vg_scan_done(&scan);
    return other || seen != told;
}

/* A file with several names: who changes it by another name is heard of in that one's folder. */
static void recheck_linked(struct vg_watch *w) {
    vg_map_for_each (s, &w->tree->linked) {
        struct vg_cobj *o = s->value;
        char path[PATH_MAX];
        struct stat st;
        struct vg_mstat now;
        if (vg_cobj_gone(o) || !o->parent) {
            vg_map_del_u64(&w->tree->linked, o->number);
            continue;
        }
        if (o->busy || !o->parent->served || vg_cobj_path(o, path, sizeof(path)) < 0)
            continue;
        vg_auto_fd int fd = vg_open_beneath(w->tree->root_fd, path, O_PATH);
        if (fd < 0 || fstat(fd, &st) < 0)
            continue; /* its folder's events say so */
        vg_mstat_from(&now, &st);
        if (!vg_cobj_as_told(o, &now))
            vg_cobj_changed(w->tree, o->parent);
    }
}

void vg_watch_recheck(struct vg_watch *w) {
    recheck_linked(w);
    vg_map_for_each (s, &w->unwatched) {
        struct vg_cobj *folder = s->value;
        if (vg_cobj_gone(folder))
            vg_map_del_u64(&w->unwatched, folder->number);
        else if (folder->served && differs(w, folder))
            vg_cobj_changed(w->tree, folder);
    }
}
