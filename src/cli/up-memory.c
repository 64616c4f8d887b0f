/* What `virga up` was told. No state; one thread. */
#include "cli/up-memory.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <stdio.h>
#include <string.h>

#define FILE_MAX 4096
#define CONFIG_MAX (1u << 20)

static void take_line(char *line, struct vg_up_memory *m) {
    char *value = strchr(line, '=');
    if (!value)
        return;
    *value++ = 0;
    if (strcmp(line, "listen") == 0)
        snprintf(m->listen, sizeof(m->listen), "%s", value);
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
    vg_auto_free char *text = vg_fmt("listen=%s\ngpus=%s\n", m->listen, m->gpus);
    int r = path && text ? vg_write_file(path, text, strlen(text), 0600) : -ENOMEM;
    return r < 0 ? vg_err_sys(err, r, "cannot write %s/up.conf", home) : 0;
}

/* Whether the group stands in the file as a word of its own. */
static bool mentions(const char *text, const char *group) {
    size_t n = strlen(group);
    for (const char *p = text; (p = strstr(p, group)); p++)
        if ((p == text || strchr(" [,\n\"'-", p[-1])) && (!p[n] || strchr(" ],\n\"'", p[n])))
            return true;
    return false;
}

int vg_up_let_in(const char *home, const char *group, struct vg_err *err) {
    vg_auto_free char *path = vg_fmt("%s/config.yaml", home), *old = NULL;
    int r = path ? vg_read_file(path, CONFIG_MAX, &old, NULL) : -ENOMEM;
    if (r < 0 && r != -ENOENT)
        return vg_err_sys(err, r, "cannot read %s/config.yaml", home);
    bool has = old && (strncmp(old, "access:", 7) == 0 || strstr(old, "\naccess:"));
    if (has && mentions(old, group))
        return 0;
    if (has)
        return vg_err_set(err, VG_INVALID,
                          "%s/config.yaml has an access section already: add '%s' to its groups",
                          home, group);
    size_t len = old ? strlen(old) : 0;
    bool broken_line = len && old[len - 1] != '\n';
    vg_auto_free char *text =
        vg_fmt("%s%saccess:\n  groups: [%s]\n", old ? old : "", broken_line ? "\n" : "", group);
    r = text ? vg_write_file(path, text, strlen(text), 0600) : -ENOMEM;
    return r < 0 ? vg_err_sys(err, r, "cannot write %s", path) : 0;
}
