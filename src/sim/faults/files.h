#pragma once
/* Put before log-file.c and log-sync.c when they are compiled for the simulator: their files lie on
   the world's disk. The headers come first, so that only calls are renamed. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

int vg_w_fd_open(const char *path, int flags, ...);
int vg_w_fd_close(int fd);
int vg_w_fd_dup(int fd);
ssize_t vg_w_fd_pread(int fd, void *p, size_t n, off_t at);
ssize_t vg_w_fd_pwrite(int fd, const void *p, size_t n, off_t at);
int vg_w_fd_stat(int fd, struct stat *st);
int vg_w_fd_unlink(const char *path);
void vg_w_fd_sync(int fd);

#ifdef VG_W_RENAME
#define open vg_w_fd_open
#define close vg_w_fd_close
#define pread vg_w_fd_pread
#define pwrite vg_w_fd_pwrite
#define fstat vg_w_fd_stat
#define unlink vg_w_fd_unlink
#define fcntl(fd, cmd, min) vg_w_fd_dup(fd)
#define mkdir(path, mode) 0
#endif
