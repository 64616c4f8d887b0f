/* A client's machine: its links, views and tasks joined. What the links bring is handed to the view
   it is for; a project's records may come before the Run that names the project, so they are put
   aside until then. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/node/machine-int.h"

#include <errno.h>
#include <ftw.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>

#define KEEPER_WAIT_USEC (600 * VG_USEC) /* for the keeper of a task whose Run has come */
#define ID_BASE 0x20000000u
#define ID_RANGE 65536u
#define ID_NOBODY 65534u

uint32_t vg_fs_id_out(const struct vg_fs_ids *ids, uint32_t client_id) {
    if (ids->slot == VG_FS_SLOT_NONE)
        return client_id;
    return ID_BASE + ids->slot * ID_RANGE + (client_id < ID_RANGE ? client_id : ID_NOBODY);
}

uint32_t vg_fs_id_in(const struct vg_fs_ids *ids, uint32_t kernel_id) {
    uint32_t base = ID_BASE + ids->slot * ID_RANGE;
    if (ids->slot == VG_FS_SLOT_NONE)
        return kernel_id;
    return kernel_id - base < ID_RANGE ? kernel_id - base : ID_NOBODY;
}

/* ------------------------------------------------------------------ from the links */

static void on_hello(void *user, const Vg__Mr__Hello *h, bool same_epoch) {
    struct vg_machine *m = user;
    if (same_epoch)
        return;
    m->epoch++;
    m->told = false;
    vg_voided_clear(&m->voided);
    vg_gen_epoch(m, h->root);
    for (size_t v = 0; v < m->n_view; v++)
        vg_proj_new_epoch(m->view[v].proj, 0, 0); /* until its Run comes */
}

static void on_inval(void *user, const Vg__Mr__Inval *i) {
    struct vg_machine *m = user;
    for (size_t f = 0; f < i->n_folder; f++)
        vg_voided_add(&m->voided, i->folder[f], i->seq);
    if (i->all)
        vg_voided_add(&m->voided, 0, i->seq);
    vg_gen_inval(m, i);
    for (size_t v = 0; v < m->n_view; v++) {
        if (i->all)
            vg_proj_inval(m->view[v].proj, 0);
        for (size_t f = 0; f < i->n_folder; f++)
            vg_proj_inval(m->view[v].proj, i->folder[f]);
    }
}

static void stash(struct vg_machine *m, const struct vg_dirrec *rec) {
    struct stashed *s =
        m->stash_bytes + rec->len > MACHINE_STASH ? NULL : vg_alloc(sizeof(*s) + rec->len);
    if (!s)
        return; /* it is asked for when it is needed */
    s->len = rec->len;
    memcpy(s->rec, rec->base, rec->len);
    m->stash_bytes += s->len;
    vg_list_push_back(&m->stash, &s->link);
}

static void on_dir(void *user, uint64_t req, const struct vg_dirrec *rec) {
    struct vg_machine *m = user;
    bool taken = false;
    if (vg_voided_is(&m->voided, rec->object, rec->seq)) {
        for (size_t v = 0; v < m->n_view && !taken; v++)
            taken = vg_proj_dir_void(m->view[v].proj, rec->object);
        if (!taken)
            vg_links_get_dir(m->links, rec->object); /* who waits for it gets the present one */
        return;
    }
    for (size_t v = 0; v < m->n_view && !taken; v++)
        taken = vg_proj_dir(m->view[v].proj, req, rec);
    if (taken)
        return;
    vg_list_for_each (it, &m->gens)
        taken |= vg_env_dir(vg_list_entry(it, struct mgen, link)->env, req, rec);
    if (req && taken && m->gen->frozen)
        vg_gen_remember(m, rec->object); /* it may tell of a change that nothing else names */
    if (!req && (!taken || m->gen->frozen))
        stash(m, rec); /* for a view that the next Run makes */
}

