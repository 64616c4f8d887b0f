#pragma once
/* A project view inside. The tree as programs on this node see it is kept in memory: what the
   client's records say, with the operations of the log done to it. What always holds:

   1. `lock` guards the tree, the files' tables and the waiting requests. It is not held while
      content is read or written, while the kernel is notified, or while the program is answered.
   2. A handler either changes nothing and waits (it is run again from its beginning), or does its
      operation, its log entry having been allocated before.
   3. A name or thing whose last operation is newer than a folder's record stays as it is here;
      the record is asked for again when that operation has been acknowledged.
   4. A leaf with a byte that was written here lies wholly in the backing file. */
#include "fs/node/machine.h"

#include "base/list.h"
#include "base/map.h"

#include <pthread.h>

#define PROJ_DIRTY_FLUSH (8u << 20) /* unsent bytes of one file that go into the log at once */
#define PROJ_RANGES 256             /* unsent ranges of one file that go into the log at once */
#define PROJ_LOG_DATA                                                                           \
    (64u << 20)                 /* unacknowledged bytes above which files wait in their backing \
                                 */
#define PROJ_LOG_ENTRIES 200000 /* unacknowledged operations above which programs wait */
#define PROJ_FETCH_SMALL (4u << 20)   /* files up to this size are fetched whole */
#define PROJ_PATH_MAX 65000           /* of a path below the root */
#define PROJ_FLUSH_USEC (2 * VG_USEC) /* data of open files go out after this */

struct pnode;

/* A name in a folder. Without a node: removed here, and the client may not know yet. */
struct pdent {
    struct pdent *chain; /* of the view's table of names */
    struct pdent *next;  /* of the node's names */
    struct pnode *parent;
    struct pnode *node;
    uint64_t object;     /* the client's number of this name; 0: not known */
    uint64_t pend;       /* the last operation on this name */
    uint64_t cookie;     /* where it stands in the folder, for readdir */
    size_t at;           /* its slot there */
    uint64_t seen;       /* the last record that had it */
    struct vg_list tomb; /* without a node: of the view's removed names */
    uint32_t hash;
    uint16_t len;
    char name[];
};

struct pdir {
    struct pnode *owner;
    struct pdent **slot; /* by cookie; NULL: removed */
    size_t n, cap, live;
    uint64_t next_cookie;
    uint64_t record;      /* how many records were merged: 0 is never, and not made here */
    uint64_t last_op;     /* on any of its names */
    uint64_t req;         /* of that question */
    uint64_t fetch_acked; /* what was acknowledged when it was asked for */
    uint64_t fetch_gen, proved_gen; /* which vg_proj_begin it was asked for and proven after */
    uint64_t seq;                   /* of the newest record that is in it */
    bool fetching, again, unproven;
    struct vg_list unproven_link;
    struct vg_list waiting; /* struct pwait */
};

struct prange {
    uint64_t off, end;
};

/* Content of a regular file. */
struct pfile {
    struct pnode *owner;
    struct vg_blob *blob; /* the client's content; NULL: not asked for yet, or none */
    uint64_t base;        /* so many bytes of it still count */
    uint8_t *have;        /* bit a leaf below base: it is in the backing file */
    uint64_t n_have;
    bool based;    /* blob and base are settled */
    bool backing;  /* there is a backing file */
    uint64_t spot; /* its name, but for a secret's */
    bool memory;   /* it is of memory, and always open: a secret's */
    int fd;        /* of it, while pins > 0 */
    unsigned pins;
    bool held;            /* one of the pins is for those who have it open for writing */
    struct prange *dirty; /* sorted, apart; not in the log yet */
    size_t cap_dirty;
    unsigned n_dirty;
    bool touched; /* times changed without data: END says so */
    uint64_t dirty_bytes, dirty_since;
    struct vg_list dirty_link;
    struct vg_list waiting; /* for data */
    uint8_t *used;          /* bit a leaf: noted in the trace generation used_gen */
    uint64_t n_used;
    uint32_t used_gen;
    uint64_t ahead, asked; /* reading in order: the next offset, what has been asked for */
};

struct pxattr {
    struct pxattr *next;
    char *name;
    size_t len;
    uint8_t value[];
};

