/* fdatasync on libuv's threads, one file after the other. A failing disk delays nobody: the output
   is as safe as it can be made, and the store's own commit says whether the task's end is. */
#include "control/log-sync.h"

#include "base/cleanup.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>

struct sync {
    uv_fs_t req;
    uv_loop_t *loop;
    int fd[2];
    void (*done)(void *user, uint64_t id);
    void *user;
    uint64_t id;
};

static void next(struct sync *s);

static void on_synced(uv_fs_t *req) {
    struct sync *s = req->data;
    uv_fs_req_cleanup(req);
    vg_close(&s->fd[s->fd[0] >= 0 ? 0 : 1]);
    next(s);
}

static void next(struct sync *s) {
    int fd = s->fd[0] >= 0 ? s->fd[0] : s->fd[1];
    s->req.data = s;
    if (fd >= 0 && uv_fs_fdatasync(s->loop, &s->req, fd, on_synced) == 0)
        return;
    vg_close(&s->fd[0]);
    vg_close(&s->fd[1]);
    s->done(s->user, s->id);
    free(s);
}

int vg_log_sync(uv_loop_t *loop, int head, int tail, void (*done)(void *user, uint64_t id),
                void *user, uint64_t id) {
    if (head < 0 && tail < 0)
        return 0;
    struct sync *s = vg_alloc(sizeof *s);
    if (!s)
        return -ENOMEM;
    *s = (struct sync){.loop = loop, .done = done, .user = user, .id = id};
    s->fd[0] = head >= 0 ? fcntl(head, F_DUPFD_CLOEXEC, 3) : -1;
    s->fd[1] = tail >= 0 ? fcntl(tail, F_DUPFD_CLOEXEC, 3) : -1;
    if (s->fd[0] < 0 && s->fd[1] < 0) {
        free(s);
        return -EMFILE;
    }
    next(s);
    return 1;
}
