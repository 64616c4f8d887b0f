/* Command line options from a table. No state but the caller's; any thread. */
#include "cli/opt.h"

#include "base/cleanup.h"
#include "base/util.h"

#include <inttypes.h>
#include <string.h>

#define WORD_MAX 40    /* longer words are never suggested */
#define OPTS_MAX 128   /* options looked at for a suggestion */
#define SHOWN_MAX 60   /* bytes of a wrong argument that a message repeats */
#define HELP_COLUMN 30 /* where explanations begin */

static size_t smallest(size_t a, size_t b, size_t c) {
    return VG_MIN(VG_MIN(a, b), c);
}

/* Edit distance with neighbours swapped counting as one. Both words are at most WORD_MAX. */
static size_t distance(const char *a, const char *b) {
    size_t rows[3][WORD_MAX + 1], n = strlen(a), m = strlen(b);
    for (size_t j = 0; j <= m; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *row = rows[i % 3], *up = rows[(i + 2) % 3], *upup = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            row[j] = smallest(up[j] + 1, row[j - 1] + 1, up[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = VG_MIN(row[j], upup[j - 2] + 1);
        }
    }
    return rows[n % 3][m];
}

const char *vg_nearest(const char *typed, const char *const *words, size_t n) {
    const char *best = NULL;
    size_t len = strlen(typed), best_d = SIZE_MAX;
    if (!len || len > WORD_MAX)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        if (!words[i] || strlen(words[i]) > WORD_MAX)
            continue;
        size_t longer = VG_MAX(len, strlen(words[i])), d = distance(typed, words[i]);
        if (d < best_d && d <= longer / 3 + 1 && d < longer) {
            best = words[i];
            best_d = d;
        }
    }
    return best;
}

