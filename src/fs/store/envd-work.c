/* What requests do: names, lists, sharing, collecting. Each on a thread of its own. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/envd-int.h"
#include "fs/store/keep.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

#define LIST_MAX 10000

static bool user_good(const char *user) {
    return user && *user && *user != '.' && !strchr(user, '/') && strlen(user) <= VG_ENV_NAME_MAX;
}

/* One that is asked for while another is under way follows it: that one may not have seen why. */
void vg_envd_collect(struct vg_estore *s) {
    struct vg_egc_stat st;
    do {
        struct vg_err err = VG_ERR_INIT;
        st = (struct vg_egc_stat){0};
        if (vg_estore_gc(s, &st, &err) < 0 && err.code != -EBUSY)
            vg_warn("%s", err.msg);
        else if (!err.code && st.removed)
            vg_info("collected objects=%llu bytes=%llu", (unsigned long long)st.removed,
                    (unsigned long long)st.removed_bytes);
    } while (st.again);
}

/* Once; it tells which users have something in the bucket. */
static int claim(struct vg_envd *d, struct vg_err *err) {
    if (d->broken.msg[0]) {
        *err = d->broken;
        return err->code;
    }
    if (!d->bucket)
        return 0;
    pthread_mutex_lock(&d->claiming); /* who comes second finds what the first has made */
    int r = d->claimed ? 0 : vg_estore_claim(d->bucket, d->dir, err);
    d->claimed = r == 0;
    pthread_mutex_unlock(&d->claiming);
    return r;
}

static int open_now(struct vg_envd *d, const char *user, const char *path, struct vg_estore **ret,
                    struct vg_err *err) {
    struct vg_estore *s;
    int r = vg_estore_open(path, d->quota_bytes, &s, err);
    if (r < 0)
        return r;
    if (d->bucket && (r = vg_estore_join(s, d->bucket, user, d->cache_bytes, err)) < 0)
        vg_estore_close(s);
    else
        *ret = s;
    return r;
}

/* Locked, and let go of meanwhile, because a bucket may take its time. A store is never open twice:
   who comes second waits. */
static struct vg_estore *open_store(struct vg_envd *d, const char *user, const char *path,
                                    struct vg_err *err) {
    struct vg_envstore *e = vg_alloc(sizeof(*e));
    if (e)
        snprintf(e->user, sizeof(e->user), "%s", user);
    if (!e || vg_map_put(&d->stores, e->user, e) < 0) {
        free(e);
        vg_err_sys(err, -ENOMEM, "cannot open the store");
        return NULL;
    }
    struct vg_estore *s = NULL;
    pthread_mutex_unlock(&d->lock);
    int r = open_now(d, user, path, &s, err);
    pthread_mutex_lock(&d->lock);
    e->s = s;
    if (r < 0) {
        vg_map_del(&d->stores, e->user);
        free(e);
    }
    pthread_cond_broadcast(&d->opened);
    return s;
}

struct vg_estore *vg_envd_store(struct vg_envd *d, const char *user, bool make,
                                struct vg_err *err) {
    if (!user_good(user)) {
        vg_err_set(err, VG_INVALID, "no user");
        return NULL;
    }
    vg_auto_free char *path = vg_fmt("%s/u/%s", d->dir, user);
    if (!path) {
        vg_err_sys(err, -ENOMEM, "cannot open the store");
        return NULL;
    }
    struct stat st;
    bool fresh = false;
    if (claim(d, err) < 0)
        return NULL;
    pthread_mutex_lock(&d->lock);
    struct vg_envstore *e;
    while ((e = vg_map_get(&d->stores, user)) && !e->s)
        pthread_cond_wait(&d->opened, &d->lock);
    struct vg_estore *s = e ? e->s : NULL;
    if (!s && (make || stat(path, &st) == 0)) {
        s = open_store(d, user, path, err);
        fresh = s != NULL;
    } else if (!s) {
        vg_err_set(err, VG_NOT_FOUND, "nobody has stored anything");
    }
    pthread_mutex_unlock(&d->lock);
    if (fresh) /* what an earlier life left half done */
        vg_envd_collect(s);
    return s;
}

