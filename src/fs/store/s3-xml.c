/* A small reader of XML. */
#include "fs/store/s3-xml.h"

#include "base/cleanup.h"
#include "base/mem.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct xml {
    const char *p, *end;
    vg_xml_fn *each;
    void *user;
    char path[VG_XML_PATH_MAX];
    size_t starts[VG_XML_DEPTH_MAX]; /* where each open element's name begins in `path` */
    unsigned depth;
    bool leaf; /* no element has ended in the innermost one */
    bool done; /* the root has ended */
    char *value;
    size_t n_value;
};

static bool at(const struct xml *x, const char *what) {
    size_t n = strlen(what);
    return (size_t)(x->end - x->p) >= n && memcmp(x->p, what, n) == 0;
}

static int skip_past(struct xml *x, const char *what) {
    for (; x->p < x->end; x->p++)
        if (at(x, what)) {
            x->p += strlen(what);
            return 0;
        }
    return -EBADMSG;
}

static int add(struct xml *x, const char *bytes, size_t n) {
    if (n > VG_XML_VALUE_MAX - x->n_value)
        return -EBADMSG;
    memcpy(x->value + x->n_value, bytes, n);
    x->n_value += n;
    return 0;
}

static int add_code(struct xml *x, uint32_t c) {
    char b[4];
    if (c == 0 || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return -EBADMSG;
    if (c < 0x80) {
        b[0] = (char)c;
        return add(x, b, 1);
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t first[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n; i-- > 1; c >>= 6)
        b[i] = (char)(0x80 | (c & 0x3f));
    b[0] = (char)(first[n] | c);
    return add(x, b, n);
}

static int numbered(struct xml *x, const char *s, size_t n) {
    bool hex = n > 1 && (s[0] == 'x' || s[0] == 'X');
    uint32_t c = 0;
    size_t i = hex;
    if (i == n || n > 8)
        return -EBADMSG;
    for (; i < n; i++) {
        unsigned char d = (unsigned char)s[i];
        if (!(hex ? isxdigit(d) : isdigit(d)))
            return -EBADMSG;
        c = c * (hex ? 16 : 10) + (uint32_t)(isdigit(d) ? d - '0' : tolower(d) - 'a' + 10);
    }
    return add_code(x, c);
}

static int entity(struct xml *x) {
    static const struct {
        const char *name;
        char is;
    } known[] = {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
    size_t room = (size_t)(x->end - x->p);
    const char *s = x->p + 1, *semi = memchr(x->p, ';', room < 16 ? room : 16);
    if (!semi)
        return -EBADMSG;
    size_t n = (size_t)(semi - s);
    x->p = semi + 1;
    if (n > 1 && s[0] == '#')
        return numbered(x, s + 1, n - 1);
    for (size_t i = 0; i < VG_COUNT(known); i++)
        if (strlen(known[i].name) == n && memcmp(known[i].name, s, n) == 0)
            return add(x, &known[i].is, 1);
    return -EBADMSG;
}

static int text(struct xml *x) {
    if (*x->p == '&')
        return x->depth ? entity(x) : -EBADMSG;
    if (*x->p == '\0' || (!x->depth && !isspace((unsigned char)*x->p)))
        return -EBADMSG;
    int r = x->depth ? add(x, x->p, 1) : 0;
    x->p++;
    return r;
}

/* A name without its prefix. */
static int name(struct xml *x, const char **ret, size_t *ret_n) {
    const char *s = x->p;
    for (; x->p < x->end && (isalnum((unsigned char)*x->p) || strchr("_-.:", *x->p)) && *x->p;
         x->p++)
        if (*x->p == ':')
            s = x->p + 1;
    *ret = s;
    *ret_n = (size_t)(x->p - s);
    return *ret_n ? 0 : -EBADMSG;
}

static int element_over(struct xml *x) {
    x->value[x->n_value] = '\0';
    int r = x->each(x->user, x->path, x->leaf ? x->value : NULL);
    size_t start = x->starts[--x->depth];
    x->path[start ? start - 1 : 0] = '\0';
    x->leaf = false;
    x->n_value = 0;
    x->done = x->depth == 0;
    return r < 0 ? r : 0;
}

static int close_tag(struct xml *x) {
    const char *s;
    size_t n;
    x->p += 2;
    if (x->depth == 0 || name(x, &s, &n) < 0)
        return -EBADMSG;
    while (x->p < x->end && isspace((unsigned char)*x->p))
        x->p++;
    const char *open = x->path + x->starts[x->depth - 1];
    if (strlen(open) != n || memcmp(open, s, n) != 0 || !at(x, ">"))
        return -EBADMSG;
    x->p++;
    return element_over(x);
}

/* Past the attributes; their values may hold anything but their quote. */
static int attributes(struct xml *x, bool *ret_empty) {
    while (x->p < x->end && *x->p != '>' && !at(x, "/>")) {
        char c = *x->p++;
        if (c == '<' || c == '\0')
            return -EBADMSG;
        if (c == '"' || c == '\'') {
            const char quote[] = {c, '\0'};
            if (skip_past(x, quote) < 0)
                return -EBADMSG;
        }
    }
    *ret_empty = at(x, "/>");
    if (x->p >= x->end)
        return -EBADMSG;
    x->p += *ret_empty ? 2 : 1;
    return 0;
}

static int open_tag(struct xml *x) {
    const char *s;
    size_t n, used = strlen(x->path);
    bool empty;
    x->p++;
    if (x->done || x->depth == VG_XML_DEPTH_MAX || name(x, &s, &n) < 0 ||
        n + used + 2 > sizeof(x->path))
        return -EBADMSG;
    x->starts[x->depth++] = used ? used + 1 : 0;
    snprintf(x->path + used, sizeof(x->path) - used, "%s%.*s", used ? "/" : "", (int)n, s);
    x->leaf = true;
    x->n_value = 0;
    int r = attributes(x, &empty);
    return r == 0 && empty ? element_over(x) : r;
}

static int piece(struct xml *x) {
    if (*x->p != '<')
        return text(x);
    if (at(x, "<?"))
        return skip_past(x, "?>");
    if (at(x, "<!--"))
        return skip_past(x, "-->");
    if (at(x, "<!"))
        return -EBADMSG;
    return at(x, "</") ? close_tag(x) : open_tag(x);
}

int vg_xml_each(const char *data, size_t n, vg_xml_fn *each, void *user) {
    struct xml x = {.p = data, .end = data + n, .each = each, .user = user};
    x.value = vg_alloc(VG_XML_VALUE_MAX + 1);
    int r = x.value ? 0 : -ENOMEM;
    while (r == 0 && x.p < x.end)
        r = piece(&x);
    free(x.value);
    return r == 0 && !x.done ? -EBADMSG : r;
}
