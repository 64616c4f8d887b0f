/* Values of options, from text into the protocol's form. No state; any thread. */
#include "cli/spec-values.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define FILE_MAX (16u << 20)
#define VALUE_MAX 4096

int vg_spec_no_memory(struct vg_opt_state *st) {
    return vg_opt_bad(st, "there is not enough memory for it");
}

/* Adds a copy of n bytes to a list of strings. */
static int add_string(char ***list, size_t *count, const char *text, size_t n) {
    char **grown = vg_realloc(*list, (*count + 1) * sizeof(**list));
    if (!grown)
        return -ENOMEM;
    *list = grown;
    grown[*count] = vg_strndup(text, n);
    if (!grown[*count])
        return -ENOMEM;
    (*count)++;
    return 0;
}

static void free_strings(char ***list, size_t *count) {
    for (size_t i = 0; i < *count; i++)
        free((*list)[i]);
    free(*list);
    *list = NULL;
    *count = 0;
}

static void free_pools(Vg__Pb__TaskSpec *s) {
    free(s->pool);
    s->pool = NULL;
    free_strings(&s->also_pool, &s->n_also_pool);
}

void vg_spec_values_done(Vg__Pb__TaskSpec *s) {
    free_pools(s);
    free(s->gpu_model);
    for (size_t i = 0; i < s->n_secret; i++) {
        free(s->secret[i]->name);
        free(s->secret[i]->as_var);
        free(s->secret[i]->as_file);
        free(s->secret[i]);
    }
    free(s->secret);
    s->secret = NULL;
    s->n_secret = 0;
    for (size_t i = 0; i < s->n_sweep; i++) {
        free(s->sweep[i]->name);
        free_strings(&s->sweep[i]->value, &s->sweep[i]->n_value);
        free(s->sweep[i]);
    }
    free(s->sweep);
    for (size_t i = 0; i < s->n_after; i++) {
        free(s->after[i]->task);
        free(s->after[i]);
    }
    free(s->after);
    free(s->retry_on);
    free(s->schedule);
    s->gpu_model = s->schedule = NULL;
    s->sweep = NULL;
    s->after = NULL;
    s->retry_on = NULL;
    s->n_sweep = s->n_after = s->n_retry_on = 0;
}

/* The next piece of a comma list; NULL at the end. *at moves on. */
static const char *piece(const char **at, size_t *ret_len) {
    const char *p = *at;
    if (!p)
        return NULL;
    const char *comma = strchr(p, ',');
    *ret_len = comma ? (size_t)(comma - p) : strlen(p);
    *at = comma ? comma + 1 : NULL;
    return p;
}

/* ------------------------------------------------------------------ what to run on */

int vg_spec_pools(struct vg_opt_state *st, const char *arg, Vg__Pb__TaskSpec *s) {
    size_t len, n = 0;
    free_pools(s);
    for (const char *at = arg, *p; (p = piece(&at, &len)); n++) {
        if (!len)
            return vg_opt_bad(st,
                              "'%.*s' has an empty name in it: write a100-1,h100 or one pool alone",
                              VG_SPEC_SHOWN, arg);
        if (n == VG_POOLS_MAX)
            return vg_opt_bad(st, "at most %d pools can be named", VG_POOLS_MAX);
        if (n == 0)
            s->pool = vg_strndup(p, len);
        else if (add_string(&s->also_pool, &s->n_also_pool, p, len) < 0)
            return vg_spec_no_memory(st);
    }
    return s->pool ? 0 : vg_spec_no_memory(st);
}

int vg_spec_gpus(struct vg_opt_state *st, const char *arg, Vg__Pb__Resources *want) {
    uint64_t milli;
    if (vg_parse_milli(arg, &milli) < 0 || milli > 1024000 || (milli > 1000 && milli % 1000))
        return vg_opt_bad(st,
                          "'%.*s' is not a number of GPUs: give whole ones such as 2, or a share "
                          "of one such as 0.25",
                          VG_SPEC_SHOWN, arg);
    bool share = milli % 1000 != 0;
    want->has_gpus = want->has_gpu_milli = true;
    want->gpus = share ? 0 : (uint32_t)(milli / 1000);
    want->gpu_milli = share ? (uint32_t)milli : 0;
    return 0;
}

