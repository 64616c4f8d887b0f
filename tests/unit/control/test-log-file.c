/* The log store: appends by offset are idempotent, what is read is what was stored. */
#include "base/fault.h"
#include "base/util.h"
#include "control/log-file.h"
#include "net/tio.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TASK 0xabcdef0123456789ULL
#define HEAD 4096
#define TAIL 4096

static char dir[64];

static void setup(void) {
    snprintf(dir, sizeof dir, "/tmp/vg-log-XXXXXX");
    cr_assert(mkdtemp(dir));
}

static void teardown(void) {
    char cmd[128];
    for (uint32_t a = 1; a < 4; a++)
        vg_logfile_remove(dir, TASK, a);
    snprintf(cmd, sizeof cmd, "%s/ab", dir);
    rmdir(cmd);
    rmdir(dir);
}

TestSuite(log_file, .init = setup, .fini = teardown);

static size_t record(uint8_t *out, const char *text) {
    size_t n = strlen(text);
    vg_rec_header(out, VG_REC_STDOUT, (uint32_t)n, 1);
    memcpy(out + VG_REC_HEADER, text, n);
    return VG_REC_HEADER + n;
}

static struct vg_logfile *open_log(void) {
    struct vg_logfile *l = NULL;
    cr_assert_eq(vg_logfile_new(dir, TASK, 1, HEAD, TAIL, &l), 0);
    return l;
}

static size_t read_all(struct vg_buf *out) {
    struct vg_logread r = {0};
    int n;
    while ((n = vg_logread_next(dir, TASK, 1, &r, out, 100)) > 0)
        ;
    cr_assert_eq(n, 0);
    vg_logread_done(&r);
    return vg_buf_len(out);
}

Test(log_file, the_same_bytes_twice_are_stored_once) {
    uint8_t rec[64];
    size_t n = record(rec, "hello");
    uint64_t ack = 0;
    struct vg_logfile *l = open_log();
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(vg_logfile_append(l, 0, rec, n, false, &ack), 0);
        cr_assert_eq(ack, n);
    }
    vg_logfile_free(l);
    struct vg_buf b = {0};
    cr_assert_eq(read_all(&b), n);
    cr_assert(memcmp(vg_buf_data(&b), rec, n) == 0);
    vg_buf_done(&b);
}

Test(log_file, overlapping_appends_store_only_what_is_new) {
    uint8_t both[128];
    size_t a = record(both, "first"), all = a + record(both + a, "second");
    uint64_t ack = 0;
    struct vg_logfile *l = open_log();
    cr_assert_eq(vg_logfile_append(l, 0, both, a, false, &ack), 0);
    cr_assert_eq(vg_logfile_append(l, 0, both, all, false, &ack), 0);
    cr_assert_eq(ack, all);
    vg_logfile_free(l);
    struct vg_buf b = {0};
    cr_assert_eq(read_all(&b), all);
    cr_assert(memcmp(vg_buf_data(&b), both, all) == 0);
    vg_buf_done(&b);
}

Test(log_file, a_hole_is_not_acknowledged) {
    uint8_t rec[64];
    size_t n = record(rec, "later");
    uint64_t ack = 99;
    struct vg_logfile *l = open_log();
    cr_assert_eq(vg_logfile_append(l, 1000, rec, n, false, &ack), 0);
    cr_assert_eq(ack, 0);
    cr_assert_eq(vg_logfile_bytes(l), 0);
    vg_logfile_free(l);
}

Test(log_file, a_reopened_log_knows_its_end_and_cuts_off_a_torn_record) {
    uint8_t rec[64];
    char path[128];
    size_t n = record(rec, "whole");
    uint64_t ack = 0;
    struct vg_logfile *l = open_log();
    vg_logfile_append(l, 0, rec, n, false, &ack);
    vg_logfile_free(l);
    snprintf(path, sizeof path, "%s/ab/abcdef0123456789.1.log", dir);
    FILE *f = fopen(path, "ab");
    cr_assert(f);
    cr_assert_eq(fwrite(rec, 1, n - 2, f), n - 2); /* a crash in the middle of an append */
    fclose(f);
    l = open_log();
    cr_assert_eq(vg_logfile_append(l, n, rec, n, false, &ack), 0);
    cr_assert_eq(ack, 2 * n);
    vg_logfile_free(l);
    struct vg_buf b = {0};
    cr_assert_eq(read_all(&b), 2 * n);
    cr_assert(memcmp(vg_buf_data(&b) + n, rec, n) == 0);
    vg_buf_done(&b);
}

