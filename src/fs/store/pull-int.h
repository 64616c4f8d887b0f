#pragma once
/* A puller's own state. Its thread alone, but for `demands` and `wake` (the tree's lock). */
#include "fs/store/ftree-int.h"
#include "fs/store/pull.h"
#include "mirror/mwire.h"

#define VG_PULL_PATHS_MAX 256
#define VG_PULL_VIEWS_MAX 64

/* A program waits for these bytes. */
struct vg_demand {
    struct vg_demand *next;
    uint64_t object, off, len;
    bool sent;
};
/* A question under way. */
struct vg_ask {
    uint64_t object; /* ours */
    uint64_t left;   /* bytes that have not come; of a folder or xattrs 0 */
    enum { VG_ASK_DIR, VG_ASK_DATA, VG_ASK_XATTR } kind;
};
/* A record, or a piece of one, whose folder is not known (yet). */
struct vg_orphan {
    struct vg_buf rec;
    bool more;
};

struct vg_pull {
    const struct vg_pull_conf *conf;
    struct vg_ftree *t;
    int fd, wake;
    struct vg_err *err;
    struct vg_mw_in in;
    struct vg_buf out;
    struct vg_map by_up;   /* their number -> struct vg_fnode */
    struct vg_map orphans; /* their number -> struct vg_orphan, owned */
    struct vg_map loose;   /* their numbers of files whose content came before their folder */
    size_t orphan_bytes;
    struct vg_map asks; /* request -> struct vg_ask, owned */
    uint64_t last_req;
    struct vg_list dirs, files, attrs; /* struct vg_fnode.todo and .attr */
    struct vg_demand *demands;
    char *path[VG_PULL_PATHS_MAX]; /* owned: wanted */
    size_t n_path;
    struct vg_pull_view {
        char *path; /* owned */
        uint64_t up;
    } view[VG_PULL_VIEWS_MAX];
    size_t n_view;
    uint64_t open; /* wanted and neither here nor given up */
    uint64_t asked_bytes;
    uint32_t asked_other;
    bool hello, run, pushed, widened, told;
    bool stop; /* under the tree's lock: whom it fills for has gone */
};

/* pull-ask.c; with the tree's lock held. */
int vg_pull_ask(struct vg_pull *p); /* as much as the window has room for */
/* The file is another one by now; its folder's record comes unasked, or is asked for. */
int vg_pull_ask_again(struct vg_pull *p, struct vg_fnode *n);
/* What a question was for had been pushed: it is here, or is asked for again. */
int vg_pull_sent(struct vg_pull *p, const Vg__Mr__Sent *m);
void vg_pull_ask_over(struct vg_pull *p, uint64_t req, struct vg_ask *a);

/* pull-tree.c; with the tree's lock held. */
void vg_pull_want(struct vg_pull *p, struct vg_fnode *n);
void vg_pull_settle(struct vg_pull *p, struct vg_fnode *n, enum vg_fnode_state state, int error);
void vg_pull_mark(struct vg_pull *p); /* wants what the paths name, as far as it is known */
int vg_pull_root(struct vg_pull *p, uint64_t up);
/* A trace or a guess is never all of it: wants what lies beside what was pushed, in bounds; when
   that has come, `wider`: what is small in the folders that are known by now. */
void vg_pull_around(struct vg_pull *p, bool wider);
/* The folder at that path has this number, and what is below it, too, is found from there. */
int vg_pull_view(struct vg_pull *p, const char *path, uint64_t up);
/* A whole record came. */
int vg_pull_record(struct vg_pull *p, const struct vg_dirrec *rec);
int vg_pull_keep_orphan(struct vg_pull *p, uint64_t up, const void *piece, size_t n, bool more);
int vg_pull_content(struct vg_pull *p, struct vg_fnode *n, uint64_t off, uint64_t size,
                    const void *data, size_t len);
