/* The writer of metadata-only EROFS images.

   Layout, in blocks of 4 KiB: the superblock at byte 1024; inodes from byte 1152 on, each with its
   extended attributes and, where it fits in the same block, the end of its data (a folder's last
   block, a link's target); then whole blocks of folders. An inode's number is its place / 32.

   All inodes are of the long kind (64 bytes): tenants' ids have more than 16 bits and times are
   each file's own. A file with content has one chunk of 2^43 bytes, which is a hole. */
#include "mirror/erofs.h"

#include "base/mem.h"
#include "mirror/le.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>

#define BLOCK 4096u
#define BLOCK_BITS 12u
#define SUPER_AT 1024u
#define SUPER_BYTES 128u
#define MAGIC 0xE0F5E1E2u
#define CHUNKED_FILES 4u /* a feature that the reader must know */
#define INODE_BYTES 64u
#define SLOT 32u
#define DIRENT_BYTES 12u
#define PLAIN 0u /* layouts of data */
#define INLINE 2u
#define CHUNKS 4u
#define CHUNK_BITS 31u /* beyond those of a block: the most there can be */
#define HOLE 0xffffffffu
#define XATTR_HEAD 12u
#define TRUSTED 4u /* index of the prefix "trusted." */
#define NO_FILE UINT32_MAX
#define NSEC INT64_C(1000000000)

struct node {
    uint32_t parent;
    size_t name, extra; /* places in text: extra is a target or a redirect */
    uint16_t name_len, extra_len;
    uint64_t size;
    int64_t mtime;
    uint32_t mode, uid, gid, nlink;
    bool opaque;
    uint32_t file;     /* another name of that node; NO_FILE: a thing of its own */
    uint32_t first, n; /* folder: its entries */
    uint64_t at;       /* of the inode in the image */
    uint32_t block;    /* of its whole blocks */
    uint32_t tail;     /* bytes that lie behind the inode */
};

struct vg_erofs {
    struct node *node; /* owned */
    size_t n, cap;
    struct vg_buf text;
};

int vg_erofs_new(struct vg_erofs **ret) {
    *ret = vg_alloc(sizeof(**ret));
    return *ret ? 0 : -ENOMEM;
}

void vg_erofs_free(struct vg_erofs *e) {
    if (!e)
        return;
    free(e->node);
    vg_buf_done(&e->text);
    free(e);
}

size_t vg_erofs_count(const struct vg_erofs *e) {
    return e->n;
}

static const char *text(const struct vg_erofs *e, size_t at) {
    return (const char *)e->text.base + e->text.head + at;
}

static int compare(const char *a, size_t an, const char *b, size_t bn) {
    int c = memcmp(a, b, an < bn ? an : bn);
    return c ? c : (an > bn) - (an < bn);
}

/* The folder may take this name next. */
static bool in_order(const struct vg_erofs *e, const struct node *folder, const char *name,
                     size_t len) {
    if (folder->n == 0)
        return true;
    const struct node *last = &e->node[e->n - 1];
    return folder->first + folder->n == e->n &&
           compare(text(e, last->name), last->name_len, name, len) < 0;
}

static bool name_good(const char *s, size_t n) {
    if (n == 0 || n > 255 || memchr(s, '/', n) || memchr(s, '\0', n))
        return false;
    return !(s[0] == '.' && (n == 1 || (n == 2 && s[1] == '.')));
}

static bool good(const struct vg_erofs *e, const struct vg_erofs_node *n) {
    if (n->nlink == 0)
        return false;
    switch (n->mode & S_IFMT) {
    case S_IFREG:
        if (n->size > INT64_MAX || (n->size && (!n->redirect || strlen(n->redirect) > PATH_MAX)))
            return false;
        break;
    case S_IFLNK:
        if (n->target_len == 0 || n->target_len >= BLOCK)
            return false;
        break;
    case S_IFDIR:
        if (n->redirect && (n->opaque || strlen(n->redirect) > PATH_MAX))
            return false;
        break;
    case S_IFIFO:
    case S_IFSOCK:
        break;
    default:
        return false;
    }
    if (e->n == 0)
        return S_ISDIR(n->mode) && n->parent == VG_EROFS_ROOT;
    return n->parent < e->n && S_ISDIR(e->node[n->parent].mode) &&
           name_good(n->name, n->name_len) &&
           in_order(e, &e->node[n->parent], n->name, n->name_len);
}