static bool on_data(void *user, uint64_t req, uint64_t object, uint64_t off, uint64_t size,
                    uint32_t tag, const void *data, size_t n) {
    struct vg_machine *m = user;
    int r = 0;
    (void)req;
    for (size_t v = 0; v < m->n_view && !r; v++)
        r = vg_proj_data(m->view[v].proj, object, off, size, tag, data, n);
    bool fits = r >= 0;
    if (!r)
        vg_list_for_each (it, &m->gens)
            fits &= vg_env_data(vg_list_entry(it, struct mgen, link)->env, object, off, size, tag,
                                data, n) >= 0;
    return fits;
}

static void on_missed(void *user, uint64_t object) {
    struct vg_machine *m = user;
    for (size_t v = 0; v < m->n_view; v++)
        if (vg_proj_missed(m->view[v].proj, object))
            return;
    vg_list_for_each (it, &m->gens)
        vg_env_missed(vg_list_entry(it, struct mgen, link)->env, object);
}

static void on_ended(void *user, uint64_t object) {
    struct vg_machine *m = user;
    for (size_t v = 0; v < m->n_view; v++)
        if (vg_proj_ended(m->view[v].proj, object))
            return;
    vg_list_for_each (it, &m->gens)
        vg_env_ended(vg_list_entry(it, struct mgen, link)->env, object);
}

static void on_fail(void *user, const Vg__Mr__Fail *f) {
    struct vg_machine *m = user;
    bool taken = false;
    for (size_t v = 0; v < m->n_view && !taken; v++)
        taken = vg_proj_fail(m->view[v].proj, f);
    if (!taken)
        vg_list_for_each (it, &m->gens)
            vg_env_fail(vg_list_entry(it, struct mgen, link)->env, f);
}

static void on_run(void *user, const Vg__Mr__Run *run) {
    vg_machine_on_run(user, run);
}

static void on_ack(void *user, const Vg__Mr__Ack *a) {
    vg_oplog_ack(((struct vg_machine *)user)->log, a);
}

static void on_note(void *user, const Vg__Mr__Note *n) {
    struct vg_machine *m = user;
    if (n->text && m->conf.note)
        m->conf.note(m->conf.user, n->task, n->text);
}

static void on_resend(void *user) {
    vg_oplog_resend(((struct vg_machine *)user)->log);
    vg_mkeep_resend(user);
}

static void on_kept(void *user, const Vg__Mr__Kept *k) {
    vg_mkeep_answered(user, k);
}

static uint64_t on_next_op(void *user) {
    return vg_oplog_next(((struct vg_machine *)user)->log);
}

/* ------------------------------------------------------------------ its life */

static int build(struct vg_machine *m, struct vg_err *err) {
    static const struct vg_link_ops ops = {.hello = on_hello,
                                           .run = on_run,
                                           .inval = on_inval,
                                           .dir = on_dir,
                                           .data = on_data,
                                           .missed = on_missed,
                                           .ended = on_ended,
                                           .fail = on_fail,
                                           .ack = on_ack,
                                           .note = on_note,
                                           .kept = on_kept,
                                           .resend = on_resend,
                                           .next_op = on_next_op};
    m->dir = vg_strdup(m->conf.dir);
    m->cache_dir = vg_strdup(m->conf.cache_dir);
    int r = !m->dir || (m->conf.cache_dir && !m->cache_dir) ? -ENOMEM : vg_mkdir_p(m->dir, 0700);
    if (r >= 0)
        r = vg_links_new(&ops, m, m->conf.daemon, m->conf.node, &m->links);
    if (r >= 0)
        r = vg_oplog_new(m->links, m->dir, &m->log);
    if (r < 0)
        return vg_err_sys(err, r, "cannot make a place for the client's machine in %s",
                          m->conf.dir);
    return vg_gen_first(m, err);
}

