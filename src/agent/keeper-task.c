/* A task in the keeper: how it comes, what is told of it, its end. */
#include "agent/keeper-int.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "net/tio.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

struct ktask *ktask_find(struct keeper *k, uint64_t id) {
    vg_list_for_each (it, &k->tasks) {
        struct ktask *t = vg_list_entry(it, struct ktask, link);
        if (t->id == id && !t->exit_acked) /* its next attempt may be here already */
            return t;
    }
    return NULL;
}

uint64_t ktask_floor(const struct ktask *t) {
    uint64_t client = t->owner ? t->owner->acked : t->held ? t->held_acked : t->ring.end;
    /* Between head and tail the log wants nothing; what it has not acknowledged may go again. */
    bool between = t->log_tail && !t->log_tail_begun && t->log_acked == t->log_sent;
    uint64_t log = between ? t->ring.end : t->log_acked;
    return VG_MIN(client, log);
}

/* ---- start ---- */

static Vg__Pb__Start *read_start(int fd) {
    struct stat st;
    if (fstat(fd, &st) < 0 || st.st_size <= 0 || st.st_size > (32 << 20))
        return NULL;
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        return NULL;
    Vg__Pb__Start *s = vg__pb__start__unpack(NULL, (size_t)st.st_size, p);
    munmap(p, (size_t)st.st_size);
    if (s && (!s->spec || !s->who)) {
        vg__pb__start__free_unpacked(s, NULL);
        return NULL;
    }
    return s;
}

void ktask_share(struct ktask *t, int start_fd) {
    Vg__Pb__Start *start = read_start(start_fd);
    if (!start || !vg_start_is_share(start) || start->task_id != t->id ||
        start->attempt != t->attempt || !vg_start_is_share(t->start)) {
        vg_close(&start_fd);
        if (start)
            vg__pb__start__free_unpacked(start, NULL);
        return;
    }
    /* What else it says is as it was; other parts point into the old one. */
    t->start->grant->gpu_milli = start->grant->gpu_milli;
    t->start->grant->gpu_mem_bytes = start->grant->gpu_mem_bytes;
    vg__pb__start__free_unpacked(start, NULL);
    vg_close(&t->start_fd);
    t->start_fd = start_fd;
    kgpu_changed(t);
}

static struct ktask *task_new(struct keeper *k, Vg__Pb__Start *start, int start_fd) {
    struct ktask *t = calloc(1, sizeof(*t));
    if (!t)
        return NULL;
    t->id = start->task_id;
    t->attempt = start->attempt;
    t->start = start;
    t->start_fd = start_fd;
    t->out[0].fd = t->out[1].fd = t->in.fd = t->data.fd = -1;
    t->in_end = t->hold_until = t->kill_at = KEEPER_NEVER;
    t->detached = start->spec->detached;
    vg_list_init(&t->chans);
    vg_ring_init(&t->ring, k->birth.log_tail_bytes);
    vg_list_push_back(&k->tasks, &t->link);
    k->had_task = true;
    return t;
}

void ktask_start(struct keeper *k, int start_fd, uint64_t bytes, int chan_fd, int cwd_fd,
                 int stdin_fd, const void *words, size_t words_len) {
    Vg__Pb__Start *start = read_start(start_fd);
    if (start && start->n_secret)
        ksecret_take(start_fd, bytes);
    struct ktask *t = start && !ktask_find(k, start->task_id) ? task_new(k, start, start_fd) : NULL;
    if (!t) {
        if (start)
            vg__pb__start__free_unpacked(start, NULL);
        vg_close(&start_fd);
        vg_close(&chan_fd);
        vg_close(&cwd_fd);
        vg_close(&stdin_fd);
        return;
    }
    if (words_len && (t->share_words = vg_memdup(words, words_len)))
        t->share_len = words_len; /* without them it does not start */
    if (start->session_key && !k->session_key[0]) {
        snprintf(k->session_key, sizeof(k->session_key), "%s", start->session_key);
        k->keep_usec = start->spec->session_keep_usec;
    }
    k->session_until = KEEPER_NEVER;
    if (chan_fd >= 0) {
        /* A channel that somebody relays is not a client of this machine: its end is not his. */
        bool local = start->stream == 0 && !(start->fd_mask & 8);
        struct kchan *c = kchan_new(k, t, chan_fd, false, local);
        if (c) {
            c->owner = true;
            t->owner = c;
        }
    }
    if (!start->spec->mirror) {
        ktask_launch(k, t, stdin_fd, cwd_fd);
        return;
    }
    struct vg_err err = VG_ERR_INIT;
    vg_close(&cwd_fd); /* of another machine */
    t->state_dirty = true;
    t->tty = start->spec->tty && !start->spec->tty_out; /* a client is told before it begins */
    t->in_channel = !t->tty && stdin_fd < 0 && start->spec->stdin_open;
    if (kmirror_begin(k, t, stdin_fd, &err) < 0)
        ktask_fail(k, t, err.reason, "%s", err.msg);
}

