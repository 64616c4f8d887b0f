/* `virga secret`: values that tasks get by name. A value comes from standard input, a file or a
   prompt, never from the command line, and cannot be read back. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/list.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <termios.h>
#include <unistd.h>

#define VALUE_MAX 65536 /* the control plane's limit */

/* ------------------------------------------------------------------ list */

static void rows(const Vg__Pb__Envelope *env, struct vg_table *t) {
    for (size_t i = 0; i < env->secrets->n_secret; i++) {
        const Vg__Pb__SecretInfo *s = env->secrets->secret[i];
        char age[48], size[24], version[16];
        snprintf(version, sizeof(version), "%u", s->version);
        const char *cells[] = {s->name,
                               s->team,
                               s->user,
                               version,
                               vg_format_size(s->size, size, sizeof(size)),
                               vg_ago(s->changed_usec, age, sizeof(age))};
        vg_table_row(t, cells);
    }
}

static const struct vg_lister lister = {
    .body = VG__PB__ENVELOPE__BODY_SECRETS,
    .headings =
        (const char *const[]){"SECRET", "TEAM", "SET BY", "VERSION", "SIZE", "CHANGED", NULL},
    .rows = rows,
    .view = &vg_view_secrets};

static int list_run(struct vg_cmd_line *l) {
    Vg__Pb__Empty body = VG__PB__EMPTY__INIT;
    Vg__Pb__Envelope req = vg_request(SECRET_LIST, secret_list, &body);
    return vg_list_run(l, &req, &lister);
}

/* ------------------------------------------------------------------ set */

static struct termios saved;
static int asked = -1; /* the terminal whose echo is off */

static void echo_on(void) {
    if (asked >= 0)
        tcsetattr(asked, TCSAFLUSH, &saved);
}

static void on_signal(int signo) {
    echo_on();
    signal(signo, SIG_DFL);
    raise(signo);
}

/* One line from a person, unseen. */
static ssize_t ask(const char *name, char *out, struct vg_err *err) {
    vg_auto_fd int tty = open("/dev/tty", O_RDWR | O_CLOEXEC);
    struct termios quiet;
    if (tty < 0 || tcgetattr(tty, &saved) < 0)
        return vg_err_sys(err, errno, "cannot ask for the value of '%s'", name);
    quiet = saved;
    quiet.c_lflag &= ~(tcflag_t)(ECHO | ECHONL);
    asked = tty;
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    tcsetattr(tty, TCSAFLUSH, &quiet);
    dprintf(tty, "value of %s (not shown): ", name);
    ssize_t n;
    do
        n = read(tty, out, VALUE_MAX);
    while (n < 0 && errno == EINTR);
    int e = errno;
    echo_on();
    asked = -1;
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    dprintf(tty, "\n");
    return n < 0 ? vg_err_sys(err, e, "cannot read the value of '%s'", name) : n;
}

/* The value and its length; a line's end is not part of it, unless it is a file's. */
static ssize_t read_value(const char *name, const char *file, char *out, struct vg_err *err) {
    vg_auto_fd int fd = -1;
    ssize_t n;
    if (!file && isatty(STDIN_FILENO)) {
        n = ask(name, out, err);
    } else {
        if (file && (fd = open(file, O_RDONLY | O_CLOEXEC)) < 0)
            return vg_err_sys(err, errno, "cannot open %s", file);
        n = vg_read_full(file ? fd : STDIN_FILENO, out, VALUE_MAX + 2);
        if (n < 0)
            return vg_err_sys(err, (int)n, "cannot read the value of '%s'", name);
    }
    if (n > 0 && !file && out[n - 1] == '\n')
        n--;
    if (n > VALUE_MAX)
        return vg_err_set(err, VG_TOO_BIG, "the value of '%s' has more than %d bytes", name,
                          VALUE_MAX);
    if (n == 0)
        return vg_err_set(err, VG_INVALID,
                          "the value of '%s' is empty: give it on standard input or with --file",
                          name);
    return n;
}

