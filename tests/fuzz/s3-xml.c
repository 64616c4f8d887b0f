/* A bucket's answer: refused, or every element is told with a path of bounded depth and length. */
#include "fs/store/s3-xml.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static int each(void *user, const char *path, const char *value) {
    size_t *n = user, slashes = 0;
    for (const char *p = path; *p; p++)
        slashes += *p == '/';
    if (!*path || strlen(path) >= VG_XML_PATH_MAX || slashes >= VG_XML_DEPTH_MAX ||
        (value && strlen(value) > VG_XML_VALUE_MAX))
        abort();
    return ++*n == 1000 ? -E2BIG : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t n = 0;
    int r = vg_xml_each((const char *)data, size, each, &n);
    if ((r == 0 && n == 0) || (r < 0 && r != -EBADMSG && r != -E2BIG) || r > 0)
        abort();
    return 0;
}
