/* Links: saving what a client serves, pinning a batch task's, serving to nodes and clients. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/envd-int.h"
#include "fs/store/keep.h"
#include "fs/store/pull.h"

#include <string.h>
#include <time.h>

#define PIN_PATIENCE_SEC 60 /* then the next offer brings a link */

/* ------------------------------------------------------------------ saving */

static int pull_paths(struct vg_work *w, struct vg_pull_conf *conf, char **paths, size_t max) {
    size_t n = w->m->n_path;
    if (n > max)
        return vg_err_set(&w->err, VG_TOO_BIG, "at most %zu paths can be saved at once", max);
    for (size_t i = 0; i < n; i++) {
        paths[i] = vg_strndup((char *)w->m->path[i].data, w->m->path[i].len);
        if (!paths[i])
            return vg_err_sys(&w->err, -ENOMEM, "cannot save");
        if (paths[i][0] != '/')
            return vg_err_set(&w->err, VG_INVALID, "'%s' is not an absolute path", paths[i]);
    }
    conf->path = n ? (const char *const *)paths : NULL;
    conf->n_path = n;
    conf->prune = n > 0;
    return 0;
}

static int save(struct vg_work *w, struct vg_estore *s, struct vg_ftree *t, const char *name) {
    char *paths[64] = {0};
    struct vg_pull_conf conf = {.tree = t};
    struct vg_eversion v = {.created_usec = vg_wall_usec(), .config = w->m->config};
    int r = pull_paths(w, &conf, paths, VG_COUNT(paths));
    conf.fd = vg_take_fd(w->fd);
    if (r == 0)
        r = vg_pull(&conf, &w->err);
    else
        vg_close(&conf.fd);
    if (r == 0)
        r = vg_ftree_seal(t, &v, &w->err);
    if (r == 0 && conf.n_path && !v.files)
        r = vg_err_set(
            &w->err, VG_NOT_FOUND,
            "there is nothing to save below '%s': /tmp, /run and what is hidden are never "
            "served ('virga mirror explain PATH')",
            paths[0]);
    snprintf(v.source, sizeof(v.source), "%s", w->m->source ? w->m->source : "");
    v.source[strcspn(v.source, "\n")] = '\0';
    if (r == 0)
        r = vg_eref_add(s, name, &v, &w->err);
    if (r == 0 && (!(w->list = vg_envlist_new(1)) ||
                   vg_envlist_add(w->list, w->m->user, name, &v, false) < 0))
        r = vg_err_sys(&w->err, -ENOMEM, "cannot answer");
    for (size_t i = 0; i < VG_COUNT(paths); i++)
        free(paths[i]);
    return r;
}

void vg_work_save(struct vg_work *w) {
    char owner[VG_ENV_NAME_MAX + 1], name[VG_ENV_NAME_MAX + 1];
    uint32_t version;
    if (vg_env_ref_parse(w->m->ref ? w->m->ref : "", owner, name, &version, &w->err) < 0)
        return;
    if ((*owner && strcmp(owner, w->m->user) != 0) || version || w->fd < 0 ||
        strncmp(name, VG_KEEP_PREFIX, strlen(VG_KEEP_PREFIX)) == 0) {
        vg_err_set(&w->err, VG_INVALID,
                   "'%s': an environment is saved under a plain name; its version is counted",
                   w->m->ref);
        return;
    }
    struct vg_ftree *t = NULL;
    struct vg_estore *s = vg_envd_store(w->d, w->m->user, true, &w->err);
    struct vg_esession *e = s ? vg_esession_begin(s) : NULL;
    int r = !s   ? w->err.code
            : !e ? vg_err_sys(&w->err, -ENOMEM, "cannot save '%s'", name)
                 : vg_ftree_new(s, NULL, &t, &w->err);
    if (r == 0)
        r = save(w, s, t, name);
    vg_ftree_unref(t);
    vg_esession_end(e);
    if (r < 0 && s) { /* what had come is of no use */
        vg_work_post(w);
        vg_envd_collect(s);
    }
}

/* ------------------------------------------------------------------ pinning */

struct pinning {
    struct vg_work *w;
    struct vg_estore *s;
    struct vg_ftree *t;
};

static struct vg_pin *pin_of(struct pinning *p, bool *ret_mine) {
    pthread_mutex_lock(&p->w->d->lock);
    struct vg_pin *pin = vg_map_get_u64(&p->w->d->pins, p->w->m->task_id);
    *ret_mine = pin && pin->tree == p->t;
    pthread_mutex_unlock(&p->w->d->lock);
    return pin; /* to be compared with NULL only */
}

/* Writes what is here now as what the task holds, unless it has ended meanwhile or another offer of
   its client has taken this one's place. */
static int hold(struct pinning *p, struct vg_err *err) {
    struct vg_eversion v = {.created_usec = vg_wall_usec()};
    char id[VG_ID_LEN + 1];
    bool mine;
    vg_id_format(p->w->m->task_id, id);
    snprintf(v.source, sizeof(v.source), "task %s", id);
    int r = vg_ftree_seal(p->t, &v, err);
    pin_of(p, &mine);
    if (r < 0 || !mine)
        return r;
    r = vg_ehold_set(p->s, id, &v, err);
    if (!pin_of(p, &mine)) /* it ended while this was written */
        vg_ehold_drop(p->s, id);
    return r;
}

