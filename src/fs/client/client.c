#include "fs/client/guess.h"
#include "fs/client/svc.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Bytes of packed leaves that are kept for the next node: a 64th of the memory, within this. */
#define PACKED_MIN (32u << 20)
#define PACKED_MAX (256u << 20)
#define VIEWS_MAX 12u /* as many as the cloud takes */

static void events_taken(void *mirror) {
    vg_mpeers_inval(mirror);
}
static void events_lost(void *mirror) {
    vg_warn("changes came faster than they could be followed: nodes look at all folders anew");
    vg_mpeer_lost(mirror);
}

/* The machine's and user's name: made once. */
static int machine_id(struct vg_mirror *m, struct vg_err *err) {
    vg_auto_free char *path = vg_fmt("%s/machine", m->state), *data = NULL;
    size_t n = 0;
    if (!path)
        return vg_err_set(err, VG_INTERNAL, "out of memory");
    int r = vg_read_file(path, 4096, &data, &n);
    if (r == 0 && n == VG_MID) {
        memcpy(m->machine, data, VG_MID);
        return 0;
    }
    if (r < 0 && r != -ENOENT)
        return vg_err_sys(err, r, "cannot read %s", path);
    vg_random(m->machine, VG_MID);
    r = vg_write_file(path, m->machine, VG_MID, 0600);
    return r < 0 ? vg_err_sys(err, r, "cannot write %s", path) : 0;
}

static int open_state(struct vg_mirror *m, struct vg_err *err) {
    vg_auto_free char *traces = vg_fmt("%s/traces", m->state);
    vg_auto_free char *memo = vg_fmt("%s/memo", m->state);
    if (!traces || !memo)
        return vg_err_set(err, VG_INTERNAL, "out of memory");
    int r = vg_mkdir_p(traces, 0700);
    if (r < 0)
        return vg_err_sys(err, r, "cannot make %s", traces);
    r = machine_id(m, err);
    if (r < 0)
        return r;
    vg_mirror_tidy(m);
    r = vg_memo_open(memo, &m->memo);
    return r < 0 ? vg_err_sys(err, r, "cannot open %s", memo) : 0;
}

int vg_mirror_policy(const struct vg_mirror_conf *conf, struct vg_mpolicy **ret) {
    int r = vg_mpolicy_new(conf->home, ret);
    if (r == 0)
        r = vg_mpolicy_deny(*ret, conf->state);
    if (r == 0 && conf->own)
        r = vg_mpolicy_deny(*ret, conf->own);
    return r;
}

static int open_tree(struct vg_mirror *m, const struct vg_mirror_conf *conf, struct vg_err *err) {
    static const struct vg_watch_ops watch_ops = {.taken = events_taken, .lost = events_lost};
    int r = vg_mirror_policy(conf, &m->policy);
    if (r == 0)
        r = vg_ctree_new(m->root, m->policy, m->machine, &m->tree);
    if (r == 0)
        r = vg_watch_new(m->loop, m->tree, &watch_ops, m, 0, &m->watch);
    if (r < 0)
        return vg_err_sys(err, r, "cannot serve %s", m->root);
    vg_ctree_on_change(m->tree, vg_mpeer_on_change, m);
    return 0;
}

static size_t packed_room(void) {
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    size_t share = pages > 0 && page > 0 ? (size_t)pages / 64 * (size_t)page : 0;
    return VG_MIN(VG_MAX(share, (size_t)PACKED_MIN), (size_t)PACKED_MAX);
}

int vg_mirror_new(uv_loop_t *loop, const struct vg_mirror_conf *conf, struct vg_mirror **ret,
                  struct vg_err *err) {
    struct vg_mirror *m = vg_alloc(sizeof(*m));
    if (!m)
        return vg_err_set(err, VG_INTERNAL, "out of memory");
    vg_list_init(&m->peers);
    vg_list_init(&m->links);
    vg_list_init(&m->tasks);
    m->loop = loop;
    m->level = conf->level;
    m->cores = uv_available_parallelism();
    m->root = vg_strdup(conf->root);
    m->home = vg_strdup(conf->home);
    m->state = vg_strdup(conf->state);
    vg_random(m->epoch, VG_MID);
    if (gethostname(m->host, sizeof(m->host) - 1) < 0)
        snprintf(m->host, sizeof(m->host), "your machine");
    int r = m->root && m->home && m->state ? open_state(m, err)
                                           : vg_err_set(err, VG_INTERNAL, "out of memory");
    if (r == 0 && vg_packed_new(packed_room(), &m->packed) < 0)
        r = vg_err_set(err, VG_INTERNAL, "out of memory");
    if (r == 0)
        r = open_tree(m, conf, err);
    if (r < 0) {
        vg_mirror_free(m);
        return r;
    }
    *ret = m;
    return 0;
}

