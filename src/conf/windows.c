/* Times when machines are not to be had, or only for some: maintenance and reservations. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "conf/parse.h"

#include <ctype.h>
#include <time.h>

#define DAY_USEC (86400 * VG_USEC)

/* ------------------------------------------------------------------ dates */

/* Days since 1970 of a date of the Gregorian calendar; day may be beyond the month's end. */
static int64_t days_of(int64_t year, int month, int day) {
    year -= month <= 2;
    int64_t era = (year >= 0 ? year : year - 399) / 400;
    int64_t yoe = year - era * 400, doy = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719468;
}

static int month_days(int year, int month) {
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return days[month - 1] + (month == 2 && leap);
}

/* `n` digits at *s as a number between lo and hi, then moves on. */
static int digits(const char **s, int n, int lo, int hi, int *ret) {
    int v = 0;
    for (int i = 0; i < n; i++, (*s)++) {
        if (!isdigit((unsigned char)**s))
            return -EINVAL;
        v = v * 10 + (**s - '0');
    }
    *ret = v;
    return v < lo || v > hi ? -EINVAL : 0;
}

static bool skip(const char **s, char c) {
    bool is = **s == c;
    *s += is;
    return is;
}

/* Nothing, 'Z' or an offset like +01:00; *ret_offset in seconds east. */
static int read_zone(const char *s, bool *ret_local, int *ret_offset) {
    int h = 0, m = 0, sign = *s == '-' ? -1 : 1;
    *ret_local = *s == '\0';
    *ret_offset = 0;
    if (*ret_local || strcmp(s, "Z") == 0)
        return 0;
    if (!skip(&s, '+') && !skip(&s, '-'))
        return -EINVAL;
    if (digits(&s, 2, 0, 14, &h) < 0)
        return -EINVAL;
    skip(&s, ':');
    if (digits(&s, 2, 0, 59, &m) < 0 || *s)
        return -EINVAL;
    *ret_offset = sign * (h * 3600 + m * 60);
    return 0;
}

/* Wall time of a second of a day of this process's time zone, `add` days on. */
static uint64_t local_usec(const int32_t day[3], int32_t second, int64_t add) {
    struct tm tm = {.tm_year = day[0] - 1900,
                    .tm_mon = day[1] - 1,
                    .tm_mday = day[2] + (int)add,
                    .tm_hour = second / 3600,
                    .tm_min = second / 60 % 60,
                    .tm_sec = second % 60,
                    .tm_isdst = -1};
    time_t t = mktime(&tm);
    return t < 0 ? 0 : (uint64_t)t * VG_USEC;
}

int vg_parse_when(const char *s, struct vg_when *ret) {
    struct vg_when w = {0};
    int year, month, day, hour, minute, second = 0, offset;
    if (digits(&s, 4, 1970, 9999, &year) < 0 || !skip(&s, '-') ||
        digits(&s, 2, 1, 12, &month) < 0 || !skip(&s, '-') ||
        digits(&s, 2, 1, month_days(year, month), &day) < 0 || (!skip(&s, ' ') && !skip(&s, 'T')) ||
        digits(&s, 2, 0, 23, &hour) < 0 || !skip(&s, ':') || digits(&s, 2, 0, 59, &minute) < 0 ||
        (skip(&s, ':') && digits(&s, 2, 0, 59, &second) < 0) || read_zone(s, &w.local, &offset) < 0)
        return -EINVAL;
    w.day[0] = year;
    w.day[1] = month;
    w.day[2] = day;
    w.second = hour * 3600 + minute * 60 + second;
    int64_t utc = days_of(year, month, day) * 86400 + w.second - offset;
    if (utc < 0)
        return -EINVAL;
    w.usec = w.local ? local_usec(w.day, w.second, 0) : (uint64_t)utc * VG_USEC;
    *ret = w;
    return 0;
}

/* The nth occurrence. */
static uint64_t occurrence(const struct vg_window_conf *w, int64_t days) {
    return w->start.local ? local_usec(w->start.day, w->start.second, days)
                          : w->start.usec + (uint64_t)days * DAY_USEC;
}

int vg_conf_window_next(const struct vg_window_conf *w, uint64_t now_usec, uint64_t *ret_start,
                        uint64_t *ret_end) {
    int64_t step = w->repeat == VG_REPEAT_WEEKLY ? 7 : w->repeat == VG_REPEAT_DAILY ? 1 : 0;
    int64_t days = 0;
    uint64_t start = occurrence(w, 0);
    if (step && start + w->duration_usec <= now_usec) {
        /* A day of the calendar is at most 25 hours: never beyond the one that is looked for. */
        days = (int64_t)((now_usec - start - w->duration_usec) / (25 * 3600 * VG_USEC));
        days -= days % step;
        while ((start = occurrence(w, days)) + w->duration_usec <= now_usec)
            days += step;
    }
    if (start + w->duration_usec <= now_usec)
        return 0;
    *ret_start = start;
    *ret_end = start + w->duration_usec;
    return 1;
}

/* ------------------------------------------------------------------ maintenance */

