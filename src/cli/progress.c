/* Progress of a group as text. No state; any thread. */
#include "cli/progress.h"

#include "base/cleanup.h"
#include "base/util.h"

#include <stdio.h>
#include <string.h>

#define BAR_MOST 40
#define BAR_LEAST 8

uint32_t vg_progress_done(const Vg__Pb__Progress *p) {
    return p->succeeded + p->failed + p->cancelled;
}

char *vg_progress_short(const Vg__Pb__Progress *p, char *out, size_t n) {
    if (p->failed)
        snprintf(out, n, "%u/%u, %u failed", vg_progress_done(p), p->total, p->failed);
    else
        snprintf(out, n, "%u/%u", vg_progress_done(p), p->total);
    return out;
}

static void add(char *out, size_t n, uint32_t count, const char *what) {
    size_t at = strlen(out);
    if (count)
        snprintf(out + at, n - at, ", %u %s", count, what);
}

/* What is left, by the cloud's word or else by the pace so far; 0: nobody knows. */
static uint64_t left_usec(const Vg__Pb__Progress *p, uint64_t now, uint64_t begun,
                          uint32_t done_then) {
    uint32_t done = vg_progress_done(p);
    if (done >= p->total)
        return 0;
    if (p->expected_end_usec > now)
        return p->expected_end_usec - now;
    if (done <= done_then || now <= begun)
        return 0;
    return (now - begun) / (done - done_then) * (p->total - done);
}

char *vg_progress_line(const Vg__Pb__Progress *p, uint64_t now_usec, uint64_t begun_usec,
                       uint32_t done_then, unsigned columns, char *out, size_t n) {
    char text[256], left[32];
    uint32_t done = vg_progress_done(p);
    uint64_t rest = left_usec(p, now_usec, begun_usec, done_then);
    snprintf(text, sizeof(text), "%u/%u", done, p->total);
    add(text, sizeof(text), p->running, "running");
    add(text, sizeof(text), p->queued, "queued");
    add(text, sizeof(text), p->blocked, "blocked");
    add(text, sizeof(text), p->failed, "failed");
    add(text, sizeof(text), p->cancelled, "cancelled");
    size_t len = strlen(text);
    if (rest)
        snprintf(text + len, sizeof(text) - len, ", about %s left",
                 vg_format_duration(rest, left, sizeof(left)));
    len = strlen(text);
    size_t bar = columns > len + 3 ? VG_MIN(columns - len - 3, (size_t)BAR_MOST) : 0;
    if (bar < BAR_LEAST || bar + len + 4 > n) {
        snprintf(out, columns ? VG_MIN(n, (size_t)columns + 1) : n, "%s", text);
        return out;
    }
    size_t full = p->total ? (size_t)((uint64_t)bar * done / p->total) : 0;
    out[0] = '[';
    memset(out + 1, '#', full);
    memset(out + 1 + full, '-', bar - full);
    snprintf(out + 1 + bar, n - 1 - bar, "] %s", text);
    return out;
}
