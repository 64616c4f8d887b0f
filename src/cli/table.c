/* Tables for people. No state but the table; one thread. */
#include "cli/table.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define COLUMNS_MAX 16
#define CELL_MAX 1024
#define GAP 2

struct vg_table {
    const char *const *headings; /* borrowed */
    size_t n_columns, n_rows, cap;
    char **cells;      /* owned, as is each */
    uint32_t optional; /* a bit for each column */
};

/* Bytes of the UTF-8 character at p, or 0 when it is broken or a control character. */
static size_t character(const unsigned char *p, size_t n) {
    if (*p < 0x80)
        return *p >= 0x20 && *p != 0x7f;
    size_t len = *p >= 0xc2 && *p < 0xe0 ? 2 : *p >= 0xe0 && *p < 0xf0 ? 3 : 4;
    if (*p < 0xc2 || *p > 0xf4 || len > n)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    /* Over-long and surrogate forms, and the C1 controls. */
    if ((*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] > 0x9f) || (*p == 0xf0 && p[1] < 0x90) ||
        (*p == 0xf4 && p[1] > 0x8f) || (*p == 0xc2 && p[1] < 0xa0))
        return 0;
    return len;
}

char *vg_clean(char *out, size_t room, const void *text, size_t n) {
    const unsigned char *p = text;
    size_t put = 0;
    while (n) {
        size_t len = character(p, n), take = len ? len : 1;
        if (put + take >= room)
            break;
        if (len)
            memcpy(out + put, p, len);
        else
            out[put] = '?';
        put += take;
        p += take;
        n -= take;
    }
    out[put] = 0;
    return out;
}

static size_t columns_of(const char *s) {
    size_t n = 0;
    for (; *s; s++)
        n += (*s & 0xc0) != 0x80;
    return n;
}

/* Bytes of the first `columns` characters. */
static size_t bytes_of(const char *s, size_t columns) {
    size_t i = 0;
    for (; s[i]; i++)
        if ((s[i] & 0xc0) != 0x80 && columns-- == 0)
            break;
    return i;
}

struct vg_table *vg_table_new(const char *const *headings) {
    struct vg_table *t = vg_alloc(sizeof(*t));
    if (!t)
        return NULL;
    t->headings = headings;
    while (headings[t->n_columns] && t->n_columns < COLUMNS_MAX)
        t->n_columns++;
    return t;
}

void vg_table_optional(struct vg_table *t, size_t column) {
    if (t)
        t->optional |= 1u << column;
}

void vg_table_row(struct vg_table *t, const char *const *cells) {
    char clean[CELL_MAX];
    char **grown =
        t ? vg_grow(t->cells, &t->cap, (t->n_rows + 1) * t->n_columns, sizeof(char *)) : NULL;
    if (!grown)
        return;
    t->cells = grown;
    for (size_t i = 0; i < t->n_columns; i++) {
        const char *c = cells[i] && *cells[i] ? cells[i] : "-";
        t->cells[t->n_rows * t->n_columns + i] =
            vg_strdup(vg_clean(clean, sizeof(clean), c, strlen(c)));
    }
    t->n_rows++;
}

unsigned vg_table_width(FILE *out) {
    struct winsize ws;
    int fd = fileno(out);
    if (fd < 0 || !isatty(fd))
        return 0;
    return ioctl(fd, TIOCGWINSZ, &ws) == 0 && ws.ws_col ? ws.ws_col : 80;
}

static void print_cell(FILE *out, const char *s, size_t width, size_t *left, bool last) {
    size_t n = columns_of(s), shown = VG_MIN(n, *left);
    bool cut = shown < n && shown > 1;
    size_t keep = cut ? shown - 1 : shown;
    fwrite(s, 1, bytes_of(s, keep), out);
    if (cut)
        fputs("…", out);
    *left -= shown;
    for (size_t pad = width + GAP; !last && pad > shown && *left; pad--, (*left)--)
        fputc(' ', out);
}

static size_t width_of(const struct vg_table *t, size_t column) {
    size_t width = columns_of(t->headings[column]);
    for (size_t r = 0; r < t->n_rows; r++) {
        const char *s = t->cells[r * t->n_columns + column];
        width = VG_MAX(width, s ? columns_of(s) : 0);
    }
    return width;
}

/* The last column is always shown: it ends the line. */
static bool empty(const struct vg_table *t, size_t column) {
    bool any = t->n_rows == 0 || column + 1 == t->n_columns;
    for (size_t r = 0; r < t->n_rows && !any; r++) {
        const char *s = t->cells[r * t->n_columns + column];
        any = s && strcmp(s, "-") != 0;
    }
    return !any;
}

void vg_table_print(struct vg_table *t, FILE *out, unsigned width) {
    size_t widths[COLUMNS_MAX] = {0};
    if (!t)
        return;
    if (!width)
        width = vg_table_width(out);
    for (size_t c = 0; c < t->n_columns; c++)
        widths[c] = (width && empty(t, c)) || (t->optional >> c & 1 && (!t->n_rows || empty(t, c)))
                        ? 0
                        : width_of(t, c);
    for (size_t r = 0; r <= t->n_rows; r++) {
        size_t left = width ? width : SIZE_MAX;
        for (size_t c = 0; c < t->n_columns; c++) {
            if (!widths[c])
                continue;
            const char *s = r ? t->cells[(r - 1) * t->n_columns + c] : t->headings[c];
            print_cell(out, s ? s : "", widths[c], &left, c + 1 == t->n_columns);
        }
        fputc('\n', out);
    }
    vg_table_free(t);
}

void vg_table_free(struct vg_table *t) {
    if (!t)
        return;
    for (size_t i = 0; i < t->n_rows * t->n_columns; i++)
        free(t->cells[i]);
    free(t->cells);
    free(t);
}

char *vg_ago(uint64_t wall_usec, char *out, size_t n) {
    char d[32];
    uint64_t now = vg_wall_usec();
    if (!wall_usec)
        snprintf(out, n, "-");
    else
        snprintf(out, n, "%s ago",
                 vg_format_duration(now > wall_usec ? now - wall_usec : 0, d, sizeof(d)));
    return out;
}

char *vg_when(uint64_t wall_usec, char *out, size_t n) {
    time_t t = (time_t)(wall_usec / VG_USEC);
    struct tm tm;
    if (!wall_usec || !localtime_r(&t, &tm) || !strftime(out, n, "%Y-%m-%d %H:%M:%S", &tm))
        snprintf(out, n, "-");
    return out;
}
