/* Keepers that an earlier agent left: they are found by their sockets, and each tells what it holds
   before the control plane hears of this node. Loop thread. */
#include "agent/agent-keepers.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void vg_adopt_step(struct vg_agent *a) {
    if (a->n_adopting > 0 || !a->adopted)
        return;
    void (*done)(struct vg_agent *) = a->adopted;
    a->adopted = NULL;
    uv_timer_stop(&a->adopt_timer);
    if (a->net)
        vg_netpool_sweep(a->net);
    vg_keepers_sweep(a);
    done(a);
}

void vg_adopt_on_hello(struct vg_agent_keeper *k, const uint8_t *data, size_t len) {
    struct vg_agent *a = k->agent;
    struct vg_kinfo info;
    if (len != sizeof(info) || k->state != VG_KEEPER_ADOPTED)
        return;
    memcpy(&info, data, sizeof(info));
    info.session_key[sizeof(info.session_key) - 1] = 0;
    info.name[sizeof(info.name) - 1] = 0;
    k->pid = (pid_t)info.pid;
    k->net_slot = info.net_slot;
    memcpy(k->name, info.name, sizeof(k->name));
    if (k->net_slot != UINT32_MAX && a->net)
        vg_netpool_claim(a->net, k->net_slot);
    if (info.has_session && (k->session = vg_strdup(info.session_key)))
        vg_map_put(&a->sessions, k->session, k);
}

void vg_adopt_on_reported(struct vg_agent_keeper *k) {
    if (k->state != VG_KEEPER_ADOPTED)
        return;
    vg_keeper_set_state(k, VG_KEEPER_BUSY);
    vg_adopt_step(k->agent);
}

/* A keeper that does not answer cannot be told from one that runs a task: it must not go on. */
static void on_adopt_timeout(uv_timer_t *timer) {
    struct vg_agent *a = timer->data;
    vg_list_for_each_safe (it, &a->keepers) {
        struct vg_agent_keeper *k = vg_list_entry(it, struct vg_agent_keeper, link);
        if (k->state != VG_KEEPER_ADOPTED)
            continue;
        struct ucred cred;
        socklen_t len = sizeof(cred);
        vg_warn("keeper %u does not answer; it is killed", k->serial);
        if (getsockopt(k->fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0 && cred.pid > 1)
            kill(cred.pid, SIGKILL);
        vg_keeper_gone(k, false);
    }
}

static int adopt(struct vg_agent *a, uint32_t serial) {
    char path[4096];
    snprintf(path, sizeof(path), "%s/%u.sock", a->keepers_dir, serial);
    vg_auto_fd int fd = vg_unix_connect(path, SOCK_SEQPACKET | SOCK_NONBLOCK);
    if (fd < 0) {
        if (fd == -ECONNREFUSED || fd == -ENOENT)
            unlink(path);
        else
            vg_warn("cannot reach keeper %u: %s", serial, strerror(-fd));
        return fd == -ECONNREFUSED || fd == -ENOENT ? 0 : fd;
    }
    struct vg_agent_keeper *k = vg_keeper_new(a);
    if (!k)
        return -ENOMEM;
    k->serial = serial;
    k->state = VG_KEEPER_ADOPTED;
    snprintf(k->name, sizeof(k->name), "k%u", serial);
    k->fd = fd;
    int r = vg_keeper_watch(k);
    if (r < 0) {
        free(k);
        return r;
    }
    vg_take_fd(fd);
    a->n_adopting++;
    return 0;
}

int vg_keepers_open(struct vg_agent *a, void (*done)(struct vg_agent *a), struct vg_err *err) {
    DIR *dir = opendir(a->keepers_dir);
    if (!dir)
        return vg_err_sys(err, errno, "cannot read %s", a->keepers_dir);
    int r = 0;
    for (struct dirent *e; r == 0 && (e = readdir(dir));) {
        char *end;
        errno = 0;
        unsigned long serial = strtoul(e->d_name, &end, 10);
        if (end != e->d_name && errno == 0 && serial <= UINT32_MAX && strcmp(end, ".sock") == 0)
            r = adopt(a, (uint32_t)serial);
    }
    closedir(dir);
    if (r < 0)
        return vg_err_sys(err, r, "cannot take over the tasks that run on this node");
    vg_random(&a->next_serial, sizeof(a->next_serial));
    a->next_serial = a->next_serial % 1000000000u + 1;
    a->adopted = done;
    if (a->n_adopting)
        uv_timer_start(&a->adopt_timer, on_adopt_timeout, 10000, 0);
    else
        vg_adopt_step(a);
    return 0;
}
