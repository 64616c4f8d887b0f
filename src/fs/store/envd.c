/* envd's loop: requests come in, each gets a thread, answers go out. */
#include "fs/store/envd.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/envd-int.h"
#include "fs/store/s3.h"

#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>

#define LOCK_PATIENCE_USEC (20 * VG_USEC)
#define OLD_FIRST_MSEC 1000 /* after the start, then every hour: old changes go */
#define OLD_EVERY_MSEC (3600u * 1000)

static void work_free(struct vg_work *w) {
    if (w->env)
        vg__pb__envelope__free_unpacked(w->env, NULL);
    if (w->list)
        vg__pb__env_list__free_unpacked(w->list, NULL);
    vg_close(&w->fd);
    free(w);
}

static void answer(struct vg_work *w) {
    struct vg_conn *c = w->d->conn;
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__Error e = VG__PB__ERROR__INIT;
    Vg__Pb__Ok ok = VG__PB__OK__INIT;
    env.has_req = true;
    env.req = w->req;
    if (w->err.msg[0]) {
        e.has_reason = true;
        e.reason = (uint32_t)(w->err.reason ? w->err.reason : VG_INTERNAL);
        e.text = w->err.msg;
        env.body_case = VG__PB__ENVELOPE__BODY_ERROR;
        env.error = &e;
    } else if (w->list) {
        env.body_case = VG__PB__ENVELOPE__BODY_ENVS;
        env.envs = w->list;
    } else {
        env.body_case = VG__PB__ENVELOPE__BODY_OK;
        env.ok = &ok;
    }
    if (c)
        vg_conn_send(c, &env, NULL, 0);
}

/* Twice for each request at most: when it is answered and when its thread is over. */
static void on_wake(uv_async_t *a) {
    struct vg_envd *d = a->data;
    for (;;) {
        pthread_mutex_lock(&d->lock);
        struct vg_list *it = vg_list_first(&d->answers);
        if (it)
            vg_list_remove(it);
        struct vg_work *w = it ? vg_list_entry(it, struct vg_work, in_queue) : NULL;
        bool over = w && w->over;
        pthread_mutex_unlock(&d->lock);
        if (!w)
            return;
        if (!w->sent)
            answer(w);
        w->sent = true;
        if (over)
            work_free(w);
    }
}

static void post(struct vg_work *w, bool over) {
    struct vg_envd *d = w->d;
    pthread_mutex_lock(&d->lock);
    w->answered = true;
    if (over) {
        w->over = true;
        d->threads--;
    }
    vg_list_remove(&w->in_queue);
    vg_list_push_back(&d->answers, &w->in_queue);
    pthread_mutex_unlock(&d->lock);
    uv_async_send(&d->wake);
}

void vg_work_post(struct vg_work *w) {
    post(w, false);
}

static void *work_main(void *arg) {
    struct vg_work *w = arg;
    vg_work_do(w);
    post(w, true);
    return NULL;
}

static void start(struct vg_envd *d, struct vg_work *w) {
    pthread_t t;
    pthread_attr_t attr;
    pthread_mutex_lock(&d->lock);
    bool room = d->threads < VG_ENVD_THREADS_MAX;
    d->threads++;
    pthread_mutex_unlock(&d->lock);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, VG_ENVD_STACK);
    if (!room || pthread_create(&t, &attr, work_main, w) != 0) {
        vg_err_set(&w->err, VG_NO_CAPACITY,
                   "the store of environments is busy: try again in a moment");
        post(w, true);
    }
    pthread_attr_destroy(&attr);
}

/* What tasks changed is not kept for ever. On a thread, like a request that nobody made. */
static void on_old(uv_timer_t *t) {
    struct vg_envd *d = t->data;
    struct vg_work *w = vg_alloc(sizeof(*w));
    if (!w)
        return;
    w->d = d;
    w->fd = -1;
    w->sent = true; /* nobody waits for an answer */
    vg_list_init(&w->in_queue);
    start(d, w);
}

static void on_msg(struct vg_conn *c, void *user, const Vg__Pb__Envelope *env, int *fds,
                   size_t n_fds) {
    struct vg_envd *d = user;
    (void)c;
    if (env->body_case != VG__PB__ENVELOPE__BODY_ENV)
        return;
    size_t n = vg__pb__envelope__get_packed_size(env);
    vg_auto_free uint8_t *bytes = vg_alloc(n + 1);
    struct vg_work *w = vg_alloc(sizeof(*w));
    if (bytes && w) {
        vg__pb__envelope__pack(env, bytes);
        w->env = vg__pb__envelope__unpack(NULL, n, bytes);
    }
    if (!w || !w->env) {
        free(w);
        vg_error("no memory for a request; its asker will wait in vain: leaving");
        vg_conn_close(d->conn);
        return;
    }
    w->d = d;
    w->req = env->req;
    w->m = w->env->env;
    w->fd = -1;
    vg_list_init(&w->in_queue);
    if (n_fds > 0)
        w->fd = vg_take_fd(fds[0]);
    if (w->m->op == VG__PB__ENV_REQ__OP__HOLD) { /* in the order of arrival: see VG_HOLDING */
        pthread_mutex_lock(&d->lock);
        (void)vg_map_put_u64(&d->holding, w->m->task_id, VG_HOLDING);
        pthread_mutex_unlock(&d->lock);
    }
    start(d, w);
}