int vg_spec_models(struct vg_opt_state *st, const char *arg, Vg__Pb__TaskSpec *s) {
    char *text = vg_strdup(arg);
    if (!text)
        return vg_spec_no_memory(st);
    for (char *p = text; *p; p++)
        if (*p == ',')
            *p = '|';
    size_t n = strlen(text);
    if (!n || text[0] == '|' || text[n - 1] == '|' || strstr(text, "||")) {
        free(text);
        return vg_opt_bad(st, "'%.*s' is not a list of GPU models such as A100|H100", VG_SPEC_SHOWN,
                          arg);
    }
    free(s->gpu_model);
    s->gpu_model = text;
    return 0;
}

/* ------------------------------------------------------------------ sweeps */

static bool is_variable(const char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!(isalpha((unsigned char)p[i]) || p[i] == '_' || (i && isdigit((unsigned char)p[i]))))
            return false;
    return n > 0;
}

uint64_t vg_spec_count(const Vg__Pb__TaskSpec *s) {
    uint64_t n = s->shards > 1 ? s->shards : 1;
    for (size_t i = 0; i < s->n_sweep && n <= VG_MEMBERS_MAX; i++)
        n *= s->sweep[i]->n_value;
    return n;
}

static int add_value(struct vg_opt_state *st, Vg__Pb__Sweep *w, const char *p, size_t n) {
    if (!n)
        return vg_opt_bad(st, "'%s' has an empty value: write %s=a,b,c", w->name, w->name);
    if (n > VALUE_MAX)
        return vg_opt_bad(st, "a value of '%s' is longer than %d bytes: pass it by a file", w->name,
                          VALUE_MAX);
    if (w->n_value == VG_MEMBERS_MAX)
        return vg_opt_bad(st, "'%s' has more than %d values: sweep over fewer at once", w->name,
                          VG_MEMBERS_MAX);
    return add_string(&w->value, &w->n_value, p, n) < 0 ? vg_spec_no_memory(st) : 0;
}

/* An integer at *at; true when there was one. */
static bool integer(const char **at, int64_t *ret) {
    char *end;
    const char *p = *at;
    if (!isdigit((unsigned char)p[*p == '-']))
        return false;
    errno = 0;
    *ret = strtoll(p, &end, 10);
    *at = end;
    return !errno;
}

/* FROM..TO or FROM..TO..STEP: 1 it was one, 0 it was not, VG_OPT_ERROR. */
static int range(struct vg_opt_state *st, Vg__Pb__Sweep *w, const char *text) {
    const char *at = text;
    int64_t from, to, step = 0;
    if (!integer(&at, &from) || strncmp(at, "..", 2) != 0 || (at += 2, !integer(&at, &to)))
        return 0;
    if (*at && (strncmp(at, "..", 2) != 0 || (at += 2, !integer(&at, &step)) || *at || step <= 0))
        return vg_opt_bad(st, "'%.*s' is not a range: write 1..10, or 1..10..2 for every second",
                          VG_SPEC_SHOWN, text);
    step = step ? step : 1;
    uint64_t gap = from < to ? (uint64_t)to - (uint64_t)from : (uint64_t)from - (uint64_t)to;
    if (gap / (uint64_t)step >= VG_MEMBERS_MAX)
        return vg_opt_bad(st, "'%.*s' is more than %d values: sweep over fewer at once",
                          VG_SPEC_SHOWN, text, VG_MEMBERS_MAX);
    for (uint64_t i = 0; i <= gap / (uint64_t)step; i++) {
        char value[32];
        uint64_t off = i * (uint64_t)step;
        int64_t v = (int64_t)(from < to ? (uint64_t)from + off : (uint64_t)from - off);
        int n = snprintf(value, sizeof(value), "%" PRId64, v);
        int r = add_value(st, w, value, (size_t)n);
        if (r < 0)
            return r;
    }
    return 1;
}

