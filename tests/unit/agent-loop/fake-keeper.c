/* A keeper and a node without any sandbox: what the agent sees of them, and nothing more. The
   command's first word says what the task does: "exit N" ends at once, "hold" until it is killed,
   "secret TEXT" ends well when that came as a secret behind the rest, "keep TEXT" holds then,
   "log TEXT" sends one log packet and ends when it was acknowledged, "share" holds and logs what it
   is told of its share of a GPU. */
#include "agent/keeper.h"
#include "base/cleanup.h"
#include "base/util.h"
#include "proto/virga.pb-c.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define TASKS 16

struct fake_task {
    uint64_t id;
    uint32_t attempt;
    int start_fd;
    int state; /* of TaskReport; 0: free */
    int32_t status;
    char text[200];
    char word[32], arg[64];
};

struct fake {
    int agent, listen;
    const struct vg_keeper_birth *birth;
    char sock[4096], session[256];
    struct fake_task task[TASKS];
    bool had_task, ended;
};

static void tell_state(struct fake *f, struct fake_task *t, bool with_start) {
    Vg__Pb__TaskReport r = VG__PB__TASK_REPORT__INIT;
    Vg__Pb__TaskExited x = VG__PB__TASK_EXITED__INIT;
    uint8_t buf[4096];
    r.has_task_id = r.has_attempt = r.has_state = r.has_started_usec = true;
    r.task_id = t->id;
    r.attempt = t->attempt;
    r.state = (Vg__Pb__TaskReport__State)t->state;
    r.started_usec = 1;
    if (t->state == VG__PB__TASK_REPORT__STATE__EXITED) {
        x.has_status = x.has_mem_peak_bytes = true;
        x.status = t->status;
        x.mem_peak_bytes = (uint64_t)getpid(); /* tells tests which keeper it was */
        x.text = t->text;
        r.exited = &x;
    }
    size_t n = vg__pb__task_report__pack(&r, buf);
    vg_kpkt_send(f->agent, VG_K_STATE, t->id, 0, 0, buf, n, &t->start_fd, with_start ? 1 : 0);
}

static void end_task(struct fake *f, struct fake_task *t, int32_t status, const char *text) {
    t->state = VG__PB__TASK_REPORT__STATE__EXITED;
    t->status = status;
    snprintf(t->text, sizeof(t->text), "%s", text);
    tell_state(f, t, false);
}

static void word(const ProtobufCBinaryData *d, char *out, size_t cap) {
    snprintf(out, cap, "%.*s", (int)d->len, (const char *)d->data);
}

static Vg__Pb__Start *read_start(int fd) {
    struct stat st;
    fstat(fd, &st);
    uint8_t *bytes = malloc((size_t)st.st_size);
    if (pread(fd, bytes, (size_t)st.st_size, 0) != st.st_size)
        _exit(3);
    Vg__Pb__Start *s = vg__pb__start__unpack(NULL, (size_t)st.st_size, bytes);
    free(bytes);
    return s;
}

/* One secret, and none in the first `bytes`. */
static bool has_secret(int fd, const Vg__Pb__Start *s, const char *text, uint64_t bytes) {
    struct stat st;
    uint8_t rest[4096];
    if (fstat(fd, &st) < 0 || (uint64_t)st.st_size <= bytes || s->n_secret != 1)
        return false;
    ssize_t n = pread(fd, rest, VG_MIN(bytes, sizeof(rest)), 0);
    return n == (ssize_t)bytes && s->secret[0]->value.len == strlen(text) &&
           memcmp(s->secret[0]->value.data, text, strlen(text)) == 0;
}

static void on_start(struct fake *f, int *fds, size_t n_fds, uint64_t mask, uint64_t bytes) {
    struct fake_task *t = f->task;
    while (t->state)
        t++;
    t->start_fd = vg_take_fd(fds[0]);
    Vg__Pb__Start *s = read_start(t->start_fd);
    t->id = s->task_id;
    t->attempt = s->attempt;
    word(&s->spec->argv[0], t->word, sizeof(t->word));
    if (s->spec->n_argv > 1)
        word(&s->spec->argv[1], t->arg, sizeof(t->arg));
    if (s->session_key)
        snprintf(f->session, sizeof(f->session), "%s", s->session_key);
    if ((mask & 1) && n_fds > 1 && strcmp(t->word, "say") == 0)
        if (write(fds[1], t->arg, strlen(t->arg)) < 0)
            _exit(4);
    bool secret = has_secret(t->start_fd, s, t->arg, bytes);
    vg__pb__start__free_unpacked(s, NULL);
    f->had_task = true;
    t->state = VG__PB__TASK_REPORT__STATE__RUNNING;
    tell_state(f, t, false);
    if (strcmp(t->word, "exit") == 0)
        end_task(f, t, (int32_t)strtol(t->arg, NULL, 10), "");
    else if (strcmp(t->word, "say") == 0)
        end_task(f, t, 0, "");
    else if (strcmp(t->word, "secret") == 0 || (strcmp(t->word, "keep") == 0 && !secret))
        end_task(f, t, secret ? 0 : 9, "");
    else if (strcmp(t->word, "log") == 0)
        vg_kpkt_send(f->agent, VG_K_LOG, t->id, 0, 0, t->arg, strlen(t->arg), NULL, 0);
}

