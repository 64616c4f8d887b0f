/* See bench.h. */
#include "bench.h"

#include "base/cleanup.h"
#include "base/util.h"
#include "net/tio.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

struct bench_command bench_command = {.fd = {-1, -1, -1}};
int bench_signals[BENCH_SIGNALS];
int bench_n_signals;
bool bench_killed;

struct vg_sandbox {
    int events[2]; /* structs vg_sandbox_event, from us to the keeper */
};
static struct vg_sandbox the_sandbox;

static void must(bool ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "bench: %s (errno=%d)\n", what, errno);
        abort();
    }
}

/* ---- the sandbox ---- */

void bench_close_command(void) {
    for (int i = 0; i < 3; i++)
        vg_close(&bench_command.fd[i]);
}

int vg_sandbox_prepare(struct vg_sandbox_node *node, const struct vg_sandbox_profile *profile,
                       const char *name, struct vg_sandbox **ret, struct vg_err *err) {
    (void)node, (void)profile, (void)name, (void)err;
    *ret = &the_sandbox;
    return 0;
}

int bench_begun;
const char *bench_fs_dir;
struct bench_root bench_root;

int vg_sandbox_begin(struct vg_sandbox_node *node, const struct vg_sandbox_profile *profile,
                     const char *name, struct vg_sandbox **ret, struct vg_err *err) {
    (void)node, (void)name, (void)err;
    bench_begun++;
    bench_root = (struct bench_root){.n_lower = profile->root->n_lower,
                                     .n_data = profile->root->n_data,
                                     .n_views = profile->root->n_views,
                                     .uid = profile->root->uid,
                                     .outside_uid = profile->uid};
    *ret = &the_sandbox;
    return 0;
}

/* Ready, or not: what bench_event() says with the code of a STARTED. */
int vg_sandbox_await(struct vg_sandbox *sb, struct vg_err *err) {
    struct vg_sandbox_event ev;
    must(vg_sandbox_next_event(sb, &ev) == 1, "await");
    return ev.code ? vg_err_sys(err, -ev.code, "cannot prepare a sandbox") : 0;
}

int vg_sandbox_exec(struct vg_sandbox *sb, uint64_t tag, const struct vg_exec *x,
                    struct vg_err *err) {
    (void)sb, (void)err;
    bench_close_command();
    bench_command.n_binds = x->n_binds;
    bench_command.uid = x->uid;
    bench_command.n_groups = x->n_groups;
    bench_command.tag = tag;
    for (int i = 0; i < 3; i++) {
        bench_command.fd[i] = x->fds[i] < 0 ? -1 : fcntl(x->fds[i], F_DUPFD_CLOEXEC, 3);
        if (bench_command.fd[i] >= 0)
            vg_set_nonblock(bench_command.fd[i], true);
    }
    return 0;
}

int vg_sandbox_fd(const struct vg_sandbox *sb) {
    return sb->events[0];
}

int vg_sandbox_next_event(struct vg_sandbox *sb, struct vg_sandbox_event *ret) {
    return read(sb->events[0], ret, sizeof(*ret)) == (ssize_t)sizeof(*ret) ? 1 : 0;
}

void bench_event(struct bench *b, enum vg_sandbox_event_kind kind, uint64_t tag, int code) {
    struct vg_sandbox_event ev = {.kind = kind, .tag = tag, .pid = 1, .code = code};
    (void)b;
    must(write(the_sandbox.events[1], &ev, sizeof(ev)) == (ssize_t)sizeof(ev), "event");
}

int vg_sandbox_signal(struct vg_sandbox *sb, uint64_t tag, int signo, bool group) {
    (void)sb, (void)tag, (void)group;
    if (bench_n_signals < BENCH_SIGNALS)
        bench_signals[bench_n_signals++] = signo;
    return 0;
}

int vg_sandbox_kill_all(struct vg_sandbox *sb) {
    (void)sb;
    bench_killed = true;
    return 0;
}

int vg_sandbox_open_pty(struct vg_sandbox *sb, uid_t uid, gid_t gid, int *ret_master,
                        int *ret_slave) {
    (void)sb, (void)uid, (void)gid;
    char name[64];
    *ret_master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (*ret_master < 0 || grantpt(*ret_master) < 0 || unlockpt(*ret_master) < 0 ||
        ptsname_r(*ret_master, name, sizeof(name)) != 0)
        return -EIO;
    *ret_slave = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    return *ret_slave < 0 ? -errno : 0;
}

int vg_sandbox_connect(struct vg_sandbox *sb, uint16_t port) {
    (void)sb, (void)port;
    return -ECONNREFUSED;
}

