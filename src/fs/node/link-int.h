#pragma once
/* Shared by link.c (sockets, frames that come) and link-ask.c (demands, frames that go). */
#include "base/list.h"
#include "base/map.h"
#include "fs/node/link.h"

#include <pthread.h>
#include <stdatomic.h>

#define LINK_PARTS 64    /* records under way on one link */
#define LINK_OUT_MAX 64u /* MiB waiting on one link: its peer does not read */
#define LINK_BUCKETS 256u
#define LINK_GATHER (32u << 10) /* bytes of operations that are held back at most */
#define LINK_COMING 64u         /* announced pushes of one link */

struct part { /* a record that comes in pieces */
    struct vg_list link;
    uint64_t object;
    struct vg_buf buf;
};

/* A push that was announced. What comes is nearly in order: `seen` are the leaves from `front` on
   that did, and front's own is not among them. */
struct coming {
    struct vg_list link;
    uint64_t object, front, end; /* leaves */
    uint64_t seen;
};

struct link {
    struct vg_list link; /* in vg_links.links, oldest first */
    int fd;
    uint64_t task;
    bool ready;         /* Hello has come */
    atomic_bool broken; /* the receiving thread takes it down */
    bool waiting;       /* for EPOLLOUT */
    struct vg_mw_in in;
    struct vg_buf out;
    struct vg_list parts;
    unsigned n_parts;
    struct vg_list coming; /* under the lock */
    unsigned n_coming;
};

enum ask_kind { ASK_DIR, ASK_DATA, ASK_XATTRS };
struct ask { /* a demand that has not been answered */
    struct vg_list link;
    uint64_t req, object, off, len;
    uint64_t got; /* leaves: those in `has` */
    enum ask_kind kind;
    unsigned urgency;
    struct link *on; /* NULL: waits for a link */
    uint8_t has[];   /* of content: a bit a leaf */
};

struct vg_links {
    struct vg_link_ops ops;
    void *user;
    uint8_t daemon[VG_MID], epoch[VG_MID];
    bool have_epoch;
    char *node; /* owned */
    char host[128];
    pthread_t thread;
    bool running;
    int epfd, wakefd;
    pthread_mutex_t lock; /* everything below, and links' out, ready, broken */
    bool stop;
    struct vg_list links;
    struct link *ops_on;               /* carries the operations */
    bool hold;                         /* they are gathered */
    struct vg_list asks[LINK_BUCKETS]; /* by object */
    struct vg_map by_req;
    uint64_t next_req;
    struct vg_links_stat stat;
};

/* With the lock held. */
void vg_link_flush(struct vg_links *l, struct link *k);
struct link *vg_link_pick(struct vg_links *l);
/* Shuts it down; the receiving thread sees its end and takes it away. */
void vg_link_break(struct link *k);
void vg_ask_all_again(struct vg_links *l, const struct link *broken); /* NULL: those that wait */
void vg_ask_forget_all(struct vg_links *l);
void vg_ask_sent(struct vg_links *l, struct link *k, const Vg__Mr__Sent *m); /* takes the lock */

/* link-coming.c; with the lock held. */
void vg_coming(struct link *k, const Vg__Mr__Coming *m);
void vg_coming_seen(struct link *k, uint64_t object, uint64_t leaf);
/* How many leaves from this one on need not be asked for. */
uint64_t vg_coming_soon(const struct vg_links *l, uint64_t object, uint64_t leaf, unsigned urgency);
uint64_t vg_coming_any(const struct link *k); /* an object of which more was to come; 0: none */
void vg_coming_over(struct link *k, uint64_t object);
/* Takes the lock. An answer has come: is its demand over? */
enum answer {
    ANSWER_WHOLE,
    ANSWER_PART,  /* of the content */
    ANSWER_OTHER, /* of no use: its demand is over, but a push meets none */
};
void vg_ask_answered(struct vg_links *l, struct link *k, const struct vg_mw_frame *f, uint64_t req,
                     enum answer a);
