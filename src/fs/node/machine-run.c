/* Runs of a machine: a Run makes its projects' views on the receiving thread, so that what follows
   on the link finds them; what has to wait for the client or the kernel (making them true, writing
   back) has a thread of its own for as long as it takes. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/node/machine-int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct mtask *vg_mtask(struct vg_machine *m, uint64_t task) {
    vg_list_for_each (it, &m->tasks) {
        struct mtask *t = vg_list_entry(it, struct mtask, link);
        if (t->task == task && !t->gone) /* else an earlier attempt's, that is being cleared away */
            return t;
    }
    return NULL;
}

struct mtask *vg_mtask_have(struct vg_machine *m, uint64_t task) {
    struct mtask *t = vg_mtask(m, task);
    if (!t && (t = vg_alloc(sizeof(*t)))) {
        t->task = task;
        t->since_usec = vg_now_usec();
        vg_list_push_back(&m->tasks, &t->link);
    }
    return t;
}

void vg_mtask_put(struct vg_machine *m, struct mtask *t) {
    bool strict = false;
    if (!t->gone || t->jobs)
        return;
    for (size_t i = 0; i < t->n_view; i++)
        if (--t->view[i]->users == 0)
            vg_proj_settle(t->view[i]->proj);
    struct mgen *g = t->gen;
    vg_list_remove(&t->link);
    vg_image_unref(t->image);
    vg_mkeep_free(t->keep);
    free(t->place);
    free(t);
    if (!g)
        return;
    g->users--;
    vg_list_for_each (it, &m->tasks) {
        const struct mtask *other = vg_list_entry(it, struct mtask, link);
        strict |= other->gen == g && other->strict;
    }
    vg_env_set_strict(g->env, strict);
}

/* ------------------------------------------------------------------ jobs */

struct job {
    struct vg_machine *m;
    struct mtask *t;
    void (*work)(struct vg_machine *m, struct mtask *t, void *arg);
    void *arg;
};

static void *run_job(void *arg) {
    struct job j = *(struct job *)arg;
    free(arg);
    j.work(j.m, j.t, j.arg);
    pthread_mutex_lock(&j.m->lock);
    j.t->jobs--;
    vg_mtask_put(j.m, j.t);
    if (--j.m->jobs == 0)
        pthread_cond_broadcast(&j.m->idle);
    pthread_mutex_unlock(&j.m->lock);
    return NULL;
}

/* Locked. */
static int start_job(struct vg_machine *m, struct mtask *t,
                     void (*work)(struct vg_machine *, struct mtask *, void *), void *arg) {
    struct job *j = vg_alloc(sizeof(*j));
    pthread_attr_t attr;
    pthread_t thread;
    if (!j)
        return -ENOMEM;
    *j = (struct job){.m = m, .t = t, .work = work, .arg = arg};
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    m->jobs++;
    t->jobs++;
    int r = pthread_create(&thread, &attr, run_job, j);
    pthread_attr_destroy(&attr);
    if (r) {
        m->jobs--;
        t->jobs--;
        free(j);
    }
    return -r;
}

/* Once, whether the keeper or the Run comes last. */
static void tell_ready(struct vg_machine *m, struct mtask *t) {
    pthread_mutex_lock(&m->lock);
    bool tell = t->wanted && t->started && !t->told;
    t->told |= tell;
    pthread_mutex_unlock(&m->lock);
    if (tell)
        m->conf.ready(m->conf.user, t->task, t->code, t->text);
}

static void make_ready(struct vg_machine *m, struct mtask *t, void *arg) {
    (void)arg;
    int r = 0;
    char text[240] = "";
    if (!t->traced) {
        t->traced = vg_env_trace_begin(t->gen->env, t->task) >= 0;
        for (size_t i = 0; i < t->n_view; i++)
            (void)vg_proj_trace_begin(t->view[i]->proj, t->task); /* a hint */
    }
    vg_env_settle(t->gen->env);
    for (size_t i = 0; r >= 0 && i < t->n_view; i++) {
        r = vg_proj_begin(t->view[i]->proj, t->task, t->sync[i]);
        if (r < 0)
            snprintf(text, sizeof(text),
                     "the client did not say in time what is in %.120s: %s; run it again",
                     t->view[i]->path, strerror(-r));
    }
    /* What is read from an image is not seen here: a command without a trace runs on FUSE alone, so
       that it gets one. */
    if (r >= 0 && t->gen->compile && t->known)
        t->image = vg_compile_take(t->gen->compile);
    pthread_mutex_lock(&m->lock);
    if (!t->code)
        t->code = -r;
    if (r < 0 && !*t->text)
        memcpy(t->text, text, sizeof(t->text));
    t->started = true;
    pthread_mutex_unlock(&m->lock);
    tell_ready(m, t);
}

