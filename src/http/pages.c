/* Pages in parts; see the header. */
#include "http/pages.h"

#include "base/mem.h"

#include <string.h>

struct answer {
    const struct vg_web_page *page; /* borrowed */
    void *user;
    size_t next;
    struct vg_buf part;
};

static void finish(struct answer *a, struct vg_web_req *req, bool broken) {
    vg_web_end(req, broken);
    vg_buf_done(&a->part);
    free(a);
}

static void on_room(struct vg_web_req *req, void *user) {
    struct answer *a = user;
    int r = 1;
    while (r > 0 && vg_web_room(req)) {
        vg_buf_clear(&a->part);
        r = a->page->part(a->user, a->next++, &a->part);
        if (r > 0 && vg_buf_len(&a->part))
            r = vg_web_write(req, vg_buf_data(&a->part), vg_buf_len(&a->part)) < 0 ? -EPIPE : 1;
    }
    if (r <= 0)
        finish(a, req, r < 0);
}

static void on_gone(struct vg_web_req *req, void *user) {
    finish(user, req, true);
}

static const struct vg_web_stream_ops ops = {on_room, on_gone};

void vg_web_pages_answer(const struct vg_web_page *pages, void *user, struct vg_web_req *req) {
    const struct vg_web_page *p = pages;
    while (p->path && strcmp(p->path, req->path) != 0)
        p++;
    if (req->method != VG_WEB_GET) {
        (void)vg_web_set(req, "Allow", "GET, HEAD");
        vg_web_text(req, 405, vg_web_phrase(405));
        return;
    }
    struct answer *a = p->path ? vg_alloc(sizeof(*a)) : NULL;
    if (!a) {
        vg_web_text(req, p->path ? 503 : 404, vg_web_phrase(p->path ? 503 : 404));
        return;
    }
    *a = (struct answer){.page = p, .user = user};
    (void)vg_web_set(req, "Cache-Control", "no-store");
    (void)vg_web_begin(req, p->status ? p->status(user) : 200, p->type, &ops, a);
    on_room(req, a);
}
