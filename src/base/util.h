#pragma once
/* Small things every program needs: time, random ids, numbers with units, whole reads and writes,
   file descriptors over sockets. */
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define VG_USEC 1000000ULL

uint64_t vg_resident_bytes(void); /* this process's memory; 0: unknown */
uint64_t vg_now_usec(void);       /* CLOCK_BOOTTIME: for leases and timers */
uint64_t vg_wall_usec(void);      /* CLOCK_REALTIME: for people and the ledger */

void vg_random(void *p, size_t n); /* from the kernel; aborts when it has none */

/* Ids are 64 random bits, never 0, written as 16 hex digits. */
#define VG_ID_LEN 16
uint64_t vg_id_new(void);
void vg_id_format(uint64_t id, char out[static VG_ID_LEN + 1]);
int vg_id_parse(const char *s, uint64_t *ret_id); /* exactly 16 hex digits, or -EINVAL */

int vg_parse_u64(const char *s, uint64_t *ret);        /* decimal only */
int vg_parse_size(const char *s, uint64_t *ret_bytes); /* 512, 64K, 1.5G, 2GiB (powers of 1024) */
int vg_parse_duration(const char *s,
                      uint64_t *ret_usec);              /* 90, 90s, 1h30m, 2d, 500ms; no unit: s */
int vg_parse_milli(const char *s, uint64_t *ret_milli); /* 2, 0.25, 1.5 -> thousandths */
/* "1.5 GiB", "2h 05m": into a caller's buffer, returns it. */
char *vg_format_size(uint64_t bytes, char *out, size_t n);
char *vg_format_duration(uint64_t usec, char *out, size_t n);

ssize_t vg_read_full(int fd, void *p, size_t n);    /* bytes read (short at EOF) or -errno */
int vg_write_full(int fd, const void *p, size_t n); /* 0 or -errno; fd may be blocking only */
int vg_read_file(const char *path, size_t limit, char **ret_data, size_t *ret_len); /* NUL-ended */
/* Whole-file replace: temporary beside it, fsync, rename. */
int vg_write_file(const char *path, const void *data, size_t n, mode_t mode);
int vg_mkdir_p(const char *path, mode_t mode);

#define VG_FDS_MAX 8
/* One message with descriptors. Returns bytes sent or -errno (-EAGAIN on a full socket). */
ssize_t vg_send_fds(int sock, const void *data, size_t n, const int *fds, size_t n_fds, int flags);
/* Receives; descriptors arrive CLOEXEC, surplus ones are closed. *n_fds in: room, out: count. */
ssize_t vg_recv_fds(int sock, void *data, size_t n, int *fds, size_t *n_fds, int flags);

int vg_set_nonblock(int fd, bool on);
int vg_set_cloexec(int fd, bool on);
/* connect/bind to a unix path of any length (goes through /proc/self/fd when it is long). */
int vg_unix_connect(const char *path, int type);             /* fd or -errno; CLOEXEC */
int vg_unix_listen(const char *path, int type, mode_t mode); /* replaces a stale socket */
