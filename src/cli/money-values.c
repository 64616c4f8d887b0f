/* Amounts and times; see the header. */
#include "cli/money-values.h"

#include "base/util.h"
#include "conf/conf.h"

#include <stdio.h>
#include <string.h>

int vg_opt_micro(struct vg_cmd_line *l, const char *arg, uint64_t *ret) {
    if (vg_parse_micro(arg, ret) < 0)
        return vg_opt_bad(&l->st, "'%.60s' is not an amount such as 2.49", arg);
    return 0;
}

int vg_opt_percent(struct vg_cmd_line *l, const char *arg, uint32_t *ret) {
    char text[32];
    uint64_t milli;
    size_t n = strlen(arg);
    if (n && arg[n - 1] == '%')
        n--;
    if (n >= sizeof text)
        return vg_opt_bad(&l->st, "'%.60s' is not a percentage such as 30 or 12.5", arg);
    memcpy(text, arg, n);
    text[n] = '\0';
    if (vg_parse_milli(text, &milli) < 0 || milli > 100000)
        return vg_opt_bad(&l->st, "'%.60s' is not a percentage such as 30 or 12.5", arg);
    *ret = (uint32_t)milli;
    return 0;
}

int vg_opt_when(struct vg_cmd_line *l, const char *arg, uint64_t *ret_usec) {
    char text[80];
    struct vg_when w;
    uint64_t ago, now = vg_wall_usec();
    if (strcmp(arg, "now") == 0) {
        *ret_usec = now;
        return 0;
    }
    if (strlen(arg) == 10)
        snprintf(text, sizeof text, "%s 00:00", arg);
    else
        snprintf(text, sizeof text, "%.79s", arg);
    if (vg_parse_when(text, &w) == 0) {
        *ret_usec = w.usec;
        return 0;
    }
    if (vg_parse_duration(arg, &ago) == 0 && ago < now) {
        *ret_usec = now - ago;
        return 0;
    }
    return vg_opt_bad(&l->st, "'%.60s' is not a time such as 2026-11-01, '2026-11-01 08:00' or 7d",
                      arg);
}