/* ------------------------------------------------------------------ answers */

Vg__Pb__EnvList *vg_envlist_new(size_t n) {
    Vg__Pb__EnvList *l = vg_alloc(sizeof(*l));
    if (!l)
        return NULL;
    vg__pb__env_list__init(l);
    l->env = vg_alloc((n + 1) * sizeof(*l->env));
    if (!l->env) {
        free(l);
        return NULL;
    }
    return l;
}

int vg_envlist_add(Vg__Pb__EnvList *l, const char *owner, const char *name,
                   const struct vg_eversion *v, bool config) {
    Vg__Pb__EnvInfo *i = vg_alloc(sizeof(*i));
    uint8_t machine[VG_MID];
    if (!i)
        return -ENOMEM;
    vg__pb__env_info__init(i);
    l->env[l->n_env++] = i;
    vg_snap_machine(v->root, machine);
    i->name = vg_strdup(name);
    i->owner = vg_strdup(owner);
    i->source = vg_strdup(v->source);
    i->config = config && v->config ? vg_strdup(v->config) : NULL;
    i->has_version = i->has_created_usec = i->has_files = i->has_bytes = i->has_missing = true;
    i->version = v->version;
    i->created_usec = v->created_usec;
    i->files = v->files;
    i->bytes = v->bytes;
    i->missing = v->missing;
    i->root.data = vg_memdup(v->root, VG_HASH);
    i->machine.data = vg_memdup(machine, VG_MID);
    i->has_root = i->root.data != NULL;
    i->has_machine = i->machine.data != NULL;
    i->root.len = i->has_root ? VG_HASH : 0;
    i->machine.len = i->has_machine ? VG_MID : 0;
    return i->name && i->owner && i->source && i->has_root && i->has_machine ? 0 : -ENOMEM;
}

/* ------------------------------------------------------------------ finding */

int vg_envd_find(struct vg_work *w, struct vg_estore **ret, char owner[VG_ENV_NAME_MAX + 1],
                 char name[VG_ENV_NAME_MAX + 1], struct vg_eversion *v) {
    uint32_t version;
    const char *user = w->m->user ? w->m->user : "";
    int r = vg_env_ref_parse(w->m->ref ? w->m->ref : "", owner, name, &version, &w->err);
    if (r < 0)
        return r;
    bool own = !*owner || strcmp(owner, user) == 0;
    if (own)
        snprintf(owner, VG_ENV_NAME_MAX + 1, "%s", user);
    struct vg_err why = VG_ERR_INIT;
    struct vg_estore *s = vg_envd_store(w->d, owner, false, &why);
    if (!s && own && why.reason != VG_NOT_FOUND) {
        w->err = why;
        return why.code;
    }
    /* Whether another's environment exists is nobody's business. */
    if (!s || (!own && !vg_eref_shared(s, name, w->m->user_team ? w->m->user_team : "")))
        return vg_err_set(&w->err, VG_NOT_FOUND,
                          "there is no environment '%s': 'virga env list' shows those you may use",
                          w->m->ref);
    r = vg_eref_get(s, name, version, v, &w->err);
    if (r == 0)
        *ret = s;
    return r;
}

struct listing {
    struct vg_work *w;
    struct vg_estore *s;
    const char *owner;
    Vg__Pb__EnvList *list;
};

static int list_one(void *user, const char *name, const struct vg_eversion *v) {
    struct listing *l = user;
    const Vg__Pb__EnvReq *m = l->w->m;
    if (strcmp(l->owner, m->user) != 0 &&
        !vg_eref_shared(l->s, name, m->user_team ? m->user_team : ""))
        return 0;
    if (l->list->n_env >= LIST_MAX)
        return 0;
    return vg_envlist_add(l->list, l->owner, name, v, false);
}