/* ---- end ---- */

void ktask_fail(struct keeper *k, struct ktask *t, enum vg_reason reason, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(t->text, sizeof(t->text), fmt, ap);
    va_end(ap);
    t->reason = reason;
    t->status = vg_reason_exit(reason);
    t->wait_known = true;
    keeper_close(k, &t->out[0]);
    keeper_close(k, &t->out[1]);
    keeper_close(k, &t->data);
    keeper_close(k, &t->in);
    ktask_finish(k, t);
}

/* Whether more may come of it. */
static bool writes(const struct ktask *t) {
    return t->out[0].fd >= 0 || t->out[1].fd >= 0 || t->data.fd >= 0;
}

/* When status and all output are there, the task has ended: tell everybody, in K2's order. */
void ktask_finish(struct keeper *k, struct ktask *t) {
    if (t->finished || !t->wait_known || writes(t))
        return;
    if (kmirror_settle(k, t)) /* comes back here */
        return;
    t->finished = true;
    t->state = KT_EXITED;
    /* A calendar that is set while it runs does not make it longer. */
    t->ended_usec =
        t->started_usec ? t->started_usec + (vg_now_usec() - t->begun_usec) : vg_wall_usec();
    t->kill_at = KEEPER_NEVER;
    keeper_close(k, &t->in);
    kgpu_end(k, t);
    bool killed = t->status == 128 + SIGKILL;
    if (!killed) /* then the client need not wait for the numbers */
        kchan_flush_all(k, t);
    if (k->sb)
        vg_sandbox_usage(k->sb, &t->usage);
    kbare_let_go(k, t);
    if (t->usage.oom && !t->text[0] && killed)
        snprintf(t->text, sizeof(t->text), "it used more memory than its limit and was killed");
    if (t->status && !t->text[0] && t->mirror && t->detached)
        snprintf(t->text, sizeof(t->text), "%s", t->mirror->note);
    if (killed)
        kchan_flush_all(k, t);
    t->state_dirty = true;
    keeper_flush_agent(k);
}

static void exec_failed(struct keeper *k, struct ktask *t, const struct vg_sandbox_event *ev) {
    enum vg_reason reason = ev->code == ENOENT   ? VG_NO_COMMAND
                            : ev->code == EACCES ? VG_NOT_EXECUTABLE
                            : ev->code == ENOEXEC || ev->code == EISDIR || ev->code == ENOTDIR
                                ? VG_NOT_EXECUTABLE
                            : ev->code == E2BIG ? VG_NOT_EXECUTABLE
                                                : VG_INTERNAL;
    ktask_fail(k, t, reason, "%s", ev->text);
}

static void command_exited(struct keeper *k, struct ktask *t, int wait_status) {
    t->status = WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
    t->wait_known = true;
    if (t->kill_text[0])
        snprintf(t->text, sizeof(t->text), "%s", t->kill_text);
    kbare_end(k, t);
    if (t->out[0].fd >= 0 || t->out[1].fd >= 0)
        ktask_read_output(k, t);
    kdata_read(k, t);
    /* Pipes may be held by processes the command left behind: the task ends with its command. */
    if (!k->session_key[0] && writes(t))
        vg_sandbox_kill_all(k->sb);
    ktask_finish(k, t);
}

void ktask_event(struct keeper *k, const struct vg_sandbox_event *ev) {
    if (ev->kind == VG_SB_DEAD) {
        k->sb_dead = true;
        vg_list_for_each_safe (it, &k->tasks) {
            struct ktask *t = vg_list_entry(it, struct ktask, link);
            if (t->wait_known)
                continue;
            t->status = 128 + SIGKILL;
            t->wait_known = true;
            snprintf(t->text, sizeof(t->text), "%s",
                     t->kill_text[0] ? t->kill_text : "every process of the task was killed");
            kbare_end(k, t);
            ktask_finish(k, t);
        }
        return;
    }
    struct ktask *t = ktask_find(k, ev->tag);
    if (!t || t->wait_known) {
        if (ev->fd >= 0)
            close(ev->fd);
        return;
    }
    uint8_t p[4];
    switch (ev->kind) {
    case VG_SB_WATCHED:
        kgpu_watched(k, t, ev->fd);
        break;
    case VG_SB_STARTED:
        t->state = KT_RUNNING;
        t->started_usec = vg_wall_usec();
        t->begun_usec = vg_now_usec();
        vg_put32(p, (uint32_t)ev->pid);
        vg_list_for_each_safe (it, &t->chans) {
            struct kchan *c = vg_list_entry(it, struct kchan, link);
            kchan_frame(c, VG_TIO_STARTED, p, sizeof(p), NULL, 0);
            kchan_flush(k, c);
        }
        t->state_dirty = true;
        keeper_flush_agent(k);
        break;
    case VG_SB_EXEC_FAILED:
        exec_failed(k, t, ev);
        break;
    case VG_SB_STOPPED:
        vg_put32(p, (uint32_t)ev->code);
        if (t->owner) {
            kchan_frame(t->owner, VG_TIO_STOPPED, p, sizeof(p), NULL, 0);
            kchan_flush(k, t->owner);
        }
        break;
    case VG_SB_EXITED:
        command_exited(k, t, ev->code);
        break;
    case VG_SB_DEAD:
        break;
    }
}