static void task_free(struct vg_mirror_task *t) {
    vg_mirror_over(t);
    vg_list_remove(&t->link);
    for (size_t i = 0; i < t->n_argv; i++)
        free(t->argv[i]);
    for (size_t i = 0; i < t->n_view; i++)
        free((char *)t->view[i]);
    free(t->allowed);
    free(t->argv);
    free(t->view);
    free(t->view_root);
    free(t->project);
    free(t->cwd);
    free(t->program);
    free(t->note);
    vg_trace_done(&t->trace);
    vg_trace_done(&t->run);
    free(t);
}

void vg_mirror_free(struct vg_mirror *m) {
    if (!m)
        return;
    vg_list_for_each_safe (it, &m->links)
        vg_mlink_close(vg_list_entry(it, struct vg_mlink, link), "the service ends");
    while (m->jobs) /* workers hold paths and descriptors of ours */
        uv_run(m->loop, UV_RUN_ONCE);
    vg_list_for_each_safe (it, &m->tasks)
        task_free(vg_list_entry(it, struct vg_mirror_task, link));
    vg_list_for_each_safe (it, &m->peers)
        vg_mpeer_free(vg_list_entry(it, struct vg_mpeer, link));
    vg_asked_clear(&m->asked);
    vg_watch_free(m->watch);
    uv_run(m->loop, UV_RUN_NOWAIT);
    vg_memo_free(m->memo);
    vg_packed_free(m->packed);
    vg_ctree_free(m->tree);
    vg_mpolicy_free(m->policy);
    free(m->root);
    free(m->home);
    free(m->state);
    free(m);
}

void vg_mirror_pinned(uint64_t task, uint8_t out[VG_MID]) {
    uint8_t in[14] = "pinned", hash[VG_HASH];
    for (int i = 0; i < 8; i++)
        in[6 + i] = (uint8_t)(task >> (8 * i));
    vg_leaf_hash(in, sizeof(in), hash);
    memcpy(out, hash, VG_MID);
}

const uint8_t *vg_mirror_machine(const struct vg_mirror *m) {
    return m->machine;
}

/* ---- runs ---- */

static bool exists(struct vg_mirror *m, const char *dir, const char *name) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof(path), "%s/%s", dir, name) >= (int)sizeof(path))
        return false;
    int fd = vg_open_beneath(vg_ctree_root_fd(m->tree), path, O_PATH);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* The top of the git work tree that holds the working folder, else that folder. */
static char *project_of(struct vg_mirror *m, const char *cwd) {
    char *dir = vg_strdup(cwd);
    if (!dir)
        return NULL;
    for (;;) {
        if (exists(m, dir, ".git"))
            break;
        char *slash = strrchr(dir, '/');
        if (!slash || slash == dir) {
            free(dir);
            return vg_strdup(cwd);
        }
        *slash = 0;
    }
    /* A home folder under git is not a project of everything in it. */
    if (strcmp(dir, m->home) == 0 && strcmp(cwd, m->home) != 0) {
        free(dir);
        return vg_strdup(cwd);
    }
    return dir;
}

static bool may_write(struct vg_mirror *m, const char *path) {
    vg_auto_fd int fd = vg_open_beneath(vg_ctree_root_fd(m->tree), path, O_PATH | O_DIRECTORY);
    char link[40];
    if (fd < 0)
        return false;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    return access(link, W_OK) == 0;
}

