/* What -p takes: [HOST:]LOCAL:REMOTE. */
#include "base/util.h"
#include "cli/run-int.h"

#include <stdio.h>
#include <string.h>

int run_port_parse(const char *spec, struct run_port *ret, struct vg_err *err) {
    const char *last = strrchr(spec, ':');
    const char *mid = NULL;
    for (const char *p = spec; last && p < last; p++)
        if (*p == ':')
            mid = p;
    uint64_t local = 0, remote = 0;
    char text[16];
    const char *from = mid ? mid + 1 : spec;
    size_t len = last ? (size_t)(last - from) : 0;
    if (last && len < sizeof(text)) {
        memcpy(text, from, len);
        text[len] = 0;
    }
    if (!last || len >= sizeof(text) || vg_parse_u64(text, &local) < 0 ||
        vg_parse_u64(last + 1, &remote) < 0 || local > 65535 || remote == 0 || remote > 65535 ||
        (mid && (size_t)(mid - spec) >= sizeof(ret->host)))
        return vg_err_set(err, VG_INVALID,
                          "'%s' is not [HOST:]LOCAL:REMOTE: give for example 8080:80", spec);
    snprintf(ret->host, sizeof(ret->host), "%.*s", mid ? (int)(mid - spec) : 9,
             mid ? spec : "127.0.0.1");
    ret->local = (uint16_t)local;
    ret->remote = (uint16_t)remote;
    return 0;
}
