/* `virga mirror explain PATH`. */
#include "fs/client/svc.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>

/* .virgaignore files count once their folder was seen: look at all above the path. */
static void see_ignores(struct vg_mirror *m, const char *path) {
    char dir[PATH_MAX];
    for (size_t i = 0; path[i] && i < sizeof(dir) - 1; i++) {
        dir[i] = path[i];
        if (path[i] != '/')
            continue;
        dir[i ? i : 1] = 0;
        struct vg_scan scan;
        struct vg_err err = VG_ERR_INIT;
        int fd = vg_open_beneath(vg_ctree_root_fd(m->tree), dir, O_RDONLY | O_DIRECTORY);
        if (fd < 0)
            return;
        if (vg_scan_folder(fd, false, &scan) == 0) {
            if (scan.ignore)
                (void)vg_policy_ignore(m->policy, dir, (const char *)scan.ignore_text.base,
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

int vg_mirror_explain(struct vg_mirror *m, const char *path, char **ret, struct vg_err *err) {
    if (path[0] != '/' || strlen(path) >= PATH_MAX)
        return vg_err_set(err, VG_INVALID, "'%s' is not an absolute path", path);
    see_ignores(m, path);
    struct stat st = {.st_mode = S_IFREG};
    vg_auto_fd int fd = vg_open_beneath(vg_ctree_root_fd(m->tree), path, O_PATH);
    bool there = fd >= 0 && fstat(fd, &st) == 0;
    const char *why = NULL;
    enum vg_verdict v = vg_policy_ask(m->policy, path, st.st_mode, &why);
    struct vg_buf b = {0};
    int r = vg_buf_printf(&b, "%s: %s\n", path, verdict_words(v));
    if (r == 0 && why)
        r = vg_buf_printf(&b, "  because: %s\n", why);
    if (r == 0 && v == VG_DENY)
        r = vg_buf_printf(&b, "  to let it through for one command: vrun --allow %s ...\n", path);
    if (r == 0 && !there)
        r = vg_buf_printf(&b, fd == -ELOOP ? "  a part of this path is a link: the thing it points "
                                             "to is judged where it lies\n"
                                           : "  there is nothing of that name now\n");
    if (r == 0)
        r = vg_buf_append(&b, "", 1);
    if (r < 0) {
        vg_buf_done(&b);
        return vg_err_set(err, VG_INTERNAL, "out of memory");
    }
    *ret = (char *)b.base;
    return 0;
}