static int list_store(struct listing *l, const char *owner) {
    struct vg_err none = VG_ERR_INIT;
    l->owner = owner;
    l->s = vg_envd_store(l->w->d, owner, false, &none);
    return l->s ? vg_eref_each(l->s, list_one, l) : 0;
}

static void do_list(struct vg_work *w) {
    if (claim(w->d, &w->err) < 0)
        return;
    struct listing l = {.w = w, .list = vg_envlist_new(LIST_MAX)};
    vg_auto_free char *path = vg_fmt("%s/u", w->d->dir);
    int r = l.list && path ? 0 : -ENOMEM;
    DIR *dir = path ? opendir(path) : NULL;
    for (struct dirent *e; r == 0 && dir && (e = readdir(dir));)
        if (user_good(e->d_name))
            r = list_store(&l, e->d_name);
    if (dir)
        closedir(dir);
    struct vg_err none = VG_ERR_INIT;
    struct vg_estore *own = r == 0 ? vg_envd_store(w->d, w->m->user, false, &none) : NULL;
    if (l.list) {
        struct vg_estore_stat st = {.quota_bytes = w->d->quota_bytes};
        if (own)
            vg_estore_stats(own, &st);
        l.list->has_used_bytes = l.list->has_quota_bytes = true;
        l.list->used_bytes = st.bytes;
        l.list->quota_bytes = st.quota_bytes;
    }
    w->list = l.list;
    if (r < 0)
        vg_err_sys(&w->err, r, "cannot list the environments");
    else if (!own && none.reason != VG_NOT_FOUND)
        w->err = none;
}

static void do_get(struct vg_work *w) {
    struct vg_estore *s;
    char owner[VG_ENV_NAME_MAX + 1], name[VG_ENV_NAME_MAX + 1];
    struct vg_eversion v;
    if (vg_envd_find(w, &s, owner, name, &v) < 0)
        return;
    w->list = vg_envlist_new(1);
    if (!w->list || vg_envlist_add(w->list, owner, name, &v, true) < 0)
        vg_err_sys(&w->err, -ENOMEM, "cannot answer");
    vg_eversion_done(&v);
}

/* Of one's own only. */
static struct vg_estore *own_store(struct vg_work *w, char name[VG_ENV_NAME_MAX + 1],
                                   uint32_t *version) {
    char owner[VG_ENV_NAME_MAX + 1];
    if (vg_env_ref_parse(w->m->ref ? w->m->ref : "", owner, name, version, &w->err) < 0)
        return NULL;
    if (*owner && strcmp(owner, w->m->user) != 0) {
        vg_err_set(&w->err, VG_FORBIDDEN, "'%s' belongs to %s: only the owner may change it", name,
                   owner);
        return NULL;
    }
    struct vg_estore *s = vg_envd_store(w->d, w->m->user, false, &w->err);
    if (!s && w->err.reason == VG_NOT_FOUND)
        vg_err_set(&w->err, VG_NOT_FOUND, "there is no environment '%s'", name);
    return s;
}

static void do_remove(struct vg_work *w) {
    char name[VG_ENV_NAME_MAX + 1];
    uint32_t version;
    struct vg_estore *s = own_store(w, name, &version);
    if (!s || vg_eref_remove(s, name, version, &w->err) < 0)
        return;
    vg_work_post(w);
    vg_envd_collect(s);
}

static void do_share(struct vg_work *w) {
    char name[VG_ENV_NAME_MAX + 1];
    uint32_t version;
    struct vg_estore *s = own_store(w, name, &version);
    if (s)
        vg_eref_share(s, name, w->m->team ? w->m->team : "", w->m->op == VG__PB__ENV_REQ__OP__SHARE,
                      &w->err);
}

static void do_collect(struct vg_work *w) {
    struct vg_err none = VG_ERR_INIT;
    struct vg_egc_stat st;
    struct vg_estore *s = vg_envd_store(w->d, w->m->user, false, &none);
    if (s)
        vg_estore_gc(s, &st, &w->err);
}

#define KEPT_MAX 200000 /* versions of one answer; the rest is added to the last */

