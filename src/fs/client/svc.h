#pragma once
/* Inside the file service: client.c, peer.c, link.c, job.c, push.c. Loop thread, but for what
   job.c's workers touch (struct vg_job alone).

   A peer is a node's daemon: what it was told and what it has. A link belongs to a task and to a
   peer; until the node has said hello the peer is a nameless one of its own. */
#include "fs/client/apply.h"
#include "fs/client/client.h"
#include "fs/client/memo.h"
#include "fs/client/packed.h"
#include "fs/client/tree.h"
#include "fs/client/watch.h"
#include "mirror/mwire.h"
#include "mirror/trace.h"

#include "base/list.h"
#include "base/map.h"

struct vg_mpeer {
    struct vg_list link;
    struct vg_mirror *m;
    bool named;
    bool once;     /* believes nothing any more when its links are gone */
    uint64_t lost; /* it has not confirmed yet that it knows of this loss of events; 0: none */
    uint8_t daemon[VG_MID];
    char *node;
    struct vg_apply *apply;
    unsigned links;
    struct vg_map told;   /* folder number to the record's sequence (+2) */
    struct vg_map stale;  /* told folders that are not so any more: number to object */
    struct vg_map unsaid; /* those of them that no Inval has named yet */
    struct vg_map have;   /* object number to struct vg_mhave */
};
struct vg_mhave { /* leaves of one state of a file that the node has or was sent */
    struct vg_mstat st;
    bool all;
    uint8_t *bits;
};

enum vg_mprio { VG_MP_DEMAND, VG_MP_FOLDER, VG_MP_PUSH, VG_MP_N };
struct vg_mframe { /* ready to be written */
    struct vg_list link;
    struct vg_buf buf;
    uint64_t object, leaf; /* of pushed content; object 0: something else */
};
enum vg_mitem_kind { VG_MI_DIR, VG_MI_DATA, VG_MI_XATTR, VG_MI_MSG };
struct vg_mitem { /* something to be sent */
    struct vg_list link;
    enum vg_mitem_kind kind;
    enum vg_mprio prio;
    uint64_t req;
    uint64_t object;
    uint64_t at, end; /* DATA: next offset to read, end; whole leaves */
    unsigned tries, jobs;
    bool once;  /* DATA: some of it was read */
    bool ahead; /* nobody waits for it yet */
    bool again; /* it was pushed, and was of no use */
    bool announced;
    bool runs;         /* MSG: a Run that is not early */
    bool ready;        /* of the ordered queue: done, may be sent when its turn comes */
    struct vg_buf buf; /* MSG, DIR: the frames */
};

struct vg_mlink {
    struct vg_list link;
    struct vg_mirror *m;
    struct vg_mirror_task *task; /* NULL: the task has ended */
    struct vg_mpeer *peer;
    int fd;
    uv_poll_t poll;
    bool closed, hello, pushed;
    bool broken; /* nothing can be sent any more; its end will be read, and then it is closed */
    bool ran;    /* Run is out, and not an early one: content finds its views */
    bool said_pushed; /* nothing of the first flight is left */
    bool more;        /* something waits only until the socket has taken what was handed to it */
    struct vg_mw_in in;
    struct vg_list queue[VG_MP_N]; /* vg_mitem: waiting; FOLDER: in order, also those under way */
    struct vg_list out[2];         /* vg_mframe: urgent, bulk */
    size_t backlog;                /* bytes in out */
    size_t written;                /* of the frame under way */
    struct vg_mframe *cur;
    unsigned jobs[VG_MP_N];
    struct vg_map recent[2]; /* leaves that were pushed: see met.c */
    uint64_t recent_since;
    struct vg_map announced; /* objects that the node was told to be coming */
    /* Folders that this link told of and that the node may not have yet: what is lost with the link
       was not told, and another link's Run may arrive before them. */
    struct vg_map told;
    uint64_t tellings; /* numbers what was put into told */
    bool marking;      /* a Mark is out: see vg_mlink_marked */
    uint64_t all_at;   /* the telling that everything is unproven; 0: none */
    uint64_t all_of;   /* which loss of events it was about */
    struct vg_list jobs_list;
    /* How fast it takes bytes. */
    uint64_t busy_since, busy_bytes, rate;
};

struct vg_mirror_task {
    struct vg_list link;
    struct vg_mirror *m;
    uint64_t id;
    char **argv;
    size_t n_argv;
    char *project;
    const char **view;
    struct vg_cobj **view_root;
    size_t n_view;
    bool strict, sync, ended;
    char key[3][65];
    size_t n_key;
    struct vg_trace trace;
    bool traced;
    struct vg_trace run; /* what the node said so far */
    bool run_whole;
    char *cwd, *program;
    unsigned links, greetings;
    char **allowed; /* --allow, while the command runs */
    size_t n_allowed;
    char *note; /* for the person, with the first flight; NULL: none */
};

#define VG_ASKED_MAX 256u
struct vg_masked_list { /* demands of the last run: see asked.c */
    struct vg_masked {
        char *path; /* owned */
        enum vg_mitem_kind kind;
        uint64_t leaf;
        const char *why;
    } item[VG_ASKED_MAX];
    size_t n;
};

