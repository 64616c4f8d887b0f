#pragma once
/* The sockets that the control plane listens on. */
#include "control/control.h"

/* Unix sockets and the TLS port; writes control/address. `listen` overrides the configuration. */
int vg_listen_start(struct vg_control *c, const char *listen, struct vg_err *err);
void vg_listen_stop(struct vg_control *c);
/* The port of an earlier life, from a file that ends with ":PORT", so that those who knew it find
   us again; 0: none. */
uint16_t vg_listen_last_port(const char *path);
/* "HOST:PORT", "[::1]:PORT": cut in two; `n` bytes for the host. */
int vg_listen_split(const char *text, char *host, size_t n, uint64_t *ret_port, struct vg_err *err);