static int count_one(void *user, const char *name, const struct vg_eversion *v) {
    (void)name, (void)v;
    ++*(size_t *)user;
    return 0;
}

struct keeping {
    Vg__Pb__EnvList *list;
    size_t room;
};

/* What a task changed goes by itself (vg_keep_expire), and is not in anybody's list. */
static int keep_one(void *user, const char *name, const struct vg_eversion *v) {
    struct keeping *k = user;
    Vg__Pb__EnvList *l = k->list;
    if (strncmp(name, VG_KEEP_PREFIX, strlen(VG_KEEP_PREFIX)) == 0)
        return 0;
    if (l->n_env && l->n_env >= k->room) {
        l->env[l->n_env - 1]->bytes += v->bytes;
        return 0;
    }
    Vg__Pb__EnvInfo *i = vg_alloc(sizeof(*i));
    if (!i)
        return -ENOMEM;
    vg__pb__env_info__init(i);
    i->has_created_usec = i->has_bytes = true;
    i->created_usec = v->created_usec;
    i->bytes = v->bytes;
    l->env[l->n_env++] = i;
    return 0;
}

static void do_kept(struct vg_work *w) {
    struct vg_err why = VG_ERR_INIT;
    size_t n = 0;
    struct vg_estore *s = vg_envd_store(w->d, w->m->user, false, &why);
    if (!s && why.reason != VG_NOT_FOUND) {
        w->err = why;
        return;
    }
    int r = s ? vg_eref_each(s, count_one, &n) : 0;
    struct keeping k = {.list = vg_envlist_new(VG_MIN(n, (size_t)KEPT_MAX) + 1)};
    k.room = VG_MIN(n, (size_t)KEPT_MAX) + 1;
    w->list = k.list;
    if (r >= 0)
        r = !k.list ? -ENOMEM : s ? vg_eref_each(s, keep_one, &k) : 0;
    if (r < 0)
        vg_err_sys(&w->err, r, "cannot tell what is kept");
}

/* ------------------------------------------------------------------ tasks */

static void hold_id(uint64_t task, char out[VG_ID_LEN + 1]) {
    vg_id_format(task, out);
}

/* The version must still be there when the hold is: then a collection sees one or the other. */
static void hold(struct vg_work *w) {
    struct vg_estore *s;
    char owner[VG_ENV_NAME_MAX + 1], name[VG_ENV_NAME_MAX + 1], id[VG_ID_LEN + 1];
    struct vg_eversion v, again;
    if (vg_envd_find(w, &s, owner, name, &v) < 0)
        return;
    if (strncmp(name, VG_KEEP_PREFIX, strlen(VG_KEEP_PREFIX)) == 0) {
        vg_err_set(&w->err, VG_INVALID, "'%s' is what a task changed, not an environment", name);
        vg_eversion_done(&v);
        return;
    }
    hold_id(w->m->task_id, id);
    if (vg_ehold_set(s, id, &v, &w->err) == 0) {
        if (vg_eref_get(s, name, v.version, &again, &w->err) < 0)
            vg_ehold_drop(s, id);
        else
            vg_eversion_done(&again);
    }
    vg_eversion_done(&v);
}

static void drop_hold(struct vg_work *w) {
    char owner[VG_ENV_NAME_MAX + 1] = "", name[VG_ENV_NAME_MAX + 1], id[VG_ID_LEN + 1];
    uint32_t version;
    struct vg_err none = VG_ERR_INIT;
    if (w->m->ref && *w->m->ref)
        vg_env_ref_parse(w->m->ref, owner, name, &version, &none);
    struct vg_estore *s = vg_envd_store(w->d, *owner ? owner : w->m->user, false, &none);
    hold_id(w->m->task_id, id);
    if (s && vg_ehold_drop(s, id) == 0) {
        vg_work_post(w);
        vg_envd_collect(s);
    }
}

static void do_hold(struct vg_work *w) {
    hold(w);
    pthread_mutex_lock(&w->d->lock);
    bool released = vg_map_del_u64(&w->d->holding, w->m->task_id) == VG_RELEASED;
    pthread_mutex_unlock(&w->d->lock);
    if (released)
        drop_hold(w);
}

