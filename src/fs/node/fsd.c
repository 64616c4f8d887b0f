/* `virga fsd`: one a user and node. A loop on one thread reads packets from agents and keepers and
   ticks; machines do their work on threads of their own and answer keepers from there, so a
   connection's socket may be written by any thread, with the lock held. */
#include "fs/fsd.h"

#include "base/cleanup.h"
#include "base/list.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/node/fsd-int.h"

#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define TICK_MSEC 250
#define IDLE_USEC (300 * VG_USEC)
#define CONNS_MAX 1024u
#define CACHE_WAIT_USEC (10 * VG_USEC) /* for a daemon before us that is about to be gone */

/* ------------------------------------------------------------------ connections */

static void conn_free(struct fsd *d, struct fsd_conn *c) {
    struct fsd_machine *both[] = {c->machine, c->project};
    uint64_t task = c->task;
    pthread_mutex_lock(&d->lock);
    vg_list_remove(&c->link);
    d->n_conns--;
    pthread_mutex_unlock(&d->lock);
    for (size_t i = 0; i < VG_COUNT(both); i++) {
        if (both[i] && c->holds)
            vg_machine_gone(both[i]->m, task);
        if (both[i])
            both[i]->used_usec = vg_now_usec();
    }
    close(c->fd);
    free(c);
}

static void accept_conn(struct fsd *d) {
    int fd = accept4(d->listen, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct ucred peer;
    socklen_t n = sizeof(peer);
    if (fd < 0)
        return;
    bool allowed = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) == 0 &&
                   (peer.uid == 0 || peer.uid == geteuid());
    struct fsd_conn *c = allowed && d->n_conns < CONNS_MAX ? vg_alloc(sizeof(*c)) : NULL;
    if (!c) {
        vg_warn("connection refused: %s", allowed ? "too many" : "not by root");
        close(fd);
        return;
    }
    c->fd = fd;
    pthread_mutex_lock(&d->lock);
    vg_list_push_back(&d->conns, &c->link);
    d->n_conns++;
    pthread_mutex_unlock(&d->lock);
}

/* ------------------------------------------------------------------ the loop */

/* Packets until none is left; false: the connection is over. */
static bool serve(struct fsd *d, struct fsd_conn *c) {
    for (;;) {
        struct vg_fsd_head head;
        int fds[VG_FSD_FDS];
        size_t n_fds = VG_COUNT(fds);
        int r = vg_fsd_recv(c->fd, &head, d->packet, sizeof(d->packet), fds, &n_fds);
        if (r == -EAGAIN)
            return true;
        if (r <= 0) {
            if (r < 0)
                vg_warn("connection dropped: %s", strerror(-r));
            return false;
        }
        r = vg_fsd_packet(d, c, &head, fds, &n_fds);
        for (size_t i = 0; i < n_fds; i++)
            close(fds[i]);
        if (r < 0) {
            vg_warn("connection dropped: packet of kind %u: %s", head.kind, strerror(-r));
            return false;
        }
    }
}

static bool over(struct fsd *d, uint64_t now) {
    size_t tasks = 0;
    for (size_t i = 0; i < d->n_machines; i++)
        tasks += vg_machine_tasks(d->machines[i]->m);
    if (tasks || d->n_conns)
        d->idle_since = now;
    return (d->stopping && !tasks) || now - d->idle_since > d->idle_usec;
}

static void tick(struct fsd *d, uint64_t now) {
    for (size_t i = 0; i < d->n_machines; i++)
        vg_machine_tick(d->machines[i]->m, now);
    vg_fsd_forget_machines(d, now);
    vg_peers_tidy(d->peers);
}

static int loop(struct fsd *d) {
    d->idle_since = vg_now_usec();
    for (;;) {
        struct pollfd p[CONNS_MAX + 2] = {{.fd = d->listen, .events = POLLIN},
                                          {.fd = d->signals, .events = POLLIN}};
        nfds_t n = 2;
        vg_list_for_each (it, &d->conns)
            p[n++] = (struct pollfd){.fd = vg_list_entry(it, struct fsd_conn, link)->fd,
                                     .events = POLLIN};
        if (poll(p, n, TICK_MSEC) < 0 && errno != EINTR)
            return -errno;
        if (p[1].revents)
            return 0; /* SIGTERM */
        nfds_t i = 2;
        vg_list_for_each_safe (it, &d->conns) {
            if (i < n && p[i++].revents && !serve(d, vg_list_entry(it, struct fsd_conn, link)))
                conn_free(d, vg_list_entry(it, struct fsd_conn, link));
        }
        if (p[0].revents)
            accept_conn(d);
        uint64_t now = vg_now_usec();
        if (now - d->ticked >= TICK_MSEC * 1000ull) {
            d->ticked = now;
            tick(d, now);
        }
        if (over(d, now))
            return 0;
    }
}

/* ------------------------------------------------------------------ start and end */

