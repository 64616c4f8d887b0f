/* The stored output of one attempt. What always holds: the head file is records from offset 0
   without a hole; the tail file is its start offset and records from there without a hole. A crash
   between two appends leaves at most an unfinished record at an end, which is cut off on opening.
 */
#include "control/log-file.h"

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/util.h"
#include "net/tio.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TAIL_PREFIX 8u /* the u64 in front of the tail's records */
#define SCAN_STEP (128u << 10)

struct part {
    int fd;
    uint64_t start; /* offset of the first record */
    uint64_t end;   /* offset after the last whole record */
    bool known;     /* looked at the file */
};

struct vg_logfile {
    char *dir; /* owned */
    uint64_t task;
    uint32_t attempt;
    uint64_t head_limit, tail_limit;
    struct part head, tail;
    bool full; /* the disk is: nothing is stored any more */
    char note[160];
};

static char *part_path(const char *dir, uint64_t task, uint32_t attempt, bool tail) {
    char id[VG_ID_LEN + 1];
    vg_id_format(task, id);
    return vg_fmt("%s/%.2s/%s.%u.%s", dir, id, id, attempt, tail ? "tail" : "log");
}

ssize_t vg_records_whole(const uint8_t *data, size_t n) {
    size_t at = 0;
    while (n - at >= VG_REC_HEADER) {
        uint32_t len = vg_get32(data + at);
        uint32_t stream = vg_get32(data + at + 4);
        if (len > VG_REC_MAX || stream == 0 || stream > VG_REC_GAP)
            return -EPROTO;
        if (n - at - VG_REC_HEADER < len)
            break;
        at += VG_REC_HEADER + len;
    }
    return (ssize_t)at;
}

/* Walks the record headers of a file to find the end of the last whole record. */
static uint64_t scan_end(int fd, uint64_t from, uint64_t size) {
    uint64_t at = from;
    while (at + VG_REC_HEADER <= size) {
        uint8_t h[VG_REC_HEADER];
        if (pread(fd, h, sizeof h, (off_t)at) != (ssize_t)sizeof h)
            break;
        uint32_t len = vg_get32(h), stream = vg_get32(h + 4);
        if (len > VG_REC_MAX || stream == 0 || stream > VG_REC_GAP ||
            at + VG_REC_HEADER + len > size)
            break;
        at += VG_REC_HEADER + len;
    }
    return at;
}

static int make_parent(struct vg_logfile *l) {
    char id[VG_ID_LEN + 1];
    vg_id_format(l->task, id);
    vg_auto_free char *dir = vg_fmt("%s/%.2s", l->dir, id);
    return dir ? vg_mkdir_p(dir, 0700) : -ENOMEM;
}

/* Opens a part that exists, or makes it when `create`. -ENOENT when it does not exist. */
static int part_open(struct vg_logfile *l, struct part *p, bool create) {
    if (p->fd >= 0)
        return 0;
    bool tail = p == &l->tail;
    vg_auto_free char *path = part_path(l->dir, l->task, l->attempt, tail);
    if (!path)
        return -ENOMEM;
    int r = vg_fault("control.log-open");
    if (r < 0)
        return r;
    int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW;
    int fd = open(path, flags | (create ? O_CREAT : 0), 0600);
    if (fd < 0 && errno == ENOENT && create) {
        r = make_parent(l);
        if (r < 0)
            return r;
        fd = open(path, flags | O_CREAT, 0600);
    }
    if (fd < 0)
        return -errno;
    p->fd = fd;
    return 0;
}

/* Learns what an earlier life of the program stored. */
static int part_learn(struct vg_logfile *l, struct part *p) {
    if (p->known)
        return 0;
    int r = part_open(l, p, false);
    if (r == -ENOENT) {
        p->known = true;
        return 0;
    }
    if (r < 0)
        return r;
    struct stat st;
    if (fstat(p->fd, &st) < 0)
        return -errno;
    uint64_t size = (uint64_t)st.st_size, prefix = 0;
    if (p == &l->tail) {
        uint8_t h[TAIL_PREFIX];
        prefix = TAIL_PREFIX;
        if (size < prefix || pread(p->fd, h, sizeof h, 0) != (ssize_t)sizeof h)
            size = 0;
        else
            p->start = vg_get64(h);
    }
    uint64_t end = size > prefix ? scan_end(p->fd, prefix, size) : prefix;
    p->end = p->start + (end - prefix);
    p->known = true;
    return 0;
}

