/* `virga env save`: this machine's files, as a node would see them, into the cloud's store. A file
   service of our own serves them for as long as it takes; what its policy denies is not saved. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/cmd-env.h"
#include "fs/client/client.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct service {
    uv_loop_t loop;
    uv_async_t stop;
    struct vg_mirror *m;
    struct vg_mirror_task *t;
};

static void on_stop(uv_async_t *a) {
    uv_stop(a->loop);
}

static void *service_main(void *arg) {
    struct service *s = arg;
    uv_run(&s->loop, UV_RUN_DEFAULT);
    return NULL;
}

static int service_open(struct service *s, const char *state, int fd, struct vg_err *err) {
    const char *home = getenv("HOME");
    char *const none[] = {NULL};
    struct vg_mirror_conf conf = {
        .root = "/", .home = home && home[0] == '/' ? home : "/", .state = state, .level = -1};
    struct vg_mirror_run run = {.argv = none, .cwd = "/"};
    int r = uv_loop_init(&s->loop);
    if (r == 0)
        r = uv_async_init(&s->loop, &s->stop, on_stop);
    if (r < 0) {
        close(fd);
        return vg_err_sys(err, r, "cannot make a loop");
    }
    r = vg_mirror_new(&s->loop, &conf, &s->m, err);
    if (r == 0)
        r = vg_mirror_begin(s->m, &run, &s->t, err);
    if (r < 0) {
        close(fd);
        return r;
    }
    r = vg_mirror_link(s->t, fd);
    return r < 0 ? vg_err_sys(err, r, "cannot serve this machine's files") : 0;
}

static void service_close(struct service *s) {
    if (s->t)
        vg_mirror_end(s->t);
    vg_mirror_free(s->m);
    uv_close((uv_handle_t *)&s->stop, NULL);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    uv_loop_close(&s->loop);
}

static int saved(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    (void)user;
    char size[32];
    if (env->body_case != VG__PB__ENVELOPE__BODY_ENVS || env->envs->n_env != 1)
        return vg_unexpected(env, err);
    const Vg__Pb__EnvInfo *e = env->envs->env[0];
    printf("%s@%u\n", e->name, e->version);
    fprintf(stderr, "virga: %llu files, %s", (unsigned long long)e->files,
            vg_format_size(e->bytes, size, sizeof(size)));
    if (e->missing)
        fprintf(stderr, "; %u were left out: denied ('virga mirror explain PATH'), or unreadable",
                e->missing);
    fputc('\n', stderr);
    return 0;
}

/* Absolute, without links on the way: that is how they are found. */
static int real_paths(char **args, size_t n, ProtobufCBinaryData *out, struct vg_err *err) {
    for (size_t i = 0; i < n; i++) {
        char real[PATH_MAX];
        if (!realpath(args[i], real))
            return vg_err_sys(err, errno, "'%s'", args[i]);
        char *own = vg_strdup(real);
        if (!own)
            return vg_err_sys(err, -ENOMEM, "cannot save");
        out[i] = (ProtobufCBinaryData){strlen(own), (uint8_t *)own};
    }
    return 0;
}

static int call(struct vg_client *c, Vg__Pb__EnvReq *q, struct vg_err *err) {
    struct vg_ecmd_box box = {0};
    struct service s = {0};
    Vg__Pb__Envelope req = vg_request(ENV, env, q);
    pthread_t thread;
    int pair[2];
    int r = vg_ecmd_box_open(&box, err);
    if (r == 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        r = vg_err_sys(err, errno, "cannot make a pair of sockets");
    if (r == 0 && (r = vg_client_stream(c, pair[0], &q->stream, err)) < 0)
        close(pair[1]);
    if (r == 0) {
        r = service_open(&s, box.dir, pair[1], err);
        if (r == 0 && (r = -pthread_create(&thread, NULL, service_main, &s)) < 0)
            vg_err_sys(err, r, "cannot start a thread");
        else if (r == 0) {
            r = vg_call(c, &req, 0, saved, NULL, err);
            uv_async_send(&s.stop);
            pthread_join(thread, NULL);
        }
        service_close(&s);
    }
    vg_ecmd_box_close(&box);
    return r;
}

int vg_ecmd_save_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_client *c = NULL;
    ProtobufCBinaryData path[64];
    char host[200] = "a machine", source[300];
    if (!vg_cmd_plain(l, 1, (int)VG_COUNT(path)))
        return l->exit;
    Vg__Pb__EnvReq q = vg_ecmd_request(VG__PB__ENV_REQ__OP__SAVE, l->args[0]);
    q.n_path = (size_t)l->n_args - 1;
    q.path = path;
    q.has_stream = true;
    gethostname(host, sizeof(host) - 1);
    snprintf(source, sizeof(source), "%s", host);
    q.source = source;
    int r = vg_env_name_check(l->args[0], &err);
    if (r == 0)
        r = real_paths(l->args + 1, q.n_path, path, &err);
    if (r == 0)
        r = vg_client_open(&c, &err);
    if (r == 0)
        r = call(c, &q, &err);
    vg_client_close(c);
    return r < 0 ? vg_cmd_fail(&err) : 0;
}