int vg_sandbox_usage(struct vg_sandbox *sb, struct vg_usage *ret) {
    (void)sb;
    *ret = (struct vg_usage){0};
    return 0;
}

int vg_sandbox_changes(const struct vg_sandbox *sb) {
    (void)sb;
    int fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int vg_sandbox_merged(const struct vg_sandbox *sb) {
    (void)sb;
    return STDIN_FILENO;
}

uid_t vg_sandbox_map_uid(const struct vg_sandbox *sb, uid_t inside) {
    (void)sb;
    return inside;
}

void vg_sandbox_left(struct vg_sandbox *sb, struct vg_left *ret) {
    (void)sb;
    *ret = (struct vg_left){.processes = 2, .sysv = 1, .queues = 0, .scratch_bytes = 4096};
}
int vg_sandbox_end(struct vg_sandbox *sb, int timeout_ms) {
    (void)timeout_ms;
    return vg_sandbox_kill_all(sb);
}
void vg_sandbox_let_go(struct vg_sandbox *sb) {
    (void)sb;
}
gid_t vg_sandbox_map_gid(const struct vg_sandbox *sb, gid_t inside) {
    (void)sb;
    return inside;
}

bool vg_sandbox_recycle(struct vg_sandbox *sb) {
    (void)sb;
    return false;
}

void vg_sandbox_destroy(struct vg_sandbox *sb) {
    (void)sb;
}

/* ---- the keeper ---- */

void bench_open(struct bench *b, uint64_t log_head, uint64_t log_tail) {
    int pair[2];
    struct vg_keeper_birth birth = {.log_head_bytes = log_head, .log_tail_bytes = log_tail};
    *b = (struct bench){.acks_log = true};
    birth.fs = (struct vg_fsd_conf){.dir = bench_fs_dir, .program = "/nonexistent", .slot = 3};
    bench_begun = 0;
    bench_n_signals = 0;
    bench_killed = false;
    signal(SIGPIPE, SIG_IGN); /* as in the keeper; and the task writes from here */
    must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0, "pair");
    must(pipe2(the_sandbox.events, O_CLOEXEC | O_NONBLOCK) == 0, "pipe");
    must(keeper_init(&b->k, &birth, pair[1]) == 0, "keeper");
    keeper_prepared(&b->k, bench_fs_dir ? NULL : &the_sandbox);
    b->agent = pair[0];
}

void bench_close(struct bench *b) {
    vg_list_for_each_safe (it, &b->k.tasks)
        ktask_free(&b->k, vg_list_entry(it, struct ktask, link));
    vg_list_for_each_safe (it, &b->k.graves) {
        struct kchan *c = vg_list_entry(it, struct kchan, link);
        vg_list_remove(&c->link);
        vg_buf_done(&c->in);
        vg_buf_done(&c->out);
        free(c);
    }
    keeper_close(&b->k, &b->k.agent);
    free(b->k.pkt);
    vg_close(&b->k.epoll);
    vg_close(&b->agent);
    vg_close(&the_sandbox.events[0]);
    vg_close(&the_sandbox.events[1]);
    bench_close_command();
    vg_buf_done(&b->log_head);
    vg_buf_done(&b->log_tail);
}

struct ktask *bench_start(struct bench *b, const struct bench_start *s, int chan) {
    Vg__Pb__Start st = VG__PB__START__INIT;
    Vg__Pb__TaskSpec spec = VG__PB__TASK_SPEC__INIT;
    Vg__Pb__Identity who = VG__PB__IDENTITY__INIT;
    ProtobufCBinaryData argv = {.len = 4, .data = (uint8_t *)(char[]){"true"}};
    uint8_t buf[1024];
    spec.argv = &argv;
    spec.n_argv = 1;
    spec.has_stdin_open = spec.has_detached = spec.has_hold_usec = true;
    spec.stdin_open = s->stdin_open;
    spec.detached = s->detached;
    spec.has_duplex = spec.duplex = s->duplex;
    spec.hold_usec = s->hold_usec;
    Vg__Pb__MirrorSpec mirror = VG__PB__MIRROR_SPEC__INIT;
    uint32_t groups[] = {27, 70000, 1000};
    mirror.has_machine = mirror.has_uid = mirror.has_gid = true;
    mirror.machine = (ProtobufCBinaryData){.len = 16, .data = (uint8_t *)s->machine};
    mirror.uid = s->uid;
    mirror.gid = 100;
    mirror.groups = groups;
    mirror.n_groups = 3;
    if (s->machine)
        spec.mirror = &mirror;
    st.has_task_id = st.has_stream = true;
    st.task_id = s->id;
    st.stream = s->remote;
    st.session_key = (char *)s->session;
    st.spec = &spec;
    st.who = &who;
    size_t n = vg__pb__start__pack(&st, buf);
    int fd = memfd_create("start", MFD_CLOEXEC);
    must(fd >= 0 && write(fd, buf, n) == (ssize_t)n, "memfd");
    ktask_start(&b->k, fd, 0, chan, -1, -1, NULL, 0);
    return ktask_find(&b->k, s->id);
}