static struct fake_task *find(struct fake *f, uint64_t id) {
    for (size_t i = 0; i < TASKS; i++)
        if (f->task[i].state && f->task[i].id == id)
            return &f->task[i];
    return NULL;
}

static void on_log_ack(struct fake *f, struct fake_task *t, const struct vg_kpkt *p) {
    if (p->a)
        vg_kpkt_send(f->agent, VG_K_LOG, t->id, 0, 0, t->arg, strlen(t->arg), NULL, 0);
    else if (p->b == strlen(t->arg))
        end_task(f, t, 0, "");
}

static void on_forward(struct fake *f, const struct vg_kpkt *p) {
    int pair[2];
    if (p->a == 1 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0) {
        vg_kpkt_send(f->agent, VG_K_FORWARDED, 0, ECONNREFUSED, p->b, NULL, 0, NULL, 0);
        return;
    }
    vg_kpkt_send(f->agent, VG_K_FORWARDED, 0, 0, p->b, NULL, 0, &pair[1], 1);
    if (write(pair[0], "port", 4) != 4)
        _exit(5);
    close(pair[0]);
    close(pair[1]);
}

/* As text, in the log: what a test can wait for. */
static void log_share(struct fake *f, const struct fake_task *t, const char *what,
                      uint64_t number) {
    char text[64];
    int n = snprintf(text, sizeof(text), "%s %llu", what, (unsigned long long)number);
    vg_kpkt_send(f->agent, VG_K_LOG, t->id, 0, 0, text, (size_t)n, NULL, 0);
}

static void on_share(struct fake *f, struct fake_task *t, int fd) {
    vg_close(&t->start_fd);
    t->start_fd = fd;
    Vg__Pb__Start *s = read_start(fd);
    log_share(f, t, "memory", s->grant->gpu_mem_bytes);
    vg__pb__start__free_unpacked(s, NULL);
}

static void on_packet(struct fake *f, const struct vg_kpkt *p, const uint8_t *data, int *fds,
                      size_t n_fds) {
    struct fake_task *t = find(f, p->id);
    char text[200];
    if (p->kind == VG_K_START) {
        on_start(f, fds, n_fds, p->a, p->b);
    } else if (p->kind == VG_K_KILL && t && t->state != VG__PB__TASK_REPORT__STATE__EXITED) {
        snprintf(text, sizeof(text), "%.*s", (int)p->len, (const char *)data);
        end_task(f, t, 128 + (int32_t)p->a, text);
    } else if (p->kind == VG_K_LOG_ACK && t && strcmp(t->word, "log") == 0) {
        on_log_ack(f, t, p);
    } else if (p->kind == VG_K_EXIT_ACK && t) {
        close(t->start_fd);
        t->state = 0;
    } else if (p->kind == VG_K_SLICE && t) {
        log_share(f, t, "slice", p->a);
    } else if (p->kind == VG_K_SHARE && t && n_fds > 0) {
        on_share(f, t, vg_take_fd(fds[0]));
    } else if (p->kind == VG_K_FORWARD) {
        on_forward(f, p);
    } else if (p->kind == VG_K_ATTACH && t && n_fds > 0) {
        if (write(fds[0], "attached", 8) < 0)
            _exit(6);
    } else if (p->kind == VG_K_KEEP && p->b == 0) {
        f->ended = true;
    }
}

static void adopt(struct fake *f) {
    struct vg_kinfo info = {.pid = (uint32_t)getpid(), .net_slot = UINT32_MAX};
    int fd = accept(f->listen, NULL, NULL);
    if (fd < 0)
        return;
    vg_close(&f->agent);
    f->agent = fd;
    info.has_session = f->session[0] != 0;
    snprintf(info.session_key, sizeof(info.session_key), "%s", f->session);
    snprintf(info.name, sizeof(info.name), "k%u", f->birth->serial);
    vg_kpkt_send(fd, VG_K_HELLO, 0, 0, 0, &info, sizeof(info), NULL, 0);
    for (size_t i = 0; i < TASKS; i++)
        if (f->task[i].state)
            tell_state(f, &f->task[i], true);
    vg_kpkt_send(fd, VG_K_REPORTED, 0, 0, 0, NULL, 0, NULL, 0);
}

static bool may_leave(struct fake *f) {
    for (size_t i = 0; i < TASKS; i++)
        if (f->task[i].state)
            return false;
    return f->session[0] ? f->ended : f->had_task || f->agent < 0;
}