static int keep_text(struct vg_erofs *e, const char *s, size_t len, size_t *ret) {
    *ret = vg_buf_len(&e->text);
    return vg_buf_append(&e->text, s, len);
}

static int push(struct vg_erofs *e, struct node *n, const char *name, const char *extra) {
    if (e->n >= VG_EROFS_NODES)
        return -E2BIG;
    struct node *grown = vg_grow(e->node, &e->cap, e->n + 1, sizeof(*grown));
    if (!grown)
        return -ENOMEM;
    e->node = grown;
    int r = keep_text(e, name, n->name_len, &n->name);
    if (r == 0)
        r = keep_text(e, extra, n->extra_len, &n->extra);
    if (r < 0)
        return r;
    struct node *folder = &e->node[n->parent];
    if (e->n) {
        if (folder->n++ == 0)
            folder->first = (uint32_t)e->n;
    }
    e->node[e->n++] = *n;
    return 0;
}

int vg_erofs_add(struct vg_erofs *e, const struct vg_erofs_node *n, uint32_t *ret) {
    if (!good(e, n))
        return -EINVAL;
    const char *extra = S_ISLNK(n->mode) ? n->target : n->redirect;
    bool has_redirect = S_ISDIR(n->mode) ? n->redirect != NULL : S_ISREG(n->mode) && n->size;
    struct node c = {
        .parent = n->parent,
        .name_len = e->n ? n->name_len : 0,
        .extra_len = (uint16_t)(S_ISLNK(n->mode) ? n->target_len
                                : has_redirect   ? strlen(n->redirect)
                                                 : 0),
        .size = S_ISREG(n->mode) ? n->size : n->target_len,
        .mtime = n->mtime,
        .mode = n->mode,
        .uid = n->uid,
        .gid = n->gid,
        .nlink = n->nlink,
        .opaque = n->opaque && S_ISDIR(n->mode),
        .file = NO_FILE,
    };
    if (!S_ISREG(n->mode) && !S_ISLNK(n->mode))
        c.size = 0;
    int r = push(e, &c, n->name, extra);
    if (r == 0)
        *ret = (uint32_t)e->n - 1;
    return r;
}

int vg_erofs_link(struct vg_erofs *e, uint32_t parent, const char *name, uint16_t name_len,
                  uint32_t file) {
    if (file >= e->n || !S_ISREG(e->node[file].mode) || e->node[file].file != NO_FILE ||
        parent >= e->n || !S_ISDIR(e->node[parent].mode) || !name_good(name, name_len) ||
        !in_order(e, &e->node[parent], name, name_len))
        return -EINVAL;
    struct node c = {
        .parent = parent, .name_len = name_len, .mode = e->node[file].mode, .file = file};
    return push(e, &c, name, NULL);
}

/* ---- extended attributes --------------------------------------------------------------------- */

static uint32_t padded(size_t n) {
    return (uint32_t)((n + 3) & ~(size_t)3);
}

static uint32_t xattr_bytes(size_t name, size_t value) {
    return padded(4 + name + value);
}

#define METACOPY "overlay.metacopy"
#define REDIRECT "overlay.redirect"
#define OPAQUE "overlay.opaque"
#define LEN(s) (sizeof(s) - 1)

static uint32_t xattrs_of(const struct node *n) {
    if (S_ISREG(n->mode) && n->size)
        return XATTR_HEAD + xattr_bytes(LEN(METACOPY), 0) +
               xattr_bytes(LEN(REDIRECT), n->extra_len);
    if (S_ISDIR(n->mode) && n->extra_len)
        return XATTR_HEAD + xattr_bytes(LEN(REDIRECT), n->extra_len);
    return n->opaque ? XATTR_HEAD + xattr_bytes(LEN(OPAQUE), 1) : 0;
}

static uint8_t *put_xattr(uint8_t *p, const char *name, const char *value, size_t len) {
    size_t n = strlen(name);
    p[0] = (uint8_t)n;
    p[1] = TRUSTED;
    vg_le_put16(p + 2, (uint16_t)len);
    memcpy(p + 4, name, n);
    if (len)
        memcpy(p + 4 + n, value, len);
    return p + xattr_bytes(n, len);
}

/* ---- folders --------------------------------------------------------------------------------- */

