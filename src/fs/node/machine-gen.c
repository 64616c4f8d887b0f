/* Generations of the environment. What a task saw of the machine must not change under it: the
   overlay that is its root would answer ESTALE for a name that vanished from its lower layer. So
   while tasks run, the view they use is frozen at the first change, and the next Run gets another
   view: a copy of what is still true, mounted beside it. When no task uses the frozen one, it is
   told what changed and goes on. Gens are added and removed by the receiving thread alone, with
   the lock held; it may look at them without. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/node/machine-int.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define COMPILE_DELAY_USEC (200000ull) /* after a task's end */
#define COMPILE_MIN_FILES 16u
#define PENDING_MAX (1u << 16) /* changed folders; more: everything */

static void env_note(void *user, const char *text) {
    struct vg_machine *m = user;
    if (m->conf.note)
        m->conf.note(m->conf.user, 0, text);
}

static int make_env(struct vg_machine *m, struct mgen *g, struct vg_err *err) {
    /* The real stat comes with the root's record, which is asked for before anything is seen. */
    struct vg_mstat root = {.mode = S_IFDIR | 0755, .nlink = 2, .ino = 1};
    struct vg_view_conf conf = {.links = m->links,
                                .cache = m->conf.cache,
                                .peers = m->conf.peers,
                                .ids = m->conf.ids,
                                .dir = m->dir,
                                .at = g->at,
                                .no_passthrough = m->conf.no_passthrough || !m->conf.deep,
                                .note = env_note,
                                .user = m};
    memcpy(conf.machine, m->conf.machine, VG_MID);
    int r = vg_env_new(&conf, &root, &g->env, err);
    if (r >= 0 && m->conf.wait_limit_usec)
        vg_env_wait_limit(g->env, m->conf.wait_limit_usec);
    return r;
}

static int make_compile(struct vg_machine *m, struct mgen *g, struct vg_err *err) {
    const struct vg_compile_conf conf = {.env = g->env,
                                         .cache = m->conf.cache,
                                         .dir = g->compiled,
                                         .cache_dir = m->cache_dir,
                                         .delay_usec = COMPILE_DELAY_USEC,
                                         .min_files = COMPILE_MIN_FILES};
    return m->cache_dir ? vg_compile_new(&conf, &g->compile, err) : 0;
}

void vg_gen_free(struct mgen *g) {
    vg_compile_free(g->compile);
    vg_env_free(g->env);
    if (g->at)
        rmdir(g->at);
    free(g->at);
    free(g->compiled);
    free(g);
}

int vg_gen_new(struct vg_machine *m, struct mgen **ret, struct vg_err *err) {
    struct mgen *g = vg_alloc(sizeof(*g));
    if (!g)
        return vg_err_sys(err, ENOMEM, "cannot make a place for the client's machine");
    vg_list_init(&g->link);
    g->at = vg_fmt("%s/env-%llu", m->dir, (unsigned long long)m->n_gens);
    g->compiled = vg_fmt("%s/compiled-%llu", m->dir, (unsigned long long)m->n_gens);
    m->n_gens++;
    int r = g->at && g->compiled ? vg_mkdir_p(g->at, 0700) : -ENOMEM;
    if (r < 0)
        vg_err_sys(err, r, "cannot make a place for the client's machine in %s", m->dir);
    else if ((r = make_env(m, g, err)) >= 0)
        r = make_compile(m, g, err);
    if (r < 0) {
        vg_gen_free(g);
        return r;
    }
    *ret = g;
    return 0;
}

static void set_current(struct vg_machine *m, struct mgen *g) {
    pthread_mutex_lock(&m->lock);
    vg_list_push_back(&m->gens, &g->link);
    m->gen = g;
    pthread_mutex_unlock(&m->lock);
}

int vg_gen_first(struct vg_machine *m, struct vg_err *err) {
    struct mgen *g;
    int r = vg_gen_new(m, &g, err);
    if (r >= 0)
        set_current(m, g);
    return r;
}

static unsigned users_of(struct vg_machine *m, const struct mgen *g) {
    pthread_mutex_lock(&m->lock);
    unsigned n = g->users;
    pthread_mutex_unlock(&m->lock);
    return n;
}

