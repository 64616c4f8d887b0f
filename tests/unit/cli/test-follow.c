/* Output of several tasks at once and their progress, as text. */
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/log-show.h"
#include "cli/progress.h"
#include "net/tio.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct vg_log_show show;
static struct vg_err err;
static int out[3]; /* what stands for standard output and error */

static void redirect(void) {
    for (int fd = 1; fd <= 2; fd++) {
        out[fd] = memfd_create("out", 0);
        cr_assert_geq(out[fd], 0);
        dup2(out[fd], fd);
    }
}

static const char *written(int fd) {
    static char text[3 << 20];
    ssize_t n = pread(out[fd], text, sizeof(text) - 1, 0);
    text[n > 0 ? n : 0] = 0;
    return text;
}

/* One answer with one record; `cut` bytes of it are held back and sent in a second one. */
static void feed(uint64_t id, uint32_t index, unsigned stream, const char *text, size_t cut) {
    struct vg_buf b = {0};
    uint8_t head[VG_REC_HEADER] = {0};
    vg_put32(head, (uint32_t)strlen(text));
    vg_put32(head + 4, stream);
    vg_put64(head + 8, 1);
    cr_assert_eq(vg_buf_append(&b, head, sizeof(head)), 0);
    cr_assert_eq(vg_buf_append(&b, text, strlen(text)), 0);
    size_t first = vg_buf_len(&b) - cut;
    Vg__Pb__LogData d = VG__PB__LOG_DATA__INIT;
    d.has_records = true;
    d.has_task_id = d.has_index = id != 0;
    d.task_id = id;
    d.index = index;
    d.records = (ProtobufCBinaryData){.data = vg_buf_data(&b), .len = first};
    cr_assert_eq(vg_log_show(&show, &d, &err), 0, "%s", err.msg);
    d.records = (ProtobufCBinaryData){.data = vg_buf_data(&b) + first, .len = cut};
    cr_assert_eq(vg_log_show(&show, &d, &err), 0, "%s", err.msg);
    vg_buf_done(&b);
}

Test(follow, a_task_alone_is_shown_byte_for_byte) {
    redirect();
    feed(0, 0, VG_REC_STDOUT, "half a", 3);
    cr_assert_str_eq(written(1), "half a");
    feed(0, 0, VG_REC_STDOUT, " line\n", 0);
    feed(0, 0, VG_REC_STDERR, "oops", 1);
    cr_assert_str_eq(written(1), "half a line\n");
    cr_assert_str_eq(written(2), "oops");
    vg_log_show_done(&show);
}

Test(follow, lines_of_members_are_marked_and_never_torn) {
    redirect();
    feed(10, 0, VG_REC_STDOUT, "zero: ", 0);
    feed(11, 1, VG_REC_STDOUT, "one\nand ", 5);
    feed(10, 0, VG_REC_STDERR, "warning\n", 0);
    feed(10, 0, VG_REC_STDOUT, "whole\n", 0);
    cr_assert_str_eq(written(1), "[1] one\n[0] zero: whole\n");
    cr_assert_str_eq(written(2), "[0] warning\n");
    cr_assert_eq(vg_log_show_end(&show, &err), 0);
    cr_assert_str_eq(written(1), "[1] one\n[0] zero: whole\n[1] and \n");
    vg_log_show_done(&show);
}

Test(follow, what_comes_again_is_not_shown_again) {
    redirect();
    feed(10, 0, VG_REC_STDOUT, "a\n", 0);
    feed(10, 0, VG_REC_STDOUT, "b\n", 0);
    vg_log_show_again(&show);
    feed(10, 0, VG_REC_STDOUT, "a\n", 1);
    feed(10, 0, VG_REC_STDOUT, "b\n", 0);
    feed(10, 0, VG_REC_STDOUT, "c\n", 0);
    cr_assert_str_eq(written(1), "[0] a\n[0] b\n[0] c\n");
    vg_log_show_done(&show);
}

Test(follow, a_line_without_end_does_not_grow_for_ever) {
    redirect();
    static char much[VG_REC_MAX + 1];
    memset(much, 'x', VG_REC_MAX);
    for (int i = 0; i < 32; i++)
        feed(10, 0, VG_REC_STDOUT, much, 0);
    cr_assert_gt(strlen(written(1)), 1u << 20);
    vg_log_show_done(&show);
}

Test(follow, damage_and_a_reader_that_left_are_told_apart) {
    Vg__Pb__LogData d = VG__PB__LOG_DATA__INIT;
    uint8_t head[VG_REC_HEADER];
    memset(head, 0xff, sizeof(head));
    d.records = (ProtobufCBinaryData){.data = head, .len = sizeof(head)};
    cr_assert_lt(vg_log_show(&show, &d, &err), 0);
    cr_assert_eq(err.reason, VG_PROTOCOL);
    vg_log_show_done(&show);

    struct vg_log_show other = {0};
    int full = open("/dev/full", O_WRONLY);
    dup2(full, 1);
    uint8_t rec[VG_REC_HEADER + 1] = {1, 0, 0, 0, VG_REC_STDOUT};
    d.records = (ProtobufCBinaryData){.data = rec, .len = sizeof(rec)};
    cr_assert_eq(vg_log_show(&other, &d, &err), -ENOSPC);
    cr_assert_eq(err.reason, VG_INTERNAL);
    vg_log_show_done(&other);
}

static const char *line(const Vg__Pb__Progress *p, uint64_t seconds, unsigned columns) {
    static char text[256];
    return vg_progress_line(p, 1000 * VG_USEC + seconds * VG_USEC, 1000 * VG_USEC, 0, columns, text,
                            sizeof(text));
}

Test(progress, says_what_there_is_and_draws_what_fits) {
    Vg__Pb__Progress p = VG__PB__PROGRESS__INIT;
    char text[64];
    p.total = 256;
    cr_assert_str_eq(line(&p, 0, 0), "0/256");
    p.succeeded = 63, p.failed = 1, p.running = 8, p.queued = 184;
    cr_assert_str_eq(line(&p, 0, 0), "64/256, 8 running, 184 queued, 1 failed");
    cr_assert_str_eq(line(&p, 0, 60),
                     "[####--------------] 64/256, 8 running, 184 queued, 1 failed");
    cr_assert_str_eq(line(&p, 0, 10), "64/256, 8 ");
    cr_assert_str_eq(line(&p, 64, 0), "64/256, 8 running, 184 queued, 1 failed, about 3m 12s left");
    p.has_expected_end_usec = true;
    p.expected_end_usec = 1000 * VG_USEC + 60 * VG_USEC;
    cr_assert_str_eq(line(&p, 0, 0), "64/256, 8 running, 184 queued, 1 failed, about 1m 00s left");
    cr_assert_str_eq(vg_progress_short(&p, text, sizeof(text)), "64/256, 1 failed");
    p = (Vg__Pb__Progress)VG__PB__PROGRESS__INIT;
    p.total = p.succeeded = 4;
    cr_assert_str_eq(line(&p, 9, 30), "[########################] 4/4");
    cr_assert_str_eq(vg_progress_short(&p, text, sizeof(text)), "4/4");
}
