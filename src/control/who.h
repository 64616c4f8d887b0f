#pragma once
/* Who is at the other end. Unix peers are named by the kernel; others by an API token, a task's
   token or a node's certificate. The decision itself (vg_who_decide) is pure. */
#include "base/err.h"
#include "conf/conf.h"
#include "model/tenant.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct vg_control;
struct vg_peer;

#define VG_WHO_GROUPS_MAX 256

struct vg_who {
    char user[VG_TENANT_NAME_MAX + 1]; /* "": not known yet */
    bool local;                        /* uid, gid and groups are the kernel's word */
    bool admin;                        /* root of this machine, or the one virgad runs as */
    uid_t uid;
    gid_t gid;
    uint32_t *groups; /* owned */
    size_t n_groups;
    uint64_t parent; /* not 0: speaks from inside this task */
    char key[17];    /* of the token it came with; "": without */
    unsigned scope;  /* enum vg_scope: what it may do of what its user may */
    char from[64];   /* for people: an address, "local", "task 3f2a..." */
};

/* An account of this machine, as the passwd and group databases have it. */
struct vg_account {
    uid_t uid;
    gid_t gid;
    char *name;               /* owned */
    char *home;               /* owned */
    struct vg_strings groups; /* names */
    uint64_t read_usec;
};

enum vg_entry {
    VG_ENTRY_NO,
    VG_ENTRY_ADMIN,  /* root, or virgad's own uid */
    VG_ENTRY_USER,   /* a user record carries the uid */
    VG_ENTRY_ACCESS, /* access.users or access.groups of the configuration */
};
/* Whether a local uid comes in without a token, and by which rule. */
enum vg_entry vg_who_decide(const struct vg_conf *conf, const struct vg_tenants *tenants,
                            const struct vg_account *account, uid_t own_uid);

/* Reads the credentials of an accepted unix socket into *ret (no user yet). */
int vg_who_from_socket(int fd, struct vg_who *ret);
/* Notes where an accepted TCP connection comes from. */
void vg_who_from_address(int fd, struct vg_who *ret);
void vg_who_done(struct vg_who *w);

/* Settles who a peer is: `token` is what its Hello held, NULL or "" for none. Sentences: FORBIDDEN,
   UNAUTHENTICATED. Makes a user record for an account that is let in for the first time. */
int vg_who_settle(struct vg_control *c, struct vg_peer *p, const char *token, struct vg_err *err);

/* The machine's account of that uid, cached for a minute; NULL: none. */
const struct vg_account *vg_account_get(struct vg_control *c, uid_t uid);
void vg_account_free(struct vg_account *a);
