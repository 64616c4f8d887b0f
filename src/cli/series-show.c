/* What was used over time, as text. */
#include "cli/series-show.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/table.h"

#include <stdio.h>
#include <string.h>

#define TEXT 48

static char *as_cpus(int64_t milli, char *out) {
    snprintf(out, TEXT, "%.2f", (double)milli / 1000);
    return out;
}

static char *as_bytes(int64_t bytes, char *out) {
    return vg_format_size((uint64_t)bytes, out, TEXT);
}

static char *as_rate(int64_t bytes, char *out) {
    size_t n = strlen(as_bytes(bytes, out));
    snprintf(out + n, TEXT - n, "/s");
    return out;
}

static char *as_percent(int64_t v, char *out) {
    snprintf(out, TEXT, "%lld %%", (long long)v);
    return out;
}

static char *as_watts(int64_t mw, char *out) {
    snprintf(out, TEXT, "%.1f W", (double)mw / 1000);
    return out;
}

char *vg_series_bars(const int64_t *v, size_t n, int64_t most, bool utf8, char *out) {
    static const char *const bars[2][8] = {
        {"_", ".", "-", "~", "=", "+", "*", "#"},
        {"\u2581", "\u2582", "\u2583", "\u2584", "\u2585", "\u2586", "\u2587", "\u2588"}};
    size_t at = 0;
    for (size_t i = 0; i < n; i++)
        most = VG_MAX(most, v[i]);
    for (size_t i = 0; i < n; i++) {
        double part = most > 0 ? (double)v[i] / (double)most : 0;
        const char *c = v[i] < 0 ? " " : bars[utf8][VG_MIN((int)(part * 8), 7)];
        size_t len = strlen(c);
        memcpy(out + at, c, len);
        at += len;
    }
    out[at] = '\0';
    return out;
}

bool vg_series_utf8(void) {
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < VG_COUNT(names); i++) {
        const char *v = getenv(names[i]);
        if (v && *v)
            return strcasestr(v, "utf-8") || strcasestr(v, "utf8");
    }
    return false;
}

int64_t vg_series_last(const int64_t *v, size_t n) {
    while (n && v[n - 1] < 0)
        n--;
    return n ? v[n - 1] : -1;
}

/* Means of neighbours, so that they fit. */
static size_t squeeze(const int64_t *v, size_t n, size_t width, int64_t *to) {
    size_t out = VG_MIN(n, width);
    for (size_t i = 0; i < out; i++) {
        int64_t sum = 0, told = 0;
        for (size_t k = n * i / out; k < n * (i + 1) / out; k++)
            if (v[k] >= 0) {
                sum += v[k];
                told++;
            }
        to[i] = told ? sum / told : -1;
    }
    return out;
}

struct line {
    const char *name;
    const int64_t *v;
    size_t n;
    uint64_t limit;
    char *(*text)(int64_t v, char *out);
};

static void print_line(const struct line *l, size_t width, bool utf8) {
    char last[TEXT], most[TEXT], limit[TEXT], of[TEXT + 8] = "";
    int64_t max = -1, now = vg_series_last(l->v, l->n);
    vg_auto_free int64_t *few = vg_alloc((width + 1) * sizeof *few);
    vg_auto_free char *bars = vg_alloc(width * 3 + 1);
    for (size_t i = 0; i < l->n; i++)
        max = VG_MAX(max, l->v[i]);
    if (now < 0 || !few || !bars)
        return;
    size_t n = squeeze(l->v, l->n, width, few);
    vg_series_bars(few, n, 0, utf8, bars);
    if (l->limit)
        snprintf(of, sizeof of, " of %s", l->text((int64_t)l->limit, limit));
    printf("%-11s %s%*s  %s%s, most %s\n", l->name, bars, (int)(width - n), "", l->text(now, last),
           of, l->text(max, most));
}

void vg_series_print(const Vg__Pb__SeriesInfo *s, size_t width, bool utf8) {
    const struct line lines[] = {
        {"CPUs", s->cpu_milli, s->n_cpu_milli, s->cpu_milli_limit, as_cpus},
        {"memory", s->mem_bytes, s->n_mem_bytes, s->mem_bytes_limit, as_bytes},
        {"GPU", s->gpu_percent, s->n_gpu_percent, 0, as_percent},
        {"GPU memory", s->gpu_mem_bytes, s->n_gpu_mem_bytes, s->gpu_mem_bytes_limit, as_bytes},
        {"power", s->power_mw, s->n_power_mw, 0, as_watts},
        {"read", s->read_bytes, s->n_read_bytes, 0, as_rate},
        {"written", s->write_bytes, s->n_write_bytes, 0, as_rate}};
    char from[32], until[32], span[32];
    for (size_t i = 0; i < VG_COUNT(lines); i++)
        print_line(&lines[i], width, utf8);
    size_t n = s->n_when_usec;
    if (n)
        printf("%-11s %s to %s (%s)\n", "", vg_when(s->when_usec[0], from, sizeof from),
               vg_when(s->when_usec[n - 1], until, sizeof until),
               vg_format_duration(s->when_usec[n - 1] - s->when_usec[0], span, sizeof span));
}