int vg_machine_new(const struct vg_machine_conf *conf, struct vg_machine **ret,
                   struct vg_err *err) {
    struct vg_machine *m = vg_alloc(sizeof(*m));
    if (!m)
        return vg_err_sys(err, ENOMEM, "cannot make a place for the client's machine");
    m->conf = *conf;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->idle, NULL);
    pthread_cond_init(&m->kept, NULL);
    vg_list_init(&m->tasks);
    vg_list_init(&m->stash);
    vg_list_init(&m->gens);
    m->root_object = VG_OBJ_ROOT;
    int r = build(m, err);
    m->conf.dir = m->conf.node = m->conf.cache_dir = NULL; /* borrowed for this call only */
    if (r < 0) {
        vg_machine_free(m);
        return r;
    }
    *ret = m;
    return 0;
}

static void free_views(struct vg_machine *m) {
    for (size_t i = 0; i < m->n_view; i++) {
        vg_proj_free(m->view[i].proj);
        if (m->view[i].at)
            rmdir(m->view[i].at);
        free(m->view[i].path);
        free(m->view[i].at);
    }
    vg_list_for_each_safe (it, &m->gens)
        vg_gen_free(vg_list_entry(it, struct mgen, link));
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)st, (void)kind, (void)at;
    if (remove(path) < 0)
        vg_debug("cannot remove %s: %s", path, strerror(errno));
    return 0;
}

void vg_machine_clear(const char *dir) {
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

static void await_jobs(struct vg_machine *m) {
    pthread_mutex_lock(&m->lock);
    while (m->jobs)
        pthread_cond_wait(&m->idle, &m->lock);
    pthread_mutex_unlock(&m->lock);
}

void vg_machine_free(struct vg_machine *m) {
    if (!m)
        return;
    pthread_mutex_lock(&m->lock);
    m->stopping = true;
    pthread_cond_broadcast(&m->kept);
    pthread_mutex_unlock(&m->lock);
    await_jobs(m);
    /* The receiving thread must not meet a view that is gone, and views ask through the links: the
       thread stops first, the memory goes last. */
    vg_links_stop(m->links);
    await_jobs(m); /* that began meanwhile */
    vg_list_for_each (it, &m->tasks)
        vg_image_unref(vg_list_entry(it, struct mtask, link)->image);
    free_views(m);
    vg_oplog_free(m->log);
    vg_links_free(m->links);
    vg_voided_clear(&m->voided);
    vg_list_for_each_safe (it, &m->stash)
        free(vg_list_entry(it, struct stashed, link));
    vg_list_for_each_safe (it, &m->tasks) {
        struct mtask *t = vg_list_entry(it, struct mtask, link);
        vg_mkeep_free(t->keep);
        free(t->place);
        free(t);
    }
    pthread_cond_destroy(&m->idle);
    pthread_cond_destroy(&m->kept);
    pthread_mutex_destroy(&m->lock);
    if (m->dir)
        vg_machine_clear(m->dir);
    free(m->dir);
    free(m->cache_dir);
    free(m->pending);
    free(m);
}

int vg_machine_link(struct vg_machine *m, int fd, uint64_t task) {
    return vg_links_add(m->links, fd, task);
}

size_t vg_machine_tasks(struct vg_machine *m) {
    size_t n = 0;
    pthread_mutex_lock(&m->lock);
    vg_list_for_each (it, &m->tasks)
        n++;
    pthread_mutex_unlock(&m->lock);
    return n;
}

void vg_machine_settle(struct vg_machine *m) {
    pthread_mutex_lock(&m->lock);
    struct mgen *g = m->gen;
    g->users++; /* it stays */
    pthread_mutex_unlock(&m->lock);
    if (g->compile)
        vg_compile_settle(g->compile);
    pthread_mutex_lock(&m->lock);
    g->users--;
    pthread_mutex_unlock(&m->lock);
}

void vg_machine_tick(struct vg_machine *m, uint64_t now_usec) {
    pthread_mutex_lock(&m->lock);
    vg_list_for_each (it, &m->gens)
        vg_env_tick(vg_list_entry(it, struct mgen, link)->env, now_usec);
    vg_list_for_each_safe (it, &m->tasks) {
        struct mtask *t = vg_list_entry(it, struct mtask, link);
        if (!t->wanted && now_usec - t->since_usec > KEEPER_WAIT_USEC && now_usec > t->since_usec) {
            t->gone = true;
            vg_mtask_put(m, t);
        }
    }
    pthread_mutex_unlock(&m->lock);
}

void vg_machine_let_go(struct vg_machine *m, bool all) {
    pthread_mutex_lock(&m->lock);
    vg_list_for_each (it, &m->gens) {
        struct vg_env *e = vg_list_entry(it, struct mgen, link)->env;
        if (all || !vg_env_used(e))
            (void)vg_env_let_go(e);
    }
    pthread_mutex_unlock(&m->lock);
}

static json_t *compile_json(struct vg_compile *c) {
    struct vg_compile_stat s;
    vg_compile_stats(c, &s);
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b}", "images", (json_int_t)s.images,
                     "files", (json_int_t)s.files, "folders", (json_int_t)s.folders, "bytes",
                     (json_int_t)s.bytes, "held_bytes", (json_int_t)s.held_bytes, "taken",
                     (json_int_t)s.taken, "refused", (json_int_t)s.refused, "unable", s.unable);
}

