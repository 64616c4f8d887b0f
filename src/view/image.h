#pragma once
/* What an image's configuration says about how commands run in it. */
#include "base/err.h"

#include <stdint.h>

/* "1000", "1000:100", "root"; NULL or "": root. INVALID: a name that only the image's own files
 * explain. */
int vg_image_user(const char *user, uint32_t *ret_uid, uint32_t *ret_gid, struct vg_err *err);