struct alive {
    struct vg_work *w;
    struct vg_estore *s;
};

static int drop_dead(void *user, const char *id, const struct vg_eversion *v) {
    struct alive *a = user;
    uint64_t task;
    (void)v;
    if (vg_id_parse(id, &task) < 0)
        return 0;
    for (size_t i = 0; i < a->w->m->n_task; i++)
        if (a->w->m->task[i] == task)
            return 0;
    vg_ehold_drop(a->s, id);
    return 0;
}

static void each_store(struct vg_work *w, void (*each)(struct vg_work *w, struct vg_estore *s)) {
    vg_auto_free char *path = vg_fmt("%s/u", w->d->dir);
    DIR *dir = path ? opendir(path) : NULL;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        struct vg_err err = VG_ERR_INIT;
        struct vg_estore *s =
            user_good(e->d_name) ? vg_envd_store(w->d, e->d_name, false, &err) : NULL;
        if (s)
            each(w, s);
    }
    if (dir)
        closedir(dir);
}

static void drop_holds(struct vg_work *w, struct vg_estore *s) {
    struct alive a = {.w = w, .s = s};
    vg_ehold_each(s, drop_dead, &a);
    vg_envd_collect(s);
}

static void do_tasks(struct vg_work *w) {
    if (claim(w->d, &w->err) == 0)
        each_store(w, drop_holds);
}

static void drop_old(struct vg_work *w, struct vg_estore *s) {
    size_t n = vg_keep_expire(s, w->d->changes_sec * VG_USEC);
    if (!n)
        return;
    vg_info("removed what %zu tasks changed: it is older than the limit", n);
    vg_envd_collect(s);
}

static void do_release(struct vg_work *w) {
    struct vg_envd *d = w->d;
    pthread_mutex_lock(&d->lock);
    struct vg_pin *pin = vg_map_del_u64(&d->pins, w->m->task_id);
    bool later = vg_map_get_u64(&d->holding, w->m->task_id) != NULL;
    if (later)
        (void)vg_map_put_u64(&d->holding, w->m->task_id, VG_RELEASED);
    pthread_mutex_unlock(&d->lock);
    if (pin) {
        vg_ftree_stop_pull(pin->tree);
        vg_ftree_unref(pin->tree);
    }
    free(pin);
    if (!later)
        drop_hold(w);
}

void vg_work_do(struct vg_work *w) {
    static void (*const what[])(struct vg_work *) = {
        [VG__PB__ENV_REQ__OP__LIST] = do_list,       [VG__PB__ENV_REQ__OP__GET] = do_get,
        [VG__PB__ENV_REQ__OP__SAVE] = vg_work_save,  [VG__PB__ENV_REQ__OP__OPEN] = vg_work_link,
        [VG__PB__ENV_REQ__OP__REMOVE] = do_remove,   [VG__PB__ENV_REQ__OP__SHARE] = do_share,
        [VG__PB__ENV_REQ__OP__UNSHARE] = do_share,   [VG__PB__ENV_REQ__OP__COLLECT] = do_collect,
        [VG__PB__ENV_REQ__OP__HOLD] = do_hold,       [VG__PB__ENV_REQ__OP__LINK] = vg_work_link,
        [VG__PB__ENV_REQ__OP__RELEASE] = do_release, [VG__PB__ENV_REQ__OP__TASKS] = do_tasks,
        [VG__PB__ENV_REQ__OP__PIN] = vg_work_pin,    [VG__PB__ENV_REQ__OP__KEPT] = do_kept,
    };
    if (!w->m) {
        if (claim(w->d, &w->err) == 0)
            each_store(w, drop_old);
        return;
    }
    unsigned op = w->m->op;
    if (op >= VG_COUNT(what) || !what[op] || !w->m->user)
        vg_err_set(&w->err, VG_PROTOCOL, "the store does not know what to do");
    else
        what[op](w);
}
