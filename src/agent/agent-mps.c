/* Class `mps`: NVIDIA's MPS for cards whose tasks share one context, and so compute at the same
   time. One control daemon a card, there while a task has a share of it. Loop thread.

       OFF ──a share comes──▶ STARTING ──it answers──▶ UP ──the last has left──▶ STOPPING ──▶ OFF
        ▲                        │                      │
        └──it ended: whoever waits or computes there ends, too, with the reason

   What always holds
   1. A task is handed to its keeper only after the daemon has answered that no client gets more of
      the card than the largest share on it: a program may lower its percentage, not raise it.
   2. The daemon outlives the agent, as tasks do; the next agent finds it by its pid file.
   3. Everything that is asked of it has a limit in time. One that does not answer is ended.

   Memory is not MPS's to hold: the task's warden does (gpu/warden.h), for all its processes. */
#include "agent/agent-int.h"
#include "agent/agent-mps-run.h"
#include "agent/agent-mps-words.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOOK_MS 20                 /* between looks */
#define BEGIN_USEC (15 * VG_USEC)  /* in which its socket must be there */
#define ANSWER_USEC (10 * VG_USEC) /* in which it must have answered */
#define LEAVE_USEC (5 * VG_USEC)   /* in which it must be gone */
#define CHECK_USEC (5 * VG_USEC)   /* between questions whether its servers are well */
#define LOG_MAX (1 << 20)          /* bytes; then it begins anew */
#define REPLY_MAX 4096

enum mps_state { MPS_OFF, MPS_STARTING, MPS_UP, MPS_STOPPING };
enum mps_command { MPS_NOTHING, MPS_CAP, MPS_CAP_SERVERS, MPS_LIST, MPS_STATUS, MPS_QUIT };

/* A descriptor that is waited for; lives until libuv has let go of it. */
struct mps_wait {
    uv_poll_t poll;
    int fd; /* owned */
    struct vg_mps *mps;
};

struct vg_mps {
    struct vg_agent *agent;
    uint32_t card;
    enum mps_state state;
    struct vg_list waiting; /* tasks */
    pid_t pid;
    struct mps_wait *life; /* its pidfd */
    uv_timer_t timer;      /* while something is waited for */
    uint64_t until_usec;   /* for how long */
    uint64_t check_usec;   /* when it is asked how it does */

    uint32_t cap_milli;      /* what it has answered to; 0: nothing yet */
    enum mps_command asking; /* what is on its way to it … */
    uint32_t asking_milli;
    pid_t asker;
    struct mps_wait *reply; /* … and what comes back */
    char said[REPLY_MAX];
    size_t n_said;
};

static void step(struct vg_mps *m);
static void on_answer(struct vg_mps *m);

/* ------------------------------------------------------------------ waiting */

static void on_wait_closed(uv_handle_t *h) {
    struct mps_wait *w = h->data;
    close(w->fd);
    free(w);
}

static void wait_end(struct mps_wait **w) {
    if (*w)
        uv_close((uv_handle_t *)&(*w)->poll, on_wait_closed);
    *w = NULL;
}

/* Takes the descriptor. */
static int wait_begin(struct vg_mps *m, int fd, uv_poll_cb cb, struct mps_wait **ret) {
    struct mps_wait *w = fd < 0 ? NULL : vg_alloc(sizeof(*w));
    if (!w || uv_poll_init(&m->agent->loop, &w->poll, fd) < 0) {
        vg_close(&fd);
        free(w);
        return -ENOMEM;
    }
    w->fd = fd;
    w->mps = m;
    w->poll.data = w;
    uv_poll_start(&w->poll, UV_READABLE | UV_DISCONNECT, cb);
    *ret = w;
    return 0;
}

static void kill_whole(pid_t pid) {
    if (pid > 1) {
        kill(-pid, SIGKILL); /* its servers, too: they are of its session */
        kill(pid, SIGKILL);
    }
}

/* ------------------------------------------------------------------ its tasks */

static bool is_here(const struct vg_agent_task *t, const struct vg_mps *m) {
    return t->share.mps && !t->mps_over && t->share.card == m->card && t->state != VG_AT_EXITED;
}

static uint32_t largest_share(const struct vg_mps *m) {
    uint32_t most = 0;
    vg_map_for_each (s, &m->agent->tasks) {
        const struct vg_agent_task *t = s->value;
        if (is_here(t, m))
            most = VG_MAX(most, t->share.milli);
    }
    return most;
}

