/* Matching of paths. Both levels, characters in a part and parts in a path, go greedily and come
   back only to the last star: more is never needed, since whatever an earlier star could take
   instead the last one can take, too. */
#include "mirror/glob.h"

#include <string.h>

size_t vg_parts(const char *path, size_t len, struct vg_part *out, size_t max) {
    size_t n = 0;
    for (size_t at = 0; at < len;) {
        const char *slash = memchr(path + at, '/', len - at);
        size_t end = slash ? (size_t)(slash - path) : len;
        if (end > at) {
            if (n == max)
                return max + 1;
            out[n++] = (struct vg_part){path + at, end - at};
        }
        at = end + 1;
    }
    return n;
}

/* The place behind the class that begins at p[at] == '['; 0 when it is not closed. */
static size_t class_end(const struct vg_part *p, size_t at) {
    size_t i = at + 1;
    if (i < p->n && (p->s[i] == '!' || p->s[i] == '^'))
        i++;
    if (i < p->n && p->s[i] == ']') /* the first one is an ordinary member */
        i++;
    while (i < p->n && p->s[i] != ']')
        i += p->s[i] == '\\' ? 2 : 1;
    return i < p->n ? i + 1 : 0;
}

static unsigned char member(const struct vg_part *p, size_t *i) {
    if (p->s[*i] == '\\')
        (*i)++;
    return (unsigned char)p->s[(*i)++];
}

static bool in_class(const struct vg_part *p, size_t at, size_t end, unsigned char c) {
    size_t i = at + 1;
    bool negated = p->s[i] == '!' || p->s[i] == '^', found = false;
    if (negated)
        i++;
    for (bool first = true; i < end - 1 || (first && p->s[i] == ']'); first = false) {
        unsigned char from = member(p, &i), to = from;
        if (i + 1 < end - 1 && p->s[i] == '-') {
            i++;
            to = member(p, &i);
        }
        found |= c >= from && c <= to;
    }
    return found != negated;
}

bool vg_glob_valid(const struct vg_part *p) {
    for (size_t i = 0; i < p->n;) {
        if (p->s[i] == '\\' && i + 1 == p->n)
            return false;
        if (p->s[i] == '[') {
            i = class_end(p, i);
            if (!i)
                return false;
        } else
            i += p->s[i] == '\\' ? 2 : 1;
    }
    return true;
}

/* Matches one character at pattern[*at] and moves behind it. */
static bool one(const struct vg_part *p, size_t *at, unsigned char c) {
    size_t end;
    switch (p->s[*at]) {
    case '?':
        (*at)++;
        return true;
    case '[':
        end = class_end(p, *at);
        if (end) {
            bool in = in_class(p, *at, end, c);
            *at = end;
            return in;
        }
        break;
    case '\\':
        if (*at + 1 < p->n)
            (*at)++;
        break;
    default:
        break;
    }
    return (unsigned char)p->s[(*at)++] == c;
}

bool vg_glob(const struct vg_part *p, const struct vg_part *s) {
    size_t i = 0, j = 0, star = (size_t)-1, from = 0;
    while (j < s->n) {
        if (i < p->n && p->s[i] == '*') {
            star = i++;
            from = j;
        } else if (i < p->n && one(p, &i, (unsigned char)s->s[j]))
            j++;
        else if (star != (size_t)-1) {
            i = star + 1;
            j = ++from;
        } else
            return false;
    }
    while (i < p->n && p->s[i] == '*')
        i++;
    return i == p->n;
}

static bool is_deep(const struct vg_part *p) {
    return p->n == 2 && p->s[0] == '*' && p->s[1] == '*';
}

bool vg_parts_match(const struct vg_part *p, size_t np, const struct vg_part *path, size_t n,
                    bool below) {
    size_t i = 0, j = 0, star = (size_t)-1, from = 0;
    while (j < n) {
        if (i == np && below)
            return true;
        if (i < np && is_deep(&p[i])) {
            if (i + 1 == np) /* the last one: at least one part, and there is one */
                return true;
            star = i++;
            from = j;
        } else if (i < np && vg_glob(&p[i], &path[j])) {
            i++;
            j++;
        } else if (star != (size_t)-1) {
            i = star + 1;
            j = ++from;
        } else
            return false;
    }
    return i == np;
}
