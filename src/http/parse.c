/* Requests from bytes; see the header. */
#include "http/parse.h"

#include "base/cleanup.h"

#include <string.h>
#include <strings.h>

#define EXT_MAX 256      /* of a chunk's line */
#define TRAILER_MAX 4096 /* which are not looked at */

static const char *const method_names[VG_WEB_METHODS] = {
    [VG_WEB_GET] = "GET",     [VG_WEB_POST] = "POST",     [VG_WEB_PUT] = "PUT",
    [VG_WEB_PATCH] = "PATCH", [VG_WEB_DELETE] = "DELETE", [VG_WEB_OPTIONS] = "OPTIONS",
};

const char *vg_web_method_name(enum vg_web_method m) {
    return method_names[m];
}

/* ------------------------------------------------------------------ bytes */

/* RFC 9110: tchar. */
static bool is_token(unsigned char ch) {
    return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || (ch >= '0' && ch <= '9') ||
           (ch && strchr("!#$%&'*+-.^_`|~", ch));
}

static int hex(char ch) {
    if (ch >= '0' && ch <= '9')
        return ch - '0';
    if (ch >= 'a' && ch <= 'f')
        return ch - 'a' + 10;
    return ch >= 'A' && ch <= 'F' ? ch - 'A' + 10 : -1;
}

int vg_web_decode(char *s, bool plus) {
    char *to = s;
    for (; *s; s++) {
        if (*s == '%') {
            int hi = hex(s[1]), lo = hi < 0 ? -1 : hex(s[2]);
            if (lo < 0 || (hi == 0 && lo == 0))
                return -EINVAL;
            *to++ = (char)(hi << 4 | lo);
            s += 2;
        } else {
            *to++ = plus && *s == '+' ? ' ' : *s;
        }
    }
    *to = '\0';
    return 0;
}

/* ------------------------------------------------------------------ the head's end */

int vg_web_head_find(const char *text, size_t n, size_t head_max, size_t *ret_len) {
    const char *end = memmem(text, VG_MIN(n, head_max), "\r\n\r\n", 4);
    if (end) {
        *ret_len = (size_t)(end - text) + 4;
        return 200;
    }
    return n >= head_max ? 431 : 0;
}

/* ------------------------------------------------------------------ its first line */

static int set_method(struct vg_web_req *req, const char *name) {
    req->head = strcmp(name, "HEAD") == 0;
    if (req->head)
        name = "GET";
    for (size_t i = 0; i < VG_WEB_METHODS; i++)
        if (strcmp(name, method_names[i]) == 0) {
            req->method = (enum vg_web_method)i;
            return 200;
        }
    if (!*name)
        return 400;
    if (strcmp(name, "TRACE") == 0 || strcmp(name, "CONNECT") == 0 || strcmp(name, "QUERY") == 0)
        return 405;
    for (; *name; name++)
        if (!is_token((unsigned char)*name))
            return 400;
    return 501;
}

