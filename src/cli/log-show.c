/* Output records into lines for people. What always holds: of a group, no line is written before it
   is whole (or longer than LINE_MAX), so that members never tear each other's lines. */
#include "cli/log-show.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "net/tio.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES (1u << 20)
#define STAMP_MAX 64

struct flow {
    uint64_t id;
    uint32_t index;
    bool member;           /* its lines are marked and kept until they are whole */
    bool line_start[3];    /* per descriptor: the next byte begins a line */
    struct vg_buf in;      /* a record that has not come whole */
    struct vg_buf line[3]; /* per descriptor, of a member: the line so far */
    uint64_t at;           /* offset of the next record of this answer */
    uint64_t shown;        /* everything before was written */
};

static int write_out(struct vg_log_show *g, int fd, const void *p, size_t n, struct vg_err *err) {
    if (g->wiped)
        g->wiped(g->user);
    int r = vg_write_full(fd, p, n);
    if (r >= 0)
        return 0;
    vg_err_sys(err, r, "cannot write the output");
    err->reason = VG_INTERNAL; /* not LOST: it is our reader who left, not the control plane */
    return r;
}

static size_t stamp(uint64_t usec, char out[STAMP_MAX]) {
    time_t t = (time_t)(usec / VG_USEC);
    struct tm tm;
    localtime_r(&t, &tm);
    size_t n = strftime(out, STAMP_MAX, "%Y-%m-%dT%H:%M:%S", &tm);
    return n + (size_t)snprintf(out + n, STAMP_MAX - n, ".%06u ", (unsigned)(usec % VG_USEC));
}

/* Of a task alone: bytes as they come, with the time in front of each line if that was asked. */
static int show_bytes(struct vg_log_show *g, struct flow *f, int fd, uint64_t usec, const char *p,
                      size_t n, struct vg_err *err) {
    char text[STAMP_MAX];
    size_t len = stamp(usec, text);
    if (!g->times)
        return write_out(g, fd, p, n, err);
    while (n) {
        const char *end = memchr(p, '\n', n);
        size_t line = end ? (size_t)(end - p) + 1 : n;
        int r = f->line_start[fd] ? write_out(g, fd, text, len, err) : 0;
        if (r >= 0)
            r = write_out(g, fd, p, line, err);
        if (r < 0)
            return r;
        f->line_start[fd] = end != NULL;
        p += line;
        n -= line;
    }
    return 0;
}

static int flush_line(struct vg_log_show *g, struct flow *f, int fd, struct vg_err *err) {
    struct vg_buf *b = &f->line[fd];
    int r = write_out(g, fd, vg_buf_data(b), vg_buf_len(b), err);
    vg_buf_clear(b);
    return r;
}

static int no_memory(struct vg_err *err) {
    return vg_err_sys(err, ENOMEM, "cannot show the output");
}

/* Of a member: whole lines with its number in front. */
static int show_lines(struct vg_log_show *g, struct flow *f, int fd, uint64_t usec, const char *p,
                      size_t n, struct vg_err *err) {
    struct vg_buf *b = &f->line[fd];
    char text[STAMP_MAX];
    size_t len = g->times ? stamp(usec, text) : 0;
    while (n) {
        const char *end = memchr(p, '\n', n);
        size_t part = end ? (size_t)(end - p) + 1 : n;
        if (!vg_buf_len(b) &&
            (vg_buf_append(b, text, len) < 0 || vg_buf_printf(b, "[%u] ", f->index) < 0))
            return no_memory(err);
        if (vg_buf_append(b, p, part) < 0)
            return no_memory(err);
        if (!end && vg_buf_len(b) > LINE_MAX_BYTES && vg_buf_append(b, "\n", 1) == 0)
            end = p;
        int r = end ? flush_line(g, f, fd, err) : 0;
        if (r < 0)
            return r;
        p += part;
        n -= part;
    }
    return 0;
}