struct pnode {
    struct vg_proj *p;
    uint64_t handle;     /* our number in the log; 0: none yet */
    struct vg_mstat st;  /* as programs see it; ids are the client's */
    struct vg_mstat cst; /* as the client has it, when at_client */
    struct pdent *names;
    struct pdir *dir;   /* folders */
    struct pfile *file; /* regular files */
    char *target;       /* links */
    struct pxattr *xattr;
    uint64_t xattr_req; /* the question for them that counts */
    uint64_t pend;      /* the last operation on the thing itself */
    uint64_t nlookup;
    uint32_t nopen, nwrite, refs;
    uint8_t id[VG_HASH]; /* of the content, when has_id */
    bool at_client, has_id, denied, secret, xattr_known, xattr_asked;
    bool local; /* changed here: shows its own inode number and ctime until settled */
    bool is_root;
    uint8_t lost_numbers; /* how often in a row the client did not know its number */
    uint32_t used_gen;    /* noted in this trace generation */
    struct vg_list xattr_waiting;
    struct vg_list all; /* of the view */
};

struct pwait {
    struct vg_list link;
    struct vg_fuse_req *r;
};
struct packwait { /* answered when op has been acknowledged */
    struct vg_list link;
    struct vg_fuse_req *r;
    struct pnode *n;
    uint64_t op;
    bool lookup, excl; /* it gives a name; nobody else may have made it */
    uint32_t open;     /* as pctx.gave_open */
    size_t len;
    _Alignas(8) uint8_t out[256];
};
struct pnotice {
    struct pnotice *next;
    uint64_t parent, node; /* an entry, or (parent 0) an inode */
    bool attr;             /* of the inode the attributes alone */
    uint16_t len;
    char name[];
};

struct puse {
    uint64_t object;
    uint32_t leaf; /* UINT32_MAX: the thing itself */
};

struct vg_proj {
    pthread_mutex_t lock;
    struct vg_view_conf conf;
    char *dir;
    int dirfd;
    uint64_t *spare; /* names of empty backing files that nobody uses */
    size_t n_spare, cap_spare;
    unsigned missed, ahead; /* spare ones were missing; so many are kept ready */
    uint64_t spots;         /* names given so far */
    struct vg_fuse *fuse;
    struct vg_oplog *log;
    uint32_t view;
    uint64_t task;
    bool sync, stopping;
    struct pnode *root;
    struct pdent **table; /* names of all folders */
    size_t table_cap, table_n;
    struct vg_map handles; /* ours to pnode */
    struct vg_map objects; /* the client's to pdent or, for the root, to VG_PROJ_ROOT_OBJ */
    struct vg_map links;   /* inode to pnode, for what has several names */
    uint64_t root_object;
    uint64_t acked;
    uint64_t acked_seq; /* records after it have all that; UINT64_MAX: not known */
    bool tree_lost; /* something was taken away that more lies below: who waits there is woken */
    bool idle;      /* no task uses it: what changes at the client is asked for by the next */
    uint64_t begins;
    uint64_t next_ino;
    struct vg_list nodes, dirty, unproven, room, acks, tombs;
    struct vg_list ready; /* struct pwait: to be run again */
    struct pnotice *notices, **notices_end;
    uint64_t notices_put, notices_done;
    pthread_cond_t work, told, proven; /* runner; notifier; begin */
    struct puse *uses;                 /* since the oldest task that is traced began */
    size_t n_uses, cap_uses;
    struct vg_map tracing; /* by task: where in uses it began */
    uint32_t trace_gen;
    bool traced_before;
    pthread_t runner, notifier;
    bool have_runner, have_notifier;
};

/* One request while it is handled. */
struct pctx {
    struct vg_fuse_req *r;
    const struct fuse_in_header *h;
    const void *arg;
    size_t len;
    struct vg_list *park; /* PROJ_WAIT: on what */
    uint64_t wait_op;     /* answer when this has been acknowledged */
    struct pnode *wait_node;
    size_t out_len;
    uint8_t *big; /* owned: answer instead of out */
    bool answered;
    bool
        excl; /* makes something that must not be there: also at the client, when it waits for it */
    struct pnode *gave_lookup; /* to be taken back when nobody waits for the answer */
    uint32_t gave_open;        /* 1: opened, 2: for writing, too */
    _Alignas(8) uint8_t out[256];
};
#define PROJ_WAIT 1