/* One value a line; empty lines do not count. */
static int from_file(struct vg_opt_state *st, Vg__Pb__Sweep *w, const char *path) {
    vg_auto_free char *data = NULL;
    size_t n = 0;
    int r = vg_read_file(path, FILE_MAX, &data, &n);
    if (r < 0)
        return vg_opt_bad(st, "cannot read '%.*s': %s", VG_SPEC_SHOWN, path, strerror(-r));
    for (char *p = data; p < data + n;) {
        char *end = memchr(p, '\n', (size_t)(data + n - p));
        size_t len = end ? (size_t)(end - p) : (size_t)(data + n - p);
        size_t next = len + (end != NULL);
        if (len && p[len - 1] == '\r')
            len--;
        if (memchr(p, 0, len))
            return vg_opt_bad(st, "'%.*s' is not text: a value must not contain a NUL byte",
                              VG_SPEC_SHOWN, path);
        if (len && add_value(st, w, p, len) < 0)
            return VG_OPT_ERROR;
        p += next;
    }
    if (!w->n_value)
        return vg_opt_bad(st, "'%.*s' has no values: put one in each line", VG_SPEC_SHOWN, path);
    return 0;
}

static int sweep_values(struct vg_opt_state *st, Vg__Pb__Sweep *w, const char *text) {
    if (*text == '@')
        return from_file(st, w, text + 1);
    int r = range(st, w, text);
    if (r)
        return r < 0 ? r : 0;
    size_t len;
    for (const char *at = text, *p; r == 0 && (p = piece(&at, &len));)
        r = add_value(st, w, p, len);
    return r;
}

int vg_spec_sweep(struct vg_opt_state *st, const char *arg, Vg__Pb__TaskSpec *s) {
    const char *eq = strchr(arg, '=');
    size_t len = eq ? (size_t)(eq - arg) : 0;
    if (!eq || !is_variable(arg, len))
        return vg_opt_bad(st, "'%.*s' is not NAME=VALUE,VALUE,...: write for example lr=0.1,0.01",
                          VG_SPEC_SHOWN, arg);
    if (s->n_sweep == VG_SWEEPS_MAX)
        return vg_opt_bad(st, "at most %d variables can be swept over", VG_SWEEPS_MAX);
    for (size_t i = 0; i < s->n_sweep; i++)
        if (strlen(s->sweep[i]->name) == len && memcmp(s->sweep[i]->name, arg, len) == 0)
            return vg_opt_bad(st, "'%.*s' is swept over twice: give all its values at once",
                              (int)VG_MIN(len, (size_t)VG_SPEC_SHOWN), arg);
    Vg__Pb__Sweep **grown = vg_realloc(s->sweep, (s->n_sweep + 1) * sizeof(Vg__Pb__Sweep *));
    Vg__Pb__Sweep *w = grown ? vg_alloc(sizeof(*w)) : NULL;
    if (grown)
        s->sweep = grown;
    if (!w)
        return vg_spec_no_memory(st);
    *w = (Vg__Pb__Sweep)VG__PB__SWEEP__INIT;
    w->name = vg_strndup(arg, len);
    s->sweep[s->n_sweep++] = w;
    int r = w->name ? sweep_values(st, w, eq + 1) : vg_spec_no_memory(st);
    if (r == 0 && vg_spec_count(s) > VG_MEMBERS_MAX)
        return vg_opt_bad(st, "the sweep has more than %d points: sweep over fewer values at once",
                          VG_MEMBERS_MAX);
    return r;
}

/* ------------------------------------------------------------------ dependencies, retries */

