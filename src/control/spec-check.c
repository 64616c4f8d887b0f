/* Limits on what a client asks for. */
#include "control/spec-check.h"

#include "base/cleanup.h"
#include "conf/conf.h"
#include "model/session.h"
#include "model/task.h"
#include "model/when.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* Adds the strings' lengths; a NUL inside would cut them short later. */
static int add_strings(const ProtobufCBinaryData *s, size_t n, const char *what, size_t *total,
                       struct vg_err *err) {
    for (size_t i = 0; i < n; i++) {
        if (s[i].len && memchr(s[i].data, 0, s[i].len))
            return vg_err_set(err, VG_INVALID, "%s %zu contains a NUL byte", what, i + 1);
        *total += s[i].len + 1;
    }
    return 0;
}

static int check_command(const Vg__Pb__TaskSpec *s, struct vg_err *err) {
    size_t bytes = 0;
    if (s->n_argv == 0 || s->argv[0].len == 0)
        return vg_err_set(err, VG_INVALID, "no command was given: vrun COMMAND [ARGUMENT...]");
    int r = add_strings(s->argv, s->n_argv, "argument", &bytes, err);
    if (r >= 0)
        r = add_strings(s->env, s->n_env, "environment variable", &bytes, err);
    if (r < 0)
        return r;
    if (bytes > VG_SPEC_ARGS_MAX || s->n_argv + s->n_env > VG_SPEC_STRINGS_MAX)
        return vg_err_set(
            err, VG_TOO_BIG,
            "arguments and environment have %zu bytes in %zu strings, the limit is %u "
            "bytes in %u: pass large data by a file or standard input",
            bytes, s->n_argv + s->n_env, VG_SPEC_ARGS_MAX, VG_SPEC_STRINGS_MAX);
    return 0;
}

static int check_cwd(const Vg__Pb__TaskSpec *s, struct vg_err *err) {
    if (!s->has_cwd || s->cwd.len == 0)
        return 0;
    if (s->cwd.data[0] != '/' || s->cwd.len > 4096 || memchr(s->cwd.data, 0, s->cwd.len))
        return vg_err_set(err, VG_INVALID,
                          "the working directory must be an absolute path of at most 4096 bytes");
    return 0;
}

static int check_names(const Vg__Pb__TaskSpec *s, struct vg_err *err) {
    if (s->name && *s->name && !vg_conf_name_valid(s->name))
        return vg_err_set(
            err, VG_INVALID,
            "'%.64s' cannot name a task: use 1 to %d letters, digits, '.', '_' or '-', "
            "beginning with a letter or digit",
            s->name, VG_CONF_NAME_MAX);
    if (s->project && *s->project && !vg_conf_name_valid(s->project))
        return vg_err_set(
            err, VG_INVALID,
            "'%.64s' cannot name a project: use 1 to %d letters, digits, '.', '_' or '-', "
            "beginning with a letter or digit",
            s->project, VG_CONF_NAME_MAX);
    if (s->session && *s->session && !vg_conf_name_valid(s->session))
        return vg_err_set(err, VG_INVALID,
                          "'%.64s' cannot name a session: use 1 to %d letters, digits, '.', '_' or "
                          "'-', beginning with a letter or digit",
                          s->session, VG_SESSION_NAME_MAX);
    if (s->n_label > VG_SPEC_LABELS_MAX)
        return vg_err_set(err, VG_TOO_BIG, "a task may have at most %d labels", VG_SPEC_LABELS_MAX);
    for (size_t i = 0; i < s->n_label; i++) {
        const char *l = s->label[i], *eq = strchr(l, '=');
        if (!eq || eq == l || strlen(l) > 256 || strchr(l, '\n'))
            return vg_err_set(err, VG_INVALID, "'%.64s' is not a label: write KEY=VALUE", l);
    }
    return 0;
}

static int check_rest(const Vg__Pb__TaskSpec *s, struct vg_err *err) {
    if (s->n_rlimit > VG_SPEC_RLIMITS_MAX)
        return vg_err_set(err, VG_INVALID, "more resource limits than there are");
    if (s->tty && s->tty->has_termios && s->tty->termios.len > VG_SPEC_TERMIOS_MAX)
        return vg_err_set(err, VG_INVALID, "the terminal's settings cannot be read");
    if (s->want && s->want->gpus > VG_NODE_GPUS_MAX)
        return vg_err_set(err, VG_INVALID, "a task on one node can have at most %d GPUs",
                          VG_NODE_GPUS_MAX);
    if (s->want && (s->want->gpu_milli > 999 || (s->want->gpu_milli && s->want->gpus)))
        return vg_err_set(
            err, VG_INVALID,
            "a share is a part of one GPU: ask for 0.001 to 0.999, or for whole GPUs");
    return 0;
}

