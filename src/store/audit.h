#pragma once
/* The audit log as a chain: every entry has a hash over the hash before it and its own words, so
   that nothing in it can be changed, taken out or put in unseen. What is cut off at the end is seen
   by whoever has noted a later hash elsewhere.

   hash(n) = SHA-256(hash(n - 1) | n | when_usec | len(who) who | len(what) what | len(from) from),
   numbers with 8 bytes, lengths with 4, most significant first; hash(0) is 32 zero bytes. */
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VG_AUDIT_HASH 32

struct vg_audit_check {
    uint64_t entries; /* that were looked at */
    uint64_t broken;  /* the number of the first that does not fit; 0: all do */
    bool gap;         /* it should have been another number: something is missing before it */
    bool head_found;  /* the hash that was asked for is in the chain */
    uint8_t head[VG_AUDIT_HASH]; /* of the newest entry that fits */
};

/* Walks the whole chain of the database at `path`, on a connection of its own: for any thread, and
   it takes as long as the log is. `head` may be NULL. */
int vg_audit_check(const char *path, const uint8_t *head, struct vg_audit_check *ret,
                   struct vg_err *err);

/* As vg_store_load_audit, on a connection of its own: for any thread. Looking for what is rare
   reads the whole log. */
struct vg_audit_filter;
struct vg_audit_row;
int vg_audit_scan(const char *path, const struct vg_audit_filter *f,
                  int (*cb)(void *, const struct vg_audit_row *), void *arg);

struct vg_audit_words {
    uint64_t seq, when_usec;
    const char *who, *what, *from;
    size_t n_who, n_what, n_from;
};
int vg_audit_hash(const uint8_t last[static VG_AUDIT_HASH], const struct vg_audit_words *w,
                  uint8_t ret[static VG_AUDIT_HASH]); /* 0 or -EIO */
