#include "fs/client/guess-int.h"

#include "fs/client/tree.h"

#include "base/cleanup.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define SHELL_COMMANDS 400
#define SHELL_WORDS 64
#define SHELL_BYTES (64u << 10)
#define LINKS_MAX 40
#define BUDGET (64u << 20)
#define SIBLINGS 200u

static bool seen(struct guess *g, const char *path) {
    if (vg_map_get(&g->seen, path))
        return true;
    char *own = vg_strdup(path);
    if (!own || vg_map_put(&g->seen, own, own) < 0) {
        free(own);
        g->err = -ENOMEM;
        return true;
    }
    return false;
}

static void name(struct guess *g, const char *path, const struct stat *st) {
    if (g->err || g->out->n >= GUESS_ITEMS || seen(g, path))
        return;
    uint32_t leaf[GUESS_WHOLE / VG_LEAF], n = 0;
    if (S_ISREG(st->st_mode)) {
        size_t size = (size_t)st->st_size;
        if (size > g->budget)
            return;
        uint64_t leaves = size > GUESS_WHOLE ? 1 : vg_leaves(size);
        for (; n < leaves; n++)
            leaf[n] = n;
        g->budget -= VG_MIN(size, (size_t)leaves * VG_LEAF);
    }
    int r = vg_trace_add(g->out, path, S_ISDIR(st->st_mode), leaf, n);
    if (r == -ENOMEM)
        g->err = r;
}

static int lstat_at(const struct guess *g, const char *path, struct stat *st, char *link) {
    vg_auto_fd int fd = vg_open_beneath(g->in->root_fd, path, O_PATH);
    if (fd < 0)
        return fd;
    if (fstat(fd, st) < 0)
        return -errno;
    if (!S_ISLNK(st->st_mode))
        return 0;
    ssize_t n = readlinkat(fd, "", link, PATH_MAX - 1);
    if (n < 0)
        return -errno;
    link[n] = 0;
    return 0;
}

int guess_resolve(struct guess *g, const char *path, char real[PATH_MAX], struct stat *st) {
    char rest[2 * PATH_MAX], link[PATH_MAX];
    struct stat dir = {.st_mode = S_IFDIR};
    int links = 0;
    if (path[0] != '/' || strlen(path) >= PATH_MAX)
        return -EINVAL;
    snprintf(rest, sizeof(rest), "%s", path);
    real[0] = 0;
    *st = dir;
    for (char *p = rest; *(p += strspn(p, "/"));) {
        size_t n = strcspn(p, "/"), at = strlen(real);
        if (!S_ISDIR(st->st_mode))
            return -ENOTDIR;
        if (n == 1 && p[0] == '.') {
            p += n;
            continue;
        }
        if (n == 2 && p[0] == '.' && p[1] == '.') {
            char *slash = strrchr(real, '/');
            if (slash)
                *slash = 0;
            p += n;
            continue;
        }
        name(g, at ? real : "/", &dir);
        if (at + n + 2 > PATH_MAX)
            return -ENAMETOOLONG;
        real[at] = '/';
        memcpy(real + at + 1, p, n);
        real[at + 1 + n] = 0;
        p += n;
        int r = lstat_at(g, real, st, link);
        if (r < 0)
            return r;
        if (!S_ISLNK(st->st_mode))
            continue;
        char tail[PATH_MAX];
        if (++links > LINKS_MAX || snprintf(tail, sizeof(tail), "%s", p) >= (int)sizeof(tail))
            return -ELOOP;
        real[link[0] == '/' ? 0 : at] = 0;
        if (snprintf(rest, sizeof(rest), "%s/%s", link, tail) >= (int)sizeof(rest))
            return -ENAMETOOLONG;
        *st = dir;
        p = rest;
    }
    if (!real[0])
        snprintf(real, PATH_MAX, "/");
    return 0;
}

bool guess_add(struct guess *g, const char *path, char real[PATH_MAX]) {
    struct stat st;
    if (guess_resolve(g, path, real, &st) < 0)
        return false;
    name(g, real, &st);
    return true;
}

