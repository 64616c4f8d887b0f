#pragma once
/* Where a cloud's control plane keeps things: $VIRGA_HOME and control/ below it. */
#include "base/err.h"

struct vg_home {
    char *dir;     /* owned; absolute; as all below */
    char *sock;    /* DIR/sock */
    char *config;  /* DIR/config.yaml, or what --config named */
    char *control; /* DIR/control */
    char *logs;    /* DIR/control/logs */
    char *db;      /* DIR/control/state.db */
    char *address; /* DIR/control/address: host:port of the TLS port */
    char *pid;     /* DIR/control/pid */
    int lock_fd;   /* holds control/lock */
};

/* Makes the folders (0700, DIR itself 0711 so that other users reach the socket) and takes the
   lock. CONFLICT names the process that holds it. dir NULL: $VIRGA_HOME, else ~/.virga. */
int vg_home_open(const char *dir, const char *config, struct vg_home *ret, struct vg_err *err);
/* Removes pid file and socket and lets the lock go. Zeroed is fine. */
void vg_home_close(struct vg_home *h);
/* A file below control/; caller frees. */
char *vg_home_file(const struct vg_home *h, const char *name);