/* Walks a folder's entries with "." and ".." where they belong. */
struct walk {
    const struct vg_erofs *e;
    const struct node *folder;
    uint32_t next, dots;
};
struct entry {
    const char *name;
    size_t len;
    const struct node *node;
};

static bool walk_next(struct walk *w, struct entry *ret) {
    static const char dot[] = "..";
    const struct node *kid =
        w->next < w->folder->n ? &w->e->node[w->folder->first + w->next] : NULL;
    size_t len = w->dots + 1;
    if (w->dots < 2 && (!kid || compare(dot, len, text(w->e, kid->name), kid->name_len) < 0)) {
        const struct node *up = &w->e->node[w->folder->parent];
        *ret = (struct entry){dot, len, w->dots++ ? up : w->folder};
        return true;
    }
    if (!kid)
        return false;
    w->next++;
    *ret = (struct entry){text(w->e, kid->name), kid->name_len,
                          kid->file == NO_FILE ? kid : &w->e->node[kid->file]};
    return true;
}

static uint8_t type_of(uint32_t mode) {
    switch (mode & S_IFMT) {
    case S_IFREG:
        return 1;
    case S_IFDIR:
        return 2;
    case S_IFIFO:
        return 5;
    case S_IFSOCK:
        return 6;
    default:
        return 7;
    }
}

/* A block of a folder: heads of all its entries, then their names. Writes up to the first entry
   that has no room (which *w then stands before) and returns the bytes used; out NULL: counts. */
static uint32_t put_block(struct walk *w, uint8_t *out) {
    struct walk ahead = *w;
    struct entry d;
    uint32_t used = 0, n = 0;
    for (struct walk at = ahead; walk_next(&ahead, &d); at = ahead, n++) {
        if (used + DIRENT_BYTES + d.len > BLOCK) {
            ahead = at;
            break;
        }
        used += DIRENT_BYTES + (uint32_t)d.len;
    }
    uint32_t name = n * DIRENT_BYTES;
    for (uint32_t i = 0; out && i < n && walk_next(w, &d); i++) {
        uint8_t *p = out + i * DIRENT_BYTES;
        vg_le_put64(p, d.node->at / SLOT);
        vg_le_put16(p + 8, (uint16_t)name);
        p[10] = type_of(d.node->mode);
        p[11] = 0;
        memcpy(out + name, d.name, d.len);
        name += (uint32_t)d.len;
    }
    *w = ahead;
    return used;
}

static uint64_t folder_bytes(const struct vg_erofs *e, const struct node *n) {
    struct walk w = {.e = e, .folder = n};
    uint64_t blocks = 0;
    uint32_t used = 0;
    for (uint32_t k; (k = put_block(&w, NULL)) > 0; blocks++)
        used = k;
    return (blocks - 1) * BLOCK + used;
}

/* ---- places ---------------------------------------------------------------------------------- */

/* Puts the inode at the first place from *at on; what lies behind it must not cross a block. */
static void place(struct node *n, uint64_t *at) {
    uint32_t head = INODE_BYTES + xattrs_of(n), behind = 0;
    if (S_ISREG(n->mode) && n->size)
        behind = 4;
    n->tail = S_ISDIR(n->mode) || S_ISLNK(n->mode) ? (uint32_t)(n->size % BLOCK) : 0;
    if (head + n->tail > BLOCK)
        n->tail = 0;
    *at = (*at + SLOT - 1) / SLOT * SLOT;
    if (n->tail && (*at + head) % BLOCK + n->tail > BLOCK)
        *at = (*at + BLOCK - 1) / BLOCK * BLOCK;
    n->at = *at;
    *at += head + behind + n->tail;
}

static uint64_t whole_blocks(const struct node *n) {
    if (!S_ISDIR(n->mode) && !S_ISLNK(n->mode))
        return 0;
    return n->tail ? n->size / BLOCK : (n->size + BLOCK - 1) / BLOCK;
}