static struct vg_agent_task *take_waiting(struct vg_mps *m) {
    struct vg_list *l = m->waiting.next;
    if (l == &m->waiting)
        return NULL;
    vg_list_remove(l);
    vg_list_init(l);
    return vg_list_entry(l, struct vg_agent_task, link);
}

/* They share one context: what ends it ends all of them. */
static void end_tasks(struct vg_mps *m, const char *why) {
    char text[256];
    snprintf(text, sizeof(text), "GPU %u's MPS server, which all tasks on that card share, %s",
             m->card, why);
    vg_warn("gpu=%u %s", m->card, text);
    for (struct vg_agent_task *t; (t = take_waiting(m));) {
        t->mps_over = true;
        vg_tasks_fail(m->agent, t, VG_UNAVAILABLE, text);
    }
    vg_map_for_each (s, &m->agent->tasks) {
        struct vg_agent_task *t = s->value;
        if (!is_here(t, m))
            continue;
        t->mps_over = true; /* the next daemon is not theirs */
        if (t->keeper && !t->gated) {
            vg_keeper_send(t->keeper, VG_K_KILL, t->id, SIGKILL, 0, text, strlen(text), NULL, 0);
        } else { /* it has not begun */
            vg_keepers_withdraw(m->agent, t);
            vg_tasks_fail(m->agent, t, VG_UNAVAILABLE, text);
        }
    }
}

/* ------------------------------------------------------------------ commands */

static void on_reply(uv_poll_t *poll, int status, int events) {
    struct mps_wait *w = poll->data;
    struct vg_mps *m = w->mps;
    char spill[512];
    (void)status, (void)events;
    for (;;) {
        size_t room = sizeof(m->said) - 1 - m->n_said;
        ssize_t n = read(w->fd, room ? m->said + m->n_said : spill, room ? room : sizeof(spill));
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0)
            break;
        m->n_said += room ? (size_t)n : 0;
    }
    m->said[m->n_said] = 0;
    wait_end(&m->reply);
    on_answer(m);
}

static int ask(struct vg_mps *m, enum mps_command what, const char *words) {
    static const char *const argv[] = {VG_MPS_PROGRAM, NULL};
    int out[2];
    vg_auto_fd int in = memfd_create("words", MFD_CLOEXEC);
    vg_auto_fd int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (in < 0 || null < 0 || pipe2(out, O_CLOEXEC | O_NONBLOCK) < 0)
        return -errno;
    int r = vg_write_full(in, words, strlen(words));
    if (r >= 0 && lseek(in, 0, SEEK_SET) < 0)
        r = -errno;
    const int fds[3] = {in, out[1], null};
    if (r >= 0)
        r = vg_mps_run(m->agent, m->card, argv, fds, false, &m->asker);
    close(out[1]);
    if (r < 0) {
        close(out[0]);
        return r;
    }
    r = wait_begin(m, out[0], on_reply, &m->reply);
    m->n_said = 0;
    m->asking = what;
    m->until_usec = vg_now_usec() + ANSWER_USEC;
    return r;
}

static void give_up(struct vg_mps *m, const char *why) {
    end_tasks(m, why);
    m->state = MPS_STOPPING;
    m->until_usec = vg_now_usec() + LEAVE_USEC;
    kill_whole(m->pid);
}

/* What comes of an answer: more to ask (1), nothing (0), or -errno. */
static int on_servers(struct vg_mps *m, enum mps_command next) {
    pid_t server[VG_MPS_SERVERS_MAX];
    char words[VG_MPS_WORDS_MAX];
    int n = vg_mps_read_servers(m->said, next == MPS_STATUS ? 0 : m->asking_milli, server);
    if (n <= 0)
        return n;
    vg_mps_words_servers(next == MPS_STATUS ? 0 : m->asking_milli, server, (size_t)n, words,
                         sizeof(words));
    int r = ask(m, next, words);
    return r < 0 ? r : 1;
}

