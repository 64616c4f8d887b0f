/* Trees between this machine and the cloud's store: a link over a stream, served or pulled by a
   thread while the main one keeps the connection going. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/cmd-env.h"
#include "fs/store/pull.h"

#include <ftw.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define OP(name) VG__PB__ENV_REQ__OP__##name
#define TURN_USEC 50000

int vg_ecmd_box_open(struct vg_ecmd_box *b, struct vg_err *err) {
    const char *tmp = getenv("TMPDIR");
    snprintf(b->dir, sizeof(b->dir), "%s/virga-env-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(b->dir)) {
        int r = vg_err_sys(err, errno, "cannot make a folder like %s", b->dir);
        b->dir[0] = '\0';
        return r;
    }
    return vg_estore_open(b->dir, 0, &b->store, err);
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *f) {
    (void)st, (void)flag, (void)f;
    return remove(path);
}

void vg_ecmd_box_close(struct vg_ecmd_box *b) {
    vg_estore_close(b->store);
    if (b->dir[0])
        nftw(b->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    *b = (struct vg_ecmd_box){0};
}

struct mover {
    struct vg_ftree *t;
    int fd, result;
    struct vg_err err;
    atomic_bool over;
    bool names;
    struct vg_eversion found;
    char *config;
};

static void *serve_main(void *arg) {
    struct mover *m = arg;
    m->result = vg_fserve(m->t, m->fd, 0, NULL);
    return NULL;
}

static void *pull_main(void *arg) {
    struct mover *m = arg;
    struct vg_pull_conf conf = {.tree = m->t, .fd = m->fd, .names = m->names};
    m->result = vg_pull(&conf, &m->err);
    m->over = true;
    return NULL;
}

static int stored(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    struct mover *m = user;
    if (env->body_case != VG__PB__ENVELOPE__BODY_ENVS || env->envs->n_env != 1)
        return vg_unexpected(env, err);
    m->found.version = env->envs->env[0]->version;
    return 0;
}

/* A stream of the connection with the mover's thread at its other end. */
static int begin(struct vg_client *c, struct mover *m, void *(*main)(void *), pthread_t *ret,
                 uint32_t *ret_stream, struct vg_err *err) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return vg_err_sys(err, errno, "cannot make a pair of sockets");
    int r = vg_client_stream(c, pair[0], ret_stream, err);
    if (r < 0) {
        close(pair[1]);
        return r;
    }
    m->fd = pair[1];
    r = -pthread_create(ret, NULL, main, m);
    if (r < 0) {
        close(pair[1]);
        return vg_err_sys(err, r, "cannot start a thread");
    }
    return 0;
}

int vg_ecmd_put(struct vg_ftree *t, const char *name, const char *source, const char *config,
                uint32_t *ret_version, struct vg_err *err) {
    struct vg_client *c;
    struct mover m = {.t = t};
    Vg__Pb__EnvReq q = vg_ecmd_request(OP(SAVE), name);
    Vg__Pb__Envelope req = vg_request(ENV, env, &q);
    pthread_t thread;
    int r = vg_client_open(&c, err);
    if (r < 0)
        return r;
    q.has_stream = true;
    q.source = (char *)source;
    q.config = (char *)config;
    r = begin(c, &m, serve_main, &thread, &q.stream, err);
    if (r == 0) {
        r = vg_call(c, &req, 0, stored, &m, err);
        vg_client_close(c); /* ends the link */
        pthread_join(thread, NULL);
        *ret_version = m.found.version;
    } else {
        vg_client_close(c);
    }
    return r < 0 ? r : 0;
}

static int found(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    struct mover *m = user;
    if (env->body_case != VG__PB__ENVELOPE__BODY_ENVS || env->envs->n_env != 1)
        return vg_unexpected(env, err);
    m->config = vg_strdup(env->envs->env[0]->config);
    return 0;
}

static int opened(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    (void)user;
    return env->body_case == VG__PB__ENVELOPE__BODY_ERROR ? vg_client_said(env->error, err) : 0;
}

/* Keeps the connection going until all has come. */
static int wait_for(struct vg_client *c, struct mover *m, struct vg_err *err) {
    int r = 0;
    while (r == 0 && !m->over)
        r = vg_client_turn(c, TURN_USEC, opened, NULL, err);
    return r;
}

int vg_ecmd_take(struct vg_estore *into, const char *ref, bool names, struct vg_ftree **ret,
                 char **ret_config, struct vg_err *err) {
    struct vg_client *c;
    struct mover m = {.names = names};
    Vg__Pb__EnvReq get = vg_ecmd_request(OP(GET), ref), q = vg_ecmd_request(OP(OPEN), ref);
    Vg__Pb__Envelope ask = vg_request(ENV, env, &get), req = vg_request(ENV, env, &q);
    pthread_t thread;
    uint32_t number;
    int r = vg_client_open(&c, err);
    if (r < 0)
        return r;
    r = vg_call(c, &ask, VG_CALL_TIMEOUT_USEC, found, &m, err);
    if (r == 0)
        r = vg_ftree_new(into, NULL, &m.t, err);
    q.has_stream = true;
    if (r == 0 && (r = begin(c, &m, pull_main, &thread, &q.stream, err)) == 0) {
        r = vg_client_send(c, &req, &number, err);
        if (r == 0)
            r = wait_for(c, &m, err);
        vg_client_close(vg_take_ptr(c));
        pthread_join(thread, NULL);
        if (r == 0 && m.result < 0) {
            *err = m.err;
            r = m.result;
        }
    }
    vg_client_close(c);
    if (r < 0) {
        vg_ftree_unref(m.t);
        free(m.config);
        return r;
    }
    *ret = m.t;
    if (ret_config)
        *ret_config = m.config;
    else
        free(m.config);
    return 0;
}