static void read_agent(struct fake *f, uint8_t *buf) {
    struct vg_kpkt p;
    int fds[VG_FDS_MAX];
    size_t n = VG_FDS_MAX;
    ssize_t r = vg_kpkt_recv(f->agent, &p, buf, fds, &n);
    if (r == -EAGAIN)
        return;
    if (r < 0) {
        vg_close(&f->agent);
        return;
    }
    on_packet(f, &p, buf, fds, n);
    for (size_t i = 0; i < n; i++)
        vg_close(&fds[i]);
}

static void fake_main(const struct vg_keeper_birth *birth, int agent) {
    static struct fake f;
    static uint8_t buf[VG_KPKT_MAX];
    f = (struct fake){.agent = agent, .birth = birth};
    snprintf(f.sock, sizeof(f.sock), "%s/%u.sock", birth->keepers_dir, birth->serial);
    f.listen = vg_unix_listen(f.sock, SOCK_SEQPACKET, 0600);
    vg_kpkt_send(agent, VG_K_READY, 0, 0, 0, NULL, 0, NULL, 0);
    while (!may_leave(&f)) {
        struct pollfd p[2] = {{.fd = f.agent, .events = POLLIN},
                              {.fd = f.listen, .events = POLLIN}};
        poll(p, 2, -1);
        if (p[0].revents)
            read_agent(&f, buf);
        if (p[1].revents)
            adopt(&f);
    }
    unlink(f.sock);
    vg_kpkt_send(f.agent, VG_K_GONE, 0, 0, 0, NULL, 0, NULL, 0);
    _exit(0);
}

int vg_keeper_spawn(const struct vg_keeper_birth *birth,
                    void (*close_in_child)(int keep_fd, void *user), void *user, pid_t *ret_pid,
                    int *ret_fd, struct vg_err *err) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return vg_err_sys(err, errno, "pair");
    pid_t pid = fork();
    if (pid == 0) {
        sigset_t none;
        sigemptyset(&none);
        for (int s = 1; s < 32; s++)
            signal(s, s == SIGTERM || s == SIGPIPE ? SIG_IGN : SIG_DFL);
        sigprocmask(SIG_SETMASK, &none, NULL);
        setsid();
        close_in_child(pair[1], user);
        fake_main(birth, pair[1]);
    }
    close(pair[1]);
    *ret_pid = pid;
    *ret_fd = pair[0];
    return 0;
}

/* ------------------------------------------------------------------ node and networks */

struct vg_sandbox_node {
    int unused;
};

int vg_sandbox_node_open(const struct vg_sandbox_node_conf *conf, struct vg_sandbox_node **ret,
                         struct vg_err *err) {
    static struct vg_sandbox_node node;
    (void)conf;
    (void)err;
    *ret = &node;
    return 0;
}

size_t vg_sandbox_node_fds(const struct vg_sandbox_node *node,
                           const struct vg_sandbox_profile *profile, int *fds, size_t max) {
    (void)node, (void)profile, (void)fds, (void)max;
    return 0;
}
void vg_sandbox_node_close(struct vg_sandbox_node *node) {
    (void)node;
}

int vg_sandbox_node_warm(struct vg_sandbox_node *node, const struct vg_sandbox_profile *profile,
                         struct vg_err *err) {
    (void)node;
    (void)profile;
    (void)err;
    return 0;
}

int vg_sandbox_sample(const struct vg_sandbox_node *node, const char *name,
                      struct vg_sandbox_sample *ret) {
    (void)node;
    (void)name;
    *ret = (struct vg_sandbox_sample){.cpu_usec = 1000000, .mem_bytes = 4096};
    return 0;
}

void vg_sandbox_sweep(struct vg_sandbox_node *node, bool (*live)(const char *name, void *user),
                      void *user) {
    (void)node;
    (void)live;
    (void)user;
}

int vg_netpool_open(const char *tag, const char *subnet, struct vg_netpool **ret,
                    struct vg_err *err) {
    (void)tag;
    (void)subnet;
    (void)ret;
    return vg_err_set(err, VG_UNSUPPORTED, "this machine is a test");
}

void vg_netpool_close(struct vg_netpool *p) {
    (void)p;
}

int vg_netpool_get(struct vg_netpool *p, uint32_t user, struct vg_net_slot *ret,
                   struct vg_err *err) {
    (void)p;
    (void)user;
    (void)ret;
    return vg_err_set(err, VG_UNSUPPORTED, "this machine is a test");
}

void vg_netpool_put(struct vg_netpool *p, uint32_t index) {
    (void)p;
    (void)index;
}

int vg_netpool_claim(struct vg_netpool *p, uint32_t index) {
    (void)p;
    (void)index;
    return 0;
}

void vg_netpool_sweep(struct vg_netpool *p) {
    (void)p;
}

const char *vg_netpool_resolv_conf(struct vg_netpool *p) {
    (void)p;
    return "";
}
