#pragma once
/* A store whose contents go to a bucket (s3.h).

       u/<user>/key                         as dir/key
       u/<user>/env/<name>/<n>, .../teams   as in dir/env
       u/<user>/dat/xx/<name>-<suffix>      a file's content
       u/<user>/rec/xx/<name>-<suffix>      a folder of a snapshot

   A suffix is 16 random digits, made for each upload: a key is written once and never again, so
   that no deletion, however late it is carried out, can hit what was stored anew.

       dir/up/dat/xx/<name>  the bucket has it: a link to "<suffix>.<size>", its mtime is the number
                             of the collection as in estore.h
       dir/dat/xx/<name>     without such a mark: it has to go up; with one: a copy, which may go
       dir/del/<d or r><name>-<suffix>   to be deleted there; nobody uses it any more

   What always holds:
   1. A mark is made when the bucket has said that it has the object, and not before.
   2. A content without a mark stays here until it has one or is collected.
   3. A version is written when all that was stored before it has a mark (vg_estore_settle), in the
      bucket first. It is removed in the bucket first. So what is a version there and not here is
      one: a collection takes it over before it looks for what nothing holds, and a folder that was
      lost or is older than the bucket comes back whole.
   4. What comes from the bucket is seen only when its hash is its name's.
   Records are never dropped from the cache: collections and whoever looks at a tree read them. */
#include "base/list.h"
#include "fs/store/estore-int.h"

#define VG_EB_MARK_MAX 96
#define VG_EB_SUFFIX 16

struct vg_ebucket {
    struct vg_s3 *s3; /* borrowed */
    char *base;       /* owned; "u/<user>/" */
    uint64_t cache_bytes;
    /* under the store's lock from here on */
    uint64_t cached; /* bytes of contents that have a mark and lie here */
    bool evicting;
    uint64_t evict_asked;   /* times that somebody wanted room */
    pthread_cond_t changed; /* something was uploaded or failed, a worker left */
    struct vg_list queue, failed;
    struct vg_map queued; /* what is in a list or being uploaded: struct vg_eb_item by its path */
    struct vg_map flying; /* keys that are being uploaded -> themselves */
    unsigned workers, active;
    uint64_t failures, rounds; /* rounds: of vg_estore_settle */
    struct vg_err last;        /* of the latest failure */
    bool stop, forgot;         /* forgot: something could not be put into the queue */
};
struct vg_eb_item {
    struct vg_list link;
    char path[]; /* "dat/xx/<name>", or of a version "env/..." */
};

/* estore-bucket.c */
void vg_eb_leave(struct vg_estore *s);
void vg_eb_stats(struct vg_estore *s, struct vg_estore_stat *ret); /* locked */
void vg_eb_stored(struct vg_estore *s, const char *path);          /* locked: it has to go up */
int vg_eb_rescan(struct vg_estore *s); /* whatever has no mark goes up */
/* What a mark says. -ENOENT: there is none. */
int vg_eb_mark(struct vg_estore *s, const char *path, char suffix[VG_EB_SUFFIX + 1],
               uint64_t *ret_size);
int vg_eb_set_mark(struct vg_estore *s, const char *path, const char *suffix, uint64_t size,
                   uint64_t gen); /* locked; replaces one */
char *vg_eb_key(const struct vg_estore *s, const char *path, const char *suffix);
int vg_eb_put_ref(struct vg_estore *s, const char *path, const void *data, size_t n,
                  struct vg_err *err);
int vg_eb_drop_ref(struct vg_estore *s, const char *path, struct vg_err *err);

/* estore-fetch.c: a descriptor of the content, which is fetched when it is not here. */
int vg_eb_open(struct vg_estore *s, enum vg_ekind kind, const uint8_t hash[VG_HASH],
               const char *path);
void vg_eb_evict(struct vg_estore *s);

/* estore-adopt.c. Without a bucket they do nothing. */
int vg_eb_compare(struct vg_estore *s,
                  struct vg_err *err); /* takes over what only the bucket has */
/* Removes what nothing holds unless it is as young as `limit`. */
int vg_eb_sweep(struct vg_estore *s, const char *top, const char *name, uint64_t limit,
                struct vg_egc_stat *st);
void vg_eb_delete_swept(struct vg_estore *s);
int vg_eb_adopt(struct vg_estore *s, bool verify, struct vg_err *err);
int vg_eb_adopt_refs(struct vg_estore *s, struct vg_err *err);
