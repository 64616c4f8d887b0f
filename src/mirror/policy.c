/* The policy: the table, what was allowed by hand, the .virgaignore files. A question walks the
   table once; with some 200 rules that mostly differ in their first letter it takes about a
   microsecond. */
#include "mirror/policy.h"

#include "base/mem.h"
#include "mirror/ignore.h"

#include <stdlib.h>
#include <string.h>

enum kind { SERVE, DENY, DENY_OUT, EMPTY };

static const struct {
    enum kind kind;
    const char *pattern, *why;
} table[] = {
#define RULE(kind, pattern, words) {kind, pattern, pattern ": " words},
#include "mirror/policy.tbl"
#undef RULE
};
#define RULES (sizeof(table) / sizeof(table[0]))
#define RULE_PARTS 8

struct rule { /* a line of the table, cut into parts once */
    struct vg_part part[RULE_PARTS];
    size_t n;
    bool home, below;
};

struct place {            /* a path, cut into parts */
    char *path;           /* owned */
    struct vg_part *part; /* owned; into path */
    size_t n;
};

struct places {
    struct place *place; /* owned */
    size_t n, cap;
};

struct vg_mpolicy {
    struct rule rule[RULES];
    struct place home;
    struct places allowed, denied, projects;
    struct vg_ignore **ignore; /* owned; deepest folders first */
    size_t n_ignore, cap_ignore;
};

static void place_done(struct place *p) {
    free(p->path);
    free(p->part);
}

static void places_done(struct places *l) {
    for (size_t i = 0; i < l->n; i++)
        place_done(&l->place[i]);
    free(l->place);
}

/* Absolute, without "." and "..". */
static int place_init(struct place *p, const char *path) {
    struct vg_part part[VG_PARTS_MAX];
    if (path[0] != '/')
        return -EINVAL;
    part[0] = (struct vg_part){0};
    *p = (struct place){.path = vg_strdup(path)};
    if (!p->path)
        return -ENOMEM;
    int r = 0;
    p->n = vg_parts(p->path, strlen(p->path), part, VG_PARTS_MAX);
    for (size_t i = 0; i < p->n && r == 0; i++)
        if (i == VG_PARTS_MAX ||
            (part[i].s[0] == '.' && (part[i].n == 1 || (part[i].n == 2 && part[i].s[1] == '.'))))
            r = -EINVAL;
    p->part = r == 0 ? vg_memdup(part, (p->n ? p->n : 1) * sizeof(*part)) : NULL;
    if (r == 0 && !p->part)
        r = -ENOMEM;
    if (r < 0)
        place_done(p);
    return r;
}

static int places_add(struct places *l, const char *path) {
    struct place *grown = vg_grow(l->place, &l->cap, l->n + 1, sizeof(*grown));
    if (!grown)
        return -ENOMEM;
    l->place = grown;
    int r = place_init(&l->place[l->n], path);
    if (r == 0)
        l->n++;
    return r;
}

/* The first `n` parts of both are alike. */
static bool same(const struct vg_part *a, const struct vg_part *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (a[i].n != b[i].n || memcmp(a[i].s, b[i].s, a[i].n) != 0)
            return false;
    return true;
}

static bool below_any(const struct places *l, const struct vg_part *path, size_t n) {
    for (size_t i = 0; i < l->n; i++)
        if (l->place[i].n <= n && same(l->place[i].part, path, l->place[i].n))
            return true;
    return false;
}

static bool above_any(const struct places *l, const struct vg_part *path, size_t n) {
    for (size_t i = 0; i < l->n; i++)
        if (l->place[i].n > n && same(l->place[i].part, path, n))
            return true;
    return false;
}

static void compile(struct rule *r, const char *pattern) {
    size_t len = strlen(pattern);
    r->home = pattern[0] == '~';
    r->below = pattern[len - 1] == '/';
    r->n = vg_parts(pattern + r->home, len - r->home, r->part, RULE_PARTS);
    if (r->n > RULE_PARTS)
        abort(); /* a line of the table is too long: every test would find it */
}

int vg_mpolicy_new(const char *home, struct vg_mpolicy **ret) {
    struct vg_mpolicy *p = vg_alloc(sizeof(*p));
    if (!p)
        return -ENOMEM;
    int r = place_init(&p->home, home);
    if (r < 0) {
        free(p);
        return r;
    }
    for (size_t i = 0; i < RULES; i++)
        compile(&p->rule[i], table[i].pattern);
    *ret = p;
    return 0;
}

void vg_mpolicy_free(struct vg_mpolicy *p) {
    if (!p)
        return;
    place_done(&p->home);
    places_done(&p->allowed);
    places_done(&p->denied);
    places_done(&p->projects);
    for (size_t i = 0; i < p->n_ignore; i++)
        vg_ignore_free(p->ignore[i]);
    free(p->ignore);
    free(p);
}

int vg_mpolicy_allow(struct vg_mpolicy *p, const char *path) {
    return places_add(&p->allowed, path);
}

void vg_mpolicy_disallow(struct vg_mpolicy *p, const char *path) {
    struct place gone;
    if (place_init(&gone, path) < 0)
        return;
    struct places *l = &p->allowed;
    for (size_t i = 0; i < l->n; i++)
        if (l->place[i].n == gone.n && same(l->place[i].part, gone.part, gone.n)) {
            place_done(&l->place[i]);
            l->place[i] = l->place[--l->n];
            break;
        }
    place_done(&gone);
}

int vg_mpolicy_deny(struct vg_mpolicy *p, const char *path) {
    return places_add(&p->denied, path);
}

