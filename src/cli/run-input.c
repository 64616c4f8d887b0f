/* What is typed or piped in, and the signals that vrun is sent: both go on to the task. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/run-chan.h"
#include "net/tio.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

static const int passed_on[] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,  SIGUSR1, SIGUSR2,
                                SIGALRM, SIGCONT, SIGTSTP, SIGWINCH, SIGURG,  SIGIO};

void run_stop_here(struct run *r, bool raw_again) {
    sigset_t tstp;
    run_tty_restore(r);
    sigemptyset(&tstp);
    sigaddset(&tstp, SIGTSTP);
    kill(getpid(), SIGTSTP);
    sigprocmask(SIG_UNBLOCK, &tstp, NULL); /* here we stop, and here we go on */
    sigprocmask(SIG_BLOCK, &tstp, NULL);
    if (raw_again)
        run_tty_raw(r);
}

/* SIGINT, SIGTERM, SIGHUP and SIGQUIT as unsent_signals has them. */
static uint64_t deadly(void) {
    uint64_t one =
        1ull << (SIGINT - 1) | 1ull << (SIGTERM - 1) | 1ull << (SIGHUP - 1) | 1ull << (SIGQUIT - 1);
    return one | one << 32;
}

/* In an attached terminal, Enter ~ . leaves the task. Returns how many bytes to send of the n at p,
   which has room for one more: a tilde that was held back before. */
static size_t escape(struct run *r, uint8_t *p, size_t n) {
    static enum { LINE_START, TILDE, INSIDE } at = LINE_START;
    size_t out = 0, i = 0;
    if (at == TILDE && n > 0 && p[0] != '~' && p[0] != '.') {
        memmove(p + 1, p, n++);
        p[0] = '~';
        at = INSIDE;
    }
    for (; i < n; i++) {
        if (at == TILDE && p[i] == '.') {
            run_put(&r->chan[0], VG_TIO_DETACH, NULL, 0);
            r->exited = true;
            return out;
        }
        if (at == LINE_START && p[i] == '~') {
            at = TILDE;
            continue;
        }
        if (at == TILDE && p[i] != '~')
            p[out++] = '~'; /* there is room: it was skipped above, in these bytes */
        at = p[i] == '\r' || p[i] == '\n' ? LINE_START : INSIDE;
        p[out++] = p[i];
    }
    return out;
}

void run_stdin_ready(struct run *r) {
    size_t room = VG_TIO_WINDOW - VG_MIN(vg_buf_len(&r->in), (size_t)VG_TIO_WINDOW);
    uint8_t *p = vg_buf_reserve(&r->in, VG_MIN(room, (size_t)(256u << 10)) + 1);
    if (!p || room == 0)
        return;
    ssize_t n = read(STDIN_FILENO, p, VG_MIN(room, (size_t)(256u << 10)));
    if (n == 64 << 10 && !r->wide_stdin) { /* a whole pipe of it: larger pieces cost less */
        r->wide_stdin = true;
        (void)fcntl(STDIN_FILENO, F_SETPIPE_SZ, 1 << 20);
    }
    if (n > 0)
        vg_buf_commit(&r->in, r->attach && r->tty ? escape(r, p, (size_t)n) : (size_t)n);
    else if (n == 0 || (errno != EINTR && errno != EAGAIN))
        r->stdin_eof = true;
}

/* With no way to the task a first signal waits for one; whoever asks again wants to go. */
static bool leaves(struct run *r, int signo) {
    if (signo != r->got_signal || !(r->unsent_signals & deadly()))
        return false;
    char id[VG_ID_LEN + 1];
    vg_id_format(r->task_id, id);
    run_say(r, "left without an answer; task %s may still run, see 'virga task get %s' later", id,
            id);
    r->exited = true;
    r->status = 128 + signo;
    return true;
}

void run_on_signal(struct run *r, const struct signalfd_siginfo *si) {
    int signo = (int)si->ssi_signo;
    struct run_chan *c = &r->chan[0];
    bool from_terminal = si->ssi_code == SI_KERNEL;
    if (signo == SIGWINCH && r->spec.tty) {
        run_put_winsize(c);
        return;
    }
    if (r->batch || r->attach) { /* only a looker-on: leaving does not touch the task */
        if (signo == SIGINT || signo == SIGTERM || signo == SIGHUP || signo == SIGQUIT) {
            run_put(c, VG_TIO_DETACH, NULL, 0);
            r->exited = true;
            r->status = 128 + signo;
        }
        return;
    }
    if (signo == SIGINT || signo == SIGTERM || signo == SIGHUP || signo == SIGQUIT)
        r->got_signal = signo;
    if (!r->started && !c->welcomed && r->got_signal) { /* still waiting: leave the queue */
        r->exited = true;
        r->status = 128 + signo;
        return;
    }
    if (c->fd < 0 && leaves(r, signo))
        return;
    run_put_signal(r, c, signo, from_terminal);
    if (signo == SIGTSTP) {
        run_chan_flush(r, c);
        run_stop_here(r, false);
    } else if (signo == SIGCONT) {
        run_tty_raw(r);
    }
}

/* What we were told to ignore stays ignored here, as it does for the command. */
int run_open_signals(const struct run *r) {
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < VG_COUNT(passed_on); i++)
        if (!(r->spec.sig_ignored >> (passed_on[i] - 1) & 1))
            sigaddset(&set, passed_on[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}