static int show_gap(struct vg_log_show *g, uint64_t bytes, struct vg_err *err) {
    char line[160], size[32];
    int n =
        snprintf(line, sizeof(line),
                 "virga: %s of output are not kept here: only its beginning and end are stored\n",
                 vg_format_size(bytes, size, sizeof(size)));
    return write_out(g, STDERR_FILENO, line, (size_t)n, err);
}

static int show_record(struct vg_log_show *g, struct flow *f, const uint8_t *rec, uint32_t len,
                       struct vg_err *err) {
    uint8_t stream = rec[4];
    const uint8_t *data = rec + VG_REC_HEADER;
    bool gap = stream == VG_REC_GAP && len >= 8;
    f->at += gap ? vg_get64(data) : VG_REC_HEADER + (uint64_t)len;
    if (f->at <= f->shown)
        return 0; /* repeated after a reconnect */
    f->shown = f->at;
    if (gap)
        return show_gap(g, vg_get64(data), err);
    if (stream != VG_REC_STDOUT && stream != VG_REC_STDERR && stream != VG_REC_NOTE)
        return 0;
    int fd = stream == VG_REC_STDOUT ? STDOUT_FILENO : STDERR_FILENO;
    uint64_t usec = vg_get64(rec + 8);
    return f->member ? show_lines(g, f, fd, usec, (const char *)data, len, err)
                     : show_bytes(g, f, fd, usec, (const char *)data, len, err);
}

static struct flow *flow_of(struct vg_log_show *g, const Vg__Pb__LogData *d) {
    uint64_t id = d->has_task_id ? d->task_id : 0;
    struct flow *f = vg_map_get_u64(&g->flows, id);
    if (f)
        return f;
    f = vg_alloc(sizeof(*f));
    if (!f)
        return NULL;
    *f = (struct flow){.id = id, .index = d->index, .member = id != 0, .line_start = {1, 1, 1}};
    if (vg_map_put_u64(&g->flows, id, f) < 0) {
        free(f);
        return NULL;
    }
    return f;
}

int vg_log_show(struct vg_log_show *g, const Vg__Pb__LogData *d, struct vg_err *err) {
    const ProtobufCBinaryData *rec = &d->records;
    if (!rec->len)
        return 0;
    struct flow *f = flow_of(g, d);
    if (!f || vg_buf_append(&f->in, rec->data, rec->len) < 0)
        return no_memory(err);
    while (vg_buf_len(&f->in) >= VG_REC_HEADER) {
        uint32_t len = vg_get32(vg_buf_data(&f->in));
        if (len > VG_REC_MAX)
            return vg_err_set(err, VG_PROTOCOL, "the stored output is damaged");
        if (vg_buf_len(&f->in) < VG_REC_HEADER + (size_t)len)
            break;
        int r = show_record(g, f, vg_buf_data(&f->in), len, err);
        if (r < 0)
            return r;
        vg_buf_consume(&f->in, VG_REC_HEADER + (size_t)len);
    }
    if (!vg_buf_len(&f->in))
        vg_buf_done(&f->in); /* a group may have very many */
    return 0;
}

void vg_log_show_again(struct vg_log_show *g) {
    vg_map_for_each (s, &g->flows) {
        struct flow *f = s->value;
        vg_buf_clear(&f->in);
        f->at = 0;
    }
}

int vg_log_show_end(struct vg_log_show *g, struct vg_err *err) {
    int r = 0;
    vg_map_for_each (s, &g->flows) {
        struct flow *f = s->value;
        for (int fd = 1; fd <= 2 && r >= 0; fd++)
            if (vg_buf_len(&f->line[fd]))
                r = vg_buf_append(&f->line[fd], "\n", 1) < 0 ? no_memory(err)
                                                             : flush_line(g, f, fd, err);
    }
    return r;
}

void vg_log_show_done(struct vg_log_show *g) {
    vg_map_for_each (s, &g->flows) {
        struct flow *f = s->value;
        vg_buf_done(&f->in);
        vg_buf_done(&f->line[1]);
        vg_buf_done(&f->line[2]);
        free(f);
    }
    vg_map_done(&g->flows);
}