/* Threads may be in the midst of things: the store is made to be left at any moment. */
static void on_close(struct vg_conn *c, void *user, const struct vg_err *why) {
    (void)c, (void)user, (void)why;
    vg_info("the control plane is gone: leaving");
    _exit(0);
}

static int take_lock(const char *dir) {
    vg_auto_free char *path = vg_fmt("%s/lock", dir);
    int r = path ? vg_mkdir_p(dir, 0700) : -ENOMEM;
    if (r < 0)
        return r;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    /* an earlier life sees that its parent is gone and leaves */
    for (uint64_t end = vg_now_usec() + LOCK_PATIENCE_USEC;;) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            return fd;
        if (vg_now_usec() > end) {
            close(fd);
            return -EBUSY;
        }
        usleep(20000);
    }
}

static int run(struct vg_envd *d, int fd) {
    static const struct vg_conn_ops ops = {.on_msg = on_msg, .on_close = on_close};
    struct vg_err err = VG_ERR_INIT;
    uv_loop_t loop;
    d->loop = &loop;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->pinned, NULL);
    pthread_cond_init(&d->opened, NULL);
    pthread_mutex_init(&d->claiming, NULL);
    vg_list_init(&d->answers);
    if (uv_loop_init(&loop) < 0 || uv_async_init(&loop, &d->wake, on_wake) < 0) {
        vg_error("cannot start a loop");
        return 1;
    }
    d->wake.data = d;
    uv_timer_t old;
    uv_timer_init(&loop, &old);
    old.data = d;
    if (d->changes_sec)
        uv_timer_start(&old, on_old, OLD_FIRST_MSEC, OLD_EVERY_MSEC);
    vg_set_nonblock(fd, true);
    if (vg_conn_new(&loop, fd, NULL, false, &ops, d, &d->conn, &err) < 0) {
        vg_error("%s", err.msg);
        return 1;
    }
    uv_run(&loop, UV_RUN_DEFAULT);
    return 0;
}

struct where { /* what is kept in a bucket, and how it is reached */
    const char *url, *endpoint, *region, *credentials, *ca;
};

static int open_bucket(struct vg_envd *d, const struct where *w, struct vg_err *err) {
    struct vg_s3_conf c = {0};
    if (!w->url)
        return 0;
    int r = vg_s3_conf_url(&c, w->url, err);
    if (r == 0)
        r = vg_s3_conf_credentials(&c, w->credentials, err);
    snprintf(c.endpoint, sizeof(c.endpoint), "%s", w->endpoint ? w->endpoint : "");
    snprintf(c.auth.region, sizeof(c.auth.region), "%s", w->region ? w->region : "");
    snprintf(c.ca, sizeof(c.ca), "%s", w->ca ? w->ca : "");
    return r == 0 ? vg_s3_open(&c, &d->bucket, err) : r;
}

static bool take_option(struct vg_envd *d, struct where *w, int c, uint64_t *fd) {
    switch (c) {
    case 'f':
        return vg_parse_u64(optarg, fd) == 0 && *fd < 1024;
    case 'q':
        return vg_parse_u64(optarg, &d->quota_bytes) == 0;
    case 'c':
        return vg_parse_u64(optarg, &d->changes_sec) == 0;
    case 'm':
        return vg_parse_u64(optarg, &d->cache_bytes) == 0;
    case 'd':
        d->dir = optarg;
        return true;
    case 'b':
        w->url = optarg;
        return true;
    case 'e':
        w->endpoint = optarg;
        return true;
    case 'r':
        w->region = optarg;
        return true;
    case 'k':
        w->credentials = optarg;
        return true;
    case 'a':
        w->ca = optarg;
        return true;
    default:
        return false;
    }
}

int vg_envd_main(int argc, char **argv) {
    static const struct option options[] = {{"fd", required_argument, NULL, 'f'},
                                            {"dir", required_argument, NULL, 'd'},
                                            {"quota", required_argument, NULL, 'q'},
                                            {"bucket", required_argument, NULL, 'b'},
                                            {"endpoint", required_argument, NULL, 'e'},
                                            {"region", required_argument, NULL, 'r'},
                                            {"credentials", required_argument, NULL, 'k'},
                                            {"ca", required_argument, NULL, 'a'},
                                            {"cache", required_argument, NULL, 'm'},
                                            {"changes", required_argument, NULL, 'c'},
                                            {0}};
    struct vg_envd d = {0};
    struct where w = {0};
    struct vg_err err = VG_ERR_INIT;
    uint64_t fd = UINT64_MAX;
    vg_log_init("virga-envd");
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;)
        if (!take_option(&d, &w, c, &fd))
            return 2;
    if (!d.dir || fd == UINT64_MAX) {
        vg_error("virga envd is started by virgad: --fd N --dir DIR");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    int lock = take_lock(d.dir);
    if (lock < 0) {
        vg_error("cannot have the store %s: %s", d.dir, strerror(-lock));
        return 1;
    }
    if (open_bucket(&d, &w, &err) < 0) /* requests are told, too */
        vg_error("%s", err.msg);
    d.broken = err;
    return run(&d, (int)fd);
}
