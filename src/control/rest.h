#pragma once
/* REST: a request over HTTP becomes the same Envelope that the wire would have brought, goes
   through the same table of rights (peer.c) to the same handler, and what that answers becomes JSON
   (src/view). One table (rest-routes.c) has every path; /api/v1/openapi.json is made from it. Loop
   thread. */
#include "control/control.h"
#include "control/who.h"
#include "http/web.h"

#define VG_REST_PREFIX "/api/v1"
#define VG_REST_COOKIE "virga"

/* Everything below /api/. Takes req. */
void vg_rest_request(struct vg_control *c, struct vg_web_req *req);
/* Whatever is unanswered is given back; before the HTTP server stops. */
void vg_rest_stop(struct vg_control *c);

/* rest-login.c: a code for one sign-in of a browser, for token_create with `once`. NULL-ended text
   into `out`; -ENOSPC: too many wait to be used. */
#define VG_REST_CODE_LEN 43
int vg_rest_code_new(struct vg_control *c, const struct vg_who *who,
                     char out[static VG_REST_CODE_LEN + 1]);
