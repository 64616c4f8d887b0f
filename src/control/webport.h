#pragma once
/* The port of people and programs: the dashboard's files, and REST below /api/. HTTPS only. Loop
   thread. docs/configuration.md: web, web_cert, web_key. */
#include "control/control.h"
#include "http/web.h"

/* Listens where the configuration says, else at `fallback`, else nowhere. A port 0 is chosen by the
   kernel and kept for the next start. */
int vg_webport_start(struct vg_control *c, const char *fallback, struct vg_err *err);
void vg_webport_stop(struct vg_control *c);
/* Takes a new certificate when the old one has lived two thirds of its life. */
void vg_webport_renew(struct vg_control *c);
/* Every second or so: what many connections took goes back to the machine when they have left. */
void vg_webport_tick(struct vg_control *c);
/* "https://host:port"; "" when there is none. */
const char *vg_webport_url(const struct vg_control *c);

/* All 0 when there is none. */
struct vg_web_numbers vg_webport_numbers(const struct vg_control *c);

/* 0, or in how many milliseconds this principal may ask again. */
uint64_t vg_webport_limit_user(struct vg_control *c, const char *user);
/* Sign-ins of an address: asked before one is tried, told when one failed. */
uint64_t vg_webport_limit_login(struct vg_control *c, const char *peer);
void vg_webport_login_failed(struct vg_control *c, const char *peer);

/* web-cert.c: what the port shows. web_cert and web_key of the configuration, or a certificate of
   the cloud's own authority with `host` and this machine's names, kept in control/web.crt.
   *ret_expires is 0 for files of the configuration. */
int vg_web_cert_load(struct vg_control *c, const char *host, struct vg_tls **ret,
                     uint64_t *ret_expires, struct vg_err *err);