static const struct vg_opt set_opts[] = {
    {"team", 't', "TEAM", "for everybody in this team (default: for yourself)", 't'},
    {"file", 'f', "FILE", "read the value from this file, whole", 'f'},
};

static int ignore(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    (void)user;
    return env->body_case == VG__PB__ENVELOPE__BODY_OK ? 0 : vg_unexpected(env, err);
}

static int set_run(struct vg_cmd_line *l) {
    static char value[VALUE_MAX + 2];
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__SecretSet q = VG__PB__SECRET_SET__INIT;
    Vg__Pb__Envelope req = vg_request(SECRET_SET, secret_set, &q);
    const char *arg, *file = NULL;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return l->exit;
        if (id == 't')
            q.team = (char *)arg;
        if (id == 'f')
            file = arg;
    }
    if (l->n_args == 2) {
        vg_err_set(&err, VG_INVALID,
                   "a value on the command line would be seen by others and stay in the shell's "
                   "history: give it on standard input, with --file, or when asked");
        return vg_cmd_fail(&err);
    }
    if (!vg_cmd_args(l, 1, 1))
        return l->exit;
    prctl(PR_SET_DUMPABLE, 0);
    ssize_t n = read_value(l->args[0], file, value, &err);
    int r = n < 0 ? (int)n : 0;
    if (r >= 0) {
        q.name = l->args[0];
        q.has_value = true;
        q.value = (ProtobufCBinaryData){.data = (uint8_t *)value, .len = (size_t)n};
        r = vg_call_once(&req, ignore, NULL, &err);
    }
    explicit_bzero(value, sizeof(value));
    return r < 0 ? vg_cmd_fail(&err) : 0;
}

/* ------------------------------------------------------------------ remove, rotate */

static const struct vg_opt remove_opts[] = {
    {"team", 't', "TEAM", "this team's (default: your own)", 't'},
};

static int remove_run(struct vg_cmd_line *l) {
    Vg__Pb__SecretRef ref = VG__PB__SECRET_REF__INIT;
    Vg__Pb__Envelope req = vg_request(SECRET_REMOVE, secret_remove, &ref);
    const char *arg;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return l->exit;
        if (id == 't')
            ref.team = (char *)arg;
    }
    if (!vg_cmd_args(l, 1, 1))
        return l->exit;
    ref.name = l->args[0];
    return vg_change_run(&req);
}

static int on_rotated(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    (void)user;
    if (env->body_case != VG__PB__ENVELOPE__BODY_OK)
        return vg_unexpected(env, err);
    if (env->ok->text && *env->ok->text)
        vg_cmd_say("%s", env->ok->text);
    return 0;
}

static int rotate_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__Empty body = VG__PB__EMPTY__INIT;
    Vg__Pb__Envelope req = vg_request(SECRET_ROTATE, secret_rotate, &body);
    if (!vg_cmd_plain(l, 0, 0))
        return l->exit;
    return vg_call_once(&req, on_rotated, NULL, &err) < 0 ? vg_cmd_fail(&err) : 0;
}

static const struct vg_cmd subs[] = {
    {"list", "", "secrets by their names; values cannot be read back", VG_LIST_OPTS,
     .run = list_run},
    {"set", "NAME", "take a value from standard input, or ask for it", set_opts, VG_COUNT(set_opts),
     .run = set_run},
    {"remove", "SECRET", "forget a secret; tasks that run keep it", remove_opts,
     VG_COUNT(remove_opts), .run = remove_run},
    {"rotate", "", "seal everything anew with a new master key", .run = rotate_run},
};

const struct vg_cmd vg_cmd_secret = {.name = "secret",
                                     .args = "",
                                     .summary = "values for tasks: list, set, remove, rotate",
                                     .subs = subs,
                                     .n_subs = VG_COUNT(subs)};