static int add_view(struct vg_mirror_task *t, const char *path, struct vg_err *err) {
    struct vg_cobj *root = vg_ctree_view(t->m->tree, path);
    if (!root)
        return vg_err_sys(err, errno, "cannot open %s", path);
    for (size_t i = 0; i < t->n_view; i++)
        if (t->view_root[i] == root)
            return 0;
    char *own = vg_strdup(path);
    if (!own || vg_mpolicy_project(t->m->policy, path) < 0) {
        free(own);
        return vg_err_set(err, VG_INTERNAL, "out of memory");
    }
    t->view_root[t->n_view] = root;
    t->view[t->n_view++] = own;
    return 0;
}

/* Folders that are the node's own business (the cloud refuses them, too). */
static bool of_the_system(const char *path) {
    static const char *const below[] = {"/proc", "/sys", "/dev", "/run/virga"};
    static const char *const exact[] = {"/", "/run", "/tmp", "/etc", "/usr", "/var"};
    for (size_t i = 0; i < VG_COUNT(below); i++) {
        size_t n = strlen(below[i]);
        if (strncmp(path, below[i], n) == 0 && (!path[n] || path[n] == '/'))
            return true;
    }
    for (size_t i = 0; i < VG_COUNT(exact); i++)
        if (strcmp(path, exact[i]) == 0)
            return true;
    return false;
}

static int add_views(struct vg_mirror_task *t, const struct vg_mirror_run *run,
                     struct vg_err *err) {
    if (run->n_writable + 1 > VIEWS_MAX)
        return vg_err_set(err, VG_INVALID, "at most %u folders can be --writable", VIEWS_MAX - 1);
    t->view = vg_alloc((run->n_writable + 1) * sizeof(*t->view));
    t->view_root = vg_alloc((run->n_writable + 1) * sizeof(struct vg_cobj *));
    t->project = project_of(t->m, run->cwd);
    if (!t->view || !t->view_root || !t->project)
        return vg_err_set(err, VG_INTERNAL, "out of memory");
    int r = 0;
    if (of_the_system(t->project))
        t->note = vg_fmt("the working folder is %s, so nothing that the command writes comes "
                         "back: start it in a folder of your own, or name one with --writable",
                         t->project);
    else if (may_write(t->m, t->project))
        r = add_view(t, t->project, err);
    for (size_t i = 0; r == 0 && i < run->n_writable; i++) {
        if (of_the_system(run->writable[i]))
            return vg_err_set(err, VG_INVALID,
                              "%s cannot be --writable, it belongs to the system: name a folder "
                              "below it",
                              run->writable[i]);
        r = add_view(t, run->writable[i], err);
    }
    return r;
}

static int allow(struct vg_mirror_task *t, const struct vg_mirror_run *run, struct vg_err *err) {
    t->allowed = run->n_allow ? vg_alloc(run->n_allow * sizeof(*t->allowed)) : NULL;
    if (run->n_allow && !t->allowed)
        return vg_err_set(err, VG_INTERNAL, "out of memory");
    for (size_t i = 0; i < run->n_allow; i++) {
        char *path = vg_strdup(run->allow[i]);
        int r = path ? vg_mpolicy_allow(t->m->policy, path) : -ENOMEM;
        if (r < 0) {
            free(path);
            return vg_err_sys(err, r, "cannot allow '%s'", run->allow[i]);
        }
        t->allowed[t->n_allowed++] = path;
        vg_ctree_judged_anew(t->m->tree, path);
    }
    return 0;
}

void vg_mirror_over(struct vg_mirror_task *t) {
    for (size_t i = 0; i < t->n_allowed; i++) {
        vg_mpolicy_disallow(t->m->policy, t->allowed[i]);
        vg_ctree_judged_anew(t->m->tree, t->allowed[i]);
        free(t->allowed[i]);
    }
    t->n_allowed = 0;
}

static int copy_run(struct vg_mirror_task *t, const struct vg_mirror_run *run) {
    size_t n = 0;
    while (run->argv[n])
        n++;
    t->id = run->task;
    t->strict = run->strict;
    t->sync = run->sync;
    t->cwd = vg_strdup(run->cwd);
    t->argv = vg_alloc((n + 1) * sizeof(*t->argv));
    if (!t->argv || !t->cwd)
        return -ENOMEM;
    for (; t->n_argv < n; t->n_argv++)
        if (!(t->argv[t->n_argv] = vg_strdup(run->argv[t->n_argv])))
            return -ENOMEM;
    return 0;
}