void vg_window_conf_done(struct vg_window_conf *w) {
    free(w->name);
    vg_strings_done(&w->node);
    vg_labels_done(&w->label);
    *w = (struct vg_window_conf){0};
}

static int check_window(struct parse *p, const yaml_node_t *at, struct vg_window_conf *w) {
    if (!w->name && !(w->name = vg_strdup("maintenance")))
        return parse_no_memory(p);
    if (!w->start.day[0])
        return parse_fail(p, at, "window '%s' has no start; add 'start: 2026-12-01 02:00'",
                          w->name);
    if (!w->duration_usec)
        return parse_fail(p, at, "window '%s' has no duration; add 'duration: 4h'", w->name);
    if (w->node.n && w->label.n)
        return parse_fail(p, at, "window '%s' has both 'nodes' and 'labels'; keep one of them",
                          w->name);
    uint64_t period = w->repeat == VG_REPEAT_WEEKLY  ? 7 * DAY_USEC
                      : w->repeat == VG_REPEAT_DAILY ? DAY_USEC
                                                     : UINT64_MAX;
    if (w->duration_usec >= period)
        return parse_fail(p, at, "window '%s' lasts until it begins again; shorten 'duration'",
                          w->name);
    return 0;
}

static int add_window(struct parse *p, const yaml_node_t *node) {
    struct vg_conf *c = p->conf;
    struct vg_window_conf w = {.line = (unsigned)node->start_mark.line + 1};
    int r = parse_section(p, node, SECTION_window, &w);
    if (r >= 0)
        r = check_window(p, node, &w);
    struct vg_window_conf *all =
        r < 0 ? NULL : vg_grow(c->window, &c->windows_cap, c->n_windows + 1, sizeof *all);
    if (r >= 0 && !all)
        r = parse_no_memory(p);
    if (r < 0) {
        vg_window_conf_done(&w);
        return r;
    }
    c->window = all;
    all[c->n_windows++] = w;
    return 0;
}

int parse_windows(struct parse *p, const yaml_node_t *node) {
    return parse_each(p, node, "maintenance", VG_CONF_WINDOWS_MAX, add_window);
}

/* ------------------------------------------------------------------ reservations */

void vg_reservation_conf_done(struct vg_reservation_conf *r) {
    free(r->name);
    free(r->pool);
    free(r->queue);
    free(r->team);
    free(r->user);
    *r = (struct vg_reservation_conf){0};
}

static int check_reservation(struct parse *p, const yaml_node_t *at,
                             struct vg_reservation_conf *x) {
    if (!x->name && !(x->name = vg_strdup("reservation")))
        return parse_no_memory(p);
    if (!!x->queue + !!x->team + !!x->user != 1)
        return parse_fail(p, at, "reservation '%s' must say for whom: one of queue, team and user",
                          x->name);
    if (!x->from.day[0] || !x->until.day[0])
        return parse_fail(p, at, "reservation '%s' needs both 'from' and 'until'", x->name);
    if (x->until.usec <= x->from.usec)
        return parse_fail(p, at, "reservation '%s' ends before it begins; correct 'until'",
                          x->name);
    if (x->gpus == 0)
        return parse_fail(p, at, "reservation '%s' keeps nothing; add 'gpus: ...'", x->name);
    return 0;
}

static int add_reservation(struct parse *p, const yaml_node_t *node) {
    struct vg_conf *c = p->conf;
    struct vg_reservation_conf x = {.line = (unsigned)node->start_mark.line + 1};
    int r = parse_section(p, node, SECTION_reservation, &x);
    if (r >= 0)
        r = check_reservation(p, node, &x);
    struct vg_reservation_conf *all =
        r < 0 ? NULL
              : vg_grow(c->reservation, &c->reservations_cap, c->n_reservations + 1, sizeof *all);
    if (r >= 0 && !all)
        r = parse_no_memory(p);
    if (r < 0) {
        vg_reservation_conf_done(&x);
        return r;
    }
    c->reservation = all;
    all[c->n_reservations++] = x;
    return 0;
}

int parse_reservations(struct parse *p, const yaml_node_t *node) {
    return parse_each(p, node, "reservations", VG_CONF_RESERVATIONS_MAX, add_reservation);
}

int parse_check_reservations(struct parse *p) {
    const struct vg_conf *c = p->conf;
    for (size_t i = 0; i < c->n_reservations; i++) {
        const struct vg_reservation_conf *x = &c->reservation[i];
        if (x->pool && !vg_conf_pool(c, x->pool))
            return parse_fail_line(p, x->line,
                                   "reservation '%s' names pool '%s', which is not among 'pools'",
                                   x->name, x->pool);
        bool known = !x->queue;
        for (size_t q = 0; !known && q < c->n_queues; q++) {
            char path[512];
            known = !c->queue[q].is_user &&
                    strcmp(vg_conf_queue_path(c, (int)q, path, sizeof path), x->queue) == 0;
        }
        if (!known)
            return parse_fail_line(p, x->line,
                                   "reservation '%s' is for queue '%.100s', which is not among "
                                   "'queues'; write it with those above it, like 'research/vision'",
                                   x->name, x->queue);
    }
    return 0;
}
