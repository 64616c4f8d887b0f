/* A task that has the whole node (pools of class bare-metal), and the wipe after it. Loop thread.

       NONE ──Start──▶ EMPTYING ──others are gone──▶ LOOKING ──noted──▶ RUNNING
        ▲                                                                  │ the task has ended
        ├──────────────────────── all is done ─────────────────────── WIPING
        └──────── all is done, later ──── UNFIT ◀──something is not───────┘

   What always holds:
   1. node/bare is there from before the task begins until a wipe was done whole: an agent that
      finds it wipes before anything else, whatever happened in between.
   2. The end of the task is told when the node is wiped, or cannot be; until then the control plane
      sees it running, and places nothing here.
   3. While it is there, no other task is taken. */
#include "agent/agent-int.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define EMPTY_MS 15000      /* others have ended for the scheduler: their keepers leave soon */
#define PROGRAM_MS 600000   /* then its driver hangs */
#define AGAIN_FIRST_MS 2000 /* before a wipe is tried again; doubles */
#define AGAIN_MOST_MS 60000
#define SAID_MAX (64u << 10)
#define LINES_MAX 64

static void step(struct vg_agent *a);
static void begin_wipe(struct vg_agent *a);

static char *state_path(const struct vg_agent *a) {
    return vg_agent_path(a, "bare");
}

static void forget_state(const struct vg_agent *a) {
    vg_auto_free char *path = state_path(a);
    if (path)
        unlink(path);
}

bool vg_start_is_bare(const Vg__Pb__Start *start) {
    return start->class_name && !strcmp(start->class_name, "bare-metal");
}

bool vg_bare_holds(const struct vg_agent *a, uint64_t task) {
    const struct vg_bare *b = &a->bare;
    return b->task == task && (b->state == VG_BARE_RUNNING || b->state == VG_BARE_WIPING);
}

const char *vg_bare_unfit(const struct vg_agent *a) {
    return a->bare.unfit[0] ? a->bare.unfit : NULL;
}

int vg_bare_refuses(const struct vg_agent *a, const Vg__Pb__Start *start, struct vg_err *err) {
    const struct vg_bare *b = &a->bare;
    if (b->state == VG_BARE_NONE || (b->state == VG_BARE_EMPTYING && b->task == start->task_id))
        return 0;
    return vg_err_set(err, VG_UNAVAILABLE, "%s",
                      b->unfit[0] ? b->unfit : "the node belongs to one task as a whole");
}

/* ------------------------------------------------------------------ the program */

static void on_closed(uv_handle_t *handle) {
    struct vg_agent *a = handle->data;
    a->bare.closing = false;
    step(a);
}

static void drop_program(struct vg_agent *a) {
    struct vg_bare *b = &a->bare;
    uv_timer_stop(&b->timer);
    if (b->fd < 0)
        return;
    b->closing = true;
    uv_close((uv_handle_t *)&b->poll, on_closed);
    vg_close(&b->fd);
    kill(b->pid, SIGKILL);
    b->pid = 0;
}

/* Whether it came to its end, and everything could be done; *ret_why: the first that could not. */
static bool all_done(const char *said, char *ret_why, size_t n) {
    const char *bad = said[0] == '!' ? said : strstr(said, "\n!");
    const char *end = strstr(said, "done\n");
    if (bad) {
        bad += *bad == '\n' ? 2 : 1;
        snprintf(ret_why, n, "%.*s", (int)strcspn(bad, "\n"), bad);
        return false;
    }
    snprintf(ret_why, n, "it did not come to its end");
    return end && (end == said || end[-1] == '\n') && !end[5];
}

static void looked(struct vg_agent *a, bool good, const char *why) {
    struct vg_bare *b = &a->bare;
    struct vg_agent_task *t = vg_tasks_get(a, b->task);
    char text[400];
    b->state = good && t ? VG_BARE_RUNNING : VG_BARE_NONE;
    if (good && t) {
        vg_keepers_submit(a, t, &t->key);
        return;
    }
    forget_state(a);
    snprintf(text, sizeof(text), "this node cannot be given whole: %.300s", why);
    if (t)
        vg_tasks_fail(a, t, VG_UNSUPPORTED, text);
}

/* The exit is protobuf's memory: so is what is put into it. */
static void add_line(Vg__Pb__TaskExited *x, const char *line, size_t n) {
    bool failed = n && line[0] == '!';
    char **more = realloc(x->wiped, (x->n_wiped + 1) * sizeof(*more));
    char *text = vg_fmt("%s%.*s", failed ? "not done: " : "", (int)(n - failed), line + failed);
    if (more)
        x->wiped = more;
    if (more && text && x->n_wiped < LINES_MAX)
        x->wiped[x->n_wiped++] = text;
    else
        free(text);
}

static void add_lines(Vg__Pb__TaskExited *x, const char *said) {
    for (const char *p = said; *p;) {
        size_t n = strcspn(p, "\n");
        if (n && !(n == 4 && !memcmp(p, "done", 4)))
            add_line(x, p, n);
        p += n + (p[n] == '\n');
    }
}