static int parse(struct fsd *d, int argc, char **argv) {
    static const struct option opts[] = {{"dir", 1, 0, 'd'},
                                         {"slot", 1, 0, 's'},
                                         {"node", 1, 0, 'n'},
                                         {"cache", 1, 0, 'c'},
                                         {"idle", 1, 0, 'i'},
                                         {"wait", 1, 0, 'w'},
                                         {"no-passthrough", 0, 0, 'P'},
                                         {"no-erofs", 0, 0, 'E'},
                                         {"deep-passthrough", 0, 0, 'D'},
                                         {0}};
    uint64_t n;
    for (int o; (o = getopt_long(argc, argv, "", opts, NULL)) != -1;) {
        int r = 0;
        if (o == 'd')
            d->dir = optarg;
        else if (o == 's' && (r = vg_parse_u64(optarg, &n)) >= 0)
            d->slot = (uint32_t)n;
        else if (o == 'n')
            d->node = optarg;
        else if (o == 'c')
            r = vg_parse_size(optarg, &d->cache_bytes);
        else if (o == 'i')
            r = vg_parse_duration(optarg, &d->idle_usec);
        else if (o == 'w')
            r = vg_parse_duration(optarg, &d->wait_usec);
        else if (o == 'P')
            d->no_passthrough = true;
        else if (o == 'D')
            d->deep = true;
        else if (o == 'E')
            d->no_erofs = true;
        else
            r = -EINVAL;
        if (r < 0)
            return r;
    }
    return d->dir && d->slot != VG_FS_SLOT_NONE && optind == argc ? 0 : -EINVAL;
}

/* What a daemon that was killed left behind: its mounts went with its namespace. */
static void clear_old(struct fsd *d) {
    DIR *dir = opendir(d->own);
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        vg_auto_free char *path =
            strncmp(e->d_name, "m-", 2) ? NULL : vg_fmt("%s/%s", d->own, e->d_name);
        if (path)
            vg_machine_clear(path);
    }
    if (dir)
        closedir(dir);
}

static int make_place(struct fsd *d, struct vg_err *err) {
    d->own = vg_fmt("%s/%u", d->dir, d->slot);
    vg_auto_free char *cache = d->own ? vg_fmt("%s/cache", d->own) : NULL;
    vg_auto_free char *public = vg_fmt("%s/public", d->dir); /* what the operator seeded */
    if (!cache || !public)
        return vg_err_sys(err, ENOMEM, "cannot start the file daemon");
    int r = vg_mkdir_p(cache, 0700);
    if (r < 0)
        return vg_err_sys(err, r, "cannot make %s", cache);
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return vg_err_sys(err, errno, "cannot have a mount namespace of its own (not root?)");
    struct vg_cache_conf conf = {.dir = cache,
                                 .max_bytes = d->cache_bytes,
                                 .public_dir = public,
                                 .wait_usec = CACHE_WAIT_USEC};
    r = vg_cache_open(&conf, &d->cache, err);
    if (r >= 0) /* now it is certain that no other daemon is here */
        clear_old(d);
    if (r >= 0 && (r = vg_peers_new(d->cache, &d->peers)) < 0)
        r = vg_err_sys(err, r, "cannot start the file daemon");
    return r;
}

static int open_sockets(struct fsd *d, struct vg_err *err) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    d->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    d->listen = VG_FSD_LISTEN_FD;
    int type = 0;
    socklen_t n = sizeof(type);
    if (d->signals < 0 || getsockopt(d->listen, SOL_SOCKET, SO_TYPE, &type, &n) < 0 ||
        type != SOCK_SEQPACKET)
        return vg_err_set(err, VG_INVALID,
                          "descriptor %d is not the daemon's socket: the agent starts `virga fsd`, "
                          "nobody else needs to",
                          VG_FSD_LISTEN_FD);
    vg_set_cloexec(d->listen, true);
    vg_set_nonblock(d->listen, true);
    return 0;
}

static void done(struct fsd *d) {
    vg_list_for_each_safe (it, &d->conns)
        conn_free(d, vg_list_entry(it, struct fsd_conn, link));
    for (size_t i = 0; i < d->n_machines; i++)
        vg_fsd_machine_free(d->machines[i]);
    free(d->machines);
    vg_peers_free(d->peers);
    if (d->cache)
        vg_cache_close(d->cache);
    vg_close(&d->signals);
    vg_close(&d->listen);
    free(d->own);
}

int vg_fsd_main(int argc, char **argv) {
    static struct fsd d = {
        .slot = VG_FS_SLOT_NONE, .node = "", .idle_usec = IDLE_USEC, .listen = -1, .signals = -1};
    struct vg_err err = VG_ERR_INIT;
    vg_log_init("virga-fsd");
    vg_list_init(&d.conns);
    pthread_mutex_init(&d.lock, NULL);
    vg_random(d.daemon, sizeof(d.daemon));
    if (parse(&d, argc, argv) < 0) {
        fprintf(stderr, "virga: fsd is started by the agent: fsd --dir DIR --slot N --node NAME "
                        "[--cache SIZE] [--idle TIME] [--wait TIME] [--no-passthrough] "
                        "[--no-erofs] [--deep-passthrough]\n");
        return 125;
    }
    int r = open_sockets(&d, &err);
    if (r >= 0)
        r = make_place(&d, &err);
    if (r >= 0) {
        vg_info("file daemon started slot=%u pid=%d", d.slot, (int)getpid());
        r = loop(&d);
    }
    if (r < 0)
        vg_error("%s", *err.msg ? err.msg : strerror(-r));
    else
        vg_info("file daemon ends slot=%u", d.slot);
    done(&d);
    return r < 0 ? 125 : 0;
}
