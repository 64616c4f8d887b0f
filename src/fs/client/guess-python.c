/* What Python loads: its own start-up set, then the modules that a script names, and what those
   name. Compiled modules lie in __pycache__ beside their source. */
#include "fs/client/guess-int.h"

#include "base/cleanup.h"
#include "base/mem.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define SOURCE_MAX (1u << 20)
#define MODULES_MAX 600u
#define DIRS_MAX 8

struct python {
    struct guess *g;
    char *dir[DIRS_MAX]; /* where modules are looked for, in order */
    size_t n_dir;
    char tag[32]; /* "cpython-311" */
    struct vg_map done;
    size_t count;
};

static void add_dir(struct python *p, const char *fmt, const char *a, const char *b) {
    char path[PATH_MAX], real[PATH_MAX];
    struct stat st;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    int n = snprintf(path, sizeof(path), fmt, a, b);
#pragma GCC diagnostic pop
    if (p->n_dir == DIRS_MAX || n >= (int)sizeof(path) ||
        guess_resolve(p->g, path, real, &st) < 0 || !S_ISDIR(st.st_mode))
        return;
    guess_add(p->g, path, real);
    p->dir[p->n_dir] = vg_strdup(real);
    p->n_dir += p->dir[p->n_dir] != NULL;
}

static void module(struct python *p, const char *name, int depth);

static bool is_word(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '.';
}

/* "import a.b as c, d" and "from a.b import c" near the left margin; `base` is the package that
   relative names belong to. */
static void imports(struct python *p, const char *text, size_t n, int depth) {
    for (const char *at = text, *end = text + n; at < end;) {
        const char *eol = memchr(at, '\n', (size_t)(end - at));
        const char *stop = eol ? eol : end;
        const char *s = at;
        while (s < stop && *s == ' ')
            s++;
        bool from = stop - s > 5 && strncmp(s, "from ", 5) == 0;
        bool import = stop - s > 7 && strncmp(s, "import ", 7) == 0;
        if (s - at <= 4 && (from || import)) {
            s += from ? 5 : 7;
            for (;;) {
                while (s < stop && *s == ' ')
                    s++;
                const char *w = s;
                while (s < stop && is_word(*s))
                    s++;
                char name[256];
                if (s > w && w[0] != '.' && s - w < (long)sizeof(name)) {
                    memcpy(name, w, (size_t)(s - w));
                    name[s - w] = 0;
                    module(p, name, depth + 1);
                }
                const char *comma = memchr(s, ',', (size_t)(stop - s));
                if (from || !comma)
                    break;
                s = comma + 1;
            }
        }
        at = eol ? eol + 1 : end;
    }
}

/* The source's folder, the compiled form, else the source itself. True: it is there. */
static bool source(struct python *p, const char *dir, const char *stem, int depth) {
    char path[PATH_MAX], real[PATH_MAX];
    struct stat st;
    const char *base = strrchr(stem, '/');
    int head = base ? (int)(base - stem) + 1 : 0;
    snprintf(path, sizeof(path), "%s/%s.py", dir, stem);
    if (guess_resolve(p->g, path, real, &st) < 0 || !S_ISREG(st.st_mode))
        return false;
    char pyc[PATH_MAX], at[PATH_MAX];
    int n = snprintf(pyc, sizeof(pyc), "%s/%.*s__pycache__/%s.%s.pyc", dir, head, stem, stem + head,
                     p->tag);
    if (n >= (int)sizeof(pyc) || !guess_add(p->g, pyc, at))
        guess_add(p->g, path, at);
    size_t len;
    vg_auto_free char *text = guess_read(p->g, real, SOURCE_MAX, &len);
    if (text)
        imports(p, text, len, depth);
    return true;
}

static bool binary(struct python *p, const char *dir, const char *stem) {
    static const char *const forms[] = {"%s/%s.%s-x86_64-linux-gnu.so", "%s/%s.abi3.so",
                                        "%s/%s.so"};
    for (size_t i = 0; i < VG_COUNT(forms); i++) {
        char path[PATH_MAX], real[PATH_MAX];
        struct stat st;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        int n = snprintf(path, sizeof(path), forms[i], dir, stem, p->tag);
#pragma GCC diagnostic pop
        if (n >= (int)sizeof(path) || guess_resolve(p->g, path, real, &st) < 0)
            continue;
        guess_add(p->g, path, real);
        guess_elf(p->g, real, 1);
        return true;
    }
    return false;
}

