/* Requests that wait for the client's machine, and the thread that tells the kernel what is no
   longer true. That thread may wait for the kernel's lock of a folder, which a kept request may
   hold; so nobody waits for it but those who begin a task. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/node/env-int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void vg_env_wait(struct env_call *c, struct env_node *on) {
    struct vg_env *e = c->e;
    struct env_wait *w = vg_alloc(sizeof(*w));
    struct vg_fuse_req *r = w ? vg_fuse_keep(c->r) : NULL;
    if (!r) {
        pthread_mutex_unlock(&e->lock);
        if (!w)
            vg_fuse_err(c->r, ENOMEM);
        free(w);
        return;
    }
    *w = (struct env_wait){.r = r, .since = c->since ? c->since : vg_now_usec()};
    vg_list_push_back(&on->waits, &w->on_node);
    vg_list_push_back(&e->waiting, &w->all);
    if (!c->since)
        e->stat.waits++;
    pthread_mutex_unlock(&e->lock);
}

static void take(struct env_wait *w, struct vg_list *to) {
    vg_list_remove(&w->on_node);
    vg_list_remove(&w->all);
    vg_list_push_back(to, &w->all);
}

void vg_env_wake(struct env_node *n, struct vg_list *to) {
    vg_list_for_each_safe (it, &n->waits)
        take(vg_list_entry(it, struct env_wait, on_node), to);
}

void vg_env_wake_all(struct vg_env *e, struct vg_list *to) {
    vg_list_for_each_safe (it, &e->waiting)
        take(vg_list_entry(it, struct env_wait, all), to);
}

void vg_env_run(struct vg_env *e, struct vg_list *waits) {
    vg_list_for_each_safe (it, waits) {
        struct env_wait *w = vg_list_entry(it, struct env_wait, all);
        struct env_call c = {.e = e, .r = w->r, .since = w->since};
        vg_list_remove(&w->all);
        free(w);
        vg_env_request(&c);
    }
}

/* A path for people; the node may lie nowhere. */
static void path_of(const struct env_node *n, char *out, size_t size) {
    char tail[512] = "";
    for (; n && n->name; n = n->parent) {
        char longer[512];
        snprintf(longer, sizeof(longer), "/%.*s%s", (int)VG_MIN(n->name_len, 200), n->name, tail);
        memcpy(tail, longer, sizeof(tail));
    }
    snprintf(out, size, "%s", *tail ? tail : "/");
}

static void tell_waiting(struct vg_env *e, uint64_t now, const char *path) {
    char host[128], text[900];
    if (vg_links_up(e->conf.links) || (e->note_usec && now - e->note_usec < e->wait_limit_usec))
        return;
    e->note_usec = now;
    vg_links_host(e->conf.links, host, sizeof(host));
    snprintf(text, sizeof(text),
             "waiting for %s, which does not answer: %s is not on this node yet; cached files go "
             "on, and the task goes on when it is back",
             host, path);
    if (e->conf.note)
        e->conf.note(e->conf.user, text);
}

void vg_env_tick(struct vg_env *e, uint64_t now) {
    struct vg_list late;
    char path[512], host[128];
    vg_list_init(&late);
    pthread_mutex_lock(&e->lock);
    vg_list_for_each_safe (it, &e->waiting) {
        struct env_wait *w = vg_list_entry(it, struct env_wait, all);
        uint64_t age = now > w->since ? now - w->since : 0;
        if (age < VG_MIN(ENV_WAIT_NOTE_USEC, e->wait_limit_usec))
            continue;
        path_of(vg_env_node(e, vg_fuse_head(w->r)->nodeid), path, sizeof(path));
        if (age >= e->wait_limit_usec) {
            vg_links_host(e->conf.links, host, sizeof(host));
            vg_warn("gave up waiting for %s after %llu s: EIO for %s", host,
                    (unsigned long long)(age / VG_USEC), path);
            take(w, &late);
        } else {
            tell_waiting(e, now, path);
        }
    }
    if (vg_links_up(e->conf.links))
        e->note_usec = 0;
    if (!vg_list_empty(&e->tasks) || now < e->used_usec)
        e->used_usec = now;
    else if (now - e->used_usec > ENV_IDLE_USEC) /* the next command may well be the same one */
        vg_env_drop_idle(e, 0);
    pthread_mutex_unlock(&e->lock);
    vg_list_for_each_safe (it, &late) {
        struct env_wait *w = vg_list_entry(it, struct env_wait, all);
        vg_fuse_err(w->r, EIO);
        free(w);
    }
    vg_fuse_tick(e->fuse);
}

void vg_env_notify(struct vg_env *e, enum note_kind kind, const struct env_node *n,
                   const char *name, size_t len) {
    struct env_note *grown = vg_grow(e->notes, &e->cap_notes, e->n_notes + 1, sizeof(*e->notes));
    char *copy = name ? vg_strndup(name, len) : NULL;
    if (grown)
        e->notes = grown;
    if (!grown || (name && !copy)) {
        free(copy);
        vg_warn("out of memory: a changed file may be seen as it was");
        return;
    }
    if (kind == NOTE_NAMES && e->n_notes && e->notes[e->n_notes - 1].kind == NOTE_NAMES)
        return;
    e->notes[e->n_notes++] = (struct env_note){.kind = kind, .node = n->number, .name = copy};
    e->noted++;
    pthread_cond_broadcast(&e->notes_changed);
}

static void tell_kernel(struct vg_env *e, const struct env_note *n) {
    switch (n->kind) {
    case NOTE_ENTRY:
        vg_fuse_expire_entry(e->fuse, n->node, n->name, strlen(n->name));
        break;
    case NOTE_INODE:
        vg_fuse_inval_inode(e->fuse, n->node, 0, 0);
        break;
    case NOTE_ATTR:
        vg_fuse_inval_inode(e->fuse, n->node, -1, 0);
        break;
    case NOTE_NAMES:
        vg_fuse_inval_names(e->fuse);
        break;
    }
}

static void *notifier(void *arg) {
    struct vg_env *e = arg;
    pthread_mutex_lock(&e->lock);
    while (!e->stop) {
        if (!e->n_notes) {
            e->notes_busy = false;
            pthread_cond_broadcast(&e->notes_changed);
            pthread_cond_wait(&e->notes_changed, &e->lock);
            continue;
        }
        struct env_note *notes = e->notes;
        size_t n = e->n_notes;
        e->notes = NULL;
        e->n_notes = e->cap_notes = 0;
        e->notes_busy = true;
        pthread_mutex_unlock(&e->lock);
        for (size_t i = 0; i < n; i++) {
            tell_kernel(e, &notes[i]);
            free(notes[i].name);
        }
        free(notes);
        pthread_mutex_lock(&e->lock);
        e->told += n;
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

void vg_env_settle(struct vg_env *e) {
    pthread_mutex_lock(&e->lock);
    while ((e->n_notes || e->notes_busy) && !e->stop)
        pthread_cond_wait(&e->notes_changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

int vg_env_notifier_start(struct vg_env *e) {
    int r = pthread_create(&e->notifier, NULL, notifier, e);
    e->notifying = !r;
    return -r;
}

void vg_env_notifier_stop(struct vg_env *e) {
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_cond_broadcast(&e->notes_changed);
    pthread_mutex_unlock(&e->lock);
    if (e->notifying)
        pthread_join(e->notifier, NULL);
    for (size_t i = 0; i < e->n_notes; i++)
        free(e->notes[i].name);
    free(e->notes);
}