int vg_spec_after(struct vg_opt_state *st, const char *arg, Vg__Pb__Dependency__When when,
                  Vg__Pb__TaskSpec *s) {
    size_t len;
    for (const char *at = arg, *p; (p = piece(&at, &len));) {
        if (!len)
            return vg_opt_bad(st,
                              "'%.*s' has an empty task in it: give ids or names, as in 3f2a,%s",
                              VG_SPEC_SHOWN, arg, "prepare");
        if (s->n_after == VG_AFTER_MAX)
            return vg_opt_bad(st, "a task can wait for at most %d others: wait for a group instead",
                              VG_AFTER_MAX);
        Vg__Pb__Dependency **grown =
            vg_realloc(s->after, (s->n_after + 1) * sizeof(Vg__Pb__Dependency *));
        Vg__Pb__Dependency *d = grown ? vg_alloc(sizeof(*d)) : NULL;
        if (grown)
            s->after = grown;
        if (!d)
            return vg_spec_no_memory(st);
        *d = (Vg__Pb__Dependency)VG__PB__DEPENDENCY__INIT;
        d->has_when = true;
        d->when = when;
        d->task = vg_strndup(p, len);
        s->after[s->n_after++] = d;
        if (!d->task)
            return vg_spec_no_memory(st);
    }
    return 0;
}

int vg_spec_secret(struct vg_opt_state *st, const char *arg, Vg__Pb__TaskSpec *s) {
    size_t n = strcspn(arg, "=:");
    if (n == 0 || (arg[n] && !arg[n + 1]))
        return vg_opt_bad(
            st,
            "'%.*s' is not of the form NAME, NAME=VARIABLE or NAME:FILE; the value is "
            "set before, with 'virga secret set NAME'",
            VG_SPEC_SHOWN, arg);
    if (s->n_secret == VG_SECRETS_MAX)
        return vg_opt_bad(st, "at most %d secrets", VG_SECRETS_MAX);
    Vg__Pb__SecretUse **grown =
        vg_realloc(s->secret, (s->n_secret + 1) * sizeof(Vg__Pb__SecretUse *));
    Vg__Pb__SecretUse *u = grown ? vg_alloc(sizeof(*u)) : NULL;
    if (grown)
        s->secret = grown;
    if (!u)
        return vg_spec_no_memory(st);
    *u = (Vg__Pb__SecretUse)VG__PB__SECRET_USE__INIT;
    s->secret[s->n_secret++] = u;
    u->name = vg_strndup(arg, n);
    if (arg[n] == '=')
        u->as_var = vg_strdup(arg + n + 1);
    else if (arg[n] == ':')
        u->as_file = vg_strdup(arg + n + 1);
    return u->name && (!arg[n] || u->as_var || u->as_file) ? 0 : vg_spec_no_memory(st);
}

/* "75" or "75-77" of n bytes. */
static bool statuses(const char *p, size_t n, uint64_t *from, uint64_t *to) {
    char text[16];
    if (n == 0 || n >= sizeof(text))
        return false;
    memcpy(text, p, n);
    text[n] = 0;
    char *dash = strchr(text, '-');
    if (dash)
        *dash = 0;
    if (vg_parse_u64(text, from) < 0 || vg_parse_u64(dash ? dash + 1 : text, to) < 0)
        return false;
    return *from >= 1 && *from <= *to && *to <= 255;
}

int vg_spec_retry_on(struct vg_opt_state *st, const char *arg, Vg__Pb__TaskSpec *s) {
    bool chosen[256] = {false};
    uint64_t from, to;
    size_t len, n = 0;
    for (size_t i = 0; i < s->n_retry_on; i++)
        chosen[s->retry_on[i] & 255] = true;
    for (const char *at = arg, *p; (p = piece(&at, &len));) {
        if (!statuses(p, len, &from, &to))
            return vg_opt_bad(st,
                              "'%.*s' is not a list of exit statuses from 1 to 255: write 1,75-77",
                              VG_SPEC_SHOWN, arg);
        for (uint64_t i = from; i <= to; i++)
            chosen[i] = true;
    }
    int32_t *list = vg_realloc(s->retry_on, sizeof(chosen) / sizeof(chosen[0]) * sizeof(*list));
    if (!list)
        return vg_spec_no_memory(st);
    for (int32_t i = 1; i < 256; i++)
        if (chosen[i])
            list[n++] = i;
    s->retry_on = list;
    s->n_retry_on = n;
    return 0;
}