struct vg_mirror {
    uv_loop_t *loop;
    char *root, *home, *state, host[256];
    int level;
    unsigned cores;
    uint8_t machine[VG_MID], epoch[VG_MID];
    struct vg_mpolicy *policy;
    struct vg_ctree *tree;
    struct vg_watch *watch;
    struct vg_memo *memo;
    struct vg_packed *packed;
    struct vg_list peers, links, tasks;
    struct vg_mpeer *orphan; /* what links told that broke before it was known whom; NULL: none */
    uint64_t losses;         /* how often events were lost */
    uint64_t performed;      /* operations of nodes */
    uint64_t folders_read, leaves_read; /* from the disk, by workers */
    uint64_t sent_bytes, demands, demand_bytes, pushed_bytes, skipped, folders;
    struct vg_masked_list asked;
    unsigned jobs;
    bool freeing;
};

/* peer.c */
struct vg_mpeer *vg_mpeer_new(struct vg_mirror *m);
void vg_mpeer_free(struct vg_mpeer *p);
/* The node of a link has said who it is: its peer becomes that one, which learns what the link has
   sent so far. `known`: it was met before and still holds what it was told. */
int vg_mpeer_name(struct vg_mlink *l, const Vg__Mr__NodeHello *h, bool *ret_known);
bool vg_mpeer_current(const struct vg_mpeer *p, const struct vg_cobj *folder);
void vg_mpeer_told(struct vg_mpeer *p, struct vg_cobj *folder, uint64_t seq);
/* It changed since it was told; what is only doubted did not. */
bool vg_mpeer_outdated(const struct vg_mpeer *p, const struct vg_cobj *folder);
void vg_mpeer_marked(struct vg_mlink *l, uint64_t number); /* it has what was told so far */
/* A link broke: what it told last may never have arrived. */
void vg_mpeer_doubt(struct vg_mlink *l);
void vg_mpeer_left(struct vg_mlink *l); /* the link is gone from its peer */
void vg_mpeer_forget(struct vg_mpeer *p, uint64_t folder);
bool vg_mpeer_has(const struct vg_mpeer *p, const struct vg_cobj *o, uint64_t leaf);
void vg_mpeer_sent(struct vg_mpeer *p, const struct vg_cobj *o, uint64_t leaf);
void vg_mpeer_has_all(struct vg_mpeer *p, const struct vg_cobj *o);
void vg_mpeer_on_change(void *mirror, struct vg_cobj *folder, const uint8_t *actor);
void vg_mpeer_lost(struct vg_mirror *m);    /* everything is unproven */
void vg_mpeers_inval(struct vg_mirror *m);  /* says what is unsaid to whom has a link */
int vg_mpeer_inval_all(struct vg_mlink *l); /* before Run: all that is stale */
bool vg_mpeers_known(const struct vg_mirror *m);

/* link.c */
int vg_mlink_new(struct vg_mirror_task *t, int fd, struct vg_mlink **ret);
void vg_mlink_close(struct vg_mlink *l, const char *why);
/* Whoever says something may be in the middle of using the link or its peer. So saying never closes
   it: what is said to a link that is broken is dropped, and counts as not told when it is closed.

   Takes the bytes. */
int vg_mlink_put(struct vg_mlink *l, bool urgent, struct vg_buf *bytes);
int vg_mlink_put_leaf(struct vg_mlink *l, bool urgent, struct vg_buf *bytes, uint64_t object,
                      uint64_t leaf);
/* The node has everything that was told before the Mark of that number. */
void vg_mlink_marked(struct vg_mlink *l, uint64_t number);
int vg_mlink_msg(struct vg_mlink *l, const Vg__Mr__Msg *m);
void vg_mlink_write(struct vg_mlink *l);
int vg_mlink_level(const struct vg_mlink *l);

/* met.c */
bool vg_mlink_reads(const struct vg_mlink *l, uint64_t object, uint64_t offset);
void vg_mlink_pushed(struct vg_mlink *l, uint64_t object, uint64_t leaf);
/* The leaf is on its way by a push: the demand needs no answer of its own. */
bool vg_mlink_met(struct vg_mlink *l, uint64_t req, uint64_t object, uint64_t leaf);
void vg_mlink_say_sent(struct vg_mlink *l, uint64_t req, uint64_t object, uint64_t leaf);
/* A push of [it->at, end) begins: the node is told, if it is big. */
void vg_mlink_announce(struct vg_mlink *l, struct vg_mitem *it, uint64_t end);
/* A part of the object's push is over: the node is told when that was the last. */
void vg_mlink_announced(struct vg_mlink *l, uint64_t object);

/* asked.c */
void vg_asked(struct vg_mlink *l, const Vg__Mr__Get *g);
void vg_asked_clear(struct vg_masked_list *a);

/* take.c: what a node says */
int vg_mlink_take(struct vg_mlink *l, struct vg_mw_frame *f);

/* job.c */
struct vg_mitem *vg_mitem_new(struct vg_mlink *l, enum vg_mitem_kind kind, enum vg_mprio prio,
                              uint64_t req, uint64_t object);
void vg_mitem_free(struct vg_mitem *it);
void vg_mlink_work(struct vg_mlink *l); /* starts what may be started */
void vg_mlink_drop_jobs(struct vg_mlink *l);
int vg_mlink_fail(struct vg_mlink *l, uint64_t req, uint64_t object, int code, const char *text);

/* push.c */
void vg_mlink_first_flight(struct vg_mlink *l);
void vg_mlink_greeted(struct vg_mlink *l, bool known);

/* traces.c */
int vg_mtask_load_trace(struct vg_mirror_task *t);
int vg_mtask_trace(struct vg_mirror_task *t, const Vg__Mr__Trace *m);
void vg_mirror_tidy(const struct vg_mirror *m); /* forgets what was not used for long */

/* client.c: the rules for a machine, Virga's own folders among the denied. */
int vg_mirror_policy(const struct vg_mirror_conf *conf, struct vg_mpolicy **ret);