/* What its keeper could not do: '!' as in the program's own lines. */
static bool keeper_failed(Vg__Pb__TaskExited *x, char *ret_why, size_t n) {
    bool failed = false;
    for (size_t i = 0; i < x->n_wiped; i++)
        if (x->wiped[i][0] == '!') {
            char *line = vg_fmt("not done: %s", x->wiped[i] + 1);
            snprintf(ret_why, n, "%s", x->wiped[i] + 1);
            failed = true;
            if (line) {
                free(x->wiped[i]);
                x->wiped[i] = line;
            }
        }
    return failed;
}

static void again_later(struct vg_agent *a) {
    struct vg_bare *b = &a->bare;
    b->again_ms =
        VG_MIN(VG_MAX(2 * b->again_ms, (uint64_t)AGAIN_FIRST_MS), (uint64_t)AGAIN_MOST_MS);
    uv_timer_start(&b->timer, b->on_timer, b->again_ms, 0);
}

static void wiped(struct vg_agent *a, const char *said, bool good, const char *why) {
    struct vg_bare *b = &a->bare;
    struct vg_agent_task *t = vg_tasks_get(a, b->task);
    char first[300];
    snprintf(first, sizeof(first), "%s", why);
    if (t && t->exited) {
        good = !keeper_failed(t->exited, first, sizeof(first)) && good;
        add_lines(t->exited, said);
        if (!good && first[0] && !strchr(said, '!') && !strcmp(first, why)) {
            vg_auto_free char *line = vg_fmt("!the wipe: %s", why);
            add_line(t->exited, line ? line : "!", line ? strlen(line) : 1);
        }
    }
    b->state = good ? VG_BARE_NONE : VG_BARE_UNFIT;
    b->unfit[0] = 0;
    if (good) {
        b->again_ms = 0;
        forget_state(a);
        vg_info("wiped after task=%016" PRIx64, b->task);
    } else {
        snprintf(b->unfit, sizeof(b->unfit), "not wiped after task %016" PRIx64 ": %.200s", b->task,
                 first);
        vg_warn("%s", b->unfit);
        again_later(a);
    }
    vg_link_beat(a); /* before the end of the task makes room here */
    if (t)
        vg_tasks_say_exit(a, t);
}

static void program_ended(struct vg_agent *a) {
    struct vg_bare *b = &a->bare;
    char why[300];
    vg_auto_free char *said = vg_strndup((const char *)vg_buf_data(&b->said), vg_buf_len(&b->said));
    bool good = said && all_done(said, why, sizeof(why));
    if (!said)
        snprintf(why, sizeof(why), "the node is out of memory");
    drop_program(a);
    if (b->state == VG_BARE_LOOKING)
        looked(a, good, why);
    else if (b->state == VG_BARE_WIPING)
        wiped(a, said ? said : "", good, why);
}

