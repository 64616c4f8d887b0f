#pragma once
/* Files that are part of the program (the dashboard), answered with what browsers need to keep
   them: types, tags, compression, security headers. */
#include "http/web.h"

struct vg_web_file {
    const char *path; /* "/assets/app-3f2a1b.js" */
    const char *type;
    const char *tag;       /* ETag, with its quotes */
    const uint8_t *plain;  /* len bytes */
    const uint8_t *packed; /* by gzip; NULL: it would not be smaller */
    size_t len, packed_len;
    bool fixed; /* its name changes with its contents: may be kept for ever */
};
/* In the order of strcmp of their paths. */
struct vg_web_files {
    const struct vg_web_file *file;
    size_t n;
};

/* What tools/embed-web made of web/dist; none when it was not built. */
extern const struct vg_web_files vg_web_dashboard;

/* Answers a request for one of them. A path without a file is a page of the dashboard itself, which
   index.html shows, unless it looks like a file. */
void vg_web_files_answer(const struct vg_web_files *files, struct vg_web_req *req);