char *guess_read(struct guess *g, const char *real, size_t max, size_t *ret_n) {
    vg_auto_fd int fd = vg_open_beneath(g->in->root_fd, real, O_RDONLY | O_NONBLOCK);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return NULL;
    size_t n = VG_MIN((size_t)st.st_size, max);
    char *data = vg_alloc(n + 1);
    ssize_t got = data ? pread(fd, data, n, 0) : -1;
    if (got < 0) {
        free(data);
        return NULL;
    }
    *ret_n = (size_t)got;
    return data;
}

char *vg_guess_program(int root_fd, const char *command, const char *cwd, const char *path_env) {
    struct vg_guess in = {.root_fd = root_fd};
    struct vg_trace none = {0};
    struct guess g = {.in = &in, .out = &none, .err = -ECANCELED}; /* names nothing */
    char real[PATH_MAX];
    struct stat st;
    if (!command[0])
        return NULL;
    if (strchr(command, '/')) {
        char *path = command[0] == '/' ? vg_strdup(command) : vg_fmt("%s/%s", cwd, command);
        if (path && guess_resolve(&g, path, real, &st) == 0 && S_ISREG(st.st_mode))
            return path;
        free(path);
        return NULL;
    }
    for (const char *p = path_env ? path_env : "/usr/local/bin:/usr/bin:/bin"; *p;) {
        size_t n = strcspn(p, ":");
        char *path = n && p[0] == '/' ? vg_fmt("%.*s/%s", (int)n, p, command) : NULL;
        if (path && guess_resolve(&g, path, real, &st) == 0 && S_ISREG(st.st_mode) &&
            (st.st_mode & 0111))
            return path;
        free(path);
        p += n;
        p += *p == ':';
    }
    return NULL;
}

/* Of a script: the interpreter in its first line. True when it is one. */
static bool script(struct guess *g, const char *real, char *const *args, size_t n_args, int depth);

static void program(struct guess *g, const char *path, char *const *args, size_t n, int depth);

/* One command of a script: its words in words[0 .. n]. What is a program is one, wherever it stands
   (env, nice, xargs); what is a file is read. */
static void shell_command(struct guess *g, char **words, size_t n, int depth) {
    for (size_t i = 0; i < n; i++) {
        char real[PATH_MAX];
        vg_auto_free char *found =
            vg_guess_program(g->in->root_fd, words[i], g->in->cwd, g->in->path_env);
        vg_auto_free char *file = words[i][0] == '/' ? NULL : vg_fmt("%s/%s", g->in->cwd, words[i]);
        if (found)
            program(g, found, words + i + 1, n - i - 1, depth + 1);
        else if (words[i][0] == '/' || (file && strcmp(words[i], ".") != 0))
            guess_add(g, file ? file : words[i], real);
    }
}

/* A script for a shell, roughly: commands end at ; & | and lines, words at blanks and quotes. */
static void shell_text(struct guess *g, char *text, int depth) {
    static const char ends[] = ";&|(){}`\n", blanks[] = " \t\"'<>$=,";
    for (unsigned commands = 0; *text && commands < SHELL_COMMANDS; commands++) {
        char *words[SHELL_WORDS], *end = text + strcspn(text, ends);
        size_t n = 0;
        bool last = !*end;
        *end = '\0';
        for (char *p = text; n < SHELL_WORDS && *(p += strspn(p, blanks));) {
            words[n++] = p;
            p += strcspn(p, blanks);
            if (*p)
                *p++ = '\0';
        }
        shell_command(g, words, n, depth);
        if (last)
            return;
        text = end + 1;
    }
}

static bool is_shell(const char *base) {
    static const char *const shells[] = {"sh", "bash", "dash", "zsh", "ksh", "busybox"};
    for (size_t i = 0; i < VG_COUNT(shells); i++)
        if (strcmp(base, shells[i]) == 0)
            return true;
    return false;
}

/* sh -c TEXT, or sh FILE. */
static void guess_shell(struct guess *g, char *const *args, size_t n, int depth) {
    size_t i = 0, len;
    bool text = false;
    char real[PATH_MAX];
    for (; i < n && args[i][0] == '-'; i++)
        text = text || (args[i][1] != '-' && strchr(args[i], 'c'));
    if (i == n)
        return;
    if (text) {
        vg_auto_free char *copy = vg_strdup(args[i]);
        if (copy)
            shell_text(g, copy, depth);
        return;
    }
    vg_auto_free char *path =
        args[i][0] == '/' ? vg_strdup(args[i]) : vg_fmt("%s/%s", g->in->cwd, args[i]);
    if (!path || !guess_add(g, path, real))
        return;
    vg_auto_free char *body = guess_read(g, real, SHELL_BYTES, &len);
    if (body && !memchr(body, '\0', len))
        shell_text(g, body, depth);
}