/* ------------------------------------------------------------------ Run */

static bool replay(struct vg_machine *m, const struct stashed *s) {
    struct vg_dirrec rec;
    /* It may have been outdated while it lay here. */
    bool taken =
        vg_dirrec_open(&rec, s->rec, s->len) < 0 || vg_voided_is(&m->voided, rec.object, rec.seq);
    for (size_t v = 0; v < m->n_view && !taken; v++)
        taken = vg_proj_dir(m->view[v].proj, 0, &rec);
    return taken || vg_env_dir(m->gen->env, 0, &rec);
}

/* One may lie in another that came later. */
static void replay_stash(struct vg_machine *m) {
    for (bool more = true; more;) {
        more = false;
        vg_list_for_each_safe (it, &m->stash) {
            struct stashed *s = vg_list_entry(it, struct stashed, link);
            if (!replay(m, s))
                continue;
            more = true;
            vg_list_remove(it);
            free(s);
        }
    }
    vg_list_for_each_safe (it, &m->stash) {
        vg_list_remove(it);
        free(vg_list_entry(it, struct stashed, link));
    }
    m->stash_bytes = 0;
}

static void proj_note(void *user, const char *text) {
    struct vg_machine *m = user;
    if (m->conf.note)
        m->conf.note(m->conf.user, 0, text);
}

static int new_view(struct vg_machine *m, const Vg__Mr__View *v, const char *path, bool strict,
                    struct mview *ret, struct vg_err *err) {
    struct vg_mstat root = {.mode = S_IFDIR | 0755};
    vg_auto_free char *dir = vg_fmt("%s/view-%zu", m->dir, m->n_view);
    struct mview view = {.path = vg_strdup(path), .at = vg_fmt("%s/at-%zu", m->dir, m->n_view)};
    struct vg_view_conf conf = {.links = m->links,
                                .cache = m->conf.cache,
                                .ids = m->conf.ids,
                                .dir = dir,
                                .at = view.at,
                                .no_passthrough = m->conf.no_passthrough,
                                .strict = strict,
                                .note = proj_note,
                                .user = m};
    memcpy(conf.machine, m->conf.machine, VG_MID);
    if (v->stat)
        vg_mw_stat_from(&root, v->stat);
    int r = !view.path || !view.at || !dir ? -ENOMEM : 0;
    if (r < 0 || (r = vg_mkdir_p(dir, 0700)) < 0 || (r = vg_mkdir_p(view.at, 0700)) < 0)
        vg_err_sys(err, r, "cannot make a place for %s", path);
    else
        r = vg_proj_new(&conf, m->log, v->id, v->root, &root, v->sync, &view.proj, err);
    if (r < 0) {
        free(view.path);
        free(view.at);
        return r;
    }
    *ret = view;
    return 0;
}

/* The project's view, made when it is new, moved to this service when that is. */
static int have_view(struct vg_machine *m, const Vg__Mr__View *v, bool strict, struct mview **ret,
                     struct vg_err *err) {
    char path[4096];
    if (!v->has_path || !v->path.len || v->path.len >= sizeof(path) || v->path.data[0] != '/' ||
        memchr(v->path.data, 0, v->path.len))
        return vg_err_set(err, VG_PROTOCOL, "the client named a folder that is no absolute path");
    memcpy(path, v->path.data, v->path.len);
    path[v->path.len] = 0;
    for (size_t i = 0; i < m->n_view; i++)
        if (!strcmp(m->view[i].path, path)) {
            *ret = &m->view[i];
            if ((*ret)->epoch != m->epoch || (*ret)->id != v->id)
                vg_proj_new_epoch((*ret)->proj, v->id, v->root);
            (*ret)->epoch = m->epoch;
            (*ret)->id = v->id;
            return 0;
        }
    if (m->n_view == MACHINE_VIEWS)
        return vg_err_set(err, VG_TOO_BIG, "more than %u writable folders of one machine on a node",
                          MACHINE_VIEWS);
    struct mview view;
    int r = new_view(m, v, path, strict, &view, err);
    if (r < 0)
        return r;
    view.id = v->id;
    view.epoch = m->epoch;
    m->view[m->n_view] = view;
    *ret = &m->view[m->n_view];
    pthread_mutex_lock(&m->lock);
    m->n_view++;
    pthread_mutex_unlock(&m->lock);
    return 0;
}

