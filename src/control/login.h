#pragma once
/* Logging in by the cloud's identity provider (OpenID Connect): the device flow for command lines,
   the code flow with PKCE for browsers. docs/access.md is the manual. Loop thread; nothing waits.
 */
#include "control/control.h"

#define VG_OIDC_TOKEN_USEC (30 * 86400ULL * 1000000)
#define VG_OIDC_BROWSER_USEC (12 * 3600ULL * 1000000)

/* Everything under way is given up; accepts a control plane without any. */
void vg_logins_done(struct vg_control *c);
