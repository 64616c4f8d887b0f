#pragma once
/* Where the cloud is: environment, home folder, login file. No loop, no TLS, no configuration
   parser: this stands on the start path of every vrun. At most four system calls. */
#include "base/err.h"

#include <stddef.h>

#define VG_ENDPOINT_PATH_MAX 4096
#define VG_ENDPOINT_ADDRESS_MAX 300
#define VG_ENDPOINT_TOKEN_MAX 512

enum vg_endpoint_kind {
    VG_ENDPOINT_UNIX, /* connect to `path` */
    VG_ENDPOINT_TLS,  /* dial `address`, pin the CA by `ca` */
};

struct vg_endpoint {
    enum vg_endpoint_kind kind;
    char path[VG_ENDPOINT_PATH_MAX];
    char address[VG_ENDPOINT_ADDRESS_MAX]; /* host:port */
    char token[VG_ENDPOINT_TOKEN_MAX];     /* for Hello; empty: none (peer credentials) */
    char ca[33];                           /* first 32 hex digits of the CA's fingerprint */
};

/* In this order:
     inside a task ($VIRGA_TASK_ID and $VIRGA_TOKEN set): /run/virga/sock with that token;
     $VIRGA_SOCKET;
     $VIRGA_HOME/sock, or the login in $VIRGA_HOME/client when there is no socket;
     ~/.virga/sock, or the login in ~/.virga/client;
     /run/virga/sock.
   Only looks; connecting may still fail, see vg_endpoint_refused(). Fails when the login file is
   unreadable or damaged. */
int vg_endpoint_find(struct vg_endpoint *ret, struct vg_err *err);

/* Connects to a unix endpoint: a descriptor or -errno. A control plane that is being restarted is
   waited for (up to 5 s) as long as its supervisor lives. */
int vg_endpoint_connect(const struct vg_endpoint *e);

/* Sets the sentence for a cloud that does not answer: `code` is the -errno of the connect. */
int vg_endpoint_refused(const struct vg_endpoint *e, int code, struct vg_err *err);

/* The cloud's home folder: $VIRGA_HOME made absolute, else ~/.virga. */
int vg_home_dir(char *ret, size_t n, struct vg_err *err);
/* "~/.virga/sock" for a path under $HOME, else the path. Into the caller's buffer; returns it. */
const char *vg_home_short(const char *path, char *out, size_t n);

/* The login file: lines of key=value; address, token, ca. Mode 0600. */
int vg_login_read(const char *path, struct vg_endpoint *ret, struct vg_err *err);
int vg_login_write(const char *path, const struct vg_endpoint *e, struct vg_err *err);
/* Cuts the CA's half fingerprint out of a token: -EINVAL when it is none of ours. */
int vg_token_ca(const char *token, char ret_ca[static 33]);