/* A path that means another one would let a rule about paths be walked around. */
static bool has_dots(const char *path) {
    for (const char *p = path; p; p = strchr(p, '/')) {
        size_t n = strcspn(++p, "/");
        if ((n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
            return true;
    }
    return false;
}

static int set_query(struct vg_web_req *req, char *text) {
    while (text && *text) {
        char *next = strchr(text, '&');
        if (next)
            *next++ = '\0';
        char *value = strchr(text, '=');
        if (value)
            *value++ = '\0';
        else
            value = text + strlen(text);
        if (*text && req->n_query == VG_WEB_QUERY_MAX)
            return 414;
        if (vg_web_decode(text, true) < 0 || vg_web_decode(value, true) < 0)
            return 400;
        if (*text)
            req->query[req->n_query++] = (struct vg_web_pair){text, value};
        text = next;
    }
    return 200;
}

/* `copy` has room for the target once more. */
static int set_target(struct vg_web_req *req, char *target, char *copy) {
    for (const char *p = target; *p; p++)
        if (*p < 0x21 || *p == 0x7f || *p == '#')
            return 400;
    if (strcmp(target, "*") == 0 && req->method == VG_WEB_OPTIONS) {
        req->target = target;
        req->path = "/";
        return 200;
    }
    if (*target != '/') { /* a proxy's way to write it */
        char *rest = strstr(target, "://");
        rest = rest ? strchr(rest + 3, '/') : NULL;
        if (!rest || strncasecmp(target, "http", 4) != 0)
            return 400;
        target = rest;
    }
    memcpy(copy, target, strlen(target) + 1);
    char *query = strchr(copy, '?');
    if (query)
        *query++ = '\0';
    if (vg_web_decode(copy, false) < 0 || has_dots(copy))
        return 400;
    req->target = target;
    req->path = copy;
    return set_query(req, query);
}

static int first_line(char *line, char *copy, struct vg_web_req *req, struct vg_web_head *h) {
    char *target = strchr(line, ' ');
    if (!target)
        return 400;
    *target++ = '\0';
    char *version = strchr(target, ' ');
    if (!version)
        return 400;
    *version++ = '\0';
    if (strncmp(version, "HTTP/", 5) != 0)
        return 400;
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0)
        return 505;
    h->minor = version[7] - '0';
    int status = set_method(req, line);
    return status == 200 ? set_target(req, target, copy) : status;
}

/* ------------------------------------------------------------------ its headers */

static int header_line(char *line, struct vg_web_req *req) {
    char *colon = strchr(line, ':');
    if (!colon || colon == line)
        return 400;
    for (char *p = line; p < colon; p++) {
        if (!is_token((unsigned char)*p))
            return 400;
        if (*p >= 'A' && *p <= 'Z')
            *p = (char)(*p + ('a' - 'A'));
    }
    *colon = '\0';
    char *value = colon + 1 + strspn(colon + 1, " \t"), *end = value + strlen(value);
    while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
        *--end = '\0';
    for (const char *p = value; *p; p++)
        if (((unsigned char)*p < 0x20 && *p != '\t') || *p == 0x7f)
            return 400;
    if (req->n_headers == VG_WEB_HEADERS_MAX)
        return 431;
    req->header[req->n_headers++] = (struct vg_web_pair){line, value};
    return 200;
}

/* Whether a list of words, separated by commas, has this one. */
static bool lists(const char *value, const char *word) {
    size_t n = strlen(word);
    for (const char *p = value; *p; p += strcspn(p, ",")) {
        p += strspn(p, ", \t");
        if (strncasecmp(p, word, n) == 0 && (!p[n] || strchr(", \t;", p[n])))
            return true;
    }
    return false;
}

static int body_length(const char *value, uint64_t *ret) {
    uint64_t n = 0;
    if (!*value || strlen(value) > 18)
        return 400;
    for (; *value; value++) {
        if (*value < '0' || *value > '9')
            return 400;
        n = n * 10 + (uint64_t)(*value - '0');
    }
    *ret = n;
    return 200;
}

/* What the headers mean to the connection. */
static int understand(const struct vg_web_req *req, struct vg_web_head *h) {
    unsigned hosts = 0, lengths = 0, encodings = 0;
    int status = 200;
    bool close = false, keep = false;
    for (size_t i = 0; i < req->n_headers && status == 200; i++) {
        const char *name = req->header[i].name, *value = req->header[i].value;
        if (strcmp(name, "host") == 0) {
            hosts++;
            status = strpbrk(value, " \t,/?#@\\\"<>") ? 400 : 200;
        } else if (strcmp(name, "content-length") == 0) {
            lengths++;
            status = body_length(value, &h->length);
        } else if (strcmp(name, "transfer-encoding") == 0) {
            encodings++;
            h->chunked = strcasecmp(value, "chunked") == 0;
        } else if (strcmp(name, "connection") == 0) {
            close = close || lists(value, "close");
            keep = keep || lists(value, "keep-alive");
        } else if (strcmp(name, "expect") == 0) {
            h->expect = strcasecmp(value, "100-continue") == 0;
            if (!h->expect)
                return 417;
        }
    }
    if (status != 200)
        return status;
    if (hosts > 1 || (hosts == 0 && h->minor) || lengths > 1 || (lengths && encodings))
        return 400;
    if (encodings && (encodings > 1 || !h->chunked))
        return 501;
    if (encodings && !h->minor)
        return 400;
    h->expect = h->expect && h->minor; /* an old client would take it for the answer */
    h->keep_alive = !close && (h->minor || keep);
    return 200;
}

int vg_web_head_parse(const char *text, size_t len, char *mem, struct vg_web_req *req,
                      struct vg_web_head *ret) {
    *ret = (struct vg_web_head){0};
    if (memchr(text, 0, len))
        return 400;
    memcpy(mem, text, len);
    mem[len] = '\0';
    char *line = mem, *end = mem + len - 2; /* the empty line */
    bool first = true;
    while (line < end) {
        char *next = memmem(line, (size_t)(end - line), "\r\n", 2);
        if (!next)
            return 400;
        *next = '\0';
        if (strpbrk(line, "\r\n"))
            return 400;
        int status = first ? first_line(line, mem + len + 2, req, ret) : header_line(line, req);
        if (status != 200)
            return status;
        first = false;
        line = next + 2;
    }
    return first ? 400 : understand(req, ret);
}

/* ------------------------------------------------------------------ chunks */

static int size_byte(struct vg_web_chunks *k, char ch) {
    int v = hex(ch);
    if (v >= 0) {
        if (++k->digits > 12)
            return 413;
        k->left = k->left << 4 | (uint64_t)v;
        return 0;
    }
    if (!k->digits)
        return 400;
    if (ch == '\r')
        k->state = VG_WEB_CHUNK_SIZE_LF;
    else if (ch == ';' || ch == ' ' || ch == '\t')
        k->state = VG_WEB_CHUNK_EXT;
    else
        return 400;
    return 0;
}

/* The line behind a chunk's size is over. */
static void size_over(struct vg_web_chunks *k) {
    k->state = k->left ? VG_WEB_CHUNK_DATA : VG_WEB_CHUNK_TRAILER;
    k->digits = k->line = 0;
}

static int expect_byte(struct vg_web_chunks *k, char ch, char want, enum vg_web_chunk_state next) {
    k->state = next;
    return ch == want ? 0 : 400;
}

/* Everything but data. */
static int frame_byte(struct vg_web_chunks *k, char ch) {
    switch (k->state) {
    case VG_WEB_CHUNK_SIZE:
        return size_byte(k, ch);
    case VG_WEB_CHUNK_EXT:
        if (ch == '\r')
            k->state = VG_WEB_CHUNK_SIZE_LF;
        return ch == '\n' || !ch || ++k->line > EXT_MAX ? 400 : 0;
    case VG_WEB_CHUNK_SIZE_LF:
        size_over(k);
        return ch == '\n' ? 0 : 400;
    case VG_WEB_CHUNK_DATA_CR:
        return expect_byte(k, ch, '\r', VG_WEB_CHUNK_DATA_LF);
    case VG_WEB_CHUNK_DATA_LF:
        return expect_byte(k, ch, '\n', VG_WEB_CHUNK_SIZE);
    case VG_WEB_CHUNK_TRAILER:
        if (ch == '\r')
            k->state = VG_WEB_CHUNK_TRAILER_LF;
        else
            k->line++;
        return ch == '\n' || !ch || ++k->trailer > TRAILER_MAX ? 400 : 0;
    case VG_WEB_CHUNK_TRAILER_LF:
        k->state = k->line ? VG_WEB_CHUNK_TRAILER : VG_WEB_CHUNK_DONE;
        k->line = 0;
        return ch == '\n' ? 0 : 400;
    default:
        return 400;
    }
}

int vg_web_chunks_feed(struct vg_web_chunks *k, const uint8_t *p, size_t n, size_t *ret_used,
                       struct vg_buf *out, size_t max) {
    size_t i = 0;
    int status = 0;
    while (i < n && !status && k->state != VG_WEB_CHUNK_DONE) {
        if (k->state != VG_WEB_CHUNK_DATA) {
            status = frame_byte(k, (char)p[i++]);
            if (!status && k->state == VG_WEB_CHUNK_DATA && k->left > max - vg_buf_len(out))
                status = 413;
            continue;
        }
        size_t part = (size_t)VG_MIN(k->left, (uint64_t)(n - i));
        if (vg_buf_append(out, p + i, part) < 0)
            status = 500;
        i += part;
        k->left -= part;
        if (!k->left)
            k->state = VG_WEB_CHUNK_DATA_CR;
    }
    *ret_used = i;
    return status ? status : k->state == VG_WEB_CHUNK_DONE;
}