static void pinned(void *user) {
    struct pinning *p = user;
    struct vg_envd *d = p->w->d;
    if (hold(p, &p->w->err) == 0) {
        pthread_mutex_lock(&d->lock);
        struct vg_pin *pin = vg_map_get_u64(&d->pins, p->w->m->task_id);
        if (pin && pin->tree == p->t)
            pin->complete = true;
        pthread_mutex_unlock(&d->lock);
    }
    vg_work_post(p->w);
}

/* -EALREADY: all of it is here since an earlier offer. One that was cut short is begun anew; what
   had come is in the store. */
static int enter_pin(struct vg_work *w, struct vg_ftree *t) {
    struct vg_pin *pin = vg_alloc(sizeof(*pin)), *old;
    if (!pin)
        return -ENOMEM;
    pin->task = w->m->task_id;
    pin->tree = vg_ftree_ref(t);
    snprintf(pin->user, sizeof(pin->user), "%s", w->m->user);
    pthread_mutex_lock(&w->d->lock);
    old = vg_map_get_u64(&w->d->pins, pin->task);
    int r = old && old->complete ? -EALREADY : vg_map_put_u64(&w->d->pins, pin->task, pin);
    pthread_cond_broadcast(&w->d->pinned);
    pthread_mutex_unlock(&w->d->lock);
    if (r < 0)
        old = pin;
    if (old) {
        vg_ftree_unref(old->tree);
        free(old);
    }
    return r;
}

void vg_work_pin(struct vg_work *w) {
    struct pinning p = {.w = w};
    struct vg_esession *e = NULL;
    int r = w->fd < 0 ? vg_err_set(&w->err, VG_PROTOCOL, "nothing to pin from") : 0;
    if (r == 0 && !(p.s = vg_envd_store(w->d, w->m->user, true, &w->err)))
        r = w->err.code;
    if (r == 0 && !(e = vg_esession_begin(p.s)))
        r = vg_err_sys(&w->err, -ENOMEM, "cannot pin a task's files");
    if (r == 0)
        r = vg_ftree_new(p.s, NULL, &p.t, &w->err);
    if (r == 0 && w->m->machine.len == VG_MID)
        vg_ftree_set_machine(p.t, w->m->machine.data);
    if (r == 0 && (r = enter_pin(w, p.t)) < 0 && r != -EALREADY)
        vg_err_sys(&w->err, r, "cannot pin a task's files");
    if (r == 0) {
        struct vg_pull_conf conf = {.tree = p.t,
                                    .fd = vg_take_fd(w->fd),
                                    .views = true,
                                    .pushes = true,
                                    .stay = true,
                                    .ready = pinned,
                                    .user = &p};
        struct vg_err err = VG_ERR_INIT;
        r = vg_pull(&conf, &err);
        pthread_mutex_lock(&w->d->lock);
        bool answered = w->answered;
        pthread_mutex_unlock(&w->d->lock);
        if (r < 0 && !answered)
            w->err = err;
        struct vg_err last = VG_ERR_INIT;
        if (hold(&p, &last) < 0) /* what came since */
            vg_warn("task=%016llx %s", (unsigned long long)w->m->task_id, last.msg);
    }
    vg_ftree_unref(p.t);
    vg_esession_end(e);
}

/* ------------------------------------------------------------------ serving */

/* Trees that are served under one name of one user are one. */
static struct vg_ftree *tree_get(struct vg_work *w, struct vg_estore *s,
                                 const uint8_t root[VG_HASH], struct vg_envtree **ret) {
    struct vg_envd *d = w->d;
    char key[VG_TREE_KEY], hex[2 * VG_MID + 1];
    uint8_t machine[VG_MID];
    vg_snap_machine(root, machine);
    if (w->m->machine.len == VG_MID)
        memcpy(machine, w->m->machine.data, VG_MID);
    vg_hex(machine, VG_MID, hex);
    snprintf(key, sizeof(key), "%s %s", hex, w->m->user);
    pthread_mutex_lock(&d->lock);
    struct vg_envtree *e = vg_map_get(&d->trees, key);
    if (!e && (e = vg_alloc(sizeof(*e)))) {
        memcpy(e->key, key, sizeof(key));
        if (vg_ftree_new(s, root, &e->t, &w->err) < 0 || vg_map_put(&d->trees, e->key, e) < 0) {
            vg_ftree_unref(e->t);
            free(e);
            e = NULL;
        } else {
            vg_ftree_set_machine(e->t, machine);
        }
    }
    if (e)
        e->users++;
    pthread_mutex_unlock(&d->lock);
    *ret = e;
    return e ? e->t : NULL;
}