static void sum_envs(struct vg_machine *m, struct vg_env_stat *ret, size_t *ret_gens) {
    *ret = (struct vg_env_stat){0};
    *ret_gens = 0;
    pthread_mutex_lock(&m->lock);
    vg_list_for_each (it, &m->gens) {
        struct vg_env_stat e;
        vg_env_stats(vg_list_entry(it, struct mgen, link)->env, &e);
        ret->nodes += e.nodes;
        ret->folders += e.folders;
        ret->opens += e.opens;
        ret->passthrough += e.passthrough;
        ret->reads += e.reads;
        ret->waits += e.waits;
        ++*ret_gens;
    }
    pthread_mutex_unlock(&m->lock);
}

json_t *vg_machine_json(struct vg_machine *m) {
    struct vg_links_stat l;
    struct vg_env_stat e;
    size_t gens;
    char host[128], id[2 * VG_MID + 1];
    vg_links_stats(m->links, &l);
    sum_envs(m, &e, &gens);
    vg_links_host(m->links, host, sizeof(host));
    for (size_t i = 0; i < VG_MID; i++)
        snprintf(id + 2 * i, 3, "%02x", m->conf.machine[i]);
    json_t *j = json_pack(
        "{s:s, s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:I, s:I, s:I}",
        "machine", id, "host", host, "up", vg_links_up(m->links), "tasks",
        (json_int_t)vg_machine_tasks(m), "links", (json_int_t)l.links, "breaks",
        (json_int_t)l.breaks, "demands", (json_int_t)l.demands, "met", (json_int_t)l.met, "ahead",
        (json_int_t)l.ahead, "demand_bytes", (json_int_t)l.demand_bytes, "pushed",
        (json_int_t)l.pushed, "pushed_bytes", (json_int_t)l.pushed_bytes, "sent_bytes",
        (json_int_t)l.sent_bytes, "received_bytes", (json_int_t)l.received_bytes, "nodes",
        (json_int_t)e.nodes, "folders", (json_int_t)e.folders, "opens", (json_int_t)e.opens,
        "passthrough", (json_int_t)e.passthrough, "reads", (json_int_t)e.reads, "waits",
        (json_int_t)e.waits);
    json_object_set_new(j, "views", json_integer((json_int_t)gens));
    pthread_mutex_lock(&m->lock);
    if (m->gen->compile)
        json_object_set_new(j, "compiled", compile_json(m->gen->compile));
    pthread_mutex_unlock(&m->lock);
    return j;
}