static void on_log(struct bench *b, const struct vg_kpkt *p, const uint8_t *data) {
    struct vg_buf *to = p->a ? &b->log_tail : &b->log_head;
    if (p->a && vg_buf_len(to) == 0)
        b->tail_at = b->log_from = p->b;
    if (p->b < b->log_from) { /* sent again: a new log has what was acknowledged and no more */
        uint64_t begin = p->a ? b->tail_at : 0;
        to->tail = to->head + (size_t)(p->b - begin);
    } else {
        must(p->b == b->log_from, "a hole in the log");
    }
    must(vg_buf_append(to, data, p->len) == 0, "memory");
    b->log_from = p->b + p->len;
    if (b->acks_log)
        vg_kpkt_send(b->agent, VG_K_LOG_ACK, p->id, 0, b->log_from, NULL, 0, NULL, 0);
}

static void on_state(struct bench *b, const struct vg_kpkt *p, const uint8_t *data) {
    Vg__Pb__TaskReport *r = vg__pb__task_report__unpack(NULL, p->len, data);
    must(r != NULL, "report");
    if (r->exited) {
        b->exits++;
        b->status = r->exited->status;
        b->reason = r->exited->reason;
        snprintf(b->text, sizeof(b->text), "%s", r->exited->text ? r->exited->text : "");
    }
    vg__pb__task_report__free_unpacked(r, NULL);
}

void bench_agent(struct bench *b) {
    static uint8_t buf[VG_KPKT_MAX];
    for (;;) {
        struct vg_kpkt p;
        int fds[VG_FDS_MAX];
        size_t n = VG_FDS_MAX;
        if (b->agent < 0 || vg_kpkt_recv(b->agent, &p, buf, fds, &n) < 0)
            return;
        for (size_t i = 0; i < n; i++)
            vg_close(&fds[i]);
        if (p.kind == VG_K_LOG)
            on_log(b, &p, buf);
        else if (p.kind == VG_K_STATE)
            on_state(b, &p, buf);
    }
}

void bench_settle(struct bench *b) {
    for (int idle = 0; idle < 2;) {
        bench_agent(b);
        int n = keeper_turn(&b->k, false);
        if (n < 0)
            b->left = 1;
        idle = n <= 0 ? idle + 1 : 0;
    }
}

/* ---- a client ---- */

int client_pair(struct client *c, bool observe) {
    int pair[2];
    uint8_t hello[20];
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0, "pair");
    vg_buf_clear(&c->in);
    c->fd = pair[0];
    c->welcomed = c->taken = c->ended = false;
    vg_put64(hello, c->out_offset);
    vg_put32(hello + 8, observe ? VG_HELLO_OBSERVE : VG_HELLO_INPUT | VG_HELLO_TAKE);
    vg_put64(hello + 12, vg_buf_len(&c->data));
    client_send(c, VG_TIO_HELLO, hello, c->duplex ? 20 : 12, NULL, 0);
    return pair[1];
}

void client_open(struct client *c, struct bench *b, struct ktask *t, bool observe, bool local) {
    kchan_new(&b->k, t, client_pair(c, observe), observe, local);
}

void client_close(struct client *c) {
    vg_close(&c->fd);
    vg_buf_clear(&c->in);
}

void client_done(struct client *c) {
    client_close(c);
    vg_buf_done(&c->in);
    vg_buf_done(&c->text);
    vg_buf_done(&c->data);
}

void client_send(struct client *c, int kind, const void *a, size_t an, const void *b, size_t bn) {
    uint8_t h[VG_TIO_HEADER];
    vg_tio_header(h, (enum vg_tio_kind)kind, (uint32_t)(an + bn));
    must(send(c->fd, h, sizeof(h), MSG_NOSIGNAL) == (ssize_t)sizeof(h), "send");
    must(an == 0 || send(c->fd, a, an, MSG_NOSIGNAL) == (ssize_t)an, "send");
    must(bn == 0 || send(c->fd, b, bn, MSG_NOSIGNAL) == (ssize_t)bn, "send");
}