static void tree_put(struct vg_envd *d, struct vg_envtree *e) {
    pthread_mutex_lock(&d->lock);
    bool last = --e->users == 0;
    if (last)
        vg_map_del(&d->trees, e->key);
    pthread_mutex_unlock(&d->lock);
    if (last) {
        vg_ftree_unref(e->t);
        free(e);
    }
}

/* Which task the link is for. */
static uint64_t run_of(const struct vg_work *w) {
    return w->m->member ? w->m->member : w->m->task_id;
}

/* Where what the link's task changes is put: with its owner's own things, if anywhere. */
static const struct vg_keep_conf *keeps(struct vg_work *w, struct vg_keep_conf *c) {
    struct vg_err err = VG_ERR_INIT;
    *c = (struct vg_keep_conf){.path = w->m->path, .n_path = w->m->n_path, .all = w->m->keep_all};
    if (w->m->op != VG__PB__ENV_REQ__OP__LINK || (!c->n_path && !c->all))
        return NULL;
    c->store = vg_envd_store(w->d, w->m->user, true, &err);
    if (!c->store)
        vg_warn("task=%016llx what it changes cannot be kept: %s",
                (unsigned long long)w->m->task_id, err.msg);
    return c->store ? c : NULL;
}

int vg_envd_serve(struct vg_work *w, struct vg_estore *s, const uint8_t root[VG_HASH]) {
    struct vg_envtree *e;
    struct vg_ftree *t = tree_get(w, s, root, &e);
    if (!t)
        return w->err.msg[0] ? w->err.code : vg_err_sys(&w->err, -ENOMEM, "cannot serve");
    vg_work_post(w);
    struct vg_keep_conf keep;
    int r = vg_fserve(t, vg_take_fd(w->fd), run_of(w), keeps(w, &keep));
    if (r < 0)
        vg_debug("link task=%016llx: %s", (unsigned long long)w->m->task_id, strerror(-r));
    tree_put(w->d, e);
    return 0;
}

static struct vg_ftree *pinned_tree(struct vg_work *w) {
    pthread_mutex_lock(&w->d->lock);
    struct vg_pin *pin = vg_map_get_u64(&w->d->pins, w->m->task_id);
    struct vg_ftree *t = pin && strcmp(pin->user, w->m->user) == 0 ? vg_ftree_ref(pin->tree) : NULL;
    pthread_mutex_unlock(&w->d->lock);
    return t;
}

/* The task may be on its node before its client's first offer has come. */
static struct vg_ftree *wait_for_pin(struct vg_work *w) {
    struct vg_envd *d = w->d;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PIN_PATIENCE_SEC;
    pthread_mutex_lock(&d->lock);
    int r = 0;
    while (r == 0 && !vg_map_get_u64(&d->pins, w->m->task_id))
        r = pthread_cond_timedwait(&d->pinned, &d->lock, &until);
    pthread_mutex_unlock(&d->lock);
    return pinned_tree(w);
}

static void serve_pin(struct vg_work *w, struct vg_ftree *t) {
    struct vg_keep_conf keep;
    vg_work_post(w);
    vg_fserve(t, vg_take_fd(w->fd), run_of(w), keeps(w, &keep));
    vg_ftree_unref(t);
}

/* What the task holds: of its own, or in the store of who shares the environment with its owner. */
static struct vg_estore *held(struct vg_work *w, struct vg_eversion *v) {
    char owner[VG_ENV_NAME_MAX + 1] = "", name[VG_ENV_NAME_MAX + 1], id[VG_ID_LEN + 1];
    uint32_t version;
    struct vg_err none = VG_ERR_INIT;
    if (w->m->ref && *w->m->ref)
        vg_env_ref_parse(w->m->ref, owner, name, &version, &none);
    struct vg_estore *s = vg_envd_store(w->d, *owner ? owner : w->m->user, false, &none);
    vg_id_format(w->m->task_id, id);
    return s && vg_ehold_get(s, id, v) == 0 ? s : NULL;
}

void vg_work_link(struct vg_work *w) {
    char owner[VG_ENV_NAME_MAX + 1], name[VG_ENV_NAME_MAX + 1];
    struct vg_eversion v = {0};
    struct vg_estore *s = NULL;
    if (w->fd < 0) {
        vg_err_set(&w->err, VG_PROTOCOL, "there is nothing to serve on");
        return;
    }
    vg_set_nonblock(w->fd, false);
    bool task = w->m->op == VG__PB__ENV_REQ__OP__LINK;
    struct vg_ftree *t = task ? pinned_tree(w) : NULL;
    if (t) {
        serve_pin(w, t);
        return;
    }
    if (task && !w->m->ref && !(s = held(w, &v)) && (t = wait_for_pin(w))) {
        serve_pin(w, t);
        return;
    }
    if (task && w->m->ref && !(s = held(w, &v)))
        vg_envd_find(w, &s, owner, name, &v);
    else if (task && !s)
        vg_err_set(&w->err, VG_NOT_FOUND, "the task's environment is not in the store any more");
    else if (!task && vg_envd_find(w, &s, owner, name, &v) < 0)
        return;
    if (s)
        vg_envd_serve(w, s, v.root);
    vg_eversion_done(&v);
}
