/* gitignore's language, one file. */
#include "mirror/ignore.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

#define RULE_PARTS 256

struct rule {
    char *text;           /* owned */
    char *why;            /* owned */
    struct vg_part *part; /* owned; into text */
    size_t n;
    bool keep, folder_only;
};

struct vg_ignore {
    char *folder;       /* owned */
    struct vg_part *at; /* owned; into folder */
    size_t depth;
    struct rule *rule; /* owned */
    size_t n, cap;
};

void vg_ignore_free(struct vg_ignore *g) {
    if (!g)
        return;
    for (size_t i = 0; i < g->n; i++) {
        free(g->rule[i].text);
        free(g->rule[i].why);
        free(g->rule[i].part);
    }
    free(g->rule);
    free(g->folder);
    free(g->at);
    free(g);
}

const char *vg_ignore_folder(const struct vg_ignore *g) {
    return g->folder;
}

size_t vg_ignore_depth(const struct vg_ignore *g) {
    return g->depth;
}

/* Cuts what does not count: the end of a line made on another system, and spaces at its end that no
   backslash holds. */
static size_t trimmed(const char *s, size_t n) {
    if (n && s[n - 1] == '\r')
        n--;
    while (n && s[n - 1] == ' ') {
        size_t slashes = 0;
        while (slashes + 1 < n && s[n - 2 - slashes] == '\\')
            slashes++;
        if (slashes % 2)
            break;
        n--;
    }
    return n;
}

static const char *fault_of(const struct rule *r, size_t n) {
    if (n > RULE_PARTS)
        return "has too many parts";
    if (n == 0)
        return "names nothing";
    for (size_t i = 0; i < n; i++)
        if (!vg_glob_valid(&r->part[i]))
            return "has a bracket that is not closed or a backslash at its end";
    return NULL;
}

/* One line into r: 0; 1 and a reason when it is bad; -ENOMEM. r is filled as far as it came. */
static int compile(struct rule *r, const char *s, size_t n, const char **ret_fault) {
    r->keep = s[0] == '!';
    if (r->keep) {
        s++;
        n--;
    }
    r->folder_only = n && s[n - 1] == '/' && !(n > 1 && s[n - 2] == '\\');
    size_t body = r->folder_only ? n - 1 : n;
    bool anchored = body && memchr(s, '/', body);
    r->text = vg_fmt("%s%.*s", anchored ? "" : "**/", (int)body, s);
    r->part = vg_alloc((RULE_PARTS + 1) * sizeof(*r->part));
    if (!r->text || !r->part)
        return -ENOMEM;
    r->n = vg_parts(r->text, strlen(r->text), r->part, RULE_PARTS);
    *ret_fault = body ? fault_of(r, r->n) : "names nothing";
    if (*ret_fault)
        return 1;
    struct vg_part *fit = vg_realloc(r->part, r->n * sizeof(*r->part));
    if (!fit)
        return -ENOMEM;
    r->part = fit;
    return 0;
}

static int add_line(struct vg_ignore *g, const char *s, size_t n, size_t line, struct vg_err *err) {
    struct rule *grown = vg_grow(g->rule, &g->cap, g->n + 1, sizeof(*grown));
    if (!grown)
        return -ENOMEM;
    g->rule = grown;
    struct rule r = {0};
    const char *fault = NULL;
    int e = compile(&r, s, n, &fault);
    if (e == 0) {
        r.why = vg_fmt("%s/.virgaignore, line %zu: %.*s", g->folder[1] ? g->folder : "", line,
                       (int)n, s);
        e = r.why ? 0 : -ENOMEM;
    }
    if (e == 0) {
        g->rule[g->n++] = r;
        return 0;
    }
    free(r.text);
    free(r.part);
    if (e < 0)
        return e;
    return vg_err_set(err, VG_INVALID, "%s/.virgaignore, line %zu %s; that line is left out",
                      g->folder[1] ? g->folder : "", line, fault);
}

static int add_text(struct vg_ignore *g, const char *text, size_t n, struct vg_err *err) {
    int worst = 0;
    size_t line = 1;
    for (size_t at = 0; at < n; line++) {
        const char *nl = memchr(text + at, '\n', n - at);
        size_t end = nl ? (size_t)(nl - text) : n;
        const char *s = text + at;
        size_t len = trimmed(s, end - at);
        at = end + 1;
        if (len == 0 || s[0] == '#')
            continue;
        int r = 0;
        struct vg_err e = VG_ERR_INIT;
        if (g->n >= VG_IGNORE_LINES || len > VG_IGNORE_LINE || memchr(s, '\0', len))
            r = vg_err_set(&e, VG_INVALID, "%s/.virgaignore, line %zu is %s; it is left out",
                           g->folder[1] ? g->folder : "", line,
                           g->n >= VG_IGNORE_LINES ? "one too many"
                           : len > VG_IGNORE_LINE  ? "too long"
                                                   : "not text");
        else
            r = add_line(g, s, len, line, &e);
        if (r == -ENOMEM)
            return r;
        if (r < 0 && worst == 0) {
            worst = r;
            *err = e;
        }
    }
    return worst;
}

int vg_ignore_new(const char *folder, const char *text, size_t n, struct vg_ignore **ret,
                  struct vg_err *err) {
    struct vg_part part[VG_PARTS_MAX];
    part[0] = (struct vg_part){0};
    *ret = NULL;
    struct vg_ignore *g = vg_alloc(sizeof(*g));
    if (!g || !(g->folder = vg_strdup(folder)))
        goto no_memory;
    size_t depth = vg_parts(g->folder, strlen(g->folder), part, VG_PARTS_MAX);
    if (depth > VG_PARTS_MAX)
        depth = VG_PARTS_MAX;
    g->depth = depth;
    g->at = vg_memdup(part, (depth ? depth : 1) * sizeof(*part));
    if (!g->at)
        goto no_memory;
    int r = add_text(g, text, n, err);
    if (r == -ENOMEM)
        goto no_memory;
    *ret = g;
    return r;
no_memory:
    vg_ignore_free(g);
    return vg_err_sys(err, -ENOMEM, "cannot read %s/.virgaignore", folder);
}

int vg_ignore_ask(const struct vg_ignore *g, const struct vg_part *path, size_t n, bool is_folder,
                  const char **ret_why) {
    if (n <= g->depth)
        return -1;
    for (size_t i = 0; i < g->depth; i++)
        if (path[i].n != g->at[i].n || memcmp(path[i].s, g->at[i].s, path[i].n) != 0)
            return -1;
    for (size_t i = g->n; i-- > 0;) {
        const struct rule *r = &g->rule[i];
        if ((r->folder_only && !is_folder) ||
            !vg_parts_match(r->part, r->n, path + g->depth, n - g->depth, false))
            continue;
        *ret_why = r->why;
        return !r->keep;
    }
    return -1;
}
