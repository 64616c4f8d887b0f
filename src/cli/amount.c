/* Amounts for people; see the header. */
#include "cli/amount.h"

#include <stdio.h>

char *vg_micro_text(int64_t micro, char *out, size_t n) {
    uint64_t v = micro < 0 ? -(uint64_t)micro : (uint64_t)micro;
    char part[8];
    snprintf(part, sizeof part, "%06u", (unsigned)(v % 1000000));
    for (size_t len = 6; len > 2 && part[len - 1] == '0'; len--)
        part[len - 1] = '\0';
    snprintf(out, n, "%s%llu.%s", micro < 0 ? "-" : "", (unsigned long long)(v / 1000000), part);
    return out;
}

char *vg_percent_text(uint32_t milli, char *out, size_t n) {
    if (!milli)
        return NULL;
    char part[8];
    snprintf(part, sizeof part, ".%03u", milli % 1000);
    size_t len = 4;
    while (len > 1 && part[len - 1] == '0')
        part[--len] = '\0';
    snprintf(out, n, "%u%s%%", milli / 1000, len > 1 ? part : "");
    return out;
}