static void on_answer(struct vg_mps *m) {
    enum mps_command what = m->asking;
    m->asking = MPS_NOTHING;
    m->check_usec = vg_now_usec() + CHECK_USEC;
    if (m->state != MPS_UP)
        return;
    int r = what == MPS_CAP           ? on_servers(m, MPS_CAP_SERVERS)
            : what == MPS_LIST        ? on_servers(m, MPS_STATUS)
            : what == MPS_CAP_SERVERS ? vg_mps_read_caps(m->said, m->asking_milli)
                                      : 0;
    if (r > 0)
        return;
    if (r < 0) {
        give_up(m, "did not do as it was told, and was ended");
    } else if (what == MPS_STATUS && vg_mps_read_fault(m->said)) {
        /* Its clients have errors only, and until the last has left it takes no new one. */
        give_up(m, "was brought down by an error in one of their programs");
    } else {
        m->cap_milli = what == MPS_CAP || what == MPS_CAP_SERVERS ? m->asking_milli : m->cap_milli;
        step(m);
    }
}

/* ------------------------------------------------------------------ life */

static void on_ended(uv_poll_t *poll, int status, int events) {
    struct vg_mps *m = ((struct mps_wait *)poll->data)->mps;
    enum mps_state was = m->state;
    (void)status, (void)events;
    wait_end(&m->life);
    if (m->asking != MPS_NOTHING) {
        kill(m->asker, SIGKILL);
        wait_end(&m->reply);
        m->asking = MPS_NOTHING;
    }
    kill_whole(m->pid); /* a server that lost its daemon serves nobody new */
    m->pid = 0;
    m->state = MPS_OFF;
    m->cap_milli = 0;
    if (was == MPS_STARTING)
        end_tasks(m, "ended while it was started (its log is in node/mps)");
    else if (was == MPS_UP)
        end_tasks(m, "has ended");
    step(m);
    vg_bare_step(m->agent);
}

static int watch(struct vg_mps *m, pid_t pid) {
    int r = wait_begin(m, (int)syscall(SYS_pidfd_open, pid, 0), on_ended, &m->life);
    if (r >= 0)
        m->pid = pid;
    return r;
}