int vg_logfile_new(const char *dir, uint64_t task, uint32_t attempt, uint64_t head_limit,
                   uint64_t tail_limit, struct vg_logfile **ret) {
    struct vg_logfile *l = vg_alloc(sizeof *l);
    if (!l)
        return -ENOMEM;
    *l = (struct vg_logfile){.task = task,
                             .attempt = attempt,
                             .head_limit = head_limit,
                             .tail_limit = tail_limit,
                             .head = {.fd = -1},
                             .tail = {.fd = -1}};
    l->dir = vg_strdup(dir);
    if (!l->dir) {
        free(l);
        return -ENOMEM;
    }
    *ret = l;
    return 0;
}

void vg_logfile_free(struct vg_logfile *l) {
    if (!l)
        return;
    vg_close(&l->head.fd);
    vg_close(&l->tail.fd);
    free(l->dir);
    free(l);
}

static int write_at(int fd, const uint8_t *data, size_t n, uint64_t pos) {
    while (n > 0) {
        int r = vg_fault("control.log-write");
        if (r < 0)
            return r;
        ssize_t w = pwrite(fd, data, n, (off_t)pos);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return w < 0 ? -errno : -EIO;
        data += w;
        pos += (uint64_t)w;
        n -= (size_t)w;
    }
    return 0;
}

/* Storing has failed: the task goes on, its output from here is not kept. */
static void give_up(struct vg_logfile *l, int r) {
    l->full = true;
    snprintf(l->note, sizeof l->note, "output was not stored any further: %s", strerror(-r));
}

static int store_part(struct vg_logfile *l, struct part *p, uint64_t offset, const uint8_t *data,
                      size_t n) {
    uint64_t prefix = p == &l->tail ? TAIL_PREFIX : 0;
    int r = part_open(l, p, true);
    if (r < 0)
        return r;
    if (p == &l->tail && p->end == p->start) {
        uint8_t h[TAIL_PREFIX];
        p->start = p->end = offset;
        vg_put64(h, offset);
        r = write_at(p->fd, h, sizeof h, 0);
        if (r < 0)
            return r;
    }
    uint64_t skip = p->end - offset;
    r = write_at(p->fd, data + skip, n - skip, prefix + (p->end - p->start));
    if (r == 0)
        p->end = offset + n;
    return r;
}

int vg_logfile_append(struct vg_logfile *l, uint64_t offset, const uint8_t *data, size_t n,
                      bool tail, uint64_t *ret_ack) {
    struct part *p = tail ? &l->tail : &l->head;
    uint64_t limit = tail ? l->tail_limit : l->head_limit;
    if (vg_records_whole(data, n) != (ssize_t)n || offset > UINT64_MAX / 2)
        return -EINVAL;
    int r = l->full ? 0 : part_learn(l, p);
    if (r < 0)
        give_up(l, r);
    bool fresh_tail = tail && p->end == p->start;
    if (l->full || (!fresh_tail && offset + n <= p->end)) {
        *ret_ack = VG_MAX(p->end, offset + n);
        return 0;
    }
    /* A keeper that sends more than it was told to keep is acknowledged, not stored. */
    uint64_t have = fresh_tail ? 0 : p->end - p->start;
    bool enough = have >= limit || have + n > limit + VG_REC_MAX + VG_REC_HEADER;
    if (!enough && !fresh_tail && offset > p->end) {
        *ret_ack = p->end; /* bytes between are missing: ask for them */
        return 0;
    }
    r = enough ? 0 : store_part(l, p, offset, data, n);
    if (r < 0)
        give_up(l, r);
    *ret_ack = offset + n;
    return 0;
}

int vg_logfile_head(struct vg_logfile *l, uint64_t *ret_end) {
    int r = part_learn(l, &l->head);
    if (r >= 0)
        *ret_end = l->head.end;
    return r;
}

