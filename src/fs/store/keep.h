#pragma once
/* What a task left changed in a snapshot, kept under the name "task/<id>": a tree like any other,
   of which every thing says what was there before, so that it can be compared and applied without
   the snapshot itself:

       VG_KEEP_WAS   of everything: a letter, then what is known of it
                     '-' nothing was there   'd' a folder   'o' something else
                     'f' a file, and its file id unless its content never came
                     'l' a link, and its target
       VG_KEEP_GONE  of a folder: it is not there any more, nor is what lies in it here

   What is gone and no folder is a device 0:0, as overlayfs has it. */
#include "fs/store/ftree.h"
#include "proto/mirror.pb-c.h"

#define VG_KEEP_WAS "virga.was"
#define VG_KEEP_GONE "virga.gone"
#define VG_KEEP_PREFIX "task/"

/* Reading. */
struct vg_change {
    bool gone;
    char was;           /* the letter; '?': it says nothing that makes sense */
    const uint8_t *id;  /* of a file that was there, or NULL */
    const char *target; /* of a link that was there, not terminated */
    size_t target_len;
};
void vg_change_of(const struct vg_fitem *i, struct vg_change *ret);
/* Is it more than a folder on the way to something that changed? */
bool vg_change_counts(const struct vg_fitem *i, const struct vg_change *c);

/* Receiving (mirror.proto, Keep), one telling after another, from one thread. */
struct vg_keepin;
struct vg_keepin_answer { /* of an answer that is to be sent */
    uint64_t task, round, changes;
    int error; /* errno; 0: it is stored, durably */
    char text[200];
};
/* The folders that a node may tell changes of, as the task was submitted: without the NUL at their
   end. Nobody believes the node. */
struct vg_keep_conf {
    struct vg_estore *store;
    const ProtobufCBinaryData *path;
    size_t n_path;
    bool all; /* the whole tree */
};
/* All is borrowed and must outlive it. `base`: what the task began with. NULL: no memory. */
struct vg_keepin *vg_keepin_new(const struct vg_keep_conf *conf, struct vg_ftree *base);
void vg_keepin_free(struct vg_keepin *k);
/* 1: *ret is to be sent. -EPROTO: the link must be dropped. */
int vg_keepin_msg(struct vg_keepin *k, const Vg__Mr__Keep *m, struct vg_keepin_answer *ret);
int vg_keepin_bytes(struct vg_keepin *k, uint64_t number, uint64_t off, const void *data, size_t n,
                    struct vg_keepin_answer *ret);

/* Removes those that are older than this; how many. */
size_t vg_keep_expire(struct vg_estore *s, uint64_t older_than_usec);