/* All places; returns the blocks of the image. */
static uint64_t lay_out(struct vg_erofs *e) {
    uint64_t at = SUPER_AT + SUPER_BYTES;
    for (size_t i = 0; i < e->n; i++) {
        struct node *n = &e->node[i];
        if (n->file != NO_FILE)
            continue;
        if (S_ISDIR(n->mode))
            n->size = folder_bytes(e, n);
        place(n, &at);
    }
    uint64_t block = (at + BLOCK - 1) / BLOCK;
    for (size_t i = 0; i < e->n; i++) {
        struct node *n = &e->node[i];
        if (n->file != NO_FILE)
            continue;
        n->block = (uint32_t)block;
        block += whole_blocks(n);
    }
    return block;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static void put_super(const struct vg_erofs *e, uint8_t *image, uint64_t blocks) {
    uint8_t *p = image + SUPER_AT;
    vg_le_put32(p, MAGIC);
    p[12] = BLOCK_BITS;
    vg_le_put16(p + 14, (uint16_t)(e->node[VG_EROFS_ROOT].at / SLOT));
    vg_le_put64(p + 16, e->n);
    vg_le_put32(p + 36, (uint32_t)blocks);
    vg_le_put32(p + 80, CHUNKED_FILES);
}

static void put_data(const struct vg_erofs *e, const struct node *n, uint8_t *image,
                     uint8_t *behind) {
    uint8_t *block = image + (uint64_t)n->block * BLOCK;
    uint64_t left = whole_blocks(n);
    if (S_ISLNK(n->mode)) {
        memcpy(n->tail ? behind : block, text(e, n->extra), n->extra_len);
        return;
    }
    struct walk w = {.e = e, .folder = n};
    for (; left > 0; left--, block += BLOCK)
        put_block(&w, block);
    if (n->tail) {
        uint8_t last[BLOCK]; /* behind the inode there is no room for a whole block */
        put_block(&w, last);
        memcpy(behind, last, n->tail);
    }
}

static void put_inode(const struct vg_erofs *e, uint32_t number, uint8_t *image) {
    const struct node *n = &e->node[number];
    uint8_t *p = image + n->at;
    uint32_t x = xattrs_of(n);
    bool chunked = S_ISREG(n->mode) && n->size;
    uint32_t layout = chunked ? CHUNKS : n->tail ? INLINE : PLAIN;
    int64_t sec = n->mtime / NSEC - (n->mtime % NSEC < 0);
    vg_le_put16(p, (uint16_t)(1 | layout << 1));
    vg_le_put16(p + 2, (uint16_t)(x ? (x - XATTR_HEAD) / 4 + 1 : 0));
    vg_le_put16(p + 4, (uint16_t)n->mode);
    vg_le_put64(p + 8, n->size);
    vg_le_put32(p + 16, chunked ? CHUNK_BITS : whole_blocks(n) ? n->block : 0);
    vg_le_put32(p + 20, number + 1);
    vg_le_put32(p + 24, n->uid);
    vg_le_put32(p + 28, n->gid);
    vg_le_put64(p + 32, (uint64_t)sec);
    vg_le_put32(p + 40, (uint32_t)(n->mtime - sec * NSEC));
    vg_le_put32(p + 44, n->nlink);
    uint8_t *q = p + INODE_BYTES + XATTR_HEAD;
    if (chunked) {
        q = put_xattr(q, METACOPY, NULL, 0);
        q = put_xattr(q, REDIRECT, text(e, n->extra), n->extra_len);
        vg_le_put32(p + INODE_BYTES + x, HOLE);
    } else if (S_ISDIR(n->mode) && n->extra_len)
        put_xattr(q, REDIRECT, text(e, n->extra), n->extra_len);
    else if (n->opaque)
        put_xattr(q, OPAQUE, "y", 1);
    if (S_ISDIR(n->mode) || S_ISLNK(n->mode))
        put_data(e, n, image, p + INODE_BYTES + x);
}

int vg_erofs_write(struct vg_erofs *e, struct vg_buf *out) {
    if (e->n == 0 || vg_buf_len(out))
        return -EINVAL;
    uint64_t blocks = lay_out(e);
    if (blocks > UINT32_MAX >> 1)
        return -EFBIG;
    uint8_t *image = vg_buf_reserve(out, blocks * BLOCK);
    if (!image)
        return -ENOMEM;
    memset(image, 0, blocks * BLOCK);
    put_super(e, image, blocks);
    for (size_t i = 0; i < e->n; i++)
        if (e->node[i].file == NO_FILE)
            put_inode(e, (uint32_t)i, image);
    vg_buf_commit(out, blocks * BLOCK);
    return 0;
}