int vg_mpolicy_project(struct vg_mpolicy *p, const char *path) {
    for (size_t i = 0; i < p->projects.n; i++) /* every run names its own */
        if (strcmp(p->projects.place[i].path, path) == 0)
            return 0;
    int r = places_add(&p->projects, path);
    if (r < 0)
        return r;
    const struct place *new = &p->projects.place[p->projects.n - 1];
    /* Who works in the home folder itself has not made all of it a project. */
    if (new->n <= p->home.n && same(new->part, p->home.part, new->n))
        place_done(&p->projects.place[--p->projects.n]);
    return 0;
}

static void ignore_remove(struct vg_mpolicy *p, const char *folder) {
    for (size_t i = 0; i < p->n_ignore; i++)
        if (strcmp(vg_ignore_folder(p->ignore[i]), folder) == 0) {
            vg_ignore_free(p->ignore[i]);
            memmove(&p->ignore[i], &p->ignore[i + 1], (--p->n_ignore - i) * sizeof(*p->ignore));
            return;
        }
}

int vg_mpolicy_ignore(struct vg_mpolicy *p, const char *folder, const char *text, size_t n,
                      struct vg_err *err) {
    struct vg_ignore **grown = vg_grow(p->ignore, &p->cap_ignore, p->n_ignore + 1, sizeof(*grown)),
                     *g;
    if (!grown)
        return vg_err_sys(err, -ENOMEM, "cannot keep %s/.virgaignore", folder);
    p->ignore = grown;
    int r = vg_ignore_new(folder, text, n, &g, err);
    if (!g)
        return r;
    ignore_remove(p, folder);
    if (n == 0 || p->n_ignore >= VG_IGNORE_FILES) {
        vg_ignore_free(g);
        return n == 0 ? 0
                      : vg_err_set(err, VG_INVALID, "%s/.virgaignore is one too many (limit %d)",
                                   folder, VG_IGNORE_FILES);
    }
    size_t at = 0;
    while (at < p->n_ignore && vg_ignore_depth(p->ignore[at]) >= vg_ignore_depth(g))
        at++;
    memmove(&p->ignore[at + 1], &p->ignore[at], (p->n_ignore++ - at) * sizeof(*p->ignore));
    p->ignore[at] = g;
    return r;
}

/* A path is ignored when it or a folder above it is: as in git, what lies in an ignored folder
   cannot be brought back. */
static bool ignored(const struct vg_mpolicy *p, const struct vg_part *path, size_t n,
                    bool is_folder, const char **why) {
    if (p->n_ignore == 0)
        return false;
    for (size_t k = 1; k <= n; k++)
        for (size_t i = 0; i < p->n_ignore; i++) {
            int r = vg_ignore_ask(p->ignore[i], path, k, k < n || is_folder, why);
            if (r > 0)
                return true;
            if (r == 0)
                break;
        }
    return false;
}

/* How many parts of the path are somebody's home; -1: it is in none. */
static int home_of(const struct vg_mpolicy *p, const struct vg_part *path, size_t n) {
    if (p->home.n <= n && same(p->home.part, path, p->home.n))
        return (int)p->home.n;
    if (n >= 1 && path[0].n == 4 && memcmp(path[0].s, "root", 4) == 0)
        return 1;
    if (n >= 2 && path[0].n == 4 && memcmp(path[0].s, "home", 4) == 0)
        return 2;
    return -1;
}

/* The line of the table that decides, RULES when none does. */
static size_t find(const struct vg_mpolicy *p, const struct vg_part *path, size_t n) {
    int home = home_of(p, path, n), project = -1;
    for (size_t i = 0; i < RULES; i++) {
        const struct rule *r = &p->rule[i];
        size_t skip = r->home ? (size_t)home : 0;
        if ((r->home && home < 0) ||
            !vg_parts_match(r->part, r->n, path + skip, n - skip, r->below))
            continue;
        if (table[i].kind == DENY_OUT && project < 0)
            project = below_any(&p->projects, path, n);
        if (table[i].kind != DENY_OUT || !project)
            return i;
    }
    return RULES;
}

enum vg_verdict vg_mpolicy_ask(const struct vg_mpolicy *p, const char *path, mode_t mode,
                               const char **ret_why) {
    struct vg_part part[VG_PARTS_MAX];
    const char *dummy;
    const char **why = ret_why ? ret_why : &dummy;
    size_t n = vg_parts(path, strlen(path), part, VG_PARTS_MAX);
    if (n > VG_PARTS_MAX || path[0] != '/') {
        *why = "not a path that can be served";
        return VG_DENY;
    }
    size_t i = find(p, part, n);
    enum kind kind = i < RULES ? table[i].kind : SERVE;
    *why = i < RULES ? table[i].why : "no rule names it";
    if (kind == EMPTY)
        return VG_EMPTY;
    if (below_any(&p->denied, part, n)) {
        kind = DENY;
        *why = "keys, tokens and state of Virga";
    }
    const char *line;
    if (ignored(p, part, n, S_ISDIR(mode), &line)) {
        *why = line;
        return VG_IGNORE;
    }
    if (kind == SERVE || S_ISLNK(mode))
        return VG_SERVE;
    if (below_any(&p->allowed, part, n))
        return VG_SECRET;
    if (S_ISDIR(mode) && above_any(&p->allowed, part, n)) {
        *why = "it holds something that was allowed";
        return VG_SERVE;
    }
    return VG_DENY;
}

bool vg_mpolicy_rule(size_t i, const char **ret_kind, const char **ret_why) {
    static const char *const name[] = {[SERVE] = "serve",
                                       [DENY] = "deny",
                                       [DENY_OUT] = "deny outside projects",
                                       [EMPTY] = "empty"};
    if (i >= RULES)
        return false;
    *ret_kind = name[table[i].kind];
    *ret_why = table[i].why;
    return true;
}