static void one(struct python *p, const char *name, int depth) {
    char stem[300], package[320];
    if (vg_map_get(&p->done, name) || p->count++ > MODULES_MAX)
        return;
    char *own = vg_strdup(name);
    if (!own || vg_map_put(&p->done, own, own) < 0) {
        free(own);
        return;
    }
    snprintf(stem, sizeof(stem), "%s", name);
    for (char *c = stem; *c; c++)
        if (*c == '.')
            *c = '/';
    snprintf(package, sizeof(package), "%s/__init__", stem);
    for (size_t i = 0; i < p->n_dir; i++)
        if (source(p, p->dir[i], package, depth) || source(p, p->dir[i], stem, depth) ||
            binary(p, p->dir[i], stem))
            return;
}

/* a.b.c loads a, a.b and a.b.c. */
static void module(struct python *p, const char *name, int depth) {
    char part[256];
    if (depth > 12 || p->g->err || strlen(name) >= sizeof(part))
        return;
    for (const char *dot = name; (dot = strchr(dot, '.')); dot++) {
        snprintf(part, sizeof(part), "%.*s", (int)(dot - name), name);
        one(p, part, depth);
    }
    one(p, name, depth);
}

static void start_up(struct python *p) {
    static const char *const set[] = {"encodings",
                                      "encodings.aliases",
                                      "encodings.utf_8",
                                      "codecs",
                                      "io",
                                      "abc",
                                      "site",
                                      "os",
                                      "stat",
                                      "posixpath",
                                      "genericpath",
                                      "_collections_abc",
                                      "_sitebuiltins"};
    for (size_t i = 0; i < VG_COUNT(set); i++)
        one(p, set[i], 8); /* deep: what they name beside is mostly built in */
}

/* Where packages are: the environment that the program was called in, and the system's. */
static void places(struct python *p, const char *program, const char *real, const char *version) {
    char called[PATH_MAX], prefix[PATH_MAX], other[PATH_MAX + 16];
    snprintf(called, sizeof(called), "%s", program);
    snprintf(prefix, sizeof(prefix), "%s", real);
    for (int i = 0; i < 2; i++) { /* PREFIX/bin/python */
        char *a = strrchr(called, '/'), *b = strrchr(prefix, '/');
        if (a)
            *a = 0;
        if (b)
            *b = 0;
    }
    snprintf(other, sizeof(other), "%s/pyvenv.cfg", called);
    char at[PATH_MAX];
    guess_add(p->g, other, at);
    add_dir(p, "%s/lib/%s", prefix, version);
    add_dir(p, "%s/lib/%s/lib-dynload", prefix, version);
    add_dir(p, "%s/lib/%s/site-packages", called, version);
    if (strcmp(prefix, "/usr") == 0) {
        add_dir(p, "%s/local/lib/%s/dist-packages", prefix, version);
        add_dir(p, "%s/lib/python3/dist-packages", prefix, version);
    }
}

void guess_python(struct guess *g, const char *program, const char *real, char *const *args,
                  size_t n) {
    struct python p = {.g = g};
    const char *version = strrchr(real, '/') + 1; /* python3.11 */
    unsigned major, minor;
    char path[PATH_MAX], at[PATH_MAX];
    if (sscanf(version, "python%u.%u", &major, &minor) != 2)
        return;
    snprintf(p.tag, sizeof(p.tag), "cpython-%u%u", major, minor);
    size_t i = 0;
    while (i < n && args[i][0] == '-' && args[i][1] != 'c' && args[i][1] != 'm' && args[i][1])
        i++;
    bool code = i < n && strncmp(args[i], "-c", 2) == 0,
         as_module = i < n && strncmp(args[i], "-m", 2) == 0;
    if (i < n && !code && !as_module) {
        if (args[i][0] == '/')
            snprintf(path, sizeof(path), "%s", args[i]);
        else
            snprintf(path, sizeof(path), "%s/%s", g->in->cwd, args[i]);
        if (guess_add(g, path, at)) {
            char dir[PATH_MAX];
            snprintf(dir, sizeof(dir), "%s", at);
            *strrchr(dir, '/') = 0;
            add_dir(&p, "%s%s", dir, "");
        }
    } else {
        add_dir(&p, "%s%s", g->in->cwd, "");
    }
    places(&p, program, real, version);
    start_up(&p);
    if (code || as_module) {
        const char *what = args[i][2] ? args[i] + 2 : i + 1 < n ? args[i + 1] : "";
        if (as_module) {
            module(&p, "runpy", 0);
            module(&p, what, 0);
        } else {
            vg_auto_free char *text = vg_strdup(what);
            for (char *c = text; c && *c; c++)
                if (*c == ';')
                    *c = '\n';
            if (text)
                imports(&p, text, strlen(text), 0);
        }
    } else if (i < n) {
        size_t len;
        vg_auto_free char *text = guess_read(g, at, SOURCE_MAX, &len);
        if (text)
            imports(&p, text, len, 0);
    }
    vg_map_for_each (s, &p.done)
        free(s->value);
    vg_map_done(&p.done);
    for (size_t k = 0; k < p.n_dir; k++)
        free(p.dir[k]);
}