void vg_logfile_drop_tail(struct vg_logfile *l) {
    vg_auto_free char *path = part_path(l->dir, l->task, l->attempt, true);
    vg_close(&l->tail.fd);
    l->tail = (struct part){.fd = -1, .known = true};
    if (path)
        unlink(path);
}

uint64_t vg_logfile_bytes(const struct vg_logfile *l) {
    return (l->head.end - l->head.start) + (l->tail.end - l->tail.start);
}

const char *vg_logfile_note(const struct vg_logfile *l) {
    return l->note[0] ? l->note : NULL;
}

void vg_logfile_fds(const struct vg_logfile *l, int *ret_head, int *ret_tail) {
    *ret_head = l->head.fd;
    *ret_tail = l->tail.fd;
}

void vg_logfile_remove(const char *dir, uint64_t task, uint32_t attempt) {
    for (int tail = 0; tail < 2; tail++) {
        vg_auto_free char *path = part_path(dir, task, attempt, tail);
        if (path)
            unlink(path);
    }
}

/* ------------------------------------------------------------------ reading */

/* Opens a part for reading: 1 when open, 0 when it does not exist (yet). */
static int read_open(const char *dir, uint64_t task, uint32_t attempt, struct vg_logread *s,
                     bool tail) {
    if (s->fd[tail] > 0)
        return 1;
    vg_auto_free char *path = part_path(dir, task, attempt, tail);
    if (!path)
        return -ENOMEM;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    s->fd[tail] = fd;
    return 1;
}

/* Appends whole records from one file position. Returns bytes appended or -errno. */
static ssize_t read_some(int fd, uint64_t pos, struct vg_buf *out, size_t want) {
    want = VG_MAX(want, (size_t)(VG_REC_HEADER + VG_REC_MAX));
    uint8_t *p = vg_buf_reserve(out, want);
    if (!p)
        return -ENOMEM;
    ssize_t n = pread(fd, p, want, (off_t)pos);
    if (n < 0)
        return -errno;
    ssize_t whole = vg_records_whole(p, (size_t)n);
    if (whole > 0)
        vg_buf_commit(out, (size_t)whole);
    return whole < 0 ? -EIO : whole;
}

/* Goes over to the tail: 1 when there is one. A gap record stands for what was dropped. */
static int enter_tail(const char *dir, uint64_t task, uint32_t attempt, struct vg_logread *s,
                      struct vg_buf *out) {
    uint8_t h[TAIL_PREFIX], gap[VG_REC_HEADER + 8];
    int r = read_open(dir, task, attempt, s, true);
    if (r <= 0)
        return r;
    if (pread(s->fd[1], h, sizeof h, 0) != (ssize_t)sizeof h)
        return 0;
    s->tail_start = vg_get64(h);
    if (s->tail_start > s->at) {
        vg_rec_header(gap, VG_REC_GAP, 8, 0);
        vg_put64(gap + VG_REC_HEADER, s->tail_start - s->at);
        r = vg_buf_append(out, gap, sizeof gap);
        if (r < 0)
            return r;
        s->at = s->tail_start;
    }
    s->in_tail = true;
    return 1;
}

int vg_logread_next(const char *dir, uint64_t task, uint32_t attempt, struct vg_logread *s,
                    struct vg_buf *out, size_t want) {
    if (!s->in_tail) {
        int r = read_open(dir, task, attempt, s, false);
        if (r < 0)
            return r;
        ssize_t n = r ? read_some(s->fd[0], s->at, out, want) : 0;
        if (n < 0)
            return (int)n;
        s->at += (uint64_t)n;
        if (n > 0)
            return 1;
        if (s->head_only)
            return 0;
        r = enter_tail(dir, task, attempt, s, out);
        if (r <= 0)
            return r;
    }
    ssize_t n = read_some(s->fd[1], TAIL_PREFIX + (s->at - s->tail_start), out, want);
    if (n < 0)
        return (int)n;
    s->at += (uint64_t)n;
    return n > 0;
}

void vg_logread_done(struct vg_logread *s) {
    for (int i = 0; i < 2; i++)
        if (s->fd[i] > 0)
            close(s->fd[i]);
    *s = (struct vg_logread){0};
}
