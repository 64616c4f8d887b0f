#pragma once
/* Logging in by the cloud's identity provider: the person confirms a code in any browser. */
#include "base/err.h"

#include <stddef.h>

/* `url` is the cloud's web address; `ca` a file of certificates to trust, too, or NULL. Says on
   standard error what to do, and waits until it is done. The token and where the cloud's own
   protocol is spoken. */
int vg_login_device(const char *url, const char *ca, char *ret_token, size_t n_token,
                    char *ret_address, size_t n_address, struct vg_err *err);
