/* Lines and columns of a trace. No quoting: none of the traces has any, and a quote is refused. */
#include "sim/trace-csv.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "sim/trace.h"

#include <string.h>
#include <zlib.h>

#define CHUNK (1u << 20)
#define SHOWN 40 /* bytes of a wrong value that a message repeats */

static int read_all(gzFile f, const char *path, char **ret, struct vg_err *err) {
    vg_auto_free char *text = NULL;
    size_t len = 0, cap = 0;
    for (;;) {
        char *grown = vg_grow(text, &cap, len + CHUNK + 1, 1);
        if (!grown)
            return vg_err_sys(err, -ENOMEM, "cannot read trace '%s'", path);
        text = grown;
        int got = gzread(f, text + len, CHUNK);
        if (got < 0)
            return vg_err_set(err, VG_INVALID,
                              "cannot read trace '%s': its gzip data is damaged; fetch it again",
                              path);
        len += (size_t)got;
        if (len > VG_TRACE_BYTES_MAX)
            return vg_err_set(err, VG_TOO_BIG, "trace '%s' is larger than %u MiB; cut it", path,
                              VG_TRACE_BYTES_MAX >> 20);
        if (got == 0)
            break;
    }
    if (memchr(text, 0, len))
        return vg_err_set(err, VG_INVALID, "trace '%s' holds a NUL byte: it is no CSV file", path);
    text[len] = 0;
    *ret = vg_take_ptr(text);
    return 0;
}

/* Cuts one line off; NULL at the end. */
static char *take_line(struct vg_csv *c) {
    char *line = c->at;
    if (!*line)
        return NULL;
    size_t n = strcspn(line, "\n");
    c->at = line + n + (line[n] == '\n');
    line[n] = 0;
    if (n && line[n - 1] == '\r')
        line[n - 1] = 0;
    c->line++;
    return line;
}

int vg_csv_open(struct vg_csv *c, const char *path, const char *header, struct vg_err *err) {
    *c = (struct vg_csv){.path = path};
    gzFile f = gzopen(path, "rbe");
    if (!f)
        return vg_err_sys(err, errno ? -errno : -ENOMEM, "cannot open trace '%s'", path);
    int r = read_all(f, path, &c->text, err);
    gzclose_r(f);
    if (r < 0)
        return r;
    c->at = c->text;
    for (const char *h = header; h; h = strchr(h, ',') ? strchr(h, ',') + 1 : NULL)
        c->columns++;
    const char *first = take_line(c);
    if (!first || strcmp(first, header) != 0) {
        vg_csv_close(c);
        return vg_err_set(err, VG_INVALID, "%s:1: the header is not '%s': is this the right file?",
                          path, header);
    }
    return 0;
}

void vg_csv_close(struct vg_csv *c) {
    free(c->text);
    c->text = c->at = NULL;
}

int vg_csv_bad(const struct vg_csv *c, struct vg_err *err, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return vg_err_set(err, VG_INVALID, "%s:%u: %s", c->path, c->line, text);
}

int vg_csv_next(struct vg_csv *c, struct vg_err *err) {
    char *line;
    do
        line = take_line(c);
    while (line && !*line);
    if (!line)
        return 0;
    size_t n = 0;
    for (char *at = line; at;) {
        if (n == c->columns)
            return vg_csv_bad(c, err, "more than %zu columns: correct the line", c->columns);
        c->col[n++] = at;
        if ((at = strchr(at, ',')))
            *at++ = 0;
    }
    if (n < c->columns)
        return vg_csv_bad(c, err, "%zu columns where %zu belong: complete the line", n, c->columns);
    return 1;
}

int vg_csv_number(struct vg_csv *c, size_t i, uint64_t max, int may_be_empty, uint64_t *ret,
                  struct vg_err *err) {
    const char *s = c->col[i];
    uint64_t v = 0;
    if (!*s && may_be_empty) {
        *ret = 0;
        return 0;
    }
    const char *p = s;
    for (; *p >= '0' && *p <= '9'; p++) {
        v = v * 10 + (uint64_t)(*p - '0');
        if (v > max)
            return vg_csv_bad(c, err, "column %zu: %.*s is more than %llu", i + 1, SHOWN, s,
                              (unsigned long long)max);
    }
    if (p > s && *p == '.') {
        v += p[1] >= '5' && p[1] <= '9';
        for (p++; *p >= '0' && *p <= '9'; p++)
            ;
    }
    if (p == s || *p)
        return vg_csv_bad(c, err, "column %zu: '%.*s' is no number of at least 0", i + 1, SHOWN, s);
    *ret = v;
    return 0;
}