/* ------------------------------------------------------------------ batch */

static bool is_variable(const char *s) {
    if (!s || !(isalpha((unsigned char)s[0]) || s[0] == '_'))
        return false;
    return s[strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")] ==
               '\0' &&
           strlen(s) <= VG_CONF_NAME_MAX;
}

static int check_sweep(const Vg__Pb__TaskSpec *s, size_t i, struct vg_err *err) {
    const Vg__Pb__Sweep *w = s->sweep[i];
    if (!is_variable(w->name) || strncmp(w->name, "VIRGA_", 6) == 0)
        return vg_err_set(
            err, VG_INVALID,
            "'%.64s' cannot be swept: its name becomes a variable of the task, so use "
            "letters, digits and '_', and not VIRGA_",
            w->name ? w->name : "");
    if (w->n_value == 0)
        return vg_err_set(err, VG_INVALID, "--sweep %s has no values: write %s=a,b,c", w->name,
                          w->name);
    for (size_t k = 0; k < i; k++)
        if (strcmp(s->sweep[k]->name, w->name) == 0)
            return vg_err_set(err, VG_INVALID, "'%s' is swept twice: give all its values at once",
                              w->name);
    return 0;
}

static int check_group(const Vg__Pb__TaskSpec *s, struct vg_err *err) {
    int r = 0;
    if (s->n_sweep > VG_SPEC_SWEEPS_MAX)
        return vg_err_set(err, VG_TOO_BIG, "at most %d variables can be swept", VG_SPEC_SWEEPS_MAX);
    for (size_t i = 0; i < s->n_sweep && r >= 0; i++)
        r = check_sweep(s, i, err);
    if (r < 0)
        return r;
    uint64_t members = vg_spec_members(s, VG_SPEC_MEMBERS_MAX);
    if (members > VG_SPEC_MEMBERS_MAX)
        return vg_err_set(err, VG_TOO_BIG, "one submission makes at most %d tasks: split it",
                          VG_SPEC_MEMBERS_MAX);
    if (members && (s->tty || s->stdin_open || (s->interactive && !s->detached)))
        return vg_err_set(err, VG_INVALID,
                          "several tasks at once have no terminal and no input: use vbatch");
    if (s->gang && s->n_sweep)
        return vg_err_set(err, VG_INVALID,
                          "a gang cannot be swept: submit one gang for each point");
    if (s->gang && s->session && *s->session)
        return vg_err_set(err, VG_INVALID,
                          "a gang has a place of its own: leave out either --gang or --session");
    if (s->has_gang_policy && !s->gang)
        return vg_err_set(err, VG_INVALID, "--gang-policy is for gangs: add --gang");
    return 0;
}

static int check_after(const Vg__Pb__TaskSpec *s, struct vg_err *err) {
    if (s->n_after > VG_SPEC_AFTER_MAX)
        return vg_err_set(err, VG_TOO_BIG,
                          "a task may wait for at most %d others: let one collect them",
                          VG_SPEC_AFTER_MAX);
    for (size_t i = 0; i < s->n_after; i++)
        if (!s->after[i]->task || !*s->after[i]->task)
            return vg_err_set(err, VG_INVALID, "--after needs a task: its id, prefix or name");
    return 0;
}

static int check_retries(const Vg__Pb__TaskSpec *s, struct vg_err *err) {
    if (s->retries > VG_SPEC_RETRIES_MAX)
        return vg_err_set(err, VG_INVALID, "at most %d retries are possible", VG_SPEC_RETRIES_MAX);
    for (size_t i = 0; i < s->n_retry_on; i++)
        if (s->retry_on[i] < 1 || s->retry_on[i] > 255)
            return vg_err_set(err, VG_INVALID,
                              "%d is no status to try again on: statuses are 1 to 255",
                              s->retry_on[i]);
    if (s->n_retry_on > 255)
        return vg_err_set(err, VG_INVALID, "more statuses than there are");
    if (s->backoff_usec > VG_SPEC_BACKOFF_MAX_USEC ||
        s->backoff_max_usec > VG_SPEC_BACKOFF_MAX_USEC)
        return vg_err_set(err, VG_INVALID, "a back-off is at most 7 days");
    if (s->has_backoff_max_usec && s->backoff_max_usec < s->backoff_usec)
        return vg_err_set(err, VG_INVALID, "the longest back-off is shorter than the first");
    if (s->grace_signal >= 65)
        return vg_err_set(err, VG_INVALID, "there is no signal %u", s->grace_signal);
    return 0;
}

static int check_key(const Vg__Pb__TaskSpec *s, struct vg_err *err) {
    for (const char *k = s->key; k && *k; k++)
        if (!isgraph((unsigned char)*k) || k - s->key >= VG_SPEC_KEY_MAX)
            return vg_err_set(err, VG_INVALID,
                              "a key is at most %d letters, digits and signs without blanks",
                              VG_SPEC_KEY_MAX);
    if (s->n_also_pool > VG_SPEC_POOLS_MAX)
        return vg_err_set(err, VG_TOO_BIG, "at most %d pools can be named", VG_SPEC_POOLS_MAX);
    return 0;
}

/* Names and places alone: whether there are such secrets is another question. */
static int check_secret(const Vg__Pb__TaskSpec *s, size_t i, struct vg_err *err) {
    const Vg__Pb__SecretUse *u = s->secret[i];
    const char *name = u->name ? u->name : "", *slash = strchr(name, '/');
    const char *own = slash ? slash + 1 : name;
    bool file = u->as_file && *u->as_file;
    const char *var = u->as_var && *u->as_var ? u->as_var : file ? NULL : own;
    char team[VG_CONF_NAME_MAX + 2] = "x";
    if (slash)
        snprintf(team, sizeof team, "%.*s", (int)VG_MIN(slash - name, (ptrdiff_t)sizeof team),
                 name);
    if (!vg_conf_name_valid(own) || !vg_conf_name_valid(team))
        return vg_err_set(err, VG_INVALID, "'%.130s' names no secret: write NAME or TEAM/NAME",
                          name);
    if (var && (!is_variable(var) || strncmp(var, "VIRGA_", 6) == 0))
        return vg_err_set(
            err, VG_INVALID,
            "secret '%s' cannot become a variable '%.64s': write --secret %s=VARIABLE "
            "with letters, digits and '_', and not VIRGA_",
            name, var, name);
    if (file && !vg_conf_name_valid(u->as_file))
        return vg_err_set(
            err, VG_INVALID,
            "'%.64s' cannot be the file of a secret: use letters, digits, '.', '_' or "
            "'-', and no folder",
            u->as_file);
    return 0;
}

static int check_secrets(const Vg__Pb__TaskSpec *s, struct vg_err *err) {
    int r = 0;
    if (s->n_secret > VG_SPEC_SECRETS_MAX)
        return vg_err_set(err, VG_TOO_BIG, "a task may have at most %d secrets",
                          VG_SPEC_SECRETS_MAX);
    for (size_t i = 0; i < s->n_secret && r >= 0; i++)
        r = check_secret(s, i, err);
    return r;
}

static int check_duplex(const Vg__Pb__TaskSpec *s, struct vg_err *err) {
    if (s->duplex && (!s->stdin_open || s->tty || !s->interactive || s->detached))
        return vg_err_set(err, VG_INVALID,
                          "a two-way standard input (--duplex) is for a task whose client stays, "
                          "without a terminal");
    return 0;
}

static int check_schedule(const Vg__Pb__TaskSpec *s, struct vg_err *err) {
    struct vg_cron when;
    if (!s->schedule || !*s->schedule)
        return 0;
    if (s->interactive && !s->detached)
        return vg_err_set(err, VG_INVALID, "nobody is there when a schedule runs: use vbatch");
    if (s->n_after || (s->key && *s->key))
        return vg_err_set(err, VG_INVALID,
                          "a schedule makes many tasks: it can neither wait for others (--after) "
                          "nor have a key (--key)");
    return vg_cron_parse(s->schedule, &when, err);
}

/* ------------------------------------------------------------------ files of another machine */

/* Absolute, and says one place in one way: no empty part, no "." and no "..". */
static bool is_clean_path(const ProtobufCBinaryData *p) {
    if (p->len == 0 || p->len > 4095 || p->data[0] != '/' || memchr(p->data, 0, p->len))
        return false;
    for (size_t at = 1; at < p->len || at == 1;) {
        const uint8_t *s = p->data + at;
        const uint8_t *end = at < p->len ? memchr(s, '/', p->len - at) : NULL;
        size_t n = end ? (size_t)(end - s) : p->len - at;
        bool dots = (n == 1 && s[0] == '.') || (n == 2 && s[0] == '.' && s[1] == '.');
        if (n == 0 ? p->len != 1 : dots || n > 255)
            return false;
        if (end && at + n + 1 == p->len)
            return false; /* ends in a slash */
        at += n + 1;
    }
    return true;
}

/* Places that the node makes itself. */
static bool is_nodes_own(const ProtobufCBinaryData *p) {
    static const char *const own[] = {"/proc", "/sys", "/dev", "/run/virga"};
    static const char *const exact[] = {"/", "/run", "/tmp", "/etc", "/usr", "/var"};
    for (size_t i = 0; i < VG_COUNT(own); i++) {
        size_t n = strlen(own[i]);
        if (p->len >= n && memcmp(p->data, own[i], n) == 0 && (p->len == n || p->data[n] == '/'))
            return true;
    }
    for (size_t i = 0; i < VG_COUNT(exact); i++)
        if (p->len == strlen(exact[i]) && memcmp(p->data, exact[i], p->len) == 0)
            return true;
    return false;
}

static bool is_short(const char *s) {
    return !s || strlen(s) <= VG_SPEC_REF_MAX;
}

int vg_spec_check_mirror(const Vg__Pb__MirrorSpec *m, struct vg_err *err) {
    bool stored = (m->env && *m->env) || (m->image && *m->image) || m->snapshot.len;
    if (m->machine.len != VG_MACHINE_BYTES && (m->machine.len || !stored))
        return vg_err_set(err, VG_INVALID, "the task's files come from a machine without a name");
    if (m->snapshot.len && m->snapshot.len != 32)
        return vg_err_set(err, VG_INVALID, "the task names no snapshot that there can be");
    if (m->project.len && (m->project.len != VG_MACHINE_BYTES || !m->env || !*m->env || m->pin))
        return vg_err_set(err, VG_INVALID,
                          "a project of another machine than the root's belongs to an environment");
    if (m->n_view > VG_SPEC_VIEWS_MAX)
        return vg_err_set(err, VG_TOO_BIG, "at most %d folders of a task are written back",
                          VG_SPEC_VIEWS_MAX);
    for (size_t i = 0; i < m->n_view; i++) {
        const ProtobufCBinaryData *p = &m->view[i]->path;
        if (!is_clean_path(p) || is_nodes_own(p))
            return vg_err_set(err, VG_INVALID,
                              "'%.*s' cannot be written back: name a folder by its absolute path, "
                              "and not one that belongs to the system",
                              (int)VG_MIN(p->len, (size_t)200), p->len ? (char *)p->data : "");
    }
    if (m->home.len && !is_clean_path(&m->home))
        return vg_err_set(err, VG_INVALID, "the home folder must be an absolute path");
    if (m->n_groups > VG_SPEC_GROUPS_MAX)
        return vg_err_set(err, VG_TOO_BIG, "at most %d groups can be carried along",
                          VG_SPEC_GROUPS_MAX);
    if (!is_short(m->env) || !is_short(m->image))
        return vg_err_set(err, VG_TOO_BIG, "the environment's name is longer than %d bytes",
                          VG_SPEC_REF_MAX);
    return 0;
}

int vg_spec_check(const Vg__Pb__TaskSpec *spec, struct vg_err *err) {
    int r = check_command(spec, err);
    if (r >= 0)
        r = check_cwd(spec, err);
    if (r >= 0)
        r = check_names(spec, err);
    if (r >= 0)
        r = check_rest(spec, err);
    if (r >= 0)
        r = check_group(spec, err);
    if (r >= 0)
        r = check_after(spec, err);
    if (r >= 0)
        r = check_retries(spec, err);
    if (r >= 0)
        r = check_key(spec, err);
    if (r >= 0)
        r = check_secrets(spec, err);
    if (r >= 0)
        r = check_schedule(spec, err);
    if (r >= 0)
        r = check_duplex(spec, err);
    if (r >= 0 && spec->mirror)
        r = vg_spec_check_mirror(spec->mirror, err);
    return r;
}
