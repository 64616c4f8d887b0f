/* Times as options take them: when to begin, since when, how often. No state; any thread. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/spec-values.h"

#include <string.h>
#include <time.h>

#define EVERY_LEAST VG_USEC

/* Fills tm from one of the forms; 1 with a date, 0 a time of day alone, -1 neither. */
static int clock_time(const char *arg, struct tm *tm) {
    static const char *const forms[] = {
        "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M",
        "%Y-%m-%d",          "%H:%M:%S",          "%H:%M"};
    for (unsigned i = 0; i < VG_COUNT(forms); i++) {
        struct tm t = *tm;
        t.tm_hour = t.tm_min = t.tm_sec = 0;
        const char *end = strptime(arg, forms[i], &t);
        if (!end || *end)
            continue;
        t.tm_isdst = -1;
        *tm = t;
        return forms[i][1] == 'Y';
    }
    return -1;
}

int vg_spec_begin(struct vg_opt_state *st, const char *arg, uint64_t now_usec, uint64_t *ret_usec) {
    time_t now = (time_t)(now_usec / VG_USEC);
    uint64_t wait;
    struct tm tm;
    if (arg[0] == '+' && vg_parse_duration(arg + 1, &wait) == 0) {
        *ret_usec = now_usec + wait;
        return 0;
    }
    int dated = localtime_r(&now, &tm) ? clock_time(arg, &tm) : -1;
    int day = tm.tm_mday;
    time_t t = dated >= 0 ? mktime(&tm) : (time_t)-1;
    if (t == (time_t)-1 || (dated == 1 && tm.tm_mday != day))
        return vg_opt_bad(st, "'%.*s' is not a time: write +30m, 22:00 or 2027-01-31 22:00",
                          VG_SPEC_SHOWN, arg);
    if (t <= now && dated == 0) { /* that hour has passed today */
        tm.tm_mday++;
        tm.tm_isdst = -1;
        t = mktime(&tm);
    }
    if (t <= now)
        return vg_opt_bad(st, "'%.*s' has passed: leave it out to begin at once", VG_SPEC_SHOWN,
                          arg);
    *ret_usec = (uint64_t)t * VG_USEC;
    return 0;
}

int vg_spec_since(struct vg_opt_state *st, const char *arg, uint64_t now_usec, uint64_t *ret_usec) {
    time_t now = (time_t)(now_usec / VG_USEC);
    uint64_t ago;
    struct tm tm;
    if (vg_parse_duration(arg, &ago) == 0 && ago < now_usec) {
        *ret_usec = now_usec - ago;
        return 0;
    }
    int dated = localtime_r(&now, &tm) ? clock_time(arg, &tm) : -1;
    time_t t = dated >= 0 ? mktime(&tm) : (time_t)-1;
    if (t > now && dated == 0) { /* that hour was yesterday */
        tm.tm_mday--;
        tm.tm_isdst = -1;
        t = mktime(&tm);
    }
    if (t <= 0)
        return vg_opt_bad(st,
                          "'%.*s' is not a time: write 2h for two hours ago, 08:00 or 2027-01-31",
                          VG_SPEC_SHOWN, arg);
    *ret_usec = (uint64_t)t * VG_USEC;
    return 0;
}

int vg_spec_every(struct vg_opt_state *st, const char *arg, Vg__Pb__TaskSpec *s) {
    uint64_t usec;
    if (vg_opt_duration(st, arg, &usec) < 0)
        return VG_OPT_ERROR;
    if (usec < EVERY_LEAST)
        return vg_opt_bad(st, "'%.*s' is too often: once a second is the most", VG_SPEC_SHOWN, arg);
    s->schedule = vg_fmt("every %s", arg);
    return s->schedule ? 0 : vg_spec_no_memory(st);
}

/* Only the shape is looked at here; the control plane knows the fields' bounds. */
int vg_spec_cron(struct vg_opt_state *st, const char *arg, Vg__Pb__TaskSpec *s) {
    int fields = 0;
    for (const char *p = arg; *p;) {
        size_t gap = strspn(p, " \t"), len = strcspn(p + gap, " \t");
        fields += len > 0;
        p += gap + len;
    }
    bool odd = arg[strspn(arg, "0123456789*,-/ \tabcdefghijklmnopqrstuvwxyz"
                               "ABCDEFGHIJKLMNOPQRSTUVWXYZ")] != 0;
    if (fields != 5 || odd)
        return vg_opt_bad(st,
                          "'%.*s' is not minute, hour, day, month and weekday: write '0 3 * * *' "
                          "for every night at 3",
                          VG_SPEC_SHOWN, arg);
    s->schedule = vg_strdup(arg);
    return s->schedule ? 0 : vg_spec_no_memory(st);
}
