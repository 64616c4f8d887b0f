/* `virga mirror explain PATH` and `virga mirror status`. */
#include "fs/client/svc.h"

#include "base/mem.h"
#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <string.h>

#define ASKED_BYTES (40u << 10) /* an answer to `virga mirror status` is a packet */

/* .virgaignore files count once their folder was seen: look at all above the path. */
static void see_ignores(struct vg_mpolicy *policy, int root_fd, const char *path) {
    char dir[PATH_MAX];
    for (size_t i = 0; path[i] && i < sizeof(dir) - 1; i++) {
        dir[i] = path[i];
        if (path[i] != '/')
            continue;
        dir[i ? i : 1] = 0;
        struct vg_scan scan;
        struct vg_err err = VG_ERR_INIT;
        int fd = vg_open_beneath(root_fd, dir, O_RDONLY | O_DIRECTORY);
        if (fd < 0)
            return;
        if (vg_scan_folder(fd, false, &scan) == 0) {
            if (scan.ignore)
                (void)vg_mpolicy_ignore(policy, dir, (const char *)scan.ignore_text.base,
                                        vg_buf_len(&scan.ignore_text), &err);
            vg_scan_done(&scan);
        }
        dir[i] = '/';
    }
}

static const char *verdict_words(enum vg_verdict v) {
    switch (v) {
    case VG_SERVE:
        return "a node may read it";
    case VG_DENY:
        return "a node sees its name and size, never its content";
    case VG_SECRET:
        return "a node may read it, in memory only, because --allow names it";
    case VG_IGNORE:
        return "a node does not see it";
    case VG_EMPTY:
        return "what is here comes from the node";
    }
    return "?";
}

static int explain(struct vg_mpolicy *policy, int root_fd, const char *path, struct vg_buf *b) {
    see_ignores(policy, root_fd, path);
    struct stat st = {.st_mode = S_IFREG};
    vg_auto_fd int fd = vg_open_beneath(root_fd, path, O_PATH);
    bool there = fd >= 0 && fstat(fd, &st) == 0;
    const char *why = NULL;
    enum vg_verdict v = vg_mpolicy_ask(policy, path, st.st_mode, &why);
    int r = vg_buf_printf(b, "%s: %s\n", path, verdict_words(v));
    if (r == 0 && why)
        r = vg_buf_printf(b, "  because: %s\n", why);
    if (r == 0 && v == VG_DENY)
        r = vg_buf_printf(b, "  to let it through for one command: vrun --allow %s ...\n", path);
    if (r == 0 && fd == -ELOOP)
        r = vg_buf_printf(b, "  a part of this path is a link: what it points to is judged where "
                             "it lies\n");
    else if (r == 0 && !there)
        r = vg_buf_printf(b, "  there is nothing of that name now\n");
    return r == 0 ? vg_buf_append(b, "", 1) : r;
}

int vg_mirror_explain(const struct vg_mirror_conf *conf, const char *path, char **ret,
                      struct vg_err *err) {
    struct vg_mpolicy *policy = NULL;
    struct vg_buf b = {0};
    if (path[0] != '/' || strlen(path) >= PATH_MAX)
        return vg_err_set(err, VG_INVALID, "'%s' is not an absolute path", path);
    vg_auto_fd int root_fd = open(conf->root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int r = root_fd < 0 ? -errno : vg_mirror_policy(conf, &policy);
    if (r == 0)
        r = explain(policy, root_fd, path, &b);
    vg_mpolicy_free(policy);
    if (r < 0) {
        vg_buf_done(&b);
        return vg_err_sys(err, r, "cannot explain %s", path);
    }
    *ret = (char *)b.base;
    return 0;
}

static json_t *asked_json(const struct vg_masked_list *a) {
    static const char *const kinds[] = {
        [VG_MI_DIR] = "folder", [VG_MI_DATA] = "content", [VG_MI_XATTR] = "attributes"};
    json_t *list = json_array();
    size_t room = ASKED_BYTES;
    for (size_t i = 0; i < a->n && strlen(a->item[i].path) + 100 < room; i++) {
        room -= strlen(a->item[i].path) + 100;
        json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:s}", "path", a->item[i].path,
                                              "what", kinds[a->item[i].kind], "leaf",
                                              (json_int_t)a->item[i].leaf, "why", a->item[i].why));
    }
    return list;
}

char *vg_mirror_status(const struct vg_mirror *m) {
    size_t watched, looked_at, links = 0;
    json_t *tasks = json_array(), *nodes = json_array();
    vg_watch_counts(m->watch, &watched, &looked_at);
    vg_list_for_each (it, &m->links)
        links++;
    vg_list_for_each (it, &m->tasks) {
        const struct vg_mirror_task *t = vg_list_entry(it, struct vg_mirror_task, link);
        char id[VG_ID_LEN + 1];
        vg_id_format(t->id, id);
        json_array_append_new(tasks, json_pack("{s:s, s:s*, s:b, s:i}", "task", id, "project",
                                               t->n_view ? t->view[0] : NULL, "traced", t->traced,
                                               "links", (int)t->links));
    }
    vg_list_for_each (it, &m->peers) {
        const struct vg_mpeer *p = vg_list_entry(it, struct vg_mpeer, link);
        if (p->named)
            json_array_append_new(nodes, json_pack("{s:s, s:I, s:I, s:i}", "node", p->node,
                                                   "folders", (json_int_t)vg_map_len(&p->told),
                                                   "stale", (json_int_t)vg_map_len(&p->stale),
                                                   "links", (int)p->links));
    }
    json_t *j = json_pack(
        "{s:s, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
        "root", m->root, "tasks", tasks, "nodes", nodes, "links", (json_int_t)links, "watched",
        (json_int_t)watched, "looked_at", (json_int_t)looked_at, "event_rounds",
        (json_int_t)vg_watch_rounds(m->watch), "remembered", (json_int_t)vg_memo_count(m->memo),
        "folders_sent", (json_int_t)m->folders, "demands", (json_int_t)m->demands, "demand_bytes",
        (json_int_t)m->demand_bytes, "pushed_bytes", (json_int_t)m->pushed_bytes, "skipped",
        (json_int_t)m->skipped, "sent_bytes", (json_int_t)m->sent_bytes, "packed_bytes",
        (json_int_t)vg_packed_bytes(m->packed), "folders_read", (json_int_t)m->folders_read,
        "leaves_read", (json_int_t)m->leaves_read);
    if (j) /* of the last run alone */
        json_object_set_new(j, "asked", asked_json(&m->asked));
    char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    return text;
}