static int take_views(struct vg_machine *m, const Vg__Mr__Run *run, struct mtask *t,
                      struct vg_err *err) {
    for (size_t i = 0; i < run->n_view; i++) {
        const Vg__Mr__View *v = run->view[i];
        struct mview *view = NULL;
        if (!v->id)
            continue;
        int r = have_view(m, v, run->strict, &view, err);
        if (r < 0)
            return r;
        bool known = false;
        for (size_t k = 0; k < t->n_view; k++)
            known |= t->view[k] == view;
        if (known)
            continue;
        if (t->n_view == VG_COUNT(t->view))
            return vg_err_set(err, VG_TOO_BIG, "a task may write at most %zu folders",
                              VG_COUNT(t->view));
        pthread_mutex_lock(&m->lock);
        view->users++;
        t->sync[t->n_view] = v->sync;
        t->view[t->n_view++] = view;
        pthread_mutex_unlock(&m->lock);
    }
    return 0;
}

void vg_machine_on_run(struct vg_machine *m, const Vg__Mr__Run *run) {
    struct vg_err err = VG_ERR_INIT;
    if (run->early && !m->told)
        return; /* it would ask for everything: what it lacks is on its way, with another Run */
    m->told |= !run->early;
    pthread_mutex_lock(&m->lock);
    struct mtask *t = vg_mtask_have(m, run->task);
    bool again = t && t->run;
    if (t) {
        t->jobs++; /* stays while we work on it */
        t->run = true;
        t->strict = run->strict;
        t->known = run->traced;
    }
    pthread_mutex_unlock(&m->lock);
    if (!t) {
        vg_warn("out of memory: a run is lost");
        return;
    }
    int r = again ? 0 : vg_gen_for_run(m, &err);
    if (r >= 0)
        r = take_views(m, run, t, &err);
    replay_stash(m);
    pthread_mutex_lock(&m->lock);
    if (!t->gen) {
        t->gen = m->gen;
        t->gen->users++;
    }
    if (run->strict)
        vg_env_set_strict(t->gen->env, true);
    if (r < 0) {
        t->code = -r;
        snprintf(t->text, sizeof(t->text), "%.230s", err.msg);
    }
    if (!again && (r = start_job(m, t, make_ready, NULL)) < 0)
        vg_warn("cannot start a thread for a run: %s", strerror(-r));
    t->jobs--;
    vg_mtask_put(m, t);
    pthread_mutex_unlock(&m->lock);
}

/* ------------------------------------------------------------------ calls of fsd */

int vg_machine_task(struct vg_machine *m, uint64_t task, bool on_disk) {
    pthread_mutex_lock(&m->lock);
    struct mtask *t = vg_mtask_have(m, task);
    int r = !t ? -ENOMEM : t->wanted ? -EEXIST : 0;
    if (!r) {
        t->wanted = true;
        t->on_disk = on_disk;
    }
    pthread_mutex_unlock(&m->lock);
    if (!r)
        tell_ready(m, t);
    return r;
}