void ktask_kill(struct keeper *k, struct ktask *t, int signo, uint64_t grace_usec,
                const char *text) {
    if (kmirror_signal(k, t, signo, grace_usec, text) || t->wait_known)
        return;
    if (text && *text && !t->kill_text[0])
        snprintf(t->kill_text, sizeof(t->kill_text), "%s", text);
    t->killed = true;
    if (signo == SIGKILL && !k->session_key[0])
        vg_sandbox_kill_all(k->sb);
    else if (vg_sandbox_signal(k->sb, t->id, signo, true) < 0)
        vg_debug("cannot signal a task: signal=%d", signo);
    if (grace_usec)
        t->kill_at = VG_MIN(t->kill_at, vg_now_usec() + grace_usec);
}

int ktask_report(struct keeper *k, struct ktask *t, bool with_start) {
    static const int states[] = {VG__PB__TASK_REPORT__STATE__STARTING,
                                 VG__PB__TASK_REPORT__STATE__RUNNING,
                                 VG__PB__TASK_REPORT__STATE__EXITED};
    Vg__Pb__TaskReport r = VG__PB__TASK_REPORT__INIT;
    Vg__Pb__TaskExited e = VG__PB__TASK_EXITED__INIT;
    char *wiped[VG_COUNT(t->wiped)];
    r.has_task_id = r.has_attempt = r.has_state = r.has_started_usec = true;
    r.task_id = t->id;
    r.attempt = t->attempt;
    enum ktask_state state = t->state == KT_EXITED && !klog_done(k, t) ? KT_RUNNING : t->state;
    r.state = (Vg__Pb__TaskReport__State)states[state];
    r.started_usec = t->started_usec;
    r.has_out_begin = r.has_out_end = true;
    r.out_begin = t->ring.begin;
    r.out_end = t->ring.end;
    if (state == KT_EXITED) {
        e.has_task_id = e.has_attempt = e.has_status = e.has_started_usec = e.has_ended_usec = true;
        e.task_id = t->id;
        e.attempt = t->attempt;
        e.status = t->status;
        e.started_usec = t->started_usec;
        e.ended_usec = t->ended_usec;
        e.has_out_end = e.has_cpu_usec = e.has_mem_peak_bytes = e.has_oom = e.has_never_ran = true;
        e.out_end = t->ring.end;
        e.cpu_usec = t->usage.cpu_usec;
        e.mem_peak_bytes = t->usage.mem_peak_bytes;
        e.oom = t->usage.oom;
        e.never_ran = t->started_usec == 0;
        e.reason = t->lost && t->status == 128 + SIGKILL ? VG_LOST : t->reason;
        e.has_reason = e.reason != 0;
        e.text = t->text;
        e.has_log_round = t->log_round != 0;
        e.log_round = t->log_round;
        for (; e.n_wiped < t->n_wiped; e.n_wiped++)
            wiped[e.n_wiped] = t->wiped[e.n_wiped];
        e.wiped = wiped;
        r.exited = &e;
    }
    uint8_t buf[2048];
    if (vg__pb__task_report__get_packed_size(&r) > sizeof(buf))
        return -E2BIG;
    size_t n = vg__pb__task_report__pack(&r, buf);
    return keeper_tell(k, VG_K_STATE, t->id, 0, 0, buf, n, &t->start_fd, with_start ? 1 : 0);
}

void ktask_free(struct keeper *k, struct ktask *t) {
    kmirror_free(k, t);
    kgpu_end(k, t);
    vg_list_for_each_safe (it, &t->chans)
        kchan_drop(k, vg_list_entry(it, struct kchan, link));
    keeper_close(k, &t->out[0]);
    keeper_close(k, &t->out[1]);
    keeper_close(k, &t->in);
    keeper_close(k, &t->data);
    vg_buf_done(&t->data_buf);
    vg_buf_done(&t->in_buf);
    vg_ring_done(&t->ring);
    vg_list_remove(&t->link);
    vg_close(&t->start_fd);
    ksecret_wipe(t->start, NULL);
    vg__pb__start__free_unpacked(t->start, NULL);
    free(t->share_words);
    free(t);
}
