#pragma once
/* A file service for tests of the node's side: serves a folder as a machine's root, answers what it
   is asked and does nothing else. One thread a link. */
#include "fs/node/machine.h"

#include <pthread.h>

struct vg_ctree;
struct vg_mpolicy;
struct fake_link;

struct fake {
    struct vg_ctree *tree;
    struct vg_mpolicy *policy;
    uint8_t machine[VG_MID], epoch[VG_MID];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool mute; /* reads questions and answers none */
    int deny;  /* errno for every question about content */
    unsigned dirs, datas, xattrs, skipped, traces;
    uint64_t trace_items;
    bool trace_whole;
};

void fake_init(struct fake *f, const char *root, const char *epoch);
void fake_done(struct fake *f);
void fake_epoch(struct fake *f, const char *root, const char *epoch); /* another life of it */
struct fake_link *fake_open(struct fake *f, int *ret_fd); /* the node's end of a new link */
struct fake_link *fake_connect(struct fake *f, struct vg_machine *m, uint64_t task);
void fake_cut(struct fake_link *l); /* closes and frees */
void fake_run(struct fake_link *l, uint64_t task, bool strict);
void fake_push_dir(struct fake_link *l, const char *path);
void fake_push_file(struct fake_link *l, const char *path);
/* A folder with nothing but a folder "d" in it. */
void fake_push_nested(struct fake_link *l, uint64_t object, uint64_t inner);
/* A folder's record and a small file's content, as a service would send them now. */
void fake_hold(struct fake *f, const char *folder, const char *file, struct vg_buf *out);
void fake_send(struct fake_link *l, struct vg_buf *frames); /* which takes them */
void fake_inval(struct fake_link *l, const char *path);