static int fail(struct vg_opt_state *st, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static int fail(struct vg_opt_state *st, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    vg_err_set(&st->err, VG_INVALID, "%s", text);
    return VG_OPT_ERROR;
}

static int unknown_long(struct vg_opt_state *st, const char *name, size_t len) {
    const char *words[OPTS_MAX] = {"help"};
    char typed[WORD_MAX + 1] = "";
    size_t n = VG_MIN(st->n_opts, (size_t)OPTS_MAX - 1);
    for (size_t i = 0; i < n; i++)
        words[i + 1] = st->opts[i].help ? st->opts[i].long_name : NULL;
    if (len <= WORD_MAX)
        memcpy(typed, name, len);
    const char *near = vg_nearest(typed, words, n + 1);
    if (near)
        return fail(st, "unknown option '--%.*s': did you mean '--%s'?",
                    (int)VG_MIN(len, (size_t)SHOWN_MAX), name, near);
    return fail(st, "unknown option '--%.*s': '%s --help' lists the options",
                (int)VG_MIN(len, (size_t)SHOWN_MAX), name, st->program);
}

static const struct vg_opt *find_long(const struct vg_opt_state *st, const char *name, size_t len) {
    for (size_t i = 0; i < st->n_opts; i++) {
        const char *l = st->opts[i].long_name;
        if (l && strlen(l) == len && memcmp(l, name, len) == 0)
            return &st->opts[i];
    }
    return NULL;
}

static const struct vg_opt *find_short(const struct vg_opt_state *st, char c) {
    for (size_t i = 0; i < st->n_opts; i++)
        if (st->opts[i].short_name == c)
            return &st->opts[i];
    return NULL;
}

static int next_value(struct vg_opt_state *st, const struct vg_opt *o, const char **ret_arg) {
    if (st->index >= st->argc)
        return fail(st, "option '%s' needs a value: %s %s", st->typed, st->typed, o->arg);
    *ret_arg = st->argv[st->index++];
    return o->id;
}

static int parse_long(struct vg_opt_state *st, const char *name, const char **ret_arg) {
    const char *eq = strchr(name, '=');
    size_t len = eq ? (size_t)(eq - name) : strlen(name);
    const struct vg_opt *o = find_long(st, name, len);
    if (!o && len == 4 && memcmp(name, "help", 4) == 0)
        return VG_OPT_HELP;
    if (!o)
        return unknown_long(st, name, len);
    snprintf(st->typed, sizeof(st->typed), "--%s", o->long_name);
    if (!o->arg && eq)
        return fail(st, "option '%s' takes no value: write it alone", st->typed);
    if (!o->arg)
        return o->id;
    if (!eq)
        return next_value(st, o, ret_arg);
    *ret_arg = eq + 1;
    return o->id;
}

static int parse_short(struct vg_opt_state *st, const char **ret_arg) {
    char c = *st->cluster++;
    const char *rest = *st->cluster ? st->cluster : NULL;
    const struct vg_opt *o = find_short(st, c);
    st->cluster = rest;
    if (!o && c == 'h')
        return VG_OPT_HELP;
    if (!o) {
        bool shown = c > ' ' && c < 127;
        return fail(st, "unknown option '-%c': '%s --help' lists the options", shown ? c : '?',
                    st->program);
    }
    snprintf(st->typed, sizeof(st->typed), "-%c", c);
    if (!o->arg)
        return o->id;
    st->cluster = NULL;
    if (!rest)
        return next_value(st, o, ret_arg);
    *ret_arg = rest;
    return o->id;
}

int vg_opt_next(struct vg_opt_state *st, const char **ret_arg) {
    *ret_arg = NULL;
    if (st->cluster)
        return parse_short(st, ret_arg);
    if (st->index >= st->argc)
        return VG_OPT_END;
    const char *a = st->argv[st->index];
    if (!st->ended && strcmp(a, "--") == 0) {
        st->index++;
        st->ended = true;
        return vg_opt_next(st, ret_arg);
    }
    if (st->ended || a[0] != '-' || !a[1]) {
        if (st->stop_at_first)
            return VG_OPT_END;
        st->index++;
        *ret_arg = a;
        return VG_OPT_ARG;
    }
    st->index++;
    if (a[1] == '-')
        return parse_long(st, a + 2, ret_arg);
    st->cluster = a + 1;
    return parse_short(st, ret_arg);
}

int vg_opt_bad(struct vg_opt_state *st, const char *fmt, ...) {
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return fail(st, "option '%s': %s", st->typed, text);
}

int vg_opt_u64(struct vg_opt_state *st, const char *arg, uint64_t min, uint64_t max,
               uint64_t *ret) {
    uint64_t v;
    if (vg_parse_u64(arg, &v) < 0 || v < min || v > max)
        return vg_opt_bad(st, "'%.*s' is not a whole number from %" PRIu64 " to %" PRIu64,
                          SHOWN_MAX, arg, min, max);
    *ret = v;
    return 0;
}

int vg_opt_size(struct vg_opt_state *st, const char *arg, uint64_t *ret_bytes) {
    if (vg_parse_size(arg, ret_bytes) < 0)
        return vg_opt_bad(st, "'%.*s' is not a size such as 512M or 1.5G", SHOWN_MAX, arg);
    return 0;
}

int vg_opt_duration(struct vg_opt_state *st, const char *arg, uint64_t *ret_usec) {
    if (vg_parse_duration(arg, ret_usec) < 0)
        return vg_opt_bad(st, "'%.*s' is not a duration such as 90s or 1h30m", SHOWN_MAX, arg);
    return 0;
}

int vg_opt_milli(struct vg_opt_state *st, const char *arg, uint64_t *ret_milli) {
    if (vg_parse_milli(arg, ret_milli) < 0)
        return vg_opt_bad(st, "'%.*s' is not a number such as 2 or 0.25", SHOWN_MAX, arg);
    return 0;
}

int vg_opt_choice(struct vg_opt_state *st, const char *arg, const char *const *words, int *ret) {
    char list[200] = "";
    size_t n = 0;
    for (int i = 0; words[i]; i++) {
        if (strcmp(words[i], arg) == 0) {
            *ret = i;
            return 0;
        }
        if (n < sizeof(list))
            n += (size_t)snprintf(list + n, sizeof(list) - n, "%s%s",
                                  !i             ? ""
                                  : words[i + 1] ? ", "
                                                 : " or ",
                                  words[i]);
    }
    return vg_opt_bad(st, "'%.*s' is not one of %s", SHOWN_MAX, arg, list);
}

void vg_opt_help(FILE *out, const struct vg_opt *opts, size_t n_opts) {
    for (size_t i = 0; i < n_opts; i++) {
        const struct vg_opt *o = &opts[i];
        char left[80], shortly[8] = "    ";
        if (!o->help)
            continue;
        if (o->short_name)
            snprintf(shortly, sizeof(shortly), "-%c%s", o->short_name, o->long_name ? ", " : "");
        int n = snprintf(left, sizeof(left), "  %s%s%s%s%s", shortly, o->long_name ? "--" : "",
                         o->long_name ? o->long_name : "", o->arg ? " " : "", o->arg ? o->arg : "");
        if (n >= HELP_COLUMN)
            fprintf(out, "%s\n%*s%s\n", left, HELP_COLUMN, "", o->help);
        else
            fprintf(out, "%-*s%s\n", HELP_COLUMN, left, o->help);
    }
    fprintf(out, "%-*s%s\n", HELP_COLUMN,
            find_short(&(struct vg_opt_state){.opts = opts, .n_opts = n_opts}, 'h')
                ? "      --help"
                : "  -h, --help",
            "show this help");
}
