#pragma once
/* Snapshots on the control plane's disk: everything of one user, content-addressed. Files are named
   by HMACs under the user's own key, so that nobody learns from names what anybody has, and a
   user's folder is never looked into on behalf of another (vg_eref_shared lets readers in by
   version, never by hash).

       dir/key              32 random bytes
       dir/dat/xx/<name>    a file's content, by its file id
       dir/rec/xx/<name>    a folder of a snapshot (snaprec.h), by its hash
       dir/env/<name>/<n>   version n of an environment: a text of `key value` lines
       dir/env/<name>/teams who else may read it, a team a line
       dir/hold/<id>        what a task needs: the same text
       dir/gen              number of collections begun
       dir/tmp/             what is being written; emptied at open

   With a bucket (vg_estore_join) it has everything, too, and the folder may lack contents; see
   estore-bucket.h.

   One process owns the folder (the caller sees to it). Thread-safe.

   What a collection never removes: (1) what a version, a hold, or a root held in memory reaches;
   (2) what a session stored or found present since it began. For (2) an object's mtime is the
   collection's number at the time it was last stored or found, not a time of the clock; a
   collection removes only unreached objects older than every session (estore-gc.c). */
#include "base/buf.h"
#include "base/err.h"
#include "mirror/stamp.h"

#define VG_ENV_NAME_MAX 200
#define VG_ENV_VERSIONS_MAX 10000
#define VG_ENV_CONFIG_MAX (256u << 10)
#define VG_SNAP_REC_MAX (72u << 20)
#define VG_SNAP_DEPTH_MAX 1000

struct vg_estore;
enum vg_ekind { VG_E_DATA, VG_E_REC };

/* Makes the folder when there is none. quota_bytes 0: none. */
int vg_estore_open(const char *dir, uint64_t quota_bytes, struct vg_estore **ret,
                   struct vg_err *err);
/* Before anything else is done with it: what is stored goes to a bucket, below u/<user>/, and what
   lies here is a cache of it, of about cache_bytes (0: no limit). A store that is new here and
   known there is taken over from there. The bucket must outlive the store. */
struct vg_s3;
int vg_estore_join(struct vg_estore *s, struct vg_s3 *bucket, const char *user,
                   uint64_t cache_bytes, struct vg_err *err);
/* One cloud has a bucket's prefix for itself; `dir` remembers which cloud this is. Makes a place in
   dir/u for every user whom the bucket knows. */
int vg_estore_claim(struct vg_s3 *bucket, const char *dir, struct vg_err *err);
/* All that is stored by now is in the bucket, or why not. Without a bucket: 0. */
int vg_estore_settle(struct vg_estore *s, struct vg_err *err);
void vg_estore_close(struct vg_estore *s); /* sessions must have ended */
struct vg_estore_stat {
    uint64_t bytes, objects, quota_bytes;
    uint32_t sessions;
    uint64_t waiting;      /* objects that the bucket does not have yet */
    uint64_t cached_bytes; /* of contents that lie here and in the bucket */
};
void vg_estore_stats(struct vg_estore *s, struct vg_estore_stat *ret);

/* The sentence for -EDQUOT; returns its code. */
int vg_estore_over_quota(struct vg_estore *s, struct vg_err *err);

/* While a session lives nothing that it stored or found is collected. NULL: no memory. */
struct vg_esession;
struct vg_esession *vg_esession_begin(struct vg_estore *s);
void vg_esession_end(struct vg_esession *e);

/* Is it there? Then it stays at least as long as the sessions that live now. */
bool vg_estore_has(struct vg_estore *s, enum vg_ekind kind, const uint8_t hash[VG_HASH]);
/* For pread and mmap: a descriptor of the caller's, or -errno. */
int vg_estore_open_data(struct vg_estore *s, const uint8_t id[VG_HASH]);
/* Stores the bytes of a snapshot's folder under SHA-256 of them. -EDQUOT. */
int vg_estore_put_rec(struct vg_estore *s, const void *data, size_t n, uint8_t ret_hash[VG_HASH]);
/* Appends them to an empty buffer. -EBADMSG: they are not what their name says. */
int vg_estore_get_rec(struct vg_estore *s, const uint8_t hash[VG_HASH], struct vg_buf *out);