/* What it will need, from the last times or guessed. */
static int foresee(struct vg_mirror_task *t, const struct vg_mirror_run *run) {
    if (t->n_argv == 0)
        return 0;
    t->program = vg_guess_program(vg_ctree_root_fd(t->m->tree), t->argv[0], t->cwd, run->path_env);
    const char **argv = vg_alloc((t->n_argv + 1) * sizeof(*argv));
    if (!argv)
        return -ENOMEM;
    memcpy(argv, t->argv, t->n_argv * sizeof(*argv));
    if (t->program)
        argv[0] = t->program;
    t->n_key = vg_trace_keys(argv, t->n_argv, t->project, t->key);
    free(argv);
    int r = vg_mtask_load_trace(t);
    if (r != -ENOENT || !t->program)
        return r;
    struct vg_guess g = {.root_fd = vg_ctree_root_fd(t->m->tree),
                         .program = t->program,
                         .argv = t->argv,
                         .n_argv = t->n_argv,
                         .cwd = t->cwd,
                         .path_env = run->path_env};
    return vg_guess(&g, &t->trace);
}

int vg_mirror_begin(struct vg_mirror *m, const struct vg_mirror_run *run,
                    struct vg_mirror_task **ret, struct vg_err *err) {
    if (!run->cwd || run->cwd[0] != '/' || !run->argv)
        return vg_err_set(err, VG_INVALID, "a run needs a command and an absolute working folder");
    struct vg_mirror_task *t = vg_alloc(sizeof(*t));
    if (!t)
        return vg_err_set(err, VG_INTERNAL, "out of memory");
    t->m = m;
    vg_list_push_back(&m->tasks, &t->link);
    int r = copy_run(t, run);
    if (r < 0)
        vg_err_set(err, VG_INTERNAL, "out of memory");
    if (r == 0)
        r = add_views(t, run, err);
    if (r == 0)
        r = allow(t, run, err);
    vg_asked_clear(&m->asked);
    if (r == 0 && foresee(t, run) == -ENOMEM)
        r = vg_err_set(err, VG_INTERNAL, "out of memory");
    if (r < 0) {
        task_free(t);
        return r;
    }
    *ret = t;
    return 0;
}

size_t vg_mirror_views(const struct vg_mirror_task *t, const char *const **ret) {
    *ret = t->view;
    return t->n_view;
}

const char *vg_mirror_note(const struct vg_mirror_task *t) {
    return t->note;
}

int vg_mirror_link(struct vg_mirror_task *t, int fd) {
    struct vg_mlink *l;
    int r = vg_mlink_new(t, fd, &l);
    if (r < 0)
        return r;
    vg_mlink_first_flight(l);
    return 0;
}

unsigned vg_mirror_greetings(const struct vg_mirror_task *t) {
    return t->greetings;
}

void vg_mirror_settled(struct vg_mirror_task *t) {
    vg_list_for_each (it, &t->m->links) {
        struct vg_mlink *l = vg_list_entry(it, struct vg_mlink, link);
        if (l->task != t || !vg_list_empty(&l->queue[VG_MP_FOLDER]) || l->backlog)
            continue;
        vg_map_done(&l->told);
        l->told = (struct vg_map){0};
    }
}

void vg_mirror_unlink(struct vg_mirror_task *t) {
    vg_list_for_each_safe (it, &t->m->links) {
        struct vg_mlink *l = vg_list_entry(it, struct vg_mlink, link);
        if (l->task == t)
            vg_mlink_close(l, "it was not needed any more");
    }
}

void vg_mirror_end(struct vg_mirror_task *t) {
    vg_mirror_settled(t); /* the node has seen its end as well */
    vg_mirror_unlink(t);
    (void)vg_memo_flush(t->m->memo); /* good for this life at least */
    task_free(t);
}

bool vg_mirror_idle(const struct vg_mirror *m) {
    return vg_list_empty(&m->tasks) && vg_list_empty(&m->links) && m->jobs == 0;
}

bool vg_mirror_linkless(const struct vg_mirror *m) {
    return vg_list_empty(&m->links);
}
