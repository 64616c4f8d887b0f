/* Limits on what a client asks for. */
#include "control/spec-check.h"

#include "base/cleanup.h"
#include "conf/conf.h"
#include "model/session.h"

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
    if (s->retries > VG_SPEC_RETRIES_MAX)
        return vg_err_set(err, VG_INVALID, "at most %d retries are possible", VG_SPEC_RETRIES_MAX);
    if (s->n_rlimit > VG_SPEC_RLIMITS_MAX)
        return vg_err_set(err, VG_INVALID, "more resource limits than there are");
    if (s->tty && s->tty->has_termios && s->tty->termios.len > VG_SPEC_TERMIOS_MAX)
        return vg_err_set(err, VG_INVALID, "the terminal's settings cannot be read");
    if (s->want && s->want->gpus > VG_NODE_GPUS_MAX)
        return vg_err_set(err, VG_INVALID, "a task on one node can have at most %d GPUs",
                          VG_NODE_GPUS_MAX);
    if (s->want && s->want->gpu_milli)
        return vg_err_set(err, VG_UNSUPPORTED,
                          "shares of a GPU are not offered by this cloud: ask for whole GPUs");
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
    return r;
}