static void on_readable(uv_poll_t *poll, int status, int events) {
    struct vg_agent *a = poll->data;
    struct vg_bare *b = &a->bare;
    uint8_t block[4096];
    (void)status, (void)events;
    ssize_t n = recv(b->fd, block, sizeof(block), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    bool more = n > 0 && vg_buf_len(&b->said) + (size_t)n <= SAID_MAX &&
                vg_buf_append(&b->said, block, (size_t)n) >= 0;
    if (!more)
        program_ended(a);
}

/* The cards of the node, as the program wants to hear of them. */
static void say_cards(const struct vg_agent *a, const char **argv, char *count, size_t n,
                      const char *dir) {
    if (!vg_agent_has_cards(a))
        return;
    if (a->gpus.gpu[0].vendor == VG_CARD_FAKE) {
        snprintf(count, n, "%zu", a->gpus.n);
        argv[0] = "--fake", argv[1] = count, argv[2] = dir;
    } else if (a->gpus.gpu[0].vendor == VG_CARD_NVIDIA) {
        argv[0] = "--nvidia", argv[1] = vg_agent_library(a, "libnvidia-ml.so.1");
        argv[2] = vg_agent_library(a, "libcuda.so.1");
    } else {
        argv[0] = "--unknown";
    }
}

static int run_program(struct vg_agent *a, const char *what) {
    struct vg_bare *b = &a->bare;
    char task[VG_ID_LEN + 1], attempt[16], count[16];
    vg_auto_free char *path = state_path(a);
    vg_auto_free char *dir = vg_agent_path(a, "fake-gpus");
    const char *argv[12] = {"virga", "node-wipe", what, path};
    size_t n = 4;
    int pair[2];
    if (!path || !dir)
        return -ENOMEM;
    vg_id_format(b->task, task);
    snprintf(attempt, sizeof(attempt), "%u", b->attempt);
    if (!strcmp(what, "before"))
        argv[n++] = task, argv[n++] = attempt;
    say_cards(a, argv + n, count, sizeof(count), dir);
    vg_buf_clear(&b->said);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    vg_auto_fd int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    const int fds[3] = {null, pair[1], STDERR_FILENO};
    int r = null < 0 ? -errno : vg_agent_run(a->self_exe, argv, environ, fds, false, &b->pid);
    close(pair[1]);
    if (r >= 0)
        r = uv_poll_init(&a->loop, &b->poll, pair[0]);
    if (r < 0) {
        close(pair[0]);
        return r;
    }
    b->fd = pair[0];
    b->poll.data = a;
    uv_timer_start(&b->timer, b->on_timer, PROGRAM_MS, 0);
    return uv_poll_start(&b->poll, UV_READABLE | UV_DISCONNECT, on_readable);
}

/* ------------------------------------------------------------------ before */

static bool is_empty(const struct vg_agent *a, size_t tasks) {
    if (vg_map_len(&a->tasks) > tasks || vg_mps_runs(a))
        return false;
    vg_list_for_each (it, &a->keepers) {
        enum vg_keeper_state s = vg_list_entry(it, struct vg_agent_keeper, link)->state;
        if (s == VG_KEEPER_BUSY || s == VG_KEEPER_ADOPTED)
            return false;
    }
    return true;
}

void vg_bare_submit(struct vg_agent *a, struct vg_agent_task *t) {
    struct vg_bare *b = &a->bare;
    b->state = VG_BARE_EMPTYING;
    b->task = t->id;
    b->attempt = t->attempt;
    t->state = VG_AT_WAITING;
    uv_timer_start(&b->timer, b->on_timer, EMPTY_MS, 0);
    step(a);
}

static void look_before(struct vg_agent *a) {
    struct vg_bare *b = &a->bare;
    b->state = VG_BARE_LOOKING;
    int r = run_program(a, "before");
    if (r < 0)
        looked(a, false, strerror(-r));
}

static void step(struct vg_agent *a) {
    struct vg_bare *b = &a->bare;
    if (b->closing || b->fd >= 0)
        return;
    if (b->state == VG_BARE_EMPTYING && is_empty(a, 1))
        look_before(a);
    else if (b->state == VG_BARE_WIPING)
        begin_wipe(a);
}

void vg_bare_step(struct vg_agent *a) {
    if (a->bare.state == VG_BARE_EMPTYING)
        step(a);
}

/* ------------------------------------------------------------------ after */

static void begin_wipe(struct vg_agent *a) {
    struct vg_bare *b = &a->bare;
    b->state = VG_BARE_WIPING;
    if (b->closing || b->fd >= 0)
        return; /* when the program before it is gone */
    int r = run_program(a, "after");
    if (r < 0)
        wiped(a, "", false, strerror(-r));
}

bool vg_bare_hold(struct vg_agent *a, const struct vg_agent_task *t) {
    struct vg_bare *b = &a->bare;
    if (b->state == VG_BARE_NONE || b->state == VG_BARE_UNFIT || b->task != t->id)
        return false;
    if (b->state == VG_BARE_RUNNING)
        begin_wipe(a);
    if (b->state == VG_BARE_WIPING)
        return true;
    if (b->state == VG_BARE_LOOKING || b->state == VG_BARE_EMPTYING) {
        drop_program(a); /* nothing of it has begun */
        forget_state(a);
        b->state = VG_BARE_NONE;
    }
    return false;
}

static void wipe_again(struct vg_agent *a) {
    if (is_empty(a, SIZE_MAX))
        begin_wipe(a);
    else /* its keeper waits for processes that cannot be killed */
        again_later(a);
}

static void on_timer(uv_timer_t *timer) {
    struct vg_agent *a = timer->data;
    struct vg_bare *b = &a->bare;
    struct vg_agent_task *t = vg_tasks_get(a, b->task);
    if (b->state == VG_BARE_EMPTYING && t)
        vg_tasks_fail(a, t, VG_UNAVAILABLE,
                      "the node is not empty: a session is kept there, or a task is still leaving");
    else if (b->state == VG_BARE_LOOKING || b->state == VG_BARE_WIPING)
        program_ended(a);
    else if (b->state == VG_BARE_UNFIT)
        wipe_again(a);
}

/* ------------------------------------------------------------------ the agent's start and end */

void vg_bare_open(struct vg_agent *a) {
    struct vg_bare *b = &a->bare;
    vg_auto_free char *path = state_path(a);
    vg_auto_free char *text = NULL;
    char id[VG_ID_LEN + 1] = "";
    size_t len;
    b->fd = -1;
    b->on_timer = on_timer;
    uv_timer_init(&a->loop, &b->timer);
    b->timer.data = a;
    if (!path || vg_read_file(path, 1u << 20, &text, &len) < 0)
        return;
    if (sscanf(text, "task %16s %u", id, &b->attempt) != 2 || vg_id_parse(id, &b->task) < 0)
        b->task = 0; /* whoever it was */
    b->state = VG_BARE_RUNNING;
}

void vg_bare_ready(struct vg_agent *a) {
    struct vg_bare *b = &a->bare;
    if (b->state != VG_BARE_RUNNING || vg_tasks_get(a, b->task))
        return;
    snprintf(b->unfit, sizeof(b->unfit), "being wiped after task %016" PRIx64, b->task);
    begin_wipe(a);
}

void vg_bare_stop(struct vg_agent *a) {
    drop_program(a);
}