static void program(struct guess *g, const char *path, char *const *args, size_t n, int depth) {
    char real[PATH_MAX];
    if (depth > 4 || !guess_add(g, path, real) || script(g, real, args, n, depth))
        return;
    guess_elf(g, real, 0);
    const char *base = strrchr(real, '/') + 1;
    if (strncmp(base, "python", 6) == 0)
        guess_python(g, path, real, args, n);
    if (is_shell(base) || is_shell(strrchr(path, '/') ? strrchr(path, '/') + 1 : path))
        guess_shell(g, args, n, depth);
}

static bool script(struct guess *g, const char *real, char *const *args, size_t n_args, int depth) {
    size_t n;
    vg_auto_free char *head = guess_read(g, real, 256, &n);
    if (!head || n < 4 || head[0] != '#' || head[1] != '!')
        return false;
    head[strcspn(head, "\n")] = 0;
    char *words[3] = {0};
    size_t k = 0;
    for (char *p = head + 2; k < 3 && *(p += strspn(p, " \t"));) {
        words[k++] = p;
        p += strcspn(p, " \t");
        if (*p)
            *p++ = 0;
    }
    if (k == 0)
        return true;
    /* The interpreter gets the script, then the arguments. */
    vg_auto_free char **rest = vg_alloc((n_args + 2) * sizeof(*rest));
    if (!rest) {
        g->err = -ENOMEM;
        return true;
    }
    rest[0] = (char *)real;
    for (size_t i = 0; i < n_args; i++)
        rest[i + 1] = args[i];
    program(g, words[0], rest, n_args + 1, depth + 1);
    const char *slash = strrchr(words[0], '/');
    if (k > 1 && slash && strcmp(slash + 1, "env") == 0) {
        const char *inner = words[1][0] == '-' && k > 2 ? words[2] : words[1];
        vg_auto_free char *found =
            vg_guess_program(g->in->root_fd, inner, g->in->cwd, g->in->path_env);
        if (found)
            program(g, found, rest, n_args + 1, depth + 1);
    }
    return true;
}

/* Files that arguments name, and small ones beside the first of them. */
static void arguments(struct guess *g) {
    for (size_t i = 1; i < g->in->n_argv && i < 32; i++) {
        const char *a = g->in->argv[i];
        char real[PATH_MAX];
        if (a[0] == '-' || !a[0] || strlen(a) > 1000)
            continue;
        vg_auto_free char *path = a[0] == '/' ? vg_strdup(a) : vg_fmt("%s/%s", g->in->cwd, a);
        if (path)
            guess_add(g, path, real);
    }
}

/* Where commands are looked for: whoever looks reads these folders one after the other. */
static void search_path(struct guess *g) {
    char real[PATH_MAX];
    for (const char *p = g->in->path_env ? g->in->path_env : ""; *p;) {
        size_t n = strcspn(p, ":");
        vg_auto_free char *dir = n && p[0] == '/' ? vg_strndup(p, n) : NULL;
        if (dir)
            guess_add(g, dir, real);
        p += n;
        p += *p == ':';
    }
}

int vg_guess(const struct vg_guess *in, struct vg_trace *ret) {
    static const char *const always[] = {"/etc/ld.so.cache",  "/etc/nsswitch.conf",
                                         "/etc/passwd",       "/etc/group",
                                         "/etc/locale.alias", "/usr/lib/locale/C.utf8/LC_CTYPE"};
    struct guess g = {.in = in, .out = ret, .budget = BUDGET};
    char real[PATH_MAX];
    guess_add(&g, in->cwd, real);
    search_path(&g);
    program(&g, in->program, in->argv + 1, in->n_argv ? in->n_argv - 1 : 0, 0);
    for (size_t i = 0; i < VG_COUNT(always); i++)
        guess_add(&g, always[i], real);
    arguments(&g);
    vg_map_for_each (s, &g.seen)
        free(s->value);
    vg_map_done(&g.seen);
    free(g.cache);
    return g.err;
}
