/* Links of file services on their way to the users' file daemons. Loop thread; a daemon is reached
   (and started) on a worker, since that may take a few milliseconds.

   A link is a stream of the connection to the control plane, pumped into one end of a socket pair
   whose other end the daemon gets. When either ends the other does, and the service brings another.
 */
#include "agent/agent-int.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/node/cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TEND_USEC (30 * VG_USEC)
#define LINK_BUFFER (1 << 20) /* bytes a socket of the pair takes before the pump waits */

struct bringing { /* a link on its way */
    uv_work_t work;
    struct vg_fsd_conf conf;
    char node[64];
    struct vg_fsd_task task;
    bool peer; /* from the user's daemon on another node */
    int fd;    /* owned: the daemon's end */
    struct vg_err err;
    int result;
};

void vg_fslink_fs_conf(const struct vg_agent *a, uint32_t slot, struct vg_fsd_conf *ret) {
    *ret = (struct vg_fsd_conf){.dir = a->fs_dir,
                                .program = a->self_exe,
                                .slot = slot,
                                .node = a->name,
                                .cache_bytes = a->fs_cache_bytes,
                                .no_passthrough = a->conf.no_passthrough,
                                .no_erofs = a->conf.no_erofs};
}

static void bring(uv_work_t *work) {
    struct bringing *b = work->data;
    vg_auto_fd int daemon = -1;
    b->result = vg_fsd_connect(&b->conf, &daemon, &b->err);
    if (b->result >= 0 && b->peer)
        b->result = vg_fsd_send(daemon, VG_FSD_PEER, NULL, 0, &b->fd, 1);
    else if (b->result >= 0)
        b->result = vg_fsd_send(daemon, VG_FSD_LINK, &b->task, sizeof(b->task), &b->fd, 1);
}

static void brought(uv_work_t *work, int status) {
    struct bringing *b = work->data;
    if (b->result < 0 || status < 0)
        vg_warn("task=%016llx its files cannot be linked: %s", (unsigned long long)b->task.task,
                b->err.msg[0] ? b->err.msg : strerror(-b->result));
    vg_close(&b->fd); /* the pump's end sees that nobody holds it, if nobody does */
    free(b);
}

/* A large buffer, so that a fast link does not wake both sides for every few pages. */
static int make_pair(int pair[2]) {
    int size = LINK_BUFFER;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    for (int i = 0; i < 2; i++)
        if (setsockopt(pair[i], SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)) < 0)
            setsockopt(pair[i], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    return 0;
}

static void link_over(void *user) {
    struct vg_agent *a = user;
    a->n_mirror_links--;
}

static int begin(struct vg_agent *a, const Vg__Pb__MirrorLink *m, struct vg_stream *s) {
    int pair[2];
    struct bringing *b = vg_alloc(sizeof(*b));
    int r = b ? make_pair(pair) : -ENOMEM;
    if (r < 0) {
        free(b);
        vg_stream_free(s, VG_INTERNAL);
        return r;
    }
    vg_fslink_fs_conf(a, m->who->slot, &b->conf);
    snprintf(b->node, sizeof(b->node), "%s", a->name);
    b->conf.node = b->node;
    b->task = (struct vg_fsd_task){.task = m->task_id, .attempt = m->attempt};
    memcpy(b->task.machine, m->machine.data, sizeof(b->task.machine));
    b->peer = m->peer;
    b->fd = pair[1];
    b->work.data = b;
    vg_stream_widen(s, VG_AGENT_LINK_WIDTH);
    a->n_mirror_links++;
    r = vg_pump_fd(&a->loop, pair[0], s, link_over, a);
    if (r < 0)
        a->n_mirror_links--;
    else
        r = uv_queue_work(&a->loop, &b->work, bring, brought);
    if (r < 0) {
        close(pair[1]);
        free(b);
    }
    return r;
}

void vg_fslink_on_link(struct vg_agent *a, const Vg__Pb__MirrorLink *m) {
    struct vg_stream *s = vg_stream_new(a->link.conn, m->stream, NULL, NULL);
    struct vg_agent_task *t = vg_tasks_get(a, m->task_id);
    if (!s)
        return;
    vg_debug("task=%016llx link attempt=%u known=%d", (unsigned long long)m->task_id, m->attempt,
             t != NULL);
    bool fits = m->who && m->machine.len == VG_MID && a->n_mirror_links < VG_AGENT_LINKS_MAX;
    bool runs = t && t->attempt == m->attempt && t->state != VG_AT_EXITED;
    if (!fits || !(runs || m->peer) || a->stopping) {
        vg_stream_free(s, fits ? VG_NOT_FOUND : VG_NO_CAPACITY);
        return;
    }
    int r = begin(a, m, s);
    if (r < 0)
        vg_warn("task=%016llx its files cannot be linked: %s", (unsigned long long)m->task_id,
                strerror(-r));
}

void vg_fslink_configure(struct vg_agent *a, char *const *patterns, size_t n,
                         uint64_t cache_bytes) {
    a->fs_cache_bytes = cache_bytes;
    vg_agent_find_driver(a, patterns, n);
}

/* ------------------------------------------------------------------ a full disk */

struct tending {
    uv_work_t work;
    struct vg_agent *agent;
    char dir[];
};

static void tend(uv_work_t *work) {
    struct tending *t = work->data;
    vg_cache_trim_idle(t->dir);
}

static void tended(uv_work_t *work, int status) {
    struct tending *t = work->data;
    (void)status;
    t->agent->fs_tending = false;
    free(t);
}

/* When the disk gets full, what is kept of users who are away goes first. Daemons that run evict
   for themselves, and take no new task when that is not enough. */
void vg_fslink_tend(struct vg_agent *a) {
    uint64_t now = vg_now_usec();
    if (!a->fs_dir || a->fs_tending || a->stopping || now < a->fs_tended_usec + TEND_USEC ||
        !vg_cache_disk_low(a->fs_dir))
        return;
    size_t n = strlen(a->fs_dir) + 1;
    struct tending *t = vg_alloc(sizeof(*t) + n);
    if (!t)
        return;
    memcpy(t->dir, a->fs_dir, n);
    t->agent = a;
    t->work.data = t;
    a->fs_tended_usec = now;
    a->fs_tending = uv_queue_work(&a->loop, &t->work, tend, tended) == 0;
    if (!a->fs_tending)
        free(t);
}

/* The node goes down: daemons without tasks have no more business. */
void vg_fslink_stop(struct vg_agent *a) {
    DIR *dir = opendir(a->fs_dir);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char *end;
        unsigned long slot = strtoul(e->d_name, &end, 10);
        int fd = -1;
        if (end == e->d_name || *end || vg_fsd_connect_running(a->fs_dir, (uint32_t)slot, &fd) < 0)
            continue;
        vg_fsd_send(fd, VG_FSD_STOP, NULL, 0, NULL, 0);
        close(fd);
        vg_auto_free char *path = vg_fmt("%s/%lu/sock", a->fs_dir, slot);
        if (path)
            unlink(path);
    }
    if (dir)
        closedir(dir);
}
