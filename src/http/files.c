/* Files of the dashboard; see the header. */
#include "http/files.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Everything comes from here alone; nothing is run or styled from inside a page. */
#define POLICY                                                                        \
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; " \
    "connect-src 'self'; font-src 'self'; manifest-src 'self'; base-uri 'none'; "     \
    "form-action 'self'; frame-ancestors 'none'"
#define NO_DASHBOARD                                                                       \
    "this virgad was built without the dashboard: run 'npm ci && npm run build' in web/, " \
    "build again, and restart it; the API is below /api/v1"

static int by_path(const void *key, const void *item) {
    return strcmp(key, ((const struct vg_web_file *)item)->path);
}

static const struct vg_web_file *find(const struct vg_web_files *files, const char *path) {
    if (!files->n)
        return NULL;
    return bsearch(path, files->file, files->n, sizeof(files->file[0]), by_path);
}

/* "gzip;q=0" and "gzip; q=0.000" say that it is not wanted. */
static bool is_wanted(const char *p) {
    p += strspn(p, " \t");
    if (*p++ != ';')
        return true;
    p += strspn(p, " \t");
    return strncasecmp(p, "q=0", 3) != 0 || p[3 + strspn(p + 3, ".0")] > '0';
}

static bool takes_gzip(const struct vg_web_req *req) {
    const char *p = vg_web_header(req, "accept-encoding");
    for (; p && *p; p += strcspn(p, ",")) {
        p += strspn(p, ", \t");
        size_t n = strcspn(p, ",; \t");
        if (n == 4 && strncasecmp(p, "gzip", 4) == 0)
            return is_wanted(p + n);
    }
    return false;
}

static bool unchanged(const struct vg_web_req *req, const char *tag) {
    const char *have = vg_web_header(req, "if-none-match");
    return have && (strcmp(have, "*") == 0 || strstr(have, tag));
}

static void answer_file(const struct vg_web_file *f, struct vg_web_req *req) {
    bool packed = f->packed && takes_gzip(req);
    (void)vg_web_set(req, "ETag", f->tag);
    (void)vg_web_set(req, "Vary", "Accept-Encoding");
    (void)vg_web_set(req, "Cache-Control",
                     f->fixed ? "public, max-age=31536000, immutable" : "no-cache");
    (void)vg_web_set(req, "Content-Security-Policy", POLICY);
    if (unchanged(req, f->tag)) {
        vg_web_answer(req, 304, NULL, NULL, 0);
        return;
    }
    if (packed)
        (void)vg_web_set(req, "Content-Encoding", "gzip");
    vg_web_answer(req, 200, f->type, packed ? f->packed : f->plain,
                  packed ? f->packed_len : f->len);
}

void vg_web_files_answer(const struct vg_web_files *files, struct vg_web_req *req) {
    if (req->method != VG_WEB_GET) {
        (void)vg_web_set(req, "Allow", "GET, HEAD");
        vg_web_text(req, 405, vg_web_phrase(405));
        return;
    }
    const struct vg_web_file *f = find(files, req->path);
    const char *last = strrchr(req->path, '/');
    if (!f && !strchr(last ? last : "", '.') && strncmp(req->path, "/assets/", 8) != 0) {
        f = find(files, "/index.html");
        if (!f) {
            vg_web_text(req, 404, NO_DASHBOARD);
            return;
        }
    }
    if (f)
        answer_file(f, req);
    else
        vg_web_text(req, 404, "there is no such file");
}
