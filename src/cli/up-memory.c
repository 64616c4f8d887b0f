/* What `virga up` was told. No state; one thread. */
#include "cli/up-memory.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <stdio.h>
#include <string.h>

#define FILE_MAX 4096

static void take_line(char *line, struct vg_up_memory *m) {
    char *value = strchr(line, '=');
    if (!value)
        return;
    *value++ = 0;
    if (strcmp(line, "listen") == 0)
        snprintf(m->listen, sizeof(m->listen), "%s", value);
    if (strcmp(line, "group") == 0)
        snprintf(m->group, sizeof(m->group), "%s", value);
    if (strcmp(line, "gpus") == 0)
        snprintf(m->gpus, sizeof(m->gpus), "%s", value);
}

int vg_up_memory_read(const char *home, struct vg_up_memory *ret, struct vg_err *err) {
    vg_auto_free char *path = vg_fmt("%s/up.conf", home), *text = NULL;
    *ret = (struct vg_up_memory){0};
    int r = path ? vg_read_file(path, FILE_MAX, &text, NULL) : -ENOMEM;
    if (r == -ENOENT)
        return 0;
    if (r < 0)
        return vg_err_sys(err, r, "cannot read %s/up.conf", home);
    for (char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        take_line(line, ret);
    }
    return 0;
}

int vg_up_memory_write(const char *home, const struct vg_up_memory *m, struct vg_err *err) {
    vg_auto_free char *path = vg_fmt("%s/up.conf", home);
    vg_auto_free char *text =
        vg_fmt("listen=%s\ngroup=%s\ngpus=%s\n", m->listen, m->group, m->gpus);
    int r = path && text ? vg_write_file(path, text, strlen(text), 0600) : -ENOMEM;
    return r < 0 ? vg_err_sys(err, r, "cannot write %s/up.conf", home) : 0;
}
