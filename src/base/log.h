#pragma once
/* One line a message on stderr (or the file that stderr is): "2026-01-02T03:04:05.678Z level
   program: message key=value". Libraries log at debug only; programs log where they decide. */

enum vg_log_level { VG_LOG_ERROR, VG_LOG_WARN, VG_LOG_INFO, VG_LOG_DEBUG };

/* `program` is borrowed for the process's life. The level comes from VIRGA_LOG
   (error|warn|info|debug), else info. */
void vg_log_init(const char *program);
void vg_log_at(enum vg_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
extern enum vg_log_level vg_log_max;

#define vg_log(level, ...)                   \
    do {                                     \
        if ((level) <= vg_log_max)           \
            vg_log_at((level), __VA_ARGS__); \
    } while (0)
#define vg_error(...) vg_log(VG_LOG_ERROR, __VA_ARGS__)
#define vg_warn(...) vg_log(VG_LOG_WARN, __VA_ARGS__)
#define vg_info(...) vg_log(VG_LOG_INFO, __VA_ARGS__)
#define vg_debug(...) vg_log(VG_LOG_DEBUG, __VA_ARGS__)