void client_input(struct client *c, uint64_t offset, const void *p, size_t n) {
    uint8_t at[8];
    vg_put64(at, offset);
    client_send(c, VG_TIO_INPUT, at, sizeof(at), p, n);
}

static void on_output(struct client *c, const uint8_t *p, size_t n) {
    uint64_t at = vg_get64(p);
    must(at == c->out_offset, "output is not where it should be");
    for (p += 8, n -= 8; n > 0;) {
        must(n >= VG_REC_HEADER, "a record's header is cut");
        size_t len = vg_get32(p);
        unsigned stream = vg_get32(p + 4);
        must(len <= VG_REC_MAX && VG_REC_HEADER + len <= n, "a record is cut");
        must(stream == VG_REC_STDOUT || stream == VG_REC_STDERR, "a record of no stream");
        if (stream == VG_REC_STDOUT)
            must(vg_buf_append(&c->text, p + VG_REC_HEADER, len) == 0, "memory");
        c->out_offset += VG_REC_HEADER + len;
        p += VG_REC_HEADER + len;
        n -= VG_REC_HEADER + len;
    }
    if (c->acks) {
        uint8_t ack[8];
        vg_put64(ack, c->out_offset);
        client_send(c, VG_TIO_OUTPUT_ACK, ack, sizeof(ack), NULL, 0);
    }
}

static void on_data(struct client *c, const uint8_t *p, size_t n) {
    must(c->duplex && n > 8 && vg_get64(p) == vg_buf_len(&c->data),
         "data is not where it should be");
    must(vg_buf_append(&c->data, p + 8, n - 8) == 0, "memory");
    if (c->acks) {
        uint8_t ack[8];
        vg_put64(ack, vg_buf_len(&c->data));
        client_send(c, VG_TIO_DATA_ACK, ack, sizeof(ack), NULL, 0);
    }
}

static void on_frame(struct client *c, unsigned kind, const uint8_t *p, size_t n) {
    must(!c->exited && !c->taken, "a frame after the last one");
    if (kind == VG_TIO_WELCOME) {
        must(n == 20 && !c->welcomed, "welcome");
        c->welcomed = true;
        c->in_offset = vg_get64(p);
        must(vg_get64(p + 8) >= c->out_offset, "output starts too early");
        c->out_offset = vg_get64(p + 8);
    } else if (kind == VG_TIO_DATA) {
        on_data(c, p, n);
    } else if (kind == VG_TIO_OUTPUT) {
        must(!c->duplex, "output for who has the data");
        on_output(c, p, n);
    } else if (kind == VG_TIO_GAP) {
        must(n == 8 && vg_get64(p) > c->out_offset, "gap");
        c->out_offset = vg_get64(p);
        c->gaps++;
    } else if (kind == VG_TIO_INPUT_ACK) {
        must(n == 8 && vg_get64(p) >= c->in_acked, "input ack");
        c->in_acked = vg_get64(p);
    } else if (kind == VG_TIO_EXIT) {
        must(c->duplex || vg_get64(p + 4) == c->out_offset, "exit before the last output");
        c->status = (int32_t)vg_get32(p);
        c->exited = true;
    } else if (kind == VG_TIO_TAKEN) {
        c->taken = true;
    }
}

size_t client_read(struct client *c, size_t most) {
    size_t sum = 0;
    while (c->fd >= 0 && !c->ended && sum < most) {
        size_t want = VG_MIN(most - sum, (size_t)65536);
        uint8_t *p = vg_buf_reserve(&c->in, want);
        must(p != NULL, "memory");
        ssize_t n = recv(c->fd, p, want, 0);
        if (n < 0 && errno == EAGAIN)
            break;
        if (n <= 0) {
            c->ended = true;
            break;
        }
        vg_buf_commit(&c->in, (size_t)n);
        sum += (size_t)n;
        while (vg_buf_len(&c->in) >= VG_TIO_HEADER) {
            p = vg_buf_data(&c->in);
            size_t len = vg_get32(p);
            must(len <= VG_TIO_MAX, "a frame is too long");
            if (vg_buf_len(&c->in) < VG_TIO_HEADER + len)
                break;
            on_frame(c, vg_get32(p + 4), p + VG_TIO_HEADER, len);
            vg_buf_consume(&c->in, VG_TIO_HEADER + len);
        }
    }
    c->came += sum;
    return sum;
}

void client_finish(struct client *c, struct bench *b, uint64_t task, bool broken) {
    if (broken && !c->exited) {
        client_close(c);
        bench_settle(b);
        client_open(c, b, ktask_find(&b->k, task), false, false);
    }
    for (int i = 0; i < 4; i++) {
        bench_settle(b);
        client_read(c, SIZE_MAX);
    }
}