int vg_machine_mounts(struct vg_machine *m, uint64_t task, struct vg_machine_mounts *ret) {
    *ret = (struct vg_machine_mounts){.env = -1, .image = -1, .data = -1, .upper = -1};
    pthread_mutex_lock(&m->lock);
    struct mtask *t = vg_mtask(m, task);
    int r = t && t->started ? vg_env_mount(t->gen->env) : -ENOENT;
    ret->env = r;
    if (r >= 0 && t->image)
        r = vg_image_mounts(t->image, &ret->image, &ret->data);
    for (size_t i = 0; r >= 0 && i < t->n_view; i++) {
        r = vg_proj_mount(t->view[i]->proj);
        if (r < 0)
            break;
        ret->proj[ret->n_proj] = r;
        ret->path[ret->n_proj++] = vg_strdup(t->view[i]->path);
        if (!ret->path[ret->n_proj - 1])
            r = -ENOMEM;
    }
    if (r >= 0 && t->on_disk)
        ret->upper = vg_mkeep_place(m, t);
    pthread_mutex_unlock(&m->lock);
    if (r < 0)
        vg_machine_mounts_done(ret);
    return r < 0 ? r : 0;
}

void vg_machine_mounts_done(struct vg_machine_mounts *t) {
    vg_close(&t->env);
    vg_close(&t->image);
    vg_close(&t->data);
    vg_close(&t->upper);
    for (size_t i = 0; i < t->n_proj; i++) {
        vg_close(&t->proj[i]);
        free(t->path[i]);
    }
    t->n_proj = 0;
}

typedef void barrier_done(void *user, uint64_t task, int code, const char *text);
struct barrier {
    struct vg_machine *m;
    uint64_t task;
    barrier_done *done;
};

static void barrier_over(void *user, int code, const char *text) {
    struct barrier *b = user;
    b->done(b->m->conf.user, b->task, code, text);
    free(b);
}

static void write_back(struct vg_machine *m, struct mtask *t, void *arg) {
    struct barrier *b = arg;
    char text[240] = "the node could not put all that was written into its log";
    int r = t->keep ? vg_mkeep_tell(m, t, text, sizeof(text)) : 0;
    for (size_t i = 0; r >= 0 && i < t->n_view; i++)
        r = vg_proj_flush(t->view[i]->proj);
    if (r < 0)
        barrier_over(b, -r, text);
    else
        vg_oplog_barrier(m->log, barrier_over, b);
}

int vg_machine_barrier(struct vg_machine *m, uint64_t task, barrier_done *done) {
    struct barrier *b = vg_alloc(sizeof(*b));
    if (!b)
        return -ENOMEM;
    *b = (struct barrier){.m = m, .task = task, .done = done};
    pthread_mutex_lock(&m->lock);
    struct mtask *t = vg_mtask(m, task);
    int r = t ? start_job(m, t, write_back, b) : -ENOENT;
    pthread_mutex_unlock(&m->lock);
    if (r < 0)
        free(b);
    return r;
}

void vg_machine_ended(struct vg_machine *m, uint64_t task) {
    Vg__Mr__Trace *trace = NULL;
    pthread_mutex_lock(&m->lock);
    struct mtask *t = vg_mtask(m, task);
    bool send = t && t->traced && !t->ended;
    if (t)
        t->ended = true;
    struct mgen *g = send ? t->gen : NULL; /* stays while the task holds it, as its views do */
    struct mview *view[VG_COUNT(t->view)];
    size_t n = send ? t->n_view : 0;
    if (n)
        memcpy(view, t->view, n * sizeof(view[0]));
    pthread_mutex_unlock(&m->lock);
    if (g && g->compile)
        vg_compile_kick(g->compile);
    if (!g || vg_env_trace_end(g->env, task, &trace) < 0)
        return;
    for (size_t i = 0; i < n; i++)
        vg_proj_trace_end(view[i]->proj, task, trace);
    Vg__Mr__Msg msg = VG__MR__MSG__INIT;
    msg.body_case = VG__MR__MSG__BODY_TRACE;
    msg.trace = trace;
    if (trace->n_used)
        vg_links_send(m->links, &msg); /* a trace is a hint: without a link it is lost */
    vg__mr__trace__free_unpacked(trace, NULL);
}

void vg_machine_gone(struct vg_machine *m, uint64_t task) {
    vg_machine_ended(m, task);
    pthread_mutex_lock(&m->lock);
    struct mtask *t = vg_mtask(m, task);
    if (t) {
        t->gone = true;
        pthread_cond_broadcast(&m->kept); /* whoever waits for the store on its behalf */
        if (t->place)
            (void)start_job(m, t, vg_mkeep_clear, NULL); /* else it goes with the machine */
        vg_mtask_put(m, t);
    }
    pthread_mutex_unlock(&m->lock);
}
