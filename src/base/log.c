/* Logging: one write(2) a line, so that lines of several processes never mix. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum vg_log_level vg_log_max = VG_LOG_INFO;
static const char *log_program = "virga";
static const char *const level_names[] = {"error", "warn", "info", "debug"};

void vg_log_init(const char *program) {
    log_program = program;
    const char *want = getenv("VIRGA_LOG");
    for (unsigned i = 0; want && i < 4; i++)
        if (strcmp(want, level_names[i]) == 0)
            vg_log_max = (enum vg_log_level)i;
}

void vg_log_at(enum vg_log_level level, const char *fmt, ...) {
    char line[2048];
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    size_t n = strftime(line, sizeof(line), "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(line + n, sizeof(line) - n, ".%03ldZ %s %s: ", ts.tv_nsec / 1000000,
                          level_names[level], log_program);
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof(line) - n - 1, fmt, ap);
    va_end(ap);
    if (m > 0)
        n += (size_t)m < sizeof(line) - n - 1 ? (size_t)m : sizeof(line) - n - 2;
    line[n++] = '\n';
    if (write(STDERR_FILENO, line, n) < 0)
        return; /* nowhere left to say it */
}