/* One operation for the log; strings are borrowed. */
struct vg_oprec {
    Vg__Mr__Op__Kind kind;
    struct pnode *n;
    struct pnode *parent, *parent2;
    const char *name, *name2; /* paths */
    uint32_t flags, valid;
    struct vg_mstat st;
    bool has_before;
    uint8_t before[VG_HASH];
    const void *data; /* target; or an attribute's value (NULL: removed) */
    size_t data_len;
    const char *xattr;
    uint64_t off, len;
};
struct vg_logent;
/* Two steps, so that what was done here is always logged. Make: NULL is -ENOMEM. */
struct vg_logent *vg_logent_new(struct vg_proj *p, const struct vg_oprec *r);
void vg_logent_free(struct vg_logent *e); /* of one that was not added */
uint64_t vg_oplog_add(struct vg_oplog *log, struct vg_logent *e);
uint64_t vg_oplog_handle(struct vg_oplog *log);
/* The view goes away: its operations are sent no more. */
void vg_oplog_forget(struct vg_oplog *log, struct vg_proj *p);
void vg_oplog_kick(struct vg_oplog *log);
bool vg_oplog_full(struct vg_oplog *log);
bool vg_oplog_data_full(struct vg_oplog *log);
/* Of the view: operations up to `op` are done. On the receiving thread. */
void vg_proj_acked(struct vg_proj *p, uint64_t op, const Vg__Mr__Ack *m);
void vg_oplog_failed(struct vg_oplog *log, int code, const char *text);
void vg_oplog_extend_barriers(struct vg_oplog *log);
void vg_pnode_unref(struct pnode *n); /* takes the lock */

/* proj-tree.c; all with the lock */
struct pdent *proj_find(struct vg_proj *p, struct pnode *dir, const char *name, size_t len);
struct pdent *proj_dent_new(struct vg_proj *p, struct pnode *dir, const char *name, size_t len);
void proj_dent_free(struct vg_proj *p, struct pdent *d); /* also takes it off its node */
void proj_dent_set(struct vg_proj *p, struct pdent *d, struct pnode *n); /* n may be NULL */
size_t proj_slot_at(const struct pdir *f, uint64_t cookie); /* the first slot after it */
uint64_t proj_new_ino(struct vg_proj *p);                   /* until the client has given it one */
struct pnode *proj_node_new(struct vg_proj *p, const struct vg_mstat *st);
void proj_node_maybe_free(struct vg_proj *p, struct pnode *n);
uint64_t proj_handle(struct pnode *n);
struct pnode *proj_node(struct vg_proj *p, uint64_t nodeid);
uint64_t proj_nodeid(const struct pnode *n);
int proj_path(const struct pdent *d, const char *leaf, size_t leaf_len, char **ret);
int proj_node_path(const struct pnode *n, char **ret);
/* One of a tree that the client removed does not, although the kernel may still remember it. */
bool proj_lies_somewhere(const struct pnode *n);
uint64_t proj_object(const struct pnode *n); /* a number the client knows it by, or 0 */
void proj_attr(const struct pnode *n, struct fuse_attr *out);
int64_t proj_now(void);
void proj_changed(struct pnode *n, bool content); /* ctime, and mtime with content */

/* proj-merge.c */
/* `acked`: of a pushed one, operations up to it are in the record for sure. */
void proj_merge(struct vg_proj *p, struct pnode *dir, const struct vg_dirrec *rec, bool pushed,
                uint64_t acked);
void proj_unprove(struct vg_proj *p, struct pnode *dir);
void proj_fetch_dir(struct vg_proj *p, struct pnode *dir);
void proj_refresh_dir(struct vg_proj *p, struct pnode *dir); /* nobody waits for it */
/* The client's number of it is not known: asks for the records that tell. False: nothing will, it
   lies nowhere any more. */
bool proj_learn(struct vg_proj *p, struct pnode *n);
int proj_need_dir(struct vg_proj *p, struct pnode *dir, struct pctx *c); /* 0, PROJ_WAIT, -errno */
void proj_notice(struct vg_proj *p, struct pnode *parent, const char *name, size_t len,
                 struct pnode *n);
void proj_wake(struct vg_proj *p, struct vg_list *waiting);
/* True when somebody waited. */
bool proj_fail_waiting(struct vg_proj *p, struct vg_list *waiting, int err);

/* proj-trace.c */
void proj_use(struct vg_proj *p, struct pnode *n);
void proj_use_data(struct pnode *n, uint64_t off, uint64_t end);
void proj_trace_lost(struct vg_proj *p); /* the client's numbers mean nothing any more */