static int begin(struct vg_mps *m) {
    static const char *const argv[] = {VG_MPS_PROGRAM, "-f", "-multiuser-server", NULL};
    pid_t pid = 0;
    int r = vg_mps_make_folders(m->agent, m->card);
    vg_auto_free char *path = vg_mps_path(m->agent, m->card, "log/daemon.log");
    vg_auto_fd int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    vg_auto_fd int log = open(path ? path : "", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (r >= 0 && (null < 0 || log < 0))
        r = -errno;
    const int fds[3] = {null, log, log};
    if (r >= 0)
        r = vg_mps_run(m->agent, m->card, argv, fds, true, &pid);
    if (r >= 0 && (r = watch(m, pid)) < 0)
        kill_whole(pid);
    return r;
}

static bool has_socket(const struct vg_mps *m) {
    struct stat st;
    vg_auto_free char *path = vg_mps_path(m->agent, m->card, "pipe/control");
    return path && stat(path, &st) == 0 && S_ISSOCK(st.st_mode);
}

static void on_timer(uv_timer_t *timer);

/* Often while something is waited for, else when it is to be asked how it does. */
static void set_timer(struct vg_mps *m) {
    uint64_t now = vg_now_usec(), ms = LOOK_MS;
    if (m->state == MPS_UP && m->asking == MPS_NOTHING)
        ms = m->check_usec > now ? (m->check_usec - now) / 1000 + 1 : 1;
    if (m->state == MPS_OFF)
        uv_timer_stop(&m->timer);
    else
        uv_timer_start(&m->timer, on_timer, ms, 0);
}

/* Now and then: are its servers well, and is its log not too long? */
static void check(struct vg_mps *m) {
    struct stat st;
    vg_auto_free char *path = vg_mps_path(m->agent, m->card, "log/daemon.log");
    if (path && stat(path, &st) == 0 && st.st_size > LOG_MAX && truncate(path, 0) < 0)
        vg_warn("gpu=%u the log of its MPS cannot be cut: errno=%d", m->card, errno);
    m->check_usec = vg_now_usec() + CHECK_USEC;
    if (ask(m, MPS_LIST, "get_server_list\n") < 0)
        give_up(m, "cannot be asked, and was ended");
}

static void on_timer(uv_timer_t *timer) {
    struct vg_mps *m = timer->data;
    bool late = vg_now_usec() > m->until_usec;
    if (m->state == MPS_STARTING && has_socket(m)) {
        m->state = MPS_UP;
        m->check_usec = vg_now_usec() + CHECK_USEC;
        step(m);
    } else if (late && m->asking != MPS_NOTHING && m->state == MPS_UP) {
        kill(m->asker, SIGKILL);
        wait_end(&m->reply);
        m->asking = MPS_NOTHING;
        give_up(m, "did not answer, and was ended");
    } else if (late && m->state == MPS_STARTING) {
        give_up(m, "could not be started in time");
    } else if (late && m->state == MPS_STOPPING) {
        m->until_usec = vg_now_usec() + LEAVE_USEC;
        kill_whole(m->pid);
    }
    if (m->state == MPS_UP && m->asking == MPS_NOTHING && vg_now_usec() >= m->check_usec)
        check(m);
    set_timer(m);
}

static void step_off(struct vg_mps *m) {
    if (m->waiting.next == &m->waiting)
        return;
    int r = begin(m);
    if (r == -ENOENT) {
        end_tasks(m, "is not there: the node has no " VG_MPS_PROGRAM
                     " (it comes with the driver; name its folder in node.libraries)");
    } else if (r < 0) {
        end_tasks(m, "cannot be started");
    } else {
        m->state = MPS_STARTING;
        m->until_usec = vg_now_usec() + BEGIN_USEC;
    }
}

static void step_up(struct vg_mps *m) {
    char words[VG_MPS_WORDS_MAX];
    uint32_t most = largest_share(m);
    if (m->asking != MPS_NOTHING)
        return;
    if (!most) {
        m->state = MPS_STOPPING;
        if (ask(m, MPS_QUIT, "quit -t 2\n") < 0)
            kill_whole(m->pid);
        m->until_usec = vg_now_usec() + LEAVE_USEC;
        return;
    }
    if (most != m->cap_milli) {
        m->asking_milli = most;
        vg_mps_words_cap(most, words, sizeof(words));
        if (ask(m, MPS_CAP, words) < 0)
            give_up(m, "cannot be asked, and was ended");
        return;
    }
    for (struct vg_agent_task *t; (t = take_waiting(m));)
        vg_keepers_submit(m->agent, t, &t->key);
}

static void step(struct vg_mps *m) {
    if (m->state == MPS_OFF)
        step_off(m);
    else if (m->state == MPS_UP)
        step_up(m);
    set_timer(m);
}

static struct vg_mps *of_card(struct vg_agent *a, uint32_t card) {
    if (card >= VG_COUNT(a->mps))
        return NULL;
    struct vg_mps *m = a->mps[card];
    if (m || !(m = vg_alloc(sizeof(*m))))
        return m;
    m->agent = a;
    m->card = card;
    vg_list_init(&m->waiting);
    uv_timer_init(&a->loop, &m->timer);
    m->timer.data = m;
    a->mps[card] = m;
    return m;
}

/* ------------------------------------------------------------------ for the rest of the agent */

void vg_mps_submit(struct vg_agent *a, struct vg_agent_task *t) {
    struct vg_mps *m = of_card(a, t->share.card);
    if (!m) {
        vg_tasks_fail(a, t, VG_INTERNAL, "the node has no such GPU, or is out of memory");
        return;
    }
    t->state = VG_AT_WAITING;
    vg_list_push_back(&m->waiting, &t->link);
    step(m);
}

void vg_mps_changed(struct vg_agent *a, uint32_t card) {
    if (card < VG_COUNT(a->mps) && a->mps[card])
        step(a->mps[card]);
}

void vg_mps_adopt(struct vg_agent *a) {
    vg_auto_free char *dir = vg_agent_path(a, "mps");
    struct stat st;
    if (!dir || stat(dir, &st) < 0)
        return; /* this node never had one */
    for (uint32_t card = 0; card < a->gpus.n; card++) {
        struct vg_mps *m = of_card(a, card);
        pid_t pid = m ? vg_mps_find_daemon(a, card) : 0;
        if (!m || m->state != MPS_OFF)
            continue;
        if (pid && watch(m, pid) >= 0) {
            m->state = MPS_UP;
            step(m); /* without a task it goes */
        } else if (largest_share(m)) {
            end_tasks(m, "has ended");
        }
    }
}

bool vg_mps_runs(const struct vg_agent *a) {
    for (size_t i = 0; i < VG_COUNT(a->mps); i++)
        if (a->mps[i] && a->mps[i]->state != MPS_OFF)
            return true;
    return false;
}

void vg_mps_close(struct vg_agent *a) {
    for (size_t i = 0; i < VG_COUNT(a->mps); i++)
        if (a->mps[i] && a->mps[i]->pid && !largest_share(a->mps[i]))
            kill_whole(a->mps[i]->pid);
}
