#pragma once
/* Pages of text that are made in parts, the next one when the last was taken: a large page holds up
   the loop no longer than its largest part, and a slow reader holds the memory of a few. */
#include "http/web.h"

struct vg_web_page {
    const char *path; /* "/metrics" */
    const char *type; /* of its content */
    /* Appends part `i`, counted from 0. 1: done, more may follow; 0: there is no such part, the
       page is complete; -errno: the answer is broken off. */
    int (*part)(void *user, size_t i, struct vg_buf *to);
    int (*status)(void *user); /* 200 or 503, asked before its first part; NULL: 200 */
};

/* Answers a request from a list that ends with a page without a path and outlives the answer. */
void vg_web_pages_answer(const struct vg_web_page *pages, void *user, struct vg_web_req *req);
