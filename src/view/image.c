/* Users of images; see the header. */
#include "view/image.h"

#include "base/cleanup.h"
#include "base/util.h"

#include <stdio.h>
#include <string.h>

static bool number(const char *text, uint32_t *ret) {
    uint64_t n = 0;
    bool good = !*text || strcmp(text, "root") == 0 || vg_parse_u64(text, &n) == 0;
    *ret = (uint32_t)n;
    return good && n <= UINT32_MAX;
}

int vg_image_user(const char *user, uint32_t *ret_uid, uint32_t *ret_gid, struct vg_err *err) {
    char text[64];
    uint32_t uid = 0, gid = 0;
    snprintf(text, sizeof text, "%s", user ? user : "");
    char *colon = strchr(text, ':');
    if (colon)
        *colon = 0;
    if (!number(text, &uid) || (colon && !number(colon + 1, &gid)))
        return vg_err_set(err, VG_INVALID,
                          "the image wants to run as '%.60s': only numbers and root are understood",
                          user);
    *ret_uid = uid;
    *ret_gid = gid;
    return 0;
}
