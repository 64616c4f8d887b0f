#pragma once
/* Fills a tree (ftree.h) from a file service: the other end of a link (docs/mirror.md), as a node
   would be, that keeps what it gets in the store. Blocking: a thread of its own. Nothing is trusted
   that comes. Content that the store has by the id which the record tells is not asked for. Secrets
   (VG_DE_SECRET) and what is denied never come. */
#include "fs/store/ftree.h"

struct vg_pull_conf {
    struct vg_ftree *tree; /* empty, new */
    int fd;                /* taken */
    /* Folders and files, absolute and clean, that are wanted with all below. NULL: everything. */
    const char *const *path;
    size_t n_path;
    bool prune; /* what is not wanted is left out; else it is there by name, and can be asked for */
    bool names; /* contents are not wanted: files have the ids that their records tell */
    bool views; /* the written views of its Run are wanted, too (the project) */
    bool pushes; /* what it pushes is wanted, whole files; it says Pushed when that is all */
    bool stay;   /* goes on for demands until the link ends */
    /* Once, from the puller's thread: all that is wanted is here (or will never come). */
    void (*ready)(void *user);
    void *user;
};
/* 0: all that is wanted came (with `stay`: before the link ended). -ECONNRESET: it ended earlier;
   -EPROTO, -EDQUOT, -ENOSPC, ... with a sentence. */
int vg_pull(const struct vg_pull_conf *conf, struct vg_err *err);