/* A file that comes in, leaf by leaf, in any order, from one thread. */
struct vg_einto;
int vg_einto_new(struct vg_estore *s, uint64_t size, struct vg_einto **ret); /* -EDQUOT, ... */
/* Whole leaves (except at the end). 1 when all are there now, 0, -EINVAL: not whole leaves or
   beyond the end. A leaf that came before is ignored. */
int vg_einto_write(struct vg_einto *w, uint64_t off, const void *data, size_t n);
bool vg_einto_has(const struct vg_einto *w, uint64_t leaf);
int vg_einto_read(struct vg_einto *w, uint64_t off, void *data, size_t n); /* of leaves it has */
/* Stores the complete file and tells its id; the writer stays to be freed. */
int vg_einto_keep(struct vg_einto *w, uint8_t ret_id[VG_HASH]);
void vg_einto_free(struct vg_einto *w);

/* A version of an environment, or what a task holds. */
struct vg_eversion {
    uint32_t version; /* from 1; of a hold: 0 */
    uint8_t root[VG_HASH];
    uint64_t created_usec; /* wall */
    uint64_t files, bytes;
    uint32_t missing; /* files whose content is not in it: denied, or never came */
    char source[300]; /* where it came from, for people */
    char *config;     /* owned; an OCI image's configuration, or NULL */
};
void vg_eversion_done(struct vg_eversion *v);
/* Letters, digits and ._-/:@+ (no "..", no leading '.' or '/'); -EINVAL. */
int vg_env_name_check(const char *name, struct vg_err *err);
/* NAME, NAME@7 (0: the newest); *ret_owner is "" unless it is OWNER//NAME. */
int vg_env_ref_parse(const char *ref, char owner[VG_ENV_NAME_MAX + 1],
                     char name[VG_ENV_NAME_MAX + 1], uint32_t *ret_version, struct vg_err *err);
/* Everything reached must be stored already; it is made durable first. Fills in v->version. */
int vg_eref_add(struct vg_estore *s, const char *name, struct vg_eversion *v, struct vg_err *err);
int vg_eref_get(struct vg_estore *s, const char *name, uint32_t version, struct vg_eversion *ret,
                struct vg_err *err);
/* version 0: all of them. */
int vg_eref_remove(struct vg_estore *s, const char *name, uint32_t version, struct vg_err *err);
/* In no order; a negative return ends it. */
int vg_eref_each(struct vg_estore *s,
                 int (*each)(void *user, const char *name, const struct vg_eversion *v),
                 void *user);
int vg_eref_share(struct vg_estore *s, const char *name, const char *team, bool on,
                  struct vg_err *err);
bool vg_eref_shared(struct vg_estore *s, const char *name, const char *team);

/* A task's own hold, durable. `id` is hex digits and '-'. */
int vg_ehold_set(struct vg_estore *s, const char *id, const struct vg_eversion *v,
                 struct vg_err *err);
int vg_ehold_get(struct vg_estore *s, const char *id, struct vg_eversion *ret);
int vg_ehold_drop(struct vg_estore *s, const char *id);
int vg_ehold_each(struct vg_estore *s,
                  int (*each)(void *user, const char *id, const struct vg_eversion *v), void *user);
/* A root that is being served: held in memory until the same is let go. */
int vg_estore_hold_root(struct vg_estore *s, const uint8_t root[VG_HASH]);
void vg_estore_drop_root(struct vg_estore *s, const uint8_t root[VG_HASH]);

struct vg_egc_stat {
    uint64_t marked, removed, removed_bytes, kept_young;
    bool again; /* another was asked for while this one ran, and got -EBUSY; of a failure, too */
};
/* Collects. Long; sessions go on meanwhile. A record that cannot be read ends it before anything is
   removed. */
int vg_estore_gc(struct vg_estore *s, struct vg_egc_stat *ret, struct vg_err *err);
/* Reads all that `root` reaches and compares it with its names. -EBADMSG, -ENOENT and a sentence.
 */
int vg_estore_check(struct vg_estore *s, const uint8_t root[VG_HASH], struct vg_err *err);