/* proj-data.c */
int proj_file_want(struct pnode *n); /* n->file, its blob when the client has content */
int proj_backing_open(struct vg_proj *p, struct pfile *f); /* proj-backing.c; -1 and errno */
/* `unused`: nobody has it open but f itself, so another file may get it. */
bool proj_backing_ahead(struct vg_proj *p);
void proj_backing_remove(struct vg_proj *p, struct pfile *f, bool unused);
int proj_pin(struct pnode *n, bool make);
void proj_unpin(struct pnode *n);
void proj_unhold(struct pnode *n); /* nobody writes to it any more */
bool proj_leaf_here(const struct pfile *f, uint64_t leaf);
/* Makes [off, end) ready to be overwritten: 0, PROJ_WAIT, -errno. Unlocks meanwhile. */
int proj_prepare(struct pnode *n, uint64_t off, uint64_t end, struct pctx *c);
/* Reads at most len bytes within the file: bytes, PROJ_AGAIN, -errno. */
int proj_fetch_data(struct pnode *n, uint64_t off, uint64_t end, unsigned urgency);
void proj_blob_lost(struct pnode *n);
int proj_take_data(struct pnode *n, uint64_t off, const uint8_t *data, size_t len);
/* Room for one more change: 0, -ENOMEM. Before it is made, so that none is forgotten. */
int proj_dirty_room(struct pnode *n);
int proj_dirty(struct pnode *n, uint64_t off, uint64_t end); /* 0, -ENOMEM: it is not noted */
void proj_dirty_cut(struct pnode *n, uint64_t size);
int proj_truncate(struct pnode *n, uint64_t size); /* here alone, not logged */
int proj_flush_node(struct pnode *n);              /* its data into the log */
void proj_dirty_all(struct pnode *n);              /* after proj_dirty_room */
void proj_file_drop(struct pnode *n); /* what is here of its content: the client's is another */
void proj_file_secret(struct pnode *n, bool secret); /* drops it, and changes where it may lie */
void proj_before(const struct pnode *n, struct vg_oprec *r);

/* Handlers: 0, PROJ_WAIT, -errno */
int proj_op_lookup(struct vg_proj *p, struct pctx *c);
int proj_op_readdir(struct vg_proj *p, struct pctx *c, bool plus);
int proj_op_create(struct vg_proj *p, struct pctx *c);
int proj_op_tmpfile(struct vg_proj *p, struct pctx *c);
int proj_op_mknod(struct vg_proj *p, struct pctx *c);
int proj_op_mkdir(struct vg_proj *p, struct pctx *c);
int proj_op_symlink(struct vg_proj *p, struct pctx *c);
int proj_op_link(struct vg_proj *p, struct pctx *c);
int proj_op_unlink(struct vg_proj *p, struct pctx *c, bool folder);
int proj_op_rename(struct vg_proj *p, struct pctx *c, bool two);
int proj_op_getattr(struct vg_proj *p, struct pctx *c);
int proj_op_setattr(struct vg_proj *p, struct pctx *c);
int proj_op_readlink(struct vg_proj *p, struct pctx *c);
int proj_open_file(struct pnode *n, uint32_t flags, struct pctx *c);
int proj_op_open(struct vg_proj *p, struct pctx *c);
int proj_op_read(struct vg_proj *p, struct pctx *c);
int proj_op_write(struct vg_proj *p, struct pctx *c);
int proj_op_flush(struct vg_proj *p, struct pctx *c);
int proj_op_release(struct vg_proj *p, struct pctx *c);
int proj_op_fsync(struct vg_proj *p, struct pctx *c);
int proj_op_fallocate(struct vg_proj *p, struct pctx *c);
int proj_op_getxattr(struct vg_proj *p, struct pctx *c, bool list);
int proj_op_setxattr(struct vg_proj *p, struct pctx *c);
int proj_op_removexattr(struct vg_proj *p, struct pctx *c);

int proj_name_in(struct vg_proj *p, struct pctx *c, size_t skip, struct pnode **ret_dir,
                 const char **ret, size_t *ret_len);
void proj_entry_out(struct pctx *c, struct pnode *n, struct fuse_entry_out *out);
void proj_wait_for(struct pctx *c, struct pnode *n, uint64_t op);
/* With --sync: the client has it before the program goes on. */
void proj_sync_wait(struct pctx *c, struct pnode *n);
/* Nobody got the answer: what it gave is taken back, and the node may go. */
void proj_take_back(struct vg_proj *p, struct pnode *n, uint32_t lookups, uint32_t open);
void proj_xattrs_come(struct pnode *n, const Vg__Mr__Fail *m);
/* The client's are others now. `none`: it has none. */
void proj_xattrs_drop(struct pnode *n, bool none);
int proj_log_xattrs(struct pnode *n);
void proj_run(struct vg_proj *p, struct vg_fuse_req *r); /* handles a request; takes the lock */