Test(log_file, between_head_and_tail_stands_one_gap_record) {
    uint8_t rec[64];
    size_t n = record(rec, "part");
    uint64_t ack = 0;
    struct vg_logfile *l = open_log();
    cr_assert_eq(vg_logfile_append(l, 0, rec, n, false, &ack), 0);
    cr_assert_eq(vg_logfile_append(l, 5000, rec, n, true, &ack), 0);
    cr_assert_eq(ack, 5000 + n);
    cr_assert_eq(vg_logfile_append(l, 5000 + n, rec, n, true, &ack), 0);
    vg_logfile_free(l);
    struct vg_buf b = {0};
    size_t gap = VG_REC_HEADER + 8;
    cr_assert_eq(read_all(&b), 3 * n + gap);
    uint8_t *p = vg_buf_data(&b) + n;
    cr_assert_eq(vg_get32(p + 4), VG_REC_GAP);
    cr_assert_eq(vg_get64(p + VG_REC_HEADER), 5000 - n);
    vg_buf_done(&b);
}

Test(log_file, a_tail_that_touches_the_head_has_no_gap) {
    uint8_t rec[64];
    size_t n = record(rec, "part");
    uint64_t ack = 0;
    struct vg_logfile *l = open_log();
    vg_logfile_append(l, 0, rec, n, false, &ack);
    vg_logfile_append(l, n, rec, n, true, &ack);
    vg_logfile_free(l);
    struct vg_buf b = {0};
    cr_assert_eq(read_all(&b), 2 * n);
    vg_buf_done(&b);
}

Test(log_file, more_than_the_limit_is_acknowledged_and_not_stored) {
    static uint8_t rec[VG_REC_HEADER + VG_REC_MAX];
    uint64_t ack = 0, at = 0;
    vg_rec_header(rec, VG_REC_STDOUT, VG_REC_MAX, 1);
    struct vg_logfile *l = open_log();
    for (int i = 0; i < 8; i++, at += sizeof rec) {
        cr_assert_eq(vg_logfile_append(l, at, rec, sizeof rec, false, &ack), 0);
        cr_assert_eq(ack, at + sizeof rec);
    }
    cr_assert_leq(vg_logfile_bytes(l), HEAD + sizeof rec);
    vg_logfile_free(l);
}

Test(log_file, what_is_no_record_is_refused) {
    uint8_t rec[64];
    uint64_t ack = 0;
    size_t n = record(rec, "x");
    struct vg_logfile *l = open_log();
    for (size_t cut = 1; cut < n; cut++)
        cr_assert_eq(vg_logfile_append(l, 0, rec, cut, false, &ack), -EINVAL);
    vg_put32(rec, VG_REC_MAX + 1);
    cr_assert_eq(vg_logfile_append(l, 0, rec, n, false, &ack), -EINVAL);
    record(rec, "x");
    rec[4] = 77;
    cr_assert_eq(vg_logfile_append(l, 0, rec, n, false, &ack), -EINVAL);
    vg_logfile_free(l);
}

Test(log_file, a_full_disk_stops_storing_but_not_the_task) {
    uint8_t rec[64];
    size_t n = record(rec, "lost");
    for (uint64_t nth = 1;; nth++) {
        uint64_t ack = 0;
        struct vg_logfile *l = open_log();
        vg_fault_arm(nth, ENOSPC, "control.log");
        int r = vg_logfile_append(l, 0, rec, n, false, &ack);
        bool fired = vg_fault_disarm();
        cr_assert_eq(r, 0);
        cr_assert_eq(ack, n);
        cr_assert_eq(vg_logfile_note(l) != NULL, fired);
        vg_logfile_free(l);
        vg_logfile_remove(dir, TASK, 1);
        if (!fired)
            break;
        cr_assert_lt(nth, 20u);
    }
}