void vg_gen_remember(struct vg_machine *m, uint64_t folder) {
    uint64_t *grown = m->n_pending < PENDING_MAX ? vg_grow(m->pending, &m->cap_pending,
                                                           m->n_pending + 1, sizeof(*m->pending))
                                                 : NULL;
    if (!grown) {
        m->pending_all = true;
        return;
    }
    m->pending = grown;
    m->pending[m->n_pending++] = folder;
}

static void freeze(struct mgen *g) {
    g->frozen = true;
    vg_env_freeze(g->env, true);
}

void vg_gen_inval(struct vg_machine *m, const Vg__Mr__Inval *i) {
    struct mgen *g = m->gen;
    if (!g->frozen && !users_of(m, g)) {
        vg_env_inval(g->env, i);
        return;
    }
    if (i->all) {
        m->pending_all = true;
        freeze(g);
    }
    for (size_t k = 0; k < i->n_folder; k++)
        if (vg_env_knows(g->env, i->folder[k])) {
            vg_gen_remember(m, i->folder[k]);
            freeze(g);
        }
}

/* The numbers of the old service mean nothing: a frozen view has to ask for names again wherever it
   needs the service, and nothing of it can be copied. */
void vg_gen_epoch(struct vg_machine *m, uint64_t root_object) {
    m->root_object = root_object;
    if (users_of(m, m->gen)) {
        freeze(m->gen);
        m->pending_all = true;
    }
    vg_list_for_each (it, &m->gens)
        vg_env_new_epoch(vg_list_entry(it, struct mgen, link)->env, root_object);
}

static void inval_pending(struct vg_machine *m, struct vg_env *e) {
    Vg__Mr__Inval i = VG__MR__INVAL__INIT;
    i.folder = m->pending;
    i.n_folder = m->n_pending;
    i.has_all = i.all = m->pending_all;
    vg_env_inval(e, &i);
}

/* A view of its own for the tasks that begin now. */
static int succeed(struct vg_machine *m, struct vg_err *err) {
    struct mgen *g, *old = m->gen;
    int r = vg_gen_new(m, &g, err);
    if (r < 0)
        return r;
    vg_env_new_epoch(g->env, m->root_object);
    if (!m->pending_all) {
        r = vg_env_copy(g->env, old->env);
        if (r < 0)
            vg_warn("a view begins empty: %s", strerror(-r));
        inval_pending(m, g->env);
    }
    set_current(m, g);
    if (g->compile)
        vg_compile_kick(g->compile); /* what it was copied from was used */
    return 0;
}

struct grave {
    struct vg_machine *m;
    struct mgen *g;
};

static void *bury(void *arg) {
    struct grave grave = *(struct grave *)arg;
    free(arg);
    vg_gen_free(grave.g);
    pthread_mutex_lock(&grave.m->lock);
    if (--grave.m->jobs == 0)
        pthread_cond_broadcast(&grave.m->idle);
    pthread_mutex_unlock(&grave.m->lock);
    return NULL;
}

/* Ending a view waits for its threads, one of which may be writing an image: elsewhere, so that
   nobody's answers wait. Without a thread to be had it happens here. */
static void free_aside(struct vg_machine *m, struct mgen *g) {
    struct grave *grave = vg_alloc(sizeof(*grave));
    pthread_t thread;
    pthread_mutex_lock(&m->lock);
    vg_list_remove(&g->link);
    m->jobs++;
    pthread_mutex_unlock(&m->lock);
    if (grave)
        *grave = (struct grave){.m = m, .g = g};
    if (grave && pthread_create(&thread, NULL, bury, grave) == 0) {
        pthread_detach(thread);
        return;
    }
    free(grave);
    vg_gen_free(g);
    pthread_mutex_lock(&m->lock);
    m->jobs--;
    pthread_mutex_unlock(&m->lock);
}

static void reap(struct vg_machine *m) {
    vg_list_for_each_safe (it, &m->gens) {
        struct mgen *g = vg_list_entry(it, struct mgen, link);
        if (g != m->gen && !users_of(m, g))
            free_aside(m, g);
    }
}

int vg_gen_for_run(struct vg_machine *m, struct vg_err *err) {
    int r = 0;
    if (m->gen->frozen && users_of(m, m->gen)) {
        r = succeed(m, err);
    } else if (m->gen->frozen) {
        m->gen->frozen = false;
        vg_env_freeze(m->gen->env, false);
        inval_pending(m, m->gen->env);
    }
    if (r >= 0) {
        m->n_pending = 0;
        m->pending_all = false;
    }
    reap(m);
    return r;
}