int vg_spec_backoff(struct vg_opt_state *st, const char *arg, Vg__Pb__TaskSpec *s) {
    const char *dots = strstr(arg, "..");
    vg_auto_free char *first = vg_strndup(arg, dots ? (size_t)(dots - arg) : strlen(arg));
    uint64_t from = 0, most = 0;
    if (!first)
        return vg_spec_no_memory(st);
    if (vg_parse_duration(first, &from) < 0 || (dots && vg_parse_duration(dots + 2, &most) < 0))
        return vg_opt_bad(st,
                          "'%.*s' is not a duration such as 10s, or 10s..10m to say the longest",
                          VG_SPEC_SHOWN, arg);
    if (dots && most < from)
        return vg_opt_bad(st, "'%.*s' ends below its beginning: write the longest wait last",
                          VG_SPEC_SHOWN, arg);
    s->has_backoff_usec = true;
    s->backoff_usec = from;
    s->has_backoff_max_usec = dots != NULL;
    s->backoff_max_usec = most;
    return 0;
}

/* ------------------------------------------------------------------ the rest */

int vg_spec_cost(struct vg_opt_state *st, const char *arg, uint64_t *ret_micro) {
    size_t whole = strspn(arg, "0123456789"), part = 0;
    uint64_t v = 0;
    if (arg[whole] == '.')
        part = strspn(arg + whole + 1, "0123456789");
    size_t end = whole + (arg[whole] == '.' ? 1 + part : 0);
    if (!(whole + part) || arg[end] || part > 6 || whole > 12)
        return vg_opt_bad(st, "'%.*s' is not an amount such as 12.50", VG_SPEC_SHOWN, arg);
    for (size_t i = 0; i < whole; i++)
        v = v * 10 + (uint64_t)(arg[i] - '0');
    for (size_t i = 0; i < 6; i++)
        v = v * 10 + (i < part ? (uint64_t)(arg[whole + 1 + i] - '0') : 0);
    if (!v)
        return vg_opt_bad(st, "'%.*s' would let nothing run: give an amount above 0", VG_SPEC_SHOWN,
                          arg);
    *ret_micro = v;
    return 0;
}

int vg_spec_key(struct vg_opt_state *st, const char *arg, Vg__Pb__TaskSpec *s) {
    size_t n = strlen(arg);
    bool odd = false;
    for (size_t i = 0; i < n; i++)
        odd |= (unsigned char)arg[i] <= ' ' || arg[i] == 127;
    if (odd || n == 0 || n > VG_KEY_MAX)
        return vg_opt_bad(st, "a key is 1 to %d bytes without spaces, such as nightly-2027-01-31",
                          VG_KEY_MAX);
    s->key = (char *)arg;
    return 0;
}

int vg_signal_parse(const char *text, uint32_t *ret) {
    static const struct {
        const char *name;
        int number;
    } signals[] = {
#define SIG(name) {#name, SIG##name}
        SIG(HUP),  SIG(INT),  SIG(QUIT), SIG(KILL), SIG(USR1), SIG(USR2), SIG(ALRM),  SIG(TERM),
        SIG(CONT), SIG(STOP), SIG(TSTP), SIG(TTIN), SIG(TTOU), SIG(ABRT), SIG(WINCH), SIG(PIPE),
#undef SIG
    };
    uint64_t n;
    if (vg_parse_u64(text, &n) == 0 && n > 0 && n < 65) {
        *ret = (uint32_t)n;
        return 0;
    }
    if (strncasecmp(text, "SIG", 3) == 0)
        text += 3;
    for (unsigned i = 0; i < VG_COUNT(signals); i++)
        if (strcasecmp(text, signals[i].name) == 0) {
            *ret = (uint32_t)signals[i].number;
            return 0;
        }
    return -EINVAL;
}

int vg_spec_signal(struct vg_opt_state *st, const char *arg, uint32_t *ret) {
    if (vg_signal_parse(arg, ret) < 0)
        return vg_opt_bad(st, "'%.*s' is not a signal such as TERM, USR1 or 15", VG_SPEC_SHOWN,
                          arg);
    return 0;
}
